//! The simulated device: the [`Device`] contract over its memory and its executor.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use periscope_core::image::signature_hash;
use periscope_hal::kernel::HostKernel;
use periscope_hal::{
    Device, DeviceCounters, DeviceError, DeviceInfo, DeviceMemory, DeviceOp, Execution, Kernel, Launch, MapAnswer,
    MemoryId, ModuleId, OpenError, WindowMode,
};

use crate::arena::ALIGNMENT_BYTES;
use crate::counts::{Counts, count};
use crate::executor::Executor;
use crate::memory::{Memory, contract};
use crate::profile::Profile;
use crate::settings::SimSettings;
use crate::work::Work;

/// An opened simulated device.
///
/// It keeps the contract of [`Device`] and checks that its callers do: a broken rule is answered with
/// [`DeviceError::Contract`] whether or not it would have done harm. Dropping it waits for the launches in flight.
pub struct SimDevice {
    info: DeviceInfo,
    // Before the memory: dropping it waits for launches.
    executor: Executor,
    memory: Arc<Memory>,
    modules: Mutex<Modules>,
    counts: Counts,
}

/// Kernels by module.
#[derive(Default)]
struct Modules {
    loaded: HashMap<u64, Vec<Loaded>>,
    /// The number of the next module: never reused.
    next: u64,
}

/// A kernel that was loaded.
struct Loaded {
    body: Arc<HostKernel>,
    signature: u64,
    name: String,
}

impl SimDevice {
    /// Opens a device of `profile`. It shares nothing with any other.
    ///
    /// # Errors
    /// [`OpenError::Failed`] if there is no address space for its memory or no thread for its executor.
    pub fn open(profile: Profile, settings: SimSettings) -> Result<SimDevice, OpenError> {
        let failed = |what: &str, error: std::io::Error| OpenError::Failed {
            uri: profile.to_string(),
            message: format!("{what}: {error}"),
        };
        let memory = Memory::new(profile, settings.memory_bytes)
            .map_err(|error| failed(&format!("reserving {} B of address space", settings.memory_bytes), error))?;
        let threads = settings.threads.max(1);
        let executor = Executor::new(threads, settings.spin).map_err(|error| failed("starting threads", error))?;
        Ok(SimDevice {
            info: DeviceInfo {
                uri: profile.uri(),
                description: profile.description().into(),
                memory_bytes: memory.total_bytes(),
                alignment_bytes: ALIGNMENT_BYTES,
                address_space: profile.address_space(),
                geometry: settings.geometry,
                host_threads: threads,
                concurrent_host_access: matches!(profile, Profile::Identity | Profile::A2a3 | Profile::A2a3Pages64k),
            },
            executor,
            memory: Arc::new(memory),
            modules: Mutex::default(),
            counts: Counts::default(),
        })
    }

    /// Finds the kernels that a launch names, and checks that they are those that its image was built with.
    fn resolve_kernels(&self, launch: &Launch, found: &mut Vec<Arc<HostKernel>>) -> Result<(), DeviceError> {
        let op = DeviceOp::Launch;
        let records = launch.image.kernels();
        if launch.kernels.len() != records.len() {
            let message = format!("{} kernels for an image that names {}", launch.kernels.len(), records.len());
            return Err(contract(op, message));
        }
        let modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let module = modules
            .loaded
            .get(&launch.module.0)
            .ok_or_else(|| contract(op, format!("module {} is not loaded here", launch.module.0)))?;
        for (record, &position) in records.iter().zip(&launch.kernels) {
            let kernel = module
                .get(usize::from(position))
                .ok_or_else(|| contract(op, format!("kernel {position} of a module of {}", module.len())))?;
            if kernel.signature != record.signature {
                return Err(contract(op, format!("kernel `{}` has another signature than the image's", kernel.name)));
            }
            found.push(Arc::clone(&kernel.body));
        }
        Ok(())
    }

    /// Fills a work with what a launch needs. If it fails, what was filled is to be cleared.
    fn prepare(&self, launch: &Launch, work: &mut Work) -> Result<(), DeviceError> {
        let image = &launch.image;
        if launch.bindings.len() != image.memories().len() {
            let message =
                format!("{} bindings for an image of {} memories", launch.bindings.len(), image.memories().len());
            return Err(contract(DeviceOp::Launch, message));
        }
        self.resolve_kernels(launch, &mut work.kernels)?;
        self.memory.pin(image, &launch.bindings, &launch.pushes, &mut work.bases, &mut work.pins)
    }
}

