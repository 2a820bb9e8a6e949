//! What an access must wait for.
//!
//! Readers and writers that were recorded for its bytes, found through its place; where there are many, a join instead.

use super::lists::{Arena, View, Write};
use super::{Joins, Kind, MANY, NONE, Slot, Touch, Tracker};
use crate::footprint::{ORDER_STEPS, overlaps};
use crate::intern::Footprints;

/// The most writes that a slot looks through before a fresh search is cheaper.
const MAX_LOG_WALK: usize = 256;

impl Tracker {
    /// Adds to `found` the tasks that this access must wait for, except those that others of them imply. Some may
    /// come twice.
    #[inline]
    pub(crate) fn find<J: Joins>(
        &mut self,
        touch: &Touch,
        footprints: &Footprints,
        joins: &mut J,
        found: &mut Vec<u32>,
    ) {
        // By field, not as a copy: its fields were just written one by one.
        let object = &self.objects[touch.object as usize];
        match touch.place.kind {
            Kind::Nowhere => {}
            Kind::Whole if object.grid == NONE => {
                let readers = touch.writes && object.readers != NONE;
                if readers {
                    found.extend(self.tasks.iter(object.readers));
                }
                if object.writer != NONE && (!readers || joins.implied()) {
                    found.push(object.writer);
                }
            }
            Kind::Cells => {
                let first = found.len();
                for (position, &cell) in touch.place.each_cell().iter().enumerate() {
                    let full = touch.place.full >> position & 1 != 0;
                    self.find_in_cell(touch, cell, full, footprints, joins, found);
                }
                self.find_around_cells(touch, touch.place.each_cell(), footprints, joins, found);
                if !touch.writes && found.len() - first > MANY && joins.allowed() {
                    self.gather(touch, first, footprints, joins, found);
                }
            }
            Kind::Whole | Kind::Wide => self.find_wide(touch, footprints, joins, found),
        }
    }

    /// What the access meets inside a cell where it has a byte.
    #[inline]
    fn find_in_cell<J: Joins>(
        &mut self,
        touch: &Touch,
        cell: u32,
        full: bool,
        footprints: &Footprints,
        joins: &mut J,
        found: &mut Vec<u32>,
    ) {
        let object = &self.objects[touch.object as usize];
        let cell = &mut self.cells[(self.grids[object.grid as usize].first_cell + cell) as usize];
        let readers = touch.writes && cell.readers != NONE;
        if readers {
            push_readers(&mut self.tasks, &mut cell.readers, 0, full, joins, found);
        }
        // The readers imply the writer that they read from.
        if !readers || joins.implied() {
            let writer = if cell.writer != NONE { cell.writer } else { object.writer };
            if writer != NONE {
                found.push(writer);
            }
        }
        if cell.part_writes == NONE && cell.part_reads.is_empty() {
            return;
        }
        let meets = |view: &View| full || touch.view.meets(view, footprints);
        for write in self.writes.iter(cell.part_writes) {
            if meets(&write.view) {
                found.push(write.task);
            }
        }
        if touch.writes {
            let mut node = cell.part_reads.head;
            while node != NONE {
                let reads = self.reads.get_mut(node);
                if meets(&reads.view) {
                    push_readers(&mut self.tasks, &mut reads.tasks, 0, full, joins, found);
                }
                node = self.reads.next(node);
            }
        }
    }

    /// What an access with bytes in these cells alone meets outside the cells' own lists.
    #[inline]
    fn find_around_cells<J: Joins>(
        &mut self,
        touch: &Touch,
        cells: &[u32],
        footprints: &Footprints,
        joins: &mut J,
        found: &mut Vec<u32>,
    ) {
        let object = &mut self.objects[touch.object as usize];
        let grid = &self.grids[object.grid as usize];
        let readers = touch.writes && object.readers != NONE;
        if !readers && grid.wide_writes == NONE && grid.wide_reads.is_empty() {
            return;
        }
        // Whatever is older than the writers of all the cells is implied by them.
        let writer_of = |&cell: &u32| self.cells[(grid.first_cell + cell) as usize].writer.wrapping_add(1);
        let older = cells.iter().map(writer_of).min().unwrap_or(0);
        if readers {
            push_readers(&mut self.tasks, &mut object.readers, older, false, joins, found);
        }
        let (wide_writes, wide_reads) = (grid.wide_writes, grid.wide_reads.head);
        self.find_in_wide_lists(touch, wide_writes, wide_reads, older, false, footprints, joins, found);
    }

    #[expect(clippy::too_many_arguments, reason = "one loop, two callers")]
    fn find_in_wide_lists<J: Joins>(
        &mut self,
        touch: &Touch,
        wide_writes: u32,
        wide_reads: u32,
        older: u32,
        whole: bool,
        footprints: &Footprints,
        joins: &mut J,
        found: &mut Vec<u32>,
    ) {
        let meets = |view: &View| whole || touch.view.meets(view, footprints);
        for write in self.writes.iter(wide_writes) {
            if write.task >= older && meets(&write.view) {
                found.push(write.task);
            }
        }
        if touch.writes {
            let mut node = wide_reads;
            while node != NONE {
                let reads = self.reads.get_mut(node);
                if *self.tasks.get(reads.tasks) >= older && meets(&reads.view) {
                    let settled = whole || touch.view.covers(&reads.view, footprints);
                    push_readers(&mut self.tasks, &mut reads.tasks, older, settled, joins, found);
                }
                node = self.reads.next(node);
            }
        }
    }

