//! An allocation: device memory with an identity, a host view, and what is known of the values of its bytes.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use periscope_core::Footprint;
use periscope_core::Region;
use periscope_hal::{DeviceError, DeviceMemory, DeviceOp, Push};
use rangemap::{RangeMap, RangeSet};

use crate::counts::{ViewReport, add};
use crate::error::MemoryError;
use crate::hold::{footprint_ranges, for_each_run_bytes};
use crate::memory::Shared;
use crate::mirror::{Mirror, Replaced, Valueless};
use crate::turn::Turn;
use crate::view::{Site, View};

/// Which allocation: never reused, whatever addresses and slots are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AllocationId {
    /// The opened device, by number within the process.
    pub device: u32,
    /// Where the device's memory keeps it: reused after it is freed.
    pub slot: u32,
    /// Which allocation of the process this is. Never reused.
    pub generation: u64,
}

impl fmt::Display for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allocation {}", self.generation)
    }
}

/// What is known of an allocation's bytes on the host's side.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) view: Option<View>,
    /// Bytes that were never given a value.
    pub(crate) undefined: RangeSet<u64>,
    /// Bytes that a failed run may have written, and which run.
    pub(crate) poisoned: RangeMap<u64, u64>,
}

impl State {
    pub(crate) fn all_have_values(&self) -> bool {
        self.undefined.is_empty() && self.poisoned.is_empty()
    }

    /// Refuses bytes that have no value to read.
    pub(crate) fn check_values(&self, range: &Range<u64>) -> Result<(), MemoryError> {
        if let Some((bytes, &run)) = self.poisoned.overlapping(range).next() {
            return Err(MemoryError::Poisoned { range: bytes.start.max(range.start)..bytes.end.min(range.end), run });
        }
        if let Some(bytes) = self.undefined.overlapping(range).next() {
            return Err(MemoryError::NoValue { range: bytes.start.max(range.start)..bytes.end.min(range.end) });
        }
        Ok(())
    }

    /// These bytes have a value now.
    pub(crate) fn define(&mut self, range: Range<u64>) {
        if !self.undefined.is_empty() {
            self.undefined.remove(range.clone());
        }
        if !self.poisoned.is_empty() {
            self.poisoned.remove(range);
        }
    }

    /// Bytes that have no value.
    pub(crate) fn valueless(&self) -> Valueless<'_> {
        Valueless { undefined: &self.undefined, poisoned: &self.poisoned }
    }
}

/// Device memory from one request. Freed when its last owner drops it.
pub struct Allocation {
    pub(crate) id: AllocationId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) device_memory: DeviceMemory,
    pub(crate) len_bytes: u64,
    /// A build has a [`Hold`](crate::Hold) of it.
    pub(crate) held: AtomicBool,
    /// When a build last took hold of it, by the device's count of holds.
    pub(crate) last_used: AtomicU64,
    pub(crate) state: Mutex<State>,
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("id", &self.id)
            .field("address", &format_args!("{:#x}", self.device_memory.address))
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

impl Allocation {
    /// Its identity.
    #[must_use]
    pub fn id(&self) -> AllocationId {
        self.id
    }

