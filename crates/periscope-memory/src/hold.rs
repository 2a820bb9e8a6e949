//! A build's access to one allocation, from its first touch to its launch.
//!
//! The read path: compare the offset with the length, test one chunk bit, load. It takes no lock; what makes that sound
//! is that a hold is the only one of its allocation (`held`), that whoever changes a view needs the turn, which the
//! hold's build has, and that the hold owns the allocation, so view and memory outlive it. Everything else goes
//! through the allocation's state.
//!
//! References into the view exist only as results of [`Hold::view`] and [`Hold::view_mut`]. They borrow the hold, so no
//! write can happen under a shared one and nothing at all under an exclusive one; a fill that another read causes copies
//! only bytes that are not valid, which no reference covers.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use periscope_core::{Element, Footprint, Region};
use periscope_hal::strided::for_each_row;
use periscope_hal::{Strided, StridedMut};
use rangemap::RangeSet;

use crate::allocation::{Allocation, State};
use crate::counts::ViewReport;
use crate::error::MemoryError;
use crate::mirror::Valueless;
use crate::turn::Turn;
use crate::view::{ALL_VALID, ALL_VALID_SHIFT, ReadPath, Readable, View};

/// A build's access to one allocation.
#[derive(Debug)]
pub struct Hold {
    allocation: Arc<Allocation>,
    /// For messages: the tensor through which the allocation was first touched.
    name: Box<str>,
    /// Bytes that the read path may serve: the allocation's, or 0 while it must ask.
    readable_bytes: Cell<u64>,
    path: Cell<ReadPath>,
    /// A store needs no record.
    stores_directly: Cell<bool>,
    reads: Cell<u64>,
    writes: Cell<u64>,
    /// What this build wrote, if that is to be recorded.
    written: Option<RefCell<RangeSet<u64>>>,
}

impl Hold {
    /// Takes hold of an allocation and establishes its host view, if this is the first touch ever. Moves no byte.
    /// `record_writes`: keep account of what this build writes, for [`Hold::written`].
    ///
    /// # Errors
    /// [`MemoryError::HostMemory`].
    ///
    /// # Panics
    /// If it is held already: a build takes one hold per allocation.
    pub fn new(allocation: Arc<Allocation>, turn: &Turn, name: &str, record_writes: bool) -> Result<Hold, MemoryError> {
        assert!(turn.is_of(&allocation.shared.turns), "the turn is another device's");
        let was_held = allocation.held.swap(true, AcqRel);
        assert!(!was_held, "{} is held already", allocation.id());
        // Relaxed: only whoever has the turn counts and compares.
        allocation.last_used.store(allocation.shared.holds.fetch_add(1, Relaxed) + 1, Relaxed);
        let hold = Hold {
            allocation,
            name: name.into(),
            readable_bytes: Cell::new(0),
            path: Cell::new(ReadPath {
                base: std::ptr::NonNull::dangling().as_ptr(),
                chunk_bits: &ALL_VALID,
                chunk_shift: ALL_VALID_SHIFT,
            }),
            stores_directly: Cell::new(false),
            reads: Cell::new(0),
            writes: Cell::new(0),
            written: record_writes.then(RefCell::default),
        };
        // From here on an error drops the hold, which gives the allocation back.
        let mut state = hold.allocation.lock();
        if state.view.is_none() {
            state.view = Some(View::establish(hold.allocation.site(&hold.name))?);
        }
        hold.update_paths(&state);
        drop(state);
        Ok(hold)
    }

    /// The allocation.
    #[must_use]
    pub fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    /// The host view, this build's reads and writes included.
    #[must_use]
    pub fn report(&self) -> ViewReport {
        let mut report = self.allocation.view_report().expect("a hold establishes the view");
        report.reads += self.reads.get();
        report.writes += self.writes.get();
        report
    }

    /// What this build wrote, as (first byte, bytes), if it was to be recorded.
    ///
    /// # Errors
    /// [`MemoryError::Device`].
    pub fn written(&self) -> Result<Vec<(u64, Vec<u8>)>, MemoryError> {
        let Some(written) = &self.written else { return Ok(Vec::new()) };
        let ranges: Vec<Range<u64>> = written.borrow().iter().cloned().collect();
        let base = self.make_readable(ranges.iter().cloned())?;
        let copy = |range: &Range<u64>| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            // SAFETY: in bounds (it was written) and readable since the line above; see the module's head.
            unsafe { base.add(range.start as usize).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            (range.start, bytes)
        };
        Ok(ranges.iter().map(copy).collect())
    }

