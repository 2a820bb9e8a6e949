//! Launches: what comes first, who learns the end, and what may happen meanwhile.
#![allow(clippy::single_range_in_vec_init, reason = "a push is a list of ranges, here of one")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use periscope_core::task::CoreKind;
use periscope_hal::{Binding, Kernel, Push};

use crate::clause::{Outcome, Stop, Subject, ensure, ensure_eq};
use crate::graph::{Frozen, Graph, Task, read, update, write};
use crate::stand::{Stand, bytes_of, ended, ended_in_time, pattern};

/// A kernel that says that it has started and waits until it is let go, then copies its first argument to its second.
fn gated() -> (Kernel, Gate) {
    let (started, has_started) = channel();
    let (go, let_go) = channel();
    let (started, let_go) = (Mutex::new(started), Mutex::new(let_go));
    let kernel = Kernel::host("gated", CoreKind::Vector, move |args| {
        started.lock().map_err(|_| "a broken gate")?.send(()).map_err(|_| "nobody looks at the gate")?;
        let_go.lock().map_err(|_| "a broken gate")?.recv().map_err(|_| "nobody opens the gate")?;
        let values = args.input::<u64>(0)?.to_vec();
        args.output::<u64>(1)?.copy_from_slice(&values);
        Ok(())
    });
    (kernel.input::<u64>().output::<u64>(), Gate { has_started, go })
}

/// A stand whose first kernel is [`gated`]. Keep them in this order: the gate goes first then, and frees the kernel for
/// which the stand's device would wait.
fn gated_stand(subject: Subject<'_>, more: Vec<Kernel>) -> Result<(Stand, Gate), Stop> {
    let (kernel, gate) = gated();
    Ok((Stand::open(subject, [vec![kernel], more].concat())?, gate))
}

/// The other side of [`gated`]. Dropped, it fails the kernel instead of leaving it there.
struct Gate {
    has_started: Receiver<()>,
    go: Sender<()>,
}

impl Gate {
    fn wait_until_started(&self) -> Outcome {
        self.has_started
            .recv_timeout(Duration::from_secs(30))
            .map_err(|_| Stop::Failed("the kernel did not start in 30 s".into()))
    }

    fn open(&self) -> Outcome {
        self.go.send(()).map_err(|_| Stop::Failed("the kernel is gone".into()))
    }
}

fn copier() -> Kernel {
    Kernel::host("copy", CoreKind::Vector, |args| {
        let values = args.input::<u64>(0)?.to_vec();
        args.output::<u64>(1)?.copy_from_slice(&values);
        Ok(())
    })
    .input::<u64>()
    .output::<u64>()
}

/// One task of kernel `kernel` that copies `len` words from the first memory to the second.
fn copy_graph(stand: &Stand, kernel: u16, len: u64) -> Result<Frozen, Stop> {
    let mut graph = Graph::new(stand);
    let mem = |len| crate::stand::Mem {
        made: periscope_hal::DeviceMemory { id: periscope_hal::MemoryId(0), address: 0 },
        len,
    };
    let objects = [graph.object(mem(len * 8)), graph.object(mem(len * 8))];
    let accesses = [read(objects[0], 0, len), write(objects[1], 0, len)];
    graph.task(&Task { kernels: &[kernel], accesses: &accesses, ..Task::default() })?;
    Ok(graph.freeze())
}

