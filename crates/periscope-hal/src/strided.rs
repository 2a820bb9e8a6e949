//! Typed accessors of strided memory: what kernels get as arguments and orchestrators as guards.
//!
//! An accessor reaches exactly the elements of its layout. It yields slices of gapless runs only: a slice that
//! spanned the gaps between the rows of a tile would claim bytes that a neighbour's task may be writing at the same time.
//! `bool` elements are read and written one by one, never as slices.

use std::fmt;
use std::marker::PhantomData;

use periscope_core::{Element, Layout, LayoutError, LayoutRef, PodElement};

/// An accessor's shape and strides: the image's own for a kernel's argument, which must not cost a copy; boxed for a part of
/// an argument and for a guard.
#[derive(Clone)]
pub enum Dims<'a> {
    /// Kept by something that lives for `'a`.
    Borrowed(LayoutRef<'a>),
    /// The accessor's own.
    Owned(Box<Layout>),
}

impl Dims<'_> {
    #[inline]
    fn get(&self) -> LayoutRef<'_> {
        match self {
            Dims::Borrowed(layout) => *layout,
            Dims::Owned(layout) => layout.as_ref().as_ref(),
        }
    }
}

impl<'a> From<LayoutRef<'a>> for Dims<'a> {
    #[inline]
    fn from(layout: LayoutRef<'a>) -> Self {
        Dims::Borrowed(layout)
    }
}

impl From<Layout> for Dims<'_> {
    fn from(layout: Layout) -> Self {
        Dims::Owned(Box::new(layout))
    }
}

/// Read access to the elements of a tensor for `'a`.
#[derive(Clone)]
pub struct Strided<'a, T: Element> {
    base: *const T::Stored,
    dims: Dims<'a>,
    owner: PhantomData<&'a [T::Stored]>,
}

// SAFETY: it stands for shared references to `T::Stored`, which is `Sync`.
unsafe impl<T: Element> Send for Strided<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Strided<'_, T> {}

impl<'a, T: Element> Strided<'a, T> {
    /// An accessor of the elements at `base` arranged as `layout`.
    ///
    /// # Safety
    /// For `'a`, every element of the layout is readable, initialised memory aligned for `T::Stored` that nothing writes.
    #[must_use]
    #[inline]
    pub unsafe fn new(base: *const u8, layout: impl Into<Dims<'a>>) -> Self {
        let dims = layout.into();
        debug_assert!(dims.get().is_empty() || base.cast::<T::Stored>().is_aligned());
        Strided { base: base.cast(), dims, owner: PhantomData }
    }

    /// The length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        self.layout().shape()
    }

    /// Shape and strides.
    #[must_use]
    #[inline]
    pub fn layout(&self) -> LayoutRef<'_> {
        self.dims.get()
    }

    /// The number of elements.
    #[must_use]
    pub fn num_elems(&self) -> u64 {
        self.layout().num_elems()
    }

    /// The element at `index`.
    ///
    /// # Errors
    /// [`LayoutError::IndexRank`], [`LayoutError::IndexOutOfBounds`].
    #[inline]
    pub fn get(&self, index: &[u64]) -> Result<T, LayoutError> {
        let offset = self.layout().offset_of(index)?;
        // SAFETY: `offset_of` yields only elements of the layout, which `new` was promised are readable.
        Ok(T::from_stored(unsafe { self.base.add(offset as usize).read() }))
    }

    /// All elements in row-major order.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T> {
        let mut elements = Vec::with_capacity(self.num_elems() as usize);
        // SAFETY: the walk yields only elements of the layout, which `new` was promised are readable.
        for_each_offset(self.layout(), |offset| elements.push(T::from_stored(unsafe { self.base.add(offset).read() })));
        elements
    }
}

impl<'a, T: PodElement> Strided<'a, T> {
    /// All elements in row-major order, if they lie in memory like that.
    #[must_use]
    pub fn as_slice(&self) -> Option<&'a [T]> {
        let len = self.layout().num_elems() as usize;
        if len == 0 {
            return Some(&[]);
        }
        // SAFETY: a contiguous layout's elements are `len` neighbours from `base` on, readable for `'a`.
        self.layout().is_contiguous().then(|| unsafe { std::slice::from_raw_parts(self.base, len) })
    }

    /// The last dimension at `outer` (an index of all others), if it is contiguous. `None` also if `outer` is no such index.
    #[must_use]
    pub fn row(&self, outer: &[u64]) -> Option<&'a [T]> {
        let (offset, len) = row_of(self.layout(), outer)?;
        // SAFETY: the row's elements are `len` neighbours from `offset` on, all of the layout.
        Some(unsafe { std::slice::from_raw_parts(self.base.add(offset), len) })
    }
}

impl<T: Element> fmt::Debug for Strided<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Strided<{}>({:?})", T::DTYPE, self.layout())
    }
}

/// Exclusive access to the elements of a tensor for `'a`.
pub struct StridedMut<'a, T: Element> {
    base: *mut T::Stored,
    dims: Dims<'a>,
    owner: PhantomData<&'a mut [T::Stored]>,
}

