//! What the executor itself costs. `cargo bench -p periscope-sim`. Minima and medians of many repeats, warm.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use periscope_core::image::Image;
use periscope_core::task::{CoreKind, Direction};
use periscope_hal::{Kernel, MemoryId};

#[path = "../tests/support/mod.rs"]
mod support;
use support::{Rig, words};

/// A fixed amount of arithmetic, about 5 µs.
fn arithmetic() {
    let mut x = 1.0f64;
    for _ in 0..1_500 {
        x = black_box(x * 1.000_000_1 + 1e-9);
    }
}

fn rig(threads: usize) -> Rig {
    Rig::new(
        threads,
        vec![
            Kernel::host("nothing", CoreKind::Vector, |_| Ok(())).inout::<u64>(),
            Kernel::host("arithmetic", CoreKind::Vector, |_| {
                arithmetic();
                Ok(())
            })
            .inout::<u64>(),
            Kernel::host("two", CoreKind::Vector, |_| Ok(())).input::<u64>().inout::<u64>(),
        ],
    )
}

/// `chains` chains of `len` tasks each, submitted round robin.
fn chains(rig: &mut Rig, kernel: u16, chains: u64, len: u64) -> (Arc<Image>, Vec<MemoryId>) {
    rig.begin();
    let object = rig.external(chains * 8);
    for _ in 0..len {
        for chain in 0..chains {
            rig.submit(kernel, &[words(object, chain, 1, Direction::InOut)], &[]);
        }
    }
    (rig.freeze(), vec![rig.alloc(chains * 8)])
}

/// The shape of paged attention: per row, blocks of three-task chains, each ending in the row's accumulator.
fn attention(rig: &mut Rig, rows: u64, blocks: u64) -> (Arc<Image>, Vec<MemoryId>) {
    rig.begin();
    let scratch = rig.external(rows * blocks * 8);
    let sums = rig.external(rows * 8);
    for row in 0..rows {
        for block in 0..blocks {
            let at = row * blocks + block;
            for _ in 0..3 {
                rig.submit(0, &[words(scratch, at, 1, Direction::InOut)], &[]);
            }
            let reads = words(scratch, at, 1, Direction::In);
            rig.submit(2, &[reads, words(sums, row, 1, Direction::InOut)], &[]);
        }
    }
    (rig.freeze(), vec![rig.alloc(rows * blocks * 8), rig.alloc(rows * 8)])
}

fn measure(repeats: usize, mut run: impl FnMut()) -> (f64, f64) {
    for _ in 0..3 {
        run();
    }
    let mut ns: Vec<f64> = (0..repeats)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos() as f64
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    (ns[0], ns[ns.len() / 2])
}

fn main() {
    println!("{:<44} {:>7} {:>12} {:>12}", "what", "threads", "min", "median");
    let mut coarse = [0.0; 2];
    for threads in [1, 2] {
        let mut rig = rig(threads);
        let cases = [
            ("empty, independent, ns/task", chains(&mut rig, 0, 65_536, 1), 65_536.0, 40),
            ("empty, one chain, ns/task", chains(&mut rig, 0, 1, 65_536), 65_536.0, 40),
            ("empty, 256 chains of 256, ns/task", chains(&mut rig, 0, 256, 256), 65_536.0, 40),
            ("empty, attention 256 x 64, ns/task", attention(&mut rig, 256, 64), 65_536.0, 40),
            ("arithmetic of some 5 us, ns/task", chains(&mut rig, 1, 4_096, 1), 4_096.0, 20),
            ("one task, launch and wait, ns", chains(&mut rig, 0, 1, 1), 1.0, 20_000),
            ("three tasks, launch and wait, ns", chains(&mut rig, 0, 1, 3), 1.0, 20_000),
        ];
        for (what, (image, memories), per, repeats) in &cases {
            let wakes = periscope_hal::Device::counters(&*rig.device).wakes;
            let (min, median) = measure(*repeats, || {
                let completion = rig.run(image, memories);
                assert_eq!(completion.tasks_done, image.task_count() as u64);
            });
            let wakes = periscope_hal::Device::counters(&*rig.device).wakes - wakes;
            println!("{what:<44} {threads:>7} {:>12.1} {:>12.1}   {wakes} wakes", min / per, median / per);
            if what.starts_with("arithmetic") {
                coarse[threads - 1] = median;
            }
        }
        // A launch after a pause: everybody sleeps.
        let (image, memories) = &cases[5].1;
        let mut cold: Vec<f64> = (0..30)
            .map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(30));
                let start = Instant::now();
                rig.run(image, memories);
                start.elapsed().as_nanos() as f64
            })
            .collect();
        cold.sort_by(f64::total_cmp);
        println!("{:<44} {threads:>7} {:>12.1} {:>12.1}", "one task after 30 ms of sleep, ns", cold[0], cold[15]);
        let mut polled: Vec<f64> = (0..200)
            .map(|_| {
                let start = Instant::now();
                let execution = rig.launch(image, memories);
                while execution.poll().is_none() {
                    std::hint::spin_loop();
                }
                start.elapsed().as_nanos() as f64
            })
            .collect();
        polled.sort_by(f64::total_cmp);
        println!("{:<44} {threads:>7} {:>12.1} {:>12.1}", "one task, launch and poll, ns", polled[0], polled[100]);
    }
    // What two threads can do here and now: the same arithmetic without any runtime.
    let (min, median) = measure(20, || {
        std::thread::scope(|scope| {
            scope.spawn(|| (0..2_048).for_each(|_| arithmetic()));
            (0..2_048).for_each(|_| arithmetic());
        });
    });
    println!("{:<44} {:>7} {:>12.1} {:>12.1}", "the same, plain threads, ns/task", 2, min / 4_096.0, median / 4_096.0);
    println!("two threads on 5 us tasks: {:.2} times as fast", coarse[0] / coarse[1]);
}
