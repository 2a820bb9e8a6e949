//! Device buffers for staged arguments, kept from run to run so that a warm run allocates nothing.

use std::sync::Arc;

use periscope_memory::{Allocation, Init, Memory, MemoryError};

/// A buffer that no run has used for this many runs is given back.
const KEEP_RUNS: u64 = 64;

#[derive(Debug)]
struct Buffer {
    allocation: Arc<Allocation>,
    last_used_run: u64,
    in_use: bool,
}

/// The buffers of one device.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    buffers: Vec<Buffer>,
}

impl Staging {
    /// Starts a run: all buffers are free, and those long unused are given back.
    pub(crate) fn reset(&mut self, run: u64) {
        self.buffers.retain_mut(|buffer| {
            buffer.in_use = false;
            run - buffer.last_used_run <= KEEP_RUNS
        });
    }

    /// A buffer of at least `len_bytes`: the smallest that fits and is not more than twice as large, else a new one.
    pub(crate) fn take(&mut self, memory: &Memory, len_bytes: u64, run: u64) -> Result<Arc<Allocation>, MemoryError> {
        let len_bytes = len_bytes.max(1);
        let fits = |buffer: &&mut Buffer| {
            !buffer.in_use && (len_bytes..=len_bytes.saturating_mul(2)).contains(&buffer.allocation.len_bytes())
        };
        let best = self.buffers.iter_mut().filter(fits).min_by_key(|buffer| buffer.allocation.len_bytes());
        if let Some(buffer) = best {
            buffer.in_use = true;
            buffer.last_used_run = run;
            return Ok(Arc::clone(&buffer.allocation));
        }
        let allocation = memory.alloc(len_bytes, Init::Uninit)?;
        self.buffers.push(Buffer { allocation: Arc::clone(&allocation), last_used_run: run, in_use: true });
        Ok(allocation)
    }
}
