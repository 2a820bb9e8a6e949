//! Platforms and devices.

use std::fmt::Debug;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::counters::DeviceCounters;
use crate::error::{DeviceError, OpenError};
use crate::kernel::Kernel;
use crate::launch::{Execution, Launch, ModuleId};
use crate::uri::DeviceUri;

/// A kind of accelerator.
pub trait Platform: Send + Sync {
    /// The first part of its devices' URIs.
    fn scheme(&self) -> &'static str;
    /// The devices that can be opened here, with a line on each. Empty (with a reason in the log) where the driver is missing.
    fn devices(&self) -> Vec<(DeviceUri, String)>;
    /// Opens a device. Two calls open two devices that share nothing.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open(&self, uri: &DeviceUri) -> Result<Arc<dyn Device>, OpenError>;
}

/// Device memory: the result of one [`Device::alloc`], or of one opened device's lifetime. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct MemoryId(pub u64);

/// An allocation as the device made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceMemory {
    /// Names it in every call.
    pub id: MemoryId,
    /// Its stable address in the device's address space, for kernels and for people. Whether the host can dereference
    /// it is [`DeviceInfo::address_space`]'s to say, and nobody outside a platform does so in either case.
    pub address: u64,
}

/// What device addresses mean to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressSpace {
    /// They are host addresses.
    Host,
    /// They mean nothing to the host.
    Opaque,
}

/// Cores by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Clusters, each with one cube core.
    pub clusters: u32,
    /// Vector cores of all clusters.
    pub vector_cores: u32,
}

/// Numbers and names that do not change while a device is open. Advisory: what a call answers is what counts.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The device's URI.
    pub uri: DeviceUri,
    /// A line for people.
    pub description: String,
    /// Memory of the device.
    pub memory_bytes: u64,
    /// Allocations start at multiples of this; at least 64, so that every element type is aligned.
    pub alignment_bytes: u64,
    /// What its addresses mean.
    pub address_space: AddressSpace,
    /// Cores by kind.
    pub geometry: Geometry,
    /// Host threads that execute tasks, the waiting thread included; 0 for hardware.
    pub host_threads: usize,
    /// Whether the host may touch mapped memory while a kernel runs that uses other bytes of it.
    pub concurrent_host_access: bool,
}

/// The host's address of a mapping's first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostPtr(pub NonNull<u8>);

// SAFETY: an address; using it is what needs care, and every use is in an unsafe block that says why it may.
unsafe impl Send for HostPtr {}
// SAFETY: as above.
unsafe impl Sync for HostPtr {}

/// A device's answer to a request to map. Each allocation gets its own answer, whatever others got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapAnswer {
    /// Device memory is host memory: this is its address. To be unmapped like the others.
    Identity(HostPtr),
    /// A mapping at an address of its own, usable while kernels use other bytes of the memory.
    Mapped(HostPtr),
    /// A mapping that may only be used inside a window: see [`Device::open_window`].
    Windowed(HostPtr),
    /// No, because. Nothing was mapped. Permanent for this allocation.
    Refused {
        /// For people: it ends up in reports.
        reason: String,
    },
}

/// What a window is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowMode {
    /// Loads only; may be open while kernels only read the memory.
    Read,
    /// Loads and stores; never open while a kernel uses the memory.
    Write,
}

