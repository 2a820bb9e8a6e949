//! What a device has been asked to do so far.

/// Calls and bytes since the device was opened. For tests ("an untouched tensor costs 0 maps") and reports; reading it
/// takes no lock, so numbers of calls that are running may be there or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounters {
    /// Allocations made.
    pub allocs: u64,
    /// Allocations freed.
    pub frees: u64,
    /// Mappings granted, identity included.
    pub maps: u64,
    /// Requests to map that were refused.
    pub map_refusals: u64,
    /// Mappings ended.
    pub unmaps: u64,
    /// Single copies to the device.
    pub copies_in: u64,
    /// Single copies to the host.
    pub copies_out: u64,
    /// Range-list copies to the device.
    pub range_copies_in: u64,
    /// Range-list copies to the host.
    pub range_copies_out: u64,
    /// Copies within the device.
    pub copies_within: u64,
    /// Fills.
    pub fills: u64,
    /// Bytes of all copies to the device; pushes are counted apart.
    pub bytes_in: u64,
    /// Bytes of all copies to the host.
    pub bytes_out: u64,
    /// Windows opened; making a read window a write window counts.
    pub windows_opened: u64,
    /// Windows closed.
    pub windows_closed: u64,
    /// Launches accepted.
    pub launches: u64,
    /// Pushes of all launches.
    pub pushes: u64,
    /// Bytes of all pushes.
    pub bytes_pushed: u64,
    /// Sleeping threads that the device woke, which costs the waker microseconds.
    pub wakes: u64,
}
