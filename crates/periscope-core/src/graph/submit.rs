//! Checking one task and recording it.
//!
//! In three steps, so that a refusal changes nothing: check every argument on its own and against the others; find what
//! the task must wait for (which may add inferred joins, but only where nothing can be refused any more); record it.

use rangemap::RangeSet;

use super::{Argument, DeclaredWrites, GraphBuilder, Scope, ScopeKind, SubmitError};
use crate::dtype::DType;
use crate::footprint::{Footprint, REFUSAL_STEPS, overlaps};
use crate::hazard::{Joins, Kind, NONE, NoJoins, Touch, View};
use crate::ids::{ObjectId, TaskId};
use crate::image::{
    AccessRecord, NO_KERNEL, PredicateRecord, TASK_BLOCKS_BY_PROMISE, TASK_INFERRED_JOIN, TASK_PREDICATED,
    TASK_START_TOGETHER, TaskRecord,
};
use crate::layout::Region;
use crate::task::{Access, CoreKind, Direction, ObjectRegion, TaskDesc};

/// Lists that are used during a submit and keep their capacity.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    touches: Vec<Touch>,
    found: Vec<u32>,
    /// In a checked manual scope: (earlier task of the scope, position of the touch) to be covered.
    uncovered: Vec<(u32, u32)>,
    /// By task: number of the search that saw it last.
    seen: Vec<u32>,
    search: u32,
    stack: Vec<u32>,
}

/// The most lanes of a task.
const MAX_LANES: usize = 3;
/// The most lanes of each kind: a cluster has one cube core and two vector cores.
const LANES_OF_KIND: [(CoreKind, usize); 2] = [(CoreKind::Cube, 1), (CoreKind::Vector, 2)];

impl GraphBuilder {
    /// Adds a task, with edges from every earlier task whose bytes order it (RAW, WAW, WAR) and from those in `after`.
    ///
    /// An empty tensor touches nothing. A predicate's element is stored as the last access, an IN; the OUT arguments of a
    /// predicated task keep their direction in the image, and count as INOUT wherever it matters.
    ///
    /// # Errors
    /// [`SubmitError`], one variant per cause; the graph is then as it was before.
    pub fn submit(&mut self, task: &TaskDesc<'_, ObjectRegion>) -> Result<TaskId, SubmitError> {
        let layouts = self.layouts.len();
        let accesses = self.accesses.len();
        let checked = self.check(task).and_then(|()| {
            self.find();
            if self.manual_depth > 0 { self.settle_manual(task) } else { Ok(()) }
        });
        match checked {
            Ok(()) => Ok(self.record(task)),
            Err(error) => {
                self.accesses.truncate(accesses);
                self.layouts.truncate(layouts);
                Err(*error)
            }
        }
    }

