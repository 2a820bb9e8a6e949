//! One block's softmax over rows of scores: row maxima, bf16 weights and their row sums.
//!
//! The weights are relative to the block's own row maximum; [`super::update`](fn@super::update) brings blocks to a common one. The sum is
//! taken over the weights as rounded to bf16, the same numbers that the weighted sum of the values uses, so rounding
//! does not bias the average. Keys at or beyond `valid` never enter: not in the maximum, and with weight 0.
//!
//! A row is read twice (maximum, then weights); at a few KiB per tile it stays in L1 in between.

use fearless_simd::{Level, dispatch, prelude::*};
use half::{bf16, slice::HalfFloatSliceExt};

use super::{
    Shape,
    exp::exp_non_positive,
    lanes::{MAX_CHUNK, narrow_bf16, round_to_bf16},
};

/// Where the results of [`run`] go.
pub(super) struct Weights<'a> {
    /// `[m, n]`.
    pub(super) p: &'a mut [bf16],
    /// `[m]`.
    pub(super) mij: &'a mut [f32],
    /// `[m]`.
    pub(super) lij: &'a mut [f32],
}

/// See [`super::softmax`](fn@super::softmax); lengths and `valid ≤ n` are checked there.
pub(super) fn run(level: Level, s: &[f32], out: Weights<'_>, shape: Shape, valid: usize, scale: f32) {
    let Weights { p, mij, lij } = out;
    let p = p.reinterpret_cast_mut();
    if shape.n == 0 {
        mij.fill(f32::NEG_INFINITY);
        lij.fill(0.0);
        return;
    }
    dispatch!(level, simd => rows(simd, s, p, mij, lij, shape.n, valid, scale));
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "a closure over a struct keeps the compiler from splitting it")]
fn rows<S: Simd>(
    simd: S,
    s: &[f32],
    p: &mut [u16],
    mij: &mut [f32],
    lij: &mut [f32],
    n: usize,
    valid: usize,
    scale: f32,
) {
    let rows = s.chunks_exact(n).zip(p.chunks_exact_mut(n));
    for ((s, p), (mij, lij)) in rows.zip(mij.iter_mut().zip(lij.iter_mut())) {
        let s = &s[..valid];
        let (p, masked) = p.split_at_mut(valid);
        *mij = row_max(simd, s, scale);
        // With no finite score, any shift does; 0 keeps -inf - shift from being NaN.
        let shift = if *mij == f32::NEG_INFINITY { 0.0 } else { *mij };
        *lij = row_weights(simd, s, p, scale, shift);
        masked.fill(0);
    }
}

/// Maximum of `s · scale` over a row; negative infinity for an empty one.
#[inline(always)]
fn row_max<S: Simd>(simd: S, s: &[f32], scale: f32) -> f32 {
    let lanes = S::f32s::LEN;
    let mut max = [S::f32s::splat(simd, f32::NEG_INFINITY); 2];
    let mut chunks = s.chunks_exact(2 * lanes);
    for chunk in &mut chunks {
        max[0] = (S::f32s::from_slice(simd, &chunk[..lanes]) * scale).max(max[0]);
        max[1] = (S::f32s::from_slice(simd, &chunk[lanes..]) * scale).max(max[1]);
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let (low, high) = rest.split_at(rest.len().min(lanes));
        max[0] = scaled_part(simd, low, scale).max(max[0]);
        max[1] = scaled_part(simd, high, scale).max(max[1]);
    }
    max[0].max(max[1]).reduce_max()
}

/// Weights `exp(s · scale - shift)` of a row, rounded to bf16; returns the sum of what was stored.
#[inline(always)]
fn row_weights<S: Simd>(simd: S, s: &[f32], p: &mut [u16], scale: f32, shift: f32) -> f32 {
    let lanes = S::f32s::LEN;
    let mut sum = [S::f32s::splat(simd, 0.0); 2];
    let mut chunks = s.chunks_exact(2 * lanes);
    let mut out = p.chunks_exact_mut(2 * lanes);
    for (s, p) in (&mut chunks).zip(&mut out) {
        let low = S::f32s::from_slice(simd, &s[..lanes]) * scale;
        let high = S::f32s::from_slice(simd, &s[lanes..]) * scale;
        chunk_weights(simd, low, high, shift, &mut sum).store_slice(p);
    }
    let (rest, out) = (chunks.remainder(), out.into_remainder());
    if !rest.is_empty() {
        let (low, high) = rest.split_at(rest.len().min(lanes));
        let (low, high) = (scaled_part(simd, low, scale), scaled_part(simd, high, scale));
        let weights = chunk_weights(simd, low, high, shift, &mut sum);
        out.copy_from_slice(&weights.as_slice()[..rest.len()]);
    }
    (sum[0] + sum[1]).reduce_sum()
}