    fn update_paths(&self, state: &State) {
        let all_have_values = state.all_have_values();
        let view = state.view.as_ref().expect("a hold establishes the view");
        let path = view.read_path(all_have_values);
        self.readable_bytes.set(if path.is_some() { self.allocation.len_bytes() } else { 0 });
        if let Some(path) = path {
            self.path.set(path);
        }
        self.stores_directly.set(self.written.is_none() && view.stores_directly(all_have_values));
    }

    fn bounds(&self, at: u64, len: u64) -> Result<Range<u64>, MemoryError> {
        match at.checked_add(len) {
            Some(end) if end <= self.allocation.len_bytes() => Ok(at..end),
            end => Err(MemoryError::OutOfBounds {
                range: at..end.unwrap_or(u64::MAX),
                len_bytes: self.allocation.len_bytes(),
            }),
        }
    }

    /// The element at byte `at`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::NoValue`], [`MemoryError::Poisoned`], [`MemoryError::Device`].
    #[inline]
    pub fn load<T: Element>(&self, at: u64) -> Result<T, MemoryError> {
        let size = size_of::<T::Stored>() as u64;
        if self.readable_bytes.get().checked_sub(size).is_some_and(|last| at <= last) {
            let path = self.path.get();
            let chunk = at >> path.chunk_shift;
            // SAFETY: `at` lies in the allocation, so its chunk has a bit in the bitmap, which the view owns; see the module's head.
            let bits = unsafe { &*path.chunk_bits.add((chunk / 64) as usize) }.load(Relaxed);
            // An element that is aligned to its size lies in one chunk; one that is not is left to the slow path.
            if bits >> (chunk % 64) & 1 == 1 && at.is_multiple_of(size) {
                self.reads.set(self.reads.get() + 1);
                // SAFETY: `at + size` lies in the allocation and the view's bytes there are valid; see the module's head.
                return Ok(T::from_stored(unsafe { path.base.add(at as usize).cast::<T::Stored>().read_unaligned() }));
            }
        }
        self.load_slow(at)
    }

    #[cold]
    #[inline(never)]
    fn load_slow<T: Element>(&self, at: u64) -> Result<T, MemoryError> {
        let range = self.bounds(at, size_of::<T::Stored>() as u64)?;
        let mut bytes = [0u8; 8];
        let bytes = &mut bytes[..size_of::<T::Stored>()];
        self.copy_readable(std::iter::once(range.clone()), |_, copy| copy(range.clone(), bytes))?;
        self.reads.set(self.reads.get() + 1);
        let mut bits = [0u8; 8];
        bits[..bytes.len()].copy_from_slice(bytes);
        Ok(T::from_bits64(u64::from_le_bytes(bits)))
    }

    /// Sets the element at byte `at`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Device`].
    #[inline]
    pub fn store<T: Element>(&mut self, at: u64, value: T) -> Result<(), MemoryError> {
        let range = self.bounds(at, size_of::<T::Stored>() as u64)?;
        let base =
            if self.stores_directly.get() { self.path.get().base } else { self.make_writable(std::iter::once(range))? };
        self.writes.set(self.writes.get() + 1);
        // SAFETY: in bounds and writable; `&mut self` says that no guard exists; see the module's head.
        unsafe { base.add(at as usize).cast::<T::Stored>().write_unaligned(value.to_stored()) };
        Ok(())
    }

    /// Makes ranges readable through the view, and returns its base. May pass the budget of mirrors: what refers into a view
    /// needs it whole.
    fn make_readable(&self, ranges: impl Iterator<Item = Range<u64>> + Clone) -> Result<*mut u8, MemoryError> {
        let mut state = self.allocation.lock();
        for range in ranges.clone() {
            state.check_values(&range)?;
        }
        let site = self.allocation.site(&self.name);
        let State { view, undefined, poisoned } = &mut *state;
        let view = view.as_mut().expect("a hold establishes the view");
        let result = view.make_readable(site, ranges, Valueless { undefined, poisoned }, false);
        let base = view.base().as_ptr();
        self.update_paths(&state);
        result.map(|_| base)
    }