    /// Everything that can be said without the other tasks. Leaves the accesses in the list of all, and what they touch
    /// in the scratch.
    fn check(&mut self, task: &TaskDesc<'_, ObjectRegion>) -> Result<(), Box<SubmitError>> {
        self.check_kernels(task)?;
        self.check_capacity(task)?;
        if let Some((position, &after)) =
            task.after.iter().enumerate().find(|(_, after)| after.index() >= self.tasks.len())
        {
            return refuse(SubmitError::UnknownTask { position, after, tasks: self.tasks.len() });
        }
        let kernel = task.kernels.first().map_or(NO_KERNEL, |kernel| kernel.0);
        let has_kernel = kernel != NO_KERNEL;
        let first_hint = if has_kernel { self.kernel_info[usize::from(kernel)].first_hint as usize } else { 0 };
        if has_kernel {
            let kernel = &self.kernels[usize::from(kernel)];
            for (position, (access, param)) in task.accesses.iter().zip(&kernel.params).enumerate() {
                let argument = Argument::Tensor(position);
                if param.direction != access.direction {
                    return Err(wrong_direction(&kernel.name, argument, param.direction, access.direction));
                }
                let got = access.tensor.region.dtype;
                if let Some(expected) = param.dtype
                    && expected != got
                {
                    return Err(wrong_dtype(&kernel.name, argument, expected, got));
                }
            }
        }
        self.scratch.touches.clear();
        // By object number modulo 64: which were touched, which were written.
        let (mut touched, mut written) = (0u64, 0u64);
        for (position, access) in task.accesses.iter().enumerate() {
            let argument = Argument::Tensor(position);
            let region = &access.tensor.region;
            let (dtype, layout, split) = (region.dtype, &region.layout, access.split_dim);
            let layout = if has_kernel {
                self.layouts.intern_hinted(first_hint + position, dtype, layout, split, &mut self.footprints)
            } else {
                self.layouts.intern(dtype, layout, split, &mut self.footprints)
            };
            if task.blocks > 1 || access.split_dim.is_some() {
                check_split(argument, access, task)?;
            }
            self.check_region(argument, &access.tensor, layout, access.direction)?;
            let bit = 1u64 << (access.tensor.object.0 % 64);
            let writes = access.direction.writes();
            if has_kernel && (written & bit != 0 || (writes && touched & bit != 0)) {
                self.check_own_overlap(argument)?;
            }
            touched |= bit;
            written |= if writes { bit } else { 0 };
        }
        if let Some(predicate) = &task.predicate {
            let region = &predicate.tensor.region;
            if region.layout.num_elems() != 1 {
                return refuse(SubmitError::PredicateElems { elems: region.layout.num_elems() });
            }
            if matches!(region.dtype, DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1X2) {
                return refuse(SubmitError::PredicateDType { dtype: region.dtype });
            }
            let layout = self.layouts.intern(region.dtype, &region.layout, None, &mut self.footprints);
            self.check_predicate_region(&predicate.tensor, layout)?;
            if has_kernel && written & 1 << (predicate.tensor.object.0 % 64) != 0 {
                self.check_own_overlap(Argument::Predicate)?;
            }
        }
        Ok(())
    }

    /// Kernels, counts, blocks.
    #[inline]
    fn check_kernels(&self, task: &TaskDesc<'_, ObjectRegion>) -> Result<(), Box<SubmitError>> {
        if task.blocks == 0 {
            return refuse(SubmitError::NoBlocks);
        }
        if task.kernels.is_empty() {
            if !task.scalars.is_empty() {
                let got = task.scalars.len();
                return refuse(SubmitError::ScalarCount { kernel: "join".into(), expected: 0, got });
            }
            return Ok(());
        }
        if task.kernels.len() > MAX_LANES {
            return refuse(SubmitError::TooManyLanes { lanes: task.kernels.len() });
        }
        let unknown = task.kernels.iter().find(|kernel| usize::from(kernel.0) >= self.kernels.len());
        if let Some(kernel) = unknown {
            return refuse(SubmitError::UnknownKernel { kernel: kernel.0, kernels: self.kernels.len() });
        }
        let first = &self.kernels[usize::from(task.kernels[0].0)];
        let info = &self.kernel_info[usize::from(task.kernels[0].0)];
        let args = task.accesses.len();
        if args < info.min_args as usize || args > info.max_args as usize {
            return refuse(SubmitError::ArgumentCount {
                kernel: first.name.clone(),
                min: info.min_args as usize,
                max: info.max_args as usize,
                got: args,
            });
        }
        if args > self.limits.max_kernel_args {
            return refuse(SubmitError::Exhausted {
                resource: "tensor arguments of a task with a kernel",
                needed: args as u64,
                limit: self.limits.max_kernel_args as u64,
                setting: "max_kernel_args",
            });
        }
        if task.scalars.len() != first.scalars {
            return refuse(SubmitError::ScalarCount {
                kernel: first.name.clone(),
                expected: first.scalars,
                got: task.scalars.len(),
            });
        }
        if task.kernels.len() > 1 || task.start_together {
            self.check_lanes(task)?;
        }
        Ok(())
    }

