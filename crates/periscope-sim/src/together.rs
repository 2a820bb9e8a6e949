//! Tasks whose blocks start together: one thread per block, and a barrier that fails instead of hanging.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use periscope_hal::KernelError;
use periscope_hal::kernel::{BlockBarrier, mark_kernel_thread};

/// Where the blocks of one task wait for each other.
///
/// A round ends when every block has come. A block that has ended will never come again, so from then on a round that
/// is not complete never will be: all who wait in it, or come later, are told.
#[derive(Debug)]
struct Barrier {
    blocks: u32,
    state: Mutex<Round>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Round {
    number: u64,
    arrived: u32,
    ended: u32,
    failed: bool,
}

impl Barrier {
    fn state(&self) -> MutexGuard<'_, Round> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block has ended.
    fn end(&self, failed: bool) {
        let mut round = self.state();
        round.ended += 1;
        round.failed |= failed;
        drop(round);
        self.changed.notify_all();
    }
}

impl BlockBarrier for Barrier {
    fn wait(&self) -> Result<(), KernelError> {
        let mut round = self.state();
        let number = round.number;
        if round.ended == 0 {
            round.arrived += 1;
            if round.arrived == self.blocks {
                round.arrived = 0;
                round.number += 1;
                drop(round);
                self.changed.notify_all();
                return Ok(());
            }
        }
        while round.number == number {
            if round.ended > 0 {
                let how = if round.failed { "failed" } else { "ended without coming to the barrier" };
                return Err(KernelError(format!("waiting for the blocks of the task: another block {how}")));
            }
            round = self.changed.wait(round).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

/// Runs `block(index, barrier)` for every index below `blocks` at the same time, and answers whether all returned `true`.
/// `block` does not panic.
///
/// # Errors
/// If there are not enough threads; the blocks that had started have ended.
pub(crate) fn run_together(
    blocks: u32,
    block: impl Fn(u32, &dyn BlockBarrier) -> bool + Sync,
) -> Result<bool, std::io::Error> {
    let barrier = Barrier { blocks, state: Mutex::default(), changed: Condvar::new() };
    let run = |index| {
        let done = block(index, &barrier);
        barrier.end(!done);
        done
    };
    std::thread::scope(|scope| {
        let mut others = Vec::with_capacity(blocks as usize - 1);
        for index in 1..blocks {
            let run = &run;
            match std::thread::Builder::new().name(format!("sim-block-{index}")).spawn_scoped(scope, move || {
                mark_kernel_thread();
                run(index)
            }) {
                Ok(thread) => others.push(thread),
                Err(error) => {
                    // Those that started may wait for this one.
                    barrier.end(true);
                    return Err(error);
                }
            }
        }
        let mut done = run(0);
        for thread in others {
            done &= thread.join().unwrap_or(false);
        }
        Ok(done)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn rounds_separate_the_blocks_steps() {
        let steps = AtomicU32::new(0);
        let done = run_together(6, |_, barrier| {
            (1..=50).all(|round| {
                steps.fetch_add(1, Ordering::Relaxed);
                barrier.wait().unwrap();
                let complete = steps.load(Ordering::Relaxed) == round * 6;
                barrier.wait().unwrap();
                complete
            })
        });
        assert!(done.unwrap());
    }

    #[test]
    fn a_block_that_ends_frees_those_who_wait_for_it() {
        for failed in [false, true] {
            let told = AtomicU32::new(0);
            let done = run_together(4, |index, barrier| {
                if index == 2 {
                    return !failed;
                }
                let error = barrier.wait().expect_err("one block never comes");
                assert!(error.0.contains(if failed { "failed" } else { "ended" }), "{error}");
                told.fetch_add(1, Ordering::Relaxed);
                true
            });
            assert_eq!(done.unwrap(), !failed);
            assert_eq!(told.into_inner(), 3);
        }
    }
}
