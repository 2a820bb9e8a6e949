//! What can go wrong, by who can mend it.
//!
//! Every error names what it is about: tensor, index or range, task, what was expected and what was found, and what to
//! do next. [`Error::code`] is stable: other languages and scripts rely on it.

use std::fmt;
use std::ops::Range;

use periscope_core::graph::{ScopeError, SubmitError};
use periscope_core::image::ImageError;
use periscope_core::{DType, Direction, LayoutError};
use periscope_hal::{LaunchError, OpenError};
use periscope_memory::{MemoryError, TurnError};

/// Where in a tensor an access was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// One element.
    Index(Vec<u64>),
    /// All of a tensor or view of this shape.
    Whole(Vec<u64>),
    /// Somewhere in the memory that the tensor lies in.
    Memory,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Index(index) => write!(f, "element {index:?}"),
            Place::Whole(shape) => write!(f, "the view of shape {shape:?}"),
            Place::Memory => f.write_str("its memory"),
        }
    }
}

/// What was refused or failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A view, shape or index that is not possible.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// An index that the tensor does not have.
    #[error("tensor `{tensor}`: {source}")]
    Index {
        /// The tensor.
        tensor: String,
        /// What is wrong with the index.
        source: LayoutError,
    },
    /// Another number of elements than the shape has.
    #[error("{elems} elements were given for shape {shape:?}")]
    ElementCount {
        /// The shape.
        shape: Vec<u64>,
        /// Elements given.
        elems: u64,
    },
    /// Access with the wrong element type.
    #[error("tensor `{tensor}` is of {expected}, it was accessed as {got}")]
    DType {
        /// The tensor.
        tensor: String,
        /// Its element type.
        expected: DType,
        /// The type of the access.
        got: DType,
    },
    /// A run was given another number of tensors than its callable has.
    #[error("`{callable}` takes {expected} tensors, {got} were given")]
    ArgumentCount {
        /// The callable.
        callable: String,
        /// Its entry tensors.
        expected: usize,
        /// Arguments given.
        got: usize,
    },
    /// An argument that cannot serve as what the signature says.
    #[error("argument `{tensor}` of `{callable}` is {}: {problem}", direction.name())]
    Argument {
        /// The callable.
        callable: String,
        /// The entry tensor.
        tensor: String,
        /// Its direction.
        direction: Direction,
        /// What is wrong.
        problem: String,
    },
    /// Bytes that a task of this graph writes were read or written by the orchestrator.
    #[error(
        "{access} of tensor `{tensor}`, {place}: {task} of this graph writes these bytes, and nothing of a graph runs before it is \
         launched; {access} it before submitting that task, or in the next run"
    )]
    HasWriter {
        /// `read` or `write`.
        access: &'static str,
        /// The tensor.
        tensor: String,
        /// Where.
        place: Place,
        /// The task that writes.
        task: String,
    },
    /// Bytes that a task of this graph reads were written by the orchestrator.
    #[error(
        "write of tensor `{tensor}`, {place}: {task} of this graph reads these bytes and was submitted to see them as they are; \
         write them before submitting that task, or in the next run"
    )]
    HasReader {
        /// The tensor.
        tensor: String,
        /// Where.
        place: Place,
        /// The task that reads.
        task: String,
    },
    /// Bytes that were never given a value.
    #[error("read of tensor `{tensor}`, {place}: bytes {}..{} of its memory have no value yet; upload, write, or run a task that writes them", bytes.start, bytes.end)]
    NoValue {
        /// The tensor.
        tensor: String,
        /// Where.
        place: Place,
        /// The bytes without a value, in the tensor's memory.
        bytes: Range<u64>,
    },
    /// Bytes that a failed run may have written.
    #[error("tensor `{tensor}`, {place}: run {run} failed and may have written bytes {}..{} of its memory; rewrite them first", bytes.start, bytes.end)]
    Poisoned {
        /// The tensor.
        tensor: String,
        /// Where.
        place: Place,
        /// The run that failed.
        run: u64,
        /// The bytes, in the tensor's memory.
        bytes: Range<u64>,
    },
    /// The tensor's memory has been freed.
    #[error("tensor `{tensor}` has been freed: its last owner was dropped")]
    Freed {
        /// The tensor.
        tensor: String,
    },
    /// The tensor lives on another opened device.
    #[error("tensor `{tensor}` lives on another device than this run's: pass it to a run of its own device")]
    Foreign {
        /// The tensor.
        tensor: String,
    },
    /// A handle that no memory of this device ever had.
    #[error("tensor `{tensor}` is no tensor of this device")]
    Unknown {
        /// The tensor.
        tensor: String,
    },
    /// A staged tensor or graph memory of another run.
    #[error("the tensor belonged to another run: staged tensors and graph memory end with theirs")]
    OtherBuild,
    /// Graph memory whose scope has ended.
    #[error("{tensor}: the scope that it was allocated in has ended")]
    ScopeEnded {
        /// The tensor.
        tensor: String,
    },
    /// Two positions of a view to be written are the same element.
    #[error("tensor `{tensor}`: two positions of the view {layout} are one element, so it cannot be written")]
    RepeatsElements {
        /// The tensor.
        tensor: String,
        /// Shape and strides.
        layout: String,
    },
    /// Two tensors between which nothing can be copied.
    #[error("copying to tensor `{tensor}`: {problem}")]
    CopyMismatch {
        /// The destination.
        tensor: String,
        /// What does not fit.
        problem: String,
    },
    /// A task was refused.
    #[error("submitting task {task}: {source}{}", tensor.as_ref().map(|tensor| format!(" (tensor `{tensor}`)")).unwrap_or_default())]
    Submit {
        /// The number that the task would have had.
        task: u64,
        /// The tensor that it is about, if one.
        tensor: Option<String>,
        /// Why.
        source: SubmitError,
    },
    /// A scope was ended that had not begun, or the other way round.
    #[error("{0}")]
    Scope(#[from] ScopeError),
    /// A run or transfer was started from an orchestration of the same device.
    #[error("{0}")]
    Turn(#[from] TurnError),
    /// Memory could not be had.
    #[error("{0}")]
    Memory(MemoryError),
    /// Memory of a tensor could not be had, or its bytes not be moved.
    #[error("tensor `{tensor}`, {place}: {source}")]
    Transfer {
        /// The tensor.
        tensor: String,
        /// Where.
        place: Place,
        /// Why.
        source: MemoryError,
    },
    /// A device could not be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The launch failed: the first cause.
    #[error("run {run} failed: {source}")]
    Run {
        /// The run's number on its device.
        run: u64,
        /// Why.
        source: LaunchError,
    },
    /// An image that cannot be executed.
    #[error("{0}")]
    Image(#[from] ImageError),
    /// An image does not fit what it is to be executed with.
    #[error("the image cannot be executed here: {problem}")]
    ImageMismatch {
        /// What does not fit.
        problem: String,
    },
    /// The orchestration's own refusal.
    #[error("{0}")]
    Orchestration(String),
}

/// Why something was refused or failed.
#[derive(Clone, PartialEq, Debug)]
pub struct Error {
    // Boxed, so that the results of element reads stay small.
    kind: Box<ErrorKind>,
}

impl Error {
    /// An orchestration's own error, in its own words.
    pub fn orchestration(message: impl fmt::Display) -> Error {
        ErrorKind::Orchestration(message.to_string()).into()
    }

    pub(crate) fn layout(error: LayoutError) -> Error {
        ErrorKind::Layout(error).into()
    }

    pub(crate) fn element_count(shape: &[u64], elems: u64) -> Error {
        ErrorKind::ElementCount { shape: shape.to_vec(), elems }.into()
    }

    /// A memory error about a tensor of this name.
    pub(crate) fn memory(error: MemoryError, tensor: &str, place: impl FnOnce() -> Place) -> Error {
        let tensor = tensor.to_owned();
        match error {
            MemoryError::Freed { .. } => ErrorKind::Freed { tensor },
            MemoryError::Foreign { .. } => ErrorKind::Foreign { tensor },
            MemoryError::Unknown { .. } => ErrorKind::Unknown { tensor },
            MemoryError::NoValue { range } => ErrorKind::NoValue { tensor, place: place(), bytes: range },
            MemoryError::Poisoned { range, run } => ErrorKind::Poisoned { tensor, place: place(), run, bytes: range },
            MemoryError::Turn(error) => ErrorKind::Turn(error),
            source => ErrorKind::Transfer { tensor, place: place(), source },
        }
        .into()
    }

    /// What was refused or failed.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// A number that stays the same between versions: the hundreds say who can mend it (1 the caller's arguments, 2 the
    /// order of accesses, 3 lifetimes, 4 a submitted task, 5 resources, 6 a run, 7 an image, 9 the orchestration).
    #[must_use]
    pub fn code(&self) -> u32 {
        match &*self.kind {
            ErrorKind::Layout(_) => 101,
            ErrorKind::Index { .. } => 102,
            ErrorKind::ElementCount { .. } => 103,
            ErrorKind::DType { .. } => 104,
            ErrorKind::ArgumentCount { .. } => 105,
            ErrorKind::Argument { .. } => 106,
            ErrorKind::RepeatsElements { .. } => 107,
            ErrorKind::CopyMismatch { .. } => 108,
            ErrorKind::HasWriter { .. } => 201,
            ErrorKind::HasReader { .. } => 202,
            // 203 is for bytes of a run in flight.
            ErrorKind::NoValue { .. } => 204,
            ErrorKind::Poisoned { .. } => 205,
            ErrorKind::Freed { .. } => 301,
            ErrorKind::Foreign { .. } => 302,
            ErrorKind::Unknown { .. } => 303,
            ErrorKind::OtherBuild => 304,
            ErrorKind::ScopeEnded { .. } => 305,
            ErrorKind::Turn(_) => 306,
            ErrorKind::Scope(_) => 400,
            // 401 to 424, by cause.
            ErrorKind::Submit { source, .. } => 400 + source.code(),
            ErrorKind::Memory(MemoryError::ZeroSize) => 109,
            ErrorKind::Memory(_) => 501,
            ErrorKind::Transfer { .. } => 503,
            ErrorKind::Open(_) => 502,
            ErrorKind::Run { .. } => 601,
            ErrorKind::Image(_) => 701,
            ErrorKind::ImageMismatch { .. } => 702,
            ErrorKind::Orchestration(_) => 901,
        }
    }
}

impl<K: Into<ErrorKind>> From<K> for Error {
    fn from(kind: K) -> Error {
        Error { kind: Box::new(kind.into()) }
    }
}

impl From<MemoryError> for ErrorKind {
    fn from(error: MemoryError) -> ErrorKind {
        match error {
            MemoryError::Turn(error) => ErrorKind::Turn(error),
            other => ErrorKind::Memory(other),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}