    #[cold]
    fn check_lanes(&self, task: &TaskDesc<'_, ObjectRegion>) -> Result<(), Box<SubmitError>> {
        let signature = |lane: usize| &self.kernels[usize::from(task.kernels[lane].0)];
        let first = signature(0);
        for lane in 1..task.kernels.len() {
            let other = signature(lane);
            if other.params != first.params || other.scalars != first.scalars {
                let (first, other) = (first.name.clone(), other.name.clone());
                return refuse(SubmitError::LanesDiffer { lane, first, other });
            }
        }
        for (kind, most) in LANES_OF_KIND {
            let lanes = (0..task.kernels.len()).filter(|&lane| signature(lane).core == kind).count();
            if lanes > most {
                return refuse(SubmitError::LanesOfOneKind { kind, lanes, most });
            }
            let cores = match kind {
                CoreKind::Cube => self.limits.cube_cores,
                CoreKind::Vector => self.limits.vector_cores,
            };
            let asked = lanes as u64 * u64::from(task.blocks);
            if task.start_together && asked > u64::from(cores) {
                return refuse(SubmitError::TooManyBlocks { kind, asked, cores });
            }
        }
        Ok(())
    }

    #[inline]
    fn check_capacity(&self, task: &TaskDesc<'_, ObjectRegion>) -> Result<(), Box<SubmitError>> {
        let accesses = self.accesses.len() as u64 + task.accesses.len() as u64 + 1;
        let scalars = self.scalars.len() as u64 + task.scalars.len() as u64;
        // Each access may add a join per reader list, and whatever it waits for as edges twice: far from the end, no
        // question; near it, be strict.
        let edges = self.predecessors.len() as u64 + 4 * self.tasks.len() as u64 + task.after.len() as u64;
        let exhausted =
            |resource, needed, limit, setting| refuse(SubmitError::Exhausted { resource, needed, limit, setting });
        const POSITIONS: u64 = u32::MAX as u64 - 1;
        if self.task_count() as u64 >= self.limits.max_tasks {
            return exhausted("tasks", self.task_count() as u64 + 1, self.limits.max_tasks, "max_tasks");
        }
        if accesses > self.limits.max_accesses.saturating_add(1) {
            return exhausted("accesses", accesses - 1, self.limits.max_accesses, "max_accesses");
        }
        if accesses.max(scalars).max(edges).max(self.tasks.len() as u64 + accesses) > POSITIONS {
            return exhausted(
                "positions in a graph image",
                accesses.max(scalars).max(edges),
                POSITIONS,
                "(the format's own)",
            );
        }
        Ok(())
    }

    /// Object, bounds, distinct elements, entry tensors. Appends the access, and what it touches.
    #[inline(always)]
    fn check_region(
        &mut self,
        argument: Argument,
        tensor: &ObjectRegion,
        layout: u32,
        direction: Direction,
    ) -> Result<(), Box<SubmitError>> {
        let info = *self.layouts.info(layout);
        let Some(object) = self.objects.get(tensor.object.index()) else {
            let objects = self.objects.len();
            return refuse(SubmitError::UnknownObject { argument, object: tensor.object, objects });
        };
        if !self.scope_open[object.scope as usize] {
            return refuse(SubmitError::ObjectClosed { argument, object: tensor.object });
        }
        let len_bytes = self.tracker.len_bytes(tensor.object.0);
        let start = tensor.region.offset_elems.checked_mul(tensor.region.dtype.size_bytes());
        let at = match start {
            // An empty tensor lies anywhere; keep its position within the memory.
            _ if info.extent_bytes == 0 => 0,
            Some(start) if start <= len_bytes && info.extent_bytes <= len_bytes - start => start,
            _ => return Err(outside(argument, tensor, info.extent_bytes, len_bytes)),
        };
        let writes = direction.writes();
        let place = self.tracker.place(tensor.object.0, &info, at, &self.footprints);
        self.accesses.push(AccessRecord::new(object.memory, direction, layout, object.base + at));
        let view = View { at, end: at + info.extent_bytes, footprint: info.footprint, gapless: info.gapless };
        self.scratch.touches.push(Touch { object: tensor.object.0, writes, view, place });
        if writes {
            if !info.distinct {
                return Err(aliased(argument, tensor));
            }
            if object.writes != NONE && info.extent_bytes > 0 {
                let declared = &mut self.entry_writes[object.writes as usize];
                if !declared.cover(self.footprints.get(info.footprint), at) {
                    return refuse(SubmitError::NotAnOutput { argument, object: tensor.object });
                }
            }
        }
        Ok(())
    }

