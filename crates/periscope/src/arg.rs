//! Arguments of a run. Residency is chosen per argument; the orchestration does not notice.

use periscope_core::{DType, Direction, PodElement, Region};

use crate::error::Error;
use crate::tensor::{HostTensor, Resident};

/// An argument of a run.
#[derive(Debug)]
pub struct Arg<'a> {
    pub(crate) kind: ArgKind<'a>,
}

#[derive(Debug)]
pub(crate) enum ArgKind<'a> {
    Resident(&'a Resident),
    Staged { region: Region, bytes: StagedBytes<'a> },
}

/// The caller's memory of a staged argument.
#[derive(Debug)]
pub(crate) enum StagedBytes<'a> {
    Shared(&'a [u8]),
    Exclusive(&'a mut [u8]),
}

impl StagedBytes<'_> {
    /// The same memory for a shorter time; shared if the run is not to write it.
    pub(crate) fn reborrow(&mut self, writable: bool) -> StagedBytes<'_> {
        match self {
            StagedBytes::Shared(bytes) => StagedBytes::Shared(bytes),
            StagedBytes::Exclusive(bytes) => {
                if writable {
                    StagedBytes::Exclusive(bytes)
                } else {
                    StagedBytes::Shared(bytes)
                }
            }
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            StagedBytes::Shared(bytes) => bytes,
            StagedBytes::Exclusive(bytes) => bytes,
        }
    }
}

fn staged(dtype: DType, shape: &[u64], elems: usize) -> Result<Region, Error> {
    let region = Region::contiguous(dtype, shape).map_err(Error::layout)?;
    if region.layout.num_elems() == elems as u64 { Ok(region) } else { Err(Error::element_count(shape, elems as u64)) }
}

impl<'a> Arg<'a> {
    /// Host memory that the run only reads: for an IN.
    ///
    /// # Errors
    /// Not as many elements as `shape` has.
    pub fn read<T: PodElement>(shape: &[u64], elements: &'a [T]) -> Result<Arg<'a>, Error> {
        let region = staged(T::DTYPE, shape, elements.len())?;
        let bytes = StagedBytes::Shared(bytemuck::cast_slice(elements));
        Ok(Arg { kind: ArgKind::Staged { region, bytes } })
    }

    /// Host memory that the run may write: for an OUT or INOUT. (For an IN it is never changed.)
    ///
    /// # Errors
    /// Not as many elements as `shape` has.
    pub fn write<T: PodElement>(shape: &[u64], elements: &'a mut [T]) -> Result<Arg<'a>, Error> {
        let region = staged(T::DTYPE, shape, elements.len())?;
        let bytes = StagedBytes::Exclusive(bytemuck::cast_slice_mut(elements));
        Ok(Arg { kind: ArgKind::Staged { region, bytes } })
    }

    pub(crate) fn region(&self) -> &Region {
        match &self.kind {
            ArgKind::Resident(resident) => resident.region(),
            ArgKind::Staged { region, .. } => region,
        }
    }

    /// Whether the argument can serve an entry tensor of this direction.
    pub(crate) fn can_serve(&self, direction: Direction) -> bool {
        !matches!(&self.kind, ArgKind::Staged { bytes: StagedBytes::Shared(_), .. } if direction.writes())
    }
}

impl<'a> From<&'a Resident> for Arg<'a> {
    fn from(resident: &'a Resident) -> Arg<'a> {
        Arg { kind: ArgKind::Resident(resident) }
    }
}

impl<'a> From<&'a HostTensor> for Arg<'a> {
    fn from(tensor: &'a HostTensor) -> Arg<'a> {
        let region = Region::contiguous(tensor.dtype(), tensor.shape()).expect("it is one");
        Arg { kind: ArgKind::Staged { region, bytes: StagedBytes::Shared(tensor.bytes()) } }
    }
}

impl<'a> From<&'a mut HostTensor> for Arg<'a> {
    fn from(tensor: &'a mut HostTensor) -> Arg<'a> {
        let region = Region::contiguous(tensor.dtype(), tensor.shape()).expect("it is one");
        Arg { kind: ArgKind::Staged { region, bytes: StagedBytes::Exclusive(tensor.bytes_mut()) } }
    }
}
