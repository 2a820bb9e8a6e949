//! Whether a decoded image may be executed: everything that a device relies on, shown again from the bytes alone.
//!
//! First the records, each on its own: positions that exist, codes that mean something, extents inside their memories
//! (with arithmetic that cannot overflow), edges that go forward and are counted right, arguments that a kernel may turn
//! into references. Then the order: the tracker that infers edges is fed the same accesses, and whatever it finds
//! must be reachable backwards along the image's edges.
//!
//! The search: one walk back from each task, no further than the oldest task that it must reach, so that an image from the
//! builder costs a few steps per task (its edges are the hazards). A hostile image can make it quadratic, not wrong.

use crate::dtype::DType;
use crate::footprint::{Footprint, REFUSAL_STEPS, overlaps};
use crate::hazard::{NoJoins, Touch, Tracker, View};
use crate::ids::TaskId;
use crate::image::{
    AccessRecord, Image, ImageError, MemoryKind, NO_KERNEL, NO_SPLIT, TASK_BLOCKS_BY_PROMISE, TASK_INFERRED_JOIN,
    TASK_PREDICATED, TASK_START_TOGETHER, TaskRecord, core_kind_from_code,
};
use crate::intern::{Footprints, LayoutInfo};
use crate::layout::MAX_RANK;
use crate::task::{Comparison, Direction};

/// Checks an image whose sections have been found to lie where the header says.
///
/// # Errors
/// [`ImageError::Record`], [`ImageError::Unordered`]; [`ImageError::Unchecked`] for an image that rests on promises.
pub(crate) fn check(image: &Image) -> Result<(), ImageError> {
    if image.is_unchecked() {
        return Err(ImageError::Unchecked);
    }
    let mut checker = Checker { image, footprints: Footprints::default(), layouts: Vec::new() };
    checker.check_memories_and_kernels()?;
    checker.check_layouts()?;
    checker.check_entries()?;
    checker.check_lists()?;
    for task in 0..image.task_count() {
        checker.check_task(task)?;
    }
    checker.check_predicates()?;
    checker.check_writes()?;
    let predecessors = checker.check_edges()?;
    checker.check_order(&predecessors)
}

fn bad(section: &'static str, position: usize, what: impl Into<String>) -> ImageError {
    ImageError::Record { section, position: position as u64, what: what.into() }
}

struct Checker<'a> {
    image: &'a Image,
    footprints: Footprints,
    layouts: Vec<LayoutInfo>,
}

/// For each task its predecessors: `tasks[first[i]..first[i + 1]]`.
struct Predecessors {
    first: Vec<u32>,
    tasks: Vec<u32>,
}

impl Predecessors {
    fn of(&self, task: u32) -> &[u32] {
        &self.tasks[self.first[task as usize] as usize..self.first[task as usize + 1] as usize]
    }
}

