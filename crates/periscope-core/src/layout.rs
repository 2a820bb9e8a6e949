//! Shapes, strides and the views that need no copy.
//!
//! A [`Layout`] is a shape with a stride for each dimension, both counted in elements; strides are never negative and
//! may be 0 (a broadcast). A [`Region`] places a layout at an element offset in an allocation and names the element
//! type. Every constructor checks that the number of elements and the byte extent fit in 64 bits, so that later
//! arithmetic on a layout cannot overflow.

use std::fmt;
use std::ops::Range;

use crate::dtype::DType;

/// The largest number of dimensions of a tensor.
pub const MAX_RANK: usize = 8;

/// What an extent in elements is multiplied with to see that it fits: 8 bytes of the widest element, and room for one
/// more stride and for sums of two.
const ROOM: u64 = 32;

/// Why a layout, a view of it or an index into it is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// More than [`MAX_RANK`] dimensions.
    #[error("{rank} dimensions, at most {MAX_RANK} are supported")]
    RankTooLarge {
        /// The dimensions asked for.
        rank: usize,
    },
    /// The number of elements, or the distance of the last from the first, does not fit in 64 bits.
    #[error("shape {shape:?} with strides {strides:?} overflows 64-bit arithmetic")]
    Overflow {
        /// The shape asked for.
        shape: Vec<u64>,
        /// Its strides in elements; none if they were to be those of a row-major tensor.
        strides: Vec<u64>,
    },
    /// As many strides as dimensions are needed.
    #[error("{strides} strides for {rank} dimensions")]
    StrideCount {
        /// Dimensions of the shape.
        rank: usize,
        /// Strides given.
        strides: usize,
    },
    /// An index has one number per dimension.
    #[error("index {index:?} has {} numbers, the tensor has {rank} dimensions", index.len())]
    IndexRank {
        /// The index given.
        index: Vec<u64>,
        /// Dimensions of the tensor.
        rank: usize,
    },
    /// The index lies outside the shape of the tensor (even if inside its allocation).
    #[error("index {index:?} is out of bounds for shape {shape:?}")]
    IndexOutOfBounds {
        /// The index given.
        index: Vec<u64>,
        /// The tensor's shape.
        shape: Vec<u64>,
    },
    /// The tensor has no such dimension.
    #[error("dimension {dim} of a tensor of {rank} dimensions")]
    NoSuchDimension {
        /// The dimension named.
        dim: usize,
        /// Dimensions of the tensor.
        rank: usize,
    },
    /// A slice reaches outside its dimension.
    #[error("slice {start}..{end} of dimension {dim}, which has {len} elements")]
    SliceOutOfBounds {
        /// The dimension sliced.
        dim: usize,
        /// First element.
        start: u64,
        /// One past the last element.
        end: u64,
        /// Elements of the dimension.
        len: u64,
    },
    /// The new shape has another number of elements.
    #[error("cannot reshape {from:?} to {to:?}: {from_elems} elements against {to_elems}")]
    ReshapeCount {
        /// The tensor's shape.
        from: Vec<u64>,
        /// The shape asked for.
        to: Vec<u64>,
        /// Elements of `from`.
        from_elems: u64,
        /// Elements of `to`.
        to_elems: u64,
    },
    /// The reshape would need a copy, since the strides do not allow a view.
    #[error("cannot view shape {from:?} with strides {strides:?} as {to:?} without a copy")]
    ReshapeNeedsCopy {
        /// The tensor's shape.
        from: Vec<u64>,
        /// The tensor's strides in elements.
        strides: Vec<u64>,
        /// The shape asked for.
        to: Vec<u64>,
    },
    /// A dimension other than 1 would have to change.
    #[error("cannot broadcast {from:?} to {to:?}")]
    Broadcast {
        /// The tensor's shape.
        from: Vec<u64>,
        /// The shape asked for.
        to: Vec<u64>,
    },
    /// Not each dimension named once.
    #[error("{order:?} is not a permutation of {rank} dimensions")]
    NotAPermutation {
        /// The order asked for.
        order: Vec<usize>,
        /// Dimensions of the tensor.
        rank: usize,
    },
    /// The tensor reaches beyond its allocation.
    #[error("needs bytes {start}..{end} of an allocation of {len_bytes} bytes")]
    OutsideAllocation {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes of the allocation.
        len_bytes: u64,
    },
}

