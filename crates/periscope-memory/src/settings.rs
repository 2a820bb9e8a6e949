//! What a user may tune.

/// Settings of a device's memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemorySettings {
    /// Unit of transfer of a mirror: a power of two. At 64 KiB a copy's fixed cost (about 10 µs on real hardware) and the
    /// time for its bytes are about equal.
    pub chunk_bytes: u64,
    /// Allocations up to this size are mirrored whole by the first copy.
    pub whole_fill_max_bytes: u64,
    /// A walk through a mirror in ascending order fetches up to this many chunks ahead in one transfer: twice as many each
    /// time, from the third chunk on. 1 turns it off.
    pub read_ahead_chunks: u32,
    /// Bytes that the mirrors of a device may hold on the host; `None`: a quarter of the device's memory. Beyond it, mirrors
    /// that nobody is using lose what they can fetch again, least recently used first; if everything is in use, reads are served
    /// chunk by chunk without being kept.
    pub mirror_budget_bytes: Option<u64>,
    /// A view that passes this many bytes (mapped: its span; mirrored: bytes filled so far) is warned about once.
    pub warn_bytes: u64,
    /// Fill memory that has no value (allocated `uninit`, graph memory) with 0xFF, a NaN in every float type, so that a kernel
    /// that relies on it shows.
    pub poison_uninit: bool,
}

impl Default for MemorySettings {
    fn default() -> Self {
        MemorySettings {
            chunk_bytes: 64 << 10,
            whole_fill_max_bytes: 256 << 10,
            read_ahead_chunks: 16,
            mirror_budget_bytes: None,
            warn_bytes: 1 << 20,
            poison_uninit: false,
        }
    }
}
