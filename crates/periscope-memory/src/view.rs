//! Host views: how the host reaches an allocation's bytes, decided once per allocation by the platform's answer for it.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use periscope_hal::{Device, DeviceOp, MapAnswer, MemoryId, WindowMode};

use crate::allocation::AllocationId;
use crate::counts::{Counters, ViewReport, add};
use crate::error::MemoryError;
use crate::memory::Shared;
use crate::mirror::{Filled, Mirror, Valueless};
use crate::settings::MemorySettings;

/// How the host reaches an allocation's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Mechanism {
    /// Device memory is host memory.
    Identity,
    /// A host mapping of device memory, at another address.
    Mapped,
    /// A mapping that is open only while no kernel uses the memory.
    Windowed,
    /// A host copy, refreshed from the device and pushed to it.
    Mirrored,
}

impl Mechanism {
    /// The word for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Identity => "identity",
            Mechanism::Mapped => "mapped",
            Mechanism::Windowed => "windowed",
            Mechanism::Mirrored => "mirrored",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Debug)]
enum Kind {
    Identity(NonNull<u8>),
    Mapped(NonNull<u8>),
    Windowed { base: NonNull<u8>, open: Option<WindowMode> },
    Mirrored(Mirror),
}

/// The host view of one allocation.
#[derive(Debug)]
pub(crate) struct View {
    kind: Kind,
    pub(crate) report: ViewReport,
    warned: bool,
}

// SAFETY: the addresses in `kind` name memory that the view's allocation keeps mapped; using it is settled in `hold`.
unsafe impl Send for View {}

/// All chunks are valid: the bitmap of views that are not mirrors, used with a shift that maps every offset to bit 0.
pub(crate) static ALL_VALID: AtomicU64 = AtomicU64::new(u64::MAX);
pub(crate) const ALL_VALID_SHIFT: u32 = 63;

/// What the read path needs: base, chunk bits, shift.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPath {
    pub(crate) base: *mut u8,
    pub(crate) chunk_bits: *const AtomicU64,
    pub(crate) chunk_shift: u32,
}

/// Where the view's allocation lies, for its device calls.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) memory: MemoryId,
    pub(crate) len: u64,
    pub(crate) counters: &'a Counters,
    pub(crate) settings: &'a MemorySettings,
    /// Why mappings are not to be asked for.
    pub(crate) distrust: Option<&'a str>,
    /// The device's memory, and whose view this is, for the budget of mirrors.
    pub(crate) shared: &'a Shared,
    pub(crate) id: AllocationId,
    /// For messages.
    pub(crate) name: &'a str,
}

impl Site<'_> {
    fn mirror(&self) -> Result<Mirror, MemoryError> {
        Mirror::new(self.len, self.settings, Arc::clone(&self.shared.mirrored))
    }
}

/// How bytes were made readable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Readable {
    /// Through the view.
    InView,
    /// Only piece by piece, with [`View::bounce`]: the mirror budget has no room.
    Bounced,
}

impl View {
    /// Asks the platform and takes the best that it grants. Moves no tensor byte.
    pub(crate) fn establish(site: Site<'_>) -> Result<View, MemoryError> {
        let answer = match site.distrust {
            Some(reason) => Ok(MapAnswer::Refused { reason: reason.to_owned() }),
            // SAFETY: the allocation is live, and the range is all of it.
            None => unsafe { site.device.map(site.memory, 0..site.len) },
        };
        let (kind, mechanism, reason) = match answer {
            Ok(MapAnswer::Identity(base)) => {
                (Kind::Identity(base.0), Mechanism::Identity, "device memory is host memory".to_owned())
            }
            Ok(MapAnswer::Mapped(base)) => {
                (Kind::Mapped(base.0), Mechanism::Mapped, "the platform granted a map".to_owned())
            }
            Ok(MapAnswer::Windowed(base)) => (
                Kind::Windowed { base: base.0, open: None },
                Mechanism::Windowed,
                "the platform granted a map that is open only while no kernel uses the memory".to_owned(),
            ),
            Ok(MapAnswer::Refused { reason }) => {
                add(&site.counters.map_refusals, 1);
                (Kind::Mirrored(site.mirror()?), Mechanism::Mirrored, reason)
            }
            Err(error) => {
                // A map that fails is served like one that is refused: by copies, for this allocation alone.
                log::warn!("mapping {} failed, its host view is a mirror: {error}", site.name);
                add(&site.counters.map_refusals, 1);
                (Kind::Mirrored(site.mirror()?), Mechanism::Mirrored, format!("map failed: {error}"))
            }
        };
        if mechanism != Mechanism::Mirrored {
            add(&site.counters.maps, 1);
        }
        add(&site.counters.established, 1);
        let bytes = if mechanism == Mechanism::Mirrored { 0 } else { site.len };
        let report = ViewReport {
            mechanism,
            reason,
            bytes,
            sequence: site.counters.established.load(std::sync::atomic::Ordering::Relaxed),
            reads: 0,
            writes: 0,
            refreshes: 0,
            pushes: 0,
            windows: 0,
            pushed_bytes: 0,
            filled_bytes: 0,
        };
        let mut view = View { kind, report, warned: false };
        view.warn_if_large(site);
        Ok(view)
    }

