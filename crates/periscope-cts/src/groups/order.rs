//! Order: launches follow each other, edges are respected, and nothing else holds a task back for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use periscope_core::TaskId;
use periscope_core::task::CoreKind;
use periscope_hal::Kernel;

use crate::clause::{Outcome, Subject, ensure, ensure_eq};
use crate::graph::{Graph, Task, read, update, write};
use crate::stand::{Stand, ended};

/// `x = x * 3 + scalar`: the result tells the order of the steps.
fn step() -> Kernel {
    Kernel::host("step", CoreKind::Vector, |args| {
        let add = args.scalar(0)?;
        let mut words = args.output::<u64>(0)?;
        let old = words.get(&[0])?;
        Ok(words.set(&[0], old.wrapping_mul(3).wrapping_add(add))?)
    })
    .inout::<u64>()
    .scalars(1)
}

fn steps(first: u64, scalars: impl Iterator<Item = u64>) -> u64 {
    scalars.fold(first, |x, scalar| x.wrapping_mul(3).wrapping_add(scalar))
}

/// Every task takes the next number of a common clock when it starts and when it ends.
struct Clock {
    now: AtomicU64,
    started: Vec<AtomicU64>,
    ended: Vec<AtomicU64>,
}

impl Clock {
    fn new(tasks: usize) -> Arc<Clock> {
        let times = || (0..tasks).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Clock { now: AtomicU64::new(1), started: times(), ended: times() })
    }

    fn tick(&self, times: &[AtomicU64], task: usize) {
        let now = self.now.fetch_add(1, Ordering::SeqCst);
        times[task].store(now, Ordering::Relaxed);
    }

    /// A kernel that notes when its task starts and ends.
    fn kernel(self: &Arc<Clock>, name: &str) -> Kernel {
        let clock = Arc::clone(self);
        Kernel::host(name, CoreKind::Vector, move |args| {
            clock.tick(&clock.started, args.task());
            // Different tasks take differently long, so that threads get out of step.
            for _ in 0..args.task() * 7919 % 300 {
                std::hint::spin_loop();
            }
            clock.tick(&clock.ended, args.task());
            Ok(())
        })
    }

    /// Whether every edge was respected in the last launch, which had started after `since`.
    fn check(&self, image: &periscope_core::image::Image, since: u64) -> Outcome {
        let tasks = image.tasks_and_end();
        for task in 0..image.task_count() {
            let ended = self.ended[task].load(Ordering::Relaxed);
            ensure!(ended > since, "task {task} did not run");
            let successors =
                &image.successors()[tasks[task].first_successor as usize..tasks[task + 1].first_successor as usize];
            for &successor in successors {
                let started = self.started[successor as usize].load(Ordering::Relaxed);
                ensure!(started > ended, "task {successor} started before task {task}, on which it depends, had ended");
            }
        }
        Ok(())
    }
}

pub(super) fn launches_follow_each_other(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![step()])?;
    let mem = stand.words(&[1])?;
    let graphs: Vec<_> = (0..40u64)
        .map(|i| {
            let mut graph = Graph::new(&stand);
            let object = graph.object(mem);
            graph.task(&Task { kernels: &[0], accesses: &[update(object, 0, 1)], scalars: &[i], ..Task::default() })?;
            Ok(graph.freeze())
        })
        .collect::<Result<_, crate::clause::Stop>>()?;
    let executions: Vec<_> = graphs.iter().map(|graph| stand.launch(graph, &[mem])).collect::<Result<_, _>>()?;
    // The end of the last is the end of all.
    ended(&*executions[39])?.result?;
    for (position, execution) in executions.iter().enumerate() {
        ensure!(execution.poll().is_some(), "launch {position} of 40 has not ended though the last has");
    }
    ensure_eq!(stand.load_words(mem)?, [steps(1, 0..40)], "40 launches of one step each");
    Ok(())
}

pub(super) fn dependent_tasks_follow_each_other(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![step()])?;
    let mem = stand.words(&[0; 7])?;
    let mut graph = Graph::new(&stand);
    let object = graph.object(mem);
    // Seven chains, interleaved.
    for i in 0..7000 {
        graph.task(&Task { kernels: &[0], accesses: &[update(object, i % 7, 1)], scalars: &[i], ..Task::default() })?;
    }
    let completion = stand.run(&graph.freeze(), &[mem])?;
    ensure_eq!(completion.tasks_done, 7000, "tasks done");
    let expected: Vec<u64> = (0..7).map(|chain| steps(0, (0..1000).map(|i| i * 7 + chain))).collect();
    ensure_eq!(stand.load_words(mem)?, expected, "the ends of seven chains of 1,000 steps");
    Ok(())
}

pub(super) fn independent_tasks_all_run(subject: Subject<'_>) -> Outcome {
    let stand = Stand::open(subject, vec![step()])?;
    let mem = stand.words(&[5; 20_000])?;
    let mut graph = Graph::new(&stand);
    let object = graph.object(mem);
    for i in 0..20_000 {
        graph.task(&Task { kernels: &[0], accesses: &[update(object, i, 1)], scalars: &[i], ..Task::default() })?;
    }
    let graph = graph.freeze();
    ensure_eq!(graph.image.successors().len(), 0, "edges between independent tasks");
    stand.run(&graph, &[mem])?;
    let wrong = stand.load_words(mem)?.iter().zip(0..).position(|(&word, i)| word != 15 + i);
    ensure_eq!(wrong, None, "the first task that did not run once");
    Ok(())
}