// SAFETY: it stands for an exclusive reference to `T::Stored`, which is `Send`.
unsafe impl<T: Element> Send for StridedMut<'_, T> {}
// SAFETY: shared use only reads `T::Stored`, which is `Sync`.
unsafe impl<T: Element> Sync for StridedMut<'_, T> {}

impl<'a, T: Element> StridedMut<'a, T> {
    /// An accessor of the elements at `base` arranged as `layout`.
    ///
    /// # Safety
    /// For `'a`, every element of the layout is readable, writable, initialised memory aligned for `T::Stored` that
    /// nothing else accesses, and no two positions of the layout are one element.
    #[must_use]
    #[inline]
    pub unsafe fn new(base: *mut u8, layout: impl Into<Dims<'a>>) -> Self {
        let dims = layout.into();
        debug_assert!(dims.get().is_empty() || base.cast::<T::Stored>().is_aligned());
        StridedMut { base: base.cast(), dims, owner: PhantomData }
    }

    /// The same elements for reading.
    #[must_use]
    pub fn as_strided(&self) -> Strided<'_, T> {
        // SAFETY: reading what is exclusively ours, for as long as `self` is borrowed.
        unsafe { Strided::new(self.base.cast_const().cast(), self.layout()) }
    }

    /// The length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        self.layout().shape()
    }

    /// Shape and strides.
    #[must_use]
    #[inline]
    pub fn layout(&self) -> LayoutRef<'_> {
        self.dims.get()
    }

    /// The number of elements.
    #[must_use]
    pub fn num_elems(&self) -> u64 {
        self.layout().num_elems()
    }

    /// The element at `index`.
    ///
    /// # Errors
    /// [`LayoutError::IndexRank`], [`LayoutError::IndexOutOfBounds`].
    #[inline]
    pub fn get(&self, index: &[u64]) -> Result<T, LayoutError> {
        self.as_strided().get(index)
    }

    /// Sets the element at `index`.
    ///
    /// # Errors
    /// [`LayoutError::IndexRank`], [`LayoutError::IndexOutOfBounds`].
    #[inline]
    pub fn set(&mut self, index: &[u64], value: T) -> Result<(), LayoutError> {
        let offset = self.layout().offset_of(index)?;
        // SAFETY: `offset_of` yields only elements of the layout, which are exclusively ours.
        unsafe { self.base.add(offset as usize).write(value.to_stored()) };
        Ok(())
    }

    /// Sets every element.
    pub fn fill(&mut self, value: T) {
        // SAFETY: the walk yields only elements of the layout, which are exclusively ours.
        for_each_offset(self.layout(), |offset| unsafe { self.base.add(offset).write(value.to_stored()) });
    }

    /// Sets all elements from `values`, in row-major order.
    ///
    /// # Panics
    /// If there are not exactly as many.
    pub fn copy_from_slice(&mut self, values: &[T]) {
        assert_eq!(values.len() as u64, self.num_elems(), "as many values as elements are needed");
        let mut values = values.iter();
        for_each_offset(self.layout(), |offset| {
            let value = values.next().expect("counted above");
            // SAFETY: the walk yields only elements of the layout, which are exclusively ours.
            unsafe { self.base.add(offset).write(value.to_stored()) }
        });
    }
}

impl<T: PodElement> StridedMut<'_, T> {
    /// All elements in row-major order, if they lie in memory like that.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [T]> {
        let len = self.layout().num_elems() as usize;
        if len == 0 {
            return Some(&mut []);
        }
        // SAFETY: a contiguous layout's elements are `len` neighbours from `base` on, exclusively ours while `self` is borrowed.
        self.layout().is_contiguous().then(|| unsafe { std::slice::from_raw_parts_mut(self.base, len) })
    }

    /// The last dimension at `outer` (an index of all others), if it is contiguous. `None` also if `outer` is no such index.
    #[must_use]
    pub fn row_mut(&mut self, outer: &[u64]) -> Option<&mut [T]> {
        let (offset, len) = row_of(self.layout(), outer)?;
        // SAFETY: the row's elements are `len` neighbours from `offset` on, all of the layout, ours while `self` is borrowed.
        Some(unsafe { std::slice::from_raw_parts_mut(self.base.add(offset), len) })
    }
}

impl<'a, T: PodElement> StridedMut<'a, T> {
    /// As [`StridedMut::as_mut_slice`], for the whole of `'a`; gives the accessor back if the elements are not contiguous.
    ///
    /// # Errors
    /// The accessor itself.
    pub fn into_mut_slice(self) -> Result<&'a mut [T], Self> {
        let len = self.layout().num_elems() as usize;
        if len == 0 {
            return Ok(&mut []);
        }
        if !self.layout().is_contiguous() {
            return Err(self);
        }
        // SAFETY: as in `as_mut_slice`; `self` is used up, so the slice is the only access left for `'a`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base, len) })
    }
}

impl<T: Element> fmt::Debug for StridedMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StridedMut<{}>({:?})", T::DTYPE, self.layout())
    }
}

