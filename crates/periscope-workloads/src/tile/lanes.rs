//! Moves between bf16 memory and f32 lanes: widening, rounding, and the transposition of a square of lanes.
//!
//! A bf16 is the upper half of an f32. Reading a chunk of `2 · LEN` bf16 as `LEN` 32-bit words therefore gives the even
//! elements by a shift and the odd ones by a mask: two operations for two vectors, half of what zero extension in order
//! costs. The price is that a widened chunk holds its even elements first ("split order"). A dot product does not care
//! as long as both sides are split alike, and where order matters one interleave restores it.
//!
//! Everything here is `#[inline(always)]`: it must melt into a caller that `fearless_simd::dispatch!` has compiled for
//! the level, since a function call would lose that level's instructions.

use fearless_simd::prelude::*;

/// `2 · LEN` for the widest level: room for the padded end of a row at any level.
pub(super) const MAX_CHUNK: usize = 32;

/// Even and odd elements of `2 · LEN` bf16 bit patterns, as f32.
#[inline(always)]
pub(super) fn widen_split<S: Simd>(simd: S, bits: &[u16]) -> (S::f32s, S::f32s) {
    let words: S::u32s = S::u16s::from_slice(simd, bits).bitcast();
    let even: S::f32s = (words << 16).bitcast();
    let odd: S::f32s = (words & S::u32s::splat(simd, 0xffff_0000)).bitcast();
    (even, odd)
}

/// Like [`widen_split`], but the chunk may be shorter than `2 · LEN`: what is missing reads as 0.
#[inline(always)]
pub(super) fn widen_chunk<S: Simd>(simd: S, bits: &[u16]) -> (S::f32s, S::f32s) {
    if bits.len() == 2 * S::f32s::LEN {
        return widen_split(simd, bits);
    }
    let mut padded = [0u16; MAX_CHUNK];
    padded[..bits.len()].copy_from_slice(bits);
    widen_split(simd, &padded[..2 * S::f32s::LEN])
}

/// Widens a row in order into `wide`, whose length must be at least the row's rounded up to a multiple of `2 · LEN`; elements past the row
/// up to there become 0.
#[inline(always)]
pub(super) fn widen_row<S: Simd>(simd: S, bits: &[u16], wide: &mut [f32]) {
    let lanes = S::f32s::LEN;
    for (chunk, out) in bits.chunks(2 * lanes).zip(wide.chunks_exact_mut(2 * lanes)) {
        let (even, odd) = widen_chunk(simd, chunk);
        let (low, high) = even.interleave(odd);
        low.store_slice(&mut out[..lanes]);
        high.store_slice(&mut out[lanes..]);
    }
}

/// Rounds to the nearest bf16, ties to even, and keeps the f32 form: the low 16 bits of each lane are 0 afterwards.
///
/// For finite values and infinities; a NaN stays a NaN if it has a bit set in its upper half, as every NaN made by
/// arithmetic has.
#[inline(always)]
pub(super) fn round_to_bf16<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let bits: S::u32s = x.bitcast();
    let tie_to_even = (bits >> 16) & S::u32s::splat(simd, 1);
    let rounded = bits + tie_to_even + S::u32s::splat(simd, 0x7fff);
    (rounded & S::u32s::splat(simd, 0xffff_0000)).bitcast()
}

/// Bit patterns of `2 · LEN` values that are bf16 values already ([`round_to_bf16`]), in order.
#[inline(always)]
pub(super) fn narrow_bf16<S: Simd>(low: S::f32s, high: S::f32s) -> S::u16s {
    let low: S::u32s = low.bitcast::<S::u32s>() >> 16;
    let high: S::u32s = high.bitcast::<S::u32s>() >> 16;
    low.narrow(high)
}

/// Transposes a square of lanes: lane `i` of vector `j` and lane `j` of vector `i` change places.
///
/// `L` must be the lane count `LEN`. Source: a perfect shuffle of the `2 · log2(L)` address bits rotates them by one
/// place, so `log2(L)` rounds of interleaving vector `i` with vector `i + L/2` exchange row and column (Stone,
/// "Parallel processing with the perfect shuffle", 1971).
#[inline(always)]
pub(super) fn transpose<S: Simd, const L: usize>(square: &mut [S::f32s; L]) {
    let mut rounds = L;
    while rounds > 1 {
        let before = *square;
        for i in 0..L / 2 {
            (square[2 * i], square[2 * i + 1]) = before[i].interleave(before[i + L / 2]);
        }
        rounds /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::oracle::{Random, levels};
    use fearless_simd::dispatch;
    use half::{bf16, slice::HalfFloatSliceExt};

    #[inline(always)]
    fn round_slice<S: Simd>(simd: S, x: &[f32], bits: &mut [u16]) {
        let lanes = S::f32s::LEN;
        for (x, bits) in x.chunks_exact(2 * lanes).zip(bits.chunks_exact_mut(2 * lanes)) {
            let low = round_to_bf16(simd, S::f32s::from_slice(simd, &x[..lanes]));
            let high = round_to_bf16(simd, S::f32s::from_slice(simd, &x[lanes..]));
            narrow_bf16::<S>(low, high).store_slice(bits);
        }
    }

    #[test]
    fn rounds_like_the_half_crate() {
        // Every pattern of the 17 bits around the cut, at several exponents, and the special values.
        let mut x: Vec<f32> =
            (0..1u32 << 17).flat_map(|low| [0, 0x3f80_0000, 0x8040_0000].map(|e| f32::from_bits(e + low))).collect();
        x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1.0]);
        x.resize(x.len().next_multiple_of(MAX_CHUNK), 0.0);
        let want: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
        for level in levels() {
            let mut bits = vec![0; x.len()];
            dispatch!(level, simd => round_slice(simd, &x, &mut bits));
            assert!(bits == want.reinterpret_cast(), "{level:?}");
        }
    }

    #[test]
    fn widens_rows_of_any_length_and_pads_with_zero() {
        for level in levels() {
            for len in [1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127] {
                let row = Random::new(len as u64).bf16s(len, 3.0);
                let mut wide = [f32::NAN; 128];
                dispatch!(level, simd => widen_row(simd, row.reinterpret_cast(), &mut wide));
                for (i, &wide) in wide.iter().enumerate().take(len.next_multiple_of(8)) {
                    assert_eq!(wide, row.get(i).map_or(0.0, |x| x.to_f32()), "{level:?} {len} [{i}]");
                }
            }
        }
    }

    #[inline(always)]
    fn transposed<S: Simd, const L: usize>(simd: S) -> Vec<f32> {
        let numbers: Vec<f32> = (0..(L * L) as u16).map(f32::from).collect();
        let mut square = [S::f32s::splat(simd, 0.0); L];
        for (row, numbers) in square.iter_mut().zip(numbers.chunks_exact(L)) {
            *row = S::f32s::from_slice(simd, numbers);
        }
        transpose::<S, L>(&mut square);
        square.iter().flat_map(|row| row.as_slice().to_vec()).collect()
    }

    #[inline(always)]
    fn transposed_at_level<S: Simd>(simd: S) -> Vec<f32> {
        match S::f32s::LEN {
            16 => transposed::<S, 16>(simd),
            8 => transposed::<S, 8>(simd),
            _ => transposed::<S, 4>(simd),
        }
    }

    #[test]
    fn transposes_a_square() {
        for level in levels() {
            let got = dispatch!(level, simd => transposed_at_level(simd));
            let side = got.len().isqrt();
            for (at, got) in got.into_iter().enumerate() {
                assert_eq!(got, (at % side * side + at / side) as f32, "{level:?}");
            }
        }
    }
}
