//! The embedded simulated accelerator: kernels are Rust functions on host cores, device memory is real separate memory.
//!
//! ```text
//! SimPlatform ──► SimDevice ──► Memory (arena of offsets, reservation, one mapping per allocation, contract checks)
//!                     │
//!                     └───────► Executor (queue of launches, seats, sleepers) ──► member (ready tasks) ──► task (kernel)
//! ```
//!
//! A [`Profile`] decides what the host sees of device memory; the rest is common. `README.md` in this crate describes how
//! threads share a launch. Simulated time does not exist: what is measured is what host cores really took.
#![expect(unsafe_code, reason = "device memory is raw memory that kernels, copies and host mappings reach by address")]

mod arena;
mod counts;
mod device;
mod executor;
mod mapping;
mod member;
mod memory;
mod platform;
mod predicate;
mod profile;
mod queue;
mod reservation;
mod settings;
mod signal;
mod task;
mod together;
mod work;

pub use arena::ALIGNMENT_BYTES;
pub use device::SimDevice;
pub use memory::OPAQUE_BASE;
pub use platform::SimPlatform;
pub use profile::{HUGE_PAGE_BYTES, Profile};
pub use settings::SimSettings;