/// Element offset and length of the gapless row at `outer`.
fn row_of(layout: LayoutRef<'_>, outer: &[u64]) -> Option<(usize, usize)> {
    let (&len, outer_shape) = layout.shape().split_last()?;
    let (&stride, outer_strides) = layout.strides().split_last()?;
    if outer.len() != outer_shape.len() || (stride != 1 && len > 1) {
        return None;
    }
    let mut offset = 0;
    for ((&i, &len), &stride) in outer.iter().zip(outer_shape).zip(outer_strides) {
        if i >= len {
            return None;
        }
        offset += i * stride;
    }
    Some((if len == 0 { 0 } else { offset as usize }, len as usize))
}

/// Calls `visit` with the offset of each element, in row-major order.
pub fn for_each_offset(layout: LayoutRef<'_>, mut visit: impl FnMut(usize)) {
    fn walk(shape: &[u64], strides: &[u64], offset: u64, visit: &mut impl FnMut(usize)) {
        let ([len, shape @ ..], [stride, strides @ ..]) = (shape, strides) else {
            visit(offset as usize);
            return;
        };
        for i in 0..*len {
            walk(shape, strides, offset + i * stride, visit);
        }
    }
    if !layout.is_empty() {
        walk(layout.shape(), layout.strides(), 0, &mut visit);
    }
}

/// Calls `visit` with the offset and length, both in elements, of each gapless run, in row-major order.
pub fn for_each_row(layout: LayoutRef<'_>, mut visit: impl FnMut(u64, u64)) {
    fn walk(shape: &[u64], strides: &[u64], offset: u64, row_len: u64, visit: &mut impl FnMut(u64, u64)) {
        let ([len, shape @ ..], [stride, strides @ ..]) = (shape, strides) else {
            visit(offset, row_len);
            return;
        };
        for i in 0..*len {
            walk(shape, strides, offset + i * stride, row_len, visit);
        }
    }
    if layout.is_empty() {
        return;
    }
    // The innermost dimensions that continue each other are one run.
    let (mut outer, mut row_len) = (layout.shape().len(), 1);
    while outer > 0 && (layout.strides()[outer - 1] == row_len || layout.shape()[outer - 1] == 1) {
        outer -= 1;
        row_len *= layout.shape()[outer];
    }
    walk(&layout.shape()[..outer], &layout.strides()[..outer], 0, row_len, &mut visit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_maximal_and_in_order() {
        let rows = |layout: &Layout| {
            let mut rows = Vec::new();
            for_each_row(layout.as_ref(), |offset, len| rows.push((offset, len)));
            rows
        };
        assert_eq!(rows(&Layout::contiguous(&[2, 3, 4]).unwrap()), [(0, 24)]);
        assert_eq!(rows(&Layout::strided(&[2, 2, 3], &[100, 3, 1]).unwrap()), [(0, 6), (100, 6)]);
        assert_eq!(rows(&Layout::strided(&[2, 1], &[0, 7]).unwrap()), [(0, 1), (0, 1)]);
        assert_eq!(rows(&Layout::contiguous(&[]).unwrap()), [(0, 1)]);
        assert_eq!(rows(&Layout::contiguous(&[0, 4]).unwrap()), []);
    }

    #[test]
    fn rows_and_elements_follow_the_strides() {
        let memory: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let layout = Layout::strided(&[3, 2], &[8, 1]).unwrap();
        // SAFETY: the last element is number 17 of 24.
        let tile = unsafe { Strided::<f32>::new(memory[1..].as_ptr().cast(), layout) };
        assert_eq!(tile.to_vec(), [1.0, 2.0, 9.0, 10.0, 17.0, 18.0]);
        assert_eq!(tile.row(&[2]).unwrap(), [17.0, 18.0]);
        assert_eq!(tile.get(&[1, 1]).unwrap(), 10.0);
        assert!(tile.as_slice().is_none());
        assert!(tile.row(&[3]).is_none());
        assert!(tile.get(&[0, 2]).is_err());
        assert!(tile.get(&[0]).is_err());
    }

    #[test]
    fn columns_have_no_rows() {
        let memory = [0f32; 24];
        let layout = Layout::contiguous(&[4, 6]).unwrap().transpose(0, 1).unwrap();
        // SAFETY: 24 elements.
        let columns = unsafe { Strided::<f32>::new(memory.as_ptr().cast(), layout) };
        assert!(columns.row(&[0]).is_none());
    }

    #[test]
    fn writes_stay_within_the_tile() {
        let mut memory = vec![0u16; 12];
        let layout = Layout::strided(&[2, 2], &[4, 1]).unwrap();
        // SAFETY: the last element is number 6 of 12.
        let mut tile = unsafe { StridedMut::<u16>::new(memory[1..].as_mut_ptr().cast(), layout) };
        tile.fill(7);
        tile.row_mut(&[1]).unwrap()[0] = 8;
        tile.set(&[0, 1], 9).unwrap();
        assert_eq!(tile.get(&[0, 1]).unwrap(), 9);
        assert!(tile.as_mut_slice().is_none());
        assert_eq!(memory, [0, 7, 9, 0, 0, 8, 7, 0, 0, 0, 0, 0]);
    }
}
