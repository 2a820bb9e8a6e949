//! A host copy of an allocation, filled chunk by chunk from the device and pushed back as exact byte ranges.
//!
//! See the table in the crate's documentation for what `valid` and `dirty` mean. Invariants: `dirty` is within `valid`;
//! a chunk's bit is set exactly if all of the chunk is in `valid`; no byte of `valid` is ever overwritten by a fill.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use periscope_hal::{Device, DeviceOp, MemoryId, Push};
use rangemap::RangeSet;

use crate::buffer::HostBuffer;
use crate::error::MemoryError;
use crate::settings::MemorySettings;

#[derive(Debug)]
pub(crate) struct Mirror {
    buffer: HostBuffer,
    len: u64,
    chunk_shift: u32,
    valid: RangeSet<u64>,
    dirty: RangeSet<u64>,
    /// Dirty bytes that a launch is carrying to the device: dirty again if the push fails.
    in_push: RangeSet<u64>,
    /// One bit per chunk: all of it is valid. Relaxed: read and written by whoever has the device's turn.
    chunk_valid: Box<[AtomicU64]>,
    /// One flag per chunk: a fill has been there.
    chunk_seen: Box<[bool]>,
    pub(crate) filled_bytes: u64,
}

/// What a fill moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filled {
    /// Nothing was stale.
    Nothing,
    /// Some chunk was filled for the first time.
    First(u64),
    /// Only bytes that had become stale.
    Again(u64),
}

