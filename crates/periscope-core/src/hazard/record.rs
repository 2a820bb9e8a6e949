//! Taking note of an access, forgetting what it covers, and cutting objects into cells.

use super::lattice::Lattice;
use super::lists::{ReadList, Reads, View, Write, push_reader};
use super::{Cell, EMPTY_CELL, FIRST_CELLS_AT, Grid, Kind, NONE, Place, Touch, Tracker, UNTOUCHED};
use crate::intern::Footprints;

impl Tracker {
    /// Records the access. `ordered`: everything that [`Tracker::find`] found is ordered before `task`; if it may not be
    /// (an unchecked manual scope), nothing is forgotten for its sake.
    #[inline]
    pub(crate) fn record(&mut self, touch: &Touch, task: u32, footprints: &mut Footprints, ordered: bool) {
        let object = &mut self.objects[touch.object as usize];
        object.written |= touch.writes && touch.place.kind != Kind::Nowhere;
        match touch.place.kind {
            Kind::Nowhere => {}
            Kind::Whole if !touch.writes => push_reader(&mut self.tasks, &mut object.readers, task),
            Kind::Whole if ordered => {
                object.writer = task;
                self.tasks.free(&mut object.readers);
                if object.grid != NONE {
                    self.empty_grid(touch.object);
                }
            }
            Kind::Cells if ordered || !touch.writes => {
                let number = object.grid;
                for (position, &cell) in touch.place.each_cell().iter().enumerate() {
                    let full = touch.place.full >> position & 1 != 0;
                    self.record_in_cell(touch, number, cell, full, task, footprints);
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
                state.part_reads.clear(&mut self.reads, &mut self.tasks);
            }
            (false, true) => push_reader(&mut self.tasks, &mut state.readers, task),
            (true, false) => {
                let (mut writes, mut reads) = (state.part_writes, state.part_reads);
                if writes != NONE || !reads.is_empty() {
                    self.forget_covered(touch, footprints, &mut writes, &mut reads);
                }
                self.writes.push(&mut writes, write_of(touch, task, true));
                let state = &mut self.cells[position];
                (state.part_writes, state.part_reads) = (writes, reads);
            }
            (false, false) => state.part_reads.add(&mut self.reads, &mut self.tasks, &touch.view, task),
        }
    }

    fn forget_covered(&mut self, touch: &Touch, footprints: &Footprints, writes: &mut u32, reads: &mut ReadList) {
        self.writes.remove_if(writes, |write| touch.view.covers(&write.view, footprints));
        reads.forget(&mut self.reads, &mut self.tasks, |view| touch.view.covers(view, footprints));
    }

    fn record_wide(&mut self, touch: &Touch, task: u32, footprints: &mut Footprints, ordered: bool) {
        let number = self.grid_of(touch.object);
        let mut grid = self.grids[number as usize];
        let bytes = footprints.get(touch.view.footprint);
        if !touch.writes {
            grid.wide_reads.add(&mut self.reads, &mut self.tasks, &touch.view, task);
        } else {
            if ordered {
                self.forget_covered(touch, footprints, &mut grid.wide_writes, &mut grid.wide_reads);
                self.for_each_cell(&grid, touch, |tracker, cell| {
                    let position = (grid.first_cell + cell) as usize;
                    let state = tracker.cells[position];
                    let (mut writes, mut reads) = (state.part_writes, state.part_reads);
                    tracker.forget_covered(touch, footprints, &mut writes, &mut reads);
                    let (cell_bytes, cell_at) = tracker.lattices[grid.lattice as usize].cell_bytes(cell);
                    let covers = bytes.covers(touch.view.at, &cell_bytes, cell_at);
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
        let packed = bytes.packed_bytes();
        if packed.saturating_mul(4) <= self.objects[touch.object as usize].len_bytes {
            if grid.votes == 0 {
                grid.candidate = touch.view.footprint;
            }
            if grid.candidate == touch.view.footprint {
                grid.votes += 1
            } else {
                grid.votes -= 1
            }
            if packed > grid.largest_bytes {
                (grid.largest, grid.largest_bytes) = (touch.view.footprint, packed);
            }
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
                wide_reads: ReadList::EMPTY,
                lattice: NONE,
                first_cell: 0,
                touched: NONE,
                touched_count: 0,
                wide: 0,
                cut_at: FIRST_CELLS_AT,
                candidate: NONE,
                votes: 0,
                largest: NONE,
                largest_bytes: 0,
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
        grid.wide_reads.clear(&mut self.reads, &mut self.tasks);
        while grid.touched != NONE {
            let cell = &mut self.cells[(grid.first_cell + grid.touched) as usize];
            self.tasks.free(&mut cell.readers);
            self.writes.free(&mut cell.part_writes);
            cell.part_reads.clear(&mut self.reads, &mut self.tasks);
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
        let candidate = if grid.votes * 4 >= grid.wide { grid.candidate } else { grid.largest };
        (grid.wide, grid.votes, grid.cut_at) = (0, 0, grid.cut_at.saturating_mul(4));
        (grid.candidate, grid.largest, grid.largest_bytes) = (NONE, NONE, 0);
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
        while let Some(entry) = self.reads.pop(&mut grid.wide_reads.head) {
            reads.push(entry);
        }
        while grid.touched != NONE {
            let cell = grid.touched;
            let state = &mut self.cells[(grid.first_cell + cell) as usize];
            let (bytes, at) = old.as_ref().expect("there are cells").cell_bytes(cell);
            let (footprint, end) = (footprints.intern(&bytes), at + bytes.extent_bytes());
            let view = View { at, end, footprint, gapless: bytes.is_interval() };
            if state.writer != NONE {
                writes.push(Write { view, task: state.writer, ordered: true });
            }
            if state.readers != NONE {
                reads.push(Reads { view, tasks: state.readers });
            }
            while let Some(write) = self.writes.pop(&mut state.part_writes) {
                writes.push(write);
            }
            while let Some(entry) = self.reads.pop(&mut state.part_reads.head) {
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
        let mut spread = |view: &View, cells: &mut [Cell]| {
            // The last cell of the old lattice may reach beyond the object.
            let inside = view.end <= len_bytes;
            let bytes = footprints.get(view.footprint);
            let place = if inside { lattice.locate(view.footprint, bytes, view.at) } else { Place::WIDE };
            for &cell in place.each_cell() {
                let state = &mut cells[(first_cell + cell) as usize];
                if state.next == UNTOUCHED {
                    state.next = grid.touched;
                    grid.touched = cell;
                    grid.touched_count += 1;
                }
            }
            (place.cells, place.each_cell().len())
        };
        let (mut wide_writes, mut wide_reads) = (NONE, ReadList::EMPTY);
        for write in writes.into_iter().rev() {
            match spread(&write.view, &mut self.cells) {
                (_, 0) => self.writes.push(&mut wide_writes, write),
                (cells, count) => {
                    for cell in &cells[..count] {
                        self.writes.push(&mut self.cells[(first_cell + cell) as usize].part_writes, write);
                    }
                }
            }
        }
        for entry in reads.into_iter().rev() {
            match spread(&entry.view, &mut self.cells) {
                (_, 0) => wide_reads.push(&mut self.reads, entry),
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
                        list.push(&mut self.reads, Reads { tasks, ..entry });
                    }
                }
            }
        }
        (grid.wide_writes, grid.wide_reads) = (wide_writes, wide_reads);
        self.lattices.push(lattice);
        self.grids[number] = grid;
    }
}

fn write_of(touch: &Touch, task: u32, ordered: bool) -> Write {
    Write { view: touch.view, task, ordered }
}
