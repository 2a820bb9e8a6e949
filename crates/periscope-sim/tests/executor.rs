//! The executor under stress: random graphs with every edge checked, few and many threads, threads that sleep at once,
//! launches from many sides. The clauses that any device must keep are in the conformance suite.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use periscope_core::TaskId;
use periscope_core::image::Image;
use periscope_core::task::{CoreKind, Direction, KernelId, TaskDesc};
use periscope_hal::{Device, Kernel, LaunchError};
use periscope_sim::{Profile, SimSettings};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

mod support;
use support::{Rig, words};

/// Numbers of threads, with how long they spin: not at all makes them sleep and wake all the time.
const EXECUTORS: [(usize, Duration); 6] = [
    (1, Duration::from_micros(50)),
    (1, Duration::ZERO),
    (2, Duration::from_micros(50)),
    (2, Duration::ZERO),
    (4, Duration::from_micros(50)),
    (4, Duration::ZERO),
];

fn settings((threads, spin): (usize, Duration)) -> SimSettings {
    SimSettings { threads, spin, memory_bytes: 1 << 30, ..SimSettings::default() }
}

/// When each task started and ended, on one clock, and how often each block ran.
struct Trace {
    clock: AtomicU64,
    started: Vec<AtomicU64>,
    ended: Vec<AtomicU64>,
    runs: Vec<AtomicU32>,
}

impl Trace {
    fn new(tasks: usize) -> Arc<Trace> {
        let times = || (0..tasks).map(|_| AtomicU64::new(0)).collect();
        let runs = (0..tasks).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Trace { clock: AtomicU64::new(1), started: times(), ended: times(), runs })
    }

    /// A kernel that fills in the trace and is busy for a few hundred steps, different for each task.
    fn kernel(self: &Arc<Trace>) -> Kernel {
        let trace = Arc::clone(self);
        Kernel::host("trace", CoreKind::Vector, move |args| {
            let now = trace.clock.fetch_add(1, Ordering::SeqCst);
            // The earliest start and the latest end of the blocks.
            trace.started[args.task()].fetch_min(now, Ordering::Relaxed);
            for _ in 0..args.task() * 7919 % 200 {
                std::hint::spin_loop();
            }
            trace.runs[args.task()].fetch_add(1, Ordering::Relaxed);
            let now = trace.clock.fetch_add(1, Ordering::SeqCst);
            trace.ended[args.task()].fetch_max(now, Ordering::Relaxed);
            Ok(())
        })
    }

    fn reset(&self) {
        self.started.iter().for_each(|time| time.store(u64::MAX, Ordering::Relaxed));
        self.ended.iter().for_each(|time| time.store(0, Ordering::Relaxed));
        self.runs.iter().for_each(|runs| runs.store(0, Ordering::Relaxed));
    }

    /// Every block ran once, and nothing started before what it depends on had ended. Joins, which have no kernel, are
    /// looked through.
    fn check(&self, image: &Image) {
        let tasks = image.tasks_and_end();
        // The latest end among a task and all before it.
        let mut frontier = vec![0u64; image.task_count()];
        for task in 0..image.task_count() {
            let record = &tasks[task];
            if record.kernels[0] != periscope_core::image::NO_KERNEL {
                assert_eq!(self.runs[task].load(Ordering::Relaxed), record.blocks, "runs of task {task}");
                let started = self.started[task].load(Ordering::Relaxed);
                assert!(
                    started > frontier[task],
                    "task {task} started at {started}, something before it ended at {}",
                    frontier[task]
                );
                frontier[task] = self.ended[task].load(Ordering::Relaxed);
            }
            for &next in &image.successors()[record.first_successor as usize..tasks[task + 1].first_successor as usize]
            {
                frontier[next as usize] = frontier[next as usize].max(frontier[task]);
            }
        }
    }
}

/// A graph of `tasks` tasks that share no byte, with random explicit edges, some joins and some tasks of many blocks.
fn random_graph(rig: &mut Rig, random: &mut ChaCha8Rng, tasks: u32) -> Arc<Image> {
    rig.begin();
    let fan = random.random_range(0..6);
    let reach = random.random_range(1..=tasks);
    let many_blocks = random.random_bool(0.3);
    for task in 0..tasks {
        let after: Vec<TaskId> = (0..random.random_range(0..=fan))
            .filter(|_| task > 0)
            .map(|_| TaskId(task - 1 - random.random_range(0..reach.min(task))))
            .collect();
        let join = random.random_bool(0.1);
        let blocks = if many_blocks && !join && random.random_bool(0.2) { random.random_range(2..40) } else { 1 };
        let kernels: &[KernelId] = if join { &[] } else { &[KernelId(0)] };
        rig.builder.submit(&TaskDesc { kernels, after: &after, blocks, ..TaskDesc::default() }).unwrap();
    }
    rig.freeze()
}

