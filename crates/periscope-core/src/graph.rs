//! Building a graph: tasks come in, are checked, get their edges from the bytes they touch, and leave as an [`Image`].
//!
//! A [`GraphBuilder`] knows **memories** (what the image's accesses refer to and a launch binds) and **objects** (what the
//! orchestrator's tensors refer to: a contiguous part of a memory; no two share a byte). An external object is all of a
//! memory of its own; graph memory is cut into many objects of one memory, a segment.
//!
//! # Life
//! ```text
//! new ─► begin ─► add_external / add_entry / add_segment / add_graph_object / scope_* / submit … ─► freeze ─► reset ─► begin …
//! ```
//! After `freeze` the questions ([`GraphBuilder::describe`], [`GraphBuilder::writer_of`] …) can still be asked, until
//! `reset`. `reset` keeps the capacity of every arena, so that a graph of the same size allocates nothing.
//!
//! # Task numbers
//! [`TaskId`]s count up from 0 in submission order. Where n readers of m tiles would need n·m edges, inference adds a
//! join of its own ([`TASK_INFERRED_JOIN`]): it takes a number in the same sequence, always below that of the task
//! being submitted, so numbers of submitted tasks may have gaps. No message ever names such a join.
//!
//! # What submit promises
//! Either the task is in the graph, with its edges, or an error says why not and nothing has changed. Whoever executes
//! the image may rely on all that [`SubmitError`] lists.
//!
//! The parts: `submit` (checks one task and records it), `query` (who writes these bytes?), `error`;
//! the private module `hazard` infers the edges.

mod error;
mod query;
mod submit;

use std::sync::Arc;

use rangemap::RangeSet;

pub use error::{Argument, ScopeError, SubmitError};

use crate::footprint::Footprint;
use crate::hazard::{NONE, Tracker};
use crate::ids::{ObjectId, TaskId};
use crate::image::{
    AccessRecord, EntryRecord, Image, KernelRecord, MAX_MEMORIES, MemoryKind, MemoryRecord, NO_KERNEL, Parts,
    PredicateRecord, TASK_INFERRED_JOIN, TaskRecord, push_name, signature_hash,
};
use crate::intern::{Footprints, LayoutTable};
use crate::task::{Direction, KernelSignature, ObjectRegion};

/// What a graph may hold. What is exhausted is named with the field that raises it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphLimits {
    /// Most submitted tasks.
    pub max_tasks: u64,
    /// Most arguments of all tasks together.
    pub max_accesses: u64,
    /// Matrix cores of the device: the most blocks that can start together on them.
    pub cube_cores: u32,
    /// Vector cores of the device, likewise.
    pub vector_cores: u32,
    /// Most tensor arguments of a task with a kernel. A join takes any number.
    pub max_kernel_args: usize,
}

impl Default for GraphLimits {
    fn default() -> Self {
        GraphLimits { max_tasks: 1 << 26, max_accesses: 1 << 29, cube_cores: 24, vector_cores: 48, max_kernel_args: 64 }
    }
}

/// Which bytes of an external object tasks may write.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum EntryWrites {
    /// All (an object that was captured without being declared counts as INOUT).
    #[default]
    Allowed,
    /// The union of these: footprint and first byte in the object of every OUT and INOUT entry tensor over it. Empty
    /// for an object that only IN entry tensors cover.
    Only(Vec<(Footprint, u64)>),
}

/// How a scope treats hazards between its own tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScopeKind {
    /// Edges are inferred.
    #[default]
    Auto,
    /// No edge is inferred between two tasks of the scope itself (tasks of scopes inside it do not belong to it). Hazards
    /// with all other tasks are inferred as ever.
    Manual {
        /// Whether every hazard within the scope must be covered by a path of edges at submit. If not, the image
        /// is marked ([`Image::is_unchecked`]); only the runtime's `unsafe` form may ask for that.
        check: bool,
    },
}

/// Builds one graph at a time. See the [module documentation](self).
#[derive(Debug)]
pub struct GraphBuilder {
    limits: GraphLimits,
    kernels: Arc<[KernelSignature]>,
    kernel_info: Vec<KernelInfo>,
    kernel_records: Vec<KernelRecord>,
    /// Names: those of the kernels (which survive `reset`), then those of entries.
    strings: Vec<u8>,
    kernel_strings: usize,

    memories: Vec<MemoryRecord>,
    entries: Vec<EntryRecord>,
    objects: Vec<Object>,
    /// Of external objects that restrict them.
    entry_writes: Vec<DeclaredWrites>,

    layouts: LayoutTable,
    footprints: Footprints,
    tracker: Tracker,

    tasks: Vec<TaskRecord>,
    /// Position in `predecessors` of each task's first.
    first_predecessor: Vec<u32>,
    predecessors: Vec<u32>,
    accesses: Vec<AccessRecord>,
    scalars: Vec<u64>,
    predicates: Vec<PredicateRecord>,
    inferred_joins: usize,

