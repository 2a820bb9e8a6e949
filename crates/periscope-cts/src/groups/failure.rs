//! Kernels that fail: the first cause is the launch's error, and nothing else is hurt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use periscope_core::TaskId;
use periscope_core::task::CoreKind;
use periscope_hal::{Kernel, LaunchError};

use crate::clause::{Outcome, Subject, ensure, ensure_eq};
use crate::graph::{Graph, Task, update};
use crate::stand::{Stand, ended, ended_in_time};

fn add_one() -> Kernel {
    Kernel::host("add one", CoreKind::Vector, |args| {
        let mut words = args.output::<u64>(0)?;
        let old = words.get(&[0])?;
        Ok(words.set(&[0], old + 1)?)
    })
    .inout::<u64>()
}

/// A chain of `add one` with one other kernel in the middle.
fn chain_around(
    stand: &Stand,
    kernel: u16,
) -> Result<(crate::graph::Frozen, TaskId, crate::stand::Mem), crate::clause::Stop> {
    let mem = stand.words(&[0])?;
    let mut graph = Graph::new(stand);
    let object = graph.object(mem);
    let mut middle = TaskId(0);
    for position in 0..9 {
        let kernels = [if position == 4 { kernel } else { 0 }];
        let id = graph.task(&Task {
            kernels: &kernels,
            accesses: &[update(object, 0, 1)],
            tag: 70 + position,
            ..Task::default()
        })?;
        if position == 4 {
            middle = id;
        }
    }
    Ok((graph.freeze(), middle, mem))
}

pub(super) fn a_panic_is_the_launchs_error(subject: Subject<'_>) -> Outcome {
    let broken = Kernel::host("broken", CoreKind::Vector, |args| panic!("no luck with tag {}", args.tag()));
    let fixed = Kernel::host("fixed", CoreKind::Vector, |_| panic!("plain"));
    let stand = Stand::open(subject, vec![add_one(), broken.inout::<u64>(), fixed.inout::<u64>()])?;
    for (kernel, name, text) in [(1, "broken", "no luck with tag 74"), (2, "fixed", "plain")] {
        let (graph, at, mem) = chain_around(&stand, kernel)?;
        let completion = stand.finish(&graph, &[mem])?;
        ensure_eq!(completion.tasks_done, 4, "tasks done before the one that panicked");
        match completion.result {
            Err(LaunchError::Panicked { task, tag, kernel, message }) => {
                ensure_eq!((task, tag, &*kernel, &*message), (at, 74, name, text), "who panicked, and how");
            }
            other => ensure!(false, "a kernel panicked and the launch ended with {other:?}"),
        }
        ensure_eq!(stand.load_words(mem)?, [4], "steps of the chain that ran");
    }
    Ok(())
}

pub(super) fn a_kernels_error_is_the_launchs_error(subject: Subject<'_>) -> Outcome {
    let refuse = Kernel::host("refuse", CoreKind::Vector, |_| Err("7 is not 8".into()));
    let stand = Stand::open(subject, vec![add_one(), refuse.inout::<u64>()])?;
    let (graph, at, mem) = chain_around(&stand, 1)?;
    match stand.run_to_failure(&graph, &[mem])? {
        LaunchError::Kernel { task, tag, kernel, message } => {
            ensure_eq!((task, tag, &*kernel, &*message), (at, 74, "refuse", "7 is not 8"), "who failed, and how");
        }
        other => ensure!(false, "a kernel failed and the launch ended with {other:?}"),
    }
    ensure_eq!(stand.load_words(mem)?, [4], "steps of the chain that ran");
    Ok(())
}

