//! Host memory that is reserved whole and costs nothing until touched: under mirrors and overlays.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::MemoryError;

/// Zeroed host memory at a stable address. Pages come into being when they are first touched.
#[derive(Debug)]
pub(crate) struct HostBuffer {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory that this value owns.
unsafe impl Send for HostBuffer {}
// SAFETY: shared use yields raw addresses only; what is done at them is settled where it is done.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Reserves `len` bytes.
    pub(crate) fn reserve(len: u64) -> Result<HostBuffer, MemoryError> {
        let refuse = |message: String| MemoryError::HostMemory { bytes: len, message };
        let len = usize::try_from(len).map_err(|error| refuse(error.to_string()))?.max(1);
        // SAFETY: a fresh anonymous mapping touches no existing memory.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|error| refuse(error.to_string()))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| refuse("mapped at address 0".into()))?;
        Ok(HostBuffer { base, len })
    }

    /// The first byte. Valid for the length asked for, as long as the buffer lives.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl HostBuffer {
    /// Gives the whole pages of `range` back: they read as zero afterwards. A range that fails stays as it is.
    pub(crate) fn release(&self, range: std::ops::Range<u64>) {
        let page = rustix::param::page_size() as u64;
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if start >= end || end > self.len as u64 {
            return;
        }
        // SAFETY: whole pages of our own anonymous mapping, whose contents the caller does not need any more.
        let released = unsafe {
            madvise(self.base.as_ptr().add(start as usize).cast(), (end - start) as usize, Advice::LinuxDontNeed)
        };
        if let Err(error) = released {
            log::debug!("giving back {} B of a mirror failed: {error}", end - start);
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing outlives it: holds and guards keep the buffer's owner alive.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.len) } {
            log::error!("releasing {} B of host memory failed: {error}", self.len);
        }
    }
}
