//! Why a task, or the end of a scope, was refused.
//!
//! One variant per cause, with the numbers in its fields. A refused task leaves the graph as it was.

use std::fmt;

use crate::dtype::DType;
use crate::ids::{ObjectId, TaskId};
use crate::task::{CoreKind, Direction};

/// Which tensor of a task an error speaks of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// The access at this position.
    Tensor(usize),
    /// The element that the predicate reads.
    Predicate,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Argument::Tensor(position) => write!(f, "argument {position}"),
            Argument::Predicate => f.write_str("the predicate's tensor"),
        }
    }
}

/// Why a task was refused. The graph is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The callable has no kernel under this number.
    #[error("kernel {kernel} does not exist: the callable has {kernels}")]
    UnknownKernel {
        /// The number given.
        kernel: u16,
        /// How many kernels there are.
        kernels: usize,
    },
    /// A task has at most three lanes.
    #[error("{lanes} lanes, a task has at most 3")]
    TooManyLanes {
        /// Lanes asked for.
        lanes: usize,
    },
    /// Lanes share their arguments, so their signatures must be the same but for the kind of core.
    #[error("lane {lane} (`{other}`) takes other arguments than lane 0 (`{first}`)")]
    LanesDiffer {
        /// The lane that differs.
        lane: usize,
        /// Kernel of lane 0.
        first: String,
        /// Kernel of that lane.
        other: String,
    },
    /// A cluster has one cube core and two vector cores.
    #[error("{lanes} lanes on {} cores, a cluster has {most}", kind.name())]
    LanesOfOneKind {
        /// The kind of core.
        kind: CoreKind,
        /// Lanes of that kind.
        lanes: usize,
        /// The most that fit.
        most: usize,
    },
    /// Too few or too many arguments.
    #[error("kernel `{kernel}` takes {} arguments, {got} were given", Counts(*min, *max))]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// Fewest (those at the end that may be left out not counted).
        min: usize,
        /// Most.
        max: usize,
        /// Given.
        got: usize,
    },
    /// An argument of another element type than the kernel takes.
    #[error("{argument} of kernel `{kernel}` is of {expected}, {got} was given")]
    ArgumentDType {
        /// The kernel.
        kernel: String,
        /// The argument.
        argument: Argument,
        /// What the kernel takes.
        expected: DType,
        /// What was given.
        got: DType,
    },
    /// An argument submitted under another direction than the kernel declares.
    #[error("{argument} of kernel `{kernel}` is {}, it was submitted as {}", expected.name(), got.name())]
    ArgumentDirection {
        /// The kernel.
        kernel: String,
        /// The argument.
        argument: Argument,
        /// What the kernel declares.
        expected: Direction,
        /// What was submitted.
        got: Direction,
    },
    /// Too few or too many scalars.
    #[error("kernel `{kernel}` takes {expected} scalars, {got} were given")]
    ScalarCount {
        /// The kernel, or `join`.
        kernel: String,
        /// What it takes.
        expected: usize,
        /// Given.
        got: usize,
    },
    /// The tensor reaches beyond the end of its object.
    #[error("{argument} needs bytes {start}..{end} of {object:?}, which has {len_bytes}")]
    OutsideObject {
        /// The argument.
        argument: Argument,
        /// The object.
        object: ObjectId,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes of the object.
        len_bytes: u64,
    },
    /// No object of this build has this number.
    #[error("{argument} is of {object:?}, this graph has {objects} objects")]
    UnknownObject {
        /// The argument.
        argument: Argument,
        /// The object named.
        object: ObjectId,
        /// How many there are.
        objects: usize,
    },
    /// Graph memory whose scope has ended.
    #[error("{argument} is of {object:?}, whose scope has ended")]
    ObjectClosed {
        /// The argument.
        argument: Argument,
        /// The object.
        object: ObjectId,
    },
    /// A written view in which two indices may name the same element.
    #[error("{argument} is written, but elements of shape {shape:?} with strides {strides:?} fall on each other")]
    AliasedWrite {
        /// The argument.
        argument: Argument,
        /// The object.
        object: ObjectId,
        /// The view's shape.
        shape: Vec<u64>,
        /// Its strides in elements.
        strides: Vec<u64>,
    },
    /// Two arguments of the task share bytes and one of them is written.
    #[error("{first} and {second} overlap in {object:?} and one of them is written: make it one INOUT")]
    ArgumentsOverlap {
        /// The earlier argument.
        first: Argument,
        /// The later one.
        second: Argument,
        /// The object of both.
        object: ObjectId,
    },
    /// A task would write bytes of an entry tensor that the signature does not declare as written.
    #[error("{argument} writes bytes of {object:?} that no OUT or INOUT entry tensor covers")]
    NotAnOutput {
        /// The argument.
        argument: Argument,
        /// The object.
        object: ObjectId,
    },
    /// A task has at least one block.
    #[error("a task has at least 1 block, 0 were asked for")]
    NoBlocks,
    /// Blocks that start together need a core each.
    #[error("{asked} {} cores are needed to start all blocks together, the device has {cores}", kind.name())]
    TooManyBlocks {
        /// The kind of core.
        kind: CoreKind,
        /// Cores needed: blocks times lanes of the kind.
        asked: u64,
        /// Cores of the device.
        cores: u32,
    },
    /// A written argument of a task of several blocks must say how the blocks share it.
    #[error("{argument} is written by {blocks} blocks: name the dimension that splits it among them")]
    NotSplit {
        /// The argument.
        argument: Argument,
        /// Blocks of the task.
        blocks: u32,
    },
    /// The dimension that splits an argument does not exist.
    #[error("{argument} is to be split along dimension {dim}, it has {rank}")]
    SplitDimension {
        /// The argument.
        argument: Argument,
        /// The dimension named.
        dim: u8,
        /// Dimensions of the tensor.
        rank: usize,
    },
    /// The dimension that splits an argument does not fall into equal parts.
    #[error("{argument} is to be split along dimension {dim} of length {len}, which {blocks} blocks do not divide")]
    SplitUneven {
        /// The argument.
        argument: Argument,
        /// The dimension.
        dim: u8,
        /// Its length.
        len: u64,
        /// Blocks of the task.
        blocks: u32,
    },
    /// An explicit edge from a task that does not exist.
    #[error("explicit edge {position} names {after}, only {tasks} tasks exist")]
    UnknownTask {
        /// Position in `after`.
        position: usize,
        /// The task named.
        after: TaskId,
        /// Tasks so far, inferred joins included: the first number that does not exist.
        tasks: usize,
    },
    /// A predicate reads exactly one element.
    #[error("the predicate's tensor has {elems} elements, it needs exactly 1")]
    PredicateElems {
        /// Elements of the tensor.
        elems: u64,
    },
    /// A predicate cannot compare elements of this type.
    #[error("the predicate's tensor is of {dtype}, whose elements cannot be compared")]
    PredicateDType {
        /// The element type.
        dtype: DType,
    },
    /// In a checked manual scope, two tasks touch common bytes, one of them writes, and no path of edges orders them.
    #[error("{argument} of {later} meets {earlier} in {object:?}, and no explicit edge orders them")]
    UncoveredHazard {
        /// The argument of the task that was refused.
        argument: Argument,
        /// The object of both.
        object: ObjectId,
        /// The earlier task.
        earlier_task: TaskId,
        /// The earlier task, as [`GraphBuilder::describe`](super::GraphBuilder::describe) words it.
        earlier: String,
        /// The refused task, worded likewise under the number that it would have had.
        later: String,
    },
    /// A limit is reached.
    #[error("{resource}: {needed} needed, the limit is {limit}; raise `{setting}`")]
    Exhausted {
        /// What there is too little of.
        resource: &'static str,
        /// How many would be needed in all.
        needed: u64,
        /// How many there may be.
        limit: u64,
        /// The setting that raises the limit.
        setting: &'static str,
    },
}

