//! What the orchestrator sees and writes of bytes that are not yet on the device: a staged tensor's (over the caller's
//! memory, which it never changes) and graph memory's (over nothing).
//!
//! Reads see what was written here, else the base. The written bytes are pushed with the launch, and copied back with
//! what the tasks wrote.

use std::cell::{OnceCell, RefCell};
use std::ops::Range;

use periscope_core::{Element, Region};
use periscope_hal::{MemoryId, Push, Strided, StridedMut};
use rangemap::RangeSet;

use crate::buffer::HostBuffer;
use crate::error::MemoryError;
use crate::hold::{footprint_ranges, for_each_run_bytes, strided, strided_mut};

/// Host writes over `len_bytes` bytes.
#[derive(Debug)]
pub struct Overlay {
    len_bytes: u64,
    /// Reserved by the first write, or the first view of composed bytes.
    buffer: OnceCell<HostBuffer>,
    /// Bytes that the orchestrator wrote: current in the buffer.
    written: RangeSet<u64>,
    /// Bytes that are current in the buffer: written, or copied from the base so that a guard can refer to them. Grows under
    /// shared guards, which is sound because it only ever copies to bytes that are not present, and guards refer to present ones.
    present: RefCell<RangeSet<u64>>,
}

impl Overlay {
    /// Nothing written yet.
    #[must_use]
    pub fn new(len_bytes: u64) -> Overlay {
        Overlay { len_bytes, buffer: OnceCell::new(), written: RangeSet::new(), present: RefCell::default() }
    }

    /// The bytes that the orchestrator wrote.
    #[must_use]
    pub fn written(&self) -> &RangeSet<u64> {
        &self.written
    }

    fn bounds(&self, at: u64, len: u64) -> Result<Range<u64>, MemoryError> {
        match at.checked_add(len) {
            Some(end) if end <= self.len_bytes => Ok(at..end),
            end => Err(MemoryError::OutOfBounds { range: at..end.unwrap_or(u64::MAX), len_bytes: self.len_bytes }),
        }
    }

    fn base_ptr(&self) -> Result<*mut u8, MemoryError> {
        if self.buffer.get().is_none() {
            // Only this thread is here, so the cell is still empty.
            let _ = self.buffer.set(HostBuffer::reserve(self.len_bytes)?);
        }
        Ok(self.buffer.get().expect("set above").base().as_ptr())
    }

    /// Refuses bytes that were not written where there is no base.
    fn check_values(&self, base: Option<&[u8]>, range: &Range<u64>) -> Result<(), MemoryError> {
        match self.written.gaps(range).next() {
            Some(gap) if base.is_none() => Err(MemoryError::NoValue { range: gap }),
            _ => Ok(()),
        }
    }

    /// Copies bytes `range` as the orchestrator sees them to `to`, which is as long.
    fn compose(&self, base: Option<&[u8]>, range: &Range<u64>, to: &mut [u8]) {
        if let Some(base) = base {
            to.copy_from_slice(&base[range.start as usize..range.end as usize]);
        }
        for written in self.written.overlapping(range) {
            let both = written.start.max(range.start)..written.end.min(range.end);
            let part = &mut to[(both.start - range.start) as usize..(both.end - range.start) as usize];
            part.copy_from_slice(self.bytes(&both));
        }
    }

    /// Written bytes.
    ///
    /// # Panics
    /// If some of them have not been written.
    #[must_use]
    pub fn bytes(&self, range: &Range<u64>) -> &[u8] {
        assert!(self.written.gaps(range).next().is_none() && range.end <= self.len_bytes);
        let Some(buffer) = self.buffer.get() else { return &[] };
        // SAFETY: within the buffer; initialised memory; `&self` excludes writers (guards of `view_mut` borrow exclusively).
        unsafe {
            std::slice::from_raw_parts(
                buffer.base().as_ptr().add(range.start as usize),
                (range.end - range.start) as usize,
            )
        }
    }

    /// The element at byte `at`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`]; [`MemoryError::NoValue`] without a base.
    #[inline]
    pub fn load<T: Element>(&self, base: Option<&[u8]>, at: u64) -> Result<T, MemoryError> {
        let size = size_of::<T::Stored>();
        let mut bytes = [0u8; 8];
        if self.written.is_empty()
            && let Some(base) = base
            && let Some(found) = base.get(at as usize..).and_then(|rest| rest.get(..size))
        {
            bytes[..size].copy_from_slice(found);
        } else {
            let range = self.bounds(at, size as u64)?;
            self.check_values(base, &range)?;
            self.compose(base, &range, &mut bytes[..size]);
        }
        Ok(T::from_bits64(u64::from_le_bytes(bytes)))
    }

