//! Who is looking for work, who sleeps, and whether anyone else could join: one word that a thread with work to share
//! reads, and the means by which one thread sleeps and another wakes it. The protocol is in `README.md`.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::thread::{self, Thread};
use std::time::Duration;

use crossbeam_utils::CachePadded;

/// One thread looks for work, in a launch or for one.
pub(crate) const LOOKING: u64 = 1;
/// One thread sleeps that would execute if it were woken.
pub(crate) const SLEEPING: u64 = 1 << 16;
/// One seat of the launch at the front of the queue is free.
pub(crate) const FREE: u64 = 1 << 32;

/// Numbers of threads. Changed by [`Signal::add`] with the constants above.
#[derive(Debug)]
pub(crate) struct Signal(CachePadded<AtomicU64>);

/// What a [`Signal`] said at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Heads(u64);

impl Heads {
    pub(crate) fn looking(self) -> u64 {
        self.0 % SLEEPING
    }

    pub(crate) fn sleeping(self) -> u64 {
        self.0 / SLEEPING % SLEEPING
    }

    pub(crate) fn free(self) -> u64 {
        self.0 / FREE
    }

    /// Whether somebody who sleeps could take work that nobody else is about to find.
    #[inline]
    pub(crate) fn want_waking(self) -> bool {
        self.looking() == 0 && self.sleeping() > 0 && self.free() > 0
    }
}

impl Signal {
    pub(crate) fn new(free: usize) -> Signal {
        Signal(CachePadded::new(AtomicU64::new(FREE * free as u64)))
    }

    /// Adds `more` and takes away `less`; answers what was there before.
    ///
    /// Sequentially consistent: partner is the fence in [`Signal::after_sharing`].
    #[inline]
    pub(crate) fn add(&self, more: u64, less: u64) -> Heads {
        Heads(self.0.fetch_add(more.wrapping_sub(less), Ordering::SeqCst))
    }

    #[inline]
    pub(crate) fn heads(&self) -> Heads {
        Heads(self.0.load(Ordering::Relaxed))
    }

    /// Called after work was put where others find it: whether one of them must be woken for it.
    #[inline]
    pub(crate) fn after_sharing(&self) -> bool {
        // Either a thread that stops looking sees the work in its last check, or this sees that it stopped. Partner:
        // `before_last_check`.
        fence(Ordering::SeqCst);
        self.heads().want_waking()
    }

    /// Called between saying that one no longer looks and checking one last time.
    pub(crate) fn before_last_check() {
        // Partner: `after_sharing`.
        fence(Ordering::SeqCst);
    }
}

/// Why a sleeper was woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Wake {
    /// There is something to execute: the waker counted the sleeper as looking.
    Work = 1,
    /// What it waits for has ended.
    Ended = 2,
}

/// Where one thread sleeps, once.
#[derive(Debug)]
pub(crate) struct Parker {
    thread: Thread,
    woken: AtomicU8,
}

impl Parker {
    /// For the calling thread.
    pub(crate) fn new() -> Parker {
        Parker { thread: thread::current(), woken: AtomicU8::new(0) }
    }

    /// Sleeps until woken or until `timeout` is over, which the caller finds out under the lock.
    pub(crate) fn park(&self, timeout: Option<Duration>) -> Option<Wake> {
        match timeout {
            None => thread::park(),
            Some(timeout) => thread::park_timeout(timeout),
        }
        self.woken()
    }

    /// Sleeps until woken.
    pub(crate) fn park_until_woken(&self) -> Wake {
        loop {
            if let Some(why) = self.park(None) {
                return why;
            }
        }
    }

    /// Why it was woken, if it was.
    pub(crate) fn woken(&self) -> Option<Wake> {
        // Acquire: what the waker did before. Partner: `wake`.
        match self.woken.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Wake::Work),
            _ => Some(Wake::Ended),
        }
    }

    /// Ends the sleep.
    pub(crate) fn wake(&self, why: Wake) {
        // Release: partner of the load in `woken`.
        self.woken.store(why as u8, Ordering::Release);
        self.thread.unpark();
    }
}
