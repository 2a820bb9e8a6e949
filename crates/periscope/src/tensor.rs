//! Tensors: the plain handle that orchestrations work with, the owner that keeps resident memory alive, and host tensors.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use periscope_core::{DType, Element, Layout, LayoutError, PodElement, Region};
use periscope_memory::{Allocation, AllocationId, MemoryError};

use crate::error::{Error, ErrorKind};

/// Where a tensor's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// In an allocation of a device.
    Allocation(AllocationId),
    /// In an object of one build: a staged tensor or graph memory. `build` is never reused.
    Build { build: u64, object: u32 },
}

/// A tensor as an orchestration sees it: element type, shape, strides, and where. A plain value: copying it copies no
/// element and keeps nothing alive. Using it after its memory is gone is refused, by name.
///
/// Its methods make views: other tensors over the same bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tensor {
    pub(crate) home: Home,
    pub(crate) region: Region,
}

macro_rules! views {
    ($owner:ident) => {
        impl $owner {
            /// The element type.
            #[must_use]
            pub fn dtype(&self) -> DType {
                self.region().dtype
            }

            /// The length of each dimension.
            #[must_use]
            pub fn shape(&self) -> &[u64] {
                self.region().layout.shape()
            }

            /// Shape and strides.
            #[must_use]
            pub fn layout(&self) -> &Layout {
                &self.region().layout
            }

            /// The number of dimensions.
            #[must_use]
            pub fn rank(&self) -> usize {
                self.region().layout.rank()
            }

            /// The number of elements.
            #[must_use]
            pub fn num_elems(&self) -> u64 {
                self.region().layout.num_elems()
            }

            /// The length of dimension `dim`.
            ///
            /// # Panics
            /// If there is no such dimension.
            #[must_use]
            pub fn dim(&self, dim: usize) -> u64 {
                self.shape()[dim]
            }

            /// Elements `range` of dimension `dim`. An empty range is accepted wherever it lies.
            ///
            /// # Errors
            /// No such dimension, or the range reaches outside it.
            #[inline]
            pub fn slice(&self, dim: usize, range: Range<u64>) -> Result<$owner, Error> {
                self.with(self.region().slice(dim, range))
            }

            /// Every `step`-th element of dimension `dim`.
            ///
            /// # Errors
            /// No such dimension, or a step of 0.
            pub fn step_by(&self, dim: usize, step: u64) -> Result<$owner, Error> {
                self.with(self.region().step_by(dim, step))
            }

            /// Position `at` of dimension `dim`, which disappears.
            ///
            /// # Errors
            /// No such dimension, or `at` is not in it.
            #[inline]
            pub fn index(&self, dim: usize, at: u64) -> Result<$owner, Error> {
                self.with(self.region().index(dim, at))
            }

            /// Dimensions `a` and `b` exchanged.
            ///
            /// # Errors
            /// No such dimension.
            pub fn transpose(&self, a: usize, b: usize) -> Result<$owner, Error> {
                self.with(self.region().transpose(a, b))
            }

            /// Dimension `order[i]` becomes dimension `i`.
            ///
            /// # Errors
            /// `order` does not name each dimension once.
            pub fn permute(&self, order: &[usize]) -> Result<$owner, Error> {
                self.with(self.region().permute(order))
            }

            /// Dimensions of length 1 repeated, and leading ones added, up to `shape`. Costs no memory.
            ///
            /// # Errors
            /// Another dimension would have to change.
            pub fn broadcast(&self, shape: &[u64]) -> Result<$owner, Error> {
                self.with(self.region().broadcast(shape))
            }

            /// The same elements in the same order under another shape.
            ///
            /// # Errors
            /// Another number of elements, or strides that do not allow a view.
            pub fn reshape(&self, shape: &[u64]) -> Result<$owner, Error> {
                self.with(self.region().reshape(shape))
            }
        }
    };
}

views!(Tensor);
views!(Resident);

impl Tensor {
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    #[inline]
    fn with(&self, region: Result<Region, LayoutError>) -> Result<Tensor, Error> {
        Ok(Tensor { home: self.home, region: region.map_err(Error::layout)? })
    }
}

/// A tensor that lives on a device until its last owner is dropped. Cloning it, or making a view, makes another owner.
#[derive(Clone)]
pub struct Resident {
    pub(crate) allocation: Arc<Allocation>,
    pub(crate) tensor: Tensor,
}

