//! Vectorised `exp` for arguments at or below zero, the only ones that an online softmax asks for.
//!
//! Method: the classic reduction `x = k·ln2 + r` with `|r| ≤ ln2/2` (ln2 in two parts, Cody and Waite, "Software
//! Manual for the Elementary Functions", 1980, chapter 6), a polynomial of degree 6 for `e^r`, and `2^k` added to the
//! exponent field. The coefficients are this project's own: minimax in the relative error on `|r| ≤ 0.34661` with the
//! constant and linear ones held at 1, found by Lawson's reweighted least squares in 40 digits (error 3.1e-9, which is
//! 0.05 units of 2^-24). With rounding the result is within 1 ulp of the true value with FMA and within 2 ulp without;
//! the test below walks the whole domain and asserts both.
//!
//! Why our own: no library in use here offers it, the whole is twelve vector operations, and the domain lets it do
//! without the cases for large or subnormal results.

use fearless_simd::prelude::*;

/// Arguments below this give exactly 0, not a subnormal: `e^-87` is 1.6e-38, far under half a bf16 unit of any row sum.
pub(super) const FLUSH_BELOW: f32 = -87.0;

/// High part of ln 2, in 9 significand bits, so that `k · LN2_HIGH` is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
/// `ln 2 - LN2_HIGH`.
const LN2_LOW: f32 = -2.121_944_4e-4;

/// Coefficients of `r^2 … r^6`; those of 1 and `r` are 1.
const C: [f32; 5] = [0.499_999_93, 0.166_665_2, 0.041_668_39, 0.008_368_723, 0.001_381_453_4];

/// `e^x` lane by lane for `x ≤ 0`, negative infinity included (gives 0); NaN stays NaN.
///
/// `e^0` is exactly 1. Results under `e^-87` are flushed to 0.
#[inline(always)]
pub(super) fn exp_non_positive<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let k = (x * std::f32::consts::LOG2_E).round_ties_even();
    let minus_k = -k;
    let r = minus_k.mul_add(S::f32s::splat(simd, LN2_HIGH), x);
    let r = minus_k.mul_add(S::f32s::splat(simd, LN2_LOW), r);
    let mut p = S::f32s::splat(simd, C[4]);
    for c in [C[3], C[2], C[1], C[0], 1.0, 1.0] {
        p = p.mul_add(r, S::f32s::splat(simd, c));
    }
    let k: S::i32s = k.to_int();
    let scaled: S::i32s = p.bitcast::<S::i32s>() + (k << 23);
    x.simd_lt(FLUSH_BELOW).select(S::f32s::splat(simd, 0.0), scaled.bitcast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::oracle::levels;
    use fearless_simd::{Level, dispatch};

    #[inline(always)]
    fn exp_slice<S: Simd>(simd: S, x: &[f32], y: &mut [f32]) {
        let lanes = S::f32s::LEN;
        for (x, y) in x.chunks_exact(lanes).zip(y.chunks_exact_mut(lanes)) {
            exp_non_positive(simd, S::f32s::from_slice(simd, x)).store_slice(y);
        }
    }

    fn exp_at(level: Level, x: &[f32]) -> Vec<f32> {
        let mut y = vec![f32::NAN; x.len()];
        dispatch!(level, simd => exp_slice(simd, x, &mut y));
        y
    }

    #[test]
    fn stays_within_two_ulp_over_the_whole_domain() {
        let x: Vec<f32> = (0..1 << 20).map(|i| FLUSH_BELOW * (i as f32 / (1 << 20) as f32)).collect();
        for level in levels() {
            let fused = matches!(format!("{level:?}").as_str(), s if s.contains("Avx"));
            let bound = if fused { 1.0 } else { 2.0 };
            let mut worst = 0.0f64;
            for (&x, &y) in x.iter().zip(&exp_at(level, &x)) {
                let want = f64::from(x).exp();
                let ulp = 2.0f64.powi(want.log2().floor() as i32 - 23);
                worst = worst.max((f64::from(y) - want).abs() / ulp);
            }
            assert!(worst <= bound, "{level:?}: {worst} ulp, expected at most {bound}");
        }
    }

    #[test]
    fn special_arguments() {
        let mut x = [0.0f32; 16];
        x[..6].copy_from_slice(&[0.0, -0.0, f32::NEG_INFINITY, -87.5, -1e30, f32::NAN]);
        for level in levels() {
            let y = exp_at(level, &x);
            assert_eq!(y[..5], [1.0, 1.0, 0.0, 0.0, 0.0], "{level:?}");
            assert!(y[5].is_nan(), "{level:?}");
        }
    }
}
