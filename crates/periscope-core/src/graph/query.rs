//! Questions about the graph so far: who touches these bytes?
//!
//! Whether anyone does is one load. Who, is the exact test against what hazard tracking knows. Which bytes, is worked out
//! from the accesses themselves when it is asked for (once or twice per run and object), so that submit keeps no book of it.

use std::collections::HashSet;
use std::ops::ControlFlow;

use rangemap::RangeSet;

use super::GraphBuilder;
use crate::footprint::Footprint;
use crate::ids::{ObjectId, TaskId};
use crate::image::{AccessRecord, TASK_PREDICATED};

impl GraphBuilder {
    /// Whether some submitted task writes a byte of the object. O(1).
    ///
    /// # Panics
    /// If there is no such object.
    #[must_use]
    #[inline]
    pub fn has_writer(&self, object: ObjectId) -> bool {
        self.tracker.has_writer(object.0)
    }

    /// Whether no submitted task touches a byte of the object. O(1).
    ///
    /// # Panics
    /// If there is no such object.
    #[must_use]
    #[inline]
    pub fn is_untouched(&self, object: ObjectId) -> bool {
        self.objects[object.index()].last_access == 0
    }

    /// Some submitted task that writes one of these bytes: the exact test (as long as the sets have under a few million
    /// runs). `at` is the footprint's first byte in the object.
    ///
    /// # Panics
    /// If there is no such object.
    #[must_use]
    pub fn writer_of(&self, object: ObjectId, bytes: &Footprint, at: u64) -> Option<TaskId> {
        let mut writer = None;
        let _ = self.tracker.users(object.0, bytes, at, &self.footprints, |task, writes| {
            if writes {
                writer = Some(task);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        writer.map(|task| self.real_task(task))
    }

    /// Some submitted task that touches one of these bytes, and whether it writes one of them. A writer if there is one.
    ///
    /// # Panics
    /// If there is no such object.
    #[must_use]
    pub fn user_of(&self, object: ObjectId, bytes: &Footprint, at: u64) -> Option<(TaskId, bool)> {
        let mut user = None;
        let _ = self.tracker.users(object.0, bytes, at, &self.footprints, |task, writes| {
            if writes {
                user = Some((task, true));
                return ControlFlow::Break(());
            }
            user.get_or_insert((task, false));
            ControlFlow::Continue(())
        });
        user.map(|(task, writes)| (self.real_task(task), writes))
    }

    /// A submitted task: the task itself, or one that an inferred join stands for. (Where a join stands for readers of
    /// some bytes, any of them will do.)
    pub(super) fn real_task(&self, task: u32) -> TaskId {
        let mut task = task;
        while self.is_inferred_join(task) {
            task = self.predecessors_of(task)[0];
        }
        TaskId(task)
    }

    /// The bytes of the object that submitted tasks write (OUT and INOUT, predicated or not). Computed at each call.
    ///
    /// # Panics
    /// If there is no such object.
    #[must_use]
    pub fn written_ranges(&self, object: ObjectId) -> RangeSet<u64> {
        let mut views: Vec<(u32, u64)> = self
            .accesses_of(object)
            .filter(|access| access.direction().writes())
            .map(|access| self.view_of(object, access))
            .collect();
        views.sort_unstable();
        views.dedup();
        let mut runs = Vec::new();
        for (footprint, at) in views {
            self.footprints.get(footprint).for_each_run(at, |start, len| runs.push((start, start + len)));
        }
        runs.sort_unstable();
        let mut written = RangeSet::new();
        let mut current: Option<(u64, u64)> = None;
        for (start, end) in runs {
            match &mut current {
                Some((_, last)) if start <= *last => *last = end.max(*last),
                _ => {
                    if let Some((start, end)) = current.replace((start, end)) {
                        written.insert(start..end);
                    }
                }
            }
        }
        if let Some((start, end)) = current {
            written.insert(start..end);
        }
        written
    }

    /// The bytes of the object that some task reads (IN, INOUT, a predicate, or an OUT of a predicated task) and that no
    /// earlier task of the graph writes. Computed at each call.
    ///
    /// # Panics
    /// If there is no such object.
    #[must_use]
    pub fn read_before_written(&self, object: ObjectId) -> RangeSet<u64> {
        let mut chain: Vec<u32> = self.chain_of(object).collect();
        chain.reverse();
        let (mut written, mut read) = (RangeSet::<u64>::new(), RangeSet::new());
        // Seen again, a view adds nothing: the written bytes only grow.
        let (mut views_read, mut views_written) = (HashSet::new(), HashSet::new());
        let mut chain = chain.as_slice();
        while let Some(&first) = chain.first() {
            // All reads of a task come before its writes.
            let task = self.tasks.partition_point(|task| task.first_access <= first) - 1;
            let end = self.tasks.get(task + 1).map_or(self.accesses.len() as u32, |next| next.first_access);
            let (of_task, rest) = chain.split_at(chain.partition_point(|&access| access < end));
            chain = rest;
            let predicated = self.tasks[task].flags & TASK_PREDICATED != 0;
            for &access in of_task {
                let access = &self.accesses[access as usize];
                let view = self.view_of(object, access);
                if (access.direction().reads() || predicated) && views_read.insert(view) {
                    self.footprints.get(view.0).for_each_run(view.1, |start, len| {
                        for gap in written.gaps(&(start..start + len)) {
                            read.insert(gap);
                        }
                    });
                }
            }
            for &access in of_task {
                let access = &self.accesses[access as usize];
                let view = self.view_of(object, access);
                if access.direction().writes() && views_written.insert(view) {
                    self.footprints.get(view.0).for_each_run(view.1, |start, len| written.insert(start..start + len));
                }
            }
        }
        read
    }

    /// Positions of the accesses that touch a byte of the object, last first.
    fn chain_of(&self, object: ObjectId) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.objects[object.index()].last_access;
        std::iter::from_fn(move || {
            let access = next.checked_sub(1)?;
            next = self.previous_access[access as usize];
            Some(access)
        })
    }

    fn accesses_of(&self, object: ObjectId) -> impl Iterator<Item = &AccessRecord> + '_ {
        self.chain_of(object).map(|access| &self.accesses[access as usize])
    }

    /// Footprint and first byte in the object.
    fn view_of(&self, object: ObjectId, access: &AccessRecord) -> (u32, u64) {
        let base = self.objects[object.index()].base;
        (self.layouts.info(access.layout).footprint, access.offset_bytes - base)
    }
}