impl SubmitError {
    /// A small number that stays the same between versions.
    #[must_use]
    pub fn code(&self) -> u32 {
        use SubmitError as E;
        match self {
            E::UnknownKernel { .. } => 1,
            E::TooManyLanes { .. } => 2,
            E::LanesDiffer { .. } => 3,
            E::LanesOfOneKind { .. } => 4,
            E::ArgumentCount { .. } => 5,
            E::ArgumentDType { .. } => 6,
            E::ArgumentDirection { .. } => 7,
            E::ScalarCount { .. } => 8,
            E::OutsideObject { .. } => 9,
            E::UnknownObject { .. } => 10,
            E::ObjectClosed { .. } => 11,
            E::AliasedWrite { .. } => 12,
            E::ArgumentsOverlap { .. } => 13,
            E::NotAnOutput { .. } => 14,
            E::NoBlocks => 15,
            E::TooManyBlocks { .. } => 16,
            E::NotSplit { .. } => 17,
            E::SplitDimension { .. } => 18,
            E::SplitUneven { .. } => 19,
            E::UnknownTask { .. } => 20,
            E::PredicateElems { .. } => 21,
            E::PredicateDType { .. } => 22,
            E::UncoveredHazard { .. } => 23,
            E::Exhausted { .. } => 24,
        }
    }

    /// The argument that the refusal is about, if it is about one.
    #[must_use]
    pub fn argument(&self) -> Option<Argument> {
        use SubmitError as E;
        match self {
            E::ArgumentDType { argument, .. }
            | E::ArgumentDirection { argument, .. }
            | E::OutsideObject { argument, .. }
            | E::UnknownObject { argument, .. }
            | E::ObjectClosed { argument, .. }
            | E::AliasedWrite { argument, .. }
            | E::ArgumentsOverlap { second: argument, .. }
            | E::NotAnOutput { argument, .. }
            | E::NotSplit { argument, .. }
            | E::SplitDimension { argument, .. }
            | E::SplitUneven { argument, .. }
            | E::UncoveredHazard { argument, .. } => Some(*argument),
            E::PredicateElems { .. } | E::PredicateDType { .. } => Some(Argument::Predicate),
            _ => None,
        }
    }
}

struct Counts(usize, usize);

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == self.1 { write!(f, "{}", self.0) } else { write!(f, "{} to {}", self.0, self.1) }
    }
}

/// Why a scope cannot end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// Every scope that was begun has ended.
    #[error("no scope is open: there are more ends than begins")]
    NotOpen,
    /// The body of a scope began or ended more scopes than it ended or began.
    #[error("{found} scopes are open at the end of a scope's body, {expected} were at its start")]
    Unbalanced {
        /// Scopes open at the start of the body, the body's own included.
        expected: usize,
        /// Scopes open at its end.
        found: usize,
    },
}
