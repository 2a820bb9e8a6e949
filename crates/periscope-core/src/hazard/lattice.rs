//! Cutting an object into cells that have the shape of the views that its tasks use.
//!
//! A view with dimensions `(count, stride)`, outermost first, and runs of `width` bytes suggests coordinates: how many
//! times the largest stride, then how many times the next one in the rest, and so on down to bytes. Grouping the
//! coordinates of each level by `count` (and the bytes by `width`) makes every aligned tile of that layout exactly one cell.
//! An interval suggests no strides, and its cells are intervals.
//!
//! A lattice needs each stride to divide the one outside it, as in every row-major array. What does not look
//! so gets cells that are intervals.

use super::Place;
use crate::footprint::Footprint;
use crate::intern::FootprintId;
use crate::layout::MAX_RANK;

/// The most cells of an object.
pub(super) const MAX_CELLS: u64 = 1 << 16;

/// A divisor, by shifting where it is a power of two.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    value: u64,
    /// 64: not a power of two.
    shift: u32,
}

impl Divisor {
    fn new(value: u64) -> Divisor {
        Divisor { value, shift: if value.is_power_of_two() { value.trailing_zeros() } else { 64 } }
    }

    #[inline]
    fn divide(self, number: u64) -> u64 {
        if self.shift < 64 { number >> self.shift } else { number / self.value }
    }
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// Bytes from one coordinate to the next.
    stride: Divisor,
    /// Coordinates in a cell.
    group: Divisor,
    /// Coordinates there are.
    radix: u64,
    /// Cells along this level.
    cells: u64,
    /// Cells from one to the next along this level.
    pitch: u64,
}

/// See the [module documentation](self).
#[derive(Clone, Debug)]
pub(super) struct Lattice {
    levels: [Level; MAX_RANK + 1],
    len: usize,
    /// The footprint that makes one cell, if cells were not made coarser than it.
    tile: Option<FootprintId>,
    cells: u64,
}

impl Lattice {
    /// The lattice that `tile` suggests for an object of `len_bytes`; `None` if it would have too few cells to help.
    pub(super) fn new(id: FootprintId, tile: &Footprint, len_bytes: u64) -> Option<Lattice> {
        let unit = Level { stride: Divisor::new(1), group: Divisor::new(1), radix: 1, cells: 1, pitch: 1 };
        let mut lattice = Lattice { levels: [unit; MAX_RANK + 1], len: 0, tile: Some(id), cells: 1 };
        let mut outside = None; // the stride one level further out
        let nested = tile.dims().all(|(_, stride)| {
            let divides = outside.is_none_or(|outside| outside % stride == 0);
            outside = Some(stride);
            divides
        }) && outside.is_none_or(|innermost| tile.width_bytes() <= innermost);
        let mut radix_bytes = len_bytes;
        let mut level = |stride: u64, group: u64| {
            let radix = radix_bytes.div_ceil(stride);
            radix_bytes = stride;
            lattice.levels[lattice.len] =
                Level { stride: Divisor::new(stride), group: Divisor::new(group), radix, cells: 0, pitch: 0 };
            lattice.len += 1;
        };
        if nested {
            for (count, stride) in tile.dims() {
                level(stride, count);
            }
            level(1, tile.width_bytes());
        } else {
            level(1, tile.extent_bytes());
            lattice.tile = None;
        }
        loop {
            let mut cells = 1u64;
            for level in lattice.levels[..lattice.len].iter_mut().rev() {
                level.cells = level.radix.div_ceil(level.group.value);
                level.pitch = cells;
                cells = cells.saturating_mul(level.cells);
            }
            lattice.cells = cells;
            if cells <= MAX_CELLS {
                break;
            }
            let coarsest = lattice.levels[..lattice.len].iter_mut().max_by_key(|level| level.cells).expect("a level");
            coarsest.group = Divisor::new(coarsest.group.value * 2);
            lattice.tile = None;
        }
        (lattice.cells >= 4).then_some(lattice)
    }

    /// How many cells there are.
    pub(super) fn cells(&self) -> u64 {
        self.cells
    }

    /// The footprint that makes one cell.
    pub(super) fn tile(&self) -> Option<FootprintId> {
        self.tile
    }

    /// The cells of these bytes (not none), if they are at most four and each of them holds one of the bytes; else anywhere. The
    /// caller has checked that they lie in the object. `id` may be that of no interned footprint.
    #[inline]
    pub(super) fn locate(&self, id: FootprintId, bytes: &Footprint, at: u64) -> Place {
        if self.len == 1 && bytes.is_interval() {
            return self.locate_interval(at, bytes.extent_bytes());
        }
        if self.tile == Some(id) {
            // An aligned tile is one cell.
            let (mut rest, mut cell, mut aligned) = (at, 0, true);
            for level in &self.levels[..self.len] {
                let coordinate = level.stride.divide(rest);
                rest -= coordinate * level.stride.value;
                let group = level.group.divide(coordinate);
                aligned &= group * level.group.value == coordinate && coordinate + level.group.value <= level.radix;
                cell += group * level.pitch;
            }
            if aligned {
                return Place::cells(1, 1, [cell as u32, 0, 0, 0]);
            }
        }
        self.locate_any(bytes, at).unwrap_or(Place::WIDE)
    }

