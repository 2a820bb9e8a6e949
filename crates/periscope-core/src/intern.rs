//! Layouts and footprints by number: equal ones share one record.
//!
//! Thousands of tasks use a handful of layouts. Interning keeps the image small and lets everything that depends on the
//! layout alone (its footprint, its extent, whether its elements are distinct) be worked out once. Lookup is open
//! addressing with a multiply-and-fold hash over the words in use, and a full comparison on a hit, so that graphs in which
//! every view differs stay linear. A caller that expects the same layout again (a kernel's parameter) passes
//! a hint, which is compared first.

use crate::dtype::DType;
use crate::footprint::Footprint;
use crate::image::LayoutRecord;
use crate::layout::Layout;

/// Number of a footprint in a [`Footprints`].
pub(crate) type FootprintId = u32;

/// What depends on a layout alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutInfo {
    pub(crate) footprint: FootprintId,
    /// Whether no two indices can name the same element, as far as can be told: each stride steps over all that lies
    /// inside it.
    pub(crate) distinct: bool,
    /// Whether the bytes have no gap.
    pub(crate) gapless: bool,
    /// First byte to one past the last.
    pub(crate) extent_bytes: u64,
}

/// Interned layouts, in the form in which the image stores them.
#[derive(Debug, Default)]
pub(crate) struct LayoutTable {
    index: Index,
    records: Vec<LayoutRecord>,
    infos: Vec<LayoutInfo>,
    /// By parameter: the layout that it had last.
    hints: Vec<u32>,
}

impl LayoutTable {
    pub(crate) fn clear(&mut self) {
        self.index.clear();
        self.records.clear();
        self.infos.clear();
        self.hints.fill(0);
    }

    /// Makes hints `0..count` available.
    pub(crate) fn reserve_hints(&mut self, count: usize) {
        self.hints.clear();
        self.hints.resize(count, 0);
    }

    pub(crate) fn records(&self) -> &[LayoutRecord] {
        &self.records
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    #[inline]
    pub(crate) fn info(&self, layout: u32) -> &LayoutInfo {
        &self.infos[layout as usize]
    }

    /// Forgets the layouts interned last, down to `len`.
    #[cold]
    pub(crate) fn truncate(&mut self, len: usize) {
        while self.records.len() > len {
            let record = self.records.pop().expect("longer than len");
            self.infos.pop();
            self.index.remove_last(hash_record(&record), self.records.len() as u32);
        }
        self.hints.iter_mut().filter(|hint| **hint as usize >= len).for_each(|hint| *hint = 0);
    }

    /// As [`LayoutTable::intern`], looking first at what hint number `hint` found last.
    #[inline]
    pub(crate) fn intern_hinted(
        &mut self,
        hint: usize,
        dtype: DType,
        layout: &Layout,
        split_dim: Option<u8>,
        footprints: &mut Footprints,
    ) -> u32 {
        let last = self.hints[hint];
        if let Some(record) = self.records.get(last as usize)
            && is_record_of(record, dtype, layout, split_dim)
        {
            return last;
        }
        let found = self.intern(dtype, layout, split_dim, footprints);
        self.hints[hint] = found;
        found
    }

    /// The number of this layout.
    pub(crate) fn intern(
        &mut self,
        dtype: DType,
        layout: &Layout,
        split_dim: Option<u8>,
        footprints: &mut Footprints,
    ) -> u32 {
        let hash = hash_layout(dtype, layout, split_dim);
        let records = &self.records;
        if let Some(found) = self.index.find(hash, |id| is_record_of(&records[id as usize], dtype, layout, split_dim)) {
            return found;
        }
        let footprint = Footprint::of(dtype, layout);
        let id = self.records.len() as u32;
        self.records.push(LayoutRecord::new(dtype, layout, split_dim));
        self.infos.push(LayoutInfo {
            footprint: footprints.intern(&footprint),
            distinct: layout.elements_are_distinct(),
            gapless: footprint.is_interval(),
            extent_bytes: footprint.extent_bytes(),
        });
        self.index.insert(hash, id, |id| hash_record(&self.records[id as usize]));
        id
    }
}

#[inline]
fn is_record_of(record: &LayoutRecord, dtype: DType, layout: &Layout, split_dim: Option<u8>) -> bool {
    let rank = layout.rank();
    // By hand: the loop over the dimensions in use is shorter than any comparison of slices.
    record.dtype == dtype as u8
        && usize::from(record.rank) == rank
        && record.split_dim == split_dim.unwrap_or(crate::image::NO_SPLIT)
        && layout.shape().iter().zip(&record.shape).all(|(a, b)| a == b)
        && layout.strides().iter().zip(&record.strides).all(|(a, b)| a == b)
}

/// Interned footprints: equal byte sets of different layouts share a number.
#[derive(Debug, Default)]
pub(crate) struct Footprints {
    index: Index,
    footprints: Vec<Footprint>,
}

impl Footprints {
    pub(crate) fn clear(&mut self) {
        self.index.clear();
        self.footprints.clear();
    }

