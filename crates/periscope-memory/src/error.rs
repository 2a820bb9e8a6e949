//! Why memory cannot be had or touched. Names and indices of tensors are added by the layer above.

use std::ops::Range;

use periscope_hal::{DeviceError, DeviceOp};

use crate::allocation::AllocationId;
use crate::turn::TurnError;

/// Why memory cannot be had or touched.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The allocation is gone; a new one at the same address is another one.
    #[error("{id} has been freed")]
    Freed {
        /// The handle's allocation.
        id: AllocationId,
    },
    /// The handle belongs to another opened device.
    #[error("{id} belongs to device {}, this is device {device}", id.device)]
    Foreign {
        /// The handle's allocation.
        id: AllocationId,
        /// The device that was asked.
        device: u32,
    },
    /// No allocation was ever made with this identity.
    #[error("{id} does not exist")]
    Unknown {
        /// The handle's allocation.
        id: AllocationId,
    },
    /// A zero-size allocation.
    #[error("an allocation of 0 bytes was asked for")]
    ZeroSize,
    /// The bytes lie outside the allocation.
    #[error("bytes {}..{} of an allocation of {len_bytes} bytes", range.start, range.end)]
    OutOfBounds {
        /// The bytes asked for.
        range: Range<u64>,
        /// The allocation's length.
        len_bytes: u64,
    },
    /// The bytes were never given a value.
    #[error("bytes {}..{} have no value: the memory was allocated without one and nothing has written them", range.start, range.end)]
    NoValue {
        /// The bytes asked for.
        range: Range<u64>,
    },
    /// A failed run may have written the bytes.
    #[error("bytes {}..{} may have been written by run {run}, which failed: write them before reading them", range.start, range.end)]
    Poisoned {
        /// The bytes asked for.
        range: Range<u64>,
        /// The run that failed.
        run: u64,
    },
    /// The host cannot reserve memory: for a mirror, for what an orchestrator writes, for what a caller asked for.
    #[error("the host cannot reserve {bytes} bytes: {message}")]
    HostMemory {
        /// Bytes wanted.
        bytes: u64,
        /// The system's words.
        message: String,
    },
    /// A device call failed.
    #[error("{source}")]
    Device {
        /// What was being done.
        op: DeviceOp,
        /// The device's error.
        source: DeviceError,
    },
    /// It is not this thread's turn, and it cannot wait for it.
    #[error(transparent)]
    Turn(#[from] TurnError),
}

impl MemoryError {
    pub(crate) fn device(op: DeviceOp) -> impl FnOnce(DeviceError) -> MemoryError {
        move |source| MemoryError::Device { op, source }
    }
}
