//! What decides the tasks: lengths and block ids, read where they are.

use half::bf16;
use periscope::{Callable, Context, Error, KernelId, Tensor};

use super::case::Params;
use super::kernels;

pub(crate) const QK: KernelId = KernelId(0);
pub(crate) const SOFTMAX: KernelId = KernelId(1);
pub(crate) const PV: KernelId = KernelId(2);
pub(crate) const UPDATE: KernelId = KernelId(3);

/// Paged attention as a callable. Its one scalar is the bits of the f32 scale.
#[must_use]
pub fn callable() -> Callable {
    Callable::builder("paged_attention")
        .input("query")
        .input("key_cache")
        .input("value_cache")
        .input("block_table")
        .input("context_lens")
        .output("out")
        .kernel(QK, kernels::qk())
        .kernel(SOFTMAX, kernels::softmax())
        .kernel(PV, kernels::pv())
        .kernel(UPDATE, kernels::update())
        .orchestrate(orchestrate)
}

fn orchestrate(ctx: &mut Context<'_>, args: &[Tensor]) -> Result<(), Error> {
    let [query, key_cache, value_cache, block_table, context_lens, out] = args else {
        unreachable!("the signature has six tensors")
    };
    let (batch, heads) = (query.dim(0), query.dim(1));
    let (blocks, block) = (key_cache.dim(0), key_cache.dim(1));
    let scale = ctx.scalars().first().copied().ok_or_else(|| Error::orchestration("the scale is missing"))?;
    for b in 0..batch {
        let len = ctx.read::<i32>(context_lens, [b])?;
        let len = u64::try_from(len).map_err(|_| Error::orchestration(format!("context_lens[{b}] is {len}")))?;
        for first_head in (0..heads).step_by(Params::TILE_HEADS as usize) {
            let tile_heads = first_head..heads.min(first_head + Params::TILE_HEADS);
            let q = query.index(0, b)?.slice(0, tile_heads.clone())?;
            let o = out.index(0, b)?.slice(0, tile_heads)?;
            let tile = Tile { q, o, block, scale };
            let accumulators = tile.accumulators(ctx)?;
            let used = len.div_ceil(block);
            for n in 0..used {
                let id = ctx.read::<i32>(block_table, [b, n])?;
                let id = u64::try_from(id).ok().filter(|&id| id < blocks).ok_or_else(|| {
                    Error::orchestration(format!("block_table[{b}, {n}] is {id}, there are {blocks} blocks"))
                })?;
                // One key head: the block's keys and values are [block, head_dim].
                let keys = key_cache.index(0, id)?.index(1, 0)?;
                let values = value_cache.index(0, id)?.index(1, 0)?;
                let valid = (len - n * block).min(block);
                tile.submit_block(ctx, &accumulators, keys, values, valid, n == 0, n + 1 == used)?;
            }
        }
    }
    Ok(())
}

/// The heads of one sequence that are worked on together.
struct Tile {
    q: Tensor,
    o: Tensor,
    block: u64,
    scale: u64,
}

/// Row maxima, row sums and weighted values over the blocks so far.
struct Accumulators {
    m: Tensor,
    l: Tensor,
    o: Tensor,
}

impl Tile {
    fn accumulators(&self, ctx: &mut Context<'_>) -> Result<Accumulators, Error> {
        let (heads, dim) = (self.q.dim(0), self.q.dim(1));
        Ok(Accumulators {
            m: ctx.alloc::<f32>([heads])?,
            l: ctx.alloc::<f32>([heads])?,
            o: ctx.alloc::<f32>([heads, dim])?,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "one block's tensors, its length and its place in the sequence")]
    fn submit_block(
        &self,
        ctx: &mut Context<'_>,
        acc: &Accumulators,
        keys: Tensor,
        values: Tensor,
        valid: u64,
        first: bool,
        last: bool,
    ) -> Result<(), Error> {
        let (heads, dim) = (self.q.dim(0), self.q.dim(1));
        let scores = ctx.alloc::<f32>([heads, self.block])?;
        let weights = ctx.alloc::<bf16>([heads, self.block])?;
        let (row_max, row_sum) = (ctx.alloc::<f32>([heads])?, ctx.alloc::<f32>([heads])?);
        let weighted = ctx.alloc::<f32>([heads, dim])?;
        ctx.task(QK).input(self.q).input(keys).output(scores).submit()?;
        ctx.task(SOFTMAX)
            .input(scores)
            .output(weights)
            .output(row_max)
            .output(row_sum)
            .scalar(valid)
            .scalar(self.scale)
            .submit()?;
        ctx.task(PV).input(weights).input(values).output(weighted).submit()?;
        let update = ctx
            .task(UPDATE)
            .input(row_max)
            .input(row_sum)
            .input(weighted)
            .inout(acc.m)
            .inout(acc.l)
            .inout(acc.o)
            .scalar(u64::from(first));
        // The last block's update also writes the result.
        if last {
            update.output(self.o).submit()?
        } else {
            update.submit()?
        };
        Ok(())
    }
}