    fn check_predicate_region(&mut self, tensor: &ObjectRegion, layout: u32) -> Result<(), Box<SubmitError>> {
        self.check_region(Argument::Predicate, tensor, layout, Direction::In)
    }

    #[cold]
    fn check_own_overlap(&self, argument: Argument) -> Result<(), Box<SubmitError>> {
        let Some((touch, others)) = self.scratch.touches.split_last() else { return Ok(()) };
        let bytes = self.footprints.get(touch.view.footprint);
        let clash = others.iter().position(|other| {
            other.object == touch.object
                && (other.writes || touch.writes)
                && overlaps(
                    bytes,
                    touch.view.at,
                    self.footprints.get(other.view.footprint),
                    other.view.at,
                    REFUSAL_STEPS,
                )
        });
        match clash {
            None => Ok(()),
            Some(first) => refuse(SubmitError::ArgumentsOverlap {
                first: Argument::Tensor(first),
                second: argument,
                object: ObjectId(touch.object),
            }),
        }
    }

    /// What the task must wait for because of its bytes.
    #[inline]
    fn find(&mut self) {
        self.scratch.found.clear();
        if self.manual_depth > 0 {
            return;
        }
        let mut joins = InferredJoins {
            tasks: &mut self.tasks,
            first_predecessor: &mut self.first_predecessor,
            predecessors: &mut self.predecessors,
            count: &mut self.inferred_joins,
            // The accesses of the task being submitted are in the list already.
            first_access: (self.accesses.len() - self.scratch.touches.len()) as u32,
            first_scalar: self.scalars.len() as u32,
        };
        for touch in &self.scratch.touches {
            self.tracker.find(touch, &self.footprints, &mut joins, &mut self.scratch.found);
        }
    }

    /// In a manual scope (or a scope inside one): what the task must wait for, and which hazards within its own scope must
    /// be covered. No joins are inferred here: they would hide who a hazard is with.
    #[cold]
    fn settle_manual(&mut self, task: &TaskDesc<'_, ObjectRegion>) -> Result<(), Box<SubmitError>> {
        let Some(&scope) = self.scopes.last() else { return Ok(()) };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.uncovered.clear();
        // Without a check, tasks of the scope that are found are not waited for, so what they would imply counts.
        let mut joins = NoJoins { implied: matches!(scope.kind, ScopeKind::Manual { check: false }) };
        for (position, touch) in scratch.touches.iter().enumerate() {
            let first = scratch.found.len();
            self.tracker.find(touch, &self.footprints, &mut joins, &mut scratch.found);
            if let ScopeKind::Manual { check } = scope.kind {
                let mut kept = first;
                for index in first..scratch.found.len() {
                    let earlier = scratch.found[index];
                    if !self.belongs_to(&scope, earlier) {
                        scratch.found[kept] = earlier;
                        kept += 1;
                    } else if check {
                        scratch.uncovered.push((earlier, position as u32));
                    }
                }
                scratch.found.truncate(kept);
            }
        }
        let result = self.check_covered(task, &mut scratch);
        self.scratch = scratch;
        result
    }

    fn belongs_to(&self, scope: &Scope, task: u32) -> bool {
        task >= scope.first_task
            && !self.nested[scope.nested..].iter().any(|&(first, end)| (first..end).contains(&task))
    }

    /// Searches backwards from all that the task waits for; every hazard within the scope must be met.
    fn check_covered(&self, task: &TaskDesc<'_, ObjectRegion>, scratch: &mut Scratch) -> Result<(), Box<SubmitError>> {
        let Some(&oldest) = scratch.uncovered.iter().map(|(earlier, _)| earlier).min() else { return Ok(()) };
        scratch.seen.resize(self.tasks.len(), 0);
        scratch.search += 1;
        let (seen, search) = (&mut scratch.seen, scratch.search);
        scratch.stack.clear();
        scratch.stack.extend(task.after.iter().map(|after| after.0).chain(scratch.found.iter().copied()));
        while let Some(next) = scratch.stack.pop() {
            if next >= oldest && seen[next as usize] != search {
                seen[next as usize] = search;
                scratch.stack.extend_from_slice(self.predecessors_of(next));
            }
        }
        let Some(&(earlier, position)) =
            scratch.uncovered.iter().find(|(earlier, _)| seen[*earlier as usize] != search)
        else {
            return Ok(());
        };
        let position = position as usize;
        let argument = if position < task.accesses.len() { Argument::Tensor(position) } else { Argument::Predicate };
        let earlier_task = self.real_task(earlier);
        refuse(SubmitError::UncoveredHazard {
            argument,
            object: ObjectId(scratch.touches[position].object),
            earlier_task,
            earlier: self.describe(earlier_task),
            later: self.describe_as(TaskId(self.tasks.len() as u32), &lanes_of(task), task.tag),
        })
    }