pub(super) fn a_diamond_joins(subject: Subject<'_>) -> Outcome {
    let sum = Kernel::host("sum", CoreKind::Vector, |args| {
        let mut total = 0;
        for position in 0..args.len() - 1 {
            total += args.input::<u64>(position)?.get(&[0])?;
        }
        Ok(args.output::<u64>(args.len() - 1)?.set(&[0], total + 1)?)
    });
    let stand = Stand::open(
        subject,
        vec![sum.clone().input::<u64>().output::<u64>(), sum.input::<u64>().input::<u64>().output::<u64>()],
    )?;
    let mem = stand.words(&[10, 0, 0, 0, 0])?;
    let mut graph = Graph::new(&stand);
    let object = graph.object(mem);
    graph.task(&Task { kernels: &[0], accesses: &[read(object, 0, 1), write(object, 1, 1)], ..Task::default() })?;
    graph.task(&Task { kernels: &[0], accesses: &[read(object, 1, 1), write(object, 2, 1)], ..Task::default() })?;
    graph.task(&Task { kernels: &[0], accesses: &[read(object, 1, 1), write(object, 3, 1)], ..Task::default() })?;
    let accesses = [read(object, 2, 1), read(object, 3, 1), write(object, 4, 1)];
    graph.task(&Task { kernels: &[1], accesses: &accesses, ..Task::default() })?;
    let graph = graph.freeze();
    for _ in 0..200 {
        stand.run(&graph, &[mem])?;
        ensure_eq!(stand.load_words(mem)?, [10, 11, 12, 12, 25], "the corners of a diamond");
        stand.store(mem, 8, &[0; 32])?;
    }
    Ok(())
}

pub(super) fn random_graphs_respect_every_edge(subject: Subject<'_>) -> Outcome {
    const TASKS: usize = 300;
    // A linear congruential generator: the graphs are the same everywhere.
    let mut state = 12_345u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let clock = Clock::new(TASKS * 2);
    let kernels = vec![clock.kernel("update").inout::<u64>(), clock.kernel("read").input::<u64>().inout::<u64>()];
    let stand = Stand::open(subject, kernels)?;
    let mem = stand.words(&[0; 64])?;
    for _ in 0..20 {
        let mut graph = Graph::new(&stand);
        let object = graph.object(mem);
        for _ in 0..TASKS {
            let target = random(32);
            let (first, len) = (random(32), 1 + random(8));
            if (first..first + len).contains(&target) {
                graph.task(&Task { kernels: &[0], accesses: &[update(object, first, len)], ..Task::default() })?;
            } else {
                let accesses = [read(object, first, len), update(object, target, 1)];
                graph.task(&Task { kernels: &[1], accesses: &accesses, ..Task::default() })?;
            }
        }
        let graph = graph.freeze();
        for _ in 0..10 {
            let since = clock.now.load(Ordering::SeqCst);
            stand.run(&graph, &[mem])?;
            clock.check(&graph.image, since)?;
        }
    }
    Ok(())
}

pub(super) fn explicit_edges_order(subject: Subject<'_>) -> Outcome {
    let clock = Clock::new(200);
    let stand = Stand::open(subject, vec![clock.kernel("free").inout::<u64>()])?;
    let mem = stand.words(&[0; 100])?;
    let mut graph = Graph::new(&stand);
    let object = graph.object(mem);
    // Layers of ten tasks that share no byte; a join of each layer comes before the next.
    let mut before: Vec<TaskId> = Vec::new();
    let mut joins = Vec::new();
    for _ in 0..10 {
        let mut layer = Vec::new();
        for i in 0..10 {
            layer.push(graph.task(&Task {
                kernels: &[0],
                accesses: &[update(object, i, 1)],
                after: &before,
                ..Task::default()
            })?);
        }
        before = vec![graph.task(&Task { after: &layer, ..Task::default() })?];
        joins.extend(before.iter().copied().zip([layer]));
    }
    let graph = graph.freeze();
    for _ in 0..20 {
        let since = clock.now.load(Ordering::SeqCst);
        stand.run(&graph, &[mem])?;
        for (position, (_, layer)) in joins.iter().enumerate() {
            let times = |times: &[AtomicU64]| {
                layer.iter().map(|task| times[task.index()].load(Ordering::Relaxed)).collect::<Vec<_>>()
            };
            ensure!(times(&clock.ended).iter().all(|&ended| ended > since), "a task of layer {position} did not run");
            if let Some((_, next)) = joins.get(position + 1) {
                let last = times(&clock.ended).into_iter().max();
                let first = next.iter().map(|task| clock.started[task.index()].load(Ordering::Relaxed)).min();
                ensure!(
                    first > last,
                    "layer {} started before layer {position}, joined before it, had ended",
                    position + 1
                );
            }
        }
    }
    Ok(())
}
