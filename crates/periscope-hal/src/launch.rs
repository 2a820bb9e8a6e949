//! Executing an image: what a launch carries, and how its end is learnt.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use periscope_core::TaskId;
use periscope_core::image::Image;

use crate::device::MemoryId;
use crate::error::DeviceError;

/// Kernels loaded into a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ModuleId(pub u64);

/// Where one of an image's memories lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    /// The device memory.
    pub memory: MemoryId,
    /// The first byte in it.
    pub offset_bytes: u64,
}

/// Bytes that the host wrote, to be put in place before the first task of a launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Push {
    /// The device memory.
    pub memory: MemoryId,
    /// The ranges within it: ascending, not empty, not overlapping.
    pub ranges: Vec<Range<u64>>,
    /// Their bytes, one range after the other. A snapshot: the host may go on writing its own copy.
    pub bytes: Vec<u8>,
}

/// An image with everything that its execution needs. Owns it all, so that it can outlive the caller's frame.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The graph.
    pub image: Arc<Image>,
    /// One for each memory of the image.
    pub bindings: Vec<Binding>,
    /// The kernels: the image's kernel `i` is kernel `kernels[i]` of the module.
    pub module: ModuleId,
    /// See [`Launch::module`].
    pub kernels: Vec<u16>,
    /// The first step of the launch in device order, before any task. What the image itself carries ([`Image::writes`])
    /// comes next: the device puts it in place.
    pub pushes: Vec<Push>,
}

/// Why a launch did not run to its end. The first cause: what failed because of it is not reported.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The host's writes could not be put in place; no kernel has run.
    #[error("pushing {bytes} B that the host wrote failed, no kernel has run: {source}")]
    Push {
        /// Bytes of the push that failed.
        bytes: u64,
        /// The device's error.
        source: DeviceError,
    },
    /// A kernel panicked.
    #[error("kernel `{kernel}` of {task} (tag {tag}) panicked: {message}")]
    Panicked {
        /// The task.
        task: TaskId,
        /// Its tag.
        tag: u32,
        /// The kernel's name.
        kernel: String,
        /// The panic's message.
        message: String,
    },
    /// A kernel returned an error.
    #[error("kernel `{kernel}` of {task} (tag {tag}) failed: {message}")]
    Kernel {
        /// The task.
        task: TaskId,
        /// Its tag.
        tag: u32,
        /// The kernel's name.
        kernel: String,
        /// The kernel's words.
        message: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// How a launch ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Done, or the first cause of its failure: tasks that had started have ended, no other was started.
    pub result: Result<(), LaunchError>,
    /// From the first push or task to the end of the last task.
    pub execute: Duration,
    /// Tasks whose kernels ran (or joins and predicated tasks that completed).
    pub tasks_done: u64,
}

/// A launch in flight. Dropping it neither waits nor cancels: the memory that the launch uses must outlive the
/// launch, whatever becomes of this.
///
/// # Safety
/// [`Execution::poll`] and [`Execution::wait`] answer with a completion only when the launch has ended: nothing of it touches memory
/// any more.
pub unsafe trait Execution: Send + Sync + Debug {
    /// How it ended, if it has. Never waits. What its kernels wrote is visible to a thread that was told so.
    fn poll(&self) -> Option<Completion>;
    /// Waits for its end, or for `timeout`. A device that executes on host threads may use the waiting thread for it.
    fn wait(&self, timeout: Option<Duration>) -> Option<Completion>;
    /// Tasks whose kernels are running now: for a person who asks why nothing ends.
    fn running(&self) -> Vec<TaskId>;
}
