//! Scores: `s = q · kᵀ`, bf16 in, f32 accumulation and f32 out.
//!
//! The heads are the vector lanes and the elements of `k` are broadcast. The query tile is small and shared by all
//! keys, so it is the side to transpose (once a call); a key row is then read once, in memory order, which is what the
//! cache-cold stream of a decode step wants. Per step along `head_dim` a micro-kernel loads one vector of `q` and, for
//! each of its keys, broadcasts one element: as many loads as fused multiply-adds plus one, which AVX-512 folds into
//! the multiply-adds themselves.
//!
//! Scratch, kept per thread and never freed while the thread lives: the transposed query, `4 · heads · head_dim` bytes
//! (both rounded up), and one panel of widened keys, 8 KiB.

use std::cell::RefCell;

use fearless_simd::{Level, dispatch, prelude::*};
use half::{bf16, slice::HalfFloatSliceExt};

use super::{
    Shape,
    ahead::{Ahead, prefetch_all},
    lanes::{transpose, widen_chunk},
};

/// Elements of `head_dim` that a panel of widened keys holds: a constant row stride keeps the micro-kernel's addresses
/// constant, and 16 rows of it are a sixth of a 48 KiB L1.
const PANEL_DEPTH: usize = 128;
/// Keys that a panel holds at most.
const PANEL_KEYS: usize = 16;

type Panel = [[f32; PANEL_DEPTH]; PANEL_KEYS];

struct Scratch {
    /// Query tile as `[head group][head_dim, split order][lane]`.
    q: Vec<f32>,
    k: Panel,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { q: Vec::new(), k: [[0.0; PANEL_DEPTH]; PANEL_KEYS] }) };
}

/// See [`super::qk`](fn@super::qk); lengths are checked there.
pub(super) fn run(level: Level, q: &[bf16], k: &[bf16], s: &mut [f32], shape: Shape) {
    if q.is_empty() || k.is_empty() {
        return s.fill(0.0);
    }
    let (q, k) = (q.reinterpret_cast(), k.reinterpret_cast());
    SCRATCH.with_borrow_mut(|scratch| {
        dispatch!(level, simd => scores(simd, q, k, s, shape, scratch));
    });
}

/// Chooses the tile for the level: `LEN` heads by `BLOCKS · LEN` keys, so that 8 to 16 sums are in flight.
#[inline(always)]
fn scores<S: Simd>(simd: S, q: &[u16], k: &[u16], s: &mut [f32], shape: Shape, scratch: &mut Scratch) {
    match S::f32s::LEN {
        16 => scores_tiled::<S, 16, 1>(simd, q, k, s, shape, scratch),
        8 => scores_tiled::<S, 8, 1>(simd, q, k, s, shape, scratch),
        4 => scores_tiled::<S, 4, 2>(simd, q, k, s, shape, scratch),
        lanes => unreachable!("no tile for {lanes} lanes"),
    }
}

#[inline(always)]
fn scores_tiled<S: Simd, const L: usize, const BLOCKS: usize>(
    simd: S,
    q: &[u16],
    k: &[u16],
    s: &mut [f32],
    Shape { m, n, d }: Shape,
    scratch: &mut Scratch,
) {
    let depth = d.next_multiple_of(2 * L);
    let groups = m.div_ceil(L);
    if scratch.q.len() < groups * depth * L {
        scratch.q.resize(groups * depth * L, 0.0);
    }
    let panel_keys = BLOCKS * L;
    prefetch_all(simd, &k[..k.len().min(panel_keys * d)]);
    let q_lanes = &mut scratch.q[..groups * depth * L];
    for (group, q_lanes) in q_lanes.chunks_exact_mut(depth * L).enumerate() {
        let rows = (m - group * L).min(L);
        transpose_query::<S, L>(simd, &q[group * L * d..][..rows * d], q_lanes, rows, d);
    }

    for first_key in (0..n).step_by(panel_keys) {
        let keys = (n - first_key).min(panel_keys);
        let (k, next) = k[first_key * d..].split_at(keys * d);
        // Every head group walks down `d`, so together they pass the next panel once.
        let mut ahead = Ahead::new(next, panel_keys.div_ceil(groups));
        let mut from = 0;
        while from < d {
            let to = (from + PANEL_DEPTH).min(d);
            for (row, wide) in k.chunks_exact(d).zip(&mut scratch.k) {
                widen_key::<S>(simd, &row[from..to], wide);
            }
            for (group, q_lanes) in q_lanes.chunks_exact(depth * L).enumerate() {
                let q_lanes = &q_lanes[from * L..to.next_multiple_of(2 * L) * L];
                let mut sums = dot_panel::<S, L, BLOCKS>(simd, q_lanes, &scratch.k, &mut ahead);
                let heads = (m - group * L).min(L);
                for (block, sums) in sums.iter_mut().enumerate() {
                    transpose::<S, L>(sums);
                    let column = block * L;
                    if column < keys {
                        let at = group * L * n + first_key + column;
                        store_rows::<S, L>(simd, sums, &mut s[at..], n, heads, keys - column, from > 0);
                    }
                }
            }
            from = to;
        }
    }
}

