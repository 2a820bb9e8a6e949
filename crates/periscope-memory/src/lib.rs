//! Device memory and host views: the sole owner of element access.
//!
//! * [`Memory`] allocates on one device and knows every live [`Allocation`] by its [`AllocationId`].
//! * An [`Allocation`] owns device memory and, from the first touch on, its **host view**: identity, mapped, windowed or
//!   mirrored, as the platform answered for it. It is freed when its last owner is gone: handles are invalidated, the
//!   view is unmapped, the memory is freed, in that order.
//! * A [`Hold`] is a build's access to an allocation's bytes: what makes element reads cost a few nanoseconds. A
//!   [`Overlay`] is the same for bytes that are not (yet) on the device: staged tensors and graph memory.
//! * The [`Turn`] is what one build, or one transfer, has at a time.
//!
//! # Which bytes are where
//! For each byte of an allocation at most one of these holds, and they decide every access:
//!
//! | set | meaning | read | write by the host | written by a launch |
//! |---|---|---|---|---|
//! | undefined | allocated `uninit`, never written | refused | leaves the set | leaves the set, if certainly written |
//! | poisoned | a failed run may have written it | refused | leaves the set | leaves the set, if certainly written |
//! | dirty (mirror only) | the host's copy is newer | served | served | pushed first, then stale |
//! | valid (mirror only; includes dirty) | the host's copy is current | served | served | stale |
//! | stale (mirror only: all others) | the device's copy is newer | copied first | served, copies nothing | stale |
//!
//! These are sets of byte ranges. A chunk is only the unit of transfer: its bit says "all of it is valid", so that the read
//! path tests one bit. "Certainly" leaves out what only a task with a predicate writes, which may have been skipped.
#![expect(unsafe_code, reason = "host views are memory that a device, a mapping or a mirror owns")]

mod allocation;
mod buffer;
mod counts;
mod error;
mod hold;
mod memory;
mod mirror;
mod overlay;
mod probe;
mod settings;
mod turn;
mod view;

pub use allocation::{Allocation, AllocationId};
pub use counts::{MemoryCounts, ViewReport};
pub use error::MemoryError;
pub use hold::{Hold, empty_view, empty_view_mut};
pub use memory::{Init, Memory};
pub use overlay::Overlay;
pub use settings::MemorySettings;
pub use turn::{Turn, TurnError, Turns};
pub use view::Mechanism;
