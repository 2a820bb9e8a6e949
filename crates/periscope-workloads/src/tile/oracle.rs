//! What the tests of the tile kernels share: shapes, inputs and the levels to try. The f64 loops that judge a kernel are
//! in its own file.

use fearless_simd::Level;
use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Shape;

const fn shape(m: usize, n: usize, d: usize) -> Shape {
    Shape { m, n, d }
}

/// The workloads' shapes, every kind of remainder (lanes 4, 8 and 16, chunks, panels of 128), single elements and none.
pub(super) const SHAPES: [Shape; 22] = [
    shape(16, 128, 128),
    shape(64, 64, 128),
    shape(16, 16, 16),
    shape(5, 128, 128),
    shape(128, 3, 64),
    shape(1, 1, 1),
    shape(1, 17, 33),
    shape(2, 31, 7),
    shape(3, 129, 15),
    shape(4, 8, 257),
    shape(7, 33, 130),
    shape(9, 5, 31),
    shape(15, 300, 17),
    shape(17, 15, 63),
    shape(31, 47, 65),
    shape(33, 130, 32),
    shape(65, 2, 129),
    shape(127, 19, 5),
    shape(2, 3, 0),
    shape(2, 0, 3),
    shape(0, 2, 3),
    shape(2, 40, 0),
];

/// Every level that this machine can run, the best first; the portable baseline is always among them.
pub(super) fn levels() -> Vec<Level> {
    let best = Level::new();
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    {
        let mut levels = vec![best];
        levels.extend(best.as_avx2().map(Level::Avx2));
        levels.extend(best.as_sse4_2().map(Level::Sse4_2));
        levels.extend(best.as_sse2().map(Level::Sse2));
        levels.dedup_by_key(|level| format!("{level:?}"));
        levels
    }
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
    vec![best]
}

/// Reproducible uniform numbers.
pub(super) struct Random(ChaCha8Rng);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// `len` numbers in ±`bound`.
    pub(super) fn f32s(&mut self, len: usize, bound: f32) -> Vec<f32> {
        (0..len).map(|_| self.0.random_range(-bound..=bound)).collect()
    }

    /// The same, rounded to bf16.
    pub(super) fn bf16s(&mut self, len: usize, bound: f32) -> Vec<bf16> {
        self.f32s(len, bound).into_iter().map(bf16::from_f32).collect()
    }
}
