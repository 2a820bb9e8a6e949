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
//! A grid starts with its wide lists alone and gets cells of the commonest shape (the largest, if all differ) once eight
//! views lie there; when more come that do not fit, it is cut anew (`regrid`), each time four times later.
//!
//! # Why nothing extra
//! A task is found only if its bytes and those of the access really meet (for sets beyond
//! [`crate::footprint::ORDER_STEPS`]: may meet) and one of them writes. What is implied by another find may be left out: a writer behind its
//! readers, and anything older than the writer of all cells that the access touches.
//!
//! # Products
//! A read that finds more than [`MANY`] tasks for the second time is made to wait for a join of them; the join is kept
//! in a **slot** for the read's bytes, with the log of writes since, so the next such read waits for the join and those.
//! More than [`MANY`] readers of the same bytes that a partial write meets are replaced by a join of them. All members
//! of a join conflict with all that will ever wait for it, so no order is made up.

mod find;
mod lattice;
mod lists;
mod record;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::ControlFlow;

use self::lattice::Lattice;
pub(crate) use self::lists::View;
use self::lists::{Arena, ReadList, Reads, Write};
use crate::footprint::{Footprint, REFUSAL_STEPS, overlaps};
use crate::intern::{FootprintId, Footprints, LayoutInfo, fold};

/// No task, list, grid or object.
pub(crate) const NONE: u32 = u32::MAX;
/// More than so many tasks of one kind are worth a join.
pub(crate) const MANY: usize = 16;
/// Wide accesses before a grid gets cells.
const FIRST_CELLS_AT: u32 = 8;

/// Where inferred joins come from.
pub(crate) trait Joins {
    /// Whether [`Joins::join`] may be called.
    fn allowed(&self) -> bool;
    /// A new task, after all so far and before the one being submitted, that waits for these.
    fn join(&mut self, waits_for: &[u32]) -> u32;
    /// Whether to find also the writer that its readers imply, since the task will not wait for all that is found.
    fn implied(&self) -> bool {
        false
    }
}

/// None.
pub(crate) struct NoJoins {
    /// See [`Joins::implied`].
    pub(crate) implied: bool,
}

impl Joins for NoJoins {
    fn implied(&self) -> bool {
        self.implied
    }
    fn allowed(&self) -> bool {
        false
    }
    fn join(&mut self, _: &[u32]) -> u32 {
        unreachable!("not allowed")
    }
}

/// How the bytes of an access lie in its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Kind {
    /// No byte.
    Nowhere,
    /// All of the object.
    Whole,
    /// In up to four cells.
    Cells,
    /// Anywhere.
    Wide,
}

/// Where the bytes of an access lie in the structure of its object. (A plain struct of words: an enum with the cells in
/// one variant is copied in odd pieces, which stalls.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    /// How many cells.
    count: u16,
    /// A bit for each of them that is covered.
    full: u16,
    cells: [u32; 4],
}

impl Place {
    const NOWHERE: Place = Place { kind: Kind::Nowhere, count: 0, full: 0, cells: [0; 4] };
    const WHOLE: Place = Place { kind: Kind::Whole, ..Place::NOWHERE };
    const WIDE: Place = Place { kind: Kind::Wide, ..Place::NOWHERE };

    #[inline]
    fn cells(count: usize, full: u16, cells: [u32; 4]) -> Place {
        Place { kind: Kind::Cells, count: count as u16, full, cells }
    }

    #[inline]
    fn each_cell(&self) -> &[u32] {
        &self.cells[..usize::from(self.count)]
    }
}

/// One access, with its place worked out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) object: u32,
    pub(crate) writes: bool,
    pub(crate) view: View,
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
    wide_reads: ReadList,
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
    /// The largest footprint among them, which counts if none is common.
    largest: FootprintId,
    largest_bytes: u64,
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
    part_reads: ReadList,
    /// Next touched cell, [`NONE`] after the last, or [`UNTOUCHED`].
    next: u32,
}

const UNTOUCHED: u32 = NONE - 1;
const EMPTY_CELL: Cell =
    Cell { writer: NONE, readers: NONE, part_writes: NONE, part_reads: ReadList::EMPTY, next: UNTOUCHED };

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
            return Place::WHOLE;
        }
        if layout.extent_bytes == 0 {
            return Place::NOWHERE;
        }
        if tracked.grid == NONE {
            return Place::WIDE;
        }
        let lattice = self.grids[tracked.grid as usize].lattice;
        if lattice == NONE {
            return Place::WIDE;
        }
        let bytes = footprints.get(layout.footprint);
        self.lattices[lattice as usize].locate(layout.footprint, bytes, at)
    }

    /// Calls `visit` for every cell that holds anything and may hold a byte of the access.
    fn for_each_cell(&mut self, grid: &Grid, touch: &Touch, mut visit: impl FnMut(&mut Tracker, u32)) {
        if grid.lattice == NONE {
            return;
        }
        let reach = self.lattices[grid.lattice as usize].reach(touch.view.at, touch.view.end - touch.view.at);
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
                if meets(footprints.get(write.view.footprint), write.view.at) {
                    user(write.task, true)?;
                }
            }
            for entry in self.reads.iter(reads) {
                if meets(footprints.get(entry.view.footprint), entry.view.at) {
                    self.tasks.iter(entry.tasks).try_for_each(|&task| user(task, false))?;
                }
            }
            ControlFlow::Continue(())
        };
        let grid = &self.grids[object.grid as usize];
        lists(grid.wide_writes, grid.wide_reads.head, &mut user)?;
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
                lists(state.part_writes, state.part_reads.head, user)
            };
            let place = lattice.locate(NONE, bytes, at);
            if place.kind == Kind::Cells {
                for &cell in place.each_cell() {
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
