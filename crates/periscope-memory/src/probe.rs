//! The start-up probe: does a mapping of this device show what the device has, and the device what the host stored?
//!
//! Drivers have been seen that grant a map and lose what is stored through it. So before any mapping is relied on, one
//! allocation is written through its mapping, echoed by the device, and read back both ways. A device that fails is served
//! by mirrors from then on, whatever its maps answer. A device that grants no map, or fails a call, proves nothing: its
//! maps are judged one by one, as they are asked for.

use periscope_hal::{Device, DeviceError, HostPtr, MapAnswer, MemoryId, WindowMode};

/// As large as a huge page, so that platforms that map nothing smaller are probed too. Only three pages are touched.
const PROBE_BYTES: u64 = 2 << 20;
const PATTERN: [u8; 64] = {
    let mut pattern = [0; 64];
    let mut at = 0;
    while at < 64 {
        // Different in every byte, and never what fresh memory holds.
        pattern[at] = 0x35 ^ (at as u8).wrapping_mul(37) | 1;
        at += 1;
    }
    pattern
};
/// What the device writes, for the host to see.
const ECHO: u8 = 0xa6;

/// Why mappings of the device are not to be relied on, if they are not.
pub(crate) fn distrust(device: &dyn Device) -> Option<String> {
    let memory = device.alloc(PROBE_BYTES).ok()?.id;
    let outcome = mapped(device, memory);
    // SAFETY: the mapping, if there was one, has been ended (or its end failed, then freeing is refused or leaks 2 MiB).
    let freed = unsafe { device.free(memory) };
    if let Err(error) = freed {
        log::warn!("the memory of the start-up probe could not be freed: {error}");
    }
    match outcome {
        Ok(problem) => problem,
        Err(error) => {
            log::debug!("the start-up probe could not be made: {error}");
            None
        }
    }
}

fn mapped(device: &dyn Device, memory: MemoryId) -> Result<Option<String>, DeviceError> {
    // SAFETY: live, and the range is all of it.
    let (base, windowed) = match unsafe { device.map(memory, 0..PROBE_BYTES) }? {
        MapAnswer::Identity(base) | MapAnswer::Mapped(base) => (base, false),
        MapAnswer::Windowed(base) => (base, true),
        MapAnswer::Refused { .. } => return Ok(None),
    };
    let found = round_trip(device, memory, base, windowed);
    // SAFETY: nothing uses the mapping any more.
    let unmapped = unsafe { device.unmap(memory) };
    let found = found?;
    unmapped?;
    Ok(found)
}

fn round_trip(
    device: &dyn Device,
    memory: MemoryId,
    base: HostPtr,
    windowed: bool,
) -> Result<Option<String>, DeviceError> {
    let within = |mode: WindowMode, access: &mut dyn FnMut()| -> Result<(), DeviceError> {
        if !windowed {
            access();
            return Ok(());
        }
        // SAFETY: a windowed mapping, and no reference into it exists.
        unsafe { device.open_window(memory, mode) }?;
        access();
        // SAFETY: the window that was opened above; `access` keeps no reference.
        unsafe { device.close_window(memory) }
    };
    within(WindowMode::Write, &mut || {
        // SAFETY: the first bytes of a mapping of `PROBE_BYTES`, open for stores; nothing else uses the memory.
        unsafe { base.0.as_ptr().copy_from_nonoverlapping(PATTERN.as_ptr(), PATTERN.len()) };
    })?;
    let len = PATTERN.len() as u64;
    let (half, last) = (PROBE_BYTES / 2, PROBE_BYTES - len);
    let mut seen = [0; PATTERN.len()];
    // SAFETY: live, in bounds, apart, and nothing else uses the memory: the device copies what the host stored, and sets
    // other bytes.
    unsafe {
        device.copy_within(memory, half, memory, 0, len)?;
        device.copy_out(memory, half, &mut seen)?;
        device.fill(memory, last..PROBE_BYTES, ECHO)?;
    }
    if seen != PATTERN {
        return Ok(Some("the start-up probe found that what the host stores through a mapping is lost".into()));
    }
    let mut read = [0; PATTERN.len()];
    within(WindowMode::Read, &mut || {
        // SAFETY: the last bytes of the mapping, open for loads; nothing writes them now.
        unsafe { base.0.as_ptr().add(last as usize).copy_to_nonoverlapping(read.as_mut_ptr(), read.len()) };
    })?;
    if read != [ECHO; PATTERN.len()] {
        return Ok(Some("the start-up probe found that a mapping does not show what the device wrote".into()));
    }
    Ok(None)
}
