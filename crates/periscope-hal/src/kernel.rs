//! Kernels and what they are called with.
//!
//! A host kernel is a safe function over [`KernelArgs`]. It may rely on the signature that it was registered with: the
//! graph refused every task that does not fit. It takes each argument when it needs it; what it takes is typed, strided,
//! and disjoint from everything that another task or block may touch at the same time.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use periscope_core::image::{AccessRecord, Image, LayoutRecord, NO_SPLIT, TASK_BLOCKS_BY_PROMISE, TASK_PREDICATED};
use periscope_core::task::{CoreKind, Direction, KernelParam, KernelSignature};
use periscope_core::{DType, Element};

use crate::strided::{Dims, Strided, StridedMut};

/// Why a kernel failed, in its own words. Becomes the run's error, with task and kernel named.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct KernelError(pub String);

impl From<String> for KernelError {
    fn from(message: String) -> Self {
        KernelError(message)
    }
}
impl From<&str> for KernelError {
    fn from(message: &str) -> Self {
        KernelError(message.into())
    }
}
impl From<periscope_core::LayoutError> for KernelError {
    fn from(error: periscope_core::LayoutError) -> Self {
        KernelError(error.to_string())
    }
}

/// The function of a kernel that runs on host threads.
pub type HostKernel = dyn Fn(&KernelArgs<'_>) -> Result<(), KernelError> + Send + Sync;

/// The most tensor arguments of a kernel. (A join, which has no kernel, takes any number.)
pub const MAX_KERNEL_ARGS: usize = 64;

/// A kernel: its signature and the forms in which platforms can run it.
#[derive(Clone)]
pub struct Kernel {
    signature: KernelSignature,
    host: Arc<HostKernel>,
}

impl Kernel {
    /// A kernel that runs on host threads, for the simulator. Arguments are added with [`Kernel::input`] and its like, in order.
    pub fn host(
        name: &str,
        core: CoreKind,
        body: impl Fn(&KernelArgs<'_>) -> Result<(), KernelError> + Send + Sync + 'static,
    ) -> Kernel {
        Kernel {
            signature: KernelSignature { name: name.into(), core, params: Vec::new(), scalars: 0 },
            host: Arc::new(body),
        }
    }

    fn param(mut self, direction: Direction, dtype: Option<DType>, optional: bool) -> Kernel {
        self.signature.params.push(KernelParam { direction, dtype, optional });
        self
    }

    /// Next argument: a tensor of `T` that the kernel reads.
    #[must_use]
    pub fn input<T: Element>(self) -> Kernel {
        self.param(Direction::In, Some(T::DTYPE), false)
    }

    /// Next argument: a tensor of `T` that the kernel writes.
    #[must_use]
    pub fn output<T: Element>(self) -> Kernel {
        self.param(Direction::Out, Some(T::DTYPE), false)
    }

    /// Next argument: a tensor of `T` that the kernel reads and writes.
    #[must_use]
    pub fn inout<T: Element>(self) -> Kernel {
        self.param(Direction::InOut, Some(T::DTYPE), false)
    }

    /// Next argument: a tensor of any element type.
    #[must_use]
    pub fn any(self, direction: Direction) -> Kernel {
        self.param(direction, None, false)
    }

    /// Next argument: a tensor of `T` that a task may leave out, with all after it.
    #[must_use]
    pub fn optional_output<T: Element>(self) -> Kernel {
        self.param(Direction::Out, Some(T::DTYPE), true)
    }

    /// How many scalars the kernel takes.
    #[must_use]
    pub fn scalars(mut self, count: usize) -> Kernel {
        self.signature.scalars = count;
        self
    }

    /// Name, core kind, arguments.
    #[must_use]
    pub fn signature(&self) -> &KernelSignature {
        &self.signature
    }

    /// The form that runs on host threads.
    #[must_use]
    pub fn host_body(&self) -> &Arc<HostKernel> {
        &self.host
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.signature).finish()
    }
}

thread_local! {
    static EXECUTES_KERNELS: Cell<bool> = const { Cell::new(false) };
}

/// Says that the calling thread does nothing but execute kernels from now on. What would wait for a run to end can then
/// refuse to be called from a kernel, where it would wait for itself.
pub fn mark_kernel_thread() {
    EXECUTES_KERNELS.set(true);
}

/// Whether the calling thread was marked by [`mark_kernel_thread`]: whoever asks is a kernel.
#[must_use]
pub fn on_kernel_thread() -> bool {
    EXECUTES_KERNELS.get()
}

/// Where co-resident blocks wait for each other.
pub trait BlockBarrier: Sync {
    /// Waits until every block of the task has come here as often as this one.
    ///
    /// # Errors
    /// If a block of the task failed and will never come.
    fn wait(&self) -> Result<(), KernelError>;
}

/// Where the memories of a launch begin, as the executing threads see them.
#[derive(Clone, Copy, Debug)]
pub struct Bases<'a>(&'a [*mut u8]);

