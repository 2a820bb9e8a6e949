//! A device around a device: it remembers calls, and can fail the n-th call of a kind, fail a launch's pushes, refuse maps.
//!
//! It adds nothing of its own to a call that it lets through, so what the inner device checks stays checked.
#![expect(unsafe_code, reason = "a device's methods are unsafe: each hands its caller's promise on")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use periscope_core::TaskId;
use periscope_hal::{
    Completion, Device, DeviceCounters, DeviceError, DeviceInfo, DeviceMemory, DeviceOp, Execution, HostPtr, Kernel,
    Launch, LaunchError, MapAnswer, MemoryId, ModuleId, Platform, Push, WindowMode,
};
use periscope_sim::{SimPlatform, SimSettings};

/// The profiles of the simulator: one for each way to reach device memory, and one that mixes two.
pub const PROFILES: [&str; 5] = ["sim", "sim:a2a3", "sim:a2a3-64k", "sim:a5", "sim:windowed"];

/// A device that is watched and troubled.
#[derive(Debug)]
pub struct Spy {
    inner: Arc<dyn Device>,
    /// Calls let through, in order, with the memory that they are about.
    calls: Mutex<Vec<(DeviceOp, Option<MemoryId>)>>,
    pushes: Mutex<Vec<Push>>,
    /// Which call of a kind is to fail, counted from 1 at the next.
    faults: Mutex<Vec<(DeviceOp, usize)>>,
    push_fault: AtomicBool,
    refuse_maps: AtomicBool,
    lie: AtomicBool,
    /// What lying maps were answered with: host memory that the device never sees.
    lies: Mutex<Vec<(MemoryId, Box<[u8]>)>>,
}

impl Spy {
    /// A simulated device of profile `uri`, with few threads and with settings that cost little.
    pub fn open(uri: &str) -> Arc<Spy> {
        let settings = SimSettings { threads: 2, ..SimSettings::default() };
        let inner = SimPlatform::new(settings).open(&uri.parse().unwrap()).unwrap();
        Arc::new(Spy {
            inner,
            calls: Mutex::default(),
            pushes: Mutex::default(),
            faults: Mutex::default(),
            push_fault: AtomicBool::new(false),
            refuse_maps: AtomicBool::new(false),
            lie: AtomicBool::new(false),
            lies: Mutex::default(),
        })
    }

    /// The `nth` call of `op` from now on (1: the next) fails without effect.
    pub fn fail(&self, op: DeviceOp, nth: usize) {
        self.faults.lock().unwrap().push((op, nth));
    }

    /// The next launch that carries pushes fails at them, before any kernel.
    pub fn fail_push(&self) {
        self.push_fault.store(true, SeqCst);
    }

    /// Takes back the faults that have not happened yet. Whether there were any.
    pub fn disarm(&self) -> bool {
        let pending = !std::mem::take(&mut *self.faults.lock().unwrap()).is_empty();
        self.push_fault.swap(false, SeqCst) || pending
    }

    /// Every request to map is refused from now on, whatever the device says of itself.
    pub fn refuse_maps(&self) {
        self.refuse_maps.store(true, SeqCst);
    }

    /// Every map is granted from now on, and what the host stores through it is lost.
    pub fn lie(&self) {
        self.lie.store(true, SeqCst);
    }

    /// Forgets the calls so far: those of the start-up probe, for instance.
    pub fn forget_calls(&self) {
        self.calls.lock().unwrap().clear();
    }

    /// Calls so far, in order.
    pub fn calls(&self) -> Vec<(DeviceOp, Option<MemoryId>)> {
        self.calls.lock().unwrap().clone()
    }

    /// How many calls of a kind there were.
    pub fn count(&self, op: DeviceOp) -> usize {
        self.calls.lock().unwrap().iter().filter(|(called, _)| *called == op).count()
    }

    /// What launches have carried since this was last asked.
    pub fn take_pushes(&self) -> Vec<Push> {
        std::mem::take(&mut self.pushes.lock().unwrap())
    }

    fn call(&self, op: DeviceOp, memory: Option<MemoryId>) -> Result<(), DeviceError> {
        let mut faults = self.faults.lock().unwrap();
        let mut failed = false;
        faults.retain_mut(|(kind, nth)| {
            if *kind == op {
                *nth -= 1;
                failed |= *nth == 0;
            }
            *nth > 0
        });
        drop(faults);
        if failed {
            return Err(DeviceError::Failed { op, message: "injected".into() });
        }
        self.calls.lock().unwrap().push((op, memory));
        Ok(())
    }
}

/// A launch whose pushes failed.
#[derive(Debug)]
struct PushFailed {
    bytes: u64,
}

