//! A prepared case on a device, under one residency.

use std::fmt;
use std::str::FromStr;

use periscope::{Arg, DType, Device, Direction, HostTensor, Init, Report, Resident};

use crate::check::Check;
use crate::workload::{EntryTensor, Prepared, Role, WorkloadError};

/// Which entry tensors live on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Residency {
    /// None: all are copied in for each run.
    Staged,
    /// The large ones; control tensors are staged.
    Mixed,
    /// All.
    Resident,
}

impl Residency {
    /// All three.
    pub const ALL: [Residency; 3] = [Residency::Staged, Residency::Mixed, Residency::Resident];

    /// The word on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Residency::Staged => "staged",
            Residency::Mixed => "mixed",
            Residency::Resident => "resident",
        }
    }

    fn keeps(self, role: Role) -> bool {
        match self {
            Residency::Staged => false,
            Residency::Mixed => role == Role::Large,
            Residency::Resident => true,
        }
    }
}

impl FromStr for Residency {
    type Err = String;

    fn from_str(text: &str) -> Result<Residency, String> {
        Residency::ALL
            .into_iter()
            .find(|residency| residency.name() == text)
            .ok_or_else(|| format!("`{text}` is not staged, mixed or resident"))
    }
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

enum Place {
    Host(HostTensor),
    Device(Resident),
}

/// A prepared case on a device.
pub struct Session<'p> {
    device: Device,
    prepared: &'p Prepared,
    places: Vec<Place>,
    /// Bytes of the one-off upload of resident tensors.
    setup_bytes: u64,
    runs: u64,
}

impl<'p> Session<'p> {
    /// Puts the resident tensors on the device and copies the staged ones, so that `prepared` stays as it is.
    ///
    /// # Errors
    /// The device has not enough memory, or a transfer failed.
    pub fn open(device: &Device, prepared: &'p Prepared, residency: Residency) -> Result<Session<'p>, WorkloadError> {
        let mut session = Session { device: device.clone(), prepared, places: Vec::new(), setup_bytes: 0, runs: 0 };
        for tensor in &prepared.tensors {
            let place = if !residency.keeps(tensor.role) {
                Place::Host(tensor.host.clone())
            } else if tensor.direction == Direction::Out {
                Place::Device(device.alloc(tensor.host.dtype(), tensor.host.shape(), Init::Uninit)?)
            } else {
                session.setup_bytes += tensor.host.bytes().len() as u64;
                Place::Device(device.upload_tensor(&tensor.host)?)
            };
            session.places.push(place);
        }
        Ok(session)
    }

    /// Bytes of the one-off upload of resident tensors.
    #[must_use]
    pub fn setup_bytes(&self) -> u64 {
        self.setup_bytes
    }

    /// The resident tensor of this name, if it is resident.
    #[must_use]
    pub fn resident(&self, name: &str) -> Option<&Resident> {
        let position = self.prepared.tensors.iter().position(|tensor| tensor.name == name)?;
        match &self.places[position] {
            Place::Device(resident) => Some(resident),
            Place::Host(_) => None,
        }
    }

    /// Runs once, from the same inputs each time: INOUT tensors are set back before, outside the run.
    ///
    /// # Errors
    /// The run's.
    pub fn run(&mut self) -> Result<Report, WorkloadError> {
        if self.runs > 0 {
            self.set_back()?;
        }
        self.runs += 1;
        let mut args: Vec<Arg<'_>> = self
            .places
            .iter_mut()
            .zip(&self.prepared.tensors)
            .map(|(place, tensor)| match place {
                Place::Device(resident) => Arg::from(&*resident),
                Place::Host(host) => {
                    if tensor.direction.writes() {
                        Arg::from(host)
                    } else {
                        Arg::from(&*host)
                    }
                }
            })
            .collect();
        Ok(self.device.run_with(&self.prepared.callable, &mut args, &self.prepared.scalars)?)
    }

    fn set_back(&mut self) -> Result<(), WorkloadError> {
        for (place, tensor) in self.places.iter_mut().zip(&self.prepared.tensors) {
            if tensor.direction == Direction::In {
                continue;
            }
            match place {
                Place::Host(host) => host.bytes_mut().copy_from_slice(tensor.host.bytes()),
                Place::Device(resident) if tensor.direction == Direction::InOut => {
                    self.device.write_tensor(resident, &tensor.host)?
                }
                Place::Device(_) => {}
            }
        }
        Ok(())
    }

    /// What entry tensor `position` holds now.
    ///
    /// # Errors
    /// The transfer failed, or it has no value.
    pub fn values(&self, position: usize) -> Result<HostTensor, WorkloadError> {
        match &self.places[position] {
            Place::Host(host) => Ok(host.clone()),
            Place::Device(resident) => Ok(self.device.read_tensor(resident)?),
        }
    }

    /// Compares what the last run left with the reference.
    ///
    /// # Errors
    /// The transfer failed.
    pub fn check(&self) -> Result<Check, WorkloadError> {
        self.prepared.expected.iter().try_fold(Check::default(), |check, expected| {
            Ok(check.and(expected.compare(self.values(expected.tensor)?.bytes())))
        })
    }
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("device", &self.device).field("runs", &self.runs).finish_non_exhaustive()
    }
}

/// An entry tensor with these values.
pub(crate) fn entry(name: &'static str, direction: Direction, role: Role, host: HostTensor) -> EntryTensor {
    EntryTensor { name, direction, role, host }
}

/// An OUT entry tensor.
pub(crate) fn output(
    name: &'static str,
    role: Role,
    dtype: DType,
    shape: &[u64],
) -> Result<EntryTensor, WorkloadError> {
    Ok(entry(name, Direction::Out, role, HostTensor::zeros(dtype, shape)?))
}
