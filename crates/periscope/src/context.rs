//! What an orchestration works with: reads, writes and views of any tensor, graph memory, tasks, scopes.
//!
//! A context is one build. It has the device's turn, so whatever it finds out about bytes stays true until its launch.
//! It is borrowed for every access: guards borrow it shared, whatever changes bytes or the graph borrows it
//! exclusively, so no guard can be held across a write or a submit, and none outlives the build:
//!
//! ```compile_fail,E0502
//! # use periscope::{Context, Tensor, Error};
//! fn orchestrate(ctx: &mut Context<'_>, lens: &Tensor) -> Result<(), Error> {
//!     let view = ctx.view::<i32>(lens)?;
//!     ctx.write(lens, [0], 1i32)?; // the view is still in use below
//!     println!("{:?}", view.to_vec());
//!     Ok(())
//! }
//! ```

use std::cell::RefCell;
use std::sync::Arc;

use elsa::FrozenVec;
use periscope_core::graph::{Argument, EntryWrites, GraphBuilder, ScopeError, ScopeKind, SubmitError};
use periscope_core::{
    Access, CoreKind, DType, Element, Footprint, KernelId, Layout, ObjectId, ObjectRegion, PodElement, Predicate,
    Region, TaskDesc, TaskId,
};
use periscope_hal::{Geometry, Strided, StridedMut};
use periscope_memory::{
    Allocation, AllocationId, Hold, Memory, MemoryError, Overlay, Turn, empty_view, empty_view_mut,
};

use crate::arena::GraphArena;
use crate::arg::StagedBytes;
use crate::build::{Build, Built, External, ExternalKind, Host, NO_HOST, Object};
use crate::error::{Error, ErrorKind, Place};
use crate::task::{Draft, TaskBuilder};
use crate::tensor::{Home, Tensor};

/// One build: see the module's documentation, and the access contract in the crate's.
pub struct Context<'run> {
    number: u64,
    memory: &'run Memory,
    turn: &'run Turn,
    scalars: &'run [u64],
    record_writes: bool,
    build: RefCell<Build>,
    hosts: FrozenVec<Box<Host<'run>>>,
    pub(crate) draft: Draft,
    latching: bool,
    latched: RefCell<Option<Error>>,
}

impl<'run> Context<'run> {
    pub(crate) fn new(
        memory: &'run Memory,
        turn: &'run Turn,
        graph: GraphBuilder,
        arena: GraphArena,
        scalars: &'run [u64],
        record_writes: bool,
    ) -> Self {
        Context {
            number: memory.new_generation(),
            memory,
            turn,
            scalars,
            record_writes,
            build: RefCell::new(Build { graph, objects: Vec::new(), externals: Vec::new(), slots: Vec::new(), arena }),
            hosts: FrozenVec::new(),
            draft: Draft::default(),
            latching: false,
            latched: RefCell::new(None),
        }
    }

    /// Adds a staged entry tensor.
    pub(crate) fn add_staged(
        &mut self,
        name: &str,
        position: usize,
        region: Region,
        base: StagedBytes<'run>,
    ) -> Tensor {
        let len_bytes = region.packed_bytes();
        let host = self.hosts.len() as u32;
        self.hosts.push(Box::new(Host::Staged { base, overlay: Overlay::new(len_bytes) }));
        let build = self.build.get_mut();
        let object = build.graph.add_external(len_bytes, EntryWrites::Only(Vec::new()));
        build.objects.push(Object::External(build.externals.len() as u32));
        build.externals.push(External { name: name.into(), kind: ExternalKind::Staged(position), host });
        Tensor { home: Home::Build { build: self.number, object: object.0 }, region }
    }

    /// Adds the allocation of a resident tensor, if it is not there yet.
    pub(crate) fn add_resident(&self, name: &str, allocation: Arc<Allocation>, writes: EntryWrites) -> ObjectId {
        let mut build = self.build.borrow_mut();
        let id = allocation.id();
        let object = build.graph.add_external(allocation.len_bytes(), writes);
        let external = build.externals.len() as u32;
        build.objects.push(Object::External(external));
        build.externals.push(External { name: name.into(), kind: ExternalKind::Resident(allocation), host: NO_HOST });
        let slot = id.slot as usize;
        if build.slots.len() <= slot {
            build.slots.resize(slot + 1, (0, 0));
        }
        build.slots[slot] = (id.generation, object.0);
        object
    }

