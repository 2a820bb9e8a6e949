//! Weighted values: `o_new = p · v`, bf16 in, f32 accumulation and f32 out.
//!
//! The elements of `head_dim` are the vector lanes and the weights are broadcast. A micro-kernel owns a few heads by
//! two vectors of `head_dim` and walks down the keys: it reads one chunk of a value row as bf16, widens it in registers
//! (split order, see [`super::lanes`]) and multiplies it by one weight per head. Widening again for every group of heads
//! is cheaper than writing an f32 copy of `v`, which would not fit L1.
//!
//! The keys are taken in panels of a few KiB of `v`, although one pass over all of them would spare the sums a trip
//! through L1: a micro-kernel reads one column of `v`, and columns are a poor order to fetch memory in. So each panel
//! computes from cache while it prefetches the next in memory order (see [`super::ahead`]).
//!
//! Scratch: the widened weights of one group of heads, on the stack; the sums between panels, kept per thread and
//! never freed while the thread lives, `4 · heads · head_dim` bytes (both rounded up).

use std::cell::RefCell;

use fearless_simd::{Level, dispatch, prelude::*};
use half::{bf16, slice::HalfFloatSliceExt};

use super::{
    Shape,
    ahead::{Ahead, prefetch_all},
    lanes::{widen_chunk, widen_row, widen_split},
};

/// Keys per panel. Also the row stride of the widened weights, so that the micro-kernel's addresses are constant.
const PANEL_KEYS: usize = 32;

