//! The launches of a device in order, the seats of the one at the front, and the threads that sleep: everything that
//! changes under the executor's lock. The protocol is in `README.md`.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_deque::Worker;
use periscope_hal::Completion;

use crate::signal::{FREE, LOOKING, Parker, SLEEPING, Signal, Wake};
use crate::work::Work;

/// What outlives a launch: how it ended.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) ended: OnceLock<Completion>,
}

/// What a member of a launch works with; whoever holds it is a member.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) number: usize,
    /// Ready tasks (and invitations to share a task's blocks) that others may steal. Empty when the seat is free.
    pub(crate) deque: Worker<u64>,
    /// The same of a device with one thread.
    pub(crate) stack: Vec<u32>,
}

/// How far the launch at the front has come. Launches behind it are `Waiting`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nobody has begun it.
    Waiting,
    /// One member sets it up.
    Beginning,
    /// Members execute it and others may join.
    Open,
    /// The last member ends it.
    Ending,
}

pub(crate) struct Entry {
    pub(crate) run: Arc<Run>,
    pub(crate) phase: Phase,
    /// Taken out while it is set up and when it ends.
    pub(crate) work: Option<Arc<Work>>,
    /// Whether it is worth waking a thread for it at once.
    pub(crate) large: bool,
}

/// A thread that sleeps.
#[derive(Debug)]
pub(crate) struct Sleeper {
    pub(crate) parker: Arc<Parker>,
    /// Wakes up by itself before long.
    pub(crate) guard: bool,
    /// Whose end it waits for.
    pub(crate) awaited: Option<Arc<Run>>,
    /// Whether it may be woken to execute.
    pub(crate) helps: bool,
}

/// How long a guard sleeps: the most that a launch waits for its beginning if nobody waits for its end.
pub(crate) const GUARD_INTERVAL: Duration = Duration::from_micros(200);
/// After so many intervals without a launch a guard sleeps until it is woken.
pub(crate) const GUARD_PATIENCE: u32 = 50;

pub(crate) struct Queue {
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) seats: Vec<Seat>,
    /// Seats taken in the launch at the front.
    pub(crate) members: usize,
    pub(crate) sleepers: Vec<Sleeper>,
    /// Launches so far.
    pub(crate) launches: u64,
    pub(crate) recycled: Vec<Arc<Work>>,
    pub(crate) closed: bool,
}

/// What a thread that entered the launch at the front is to do.
pub(crate) enum Entered {
    /// Set it up, then execute.
    Begin(Seat, Arc<Work>),
    /// Execute.
    Join(Seat, Arc<Work>),
}

impl Queue {
    pub(crate) fn new(seats: Vec<Seat>) -> Queue {
        Queue {
            entries: VecDeque::new(),
            seats,
            members: 0,
            sleepers: Vec::new(),
            launches: 0,
            recycled: Vec::new(),
            closed: false,
        }
    }

    /// Enters the launch at the front, which is not being set up or ended. The caller is counted as looking then.
    /// `looking`: whether it was before.
    pub(crate) fn enter(&mut self, signal: &Signal, looking: bool) -> Option<Entered> {
        let entry = self.entries.front_mut()?;
        let seat = self.seats.pop()?;
        self.members += 1;
        signal.add(if looking { 0 } else { LOOKING }, FREE);
        if entry.phase == Phase::Waiting {
            entry.phase = Phase::Beginning;
            Some(Entered::Begin(seat, entry.work.take()?))
        } else {
            Some(Entered::Join(seat, entry.work.clone()?))
        }
    }

    /// Removes a sleeper that would execute, to be woken with [`Wake::Work`].
    #[must_use]
    pub(crate) fn take_helper(&mut self, signal: &Signal) -> Option<Arc<Parker>> {
        let at = self.sleepers.iter().rposition(|sleeper| sleeper.helps)?;
        signal.add(LOOKING, SLEEPING);
        Some(self.sleepers.swap_remove(at).parker)
    }

    /// Removes this sleeper, unless somebody is waking it: the answer says why.
    pub(crate) fn withdraw(&mut self, signal: &Signal, parker: &Arc<Parker>) -> Option<Wake> {
        match self.sleepers.iter().position(|sleeper| Arc::ptr_eq(&sleeper.parker, parker)) {
            Some(at) => {
                if self.sleepers.swap_remove(at).helps {
                    signal.add(0, SLEEPING);
                }
                None
            }
            // Whoever removed it says so in a moment, if it has not yet.
            None => Some(loop {
                match parker.woken() {
                    Some(why) => break why,
                    None => std::hint::spin_loop(),
                }
            }),
        }
    }

    /// Removes everybody who waits for the end of `run`, to be woken with [`Wake::Ended`].
    pub(crate) fn take_waiters(&mut self, signal: &Signal, run: &Arc<Run>, woken: &mut Vec<Arc<Parker>>) {
        self.sleepers.retain(|sleeper| {
            let waits = sleeper.awaited.as_ref().is_some_and(|awaited| Arc::ptr_eq(awaited, run));
            if waits {
                if sleeper.helps {
                    signal.add(0, SLEEPING);
                }
                woken.push(Arc::clone(&sleeper.parker));
            }
            !waits
        });
    }

    /// Whether the launch at the front waits for someone to begin it.
    pub(crate) fn front_waits(&self) -> bool {
        self.entries.front().is_some_and(|entry| entry.phase == Phase::Waiting)
    }

    /// Sees to it that someone begins the launch at the front: whom to wake for it, if it takes that. `urgent`: not
    /// only before long.
    #[must_use]
    pub(crate) fn ensure_beginner(&mut self, signal: &Signal, urgent: bool) -> Option<Arc<Parker>> {
        let entry = self.entries.front()?;
        if entry.phase != Phase::Waiting || signal.heads().looking() > 0 {
            return None;
        }
        let guarded = self.sleepers.iter().any(|sleeper| sleeper.guard);
        if guarded && !urgent && !entry.large { None } else { self.take_helper(signal) }
    }
}