/// The lengths of up to [`MAX_RANK`] dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    dims: [u64; MAX_RANK],
}

impl Shape {
    /// A shape with these lengths.
    ///
    /// # Errors
    /// [`LayoutError::RankTooLarge`] for more than [`MAX_RANK`] dimensions.
    pub fn new(lengths: &[u64]) -> Result<Shape, LayoutError> {
        if lengths.len() > MAX_RANK {
            return Err(LayoutError::RankTooLarge { rank: lengths.len() });
        }
        let mut dims = [0; MAX_RANK];
        dims[..lengths.len()].copy_from_slice(lengths);
        Ok(Shape { rank: lengths.len() as u8, dims })
    }
}

impl std::ops::Deref for Shape {
    type Target = [u64];
    #[inline]
    fn deref(&self) -> &[u64] {
        &self.dims[..self.rank as usize]
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A shape and strides that are kept elsewhere: in a [`Layout`], or in an image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LayoutRef<'a> {
    shape: &'a [u64],
    strides: &'a [u64],
}

impl<'a> LayoutRef<'a> {
    /// A shape and as many strides, in elements, that a [`Layout`] could be made of: nothing overflows.
    ///
    /// # Panics
    /// If their numbers differ.
    #[must_use]
    #[inline]
    pub fn new(shape: &'a [u64], strides: &'a [u64]) -> LayoutRef<'a> {
        assert_eq!(shape.len(), strides.len());
        LayoutRef { shape, strides }
    }

    /// The length of each dimension.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> &'a [u64] {
        self.shape
    }

    /// The distance in elements between neighbours of each dimension.
    #[must_use]
    #[inline]
    pub fn strides(&self) -> &'a [u64] {
        self.strides
    }

    /// The number of elements: the product of the shape, 1 for a scalar.
    #[must_use]
    #[inline]
    pub fn num_elems(&self) -> u64 {
        // The product of the other lengths of an empty layout may not fit.
        if self.is_empty() { 0 } else { self.shape.iter().product() }
    }

    /// Whether there is no element.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Whether the elements lie one after the other in row-major order, without gap.
    #[must_use]
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        let mut next = 1;
        for (&len, &stride) in self.shape.iter().zip(self.strides).rev() {
            if len != 1 && stride != next {
                return self.is_empty();
            }
            next *= len;
        }
        true
    }

    /// The distance in elements of the element at `index` from the first.
    ///
    /// # Errors
    /// [`LayoutError::IndexRank`], [`LayoutError::IndexOutOfBounds`].
    #[inline]
    pub fn offset_of(&self, index: &[u64]) -> Result<u64, LayoutError> {
        if index.len() == self.shape.len() {
            let mut offset = 0;
            let mut inside = true;
            for ((&i, &len), &stride) in index.iter().zip(self.shape).zip(self.strides) {
                inside &= i < len;
                // Cannot overflow where `inside` holds; where it does not, the product is not used.
                offset += i.wrapping_mul(stride) * u64::from(inside);
            }
            if inside {
                return Ok(offset);
            }
        }
        Err(self.index_error(index))
    }

    #[cold]
    fn index_error(&self, index: &[u64]) -> LayoutError {
        if index.len() == self.shape.len() {
            LayoutError::IndexOutOfBounds { index: index.to_vec(), shape: self.shape.to_vec() }
        } else {
            LayoutError::IndexRank { index: index.to_vec(), rank: self.shape.len() }
        }
    }
}

impl fmt::Debug for LayoutRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.shape, self.strides)
    }
}

/// A shape with a stride in elements for each dimension.
#[derive(Clone, Copy)]
pub struct Layout {
    rank: u8,
    // Entries at and beyond `rank` are 0.
    shape: [u64; MAX_RANK],
    strides: [u64; MAX_RANK],
}

impl PartialEq for Layout {
    #[inline]
    fn eq(&self, other: &Layout) -> bool {
        self.rank == other.rank && self.shape() == other.shape() && self.strides() == other.strides()
    }
}
impl Eq for Layout {}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.shape(), self.strides())
    }
}

