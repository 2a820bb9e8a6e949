//! The four kernels: typed arguments in, tile functions called.

use half::bf16;
use periscope::{CoreKind, Kernel, KernelArgs, KernelError, PodElement, Strided, StridedMut};

use crate::tile::{self, Accumulators, BlockResult, Shape};

fn slice<T: PodElement>(tensor: Strided<'_, T>) -> Result<&[T], KernelError> {
    tensor.as_slice().ok_or_else(|| format!("a tile has gaps: {:?}", tensor.layout()).into())
}

fn slice_mut<T: PodElement>(tensor: StridedMut<'_, T>) -> Result<&mut [T], KernelError> {
    tensor.into_mut_slice().map_err(|tensor| format!("a tile has gaps: {:?}", tensor.layout()).into())
}

fn dims<T: PodElement>(tensor: &Strided<'_, T>) -> Result<(usize, usize), KernelError> {
    match tensor.shape() {
        &[rows, columns] => Ok((rows as usize, columns as usize)),
        shape => Err(format!("a matrix was expected, shape {shape:?} was found").into()),
    }
}

fn expect_len(what: &str, len: usize, needed: usize) -> Result<(), KernelError> {
    if len == needed { Ok(()) } else { Err(format!("{what}: {len} elements, {needed} are needed").into()) }
}

/// scores[m, n] = q[m, d] · k[n, d]ᵀ
pub(crate) fn qk() -> Kernel {
    Kernel::host("paged_attention.qk", CoreKind::Cube, |args: &KernelArgs<'_>| {
        let (q, k) = (args.input::<bf16>(0)?, args.input::<bf16>(1)?);
        let ((m, d), (n, key_dim)) = (dims(&q)?, dims(&k)?);
        let s = slice_mut(args.output::<f32>(2)?)?;
        expect_len("a key", key_dim, d)?;
        expect_len("scores", s.len(), m * n)?;
        tile::qk(slice(q)?, slice(k)?, s, Shape { m, n, d });
        Ok(())
    })
    .input::<bf16>()
    .input::<bf16>()
    .output::<f32>()
}

/// weights[m, n], row maxima and row sums of scores[m, n]; scalars: valid keys, bits of the scale.
pub(crate) fn softmax() -> Kernel {
    Kernel::host("paged_attention.softmax", CoreKind::Vector, |args: &KernelArgs<'_>| {
        let s = args.input::<f32>(0)?;
        let (m, n) = dims(&s)?;
        let p = slice_mut(args.output::<bf16>(1)?)?;
        let (mij, lij) = (slice_mut(args.output::<f32>(2)?)?, slice_mut(args.output::<f32>(3)?)?);
        expect_len("weights", p.len(), m * n)?;
        expect_len("row maxima", mij.len(), m)?;
        expect_len("row sums", lij.len(), m)?;
        let (valid, scale) = (args.scalar(0)? as usize, f32::from_bits(args.scalar(1)? as u32));
        tile::softmax(slice(s)?, p, mij, lij, Shape { m, n, d: 0 }, valid.min(n), scale);
        Ok(())
    })
    .input::<f32>()
    .output::<bf16>()
    .output::<f32>()
    .output::<f32>()
    .scalars(2)
}

/// weighted[m, d] = weights[m, n] · v[n, d]
pub(crate) fn pv() -> Kernel {
    Kernel::host("paged_attention.pv", CoreKind::Cube, |args: &KernelArgs<'_>| {
        let (p, v) = (args.input::<bf16>(0)?, args.input::<bf16>(1)?);
        let ((m, n), (values, d)) = (dims(&p)?, dims(&v)?);
        let o = slice_mut(args.output::<f32>(2)?)?;
        expect_len("the block's values", values, n)?;
        expect_len("weighted values", o.len(), m * d)?;
        tile::pv(slice(p)?, slice(v)?, o, Shape { m, n, d });
        Ok(())
    })
    .input::<bf16>()
    .input::<bf16>()
    .output::<f32>()
}

/// Takes a block into the accumulators; with a last argument, also writes the result. Scalar: whether it is the first block.
pub(crate) fn update() -> Kernel {
    Kernel::host("paged_attention.update", CoreKind::Vector, |args: &KernelArgs<'_>| {
        let o_new = args.input::<f32>(2)?;
        let (m, d) = dims(&o_new)?;
        let block = BlockResult {
            mij: slice(args.input::<f32>(0)?)?,
            lij: slice(args.input::<f32>(1)?)?,
            o_new: slice(o_new)?,
        };
        let acc = Accumulators {
            mi: slice_mut(args.output::<f32>(3)?)?,
            li: slice_mut(args.output::<f32>(4)?)?,
            oi: slice_mut(args.output::<f32>(5)?)?,
        };
        expect_len("row maxima", block.mij.len(), m)?;
        expect_len("row sums", block.lij.len(), m)?;
        expect_len("maxima so far", acc.mi.len(), m)?;
        expect_len("sums so far", acc.li.len(), m)?;
        expect_len("values so far", acc.oi.len(), m * d)?;
        let out = if args.len() > 6 { Some(slice_mut(args.output::<f32>(6)?)?) } else { None };
        if let Some(out) = &out {
            expect_len("the result", out.len(), m * d)?;
        }
        tile::update(block, acc, out, Shape { m, n: 0, d }, args.scalar(0)? != 0);
        Ok(())
    })
    .input::<f32>()
    .input::<f32>()
    .input::<f32>()
    .inout::<f32>()
    .inout::<f32>()
    .inout::<f32>()
    .optional_output::<f32>()
    .scalars(1)
}
