//! What a clause is and how it ends.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use periscope_hal::{DeviceUri, Platform};

/// A device under test: clauses open it as often as they like.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The platform.
    pub platform: &'a dyn Platform,
    /// Which of its devices.
    pub uri: &'a DeviceUri,
}

/// One rule of the device contract, as a test.
#[derive(Clone, Copy)]
pub struct Clause {
    /// `buffer`, `copy`, `map`, `window`, `kernel`, `launch` or `failure`.
    pub group: &'static str,
    /// The rule in words, as an identifier.
    pub name: &'static str,
    pub(crate) test: fn(Subject<'_>) -> Outcome,
}

/// How a clause ended for a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The device keeps the rule.
    Passed,
    /// The rule does not apply to this device, and never will.
    Unsupported {
        /// Why.
        reason: String,
    },
    /// The device breaks the rule.
    Failed {
        /// What was seen.
        message: String,
    },
}

/// What the body of a clause answers.
pub(crate) type Outcome = Result<(), Stop>;

/// Why the body of a clause ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    Unsupported(String),
    Failed(String),
}

/// Any error that a clause did not ask for is a failure.
impl<E: Display> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Failed(error.to_string())
    }
}

pub(crate) fn unsupported<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Unsupported(reason.into()))
}

/// Ends a clause as failed unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::clause::Stop::Failed(format!($($message)+)));
        }
    };
}

/// Ends a clause as failed unless both are equal.
macro_rules! ensure_eq {
    ($got:expr, $expected:expr, $($what:tt)+) => {
        match (&$got, &$expected) {
            (got, expected) => {
                if got != expected {
                    let what = format!($($what)+);
                    return Err($crate::clause::Stop::Failed(format!("{what}: expected {expected:?}, got {got:?}")));
                }
            }
        }
    };
}

pub(crate) use {ensure, ensure_eq};

impl Clause {
    /// Puts a device to the test. Never panics: a panic of the clause is a failure.
    #[must_use]
    pub fn verdict(&self, subject: Subject<'_>) -> Verdict {
        match catch_unwind(AssertUnwindSafe(|| (self.test)(subject))) {
            Ok(Ok(())) => Verdict::Passed,
            Ok(Err(Stop::Unsupported(reason))) => Verdict::Unsupported { reason },
            Ok(Err(Stop::Failed(message))) => Verdict::Failed { message },
            Err(panic) => Verdict::Failed { message: format!("panicked: {}", panic_message(&*panic)) },
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (_, Some(message)) => message,
        _ => "no message",
    }
}