impl Layout {
    /// Row-major: the last dimension is contiguous.
    ///
    /// # Errors
    /// [`LayoutError::RankTooLarge`], [`LayoutError::Overflow`].
    #[inline]
    pub fn contiguous(shape: &[u64]) -> Result<Layout, LayoutError> {
        if shape.len() > MAX_RANK {
            return Err(LayoutError::RankTooLarge { rank: shape.len() });
        }
        let mut layout = Layout { rank: shape.len() as u8, shape: [0; MAX_RANK], strides: [0; MAX_RANK] };
        let mut next = 1u64;
        for dim in (0..shape.len()).rev() {
            layout.shape[dim] = shape[dim];
            layout.strides[dim] = next;
            // A dimension of length 0 empties the tensor: the strides outside it stay those of length 1.
            next = next.checked_mul(shape[dim].max(1)).ok_or_else(|| overflow(shape, &[]))?;
        }
        // The number of elements is also their extent: the one check of `check`.
        next.checked_mul(ROOM).ok_or_else(|| overflow(shape, &[]))?;
        Ok(layout)
    }

    /// Any strides, in elements; 0 repeats the same elements.
    ///
    /// # Errors
    /// [`LayoutError::RankTooLarge`], [`LayoutError::StrideCount`], [`LayoutError::Overflow`].
    #[inline]
    pub fn strided(shape: &[u64], strides: &[u64]) -> Result<Layout, LayoutError> {
        if shape.len() > MAX_RANK {
            return Err(LayoutError::RankTooLarge { rank: shape.len() });
        }
        if strides.len() != shape.len() {
            return Err(LayoutError::StrideCount { rank: shape.len(), strides: strides.len() });
        }
        let mut layout = Layout { rank: shape.len() as u8, shape: [0; MAX_RANK], strides: [0; MAX_RANK] };
        layout.shape[..shape.len()].copy_from_slice(shape);
        layout.strides[..shape.len()].copy_from_slice(strides);
        layout.check().ok_or_else(|| overflow(shape, strides))?;
        Ok(layout)
    }

    /// Elements and extent fit in 64 bits, with room for the widest element and for one more stride.
    #[inline]
    fn check(&self) -> Option<()> {
        let (mut count, mut last) = (1u64, 0u64);
        for (&len, &stride) in self.shape().iter().zip(self.strides()) {
            count = count.checked_mul(len)?;
            last = last.checked_add(len.saturating_sub(1).checked_mul(stride)?)?;
        }
        last.checked_add(1)?.checked_mul(ROOM)?;
        count.checked_mul(ROOM).map(|_| ())
    }

    /// The number of dimensions; 0 for a scalar.
    #[must_use]
    #[inline]
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The length of each dimension.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> &[u64] {
        &self.shape[..self.rank as usize]
    }

    /// The distance in elements between neighbours of each dimension.
    #[must_use]
    #[inline]
    pub fn strides(&self) -> &[u64] {
        &self.strides[..self.rank as usize]
    }

    /// The number of elements: the product of the shape, 1 for a scalar.
    #[must_use]
    pub fn num_elems(&self) -> u64 {
        self.as_ref().num_elems()
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    /// One more than the distance in elements of the last from the first; 0 if empty.
    #[must_use]
    pub fn extent_elems(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        1 + self.shape().iter().zip(self.strides()).map(|(&len, &stride)| (len - 1) * stride).sum::<u64>()
    }

    /// The same, borrowed.
    #[must_use]
    #[inline]
    pub fn as_ref(&self) -> LayoutRef<'_> {
        LayoutRef { shape: self.shape(), strides: self.strides() }
    }

