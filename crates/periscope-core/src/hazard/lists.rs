//! Lists in arenas: linked by position, freed nodes used again, nothing allocated once the arenas are warm.

use super::NONE;
use crate::footprint::{ORDER_STEPS, overlaps};
use crate::intern::{FootprintId, Footprints};

/// An arena of nodes that form singly linked lists. A list is the position of its first node, or [`NONE`].
#[derive(Debug)]
pub(super) struct Arena<T> {
    nodes: Vec<(T, u32)>,
    free: u32,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Arena { nodes: Vec::new(), free: NONE }
    }
}

impl<T: Copy> Arena<T> {
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.free = NONE;
    }

    #[inline]
    pub(super) fn get(&self, node: u32) -> &T {
        &self.nodes[node as usize].0
    }

    #[inline]
    pub(super) fn get_mut(&mut self, node: u32) -> &mut T {
        &mut self.nodes[node as usize].0
    }

    #[inline]
    pub(super) fn next(&self, node: u32) -> u32 {
        self.nodes[node as usize].1
    }

    /// Puts a value in front.
    #[inline]
    pub(super) fn push(&mut self, list: &mut u32, value: T) {
        let node = if self.free == NONE {
            assert!(self.nodes.len() < NONE as usize, "more than 2^32 live hazards in one graph");
            self.nodes.push((value, *list));
            self.nodes.len() as u32 - 1
        } else {
            let node = self.free;
            self.free = self.next(node);
            self.nodes[node as usize] = (value, *list);
            node
        };
        *list = node;
    }

    /// Takes the first value off.
    #[inline]
    pub(super) fn pop(&mut self, list: &mut u32) -> Option<T> {
        if *list == NONE {
            return None;
        }
        let node = *list;
        let (value, next) = self.nodes[node as usize];
        *list = next;
        self.nodes[node as usize].1 = self.free;
        self.free = node;
        Some(value)
    }

    /// Empties a list.
    #[inline]
    pub(super) fn free(&mut self, list: &mut u32) {
        while self.pop(list).is_some() {}
    }

    /// The values of a list, first to last.
    #[inline]
    pub(super) fn iter(&self, list: u32) -> impl Iterator<Item = &T> {
        let mut node = list;
        std::iter::from_fn(move || {
            let (value, next) = self.nodes.get(node as usize)?;
            node = *next;
            Some(value)
        })
    }

    /// Removes the values that `gone` picks, after having shown them to it.
    #[inline]
    pub(super) fn remove_if(&mut self, list: &mut u32, mut gone: impl FnMut(&T) -> bool) {
        let (mut previous, mut node) = (NONE, *list);
        while node != NONE {
            let (value, next) = &self.nodes[node as usize];
            let next = *next;
            if gone(value) {
                if previous == NONE {
                    *list = next;
                } else {
                    self.nodes[previous as usize].1 = next;
                }
                self.nodes[node as usize].1 = self.free;
                self.free = node;
            } else {
                previous = node;
            }
            node = next;
        }
    }
}

/// The bytes of an access within its object. The extent is at hand, so that lists of intervals are searched without a look
/// at their footprints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// First byte.
    pub(crate) at: u64,
    /// One past the last byte.
    pub(crate) end: u64,
    pub(crate) footprint: FootprintId,
    /// Whether all bytes between are part of it.
    pub(crate) gapless: bool,
}

impl View {
    /// Whether they share a byte, as far as ordering asks.
    #[inline]
    pub(super) fn meets(&self, other: &View, footprints: &Footprints) -> bool {
        if self.end <= other.at || other.end <= self.at {
            return false;
        }
        (self.gapless && other.gapless)
            || overlaps(footprints.get(self.footprint), self.at, footprints.get(other.footprint), other.at, ORDER_STEPS)
    }

    /// Whether every byte of `other` is one of these; may answer no where a costlier test would say yes.
    #[inline]
    pub(super) fn covers(&self, other: &View, footprints: &Footprints) -> bool {
        self.at <= other.at
            && other.end <= self.end
            && (self.gapless
                || footprints.get(self.footprint).covers(self.at, footprints.get(other.footprint), other.at))
    }

