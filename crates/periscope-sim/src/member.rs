//! What a member of a launch does: run ready tasks until there are none.
//!
//! A task that becomes ready first runs next, in the thread that made it ready, since its inputs are in that core's
//! cache; further ones go to the thread's own deque, from whose other end idle threads steal. Tasks that wait for
//! nothing are taken in submission order, a few at a time, only when the deque is empty: memory stays small and the
//! graph is walked depth first.

use std::time::Instant;

use crossbeam_deque::Steal;
use periscope_core::image::TaskRecord;

use crate::executor::{IDLE, Shared};
use crate::queue::Seat;
use crate::task::{Plan, plan, run_block, run_blocks_together};
use crate::work::{Work, successors_of};

/// In a deque: an invitation to share the blocks of a task that has started.
const INVITATION: u64 = 1 << 32;

/// Why a member has nothing more to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// The launch is over.
    Over,
    /// Others still run tasks, and nothing else has become ready for as long as the member looked.
    Idle,
}

/// Executes as the only member there can be. Plain loads and stores, no queue that others see.
pub(crate) fn execute_alone(shared: &Shared, work: &Work, seat: &mut Seat) -> Left {
    let image = work.image();
    let (tasks_and_end, successors) = (image.tasks_and_end(), image.successors());
    let tasks = image.tasks();
    let mut done = 0;
    'launch: for root in 0..tasks.len() {
        if tasks[root].predecessors != 0 {
            continue;
        }
        seat.stack.push(root as u32);
        while let Some(task) = seat.stack.pop() {
            if work.stopped() {
                break 'launch;
            }
            shared.set_running(seat.number, task);
            let record = &tasks[task as usize];
            // SAFETY: the task's predecessors have ended, in this thread; each task and block is run once.
            let completed = unsafe {
                match plan(work, task as usize, record) {
                    Plan::Complete => true,
                    Plan::Blocks if record.blocks == 1 => run_block(work, task, record, 0, None),
                    Plan::Blocks => {
                        (0..record.blocks).all(|block| !work.stopped() && run_block(work, task, record, block, None))
                    }
                    Plan::Together => run_blocks_together(work, task, record),
                }
            };
            if !completed {
                break 'launch;
            }
            done += 1;
            work.release_alone(successors_of(tasks_and_end, successors, task as usize), |ready| seat.stack.push(ready));
        }
    }
    seat.stack.clear();
    shared.set_running(seat.number, IDLE);
    work.completed(done);
    Left::Over
}

/// Executes as one of several members. The caller is counted as looking, before and after.
pub(crate) fn execute_shared(shared: &Shared, work: &Work, seat: &mut Seat) -> Left {
    let image = work.image();
    let mut member =
        Member { shared, work, seat, tasks: image.tasks_and_end(), successors: image.successors(), done: 0 };
    let mut looking = true;
    let left = loop {
        // Own tasks first, newest first; then those that wait for nothing; then those of others.
        let next = member.seat.deque.pop().or_else(|| member.claim_roots()).or_else(|| {
            member.flush();
            if !looking {
                shared.start_looking();
                looking = true;
            }
            member.search()
        });
        let Some(item) = next else {
            break if work.is_over() { Left::Over } else { Left::Idle };
        };
        if looking {
            looking = false;
            shared.stop_looking(work);
        }
        if !member.run(item) {
            break Left::Over;
        }
    };
    member.flush();
    while member.seat.deque.pop().is_some() {}
    if !looking {
        shared.start_looking();
    }
    left
}

struct Member<'a> {
    shared: &'a Shared,
    work: &'a Work,
    seat: &'a mut Seat,
    tasks: &'a [TaskRecord],
    successors: &'a [u32],
    /// Tasks completed since the last flush.
    done: usize,
}