    /// What an access meets that may lie anywhere in its object.
    fn find_wide<J: Joins>(&mut self, touch: &Touch, footprints: &Footprints, joins: &mut J, found: &mut Vec<u32>) {
        if !touch.writes && joins.allowed() && self.find_by_slot(touch, footprints, joins, found) {
            return;
        }
        let first = found.len();
        let whole = touch.place.kind == Kind::Whole;
        let bytes = footprints.get(touch.view.footprint);
        let object = &mut self.objects[touch.object as usize];
        if object.grid == NONE {
            if object.writer != NONE {
                found.push(object.writer);
            }
            if touch.writes {
                push_readers(&mut self.tasks, &mut object.readers, 0, whole, joins, found);
            }
            return;
        }
        let grid = self.grids[object.grid as usize];
        // A write of the very same bytes implies what came before it.
        let same = |write: &&Write| write.ordered && write.view.is_same(&touch.view);
        let older = self.writes.iter(grid.wide_writes).find(same).map_or(0, |write| write.task);
        if object.writer != NONE && object.writer >= older {
            found.push(object.writer);
        }
        if touch.writes {
            push_readers(&mut self.tasks, &mut object.readers, older, whole, joins, found);
        }
        self.find_in_wide_lists(touch, grid.wide_writes, grid.wide_reads.head, older, whole, footprints, joins, found);
        self.for_each_cell(&grid, touch, |tracker, cell| {
            let lattice = &tracker.lattices[grid.lattice as usize];
            let state = &mut tracker.cells[(grid.first_cell + cell) as usize];
            if state.writer != NONE || state.readers != NONE {
                let (cell_bytes, cell_at) = lattice.cell_bytes(cell);
                if whole || overlaps(bytes, touch.view.at, &cell_bytes, cell_at, ORDER_STEPS) {
                    let readers = touch.writes && state.readers != NONE;
                    if readers {
                        let settled = whole || bytes.covers(touch.view.at, &cell_bytes, cell_at);
                        push_readers(&mut tracker.tasks, &mut state.readers, older, settled, joins, found);
                    }
                    let implied = readers && !joins.implied();
                    if state.writer != NONE && state.writer >= older && !implied {
                        found.push(state.writer);
                    }
                }
            }
            let (part_writes, part_reads) = (state.part_writes, state.part_reads.head);
            tracker.find_in_wide_lists(touch, part_writes, part_reads, older, whole, footprints, joins, found);
        });
        if !touch.writes && found.len() - first > MANY && joins.allowed() {
            self.gather(touch, first, footprints, joins, found);
        }
    }

    /// A read found many tasks, `found[first..]`. The first time, its bytes get a slot; the second time, a join.
    #[cold]
    fn gather<J: Joins>(
        &mut self,
        touch: &Touch,
        first: usize,
        footprints: &Footprints,
        joins: &mut J,
        found: &mut Vec<u32>,
    ) {
        found[first..].sort_unstable();
        let mut kept = first;
        for position in first..found.len() {
            if position == first || found[position] != found[kept - 1] {
                found[kept] = found[position];
                kept += 1;
            }
        }
        found.truncate(kept);
        if kept - first <= MANY {
            return;
        }
        if self.find_by_slot(touch, footprints, joins, found) {
            found.drain(first..kept);
            return;
        }
        let number = self.objects[touch.object as usize].grid;
        let grid = &mut self.grids[number as usize];
        let fresh = Slot { join: NONE, log: grid.log, epoch: grid.epoch };
        let slot =
            self.slots.entry((number, touch.view.footprint, touch.view.at)).or_insert(Slot { epoch: NONE, ..fresh });
        if slot.epoch != grid.epoch {
            *slot = fresh;
            grid.slots += 1;
            return;
        }
        *slot = Slot { join: joins.join(&found[first..]), ..fresh };
        found.truncate(first);
        found.push(slot.join);
    }

    /// Whether a slot knows what a read waits for; then that is in `found`.
    fn find_by_slot<J: Joins>(
        &mut self,
        touch: &Touch,
        footprints: &Footprints,
        joins: &mut J,
        found: &mut Vec<u32>,
    ) -> bool {
        let number = self.objects[touch.object as usize].grid;
        if number == NONE || self.grids[number as usize].slots == 0 {
            return false;
        }
        let grid = &self.grids[number as usize];
        let Some(slot) = self.slots.get_mut(&(number, touch.view.footprint, touch.view.at)) else { return false };
        if slot.epoch != grid.epoch || slot.join == NONE {
            return false;
        }
        let first = found.len();
        let (mut entry, mut walked) = (grid.log, 0);
        while entry != slot.log {
            if walked == MAX_LOG_WALK {
                found.truncate(first);
                return false;
            }
            walked += 1;
            let (write, previous) = &self.log[entry as usize];
            if touch.view.meets(&write.view, footprints) {
                found.push(write.task);
            }
            entry = *previous;
        }
        found.push(slot.join);
        if found.len() - first > MANY {
            *slot = Slot { join: joins.join(&found[first..]), log: grid.log, epoch: grid.epoch };
            found.truncate(first);
            found.push(slot.join);
        }
        true
    }
}

/// Adds the readers of a list that are not older than `older` to `found`. Many are replaced by a join of them, in the list
/// too, unless the write that meets them ends the list anyway (`settled`).
#[inline]
fn push_readers<J: Joins>(
    tasks: &mut Arena<u32>,
    list: &mut u32,
    older: u32,
    settled: bool,
    joins: &mut J,
    found: &mut Vec<u32>,
) {
    let first = found.len();
    found.extend(tasks.iter(*list).take_while(|&&task| task >= older));
    if found.len() - first > MANY && !settled && joins.allowed() {
        for _ in first..found.len() {
            tasks.pop(list);
        }
        let join = joins.join(&found[first..]);
        tasks.push(list, join);
        found.truncate(first);
        found.push(join);
    }
}
