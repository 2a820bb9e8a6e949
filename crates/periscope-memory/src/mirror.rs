//! A host copy of an allocation, filled chunk by chunk from the device and pushed back as exact byte ranges.
//!
//! See the table in the crate's documentation for what `valid` and `dirty` mean. Invariants: `dirty` is within `valid`;
//! a chunk's bit is set exactly if all of the chunk is in `valid`; no byte of `valid` is ever overwritten by a fill.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use periscope_hal::{Device, DeviceOp, MemoryId, Push};
use rangemap::{RangeMap, RangeSet};

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
    /// Chunk after the last one filled, and how many fills in a row began there: a walk in ascending order.
    walk: (u64, u32),
    read_ahead_chunks: u32,
    /// Bytes of `valid`; their sum over the device's mirrors is `account`.
    held_bytes: u64,
    account: Arc<AtomicU64>,
    /// A chunk that was read without being kept: its number and bytes.
    bounce: Option<(u64, Box<[u8]>)>,
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

/// Bytes that have no value: what a fill leaves out.
#[derive(Clone, Copy)]
pub(crate) struct Valueless<'a> {
    pub(crate) undefined: &'a RangeSet<u64>,
    pub(crate) poisoned: &'a RangeMap<u64, u64>,
}

impl Valueless<'_> {
    /// Calls `with_value` for the parts of `range` that have a value.
    pub(crate) fn gaps(&self, range: &Range<u64>, mut with_value: impl FnMut(Range<u64>)) {
        for defined in self.undefined.gaps(range) {
            for sound in self.poisoned.gaps(&defined) {
                with_value(sound);
            }
        }
    }
}

/// What was known of the bytes that a transfer replaces.
#[derive(Debug, Default)]
pub(crate) struct Replaced {
    valid: Vec<Range<u64>>,
    dirty: Vec<Range<u64>>,
}

