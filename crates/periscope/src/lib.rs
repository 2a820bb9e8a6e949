//! A task-graph runtime for accelerators whose host orchestrator reads and writes any tensor.
#![deny(unsafe_code)]

mod arena;
mod arg;
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

pub use periscope_core::graph::SubmitError;
pub use periscope_core::image::{Image, ImageError};
pub use periscope_core::{
    Access, Comparison, CoreKind, DType, Direction, Element, KernelId, Layout, LayoutError, PodElement, Predicate,
    TaskDesc, TaskId,
};
pub use periscope_hal::{
    DeviceInfo, DeviceUri, Geometry, Kernel, KernelArgs, KernelError, LaunchError, Strided, StridedMut,
};
pub use periscope_memory::{Init, Mechanism, MemoryCounts, MemoryError, MemorySettings, ViewReport};
pub use periscope_sim::SimSettings;
