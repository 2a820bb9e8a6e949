//! Conformance suite: the same clauses of the device contract over every platform and profile.
//!
//! A [`Clause`] opens devices of its own through a [`Subject`] and ends in a [`Verdict`]: it passed; it does not apply
//! (`unsupported`, permanent, with the reason: windows on a device that maps without); or it failed. A clause asks for
//! nothing that the contract leaves open, and reads no profile's name: what applies is decided by the device's answers.
//!
//! ```text
//! platforms() ─► Subject (platform, URI) ─► Stand (opened device, loaded kernels) ─► Graph ─► launch
//!                        × clauses()     ─► Report (one column per device, one row per clause)
//! ```
//!
//! [`faults`] wraps a device in one that fails on request: what the tests of the layers above run on.
//!
//! A new platform joins in [`platforms`]. Checks that only a simulator makes (that it *notices* a broken rule) are its
//! own tests; the contract says that a device need not look.
#![expect(
    unsafe_code,
    reason = "the suite stands where the layer above a device stands, and calls it as that layer does"
)]

mod clause;
pub mod faults;
mod graph;
mod groups;
mod process;
mod report;
mod stand;

use periscope_hal::Platform;
use periscope_sim::SimPlatform;

pub use clause::{Clause, Subject, Verdict};
pub use groups::clauses;
pub use report::Report;

/// Every platform that is built in, whether or not it has a device here.
#[must_use]
pub fn platforms() -> Vec<Box<dyn Platform>> {
    vec![Box::new(SimPlatform::default())]
}
