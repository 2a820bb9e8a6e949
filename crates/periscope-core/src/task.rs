//! A task as plain data: what the typed front of the runtime, a C interface and an image all boil down to.
//!
//! `T` stands for a tensor: the runtime fills in its handles, the graph builder sees [`ObjectRegion`]s.

use crate::dtype::DType;
use crate::ids::{ObjectId, TaskId};
use crate::layout::Region;

/// What a task does with an argument, or a run with an entry tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Direction {
    /// Only read.
    In = 0,
    /// Written without regard to what was there.
    Out = 1,
    /// Read and written.
    InOut = 2,
}

impl Direction {
    /// Whether previous bytes matter.
    #[must_use]
    #[inline]
    pub fn reads(self) -> bool {
        self != Direction::Out
    }

    /// Whether bytes change.
    #[must_use]
    #[inline]
    pub fn writes(self) -> bool {
        self != Direction::In
    }

    /// `IN`, `OUT` or `INOUT`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Direction::In => "IN",
            Direction::Out => "OUT",
            Direction::InOut => "INOUT",
        }
    }

    /// The direction with this code, as stored in an image.
    #[must_use]
    #[inline]
    pub fn from_code(code: u8) -> Option<Direction> {
        match code {
            0 => Some(Direction::In),
            1 => Some(Direction::Out),
            2 => Some(Direction::InOut),
            _ => None,
        }
    }
}

/// The kind of core that a kernel runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum CoreKind {
    /// Matrix core, one per cluster.
    Cube = 0,
    /// Vector core.
    Vector = 1,
}

impl CoreKind {
    /// `cube` or `vector`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CoreKind::Cube => "cube",
            CoreKind::Vector => "vector",
        }
    }
}

/// A kernel's number within its callable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct KernelId(pub u16);

/// What a kernel expects of its arguments. Checked when a task is submitted, so that a kernel may rely on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelSignature {
    /// The name under which another process finds the same kernel.
    pub name: String,
    /// The kind of core it runs on.
    pub core: CoreKind,
    /// Its tensor arguments in order.
    pub params: Vec<KernelParam>,
    /// How many u64 scalars it takes.
    pub scalars: usize,
}

/// One tensor argument of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelParam {
    /// What the kernel does with it.
    pub direction: Direction,
    /// Its element type; `None` accepts any.
    pub dtype: Option<DType>,
    /// Whether a task may leave it out (only at the end of the list).
    pub optional: bool,
}

/// An argument of a task.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Access<T> {
    /// The tensor.
    pub tensor: T,
    /// What the task does with it.
    pub direction: Direction,
    /// For a task of several blocks: the dimension along which block `i` gets the `i`-th equal part. `None`: every
    /// block gets the whole, which is allowed for an IN argument only (or by promise, see [`TaskDesc::blocks_disjoint_by_promise`]).
    pub split_dim: Option<u8>,
}

/// How a predicate compares the device's element with its constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Comparison {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Ne = 1,
    /// Less.
    Lt = 2,
    /// Less or equal.
    Le = 3,
    /// Greater.
    Gt = 4,
    /// Greater or equal.
    Ge = 5,
}

impl Comparison {
    /// The comparison with this code, as stored in an image.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Comparison> {
        use Comparison::{Eq, Ge, Gt, Le, Lt, Ne};
        [Eq, Ne, Lt, Le, Gt, Ge].into_iter().find(|&comparison| comparison as u8 == code)
    }

    /// Whether the comparison holds for values that compare like this (`None`: unordered, as with a NaN).
    #[must_use]
    pub fn holds(self, ordering: Option<std::cmp::Ordering>) -> bool {
        use std::cmp::Ordering::{Equal, Greater, Less};
        match self {
            Comparison::Eq => ordering == Some(Equal),
            Comparison::Ne => ordering != Some(Equal),
            Comparison::Lt => ordering == Some(Less),
            Comparison::Le => matches!(ordering, Some(Less | Equal)),
            Comparison::Gt => ordering == Some(Greater),
            Comparison::Ge => matches!(ordering, Some(Greater | Equal)),
        }
    }
}

/// Runs a task's kernel only if one device element, read when the task would start, compares as asked. The element is
/// an IN of the task; a predicated task's OUT arguments count as INOUT, since they may stay as they were.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Predicate<T> {
    /// A tensor of one element.
    pub tensor: T,
    /// The comparison, element on the left.
    pub comparison: Comparison,
    /// The constant, in the tensor's own element type (low bits).
    pub constant_bits: u64,
}

/// One task, as submitted.
#[derive(Clone, Copy, Debug)]
pub struct TaskDesc<'a, T> {
    /// No kernel: a join, which only orders. One: an ordinary task. Two or three: lanes for paired core kinds, with the
    /// same arguments, one completion, and a lane index each.
    pub kernels: &'a [KernelId],
    /// The tensor arguments, in the order of the kernels' parameters.
    pub accesses: &'a [Access<T>],
    /// Further numbers for the kernel.
    pub scalars: &'a [u64],
    /// Tasks to wait for besides those that the bytes imply.
    pub after: &'a [TaskId],
    /// How many blocks (SPMD); 1 for an ordinary task.
    pub blocks: u32,
    /// All blocks start together and may wait for each other; at most as many as the device has cores of the kind.
    pub start_together: bool,
    /// The submitter promises that no two blocks touch a common byte that one of them writes, although whole arguments
    /// are handed to each. Only the runtime's `unsafe` form sets this.
    pub blocks_disjoint_by_promise: bool,
    /// Condition read on the device when the task would start.
    pub predicate: Option<Predicate<T>>,
    /// A number for the submitter's own use: shown in messages, traces and drawings.
    pub tag: u32,
}

impl<T> Default for TaskDesc<'_, T> {
    fn default() -> Self {
        TaskDesc {
            kernels: &[],
            accesses: &[],
            scalars: &[],
            after: &[],
            blocks: 1,
            start_together: false,
            blocks_disjoint_by_promise: false,
            predicate: None,
            tag: 0,
        }
    }
}

/// A region of an object: how the graph builder sees a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectRegion {
    /// The object.
    pub object: ObjectId,
    /// The elements within it.
    pub region: Region,
}