impl Mirror {
    pub(crate) fn new(len: u64, settings: &MemorySettings) -> Result<Mirror, MemoryError> {
        let chunk_bytes =
            if len <= settings.whole_fill_max_bytes { len.next_power_of_two() } else { settings.chunk_bytes };
        // At least 8, so that no element lies in two chunks.
        let chunk_shift = chunk_bytes.next_power_of_two().trailing_zeros().max(3);
        let chunks = (((len - 1) >> chunk_shift) + 1) as usize;
        Ok(Mirror {
            buffer: HostBuffer::reserve(len)?,
            len,
            chunk_shift,
            valid: RangeSet::new(),
            dirty: RangeSet::new(),
            in_push: RangeSet::new(),
            chunk_valid: (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            chunk_seen: vec![false; chunks].into(),
            filled_bytes: 0,
        })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.buffer.base()
    }

    pub(crate) fn chunk_shift(&self) -> u32 {
        self.chunk_shift
    }

    pub(crate) fn chunk_bits(&self) -> &[AtomicU64] {
        &self.chunk_valid
    }

    /// The whole chunks around `range`.
    fn chunks_around(&self, range: &Range<u64>) -> Range<u64> {
        let first = range.start >> self.chunk_shift << self.chunk_shift;
        let last = (((range.end - 1) >> self.chunk_shift) + 1) << self.chunk_shift;
        first..last.min(self.len)
    }

    /// Makes `wanted` valid by copying what is stale of the chunks around it, `without` aside, in one transfer.
    pub(crate) fn fill(
        &mut self,
        wanted: &RangeSet<u64>,
        without: &RangeSet<u64>,
        device: &dyn Device,
        memory: MemoryId,
    ) -> Result<Filled, MemoryError> {
        // Whole chunks only around what is missing: a valid range costs nothing even if its chunk is not.
        let mut around = RangeSet::new();
        for range in wanted.iter() {
            for gap in self.valid.gaps(range) {
                around.insert(self.chunks_around(&gap));
            }
        }
        let mut stale = Vec::new();
        for chunks in around.iter() {
            for gap in self.valid.gaps(chunks) {
                stale.extend(without.gaps(&gap));
            }
        }
        let bytes: u64 = stale.iter().map(|range| range.end - range.start).sum();
        match stale.as_slice() {
            [] => return Ok(Filled::Nothing),
            [range] => {
                // SAFETY: within the buffer; these bytes are not valid, so no guard and no reader refers to them, and whoever
                // fills has the device's turn.
                let to = unsafe {
                    std::slice::from_raw_parts_mut(
                        self.base().as_ptr().add(range.start as usize),
                        (range.end - range.start) as usize,
                    )
                };
                // SAFETY: the allocation is live, the range lies inside it, and no launch is writing these bytes: the caller has
                // the turn and has checked what is in flight.
                unsafe { device.copy_out(memory, range.start, to) }.map_err(MemoryError::device(DeviceOp::CopyOut))?;
            }
            ranges => {
                let mut packed = vec![0u8; bytes as usize];
                // SAFETY: as above, for each range.
                unsafe { device.copy_out_ranges(memory, ranges, &mut packed) }
                    .map_err(MemoryError::device(DeviceOp::CopyOutRanges))?;
                let mut rest = packed.as_slice();
                for range in ranges {
                    let (part, after) = rest.split_at((range.end - range.start) as usize);
                    rest = after;
                    // SAFETY: within the buffer, not valid (as above), and `packed` is other memory.
                    unsafe {
                        self.base()
                            .as_ptr()
                            .add(range.start as usize)
                            .copy_from_nonoverlapping(part.as_ptr(), part.len())
                    };
                }
            }
        }
        let mut first = false;
        for range in stale {
            for chunk in range.start >> self.chunk_shift..=(range.end - 1) >> self.chunk_shift {
                first |= !std::mem::replace(&mut self.chunk_seen[chunk as usize], true);
            }
            self.insert_valid(range);
        }
        self.filled_bytes += bytes;
        Ok(if first { Filled::First(bytes) } else { Filled::Again(bytes) })
    }

    fn insert_valid(&mut self, range: Range<u64>) {
        self.valid.insert(range.clone());
        for chunk in range.start >> self.chunk_shift..=(range.end - 1) >> self.chunk_shift {
            let whole = chunk << self.chunk_shift..((chunk + 1) << self.chunk_shift).min(self.len);
            if self.valid.gaps(&whole).next().is_none() {
                self.chunk_valid[(chunk / 64) as usize].fetch_or(1 << (chunk % 64), Relaxed);
            }
        }
    }

    /// The host has written, or is about to write, these bytes.
    pub(crate) fn host_writes(&mut self, range: Range<u64>) {
        self.dirty.insert(range.clone());
        self.insert_valid(range);
    }

    /// The device's copy of these bytes is, or is about to become, the newer one.
    pub(crate) fn device_writes(&mut self, written: impl Iterator<Item = Range<u64>>) {
        for range in written {
            self.dirty.remove(range.clone());
            self.valid.remove(range.clone());
            for chunk in range.start >> self.chunk_shift..=(range.end - 1) >> self.chunk_shift {
                self.chunk_valid[(chunk / 64) as usize].fetch_and(!(1 << (chunk % 64)), Relaxed);
            }
        }
    }

    /// An upload replaces these bytes: they are stale until it has succeeded. Returns those that were valid.
    pub(crate) fn upload_begins(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let known: Vec<_> =
            self.valid.overlapping(range).map(|known| known.start.max(range.start)..known.end.min(range.end)).collect();
        self.device_writes(std::iter::once(range.clone()));
        known
    }

    /// The upload of `bytes` to `at` has succeeded: what was valid of them (`known`) is valid again, with the new bytes.
    pub(crate) fn upload_ended(&mut self, at: u64, bytes: &[u8], known: Vec<Range<u64>>) {
        for range in known {
            let from = &bytes[(range.start - at) as usize..(range.end - at) as usize];
            // SAFETY: within the buffer; the caller has the turn and no build holds the allocation, so no reader or guard exists.
            unsafe {
                self.base().as_ptr().add(range.start as usize).copy_from_nonoverlapping(from.as_ptr(), from.len())
            };
            self.insert_valid(range);
        }
    }

    /// A snapshot of the bytes that the host wrote since the last one, within `bounds`; they count as being pushed.
    pub(crate) fn take_push(&mut self, memory: MemoryId, bounds: Range<u64>) -> Option<Push> {
        let ranges: Vec<Range<u64>> = self
            .dirty
            .overlapping(&bounds)
            .map(|range| range.start.max(bounds.start)..range.end.min(bounds.end))
            .collect();
        if ranges.is_empty() {
            return None;
        }
        let mut bytes = Vec::with_capacity(ranges.iter().map(|range| (range.end - range.start) as usize).sum());
        for range in &ranges {
            // SAFETY: within the buffer; dirty bytes are written only by whoever has the turn, which is the caller.
            let part = unsafe {
                std::slice::from_raw_parts(
                    self.base().as_ptr().add(range.start as usize),
                    (range.end - range.start) as usize,
                )
            };
            bytes.extend_from_slice(part);
            self.dirty.remove(range.clone());
            self.in_push.insert(range.clone());
        }
        Some(Push { memory, ranges, bytes })
    }

    /// The push has ended. If it failed its bytes are dirty again, unless something newer has replaced them.
    pub(crate) fn push_ended(&mut self, ok: bool) {
        let pushed = std::mem::take(&mut self.in_push);
        if !ok {
            for range in pushed {
                self.host_writes(range);
            }
        }
    }
}
