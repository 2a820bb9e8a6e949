//! The contract between Periscope and a device.
//!
//! Start at [`Device`]: its documentation says who waits, what may overlap, what has been validated above, and what
//! trying the trait on a real driver taught. A platform implements [`Platform`] and [`Device`]; the conformance suite
//! (`periscope-cts`) says whether it did so correctly.
//!
//! The traits are object-safe and everything above uses them as objects: one build serves every platform.
#![expect(unsafe_code, reason = "kernel arguments and host views are references into memory that a device owns")]

pub mod counters;
pub mod device;
pub mod error;
pub mod kernel;
pub mod launch;
pub mod strided;
pub mod uri;

pub use counters::DeviceCounters;
pub use device::{
    AddressSpace, Device, DeviceInfo, DeviceMemory, Geometry, HostPtr, MapAnswer, MemoryId, Platform, WindowMode,
};
pub use error::{DeviceError, DeviceOp, OpenError};
pub use kernel::{Kernel, KernelArgs, KernelError};
pub use launch::{Binding, Completion, Execution, Launch, LaunchError, ModuleId, Push};
pub use strided::{Strided, StridedMut};
pub use uri::DeviceUri;

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("Periscope supports 64-bit little-endian hosts: images and mirrors hold device bytes as they are");