    #[inline]
    pub(crate) fn get(&self, id: FootprintId) -> &Footprint {
        &self.footprints[id as usize]
    }

    /// The number of this footprint.
    pub(crate) fn intern(&mut self, footprint: &Footprint) -> FootprintId {
        let hash = hash_footprint(footprint);
        let footprints = &self.footprints;
        if let Some(found) = self.index.find(hash, |id| footprints[id as usize] == *footprint) {
            return found;
        }
        let id = self.footprints.len() as u32;
        self.footprints.push(*footprint);
        self.index.insert(hash, id, |id| hash_footprint(&self.footprints[id as usize]));
        id
    }
}

/// Positions by hash: open addressing, linear probing, at most half full.
#[derive(Debug, Default)]
struct Index {
    /// Position plus one; 0 is free. The length is a power of two.
    slots: Vec<u32>,
    len: usize,
}

impl Index {
    fn clear(&mut self) {
        if self.len > 0 {
            self.slots.fill(0);
            self.len = 0;
        }
    }

    fn home(&self, hash: u64) -> usize {
        // The fold leaves the best bits on top.
        (hash >> 32) as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let mut slot = self.home(hash);
        loop {
            match self.slots[slot] {
                0 => return None,
                found if is(found - 1) => return Some(found - 1),
                _ => slot = (slot + 1) & (self.slots.len() - 1),
            }
        }
    }

    fn insert(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.len + 1) * 2 > self.slots.len() {
            let slots = (self.slots.len() * 2).max(64);
            self.slots.clear();
            self.slots.resize(slots, 0);
            // In the order of their numbers, so that the last one can always be taken out again.
            for earlier in 0..id {
                self.place(hash_of(earlier), earlier);
            }
        }
        self.place(hash, id);
        self.len += 1;
    }

    fn place(&mut self, hash: u64, id: u32) {
        let mut slot = self.home(hash);
        while self.slots[slot] != 0 {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = id + 1;
    }

    /// Takes out what was put in last: no probe sequence of another entry runs through its slot.
    fn remove_last(&mut self, hash: u64, id: u32) {
        let mut slot = self.home(hash);
        while self.slots[slot] != id + 1 {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = 0;
        self.len -= 1;
    }
}

/// Multiply and fold: every bit of both operands reaches every bit of the result (as in wyhash).
#[inline]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b ^ 0xd1b5_4a32_d192_ed03);
    product as u64 ^ (product >> 64) as u64
}

fn hash_dims(head: u64, dims: impl Iterator<Item = (u64, u64)>) -> u64 {
    dims.fold(fold(head, 0x2545_f491_4f6c_dd1d), |hash, (a, b)| fold(hash ^ a, b.rotate_left(32) ^ hash))
}

fn hash_layout(dtype: DType, layout: &Layout, split_dim: Option<u8>) -> u64 {
    let head =
        dtype as u64 | u64::from(split_dim.unwrap_or(crate::image::NO_SPLIT)) << 8 | (layout.rank() as u64) << 16;
    hash_dims(head, layout.shape().iter().copied().zip(layout.strides().iter().copied()))
}

fn hash_record(record: &LayoutRecord) -> u64 {
    let head = u64::from(record.dtype) | u64::from(record.split_dim) << 8 | u64::from(record.rank) << 16;
    let rank = usize::from(record.rank);
    hash_dims(head, record.shape[..rank].iter().copied().zip(record.strides[..rank].iter().copied()))
}

fn hash_footprint(footprint: &Footprint) -> u64 {
    hash_dims(footprint.width_bytes(), footprint.dims())
}