impl Checker<'_> {
    fn check_memories_and_kernels(&self) -> Result<(), ImageError> {
        for (position, memory) in self.image.memories().iter().enumerate() {
            if memory.kind > MemoryKind::Graph as u32 || memory.reserved != 0 {
                return Err(bad("memory", position, format!("kind {} means nothing", memory.kind)));
            }
        }
        if self.image.kernels().len() >= usize::from(NO_KERNEL) {
            return Err(bad("kernel", usize::from(NO_KERNEL), "too many kernels"));
        }
        for (position, kernel) in self.image.kernels().iter().enumerate() {
            if self.image.name(kernel.name).is_none() {
                return Err(bad("kernel", position, "its name is not there"));
            }
            if core_kind_from_code(kernel.core).is_none() {
                return Err(bad("kernel", position, format!("core kind {} means nothing", kernel.core)));
            }
        }
        Ok(())
    }

    fn check_layouts(&mut self) -> Result<(), ImageError> {
        for (position, record) in self.image.layouts().iter().enumerate() {
            let bad = |what: &str| bad("layout", position, what);
            let dtype = DType::from_code(record.dtype).ok_or_else(|| bad("no such element type"))?;
            let rank = usize::from(record.rank);
            if rank > MAX_RANK {
                return Err(bad("too many dimensions"));
            }
            let beyond = record.shape[rank..].iter().chain(&record.strides[rank..]).any(|&number| number != 0);
            if beyond || record.reserved != [0; 5] {
                return Err(bad("unused fields are not 0"));
            }
            if record.split_dim != NO_SPLIT && usize::from(record.split_dim) >= rank {
                return Err(bad("split along a dimension that it does not have"));
            }
            let layout = record.layout().map_err(|error| bad(&error.to_string()))?;
            let footprint = Footprint::of(dtype, &layout);
            self.layouts.push(LayoutInfo {
                footprint: self.footprints.intern(&footprint),
                distinct: layout.elements_are_distinct(),
                gapless: footprint.is_interval(),
                extent_bytes: footprint.extent_bytes(),
            });
        }
        Ok(())
    }

    /// Memory, layout and bounds of anything that names all three.
    fn check_extent(&self, memory: usize, layout: u32, offset_bytes: u64) -> Result<&LayoutInfo, String> {
        let memory = self.image.memories().get(memory).ok_or("no such memory")?;
        let info = self.layouts.get(layout as usize).ok_or("no such layout")?;
        let inside = offset_bytes.checked_add(info.extent_bytes).is_some_and(|end| end <= memory.len_bytes);
        if !inside {
            return Err(format!("bytes {offset_bytes}+{} of a memory of {}", info.extent_bytes, memory.len_bytes));
        }
        if !offset_bytes.is_multiple_of(self.image.layouts()[layout as usize].dtype().size_bytes()) {
            return Err(format!("byte {offset_bytes} is not aligned for its elements"));
        }
        Ok(info)
    }

    fn check_entries(&self) -> Result<(), ImageError> {
        for (position, entry) in self.image.entries().iter().enumerate() {
            self.check_extent(entry.memory as usize, entry.layout, entry.offset_bytes)
                .map_err(|what| bad("entry", position, what))?;
            if !u8::try_from(entry.direction).is_ok_and(|code| Direction::from_code(code).is_some()) {
                return Err(bad("entry", position, "no such direction"));
            }
            if self.image.name(entry.name).is_none() {
                return Err(bad("entry", position, "its name is not there"));
            }
        }
        Ok(())
    }

    /// The lists that tasks own follow each other and end where their sections end.
    fn check_lists(&self) -> Result<(), ImageError> {
        let firsts = |task: &TaskRecord| [task.first_access, task.first_scalar, task.first_successor];
        let tasks = self.image.tasks_and_end();
        if firsts(&tasks[0]) != [0; 3] {
            return Err(bad("task", 0, "its lists do not start at 0"));
        }
        for (position, pair) in tasks.windows(2).enumerate() {
            if firsts(&pair[0]).iter().zip(firsts(&pair[1])).any(|(&first, next)| first > next) {
                return Err(bad("task", position, "a list ends before it starts"));
            }
        }
        let end = tasks.last().expect("there is a closing record");
        let lens = [self.image.accesses().len(), self.image.scalars().len(), self.image.successors().len()];
        if firsts(end).iter().zip(lens).any(|(&first, len)| first as usize != len) {
            return Err(bad("task", tasks.len() - 1, "the last lists do not end with their sections"));
        }
        Ok(())
    }

    fn accesses_of(&self, task: usize) -> std::ops::Range<usize> {
        let tasks = self.image.tasks_and_end();
        tasks[task].first_access as usize..tasks[task + 1].first_access as usize
    }

    fn check_task(&self, task: usize) -> Result<(), ImageError> {
        const KNOWN: u16 = TASK_START_TOGETHER | TASK_PREDICATED | TASK_INFERRED_JOIN | TASK_BLOCKS_BY_PROMISE;
        let record = &self.image.tasks()[task];
        let bad = |what: &str| bad("task", task, what);
        if record.blocks == 0 || record.flags & !KNOWN != 0 {
            return Err(bad("no blocks, or flags that mean nothing"));
        }
        if record.flags & TASK_BLOCKS_BY_PROMISE != 0 {
            return Err(ImageError::Unchecked);
        }
        let lanes = record.kernels.iter().take_while(|&&kernel| kernel != NO_KERNEL).count();
        if record.kernels[lanes..].iter().any(|&kernel| kernel != NO_KERNEL) {
            return Err(bad("a lane is missing between others"));
        }
        let mut lanes_of = [0usize; 2];
        for &kernel in &record.kernels[..lanes] {
            let kernel = self.image.kernels().get(usize::from(kernel)).ok_or_else(|| bad("no such kernel"))?;
            lanes_of[kernel.core as usize] += 1;
        }
        if lanes_of[0] > 1 || lanes_of[1] > 2 {
            return Err(bad("more lanes of one kind than a cluster has cores"));
        }
        let accesses = self.accesses_of(task);
        let scalars = self.image.tasks_and_end()[task + 1].first_scalar - record.first_scalar;
        if lanes == 0 && scalars > 0 {
            return Err(bad("a join has no scalars"));
        }
        if record.flags & TASK_INFERRED_JOIN != 0
            && (lanes > 0 || !accesses.is_empty() || record.flags != TASK_INFERRED_JOIN || record.blocks != 1)
        {
            return Err(bad("an inferred join does nothing"));
        }
        for position in accesses.clone() {
            self.check_access(record, position)?;
        }
        if record.flags & TASK_PREDICATED != 0 {
            let access = accesses.clone().next_back().map(|last| &self.image.accesses()[last]);
            let fits = access.is_some_and(|access| {
                let layout = &self.image.layouts()[access.layout as usize];
                let elems: Option<u64> =
                    layout.shape[..usize::from(layout.rank)].iter().try_fold(1u64, |all, &len| all.checked_mul(len));
                let opaque = matches!(layout.dtype(), DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1X2);
                access.direction() == Direction::In && elems == Some(1) && !opaque && layout.split_dim == NO_SPLIT
            });
            if !fits {
                return Err(bad("its predicate does not read one comparable element"));
            }
        }
        if lanes > 0 {
            self.check_own_overlap(task, accesses)?;
        }
        Ok(())
    }

    fn check_access(&self, task: &TaskRecord, position: usize) -> Result<(), ImageError> {
        let access = &self.image.accesses()[position];
        let bad = |what: &str| bad("access", position, what);
        let direction = Direction::from_code(access.direction_code()).ok_or_else(|| bad("no such direction"))?;
        let info = self.check_extent(access.memory(), access.layout, access.offset_bytes).map_err(|what| bad(&what))?;
        if direction.writes() && !info.distinct {
            return Err(bad("it is written and its elements fall on each other"));
        }
        let layout = &self.image.layouts()[access.layout as usize];
        if layout.split_dim == NO_SPLIT {
            if direction.writes() && task.blocks > 1 {
                return Err(bad("several blocks write it and it is not split among them"));
            }
        } else if !layout.shape[usize::from(layout.split_dim)].is_multiple_of(u64::from(task.blocks)) {
            return Err(bad("its blocks do not divide the dimension that splits it"));
        }
        Ok(())
    }

    fn bytes_of(&self, access: &AccessRecord) -> &Footprint {
        self.footprints.get(self.layouts[access.layout as usize].footprint)
    }

    fn check_own_overlap(&self, task: usize, accesses: std::ops::Range<usize>) -> Result<(), ImageError> {
        let accesses = &self.image.accesses()[accesses];
        for (position, second) in accesses.iter().enumerate() {
            for first in &accesses[..position] {
                if first.memory() == second.memory()
                    && (first.direction().writes() || second.direction().writes())
                    && overlaps(
                        self.bytes_of(first),
                        first.offset_bytes,
                        self.bytes_of(second),
                        second.offset_bytes,
                        REFUSAL_STEPS,
                    )
                {
                    return Err(bad("task", task, "two of its arguments overlap and one is written"));
                }
            }
        }
        Ok(())
    }

    fn check_predicates(&self) -> Result<(), ImageError> {
        let predicates = self.image.predicates();
        for (position, predicate) in predicates.iter().enumerate() {
            let task = self.image.tasks().get(predicate.task as usize);
            if task.is_none_or(|task| task.flags & TASK_PREDICATED == 0) {
                return Err(bad("predicate", position, "its task is not there or has no predicate"));
            }
            if !u8::try_from(predicate.comparison).is_ok_and(|code| Comparison::from_code(code).is_some()) {
                return Err(bad("predicate", position, "no such comparison"));
            }
            if position > 0 && predicates[position - 1].task >= predicate.task {
                return Err(bad("predicate", position, "not sorted by task"));
            }
        }
        let flagged = self.image.tasks().iter().filter(|task| task.flags & TASK_PREDICATED != 0).count();
        if flagged != predicates.len() {
            return Err(bad("predicate", predicates.len(), "a predicated task has none"));
        }
        Ok(())
    }

    fn check_writes(&self) -> Result<(), ImageError> {
        let writes = self.image.writes();
        let mut ranges = Vec::with_capacity(writes.len());
        for (position, write) in writes.iter().enumerate() {
            let bad = |what: &str| bad("write", position, what);
            let memory = self.image.memories().get(write.memory as usize).ok_or_else(|| bad("no such memory"))?;
            let end = write.offset_bytes.checked_add(write.len_bytes).filter(|&end| end <= memory.len_bytes);
            let end = end.ok_or_else(|| bad("it ends outside its memory"))?;
            let payload_end = write.payload_offset.checked_add(write.len_bytes);
            if payload_end.is_none_or(|end| end > self.image.payload().len() as u64) || write.reserved != 0 {
                return Err(bad("its bytes are not in the payload"));
            }
            if write.len_bytes > 0 {
                ranges.push((write.memory, write.offset_bytes, end, position));
            }
        }
        ranges.sort_unstable();
        match ranges.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1) {
            Some(pair) => Err(bad("write", pair[1].3, "it overlaps another")),
            None => Ok(()),
        }
    }

    /// Edges go forward, each once, and are counted right.
    fn check_edges(&self) -> Result<Predecessors, ImageError> {
        let tasks = self.image.tasks_and_end();
        let count = self.image.task_count();
        let successors_of =
            |task: usize| tasks[task].first_successor as usize..tasks[task + 1].first_successor as usize;
        let mut first = vec![0u32; count + 1];
        for task in 0..count {
            let mut previous = task;
            for position in successors_of(task) {
                let to = self.image.successors()[position] as usize;
                if to <= previous || to >= count {
                    return Err(bad("successor", position, "edges go to later tasks, in ascending order"));
                }
                previous = to;
                first[to + 1] += 1;
            }
        }
        for task in 0..count {
            if first[task + 1] != tasks[task].predecessors {
                return Err(bad("task", task, "it does not wait for as many tasks as have an edge to it"));
            }
            first[task + 1] += first[task];
        }
        let mut next = first.clone();
        let mut from = vec![0u32; self.image.successors().len()];
        for task in 0..count {
            for &to in &self.image.successors()[successors_of(task)] {
                from[next[to as usize] as usize] = task as u32;
                next[to as usize] += 1;
            }
        }
        Ok(Predecessors { first, tasks: from })
    }

    /// Bytes that no access connects cannot conflict: each connected range of a memory becomes an object of the tracker.
    /// The result is, for each access, its object and the object's first byte in the memory.
    fn add_objects(&self, tracker: &mut Tracker) -> Vec<(u32, u64)> {
        let accesses = self.image.accesses();
        let mut extents: Vec<(u32, u64, u64, u32)> = Vec::with_capacity(accesses.len());
        for (position, access) in accesses.iter().enumerate() {
            let extent = self.layouts[access.layout as usize].extent_bytes;
            if extent > 0 {
                let start = access.offset_bytes;
                extents.push((access.memory() as u32, start, start + extent, position as u32));
            }
        }
        extents.sort_unstable_by_key(|&(memory, start, ..)| (memory, start));
        let mut places = vec![(0, 0); accesses.len()];
        let mut rest = extents.as_slice();
        let mut object = 0;
        while let Some(&(memory, start, mut end, _)) = rest.first() {
            let mut count = 0;
            while let Some(&(_, _, next_end, position)) =
                rest.get(count).filter(|&&(next_memory, next, ..)| count == 0 || (next_memory == memory && next < end))
            {
                end = next_end.max(end);
                places[position as usize] = (object, start);
                count += 1;
            }
            tracker.add_object(end - start);
            object += 1;
            rest = &rest[count..];
        }
        places
    }

    /// Every two tasks that touch common bytes, one of them writing, are ordered by a path.
    fn check_order(&mut self, predecessors: &Predecessors) -> Result<(), ImageError> {
        let mut tracker = Tracker::default();
        let places = self.add_objects(&mut tracker);
        let accesses = self.image.accesses();
        let count = self.image.task_count();
        let (mut found, mut touches) = (Vec::new(), Vec::new());
        let (mut seen, mut stack) = (vec![NONE_SEEN; count], Vec::new());
        for task in 0..count as u32 {
            found.clear();
            touches.clear();
            for position in self.accesses_of(task as usize) {
                let access = &accesses[position];
                let info = self.layouts[access.layout as usize];
                if info.extent_bytes == 0 {
                    continue;
                }
                let (object, start) = places[position];
                let at = access.offset_bytes - start;
                let place = tracker.place(object, &info, at, &self.footprints);
                let writes = access.direction().writes();
                let end = at + info.extent_bytes;
                let view = View { at, end, footprint: info.footprint, gapless: info.gapless };
                let touch = Touch { object, writes, view, place };
                let first = found.len();
                tracker.find(&touch, &self.footprints, &mut NoJoins { implied: false }, &mut found);
                let direct = predecessors.of(task);
                let mut kept = first;
                for index in first..found.len() {
                    // Ascending, since tasks were walked in order.
                    if direct.binary_search(&found[index]).is_err() && found[index] != task {
                        found[kept] = found[index];
                        kept += 1;
                    }
                }
                found.truncate(kept);
                touches.push((touch, access.memory() as u32, info));
            }
            if let Some(&oldest) = found.iter().min() {
                stack.clear();
                stack.extend_from_slice(predecessors.of(task));
                while let Some(next) = stack.pop() {
                    if next >= oldest && seen[next as usize] != task {
                        seen[next as usize] = task;
                        stack.extend_from_slice(predecessors.of(next));
                    }
                }
                if let Some(&missed) = found.iter().find(|&&earlier| seen[earlier as usize] != task) {
                    let memory = touches.first().map_or(0, |&(_, memory, _)| memory);
                    return Err(ImageError::Unordered { first: TaskId(missed), second: TaskId(task), memory });
                }
            }
            let cuts = tracker.cuts;
            for (touch, _, info) in &mut touches {
                if tracker.cuts != cuts {
                    touch.place = tracker.place(touch.object, info, touch.view.at, &self.footprints);
                }
                tracker.record(touch, task, &mut self.footprints, true);
            }
        }
        Ok(())
    }
}