pub(super) fn pushes_come_before_kernels_and_after_earlier_launches(subject: Subject<'_>) -> Outcome {
    let (stand, gate) = gated_stand(subject, vec![copier()])?;
    let from = stand.words(&[1, 2, 3, 4])?;
    let (first, second) = (stand.words(&[0; 4])?, stand.words(&[0; 4])?);
    let early = stand.launch(&copy_graph(&stand, 0, 4)?, &[from, first])?;
    // While the first launch is about to read them, the second brings new bytes.
    let push = Push {
        memory: from.made.id,
        ranges: vec![0..8, 9..10, 24..32],
        bytes: [bytes_of(&[10]), vec![0xff], bytes_of(&[40])].concat(),
    };
    let more = Push { memory: second.made.id, ranges: vec![0..32], bytes: vec![0xee; 32] };
    let late = stand.launch_after(&copy_graph(&stand, 1, 4)?, &[from, second], vec![push, more])?;
    let waiter = Arc::clone(&early);
    let early_end = std::thread::scope(|scope| {
        let end = scope.spawn(move || ended(&*waiter));
        gate.wait_until_started()?;
        std::thread::sleep(Duration::from_millis(5));
        gate.open()?;
        end.join().unwrap_or_else(|_| Err(Stop::Failed("the waiter panicked".into())))
    })?;
    early_end.result?;
    ended_in_time(&*late)?.result?;
    ensure_eq!(stand.load_words(first)?, [1, 2, 3, 4], "what the earlier launch read");
    ensure_eq!(stand.load_words(second)?, [10, 2 | 0xff00, 3, 40], "what the launch with the pushes read");
    ensure_eq!(stand.load_words(from)?, [10, 2 | 0xff00, 3, 40], "what was pushed to");
    Ok(())
}

pub(super) fn writes_in_the_image_come_first(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![copier()])?;
    let (from, to) = (stand.words(&[1, 2, 3, 4])?, stand.words(&[0; 4])?);
    let graph = copy_graph(&stand, 0, 4)?;
    let image = graph.image.with_writes(&[(0, 8, bytes_of(&[20])), (0, 31, vec![0x80]), (1, 0, vec![9; 32])]);
    stand.run(&Frozen { image: Arc::new(image) }, &[from, to])?;
    ensure_eq!(stand.load_words(to)?, [1, 20, 3, 4 | 0x80 << 56], "what the task read");
    Ok(())
}

pub(super) fn an_image_can_be_launched_again(subject: Subject<'_>) -> Outcome {
    let double = Kernel::host("double", CoreKind::Vector, |args| {
        let mut words = args.output::<u64>(0)?;
        let old = words.get(&[0])?;
        Ok(words.set(&[0], old * 2)?)
    });
    let stand = Stand::open(subject, vec![double.inout::<u64>()])?;
    let mems = [stand.words(&[1])?, stand.words(&[3])?];
    let mut graph = Graph::new(&stand);
    let object = graph.object(mems[0]);
    for _ in 0..3 {
        graph.task(&Task { kernels: &[0], accesses: &[update(object, 0, 1)], ..Task::default() })?;
    }
    let graph = graph.freeze();
    let mut last = Vec::new();
    for i in 0..10 {
        last.push(stand.launch(&graph, &[mems[i % 2]])?);
    }
    for execution in &last {
        let completion = ended(&**execution)?;
        completion.result?;
        ensure_eq!(completion.tasks_done, 3, "tasks done");
    }
    ensure_eq!(stand.load_words(mems[0])?, [1 << 15], "five launches of three doublings");
    ensure_eq!(stand.load_words(mems[1])?, [3 << 15], "five launches on other memory");
    // Executing it left nothing behind: the image is no longer held.
    drop(last);
    ensure_eq!(Arc::strong_count(&graph.image), 1, "holders of the image after its last launch");
    Ok(())
}

pub(super) fn bindings_start_where_they_say(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![copier()])?;
    let mem = stand.words(&(0..64).collect::<Vec<u64>>())?;
    let mut graph = Graph::new(&stand);
    let from = graph.graph_object(32);
    let to = graph.graph_object(32);
    graph.task(&Task { kernels: &[0], accesses: &[read(from, 1, 3), write(to, 0, 3)], ..Task::default() })?;
    let bind = |offset_bytes| Binding { memory: mem.made.id, offset_bytes };
    let execution = stand.launch_bound(&graph.freeze(), vec![bind(80), bind(256)], Vec::new())?;
    ended(&*execution)?.result?;
    let mut expected: Vec<u64> = (0..64).collect();
    expected[32..35].copy_from_slice(&[11, 12, 13]);
    ensure_eq!(stand.load_words(mem)?, expected, "one allocation bound as two memories");
    Ok(())
}

