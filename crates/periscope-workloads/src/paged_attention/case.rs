//! The cases and what follows from their parameters.

use std::fmt;

/// Parameters of a case. Lengths are in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Params {
    /// Sequences.
    pub batch: u64,
    /// Query heads.
    pub heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Keys of a block.
    pub block: u64,
    /// Keys of each sequence.
    pub context: u64,
    /// Keys that a row of the block table has room for.
    pub max_len: u64,
}

impl Params {
    /// Key and value heads, shared by all query heads.
    pub const KV_HEADS: u64 = 1;
    /// Most heads of a query tile.
    pub const TILE_HEADS: u64 = 128;

    /// The parameters of a published case.
    #[must_use]
    pub fn of_case(name: &str) -> Option<Params> {
        CASES.iter().find(|(known, _)| *known == name).map(|&(_, params)| params)
    }

    /// Blocks of one sequence.
    #[must_use]
    pub fn blocks_per_sequence(&self) -> u64 {
        self.context.div_ceil(self.block)
    }

    /// Blocks of the cache.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.batch * self.blocks_per_sequence()
    }

    /// Columns of the block table.
    #[must_use]
    pub fn table_width(&self) -> u64 {
        self.max_len / self.block
    }

    /// Tasks of a run.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.blocks() * self.heads.div_ceil(Params::TILE_HEADS) * 4
    }

    /// Multiplications and additions of the two products of every block, masked keys included: the kernels do those too.
    #[must_use]
    pub fn flops(&self) -> u64 {
        self.blocks() * 4 * self.heads * self.block * self.head_dim
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "batch {}, {} heads × {}, block {}, context {}: {} tasks",
            self.batch,
            self.heads,
            self.head_dim,
            self.block,
            self.context,
            self.tasks()
        )
    }
}

const fn case(batch: u64, heads: u64, head_dim: u64, block: u64, context: u64, max_len: u64) -> Params {
    Params { batch, heads, head_dim, block, context, max_len }
}

/// The published cases.
pub(crate) const CASES: &[(&str, Params)] = &[
    ("small1", case(1, 16, 16, 16, 16, 256)),
    ("small2", case(1, 16, 16, 16, 64, 256)),
    ("mid", case(32, 16, 128, 128, 1024, 32768)),
    ("case1", case(256, 16, 128, 128, 8100, 32768)),
    ("case2", case(64, 64, 128, 64, 8150, 32768)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_counts_are_the_published_ones() {
        let tasks: Vec<u64> = CASES.iter().map(|(_, params)| params.tasks()).collect();
        assert_eq!(tasks, [4, 16, 1_024, 65_536, 32_768]);
    }
}