    fn warn_if_large(&mut self, site: Site<'_>) {
        if !self.warned && self.report.bytes > site.settings.warn_bytes {
            self.warned = true;
            log::warn!(
                "the host view of {} ({}, {}) spans {} B: orchestrations usually read small control tensors",
                site.name,
                self.report.mechanism,
                self.report.reason,
                self.report.bytes
            );
        }
    }

    /// Ends the mapping, if there is one. If that fails the view is as it was.
    pub(crate) fn release(&mut self, site: Site<'_>) -> Result<(), MemoryError> {
        if !matches!(self.kind, Kind::Mirrored(_)) {
            self.close_window(site)?;
            // SAFETY: the allocation is being dropped, so no hold (which would own it) and no guard exists.
            unsafe { site.device.unmap(site.memory) }.map_err(MemoryError::device(DeviceOp::Unmap))?;
            add(&site.counters.unmaps, 1);
        }
        add(&site.counters.releases, 1);
        Ok(())
    }

    fn open_window(&mut self, site: Site<'_>, mode: WindowMode) -> Result<(), MemoryError> {
        if let Kind::Windowed { open, .. } = &mut self.kind
            && *open != Some(WindowMode::Write)
            && *open != Some(mode)
        {
            // SAFETY: a windowed mapping; changing a read window to a write window ends no access that a guard may be making.
            unsafe { site.device.open_window(site.memory, mode) }.map_err(MemoryError::device(DeviceOp::OpenWindow))?;
            *open = Some(mode);
            self.report.windows += 1;
            add(&site.counters.windows, 1);
        }
        Ok(())
    }

    /// Closes the window, if one is open. No guard exists.
    pub(crate) fn close_window(&mut self, site: Site<'_>) -> Result<(), MemoryError> {
        if let Kind::Windowed { open, .. } = &mut self.kind
            && open.is_some()
        {
            // SAFETY: an open window; the caller says that no guard exists.
            unsafe { site.device.close_window(site.memory) }.map_err(MemoryError::device(DeviceOp::CloseWindow))?;
            *open = None;
        }
        Ok(())
    }

    /// Whether a window is open for writing.
    pub(crate) fn write_window_open(&self) -> bool {
        matches!(self.kind, Kind::Windowed { open: Some(WindowMode::Write), .. })
    }

