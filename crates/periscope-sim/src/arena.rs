//! Which bytes of a device are free: a best-fit allocator of offsets that knows nothing of memory.
//!
//! Every size is rounded up to [`ALIGNMENT_BYTES`], so every offset is a multiple of it. Free ranges are kept twice, by
//! start (to join neighbours) and by length (to find the smallest that fits, the lowest among equals). Invariants: free
//! ranges do not touch each other, and with the allocated ones they cover the arena exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Allocations start at multiples of this. Less than a page on purpose: small neighbours share pages, as they do on
/// real devices, and a mapping of one must cope.
pub const ALIGNMENT_BYTES: u64 = 512;

/// The free ranges of a device.
#[derive(Debug)]
pub(crate) struct Arena {
    total_bytes: u64,
    used_bytes: u64,
    len_by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl Arena {
    /// An arena of `total_bytes`, rounded down to a multiple of the alignment, all free.
    pub(crate) fn new(total_bytes: u64) -> Arena {
        let total_bytes = total_bytes / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
        let mut arena = Arena { total_bytes, used_bytes: 0, len_by_start: BTreeMap::new(), by_len: BTreeSet::new() };
        if total_bytes > 0 {
            arena.insert(0, total_bytes);
        }
        arena
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Takes a range that has room for `len_bytes` (not 0); its length is rounded up. `None` if no free range is that long.
    pub(crate) fn alloc(&mut self, len_bytes: u64) -> Option<Range<u64>> {
        let len = len_bytes.checked_next_multiple_of(ALIGNMENT_BYTES)?;
        let &(free_len, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, free_len);
        if free_len > len {
            self.insert(start + len, free_len - len);
        }
        self.used_bytes += len;
        Some(start..start + len)
    }

    /// Gives back a range that [`Arena::alloc`] returned, and answers with the free range that it is now part of.
    pub(crate) fn free(&mut self, range: Range<u64>) -> Range<u64> {
        let Range { mut start, mut end } = range;
        self.used_bytes -= end - start;
        if let Some((&before, &len)) = self.len_by_start.range(..start).next_back()
            && before + len == start
        {
            self.remove(before, len);
            start = before;
        }
        if let Some(&len) = self.len_by_start.get(&end) {
            self.remove(end, len);
            end += len;
        }
        self.insert(start, end - start);
        start..end
    }

    fn insert(&mut self, start: u64, len: u64) {
        self.len_by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.len_by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_smallest_hole_that_fits_is_taken() {
        let mut arena = Arena::new(64 * 512);
        let ranges: Vec<_> = (0..6).map(|_| arena.alloc(4 * 512).unwrap()).collect();
        arena.free(ranges[0].start..ranges[0].end);
        arena.free(ranges[1].clone());
        arena.free(ranges[3].clone());
        assert_eq!(arena.alloc(3 * 512).unwrap().start, ranges[3].start, "4 blocks, not 8");
        assert_eq!(arena.alloc(1).unwrap(), ranges[3].end - 512..ranges[3].end, "the rest of it");
        assert_eq!(arena.alloc(8 * 512).unwrap().start, 0);
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut arena = Arena::new(1000);
        assert_eq!(arena.total_bytes(), 512);
        assert_eq!(arena.alloc(513), None);
        assert_eq!(arena.alloc(u64::MAX), None);
        assert_eq!(arena.alloc(512), Some(0..512));
        assert_eq!(arena.alloc(1), None);
        assert_eq!(arena.free(0..512), 0..512);
        assert_eq!(arena.used_bytes(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        /// Against one bit per block.
        #[test]
        fn agrees_with_a_bitmap(steps in proptest::collection::vec((any::<bool>(), 1u64..9000, any::<usize>()), 1..200)) {
            const BLOCKS: usize = 128;
            let mut arena = Arena::new(BLOCKS as u64 * ALIGNMENT_BYTES);
            let mut taken = [false; BLOCKS];
            let mut live: Vec<Range<u64>> = Vec::new();
            let blocks = |range: &Range<u64>| (range.start / ALIGNMENT_BYTES) as usize..(range.end / ALIGNMENT_BYTES) as usize;
            for (alloc, len, pick) in steps {
                if alloc || live.is_empty() {
                    let wanted = len.div_ceil(ALIGNMENT_BYTES) as usize;
                    let holes: Vec<usize> = taken.chunk_by(|a, b| a == b).filter(|run| !run[0]).map(<[bool]>::len).collect();
                    let smallest = holes.iter().filter(|&&hole| hole >= wanted).min();
                    match arena.alloc(len) {
                        None => prop_assert!(smallest.is_none()),
                        Some(range) => {
                            let at = blocks(&range);
                            prop_assert_eq!(at.len(), wanted);
                            prop_assert!(!taken[at.clone()].contains(&true));
                            let hole_end = (at.start..BLOCKS).find(|&block| taken[block]).unwrap_or(BLOCKS);
                            let hole_start = (0..at.start).rev().find(|&block| taken[block]).map_or(0, |block| block + 1);
                            prop_assert_eq!(Some(&(hole_end - hole_start)), smallest);
                            taken[at].fill(true);
                            live.push(range);
                        }
                    }
                } else {
                    let range = live.swap_remove(pick % live.len());
                    let at = blocks(&range);
                    taken[at.clone()].fill(false);
                    let joined = blocks(&arena.free(range));
                    prop_assert!(joined.start <= at.start && joined.end >= at.end && !taken[joined.clone()].contains(&true));
                    prop_assert!(joined.start == 0 || taken[joined.start - 1]);
                    prop_assert!(joined.end == BLOCKS || taken[joined.end]);
                }
                prop_assert_eq!(arena.used_bytes(), taken.iter().filter(|&&taken| taken).count() as u64 * ALIGNMENT_BYTES);
            }
        }
    }
}