// SAFETY: allocations are disjoint ranges of the device's own reservation, which lives as long as the device; maps are
// further mappings of exactly those pages; the executor starts a task when its predecessors have ended.
unsafe impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn counters(&self) -> DeviceCounters {
        self.counts.snapshot(self.executor.wakes())
    }

    fn alloc(&self, len_bytes: u64) -> Result<DeviceMemory, DeviceError> {
        let memory = self.memory.alloc(len_bytes)?;
        count(&self.counts.allocs, 1);
        Ok(memory)
    }

    unsafe fn free(&self, memory: MemoryId) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.memory.free(memory)? };
        count(&self.counts.frees, 1);
        Ok(())
    }

    unsafe fn copy_in(&self, memory: MemoryId, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let to = self.memory.locate(DeviceOp::CopyIn, memory, offset_bytes, bytes.len() as u64)?;
        // SAFETY: the bytes lie in the allocation (checked), and nothing else uses them (the caller's promise).
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        count(&self.counts.copies_in, 1);
        count(&self.counts.bytes_in, bytes.len() as u64);
        Ok(())
    }

    unsafe fn copy_out(&self, memory: MemoryId, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.memory.locate(DeviceOp::CopyOut, memory, offset_bytes, bytes.len() as u64)?;
        // SAFETY: the bytes lie in the allocation (checked), and nothing writes them (the caller's promise).
        unsafe { from.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        count(&self.counts.copies_out, 1);
        count(&self.counts.bytes_out, bytes.len() as u64);
        Ok(())
    }

    unsafe fn copy_in_ranges(&self, memory: MemoryId, ranges: &[Range<u64>], packed: &[u8]) -> Result<(), DeviceError> {
        let base = self.memory.locate_ranges(DeviceOp::CopyInRanges, memory, ranges, packed.len() as u64)?;
        let mut rest = packed;
        for range in ranges {
            let (bytes, after) = rest.split_at((range.end - range.start) as usize);
            // SAFETY: the range lies in the allocation (checked), and nothing else uses it (the caller's promise).
            unsafe { base.as_ptr().add(range.start as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            rest = after;
        }
        count(&self.counts.range_copies_in, 1);
        count(&self.counts.bytes_in, packed.len() as u64);
        Ok(())
    }

    unsafe fn copy_out_ranges(
        &self,
        memory: MemoryId,
        ranges: &[Range<u64>],
        packed: &mut [u8],
    ) -> Result<(), DeviceError> {
        let base = self.memory.locate_ranges(DeviceOp::CopyOutRanges, memory, ranges, packed.len() as u64)?;
        count(&self.counts.bytes_out, packed.len() as u64);
        let mut rest = packed;
        for range in ranges {
            let (bytes, after) = rest.split_at_mut((range.end - range.start) as usize);
            // SAFETY: the range lies in the allocation (checked), and nothing writes it (the caller's promise).
            unsafe { base.as_ptr().add(range.start as usize).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            rest = after;
        }
        count(&self.counts.range_copies_out, 1);
        Ok(())
    }

    unsafe fn copy_within(
        &self,
        to: MemoryId,
        to_offset_bytes: u64,
        from: MemoryId,
        from_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(), DeviceError> {
        let op = DeviceOp::CopyWithin;
        let source = self.memory.locate(op, from, from_offset_bytes, len_bytes)?;
        let destination = self.memory.locate(op, to, to_offset_bytes, len_bytes)?;
        if to == from && to_offset_bytes.abs_diff(from_offset_bytes) < len_bytes {
            return Err(contract(
                op,
                format!("bytes {from_offset_bytes} and {to_offset_bytes} are less than {len_bytes} B apart"),
            ));
        }
        // SAFETY: both ranges lie in their allocations and do not overlap (checked: two allocations share no byte), and
        // nothing else uses them (the caller's promise).
        unsafe { source.as_ptr().copy_to_nonoverlapping(destination.as_ptr(), len_bytes as usize) };
        count(&self.counts.copies_within, 1);
        Ok(())
    }

    unsafe fn fill(&self, memory: MemoryId, range: Range<u64>, value: u8) -> Result<(), DeviceError> {
        let len = range.end.saturating_sub(range.start);
        let to = self.memory.locate(DeviceOp::Fill, memory, range.start, len)?;
        // SAFETY: the bytes lie in the allocation (checked), and nothing else uses them (the caller's promise).
        unsafe { to.as_ptr().write_bytes(value, len as usize) };
        count(&self.counts.fills, 1);
        Ok(())
    }

    unsafe fn map(&self, memory: MemoryId, range: Range<u64>) -> Result<MapAnswer, DeviceError> {
        let answer = self.memory.map(memory, range)?;
        let refused = matches!(answer, MapAnswer::Refused { .. });
        count(if refused { &self.counts.map_refusals } else { &self.counts.maps }, 1);
        Ok(answer)
    }

    unsafe fn unmap(&self, memory: MemoryId) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.memory.unmap(memory)? };
        count(&self.counts.unmaps, 1);
        Ok(())
    }

    unsafe fn open_window(&self, memory: MemoryId, mode: WindowMode) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.memory.open_window(memory, mode)? };
        count(&self.counts.windows_opened, 1);
        Ok(())
    }

    unsafe fn close_window(&self, memory: MemoryId) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.memory.close_window(memory)? };
        count(&self.counts.windows_closed, 1);
        Ok(())
    }

    fn load_kernels(&self, kernels: &[Kernel]) -> Result<ModuleId, DeviceError> {
        let module = kernels
            .iter()
            .map(|kernel| Loaded {
                body: Arc::clone(kernel.host_body()),
                signature: signature_hash(kernel.signature()),
                name: kernel.signature().name.clone(),
            })
            .collect();
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let id = modules.next;
        modules.next += 1;
        modules.loaded.insert(id, module);
        Ok(ModuleId(id))
    }

    fn unload_kernels(&self, module: ModuleId) {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let unloaded = modules.loaded.remove(&module.0);
        drop(modules);
        // What kernels captured may do anything when it is dropped, so not under the lock.
        drop(unloaded);
    }

    unsafe fn launch(&self, launch: Launch) -> Result<Arc<dyn Execution>, DeviceError> {
        let mut work = self.executor.blank();
        let Some(filled) = Arc::get_mut(&mut work) else { unreachable!("a recycled work is nobody else's") };
        if let Err(error) = self.prepare(&launch, filled) {
            filled.forget();
            return Err(error);
        }
        count(&self.counts.launches, 1);
        if !launch.pushes.is_empty() {
            count(&self.counts.pushes, launch.pushes.len() as u64);
            count(&self.counts.bytes_pushed, launch.pushes.iter().map(|push| push.bytes.len() as u64).sum());
        }
        filled.fill(launch, Arc::clone(&self.memory));
        Ok(Arc::new(self.executor.launch(work)))
    }
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice")
            .field("uri", &self.info.uri)
            .field("executor", &self.executor)
            .finish_non_exhaustive()
    }
}
