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

use periscope_core::{Access, Comparison, Direction, Element, KernelId, ObjectId, ObjectRegion, Predicate, TaskId};

use crate::context::Context;
use crate::error::Error;
use crate::tensor::Tensor;

/// The arguments of a task that is being put together. Reused from task to task.
#[derive(Default)]
pub(crate) struct Draft {
    pub(crate) kernels: Vec<KernelId>,
    pub(crate) accesses: Vec<Access<ObjectRegion>>,
    pub(crate) scalars: Vec<u64>,
    pub(crate) after: Vec<TaskId>,
    pub(crate) predicate: Option<Predicate<ObjectRegion>>,
    pub(crate) error: Option<Error>,
}

impl Draft {
    pub(crate) fn restart(&mut self, kernels: &[KernelId]) {
        self.kernels.clear();
        self.kernels.extend_from_slice(kernels);
        self.accesses.clear();
        self.scalars.clear();
        self.after.clear();
        self.predicate = None;
        self.error = None;
    }

    /// Remembers the first argument that cannot be used.
    #[cold]
    pub(crate) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }
}

/// A task that is being put together, in the context's own lists. Nothing happens until [`TaskBuilder::submit`].
#[must_use = "a task does nothing until it is submitted"]
pub struct TaskBuilder<'c, 'run> {
    context: &'c mut Context<'run>,
    blocks: u32,
    tag: u32,
    start_together: bool,
}

impl std::fmt::Debug for TaskBuilder<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskBuilder").field("args", &self.context.draft.accesses.len()).finish_non_exhaustive()
    }
}

impl<'c, 'run> TaskBuilder<'c, 'run> {
    pub(crate) fn new(context: &'c mut Context<'run>, kernels: &[KernelId]) -> Self {
        context.draft.restart(kernels);
        TaskBuilder { context, blocks: 1, tag: 0, start_together: false }
    }

    #[inline]
    fn arg(self, tensor: &Tensor, direction: Direction, split_dim: Option<u8>) -> Self {
        match self.context.object_of(tensor) {
            Ok(object) => {
                let tensor = ObjectRegion { object: ObjectId(object), region: tensor.region };
                self.context.draft.accesses.push(Access { tensor, direction, split_dim });
            }
            Err(error) => self.context.draft.fail(error),
        }
        self
    }

    /// Next argument: read.
    #[inline]
    pub fn input(self, tensor: impl AsRef<Tensor>) -> Self {
        self.arg(tensor.as_ref(), Direction::In, None)
    }

    /// Next argument: written, without regard to what was there.
    #[inline]
    pub fn output(self, tensor: impl AsRef<Tensor>) -> Self {
        self.arg(tensor.as_ref(), Direction::Out, None)
    }

    /// Next argument: read and written.
    #[inline]
    pub fn inout(self, tensor: impl AsRef<Tensor>) -> Self {
        self.arg(tensor.as_ref(), Direction::InOut, None)
    }

    /// Next argument, of which block `i` gets the `i`-th equal part of dimension `dim`.
    #[inline]
    pub fn split(self, direction: Direction, tensor: impl AsRef<Tensor>, dim: u8) -> Self {
        self.arg(tensor.as_ref(), direction, Some(dim))
    }

    /// Next scalar.
    #[inline]
    pub fn scalar(self, value: u64) -> Self {
        self.context.draft.scalars.push(value);
        self
    }

    /// Wait for `task` too, whatever the bytes imply.
    #[inline]
    pub fn after(self, task: TaskId) -> Self {
        self.context.draft.after.push(task);
        self
    }

    /// Run the kernel once per block index.
    #[inline]
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
    pub fn only_if<T: Element>(self, tensor: impl AsRef<Tensor>, comparison: Comparison, constant: T) -> Self {
        let tensor = tensor.as_ref();
        let located = self.context.locate(tensor).and_then(|located| {
            self.context.check_dtype::<T>(located.object.0, &located.region)?;
            Ok(located)
        });
        match located {
            Ok(tensor) => {
                let constant_bits = constant.to_bits64();
                self.context.draft.predicate = Some(Predicate { tensor, comparison, constant_bits });
            }
            Err(error) => self.context.draft.fail(error),
        }
        self
    }

    /// A number for the submitter's own use: shown in messages, traces and drawings.
    #[inline]
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = tag;
        self
    }

    /// Submits the task.
    ///
    /// # Errors
    /// The first of its arguments that cannot be used, or [`ErrorKind::Submit`](crate::ErrorKind::Submit) with the cause; nothing has
    /// changed then.
    #[inline]
    pub fn submit(self) -> Result<TaskId, Error> {
        self.context.submit_draft(self.blocks, self.start_together, self.tag)
    }
}