    /// Makes `wanted` readable through the view; `without` has no value and is not copied. If the budget of mirrors has no room
    /// and `may_bounce`, nothing is done and the bytes are to be read with [`View::bounce`].
    pub(crate) fn make_readable(
        &mut self,
        site: Site<'_>,
        wanted: impl Iterator<Item = Range<u64>>,
        without: Valueless<'_>,
        may_bounce: bool,
    ) -> Result<Readable, MemoryError> {
        self.open_window(site, WindowMode::Read)?;
        if let Kind::Mirrored(mirror) = &mut self.kind {
            let wanted = wanted.collect();
            let missing = mirror.missing_bytes(&wanted);
            if missing == 0 {
                return Ok(Readable::InView);
            }
            // A chunk that is at hand needs no room: looking for some at each element would cost more than the copy.
            if may_bounce && mirror.has_bounced(&wanted) {
                return Ok(Readable::Bounced);
            }
            // What cannot bounce, a guard, needs its bytes in one place, room or not.
            let room = site.shared.make_room(missing, site.id);
            if !room && may_bounce {
                return Ok(Readable::Bounced);
            }
            match mirror.fill(&wanted, without, site.device, site.memory)? {
                Filled::Nothing => {}
                Filled::First(bytes) => {
                    add(&site.counters.fills, 1);
                    self.count_filled(site, bytes);
                }
                Filled::Again(bytes) => {
                    add(&site.counters.refreshes, 1);
                    self.report.refreshes += 1;
                    self.count_filled(site, bytes);
                }
            }
        }
        Ok(Readable::InView)
    }

    fn count_filled(&mut self, site: Site<'_>, bytes: u64) {
        add(&site.counters.filled_bytes, bytes);
        self.report.filled_bytes += bytes;
        self.report.bytes = self.report.filled_bytes;
        self.warn_if_large(site);
    }

    /// The largest part of `range`, from its start, that [`View::bounce`] can serve at once.
    pub(crate) fn first_part(&self, range: &Range<u64>) -> Range<u64> {
        match &self.kind {
            Kind::Mirrored(mirror) => mirror.first_part(range),
            _ => range.clone(),
        }
    }

    /// Where the bytes of `range`, which lies in one chunk, can be read until the next call on the view.
    ///
    /// # Panics
    /// If the view is not a mirror.
    pub(crate) fn bounce(
        &mut self,
        site: Site<'_>,
        range: &Range<u64>,
        without: Valueless<'_>,
    ) -> Result<*const u8, MemoryError> {
        let mirror = self.mirror().expect("only mirrors have a budget");
        let (bytes, fetched) = mirror.bounce(range, without, site.device, site.memory)?;
        if fetched > 0 {
            add(&site.counters.bounces, 1);
            self.count_filled(site, fetched);
        }
        Ok(bytes)
    }

    /// Makes `range` writable through the view, and records that the host writes all of it.
    pub(crate) fn make_writable(&mut self, site: Site<'_>, range: &Range<u64>) -> Result<(), MemoryError> {
        self.open_window(site, WindowMode::Write)?;
        if let Kind::Mirrored(mirror) = &mut self.kind {
            mirror.host_writes(range.clone());
        }
        Ok(())
    }

    pub(crate) fn mirror(&mut self) -> Option<&mut Mirror> {
        match &mut self.kind {
            Kind::Mirrored(mirror) => Some(mirror),
            _ => None,
        }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        match &self.kind {
            Kind::Identity(base) | Kind::Mapped(base) | Kind::Windowed { base, .. } => *base,
            Kind::Mirrored(mirror) => mirror.base(),
        }
    }

    /// How to read without asking, if the view's state allows it. `all_have_values`: no byte is undefined or poisoned.
    pub(crate) fn read_path(&self, all_have_values: bool) -> Option<ReadPath> {
        let unchunked =
            |base: NonNull<u8>| ReadPath { base: base.as_ptr(), chunk_bits: &ALL_VALID, chunk_shift: ALL_VALID_SHIFT };
        match &self.kind {
            Kind::Identity(base) | Kind::Mapped(base) => all_have_values.then(|| unchunked(*base)),
            Kind::Windowed { base, open } => (all_have_values && open.is_some()).then(|| unchunked(*base)),
            // A chunk with bytes that have no value is never valid as a whole.
            Kind::Mirrored(mirror) => Some(ReadPath {
                base: mirror.base().as_ptr(),
                chunk_bits: mirror.chunk_bits().as_ptr(),
                chunk_shift: mirror.chunk_shift(),
            }),
        }
    }

    /// Whether a store is just a store: no byte to record, the window open for it.
    pub(crate) fn stores_directly(&self, all_have_values: bool) -> bool {
        all_have_values
            && match &self.kind {
                Kind::Identity(_) | Kind::Mapped(_) => true,
                Kind::Windowed { open, .. } => *open == Some(WindowMode::Write),
                Kind::Mirrored(_) => false,
            }
    }
}