    /// Whether the tensor's object is one of this build already.
    pub(crate) fn knows(&self, tensor: &Tensor) -> bool {
        match tensor.home {
            Home::Build { build, .. } => build == self.number,
            Home::Allocation(id) => {
                let build = self.build.borrow();
                build.slots.get(id.slot as usize).is_some_and(|&(generation, _)| generation == id.generation)
            }
        }
    }

    pub(crate) fn graph_mut(&mut self) -> &mut GraphBuilder {
        &mut self.build.get_mut().graph
    }

    pub(crate) fn finish(self) -> Built<'run> {
        let build = self.build.into_inner();
        let mut external_objects = vec![ObjectId(0); build.externals.len()];
        let mut graph_hosts = Vec::new();
        for (object, kind) in build.objects.iter().enumerate() {
            match *kind {
                Object::External(external) => external_objects[external as usize] = ObjectId(object as u32),
                Object::Graph { host } if host != NO_HOST => graph_hosts.push((ObjectId(object as u32), host as usize)),
                Object::Graph { .. } => {}
            }
        }
        Built {
            graph: build.graph,
            externals: build.externals,
            external_objects,
            arena: build.arena,
            hosts: self.hosts.into_vec().into_iter().map(|host| *host).collect(),
            graph_hosts,
            latched: self.latched.into_inner(),
        }
    }

    // ---- where a tensor's bytes are ----

    /// The object that a tensor lies in, known or captured now.
    #[inline]
    pub(crate) fn object_of(&self, tensor: &Tensor) -> Result<u32, Error> {
        match tensor.home {
            Home::Build { build, object } if build == self.number => Ok(object),
            Home::Build { .. } => Err(self.fail(ErrorKind::OtherBuild.into())),
            Home::Allocation(id) => {
                if id.device == self.memory.number()
                    && let Some(&(generation, object)) = self.build.borrow().slots.get(id.slot as usize)
                    && generation == id.generation
                {
                    return Ok(object);
                }
                self.capture(id)
            }
        }
    }

    /// A resident tensor that is no argument: counts as INOUT.
    #[cold]
    fn capture(&self, id: AllocationId) -> Result<u32, Error> {
        let name = format!("captured {id}");
        let allocation =
            self.memory.resolve(id).map_err(|error| self.fail(Error::memory(error, &name, || Place::Whole(vec![]))))?;
        Ok(self.add_resident(&name, allocation, EntryWrites::Allowed).0)
    }

    /// The position of the object's host side, established now if this is its first touch and the bytes to be `read` have
    /// values.
    fn host_of(&self, object: u32, read: impl FnOnce() -> (Footprint, u64)) -> Result<usize, MemoryError> {
        let (allocation, name) = {
            let build = self.build.borrow();
            match build.objects[object as usize] {
                Object::External(external) => {
                    let external = &build.externals[external as usize];
                    match &external.kind {
                        _ if external.host != NO_HOST => return Ok(external.host as usize),
                        ExternalKind::Resident(allocation) => {
                            (Some(Arc::clone(allocation)), Arc::clone(&external.name))
                        }
                        ExternalKind::Staged(_) => unreachable!("staged tensors have a host side from the start"),
                    }
                }
                Object::Graph { host } if host != NO_HOST => return Ok(host as usize),
                Object::Graph { .. } => (None, "".into()),
            }
        };
        let host = match allocation {
            Some(allocation) => {
                let (bytes, at) = read();
                allocation.check_values(&bytes, at)?;
                Host::Resident(Hold::new(allocation, self.turn, &name, self.record_writes)?)
            }
            None => Host::Graph { overlay: Overlay::new(self.build.borrow().graph.object_len_bytes(ObjectId(object))) },
        };
        let position = self.hosts.len();
        self.hosts.push(Box::new(host));
        let mut build = self.build.borrow_mut();
        match build.objects[object as usize] {
            Object::External(external) => build.externals[external as usize].host = position as u32,
            Object::Graph { .. } => build.objects[object as usize] = Object::Graph { host: position as u32 },
        }
        Ok(position)
    }

    // ---- the checks of the access contract ----

    pub(crate) fn check_dtype<T: Element>(&self, object: u32, region: &Region) -> Result<(), Error> {
        if region.dtype == T::DTYPE {
            return Ok(());
        }
        let tensor = self.build.borrow().name_of(object);
        Err(self.fail(ErrorKind::DType { tensor, expected: region.dtype, got: T::DTYPE }.into()))
    }

    /// Refuses bytes that a task of this graph writes.
    #[inline]
    fn check_read(
        &self,
        object: u32,
        bytes: impl FnOnce() -> (Footprint, u64),
        place: impl Fn() -> Place,
    ) -> Result<(), Error> {
        let build = self.build.borrow();
        if build.graph.has_writer(ObjectId(object)) || !build.graph.object_open(ObjectId(object)) {
            let (footprint, at) = bytes();
            return self.check_slow(&build, object, &footprint, at, "read", place);
        }
        Ok(())
    }

    /// Refuses bytes that a task of this graph reads or writes.
    fn check_write(
        &self,
        object: u32,
        bytes: impl FnOnce() -> (Footprint, u64),
        place: impl Fn() -> Place,
    ) -> Result<(), Error> {
        let build = self.build.borrow();
        if !build.graph.is_untouched(ObjectId(object)) || !build.graph.object_open(ObjectId(object)) {
            let (footprint, at) = bytes();
            return self.check_slow(&build, object, &footprint, at, "write", place);
        }
        Ok(())
    }

    #[cold]
    fn check_slow(
        &self,
        build: &Build,
        object: u32,
        footprint: &Footprint,
        at: u64,
        access: &'static str,
        place: impl Fn() -> Place,
    ) -> Result<(), Error> {
        let id = ObjectId(object);
        if !build.graph.object_open(id) {
            return Err(self.fail(ErrorKind::ScopeEnded { tensor: build.name_of(object) }.into()));
        }
        if let Some(task) = build.graph.writer_of(id, footprint, at) {
            let (tensor, task) = (build.name_of(object), build.graph.describe(task));
            return Err(self.fail(ErrorKind::HasWriter { access, tensor, place: place(), task }.into()));
        }
        if access == "write"
            && let Some((task, _)) = build.graph.user_of(id, footprint, at)
        {
            let (tensor, task) = (build.name_of(object), build.graph.describe(task));
            return Err(self.fail(ErrorKind::HasReader { tensor, place: place(), task }.into()));
        }
        Ok(())
    }

    #[cold]
    fn memory_error(&self, error: MemoryError, object: u32, place: Place) -> Error {
        let name = self.build.borrow().name_of(object);
        self.fail(Error::memory(error, &name, || place))
    }

    #[cold]
    fn index_error(&self, source: periscope_core::LayoutError, object: u32) -> Error {
        let tensor = self.build.borrow().name_of(object);
        self.fail(ErrorKind::Index { tensor, source }.into())
    }

    /// Remembers the first refusal, for a latching orchestration.
    #[cold]
    pub(crate) fn fail(&self, error: Error) -> Error {
        latch(self.latching, &self.latched, error)
    }

    #[inline]
    pub(crate) fn check_latch(&self) -> Result<(), Error> {
        if self.latching
            && let Some(error) = &*self.latched.borrow()
        {
            return Err(error.clone());
        }
        Ok(())
    }

    /// From now on the first refused call makes all later ones fail with the same error at once, and the run fails with
    /// it even if the orchestration ignores it. For callers that check once, at the end.
    pub fn latch_errors(&mut self) {
        self.latching = true;
    }

    // ---- reading ----

    /// The element at `index`.
    ///
    /// # Errors
    /// See the access contract: no such index, another element type, a writer submitted in this graph, no value,
    /// poisoned, freed, another device's.
    #[inline]
    pub fn read<T: Element>(&self, tensor: impl AsRef<Tensor>, index: impl AsRef<[u64]>) -> Result<T, Error> {
        let (tensor, index) = (tensor.as_ref(), index.as_ref());
        self.check_latch()?;
        let object = self.object_of(tensor)?;
        self.check_dtype::<T>(object, &tensor.region)?;
        self.read_at(tensor, object, index)
    }

    #[inline]
    fn read_at<T: Element>(&self, tensor: &Tensor, object: u32, index: &[u64]) -> Result<T, Error> {
        let at = tensor.region.byte_of(index).map_err(|error| self.index_error(error, object))?;
        let place = || Place::Index(index.to_vec());
        let bytes = || (Footprint::interval(tensor.region.dtype.size_bytes()), at);
        self.check_read(object, bytes, place)?;
        let result = self.host_of(object, bytes).and_then(|host| match &self.hosts[host] {
            Host::Resident(hold) => hold.load::<T>(at),
            Host::Staged { base, overlay } => overlay.load::<T>(Some(base.as_slice()), at),
            Host::Graph { overlay } => overlay.load::<T>(None, at),
        });
        result.map_err(|error| self.memory_error(error, object, place()))
    }

    /// The bits of the element at `index`, in the low end of the result, whatever its type.
    ///
    /// # Errors
    /// As [`Context::read`].
    pub fn read_bits(&self, tensor: impl AsRef<Tensor>, index: impl AsRef<[u64]>) -> Result<u64, Error> {
        let (tensor, index) = (tensor.as_ref(), index.as_ref());
        self.check_latch()?;
        let object = self.object_of(tensor)?;
        match tensor.region.dtype.size_bytes() {
            1 => self.read_at::<u8>(tensor, object, index).map(u64::from),
            2 => self.read_at::<u16>(tensor, object, index).map(u64::from),
            4 => self.read_at::<u32>(tensor, object, index).map(u64::from),
            _ => self.read_at::<u64>(tensor, object, index),
        }
    }

    /// Copies all elements, in row-major order, to `to`, which has as many. Strides are followed.
    ///
    /// # Errors
    /// As [`Context::read`]; another number of elements. `to` is untouched then.
    pub fn read_into<T: PodElement>(&self, tensor: impl AsRef<Tensor>, to: &mut [T]) -> Result<(), Error> {
        let tensor = tensor.as_ref();
        self.check_latch()?;
        let object = self.object_of(tensor)?;
        self.check_dtype::<T>(object, &tensor.region)?;
        if to.len() as u64 != tensor.num_elems() {
            return Err(self.fail(Error::element_count(tensor.shape(), to.len() as u64)));
        }
        if to.is_empty() {
            return Ok(());
        }
        let place = || Place::Whole(tensor.shape().to_vec());
        let bytes = || Footprint::of_region(&tensor.region);
        self.check_read(object, bytes, place)?;
        let to = bytemuck::cast_slice_mut(to);
        let result = self.host_of(object, bytes).and_then(|host| match &self.hosts[host] {
            Host::Resident(hold) => hold.read_region(&tensor.region, to),
            Host::Staged { base, overlay } => overlay.read_region(Some(base.as_slice()), &tensor.region, to),
            Host::Graph { overlay } => overlay.read_region(None, &tensor.region, to),
        });
        result.map_err(|error| self.memory_error(error, object, place()))
    }

    /// All elements, without a copy, for as long as the context is not changed.
    ///
    /// # Errors
    /// As [`Context::read`].
    pub fn view<T: Element>(&self, tensor: impl AsRef<Tensor>) -> Result<Strided<'_, T>, Error> {
        let tensor = tensor.as_ref();
        self.check_latch()?;
        let object = self.object_of(tensor)?;
        self.check_dtype::<T>(object, &tensor.region)?;
        let place = || Place::Whole(tensor.shape().to_vec());
        let bytes = || Footprint::of_region(&tensor.region);
        self.check_read(object, bytes, place)?;
        if tensor.region.layout.is_empty() {
            return Ok(empty_view(&tensor.region));
        }
        let result = self.host_of(object, bytes).and_then(|host| match &self.hosts[host] {
            Host::Resident(hold) => hold.view::<T>(&tensor.region),
            Host::Staged { base, overlay } => overlay.view::<T>(Some(base.as_slice()), &tensor.region),
            Host::Graph { overlay } => overlay.view::<T>(None, &tensor.region),
        });
        result.map_err(|error| self.memory_error(error, object, place()))
    }

    // ---- writing ----

    /// Sets the element at `index`. Every task of this run sees it; a resident tensor keeps it.
    ///
    /// # Errors
    /// See the access contract: no such index, another element type, a task of this graph that reads or writes the bytes,
    /// freed, another device's.
    pub fn write<T: Element>(
        &mut self,
        tensor: impl AsRef<Tensor>,
        index: impl AsRef<[u64]>,
        value: T,
    ) -> Result<(), Error> {
        let tensor = tensor.as_ref();
        self.check_latch()?;
        let object = self.object_of(tensor)?;
        self.check_dtype::<T>(object, &tensor.region)?;
        self.write_at(tensor, object, index.as_ref(), value)
    }

    fn write_at<T: Element>(&mut self, tensor: &Tensor, object: u32, index: &[u64], value: T) -> Result<(), Error> {
        let at = tensor.region.byte_of(index).map_err(|error| self.index_error(error, object))?;
        let place = || Place::Index(index.to_vec());
        self.check_write(object, || (Footprint::interval(tensor.region.dtype.size_bytes()), at), place)?;
        let host = self.host_of(object, nothing);
        let result = host.and_then(|host| match &mut *self.hosts.as_mut()[host] {
            Host::Resident(hold) => hold.store(at, value),
            Host::Staged { overlay, .. } | Host::Graph { overlay } => overlay.store(at, value),
        });
        result.map_err(|error| self.memory_error(error, object, place()))
    }

    /// Sets the element at `index` from the low bits of `bits`, whatever its type.
    ///
    /// # Errors
    /// As [`Context::write`].
    pub fn write_bits(&mut self, tensor: impl AsRef<Tensor>, index: impl AsRef<[u64]>, bits: u64) -> Result<(), Error> {
        let (tensor, index) = (tensor.as_ref(), index.as_ref());
        self.check_latch()?;
        let object = self.object_of(tensor)?;
        match tensor.region.dtype.size_bytes() {
            1 => self.write_at(tensor, object, index, bits as u8),
            2 => self.write_at(tensor, object, index, bits as u16),
            4 => self.write_at(tensor, object, index, bits as u32),
            _ => self.write_at(tensor, object, index, bits),
        }
    }

    /// Sets all elements, in row-major order, from `from`, which has as many. Strides are followed.
    ///
    /// # Errors
    /// As [`Context::write`]; another number of elements; a view whose positions repeat elements.
    pub fn write_from<T: PodElement>(&mut self, tensor: impl AsRef<Tensor>, from: &[T]) -> Result<(), Error> {
        let tensor = tensor.as_ref();
        self.check_latch()?;
        let object = self.object_of(tensor)?;
        self.check_dtype::<T>(object, &tensor.region)?;
        self.check_distinct(object, tensor)?;
        if from.len() as u64 != tensor.num_elems() {
            return Err(self.fail(Error::element_count(tensor.shape(), from.len() as u64)));
        }
        if from.is_empty() {
            return Ok(());
        }
        let place = || Place::Whole(tensor.shape().to_vec());
        self.check_write(object, || Footprint::of_region(&tensor.region), place)?;
        let from = bytemuck::cast_slice(from);
        let host = self.host_of(object, nothing);
        let result = host.and_then(|host| match &mut *self.hosts.as_mut()[host] {
            Host::Resident(hold) => hold.write_region(&tensor.region, from),
            Host::Staged { overlay, .. } | Host::Graph { overlay } => overlay.write_region(&tensor.region, from),
        });
        result.map_err(|error| self.memory_error(error, object, place()))
    }

    /// All elements, for reading and writing, for as long as the context is not used otherwise. Fetches them first, and
    /// counts as writing all of them.
    ///
    /// # Errors
    /// As [`Context::write`]; a view whose positions repeat elements.
    pub fn view_mut<T: Element>(&mut self, tensor: impl AsRef<Tensor>) -> Result<StridedMut<'_, T>, Error> {
        let tensor = tensor.as_ref();
        self.check_latch()?;
        let object = self.object_of(tensor)?;
        self.check_dtype::<T>(object, &tensor.region)?;
        self.check_distinct(object, tensor)?;
        let place = || Place::Whole(tensor.shape().to_vec());
        self.check_write(object, || Footprint::of_region(&tensor.region), place)?;
        if tensor.region.layout.is_empty() {
            return Ok(empty_view_mut(&tensor.region));
        }
        let host = self.host_of(object, nothing).map_err(|error| self.memory_error(error, object, place()))?;
        let (latching, latched, build) = (self.latching, &self.latched, &self.build);
        let result = match &mut *self.hosts.as_mut()[host] {
            Host::Resident(hold) => hold.view_mut::<T>(&tensor.region),
            Host::Staged { base, overlay } => overlay.view_mut::<T>(Some(base.as_slice()), &tensor.region),
            Host::Graph { overlay } => overlay.view_mut::<T>(None, &tensor.region),
        };
        result.map_err(|error| {
            let name = build.borrow().name_of(object);
            latch(latching, latched, Error::memory(error, &name, place))
        })
    }

    fn check_distinct(&self, object: u32, tensor: &Tensor) -> Result<(), Error> {
        if tensor.region.layout.elements_are_distinct() {
            return Ok(());
        }
        let name = self.build.borrow().name_of(object);
        let layout = format!("{:?}", tensor.region.layout);
        Err(self.fail(ErrorKind::RepeatsElements { tensor: name, layout }.into()))
    }

    // ---- graph memory ----

    /// Memory of this graph, until the current scope ends. It has no value at first.
    ///
    /// # Errors
    /// Too many dimensions, too large, or the device has not enough memory.
    pub fn alloc<T: Element>(&mut self, shape: impl AsRef<[u64]>) -> Result<Tensor, Error> {
        self.alloc_dtype(T::DTYPE, shape)
    }

    /// As [`Context::alloc`], with the element type as data.
    ///
    /// # Errors
    /// As [`Context::alloc`].
    pub fn alloc_dtype(&mut self, dtype: DType, shape: impl AsRef<[u64]>) -> Result<Tensor, Error> {
        self.check_latch()?;
        let layout = Layout::contiguous(shape.as_ref()).map_err(|error| self.fail(Error::layout(error)))?;
        let region = Region { dtype, layout, offset_elems: 0 };
        let build = self.build.get_mut();
        let len_bytes = region.packed_bytes();
        let placed = build.arena.place(self.memory, &mut build.graph, len_bytes);
        let (segment, offset_bytes) = match placed {
            Ok(placed) => placed,
            Err(error) => return Err(self.fail(ErrorKind::from(error).into())),
        };
        let object = build.graph.add_graph_object(segment, offset_bytes, len_bytes);
        build.objects.push(Object::Graph { host: NO_HOST });
        Ok(Tensor { home: Home::Build { build: self.number, object: object.0 }, region })
    }

    /// The device address of a tensor's first element: stable from its allocation on. `None` for a staged tensor, which
    /// gets its place on the device at launch.
    ///
    /// # Errors
    /// Freed, another device's, another run's.
    pub fn device_address(&self, tensor: impl AsRef<Tensor>) -> Result<Option<u64>, Error> {
        let tensor = tensor.as_ref();
        let object = self.object_of(tensor)?;
        let build = self.build.borrow();
        Ok(match build.objects[object as usize] {
            Object::External(external) => match &build.externals[external as usize].kind {
                ExternalKind::Resident(allocation) => {
                    Some(allocation.device_memory().address + tensor.region.offset_bytes())
                }
                ExternalKind::Staged(_) => None,
            },
            Object::Graph { .. } => {
                let (memory, base) = build.graph.memory_of(ObjectId(object));
                let segment = build.arena.segment_of(memory);
                segment.map(|segment| segment.device_memory().address + base + tensor.region.offset_bytes())
            }
        })
    }

    // ---- tasks ----

    /// Starts a task that runs `kernel`.
    pub fn task(&mut self, kernel: KernelId) -> TaskBuilder<'_, 'run> {
        TaskBuilder::new(self, &[kernel])
    }

    /// Starts a task of up to three lanes: kernels for paired core kinds, with the same arguments and one completion.
    pub fn lanes(&mut self, kernels: &[KernelId]) -> TaskBuilder<'_, 'run> {
        TaskBuilder::new(self, kernels)
    }

    /// Starts a join: a task without kernel, which only orders.
    pub fn join(&mut self) -> TaskBuilder<'_, 'run> {
        TaskBuilder::new(self, &[])
    }

    /// Submits a task described as plain data.
    ///
    /// # Errors
    /// [`ErrorKind::Submit`] with the cause; nothing has changed then.
    pub fn submit(&mut self, task: &TaskDesc<'_, Tensor>) -> Result<TaskId, Error> {
        if task.blocks_disjoint_by_promise {
            return Err(self.fail(Error::orchestration(
                "`blocks_disjoint_by_promise` is set: submit the task with the unsafe `submit_promised`",
            )));
        }
        self.submit_any(task)
    }

    /// Submits a task whose blocks are each handed whole arguments.
    ///
    /// # Errors
    /// As [`Context::submit`].
    ///
    /// # Safety
    /// No two blocks of the task touch a common byte while one of them writes, not even by making a slice that spans it.
    #[expect(unsafe_code, reason = "the promise that blocks stay apart is the caller's")]
    pub unsafe fn submit_promised(&mut self, task: &TaskDesc<'_, Tensor>) -> Result<TaskId, Error> {
        self.submit_any(&TaskDesc { blocks_disjoint_by_promise: true, ..*task })
    }

    fn submit_any(&mut self, task: &TaskDesc<'_, Tensor>) -> Result<TaskId, Error> {
        self.check_latch()?;
        self.draft.restart(task.kernels);
        for access in task.accesses {
            let tensor = self.locate(&access.tensor)?;
            self.draft.accesses.push(Access { tensor, direction: access.direction, split_dim: access.split_dim });
        }
        if let Some(Predicate { tensor, comparison, constant_bits }) = task.predicate {
            self.draft.predicate = Some(Predicate { tensor: self.locate(&tensor)?, comparison, constant_bits });
        }
        let draft = std::mem::take(&mut self.draft);
        let result = self.submit_located(&TaskDesc {
            kernels: task.kernels,
            accesses: &draft.accesses,
            scalars: task.scalars,
            after: task.after,
            blocks: task.blocks,
            start_together: task.start_together,
            blocks_disjoint_by_promise: task.blocks_disjoint_by_promise,
            predicate: draft.predicate,
            tag: task.tag,
        });
        self.draft = draft;
        result
    }

    /// Submits what the task builder has put together.
    #[inline]
    pub(crate) fn submit_draft(&mut self, blocks: u32, start_together: bool, tag: u32) -> Result<TaskId, Error> {
        if let Some(error) = self.draft.error.take() {
            return Err(self.fail(error));
        }
        self.check_latch()?;
        let Draft { kernels, accesses, scalars, after, predicate, .. } = &self.draft;
        let task = TaskDesc {
            kernels,
            accesses,
            scalars,
            after,
            blocks,
            start_together,
            blocks_disjoint_by_promise: false,
            predicate: *predicate,
            tag,
        };
        match self.build.get_mut().graph.submit(&task) {
            Ok(task) => Ok(task),
            Err(source) => Err(self.submit_error(&task, source)),
        }
    }

    fn submit_located(&mut self, task: &TaskDesc<'_, ObjectRegion>) -> Result<TaskId, Error> {
        let submitted = self.build.get_mut().graph.submit(task);
        submitted.map_err(|source| self.submit_error(task, source))
    }

    #[cold]
    fn submit_error(&self, task: &TaskDesc<'_, ObjectRegion>, source: SubmitError) -> Error {
        let build = self.build.borrow();
        let object = match source.argument() {
            Some(Argument::Tensor(position)) => task.accesses.get(position).map(|access| access.tensor.object),
            Some(Argument::Predicate) => task.predicate.map(|predicate| predicate.tensor.object),
            None => None,
        };
        let tensor = object.map(|object| build.name_of(object.0));
        let task = build.graph.total_task_count() as u64;
        self.fail(ErrorKind::Submit { task, tensor, source }.into())
    }

    #[inline]
    pub(crate) fn locate(&self, tensor: &Tensor) -> Result<ObjectRegion, Error> {
        Ok(ObjectRegion { object: ObjectId(self.object_of(tensor)?), region: tensor.region })
    }

    // ---- scopes ----

    /// Runs `body` in a scope: graph memory allocated in it ends with it.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn scope<R>(&mut self, body: impl FnOnce(&mut Self) -> Result<R, Error>) -> Result<R, Error> {
        self.scope_begin()?;
        self.end_scope_after(body)
    }

    /// Runs `body` in a scope without inferred edges between its tasks: their explicit edges must cover all hazards,
    /// which is checked at each submit.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn manual_scope<R>(&mut self, body: impl FnOnce(&mut Self) -> Result<R, Error>) -> Result<R, Error> {
        self.manual_scope_begin()?;
        self.end_scope_after(body)
    }

    fn end_scope_after<R>(&mut self, body: impl FnOnce(&mut Self) -> Result<R, Error>) -> Result<R, Error> {
        let expected = self.graph_mut().depth();
        let result = body(self);
        let found = self.graph_mut().depth();
        // Scopes that the body left open end here; scopes outside that it ended cannot be opened again.
        for _ in expected..found {
            self.graph_mut().scope_end().map_err(ErrorKind::Scope)?;
        }
        let ended = if found < expected { Ok(()) } else { self.graph_mut().scope_end() };
        // What went wrong in the body came first.
        let result = result?;
        if found != expected {
            return Err(self.fail(ErrorKind::Scope(ScopeError::Unbalanced { expected, found }).into()));
        }
        ended.map_err(|error| self.fail(ErrorKind::Scope(error).into()))?;
        Ok(result)
    }

    /// Begins a scope, for callers that cannot pass a closure.
    ///
    /// # Errors
    /// A latched error.
    pub fn scope_begin(&mut self) -> Result<(), Error> {
        self.check_latch()?;
        self.graph_mut().scope_begin(ScopeKind::Auto);
        Ok(())
    }

    /// Begins a manual scope, for callers that cannot pass a closure.
    ///
    /// # Errors
    /// A latched error.
    pub fn manual_scope_begin(&mut self) -> Result<(), Error> {
        self.check_latch()?;
        self.graph_mut().scope_begin(ScopeKind::Manual { check: true });
        Ok(())
    }

    /// Begins a manual scope whose explicit edges are not checked.
    ///
    /// # Errors
    /// A latched error.
    ///
    /// # Safety
    /// The explicit edges order every two tasks of the scope that touch common bytes with one of them writing.
    #[expect(unsafe_code, reason = "without the check, the caller promises that no two tasks race")]
    pub unsafe fn manual_scope_begin_unchecked(&mut self) -> Result<(), Error> {
        self.check_latch()?;
        self.graph_mut().scope_begin(ScopeKind::Manual { check: false });
        Ok(())
    }

    /// Ends the innermost scope: its graph memory can no longer be used.
    ///
    /// # Errors
    /// No scope is open.
    pub fn scope_end(&mut self) -> Result<(), Error> {
        let result = self.graph_mut().scope_end();
        result.map(|_| ()).map_err(|error| self.fail(ErrorKind::Scope(error).into()))
    }

    // ---- what else an orchestration may want to know ----

    /// The numbers that the run was given beside its tensors.
    #[must_use]
    pub fn scalars(&self) -> &'run [u64] {
        self.scalars
    }

    /// The device's cores.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.memory.device().info().geometry
    }

    /// How many cores of a kind the device has.
    #[must_use]
    pub fn cores(&self, kind: CoreKind) -> u32 {
        match kind {
            CoreKind::Cube => self.geometry().clusters,
            CoreKind::Vector => self.geometry().vector_cores,
        }
    }

    /// How many tasks have been submitted.
    #[must_use]
    pub fn task_count(&self) -> u64 {
        self.build.borrow().graph.task_count() as u64
    }
}

/// The bytes that a write needs a value of.
fn nothing() -> (Footprint, u64) {
    (Footprint::interval(0), 0)
}

/// Remembers the first refusal if `latching`, and returns what the caller is to see.
#[cold]
fn latch(latching: bool, latched: &RefCell<Option<Error>>, error: Error) -> Error {
    if latching { latched.borrow_mut().get_or_insert(error).clone() } else { error }
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("tasks", &self.task_count()).finish_non_exhaustive()
    }
}