pub(super) fn an_empty_graph_ends(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![])?;
    let mem = stand.words(&[0, 0])?;
    let nothing = Graph::new(&stand).freeze();
    let completion = ended_in_time(&*stand.launch(&nothing, &[])?)?;
    completion.result?;
    ensure_eq!(completion.tasks_done, 0, "tasks done");
    let mut joins = Graph::new(&stand);
    let first = joins.task(&Task::default())?;
    joins.task(&Task { after: &[first], ..Task::default() })?;
    let completion = ended_in_time(&*stand.launch(&joins.freeze(), &[])?)?;
    completion.result?;
    ensure_eq!(completion.tasks_done, 2, "tasks done");
    // Pushes are work too, and may be to memory that the graph does not use.
    let push = Push { memory: mem.made.id, ranges: vec![8..16], bytes: bytes_of(&[8]) };
    ended_in_time(&*stand.launch_after(&nothing, &[], vec![push])?)?.result?;
    ensure_eq!(stand.load_words(mem)?, [0, 8], "what a launch without tasks pushed");
    Ok(())
}

pub(super) fn results_are_visible_to_whoever_learns_the_end(subject: Subject<'_>) -> Outcome {
    let fill = Kernel::host("fill", CoreKind::Vector, |args| {
        let value = args.scalar(0)?;
        args.output::<u64>(0)?.fill(value);
        Ok(())
    });
    let stand = Stand::open(subject, vec![fill.output::<u64>().scalars(1)])?;
    let mem = stand.words(&[0; 4096])?;
    for round in 1..=60 {
        let mut graph = Graph::new(&stand);
        let object = graph.object(mem);
        for part in 0..16 {
            let accesses = [write(object, part * 256, 256)];
            graph.task(&Task { kernels: &[0], accesses: &accesses, scalars: &[round], ..Task::default() })?;
        }
        let execution = stand.launch(&graph.freeze(), &[mem])?;
        match round % 3 {
            0 => drop(ended(&*execution)?),
            1 => drop(ended_in_time(&*execution)?),
            _ => while execution.poll().is_none() {},
        }
        let stale = stand.load_words(mem)?.iter().filter(|&&word| word != round).count();
        ensure_eq!(stale, 0, "words of 4,096 that are not what the kernels of round {round} wrote");
    }
    Ok(())
}

pub(super) fn polling_alone_is_enough(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![copier()])?;
    let (from, to) = (stand.words(&[1])?, stand.words(&[0])?);
    let graph = copy_graph(&stand, 0, 1)?;
    for pause in [Duration::ZERO, Duration::from_millis(3), Duration::from_millis(60)] {
        std::thread::sleep(pause);
        let execution = stand.launch(&graph, &[from, to])?;
        let begun = Instant::now();
        while execution.poll().is_none() {
            ensure!(begun.elapsed() < Duration::from_secs(30), "no end in 30 s though it was polled");
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    // Nor does a launch need anybody to look at it at all.
    let (stand, gate) = gated_stand(subject, vec![])?;
    let (from, to) = (stand.words(&[1])?, stand.words(&[0])?);
    for pause in [Duration::ZERO, Duration::from_millis(60)] {
        std::thread::sleep(pause);
        let graph = copy_graph(&stand, 0, 1)?;
        let execution = stand.launch(&graph, &[from, to])?;
        gate.wait_until_started()?;
        gate.open()?;
        ended(&*execution)?.result?;
    }
    Ok(())
}

pub(super) fn a_wait_ends_in_time_and_says_what_runs(subject: Subject<'_>) -> Outcome {
    let (stand, gate) = gated_stand(subject, vec![copier()])?;
    let (from, middle, to) = (stand.words(&[6])?, stand.words(&[0])?, stand.words(&[0])?);
    let mut graph = Graph::new(&stand);
    let objects = [graph.object(from), graph.object(middle), graph.object(to)];
    graph.task(&Task {
        kernels: &[1],
        accesses: &[read(objects[0], 0, 1), write(objects[1], 0, 1)],
        ..Task::default()
    })?;
    let accesses = [read(objects[1], 0, 1), write(objects[2], 0, 1)];
    let blocked = graph.task(&Task { kernels: &[0], accesses: &accesses, ..Task::default() })?;
    let execution = stand.launch(&graph.freeze(), &[from, middle, to])?;
    gate.wait_until_started()?;
    let begun = Instant::now();
    let end = execution.wait(Some(Duration::from_millis(20)));
    let waited = begun.elapsed();
    ensure!(end.is_none(), "a launch whose kernel is blocked ended: {end:?}");
    ensure!(waited >= Duration::from_millis(20) && waited < Duration::from_secs(10), "a wait of 20 ms took {waited:?}");
    ensure!(execution.poll().is_none(), "a launch whose kernel is blocked has ended");
    ensure_eq!(execution.running(), [blocked], "what runs");
    gate.open()?;
    let completion = ended_in_time(&*execution)?;
    completion.result?;
    ensure_eq!(completion.tasks_done, 2, "tasks done");
    ensure!(
        completion.execute >= Duration::from_millis(20),
        "{:?} for a launch that was blocked for 20 ms",
        completion.execute
    );
    ensure_eq!(execution.running(), [], "what runs after the end");
    ensure_eq!(stand.load_words(to)?, [6], "what the blocked kernel copied");
    Ok(())
}

pub(super) fn many_threads_may_wait(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![copier()])?;
    let (from, to) = (stand.words(&[1; 64])?, stand.words(&[0; 64])?);
    let graph = copy_graph(&stand, 0, 64)?;
    for _ in 0..20 {
        let executions: Vec<_> = (0..8).map(|_| stand.launch(&graph, &[from, to])).collect::<Result<_, _>>()?;
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..8)
                .map(|waiter| {
                    let executions = &executions;
                    scope.spawn(move || -> Outcome {
                        // Each in an order of its own; some without executing.
                        for i in 0..8 {
                            let execution = &*executions[(i * 3 + waiter) % 8];
                            let end = if waiter % 2 == 0 { ended(execution)? } else { ended_in_time(execution)? };
                            end.result?;
                        }
                        Ok(())
                    })
                })
                .collect();
            waiters
                .into_iter()
                .try_for_each(|waiter| waiter.join().unwrap_or(Err(Stop::Failed("a waiter panicked".into()))))
        })?;
    }
    Ok(())
}

