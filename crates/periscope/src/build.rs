//! What a build knows of the memory that its graph is about: allocations that were passed in or captured, staged tensors, and
//! memory of the graph's own; and how the orchestrator reaches their bytes.

use std::sync::Arc;

use periscope_core::ObjectId;
use periscope_core::graph::GraphBuilder;
use periscope_memory::{Allocation, Hold, Overlay};

use crate::arena::GraphArena;
use crate::arg::StagedBytes;
use crate::error::Error;

/// How the orchestrator reaches an object's bytes, from its first touch on.
pub(crate) enum Host<'run> {
    Resident(Hold),
    Staged { base: StagedBytes<'run>, overlay: Overlay },
    Graph { overlay: Overlay },
}

pub(crate) const NO_HOST: u32 = u32::MAX;

/// Memory that was passed in or captured.
pub(crate) struct External {
    pub(crate) name: Arc<str>,
    pub(crate) kind: ExternalKind,
    /// Position in `hosts`, or [`NO_HOST`].
    pub(crate) host: u32,
}

pub(crate) enum ExternalKind {
    Resident(Arc<Allocation>),
    /// The argument's position. Its host side exists from the start.
    Staged(usize),
}

/// What an object of the graph is to the runtime.
#[derive(Clone, Copy)]
pub(crate) enum Object {
    External(u32),
    /// Graph memory; the position in `hosts` of what the orchestrator wrote to it, or [`NO_HOST`].
    Graph {
        host: u32,
    },
}

/// The graph being built and the memory that it is about.
pub(crate) struct Build {
    pub(crate) graph: GraphBuilder,
    pub(crate) objects: Vec<Object>,
    pub(crate) externals: Vec<External>,
    /// By allocation slot: generation and object. Finds a resident tensor's object without hashing.
    pub(crate) slots: Vec<(u64, u32)>,
    pub(crate) arena: GraphArena,
}

impl Build {
    /// For messages.
    pub(crate) fn name_of(&self, object: u32) -> String {
        match self.objects[object as usize] {
            Object::External(external) => self.externals[external as usize].name.to_string(),
            Object::Graph { .. } => format!("graph memory {object}"),
        }
    }
}

/// What is left of a build when its orchestration has returned.
pub(crate) struct Built<'run> {
    pub(crate) graph: GraphBuilder,
    pub(crate) externals: Vec<External>,
    /// The object of each external.
    pub(crate) external_objects: Vec<ObjectId>,
    pub(crate) arena: GraphArena,
    pub(crate) hosts: Vec<Host<'run>>,
    /// Objects of graph memory that the orchestrator wrote, with their position in `hosts`.
    pub(crate) graph_hosts: Vec<(ObjectId, usize)>,
    pub(crate) latched: Option<Error>,
}

impl External {
    /// Position in [`Built::hosts`], if the orchestrator touched it (or it is staged).
    pub(crate) fn host(&self) -> Option<usize> {
        (self.host != NO_HOST).then_some(self.host as usize)
    }
}