/// The weights of `2 · LEN` scaled scores; adds them to `sum` lane by lane.
#[inline(always)]
fn chunk_weights<S: Simd>(simd: S, low: S::f32s, high: S::f32s, shift: f32, sum: &mut [S::f32s; 2]) -> S::u16s {
    let low = round_to_bf16(simd, exp_non_positive(simd, low - shift));
    let high = round_to_bf16(simd, exp_non_positive(simd, high - shift));
    sum[0] += low;
    sum[1] += high;
    narrow_bf16::<S>(low, high)
}

/// At most `LEN` scores, scaled; the lanes without one get the score of weight 0, negative infinity.
#[inline(always)]
fn scaled_part<S: Simd>(simd: S, s: &[f32], scale: f32) -> S::f32s {
    if s.len() == S::f32s::LEN {
        S::f32s::from_slice(simd, s) * scale
    } else {
        let mut padded = [f32::NEG_INFINITY; MAX_CHUNK];
        for (padded, &s) in padded.iter_mut().zip(s) {
            *padded = s * scale;
        }
        S::f32s::from_slice(simd, &padded[..S::f32s::LEN])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::oracle::{Random, SHAPES, levels};

    struct Got {
        p: Vec<bf16>,
        mij: Vec<f32>,
        lij: Vec<f32>,
    }

    fn run_at(level: Level, s: &[f32], shape: Shape, valid: usize, scale: f32) -> Got {
        let Shape { m, n, .. } = shape;
        let mut got = Got { p: vec![bf16::NAN; m * n], mij: vec![f32::NAN; m], lij: vec![f32::NAN; m] };
        let out = Weights { p: &mut got.p, mij: &mut got.mij, lij: &mut got.lij };
        run(level, s, out, shape, valid, scale);
        got
    }

    #[test]
    fn agrees_with_f64_for_every_shape_level_and_valid_length() {
        for shape @ Shape { m, n, .. } in SHAPES {
            let s = Random::new(3).f32s(m * n, 9.0);
            for (level, valid) in
                levels().into_iter().flat_map(|l| [n.min(1), n / 2, n.saturating_sub(1), n].map(|v| (l, v)))
            {
                for scale in [1.0, 0.088_388_35, -0.5] {
                    let got = run_at(level, &s, shape, valid, scale);
                    for i in 0..m {
                        let scaled: Vec<f32> = s[i * n..][..valid].iter().map(|s| s * scale).collect();
                        let max = scaled.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        assert_eq!(got.mij[i], max, "{level:?} {shape:?} valid {valid} row {i}");
                        let row = &got.p[i * n..][..n];
                        for (j, p) in row.iter().enumerate() {
                            let p = p.to_f64();
                            let want = scaled.get(j).map_or(0.0, |s| (f64::from(*s) - f64::from(max)).exp());
                            // Half a unit of the last of 8 significand bits, and the argument's own rounding to f32.
                            let bound = want * (1.0 / 256.0 + 4e-6);
                            assert!((p - want).abs() <= bound, "{level:?} {shape:?} [{i}, {j}]: {p}, expected {want}");
                        }
                        let sum: f64 = row.iter().map(|p| p.to_f64()).sum();
                        let lij = f64::from(got.lij[i]);
                        assert!((lij - sum).abs() <= 1e-6 * sum, "{level:?} {shape:?} row {i}: {lij}, expected {sum}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_without_valid_keys_has_no_weight() {
        let shape = Shape { m: 3, n: 37, d: 1 };
        for level in levels() {
            for (s, valid) in [(1.0, 0), (f32::NEG_INFINITY, 37)] {
                let got = run_at(level, &vec![s; 3 * 37], shape, valid, 1.0);
                assert!(got.p.iter().all(|&p| p == bf16::ZERO), "{level:?} {valid}");
                assert_eq!((got.mij, got.lij), (vec![f32::NEG_INFINITY; 3], vec![0.0; 3]), "{level:?} {valid}");
            }
        }
    }
}