    /// Sets the element at byte `at`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::HostMemory`].
    pub fn store<T: Element>(&mut self, at: u64, value: T) -> Result<(), MemoryError> {
        let size = size_of::<T::Stored>();
        self.write(at, &value.to_bits64().to_le_bytes()[..size])
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let range = self.bounds(at, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let base = self.base_ptr()?;
        // SAFETY: within the buffer; `&mut self` says that no guard exists; `bytes` is not the buffer's memory.
        unsafe { base.add(at as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.written.insert(range.clone());
        self.present.get_mut().insert(range);
        Ok(())
    }

    /// Copies the elements of a region, packed in row-major order, to `to`.
    ///
    /// # Errors
    /// As [`Overlay::load`]; `to` is untouched then.
    ///
    /// # Panics
    /// If `to` has not exactly the region's packed length.
    pub fn read_region(&self, base: Option<&[u8]>, region: &Region, to: &mut [u8]) -> Result<(), MemoryError> {
        assert_eq!(to.len() as u64, region.packed_bytes());
        self.bounds(region.offset_bytes(), region.extent_bytes())?;
        for run in footprint_ranges(region) {
            self.check_values(base, &run)?;
        }
        let mut done = 0;
        for_each_run_bytes(region, |run| {
            let len = (run.end - run.start) as usize;
            self.compose(base, &run, &mut to[done..done + len]);
            done += len;
        });
        Ok(())
    }

    /// Sets the elements of a region from `from`, packed in row-major order.
    ///
    /// # Errors
    /// As [`Overlay::store`].
    ///
    /// # Panics
    /// If `from` has not exactly the region's packed length.
    pub fn write_region(&mut self, region: &Region, from: &[u8]) -> Result<(), MemoryError> {
        assert_eq!(from.len() as u64, region.packed_bytes());
        self.bounds(region.offset_bytes(), region.extent_bytes())?;
        let mut done = 0;
        let mut result = Ok(());
        for_each_run_bytes(region, |run| {
            let len = (run.end - run.start) as usize;
            if result.is_ok() {
                result = self.write(run.start, &from[done..done + len]);
            }
            done += len;
        });
        result
    }

    /// Exclusive access to the elements of a region, which counts as writing all of it. Bytes that had no value have
    /// whatever is there.
    ///
    /// # Errors
    /// As [`Overlay::store`].
    ///
    /// # Panics
    /// If the region's element type is not `T`, or two of its positions are one element.
    pub fn view_mut<T: Element>(
        &mut self,
        base: Option<&[u8]>,
        region: &Region,
    ) -> Result<StridedMut<'_, T>, MemoryError> {
        self.bounds(region.offset_bytes(), region.extent_bytes())?;
        let buffer = self.base_ptr()?;
        let runs = footprint_ranges(region);
        for run in runs {
            if let Some(base) = base {
                self.copy_from_base(base, &run)?;
            }
            self.written.insert(run.clone());
            self.present.get_mut().insert(run);
        }
        Ok(strided_mut(buffer, region))
    }

    fn copy_from_base(&self, base: &[u8], range: &Range<u64>) -> Result<(), MemoryError> {
        let buffer = self.base_ptr()?;
        let mut present = self.present.borrow_mut();
        let gaps: Vec<_> = present.gaps(range).collect();
        for gap in gaps {
            let from = &base[gap.start as usize..gap.end as usize];
            // SAFETY: within the buffer; these bytes are not present, so no guard refers to them.
            unsafe { buffer.add(gap.start as usize).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
            present.insert(gap);
        }
        Ok(())
    }

    /// Shared access to the elements of a region: to the base itself if nothing has been written.
    ///
    /// # Errors
    /// As [`Overlay::load`]; [`MemoryError::HostMemory`].
    ///
    /// # Panics
    /// If the region's element type is not `T`.
    pub fn view<'a, T: Element>(
        &'a self,
        base: Option<&'a [u8]>,
        region: &Region,
    ) -> Result<Strided<'a, T>, MemoryError> {
        let extent = self.bounds(region.offset_bytes(), region.extent_bytes())?;
        if let Some(base) = base
            && self.written.is_empty()
            && base.len() as u64 >= extent.end
            && base.as_ptr().cast::<T::Stored>().is_aligned()
        {
            return Ok(strided(base.as_ptr().cast_mut(), region));
        }
        let runs = footprint_ranges(region);
        for run in &runs {
            self.check_values(base, run)?;
        }
        let buffer = self.base_ptr()?;
        if let Some(base) = base {
            for run in &runs {
                self.copy_from_base(base, run)?;
            }
        }
        Ok(strided(buffer, region))
    }

    /// The written bytes, for a launch to put in place before its first task, `shift` bytes further in the memory.
    #[must_use]
    pub fn push(&self, memory: MemoryId, shift: u64) -> Option<Push> {
        let ranges: Vec<Range<u64>> = self.written.iter().cloned().collect();
        if ranges.is_empty() {
            return None;
        }
        let bytes = ranges.iter().flat_map(|range| self.bytes(range)).copied().collect();
        let ranges = ranges.into_iter().map(|range| range.start + shift..range.end + shift).collect();
        Some(Push { memory, ranges, bytes })
    }
}

#[cfg(test)]
mod tests {
    use periscope_core::{DType, Layout};
    use proptest::prelude::*;

