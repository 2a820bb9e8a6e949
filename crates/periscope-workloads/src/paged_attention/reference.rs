//! The reference: online softmax in f32 with the weights rounded to bf16 before they meet the values, written for
//! clarity, one sequence and head at a time. Shares no code with the kernels.

use half::bf16;

use super::case::Params;
use crate::random::in_parallel;
use crate::workload::Progress;

/// Everything that attention depends on.
pub(crate) struct Inputs<'a> {
    pub(crate) params: Params,
    /// `[batch, heads, head_dim]`
    pub(crate) query: &'a [bf16],
    /// `[blocks, block, 1, head_dim]`
    pub(crate) key_cache: &'a [bf16],
    /// As the keys.
    pub(crate) value_cache: &'a [bf16],
    /// `[batch, max_len / block]`
    pub(crate) block_table: &'a [i32],
    /// `[batch]`
    pub(crate) context_lens: &'a [i32],
    pub(crate) scale: f32,
}

/// `[batch, heads, head_dim]`
pub(crate) fn attention(inputs: &Inputs<'_>, progress: &dyn Progress) -> Vec<f32> {
    let Params { batch, heads, head_dim, .. } = inputs.params;
    let mut out = vec![0f32; (batch * heads * head_dim) as usize];
    let sequences: Vec<&mut [f32]> = out.chunks_exact_mut((heads * head_dim) as usize).collect();
    in_parallel(sequences, "computing the reference", progress, |b, out| sequence(inputs, b, out));
    out
}

/// One sequence: out is `[heads, head_dim]`.
fn sequence(inputs: &Inputs<'_>, b: usize, out: &mut [f32]) {
    let Params { heads, head_dim, block, .. } = inputs.params;
    let (heads, dim, block) = (heads as usize, head_dim as usize, block as usize);
    let len = inputs.context_lens[b] as usize;
    let table = &inputs.block_table[b * inputs.params.table_width() as usize..];
    let query: Vec<f32> = inputs.query[b * heads * dim..][..heads * dim].iter().map(|value| value.to_f32()).collect();
    let mut max = vec![f32::NEG_INFINITY; heads];
    let mut sum = vec![0f32; heads];
    out.fill(0.0);
    let (mut keys, mut values) = (vec![0f32; block * dim], vec![0f32; block * dim]);
    let mut weights = vec![0f32; block];
    for (n, &id) in table.iter().enumerate().take(len.div_ceil(block)) {
        let valid = (len - n * block).min(block);
        let first = id as usize * block * dim;
        for (to, from) in keys.iter_mut().zip(&inputs.key_cache[first..]) {
            *to = from.to_f32();
        }
        for (to, from) in values.iter_mut().zip(&inputs.value_cache[first..]) {
            *to = from.to_f32();
        }
        for h in 0..heads {
            let q = &query[h * dim..][..dim];
            let mut block_max = f32::NEG_INFINITY;
            for (j, weight) in weights[..valid].iter_mut().enumerate() {
                *weight = dot(q, &keys[j * dim..][..dim]) * inputs.scale;
                block_max = block_max.max(*weight);
            }
            let new_max = max[h].max(block_max);
            // Weights are rounded relative to their own block's maximum, as the tasks of a block see no other.
            let mut block_sum = 0.0;
            for weight in &mut weights[..valid] {
                *weight = bf16::from_f32((*weight - block_max).exp()).to_f32();
                block_sum += *weight;
            }
            let (keep, take) = ((max[h] - new_max).exp(), (block_max - new_max).exp());
            sum[h] = sum[h] * keep + block_sum * take;
            let out = &mut out[h * dim..][..dim];
            for value in out.iter_mut() {
                *value *= keep;
            }
            for (j, weight) in weights[..valid].iter().enumerate() {
                let factor = weight * take;
                for (o, v) in out.iter_mut().zip(&values[j * dim..][..dim]) {
                    *o += factor * v;
                }
            }
            max[h] = new_max;
        }
    }
    for h in 0..heads {
        for value in &mut out[h * dim..][..dim] {
            *value /= sum[h];
        }
    }
}

/// Sixteen partial sums, so that the compiler can use vector instructions without changing the result.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (a_parts, b_parts) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a_parts.remainder().iter().zip(b_parts.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_parts.zip(b_parts) {
        for lane in 0..16 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    lanes.iter().sum::<f32>() + rest
}
