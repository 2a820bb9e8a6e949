//! Who touched these bytes last? Answers for one access at a time, in submission order.
//!
//! # What is kept
//! For each object, enough of its past accesses that every later access that conflicts with any earlier one finds
//! a chain of conflicts to it: an access is forgotten only when a later *write* covers its bytes, because
//! whoever meets the forgotten one meets that write too. Everything else here is about finding them fast.
//!
//! ```text
//! object ─ writer, readers        accesses of the whole object: all that most graph memory ever needs
//!   └ grid ─ wide writes, reads   partial views that touch more than four cells, or do not fit the lattice
//!       └ cells (see `lattice`)   each: writer and readers of all of the cell; partial writes and reads, tested exactly
//! ```
//! A grid starts with its wide lists alone and gets cells of the commonest shape once eight views lie there; when
//! more come that do not fit, it is cut anew (`regrid`), each time four times later.
//!
//! # Why nothing extra
//! A task is found only if its bytes and those of the access really meet (for sets beyond
//! [`ORDER_STEPS`]: may meet) and one of them writes. What is implied by another find may be left out: a writer behind its
//! readers, and anything older than the writer of all cells that the access touches.
//!
//! # Products
//! A read that finds more than [`MANY`] tasks for the second time is made to wait for a join of them; the join is kept
//! in a **slot** for the read's bytes, with the log of writes since, so the next such read waits for the join and those.
//! More than [`MANY`] readers of the same bytes that a partial write meets are replaced by a join of them. All members
//! of a join conflict with all that will ever wait for it, so no order is made up.

mod lattice;
mod lists;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::ControlFlow;

use self::lattice::Lattice;
use self::lists::{Arena, Reads, Write};
use crate::footprint::{Footprint, ORDER_STEPS, REFUSAL_STEPS, overlaps};
use crate::intern::{FootprintId, Footprints, LayoutInfo, fold};

/// No task, list, grid or object.
pub(crate) const NONE: u32 = u32::MAX;
/// More than so many tasks of one kind are worth a join.
pub(crate) const MANY: usize = 16;
/// The most writes that a slot looks through before a fresh search is cheaper.
const MAX_LOG_WALK: usize = 256;
/// Wide accesses before a grid gets cells.
const FIRST_CELLS_AT: u32 = 8;

/// Where inferred joins come from.
pub(crate) trait Joins {
    /// Whether [`Joins::join`] may be called.
    fn allowed(&self) -> bool;
    /// A new task, after all so far and before the one being submitted, that waits for these.
    fn join(&mut self, waits_for: &[u32]) -> u32;
}

/// None.
pub(crate) struct NoJoins;

impl Joins for NoJoins {
    fn allowed(&self) -> bool {
        false
    }
    fn join(&mut self, _: &[u32]) -> u32 {
        unreachable!("not allowed")
    }
}

/// Where the bytes of an access lie in the structure of its object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// No byte.
    Nowhere,
    /// All of the object.
    Whole,
    /// In these cells, `full` having a bit for each that is covered.
    Cells { count: u8, full: u8, cells: [u32; 4] },
    /// Anywhere.
    Wide,
}

/// One access, with its place worked out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) object: u32,
    pub(crate) footprint: FootprintId,
    /// First byte in the object.
    pub(crate) at: u64,
    pub(crate) writes: bool,
    pub(crate) place: Place,
}

#[derive(Clone, Copy, Debug)]
struct Tracked {
    len_bytes: u64,
    /// Last writer of the whole object.
    writer: u32,
    /// Readers of the whole object since, newest first.
    readers: u32,
    grid: u32,
    written: bool,
}

#[derive(Clone, Copy, Debug)]
struct Grid {
    wide_writes: u32,
    wide_reads: u32,
    /// Position of its lattice, or [`NONE`]: no cells yet.
    lattice: u32,
    first_cell: u32,
    /// The cells that hold anything, linked by `Cell::next`.
    touched: u32,
    touched_count: u32,
    /// Wide accesses since it was last cut, and how many make it be cut (again).
    wide: u32,
    cut_at: u32,
    /// The commonest footprint among them, by majority vote.
    candidate: FootprintId,
    votes: u32,
    slots: u32,
    /// Last entry of the log of writes, kept while there are slots.
    log: u32,
    /// Counts up when the whole object is written: older slots are void.
    epoch: u32,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    /// Last writer of all of the cell.
    writer: u32,
    /// Readers of all of the cell since, newest first.
    readers: u32,
    part_writes: u32,
    part_reads: u32,
    /// Next touched cell, [`NONE`] after the last, or [`UNTOUCHED`].
    next: u32,
}