pub(super) fn nothing_starts_after_a_failure(subject: Subject<'_>) -> Outcome {
    let running = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&running);
    let brief = Kernel::host("brief", CoreKind::Vector, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(2));
        count.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    });
    let refuse = Kernel::host("refuse", CoreKind::Vector, |_| Err("the first cause".into()));
    let stand = Stand::open(subject, vec![brief.inout::<u64>(), refuse.inout::<u64>()])?;
    let mem = stand.words(&[0; 2001])?;
    let mut graph = Graph::new(&stand);
    let object = graph.object(mem);
    graph.task(&Task { kernels: &[0], accesses: &[update(object, 0, 1)], ..Task::default() })?;
    graph.task(&Task { kernels: &[1], accesses: &[update(object, 1, 1)], ..Task::default() })?;
    for i in 2..2001 {
        graph.task(&Task { kernels: &[0], accesses: &[update(object, i, 1)], ..Task::default() })?;
    }
    let completion = stand.finish(&graph.freeze(), &[mem])?;
    ensure_eq!(running.load(Ordering::SeqCst), 0, "kernels that still ran when the launch had ended");
    ensure!(completion.tasks_done < 1000, "{} tasks of 2,001 ran though one failed at once", completion.tasks_done);
    match completion.result {
        Err(LaunchError::Kernel { message, .. }) => ensure_eq!(message, "the first cause", "the error"),
        other => ensure!(false, "a kernel failed and the launch ended with {other:?}"),
    }
    Ok(())
}

pub(super) fn a_failed_block_frees_those_who_wait_for_it(subject: Subject<'_>) -> Outcome {
    let meet = |name: &str, third: fn() -> Result<(), periscope_hal::KernelError>| {
        Kernel::host(name, CoreKind::Vector, move |args| {
            if args.block() == 2 {
                return third();
            }
            args.wait_for_blocks()
        })
        .inout::<u64>()
    };
    let kernels = vec![
        meet("panics", || panic!("block 2")),
        meet("refuses", || Err("block 2".into())),
        meet("leaves", || Ok(())),
        add_one(),
    ];
    let stand = Stand::open(subject, kernels)?;
    if stand.device.info().geometry.vector_cores < 4 {
        return crate::clause::unsupported("a device of fewer than four vector cores");
    }
    let mem = stand.words(&[0; 4])?;
    for kernel in 0..3 {
        let mut graph = Graph::new(&stand);
        let object = graph.object(mem);
        let mut split = update(object, 0, 4);
        split.split_dim = Some(0);
        graph.task(&Task {
            kernels: &[kernel],
            accesses: &[split],
            blocks: 4,
            start_together: true,
            ..Task::default()
        })?;
        graph.task(&Task { kernels: &[3], accesses: &[update(object, 0, 1)], ..Task::default() })?;
        let execution = stand.launch(&graph.freeze(), &[mem])?;
        let error = match ended_in_time(&*execution)?.result {
            Ok(()) => return Err("a launch with a block that others wait for in vain succeeded".into()),
            Err(error) => error.to_string(),
        };
        // Those who wait in vain are a consequence, unless nothing else went wrong.
        ensure!(kernel == 2 || error.contains("block 2"), "the first cause was another: {error}");
        ensure_eq!(stand.load_words(mem)?, [0; 4], "what ran after a failed task");
    }
    Ok(())
}

pub(super) fn later_launches_are_unharmed(subject: Subject<'_>) -> Outcome {
    let broken = Kernel::host("broken", CoreKind::Vector, |_| panic!("again"));
    let refuse = Kernel::host("refuse", CoreKind::Vector, |_| Err("again".into()));
    let stand = Stand::open(subject, vec![add_one(), broken.inout::<u64>(), refuse.inout::<u64>()])?;
    let mem = stand.words(&[0])?;
    let mut sound = Graph::new(&stand);
    let object = sound.object(mem);
    for _ in 0..3 {
        sound.task(&Task { kernels: &[0], accesses: &[update(object, 0, 1)], ..Task::default() })?;
    }
    let sound = sound.freeze();
    let (panics, _, mem_p) = chain_around(&stand, 1)?;
    let (refuses, _, mem_r) = chain_around(&stand, 2)?;
    for _ in 0..10 {
        // Queued behind failing ones before these have failed.
        let failing = [stand.launch(&panics, &[mem_p])?, stand.launch(&refuses, &[mem_r])?];
        let good = stand.launch(&sound, &[mem])?;
        ended(&*good)?.result?;
        for execution in failing {
            ensure!(ended(&*execution)?.result.is_err(), "a launch with a broken kernel succeeded");
        }
    }
    ensure_eq!(stand.load_words(mem)?, [30], "steps of the sound launches");
    for mem in [mem, mem_p, mem_r] {
        stand.free(mem)?;
    }
    Ok(())
}
