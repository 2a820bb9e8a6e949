//! The memory of a device: its allocations by identifier, and the checks that a call keeps the contract.
//!
//! Layers above have validated what arrives here; the checks are made all the same, because a mistake that a real driver
//! would punish much later, or never, should be found in the simulator at once. One lock guards the table; bytes are
//! copied outside it.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use periscope_core::image::Image;
use periscope_hal::{Binding, DeviceError, DeviceMemory, DeviceOp, HostPtr, MapAnswer, MemoryId, Push, WindowMode};

use crate::arena::Arena;
use crate::mapping::Mapping;
use crate::profile::{MapPolicy, Profile};
use crate::reservation::Reservation;

/// Where opaque device addresses begin: not canonical, so that a host access faults, and the same for every device, so
/// that an address alone does not say whose it is.
pub const OPAQUE_BASE: u64 = 0x5157_0000_0000_0000;

/// The memory of a device.
#[derive(Debug)]
pub(crate) struct Memory {
    profile: Profile,
    reservation: Reservation,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    arena: Arena,
    next_id: u64,
    allocations: HashMap<MemoryId, Allocation>,
}

#[derive(Debug)]
struct Allocation {
    /// The arena's range; a little longer than asked for.
    range: Range<u64>,
    len_bytes: u64,
    mapping: Option<Mapping>,
    use_in_flight: Use,
}

/// How many launches in flight use an allocation.
#[derive(Clone, Copy, Default, Debug)]
struct Use {
    any: u32,
    writing: u32,
}

/// An allocation that a launch holds until it has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin {
    memory: MemoryId,
    writes: bool,
}