    #[inline]
    fn locate_interval(&self, at: u64, len_bytes: u64) -> Place {
        let level = &self.levels[0];
        let (group, end) = (level.group.value, at + len_bytes);
        let (first, last) = (level.group.divide(at), level.group.divide(end - 1));
        if last - first >= 4 {
            return Place::WIDE;
        }
        if first == last {
            let covers = at == first * group && (len_bytes == group || end == level.radix);
            return Place::cells(1, u16::from(covers), [first as u32, 0, 0, 0]);
        }
        let (mut cells, mut full) = ([0u32; 4], 0u16);
        for cell in first..=last {
            let position = (cell - first) as usize;
            cells[position] = cell as u32;
            let covers = at <= cell * group && end >= (cell * group).saturating_add(group).min(level.radix);
            full |= u16::from(covers) << position;
        }
        Place::cells((last - first + 1) as usize, full, cells)
    }

    fn locate_any(&self, bytes: &Footprint, at: u64) -> Option<Place> {
        let levels = &self.levels[..self.len];
        // First and last coordinate of each level.
        let (mut low, mut high) = ([0u64; MAX_RANK + 1], [0u64; MAX_RANK + 1]);
        let mut rest = at;
        for (level, low) in levels.iter().zip(&mut low) {
            *low = level.stride.divide(rest);
            rest -= *low * level.stride.value;
        }
        high[..levels.len()].copy_from_slice(&low[..levels.len()]);
        // Whether the bytes are all that the coordinates from low to high name.
        let mut exact = true;
        let mut spread = |position: usize, count: u64, steps: u64, exact: &mut bool| {
            // Steps no longer than a group leave no cell out.
            if steps > levels[position].group.value {
                return None;
            }
            *exact &= steps == 1 && high[position] == low[position];
            high[position] = high[position].checked_add((count - 1).checked_mul(steps)?)?;
            (high[position] < levels[position].radix).then_some(())
        };
        for (count, stride) in bytes.dims() {
            let position = levels.iter().position(|level| level.stride.value <= stride).expect("bytes are a level");
            let level_stride = levels[position].stride;
            let steps = level_stride.divide(stride);
            if steps * level_stride.value != stride {
                return None;
            }
            spread(position, count, steps, &mut exact)?;
        }
        let width = bytes.width_bytes();
        let position = levels.iter().position(|level| width.is_multiple_of(level.stride.value));
        let position = position.expect("bytes are a level");
        if position + 1 == levels.len() || low[position + 1..levels.len()].iter().any(|&low| low != 0) {
            spread(levels.len() - 1, width, 1, &mut exact)?;
        } else {
            // A run of whole rows.
            spread(position, width / levels[position].stride.value, 1, &mut exact)?;
            for inner in position + 1..levels.len() {
                high[inner] = levels[inner].radix - 1;
            }
        }
        let mut count = 1;
        for (position, level) in levels.iter().enumerate() {
            count *= level.group.divide(high[position]) - level.group.divide(low[position]) + 1;
            if count > 4 {
                return None;
            }
        }
        let (mut cells, mut full) = ([0u32; 4], 0u16);
        for number in 0..count {
            let (mut left, mut cell, mut covers) = (number, 0, exact);
            for (position, level) in levels.iter().enumerate().rev() {
                let first = level.group.divide(low[position]);
                let along = level.group.divide(high[position]) - first + 1;
                let group = first + left % along;
                left /= along;
                cell += group * level.pitch;
                let start = group * level.group.value;
                covers &= low[position] <= start && high[position] + 1 >= (start + level.group.value).min(level.radix);
            }
            cells[number as usize] = cell as u32;
            full |= u16::from(covers) << number;
        }
        Some(Place::cells(count as usize, full, cells))
    }

    /// The cells, as a range of positions, that may hold a byte of an extent.
    pub(super) fn reach(&self, at: u64, extent_bytes: u64) -> std::ops::Range<u32> {
        let outer = &self.levels[0];
        let cell_of = |byte: u64| outer.group.divide(outer.stride.divide(byte)) * outer.pitch;
        cell_of(at) as u32..(cell_of(at + extent_bytes - 1) + outer.pitch) as u32
    }

    /// The bytes of a cell, and its first. They may reach beyond the end of the object, nowhere else.
    pub(super) fn cell_bytes(&self, cell: u32) -> (Footprint, u64) {
        let mut left = u64::from(cell);
        let mut dims = [(0u64, 0u64); MAX_RANK];
        let (mut rank, mut width, mut at) = (0, 1, 0);
        for level in &self.levels[..self.len] {
            let group = left / level.pitch;
            left %= level.pitch;
            let start = group * level.group.value;
            let count = level.group.value.min(level.radix - start);
            at += start * level.stride.value;
            if level.stride.value == 1 {
                width = count;
            } else if count > 1 {
                dims[rank] = (level.stride.value, count);
                rank += 1;
            }
        }
        (Footprint::nest(width, &mut dims[..rank]), at)
    }
}