pub(super) fn other_bytes_may_be_copied_meanwhile(subject: Subject<'_>) -> Outcome {
    let (stand, gate) = gated_stand(subject, vec![])?;
    let (from, to, other) = (stand.words(&[1, 2, 3])?, stand.words(&[0; 3])?, stand.alloc(10_000)?);
    let execution = stand.launch(&copy_graph(&stand, 0, 3)?, &[from, to])?;
    gate.wait_until_started()?;
    // Bytes that no task uses, and loads of bytes that tasks only read.
    stand.store(other, 0, &pattern(1, 10_000))?;
    ensure!(stand.load(other, 0, 10_000)? == pattern(1, 10_000), "a copy beside a launch");
    ensure_eq!(stand.load_words(from)?, [1, 2, 3], "a load of what a launch reads");
    let new = stand.words(&[7])?;
    ensure_eq!(stand.load_words(new)?, [7], "an allocation made beside a launch");
    stand.free(new)?;
    ensure!(execution.poll().is_none(), "the launch ended though its kernel is blocked");
    gate.open()?;
    ended_in_time(&*execution)?.result?;
    ensure_eq!(stand.load_words(to)?, [1, 2, 3], "what the launch copied");
    Ok(())
}

pub(super) fn dropping_the_device_waits(subject: Subject<'_>) -> Outcome {
    let (stand, gate) = gated_stand(subject, vec![copier()])?;
    let (from, to) = (stand.words(&[1])?, stand.words(&[0])?);
    let running = stand.launch(&copy_graph(&stand, 0, 1)?, &[from, to])?;
    let queued = stand.launch(&copy_graph(&stand, 1, 1)?, &[from, to])?;
    // Nobody holds this one.
    drop(stand.launch(&copy_graph(&stand, 1, 1)?, &[from, to])?);
    gate.wait_until_started()?;
    std::thread::scope(|scope| {
        let dropper = scope.spawn(move || drop(stand));
        std::thread::sleep(Duration::from_millis(10));
        ensure!(!dropper.is_finished(), "the device went away under a launch");
        gate.open()?;
        dropper.join().map_err(|_| Stop::Failed("dropping the device panicked".into()))
    })?;
    for execution in [running, queued] {
        match execution.poll() {
            Some(completion) => completion.result?,
            None => ensure!(false, "a launch has not ended though its device is gone"),
        }
    }
    Ok(())
}