// SAFETY: addresses; what may be done at them is settled per task where `KernelArgs::new` is called.
unsafe impl Send for Bases<'_> {}
// SAFETY: as above.
unsafe impl Sync for Bases<'_> {}

impl<'a> Bases<'a> {
    /// One address per memory of the image.
    #[must_use]
    pub fn new(addresses: &'a [*mut u8]) -> Self {
        Bases(addresses)
    }
}

/// The arguments of one block of one lane of a task.
pub struct KernelArgs<'a> {
    image: &'a Image,
    bases: Bases<'a>,
    task: usize,
    block: u32,
    lane: u32,
    barrier: Option<&'a dyn BlockBarrier>,
    /// The task's tensor arguments.
    accesses: &'a [AccessRecord],
    layouts: &'a [LayoutRecord],
    blocks: u32,
    /// Bit `i`: argument `i`, which is written, has been taken.
    taken: Cell<u64>,
}

impl<'a> KernelArgs<'a> {
    /// The arguments of block `block` of lane `lane` of task number `task`.
    ///
    /// # Safety
    /// For `'a`: the memories of the image lie at `bases`, as long as it says; every task that touches bytes of this one
    /// with either of them writing has ended (acquired here) or starts later; no other `KernelArgs` of this
    /// block exists; lanes run one after the other.
    #[must_use]
    pub unsafe fn new(
        image: &'a Image,
        bases: Bases<'a>,
        task: usize,
        block: u32,
        lane: u32,
        barrier: Option<&'a dyn BlockBarrier>,
    ) -> Self {
        let tasks = image.tasks_and_end();
        // What a predicate reads follows the arguments.
        let predicated = usize::from(tasks[task].flags & TASK_PREDICATED != 0);
        let accesses = tasks[task].first_access as usize..tasks[task + 1].first_access as usize - predicated;
        KernelArgs {
            image,
            bases,
            task,
            block,
            lane,
            barrier,
            accesses: &image.accesses()[accesses],
            layouts: image.layouts(),
            blocks: tasks[task].blocks,
            taken: Cell::new(0),
        }
    }