/// No task has this number: an image has fewer.
const NONE_SEEN: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{EntryWrites, GraphBuilder, GraphLimits};
    use crate::image::Parts;
    use crate::layout::Region;
    use crate::task::{Access, ObjectRegion, TaskDesc};

    /// Joins (they need no kernels) that write tiles of a matrix, read all of it, write tiles again, and so on.
    fn image() -> Image {
        let mut builder = GraphBuilder::new(GraphLimits::default());
        let object = builder.add_external(1024, EntryWrites::Allowed);
        let matrix = Region::contiguous(DType::U8, &[32, 32]).expect("small");
        for task in 0..90u64 {
            let (region, direction) = if task / 20 % 2 == 0 {
                let (row, column) = (task * 5 % 4 * 8, task * 3 % 4 * 8);
                let rows = matrix.slice(0, row..row + 8).expect("inside");
                (rows.slice(1, column..column + 8).expect("inside"), Direction::InOut)
            } else {
                (matrix, Direction::In)
            };
            let accesses = [Access { tensor: ObjectRegion { object, region }, direction, split_dim: None }];
            builder.submit(&TaskDesc { accesses: &accesses, ..TaskDesc::default() }).expect("a good task");
        }
        builder.freeze(None)
    }

    /// The image without the edge at this position, whose source and target are also returned.
    fn without_edge(image: &Image, position: usize) -> (Image, usize, usize) {
        let mut tasks = image.tasks_and_end().to_vec();
        let mut successors = image.successors().to_vec();
        let to = successors.remove(position) as usize;
        let from = tasks.partition_point(|task| task.first_successor as usize <= position) - 1;
        tasks[to].predecessors -= 1;
        tasks[from + 1..].iter_mut().for_each(|task| task.first_successor -= 1);
        let parts = Parts {
            memories: image.memories(),
            layouts: image.layouts(),
            tasks: &tasks,
            accesses: image.accesses(),
            successors: &successors,
            ..Parts::default()
        };
        (Image::assemble(parts, None), from, to)
    }

    fn reaches(image: &Image, from: usize, to: usize) -> bool {
        let tasks = image.tasks_and_end();
        let mut reached = vec![false; image.task_count()];
        reached[from] = true;
        for task in from..to {
            let list = tasks[task].first_successor as usize..tasks[task + 1].first_successor as usize;
            for &next in &image.successors()[list] {
                reached[next as usize] |= reached[task];
            }
        }
        reached[to]
    }

    #[test]
    fn every_lost_edge_is_noticed_unless_another_path_does_its_work() {
        let image = image();
        assert!(image.tasks().iter().any(|task| task.flags & TASK_INFERRED_JOIN != 0));
        assert_eq!(check(&image), Ok(()));
        let mut noticed = 0;
        for position in 0..image.successors().len() {
            let (changed, from, to) = without_edge(&image, position);
            match check(&changed) {
                Ok(()) => assert!(reaches(&changed, from, to), "the edge {from} > {to} is lost"),
                Err(ImageError::Unordered { .. }) => {
                    assert!(!reaches(&changed, from, to));
                    noticed += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(noticed > 50, "{noticed}");
    }
}
