//! Running one task: its predicate, its lanes and blocks, and what a kernel's failure becomes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use periscope_core::TaskId;
use periscope_core::image::{NO_KERNEL, TASK_PREDICATED, TASK_START_TOGETHER, TaskRecord};
use periscope_core::task::Comparison;
use periscope_hal::kernel::BlockBarrier;
use periscope_hal::{DeviceError, DeviceOp, KernelArgs, LaunchError};

use crate::predicate;
use crate::together::run_together;
use crate::work::Work;

/// What to do with a task that has become ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing: a join, or a predicate that does not hold. It is complete.
    Complete,
    /// Its blocks can be run in any order by any threads.
    Blocks,
    /// Its blocks run at the same time.
    Together,
}

/// Decides what a task needs, reading its predicate.
///
/// # Safety
/// The task is ready: all its predecessors have ended, acquired here.
#[inline]
pub(crate) unsafe fn plan(work: &Work, task: usize, record: &TaskRecord) -> Plan {
    if record.flags & (TASK_PREDICATED | TASK_START_TOGETHER) == 0 && record.kernels[0] != NO_KERNEL {
        return Plan::Blocks;
    }
    // SAFETY: the caller's promise.
    if record.flags & TASK_PREDICATED != 0 && !unsafe { predicate_holds(work, task) } {
        return Plan::Complete;
    }
    match record.kernels[0] {
        NO_KERNEL => Plan::Complete,
        _ if record.flags & TASK_START_TOGETHER != 0 => Plan::Together,
        _ => Plan::Blocks,
    }
}

/// # Safety
/// As for [`plan`].
#[cold]
unsafe fn predicate_holds(work: &Work, task: usize) -> bool {
    let image = work.image();
    let (comparison, constant_bits) = image.predicate_of(task).unwrap_or((Comparison::Eq, 0));
    // The element follows the task's arguments.
    let access = &image.accesses()[image.tasks_and_end()[task + 1].first_access as usize - 1];
    let dtype = image.layouts()[access.layout as usize].dtype();
    // SAFETY: the image was checked: an element of this type lies at the offset, and it counts as an IN of the task, so
    // whoever writes it has ended or starts later.
    unsafe {
        let element = work.bases[access.memory()].add(access.offset_bytes as usize);
        predicate::holds(dtype, element, comparison, constant_bits)
    }
}

/// Runs one block: all its lanes, one after the other. If it fails the launch is stopped for that cause; the answer is
/// whether it did not.
///
/// # Safety
/// The task is ready, its plan was to run, and nobody else runs this block.
#[inline]
pub(crate) unsafe fn run_block(
    work: &Work,
    task: u32,
    record: &TaskRecord,
    block: u32,
    barrier: Option<&dyn BlockBarrier>,
) -> bool {
    let image = work.image();
    for (lane, &kernel) in record.kernels.iter().enumerate() {
        if kernel == NO_KERNEL {
            break;
        }
        // SAFETY: the memories lie at the bases, as long as the image says (checked when they were pinned); the image
        // orders every task that touches the same bytes, and readiness was acquired (the caller's promise); this block is
        // run once and its lanes follow each other.
        let args = unsafe { KernelArgs::new(image, work.bases(), task as usize, block, lane as u32, barrier) };
        // A panic may leave broken what the kernel captured, which is then its own business, and device bytes, which
        // the layer above counts as poisoned.
        match catch_unwind(AssertUnwindSafe(|| (work.kernels[kernel as usize])(&args))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let name = kernel_name(work, kernel);
                work.fail(LaunchError::Kernel { task: TaskId(task), tag: record.tag, kernel: name, message: error.0 });
                return false;
            }
            Err(panic) => {
                let (name, message) = (kernel_name(work, kernel), panic_message(&*panic));
                work.fail(LaunchError::Panicked { task: TaskId(task), tag: record.tag, kernel: name, message });
                return false;
            }
        }
    }
    true
}

/// Runs all blocks of a task at the same time. Answers whether none failed.
///
/// # Safety
/// As for [`run_block`], for every block.
pub(crate) unsafe fn run_blocks_together(work: &Work, task: u32, record: &TaskRecord) -> bool {
    // SAFETY: the caller's promise, for each block once.
    let run = |block, barrier: &dyn BlockBarrier| unsafe { run_block(work, task, record, block, Some(barrier)) };
    run_together(record.blocks, run).unwrap_or_else(|error| {
        let message = format!("no thread for each of the {} blocks that start together: {error}", record.blocks);
        work.fail(LaunchError::Device(DeviceError::Failed { op: DeviceOp::Launch, message }));
        false
    })
}

#[cold]
fn kernel_name(work: &Work, kernel: u16) -> String {
    let image = work.image();
    image.kernels().get(usize::from(kernel)).and_then(|record| image.name(record.name)).unwrap_or("?").into()
}

#[cold]
fn panic_message(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => (*message).into(),
        (_, Some(message)) => message.clone(),
        _ => "a panic without a message".into(),
    }
}