impl Resident {
    pub(crate) fn new(allocation: Arc<Allocation>, region: Region) -> Resident {
        Resident { tensor: Tensor { home: Home::Allocation(allocation.id()), region }, allocation }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.tensor.region
    }

    fn with(&self, region: Result<Region, LayoutError>) -> Result<Resident, Error> {
        Ok(Resident::new(Arc::clone(&self.allocation), region.map_err(Error::layout)?))
    }

    /// The plain handle, for an orchestration that captures it.
    #[must_use]
    pub fn tensor(&self) -> Tensor {
        self.tensor
    }

    /// The device address of the first element: stable, for kernels and people. Not to be dereferenced on the host.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.allocation.device_memory().address + self.region().offset_bytes()
    }

    /// How the host reaches the memory, if an orchestration has touched it yet.
    #[must_use]
    pub fn view_report(&self) -> Option<periscope_memory::ViewReport> {
        self.allocation.view_report()
    }
}

impl AsRef<Tensor> for Resident {
    fn as_ref(&self) -> &Tensor {
        &self.tensor
    }
}

impl AsRef<Tensor> for Tensor {
    fn as_ref(&self) -> &Tensor {
        self
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resident").field("allocation", &self.allocation.id()).field("region", self.region()).finish()
    }
}

/// A tensor in host memory: row-major, aligned for every element type.
#[derive(Clone, PartialEq)]
pub struct HostTensor {
    region: Region,
    // Words, so that the bytes are aligned for every element type.
    words: Vec<u64>,
}

impl HostTensor {
    /// A tensor of zeros.
    ///
    /// # Errors
    /// Too many dimensions, or too large.
    pub fn zeros(dtype: DType, shape: &[u64]) -> Result<HostTensor, Error> {
        let region = Region::contiguous(dtype, shape).map_err(Error::layout)?;
        let words = zeroed_elements(region.packed_bytes().div_ceil(8))?;
        Ok(HostTensor { region, words })
    }

    /// A tensor with these elements.
    ///
    /// # Errors
    /// Too many dimensions, or another number of elements than `shape` has.
    pub fn from_slice<T: Element>(shape: &[u64], elements: &[T]) -> Result<HostTensor, Error> {
        let mut tensor = HostTensor::zeros(T::DTYPE, shape)?;
        if elements.len() as u64 != tensor.num_elems() {
            return Err(Error::element_count(shape, elements.len() as u64));
        }
        let size = T::DTYPE.size_bytes() as usize;
        for (bytes, element) in tensor.bytes_mut().chunks_exact_mut(size).zip(elements) {
            bytes.copy_from_slice(bytemuck::bytes_of(&element.to_stored()));
        }
        Ok(tensor)
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.region.dtype
    }

    /// The length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        self.region.layout.shape()
    }

    /// The number of elements.
    #[must_use]
    pub fn num_elems(&self) -> u64 {
        self.region.layout.num_elems()
    }

    /// The elements' bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.region.packed_bytes() as usize]
    }

    /// The elements' bytes.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.region.packed_bytes() as usize;
        &mut bytemuck::cast_slice_mut(&mut self.words)[..len]
    }

    /// The elements, if they are of type `T`.
    #[must_use]
    pub fn as_slice<T: PodElement>(&self) -> Option<&[T]> {
        (T::DTYPE == self.dtype()).then(|| bytemuck::cast_slice(self.bytes()))
    }

    /// The elements, if they are of type `T`.
    #[must_use]
    pub fn as_mut_slice<T: PodElement>(&mut self) -> Option<&mut [T]> {
        if T::DTYPE == self.dtype() { Some(bytemuck::cast_slice_mut(self.bytes_mut())) } else { None }
    }
}

/// Host memory for `count` elements, which a broadcast view may have more of than any host can hold.
pub(crate) fn zeroed_elements<T: PodElement>(count: u64) -> Result<Vec<T>, Error> {
    let refuse = |message: &str| {
        let bytes = count.saturating_mul(T::DTYPE.size_bytes());
        ErrorKind::Memory(MemoryError::HostMemory { bytes, message: message.into() })
    };
    let len = usize::try_from(count).map_err(|_| refuse("more than the address space"))?;
    Ok(bytemuck::allocation::try_zeroed_vec(len).map_err(|()| refuse("the allocator refused"))?)
}

impl fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostTensor({} {:?})", self.dtype(), self.shape())
    }
}
