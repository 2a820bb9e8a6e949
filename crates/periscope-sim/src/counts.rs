//! The device's counters while they count.

use std::sync::atomic::{AtomicU64, Ordering};

use periscope_hal::DeviceCounters;

macro_rules! counts {
    ($($name:ident),*) => {
        /// [`DeviceCounters`], shared. Relaxed everywhere: numbers that order nothing.
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counts {
            pub(crate) fn snapshot(&self, wakes: u64) -> DeviceCounters {
                DeviceCounters { wakes, $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counts!(
    allocs,
    frees,
    maps,
    map_refusals,
    unmaps,
    copies_in,
    copies_out,
    range_copies_in,
    range_copies_out,
    copies_within,
    fills,
    bytes_in,
    bytes_out,
    windows_opened,
    windows_closed,
    launches,
    pushes,
    bytes_pushed
);

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
