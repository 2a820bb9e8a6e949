//! Fault injection: a device around a device, which can do to its caller what a real one does on a bad day.
//!
//! A [`Faulty`] remembers the calls that it lets through. On request it fails or delays the n-th call of a kind, fails a
//! launch's pushes, refuses maps, or answers them with memory that the device never sees. What it fails has no
//! effect on the inner device (a launch's end apart), and it adds nothing to what it lets through: whatever the inner device checks stays checked,
//! and the inner device's counters say what really happened.
//!
//! It is made for tests of the layers above, which then differ by platform only in what they wrap.

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

/// The simulator's profiles: one for each way to reach device memory, and one that mixes two.
pub const PROFILES: [&str; 5] = ["sim", "sim:a2a3", "sim:a2a3-64k", "sim:a5", "sim:windowed"];

/// The message of every failure that was asked for, so that a test can tell it from others.
pub const INJECTED: &str = "injected";

/// Every kind of call that can be failed or delayed.
pub const OPS: [DeviceOp; 14] = [
    DeviceOp::Alloc,
    DeviceOp::Free,
    DeviceOp::CopyIn,
    DeviceOp::CopyOut,
    DeviceOp::CopyInRanges,
    DeviceOp::CopyOutRanges,
    DeviceOp::CopyWithin,
    DeviceOp::Fill,
    DeviceOp::Map,
    DeviceOp::Unmap,
    DeviceOp::OpenWindow,
    DeviceOp::CloseWindow,
    DeviceOp::LoadKernels,
    DeviceOp::Launch,
];

/// What is to become of a call.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Fail,
    Delay(Duration),
}

/// Trouble that waits for its call.
#[derive(Clone, Copy, Debug)]
struct Armed {
    op: DeviceOp,
    /// 1: the next call of this kind.
    nth: usize,
    trouble: Trouble,
}

/// A device that is watched and troubled.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Device>,
    /// Calls let through, in order, with the memory that they are about.
    calls: Mutex<Vec<(DeviceOp, Option<MemoryId>)>>,
    /// Calls failed, in order.
    failed: Mutex<Vec<DeviceOp>>,
    pushes: Mutex<Vec<Push>>,
    armed: Mutex<Vec<Armed>>,
    push_fault: AtomicBool,
    end_fault: AtomicBool,
    refuse_maps: AtomicBool,
    lie: AtomicBool,
    /// What lying maps were answered with: host memory that the device never sees.
    lies: Mutex<Vec<(MemoryId, Vec<u8>)>>,
}