    scopes: Vec<Scope>,
    /// By scope number: whether it is open. Scope 0 is the graph itself.
    scope_open: Vec<bool>,
    /// Task ranges of ended scopes inside manual scopes that are still open.
    nested: Vec<(u32, u32)>,
    manual_depth: usize,
    unchecked: bool,

    scratch: submit::Scratch,
    /// Reused by `freeze`.
    frozen_tasks: Vec<TaskRecord>,
    successors: Vec<u32>,
}

/// What submit needs of a kernel, without following its signature.
#[derive(Clone, Copy, Debug)]
struct KernelInfo {
    min_args: u32,
    max_args: u32,
    /// Position of its first parameter in the layout hints.
    first_hint: u32,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    memory: u32,
    /// Number of the scope that owns it; 0 for external ones.
    scope: u32,
    base: u64,
    /// A submitted task touches a byte of it.
    touched: bool,
    /// Position in `entry_writes`, or [`NONE`].
    writes: u32,
}

/// [`EntryWrites::Only`], with the union of its bytes once a submit needed it.
#[derive(Clone, Debug)]
struct DeclaredWrites {
    views: Vec<(Footprint, u64)>,
    union: Option<RangeSet<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct Scope {
    number: u32,
    kind: ScopeKind,
    first_task: u32,
    /// Length of `nested` when it began.
    nested: usize,
}

impl GraphBuilder {
    /// An empty builder.
    #[must_use]
    pub fn new(limits: GraphLimits) -> GraphBuilder {
        GraphBuilder {
            limits,
            kernels: Arc::new([]),
            kernel_info: Vec::new(),
            kernel_records: Vec::new(),
            strings: Vec::new(),
            kernel_strings: 0,
            memories: Vec::new(),
            entries: Vec::new(),
            objects: Vec::new(),
            entry_writes: Vec::new(),
            layouts: LayoutTable::default(),
            footprints: Footprints::default(),
            tracker: Tracker::default(),
            tasks: Vec::new(),
            first_predecessor: Vec::new(),
            predecessors: Vec::new(),
            accesses: Vec::new(),
            scalars: Vec::new(),
            predicates: Vec::new(),
            inferred_joins: 0,
            scopes: Vec::new(),
            scope_open: vec![true],
            nested: Vec::new(),
            manual_depth: 0,
            unchecked: false,
            scratch: submit::Scratch::default(),
            frozen_tasks: Vec::new(),
            successors: Vec::new(),
        }
    }

    /// The limits it was made with.
    #[must_use]
    pub fn limits(&self) -> &GraphLimits {
        &self.limits
    }

    /// Forgets the graph and keeps the memory. Task, object and scope numbers start at 0 again. The kernels stay.
    pub fn reset(&mut self) {
        self.strings.truncate(self.kernel_strings);
        self.memories.clear();
        self.entries.clear();
        self.objects.clear();
        self.entry_writes.clear();
        self.layouts.clear();
        self.footprints.clear();
        self.tracker.clear();
        self.tasks.clear();
        self.first_predecessor.clear();
        self.predecessors.clear();
        self.accesses.clear();
        self.scalars.clear();
        self.predicates.clear();
        self.inferred_joins = 0;
        self.scopes.clear();
        self.scope_open.clear();
        self.scope_open.push(true);
        self.nested.clear();
        self.manual_depth = 0;
        self.unchecked = false;
    }

    /// Starts a graph whose tasks name kernels by their position in `kernels`. Whatever was being built is forgotten.
    ///
    /// # Panics
    /// For 65,535 kernels or more.
    pub fn begin(&mut self, kernels: Arc<[KernelSignature]>) {
        self.reset();
        if Arc::ptr_eq(&self.kernels, &kernels) {
            return;
        }
        assert!(kernels.len() < usize::from(NO_KERNEL), "{} kernels, at most 65,534 fit", kernels.len());
        self.strings.clear();
        self.kernel_info.clear();
        self.kernel_records.clear();
        let mut first_hint = 0;
        for kernel in kernels.iter() {
            let optional = kernel.params.iter().rev().take_while(|param| param.optional).count();
            let max_args = kernel.params.len() as u32;
            self.kernel_info.push(KernelInfo { min_args: max_args - optional as u32, max_args, first_hint });
            first_hint += max_args;
            self.kernel_records.push(KernelRecord {
                name: push_name(&mut self.strings, &kernel.name),
                core: kernel.core as u32,
                signature: signature_hash(kernel),
            });
        }
        self.layouts.reserve_hints(first_hint as usize);
        self.kernel_strings = self.strings.len();
        self.kernels = kernels;
    }

