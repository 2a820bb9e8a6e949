//! Callables: an orchestration, its kernels, and a signature.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use periscope_core::{Direction, KernelId, KernelSignature};
use periscope_hal::Kernel;

use crate::context::Context;
use crate::error::Error;
use crate::tensor::Tensor;

/// An entry tensor of a callable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// For messages and reports.
    pub name: String,
    /// What a run does with it.
    pub direction: Direction,
}

/// The function that builds a graph. `args` are the entry tensors, in the order of the signature.
pub type Orchestration = dyn Fn(&mut Context<'_>, &[Tensor]) -> Result<(), Error> + Send + Sync;

pub(crate) struct CallableInner {
    /// Never reused within the process: devices remember by it which kernels they have loaded.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) signatures: Arc<[KernelSignature]>,
    pub(crate) orchestration: Box<Orchestration>,
}

/// An orchestration, its kernels, and a direction for each entry tensor. Cloning it clones a handle.
#[derive(Clone)]
pub struct Callable {
    pub(crate) inner: Arc<CallableInner>,
}

impl Callable {
    /// Starts describing a callable.
    pub fn builder(name: impl Into<String>) -> CallableBuilder {
        CallableBuilder { name: name.into(), params: Vec::new(), kernels: Vec::new() }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its entry tensors.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.inner.params
    }
}

impl fmt::Debug for Callable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callable")
            .field("name", &self.inner.name)
            .field("params", &self.inner.params)
            .finish_non_exhaustive()
    }
}

/// See [`Callable::builder`].
#[derive(Debug)]
pub struct CallableBuilder {
    name: String,
    params: Vec<Param>,
    kernels: Vec<Kernel>,
}

impl CallableBuilder {
    fn param(mut self, name: &str, direction: Direction) -> Self {
        self.params.push(Param { name: name.into(), direction });
        self
    }

    /// Next entry tensor: read by tasks. (The orchestration may still write it: the tasks see that, the caller does not.)
    #[must_use]
    pub fn input(self, name: &str) -> Self {
        self.param(name, Direction::In)
    }

    /// Next entry tensor: written by tasks.
    #[must_use]
    pub fn output(self, name: &str) -> Self {
        self.param(name, Direction::Out)
    }

    /// Next entry tensor: read and written by tasks.
    #[must_use]
    pub fn inout(self, name: &str) -> Self {
        self.param(name, Direction::InOut)
    }

    /// Registers a kernel under the next id: the first is `KernelId(0)`.
    ///
    /// # Panics
    /// If another id comes next.
    #[must_use]
    pub fn kernel(mut self, id: KernelId, kernel: Kernel) -> Self {
        assert_eq!(usize::from(id.0), self.kernels.len(), "kernels are registered under consecutive ids, from 0");
        self.kernels.push(kernel);
        self
    }

    /// Completes the callable with its orchestration.
    pub fn orchestrate(
        self,
        orchestration: impl Fn(&mut Context<'_>, &[Tensor]) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Callable {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Callable {
            inner: Arc::new(CallableInner {
                id: NEXT.fetch_add(1, Relaxed),
                name: self.name,
                params: self.params,
                signatures: self.kernels.iter().map(|kernel| kernel.signature().clone()).collect(),
                kernels: self.kernels,
                orchestration: Box::new(orchestration),
            }),
        }
    }
}