    /// Makes ranges readable, through the view or without keeping them, and lets `body` copy parts of them out. It is told
    /// whether copying can still fail.
    fn copy_readable(
        &self,
        ranges: impl Iterator<Item = Range<u64>> + Clone,
        body: impl FnOnce(bool, &mut dyn FnMut(Range<u64>, &mut [u8]) -> Result<(), MemoryError>) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        let mut state = self.allocation.lock();
        for range in ranges.clone() {
            state.check_values(&range)?;
        }
        let site = self.allocation.site(&self.name);
        let State { view, undefined, poisoned } = &mut *state;
        let without = Valueless { undefined, poisoned };
        let view = view.as_mut().expect("a hold establishes the view");
        let result = view.make_readable(site, ranges, without, true).and_then(|readable| {
            let base = view.base().as_ptr();
            body(readable == Readable::Bounced, &mut |range, mut to| {
                if readable == Readable::InView {
                    // SAFETY: one of the ranges that were made readable, within the view; `to` is not the view's memory.
                    unsafe { base.add(range.start as usize).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
                    return Ok(());
                }
                let mut rest = range;
                while !rest.is_empty() {
                    let part = view.first_part(&rest);
                    let (now, later) = to.split_at_mut((part.end - part.start) as usize);
                    let from = view.bounce(site, &part, without)?;
                    // SAFETY: `bounce` has `part`'s bytes there until its next call; `to` is other memory.
                    unsafe { from.copy_to_nonoverlapping(now.as_mut_ptr(), now.len()) };
                    rest.start = part.end;
                    to = later;
                }
                Ok(())
            })
        });
        self.update_paths(&state);
        result
    }

    /// Makes ranges writable through the view, gives them values, and returns its base.
    fn make_writable(&self, ranges: impl Iterator<Item = Range<u64>>) -> Result<*mut u8, MemoryError> {
        let mut state = self.allocation.lock();
        let site = self.allocation.site(&self.name);
        let mut result = Ok(());
        for range in ranges {
            let view = state.view.as_mut().expect("a hold establishes the view");
            result = view.make_writable(site, &range);
            if result.is_err() {
                break;
            }
            state.define(range.clone());
            if let Some(written) = &self.written {
                written.borrow_mut().insert(range);
            }
        }
        let base = state.view.as_ref().expect("a hold establishes the view").base().as_ptr();
        self.update_paths(&state);
        result.map(|()| base)
    }

    /// The bytes of a region, in the allocation.
    fn footprint(&self, region: &Region) -> Result<Vec<Range<u64>>, MemoryError> {
        self.bounds(region.offset_bytes(), region.extent_bytes())?;
        Ok(footprint_ranges(region))
    }

    /// Copies the elements of a region, packed in row-major order, to `to`.
    ///
    /// # Errors
    /// As [`Hold::load`]; `to` is untouched then.
    ///
    /// # Panics
    /// If `to` has not exactly the region's packed length.
    pub fn read_region(&self, region: &Region, to: &mut [u8]) -> Result<(), MemoryError> {
        assert_eq!(to.len() as u64, region.packed_bytes());
        let footprint = self.footprint(region)?;
        self.copy_readable(footprint.into_iter(), |can_fail, copy| {
            let mut copy_all = |to: &mut [u8]| {
                let (mut done, mut result) = (0, Ok(()));
                for_each_run_bytes(region, |run| {
                    let part = &mut to[done..done + (run.end - run.start) as usize];
                    done += part.len();
                    if result.is_ok() {
                        result = copy(run, part);
                    }
                });
                result
            };
            if !can_fail {
                return copy_all(to);
            }
            // All or nothing.
            let mut staged = vec![0; to.len()];
            copy_all(&mut staged)?;
            to.copy_from_slice(&staged);
            Ok(())
        })?;
        self.reads.set(self.reads.get() + 1);
        Ok(())
    }

    /// Sets the elements of a region from `from`, packed in row-major order.
    ///
    /// # Errors
    /// As [`Hold::store`].
    ///
    /// # Panics
    /// If `from` has not exactly the region's packed length.
    pub fn write_region(&mut self, region: &Region, from: &[u8]) -> Result<(), MemoryError> {
        assert_eq!(from.len() as u64, region.packed_bytes());
        let base = self.make_writable(self.footprint(region)?.into_iter())?;
        self.writes.set(self.writes.get() + 1);
        let mut done = 0;
        for_each_run_bytes(region, |run| {
            let part = &from[done..done + (run.end - run.start) as usize];
            done += part.len();
            // SAFETY: in bounds and writable since above; `&mut self` says that no guard exists; `from` is not the view's memory.
            unsafe { base.add(run.start as usize).copy_from_nonoverlapping(part.as_ptr(), part.len()) };
        });
        Ok(())
    }

    /// Shared access to the elements of a region.
    ///
    /// # Errors
    /// As [`Hold::load`].
    ///
    /// # Panics
    /// If the region's element type is not `T`, or the region is not aligned for it (no region of an allocation is).
    pub fn view<T: Element>(&self, region: &Region) -> Result<Strided<'_, T>, MemoryError> {
        let base = self.make_readable(self.footprint(region)?.into_iter())?;
        self.reads.set(self.reads.get() + 1);
        Ok(strided(base, region))
    }