    /// Whether the elements lie one after the other in row-major order, without gap.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.as_ref().is_contiguous()
    }

    /// Whether no two positions are the same element, as a written view needs. A layout whose dimensions interleave
    /// without nesting is taken to repeat elements even where it does not.
    #[must_use]
    pub fn elements_are_distinct(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut dims = [(0u64, 0u64); MAX_RANK];
        let mut rank = 0;
        for (&len, &stride) in self.shape().iter().zip(self.strides()) {
            if len > 1 {
                dims[rank] = (stride, len);
                rank += 1;
            }
        }
        dims[..rank].sort_unstable();
        let mut reach = 0; // offset of the last element of the dimensions seen so far
        for &(stride, len) in &dims[..rank] {
            if stride <= reach {
                return false;
            }
            reach += (len - 1) * stride;
        }
        true
    }

    /// The distance in elements of the element at `index` from the first.
    ///
    /// # Errors
    /// [`LayoutError::IndexRank`], [`LayoutError::IndexOutOfBounds`].
    #[inline]
    pub fn offset_of(&self, index: &[u64]) -> Result<u64, LayoutError> {
        self.as_ref().offset_of(index)
    }

    fn dim(&self, dim: usize) -> Result<(u64, u64), LayoutError> {
        if dim < self.rank() {
            Ok((self.shape[dim], self.strides[dim]))
        } else {
            Err(LayoutError::NoSuchDimension { dim, rank: self.rank() })
        }
    }

    /// Elements `range` of dimension `dim`, with the offset of the first. An empty range is accepted wherever it lies.
    ///
    /// # Errors
    /// [`LayoutError::NoSuchDimension`], [`LayoutError::SliceOutOfBounds`].
    #[inline]
    pub fn slice(&self, dim: usize, range: Range<u64>) -> Result<(Layout, u64), LayoutError> {
        let (len, stride) = self.dim(dim)?;
        let mut layout = *self;
        if range.start == range.end {
            layout.shape[dim] = 0;
            return Ok((layout, 0));
        }
        if range.start > range.end || range.end > len {
            return Err(LayoutError::SliceOutOfBounds { dim, start: range.start, end: range.end, len });
        }
        layout.shape[dim] = range.end - range.start;
        Ok((layout, if self.is_empty() { 0 } else { range.start * stride }))
    }

    /// Every `step`-th element of dimension `dim`, from the first on.
    ///
    /// # Errors
    /// [`LayoutError::NoSuchDimension`]; [`LayoutError::SliceOutOfBounds`] for a step of 0.
    pub fn step_by(&self, dim: usize, step: u64) -> Result<Layout, LayoutError> {
        let (len, stride) = self.dim(dim)?;
        if step == 0 {
            return Err(LayoutError::SliceOutOfBounds { dim, start: 0, end: 0, len });
        }
        let mut layout = *self;
        layout.shape[dim] = len.div_ceil(step);
        // With at most one element left the stride is never used, so it may saturate.
        layout.strides[dim] = if layout.shape[dim] <= 1 { stride } else { stride * step };
        Ok(layout)
    }

    /// Position `at` of dimension `dim`, which disappears, with the offset of the first element.
    ///
    /// # Errors
    /// [`LayoutError::NoSuchDimension`]; [`LayoutError::SliceOutOfBounds`] if `at` is not in the dimension.
    #[inline]
    pub fn index(&self, dim: usize, at: u64) -> Result<(Layout, u64), LayoutError> {
        let (len, stride) = self.dim(dim)?;
        if at >= len {
            return Err(LayoutError::SliceOutOfBounds { dim, start: at, end: at.saturating_add(1), len });
        }
        let mut layout = *self;
        let rank = self.rank();
        // Element by element: the few that there are cost less than a call that copies memory.
        for outer in dim..rank - 1 {
            layout.shape[outer] = layout.shape[outer + 1];
            layout.strides[outer] = layout.strides[outer + 1];
        }
        layout.shape[rank - 1] = 0;
        layout.strides[rank - 1] = 0;
        layout.rank -= 1;
        Ok((layout, if self.is_empty() { 0 } else { at * stride }))
    }

    /// Dimensions `a` and `b` exchanged.
    ///
    /// # Errors
    /// [`LayoutError::NoSuchDimension`].
    pub fn transpose(&self, a: usize, b: usize) -> Result<Layout, LayoutError> {
        self.dim(a)?;
        self.dim(b)?;
        let mut layout = *self;
        layout.shape.swap(a, b);
        layout.strides.swap(a, b);
        Ok(layout)
    }

    /// Dimension `order[i]` becomes dimension `i`.
    ///
    /// # Errors
    /// [`LayoutError::NotAPermutation`].
    pub fn permute(&self, order: &[usize]) -> Result<Layout, LayoutError> {
        let mut seen = [false; MAX_RANK];
        let mut layout = *self;
        let valid = order.len() == self.rank()
            && order.iter().enumerate().all(|(to, &from)| {
                if from >= self.rank() || seen[from] {
                    return false;
                }
                seen[from] = true;
                layout.shape[to] = self.shape[from];
                layout.strides[to] = self.strides[from];
                true
            });
        if valid { Ok(layout) } else { Err(LayoutError::NotAPermutation { order: order.to_vec(), rank: self.rank() }) }
    }

    /// Repeats dimensions of length 1, and adds leading ones, until the shape is `shape`. Costs no memory: stride 0.
    ///
    /// # Errors
    /// [`LayoutError::Broadcast`], [`LayoutError::RankTooLarge`], [`LayoutError::Overflow`].
    pub fn broadcast(&self, shape: &[u64]) -> Result<Layout, LayoutError> {
        let refuse = || LayoutError::Broadcast { from: self.shape().to_vec(), to: shape.to_vec() };
        if shape.len() > MAX_RANK {
            return Err(LayoutError::RankTooLarge { rank: shape.len() });
        }
        let added = shape.len().checked_sub(self.rank()).ok_or_else(refuse)?;
        let mut strides = [0; MAX_RANK];
        for dim in 0..self.rank() {
            if self.shape[dim] == shape[added + dim] {
                strides[added + dim] = self.strides[dim];
            } else if self.shape[dim] != 1 {
                return Err(refuse());
            }
        }
        Layout::strided(shape, &strides[..shape.len()])
    }

    /// The same elements in the same order under another shape, where that is a view.
    ///
    /// # Errors
    /// [`LayoutError::ReshapeCount`]; [`LayoutError::ReshapeNeedsCopy`] if the strides do not allow it.
    pub fn reshape(&self, shape: &[u64]) -> Result<Layout, LayoutError> {
        let target = Layout::contiguous(shape)?;
        let (from_elems, to_elems) = (self.num_elems(), target.num_elems());
        if from_elems != to_elems {
            return Err(LayoutError::ReshapeCount {
                from: self.shape().to_vec(),
                to: shape.to_vec(),
                from_elems,
                to_elems,
            });
        }
        if self.is_empty() || self.is_contiguous() {
            return Ok(target);
        }
        self.reshape_strides(shape).ok_or_else(|| LayoutError::ReshapeNeedsCopy {
            from: self.shape().to_vec(),
            strides: self.strides().to_vec(),
            to: shape.to_vec(),
        })
    }

    /// Matches groups of old and new dimensions that hold equally many elements, outermost first; a group can be
    /// split anew only if its old dimensions are evenly strided (NumPy's rule for reshaping without a copy).
    fn reshape_strides(&self, shape: &[u64]) -> Option<Layout> {
        let old: Vec<(u64, u64)> =
            self.shape().iter().copied().zip(self.strides().iter().copied()).filter(|&(len, _)| len != 1).collect();
        let mut strides = [0u64; MAX_RANK];
        let (mut next_old, mut next_new) = (0, 0);
        while next_new < shape.len() {
            if shape[next_new] == 1 {
                strides[next_new] = 1;
                next_new += 1;
                continue;
            }
            let (first_old, first_new) = (next_old, next_new);
            let (mut old_elems, mut new_elems) = (old.get(next_old)?.0, shape[next_new]);
            next_old += 1;
            next_new += 1;
            while old_elems != new_elems {
                if old_elems < new_elems {
                    old_elems *= old.get(next_old)?.0;
                    next_old += 1;
                } else {
                    new_elems *= shape.get(next_new)?;
                    next_new += 1;
                }
            }
            let group = &old[first_old..next_old];
            if group.windows(2).any(|pair| pair[0].1 != pair[1].0 * pair[1].1) {
                return None;
            }
            let mut stride = group[group.len() - 1].1;
            for dim in (first_new..next_new).rev() {
                strides[dim] = stride;
                stride = stride.checked_mul(shape[dim])?;
            }
        }
        Layout::strided(shape, &strides[..shape.len()]).ok()
    }
}

