//! Merging a block into the accumulators of an online softmax.
//!
//! Accumulators of a row: `m` the maximum so far, `l` the sum of the weights and `o` the weighted sum of the values, both
//! relative to `m`. A block brings the same three relative to its own maximum; the two sides are brought to the common
//! maximum `m' = max(m, m_block)` with the factors `e^(m - m')` and `e^(m_block - m')`, one of which is always 1.
//! Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, section 3.1.
//!
//! Rows without any valid key so far have `m = -inf` and `l = 0`; they stay so, and their output is 0 rather than 0/0.

use fearless_simd::{Level, dispatch, prelude::*};

use super::{Accumulators, BlockResult, exp::exp_non_positive};

/// Rows whose factors are computed at once.
const ROWS: usize = 16;

/// See [`super::update`](fn@super::update); lengths are checked there.
pub(super) fn run(
    level: Level,
    block: BlockResult<'_>,
    acc: Accumulators<'_>,
    out: Option<&mut [f32]>,
    d: usize,
    first: bool,
) {
    let Accumulators { mi, li, oi } = acc;
    if first {
        mi.copy_from_slice(block.mij);
        li.copy_from_slice(block.lij);
        oi.copy_from_slice(block.o_new);
    } else {
        dispatch!(level, simd => merge(simd, block, mi, li, oi, d));
    }
    if let Some(out) = out {
        dispatch!(level, simd => divide(simd, li, oi, out, d));
    }
}

#[inline(always)]
fn merge<S: Simd>(simd: S, block: BlockResult<'_>, mi: &mut [f32], li: &mut [f32], oi: &mut [f32], d: usize) {
    let BlockResult { mij, lij, o_new } = block;
    for from in (0..mi.len()).step_by(ROWS) {
        let rows = (mi.len() - from).min(ROWS);
        // Differences to the common maximum, then factors; block rows in the second half.
        let mut factors = [f32::NEG_INFINITY; 2 * ROWS];
        let (old, new) = factors.split_at_mut(ROWS);
        for i in 0..rows {
            let (m, m_block) = (mi[from + i], mij[from + i]);
            let common = m.max(m_block);
            if common > f32::NEG_INFINITY {
                old[i] = m - common;
                new[i] = m_block - common;
            }
            mi[from + i] = common;
        }
        for x in factors.chunks_exact_mut(S::f32s::LEN) {
            exp_non_positive(simd, S::f32s::from_slice(simd, x)).store_slice(x);
        }
        let (old, new) = factors.split_at(ROWS);
        for i in 0..rows {
            let row = from + i;
            li[row] = old[i] * li[row] + new[i] * lij[row];
            add_scaled(simd, &mut oi[row * d..][..d], old[i], &o_new[row * d..][..d], new[i]);
        }
    }
}

/// `o = old · o + new · o_new`.
#[inline(always)]
fn add_scaled<S: Simd>(simd: S, o: &mut [f32], old: f32, o_new: &[f32], new: f32) {
    let lanes = S::f32s::LEN;
    let mut chunks = o.chunks_exact_mut(lanes);
    let mut new_chunks = o_new.chunks_exact(lanes);
    for (o, o_new) in (&mut chunks).zip(&mut new_chunks) {
        let kept = S::f32s::from_slice(simd, o) * old;
        S::f32s::from_slice(simd, o_new).mul_add(S::f32s::splat(simd, new), kept).store_slice(o);
    }
    for (o, o_new) in chunks.into_remainder().iter_mut().zip(new_chunks.remainder()) {
        *o = *o * old + o_new * new;
    }
}