/// An opened device.
///
/// # Who validates
/// The layers above: identifiers are live, ranges lie inside their allocation, lengths are not 0, an image is sound and
/// its bindings are large enough, kernels match the image, windows are closed before a launch that needs them closed.
/// A device reports what its caller cannot foresee ([`DeviceError::Failed`], [`DeviceError::OutOfMemory`]). If it finds a
/// broken rule it answers [`DeviceError::Contract`]; it need not look. What memory safety rests on is said per method.
///
/// # Who waits
/// Every method but [`Execution::wait`] may be called from any thread. Copies, fills, maps and windows return
/// when they are complete, and do not wait for launches in flight: the caller makes sure that the bytes are not in use.
/// [`Device::launch`] returns at once; launches of one device execute one after the other in the order of their calls,
/// each starting with its pushes. [`Device::free`] is called when no launch in flight uses the memory.
///
/// # What may overlap
/// Copies, and accesses through a mapping, may happen while a launch is in flight if the launch's tasks do not write
/// those bytes (for host reads) or use them at all (for host writes). On a windowed mapping the same holds per
/// allocation: a read window while launches only read it, a write window while none uses it.
/// A launch is a release of what the host wrote before it; learning of its completion is an acquire of what it wrote.
///
/// # What a real driver taught
/// Before this trait was fixed its calls were tried on an OpenCL 3.0 driver (PoCL, CPU device): vector addition, maps,
/// copies, ordering, failures. What shaped the trait:
///
/// * Buffers have no device address; a kernel gets a handle and an offset. So a memory is named by [`MemoryId`]
///   everywhere, sub-ranges are offsets (sub-buffers need 128-byte origins and do not nest), and [`DeviceMemory::address`] is
///   stable but may be one that the platform made up.
/// * Allocation is lazy: creating 64 buffers of 1 GiB on a device of 3.4 GiB succeeds, and running out shows at a later
///   call. So success of [`Device::alloc`] promises an identity, not pages: any copy or launch may answer
///   [`DeviceError::OutOfMemory`].
/// * A map is an answer about one object: flags given at creation refuse it, its pointer may have any
///   alignment, a failed map may have returned a pointer first. The driver closes nothing at unmap and stops no kernel from
///   running beside a write map; portable memory is therefore *windowed*, and the simulator enforces what
///   the driver leaves to the programmer. A driver's map promises no earlier bytes when asked to discard them, so no call here asks for that.
/// * A blocking call may first drain unrelated work of its queue. A thread that owes a driver an event must not make one.
///   So copies here are blocking by contract and a platform uses a queue of its own for them.
/// * Failure arrives twice: refused now, or later through an event, where dependants only learn "an event failed" and
///   "queue finished" still says success. So [`Launch`] has one [`Completion`](crate::Completion) with the first cause,
///   and a platform looks at each command, not at the queue.
/// * The driver infers no hazards, even on one buffer: order is the image's edges and nothing else.
/// * A host buffer given to a non-blocking write is read late. So pushes own a snapshot.
/// * Copies of size 0 are errors for some calls and not for others, overlapping copies within a buffer are refused:
///   both are filtered above this trait.
/// * A four-byte blocking copy costs 20 µs and a hundred of them batched 86 µs: many ranges go in one call.
/// * Setting arguments of one kernel object from two threads corrupts them: launch state is the platform's own.
///
/// # Safety
/// What is above makes references out of what a device answers. An implementation keeps its allocations' memory apart and
/// usable for as long as this trait says, answers maps only with addresses that are valid as described there, executes
/// tasks in the order of the image's edges with kernels' arguments resolved as [`KernelArgs`](crate::KernelArgs) asks, and does not say that a
/// launch has ended before it has.
pub unsafe trait Device: Send + Sync + Debug {
    /// Names and numbers.
    fn info(&self) -> &DeviceInfo;

    /// What the device has been asked to do so far. A platform that does not count answers zeros.
    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// Allocates `len_bytes` (not 0). Contents are whatever was there.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Failed`].
    fn alloc(&self, len_bytes: u64) -> Result<DeviceMemory, DeviceError>;

    /// Frees an allocation. If this fails the memory stays allocated.
    ///
    /// # Errors
    /// [`DeviceError::Failed`].
    ///
    /// # Safety
    /// Nothing uses the memory any more: no mapping, no launch in flight, no later call.
    unsafe fn free(&self, memory: MemoryId) -> Result<(), DeviceError>;