    /// Nothing can go wrong any more.
    #[inline]
    fn record(&mut self, task: &TaskDesc<'_, ObjectRegion>) -> TaskId {
        let id = self.tasks.len() as u32;
        let count = self.scratch.touches.len();
        let first_access = self.accesses.len() - count;
        let first_predecessor = self.predecessors.len();
        self.scratch.found.extend(task.after.iter().map(|after| after.0));
        push_distinct(&self.scratch.found, &mut self.predecessors, &mut self.scratch.seen, &mut self.scratch.search);
        let mut flags = 0;
        if task.start_together {
            flags |= TASK_START_TOGETHER;
        }
        if task.blocks_disjoint_by_promise {
            flags |= TASK_BLOCKS_BY_PROMISE;
        }
        if let Some(predicate) = &task.predicate {
            flags |= TASK_PREDICATED;
            self.predicates.push(PredicateRecord {
                task: id,
                comparison: predicate.comparison as u32,
                constant_bits: predicate.constant_bits,
            });
        }
        self.tasks.push(TaskRecord {
            first_access: first_access as u32,
            first_scalar: self.scalars.len() as u32,
            first_successor: 0,
            predecessors: (self.predecessors.len() - first_predecessor) as u32,
            blocks: task.blocks,
            kernels: lanes_of(task),
            flags,
            tag: task.tag,
        });
        self.first_predecessor.push(first_predecessor as u32);
        self.scalars.extend(task.scalars);
        let ordered = !matches!(self.scopes.last(), Some(Scope { kind: ScopeKind::Manual { check: false }, .. }));
        let cuts = self.tracker.cuts;
        for (position, touch) in self.scratch.touches.iter_mut().enumerate() {
            let access = first_access + position;
            if touch.place.kind == Kind::Nowhere {
                continue;
            }
            if self.tracker.cuts != cuts {
                let info = self.layouts.info(self.accesses[access].layout);
                touch.place = self.tracker.place(touch.object, info, touch.view.at, &self.footprints);
            }
            self.tracker.record(touch, id, &mut self.footprints, ordered);
            self.objects[touch.object as usize].touched = true;
        }
        TaskId(id)
    }
}

/// The kernels of a task with at most three lanes, as the image stores them.
#[inline]
fn lanes_of(task: &TaskDesc<'_, ObjectRegion>) -> [u16; MAX_LANES] {
    match *task.kernels {
        [] => [NO_KERNEL; MAX_LANES],
        [first] => [first.0, NO_KERNEL, NO_KERNEL],
        [first, second] => [first.0, second.0, NO_KERNEL],
        [first, second, third, ..] => [first.0, second.0, third.0],
    }
}

/// Appends the tasks of a list, each once.
#[inline]
fn push_distinct(found: &[u32], to: &mut Vec<u32>, seen: &mut Vec<u32>, search: &mut u32) {
    let first = to.len();
    if let [only] = found {
        to.push(*only);
        return;
    }
    if found.len() <= 24 {
        for &task in found {
            if !to[first..].contains(&task) {
                to.push(task);
            }
        }
        return;
    }
    *search += 1;
    for &task in found {
        if seen.len() <= task as usize {
            seen.resize(task as usize + 1, 0);
        }
        if seen[task as usize] != *search {
            seen[task as usize] = *search;
            to.push(task);
        }
    }
}

/// Puts inferred joins into the graph.
struct InferredJoins<'a> {
    tasks: &'a mut Vec<TaskRecord>,
    first_predecessor: &'a mut Vec<u32>,
    predecessors: &'a mut Vec<u32>,
    count: &'a mut usize,
    first_access: u32,
    first_scalar: u32,
}

