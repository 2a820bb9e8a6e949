//! Executes launches on host threads: helper threads that live with the device, and whoever waits for a launch's end.
//! The states, the protocol and why no wake-up is lost are in `README.md`.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_deque::{Stealer, Worker};
use crossbeam_utils::CachePadded;
use periscope_core::TaskId;
use periscope_hal::kernel::mark_kernel_thread;
use periscope_hal::{Completion, Execution};

use crate::member::{Left, execute_alone, execute_shared};
use crate::queue::{Entered, Entry, GUARD_INTERVAL, GUARD_PATIENCE, Phase, Queue, Run, Seat, Sleeper};
use crate::signal::{FREE, LOOKING, Parker, SLEEPING, Signal, Wake};
use crate::work::Work;

/// [`Shared::running`] of a member that runs nothing.
pub(crate) const IDLE: u32 = u32::MAX;

/// Launches of more tasks than this are begun by a helper at once; smaller ones are left to whoever waits for them, or
/// to a helper before long: waking a thread costs as much as running some hundred empty tasks.
const LARGE_TASKS: usize = 32;

/// [`Shared::front`]: nothing that could be entered.
const FRONT_NOTHING: u8 = 0;
/// [`Shared::front`]: a launch that nobody has begun.
const FRONT_WAITS: u8 = 1;
/// [`Shared::front`]: a launch that others execute, perhaps with work for more.
const FRONT_OPEN: u8 = 2;

/// Works kept for later launches.
const RECYCLED: usize = 4;

/// The executor of a device. Dropping it waits for the launches in flight.
pub(crate) struct Executor {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

/// What threads of an executor have in common.
pub(crate) struct Shared {
    pub(crate) threads: usize,
    pub(crate) spin: Duration,
    pub(crate) stealers: Box<[Stealer<u64>]>,
    /// The task that each member runs, or [`IDLE`]. For people only.
    running: Box<[CachePadded<AtomicU32>]>,
    signal: Signal,
    /// A `FRONT_*` value: what is at the front of the queue, for those who look without the lock.
    front: CachePadded<AtomicU8>,
    wakes: AtomicU64,
    queue: Mutex<Queue>,
}

impl Executor {
    /// Starts the helpers of an executor that uses at most `threads` threads at a time.
    ///
    /// # Errors
    /// The system's, if there are no more threads.
    pub(crate) fn new(threads: usize, spin: Duration) -> std::io::Result<Executor> {
        let threads = threads.clamp(1, u16::MAX as usize / 2);
        let seats: Vec<Seat> =
            (0..threads).rev().map(|number| Seat { number, deque: Worker::new_lifo(), stack: Vec::new() }).collect();
        let shared = Arc::new(Shared {
            threads,
            spin,
            stealers: seats.iter().rev().map(|seat| seat.deque.stealer()).collect(),
            running: (0..threads).map(|_| CachePadded::new(AtomicU32::new(IDLE))).collect(),
            signal: Signal::new(threads),
            front: CachePadded::new(AtomicU8::new(FRONT_NOTHING)),
            wakes: AtomicU64::new(0),
            queue: Mutex::new(Queue::new(seats)),
        });
        let mut executor = Executor { shared, helpers: Vec::new() };
        for number in 0..(threads - 1).max(1) {
            let shared = Arc::clone(&executor.shared);
            // A helper counts as looking from before it exists, so that no launch has to wait for it to start.
            shared.start_looking();
            let started = std::thread::Builder::new().name(format!("sim-{number}")).spawn(move || shared.help());
            match started {
                Ok(helper) => executor.helpers.push(helper),
                Err(error) => {
                    executor.shared.signal.add(0, LOOKING);
                    return Err(error);
                }
            }
        }
        Ok(executor)
    }

    /// A work to fill and to hand to [`Executor::launch`].
    pub(crate) fn blank(&self) -> Arc<Work> {
        self.shared.queue().recycled.pop().unwrap_or_default()
    }