    /// Copies host bytes to the device.
    ///
    /// # Errors
    /// [`DeviceError`]: any part may have arrived.
    ///
    /// # Safety
    /// `memory` is live, the range lies inside, and nothing else uses these bytes meanwhile.
    unsafe fn copy_in(&self, memory: MemoryId, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies device bytes to the host.
    ///
    /// # Errors
    /// [`DeviceError`]: `bytes` may hold anything.
    ///
    /// # Safety
    /// `memory` is live, the range lies inside, and nothing writes these bytes meanwhile.
    unsafe fn copy_out(&self, memory: MemoryId, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies packed host bytes to ascending disjoint ranges in one transfer.
    ///
    /// # Errors
    /// [`DeviceError`]: any part may have arrived.
    ///
    /// # Safety
    /// As [`Device::copy_in`] for each range; the ranges' lengths add up to that of `packed`.
    unsafe fn copy_in_ranges(&self, memory: MemoryId, ranges: &[Range<u64>], packed: &[u8]) -> Result<(), DeviceError>;

    /// Copies ascending disjoint ranges to packed host bytes in one transfer.
    ///
    /// # Errors
    /// [`DeviceError`]: `packed` may hold anything.
    ///
    /// # Safety
    /// As [`Device::copy_out`] for each range; the ranges' lengths add up to that of `packed`.
    unsafe fn copy_out_ranges(
        &self,
        memory: MemoryId,
        ranges: &[Range<u64>],
        packed: &mut [u8],
    ) -> Result<(), DeviceError>;

    /// Copies within the device.
    ///
    /// # Errors
    /// [`DeviceError`]: any part may have arrived.
    ///
    /// # Safety
    /// Both memories are live, both ranges lie inside and do not overlap, nothing writes the source and nothing else
    /// uses the destination meanwhile.
    unsafe fn copy_within(
        &self,
        to: MemoryId,
        to_offset_bytes: u64,
        from: MemoryId,
        from_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(), DeviceError>;

    /// Sets bytes of the device to `value`.
    ///
    /// # Errors
    /// [`DeviceError`]: any part may have been set.
    ///
    /// # Safety
    /// `memory` is live, the range lies inside, and nothing else uses these bytes meanwhile.
    unsafe fn fill(&self, memory: MemoryId, range: Range<u64>, value: u8) -> Result<(), DeviceError>;

    /// Asks for a host mapping of `range`, or for the reason why there is none. At most one mapping of an allocation
    /// exists at a time. The pointer is that of the first byte of `range`, valid for its length until [`Device::unmap`]
    /// (of a windowed mapping: inside windows), and part of no other allocation.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] for a failure that may not repeat; a refusal is an answer, not an error.
    ///
    /// # Safety
    /// `memory` is live and `range` lies inside.
    unsafe fn map(&self, memory: MemoryId, range: Range<u64>) -> Result<MapAnswer, DeviceError>;

    /// Ends a mapping (of any kind but refused). If this fails the mapping stays.
    ///
    /// # Errors
    /// [`DeviceError::Failed`].
    ///
    /// # Safety
    /// Nothing uses the mapping any more.
    unsafe fn unmap(&self, memory: MemoryId) -> Result<(), DeviceError>;

    /// Makes a windowed mapping usable. A read window may become a write window by opening it again.
    ///
    /// # Errors
    /// [`DeviceError::Failed`]; [`DeviceError::Contract`] if a launch in flight uses the memory in a way that the mode excludes.
    ///
    /// # Safety
    /// `memory` has a windowed mapping, and no reference into it exists if this changes an open window.
    unsafe fn open_window(&self, memory: MemoryId, mode: WindowMode) -> Result<(), DeviceError>;

    /// Makes a windowed mapping unusable. A device closes it for real: an access faults.
    ///
    /// # Errors
    /// [`DeviceError::Failed`].
    ///
    /// # Safety
    /// `memory` has an open window, and no reference into it exists.
    unsafe fn close_window(&self, memory: MemoryId) -> Result<(), DeviceError>;

    /// Loads kernels, to be named by position in launches, until they are unloaded or the device closes.
    ///
    /// # Errors
    /// [`DeviceError::Failed`], for instance if a kernel has no form that this platform can run.
    fn load_kernels(&self, kernels: &[Kernel]) -> Result<ModuleId, DeviceError>;

    /// Lets go of kernels. Launches that are queued or in flight keep theirs. Unknown modules are ignored.
    fn unload_kernels(&self, module: ModuleId);

    /// Starts the execution of an image after all earlier launches.
    ///
    /// # Errors
    /// [`DeviceError`]: the launch has not started and never will.
    ///
    /// # Safety
    /// The image is sound for these bindings: every memory is live until the launch has ended, at least as long as the image
    /// says from its offset on, no two bindings overlap, and the module's kernels have the signatures that the image's tasks were
    /// checked against. Nothing else uses the bytes in ways that the contract above excludes until then.
    unsafe fn launch(&self, launch: Launch) -> Result<Arc<dyn Execution>, DeviceError>;
}
