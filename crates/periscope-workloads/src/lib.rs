//! Workloads: an orchestration, its kernels, and a reference that was computed before the run, on the host, in memory that
//! the runtime never sees.
//!
//! [`all`] lists them. A [`Workload`] prepares a case ([`Prepared`]: callable, entry tensors, expected outputs); a
//! [`Session`] puts it on a device under a [`Residency`], runs it any number of times and checks it.

mod check;
pub mod paged_attention;
mod random;
mod scalar_data;
mod session;
pub mod tile;
mod validation;
mod vector_add;
mod workload;

pub use check::{Check, Expected};
pub use paged_attention::PagedAttention;
pub use scalar_data::ScalarData;
pub use session::{Residency, Session};
pub use validation::Validation;
pub use vector_add::VectorAdd;
pub use workload::{Case, EntryTensor, NoProgress, Prepared, Progress, Role, Workload, WorkloadError};

/// Every workload, in the order of `periscope list`.
#[must_use]
pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(PagedAttention), Box::new(VectorAdd), Box::new(ScalarData), Box::new(Validation)]
}

/// The workload of this name.
///
/// # Errors
/// [`WorkloadError::UnknownWorkload`], with the names that exist.
pub fn find(name: &str) -> Result<Box<dyn Workload>, WorkloadError> {
    let known: Vec<&str> = all().iter().map(|workload| workload.name()).collect();
    all()
        .into_iter()
        .find(|workload| workload.name() == name)
        .ok_or_else(|| WorkloadError::UnknownWorkload { name: name.to_owned(), known: known.join(", ") })
}