#[test]
fn random_graphs_respect_every_edge() {
    const TASKS: u32 = 250;
    for executor in EXECUTORS {
        let trace = Trace::new(TASKS as usize);
        let mut rig = Rig::with(Profile::Identity, settings(executor), vec![trace.kernel()]);
        let mut random = ChaCha8Rng::seed_from_u64(7);
        for _ in 0..40 {
            let tasks = random.random_range(1..=TASKS);
            let image = random_graph(&mut rig, &mut random, tasks);
            for _ in 0..5 {
                trace.reset();
                let completion = rig.run(&image, &[]);
                assert_eq!(completion.result, Ok(()));
                assert_eq!(completion.tasks_done, u64::from(tasks));
                trace.check(&image);
            }
        }
    }
}

#[test]
fn failures_end_launches_at_any_point() {
    for executor in EXECUTORS {
        let fuse = Arc::new(AtomicU64::new(0));
        let burning = Arc::clone(&fuse);
        let kernel = Kernel::host("fuse", CoreKind::Vector, move |_| {
            if burning.fetch_sub(1, Ordering::Relaxed) == 1 { Err("burnt down".into()) } else { Ok(()) }
        });
        let mut rig = Rig::with(Profile::Identity, settings(executor), vec![kernel]);
        let mut random = ChaCha8Rng::seed_from_u64(8);
        for _ in 0..60 {
            let image = random_graph(&mut rig, &mut random, 100);
            let blocks: u64 =
                image.tasks().iter().filter(|task| task.kernels[0] == 0).map(|task| u64::from(task.blocks)).sum();
            let length = random.random_range(1..=blocks + 20);
            fuse.store(length, Ordering::Relaxed);
            let completion = rig.run(&image, &[]);
            if length <= blocks {
                assert!(
                    matches!(&completion.result, Err(LaunchError::Kernel { message, .. }) if message == "burnt down")
                );
                assert!(completion.tasks_done < 100);
            } else {
                assert_eq!((completion.result, completion.tasks_done), (Ok(()), 100));
            }
        }
    }
}

#[test]
fn launches_from_many_threads_are_all_executed() {
    for executor in EXECUTORS {
        let ran = Arc::new(AtomicU64::new(0));
        let overlapping = Arc::new(AtomicBool::new(false));
        let inside = Arc::new(AtomicU32::new(0));
        let (count, overlap, within) = (Arc::clone(&ran), Arc::clone(&overlapping), Arc::clone(&inside));
        let kernel = Kernel::host("count", CoreKind::Vector, move |args| {
            // A chain: two tasks of it, or of two launches on the same memory, never run at the same time.
            if within.fetch_add(1, Ordering::SeqCst) != 0 {
                overlap.store(true, Ordering::SeqCst);
            }
            count.fetch_add(1, Ordering::Relaxed);
            let mut word = args.output::<u64>(0)?;
            let old = word.get(&[0])?;
            word.set(&[0], old + 1)?;
            within.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        });
        let mut rig = Rig::with(Profile::A2a3, settings(executor), vec![kernel.inout::<u64>()]);
        let object = rig.external(8);
        for _ in 0..3 {
            rig.submit(0, &[words(object, 0, 1, Direction::InOut)], &[]);
        }
        let (image, memory) = (rig.freeze(), rig.alloc(8));
        // SAFETY of the whole: nothing else uses the memory.
        let zero = rig.read_u64(memory, 0);
        let rig = &rig;
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let image = &image;
                scope.spawn(move || {
                    let mut random = ChaCha8Rng::seed_from_u64(thread);
                    for _ in 0..300 {
                        let execution = rig.launch(image, &[memory]);
                        match random.random_range(0..6) {
                            0 | 1 => drop(execution.wait(None)),
                            2 => drop(execution.wait(Some(Duration::from_secs(60))).expect("an end within a minute")),
                            3 => while execution.poll().is_none() {},
                            4 => drop(execution.wait(Some(Duration::from_micros(random.random_range(0..100))))),
                            _ => {}
                        }
                        if random.random_bool(0.01) {
                            std::thread::sleep(Duration::from_millis(random.random_range(0..30)));
                        }
                    }
                });
            }
        });
        assert_eq!(rig.run(&image, &[memory]).result, Ok(()));
        assert!(!overlapping.load(Ordering::SeqCst), "{executor:?}: launches overlapped");
        assert_eq!(ran.load(Ordering::Relaxed), 4 * 300 * 3 + 3);
        assert_eq!(rig.read_u64(memory, 0) - zero, 4 * 300 * 3 + 3);
    }
}