    /// How many tensor arguments there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.accesses.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.accesses.is_empty()
    }

    /// The index of this block.
    #[must_use]
    pub fn block(&self) -> u32 {
        self.block
    }

    /// How many blocks the task has.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The index of this lane.
    #[must_use]
    pub fn lane(&self) -> u32 {
        self.lane
    }

    /// The task's number in its graph.
    #[must_use]
    pub fn task(&self) -> usize {
        self.task
    }

    /// The task's tag.
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.image.tasks()[self.task].tag
    }

    /// The scalars.
    #[must_use]
    pub fn scalars(&self) -> &'a [u64] {
        let tasks = self.image.tasks_and_end();
        &self.image.scalars()[tasks[self.task].first_scalar as usize..tasks[self.task + 1].first_scalar as usize]
    }

    /// Scalar `position`.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn scalar(&self, position: usize) -> Result<u64, KernelError> {
        self.scalars()
            .get(position)
            .copied()
            .ok_or_else(|| KernelError(format!("scalar {position} of {} was asked for", self.scalars().len())))
    }

    /// Waits until all blocks of a task that starts together have come here.
    ///
    /// # Errors
    /// If the task does not start together, or a block of it failed.
    pub fn wait_for_blocks(&self) -> Result<(), KernelError> {
        self.barrier
            .ok_or_else(|| KernelError("blocks wait for each other only in a task that starts them together".into()))?
            .wait()
    }

    /// Address and layout of argument `position`, narrowed to this block's part.
    fn resolve<T: Element>(&self, position: usize, writes: bool) -> Result<(*mut u8, Dims<'a>, bool), KernelError> {
        let Some(access) = self.accesses.get(position) else {
            return Err(KernelError(format!("argument {position} of {} was asked for", self.accesses.len())));
        };
        let record = &self.layouts[access.layout as usize];
        if record.dtype != T::DTYPE as u8 {
            return Err(KernelError(format!(
                "argument {position} is of {}, the kernel asked for {}",
                record.dtype(),
                T::DTYPE
            )));
        }
        let direction = access.direction();
        if direction.writes() != writes {
            let (asked, method) = if writes { ("output", "input") } else { ("input", "output") };
            return Err(KernelError(format!(
                "argument {position} is {}: take it with `{method}`, not `{asked}`",
                direction.name()
            )));
        }
        let mut offset_bytes = access.offset_bytes;
        let split = record.split_dim != NO_SPLIT;
        let dims = if split {
            let dim = usize::from(record.split_dim);
            let part = record.shape[dim] / u64::from(self.blocks());
            let first = u64::from(self.block) * part;
            let (narrowed, by_elems) = record.layout()?.slice(dim, first..first + part)?;
            offset_bytes += by_elems * T::DTYPE.size_bytes();
            Dims::from(narrowed)
        } else {
            Dims::from(record.as_layout())
        };
        // SAFETY: the image was checked: the offset lies within the memory at this base.
        let address = unsafe { self.bases.0[access.memory()].add(offset_bytes as usize) };
        Ok((address, dims, split))
    }

    /// Argument `position`, an IN of element type `T`: this block's part if it is split, else all of it.
    ///
    /// # Errors
    /// If there is no such argument, or it is of another type or direction.
    pub fn input<T: Element>(&self, position: usize) -> Result<Strided<'a, T>, KernelError> {
        let (address, dims, _) = self.resolve::<T>(position, false)?;
        // SAFETY: `new` was promised that no other task writes these bytes meanwhile, and an IN overlaps no
        // argument of its own task that is written (refused at submit).
        Ok(unsafe { Strided::new(address, dims) })
    }

    /// Argument `position`, an OUT or INOUT of element type `T`, once: this block's part if it is split, else all of it.
    ///
    /// # Errors
    /// If there is no such argument, it is of another type or direction, or it has been taken.
    pub fn output<T: Element>(&self, position: usize) -> Result<StridedMut<'a, T>, KernelError> {
        let (address, dims, split) = self.resolve::<T>(position, true)?;
        if self.blocks() > 1 && !split {
            return Err(KernelError(format!(
                "argument {position} is not split among the blocks: take it with `output_promised`"
            )));
        }
        self.take(position)?;
        // SAFETY: as in `input`, and exclusive: arguments of a task that are written overlap no other argument
        // (refused at submit), blocks have disjoint parts, lanes follow each other, and `take` gives it once.
        Ok(unsafe { StridedMut::new(address, dims) })
    }

    /// Argument `position` as a whole in a task of many blocks, once per block.
    ///
    /// # Errors
    /// As [`KernelArgs::output`]; and if the task was not submitted under the promise.
    ///
    /// # Safety
    /// No two blocks touch a common byte through it while one of them writes, not even by making a slice.
    pub unsafe fn output_promised<T: Element>(&self, position: usize) -> Result<StridedMut<'a, T>, KernelError> {
        let (address, dims, _) = self.resolve::<T>(position, true)?;
        if self.image.tasks()[self.task].flags & TASK_BLOCKS_BY_PROMISE == 0 {
            return Err(KernelError("the task was not submitted under the promise that its blocks stay apart".into()));
        }
        self.take(position)?;
        // SAFETY: as in `output`; that blocks stay apart is the caller's promise.
        Ok(unsafe { StridedMut::new(address, dims) })
    }

    fn take(&self, position: usize) -> Result<(), KernelError> {
        // A task with a kernel has at most MAX_KERNEL_ARGS arguments (refused at submit).
        let bit = 1u64.checked_shl(position as u32).filter(|_| position < MAX_KERNEL_ARGS);
        match bit {
            Some(bit) if self.taken.get() & bit == 0 => {
                self.taken.set(self.taken.get() | bit);
                Ok(())
            }
            Some(_) => Err(KernelError(format!("argument {position} has been taken already"))),
            None => Err(KernelError(format!("argument {position} is beyond the {MAX_KERNEL_ARGS} of a kernel"))),
        }
    }
}

impl fmt::Debug for KernelArgs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelArgs")
            .field("task", &self.task)
            .field("block", &self.block)
            .field("lane", &self.lane)
            .field("args", &self.accesses.len())
            .finish_non_exhaustive()
    }
}