impl Joins for InferredJoins<'_> {
    fn allowed(&self) -> bool {
        true
    }

    fn join(&mut self, waits_for: &[u32]) -> u32 {
        let first = self.predecessors.len();
        self.predecessors.extend_from_slice(waits_for);
        self.predecessors[first..].sort_unstable();
        let mut kept = first;
        for position in first..self.predecessors.len() {
            if position == first || self.predecessors[position] != self.predecessors[kept - 1] {
                self.predecessors[kept] = self.predecessors[position];
                kept += 1;
            }
        }
        self.predecessors.truncate(kept);
        self.first_predecessor.push(first as u32);
        self.tasks.push(TaskRecord {
            first_access: self.first_access,
            first_scalar: self.first_scalar,
            first_successor: 0,
            predecessors: (kept - first) as u32,
            blocks: 1,
            kernels: [NO_KERNEL; 3],
            flags: TASK_INFERRED_JOIN,
            tag: 0,
        });
        *self.count += 1;
        self.tasks.len() as u32 - 1
    }
}

impl DeclaredWrites {
    /// Whether every one of these bytes is declared.
    fn cover(&mut self, bytes: &Footprint, at: u64) -> bool {
        if self.views.iter().any(|(view, view_at)| view.covers(*view_at, bytes, at)) {
            return true;
        }
        let views = &self.views;
        let union = self.union.get_or_insert_with(|| {
            let mut union = RangeSet::new();
            for (view, at) in views {
                view.for_each_run(*at, |start, len| union.insert(start..start + len));
            }
            union
        });
        let mut all = true;
        bytes.for_each_run(at, |start, len| {
            all = all && union.gaps(&(start..start + len)).next().is_none();
        });
        all
    }
}

/// Errors travel boxed inside a submit, so that the way without one moves no more than a pointer.
#[cold]
fn refuse<T>(error: SubmitError) -> Result<T, Box<SubmitError>> {
    Err(Box::new(error))
}

#[cold]
fn check_split(
    argument: Argument,
    access: &Access<ObjectRegion>,
    task: &TaskDesc<'_, ObjectRegion>,
) -> Result<(), Box<SubmitError>> {
    let shape = access.tensor.region.layout.shape();
    let blocks = task.blocks;
    match access.split_dim {
        None if access.direction.writes() && blocks > 1 && !task.blocks_disjoint_by_promise => {
            refuse(SubmitError::NotSplit { argument, blocks })
        }
        None => Ok(()),
        Some(dim) => match shape.get(usize::from(dim)) {
            None => refuse(SubmitError::SplitDimension { argument, dim, rank: shape.len() }),
            Some(&len) if len % u64::from(blocks) != 0 => {
                refuse(SubmitError::SplitUneven { argument, dim, len, blocks })
            }
            Some(_) => Ok(()),
        },
    }
}

#[cold]
fn wrong_direction(kernel: &str, argument: Argument, expected: Direction, got: Direction) -> Box<SubmitError> {
    Box::new(SubmitError::ArgumentDirection { kernel: kernel.into(), argument, expected, got })
}

#[cold]
fn wrong_dtype(kernel: &str, argument: Argument, expected: DType, got: DType) -> Box<SubmitError> {
    Box::new(SubmitError::ArgumentDType { kernel: kernel.into(), argument, expected, got })
}

#[cold]
fn outside(argument: Argument, tensor: &ObjectRegion, extent_bytes: u64, len_bytes: u64) -> Box<SubmitError> {
    let Region { dtype, offset_elems, .. } = tensor.region;
    let start = offset_elems.saturating_mul(dtype.size_bytes());
    let end = start.saturating_add(extent_bytes);
    Box::new(SubmitError::OutsideObject { argument, object: tensor.object, start, end, len_bytes })
}

#[cold]
fn aliased(argument: Argument, tensor: &ObjectRegion) -> Box<SubmitError> {
    let layout = &tensor.region.layout;
    Box::new(SubmitError::AliasedWrite {
        argument,
        object: tensor.object,
        shape: layout.shape().to_vec(),
        strides: layout.strides().to_vec(),
    })
}