    /// The kernels of the graph being built.
    #[must_use]
    pub fn kernels(&self) -> &[KernelSignature] {
        &self.kernels
    }

    fn add_memory(&mut self, len_bytes: u64, kind: MemoryKind) -> u32 {
        assert!(self.memories.len() < MAX_MEMORIES, "a graph has at most {MAX_MEMORIES} memories");
        self.memories.push(MemoryRecord { len_bytes, kind: kind as u32, reserved: 0 });
        self.memories.len() as u32 - 1
    }

    fn add_object(&mut self, len_bytes: u64, object: Object) -> ObjectId {
        assert!(self.objects.len() < NONE as usize, "a graph has at most {NONE} objects");
        self.objects.push(object);
        self.tracker.add_object(len_bytes);
        ObjectId(self.objects.len() as u32 - 1)
    }

    /// An allocation that the run was given or that its orchestration captured, all of it. It becomes a memory of its own
    /// in the image, and stays open to the end.
    ///
    /// # Panics
    /// Beyond [`MAX_MEMORIES`] memories.
    pub fn add_external(&mut self, len_bytes: u64, writes: EntryWrites) -> ObjectId {
        let memory = self.add_memory(len_bytes, MemoryKind::External);
        let object = self.add_object(len_bytes, Object { memory, scope: 0, base: 0, touched: false, writes: NONE });
        self.set_entry_writes(object, writes);
        object
    }

    /// Changes which bytes of an external object later tasks may write.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn set_entry_writes(&mut self, object: ObjectId, writes: EntryWrites) {
        let object = &mut self.objects[object.index()];
        match writes {
            EntryWrites::Allowed => object.writes = NONE,
            EntryWrites::Only(views) => {
                object.writes = self.entry_writes.len() as u32;
                self.entry_writes.push(DeclaredWrites { views, union: None });
            }
        }
    }

    /// A memory of the image that holds graph objects; the result is its position.
    ///
    /// # Panics
    /// Beyond [`MAX_MEMORIES`] memories.
    pub fn add_segment(&mut self, len_bytes: u64) -> u32 {
        self.add_memory(len_bytes, MemoryKind::Graph)
    }

    /// Bytes of a segment as an object of the current scope. Objects of one segment must not overlap (they would be taken
    /// for unrelated memory).
    ///
    /// # Panics
    /// If the segment does not exist, the bytes do not lie in it, or they do not start at a multiple of 8 (the widest
    /// element): the caller is the allocator of the segment.
    pub fn add_graph_object(&mut self, segment: u32, offset_bytes: u64, len_bytes: u64) -> ObjectId {
        let memory = &self.memories[segment as usize];
        assert!(
            memory.kind == MemoryKind::Graph as u32
                && offset_bytes.is_multiple_of(8)
                && offset_bytes.checked_add(len_bytes).is_some_and(|end| end <= memory.len_bytes),
            "bytes {offset_bytes}+{len_bytes} of segment {segment}, which has {}",
            memory.len_bytes
        );
        let scope = self.scopes.last().map_or(0, |scope| scope.number);
        self.add_object(len_bytes, Object { memory: segment, scope, base: offset_bytes, touched: false, writes: NONE })
    }

    /// Names an entry tensor in the image, in the order of the signature. What tasks may write is told apart, with
    /// [`GraphBuilder::set_entry_writes`].
    ///
    /// # Panics
    /// If there is no such object.
    pub fn add_entry(&mut self, name: &str, direction: Direction, tensor: ObjectRegion) {
        let object = self.objects[tensor.object.index()];
        let layout = self.layouts.intern(tensor.region.dtype, &tensor.region.layout, None, &mut self.footprints);
        self.entries.push(EntryRecord {
            memory: object.memory,
            layout,
            offset_bytes: object.base + tensor.region.offset_bytes(),
            direction: direction as u32,
            name: push_name(&mut self.strings, name),
        });
    }

    /// Position of an object's memory in the image, and the object's first byte in it.
    ///
    /// # Panics
    /// If there is no such object.
    #[must_use]
    #[inline]
    pub fn memory_of(&self, object: ObjectId) -> (u32, u64) {
        let object = &self.objects[object.index()];
        (object.memory, object.base)
    }

    /// Bytes of an object.
    ///
    /// # Panics
    /// If there is no such object.
    #[must_use]
    #[inline]
    pub fn object_len_bytes(&self, object: ObjectId) -> u64 {
        self.tracker.len_bytes(object.0)
    }

    /// Begins a scope inside the current one. Graph objects added from now on belong to it.
    pub fn scope_begin(&mut self, kind: ScopeKind) {
        let number = self.scope_open.len() as u32;
        self.scope_open.push(true);
        self.scopes.push(Scope { number, kind, first_task: self.tasks.len() as u32, nested: self.nested.len() });
        if let ScopeKind::Manual { check } = kind {
            self.manual_depth += 1;
            self.unchecked |= !check;
        }
    }

