//! Tile kernels of paged attention: the numeric work of its four tasks, over plain row-major slices.
//!
//! For one query tile (`m` heads of one sequence) and one block of the KV cache (`n` keys):
//!
//! | task | reads | writes |
//! |---|---|---|
//! | [`qk`](fn@qk) | q `[m, d]` bf16, k `[n, d]` bf16 | s `[m, n]` f32 |
//! | [`softmax`](fn@softmax) | s | p `[m, n]` bf16, mij `[m]` f32, lij `[m]` f32 |
//! | [`pv`](fn@pv) | p, v `[n, d]` bf16 | o_new `[m, d]` f32 |
//! | [`update`](fn@update) | mij, lij, o_new | mi `[m]`, li `[m]`, oi `[m, d]`, on the last block out `[m, d]`, all f32 |
//!
//! Why our own loops: with the blocks streamed from memory in scattered order on two threads (Zen 5, 2 cores, case1 shape
//! (16, 128, 128), best of 10) they reach about 235 GFLOP/s; widening to f32 and calling the `gemm` crate, about 128. Why
//! `fearless_simd`: it picks the instructions at run time (AVX-512, AVX2 with FMA, SSE, NEON, scalar) for one generic
//! source, and keeps all `unsafe` on its side.
//!
//! Invariants: any `m`, `n`, `d`; sums in f32, in an order that depends on the shape and the CPU's level only, so equal
//! inputs give equal bits on one machine, whatever the thread; no allocation once a thread has seen its largest query
//! tile. Deliberately absent: threads (tasks are the unit of parallelism), strides (a task gets contiguous tiles), and
//! errors: the caller validates tensors before a task runs, so a wrong length here is a bug and panics.

mod ahead;
mod exp;
mod lanes;
#[cfg(test)]
mod oracle;
mod pv;
mod qk;
mod softmax;
mod update;

use fearless_simd::Level;
use half::bf16;

/// Sizes of one tile, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Heads: rows of the query tile.
    pub m: usize,
    /// Keys: rows of the block.
    pub n: usize,
    /// Head dimension.
    pub d: usize,
}

/// What [`softmax`](fn@softmax) and [`pv`](fn@pv) computed for one block.
#[derive(Clone, Copy, Debug)]
pub struct BlockResult<'a> {
    /// Row maxima of the scaled scores, `[m]`.
    pub mij: &'a [f32],
    /// Row sums of the weights, `[m]`.
    pub lij: &'a [f32],
    /// Weighted sums of the values, `[m, d]`.
    pub o_new: &'a [f32],
}

/// Running state of the online softmax over the blocks of a sequence.
#[derive(Debug)]
pub struct Accumulators<'a> {
    /// Row maxima so far, `[m]`.
    pub mi: &'a mut [f32],
    /// Row sums of the weights so far, relative to `mi`, `[m]`.
    pub li: &'a mut [f32],
    /// Weighted sums of the values so far, relative to `mi`, `[m, d]`.
    pub oi: &'a mut [f32],
}

/// The instructions that the kernels use on this CPU, for people.
#[must_use]
pub fn instructions() -> String {
    // The level's own name, such as `Avx512`, without what its token holds.
    let level = format!("{:?}", Level::new());
    level.split('(').next().unwrap_or_default().to_owned()
}

/// Scores `s = q · kᵀ`, not yet scaled: q `[m, d]`, k `[n, d]`, s `[m, n]`.
///
/// # Panics
/// If a length is not what `shape` says.
pub fn qk(q: &[bf16], k: &[bf16], s: &mut [f32], shape: Shape) {
    let Shape { m, n, d } = shape;
    check("q", q.len(), m * d);
    check("k", k.len(), n * d);
    check("s", s.len(), m * n);
    qk::run(Level::new(), q, k, s, shape);
}

/// Weights of one block and their row maxima and sums: s `[m, n]`, p `[m, n]`, mij `[m]`, lij `[m]`.
///
/// `mij` is the maximum of `s · scale` over the first `valid` keys, `p = exp(s · scale - mij)` rounded to bf16 (0 for keys
/// from `valid` on), `lij` the sum of the rounded `p`. The exponential is within 2 ulp of f32 before it is rounded, and 0
/// below `e^-87`. A row without valid keys has `mij` = -inf, `lij` = 0. `shape.d` is not used.
///
/// # Panics
/// If a length is not what `shape` says, or `valid > n`.
pub fn softmax(s: &[f32], p: &mut [bf16], mij: &mut [f32], lij: &mut [f32], shape: Shape, valid: usize, scale: f32) {
    let Shape { m, n, .. } = shape;
    check("s", s.len(), m * n);
    check("p", p.len(), m * n);
    check("mij", mij.len(), m);
    check("lij", lij.len(), m);
    assert!(valid <= n, "valid is {valid}, expected at most {n} keys");
    softmax::run(Level::new(), s, softmax::Weights { p, mij, lij }, shape, valid, scale);
}

/// Weighted sums of the values `o_new = p · v`: p `[m, n]`, v `[n, d]`, o_new `[m, d]`.
///
/// Rows of `v` beyond the valid keys are read too, with weight 0, so they must not hold infinities or NaN.
///
/// # Panics
/// If a length is not what `shape` says.
pub fn pv(p: &[bf16], v: &[bf16], o_new: &mut [f32], shape: Shape) {
    let Shape { m, n, d } = shape;
    check("p", p.len(), m * n);
    check("v", v.len(), n * d);
    check("o_new", o_new.len(), m * d);
    pv::run(Level::new(), p, v, o_new, shape);
}

/// Merges a block into the accumulators; on the last block (`out` given, `[m, d]`) also `out = oi / li`.
///
/// On the `first` block the accumulators are only written: what they held does not matter. A row of `out` without any
/// valid key is 0. `shape.n` is not used.
///
/// # Panics
/// If a length is not what `shape` says.
pub fn update(block: BlockResult<'_>, acc: Accumulators<'_>, out: Option<&mut [f32]>, shape: Shape, first: bool) {
    let Shape { m, d, .. } = shape;
    check("mij", block.mij.len(), m);
    check("lij", block.lij.len(), m);
    check("o_new", block.o_new.len(), m * d);
    check("mi", acc.mi.len(), m);
    check("li", acc.li.len(), m);
    check("oi", acc.oi.len(), m * d);
    if let Some(out) = &out {
        check("out", out.len(), m * d);
    }
    update::run(Level::new(), block, acc, out, d, first);
}

fn check(what: &str, got_elems: usize, want_elems: usize) {
    assert!(got_elems == want_elems, "{what} holds {got_elems} elements, expected {want_elems}");
}