#[cold]
fn overflow(shape: &[u64], strides: &[u64]) -> LayoutError {
    LayoutError::Overflow { shape: shape.to_vec(), strides: strides.to_vec() }
}

/// Typed strided elements inside an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The type of the elements.
    pub dtype: DType,
    /// Their shape and strides.
    pub layout: Layout,
    /// The first element's distance from the start of the allocation, in elements of `dtype`.
    pub offset_elems: u64,
}

impl Region {
    /// Row-major elements from the start of an allocation.
    ///
    /// # Errors
    /// [`LayoutError::RankTooLarge`], [`LayoutError::Overflow`].
    pub fn contiguous(dtype: DType, shape: &[u64]) -> Result<Region, LayoutError> {
        Ok(Region { dtype, layout: Layout::contiguous(shape)?, offset_elems: 0 })
    }

    /// The first element's distance from the start of the allocation, in bytes.
    #[must_use]
    #[inline]
    pub fn offset_bytes(&self) -> u64 {
        self.offset_elems * self.dtype.size_bytes()
    }

    /// The distance in bytes from the start of the first element to the end of the last; 0 if empty.
    #[must_use]
    pub fn extent_bytes(&self) -> u64 {
        self.layout.extent_elems() * self.dtype.size_bytes()
    }

    /// Bytes of all elements if they were packed: what a bulk copy of the region carries.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.layout.num_elems() * self.dtype.size_bytes()
    }

    /// Checks that the elements lie within an allocation of `len_bytes`. An empty region lies anywhere.
    ///
    /// # Errors
    /// [`LayoutError::OutsideAllocation`].
    pub fn check_within(&self, len_bytes: u64) -> Result<(), LayoutError> {
        let extent = self.extent_bytes();
        if extent == 0 {
            return Ok(());
        }
        let start = self.offset_elems.checked_mul(self.dtype.size_bytes());
        let end = start.and_then(|start| start.checked_add(extent));
        match end {
            Some(end) if end <= len_bytes => Ok(()),
            _ => Err(LayoutError::OutsideAllocation {
                start: start.unwrap_or(u64::MAX),
                end: end.unwrap_or(u64::MAX),
                len_bytes,
            }),
        }
    }

    /// Byte offset in the allocation of the element at `index`.
    ///
    /// # Errors
    /// [`LayoutError::IndexRank`], [`LayoutError::IndexOutOfBounds`].
    #[inline]
    pub fn byte_of(&self, index: &[u64]) -> Result<u64, LayoutError> {
        Ok((self.offset_elems + self.layout.offset_of(index)?) * self.dtype.size_bytes())
    }

    #[inline]
    fn moved(&self, (layout, by_elems): (Layout, u64)) -> Region {
        Region { dtype: self.dtype, layout, offset_elems: self.offset_elems + by_elems }
    }

    /// See [`Layout::slice`].
    ///
    /// # Errors
    /// As [`Layout::slice`].
    #[inline]
    pub fn slice(&self, dim: usize, range: Range<u64>) -> Result<Region, LayoutError> {
        self.layout.slice(dim, range).map(|at| self.moved(at))
    }

    /// See [`Layout::step_by`].
    ///
    /// # Errors
    /// As [`Layout::step_by`].
    pub fn step_by(&self, dim: usize, step: u64) -> Result<Region, LayoutError> {
        self.layout.step_by(dim, step).map(|layout| self.moved((layout, 0)))
    }

    /// See [`Layout::index`].
    ///
    /// # Errors
    /// As [`Layout::index`].
    #[inline]
    pub fn index(&self, dim: usize, at: u64) -> Result<Region, LayoutError> {
        self.layout.index(dim, at).map(|at| self.moved(at))
    }

    /// See [`Layout::transpose`].
    ///
    /// # Errors
    /// As [`Layout::transpose`].
    pub fn transpose(&self, a: usize, b: usize) -> Result<Region, LayoutError> {
        self.layout.transpose(a, b).map(|layout| self.moved((layout, 0)))
    }

    /// See [`Layout::permute`].
    ///
    /// # Errors
    /// As [`Layout::permute`].
    pub fn permute(&self, order: &[usize]) -> Result<Region, LayoutError> {
        self.layout.permute(order).map(|layout| self.moved((layout, 0)))
    }

    /// See [`Layout::broadcast`].
    ///
    /// # Errors
    /// As [`Layout::broadcast`].
    pub fn broadcast(&self, shape: &[u64]) -> Result<Region, LayoutError> {
        self.layout.broadcast(shape).map(|layout| self.moved((layout, 0)))
    }

    /// See [`Layout::reshape`].
    ///
    /// # Errors
    /// As [`Layout::reshape`].
    pub fn reshape(&self, shape: &[u64]) -> Result<Region, LayoutError> {
        self.layout.reshape(shape).map(|layout| self.moved((layout, 0)))
    }
}