const UNTOUCHED: u32 = NONE - 1;
const EMPTY_CELL: Cell = Cell { writer: NONE, readers: NONE, part_writes: NONE, part_reads: NONE, next: UNTOUCHED };

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// What reads of these bytes wait for, or [`NONE`]: such a read was seen once.
    join: u32,
    /// The log's last entry when that was.
    log: u32,
    epoch: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct SlotHasher(u64);

impl Hasher for SlotHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = fold(self.0, number);
    }
}

type Slots = HashMap<(u32, FootprintId, u64), Slot, BuildHasherDefault<SlotHasher>>;

/// The past accesses of all objects of a graph. See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    objects: Vec<Tracked>,
    grids: Vec<Grid>,
    lattices: Vec<Lattice>,
    cells: Vec<Cell>,
    tasks: Arena<u32>,
    writes: Arena<Write>,
    reads: Arena<Reads>,
    log: Vec<(Write, u32)>,
    slots: Slots,
    /// How often a grid was cut: places from before may be void.
    pub(crate) cuts: u64,
}

impl Tracker {
    /// Forgets all objects and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.objects.clear();
        self.grids.clear();
        self.lattices.clear();
        self.cells.clear();
        self.tasks.clear();
        self.writes.clear();
        self.reads.clear();
        self.log.clear();
        self.slots.clear();
    }

    /// Adds an object; they are numbered from 0.
    #[inline]
    pub(crate) fn add_object(&mut self, len_bytes: u64) {
        self.objects.push(Tracked { len_bytes, writer: NONE, readers: NONE, grid: NONE, written: false });
    }

    #[inline]
    pub(crate) fn len_bytes(&self, object: u32) -> u64 {
        self.objects[object as usize].len_bytes
    }

    #[inline]
    pub(crate) fn has_writer(&self, object: u32) -> bool {
        self.objects[object as usize].written
    }

    /// Where a layout placed at byte `at` of an object lies. The caller has checked that it lies within.
    #[inline]
    pub(crate) fn place(&self, object: u32, layout: &LayoutInfo, at: u64, footprints: &Footprints) -> Place {
        let tracked = &self.objects[object as usize];
        if layout.extent_bytes == tracked.len_bytes && layout.gapless && layout.extent_bytes > 0 {
            return Place::Whole;
        }
        if layout.extent_bytes == 0 {
            return Place::Nowhere;
        }
        if tracked.grid == NONE {
            return Place::Wide;
        }
        let lattice = self.grids[tracked.grid as usize].lattice;
        if lattice == NONE {
            return Place::Wide;
        }
        let bytes = footprints.get(layout.footprint);
        self.lattices[lattice as usize].locate(layout.footprint, bytes, at).unwrap_or(Place::Wide)
    }

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
        let object = self.objects[touch.object as usize];
        match touch.place {
            Place::Nowhere => {}
            Place::Whole if object.grid == NONE => {
                if touch.writes && object.readers != NONE {
                    found.extend(self.tasks.iter(object.readers));
                } else if object.writer != NONE {
                    found.push(object.writer);
                }
            }
            Place::Cells { count, full, cells } => {
                let first = found.len();
                for (position, &cell) in cells[..count as usize].iter().enumerate() {
                    self.find_in_cell(touch, cell, full >> position & 1 != 0, footprints, joins, found);
                }
                self.find_around_cells(touch, &cells[..count as usize], footprints, joins, found);
                if !touch.writes && found.len() - first > MANY && joins.allowed() {
                    self.gather(touch, first, footprints, joins, found);
                }
            }
            Place::Whole | Place::Wide => self.find_wide(touch, footprints, joins, found),
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
        if touch.writes && cell.readers != NONE {
            // Their own writer is implied.
            push_readers(&mut self.tasks, &mut cell.readers, 0, full, joins, found);
        } else if cell.writer != NONE {
            found.push(cell.writer);
        } else if object.writer != NONE {
            found.push(object.writer);
        }
        if cell.part_writes == NONE && cell.part_reads == NONE {
            return;
        }
        let bytes = footprints.get(touch.footprint);
        let meets = |id, at| full || overlaps(bytes, touch.at, footprints.get(id), at, ORDER_STEPS);
        for write in self.writes.iter(cell.part_writes) {
            if meets(write.footprint, write.at) {
                found.push(write.task);
            }
        }
        if touch.writes {
            let mut node = cell.part_reads;
            while node != NONE {
                let reads = self.reads.get_mut(node);
                if meets(reads.footprint, reads.at) {
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
        if !readers && grid.wide_writes == NONE && grid.wide_reads == NONE {
            return;
        }
        // Whatever is older than the writers of all the cells is implied by them.
        let writer_of = |&cell: &u32| self.cells[(grid.first_cell + cell) as usize].writer.wrapping_add(1);
        let older = cells.iter().map(writer_of).min().unwrap_or(0);
        if readers {
            push_readers(&mut self.tasks, &mut object.readers, older, false, joins, found);
        }
        let (wide_writes, wide_reads) = (grid.wide_writes, grid.wide_reads);
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
        let bytes = footprints.get(touch.footprint);
        let meets = |id, at| whole || overlaps(bytes, touch.at, footprints.get(id), at, ORDER_STEPS);
        for write in self.writes.iter(wide_writes) {
            if write.task >= older && meets(write.footprint, write.at) {
                found.push(write.task);
            }
        }
        if touch.writes {
            let mut node = wide_reads;
            while node != NONE {
                let reads = self.reads.get_mut(node);
                if *self.tasks.get(reads.tasks) >= older && meets(reads.footprint, reads.at) {
                    let settled = whole || bytes.covers(touch.at, footprints.get(reads.footprint), reads.at);
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
        let whole = matches!(touch.place, Place::Whole);
        let bytes = footprints.get(touch.footprint);
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
        let same = |write: &&Write| write.ordered && write.footprint == touch.footprint && write.at == touch.at;
        let older = self.writes.iter(grid.wide_writes).find(same).map_or(0, |write| write.task);
        if object.writer != NONE && object.writer >= older {
            found.push(object.writer);
        }
        if touch.writes {
            push_readers(&mut self.tasks, &mut object.readers, older, whole, joins, found);
        }
        self.find_in_wide_lists(touch, grid.wide_writes, grid.wide_reads, older, whole, footprints, joins, found);
        self.for_each_cell(&grid, touch, bytes, |tracker, cell| {
            let lattice = &tracker.lattices[grid.lattice as usize];
            let state = &mut tracker.cells[(grid.first_cell + cell) as usize];
            if state.writer != NONE || state.readers != NONE {
                let (cell_bytes, cell_at) = lattice.cell_bytes(cell);
                if whole || overlaps(bytes, touch.at, &cell_bytes, cell_at, ORDER_STEPS) {
                    if touch.writes && state.readers != NONE {
                        let settled = whole || bytes.covers(touch.at, &cell_bytes, cell_at);
                        push_readers(&mut tracker.tasks, &mut state.readers, older, settled, joins, found);
                    } else if state.writer != NONE && state.writer >= older {
                        found.push(state.writer);
                    }
                }
            }
            let (part_writes, part_reads) = (state.part_writes, state.part_reads);
            tracker.find_in_wide_lists(touch, part_writes, part_reads, older, whole, footprints, joins, found);
        });
        if !touch.writes && found.len() - first > MANY && joins.allowed() {
            self.gather(touch, first, footprints, joins, found);
        }
    }

    /// Calls `visit` for every cell that holds anything and may hold a byte of the access.
    fn for_each_cell(
        &mut self,
        grid: &Grid,
        touch: &Touch,
        bytes: &Footprint,
        mut visit: impl FnMut(&mut Tracker, u32),
    ) {
        if grid.lattice == NONE {
            return;
        }
        let reach = self.lattices[grid.lattice as usize].reach(touch.at, bytes.extent_bytes());
        if reach.len() <= grid.touched_count as usize {
            for cell in reach {
                if self.cells[(grid.first_cell + cell) as usize].next != UNTOUCHED {
                    visit(self, cell);
                }
            }
        } else {
            let mut cell = grid.touched;
            while cell != NONE {
                let next = self.cells[(grid.first_cell + cell) as usize].next;
                if reach.contains(&cell) {
                    visit(self, cell);
                }
                cell = next;
            }
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
        let slot = self.slots.entry((number, touch.footprint, touch.at)).or_insert(Slot { epoch: NONE, ..fresh });
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
        let Some(slot) = self.slots.get_mut(&(number, touch.footprint, touch.at)) else { return false };
        if slot.epoch != grid.epoch || slot.join == NONE {
            return false;
        }
        let bytes = footprints.get(touch.footprint);
        let first = found.len();
        let (mut entry, mut walked) = (grid.log, 0);
        while entry != slot.log {
            if walked == MAX_LOG_WALK {
                found.truncate(first);
                return false;
            }
            walked += 1;
            let (write, previous) = &self.log[entry as usize];
            let written = footprints.get(write.footprint);
            if overlaps(bytes, touch.at, written, write.at, ORDER_STEPS) {
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

    /// Records the access. `ordered`: everything that [`Tracker::find`] found is ordered before `task`; if it may not be
    /// (an unchecked manual scope), nothing is forgotten for its sake.
    #[inline]
    pub(crate) fn record(&mut self, touch: &Touch, task: u32, footprints: &mut Footprints, ordered: bool) {
        let object = &mut self.objects[touch.object as usize];
        object.written |= touch.writes && !matches!(touch.place, Place::Nowhere);
        match touch.place {
            Place::Nowhere => {}
            Place::Whole if !touch.writes => push_reader(&mut self.tasks, &mut object.readers, task),
            Place::Whole if ordered => {
                object.writer = task;
                self.tasks.free(&mut object.readers);
                if object.grid != NONE {
                    self.empty_grid(touch.object);
                }
            }
            Place::Cells { count, full, cells } if ordered || !touch.writes => {
                let number = object.grid;
                for (position, &cell) in cells[..count as usize].iter().enumerate() {
                    self.record_in_cell(touch, number, cell, full >> position & 1 != 0, task, footprints);
                }
                if touch.writes {
                    self.log_write(touch, number, task, true);
                }
            }
            _ => self.record_wide(touch, task, footprints, ordered),
        }
    }

    #[inline]
    fn record_in_cell(&mut self, touch: &Touch, grid: u32, cell: u32, full: bool, task: u32, footprints: &Footprints) {
        let grid = &mut self.grids[grid as usize];
        let position = (grid.first_cell + cell) as usize;
        let state = &mut self.cells[position];
        if state.next == UNTOUCHED {
            state.next = grid.touched;
            grid.touched = cell;
            grid.touched_count += 1;
        }
        match (touch.writes, full) {
            (true, true) => {
                state.writer = task;
                self.tasks.free(&mut state.readers);
                self.writes.free(&mut state.part_writes);
                free_reads(&mut self.reads, &mut self.tasks, &mut state.part_reads);
            }
            (false, true) => push_reader(&mut self.tasks, &mut state.readers, task),
            (true, false) => {
                let (mut writes, mut reads) = (state.part_writes, state.part_reads);
                if writes != NONE || reads != NONE {
                    self.forget_covered(touch, footprints, &mut writes, &mut reads);
                }
                self.writes.push(&mut writes, write_of(touch, task, true));
                let state = &mut self.cells[position];
                (state.part_writes, state.part_reads) = (writes, reads);
            }
            (false, false) => push_read(&mut self.reads, &mut self.tasks, &mut state.part_reads, touch, task),
        }
    }

    fn forget_covered(&mut self, touch: &Touch, footprints: &Footprints, writes: &mut u32, reads: &mut u32) {
        let bytes = footprints.get(touch.footprint);
        let covers = |id, at| bytes.covers(touch.at, footprints.get(id), at);
        self.writes.remove_if(writes, |write| covers(write.footprint, write.at));
        let tasks = &mut self.tasks;
        self.reads.remove_if(reads, |reads| {
            let gone = covers(reads.footprint, reads.at);
            if gone {
                let mut list = reads.tasks;
                tasks.free(&mut list);
            }
            gone
        });
    }

    fn record_wide(&mut self, touch: &Touch, task: u32, footprints: &mut Footprints, ordered: bool) {
        let number = self.grid_of(touch.object);
        let mut grid = self.grids[number as usize];
        let bytes = footprints.get(touch.footprint);
        if !touch.writes {
            push_read(&mut self.reads, &mut self.tasks, &mut grid.wide_reads, touch, task);
        } else {
            if ordered {
                self.forget_covered(touch, footprints, &mut grid.wide_writes, &mut grid.wide_reads);
                self.for_each_cell(&grid, touch, bytes, |tracker, cell| {
                    let position = (grid.first_cell + cell) as usize;
                    let state = tracker.cells[position];
                    let (mut writes, mut reads) = (state.part_writes, state.part_reads);
                    tracker.forget_covered(touch, footprints, &mut writes, &mut reads);
                    let (cell_bytes, cell_at) = tracker.lattices[grid.lattice as usize].cell_bytes(cell);
                    let covers = bytes.covers(touch.at, &cell_bytes, cell_at);
                    let state = &mut tracker.cells[position];
                    (state.part_writes, state.part_reads) = (writes, reads);
                    if covers {
                        state.writer = NONE;
                        tracker.tasks.free(&mut state.readers);
                    }
                });
            }
            self.writes.push(&mut grid.wide_writes, write_of(touch, task, ordered));
        }
        grid.wide += 1;
        if bytes.packed_bytes().saturating_mul(4) <= self.objects[touch.object as usize].len_bytes {
            if grid.votes == 0 {
                grid.candidate = touch.footprint;
            }
            if grid.candidate == touch.footprint { grid.votes += 1 } else { grid.votes -= 1 }
        }
        let cut = grid.wide >= grid.cut_at && grid.candidate != NONE;
        self.grids[number as usize] = grid;
        if touch.writes {
            self.log_write(touch, number, task, ordered);
        }
        if cut {
            self.regrid(touch.object, footprints);
        }
    }

    fn grid_of(&mut self, object: u32) -> u32 {
        let object = &mut self.objects[object as usize];
        if object.grid == NONE {
            object.grid = self.grids.len() as u32;
            self.grids.push(Grid {
                wide_writes: NONE,
                wide_reads: NONE,
                lattice: NONE,
                first_cell: 0,
                touched: NONE,
                touched_count: 0,
                wide: 0,
                cut_at: FIRST_CELLS_AT,
                candidate: NONE,
                votes: 0,
                slots: 0,
                log: NONE,
                epoch: 0,
            });
        }
        object.grid
    }

    fn log_write(&mut self, touch: &Touch, grid: u32, task: u32, ordered: bool) {
        let grid = &mut self.grids[grid as usize];
        if grid.slots > 0 {
            self.log.push((write_of(touch, task, ordered), grid.log));
            grid.log = self.log.len() as u32 - 1;
        }
    }

    /// The whole object was written: nothing in its grid matters any more.
    fn empty_grid(&mut self, object: u32) {
        let number = self.objects[object as usize].grid as usize;
        let grid = &mut self.grids[number];
        self.writes.free(&mut grid.wide_writes);
        free_reads(&mut self.reads, &mut self.tasks, &mut grid.wide_reads);
        while grid.touched != NONE {
            let cell = &mut self.cells[(grid.first_cell + grid.touched) as usize];
            self.tasks.free(&mut cell.readers);
            self.writes.free(&mut cell.part_writes);
            free_reads(&mut self.reads, &mut self.tasks, &mut cell.part_reads);
            grid.touched = cell.next;
            *cell = EMPTY_CELL;
        }
        grid.touched_count = 0;
        grid.slots = 0;
        grid.log = NONE;
        grid.epoch += 1;
    }

    /// Cuts an object into cells of its candidate's shape, and puts what is known of it into them.
    #[cold]
    fn regrid(&mut self, object: u32, footprints: &mut Footprints) {
        self.cuts += 1;
        let len_bytes = self.objects[object as usize].len_bytes;
        let number = self.objects[object as usize].grid as usize;
        let mut grid = self.grids[number];
        let candidate = std::mem::replace(&mut grid.candidate, NONE);
        (grid.wide, grid.votes, grid.cut_at) = (0, 0, grid.cut_at.saturating_mul(4));
        let old = (grid.lattice != NONE).then(|| self.lattices[grid.lattice as usize].clone());
        let lattice = Lattice::new(candidate, footprints.get(candidate), len_bytes);
        let Some(lattice) = lattice.filter(|_| old.as_ref().is_none_or(|old| old.tile() != Some(candidate))) else {
            self.grids[number] = grid;
            return;
        };
        // Take everything out …
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        while let Some(write) = self.writes.pop(&mut grid.wide_writes) {
            writes.push(write);
        }
        while let Some(entry) = self.reads.pop(&mut grid.wide_reads) {
            reads.push(entry);
        }
        while grid.touched != NONE {
            let cell = grid.touched;
            let state = &mut self.cells[(grid.first_cell + cell) as usize];
            let (bytes, at) = old.as_ref().expect("there are cells").cell_bytes(cell);
            let footprint = footprints.intern(&bytes);
            if state.writer != NONE {
                writes.push(Write { at, footprint, task: state.writer, ordered: true });
            }
            if state.readers != NONE {
                reads.push(Reads { at, footprint, tasks: state.readers });
            }
            while let Some(write) = self.writes.pop(&mut state.part_writes) {
                writes.push(write);
            }
            while let Some(entry) = self.reads.pop(&mut state.part_reads) {
                reads.push(entry);
            }
            grid.touched = state.next;
        }
        // … and put it back where it now belongs. What was in several cells may now come several times, which does no harm.
        let first_cell = self.cells.len() as u32;
        grid.lattice = self.lattices.len() as u32;
        grid.first_cell = first_cell;
        grid.touched_count = 0;
        self.cells.resize(self.cells.len() + lattice.cells() as usize, EMPTY_CELL);
        let mut spread = |footprint: FootprintId, at: u64, cells: &mut [Cell]| {
            let bytes = footprints.get(footprint);
            // The last cell of the old lattice may reach beyond the object.
            let inside = at + bytes.extent_bytes() <= len_bytes;
            let place = if inside { lattice.locate(footprint, bytes, at) } else { None };
            let Some(Place::Cells { count, cells: found, .. }) = place else { return ([0; 4], 0) };
            for &cell in &found[..count as usize] {
                let state = &mut cells[(first_cell + cell) as usize];
                if state.next == UNTOUCHED {
                    state.next = grid.touched;
                    grid.touched = cell;
                    grid.touched_count += 1;
                }
            }
            (found, count as usize)
        };
        let (mut wide_writes, mut wide_reads) = (NONE, NONE);
        for write in writes.into_iter().rev() {
            match spread(write.footprint, write.at, &mut self.cells) {
                (_, 0) => self.writes.push(&mut wide_writes, write),
                (cells, count) => {
                    for cell in &cells[..count] {
                        self.writes.push(&mut self.cells[(first_cell + cell) as usize].part_writes, write);
                    }
                }
            }
        }
        for entry in reads.into_iter().rev() {
            match spread(entry.footprint, entry.at, &mut self.cells) {
                (_, 0) => self.reads.push(&mut wide_reads, entry),
                (cells, count) => {
                    for (copy, cell) in cells[..count].iter().enumerate() {
                        // Each cell owns its list of readers.
                        let mut tasks = entry.tasks;
                        if copy > 0 {
                            let all: Vec<u32> = self.tasks.iter(entry.tasks).copied().collect();
                            tasks = NONE;
                            all.into_iter().rev().for_each(|task| self.tasks.push(&mut tasks, task));
                        }
                        let list = &mut self.cells[(first_cell + cell) as usize].part_reads;
                        self.reads.push(list, Reads { tasks, ..entry });
                    }
                }
            }
        }
        (grid.wide_writes, grid.wide_reads) = (wide_writes, wide_reads);
        self.lattices.push(lattice);
        self.grids[number] = grid;
    }

    /// Calls `user` with tasks that touch one of these bytes, and whether they write one: at least the last
    /// writer and all later readers of every byte. The exact test, far beyond the steps that ordering takes.
    pub(crate) fn users(
        &self,
        object: u32,
        bytes: &Footprint,
        at: u64,
        footprints: &Footprints,
        mut user: impl FnMut(u32, bool) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let object = &self.objects[object as usize];
        if bytes.is_empty() {
            return ControlFlow::Continue(());
        }
        let meets = |other: &Footprint, other_at| overlaps(bytes, at, other, other_at, REFUSAL_STEPS);
        if object.writer != NONE {
            user(object.writer, true)?;
        }
        if object.grid == NONE {
            return self.tasks.iter(object.readers).try_for_each(|&task| user(task, false));
        }
        let lists = |writes: u32, reads: u32, user: &mut dyn FnMut(u32, bool) -> ControlFlow<()>| {
            for write in self.writes.iter(writes) {
                if meets(footprints.get(write.footprint), write.at) {
                    user(write.task, true)?;
                }
            }
            for entry in self.reads.iter(reads) {
                if meets(footprints.get(entry.footprint), entry.at) {
                    self.tasks.iter(entry.tasks).try_for_each(|&task| user(task, false))?;
                }
            }
            ControlFlow::Continue(())
        };
        let grid = &self.grids[object.grid as usize];
        lists(grid.wide_writes, grid.wide_reads, &mut user)?;
        let lattice = if grid.lattice == NONE { None } else { Some(&self.lattices[grid.lattice as usize]) };
        if let Some(lattice) = lattice {
            let cell_users = |cell: u32, sure: bool, user: &mut dyn FnMut(u32, bool) -> ControlFlow<()>| {
                let state = &self.cells[(grid.first_cell + cell) as usize];
                if state.next == UNTOUCHED {
                    return ControlFlow::Continue(());
                }
                if state.writer != NONE || state.readers != NONE {
                    let (cell_bytes, cell_at) = lattice.cell_bytes(cell);
                    if sure || meets(&cell_bytes, cell_at) {
                        if state.writer != NONE {
                            user(state.writer, true)?;
                        }
                        self.tasks.iter(state.readers).try_for_each(|&task| user(task, false))?;
                    }
                }
                lists(state.part_writes, state.part_reads, user)
            };
            if let Some(Place::Cells { count, cells, .. }) = lattice.locate(NONE, bytes, at) {
                for &cell in &cells[..count as usize] {
                    cell_users(cell, true, &mut user)?;
                }
            } else {
                for cell in lattice.reach(at, bytes.extent_bytes()) {
                    cell_users(cell, false, &mut user)?;
                }
            }
        }
        self.tasks.iter(object.readers).try_for_each(|&task| user(task, false))
    }
}

fn write_of(touch: &Touch, task: u32, ordered: bool) -> Write {
    Write { at: touch.at, footprint: touch.footprint, task, ordered }
}

#[inline]
fn push_reader(tasks: &mut Arena<u32>, list: &mut u32, task: u32) {
    if *list == NONE || *tasks.get(*list) != task {
        tasks.push(list, task);
    }
}

/// Adds a reader to those of the same bytes, if they were met lately.
fn push_read(reads: &mut Arena<Reads>, tasks: &mut Arena<u32>, list: &mut u32, touch: &Touch, task: u32) {
    let mut node = *list;
    for _ in 0..4 {
        if node == NONE {
            break;
        }
        let entry = reads.get_mut(node);
        if entry.footprint == touch.footprint && entry.at == touch.at {
            push_reader(tasks, &mut entry.tasks, task);
            return;
        }
        node = reads.next(node);
    }
    let mut readers = NONE;
    tasks.push(&mut readers, task);
    reads.push(list, Reads { at: touch.at, footprint: touch.footprint, tasks: readers });
}

fn free_reads(reads: &mut Arena<Reads>, tasks: &mut Arena<u32>, list: &mut u32) {
    while let Some(mut entry) = reads.pop(list) {
        tasks.free(&mut entry.tasks);
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
