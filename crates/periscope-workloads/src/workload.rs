//! What a workload is.

use periscope::{Callable, Direction, HostTensor};

use crate::check::Expected;

/// Told how far a long preparation is.
pub trait Progress: Sync {
    /// `done` of `total` steps of `what`.
    fn step(&self, what: &str, done: u64, total: u64);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn step(&self, _what: &str, _done: u64, _total: u64) {}
}

/// A row of parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: String,
}

/// Whether the mixed residency keeps a tensor on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Data: resident when mixed.
    Large,
    /// Read or written by the orchestrator: staged when mixed.
    Control,
}

/// An entry tensor with its first values.
#[derive(Clone, Debug)]
pub struct EntryTensor {
    /// Its name, as in the callable's signature.
    pub name: &'static str,
    /// What a run does with it.
    pub direction: Direction,
    /// Its part in the mixed residency.
    pub role: Role,
    /// Its values before a run. (Of an OUT: zeros that no kernel sees.)
    pub host: HostTensor,
}

/// A case, ready to run.
#[derive(Debug)]
pub struct Prepared {
    /// Orchestration and kernels.
    pub callable: Callable,
    /// In the order of the callable's signature.
    pub tensors: Vec<EntryTensor>,
    /// For the orchestration.
    pub scalars: Vec<u64>,
    /// What a run must leave in entry tensors.
    pub expected: Vec<Expected>,
    /// Floating-point operations of a run that the GFLOP/s count; 0 if that means nothing.
    pub flops: u64,
}

/// A workload or case cannot be had.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// No workload has this name.
    #[error("there is no workload `{name}`; there are: {known}")]
    UnknownWorkload {
        /// The name given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The workload has no such case.
    #[error("`{workload}` has no case `{name}`; there are: {known}")]
    UnknownCase {
        /// The workload.
        workload: &'static str,
        /// The name given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// Preparing or running it failed.
    #[error(transparent)]
    Run(#[from] periscope::Error),
}

/// An orchestration, kernels and a reference.
pub trait Workload: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;
    /// What it is, in a line.
    fn about(&self) -> &'static str;
    /// Its cases.
    fn cases(&self) -> Vec<Case>;
    /// The case that runs if none is named.
    fn default_case(&self) -> &'static str;
    /// Generates the inputs of a case from `seed` and computes the reference.
    ///
    /// # Errors
    /// [`WorkloadError::UnknownCase`], with the names that exist.
    fn prepare(&self, case: &str, seed: u64, progress: &dyn Progress) -> Result<Prepared, WorkloadError>;

    /// The error for a case that does not exist.
    fn unknown_case(&self, name: &str) -> WorkloadError {
        let known: Vec<&str> = self.cases().iter().map(|case| case.name).collect();
        WorkloadError::UnknownCase { workload: self.name(), name: name.to_owned(), known: known.join(", ") }
    }
}
