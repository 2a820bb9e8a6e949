//! The bytes of a device: one sparse reservation, and further mappings of parts of it for the host.
//!
//! A device whose memory the host may map elsewhere is a memory file, mapped once for the device's own use; a host
//! mapping is one more mapping of the same pages, hence truly coherent and truly at another address. Other devices are
//! anonymous memory. Neither costs a page until it is touched.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};

use periscope_hal::WindowMode;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};
use rustix::param::page_size;

/// The memory of a device, mapped for the device's own use.
#[derive(Debug)]
pub(crate) struct Reservation {
    base: NonNull<u8>,
    len: usize,
    file: Option<OwnedFd>,
}

// SAFETY: it owns address space, not data of a thread; what may be done at its addresses is the `Device` contract's matter.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len_bytes`, rounded up to pages, without touching any.
    pub(crate) fn new(len_bytes: u64, mappable: bool) -> io::Result<Reservation> {
        let len = usize::try_from(len_bytes)
            .ok()
            .and_then(|len| len.max(1).checked_next_multiple_of(page_size()))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let (address, file) = if mappable {
            let file = memfd_create("periscope-sim", MemfdFlags::CLOEXEC)?;
            ftruncate(&file, len as u64)?;
            // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
            let address = unsafe { mmap(null_mut(), len, prot, MapFlags::SHARED | MapFlags::NORESERVE, &file, 0)? };
            (address, Some(file))
        } else {
            // SAFETY: as above.
            let address = unsafe { mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE | MapFlags::NORESERVE)? };
            (address, None)
        };
        let base = NonNull::new(address.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: advice on the mapping made above. Large pages are a wish: where the kernel has none, small ones do.
        let _ = unsafe { madvise(address, len, Advice::LinuxHugepage) };
        Ok(Reservation { base, len, file })
    }

    /// Where the device sees byte `offset`, which lies inside (or one past the end).
    pub(crate) fn at(&self, offset: u64) -> NonNull<u8> {
        debug_assert!(offset as usize <= self.len);
        // SAFETY: the offset stays within the mapping that `new` made.
        unsafe { self.base.add(offset as usize) }
    }

    /// Returns the whole pages of `free` that `freed` touches to the system; they read as zero when next touched.
    ///
    /// # Safety
    /// Nothing uses the bytes of `free`, and `freed` lies within it.
    pub(crate) unsafe fn give_back(&self, freed: Range<u64>, free: Range<u64>) -> io::Result<()> {
        let page = page_size() as u64;
        let start = free.start.next_multiple_of(page).max(freed.start / page * page);
        let end = (free.end / page * page).min(freed.end.next_multiple_of(page));
        if start >= end {
            return Ok(());
        }
        match &self.file {
            Some(file) => {
                fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, end - start)?;
            }
            // SAFETY: whole pages of which every byte is in `free`, which nothing uses.
            None => unsafe {
                madvise(self.at(start).as_ptr().cast(), (end - start) as usize, Advice::LinuxDontNeed)?;
            },
        }
        Ok(())
    }

    /// Maps the pages that hold `range` (not empty) once more, open or closed.
    ///
    /// # Errors
    /// The system's, for instance when the process has as many mappings as it may.
    ///
    /// # Panics
    /// If the reservation was not made mappable.
    pub(crate) fn map(&self, range: Range<u64>, open: bool) -> io::Result<HostMapping> {
        let file = self.file.as_ref().expect("a profile that maps elsewhere has a memory file");
        let page = page_size() as u64;
        let first = range.start / page * page;
        let len = (range.end.next_multiple_of(page) - first) as usize;
        let prot = if open { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::empty() };
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let address = unsafe { mmap(null_mut(), len, prot, MapFlags::SHARED | MapFlags::NORESERVE, file, first)? };
        let pages = NonNull::new(address.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(HostMapping { pages, len, head: (range.start - first) as usize })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is `new`'s, and the device that owned it is gone.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) } {
            log::error!("unmapping a device's memory failed: {error}");
        }
    }
}

/// Pages of a device mapped for the host.
#[derive(Debug)]
pub(crate) struct HostMapping {
    pages: NonNull<u8>,
    len: usize,
    /// Bytes before the range that was asked for: it need not start at a page.
    head: usize,
}

// SAFETY: as for `Reservation`.
unsafe impl Send for HostMapping {}

impl HostMapping {
    /// The address of the first byte of the range that was asked for.
    pub(crate) fn address(&self) -> NonNull<u8> {
        // SAFETY: `head` is less than the length of the mapping.
        unsafe { self.pages.add(self.head) }
    }

    /// Opens the mapping for loads or for loads and stores, or closes it: an access to a closed one faults.
    ///
    /// # Safety
    /// No reference into the mapping exists that this would break.
    pub(crate) unsafe fn protect(&self, mode: Option<WindowMode>) -> io::Result<()> {
        let flags = match mode {
            None => MprotectFlags::empty(),
            Some(WindowMode::Read) => MprotectFlags::READ,
            Some(WindowMode::Write) => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        // SAFETY: the pages are this mapping's own; that nothing relies on their protection is the caller's promise.
        unsafe { mprotect(self.pages.as_ptr().cast::<c_void>(), self.len, flags) }.map_err(io::Error::from)
    }
}

impl HostMapping {
    /// Ends the mapping, or gives it back with the system's reason.
    ///
    /// # Safety
    /// Nothing uses the mapping.
    pub(crate) unsafe fn end(self) -> Result<(), (HostMapping, io::Error)> {
        // SAFETY: the pages are this mapping's own; that nothing uses them is the caller's promise.
        match unsafe { munmap(self.pages.as_ptr().cast::<c_void>(), self.len) } {
            Ok(()) => {
                std::mem::forget(self);
                Ok(())
            }
            Err(error) => Err((self, error.into())),
        }
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // SAFETY: the pages are this mapping's own; one that was not ended is dropped with its device, when no host view is left.
        if let Err(error) = unsafe { munmap(self.pages.as_ptr().cast::<c_void>(), self.len) } {
            log::error!("unmapping a host mapping failed: {error}");
        }
    }
}
