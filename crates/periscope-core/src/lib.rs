//! The pure part of Periscope: what a tensor's bytes are, which tasks touch them, and what order that implies.
//!
//! Nothing here does I/O, knows a device or contains unsafe code. Data flows one way:
//!
//! ```text
//! DType + Layout ──► Region (typed strided elements) ──► Footprint (the exact set of bytes)
//!                                                            │
//! TaskDesc ──► GraphBuilder (validates, infers edges) ◄── hazards (who touched these bytes?)
//!                   │ freeze
//!                   ▼
//!                 Image (flat, pointer-free; a device executes it, a file holds it)
//! ```
#![forbid(unsafe_code)]

pub mod dot;
pub mod dtype;
pub mod footprint;
pub mod graph;
mod hazard;
pub mod ids;
pub mod image;
mod intern;
pub mod layout;
pub mod task;
pub mod touched;
mod verify;

pub use dtype::{DType, Element, PodElement};
pub use footprint::Footprint;
pub use graph::{EntryWrites, GraphBuilder, GraphLimits, ScopeError, ScopeKind, SubmitError};
pub use ids::{ObjectId, TaskId};
pub use layout::{Layout, LayoutError, LayoutRef, MAX_RANK, Region, Shape};
pub use task::{
    Access, Comparison, CoreKind, Direction, KernelId, KernelParam, KernelSignature, ObjectRegion, Predicate, TaskDesc,
};
