//! Which bytes of a memory an image's tasks touch: what has to be copied before and after its execution.

use std::ops::Range;

use rangemap::RangeSet;

use crate::footprint::Footprint;
use crate::image::{AccessRecord, Image, TASK_INFERRED_JOIN, TASK_PREDICATED};

/// Bytes of one memory that an execution writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// All that may be written.
    pub all: RangeSet<u64>,
    /// Without what only predicated tasks write, which may stay as it was.
    pub certainly: RangeSet<u64>,
}

impl Image {
    /// How many of the tasks are joins that inference added.
    #[must_use]
    pub fn inferred_join_count(&self) -> usize {
        self.tasks().iter().filter(|task| task.flags & TASK_INFERRED_JOIN != 0).count()
    }

    /// For each memory, whether the image or a task of it writes any byte.
    #[must_use]
    pub fn written_memories(&self) -> Vec<bool> {
        let mut written = vec![false; self.memories().len()];
        let empty: Vec<bool> = self.layouts().iter().map(|layout| layout.as_layout().is_empty()).collect();
        for access in self.accesses() {
            written[access.memory()] |= access.direction().writes() && !empty[access.layout as usize];
        }
        for write in self.writes() {
            written[write.memory as usize] = true;
        }
        written
    }

    /// The bytes that the image and its tasks write, exactly, by memory. Only of `wanted` memories: the others' are empty.
    #[must_use]
    pub fn written_ranges(&self, wanted: &[bool]) -> Vec<Written> {
        let mut runs: Vec<[Vec<Range<u64>>; 2]> = vec![Default::default(); self.memories().len()];
        if wanted.contains(&true) {
            for (task, record) in self.tasks().iter().enumerate() {
                let certain = record.flags & TASK_PREDICATED == 0;
                for access in self.accesses_of(task) {
                    let memory = access.memory();
                    if wanted[memory] && access.direction().writes() {
                        let to = &mut runs[memory][usize::from(certain)];
                        let footprint = self.footprint_of(access);
                        footprint.for_each_run(access.offset_bytes, |start, len| to.push(start..start + len));
                    }
                }
            }
            for write in self.writes() {
                let memory = write.memory as usize;
                if wanted[memory] && write.len_bytes > 0 {
                    runs[memory][1].push(write.offset_bytes..write.offset_bytes + write.len_bytes);
                }
            }
        }
        runs.into_iter()
            .map(|[perhaps, certainly]| {
                let certainly = merged(certainly);
                let mut all = certainly.clone();
                all.extend(merged(perhaps));
                Written { all, certainly }
            })
            .collect()
    }

    /// The bytes of memory number `memory` that a task reads before the image or any task has written them. What a
    /// predicated task writes counts as read, since it may stay as it was.
    #[must_use]
    pub fn read_before_written(&self, memory: usize) -> RangeSet<u64> {
        let (mut read, mut written) = (RangeSet::new(), RangeSet::new());
        for write in self.writes().iter().filter(|write| write.memory as usize == memory && write.len_bytes > 0) {
            written.insert(write.offset_bytes..write.offset_bytes + write.len_bytes);
        }
        for (task, record) in self.tasks().iter().enumerate() {
            let predicated = record.flags & TASK_PREDICATED != 0;
            let touches = |access: &&AccessRecord| access.memory() == memory;
            for access in self.accesses_of(task).iter().filter(touches) {
                if access.direction().reads() || predicated {
                    self.footprint_of(access).for_each_run(access.offset_bytes, |start, len| {
                        read.extend(written.gaps(&(start..start + len)).collect::<Vec<_>>());
                    });
                }
            }
            for access in self.accesses_of(task).iter().filter(touches) {
                if access.direction().writes() {
                    self.footprint_of(access)
                        .for_each_run(access.offset_bytes, |start, len| written.insert(start..start + len));
                }
            }
        }
        read
    }

    /// The accesses of task number `task`, its predicate's last.
    #[must_use]
    pub fn accesses_of(&self, task: usize) -> &[AccessRecord] {
        let tasks = self.tasks_and_end();
        &self.accesses()[tasks[task].first_access as usize..tasks[task + 1].first_access as usize]
    }

    /// The bytes of an access, relative to its offset.
    ///
    /// # Panics
    /// If the layout's numbers overflow, which no image that was made or decoded has.
    #[must_use]
    pub fn footprint_of(&self, access: &AccessRecord) -> Footprint {
        let record = &self.layouts()[access.layout as usize];
        Footprint::of(record.dtype(), &record.layout().expect("the image was checked when it was made"))
    }
}

/// One set of all runs. Sorting first makes it linear in the runs, however they came.
fn merged(mut runs: Vec<Range<u64>>) -> RangeSet<u64> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => merged.push(run),
        }
    }
    merged.into_iter().collect()
}