impl Mirror {
    pub(crate) fn new(len: u64, settings: &MemorySettings, account: Arc<AtomicU64>) -> Result<Mirror, MemoryError> {
        let chunk_bytes =
            if len <= settings.whole_fill_max_bytes { len.next_power_of_two() } else { settings.chunk_bytes };
        // At least 8, so that no element lies in two chunks; at most what 64-bit arithmetic on chunk ends bears.
        let chunk_shift = chunk_bytes.min(1 << 62).next_power_of_two().trailing_zeros().max(3);
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
            walk: (u64::MAX, 0),
            read_ahead_chunks: settings.read_ahead_chunks.max(1),
            held_bytes: 0,
            account,
            bounce: None,
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
        without: Valueless<'_>,
        device: &dyn Device,
        memory: MemoryId,
    ) -> Result<Filled, MemoryError> {
        let mut around = self.missing_chunks(wanted);
        self.read_ahead(&mut around);
        let mut stale = Vec::new();
        for chunks in around.iter() {
            for gap in self.valid.gaps(chunks) {
                without.gaps(&gap, |range| stale.push(range));
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
        Ok(if first { Filled::First(bytes) } else { Filled::Again(bytes) })
    }

    /// Whole chunks only around what is missing: a valid range costs nothing even if its chunk is not.
    fn missing_chunks(&self, wanted: &RangeSet<u64>) -> RangeSet<u64> {
        let mut around = RangeSet::new();
        for range in wanted.iter() {
            for gap in self.valid.gaps(range) {
                around.insert(self.chunks_around(&gap));
            }
        }
        around
    }

    /// How many bytes a fill of `wanted` would bring at most, read-ahead aside.
    pub(crate) fn missing_bytes(&self, wanted: &RangeSet<u64>) -> u64 {
        let around = self.missing_chunks(wanted);
        around.iter().flat_map(|chunks| self.valid.gaps(chunks)).map(|gap| gap.end - gap.start).sum()
    }

    /// Extends a fill that continues a walk in ascending order: twice as far each time, from the third chunk on.
    fn read_ahead(&mut self, around: &mut RangeSet<u64>) {
        let (Some(first), Some(last)) = (around.first().cloned(), around.last().cloned()) else { return };
        let chunk = first.start >> self.chunk_shift;
        let one = first == last && first.end - first.start <= 1 << self.chunk_shift;
        let (next, in_a_row) = self.walk;
        let in_a_row = if one && chunk == next { in_a_row + 1 } else { 0 };
        let mut end = last.end;
        if in_a_row >= 2 {
            let chunks = (1u64 << (in_a_row - 1).min(31)).min(u64::from(self.read_ahead_chunks));
            end = ((chunk + chunks) << self.chunk_shift).min(self.len).max(first.end);
            around.insert(first.start..end);
        }
        self.walk = (end.div_ceil(1 << self.chunk_shift), in_a_row);
    }

    /// The bytes of `range`, which lies in one chunk, without keeping that chunk: for when the budget has no room.
    pub(crate) fn bounce(
        &mut self,
        range: &Range<u64>,
        without: Valueless<'_>,
        device: &dyn Device,
        memory: MemoryId,
    ) -> Result<(*const u8, u64), MemoryError> {
        let chunk = range.start >> self.chunk_shift;
        let whole = self.chunks_around(range);
        let mut fetched = 0;
        if self.bounce.as_ref().is_none_or(|(known, _)| *known != chunk) {
            let mut bytes = vec![0; (whole.end - whole.start) as usize].into_boxed_slice();
            let mut wanted = Vec::new();
            without.gaps(&whole, |range| wanted.push(range));
            fetched = wanted.iter().map(|range| range.end - range.start).sum();
            let mut packed = vec![0; fetched as usize];
            // SAFETY: the allocation is live, the ranges lie inside it, and no launch is writing these bytes: the caller has
            // the turn and has checked what is in flight.
            unsafe { device.copy_out_ranges(memory, &wanted, &mut packed) }
                .map_err(MemoryError::device(DeviceOp::CopyOutRanges))?;
            let mut rest = packed.as_slice();
            for range in wanted {
                let (part, after) = rest.split_at((range.end - range.start) as usize);
                rest = after;
                let start = (range.start - whole.start) as usize;
                bytes[start..start + part.len()].copy_from_slice(part);
            }
            // What is valid here may be newer than the device's.
            for known in self.valid.overlapping(&whole) {
                let both = known.start.max(whole.start)..known.end.min(whole.end);
                let to = &mut bytes[(both.start - whole.start) as usize..(both.end - whole.start) as usize];
                // SAFETY: valid bytes, within the buffer; `to` is other memory.
                unsafe {
                    self.buffer
                        .base()
                        .as_ptr()
                        .add(both.start as usize)
                        .copy_to_nonoverlapping(to.as_mut_ptr(), to.len());
                }
            }
            self.bounce = Some((chunk, bytes));
        }
        let (_, bytes) = self.bounce.as_ref().expect("fetched above");
        Ok((bytes[(range.start - whole.start) as usize..].as_ptr(), fetched))
    }

    /// Whether all of `wanted` lies in the chunk that was last read without being kept.
    pub(crate) fn has_bounced(&self, wanted: &RangeSet<u64>) -> bool {
        let in_chunk = |chunk: u64, at: u64| at >> self.chunk_shift == chunk;
        self.bounce.as_ref().is_some_and(|&(chunk, _)| {
            wanted.iter().all(|range| in_chunk(chunk, range.start) && in_chunk(chunk, range.end - 1))
        })
    }

    /// The largest part of `range` that lies in one chunk, from its start.
    pub(crate) fn first_part(&self, range: &Range<u64>) -> Range<u64> {
        let chunk_end = ((range.start >> self.chunk_shift) + 1) << self.chunk_shift;
        range.start..range.end.min(chunk_end)
    }

    /// Bytes that are kept on the host and could be fetched again.
    pub(crate) fn evictable_bytes(&self) -> u64 {
        let kept: u64 = self.dirty.iter().chain(self.in_push.iter()).map(|range| range.end - range.start).sum();
        self.held_bytes.saturating_sub(kept)
    }

    /// Forgets everything that could be fetched again. No reader and no guard refers to the mirror.
    pub(crate) fn evict(&mut self) {
        let mut kept = self.dirty.clone();
        kept.extend(self.in_push.iter().cloned());
        let valid: Vec<Range<u64>> = self.valid.iter().cloned().collect();
        for range in valid {
            let forgotten: Vec<Range<u64>> = kept.gaps(&range).collect();
            for range in forgotten {
                self.remove_valid(range.clone());
                self.buffer.release(range);
            }
        }
        self.bounce = None;
        self.walk = (u64::MAX, 0);
    }

    fn remove_valid(&mut self, range: Range<u64>) {
        let within = |part: &Range<u64>| part.end.min(range.end) - part.start.max(range.start);
        let bytes: u64 = self.valid.overlapping(&range).map(within).sum();
        self.held_bytes -= bytes;
        self.account.fetch_sub(bytes, Relaxed);
        self.valid.remove(range.clone());
        for chunk in range.start >> self.chunk_shift..=(range.end - 1) >> self.chunk_shift {
            self.chunk_valid[(chunk / 64) as usize].fetch_and(!(1 << (chunk % 64)), Relaxed);
        }
    }

    fn insert_valid(&mut self, range: Range<u64>) {
        let bytes: u64 = self.valid.gaps(&range).map(|gap| gap.end - gap.start).sum();
        self.held_bytes += bytes;
        self.account.fetch_add(bytes, Relaxed);
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
        self.bounce = None;
        self.dirty.insert(range.clone());
        self.insert_valid(range);
    }

    /// The device's copy of these bytes is, or is about to become, the newer one.
    pub(crate) fn device_writes(&mut self, written: impl Iterator<Item = Range<u64>>) {
        self.bounce = None;
        for range in written {
            self.dirty.remove(range.clone());
            self.remove_valid(range);
        }
    }

    /// A transfer replaces these bytes on the device: they are stale until it has ended.
    pub(crate) fn transfer_begins(&mut self, range: &Range<u64>) -> Replaced {
        let within = |set: &RangeSet<u64>| {
            set.overlapping(range).map(|part| part.start.max(range.start)..part.end.min(range.end)).collect()
        };
        let replaced = Replaced { valid: within(&self.valid), dirty: within(&self.dirty) };
        self.device_writes(std::iter::once(range.clone()));
        replaced
    }

    /// The transfer has failed: the host's own writes, which are still in the buffer, are to be pushed as before.
    pub(crate) fn transfer_failed(&mut self, replaced: Replaced) {
        for range in replaced.dirty {
            self.host_writes(range);
        }
    }

    /// The upload of `bytes` to `at` has succeeded: what was valid of them is valid again, with the new bytes.
    pub(crate) fn upload_ended(&mut self, at: u64, bytes: &[u8], replaced: Replaced) {
        for range in replaced.valid {
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

impl Drop for Mirror {
    fn drop(&mut self) {
        self.account.fetch_sub(self.held_bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use periscope_hal::{Device, DeviceMemory, Platform};
    use periscope_sim::{SimPlatform, SimSettings};
    use proptest::prelude::*;

    use super::*;

    fn valueless(undefined: &RangeSet<u64>) -> Valueless<'_> {
        static POISONED: std::sync::LazyLock<RangeMap<u64, u64>> = std::sync::LazyLock::new(RangeMap::new);
        Valueless { undefined, poisoned: &POISONED }
    }

    const LEN: u64 = 100;

    #[derive(Clone, Debug)]
    enum Op {
        Fill,
        HostWrites(u8),
        /// A launch: pushes, then writes. If it fails the push did not arrive.
        Launch {
            value: u8,
            ok: bool,
        },
        /// A transfer to the device outside a run.
        Upload {
            value: u8,
            ok: bool,
        },
        /// The host's writes within the range are handed over, as before a download.
        Settle {
            ok: bool,
        },
    }

    fn op() -> impl Strategy<Value = (Op, Range<u64>)> {
        let op = prop_oneof![
            Just(Op::Fill),
            any::<u8>().prop_map(Op::HostWrites),
            any::<(u8, bool)>().prop_map(|(value, ok)| Op::Launch { value, ok }),
            any::<(u8, bool)>().prop_map(|(value, ok)| Op::Upload { value, ok }),
            any::<bool>().prop_map(|ok| Op::Settle { ok }),
        ];
        (op, 0..LEN, 1..30u64).prop_map(|(op, start, len)| (op, start..(start + len).min(LEN)))
    }

    struct World {
        device: Arc<dyn Device>,
        memory: DeviceMemory,
        mirror: Mirror,
        /// What whoever reads a byte must see, and whether only the host has it.
        current: Vec<u8>,
        dirty: Vec<bool>,
    }

    impl World {
        fn new(chunk_bytes: u64) -> World {
            let device =
                SimPlatform::new(SimSettings::default()).open(&"sim:a5".parse().expect("a URI")).expect("a simulator");
            let memory = device.alloc(LEN).expect("memory");
            let current: Vec<u8> = (0..LEN as u8).collect();
            // SAFETY: live, in bounds, nothing in flight.
            unsafe { device.copy_in(memory.id, 0, &current) }.expect("a copy");
            let settings = MemorySettings { chunk_bytes, whole_fill_max_bytes: 0, ..MemorySettings::default() };
            let mirror = Mirror::new(LEN, &settings, Arc::default()).expect("a mirror");
            World { device, memory, mirror, current, dirty: vec![false; LEN as usize] }
        }

        fn on_device(&self) -> Vec<u8> {
            let mut bytes = vec![0; LEN as usize];
            // SAFETY: live, in bounds, nothing in flight.
            unsafe { self.device.copy_out(self.memory.id, 0, &mut bytes) }.expect("a copy");
            bytes
        }

        fn in_mirror(&self, at: u64) -> u8 {
            // SAFETY: within the buffer, which nobody writes meanwhile.
            unsafe { self.mirror.base().as_ptr().add(at as usize).read() }
        }

        fn set_on_device(&self, range: &Range<u64>, value: u8) {
            // SAFETY: live, in bounds, nothing in flight.
            unsafe { self.device.fill(self.memory.id, range.clone(), value) }.expect("a fill");
        }

        /// A push carries exactly the host's own bytes within `bounds`.
        fn take_push(&mut self, bounds: Range<u64>) -> Option<Push> {
            let push = self.mirror.take_push(self.memory.id, bounds.clone());
            let expected: Vec<(u64, u8)> =
                bounds.filter(|&at| self.dirty[at as usize]).map(|at| (at, self.current[at as usize])).collect();
            let carried: Vec<(u64, u8)> = push
                .iter()
                .flat_map(|push| push.ranges.iter().flat_map(Clone::clone).zip(push.bytes.iter().copied()))
                .collect();
            assert_eq!(carried, expected);
            push
        }

        fn push_ended(&mut self, push: Option<Push>, ok: bool) {
            if let (Some(push), true) = (push, ok) {
                // SAFETY: live, in bounds, nothing in flight.
                unsafe { self.device.copy_in_ranges(push.memory, &push.ranges, &push.bytes) }.expect("a copy");
                for at in push.ranges.into_iter().flatten() {
                    self.dirty[at as usize] = false;
                }
            }
            self.mirror.push_ended(ok);
        }

        fn apply(&mut self, op: &Op, range: &Range<u64>) {
            let bytes = range.start as usize..range.end as usize;
            match *op {
                Op::Fill => {
                    let device = Arc::clone(&self.device);
                    let wanted = std::iter::once(range.clone()).collect();
                    self.mirror.fill(&wanted, valueless(&RangeSet::new()), &*device, self.memory.id).expect("a fill");
                    for at in range.clone() {
                        assert_eq!(self.in_mirror(at), self.current[at as usize], "byte {at} after a fill");
                    }
                }
                Op::HostWrites(value) => {
                    self.mirror.host_writes(range.clone());
                    // SAFETY: within the buffer, which nobody else uses.
                    unsafe { self.mirror.base().as_ptr().add(bytes.start).write_bytes(value, bytes.len()) };
                    self.current[bytes.clone()].fill(value);
                    self.dirty[bytes].fill(true);
                }
                Op::Launch { value, ok } => {
                    let push = self.take_push(0..LEN);
                    self.mirror.device_writes(std::iter::once(range.clone()));
                    self.push_ended(push, ok);
                    if ok {
                        self.set_on_device(range, value);
                        self.current[bytes].fill(value);
                    }
                }
                Op::Upload { value, ok } => {
                    let replaced = self.mirror.transfer_begins(range);
                    if ok {
                        self.set_on_device(range, value);
                        self.mirror.upload_ended(range.start, &vec![value; bytes.len()], replaced);
                        self.current[bytes.clone()].fill(value);
                        self.dirty[bytes].fill(false);
                    } else {
                        self.mirror.transfer_failed(replaced);
                    }
                }
                Op::Settle { ok } => {
                    let push = self.take_push(range.clone());
                    self.push_ended(push, ok);
                }
            }
        }

        fn check(&self) {
            let mirror = &self.mirror;
            let on_device = self.on_device();
            for at in 0..LEN {
                let (valid, dirty) = (mirror.valid.contains(&at), mirror.dirty.contains(&at));
                assert_eq!(dirty, self.dirty[at as usize], "byte {at} is dirty");
                assert!(valid || !dirty, "byte {at} is dirty and not valid");
                let current = self.current[at as usize];
                assert!(!valid || self.in_mirror(at) == current, "byte {at} is valid and not current");
                assert!(dirty || on_device[at as usize] == current, "byte {at} is not dirty, and only the host has it");
                let chunk = at >> mirror.chunk_shift;
                let whole = chunk << mirror.chunk_shift..((chunk + 1) << mirror.chunk_shift).min(LEN);
                let bit = mirror.chunk_valid[(chunk / 64) as usize].load(Relaxed) >> (chunk % 64) & 1 == 1;
                assert_eq!(bit, whole.into_iter().all(|at| mirror.valid.contains(&at)), "the bit of chunk {chunk}");
            }
            assert!(mirror.in_push.is_empty());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_byte_is_where_the_books_say(chunk in 0u64..70, ops in prop::collection::vec(op(), 1..40)) {
            let mut world = World::new(chunk);
            for (op, range) in &ops {
                world.apply(op, range);
                world.check();
            }
        }
    }

    #[test]
    fn a_fill_copies_what_is_stale_and_has_a_value() {
        let mut world = World::new(16);
        let device = Arc::clone(&world.device);
        world.apply(&Op::HostWrites(7), &(4..6));
        let without: RangeSet<u64> = std::iter::once(10..12).collect();
        let wanted: RangeSet<u64> = std::iter::once(0..2).collect();
        let filled = world.mirror.fill(&wanted, valueless(&without), &*device, world.memory.id).expect("a fill");
        assert_eq!(filled, Filled::First(16 - 2 - 2));
        let filled = world.mirror.fill(&wanted, valueless(&without), &*device, world.memory.id).expect("a fill");
        assert_eq!(filled, Filled::Nothing);
        world.mirror.device_writes(std::iter::once(1..3));
        let filled = world.mirror.fill(&wanted, valueless(&without), &*device, world.memory.id).expect("a fill");
        assert_eq!(filled, Filled::Again(2));
        assert!(!world.mirror.valid.contains(&10));
    }
}
