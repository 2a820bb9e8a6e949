//! What a run did, in numbers: for people, for scripts, for tests.

use std::fmt;
use std::time::Duration;

use periscope_memory::{MemoryCounts, ViewReport};
use serde::{Serialize, Serializer};

fn as_us<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    // Nanoseconds are what the clock gives; anything beyond three decimals would be made up.
    serializer.serialize_f64((duration.as_nanos() as f64 / 1e3 * 1e3).round() / 1e3)
}

/// How long each phase of a run took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Phases {
    /// Taking note of the arguments.
    #[serde(serialize_with = "as_us")]
    pub bind: Duration,
    /// The orchestration: building the graph.
    #[serde(serialize_with = "as_us")]
    pub orchestrate: Duration,
    /// Freezing the graph, staging, handing it to the device.
    #[serde(serialize_with = "as_us")]
    pub launch: Duration,
    /// From the launch to the end of the last task.
    #[serde(serialize_with = "as_us")]
    pub execute: Duration,
    /// Copying staged outputs back, bookkeeping.
    #[serde(serialize_with = "as_us")]
    pub collect: Duration,
    /// All of it.
    #[serde(serialize_with = "as_us")]
    pub total: Duration,
}

/// Tensor bytes that the run itself copied between host and device: staging, fills, refreshes, pushes, copy-back. Not
/// the graph image, not loads and stores through a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Bytes {
    /// To the device.
    pub h2d: u64,
    /// To the host.
    pub d2h: u64,
}

/// What happened to host views during the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ViewCounts {
    /// Views established.
    pub established: u64,
    /// Mappings made.
    pub maps: u64,
    /// First transfers into mirrors.
    pub fills: u64,
    /// Transfers of stale bytes into mirrors.
    pub refreshes: u64,
    /// Range-list transfers of host writes.
    pub pushes: u64,
    /// Windows opened.
    pub windows: u64,
    /// Views released.
    pub releases: u64,
}

impl From<MemoryCounts> for ViewCounts {
    fn from(counts: MemoryCounts) -> Self {
        ViewCounts {
            established: counts.established,
            maps: counts.maps,
            fills: counts.fills,
            refreshes: counts.refreshes,
            pushes: counts.pushes,
            windows: counts.windows,
            releases: counts.releases,
        }
    }
}

/// The host view of one of the run's tensors, with its totals so far.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TensorView {
    /// The entry tensor's name.
    pub tensor: String,
    /// `identity`, `mapped`, `windowed` or `mirrored`.
    pub mechanism: &'static str,
    /// Why.
    pub reason: String,
    /// Mapped: its span. Mirrored: bytes filled so far.
    pub bytes: u64,
    /// Elements and ranges read.
    pub reads: u64,
    /// Elements and ranges written.
    pub writes: u64,
    /// Transfers of stale bytes.
    pub refreshes: u64,
    /// Transfers of host writes.
    pub pushes: u64,
}

impl TensorView {
    pub(crate) fn new(tensor: &str, report: ViewReport) -> Self {
        TensorView {
            tensor: tensor.to_owned(),
            mechanism: report.mechanism.name(),
            reason: report.reason,
            bytes: report.bytes,
            reads: report.reads,
            writes: report.writes,
            refreshes: report.refreshes,
            pushes: report.pushes,
        }
    }
}

/// What one run did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The run's number on its device, from 1.
    pub run: u64,
    /// The callable's name.
    pub callable: String,
    /// The device's URI.
    pub platform: String,
    /// Tasks submitted.
    pub tasks: u64,
    /// Joins that inference added.
    pub inferred_joins: u64,
    /// Edges between tasks.
    pub edges: u64,
    /// How long each phase took, in microseconds.
    pub phases_us: Phases,
    /// Bytes copied.
    pub bytes: Bytes,
    /// Host views, in total.
    pub views: ViewCounts,
    /// Host views of the run's resident tensors: of those that orchestrations have touched.
    pub tensor_views: Vec<TensorView>,
    /// Device memory that the graph allocated.
    pub graph_memory_bytes: u64,
    /// Bytes of the frozen image.
    pub image_bytes: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phases = &self.phases_us;
        writeln!(
            f,
            "run {} of `{}` on {}: {} tasks, {} edges",
            self.run, self.callable, self.platform, self.tasks, self.edges
        )?;
        writeln!(
            f,
            "  {:.1?} = bind {:.1?} + orchestrate {:.1?} + launch {:.1?} + execute {:.1?} + collect {:.1?}",
            phases.total, phases.bind, phases.orchestrate, phases.launch, phases.execute, phases.collect
        )?;
        write!(f, "  copied {} B to the device, {} B to the host", self.bytes.h2d, self.bytes.d2h)?;
        for view in &self.tensor_views {
            write!(
                f,
                "\n  host view of `{}`: {} ({}), {} B, {} reads, {} writes",
                view.tensor, view.mechanism, view.reason, view.bytes, view.reads, view.writes
            )?;
        }
        Ok(())
    }
}