impl Memory {
    pub(crate) fn new(profile: Profile, memory_bytes: u64) -> io::Result<Memory> {
        let arena = Arena::new(memory_bytes);
        Ok(Memory {
            profile,
            reservation: Reservation::new(arena.total_bytes(), profile.maps_elsewhere())?,
            table: Mutex::new(Table { arena, next_id: 1, allocations: HashMap::new() }),
        })
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.table().arena.total_bytes()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing that holds the lock can panic half-way.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn alloc(&self, len_bytes: u64) -> Result<DeviceMemory, DeviceError> {
        if len_bytes == 0 {
            return Err(contract(DeviceOp::Alloc, "an allocation of 0 bytes".into()));
        }
        let mut table = self.table();
        let Some(range) = table.arena.alloc(len_bytes) else {
            return Err(DeviceError::OutOfMemory {
                wanted_bytes: len_bytes,
                used_bytes: table.arena.used_bytes(),
                total_bytes: table.arena.total_bytes(),
            });
        };
        let id = MemoryId(table.next_id);
        table.next_id += 1;
        let address = match self.profile {
            Profile::Identity => self.reservation.at(range.start).as_ptr().expose_provenance() as u64,
            _ => OPAQUE_BASE + range.start,
        };
        table.allocations.insert(id, Allocation { range, len_bytes, mapping: None, use_in_flight: Use::default() });
        Ok(DeviceMemory { id, address })
    }

    /// # Safety
    /// As for `Device::free`.
    pub(crate) unsafe fn free(&self, memory: MemoryId) -> Result<(), DeviceError> {
        let op = DeviceOp::Free;
        let mut table = self.table();
        let allocation = table.get(op, memory)?;
        if allocation.mapping.is_some() {
            return Err(contract(op, format!("{} is still mapped", name(memory))));
        }
        if allocation.use_in_flight.any > 0 {
            return Err(contract(op, format!("a launch in flight uses {}", name(memory))));
        }
        let range = allocation.range.clone();
        table.allocations.remove(&memory);
        let free = table.arena.free(range.clone());
        // Still under the lock: the range must not be handed out before its pages are gone.
        // SAFETY: the arena says that nobody owns these bytes, and the caller that nobody uses them.
        if let Err(error) = unsafe { self.reservation.give_back(range, free) } {
            log::warn!("the pages of a freed allocation stay resident: {error}");
        }
        Ok(())
    }

    /// Where bytes `offset_bytes..offset_bytes + len_bytes` of an allocation lie, if it has them.
    pub(crate) fn locate(
        &self,
        op: DeviceOp,
        memory: MemoryId,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<NonNull<u8>, DeviceError> {
        let mut table = self.table();
        let allocation = table.get(op, memory)?;
        allocation.check(op, memory, offset_bytes, len_bytes)?;
        Ok(self.reservation.at(allocation.range.start + offset_bytes))
    }

    /// Where an allocation begins, if these are ascending disjoint ranges of it with `packed_bytes` bytes in all.
    pub(crate) fn locate_ranges(
        &self,
        op: DeviceOp,
        memory: MemoryId,
        ranges: &[Range<u64>],
        packed_bytes: u64,
    ) -> Result<NonNull<u8>, DeviceError> {
        let mut table = self.table();
        let allocation = table.get(op, memory)?;
        allocation.check_ranges(op, memory, ranges, packed_bytes)?;
        Ok(self.reservation.at(allocation.range.start))
    }

    pub(crate) fn map(&self, memory: MemoryId, range: Range<u64>) -> Result<MapAnswer, DeviceError> {
        let op = DeviceOp::Map;
        let mut table = self.table();
        let allocation = table.get(op, memory)?;
        allocation.check(op, memory, range.start, range.end.saturating_sub(range.start))?;
        if allocation.mapping.is_some() {
            return Err(contract(op, format!("{} is mapped already", name(memory))));
        }
        let at = allocation.range.start + range.start..allocation.range.start + range.end;
        let mapping = match self.profile.map_policy(allocation.len_bytes) {
            MapPolicy::Refused(reason) => return Ok(MapAnswer::Refused { reason }),
            MapPolicy::Identity => Mapping::Identity(HostPtr(self.reservation.at(at.start))),
            MapPolicy::Mapped => Mapping::Mapped(self.reservation.map(at, true).map_err(|error| failed(op, &error))?),
            MapPolicy::Windowed => Mapping::Windowed {
                pages: self.reservation.map(at, false).map_err(|error| failed(op, &error))?,
                window: None,
            },
        };
        Ok(allocation.mapping.insert(mapping).answer())
    }

    /// # Safety
    /// As for `Device::unmap`.
    pub(crate) unsafe fn unmap(&self, memory: MemoryId) -> Result<(), DeviceError> {
        let op = DeviceOp::Unmap;
        let mut table = self.table();
        let allocation = table.get(op, memory)?;
        let mapping =
            allocation.mapping.take().ok_or_else(|| contract(op, format!("{} is not mapped", name(memory))))?;
        // SAFETY: the caller's promise.
        unsafe { mapping.end() }.map_err(|(mapping, error)| {
            allocation.mapping = Some(mapping);
            failed(op, &error)
        })
    }

    /// # Safety
    /// As for `Device::open_window`.
    pub(crate) unsafe fn open_window(&self, memory: MemoryId, mode: WindowMode) -> Result<(), DeviceError> {
        let op = DeviceOp::OpenWindow;
        let mut table = self.table();
        let allocation = table.get(op, memory)?;
        let in_use = allocation.use_in_flight;
        let mapping = windowed(op, memory, &mut allocation.mapping)?;
        match (mapping.window(), mode) {
            (Some(WindowMode::Write), _) | (Some(WindowMode::Read), WindowMode::Read) => {
                return Err(contract(op, format!("the window of {} is open already", name(memory))));
            }
            (_, WindowMode::Read) if in_use.writing > 0 => {
                return Err(contract(op, format!("read window while a launch in flight writes {}", name(memory))));
            }
            (_, WindowMode::Write) if in_use.any > 0 => {
                return Err(contract(op, format!("write window while a launch in flight uses {}", name(memory))));
            }
            _ => {}
        }
        // SAFETY: the caller's promise.
        unsafe { mapping.set_window(Some(mode)) }.map_err(|error| failed(op, &error))
    }

    /// # Safety
    /// As for `Device::close_window`.
    pub(crate) unsafe fn close_window(&self, memory: MemoryId) -> Result<(), DeviceError> {
        let op = DeviceOp::CloseWindow;
        let mut table = self.table();
        let allocation = table.get(op, memory)?;
        let mapping = windowed(op, memory, &mut allocation.mapping)?;
        if mapping.window().is_none() {
            return Err(contract(op, format!("the window of {} is not open", name(memory))));
        }
        // SAFETY: the caller's promise.
        unsafe { mapping.set_window(None) }.map_err(|error| failed(op, &error))
    }

    /// Resolves the memories of a launch into `bases`, checks bindings, pushes and windows, and holds every allocation
    /// that it names until [`Memory::unpin`]. Holds nothing if it fails.
    pub(crate) fn pin(
        &self,
        image: &Image,
        bindings: &[Binding],
        pushes: &[Push],
        bases: &mut Vec<*mut u8>,
        pins: &mut Vec<Pin>,
    ) -> Result<(), DeviceError> {
        let op = DeviceOp::Launch;
        for (position, write) in image.writes().iter().enumerate() {
            let inside = |start: u64, len: u64| start.checked_add(write.len_bytes).is_some_and(|end| end <= len);
            let memory_bytes = image.memories().get(write.memory as usize).map_or(0, |memory| memory.len_bytes);
            if !inside(write.offset_bytes, memory_bytes) || !inside(write.payload_offset, image.payload().len() as u64)
            {
                return Err(contract(
                    op,
                    format!("write {position} of the image reaches outside its memory or the payload"),
                ));
            }
        }
        let written = (self.profile == Profile::Windowed).then(|| {
            let mut written = vec![false; image.memories().len()];
            for access in image.accesses() {
                written[access.memory()] |= access.direction().writes();
            }
            for write in image.writes() {
                written[write.memory as usize] = true;
            }
            written
        });
        let mut table = self.table();
        // Neighbouring bindings are often parts of one allocation: it is looked up and held once.
        let mut last: Option<(MemoryId, u64, u64)> = None;
        for (position, (binding, record)) in bindings.iter().zip(image.memories()).enumerate() {
            let (start, len) = match last {
                Some((memory, start, len)) if memory == binding.memory => (start, len),
                _ => {
                    let allocation = table.get(op, binding.memory)?;
                    pins.push(Pin { memory: binding.memory, writes: false });
                    let found = (allocation.range.start, allocation.len_bytes);
                    last = Some((binding.memory, found.0, found.1));
                    found
                }
            };
            if binding.offset_bytes > len || record.len_bytes > len - binding.offset_bytes {
                return Err(contract(
                    op,
                    format!(
                        "memory {position} of the image needs {} B from byte {} of {}, which has {len} B",
                        record.len_bytes,
                        binding.offset_bytes,
                        name(binding.memory)
                    ),
                ));
            }
            bases.push(self.reservation.at(start + binding.offset_bytes).as_ptr());
            if let (Some(written), Some(pin)) = (&written, pins.last_mut()) {
                pin.writes |= written[position];
            }
        }
        for push in pushes {
            let allocation = table.get(op, push.memory)?;
            allocation.check_ranges(op, push.memory, &push.ranges, push.bytes.len() as u64)?;
            pins.push(Pin { memory: push.memory, writes: true });
        }
        for pin in &*pins {
            let window = table.get(op, pin.memory)?.mapping.as_ref().and_then(Mapping::window);
            if window == Some(WindowMode::Write) || (window.is_some() && pin.writes) {
                return Err(contract(op, format!("the window of {} is open", name(pin.memory))));
            }
        }
        for pin in &*pins {
            let in_use = &mut table.get(op, pin.memory)?.use_in_flight;
            in_use.any += 1;
            in_use.writing += u32::from(pin.writes);
        }
        Ok(())
    }

    /// Lets go of what a launch held.
    pub(crate) fn unpin(&self, pins: &[Pin]) {
        let mut table = self.table();
        for pin in pins {
            if let Some(allocation) = table.allocations.get_mut(&pin.memory) {
                allocation.use_in_flight.any -= 1;
                allocation.use_in_flight.writing -= u32::from(pin.writes);
            }
        }
    }

    /// Where an allocation that is pinned begins.
    pub(crate) fn pinned(&self, memory: MemoryId) -> Result<NonNull<u8>, DeviceError> {
        let mut table = self.table();
        Ok(self.reservation.at(table.get(DeviceOp::Launch, memory)?.range.start))
    }
}

impl Table {
    fn get(&mut self, op: DeviceOp, memory: MemoryId) -> Result<&mut Allocation, DeviceError> {
        let known = memory.0 != 0 && memory.0 < self.next_id;
        self.allocations.get_mut(&memory).ok_or_else(|| {
            contract(op, format!("{} {}", name(memory), if known { "was freed" } else { "was never allocated here" }))
        })
    }
}

impl Allocation {
    fn check(&self, op: DeviceOp, memory: MemoryId, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let end = offset_bytes.checked_add(len_bytes);
        if len_bytes > 0 && end.is_some_and(|end| end <= self.len_bytes) {
            return Ok(());
        }
        let what = if len_bytes == 0 { "an empty range" } else { "a range outside" };
        Err(contract(
            op,
            format!(
                "{what}: {len_bytes} B from byte {offset_bytes} of {}, which has {} B",
                name(memory),
                self.len_bytes
            ),
        ))
    }

    fn check_ranges(
        &self,
        op: DeviceOp,
        memory: MemoryId,
        ranges: &[Range<u64>],
        packed_bytes: u64,
    ) -> Result<(), DeviceError> {
        let (mut end, mut total) = (0, 0);
        for range in ranges {
            if range.start < end {
                return Err(contract(op, format!("ranges of {} overlap or do not ascend", name(memory))));
            }
            self.check(op, memory, range.start, range.end.saturating_sub(range.start))?;
            end = range.end;
            total += range.end - range.start;
        }
        if total == packed_bytes {
            return Ok(());
        }
        Err(contract(op, format!("ranges of {} hold {total} B, {packed_bytes} B are packed", name(memory))))
    }
}

fn windowed(op: DeviceOp, memory: MemoryId, mapping: &mut Option<Mapping>) -> Result<&mut Mapping, DeviceError> {
    match mapping {
        Some(mapping @ Mapping::Windowed { .. }) => Ok(mapping),
        Some(_) => Err(contract(op, format!("the mapping of {} has no window", name(memory)))),
        None => Err(contract(op, format!("{} is not mapped", name(memory)))),
    }
}

/// An error that says which rule of the device contract a call broke.
#[cold]
pub(crate) fn contract(op: DeviceOp, message: String) -> DeviceError {
    DeviceError::Contract { op, message }
}

#[cold]
fn failed(op: DeviceOp, error: &io::Error) -> DeviceError {
    DeviceError::Failed { op, message: error.to_string() }
}

fn name(memory: MemoryId) -> String {
    format!("memory {}", memory.0)
}