    /// Queues a launch.
    pub(crate) fn launch(&self, work: Arc<Work>) -> SimExecution {
        let shared = &self.shared;
        let run = Arc::new(Run::default());
        let large = shared.threads > 1 && work.image().task_count() > LARGE_TASKS;
        let mut queue = shared.queue();
        queue.launches += 1;
        queue.entries.push_back(Entry { run: Arc::clone(&run), phase: Phase::Waiting, work: Some(work), large });
        shared.show_front(&queue);
        let beginner = queue.ensure_beginner(&shared.signal, false);
        drop(queue);
        shared.wake(beginner, Wake::Work);
        SimExecution { run, shared: Arc::clone(shared) }
    }

    pub(crate) fn wakes(&self) -> u64 {
        self.shared.wakes.load(Ordering::Relaxed)
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        loop {
            let queue = self.shared.queue();
            let last = queue.entries.back().map(|entry| Arc::clone(&entry.run));
            drop(queue);
            match last {
                // Ended, but its last member still has to take it off the queue.
                Some(run) if run.ended.get().is_some() => std::thread::yield_now(),
                Some(run) => drop(self.shared.wait_executing(&run)),
                None => break,
            }
        }
        let mut queue = self.shared.queue();
        queue.closed = true;
        let sleepers = std::mem::take(&mut queue.sleepers);
        drop(queue);
        for sleeper in sleepers {
            sleeper.parker.wake(Wake::Ended);
        }
        for helper in self.helpers.drain(..) {
            if helper.join().is_err() {
                log::error!("a thread of the simulator panicked: a bug in the simulator");
            }
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.queue();
        let heads = self.shared.signal.heads();
        f.debug_struct("Executor")
            .field("threads", &self.shared.threads)
            .field("launches", &queue.launches)
            .field("phases", &queue.entries.iter().map(|entry| entry.phase).collect::<Vec<_>>())
            .field("members", &queue.members)
            .field("sleepers", &queue.sleepers)
            .field("looking, sleeping, free", &(heads.looking(), heads.sleeping(), heads.free()))
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Kernels, which may panic, run outside the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn set_running(&self, seat: usize, task: u32) {
        self.running[seat].store(task, Ordering::Relaxed);
    }

    pub(crate) fn start_looking(&self) {
        self.signal.add(LOOKING, 0);
    }

    /// A member that looked has found work. If it was the last to look and there is more, another takes over the looking.
    pub(crate) fn stop_looking(&self, work: &Work) {
        let before = self.signal.add(0, LOOKING);
        if before.looking() == 1 && before.sleeping() > 0 && before.free() > 0 && self.has_work(work) {
            self.wake_helper();
        }
    }

    /// A member has put work where others find it: wakes a helper if nobody is about to find it.
    #[inline]
    pub(crate) fn shared_work(&self) {
        if self.signal.after_sharing() {
            self.wake_helper();
        }
    }

    #[cold]
    fn wake_helper(&self) {
        let mut queue = self.queue();
        let helper = if self.signal.heads().want_waking() { queue.take_helper(&self.signal) } else { None };
        drop(queue);
        self.wake(helper, Wake::Work);
    }

    fn wake(&self, sleeper: Option<Arc<Parker>>, why: Wake) {
        if let Some(sleeper) = sleeper {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            sleeper.wake(why);
        }
    }

    /// Whether a thread that joined would find something.
    fn has_work(&self, work: &Work) -> bool {
        !work.is_over() && (work.has_roots() || self.stealers.iter().any(|stealer| !stealer.is_empty()))
    }

    /// Whether a thread that entered the launch at the front would find something to do.
    fn can_enter(&self, queue: &Queue) -> bool {
        let front = queue.entries.front().filter(|_| !queue.seats.is_empty());
        front.is_some_and(|front| match front.phase {
            Phase::Waiting => true,
            Phase::Open => front.work.as_deref().is_some_and(|work| self.has_work(work)),
            Phase::Beginning | Phase::Ending => false,
        })
    }

    /// Enters the launch at the front if there is something to do in it. The caller is counted as looking then.
    /// `looking`: whether it was before.
    fn enter(&self, queue: &mut Queue, looking: bool) -> Option<Entered> {
        if !self.can_enter(queue) {
            return None;
        }
        let entered = queue.enter(&self.signal, looking);
        self.show_front(queue);
        entered
    }

    /// Lets threads that look without the lock know what is at the front.
    fn show_front(&self, queue: &Queue) {
        let front = match queue.entries.front().map(|front| front.phase) {
            Some(Phase::Waiting) => FRONT_WAITS,
            Some(Phase::Open) => FRONT_OPEN,
            Some(Phase::Beginning | Phase::Ending) | None => FRONT_NOTHING,
        };
        self.front.store(front, Ordering::Relaxed);
    }

    /// Executes the launch at the front until nothing is left to do in it. The caller was counted as looking when it
    /// entered, and is afterwards if `goes_on` says so, which is the second answer.
    fn execute(&self, entered: Entered, goes_on: impl Fn() -> bool) -> (Left, bool) {
        let (mut seat, work) = match entered {
            Entered::Join(seat, work) => (seat, work),
            Entered::Begin(seat, mut work) => {
                match Arc::get_mut(&mut work) {
                    Some(work) => work.begin(self.threads == 1),
                    None => unreachable!("a launch that has not begun is the queue's alone"),
                }
                let mut queue = self.queue();
                if let Some(front) = queue.entries.front_mut() {
                    front.phase = Phase::Open;
                    front.work = Some(Arc::clone(&work));
                }
                self.show_front(&queue);
                drop(queue);
                (seat, work)
            }
        };
        let left = if self.threads == 1 {
            execute_alone(self, &work, &mut seat)
        } else {
            execute_shared(self, &work, &mut seat)
        };
        debug_assert!(left == Left::Idle || work.is_over());
        let mut queue = self.queue();
        drop(work);
        queue.seats.push(seat);
        queue.members -= 1;
        let last = queue.members == 0;
        // A member that left idle while the last task was running may be the last to come here.
        let ended = match queue.entries.front_mut() {
            Some(front) if last && front.work.as_deref().is_some_and(Work::is_over) => {
                front.phase = Phase::Ending;
                front.work.take().map(|work| (work, Arc::clone(&front.run)))
            }
            _ => None,
        };
        match ended {
            None => {
                let goes_on = goes_on();
                self.signal.add(FREE, if goes_on { 0 } else { LOOKING });
                (left, goes_on)
            }
            Some((work, run)) => {
                self.signal.add(FREE, 0);
                self.show_front(&queue);
                drop(queue);
                (left, self.end(work, &run, goes_on))
            }
        }
    }

    /// Ends the launch at the front: lets go of its memory, tells who waits for it, and sees to the next one.
    /// Answers whether the calling thread does so itself.
    fn end(&self, mut work: Arc<Work>, run: &Arc<Run>, goes_on: impl Fn() -> bool) -> bool {
        let completion = match Arc::get_mut(&mut work) {
            Some(work) => {
                let completion = work.completion();
                work.clear();
                completion
            }
            None => unreachable!("every member drops its share before it leaves"),
        };
        // Whoever sees the end may free the memory and reuse the image: both have been let go.
        let _ = run.ended.set(completion);
        let mut woken = Vec::new();
        let mut queue = self.queue();
        queue.entries.pop_front();
        if queue.recycled.len() < RECYCLED {
            queue.recycled.push(work);
        }
        queue.take_waiters(&self.signal, run, &mut woken);
        self.show_front(&queue);
        let goes_on = goes_on();
        let beginner = if goes_on {
            None
        } else {
            self.signal.add(0, LOOKING);
            queue.ensure_beginner(&self.signal, false)
        };
        drop(queue);
        for waiter in woken {
            self.wake(Some(waiter), Wake::Ended);
        }
        self.wake(beginner, Wake::Work);
        goes_on
    }

    /// The life of a helper. It is counted as looking whenever it neither runs a task nor sleeps.
    fn help(&self) {
        mark_kernel_thread();
        let mut seen_launches = 0;
        let mut patience = 0;
        // A device of one thread executes in whoever waits; its helper is there in case nobody does.
        let looker = self.threads > 1;
        let mut looks = looker;
        loop {
            let mut queue = self.queue();
            if let Some(entered) = self.enter(&mut queue, true) {
                drop(queue);
                let (left, _) = self.execute(entered, || true);
                looks = looker && left == Left::Over;
                continue;
            }
            if queue.closed {
                self.signal.add(0, LOOKING);
                return;
            }
            if std::mem::take(&mut looks) {
                drop(queue);
                self.look(|| false);
                continue;
            }
            if queue.launches != seen_launches {
                seen_launches = queue.launches;
                patience = GUARD_PATIENCE;
            }
            let guard = patience > 0 && !queue.sleepers.iter().any(|sleeper| sleeper.guard);
            let Some(parker) = self.fall_asleep(&mut queue, guard, None, true) else {
                continue;
            };
            drop(queue);
            let woken = loop {
                let woken = parker.park(guard.then_some(GUARD_INTERVAL));
                if woken.is_some() || !guard {
                    if woken.is_some() {
                        break woken;
                    }
                    continue;
                }
                let mut queue = self.queue();
                let woken = queue.withdraw(&self.signal, &parker);
                if woken.is_none() {
                    self.signal.add(LOOKING, 0);
                }
                break woken;
            };
            match woken {
                Some(Wake::Work) => looks = looker,
                Some(Wake::Ended) => return,
                None => patience -= 1,
            }
        }
    }

    /// Goes to the sleepers, unless something has come up. `looking`: whether the caller is counted as such; then it
    /// still is if the answer is `None`.
    fn fall_asleep(
        &self,
        queue: &mut Queue,
        guard: bool,
        awaited: Option<&Arc<Run>>,
        looking: bool,
    ) -> Option<Arc<Parker>> {
        let looks = if looking { LOOKING } else { 0 };
        self.signal.add(SLEEPING, looks);
        Signal::before_last_check();
        if self.can_enter(queue) {
            self.signal.add(looks, SLEEPING);
            return None;
        }
        let parker = Arc::new(Parker::new());
        queue.sleepers.push(Sleeper { parker: Arc::clone(&parker), guard, awaited: awaited.cloned(), helps: true });
        Some(parker)
    }

    /// Looks for a launch to enter, or for `ended`, for a while.
    fn look(&self, ended: impl Fn() -> bool) {
        let mut deadline = None;
        for round in 0u32.. {
            let found = match self.front.load(Ordering::Relaxed) {
                FRONT_WAITS => true,
                // Whether it has work for another can only be seen under the lock, which its members need more.
                FRONT_OPEN => round % 16 == 15 && self.can_enter(&self.queue()),
                _ => false,
            };
            if found || ended() || self.pause(round, &mut deadline) {
                return;
            }
        }
    }

    /// Waits for the end of `run`, executing what is at the front of the queue meanwhile.
    fn wait_executing(&self, run: &Arc<Run>) -> Completion {
        // Whether this thread is counted as looking: it left a launch that was not the one, or was woken for work.
        let mut looking = false;
        let mut looks = true;
        loop {
            if let Some(completion) = run.ended.get() {
                if looking {
                    self.give_up_looking();
                }
                return completion.clone();
            }
            let mut queue = self.queue();
            if let Some(entered) = self.enter(&mut queue, looking) {
                drop(queue);
                let left;
                (left, looking) = self.execute(entered, || run.ended.get().is_none());
                looks = left == Left::Over;
                continue;
            }
            if std::mem::take(&mut looking) {
                self.signal.add(0, LOOKING);
                Signal::before_last_check();
                if self.can_enter(&queue) {
                    continue;
                }
            }
            if std::mem::take(&mut looks) {
                drop(queue);
                self.look(|| run.ended.get().is_some());
                continue;
            }
            // Checked under the lock: whoever ends the run takes the lock after, and finds this thread there.
            if run.ended.get().is_some() {
                continue;
            }
            let Some(parker) = self.fall_asleep(&mut queue, false, Some(run), false) else {
                continue;
            };
            drop(queue);
            looking = parker.park_until_woken() == Wake::Work;
        }
    }

    /// Waits for the end of `run` without executing anything, since a kernel cannot be left half-way when time is over.
    fn wait_watching(&self, run: &Arc<Run>, timeout: Duration) -> Option<Completion> {
        let deadline = Instant::now().checked_add(timeout);
        let left = || match deadline {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        };
        self.nudge(run);
        let mut spin = None;
        for round in 0u32.. {
            if run.ended.get().is_some() || left().is_zero() || self.pause(round, &mut spin) {
                break;
            }
        }
        while run.ended.get().is_none() && !left().is_zero() {
            let mut queue = self.queue();
            if run.ended.get().is_some() {
                break;
            }
            let parker = Arc::new(Parker::new());
            let sleeper =
                Sleeper { parker: Arc::clone(&parker), guard: false, awaited: Some(Arc::clone(run)), helps: false };
            queue.sleepers.push(sleeper);
            drop(queue);
            if parker.park(Some(left())).is_none() {
                self.queue().withdraw(&self.signal, &parker);
            }
        }
        run.ended.get().cloned()
    }

    /// Has the launch at the front begun now if nobody has: `run`, which has not ended, is in the queue.
    fn nudge(&self, run: &Run) {
        // Without the lock where that is enough: whoever is about to begin the launch needs it, and polls come in thousands.
        let waits = run.ended.get().is_none() && self.front.load(Ordering::Relaxed) == FRONT_WAITS;
        if waits && self.signal.heads().looking() == 0 {
            let beginner = self.queue().ensure_beginner(&self.signal, true);
            self.wake(beginner, Wake::Work);
        }
    }

    /// A thread that is counted as looking has something better to do: another must look if there is work.
    fn give_up_looking(&self) {
        let mut queue = self.queue();
        self.signal.add(0, LOOKING);
        Signal::before_last_check();
        let heir = if queue.front_waits() {
            queue.ensure_beginner(&self.signal, false)
        } else if self.can_enter(&queue) && self.signal.heads().want_waking() {
            queue.take_helper(&self.signal)
        } else {
            None
        };
        drop(queue);
        self.wake(heir, Wake::Work);
    }
}

/// A launch in flight on a simulated device.
pub(crate) struct SimExecution {
    run: Arc<Run>,
    shared: Arc<Shared>,
}

// SAFETY: a completion is set when every member has left the launch.
unsafe impl Execution for SimExecution {
    fn poll(&self) -> Option<Completion> {
        self.shared.nudge(&self.run);
        self.run.ended.get().cloned()
    }

    /// Without a timeout the calling thread executes tasks too. With one it does not.
    fn wait(&self, timeout: Option<Duration>) -> Option<Completion> {
        match timeout {
            None => Some(self.shared.wait_executing(&self.run)),
            Some(timeout) => self.shared.wait_watching(&self.run, timeout),
        }
    }

    fn running(&self) -> Vec<TaskId> {
        let queue = self.shared.queue();
        if !queue.entries.front().is_some_and(|front| Arc::ptr_eq(&front.run, &self.run)) {
            return Vec::new();
        }
        let running = self.shared.running.iter().map(|task| task.load(Ordering::Relaxed));
        let mut tasks: Vec<TaskId> = running.filter(|&task| task != IDLE).map(TaskId).collect();
        tasks.sort_unstable();
        tasks.dedup();
        tasks
    }
}

impl Drop for SimExecution {
    fn drop(&mut self) {
        // Nobody will wait for it through this handle.
        self.shared.nudge(&self.run);
    }
}

impl fmt::Debug for SimExecution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimExecution").field("ended", &self.run.ended.get()).finish_non_exhaustive()
    }
}