    /// Exclusive access to the elements of a region. Fills it first, and counts as writing all of it.
    ///
    /// # Errors
    /// As [`Hold::load`], except that bytes without a value are given one: whatever is there.
    ///
    /// # Panics
    /// As [`Hold::view`]; also if two positions of the region are one element.
    pub fn view_mut<T: Element>(&mut self, region: &Region) -> Result<StridedMut<'_, T>, MemoryError> {
        let runs = self.footprint(region)?;
        let with_values: Vec<_> = {
            let state = self.allocation.lock();
            let mut with_values = Vec::new();
            for run in &runs {
                state.valueless().gaps(run, |range| with_values.push(range));
            }
            with_values
        };
        self.make_readable(with_values.into_iter())?;
        let base = self.make_writable(runs.into_iter())?;
        self.writes.set(self.writes.get() + 1);
        Ok(strided_mut(base, region))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.allocation.lock();
        if let Some(view) = &mut state.view {
            view.report.reads += self.reads.get();
            view.report.writes += self.writes.get();
        }
        drop(state);
        self.allocation.held.store(false, Release);
    }
}

/// The bytes of a region as few ranges, none twice: of a broadcast view its extent, however often it repeats it.
pub(crate) fn footprint_ranges(region: &Region) -> Vec<Range<u64>> {
    let (footprint, at) = Footprint::of_region(region);
    let mut ranges = Vec::new();
    footprint.for_each_run(at, |start, len| ranges.push(start..start + len));
    ranges
}

/// Access to the elements of a region that has none: touches nothing.
///
/// # Panics
/// If the region has elements, or their type is not `T`.
#[must_use]
pub fn empty_view<T: Element>(region: &Region) -> Strided<'static, T> {
    assert!(region.layout.is_empty(), "a view that has elements");
    strided(std::ptr::NonNull::<u64>::dangling().as_ptr().cast(), &Region { offset_elems: 0, ..*region })
}

/// As [`empty_view`], for writing.
///
/// # Panics
/// As [`empty_view`].
#[must_use]
pub fn empty_view_mut<T: Element>(region: &Region) -> StridedMut<'static, T> {
    assert!(region.layout.is_empty(), "a view that has elements");
    strided_mut(std::ptr::NonNull::<u64>::dangling().as_ptr().cast(), &Region { offset_elems: 0, ..*region })
}

/// Calls `visit` with the gapless runs of a region, in row-major order, in bytes from the start of its allocation.
pub(crate) fn for_each_run_bytes(region: &Region, mut visit: impl FnMut(Range<u64>)) {
    let size = region.dtype.size_bytes();
    for_each_row(region.layout.as_ref(), |offset, len| {
        let start = (region.offset_elems + offset) * size;
        visit(start..start + len * size);
    });
}

/// The accessor of a region of memory at `base` that was made readable for as long as the result's owner is borrowed.
pub(crate) fn strided<'a, T: Element>(base: *mut u8, region: &Region) -> Strided<'a, T> {
    assert_eq!(region.dtype, T::DTYPE);
    // SAFETY: the callers have made every run of the region readable, hand the result out under a borrow that excludes
    // writers, and bases are aligned for every element type (pages, or the platform's alignment of at least 64).
    unsafe { Strided::new(base.add(region.offset_bytes() as usize), region.layout) }
}

/// As [`strided`], for memory that was made readable and writable.
pub(crate) fn strided_mut<'a, T: Element>(base: *mut u8, region: &Region) -> StridedMut<'a, T> {
    assert_eq!(region.dtype, T::DTYPE);
    assert!(region.layout.elements_are_distinct(), "two positions of a writable view are one element");
    // SAFETY: as in `strided`, and the borrow is exclusive; that no two positions are one element was checked.
    unsafe { StridedMut::new(base.add(region.offset_bytes() as usize), region.layout) }
}