    /// Its bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Name and address on the device.
    #[must_use]
    pub fn device_memory(&self) -> DeviceMemory {
        self.device_memory
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn site<'a>(&'a self, name: &'a str) -> Site<'a> {
        Site {
            device: &*self.shared.device,
            memory: self.device_memory.id,
            len: self.len_bytes,
            counters: &self.shared.counters,
            settings: &self.shared.settings,
            distrust: self.shared.distrust.as_deref(),
            shared: &self.shared,
            id: self.id,
            name,
        }
    }

    /// The host view, if one has been established.
    #[must_use]
    pub fn view_report(&self) -> Option<ViewReport> {
        self.lock().view.as_ref().map(|view| view.report.clone())
    }

    /// Refuses bytes that have no value to read. Touches nothing, so that a refused first touch establishes no view.
    ///
    /// # Errors
    /// [`MemoryError::NoValue`], [`MemoryError::Poisoned`].
    pub fn check_values(&self, bytes: &Footprint, at: u64) -> Result<(), MemoryError> {
        let state = self.lock();
        if state.all_have_values() {
            return Ok(());
        }
        let mut result = Ok(());
        bytes.for_each_run(at, |start, len| {
            if result.is_ok() {
                result = state.check_values(&(start..start + len));
            }
        });
        result
    }

    /// Establishes the host view now rather than at the first touch. Moves no byte.
    ///
    /// # Errors
    /// [`MemoryError::HostMemory`].
    pub fn prefetch(&self, turn: &Turn) -> Result<(), MemoryError> {
        self.assert_free(turn);
        let mut state = self.lock();
        if state.view.is_none() {
            state.view = Some(View::establish(self.site(&self.id.to_string()))?);
        }
        Ok(())
    }

    fn check_bounds(&self, at: u64, len: u64) -> Result<Range<u64>, MemoryError> {
        match at.checked_add(len) {
            Some(end) if end <= self.len_bytes => Ok(at..end),
            end => Err(MemoryError::OutOfBounds { range: at..end.unwrap_or(u64::MAX), len_bytes: self.len_bytes }),
        }
    }

    /// Closes what would stand in a transfer's way, and hands the host's own writes within `range` to the device first.
    fn settle(&self, state: &mut State, range: &Range<u64>) -> Result<(), MemoryError> {
        let site = self.site("");
        let Some(view) = &mut state.view else { return Ok(()) };
        if view.write_window_open() {
            view.close_window(site)?;
        }
        let Some(mirror) = view.mirror() else { return Ok(()) };
        if let Some(push) = mirror.take_push(self.device_memory.id, range.clone()) {
            // SAFETY: live, in bounds, and the turn says that no launch uses the bytes.
            let result = unsafe { site.device.copy_in_ranges(push.memory, &push.ranges, &push.bytes) };
            mirror.push_ended(result.is_ok());
            result.map_err(MemoryError::device(DeviceOp::CopyInRanges))?;
            self.count_push(view, push.bytes.len() as u64);
        }
        Ok(())
    }

    fn count_push(&self, view: &mut View, bytes: u64) {
        view.report.pushes += 1;
        view.report.pushed_bytes += bytes;
        add(&self.shared.counters.pushes, 1);
        add(&self.shared.counters.pushed_bytes, bytes);
    }

    /// Whoever transfers or launches has this device's turn, and no build has a hold of the allocation.
    fn assert_free(&self, turn: &Turn) {
        assert!(turn.is_of(&self.shared.turns), "the turn is another device's");
        // A hold hands out references into the view: a transfer under it would change what they refer to.
        assert!(!self.held.load(std::sync::atomic::Ordering::Relaxed), "a build holds {}", self.id);
    }

    /// Puts host bytes on the device.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Device`].
    ///
    /// # Panics
    /// If a build holds the allocation: its turn is not over.
    pub fn upload(&self, turn: &Turn, at: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.assert_free(turn);
        let range = self.check_bounds(at, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        self.replace(
            &mut state,
            range,
            // SAFETY: live, in bounds, and the turn says that no launch uses the bytes.
            || unsafe { self.shared.device.copy_in(self.device_memory.id, at, bytes) },
            DeviceOp::CopyIn,
            |mirror, replaced| mirror.upload_ended(at, bytes, replaced),
        )
    }

    /// Brings device bytes to the host, the host's own writes included.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::NoValue`], [`MemoryError::Poisoned`], [`MemoryError::Device`].
    ///
    /// # Panics
    /// If a build holds the allocation: its turn is not over.
    pub fn download(&self, turn: &Turn, at: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        self.assert_free(turn);
        let range = self.check_bounds(at, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        state.check_values(&range)?;
        self.settle(&mut state, &range)?;
        // SAFETY: live, in bounds, and the turn says that no launch writes the bytes.
        unsafe { self.shared.device.copy_out(self.device_memory.id, at, bytes) }
            .map_err(MemoryError::device(DeviceOp::CopyOut))
    }

    /// Sets device bytes to one value.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Device`].
    ///
    /// # Panics
    /// If a build holds the allocation: its turn is not over.
    pub fn fill(&self, turn: &Turn, range: Range<u64>, value: u8) -> Result<(), MemoryError> {
        self.assert_free(turn);
        let range = self.check_bounds(range.start, range.end.saturating_sub(range.start))?;
        if range.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        self.replace(
            &mut state,
            range.clone(),
            // SAFETY: live, in bounds, and the turn says that no launch uses the bytes.
            || unsafe { self.shared.device.fill(self.device_memory.id, range, value) },
            DeviceOp::Fill,
            |_, _| {},
        )
    }

    /// Copies bytes of another allocation of the same device.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::NoValue`], [`MemoryError::Poisoned`], [`MemoryError::Foreign`],
    /// [`MemoryError::Device`].
    ///
    /// # Panics
    /// If a build holds one of them, or if both are one allocation.
    pub fn copy_from(
        &self,
        turn: &Turn,
        at: u64,
        from: &Allocation,
        from_at: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        self.assert_free(turn);
        if self.id.device != from.id.device {
            return Err(MemoryError::Foreign { id: from.id, device: self.id.device });
        }
        from.assert_free(turn);
        assert!(self.id != from.id, "a copy within one allocation");
        let range = self.check_bounds(at, len)?;
        let from_range = from.check_bounds(from_at, len)?;
        if len == 0 {
            return Ok(());
        }
        {
            let mut state = from.lock();
            state.check_values(&from_range)?;
            from.settle(&mut state, &from_range)?;
        }
        let mut state = self.lock();
        self.replace(
            &mut state,
            range,
            // SAFETY: both live, in bounds, different allocations, and the turn says that no launch uses the bytes.
            || unsafe {
                self.shared.device.copy_within(self.device_memory.id, at, from.device_memory.id, from_at, len)
            },
            DeviceOp::CopyWithin,
            |_, _| {},
        )
    }

    /// Replaces bytes on the device by `transfer`. If that fails no host write is lost; if not, `ended` may make the mirror's
    /// bytes valid again.
    fn replace(
        &self,
        state: &mut State,
        range: Range<u64>,
        transfer: impl FnOnce() -> Result<(), DeviceError>,
        op: DeviceOp,
        ended: impl FnOnce(&mut Mirror, Replaced),
    ) -> Result<(), MemoryError> {
        let mut replaced = Replaced::default();
        if let Some(view) = &mut state.view {
            view.close_window(self.site(""))?;
            if let Some(mirror) = view.mirror() {
                replaced = mirror.transfer_begins(&range);
            }
        }
        let result = transfer();
        if let Some(mirror) = state.view.as_mut().and_then(View::mirror) {
            match &result {
                Ok(()) => ended(mirror, replaced),
                Err(_) => mirror.transfer_failed(replaced),
            }
        }
        result.map_err(MemoryError::device(op))?;
        state.define(range);
        Ok(())
    }

    /// Refuses a region that reaches outside, or of which some byte has no value.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::NoValue`], [`MemoryError::Poisoned`].
    pub fn check_region(&self, region: &Region) -> Result<(), MemoryError> {
        self.check_bounds(region.offset_bytes(), region.extent_bytes())?;
        let state = self.lock();
        footprint_ranges(region).iter().try_for_each(|range| state.check_values(range))
    }

    /// Brings the elements of a region to the host, packed in row-major order, in one transfer.
    ///
    /// # Errors
    /// As [`Allocation::download`].
    ///
    /// # Panics
    /// As [`Allocation::download`]; if `to` has not exactly the region's packed length.
    pub fn download_region(&self, turn: &Turn, region: &Region, to: &mut [u8]) -> Result<(), MemoryError> {
        assert_eq!(to.len() as u64, region.packed_bytes());
        if region.layout.is_contiguous() {
            return self.download(turn, region.offset_bytes(), to);
        }
        self.assert_free(turn);
        self.check_region(region)?;
        let mut state = self.lock();
        self.settle(&mut state, &(region.offset_bytes()..region.offset_bytes() + region.extent_bytes()))?;
        // Ascending and apart, however the layout walks them.
        let ranges: RangeSet<u64> = footprint_ranges(region).into_iter().collect();
        let ranges: Vec<Range<u64>> = ranges.into_iter().collect();
        let starts: Vec<usize> = packed_starts(&ranges);
        let mut packed = vec![0; ranges.iter().map(|range| (range.end - range.start) as usize).sum()];
        // SAFETY: live, in bounds, and the turn says that no launch writes the bytes.
        unsafe { self.shared.device.copy_out_ranges(self.device_memory.id, &ranges, &mut packed) }
            .map_err(MemoryError::device(DeviceOp::CopyOutRanges))?;
        let mut done = 0;
        for_each_run_bytes(region, |run| {
            let within = ranges.partition_point(|range| range.end <= run.start);
            let from = starts[within] + (run.start - ranges[within].start) as usize;
            let len = (run.end - run.start) as usize;
            to[done..done + len].copy_from_slice(&packed[from..from + len]);
            done += len;
        });
        Ok(())
    }

    /// Puts packed elements in place of those of a region, in one transfer.
    ///
    /// # Errors
    /// As [`Allocation::upload`].
    ///
    /// # Panics
    /// As [`Allocation::upload`]; if `bytes` has not exactly the region's packed length, or two positions of the region are one
    /// element.
    pub fn upload_region(&self, turn: &Turn, region: &Region, bytes: &[u8]) -> Result<(), MemoryError> {
        assert_eq!(bytes.len() as u64, region.packed_bytes());
        assert!(region.layout.elements_are_distinct(), "two positions of a written region are one element");
        if region.layout.is_contiguous() {
            return self.upload(turn, region.offset_bytes(), bytes);
        }
        self.assert_free(turn);
        self.check_bounds(region.offset_bytes(), region.extent_bytes())?;
        let ranges: RangeSet<u64> = footprint_ranges(region).into_iter().collect();
        let ranges: Vec<Range<u64>> = ranges.into_iter().collect();
        let starts: Vec<usize> = packed_starts(&ranges);
        let mut packed = vec![0; bytes.len()];
        let mut done = 0;
        for_each_run_bytes(region, |run| {
            let within = ranges.partition_point(|range| range.end <= run.start);
            let to = starts[within] + (run.start - ranges[within].start) as usize;
            let len = (run.end - run.start) as usize;
            packed[to..to + len].copy_from_slice(&bytes[done..done + len]);
            done += len;
        });
        let mut state = self.lock();
        let mut replaced = Vec::new();
        if let Some(view) = &mut state.view {
            view.close_window(self.site(""))?;
            if let Some(mirror) = view.mirror() {
                replaced.extend(ranges.iter().map(|range| mirror.transfer_begins(range)));
            }
        }
        // SAFETY: live, in bounds, and the turn says that no launch uses the bytes.
        let result = unsafe { self.shared.device.copy_in_ranges(self.device_memory.id, &ranges, &packed) };
        if let Some(mirror) = state.view.as_mut().and_then(View::mirror) {
            for ((range, &start), replaced) in ranges.iter().zip(&starts).zip(replaced) {
                match &result {
                    Ok(()) => {
                        let part = &packed[start..start + (range.end - range.start) as usize];
                        mirror.upload_ended(range.start, part, replaced);
                    }
                    Err(_) => mirror.transfer_failed(replaced),
                }
            }
        }
        result.map_err(MemoryError::device(DeviceOp::CopyInRanges))?;
        for range in ranges {
            state.define(range);
        }
        Ok(())
    }

    /// Whether [`Allocation::launched`] and [`Allocation::retired`] need to know which bytes a launch writes.
    #[must_use]
    pub fn tracks_writes(&self) -> bool {
        let mut state = self.lock();
        !state.all_have_values() || state.view.as_mut().is_some_and(|view| view.mirror().is_some())
    }

    /// The first of `bytes` that a failed run may have written, and which run.
    #[must_use]
    pub fn poisoned(&self, bytes: &RangeSet<u64>) -> Option<(Range<u64>, u64)> {
        let state = self.lock();
        bytes.iter().find_map(|range| {
            let (poisoned, &run) = state.poisoned.overlapping(range).next()?;
            Some((poisoned.start.max(range.start)..poisoned.end.min(range.end), run))
        })
    }

    /// Whether a failed run may have written any byte.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        !self.lock().poisoned.is_empty()
    }

    /// Brings device bytes to the same places of `to`, which is as long as the allocation (or a prefix that holds them).
    /// Values are the caller's concern: these are bytes that a launch has just written.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Device`]: part of the bytes may have arrived.
    ///
    /// # Panics
    /// If a build holds the allocation, or `to` is too short.
    pub fn download_ranges(&self, turn: &Turn, ranges: &RangeSet<u64>, to: &mut [u8]) -> Result<u64, MemoryError> {
        self.assert_free(turn);
        let ranges: Vec<Range<u64>> = ranges.iter().cloned().collect();
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return Ok(0) };
        self.check_bounds(first.start, last.end - first.start)?;
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let device = &*self.shared.device;
        if let [range] = ranges.as_slice() {
            let to = &mut to[range.start as usize..range.end as usize];
            // SAFETY: live, in bounds, and the turn says that no launch writes the bytes.
            unsafe { device.copy_out(self.device_memory.id, range.start, to) }
                .map_err(MemoryError::device(DeviceOp::CopyOut))?;
            return Ok(bytes);
        }
        let mut packed = vec![0; bytes as usize];
        // SAFETY: as above, for each range.
        unsafe { device.copy_out_ranges(self.device_memory.id, &ranges, &mut packed) }
            .map_err(MemoryError::device(DeviceOp::CopyOutRanges))?;
        let mut rest = packed.as_slice();
        for range in ranges {
            let (part, after) = rest.split_at((range.end - range.start) as usize);
            rest = after;
            to[range.start as usize..range.end as usize].copy_from_slice(part);
        }
        Ok(bytes)
    }

    /// Before a launch that uses the allocation: closes the window that the launch excludes, and returns the host's
    /// writes for the launch to carry. `written`: the launch's tasks write bytes of it.
    ///
    /// # Errors
    /// [`MemoryError::Device`]: the launch must not happen; nothing is lost.
    ///
    /// # Panics
    /// If a build holds it: guards might exist.
    pub fn before_launch(&self, turn: &Turn, written: bool) -> Result<Option<Push>, MemoryError> {
        self.assert_free(turn);
        let mut state = self.lock();
        let Some(view) = &mut state.view else { return Ok(None) };
        if written || view.write_window_open() {
            view.close_window(self.site(""))?;
        }
        Ok(view.mirror().and_then(|mirror| mirror.take_push(self.device_memory.id, 0..self.len_bytes)))
    }

    /// The launch could not be started: what it carried is to be pushed by the next.
    ///
    /// # Panics
    /// If a build holds it: guards might exist.
    pub fn launch_refused(&self, turn: &Turn) {
        self.assert_free(turn);
        if let Some(mirror) = self.lock().view.as_mut().and_then(View::mirror) {
            mirror.push_ended(false);
        }
    }

    /// The launch has started: from now on these bytes of a mirror are stale.
    ///
    /// # Panics
    /// If a build holds it: guards might exist.
    pub fn launched(&self, turn: &Turn, written: &RangeSet<u64>) {
        self.assert_free(turn);
        if let Some(mirror) = self.lock().view.as_mut().and_then(View::mirror) {
            mirror.device_writes(written.iter().cloned());
        }
    }

    /// The launch has ended well: what it carried has arrived (`pushed_bytes` of it), and what it certainly wrote has a
    /// value.
    ///
    /// # Panics
    /// If a build holds it: guards might exist.
    pub fn retired(&self, turn: &Turn, pushed_bytes: u64, certainly_written: &RangeSet<u64>) {
        self.assert_free(turn);
        let mut state = self.lock();
        for range in certainly_written.iter() {
            state.define(range.clone());
        }
        self.push_ended(&mut state, true, pushed_bytes);
    }

    /// The launch of run `run` has failed. `pushes_arrived`: what it carried (`pushed_bytes` of it) was in place before it did,
    /// and tasks may have run.
    ///
    /// # Panics
    /// If a build holds it: guards might exist.
    pub fn failed(&self, turn: &Turn, run: u64, pushes_arrived: bool, pushed_bytes: u64, written: &RangeSet<u64>) {
        self.assert_free(turn);
        let mut state = self.lock();
        if pushes_arrived {
            for range in written.iter() {
                state.poisoned.insert(range.clone(), run);
            }
        }
        self.push_ended(&mut state, pushes_arrived, pushed_bytes);
    }

    fn push_ended(&self, state: &mut State, ok: bool, pushed_bytes: u64) {
        let Some(view) = &mut state.view else { return };
        if let Some(mirror) = view.mirror() {
            mirror.push_ended(ok);
        }
        if ok && pushed_bytes > 0 {
            self.count_push(view, pushed_bytes);
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.shared.forget(self.id, self.device_memory.address);
        let state = std::mem::replace(
            self.state.get_mut().unwrap_or_else(PoisonError::into_inner),
            State { view: None, undefined: RangeSet::new(), poisoned: RangeMap::new() },
        );
        if let Some(mut view) = state.view
            && let Err(error) = view.release(self.site(""))
        {
            add(&self.shared.counters.quarantined, 1);
            log::error!("releasing the host view of {} failed, its memory is quarantined: {error}", self.id);
            // The mapping may still exist, so the memory must never be handed out again.
            return;
        }
        // SAFETY: the last owner is gone, runs in flight are owners, and the view has been released.
        if let Err(error) = unsafe { self.shared.device.free(self.device_memory.id) } {
            add(&self.shared.counters.quarantined, 1);
            log::error!("freeing {} failed, its memory is quarantined: {error}", self.id);
            return;
        }
        add(&self.shared.counters.frees, 1);
    }
}

/// Where each range starts when all are packed.
fn packed_starts(ranges: &[Range<u64>]) -> Vec<usize> {
    let mut next = 0;
    let start = |range: &Range<u64>| {
        let start = next;
        next += (range.end - range.start) as usize;
        start
    };
    ranges.iter().map(start).collect()
}
