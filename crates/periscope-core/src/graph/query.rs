//! Questions about the graph so far: who touches these bytes?
//!
//! Whether anyone does is one load. Who, is the exact test against what hazard tracking knows. Which bytes, is a question to
//! the frozen image.

use std::ops::ControlFlow;

use super::GraphBuilder;
use crate::footprint::Footprint;
use crate::ids::{ObjectId, TaskId};

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
        !self.objects[object.index()].touched
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
}
