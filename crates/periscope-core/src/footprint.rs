//! The exact set of bytes that a strided region covers, and whether two such sets meet.
//!
//! A [`Footprint`] is relative: it says which bytes after a start. It is kept apart from the start so that thousands of
//! tiles of one layout share one. Normal form: runs of `width_bytes`, repeated `counts[i]` times every `strides[i]`
//! bytes, strides falling, no dimension that a wider run or a longer progression could absorb. Equal byte sets of
//! ordinary (nested) layouts therefore have equal footprints.
//!
//! [`overlaps`] is exact. It walks both sets from their largest strides inwards and keeps only positions whose extents
//! meet. Two dimensions of equal stride are walked together, since only the difference of their positions
//! matters; so views of equal strides (tiles of one matrix) cost a few steps per dimension, and so does an interval
//! against any nested set. Two sets of unrelated strides may cost as many steps as one of them has runs, hence the limit
//! on steps: at it the answer is "they may", which is never wrong for ordering.

use crate::layout::{MAX_RANK, Region};
use crate::{DType, Layout};

/// The bytes of a strided region, relative to its first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footprint {
    width_bytes: u64,
    extent_bytes: u64,
    rank: u8,
    counts: [u64; MAX_RANK],
    strides: [u64; MAX_RANK],
}

/// The steps that an ordering decision may take before it settles for "they may overlap".
pub const ORDER_STEPS: u32 = 1 << 12;
/// The steps that a refusal may take: enough for any pair of sets with a million runs.
pub const REFUSAL_STEPS: u32 = 1 << 22;

impl Footprint {
    /// The bytes of elements of `dtype` arranged as `layout`.
    #[must_use]
    pub fn of(dtype: DType, layout: &Layout) -> Footprint {
        let size = dtype.size_bytes();
        if layout.is_empty() {
            return Footprint::interval(0);
        }
        let mut dims = [(0u64, 0u64); MAX_RANK]; // (stride in bytes, count)
        let mut rank = 0;
        for (&count, &stride) in layout.shape().iter().zip(layout.strides()) {
            if count > 1 && stride > 0 {
                dims[rank] = (stride * size, count);
                rank += 1;
            }
        }
        Footprint::nest(size, &mut dims[..rank])
    }

    /// Runs of `width_bytes`, repeated `count` times every `stride` bytes for each `(stride, count)`, in normal form.
    pub(crate) fn nest(width_bytes: u64, dims: &mut [(u64, u64)]) -> Footprint {
        dims.sort_unstable_by(|a, b| b.cmp(a));
        let mut footprint = Footprint::interval(width_bytes);
        // Innermost first: runs that touch become one run, progressions that continue become one progression.
        let mut kept = [(0u64, 0u64); MAX_RANK];
        let mut kept_len = 0;
        for &(stride, count) in dims.iter().rev() {
            if kept_len == 0 && stride <= footprint.width_bytes {
                footprint.width_bytes += (count - 1) * stride;
            } else if kept_len > 0 && kept[kept_len - 1].0 * kept[kept_len - 1].1 == stride {
                kept[kept_len - 1].1 *= count;
            } else {
                kept[kept_len] = (stride, count);
                kept_len += 1;
            }
        }
        footprint.rank = kept_len as u8;
        footprint.extent_bytes = footprint.width_bytes;
        for (dim, &(stride, count)) in kept[..kept_len].iter().rev().enumerate() {
            footprint.strides[dim] = stride;
            footprint.counts[dim] = count;
            footprint.extent_bytes += (count - 1) * stride;
        }
        footprint
    }

    /// The bytes of a region, and where they start in the allocation.
    #[must_use]
    pub fn of_region(region: &Region) -> (Footprint, u64) {
        (Footprint::of(region.dtype, &region.layout), region.offset_bytes())
    }

    /// `len_bytes` bytes without gap.
    #[must_use]
    pub const fn interval(len_bytes: u64) -> Footprint {
        Footprint {
            width_bytes: len_bytes,
            extent_bytes: len_bytes,
            rank: 0,
            counts: [0; MAX_RANK],
            strides: [0; MAX_RANK],
        }
    }

    /// Whether there is no byte.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.width_bytes == 0
    }

    /// Whether the bytes have no gap.
    #[must_use]
    #[inline]
    pub fn is_interval(&self) -> bool {
        self.rank == 0
    }

    /// From the first byte to one past the last.
    #[must_use]
    #[inline]
    pub fn extent_bytes(&self) -> u64 {
        self.extent_bytes
    }

    /// Bytes of each gapless run.
    #[must_use]
    #[inline]
    pub fn width_bytes(&self) -> u64 {
        self.width_bytes
    }

    /// `(count, stride in bytes)` of each level of repetition, largest stride first.
    pub fn dims(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        (0..self.rank as usize).map(|dim| (self.counts[dim], self.strides[dim]))
    }

    /// How many bytes there are; too many if elements of the layout overlap.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.dims().fold(self.width_bytes, |bytes, (count, _)| bytes.saturating_mul(count))
    }

    /// Whether every byte of `inner` (starting at `inner_at`) is one of `self` (starting at `at`).
    /// May answer no where a costlier test would say yes: only tiles of the same or a nested stride are recognised.
    #[must_use]
    pub fn covers(&self, at: u64, inner: &Footprint, inner_at: u64) -> bool {
        if inner.is_empty() {
            return true;
        }
        if inner_at < at || inner_at + inner.extent_bytes > at + self.extent_bytes {
            return false;
        }
        if self.is_interval() || (at == inner_at && self == inner) {
            return true;
        }
        holds(self.rest(), None, inner.rest(), inner_at - at)
    }

    /// Calls `run(start, len_bytes)` for each gapless run of the set that starts at `at`, lowest positions first for
    /// nested layouts. Runs of a layout whose elements overlap may repeat bytes.
    pub fn for_each_run(&self, at: u64, mut run: impl FnMut(u64, u64)) {
        fn walk(set: &Footprint, dim: usize, at: u64, run: &mut impl FnMut(u64, u64)) {
            if dim == set.rank as usize {
                run(at, set.width_bytes);
                return;
            }
            for position in 0..set.counts[dim] {
                walk(set, dim + 1, at + position * set.strides[dim], run);
            }
        }
        if !self.is_empty() {
            walk(self, 0, at, &mut run);
        }
    }

    fn rest(&self) -> Rest<'_> {
        Rest { set: self, dim: 0, extent: self.extent_bytes }
    }
}

