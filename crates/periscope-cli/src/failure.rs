//! Why a command did not succeed, as an exit status and a line for a person.

use std::io;
use std::process::ExitCode;

use periscope::{ErrorKind, OpenError};
use periscope_workloads::WorkloadError;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The caller asked for something that does not exist: exit status 2.
    Usage(String),
    /// It was tried and failed: exit status 1.
    Failed(String),
    /// Nobody reads the output any more: not worth a word, and the outcome is not known to be bad.
    OutputClosed,
}

impl Failure {
    pub(crate) fn report(&self) {
        match self {
            Failure::Usage(message) => eprintln!("error: {message}\n\nSee `periscope list` and `periscope --help`."),
            Failure::Failed(message) => eprintln!("error: {message}"),
            Failure::OutputClosed => {}
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Failed(_) => ExitCode::from(1),
            Failure::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

impl From<WorkloadError> for Failure {
    fn from(error: WorkloadError) -> Failure {
        match error {
            WorkloadError::UnknownWorkload { .. } | WorkloadError::UnknownCase { .. } => {
                Failure::Usage(error.to_string())
            }
            WorkloadError::Run(error) => error.into(),
            other => Failure::Failed(other.to_string()),
        }
    }
}

impl From<periscope::Error> for Failure {
    fn from(error: periscope::Error) -> Failure {
        match error.kind() {
            ErrorKind::Open(OpenError::Failed { .. }) => Failure::Failed(error.to_string()),
            ErrorKind::Open(_) => Failure::Usage(error.to_string()),
            _ => Failure::Failed(format!("{error} [{}]", error.code())),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Failed(format!("writing the result: {error}")),
        }
    }
}
