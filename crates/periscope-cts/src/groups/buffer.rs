//! Allocation: where memory lies, what it costs, whose it is.

use std::collections::HashSet;

use periscope_hal::DeviceError;

use crate::clause::{Outcome, Subject, ensure, ensure_eq, unsupported};
use crate::process::resident_bytes;
use crate::stand::{Mem, Stand, pattern};

/// An allocation far larger than any machine that runs this has memory.
pub(super) const HUGE_BYTES: u64 = 38 << 30;

/// Resident memory may grow by this much for reasons that are not the device's.
pub(super) const NOISE_BYTES: u64 = 16 << 20;

pub(super) fn allocations_are_aligned_and_apart(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let alignment = stand.device.info().alignment_bytes;
    ensure!(alignment >= 64, "allocations are aligned to {alignment} B, at least 64 are promised");
    let mut mems: Vec<Mem> = Vec::new();
    for (position, len) in
        [1, 63, 64, 65, 1000, 4096, 4097, 100_000, 3 << 20, 7].into_iter().cycle().take(60).enumerate()
    {
        let mem = stand.alloc(len)?;
        ensure!(mem.made.address.is_multiple_of(alignment), "{len} B at {:#x}", mem.made.address);
        for other in &mems {
            ensure!(other.made.id != mem.made.id, "{:?} names two allocations", mem.made.id);
            let apart =
                mem.made.address + len <= other.made.address || other.made.address + other.len <= mem.made.address;
            ensure!(apart, "{mem:?} and {other:?} overlap");
        }
        stand.store(mem, 0, &pattern(position as u64, len))?;
        mems.push(mem);
    }
    for (position, &mem) in mems.iter().enumerate() {
        ensure!(
            stand.load(mem, 0, mem.len)? == pattern(position as u64, mem.len),
            "{mem:?} was changed through another"
        );
    }
    Ok(())
}

pub(super) fn untouched_memory_costs_nothing(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let total = stand.device.info().memory_bytes;
    if total < HUGE_BYTES {
        return unsupported(format!("a device of {total} B"));
    }
    let before = resident_bytes()?;
    let mem = stand.alloc(HUGE_BYTES)?;
    let grown = resident_bytes()?.saturating_sub(before);
    ensure!(grown < NOISE_BYTES, "allocating 38 GiB made {grown} B resident");
    for offset in [0, HUGE_BYTES / 2 - 3, HUGE_BYTES - 8] {
        stand.store(mem, offset, b"periscop")?;
        ensure_eq!(stand.load(mem, offset, 8)?, b"periscop", "8 B at byte {offset}");
    }
    let grown = resident_bytes()?.saturating_sub(before);
    ensure!(grown < NOISE_BYTES, "touching 24 B of 38 GiB made {grown} B resident");
    stand.free(mem)
}

pub(super) fn freed_memory_returns_under_new_names(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let chunk = stand.device.info().memory_bytes / 3;
    let mut names = HashSet::new();
    // Ten times the device's memory, in pieces that fit only if freed ones are used again.
    for round in 0u64..30 {
        let mem = stand.alloc(chunk)?;
        let small = stand.alloc(100)?;
        ensure!(names.insert(mem.made.id) && names.insert(small.made.id), "a name was given twice in round {round}");
        stand.store(mem, chunk - 8, &round.to_le_bytes())?;
        ensure_eq!(stand.load(mem, chunk - 8, 8)?, round.to_le_bytes(), "the last word in round {round}");
        stand.free(mem)?;
        stand.free(small)?;
    }
    Ok(())
}

pub(super) fn freeing_leaves_neighbours_alone(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let len = |position: u64| [700, 5000, 20_000, 100, 4096, 70_000, 1][position as usize % 7];
    let mut mems: Vec<Option<Mem>> = Vec::new();
    for position in 0..140 {
        let mem = stand.alloc(len(position))?;
        stand.store(mem, 0, &pattern(position, mem.len))?;
        mems.push(Some(mem));
    }
    // Alone, then in pairs that join, then nearly all.
    for (step, offset) in [(3, 1), (3, 2), (2, 0), (5, 3)] {
        for position in (offset..mems.len()).step_by(step) {
            if let Some(mem) = mems[position].take() {
                stand.free(mem)?;
            }
        }
        for (position, mem) in mems.iter().enumerate() {
            let Some(mem) = *mem else { continue };
            let intact = stand.load(mem, 0, mem.len)? == pattern(position as u64, mem.len);
            ensure!(intact, "{mem:?} changed when every {step}th allocation was freed");
        }
    }
    Ok(())
}

pub(super) fn running_out_says_how_much(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let total = stand.device.info().memory_bytes;
    let held = stand.alloc(1 << 20)?;
    let wanted = total.checked_add(1).ok_or("the device has all there is")?;
    match stand.device.alloc(wanted) {
        Err(DeviceError::OutOfMemory { wanted_bytes, used_bytes, total_bytes }) => {
            ensure_eq!(wanted_bytes, wanted, "bytes wanted");
            ensure!(used_bytes >= 1 << 20 && used_bytes <= total_bytes, "{used_bytes} of {total_bytes} B in use");
            ensure!(total_bytes <= total, "{total_bytes} B in all, the device said {total}");
        }
        other => ensure!(false, "allocating more than there is: {other:?}"),
    }
    stand.store(held, 0, b"still here")?;
    let next = stand.alloc(1 << 20)?;
    stand.free(held)?;
    stand.free(next)
}

pub(super) fn devices_share_nothing(subject: Subject<'_>) -> Outcome {
    let (one, two) = (Stand::open(subject, vec![])?, Stand::open(subject, vec![])?);
    let len = 3 << 20;
    let pairs: Vec<(Mem, Mem)> =
        (0..4).map(|_| Ok((one.alloc(len)?, two.alloc(len)?))).collect::<Result<_, crate::clause::Stop>>()?;
    for (position, &(a, b)) in pairs.iter().enumerate() {
        one.store(a, 0, &pattern(position as u64, len))?;
        two.store(b, 0, &pattern(100 + position as u64, len))?;
    }
    for (position, &(a, b)) in pairs.iter().enumerate() {
        ensure!(
            one.load(a, 0, len)? == pattern(position as u64, len),
            "{a:?} of one device was changed through another"
        );
        ensure!(
            two.load(b, 0, len)? == pattern(100 + position as u64, len),
            "{b:?} of one device was changed through another"
        );
    }
    // What one device frees, or its end, leaves the other's alone.
    one.free(pairs[0].0)?;
    drop(one);
    for (position, &(_, b)) in pairs.iter().enumerate() {
        ensure!(
            two.load(b, 0, len)? == pattern(100 + position as u64, len),
            "{b:?} changed when another device was closed"
        );
    }
    Ok(())
}
