//! What a device cannot do, and why.

use std::fmt;

/// A call of the [`Device`](crate::Device) trait, for messages, counters and fault injection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DeviceOp {
    /// Allocating memory.
    Alloc,
    /// Freeing memory.
    Free,
    /// Host to device.
    CopyIn,
    /// Device to host.
    CopyOut,
    /// Host to device, many ranges in one transfer.
    CopyInRanges,
    /// Device to host, many ranges in one transfer.
    CopyOutRanges,
    /// Within the device.
    CopyWithin,
    /// Filling with a byte.
    Fill,
    /// Mapping into the host's address space.
    Map,
    /// Ending a mapping.
    Unmap,
    /// Opening a window of a windowed mapping.
    OpenWindow,
    /// Closing it.
    CloseWindow,
    /// Loading kernels.
    LoadKernels,
    /// Starting the execution of an image.
    Launch,
}

impl fmt::Display for DeviceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceOp::Alloc => "alloc",
            DeviceOp::Free => "free",
            DeviceOp::CopyIn => "copy to device",
            DeviceOp::CopyOut => "copy to host",
            DeviceOp::CopyInRanges => "range copy to device",
            DeviceOp::CopyOutRanges => "range copy to host",
            DeviceOp::CopyWithin => "copy within device",
            DeviceOp::Fill => "fill",
            DeviceOp::Map => "map",
            DeviceOp::Unmap => "unmap",
            DeviceOp::OpenWindow => "open window",
            DeviceOp::CloseWindow => "close window",
            DeviceOp::LoadKernels => "load kernels",
            DeviceOp::Launch => "launch",
        })
    }
}

/// A device call failed for a reason that its caller could not foresee. What has happened then is said at each call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device has not enough memory.
    #[error("device memory exhausted: {wanted_bytes} B wanted, {used_bytes} of {total_bytes} B in use")]
    OutOfMemory {
        /// Bytes of the allocation that failed.
        wanted_bytes: u64,
        /// Bytes in use.
        used_bytes: u64,
        /// Bytes of the device.
        total_bytes: u64,
    },
    /// The driver refused or failed the call.
    #[error("device {op} failed: {message}")]
    Failed {
        /// The call.
        op: DeviceOp,
        /// The driver's words.
        message: String,
    },
    /// The call breaks the trait's contract: a bug in the layer above.
    #[error("device {op} broke the device contract (a bug in Periscope): {message}")]
    Contract {
        /// The call.
        op: DeviceOp,
        /// What was broken.
        message: String,
    },
}

/// A device could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Not `scheme` or `scheme:device`.
    #[error("`{uri}` is not a device URI: expected `platform` or `platform:device`, as in `sim:a2a3`")]
    Malformed {
        /// The text given.
        uri: String,
    },
    /// No platform has this name.
    #[error("no platform is called `{scheme}`; there are: {}", known.join(", "))]
    UnknownPlatform {
        /// The name given.
        scheme: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// The platform has no such device.
    #[error("`{uri}` does not exist; there are: {}", known.join(", "))]
    UnknownDevice {
        /// The URI given.
        uri: String,
        /// The URIs that exist.
        known: Vec<String>,
    },
    /// The device exists and cannot be opened.
    #[error("cannot open `{uri}`: {message}")]
    Failed {
        /// The URI given.
        uri: String,
        /// Why.
        message: String,
    },
}
