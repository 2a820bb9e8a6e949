//! One build at a time: whoever builds a graph on a device, or transfers outside a run, has the device's turn.
//!
//! A check made during a build ("these bytes have no writer") therefore stays true until its launch. Other threads wait.
//! The thread that has the turn cannot wait for itself, so it is refused at once: that is an orchestration that calls
//! `run` or `upload` of its own device.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// The calling thread has the turn already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a graph is being built on this device by this very thread: runs and transfers of the device cannot be started from its orchestration"
)]
pub struct TurnError;

/// Hands out the turn of one device.
#[derive(Debug, Default)]
pub struct Turns {
    holder: Mutex<Option<ThreadId>>,
    freed: Condvar,
}

/// The turn. Given back when dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
}

impl Turns {
    /// Waits for the turn and takes it.
    ///
    /// # Errors
    /// [`TurnError`] if the calling thread has it.
    pub fn take(self: &Arc<Turns>) -> Result<Turn, TurnError> {
        let me = thread::current().id();
        let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(other) = *holder {
            if other == me {
                return Err(TurnError);
            }
            holder = self.freed.wait(holder).unwrap_or_else(PoisonError::into_inner);
        }
        *holder = Some(me);
        drop(holder);
        Ok(Turn { turns: Arc::clone(self) })
    }
}

impl Turn {
    /// Whether this is a turn of `turns`.
    pub(crate) fn is_of(&self, turns: &Arc<Turns>) -> bool {
        Arc::ptr_eq(&self.turns, turns)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.turns.holder.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.turns.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_thread_is_refused_and_others_wait() {
        let turns = Arc::new(Turns::default());
        let turn = turns.take().unwrap();
        assert_eq!(turns.take().unwrap_err(), TurnError);
        let other = Arc::clone(&turns);
        let thread = thread::spawn(move || drop(other.take().unwrap()));
        drop(turn);
        thread.join().unwrap();
        drop(turns.take().unwrap());
    }
}
