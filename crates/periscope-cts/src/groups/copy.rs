//! Copies: every byte that was meant, and no other.

#![allow(clippy::single_range_in_vec_init, reason = "a list of one range is what the call takes")]

use std::ops::Range;

use periscope_hal::DeviceCounters;

use crate::clause::{Outcome, Stop, Subject, ensure, ensure_eq, unsupported};
use crate::stand::{Mem, Stand, pattern};

/// An allocation and what it should hold.
struct Shadowed {
    mem: Mem,
    bytes: Vec<u8>,
}

impl Shadowed {
    fn new(stand: &Stand, seed: u64, len: u64) -> Result<Shadowed, Stop> {
        let shadowed = Shadowed { mem: stand.alloc(len)?, bytes: pattern(seed, len) };
        stand.store(shadowed.mem, 0, &shadowed.bytes)?;
        Ok(shadowed)
    }

    fn check(&self, stand: &Stand, what: &str) -> Outcome {
        let got = stand.load(self.mem, 0, self.mem.len)?;
        if let Some(at) = (0..got.len()).find(|&at| got[at] != self.bytes[at]) {
            ensure!(false, "{what}: byte {at} is {}, expected {}", got[at], self.bytes[at]);
        }
        Ok(())
    }
}

fn at(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

pub(super) fn bytes_arrive_exactly(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let mut shadowed = Shadowed::new(&stand, 1, 20_000)?;
    let below = Shadowed::new(&stand, 2, 512)?;
    let mut seed = 10;
    for offset in [0, 1, 3, 7, 63, 64, 511, 4093, 4096, 12_345] {
        for len in [1, 2, 3, 5, 8, 17, 64, 100, 1001, 4096, 7001] {
            seed += 1;
            let bytes = pattern(seed, len);
            stand.store(shadowed.mem, offset, &bytes)?;
            shadowed.bytes[at(&(offset..offset + len))].copy_from_slice(&bytes);
            shadowed.check(&stand, &format!("after {len} B to byte {offset}"))?;
            ensure_eq!(stand.load(shadowed.mem, offset, len)?, bytes, "{len} B from byte {offset}");
        }
    }
    below.check(&stand, "a neighbour")?;
    let len = (5 << 20) + 3;
    Shadowed::new(&stand, 3, len)?.check(&stand, "one copy of 5 MiB and 3 B")
}

pub(super) fn range_lists_touch_only_their_ranges(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let mut shadowed = Shadowed::new(&stand, 1, 10_000)?;
    let lists: [Vec<Range<u64>>; 4] = [
        vec![0..1],
        vec![3..4, 5..9, 9..10, 4095..4097, 9999..10_000],
        (0..500).map(|i| i * 20..i * 20 + 1 + i % 19).collect(),
        vec![0..10_000],
    ];
    for (position, ranges) in lists.iter().enumerate() {
        let total = ranges.iter().map(|range| range.end - range.start).sum();
        let packed = pattern(50 + position as u64, total);
        // SAFETY: ascending disjoint ranges of a live allocation that nothing else uses.
        unsafe { stand.device.copy_in_ranges(shadowed.mem.made.id, ranges, &packed)? };
        let mut rest = &packed[..];
        for range in ranges {
            let (bytes, after) = rest.split_at((range.end - range.start) as usize);
            shadowed.bytes[at(range)].copy_from_slice(bytes);
            rest = after;
        }
        shadowed.check(&stand, &format!("after range list {position}"))?;
        let mut back = vec![0; total as usize];
        // SAFETY: as above.
        unsafe { stand.device.copy_out_ranges(shadowed.mem.made.id, ranges, &mut back)? };
        ensure!(back == packed, "range list {position} came back different");
    }
    Ok(())
}

pub(super) fn copies_within_the_device_are_exact(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let mut to = Shadowed::new(&stand, 1, 9000)?;
    let from = Shadowed::new(&stand, 2, 7000)?;
    for (to_offset, from_offset, len) in [(0, 0, 1), (3, 11, 4099), (8999, 6999, 1), (17, 1, 64), (4096, 4096, 2904)] {
        // SAFETY: ranges of two live allocations that nothing else uses.
        unsafe { stand.device.copy_within(to.mem.made.id, to_offset, from.mem.made.id, from_offset, len)? };
        to.bytes[at(&(to_offset..to_offset + len))].copy_from_slice(&from.bytes[at(&(from_offset..from_offset + len))]);
        to.check(&stand, &format!("{len} B from byte {from_offset} to byte {to_offset}"))?;
        from.check(&stand, "the source")?;
    }
    // Inside one allocation, touching but apart, in both directions.
    for (to_offset, from_offset, len) in [(1000, 0, 1000), (0, 1003, 1001), (5000, 2000, 3000)] {
        // SAFETY: disjoint ranges of a live allocation that nothing else uses.
        unsafe { stand.device.copy_within(to.mem.made.id, to_offset, to.mem.made.id, from_offset, len)? };
        to.bytes.copy_within(at(&(from_offset..from_offset + len)), to_offset as usize);
        to.check(&stand, &format!("{len} B from byte {from_offset} to byte {to_offset} of the same memory"))?;
    }
    Ok(())
}

pub(super) fn fills_are_exact(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let mut shadowed = Shadowed::new(&stand, 1, 9000)?;
    for (range, value) in [(0..1, 0xff), (1..2, 0), (7..4104, 0x5a), (8999..9000, 1), (100..101, 2), (0..9000, 0x80)] {
        // SAFETY: a range of a live allocation that nothing else uses.
        unsafe { stand.device.fill(shadowed.mem.made.id, range.clone(), value)? };
        shadowed.bytes[at(&range)].fill(value);
        shadowed.check(&stand, &format!("after filling {range:?} with {value}"))?;
    }
    Ok(())
}

pub(super) fn calls_are_counted(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let mem = stand.alloc(4096)?;
    if stand.device.counters() == DeviceCounters::default() {
        return unsupported("the platform does not count");
    }
    let before = stand.device.counters();
    stand.store(mem, 3, &[1; 10])?;
    stand.load(mem, 3, 7)?;
    // SAFETY: ranges of a live allocation that nothing else uses.
    unsafe {
        stand.device.copy_in_ranges(mem.made.id, &[0..2, 9..12], &[2; 5])?;
        stand.device.copy_out_ranges(mem.made.id, &[0..2, 9..12], &mut [0; 5])?;
        stand.device.copy_within(mem.made.id, 100, mem.made.id, 0, 50)?;
        stand.device.fill(mem.made.id, 0..4096, 0)?;
    }
    let refused = stand.map(mem, 0, 4096).map(|host| stand.unmap(host)).is_err();
    stand.free(mem)?;
    let after = stand.device.counters();
    let expected = DeviceCounters {
        frees: before.frees + 1,
        copies_in: before.copies_in + 1,
        copies_out: before.copies_out + 1,
        range_copies_in: before.range_copies_in + 1,
        range_copies_out: before.range_copies_out + 1,
        copies_within: before.copies_within + 1,
        fills: before.fills + 1,
        bytes_in: before.bytes_in + 15,
        bytes_out: before.bytes_out + 12,
        maps: before.maps + u64::from(!refused),
        unmaps: before.unmaps + u64::from(!refused),
        map_refusals: before.map_refusals + u64::from(refused),
        ..before
    };
    ensure_eq!(after, expected, "counters");
    Ok(())
}
