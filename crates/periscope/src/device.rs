//! An opened device: memory, transfers, runs.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use periscope_core::image::Image;
use periscope_core::{DType, Element, PodElement, Region};
use periscope_hal::{DeviceCounters, DeviceInfo, DeviceUri, ModuleId, OpenError, Platform};
use periscope_memory::{AllocationId, Init, Memory, MemoryCounts, MemoryError, MemorySettings, Turn};
use periscope_sim::{SimPlatform, SimSettings};

use crate::arg::Arg;
use crate::callable::{Callable, CallableInner};
use crate::error::{Error, ErrorKind, Place};
use crate::host_build_graph::{Run, Workshop};
use crate::report::Report;
use crate::tensor::{HostTensor, Resident, zeroed_elements};

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Settings of its memory and host views.
    pub memory: MemorySettings,
    /// Settings of simulated devices.
    pub sim: SimSettings,
}

/// The platforms that this build knows, ready to open devices with these options.
#[must_use]
pub fn platforms(options: &DeviceOptions) -> Vec<Box<dyn Platform>> {
    vec![Box::new(SimPlatform::new(options.sim))]
}

/// The devices that can be opened, with a line on each.
#[must_use]
pub fn list_devices() -> Vec<(DeviceUri, String)> {
    platforms(&DeviceOptions::default()).iter().flat_map(|platform| platform.devices()).collect()
}

struct DeviceInner {
    memory: Memory,
    /// By callable: the kernels that have been loaded, until the callable is gone.
    modules: Mutex<HashMap<u64, (ModuleId, Weak<CallableInner>)>>,
    /// Used by whoever has the turn, so never waited for.
    workshop: Mutex<Workshop>,
    runs: AtomicU64,
}

/// An opened device. Cloning it clones a handle; it closes when the last handle and the last tensor on it are gone.
#[derive(Clone)]
pub struct Device {
    inner: Arc<DeviceInner>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.info().uri.to_string()).finish()
    }
}

impl Device {
    /// Opens a device by URI, such as `sim` or `sim:a2a3`.
    ///
    /// # Errors
    /// [`ErrorKind::Open`]: malformed, unknown (with what there is), or it cannot be opened.
    pub fn open(uri: &str) -> Result<Device, Error> {
        Device::open_with(uri, &DeviceOptions::default())
    }