/// A footprint from dimension `dim` inwards.
#[derive(Clone, Copy)]
struct Rest<'a> {
    set: &'a Footprint,
    dim: usize,
    extent: u64,
}

impl<'a> Rest<'a> {
    /// `(count, stride, what is repeated)` of the outermost dimension left.
    fn outer(self) -> Option<(u64, u64, Rest<'a>)> {
        if self.dim == self.set.rank as usize {
            return None;
        }
        let (count, stride) = (self.set.counts[self.dim], self.set.strides[self.dim]);
        let inner = Rest { dim: self.dim + 1, extent: self.extent - (count - 1) * stride, ..self };
        Some((count, stride, inner))
    }
}

/// Whether `inner`, `by` bytes after the start of `outer`, lies in it. `positions` is how many positions of the outermost
/// dimension of `outer` count, all if not given.
fn holds(outer: Rest<'_>, positions: Option<u64>, inner: Rest<'_>, by: u64) -> bool {
    let Some((count, stride, outer_inner)) = outer.outer() else {
        return by.checked_add(inner.extent).is_some_and(|end| end <= outer.extent);
    };
    let count = positions.unwrap_or(count);
    if let Some((repeats, inner_stride, repeated)) = inner.outer()
        && inner_stride % stride == 0
    {
        // Every repetition meets `outer` in the same way, some positions further on: the first must leave room for the last.
        let room = (repeats - 1).checked_mul(inner_stride / stride).and_then(|used| count.checked_sub(used));
        return room.is_some_and(|room| room > 0 && holds(outer, Some(room), repeated, by));
    }
    let position = (by / stride).min(count - 1);
    holds(outer_inner, None, inner, by - position * stride)
}

/// Whether the set `a` placed at byte `a_at` and the set `b` placed at byte `b_at` share a byte. Exact as long as it
/// takes at most `steps` steps; beyond them the answer is `true`.
#[must_use]
pub fn overlaps(a: &Footprint, a_at: u64, b: &Footprint, b_at: u64, steps: u32) -> bool {
    if a.is_empty() || b.is_empty() || a_at + a.extent_bytes <= b_at || b_at + b.extent_bytes <= a_at {
        return false;
    }
    if a.is_interval() && b.is_interval() {
        return true;
    }
    // Only the distance matters; i128 because it is a difference of two u64.
    let mut left = steps;
    meet(a.rest(), b.rest(), i128::from(b_at) - i128::from(a_at), &mut left).unwrap_or(true)
}

/// Whether `a` at 0 and `b` at `b_at` share a byte; `None` if the steps ran out.
fn meet(a: Rest<'_>, b: Rest<'_>, b_at: i128, left: &mut u32) -> Option<bool> {
    if b_at >= i128::from(a.extent) || b_at + i128::from(b.extent) <= 0 {
        return Some(false);
    }
    *left = left.checked_sub(1)?;
    match (a.outer(), b.outer()) {
        (None, None) => Some(true),
        (Some((n, t, a_inner)), Some((m, u, b_inner))) if t == u => {
            // b's inner part lies at b_at + (j - i)·t relative to a's: only the difference d = j - i matters.
            let (t, low, high) = (i128::from(t), -(i128::from(n) - 1), i128::from(m) - 1);
            let first = div_ceil(-i128::from(b_inner.extent) + 1 - b_at, t).max(low);
            let last = (i128::from(a_inner.extent) - 1 - b_at).div_euclid(t).min(high);
            any(first, last, |d| meet(a_inner, b_inner, b_at + d * t, left))
        }
        (Some((n, t, inner)), other) if other.is_none_or(|(_, u, _)| t > u) => {
            // a's inner part at i·t against all of b.
            let t = i128::from(t);
            let first = div_ceil(b_at - i128::from(inner.extent) + 1, t).max(0);
            let last = (b_at + i128::from(b.extent) - 1).div_euclid(t).min(i128::from(n) - 1);
            any(first, last, |i| meet(inner, b, b_at - i * t, left))
        }
        // The larger outer stride is b's.
        _ => meet(b, a, -b_at, left),
    }
}

fn any(first: i128, last: i128, mut test: impl FnMut(i128) -> Option<bool>) -> Option<bool> {
    // The middle positions lie deepest inside the other set, so a hit there ends the walk early.
    let middle = first + (last - first) / 2;
    if first <= last && test(middle)? {
        return Some(true);
    }
    for position in first..=last {
        if position != middle && test(position)? {
            return Some(true);
        }
    }
    Some(false)
}

fn div_ceil(a: i128, b: i128) -> i128 {
    -(-a).div_euclid(b)
}