impl Member<'_> {
    /// Runs a task, or a share of its blocks, then the first task that this makes ready, and so on. Answers whether the
    /// launch goes on.
    fn run(&mut self, item: u64) -> bool {
        let mut invited = item & INVITATION != 0;
        let mut task = item as u32;
        loop {
            if self.work.stopped() {
                return false;
            }
            self.shared.set_running(self.seat.number, task);
            let record = &self.tasks[task as usize];
            // SAFETY: the task was taken from a queue that handed on what its predecessors wrote, or its last predecessor
            // ended in this thread. Each task is taken once, its blocks are claimed one by one.
            let completed = unsafe {
                let plan = if invited { Plan::Blocks } else { plan(self.work, task as usize, record) };
                match plan {
                    Plan::Complete => true,
                    Plan::Blocks if record.blocks == 1 => run_block(self.work, task, record, 0, None),
                    Plan::Blocks => self.share_blocks(task, record, invited),
                    Plan::Together => run_blocks_together(self.work, task, record),
                }
            };
            if !completed {
                // Failed, or others complete it.
                return !self.work.stopped();
            }
            self.done += 1;
            match self.release(task) {
                Some(next) => task = next,
                None => return true,
            }
            invited = false;
        }
    }

    /// Runs blocks of a task together with whoever accepts the invitation. Answers whether this thread completed it.
    ///
    /// # Safety
    /// The task is ready, acquired here.
    unsafe fn share_blocks(&mut self, task: u32, record: &TaskRecord, invited: bool) -> bool {
        if !invited {
            let invitations = (record.blocks as usize - 1).min(self.shared.threads - 1);
            for _ in 0..invitations {
                self.seat.deque.push(u64::from(task) | INVITATION);
            }
            self.shared.shared_work();
        }
        let mut ended = 0;
        while !self.work.stopped()
            && let Some(block) = self.work.claim_block(task, record.blocks)
        {
            // SAFETY: the task is ready (the caller's promise), and a block is claimed once.
            if !unsafe { run_block(self.work, task, record, block, None) } {
                return false;
            }
            ended += 1;
        }
        ended > 0 && self.work.blocks_ended(task, ended, record.blocks)
    }

    /// Tells the successors of a completed task; the first that is ready is the answer, further ones are shared.
    #[inline]
    fn release(&mut self, task: u32) -> Option<u32> {
        let mut first = None;
        let mut shared_any = false;
        let deque = &self.seat.deque;
        self.work.release(successors_of(self.tasks, self.successors, task as usize), |ready| {
            if first.is_none() {
                first = Some(ready);
            } else {
                deque.push(u64::from(ready));
                shared_any = true;
            }
        });
        if shared_any {
            self.shared.shared_work();
        }
        first
    }

    /// Takes the next tasks that wait for nothing: the first is the answer.
    fn claim_roots(&mut self) -> Option<u64> {
        let (&first, others) = self.work.claim_roots(self.shared.threads).split_first()?;
        for &root in others.iter().rev() {
            self.seat.deque.push(u64::from(root));
        }
        if !others.is_empty() || self.work.has_roots() {
            self.shared.shared_work();
        }
        Some(u64::from(first))
    }

    /// Looks for work of others, until there is some, or the launch is over, or it has taken too long.
    fn search(&mut self) -> Option<u64> {
        self.shared.set_running(self.seat.number, IDLE);
        let mut deadline = None;
        for round in 0u32.. {
            if self.work.is_over() {
                return None;
            }
            if let Some(root) = self.claim_roots() {
                return Some(root);
            }
            for offset in 1..self.shared.threads {
                let victim = (self.seat.number + offset) % self.shared.threads;
                if let Steal::Success(item) = self.shared.stealers[victim].steal_batch_and_pop(&self.seat.deque) {
                    return Some(item);
                }
            }
            if self.shared.pause(round, &mut deadline) {
                return None;
            }
        }
        None
    }

    /// Makes known how much this member has completed.
    fn flush(&mut self) {
        self.work.completed(std::mem::take(&mut self.done));
    }
}

impl Shared {
    /// Passes a moment while looking. Answers whether the time for it is over.
    pub(crate) fn pause(&self, round: u32, deadline: &mut Option<Instant>) -> bool {
        for _ in 0..8 {
            std::hint::spin_loop();
        }
        if round % 16 == 15 {
            // No yield: where cores are scarce it takes milliseconds to come back, counted as looking all the time, while
            // a sleeper that is woken gets a core at once.
            let now = Instant::now();
            return now >= *deadline.get_or_insert(now + self.spin);
        }
        false
    }
}
