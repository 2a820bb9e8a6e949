//! The memory of one opened device: makes allocations, and finds live ones by identity.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use periscope_hal::{Device, DeviceOp};
use rangemap::{RangeMap, RangeSet};

use crate::allocation::{Allocation, AllocationId, State};
use crate::counts::{Counters, MemoryCounts, add};
use crate::error::MemoryError;
use crate::probe;
use crate::settings::MemorySettings;
use crate::turn::{Turn, TurnError, Turns};
use crate::view::View;

/// What an allocation's bytes are at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Init {
    /// They have no value: reading them before they are written is refused.
    Uninit,
    /// All zero.
    Zeroed,
}

/// What a device's allocations share.
pub(crate) struct Shared {
    pub(crate) number: u32,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) settings: MemorySettings,
    /// Why mappings of the device are not to be relied on, if the start-up probe found so.
    pub(crate) distrust: Option<String>,
    pub(crate) counters: Counters,
    /// Bytes that mirrors hold on the host, and how many they may.
    pub(crate) mirrored: Arc<AtomicU64>,
    mirror_budget_bytes: u64,
    /// How many holds builds have taken.
    pub(crate) holds: AtomicU64,
    pub(crate) turns: Arc<Turns>,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    /// Generation and allocation of the newest allocation of each slot.
    entries: Vec<(u64, Weak<Allocation>)>,
    free: Vec<u32>,
    /// Slots of live allocations by device address.
    by_address: BTreeMap<u64, u32>,
}

impl Shared {
    /// Makes room for `bytes` more in mirrors, for the allocation `for_whom`, which is locked by the caller: the least recently used that
    /// nobody holds lose what they can fetch again. Whether there is room now. The caller has the device's turn.
    pub(crate) fn make_room(&self, bytes: u64, for_whom: AllocationId) -> bool {
        let fits = || self.mirrored.load(Relaxed).saturating_add(bytes) <= self.mirror_budget_bytes;
        if fits() {
            return true;
        }
        let mut others: Vec<Arc<Allocation>> = {
            let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.entries.iter().filter_map(|(_, allocation)| allocation.upgrade()).collect()
        };
        others.retain(|other| other.id != for_whom && !other.held.load(Relaxed));
        others.sort_by_key(|other| other.last_used.load(Relaxed));
        for other in &others {
            let mut state = other.lock();
            if let Some(mirror) = state.view.as_mut().and_then(View::mirror)
                && mirror.evictable_bytes() > 0
            {
                mirror.evict();
                add(&self.counters.evictions, 1);
            }
            drop(state);
            if fits() {
                break;
            }
        }
        fits()
    }

    pub(crate) fn forget(&self, id: AllocationId, address: u64) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.by_address.remove(&address);
        slots.entries[id.slot as usize].1 = Weak::new();
        slots.free.push(id.slot);
    }
}

/// The memory of one opened device. Cloning it clones a handle.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("device", &self.shared.device.info().uri.to_string()).finish_non_exhaustive()
    }
}

static NEXT_DEVICE: AtomicU32 = AtomicU32::new(0);
static NEXT_GENERATION: AtomicU64 = AtomicU64::new(1);

/// A number that no allocation and no build of this process has had or will have.
#[must_use]
pub(crate) fn next_generation() -> u64 {
    NEXT_GENERATION.fetch_add(1, Relaxed)
}

impl Memory {
    /// The memory of an opened device. Probes whether its mappings can be relied on (see `probe`), with calls of its own.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, settings: MemorySettings) -> Memory {
        let distrust = probe::distrust(&*device);
        if let Some(reason) = &distrust {
            log::warn!("{}: {reason}; every host view is a mirror", device.info().uri);
        }
        Memory {
            shared: Arc::new(Shared {
                distrust,
                mirrored: Arc::default(),
                mirror_budget_bytes: settings.mirror_budget_bytes.unwrap_or(device.info().memory_bytes / 4),
                holds: AtomicU64::new(0),
                number: NEXT_DEVICE.fetch_add(1, Relaxed),
                device,
                settings,
                counters: Counters::default(),
                turns: Arc::default(),
                slots: Mutex::default(),
            }),
        }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// Its number within the process: [`AllocationId::device`] of its allocations.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> &MemorySettings {
        &self.shared.settings
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> MemoryCounts {
        self.shared.counters.snapshot()
    }

