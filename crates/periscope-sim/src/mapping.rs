//! The one mapping that an allocation may have, and the state of its window.

use std::io;

use periscope_hal::{HostPtr, MapAnswer, WindowMode};

use crate::reservation::HostMapping;

/// How the host reaches an allocation.
#[derive(Debug)]
pub(crate) enum Mapping {
    /// Device memory itself.
    Identity(HostPtr),
    /// At an address of its own.
    Mapped(HostMapping),
    /// The same, usable only while the window is open.
    Windowed {
        /// The pages.
        pages: HostMapping,
        /// What the window is open for, if it is.
        window: Option<WindowMode>,
    },
}

impl Mapping {
    /// What to tell the caller who asked for it.
    pub(crate) fn answer(&self) -> MapAnswer {
        match self {
            Mapping::Identity(address) => MapAnswer::Identity(*address),
            Mapping::Mapped(pages) => MapAnswer::Mapped(HostPtr(pages.address())),
            Mapping::Windowed { pages, .. } => MapAnswer::Windowed(HostPtr(pages.address())),
        }
    }

    /// What the window is open for; `None` also for a mapping that has none.
    pub(crate) fn window(&self) -> Option<WindowMode> {
        if let Mapping::Windowed { window, .. } = self { *window } else { None }
    }

    /// Opens or closes the window.
    ///
    /// # Safety
    /// No reference into the mapping exists that this would break.
    pub(crate) unsafe fn set_window(&mut self, mode: Option<WindowMode>) -> io::Result<()> {
        let Mapping::Windowed { pages, window } = self else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the mapping is not windowed"));
        };
        // SAFETY: the caller's promise.
        unsafe { pages.protect(mode)? };
        *window = mode;
        Ok(())
    }

    /// Ends it, or gives it back with the system's reason.
    ///
    /// # Safety
    /// Nothing uses the mapping.
    pub(crate) unsafe fn end(self) -> Result<(), (Mapping, io::Error)> {
        match self {
            Mapping::Identity(_) => Ok(()),
            // SAFETY: the caller's promise.
            Mapping::Mapped(pages) => unsafe { pages.end() }.map_err(|(pages, error)| (Mapping::Mapped(pages), error)),
            Mapping::Windowed { pages, window } => {
                // SAFETY: the caller's promise.
                unsafe { pages.end() }.map_err(|(pages, error)| (Mapping::Windowed { pages, window }, error))
            }
        }
    }
}