impl Faulty {
    /// A device that does as `inner` does until it is told otherwise.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner,
            calls: Mutex::default(),
            failed: Mutex::default(),
            pushes: Mutex::default(),
            armed: Mutex::default(),
            push_fault: AtomicBool::new(false),
            end_fault: AtomicBool::new(false),
            refuse_maps: AtomicBool::new(false),
            lie: AtomicBool::new(false),
            lies: Mutex::default(),
        })
    }

    /// Around a simulated device of profile `uri` with two threads, which costs little to open.
    ///
    /// # Panics
    /// There is no such profile, or it cannot be opened.
    #[must_use]
    pub fn open(uri: &str) -> Arc<Faulty> {
        let settings = SimSettings { threads: 2, ..SimSettings::default() };
        let uri = uri.parse().unwrap_or_else(|error| panic!("{error}"));
        Faulty::new(SimPlatform::new(settings).open(&uri).unwrap_or_else(|error| panic!("{error}")))
    }

    /// The `nth` call of `op` from now on (1: the next) fails without effect.
    pub fn fail(&self, op: DeviceOp, nth: usize) {
        self.arm(Armed { op, nth, trouble: Trouble::Fail });
    }

    /// The `nth` call of `op` from now on (1: the next) starts `by` later than it was made.
    pub fn delay(&self, op: DeviceOp, nth: usize, by: Duration) {
        self.arm(Armed { op, nth, trouble: Trouble::Delay(by) });
    }

    /// The next launch that carries pushes fails at them, before any kernel.
    pub fn fail_push(&self) {
        self.push_fault.store(true, SeqCst);
    }

    /// The next launch that is not failed otherwise runs, and ends in a failure of the device: what its tasks have
    /// written is there, and nobody can know.
    pub fn fail_end(&self) {
        self.end_fault.store(true, SeqCst);
    }

    /// Takes back what was asked for and has not happened yet. Whether there was anything.
    pub fn disarm(&self) -> bool {
        let pending = !std::mem::take(&mut *self.armed.lock().unwrap()).is_empty();
        let launch = [&self.push_fault, &self.end_fault].map(|fault| fault.swap(false, SeqCst));
        pending || launch.contains(&true)
    }

    /// Every request to map is refused from now on, whatever the device says of itself.
    pub fn refuse_maps(&self) {
        self.refuse_maps.store(true, SeqCst);
    }

    /// Every map is granted from now on, and what the host stores through it is lost.
    pub fn lie(&self) {
        self.lie.store(true, SeqCst);
    }

    /// Forgets the calls so far: those of a start-up probe, for instance.
    pub fn forget_calls(&self) {
        self.calls.lock().unwrap().clear();
    }

    /// Calls let through since they were last forgotten, in order.
    pub fn calls(&self) -> Vec<(DeviceOp, Option<MemoryId>)> {
        self.calls.lock().unwrap().clone()
    }

    /// How many of them are of a kind.
    pub fn count(&self, op: DeviceOp) -> usize {
        self.calls.lock().unwrap().iter().filter(|(called, _)| *called == op).count()
    }

    /// The kinds of all calls that were failed, in order.
    pub fn failed(&self) -> Vec<DeviceOp> {
        self.failed.lock().unwrap().clone()
    }

    /// What launches have carried since this was last asked.
    pub fn take_pushes(&self) -> Vec<Push> {
        std::mem::take(&mut self.pushes.lock().unwrap())
    }

    fn arm(&self, armed: Armed) {
        assert!(armed.nth > 0, "calls are counted from 1");
        self.armed.lock().unwrap().push(armed);
    }

    /// Each method starts here: counts the call, and does to it what was asked for.
    fn call(&self, op: DeviceOp, memory: Option<MemoryId>) -> Result<(), DeviceError> {
        let mut due = Vec::new();
        self.armed.lock().unwrap().retain_mut(|armed| {
            if armed.op == op {
                armed.nth -= 1;
                if armed.nth == 0 {
                    due.push(armed.trouble);
                }
            }
            armed.nth > 0
        });
        let mut failed = false;
        for trouble in due {
            match trouble {
                Trouble::Fail => failed = true,
                Trouble::Delay(by) => std::thread::sleep(by),
            }
        }
        if failed {
            self.failed.lock().unwrap().push(op);
            return Err(DeviceError::Failed { op, message: INJECTED.into() });
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
        let source = DeviceError::Failed { op: DeviceOp::CopyInRanges, message: INJECTED.into() };
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

/// A launch that ends in a failure, whatever its tasks do.
#[derive(Debug)]
struct EndFailed(Arc<dyn Execution>);

impl EndFailed {
    fn failed(completion: Completion) -> Completion {
        let error = DeviceError::Failed { op: DeviceOp::Launch, message: INJECTED.into() };
        Completion { result: completion.result.and(Err(LaunchError::Device(error))), ..completion }
    }
}

// SAFETY: it ends when the inner one does.
unsafe impl Execution for EndFailed {
    fn poll(&self) -> Option<Completion> {
        self.0.poll().map(EndFailed::failed)
    }
    fn wait(&self, timeout: Option<Duration>) -> Option<Completion> {
        self.0.wait(timeout).map(EndFailed::failed)
    }
    fn running(&self) -> Vec<TaskId> {
        self.0.running()
    }
}

// SAFETY: every answer is the inner device's, or a failure, or (lying) a mapping of memory that is nobody else's and that
// stays until it is unmapped.
unsafe impl Device for Faulty {
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
            return Ok(MapAnswer::Refused { reason: "map refused by fault injection".into() });
        }
        if self.lie.load(SeqCst) {
            let mut lie = vec![0; (range.end - range.start) as usize];
            let base = HostPtr(NonNull::new(lie.as_mut_ptr()).expect("a vector's pointer is not null"));
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
        let execution = unsafe { self.inner.launch(launch) }?;
        Ok(if self.end_fault.swap(false, SeqCst) { Arc::new(EndFailed(execution)) } else { execution })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_nth_call_of_a_kind_fails_without_effect_and_no_other() {
        for uri in PROFILES {
            let device = Faulty::open(uri);
            device.fail(DeviceOp::Alloc, 2);
            let first = device.alloc(64).unwrap();
            let error = device.alloc(64).unwrap_err();
            assert_eq!(error, DeviceError::Failed { op: DeviceOp::Alloc, message: INJECTED.into() });
            let third = device.alloc(64).unwrap();
            assert_eq!((device.count(DeviceOp::Alloc), device.counters().allocs), (2, 2), "{uri}");
            assert!(!device.disarm(), "{uri}: it has happened");
            device.fail(DeviceOp::Free, 1);
            // SAFETY: nothing uses the memory.
            assert!(unsafe { device.free(first.id) }.is_err());
            for memory in [first, third] {
                // SAFETY: nothing uses the memory.
                unsafe { device.free(memory.id) }.unwrap();
            }
            assert_eq!(device.counters().frees, 2, "{uri}");
        }
    }

    #[test]
    fn a_delayed_call_is_late_and_whole() {
        let device = Faulty::open("sim");
        let by = Duration::from_millis(20);
        device.delay(DeviceOp::Alloc, 1, by);
        let start = Instant::now();
        let memory = device.alloc(64).unwrap();
        assert!(start.elapsed() >= by);
        device.delay(DeviceOp::Free, 1, by);
        assert!(device.disarm(), "it has not happened");
        // SAFETY: nothing uses the memory.
        unsafe { device.free(memory.id) }.unwrap();
    }

    #[test]
    fn maps_are_refused_or_lied_about_and_the_device_is_not_asked() {
        for uri in PROFILES {
            let device = Faulty::open(uri);
            let memory = device.alloc(64).unwrap().id;
            device.refuse_maps();
            // SAFETY: the memory is live, the range lies inside.
            assert!(matches!(unsafe { device.map(memory, 0..64) }, Ok(MapAnswer::Refused { .. })));
            let device = Faulty::new(device);
            device.lie();
            // SAFETY: the memory is live, the range lies inside.
            let answer = unsafe { device.map(memory, 0..64) };
            assert!(matches!(answer, Ok(MapAnswer::Mapped(_))), "{uri}: {answer:?}");
            // SAFETY: nothing uses the mapping.
            unsafe { device.unmap(memory) }.unwrap();
            // SAFETY: nothing uses the memory.
            unsafe { device.free(memory) }.unwrap();
            let counters = device.counters();
            assert_eq!((counters.maps, counters.map_refusals, counters.unmaps), (0, 0, 0), "{uri}");
        }
    }
}