    use super::*;

    const LEN: u64 = 24;

    fn region(offset: u64, len: u64) -> Region {
        Region { dtype: DType::U8, layout: Layout::contiguous(&[len]).expect("small"), offset_elems: offset }
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Store(u8),
        WriteRegion(u8),
        ViewMut(u8),
        /// Composes bytes of the base, so that later reads find them present.
        View,
    }

    fn op() -> impl Strategy<Value = (Op, u64, u64)> {
        let op = prop_oneof![
            any::<u8>().prop_map(Op::Store),
            any::<u8>().prop_map(Op::WriteRegion),
            any::<u8>().prop_map(Op::ViewMut),
            Just(Op::View),
        ];
        (op, 0..LEN, 0..9u64).prop_map(|(op, at, len)| (op, at, len.min(LEN - at)))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn reads_see_what_was_written_over_the_base(with_base: bool, ops in prop::collection::vec(op(), 0..20)) {
            let base: Vec<u8> = (100..100 + LEN as u8).collect();
            let mut model: Vec<Option<u8>> = base.iter().map(|&byte| with_base.then_some(byte)).collect();
            let mut written = [false; LEN as usize];
            let mut overlay = Overlay::new(LEN);
            let under = with_base.then_some(base.as_slice());
            for (op, at, len) in ops {
                let range = at as usize..(at + len) as usize;
                let mut note = |range: Range<usize>, value: u8| {
                    model[range.clone()].fill(Some(value));
                    written[range].fill(true);
                };
                match op {
                    Op::Store(value) => {
                        overlay.store(at, value).unwrap();
                        note(at as usize..at as usize + 1, value);
                    }
                    Op::WriteRegion(value) => {
                        overlay.write_region(&region(at, len), &vec![value; len as usize]).unwrap();
                        note(range, value);
                    }
                    Op::ViewMut(value) => {
                        overlay.view_mut::<u8>(under, &region(at, len)).unwrap().fill(value);
                        note(range, value);
                    }
                    Op::View => {
                        let _ = overlay.view::<u8>(under, &region(at, len));
                    }
                }
                for at in 0..LEN {
                    prop_assert_eq!(overlay.load::<u8>(under, at).ok(), model[at as usize]);
                    prop_assert_eq!(overlay.written().contains(&at), written[at as usize]);
                }
                let all: Option<Vec<u8>> = model.iter().copied().collect();
                let mut to = vec![0x55; LEN as usize];
                let read = overlay.read_region(under, &region(0, LEN), &mut to);
                prop_assert_eq!(read.is_ok(), all.is_some());
                prop_assert_eq!(to, all.clone().unwrap_or(vec![0x55; LEN as usize]));
                prop_assert_eq!(overlay.view::<u8>(under, &region(0, LEN)).ok().map(|view| view.to_vec()), all);
                let push = overlay.push(MemoryId(1), 1000);
                let carried: Vec<(u64, u8)> =
                    push.iter().flat_map(|push| push.ranges.iter().flat_map(Clone::clone).zip(push.bytes.clone())).collect();
                let expected: Vec<(u64, u8)> = (0..LEN)
                    .filter(|&at| written[at as usize])
                    .map(|at| (1000 + at, model[at as usize].unwrap()))
                    .collect();
                prop_assert_eq!(carried, expected);
            }
            prop_assert_eq!(base, (100..100 + LEN as u8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let mut overlay = Overlay::new(8);
        assert!(matches!(overlay.load::<u32>(None, 6), Err(MemoryError::OutOfBounds { .. })));
        assert!(matches!(overlay.load::<u32>(Some(&[0; 8]), u64::MAX), Err(MemoryError::OutOfBounds { .. })));
        assert!(matches!(overlay.store(5, 1u32), Err(MemoryError::OutOfBounds { .. })));
        assert!(matches!(overlay.write_region(&region(4, 5), &[0; 5]), Err(MemoryError::OutOfBounds { .. })));
        assert!(matches!(overlay.view_mut::<u8>(None, &region(9, 1)), Err(MemoryError::OutOfBounds { .. })));
        assert!(overlay.written().is_empty());
        assert_eq!(overlay.push(MemoryId(0), 0), None);
    }
}