#[test]
fn forgotten_launches_begin_before_long() {
    for executor in EXECUTORS {
        let ran = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&ran);
        let kernel = Kernel::host("count", CoreKind::Vector, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let mut rig = Rig::with(Profile::Identity, settings(executor), vec![kernel]);
        rig.submit(0, &[], &[]);
        let image = rig.freeze();
        for pause in [0, 1, 5, 30, 0, 0] {
            std::thread::sleep(Duration::from_millis(pause));
            let before = ran.load(Ordering::Relaxed);
            let execution = rig.launch(&image, &[]);
            let begun = Instant::now();
            while ran.load(Ordering::Relaxed) == before {
                assert!(begun.elapsed() < Duration::from_secs(20), "{executor:?}: nobody began a launch");
                std::thread::sleep(Duration::from_micros(50));
            }
            drop(execution);
        }
    }
}

#[test]
fn a_caller_that_waits_executes_and_wakes_nobody() {
    let kernel = Kernel::host("who", CoreKind::Vector, |args| {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        Ok(args.output::<u64>(0)?.set(&[0], u64::from(name.starts_with("sim-")))?)
    });
    let mut rig = Rig::new(2, vec![kernel.output::<u64>()]);
    let object = rig.external(8);
    rig.submit(0, &[words(object, 0, 1, Direction::Out)], &[]);
    let (image, memory) = (rig.freeze(), rig.alloc(8));
    rig.run(&image, &[memory]);
    for (launches, pause) in [(2000, Duration::ZERO), (200, Duration::from_micros(300))] {
        std::thread::sleep(Duration::from_millis(2));
        let wakes = rig.device.counters().wakes;
        let mut by_helper = 0;
        for _ in 0..launches {
            std::thread::sleep(pause);
            rig.run(&image, &[memory]);
            by_helper += rig.read_u64(memory, 0);
        }
        let woken = rig.device.counters().wakes - wakes;
        // A pause of the whole process may send the guard to sleep, or let it come first.
        assert!(woken < 50, "{launches} launches of one task woke threads {woken} times");
        assert!(by_helper < launches / 2, "a helper ran {by_helper} of {launches} tasks that the caller waited for");
    }
}

#[test]
fn ready_tasks_and_blocks_find_all_threads() {
    // As many kernels as there are threads wait for each other: each needs a thread of its own.
    for threads in [2, 4] {
        for spin in [Duration::ZERO, Duration::from_micros(50)] {
            let arrived = Arc::new(AtomicU32::new(0));
            let arriving = Arc::clone(&arrived);
            let kernel = Kernel::host("meet", CoreKind::Vector, move |_| {
                let round = arriving.fetch_add(1, Ordering::SeqCst) / threads;
                let begun = Instant::now();
                while arriving.load(Ordering::SeqCst) < (round + 1) * threads {
                    if begun.elapsed() > Duration::from_secs(10) {
                        return Err("no thread for the others in 10 s".into());
                    }
                    std::thread::yield_now();
                }
                Ok(())
            });
            let mut rig = Rig::with(Profile::Identity, settings((threads as usize, spin)), vec![kernel]);
            for shape in ["independent", "successors", "blocks"] {
                rig.begin();
                let (tasks, blocks) = if shape == "blocks" { (1, threads) } else { (threads, 1) };
                let after: &[TaskId] =
                    if shape == "successors" { &[rig.builder.submit(&TaskDesc::default()).unwrap()] } else { &[] };
                for _ in 0..tasks {
                    let kernels = &[KernelId(0)];
                    rig.builder.submit(&TaskDesc { kernels, after, blocks, ..TaskDesc::default() }).unwrap();
                }
                let image = rig.freeze();
                for pause in [0, 0, 1, 30, 0] {
                    std::thread::sleep(Duration::from_millis(pause));
                    assert_eq!(rig.run(&image, &[]).result, Ok(()), "{shape}, {threads} threads, spin {spin:?}");
                }
            }
        }
    }
}
