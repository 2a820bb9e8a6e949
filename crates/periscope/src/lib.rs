#![doc = include_str!("../../../README.md")]
//!
//! # The access contract
//!
//! An orchestration may read and write any tensor through its [`Context`]; what happens depends on the bytes touched:
//!
//! | the bytes touched | read | write |
//! |---|---|---|
//! | of a staged tensor, no task of this graph touches them | the caller's bytes | seen by every task of this run; returned if OUT or INOUT; the caller's memory never changes if IN |
//! | of a resident tensor, no task of this graph touches them | through the host view | through the host view |
//! | with a **writer** submitted in this graph | refused, naming the task | refused, naming the task |
//! | with only **readers** submitted in this graph | as if untouched | refused, naming a reader |
//! | of memory that the graph allocated, before any task | no value, until written | defines them |
//! | without a value (allocated `uninit`, never written) | refused | gives them one |
//! | that a failed run may have written | refused, naming the run | rewrites them |
//! | of a freed tensor, another device's, graph memory after its scope | refused, saying which | the same |
//!
//! Refusal depends on whether bytes have a settled value, never on the direction of the argument. A refusal touches
//! nothing: the destination is unchanged, nothing is mapped or copied.
#![deny(unsafe_code)]

mod arena;
mod arg;
mod build;
mod callable;
mod context;
mod device;
mod error;
mod host_build_graph;
mod report;
mod staging;
mod task;
mod tensor;

pub use arg::Arg;
pub use callable::{Callable, CallableBuilder, Orchestration, Param};
pub use context::Context;
pub use device::{Device, DeviceOptions, list_devices, platforms};
pub use error::{Error, ErrorKind, Place};
pub use report::{Bytes, Phases, Report, TensorView, ViewCounts};
pub use task::TaskBuilder;
pub use tensor::{HostTensor, Resident, Tensor};

pub use periscope_core::graph::{ScopeError, SubmitError};
pub use periscope_core::image::{Image, ImageError};
pub use periscope_core::{
    Access, Comparison, CoreKind, DType, Direction, Element, KernelId, Layout, LayoutError, PodElement, Predicate,
    TaskDesc, TaskId,
};
pub use periscope_hal::{
    DeviceCounters, DeviceInfo, DeviceUri, Geometry, Kernel, KernelArgs, KernelError, LaunchError, OpenError, Strided,
    StridedMut,
};
pub use periscope_memory::{
    AllocationId, Init, Mechanism, MemoryCounts, MemoryError, MemorySettings, TurnError, ViewReport,
};
pub use periscope_sim::SimSettings;