    /// Opens a device with settings of one's own.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_with(uri: &str, options: &DeviceOptions) -> Result<Device, Error> {
        let uri: DeviceUri = uri.parse()?;
        let platforms = platforms(options);
        let platform = platforms.iter().find(|platform| platform.scheme() == uri.scheme()).ok_or_else(|| {
            let known = platforms.iter().map(|platform| platform.scheme().to_owned()).collect();
            OpenError::UnknownPlatform { scheme: uri.scheme().to_owned(), known }
        })?;
        Ok(Device::from_hal(platform.open(&uri)?, options.memory.clone()))
    }

    /// A device that the caller has opened by other means: a platform of one's own, or a decorated one.
    #[must_use]
    pub fn from_hal(device: Arc<dyn periscope_hal::Device>, settings: MemorySettings) -> Device {
        Device {
            inner: Arc::new(DeviceInner {
                memory: Memory::new(device, settings),
                modules: Mutex::default(),
                workshop: Mutex::default(),
                runs: AtomicU64::new(0),
            }),
        }
    }

    /// Names and numbers.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        self.inner.memory.device().info()
    }

    /// What has happened to its memory and host views since it was opened.
    #[must_use]
    pub fn counts(&self) -> MemoryCounts {
        self.inner.memory.counts()
    }

    /// What the device itself has done since it was opened: calls, bytes, wake-ups.
    #[must_use]
    pub fn device_counters(&self) -> DeviceCounters {
        self.inner.memory.device().counters()
    }

    // ---- memory ----

    /// A resident tensor without a value: reading it before it is written is refused. Costs nothing but address space
    /// where the platform allocates lazily.
    ///
    /// # Errors
    /// Too many dimensions, no element at all, or the device has not enough memory.
    pub fn alloc_uninit<T: Element>(&self, shape: impl AsRef<[u64]>) -> Result<Resident, Error> {
        self.alloc(T::DTYPE, shape, Init::Uninit)
    }

    /// A resident tensor of zeros.
    ///
    /// # Errors
    /// As [`Device::alloc_uninit`].
    pub fn alloc_zeroed<T: Element>(&self, shape: impl AsRef<[u64]>) -> Result<Resident, Error> {
        self.alloc(T::DTYPE, shape, Init::Zeroed)
    }

    /// A resident tensor, with the element type as data.
    ///
    /// # Errors
    /// As [`Device::alloc_uninit`].
    pub fn alloc(&self, dtype: DType, shape: impl AsRef<[u64]>, init: Init) -> Result<Resident, Error> {
        let region = Region::contiguous(dtype, shape.as_ref()).map_err(Error::layout)?;
        let allocation = self.inner.memory.alloc(region.packed_bytes(), init).map_err(ErrorKind::from)?;
        Ok(Resident::new(allocation, region))
    }

    /// A resident tensor with these elements, in row-major order.
    ///
    /// # Errors
    /// As [`Device::alloc_uninit`]; not as many elements as `shape` has; called from an orchestration of this device.
    pub fn upload<T: PodElement>(&self, shape: impl AsRef<[u64]>, elements: &[T]) -> Result<Resident, Error> {
        let resident = self.alloc_uninit::<T>(shape.as_ref())?;
        self.write(&resident, elements)?;
        Ok(resident)
    }

    /// A resident tensor with the elements of a host tensor.
    ///
    /// # Errors
    /// As [`Device::upload`].
    pub fn upload_tensor(&self, tensor: &HostTensor) -> Result<Resident, Error> {
        let resident = self.alloc(tensor.dtype(), tensor.shape(), Init::Uninit)?;
        self.write_bytes(&resident, tensor.bytes())?;
        Ok(resident)
    }

    /// Sets all elements of a resident tensor or view, in row-major order. Waits for its turn on the device.
    ///
    /// # Errors
    /// Another element type or number of elements; another device's tensor; called from an orchestration of this device; a
    /// view whose positions repeat elements; the transfer failed.
    pub fn write<T: PodElement>(&self, to: &Resident, elements: &[T]) -> Result<(), Error> {
        check_access(to, T::DTYPE, elements.len() as u64)?;
        self.write_bytes(to, bytemuck::cast_slice(elements))
    }

    /// As [`Device::write`], from a host tensor.
    ///
    /// # Errors
    /// As [`Device::write`].
    pub fn write_tensor(&self, to: &Resident, from: &HostTensor) -> Result<(), Error> {
        check_access(to, from.dtype(), from.num_elems())?;
        self.write_bytes(to, from.bytes())
    }

    /// As [`Device::read`], to a host tensor.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub fn read_tensor(&self, from: &Resident) -> Result<HostTensor, Error> {
        let mut tensor = HostTensor::zeros(from.dtype(), from.shape())?;
        let bytes = tensor.bytes_mut();
        self.transfer(from, |turn| from.allocation.download_region(turn, from.region(), bytes))?;
        Ok(tensor)
    }

    fn write_bytes(&self, to: &Resident, bytes: &[u8]) -> Result<(), Error> {
        check_distinct(to)?;
        self.transfer(to, |turn| to.allocation.upload_region(turn, to.region(), bytes))
    }

    /// A resident tensor with every element `value`.
    ///
    /// # Errors
    /// As [`Device::upload`].
    pub fn alloc_full<T: Element>(&self, shape: impl AsRef<[u64]>, value: T) -> Result<Resident, Error> {
        let resident = self.alloc_uninit::<T>(shape)?;
        self.fill(&resident, value)?;
        Ok(resident)
    }

    /// Sets every element of a resident tensor or view to `value`. Waits for its turn on the device.
    ///
    /// # Errors
    /// As [`Device::write`].
    pub fn fill<T: Element>(&self, to: &Resident, value: T) -> Result<(), Error> {
        check_access(to, T::DTYPE, to.num_elems())?;
        check_distinct(to)?;
        let stored = value.to_stored();
        let element = bytemuck::bytes_of(&stored);
        let region = *to.region();
        self.transfer(to, |turn| {
            let whole = region.offset_bytes()..region.offset_bytes() + region.extent_bytes();
            if region.layout.is_contiguous() && element.iter().all(|&byte| byte == element[0]) {
                return to.allocation.fill(turn, whole, element[0]);
            }
            if !region.layout.is_contiguous() {
                return to.allocation.upload_region(turn, &region, &element.repeat(region.layout.num_elems() as usize));
            }
            // Devices fill with bytes; other values are sent in pieces of bounded size.
            let piece = element.repeat((1 << 20) / element.len());
            let mut at = whole.start;
            while at < whole.end {
                let len = (whole.end - at).min(piece.len() as u64);
                to.allocation.upload(turn, at, &piece[..len as usize])?;
                at += len;
            }
            Ok(())
        })
    }

    /// Copies all elements of `from` to `to`, on the device, in row-major order: same element type and shape, other memory.
    /// Waits for its turn on the device.
    ///
    /// # Errors
    /// Another element type or shape; both in one allocation; bytes without a value (nothing is copied then); another
    /// device's tensor; called from an orchestration of this device; the transfer failed.
    pub fn copy(&self, from: &Resident, to: &Resident) -> Result<(), Error> {
        check_access(to, from.dtype(), from.num_elems())?;
        check_distinct(to)?;
        let mismatch =
            |problem: String| Error::from(ErrorKind::CopyMismatch { tensor: to.allocation.id().to_string(), problem });
        if from.shape() != to.shape() {
            return Err(mismatch(format!("shape {:?} to {:?}", from.shape(), to.shape())));
        }
        if from.allocation.id().device != self.inner.memory.number() {
            return Err(ErrorKind::Foreign { tensor: from.allocation.id().to_string() }.into());
        }
        if from.allocation.id() == to.allocation.id() {
            return Err(mismatch("source and destination are one allocation".into()));
        }
        let (sources, targets) = (byte_runs(from.region()), byte_runs(to.region()));
        // What has no value is the source's to be blamed for.
        self.transfer(from, |_| from.allocation.check_region(from.region()))?;
        self.transfer(to, |turn| {
            // The runs of both, cut where either ends.
            let mut sources = sources.into_iter();
            let mut source = 0..0;
            for mut target in targets {
                while !target.is_empty() {
                    if source.is_empty() {
                        source = sources.next().expect("as many elements on both sides");
                    }
                    let len = (source.end - source.start).min(target.end - target.start);
                    to.allocation.copy_from(turn, target.start, &from.allocation, source.start, len)?;
                    source.start += len;
                    target.start += len;
                }
            }
            Ok(())
        })
    }

    /// Establishes the host view of a tensor's allocation now rather than at the first touch. Moves no tensor byte; never
    /// needed for correctness.
    ///
    /// # Errors
    /// Another device's tensor; called from an orchestration of this device; the host has no room for a mirror.
    pub fn prefetch(&self, tensor: &Resident) -> Result<(), Error> {
        self.transfer(tensor, |turn| tensor.allocation.prefetch(turn))
    }

    /// The live allocation that holds all of `len_bytes` bytes at a device address, and where in it they start. The address
    /// is compared, never dereferenced.
    #[must_use]
    pub fn resolve_address(&self, address: u64, len_bytes: u64) -> Option<(AllocationId, u64)> {
        let (allocation, offset) = self.inner.memory.resolve_address(address, len_bytes)?;
        Some((allocation.id(), offset))
    }

    /// All elements of a resident tensor or view, in row-major order. Waits for its turn on the device.
    ///
    /// # Errors
    /// Another element type; bytes without a value, or poisoned; another device's tensor; called from an orchestration of this
    /// device; the transfer failed.
    pub fn read<T: PodElement>(&self, from: &Resident) -> Result<Vec<T>, Error> {
        check_access(from, T::DTYPE, from.num_elems())?;
        let mut elements = zeroed_elements::<T>(from.num_elems())?;
        let bytes = bytemuck::cast_slice_mut(&mut elements);
        self.transfer(from, |turn| from.allocation.download_region(turn, from.region(), bytes))?;
        Ok(elements)
    }

    /// Does something to a tensor's memory outside runs: with the turn, errors named after the tensor.
    fn transfer(&self, tensor: &Resident, body: impl FnOnce(&Turn) -> Result<(), MemoryError>) -> Result<(), Error> {
        let name = tensor.allocation.id().to_string();
        if tensor.allocation.id().device != self.inner.memory.number() {
            return Err(ErrorKind::Foreign { tensor: name }.into());
        }
        let turn = self.inner.memory.take_turn()?;
        if tensor.num_elems() == 0 {
            return Ok(());
        }
        body(&turn).map_err(|error| Error::memory(error, &name, || Place::Whole(tensor.shape().to_vec())))
    }

    // ---- runs ----

    /// Runs a callable: builds its graph and executes it. Waits for its turn on the device, and returns when all is done.
    ///
    /// # Errors
    /// Wrong arguments, whatever the orchestration returned, or the run's failure: the first cause. Staged arguments are
    /// unchanged then; resident tensors that the run's tasks may have written are poisoned.
    pub fn run(&self, callable: &Callable, args: &mut [Arg<'_>]) -> Result<Report, Error> {
        self.run_with(callable, args, &[])
    }

    /// As [`Device::run`], with scalars for the orchestration.
    ///
    /// # Errors
    /// As [`Device::run`].
    pub fn run_with(&self, callable: &Callable, args: &mut [Arg<'_>], scalars: &[u64]) -> Result<Report, Error> {
        self.with_run(callable, |run| run.execute(args, scalars))
    }

    /// Builds a callable's graph and freezes it without executing it. What the orchestration wrote becomes part of the image
    /// (and stays written, as in a run that failed).
    ///
    /// # Errors
    /// Wrong arguments, or whatever the orchestration returned.
    pub fn freeze(&self, callable: &Callable, args: &mut [Arg<'_>], scalars: &[u64]) -> Result<Image, Error> {
        self.with_run(callable, |run| run.freeze(args, scalars))
    }

    /// Executes an image with the kernels of `callable`, whose orchestration is not called. The arguments are those that
    /// the image was built with: same element types, shapes and strides.
    ///
    /// # Errors
    /// [`ErrorKind::ImageMismatch`] if kernels or arguments do not fit; the run's failure, as in [`Device::run`].
    pub fn run_image(&self, image: Image, callable: &Callable, args: &mut [Arg<'_>]) -> Result<Report, Error> {
        self.with_run(callable, |run| run.execute_image(image, args))
    }

    fn with_run<R>(&self, callable: &Callable, body: impl FnOnce(Run<'_>) -> Result<R, Error>) -> Result<R, Error> {
        let inner = &*self.inner;
        let turn = inner.memory.take_turn()?;
        let module = self.module(callable)?;
        // A panic of an earlier orchestration has left it without what it was using, which is made anew.
        let mut workshop = inner.workshop.lock().unwrap_or_else(PoisonError::into_inner);
        let number = inner.runs.fetch_add(1, Relaxed) + 1;
        body(Run { memory: &inner.memory, turn: &turn, workshop: &mut workshop, number, callable, module })
    }

    fn module(&self, callable: &Callable) -> Result<ModuleId, Error> {
        let mut modules = self.inner.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(module, _)) = modules.get(&callable.inner.id) {
            return Ok(module);
        }
        let gone: Vec<ModuleId> = modules
            .extract_if(|_, (_, callable)| callable.strong_count() == 0)
            .map(|(_, (module, _))| module)
            .collect();
        drop(modules);
        // What kernels captured may do anything when it is dropped, so not under the lock. Only whoever has the turn is here.
        for module in gone {
            self.inner.memory.device().unload_kernels(module);
        }
        let module = self.inner.memory.device().load_kernels(&callable.inner.kernels).map_err(|source| {
            ErrorKind::Memory(periscope_memory::MemoryError::Device {
                op: periscope_hal::DeviceOp::LoadKernels,
                source,
            })
        })?;
        let mut modules = self.inner.modules.lock().unwrap_or_else(PoisonError::into_inner);
        modules.insert(callable.inner.id, (module, Arc::downgrade(&callable.inner)));
        Ok(module)
    }
}

fn check_distinct(tensor: &Resident) -> Result<(), Error> {
    if tensor.layout().elements_are_distinct() {
        return Ok(());
    }
    let layout = format!("{:?}", tensor.layout());
    Err(ErrorKind::RepeatsElements { tensor: tensor.allocation.id().to_string(), layout }.into())
}

fn check_access(tensor: &Resident, dtype: DType, elems: u64) -> Result<(), Error> {
    if tensor.dtype() != dtype {
        let name = tensor.allocation.id().to_string();
        return Err(ErrorKind::DType { tensor: name, expected: tensor.dtype(), got: dtype }.into());
    }
    if tensor.num_elems() != elems {
        return Err(Error::element_count(tensor.shape(), elems));
    }
    Ok(())
}

/// The gapless runs of a region, in row-major order, in bytes of its allocation.
fn byte_runs(region: &Region) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    let size = region.dtype.size_bytes();
    periscope_hal::strided::for_each_row(region.layout.as_ref(), |offset, len| {
        let start = (region.offset_elems + offset) * size;
        runs.push(start..start + len * size);
    });
    runs
}