// SAFETY: nothing was launched.
unsafe impl Execution for PushFailed {
    fn poll(&self) -> Option<Completion> {
        let source = DeviceError::Failed { op: DeviceOp::CopyInRanges, message: "injected".into() };
        let result = Err(LaunchError::Push { bytes: self.bytes, source });
        Some(Completion { result, execute: Duration::ZERO, tasks_done: 0 })
    }
    fn wait(&self, _timeout: Option<Duration>) -> Option<Completion> {
        self.poll()
    }
    fn running(&self) -> Vec<TaskId> {
        Vec::new()
    }
}

// SAFETY: every answer is the inner device's, or a failure.
unsafe impl Device for Spy {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }

    fn alloc(&self, len_bytes: u64) -> Result<DeviceMemory, DeviceError> {
        self.call(DeviceOp::Alloc, None)?;
        self.inner.alloc(len_bytes)
    }

    unsafe fn free(&self, memory: MemoryId) -> Result<(), DeviceError> {
        self.call(DeviceOp::Free, Some(memory))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.free(memory) }
    }

    unsafe fn copy_in(&self, memory: MemoryId, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.call(DeviceOp::CopyIn, Some(memory))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_in(memory, offset_bytes, bytes) }
    }

    unsafe fn copy_out(&self, memory: MemoryId, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.call(DeviceOp::CopyOut, Some(memory))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_out(memory, offset_bytes, bytes) }
    }

    unsafe fn copy_in_ranges(&self, memory: MemoryId, ranges: &[Range<u64>], packed: &[u8]) -> Result<(), DeviceError> {
        self.call(DeviceOp::CopyInRanges, Some(memory))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_in_ranges(memory, ranges, packed) }
    }

    unsafe fn copy_out_ranges(
        &self,
        memory: MemoryId,
        ranges: &[Range<u64>],
        packed: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.call(DeviceOp::CopyOutRanges, Some(memory))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_out_ranges(memory, ranges, packed) }
    }

    unsafe fn copy_within(
        &self,
        to: MemoryId,
        to_offset_bytes: u64,
        from: MemoryId,
        from_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(), DeviceError> {
        self.call(DeviceOp::CopyWithin, Some(to))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_within(to, to_offset_bytes, from, from_offset_bytes, len_bytes) }
    }

    unsafe fn fill(&self, memory: MemoryId, range: Range<u64>, value: u8) -> Result<(), DeviceError> {
        self.call(DeviceOp::Fill, Some(memory))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.fill(memory, range, value) }
    }

    unsafe fn map(&self, memory: MemoryId, range: Range<u64>) -> Result<MapAnswer, DeviceError> {
        self.call(DeviceOp::Map, Some(memory))?;
        if self.refuse_maps.load(SeqCst) {
            return Ok(MapAnswer::Refused { reason: "map refused by the test".into() });
        }
        if self.lie.load(SeqCst) {
            let mut lie = vec![0; (range.end - range.start) as usize].into_boxed_slice();
            let base = HostPtr(NonNull::from(&mut lie[0]));
            self.lies.lock().unwrap().push((memory, lie));
            return Ok(MapAnswer::Mapped(base));
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.map(memory, range) }
    }

    unsafe fn unmap(&self, memory: MemoryId) -> Result<(), DeviceError> {
        self.call(DeviceOp::Unmap, Some(memory))?;
        let mut lies = self.lies.lock().unwrap();
        if let Some(lie) = lies.iter().position(|(mapped, _)| *mapped == memory) {
            lies.swap_remove(lie);
            return Ok(());
        }
        drop(lies);
        // SAFETY: the caller's promise.
        unsafe { self.inner.unmap(memory) }
    }

    unsafe fn open_window(&self, memory: MemoryId, mode: WindowMode) -> Result<(), DeviceError> {
        self.call(DeviceOp::OpenWindow, Some(memory))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.open_window(memory, mode) }
    }

    unsafe fn close_window(&self, memory: MemoryId) -> Result<(), DeviceError> {
        self.call(DeviceOp::CloseWindow, Some(memory))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.close_window(memory) }
    }

    fn load_kernels(&self, kernels: &[Kernel]) -> Result<ModuleId, DeviceError> {
        self.call(DeviceOp::LoadKernels, None)?;
        self.inner.load_kernels(kernels)
    }

    fn unload_kernels(&self, module: ModuleId) {
        self.inner.unload_kernels(module);
    }

    unsafe fn launch(&self, launch: Launch) -> Result<Arc<dyn Execution>, DeviceError> {
        self.call(DeviceOp::Launch, None)?;
        self.pushes.lock().unwrap().extend(launch.pushes.iter().cloned());
        if !launch.pushes.is_empty() && self.push_fault.swap(false, SeqCst) {
            let bytes = launch.pushes.iter().map(|push| push.bytes.len() as u64).sum();
            return Ok(Arc::new(PushFailed { bytes }));
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch(launch) }
    }
}