    /// Ends the current scope: its graph objects are closed.
    ///
    /// # Errors
    /// [`ScopeError::NotOpen`] if there is none.
    pub fn scope_end(&mut self) -> Result<(), ScopeError> {
        let scope = self.scopes.pop().ok_or(ScopeError::NotOpen)?;
        self.scope_open[scope.number as usize] = false;
        self.nested.truncate(scope.nested);
        if matches!(scope.kind, ScopeKind::Manual { .. }) {
            self.manual_depth -= 1;
        }
        if self.manual_depth > 0 {
            self.nested.push((scope.first_task, self.tasks.len() as u32));
        }
        Ok(())
    }

    /// How many scopes are open.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.scopes.len()
    }

    /// Whether the object may still be used: graph memory closes when its scope ends.
    ///
    /// # Panics
    /// If there is no such object.
    #[must_use]
    #[inline]
    pub fn object_open(&self, object: ObjectId) -> bool {
        self.scope_open[self.objects[object.index()].scope as usize]
    }

    /// How many tasks were submitted.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.tasks.len() - self.inferred_joins
    }

    /// How many tasks the image will have: those submitted and the inferred joins.
    #[must_use]
    pub fn total_task_count(&self) -> usize {
        self.tasks.len()
    }

    /// How many edges the image will have.
    #[must_use]
    pub fn edge_count(&self) -> usize {
        self.predecessors.len()
    }

    fn is_inferred_join(&self, task: u32) -> bool {
        self.tasks[task as usize].flags & TASK_INFERRED_JOIN != 0
    }

    fn predecessors_of(&self, task: u32) -> &[u32] {
        let first = self.first_predecessor[task as usize] as usize;
        &self.predecessors[first..first + self.tasks[task as usize].predecessors as usize]
    }

    /// The graph as an image, in the buffer of `recycled` if one is given. The builder keeps what it knows until `reset`.
    /// Scopes that are still open do not matter to the image.
    pub fn freeze(&mut self, recycled: Option<Image>) -> Image {
        // Edges are kept as lists of predecessors; the image wants successors: a counting sort by predecessor. Each
        // task's `first_successor` is its count first, then the end of its list, and moves to the start as that fills.
        self.frozen_tasks.clear();
        self.frozen_tasks.extend_from_slice(&self.tasks);
        for &from in &self.predecessors {
            self.frozen_tasks[from as usize].first_successor += 1;
        }
        let mut end = 0;
        for task in &mut self.frozen_tasks {
            end += task.first_successor;
            task.first_successor = end;
        }
        self.successors.clear();
        self.successors.resize(self.predecessors.len(), 0);
        // From the last task down, so that every list ends up ascending.
        for to in (0..self.tasks.len()).rev() {
            let first = self.first_predecessor[to] as usize;
            for &from in &self.predecessors[first..first + self.tasks[to].predecessors as usize] {
                let place = &mut self.frozen_tasks[from as usize].first_successor;
                *place -= 1;
                self.successors[*place as usize] = to as u32;
            }
        }
        self.frozen_tasks.push(TaskRecord {
            first_access: self.accesses.len() as u32,
            first_scalar: self.scalars.len() as u32,
            first_successor: self.successors.len() as u32,
            predecessors: 0,
            blocks: 1,
            kernels: [NO_KERNEL; 3],
            flags: 0,
            tag: 0,
        });
        let parts = Parts {
            memories: &self.memories,
            entries: &self.entries,
            kernels: &self.kernel_records,
            layouts: self.layouts.records(),
            tasks: &self.frozen_tasks,
            accesses: &self.accesses,
            scalars: &self.scalars,
            successors: &self.successors,
            predicates: &self.predicates,
            writes: &[],
            payload: &[],
            strings: &self.strings,
            unchecked: self.unchecked,
        };
        Image::assemble(parts, recycled)
    }

    /// A short text for messages: `task 17 (`softmax`, tag 3)`.
    #[must_use]
    pub fn describe(&self, task: TaskId) -> String {
        match self.tasks.get(task.index()) {
            Some(record) => self.describe_as(task, &record.kernels, record.tag),
            None => format!("{task} (not submitted)"),
        }
    }

    fn describe_as(&self, task: TaskId, kernels: &[u16; 3], tag: u32) -> String {
        let names: Vec<_> = kernels
            .iter()
            .filter_map(|&kernel| self.kernels.get(usize::from(kernel)))
            .map(|k| k.name.as_str())
            .collect();
        match names.as_slice() {
            [] => format!("{task} (join, tag {tag})"),
            names => format!("{task} (`{}`, tag {tag})", names.join("` + `")),
        }
    }
}
