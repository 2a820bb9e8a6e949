//! What happened to memory, in numbers: the raw material of reports and tests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::view::Mechanism;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals since the device was opened. Subtract two to get what happened between.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct MemoryCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> MemoryCounts {
                MemoryCounts { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl std::ops::Sub for MemoryCounts {
            type Output = MemoryCounts;
            fn sub(self, earlier: MemoryCounts) -> MemoryCounts {
                MemoryCounts { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counts! {
    /// Device allocations made.
    allocations,
    /// Device allocations freed.
    frees,
    /// Allocations whose unmap or free failed: kept for ever, never handed out again.
    quarantined,
    /// Host views established.
    established,
    /// Mappings made (identity, mapped, windowed).
    maps,
    /// Requests to map that the platform refused.
    map_refusals,
    /// Host views released.
    releases,
    /// Mappings ended.
    unmaps,
    /// Transfers into a mirror of chunks that had never been there.
    fills,
    /// Transfers into a mirror of bytes that had become stale.
    refreshes,
    /// Mirrors that lost what they could fetch again, to stay within the budget.
    evictions,
    /// Chunks that were read without being kept, since everything in the budget was in use.
    bounces,
    /// Range-list transfers of bytes that the host wrote.
    pushes,
    /// Windows opened.
    windows,
    /// Bytes that mirrors moved to the device.
    pushed_bytes,
    /// Bytes that mirrors moved to the host.
    filled_bytes,
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    // Counters order nothing.
    counter.fetch_add(by, Relaxed);
}

/// A host view, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ViewReport {
    /// How the host reaches the bytes.
    pub mechanism: Mechanism,
    /// Why this mechanism.
    pub reason: String,
    /// Mapped: its span. Mirrored: bytes filled so far.
    pub bytes: u64,
    /// Which view of the device this was: the first established is 1.
    pub sequence: u64,
    /// Elements and ranges that orchestrators read.
    pub reads: u64,
    /// Elements and ranges that orchestrators wrote.
    pub writes: u64,
    /// Transfers into a mirror, the first of each chunk aside.
    pub refreshes: u64,
    /// Range-list transfers of bytes that the host wrote.
    pub pushes: u64,
    /// Windows opened.
    pub windows: u64,
    /// Bytes moved to the device.
    pub pushed_bytes: u64,
    /// Bytes moved to the host.
    pub filled_bytes: u64,
}
