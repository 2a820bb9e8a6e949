//! One build at a time: whoever builds a graph on a device, or transfers outside a run, has the device's turn.
//!
//! A check made during a build ("these bytes have no writer") therefore stays true until its launch. Other threads wait.
//! The thread that has the turn cannot wait for itself, so it is refused at once: that is an orchestration that calls
//! `run` or `upload` of its own device.

use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use periscope_hal::kernel::on_kernel_thread;

/// The caller would wait for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TurnError {
    /// The calling thread has the turn already.
    #[error(
        "a run of this device is being built or waited for by this very thread: runs and transfers of the device cannot be started from its orchestration or its kernels"
    )]
    Held,
    /// The calling thread executes kernels, and the run that the kernel belongs to has the turn, or waits for one that has.
    #[error("runs and transfers cannot be started from a kernel: the device would wait for itself")]
    InKernel,
}

/// Hands out the turn of one device.
#[derive(Debug, Default)]
pub struct Turns {
    holder: Mutex<Option<ThreadId>>,
    freed: Condvar,
}

/// The turn. Given back when dropped. Stays in its thread: what has the turn relies on being alone.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    /// Neither `Send` nor `Sync`.
    one_thread: PhantomData<*const ()>,
}

impl Turns {
    /// Waits for the turn and takes it.
    ///
    /// # Errors
    /// [`TurnError`] if the calling thread has it, or is one that executes kernels.
    pub fn take(self: &Arc<Turns>) -> Result<Turn, TurnError> {
        if on_kernel_thread() {
            return Err(TurnError::InKernel);
        }
        let me = thread::current().id();
        let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(other) = *holder {
            if other == me {
                return Err(TurnError::Held);
            }
            holder = self.freed.wait(holder).unwrap_or_else(PoisonError::into_inner);
        }
        *holder = Some(me);
        drop(holder);
        Ok(Turn { turns: Arc::clone(self), one_thread: PhantomData })
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
        assert_eq!(turns.take().unwrap_err(), TurnError::Held);
        let other = Arc::clone(&turns);
        let thread = thread::spawn(move || drop(other.take().unwrap()));
        drop(turn);
        thread.join().unwrap();
        drop(turns.take().unwrap());
    }
}
