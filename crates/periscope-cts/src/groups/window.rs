//! Windows of mappings that are usable only at times.

use std::sync::mpsc;

use periscope_core::task::CoreKind;
use periscope_hal::{Kernel, WindowMode};

use crate::clause::{Outcome, Stop, Subject, ensure, ensure_eq, unsupported};
use crate::graph::{Graph, Task, read, write};
use crate::process::protection_at;
use crate::stand::{Host, Stand, ended_in_time, pattern, peek};

/// A windowed mapping of an allocation of its own; the clause does not apply where mappings need no window.
fn windowed(stand: &Stand) -> Result<Host, Stop> {
    let mem = stand.alloc(4 << 20)?;
    let host = stand.map(mem, 0, mem.len)?;
    if host.windowed {
        return Ok(host);
    }
    stand.unmap(host)?;
    unsupported("mappings are usable without windows")
}

pub(super) fn a_closed_window_is_closed(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let host = windowed(&stand)?;
    let expect = |wanted: &str, when: &str| -> Outcome {
        // The whole mapping, not just its first page.
        for offset in [0, host.len as usize / 2, host.len as usize - 1] {
            let got = protection_at(host.address.as_ptr() as usize + offset)?.unwrap_or_default();
            ensure!(got.starts_with(wanted), "{when}, byte {offset} is {got:?}, expected {wanted:?}");
        }
        Ok(())
    };
    expect("---", "before any window")?;
    stand.open_window(host, WindowMode::Read)?;
    expect("r--", "in a read window")?;
    stand.open_window(host, WindowMode::Write)?;
    expect("rw-", "in a write window that was a read window")?;
    stand.close_window(host)?;
    expect("---", "after a write window")?;
    stand.open_window(host, WindowMode::Read)?;
    stand.close_window(host)?;
    expect("---", "after a read window")?;
    stand.unmap(host)
}

pub(super) fn bytes_pass_through_windows(subject: Subject<'_>) -> Outcome {
    let copy = Kernel::host("copy", CoreKind::Vector, |args| {
        let values = args.input::<u64>(0)?.to_vec();
        args.output::<u64>(1)?.copy_from_slice(&values);
        Ok(())
    });
    let stand = Stand::open(subject, vec![copy.input::<u64>().output::<u64>()])?;
    let (from, to) = (windowed(&stand)?, windowed(&stand)?);
    let mut graph = Graph::new(&stand);
    let objects = [graph.object(from.mem), graph.object(to.mem)];
    let accesses = [read(objects[0], 0, 1000), write(objects[1], 1000, 1000)];
    graph.task(&Task { kernels: &[0], accesses: &accesses, ..Task::default() })?;
    let graph = graph.freeze();
    for seed in 0..5 {
        stand.host_store(from, 0, &pattern(seed, 8000))?;
        stand.run(&graph, &[from.mem, to.mem])?;
        ensure!(stand.host_load(to, 8000, 8000)? == pattern(seed, 8000), "what a kernel copied in round {seed}");
    }
    stand.unmap(from)?;
    stand.unmap(to)
}

pub(super) fn a_read_window_stays_open_beside_readers(subject: Subject<'_>) -> Outcome {
    let (go, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let look = Kernel::host("look", CoreKind::Vector, move |args| {
        let gate = gate.lock().map_err(|_| "the gate is broken")?;
        gate.recv().map_err(|_| "the gate is gone")?;
        let seen = args.input::<u64>(0)?.get(&[3])?;
        Ok(args.output::<u64>(1)?.set(&[0], seen)?)
    });
    let stand = Stand::open(subject, vec![look.input::<u64>().output::<u64>()])?;
    // Dropped before the stand, whose device would wait for the kernel.
    let go = go;
    let host = windowed(&stand)?;
    let seen = stand.words(&[0])?;
    stand.host_store(host, 24, &77u64.to_le_bytes())?;
    let mut graph = Graph::new(&stand);
    let objects = [graph.object(host.mem), graph.object(seen)];
    let accesses = [read(objects[0], 0, 8), write(objects[1], 0, 1)];
    graph.task(&Task { kernels: &[0], accesses: &accesses, ..Task::default() })?;
    let graph = graph.freeze();

    // Opened before the launch, used and closed while it runs, and opened again.
    stand.open_window(host, WindowMode::Read)?;
    let execution = stand.launch(&graph, &[host.mem, seen])?;
    ensure_eq!(peek(host, 24, 8), 77u64.to_le_bytes(), "a word in a read window beside a reader");
    stand.close_window(host)?;
    stand.open_window(host, WindowMode::Read)?;
    ensure_eq!(peek(host, 24, 8), 77u64.to_le_bytes(), "a word in a second read window beside a reader");
    go.send(()).map_err(|_| "the kernel is gone")?;
    ended_in_time(&*execution)?.result?;
    stand.close_window(host)?;
    ensure_eq!(stand.load_words(seen)?, [77], "what the reader saw");
    stand.unmap(host)
}

pub(super) fn windows_of_neighbours_are_apart(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let mems = [stand.alloc(600)?, stand.alloc(600)?];
    let hosts = [stand.map(mems[0], 0, 600)?, stand.map(mems[1], 0, 600)?];
    if !hosts[0].windowed {
        return unsupported("mappings are usable without windows");
    }
    stand.open_window(hosts[0], WindowMode::Write)?;
    let closed = protection_at(hosts[1].address.as_ptr() as usize)?.unwrap_or_default();
    ensure!(closed.starts_with("---"), "a window opened its neighbour's mapping: {closed:?}");
    stand.open_window(hosts[1], WindowMode::Read)?;
    stand.close_window(hosts[0])?;
    let open = protection_at(hosts[1].address.as_ptr() as usize)?.unwrap_or_default();
    ensure!(open.starts_with("r--"), "closing a window closed its neighbour's: {open:?}");
    stand.close_window(hosts[1])?;
    stand.unmap(hosts[0])?;
    stand.unmap(hosts[1])
}