/// `rows` of the query (at most `L`, row-major, `d` elements each) to `[head_dim, split order][lane]`, padded with 0.
#[inline(always)]
fn transpose_query<S: Simd, const L: usize>(simd: S, rows: &[u16], q_lanes: &mut [f32], heads: usize, d: usize) {
    let chunk = 2 * L;
    for (index, out) in q_lanes.chunks_exact_mut(chunk * L).enumerate() {
        let from = index * chunk;
        let to = (from + chunk).min(d);
        let mut even = [S::f32s::splat(simd, 0.0); L];
        let mut odd = even;
        for i in 0..L {
            if i < heads {
                let part = &rows[i * d..][from..to];
                (even[i], odd[i]) = widen_chunk(simd, part);
            }
        }
        transpose::<S, L>(&mut even);
        transpose::<S, L>(&mut odd);
        let (out_even, out_odd) = out.split_at_mut(L * L);
        for i in 0..L {
            even[i].store_slice(&mut out_even[i * L..(i + 1) * L]);
            odd[i].store_slice(&mut out_odd[i * L..(i + 1) * L]);
        }
    }
}

/// One key row, or a part of at most [`PANEL_DEPTH`] of it, widened in split order and padded with 0.
#[inline(always)]
fn widen_key<S: Simd>(simd: S, row: &[u16], wide: &mut [f32; PANEL_DEPTH]) {
    let lanes = S::f32s::LEN;
    for (chunk, out) in row.chunks(2 * lanes).zip(wide.chunks_exact_mut(2 * lanes)) {
        let (even, odd) = widen_chunk(simd, chunk);
        even.store_slice(&mut out[..lanes]);
        odd.store_slice(&mut out[lanes..]);
    }
}

/// The micro-kernel: sums over a part of `head_dim` for `L` heads (lanes) and all keys of the panel.
#[inline(always)]
fn dot_panel<S: Simd, const L: usize, const BLOCKS: usize>(
    simd: S,
    q_lanes: &[f32],
    k: &Panel,
    ahead: &mut Ahead<'_>,
) -> [[S::f32s; L]; BLOCKS] {
    let mut sums = [[S::f32s::splat(simd, 0.0); L]; BLOCKS];
    for (t, q) in q_lanes.chunks_exact(L).enumerate().take(PANEL_DEPTH) {
        let q = S::f32s::from_slice(simd, q);
        ahead.step(simd);
        for block in 0..BLOCKS {
            for i in 0..L {
                let k = S::f32s::splat(simd, k[block * L + i][t]);
                sums[block][i] = q.mul_add(k, sums[block][i]);
            }
        }
    }
    sums
}

/// Writes (or adds, from the second part of `head_dim` on) up to `heads` rows of up to `keys` scores, `n` apart.
#[inline(always)]
fn store_rows<S: Simd, const L: usize>(
    simd: S,
    rows: &[S::f32s; L],
    s: &mut [f32],
    n: usize,
    heads: usize,
    keys: usize,
    add: bool,
) {
    for (i, &row) in rows.iter().enumerate() {
        if i >= heads {
            break;
        }
        if keys >= L {
            let out = &mut s[i * n..][..L];
            let row = if add { row + S::f32s::from_slice(simd, out) } else { row };
            row.store_slice(out);
        } else {
            for (out, &x) in s[i * n..][..keys].iter_mut().zip(row.as_slice()) {
                *out = if add { *out + x } else { x };
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
            let mut random = Random::new(7);
            let (q, k) = (random.bf16s(m * d, 0.5), random.bf16s(n * d, 0.5));
            for level in levels() {
                let mut s = vec![f32::NAN; m * n];
                run(level, &q, &k, &mut s, shape);
                for i in 0..m {
                    for j in 0..n {
                        let (mut want, mut size) = (0.0, 0.0);
                        for t in 0..d {
                            let term = q[i * d + t].to_f64() * k[j * d + t].to_f64();
                            want += term;
                            size += term.abs();
                        }
                        let bound = size * f64::from(f32::EPSILON) * (d + 2) as f64;
                        let got = f64::from(s[i * n + j]);
                        assert!((got - want).abs() <= bound, "{level:?} {shape:?} [{i}, {j}]: {got}, expected {want}");
                    }
                }
            }
        }
    }
}
