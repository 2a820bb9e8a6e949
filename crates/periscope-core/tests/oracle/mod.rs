//! What tensors and tasks mean, by enumerating bytes. Imports nothing of the crate but `DType`.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeSet;

use periscope_core::DType;

/// An array of element offsets: a view written out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Written {
    pub(crate) shape: Vec<u64>,
    /// Offsets in row-major order of the shape.
    pub(crate) elems: Vec<u64>,
}

/// Every index of a shape, in row-major order.
pub(crate) fn indices(shape: &[u64]) -> Vec<Vec<u64>> {
    let mut all = vec![vec![]];
    for &len in shape {
        all = all
            .iter()
            .flat_map(|index: &Vec<u64>| {
                (0..len).map(move |i| {
                    let mut index = index.clone();
                    index.push(i);
                    index
                })
            })
            .collect();
    }
    all
}

impl Written {
    pub(crate) fn strided(shape: &[u64], strides: &[u64], offset: u64) -> Written {
        let elems = indices(shape)
            .iter()
            .map(|index| offset + index.iter().zip(strides).map(|(i, stride)| i * stride).sum::<u64>())
            .collect();
        Written { shape: shape.to_vec(), elems }
    }

    pub(crate) fn contiguous(shape: &[u64]) -> Written {
        Written { shape: shape.to_vec(), elems: (0..shape.iter().product()).collect() }
    }

    pub(crate) fn at(&self, index: &[u64]) -> u64 {
        let mut position = 0;
        for (i, len) in index.iter().zip(&self.shape) {
            assert!(i < len);
            position = position * len + i;
        }
        self.elems[position as usize]
    }

    /// The view whose element `index` is that of `from(index)` here.
    fn pick(&self, shape: Vec<u64>, from: impl Fn(&[u64]) -> Vec<u64>) -> Written {
        let elems = indices(&shape).iter().map(|index| self.at(&from(index))).collect();
        Written { shape, elems }
    }

    pub(crate) fn slice(&self, dim: usize, start: u64, end: u64) -> Written {
        let mut shape = self.shape.clone();
        shape[dim] = end - start;
        self.pick(shape, |index| {
            let mut index = index.to_vec();
            index[dim] += start;
            index
        })
    }

    pub(crate) fn step_by(&self, dim: usize, step: u64) -> Written {
        let mut shape = self.shape.clone();
        shape[dim] = shape[dim].div_ceil(step);
        self.pick(shape, |index| {
            let mut index = index.to_vec();
            index[dim] *= step;
            index
        })
    }

    pub(crate) fn index(&self, dim: usize, at: u64) -> Written {
        let mut shape = self.shape.clone();
        shape.remove(dim);
        self.pick(shape, |index| {
            let mut index = index.to_vec();
            index.insert(dim, at);
            index
        })
    }

    pub(crate) fn permute(&self, order: &[usize]) -> Written {
        let shape = order.iter().map(|&from| self.shape[from]).collect();
        self.pick(shape, |index| {
            let mut source = vec![0; index.len()];
            for (to, &from) in order.iter().enumerate() {
                source[from] = index[to];
            }
            source
        })
    }

    pub(crate) fn broadcast(&self, shape: &[u64]) -> Written {
        let added = shape.len() - self.shape.len();
        self.pick(shape.to_vec(), |index| {
            index[added..].iter().zip(&self.shape).map(|(&i, &len)| if len == 1 { 0 } else { i }).collect()
        })
    }

    pub(crate) fn reshape(&self, shape: &[u64]) -> Written {
        Written { shape: shape.to_vec(), elems: self.elems.clone() }
    }

    pub(crate) fn bytes(&self, dtype: DType) -> BTreeSet<u64> {
        let size = dtype.size_bytes();
        self.elems.iter().flat_map(|elem| elem * size..(elem + 1) * size).collect()
    }

    pub(crate) fn has_duplicates(&self) -> bool {
        self.elems.iter().collect::<BTreeSet<_>>().len() < self.elems.len()
    }
}

/// Ranges, as ascending disjoint pairs that do not touch.
pub(crate) fn ranges(bytes: &BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &byte in bytes {
        match ranges.last_mut() {
            Some((_, end)) if *end == byte => *end += 1,
            _ => ranges.push((byte, byte + 1)),
        }
    }
    ranges
}

/// A task as the oracle sees it.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Object, bytes, reads, writes.
    pub(crate) accesses: Vec<(usize, BTreeSet<u64>, bool, bool)>,
    pub(crate) after: Vec<usize>,
    /// Number of the innermost scope if it is manual.
    pub(crate) manual_scope: Option<usize>,
}

impl Task {
    pub(crate) fn conflicts(&self, other: &Task) -> bool {
        self.accesses.iter().any(|(object, bytes, _, writes)| {
            other.accesses.iter().any(|(other_object, other_bytes, _, other_writes)| {
                object == other_object && (*writes || *other_writes) && !bytes.is_disjoint(other_bytes)
            })
        })
    }
}

/// The tasks so far and who is before whom.
#[derive(Default)]
pub(crate) struct Order {
    pub(crate) tasks: Vec<Task>,
    pub(crate) before: Vec<BTreeSet<usize>>,
}

impl Order {
    /// Who would be before a task, and which conflict within its own manual scope nothing orders.
    pub(crate) fn place(&self, task: &Task) -> (BTreeSet<usize>, Option<usize>) {
        let mut before = BTreeSet::new();
        let mut own = Vec::new();
        for (earlier, other) in self.tasks.iter().enumerate() {
            let conflicts = task.conflicts(other);
            let same = task.manual_scope.is_some() && task.manual_scope == other.manual_scope;
            if task.after.contains(&earlier) || (conflicts && !same) {
                before.insert(earlier);
                before.extend(&self.before[earlier]);
            }
            if conflicts && same {
                own.push(earlier);
            }
        }
        let uncovered = own.into_iter().find(|earlier| !before.contains(earlier));
        (before, uncovered)
    }

    pub(crate) fn push(&mut self, task: Task) {
        let (before, _) = self.place(&task);
        self.tasks.push(task);
        self.before.push(before);
    }

    pub(crate) fn written(&self, object: usize) -> BTreeSet<u64> {
        let of = |task: &Task| task.accesses.clone();
        self.tasks
            .iter()
            .flat_map(of)
            .filter(|(of, _, _, writes)| *of == object && *writes)
            .flat_map(|(_, bytes, ..)| bytes)
            .collect()
    }

    pub(crate) fn read_before_written(&self, object: usize) -> BTreeSet<u64> {
        let (mut written, mut read) = (BTreeSet::new(), BTreeSet::new());
        for task in &self.tasks {
            let mine = || task.accesses.iter().filter(|(of, ..)| *of == object);
            for (_, bytes, reads, _) in mine() {
                if *reads {
                    read.extend(bytes.difference(&written).copied().collect::<Vec<_>>());
                }
            }
            for (_, bytes, _, writes) in mine() {
                if *writes {
                    written.extend(bytes);
                }
            }
        }
        read
    }
}