/// `out = oi / li` row by row; 0 where `li` is 0.
#[inline(always)]
fn divide<S: Simd>(simd: S, li: &[f32], oi: &[f32], out: &mut [f32], d: usize) {
    if d == 0 {
        return;
    }
    let lanes = S::f32s::LEN;
    for ((o, out), &l) in oi.chunks_exact(d).zip(out.chunks_exact_mut(d)).zip(li) {
        let l = if l == 0.0 { 1.0 } else { l };
        let mut chunks = o.chunks_exact(lanes);
        let mut out = out.chunks_exact_mut(lanes);
        for (o, out) in (&mut chunks).zip(&mut out) {
            (S::f32s::from_slice(simd, o) / l).store_slice(out);
        }
        for (out, o) in out.into_remainder().iter_mut().zip(chunks.remainder()) {
            *out = o / l;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::{
        Shape,
        oracle::{Random, SHAPES, levels},
    };

    /// Blocks of random results folded by `run`, and the same sum over all blocks in f64.
    fn check(level: Level, Shape { m, d, .. }: Shape, blocks: usize) {
        let mut random = Random::new(blocks as u64);
        let mut acc = (vec![f32::NAN; m], vec![f32::NAN; m], vec![f32::NAN; m * d]);
        let mut out = vec![f32::NAN; m * d];
        let mut all = Vec::new();
        for block in 0..blocks {
            let mij = random.f32s(m, 6.0);
            let lij: Vec<f32> = random.f32s(m, 1.0).iter().map(|x| x + 2.0).collect();
            let o_new = random.f32s(m * d, 1.0);
            let last = block + 1 == blocks;
            run(
                level,
                BlockResult { mij: &mij, lij: &lij, o_new: &o_new },
                Accumulators { mi: &mut acc.0, li: &mut acc.1, oi: &mut acc.2 },
                last.then_some(&mut out[..]),
                d,
                block == 0,
            );
            all.push((mij, lij, o_new));
        }
        for i in 0..m {
            let max = all.iter().map(|b| b.0[i]).fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(acc.0[i], max, "{level:?} row {i}");
            let factor = |b: &(Vec<f32>, Vec<f32>, Vec<f32>)| (f64::from(b.0[i]) - f64::from(max)).exp();
            let l: f64 = all.iter().map(|b| factor(b) * f64::from(b.1[i])).sum();
            assert!((f64::from(acc.1[i]) - l).abs() <= 1e-5 * l, "{level:?} row {i}: {} expected {l}", acc.1[i]);
            for t in 0..d {
                let o: f64 = all.iter().map(|b| factor(b) * f64::from(b.2[i * d + t])).sum();
                let got = f64::from(out[i * d + t]);
                assert!((got - o / l).abs() <= 1e-5, "{level:?} [{i}, {t}]: {got}, expected {}", o / l);
            }
        }
    }

    #[test]
    fn agrees_with_f64_for_every_shape_and_level() {
        for shape in SHAPES {
            for level in levels() {
                for blocks in [1, 2, 7] {
                    check(level, shape, blocks);
                }
            }
        }
    }

    #[test]
    fn a_row_without_valid_keys_gives_zero_and_takes_later_keys() {
        let none = (vec![f32::NEG_INFINITY; 1], vec![0.0; 1], vec![0.0; 3]);
        let some = (vec![2.0], vec![4.0], vec![4.0, 8.0, -2.0]);
        for level in levels() {
            let mut acc = (vec![0.0; 1], vec![0.0; 1], vec![0.0; 3]);
            let mut step = |block: &(Vec<f32>, Vec<f32>, Vec<f32>), first| {
                let mut out = vec![f32::NAN; 3];
                let block = BlockResult { mij: &block.0, lij: &block.1, o_new: &block.2 };
                let acc = Accumulators { mi: &mut acc.0, li: &mut acc.1, oi: &mut acc.2 };
                run(level, block, acc, Some(&mut out), 3, first);
                out
            };
            assert_eq!(step(&none, true), [0.0; 3], "{level:?}");
            assert_eq!(step(&none, false), [0.0; 3], "{level:?}");
            assert_eq!(step(&some, false), [1.0, 2.0, -0.5], "{level:?}");
            assert_eq!(step(&none, false), [1.0, 2.0, -0.5], "{level:?}");
        }
    }
}
