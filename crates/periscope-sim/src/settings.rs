//! What can be chosen when a simulated device is opened.

use std::time::Duration;

use periscope_hal::Geometry;

/// Settings of a simulated device. Start from the default and change fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimSettings {
    /// The most host threads that execute tasks of a launch at a time, the waiting thread included. At least 1; a device
    /// of one thread has a helper thread too, which executes when nobody waits. Default: what this process may use.
    pub threads: usize,
    /// Memory of the device. Costs nothing until it is touched. Default: 64 GiB.
    pub memory_bytes: u64,
    /// Cores to report, and to bound tasks whose blocks start together.
    pub geometry: Geometry,
    /// How long a thread that has run out of work looks for more before it sleeps. Waking a sleeping thread takes about
    /// this long, so a shorter time saves power and a longer one hides it.
    pub spin: Duration,
}

impl Default for SimSettings {
    fn default() -> Self {
        SimSettings {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: 64 << 30,
            geometry: Geometry { clusters: 24, vector_cores: 48 },
            spin: Duration::from_micros(50),
        }
    }
}