    /// A number that no allocation of this process has: for memory that is part of another allocation.
    #[must_use]
    pub fn new_generation(&self) -> u64 {
        next_generation()
    }

    /// Waits for the device's turn.
    ///
    /// # Errors
    /// [`TurnError`] if the calling thread has it: an orchestration of this device is running on it.
    pub fn take_turn(&self) -> Result<Turn, TurnError> {
        self.shared.turns.take()
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// [`MemoryError::ZeroSize`]; [`MemoryError::Device`] if the device has not enough, or filling it failed (nothing stays allocated).
    pub fn alloc(&self, len_bytes: u64, init: Init) -> Result<Arc<Allocation>, MemoryError> {
        if len_bytes == 0 {
            return Err(MemoryError::ZeroSize);
        }
        let device_memory = self.shared.device.alloc(len_bytes).map_err(MemoryError::device(DeviceOp::Alloc))?;
        add(&self.shared.counters.allocations, 1);
        let generation = next_generation();
        let mut undefined = RangeSet::new();
        if init == Init::Uninit {
            undefined.insert(0..len_bytes);
        }
        let allocation = {
            let mut slots = self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner);
            let slot = slots.free.pop().unwrap_or(slots.entries.len() as u32);
            let allocation = Arc::new(Allocation {
                id: AllocationId { device: self.shared.number, slot, generation },
                shared: Arc::clone(&self.shared),
                device_memory,
                len_bytes,
                held: AtomicBool::new(false),
                last_used: AtomicU64::new(0),
                state: Mutex::new(State { view: None, undefined, poisoned: RangeMap::new() }),
            });
            let entry = (generation, Arc::downgrade(&allocation));
            if slot as usize == slots.entries.len() {
                slots.entries.push(entry);
            } else {
                slots.entries[slot as usize] = entry;
            }
            slots.by_address.insert(device_memory.address, slot);
            allocation
        };
        let fill = match init {
            Init::Zeroed => Some(0),
            Init::Uninit => self.shared.settings.poison_uninit.then_some(u8::MAX),
        };
        if let Some(value) = fill {
            // SAFETY: live, all of it, and nobody else knows it yet.
            unsafe { self.shared.device.fill(device_memory.id, 0..len_bytes, value) }
                .map_err(MemoryError::device(DeviceOp::Fill))?;
        }
        Ok(allocation)
    }

    /// The live allocation with this identity.
    ///
    /// # Errors
    /// [`MemoryError::Foreign`], [`MemoryError::Freed`], [`MemoryError::Unknown`].
    pub fn resolve(&self, id: AllocationId) -> Result<Arc<Allocation>, MemoryError> {
        if id.device != self.shared.number {
            return Err(MemoryError::Foreign { id, device: self.shared.number });
        }
        let slots = self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner);
        match slots.entries.get(id.slot as usize) {
            Some((generation, allocation)) if *generation == id.generation => {
                allocation.upgrade().ok_or(MemoryError::Freed { id })
            }
            Some((generation, _)) if *generation > id.generation => Err(MemoryError::Freed { id }),
            _ => Err(MemoryError::Unknown { id }),
        }
    }

    /// The live allocation that holds all of `len_bytes` bytes at a device address, and where in it they start. The
    /// address is compared, never dereferenced.
    #[must_use]
    pub fn resolve_address(&self, address: u64, len_bytes: u64) -> Option<(Arc<Allocation>, u64)> {
        let slots = self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let (&start, &slot) = slots.by_address.range(..=address).next_back()?;
        let allocation = slots.entries[slot as usize].1.upgrade();
        // The upgraded owner must not be dropped under the lock: it may be the last.
        drop(slots);
        let allocation = allocation?;
        let offset = address - start;
        let inside = offset
            .checked_add(len_bytes)
            .is_some_and(|end| end <= allocation.len_bytes() && offset < allocation.len_bytes());
        inside.then_some((allocation, offset))
    }
}