thread_local! {
    static SUMS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// See [`super::pv`](fn@super::pv); lengths are checked there.
pub(super) fn run(level: Level, p: &[bf16], v: &[bf16], o_new: &mut [f32], shape: Shape) {
    if p.is_empty() || v.is_empty() {
        return o_new.fill(0.0);
    }
    let (p, v) = (p.reinterpret_cast(), v.reinterpret_cast());
    SUMS.with_borrow_mut(|sums| {
        dispatch!(level, simd => weigh(simd, p, v, o_new, shape, sums));
    });
}

/// Chooses the heads per micro-kernel: two sums a head, and the level's registers hold 32 (AVX-512) or 16 vectors.
#[inline(always)]
fn weigh<S: Simd>(simd: S, p: &[u16], v: &[u16], o_new: &mut [f32], shape: Shape, sums: &mut Vec<f32>) {
    if S::f32s::LEN == 16 {
        weigh_tiled::<S, 8>(simd, p, v, o_new, shape, sums);
    } else {
        weigh_tiled::<S, 4>(simd, p, v, o_new, shape, sums);
    }
}

#[inline(always)]
fn weigh_tiled<S: Simd, const HEADS: usize>(
    simd: S,
    p: &[u16],
    v: &[u16],
    o_new: &mut [f32],
    Shape { m, n, d }: Shape,
    sums: &mut Vec<f32>,
) {
    let chunk = 2 * S::f32s::LEN;
    let groups = m.div_ceil(HEADS);
    let sums_elems = groups * HEADS * d.next_multiple_of(chunk);
    if sums.len() < sums_elems {
        sums.resize(sums_elems, 0.0);
    }
    prefetch_all(simd, &v[..v.len().min(PANEL_KEYS * d)]);
    let mut weights = [[0.0f32; PANEL_KEYS]; HEADS];
    for first_key in (0..n).step_by(PANEL_KEYS) {
        let keys = (n - first_key).min(PANEL_KEYS);
        let (v, next) = (&v[first_key * d..], v.get((first_key + keys) * d..).unwrap_or(&[]));
        let mut ahead = Ahead::new(next, chunk.div_ceil(groups));
        let mut tiles = sums.chunks_exact_mut(HEADS * chunk);
        for first_head in (0..m).step_by(HEADS) {
            let heads = (m - first_head).min(HEADS);
            for (i, weights) in weights.iter_mut().enumerate() {
                // A group short of heads computes its last one again; the copies are not stored.
                let row = first_head + i.min(heads - 1);
                widen_row(simd, &p[row * n + first_key..][..keys], weights);
            }
            for column in (0..d).step_by(chunk) {
                let tile = tiles.next().expect("a tile of sums for every group of heads and chunk of head_dim");
                let mut sums = [[S::f32s::splat(simd, 0.0); 2]; HEADS];
                if first_key > 0 {
                    load_tile::<S, HEADS>(simd, tile, &mut sums);
                }
                weigh_panel(simd, &weights, v, d, column, keys, &mut sums, &mut ahead);
                if first_key + keys == n {
                    let out = &mut o_new[first_head * d + column..];
                    store_rows::<S, HEADS>(&sums, out, d, heads, (d - column).min(chunk));
                } else {
                    store_tile::<S, HEADS>(&sums, tile);
                }
            }
        }
    }
}

/// The micro-kernel: to the sums of `HEADS` heads, adds weight times a chunk of the value row for each key of a panel.
///
/// `v` begins at the panel's first row and may reach past its last; the chunk begins at `column`. Where it reaches past
/// the end of a row its upper lanes see the next row, which is harmless: they are not stored.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined; a struct of these would have to be taken apart again")]
fn weigh_panel<S: Simd, const HEADS: usize>(
    simd: S,
    weights: &[[f32; PANEL_KEYS]; HEADS],
    v: &[u16],
    d: usize,
    column: usize,
    keys: usize,
    sums: &mut [[S::f32s; 2]; HEADS],
    ahead: &mut Ahead<'_>,
) {
    let chunk = 2 * S::f32s::LEN;
    let keys = keys.min(PANEL_KEYS);
    // Rows whose chunk lies within `v`: all, unless this is the last chunk of an odd head_dim at the end of the block.
    let whole = if (keys - 1) * d + column + chunk <= v.len() {
        keys
    } else {
        (v.len() + d).saturating_sub(column + chunk) / d
    };
    let mut acc = *sums;
    let mut at = column;
    for j in 0..whole.min(keys) {
        ahead.step(simd);
        let (even, odd) = widen_split(simd, &v[at..at + chunk]);
        add_weighted(simd, weights, j, even, odd, &mut acc);
        at += d;
    }
    for j in whole..keys {
        let (even, odd) = widen_chunk(simd, &v[at..at + d - column]);
        add_weighted(simd, weights, j, even, odd, &mut acc);
        at += d;
    }
    *sums = acc;
}

#[inline(always)]
fn add_weighted<S: Simd, const HEADS: usize>(
    simd: S,
    weights: &[[f32; PANEL_KEYS]; HEADS],
    key: usize,
    even: S::f32s,
    odd: S::f32s,
    acc: &mut [[S::f32s; 2]; HEADS],
) {
    for i in 0..HEADS {
        let weight = S::f32s::splat(simd, weights[i][key]);
        acc[i][0] = even.mul_add(weight, acc[i][0]);
        acc[i][1] = odd.mul_add(weight, acc[i][1]);
    }
}

#[inline(always)]
fn load_tile<S: Simd, const HEADS: usize>(simd: S, tile: &[f32], sums: &mut [[S::f32s; 2]; HEADS]) {
    let lanes = S::f32s::LEN;
    let tile = &tile[..HEADS * 2 * lanes];
    for i in 0..HEADS {
        sums[i][0] = S::f32s::from_slice(simd, &tile[2 * i * lanes..][..lanes]);
        sums[i][1] = S::f32s::from_slice(simd, &tile[(2 * i + 1) * lanes..][..lanes]);
    }
}

#[inline(always)]
fn store_tile<S: Simd, const HEADS: usize>(sums: &[[S::f32s; 2]; HEADS], tile: &mut [f32]) {
    let lanes = S::f32s::LEN;
    let tile = &mut tile[..HEADS * 2 * lanes];
    for i in 0..HEADS {
        sums[i][0].store_slice(&mut tile[2 * i * lanes..][..lanes]);
        sums[i][1].store_slice(&mut tile[(2 * i + 1) * lanes..][..lanes]);
    }
}

/// Writes `width` columns of the first `heads` rows, `d` apart, in order again.
// The loop runs over a constant and asks for the row inside, so that the sums stay in registers.
#[inline(always)]
fn store_rows<S: Simd, const HEADS: usize>(
    sums: &[[S::f32s; 2]; HEADS],
    out: &mut [f32],
    d: usize,
    heads: usize,
    width: usize,
) {
    let lanes = S::f32s::LEN;
    for i in 0..HEADS {
        if i < heads {
            let (low, high) = sums[i][0].interleave(sums[i][1]);
            let out = &mut out[i * d..][..width];
            if width == 2 * lanes {
                low.store_slice(&mut out[..lanes]);
                high.store_slice(&mut out[lanes..]);
            } else {
                for (out, &x) in out.iter_mut().zip(low.as_slice().iter().chain(high.as_slice())) {
                    *out = x;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::oracle::{Random, SHAPES, levels};

    #[test]
    fn agrees_with_f64_for_every_shape_and_level() {
        for shape @ Shape { m, n, d } in SHAPES {
            let mut random = Random::new(11);
            let (p, v) = (random.bf16s(m * n, 1.0), random.bf16s(n * d, 1.0));
            for level in levels() {
                let mut o_new = vec![f32::NAN; m * d];
                run(level, &p, &v, &mut o_new, shape);
                for i in 0..m {
                    for t in 0..d {
                        let (mut want, mut size) = (0.0, 0.0);
                        for j in 0..n {
                            let term = p[i * n + j].to_f64() * v[j * d + t].to_f64();
                            want += term;
                            size += term.abs();
                        }
                        let bound = size * f64::from(f32::EPSILON) * (n + 2) as f64;
                        let got = f64::from(o_new[i * d + t]);
                        assert!((got - want).abs() <= bound, "{level:?} {shape:?} [{i}, {t}]: {got}, expected {want}");
                    }
                }
            }
        }
    }
}
