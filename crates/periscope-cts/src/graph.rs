//! Small graphs in few words.

use std::sync::Arc;

use periscope_core::graph::{EntryWrites, GraphBuilder, GraphLimits};
use periscope_core::image::Image;
use periscope_core::task::{Access, Direction, KernelId, ObjectRegion, Predicate, TaskDesc};
use periscope_core::{DType, ObjectId, Region, TaskId};

use crate::clause::Stop;
use crate::stand::{Mem, Stand};

/// A graph being built.
pub(crate) struct Graph {
    builder: GraphBuilder,
}

/// A graph to launch, as often as wanted.
pub(crate) struct Frozen {
    pub(crate) image: Arc<Image>,
}

/// A task before it is submitted. The default is a join.
#[derive(Default)]
pub(crate) struct Task<'a> {
    pub(crate) kernels: &'a [u16],
    pub(crate) accesses: &'a [Access<ObjectRegion>],
    pub(crate) scalars: &'a [u64],
    pub(crate) after: &'a [TaskId],
    /// 0 stands for 1.
    pub(crate) blocks: u32,
    pub(crate) start_together: bool,
    pub(crate) by_promise: bool,
    pub(crate) predicate: Option<Predicate<ObjectRegion>>,
    pub(crate) tag: u32,
}

impl Graph {
    pub(crate) fn new(stand: &Stand) -> Graph {
        let geometry = stand.device.info().geometry;
        let mut builder = GraphBuilder::new(GraphLimits {
            cube_cores: geometry.clusters,
            vector_cores: geometry.vector_cores,
            ..GraphLimits::default()
        });
        builder.begin(stand.kernels.iter().map(|kernel| kernel.signature().clone()).collect());
        Graph { builder }
    }

    /// The next memory of the graph.
    pub(crate) fn object(&mut self, mem: Mem) -> ObjectId {
        self.builder.add_external(mem.len, EntryWrites::Allowed)
    }

    /// The next memory of the graph: the graph's own, all of it one object.
    pub(crate) fn graph_object(&mut self, len: u64) -> ObjectId {
        let segment = self.builder.add_segment(len);
        self.builder.add_graph_object(segment, 0, len)
    }

    pub(crate) fn task(&mut self, task: &Task<'_>) -> Result<TaskId, Stop> {
        let kernels: Vec<KernelId> = task.kernels.iter().copied().map(KernelId).collect();
        Ok(self.builder.submit(&TaskDesc {
            kernels: &kernels,
            accesses: task.accesses,
            scalars: task.scalars,
            after: task.after,
            blocks: task.blocks.max(1),
            start_together: task.start_together,
            blocks_disjoint_by_promise: task.by_promise,
            predicate: task.predicate,
            tag: task.tag,
        })?)
    }

    pub(crate) fn freeze(mut self) -> Frozen {
        Frozen { image: Arc::new(self.builder.freeze(None)) }
    }
}

/// Elements `first..first + len` of an object of `dtype`.
pub(crate) fn elems(object: ObjectId, dtype: DType, first: u64, len: u64) -> ObjectRegion {
    let mut region = Region::contiguous(dtype, &[len]).expect("a short row");
    region.offset_elems = first;
    ObjectRegion { object, region }
}

/// Words `first..first + len` of an object, as an argument.
pub(crate) fn words(object: ObjectId, first: u64, len: u64, direction: Direction) -> Access<ObjectRegion> {
    Access { tensor: elems(object, DType::U64, first, len), direction, split_dim: None }
}

pub(crate) fn read(object: ObjectId, first: u64, len: u64) -> Access<ObjectRegion> {
    words(object, first, len, Direction::In)
}

pub(crate) fn write(object: ObjectId, first: u64, len: u64) -> Access<ObjectRegion> {
    words(object, first, len, Direction::Out)
}

pub(crate) fn update(object: ObjectId, first: u64, len: u64) -> Access<ObjectRegion> {
    words(object, first, len, Direction::InOut)
}
