//! Paged attention, decode: one query per sequence, keys and values in blocks that a table names.
//!
//! The orchestration reads `context_lens[b]` once per sequence and `block_table[b, n]` once per block: they decide how many
//! tasks there are and on which blocks they work. Per sequence and query tile (at most 128 heads) there are accumulators
//! m, l and o; per block, four tasks: qk → softmax → pv → update.

mod case;
mod kernels;
mod orchestration;
mod reference;

use half::bf16;
use periscope::{DType, Direction, HostTensor};
use rand::seq::SliceRandom;

pub use case::Params;
pub use orchestration::callable;

use crate::check::Expected;
use crate::random::{fill_uniform_bf16, stream};
use crate::session::{entry, output};
use crate::workload::{Case, Prepared, Progress, Role, Workload, WorkloadError};

/// Paged attention, decode: see the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub struct PagedAttention;

/// Position of `block_table` among the entry tensors.
pub const BLOCK_TABLE: usize = 3;
/// Position of `context_lens` among the entry tensors.
pub const CONTEXT_LENS: usize = 4;
/// Position of `out` among the entry tensors.
pub const OUT: usize = 5;

const TOLERANCE: f64 = 1e-3;
const SCALE: f32 = 1.0;

impl Workload for PagedAttention {
    fn name(&self) -> &'static str {
        "paged_attention"
    }

    fn about(&self) -> &'static str {
        "decode attention over a paged KV cache; reads context_lens and block_table to decide its tasks"
    }

    fn cases(&self) -> Vec<Case> {
        case::CASES.iter().map(|&(name, params)| Case { name, about: params.to_string() }).collect()
    }

    fn default_case(&self) -> &'static str {
        "mid"
    }

    fn prepare(&self, case: &str, seed: u64, progress: &dyn Progress) -> Result<Prepared, WorkloadError> {
        let params = Params::of_case(case).ok_or_else(|| self.unknown_case(case))?;
        prepare(params, seed, progress)
    }
}

/// Generates the inputs of these parameters and computes the reference.
///
/// # Errors
/// The tensors are too large for this machine's address arithmetic.
pub fn prepare(params: Params, seed: u64, progress: &dyn Progress) -> Result<Prepared, WorkloadError> {
    let Params { batch, heads, head_dim, block, .. } = params;
    let (per_sequence, blocks) = (params.blocks_per_sequence(), params.blocks());

    // Streams of the seed: 0 is the table's, then one range per tensor.
    let uniform =
        |shape: &[u64], half_width: f32, first_stream: u64, what: &str| -> Result<HostTensor, WorkloadError> {
            let mut tensor = HostTensor::zeros(DType::BF16, shape)?;
            let elements = tensor.as_mut_slice::<bf16>().expect("made as bf16");
            fill_uniform_bf16(elements, half_width, seed, first_stream, what, progress);
            Ok(tensor)
        };
    let cache = [blocks, block, Params::KV_HEADS, head_dim];
    let query = uniform(&[batch, heads, head_dim], 0.5, 1, "generating query")?;
    let key_cache = uniform(&cache, 0.5, 1 << 20, "generating keys")?;
    let value_cache = uniform(&cache, 1.0, 2 << 20, "generating values")?;

    let mut generator = stream(seed, 0);
    let mut ids: Vec<i32> = (0..blocks as i32).collect();
    ids.shuffle(&mut generator);
    // Entries that no sequence uses name no block, so that reading too far shows.
    let width = params.table_width();
    let mut table = vec![-1i32; (batch * width) as usize];
    for (row, ids) in table.chunks_exact_mut(width as usize).zip(ids.chunks_exact(per_sequence as usize)) {
        row[..ids.len()].copy_from_slice(ids);
    }
    let lens = vec![params.context as i32; batch as usize];

    let inputs = reference::Inputs {
        params,
        query: query.as_slice().expect("bf16"),
        key_cache: key_cache.as_slice().expect("bf16"),
        value_cache: value_cache.as_slice().expect("bf16"),
        block_table: &table,
        context_lens: &lens,
        scale: SCALE,
    };
    let expected = reference::attention(&inputs, progress);
    let out_shape = [batch, heads, head_dim];
    Ok(Prepared {
        callable: callable(),
        tensors: vec![
            entry("query", Direction::In, Role::Large, query),
            entry("key_cache", Direction::In, Role::Large, key_cache),
            entry("value_cache", Direction::In, Role::Large, value_cache),
            entry("block_table", Direction::In, Role::Control, HostTensor::from_slice(&[batch, width], &table)?),
            entry("context_lens", Direction::In, Role::Control, HostTensor::from_slice(&[batch], &lens)?),
            output("out", Role::Large, DType::F32, &out_shape)?,
        ],
        scalars: vec![u64::from(SCALE.to_bits())],
        expected: vec![Expected {
            tensor: OUT,
            values: HostTensor::from_slice(&out_shape, &expected)?,
            rtol: TOLERANCE,
            atol: TOLERANCE,
        }],
        flops: params.flops(),
    })
}
