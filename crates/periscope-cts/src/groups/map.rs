//! Host mappings: the answer is about one allocation, and what is granted is coherent.

use periscope_core::task::CoreKind;
use periscope_hal::{AddressSpace, Kernel, MapAnswer};

use super::buffer::{HUGE_BYTES, NOISE_BYTES};
use crate::clause::{Outcome, Stop, Subject, ensure, ensure_eq, unsupported};
use crate::graph::{Graph, Task, update, write};
use crate::process::{mapping_count, protection_at, resident_bytes};
use crate::stand::{Host, Mem, Stand, bytes_of, pattern, words_of};

/// An allocation that is large enough to be mapped wherever anything is, and its mapping.
fn mapped(stand: &Stand) -> Result<Host, Stop> {
    let mem = stand.alloc(4 << 20)?;
    stand.map(mem, 0, mem.len)
}

pub(super) fn host_and_device_see_each_others_bytes(subject: Subject<'_>) -> Outcome {
    let add = Kernel::host("add", CoreKind::Vector, |args| {
        let mut elements = args.output::<u64>(0)?;
        for i in 0..elements.num_elems() {
            let old = elements.get(&[i])?;
            elements.set(&[i], old + 1000)?;
        }
        Ok(())
    });
    let stand = Stand::open(subject, vec![add.inout::<u64>()])?;
    let host = mapped(&stand)?;
    let mem = host.mem;
    let offset = (1 << 20) + 8;

    // Host store, device copy.
    stand.host_store(host, offset, &pattern(1, 5000))?;
    ensure!(stand.load(mem, offset, 5000)? == pattern(1, 5000), "a copy does not see what the host stored");
    // Device copy, host load.
    stand.store(mem, offset + 3, &pattern(2, 4000))?;
    ensure!(stand.host_load(host, offset + 3, 4000)? == pattern(2, 4000), "the host does not see what was copied");
    // Host store, kernel read and write, host load.
    let words: Vec<u64> = (0..512).collect();
    stand.host_store(host, offset, &bytes_of(&words))?;
    let mut graph = Graph::new(&stand);
    let object = graph.object(mem);
    graph.task(&Task { kernels: &[0], accesses: &[update(object, offset / 8, 512)], ..Task::default() })?;
    stand.run(&graph.freeze(), &[mem])?;
    let expected: Vec<u64> = words.iter().map(|word| word + 1000).collect();
    ensure_eq!(words_of(&stand.host_load(host, offset, 4096)?), expected, "what a kernel made of what the host stored");
    stand.unmap(host)
}

pub(super) fn only_an_identity_mapping_is_at_the_device_address(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let host = mapped(&stand)?;
    let same = host.address.as_ptr() as u64 == host.mem.made.address;
    ensure_eq!(same, host.identity, "whether the host's address is the device's");
    if host.identity {
        ensure_eq!(stand.device.info().address_space, AddressSpace::Host, "the address space of an identity mapping");
    }
    stand.unmap(host)
}

pub(super) fn small_neighbours_are_mapped_apart(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let mems = [stand.alloc(700)?, stand.alloc(700)?, stand.alloc(700)?];
    let hosts = [stand.map(mems[0], 0, 700)?, stand.map(mems[1], 0, 700)?, stand.map(mems[2], 0, 700)?];
    for (seed, &host) in hosts.iter().enumerate() {
        stand.host_store(host, 0, &pattern(seed as u64, 700))?;
    }
    stand.unmap(hosts[1])?;
    for seed in [0, 2] {
        ensure!(
            stand.host_load(hosts[seed], 0, 700)? == pattern(seed as u64, 700),
            "mapping {seed} after its neighbour's end"
        );
    }
    for (seed, &mem) in mems.iter().enumerate() {
        ensure!(
            stand.load(mem, 0, 700)? == pattern(seed as u64, 700),
            "allocation {seed} was changed through another's mapping"
        );
    }
    stand.free(mems[1])?;
    stand.host_store(hosts[2], 0, &pattern(7, 700))?;
    ensure!(stand.load(mems[2], 0, 700)? == pattern(7, 700), "a mapping after its neighbour was freed");
    ensure!(stand.load(mems[0], 0, 700)? == pattern(0, 700), "an allocation after its neighbour was freed");
    stand.unmap(hosts[0])?;
    stand.unmap(hosts[2])
}

