//! The typed front of submitting a task: reads like a call.
//!
//! ```no_run
//! # use periscope::{Context, Error, KernelId, Tensor};
//! # const SOFTMAX: KernelId = KernelId(1);
//! # fn f(ctx: &mut Context<'_>, scores: Tensor, probs: Tensor, valid: u64) -> Result<(), Error> {
//! let softmax = ctx.task(SOFTMAX).input(scores).output(probs).scalar(valid).submit()?;
//! ctx.join().after(softmax).submit()?;
//! # Ok(()) }
//! ```

use periscope_core::{Access, Comparison, Direction, Element, KernelId, Predicate, TaskDesc, TaskId};

use crate::context::{Context, Draft};
use crate::error::Error;
use crate::tensor::Tensor;

/// A task that is being put together. Nothing happens until [`TaskBuilder::submit`].
#[must_use = "a task does nothing until it is submitted"]
pub struct TaskBuilder<'c, 'run> {
    context: &'c mut Context<'run>,
    draft: Draft,
    blocks: u32,
    start_together: bool,
    tag: u32,
}

impl std::fmt::Debug for TaskBuilder<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskBuilder").field("args", &self.draft.accesses.len()).finish_non_exhaustive()
    }
}

impl<'c, 'run> TaskBuilder<'c, 'run> {
    pub(crate) fn new(context: &'c mut Context<'run>, kernels: &[KernelId]) -> Self {
        let mut draft = std::mem::take(&mut context.draft);
        draft.kernels.clear();
        draft.kernels.extend_from_slice(kernels);
        draft.accesses.clear();
        draft.scalars.clear();
        draft.after.clear();
        draft.predicate = None;
        draft.error = None;
        TaskBuilder { context, draft, blocks: 1, start_together: false, tag: 0 }
    }

    fn arg(mut self, tensor: &Tensor, direction: Direction, split_dim: Option<u8>) -> Self {
        match self.context.locate(tensor) {
            Ok(tensor) => self.draft.accesses.push(Access { tensor, direction, split_dim }),
            Err(error) => {
                self.draft.error.get_or_insert(error);
            }
        }
        self
    }

    /// Next argument: read.
    pub fn input(self, tensor: impl AsRef<Tensor>) -> Self {
        self.arg(tensor.as_ref(), Direction::In, None)
    }

    /// Next argument: written, without regard to what was there.
    pub fn output(self, tensor: impl AsRef<Tensor>) -> Self {
        self.arg(tensor.as_ref(), Direction::Out, None)
    }

    /// Next argument: read and written.
    pub fn inout(self, tensor: impl AsRef<Tensor>) -> Self {
        self.arg(tensor.as_ref(), Direction::InOut, None)
    }

    /// Next argument, of which block `i` gets the `i`-th equal part of dimension `dim`.
    pub fn split(self, direction: Direction, tensor: impl AsRef<Tensor>, dim: u8) -> Self {
        self.arg(tensor.as_ref(), direction, Some(dim))
    }

    /// Next scalar.
    pub fn scalar(mut self, value: u64) -> Self {
        self.draft.scalars.push(value);
        self
    }

    /// Wait for `task` too, whatever the bytes imply.
    pub fn after(mut self, task: TaskId) -> Self {
        self.draft.after.push(task);
        self
    }

    /// Run the kernel once per block index.
    pub fn blocks(mut self, blocks: u32) -> Self {
        self.blocks = blocks;
        self
    }

    /// Start all blocks together, so that they may wait for each other.
    pub fn start_together(mut self) -> Self {
        self.start_together = true;
        self
    }

    /// Run the kernel only if the one element of `tensor`, read on the device when the task would start, compares so.
    pub fn only_if<T: Element>(mut self, tensor: impl AsRef<Tensor>, comparison: Comparison, constant: T) -> Self {
        let tensor = tensor.as_ref();
        if tensor.dtype() != T::DTYPE {
            let problem =
                format!("the predicate compares an element of {} with a constant of {}", tensor.dtype(), T::DTYPE);
            self.draft.error.get_or_insert(Error::orchestration(problem));
            return self;
        }
        match self.context.locate(tensor) {
            Ok(tensor) => {
                self.draft.predicate = Some(Predicate { tensor, comparison, constant_bits: constant.to_bits64() })
            }
            Err(error) => {
                self.draft.error.get_or_insert(error);
            }
        }
        self
    }

    /// A number for the submitter's own use: shown in messages, traces and drawings.
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = tag;
        self
    }

    /// Submits the task.
    ///
    /// # Errors
    /// The first of its arguments that cannot be used, or [`ErrorKind::Submit`](crate::ErrorKind::Submit) with the cause; nothing has
    /// changed then.
    pub fn submit(mut self) -> Result<TaskId, Error> {
        let result = match self.draft.error.take() {
            Some(error) => Err(self.context.fail(error)),
            None => self.context.check_latch().and_then(|()| {
                self.context.submit_located(&TaskDesc {
                    kernels: &self.draft.kernels,
                    accesses: &self.draft.accesses,
                    scalars: &self.draft.scalars,
                    after: &self.draft.after,
                    blocks: self.blocks,
                    start_together: self.start_together,
                    blocks_disjoint_by_promise: false,
                    predicate: self.draft.predicate,
                    tag: self.tag,
                })
            }),
        };
        self.context.draft = self.draft;
        result
    }
}