    #[inline]
    pub(super) fn is_same(&self, other: &View) -> bool {
        self.footprint == other.footprint && self.at == other.at
    }
}

/// A partial write: its bytes, and who.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) view: View,
    pub(super) task: u32,
    /// Whether everything that it conflicts with is ordered before it: not so inside an unchecked manual scope.
    pub(super) ordered: bool,
}

/// Partial reads of the same bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reads {
    pub(super) view: View,
    /// The readers, newest first.
    pub(super) tasks: u32,
}

/// A list of partial reads that counts its groups: views that take turns would else start a new group each time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadList {
    pub(super) head: u32,
    pub(super) len: u32,
    /// Length at which equal views are put together.
    pub(super) limit: u32,
}

impl ReadList {
    const LEAST_LIMIT: u32 = 64;
    pub(super) const EMPTY: ReadList = ReadList { head: NONE, len: 0, limit: ReadList::LEAST_LIMIT };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Puts a group in front.
    pub(super) fn push(&mut self, reads: &mut Arena<Reads>, group: Reads) {
        reads.push(&mut self.head, group);
        self.len += 1;
    }

    /// Adds a reader, to those of the same bytes if they were met lately.
    pub(super) fn add(&mut self, reads: &mut Arena<Reads>, tasks: &mut Arena<u32>, view: &View, task: u32) {
        let mut node = self.head;
        for _ in 0..4 {
            if node == NONE {
                break;
            }
            let group = reads.get_mut(node);
            if group.view.is_same(view) {
                push_reader(tasks, &mut group.tasks, task);
                return;
            }
            node = reads.next(node);
        }
        let mut readers = NONE;
        tasks.push(&mut readers, task);
        self.push(reads, Reads { view: *view, tasks: readers });
        if self.len >= self.limit {
            self.unite(reads, tasks);
        }
    }

    /// Puts the groups of equal views together. The limit doubles, so that this costs a constant per reader.
    #[cold]
    fn unite(&mut self, reads: &mut Arena<Reads>, tasks: &mut Arena<u32>) {
        let mut groups: Vec<Reads> = std::iter::from_fn(|| reads.pop(&mut self.head)).collect();
        groups.sort_unstable_by_key(|group| (group.view.footprint, group.view.at));
        self.len = 0;
        let mut readers: Vec<u32> = Vec::new();
        for same in groups.chunk_by(|a, b| a.view.is_same(&b.view)) {
            let mut group = same[0];
            if same.len() > 1 {
                readers.clear();
                for group in same {
                    let mut list = group.tasks;
                    readers.extend(std::iter::from_fn(|| tasks.pop(&mut list)));
                }
                readers.sort_unstable();
                readers.dedup();
                group.tasks = NONE;
                readers.iter().for_each(|&task| tasks.push(&mut group.tasks, task));
            }
            self.push(reads, group);
        }
        self.limit = (self.len * 2).max(ReadList::LEAST_LIMIT);
    }

    /// Removes the groups that a write covers.
    pub(super) fn forget(&mut self, reads: &mut Arena<Reads>, tasks: &mut Arena<u32>, covers: impl Fn(&View) -> bool) {
        let len = &mut self.len;
        reads.remove_if(&mut self.head, |group| {
            let gone = covers(&group.view);
            if gone {
                let mut list = group.tasks;
                tasks.free(&mut list);
                *len -= 1;
            }
            gone
        });
    }

    /// Removes all groups.
    #[inline]
    pub(super) fn clear(&mut self, reads: &mut Arena<Reads>, tasks: &mut Arena<u32>) {
        while let Some(mut group) = reads.pop(&mut self.head) {
            tasks.free(&mut group.tasks);
        }
        self.len = 0;
    }
}

/// Adds a reader to a list that is newest first, once.
#[inline]
pub(super) fn push_reader(tasks: &mut Arena<u32>, list: &mut u32, task: u32) {
    if *list == NONE || *tasks.get(*list) != task {
        tasks.push(list, task);
    }
}