pub(super) fn a_part_is_mapped_at_its_first_byte(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let mem = stand.alloc(4 << 20)?;
    let expected = pattern(5, mem.len);
    stand.store(mem, 0, &expected)?;
    for (offset, len) in [(0, 1), (5000, 4000), (4095, 2), (mem.len - 1, 1), ((2 << 20) - 1, 4098)] {
        let host = stand.map(mem, offset, len)?;
        let got = stand.host_load(host, 0, len)?;
        ensure!(
            got == expected[offset as usize..][..len as usize],
            "{len} B from byte {offset} through a mapping of just these"
        );
        stand.host_store(host, len - 1, &[got[len as usize - 1]])?;
        stand.unmap(host)?;
    }
    ensure!(stand.load(mem, 0, mem.len)? == expected, "the allocation was changed by mapping parts of it");
    Ok(())
}

pub(super) fn an_ended_mapping_is_gone_and_its_bytes_stay(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let host = mapped(&stand)?;
    stand.host_store(host, 100, b"kept")?;
    stand.unmap(host)?;
    ensure_eq!(stand.load(host.mem, 100, 4)?, b"kept", "bytes after the mapping's end");
    if !host.identity {
        let protection = protection_at(host.address.as_ptr() as usize)?;
        ensure_eq!(protection, None, "what is mapped at an ended mapping's address");
    }
    let again = stand.map(host.mem, 0, host.len)?;
    ensure_eq!(stand.host_load(again, 100, 4)?, b"kept", "bytes through a second mapping");
    stand.unmap(again)?;
    stand.free(host.mem)
}

pub(super) fn mapping_untouched_memory_costs_nothing(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    if stand.device.info().memory_bytes < HUGE_BYTES {
        return unsupported(format!("a device of {} B", stand.device.info().memory_bytes));
    }
    let mem = stand.alloc(HUGE_BYTES)?;
    let before = resident_bytes()?;
    let host = stand.map(mem, 0, mem.len)?;
    stand.host_store(host, mem.len - 4, b"last")?;
    ensure_eq!(stand.load(mem, mem.len - 4, 4)?, b"last", "the last bytes of 38 GiB");
    let grown = resident_bytes()?.saturating_sub(before);
    ensure!(grown < NOISE_BYTES, "mapping 38 GiB and touching 4 B made {grown} B resident");
    stand.unmap(host)
}

pub(super) fn cycles_leak_nothing(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let mem = stand.alloc(4 << 20)?;
    let cycle = |round: u64| -> Outcome {
        let offset = round * 4099 % (3 << 20);
        let host = stand.map(mem, offset, 10_000)?;
        stand.host_store(host, 9_000, &round.to_le_bytes())?;
        ensure_eq!(stand.load(mem, offset + 9_000, 8)?, round.to_le_bytes(), "the word stored in cycle {round}");
        stand.unmap(host)
    };
    for round in 0..100 {
        cycle(round)?;
    }
    let (maps, resident) = (mapping_count()?, resident_bytes()?);
    for round in 0..10_000 {
        cycle(round)?;
    }
    let more = mapping_count()?.saturating_sub(maps);
    ensure!(more < 16, "10,000 cycles of map and unmap left {more} mappings");
    let grown = resident_bytes()?.saturating_sub(resident);
    ensure!(grown < NOISE_BYTES, "10,000 cycles of map and unmap left {grown} B resident");
    Ok(())
}

pub(super) fn a_refusal_is_final_and_harmless(subject: Subject<'_>) -> Outcome {
    let touch = Kernel::host("touch", CoreKind::Vector, |args| Ok(args.output::<u64>(0)?.set(&[0], 42)?));
    let stand = Stand::open(subject, vec![touch.output::<u64>()])?;
    let mut refused: Option<Mem> = None;
    for len in [1024, 64 << 10, 4 << 20] {
        let mem = stand.alloc(len)?;
        match stand.map_answer(mem, 0, len)? {
            MapAnswer::Refused { reason } => {
                ensure!(!reason.trim().is_empty(), "a refusal without a reason");
                refused.get_or_insert(mem);
            }
            // SAFETY: nothing has used the mapping.
            _ => unsafe { stand.device.unmap(mem.made.id)? },
        }
    }
    let Some(mem) = refused else { return unsupported("every mapping is granted") };
    for _ in 0..3 {
        let again = stand.map_answer(mem, 0, 8)?;
        ensure!(matches!(again, MapAnswer::Refused { .. }), "refused once, then answered {again:?}");
    }
    stand.store(mem, 8, b"usable")?;
    let mut graph = Graph::new(&stand);
    let object = graph.object(mem);
    graph.task(&Task { kernels: &[0], accesses: &[write(object, 0, 1)], ..Task::default() })?;
    stand.run(&graph.freeze(), &[mem])?;
    ensure_eq!(stand.load(mem, 0, 14)?, b"\x2a\0\0\0\0\0\0\0usable", "bytes of an allocation without a mapping");
    stand.free(mem)
}
