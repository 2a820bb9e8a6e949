//! The runtime that builds the whole graph on the host, then launches it.
//!
//! A run goes through the phases of its [`Report`]: **bind** notes the arguments, **orchestrate** builds the graph,
//! **launch** freezes it, stages arguments and hands all to the device, **execute** waits, **collect** copies written ranges
//! back and settles what is known of resident bytes. The device's turn is held from bind to collect.
//!
//! What holds on every way out: host writes that were handed to a launch are dirty again if it did not take them; a
//! resident tensor that a failed launch may have written is poisoned; a staged argument changes only if all tasks
//! succeeded (if copying it back then fails, it holds any mixture). What is kept for the next run (the [`Workshop`]) may be lost on a failure: the next run makes it anew.
#![expect(unsafe_code, reason = "a launch rests on what a run knows of its image and its memory")]

use std::sync::Arc;
use std::time::Instant;

use periscope_core::graph::{EntryWrites, GraphBuilder, GraphLimits};
use periscope_core::image::{
    EntryRecord, Image, KernelRecord, MemoryKind, NO_KERNEL, TASK_START_TOGETHER, core_kind_from_code, signature_hash,
};
use periscope_core::touched::Written;
use periscope_core::{CoreKind, Direction, Footprint, ObjectId, ObjectRegion};
use periscope_hal::{Binding, Completion, Launch, LaunchError, ModuleId, Push};
use periscope_memory::{Allocation, Memory, MemoryCounts, MemoryError, Overlay, Turn};
use rangemap::RangeSet;

use crate::arena::GraphArena;
use crate::arg::{Arg, ArgKind, StagedBytes};
use crate::build::{Built, ExternalKind, Host};
use crate::callable::Callable;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Place};
use crate::report::{Phases, Report, TensorView};
use crate::staging::Staging;
use crate::tensor::Tensor;

/// What is kept from run to run, so that a warm run allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Workshop {
    graph: Option<GraphBuilder>,
    arena: GraphArena,
    staging: Staging,
    spare_image: Option<Image>,
}

/// A run about to happen.
pub(crate) struct Run<'r> {
    pub(crate) memory: &'r Memory,
    pub(crate) turn: &'r Turn,
    pub(crate) workshop: &'r mut Workshop,
    pub(crate) number: u64,
    pub(crate) callable: &'r Callable,
    pub(crate) module: ModuleId,
}

/// An external memory of an image at launch.
struct Bound<'a> {
    name: Arc<str>,
    /// Position in the image.
    memory: usize,
    allocation: Arc<Allocation>,
    /// Where the image's memory starts in the allocation.
    offset_bytes: u64,
    /// The host side, of a staged argument.
    staged: Option<StagedSide<'a>>,
}

impl Bound<'_> {
    /// Bytes of the image's memory as bytes of the allocation.
    fn shifted(&self, bytes: &RangeSet<u64>) -> RangeSet<u64> {
        bytes.iter().map(|range| range.start + self.offset_bytes..range.end + self.offset_bytes).collect()
    }
}

struct StagedSide<'a> {
    bytes: StagedBytes<'a>,
    direction: Direction,
    /// What the orchestrator wrote.
    overlay: Overlay,
}

/// Times and counts of a run, from its start.
struct Account {
    report: Report,
    start: Instant,
    /// When the orchestration had returned.
    launching: Instant,
    before: MemoryCounts,
}

impl<'r> Run<'r> {
    /// Builds the graph and executes it.
    pub(crate) fn execute(mut self, args: &mut [Arg<'_>], scalars: &[u64]) -> Result<Report, Error> {
        let mut account = self.open_account();
        let mut built = self.build(args, scalars, false, &mut account.report.phases_us)?;
        account.launching = Instant::now();
        let image = built.graph.freeze(self.workshop.spare_image.take());
        account.report.tasks = built.graph.task_count() as u64;
        account.report.inferred_joins = (built.graph.total_task_count() - built.graph.task_count()) as u64;
        account.report.graph_memory_bytes = built.arena.used_bytes();

        let mut hosts: Vec<Option<Host<'_>>> = built.hosts.drain(..).map(Some).collect();
        let mut pushes = Vec::new();
        for &(object, host) in &built.graph_hosts {
            if let Some(Host::Graph { overlay }) = &hosts[host] {
                let (memory, base) = built.graph.memory_of(object);
                let segment = built.arena.segment_of(memory).expect("graph memory lies in a segment of this build");
                let push = overlay.push(segment.device_memory().id, base);
                account.report.bytes.h2d += push.as_ref().map_or(0, |push| push.bytes.len() as u64);
                pushes.extend(push);
            }
        }
        self.workshop.staging.reset(self.number);
        let mut bound = Vec::with_capacity(built.externals.len());
        for (external, object) in built.externals.drain(..).zip(&built.external_objects) {
            let memory = built.graph.memory_of(*object).0 as usize;
            let host = external.host().and_then(|host| hosts[host].take());
            let (allocation, staged) = match (external.kind, host) {
                // The hold ends here: no guard into a host view exists from now on.
                (ExternalKind::Resident(allocation), _) => (allocation, None),
                (ExternalKind::Staged(position), Some(Host::Staged { base: bytes, overlay })) => {
                    let len_bytes = image.memories()[memory].len_bytes;
                    let direction = self.callable.params()[position].direction;
                    (self.stage(&external.name, len_bytes)?, Some(StagedSide { bytes, direction, overlay }))
                }
                (ExternalKind::Staged(_), _) => unreachable!("a staged tensor has its host side from the start"),
            };
            bound.push(Bound { name: external.name, memory, allocation, offset_bytes: 0, staged });
        }
        drop(hosts);
        let kernels = (0..self.callable.inner.kernels.len() as u16).collect();
        let result = self.launch(image, kernels, &mut bound, &built.arena, pushes, &mut account);
        self.workshop.graph = Some(built.graph);
        self.workshop.arena = built.arena;
        result?;
        Ok(self.close_account(account, &bound))
    }

    /// Builds the graph and freezes it, with the orchestrator's writes in it, without executing anything.
    pub(crate) fn freeze(mut self, args: &mut [Arg<'_>], scalars: &[u64]) -> Result<Image, Error> {
        let mut built = self.build(args, scalars, true, &mut Phases::default())?;
        let image = built.graph.freeze(None);
        let mut writes = Vec::new();
        for (external, &object) in built.externals.iter().zip(&built.external_objects) {
            let memory = built.graph.memory_of(object).0;
            match external.host().map(|host| &built.hosts[host]) {
                Some(Host::Resident(hold)) => {
                    let written =
                        hold.written().map_err(|error| Error::memory(error, &external.name, || Place::Memory))?;
                    writes.extend(written.into_iter().map(|(at, bytes)| (memory, at, bytes)));
                }
                Some(Host::Staged { overlay, .. }) => collect_writes(&mut writes, overlay, memory, 0),
                _ => {}
            }
        }
        for &(object, host) in &built.graph_hosts {
            if let Host::Graph { overlay } = &built.hosts[host] {
                let (memory, base) = built.graph.memory_of(object);
                collect_writes(&mut writes, overlay, memory, base);
            }
        }
        let image = image.with_writes(&writes);
        self.workshop.graph = Some(built.graph);
        self.workshop.arena = built.arena;
        Ok(image)
    }

    /// Executes an image that was built elsewhere.
    pub(crate) fn execute_image(mut self, mut image: Image, args: &mut [Arg<'_>]) -> Result<Report, Error> {
        let mut account = self.open_account();
        image.prove()?;
        self.check_cores(&image)?;
        let kernels = match_kernels(&image, self.callable)?;
        account.report.inferred_joins = image.inferred_join_count() as u64;
        account.report.tasks = image.task_count() as u64 - account.report.inferred_joins;
        account.report.phases_us.bind = account.start.elapsed();
        account.launching = Instant::now();
        let mut arena = std::mem::take(&mut self.workshop.arena);
        arena.reset();
        self.workshop.staging.reset(self.number);
        let mut bound = self.bind_image(&image, args)?;
        for (memory, record) in image.memories().iter().enumerate() {
            if record.kind == MemoryKind::Graph as u32 {
                arena.adopt(self.memory, memory as u32, record.len_bytes).map_err(ErrorKind::from)?;
            }
        }
        account.report.graph_memory_bytes = arena.used_bytes();
        // What the orchestrator wrote is in the image, which the device puts in place itself.
        let result = self.launch(image, kernels, &mut bound, &arena, Vec::new(), &mut account);
        self.workshop.arena = arena;
        result?;
        Ok(self.close_account(account, &bound))
    }

    fn open_account(&self) -> Account {
        let report = Report {
            run: self.number,
            callable: self.callable.name().to_owned(),
            platform: self.memory.device().info().uri.to_string(),
            ..Report::default()
        };
        let start = Instant::now();
        Account { report, start, launching: start, before: self.memory.counts() }
    }

    fn close_account(&self, account: Account, bound: &[Bound<'_>]) -> Report {
        let Account { mut report, start, before, .. } = account;
        let during = self.memory.counts() - before;
        report.bytes.h2d += during.pushed_bytes;
        report.bytes.d2h += during.filled_bytes;
        report.views = during.into();
        report.tensor_views = bound
            .iter()
            .filter(|bound| bound.staged.is_none())
            .filter_map(|bound| bound.allocation.view_report().map(|view| TensorView::new(&bound.name, view)))
            .collect();
        report.phases_us.total = start.elapsed();
        report
    }

    fn stage(&mut self, name: &str, len_bytes: u64) -> Result<Arc<Allocation>, Error> {
        let buffer = self.workshop.staging.take(self.memory, len_bytes, self.number);
        buffer.map_err(|error| Error::memory(error, name, || Place::Memory))
    }

    // ---- bind and orchestrate ----

    fn build<'a>(
        &mut self,
        args: &'a mut [Arg<'_>],
        scalars: &'a [u64],
        record_writes: bool,
        phases: &mut Phases,
    ) -> Result<Built<'a>, Error>
    where
        'r: 'a,
    {
        let start = Instant::now();
        self.check_args(args)?;
        let mut graph = self.workshop.graph.take().unwrap_or_else(|| GraphBuilder::new(limits(self.memory)));
        graph.begin(Arc::clone(&self.callable.inner.signatures));
        let mut arena = std::mem::take(&mut self.workshop.arena);
        arena.reset();
        let mut context = Context::new(self.memory, self.turn, graph, arena, scalars, record_writes);
        let tensors = self.bind(&mut context, args);
        let bound = Instant::now();
        phases.bind = bound - start;
        let orchestrated = (self.callable.inner.orchestration)(&mut context, &tensors);
        let mut built = context.finish();
        phases.orchestrate = bound.elapsed();
        // The first refusal that the orchestration latched is the cause of whatever it returned.
        match built.latched.take().map_or(orchestrated, Err) {
            Ok(()) => Ok(built),
            Err(error) => {
                self.workshop.graph = Some(built.graph);
                self.workshop.arena = built.arena;
                Err(error)
            }
        }
    }

    fn check_args(&self, args: &[Arg<'_>]) -> Result<(), Error> {
        let params = self.callable.params();
        if args.len() != params.len() {
            let callable = self.callable.name().to_owned();
            return Err(ErrorKind::ArgumentCount { callable, expected: params.len(), got: args.len() }.into());
        }
        for (arg, param) in args.iter().zip(params) {
            self.check_arg(arg, &param.name, param.direction)?;
        }
        Ok(())
    }

    fn check_arg(&self, arg: &Arg<'_>, name: &str, direction: Direction) -> Result<(), Error> {
        if !arg.can_serve(direction) {
            let (callable, tensor) = (self.callable.name().to_owned(), name.to_owned());
            let problem =
                "host memory that may be written is needed: pass `Arg::write` or a `&mut HostTensor`".to_owned();
            return Err(ErrorKind::Argument { callable, tensor, direction, problem }.into());
        }
        match &arg.kind {
            ArgKind::Resident(resident) if resident.allocation.id().device != self.memory.number() => {
                Err(ErrorKind::Foreign { tensor: name.to_owned() }.into())
            }
            _ => Ok(()),
        }
    }

    /// Takes note of the arguments. Touches none: what is never used costs nothing, whatever its size.
    fn bind<'a>(&self, context: &mut Context<'a>, args: &'a mut [Arg<'_>]) -> Vec<Tensor> {
        let mut tensors = Vec::with_capacity(args.len());
        // By object: the bytes that OUT and INOUT entry tensors cover.
        let mut writes: Vec<(ObjectId, Vec<(Footprint, u64)>)> = Vec::new();
        for (position, (arg, param)) in args.iter_mut().zip(self.callable.params()).enumerate() {
            let tensor = match &mut arg.kind {
                ArgKind::Resident(resident) => {
                    if !context.knows(&resident.tensor) {
                        context.add_resident(
                            &param.name,
                            Arc::clone(&resident.allocation),
                            EntryWrites::Only(Vec::new()),
                        );
                    }
                    resident.tensor
                }
                ArgKind::Staged { region, bytes } => {
                    context.add_staged(&param.name, position, *region, bytes.reborrow(param.direction.writes()))
                }
            };
            let object = ObjectId(context.object_of(&tensor).expect("just added"));
            context.graph_mut().add_entry(&param.name, param.direction, ObjectRegion { object, region: tensor.region });
            if param.direction.writes() {
                let covered = Footprint::of_region(&tensor.region);
                match writes.iter_mut().find(|(known, _)| *known == object) {
                    Some((_, footprints)) => footprints.push(covered),
                    None => writes.push((object, vec![covered])),
                }
            }
            tensors.push(tensor);
        }
        for (object, footprints) in writes {
            context.graph_mut().set_entry_writes(object, EntryWrites::Only(footprints));
        }
        tensors
    }

    // ---- launch, execute, collect ----

    fn launch(
        &mut self,
        image: Image,
        kernels: Vec<u16>,
        bound: &mut [Bound<'_>],
        arena: &GraphArena,
        own_pushes: Vec<Push>,
        account: &mut Account,
    ) -> Result<(), Error> {
        account.report.edges = image.successors().len() as u64;
        account.report.image_bytes = image.len_bytes();
        let writes_to = image.written_memories();
        let mut pushes = Vec::new();
        let mut departure = Departure::new(self.turn, bound.len());
        for (position, external) in bound.iter().enumerate() {
            let name_errors = |error| Error::memory(error, &external.name, || Place::Memory);
            match &external.staged {
                None => {
                    self.check_poison(&image, external)?;
                    let written = writes_to[external.memory];
                    departure.taken[position] = Some(Arc::clone(&external.allocation));
                    let push = external.allocation.before_launch(self.turn, written).map_err(name_errors)?;
                    departure.pushed_bytes[position] = push.as_ref().map_or(0, |push| push.bytes.len() as u64);
                    pushes.extend(push);
                }
                Some(staged) => {
                    account.report.bytes.h2d += self.upload(&image, external, staged).map_err(name_errors)?;
                    if let Some(push) =
                        staged.overlay.push(external.allocation.device_memory().id, external.offset_bytes)
                    {
                        account.report.bytes.h2d += push.bytes.len() as u64;
                        pushes.push(push);
                    }
                }
            }
        }
        pushes.extend(own_pushes);
        if self.memory.settings().poison_uninit {
            for (_, segment) in arena.used() {
                segment.fill(self.turn, 0..segment.len_bytes(), u8::MAX).map_err(ErrorKind::from)?;
            }
        }
        // Which bytes the launch writes, exactly, where somebody needs to know: mirrors, values, copy-back.
        let mut wanted = vec![false; image.memories().len()];
        for external in bound.iter() {
            wanted[external.memory] = match &external.staged {
                None => external.allocation.tracks_writes(),
                Some(staged) => staged.direction.writes(),
            };
        }
        let written = image.written_ranges(&wanted);
        let image = Arc::new(image);
        let launch = Launch {
            bindings: bindings(&image, bound, arena),
            module: self.module,
            kernels,
            pushes,
            image: Arc::clone(&image),
        };
        // SAFETY: the image was frozen by this run's own builder (whose unchecked scopes and promised blocks are promises of
        // unsafe code), or it was proven; its kernels are the module's. Every
        // external allocation is owned by `bound`, every segment by `arena`, and both outlive the wait below, which does
        // not return before the launch has ended. Bindings do not overlap: externals are different allocations (of an image
        // built elsewhere: checked when it was bound), segments are the arena's own. The turn is held, no hold and so no
        // guard exists (`before_launch` checks), and windows were closed.
        let launched = unsafe { self.memory.device().launch(launch) };
        let execution = match launched {
            Ok(execution) => execution,
            Err(source) => return Err(ErrorKind::Run { run: self.number, source: LaunchError::Device(source) }.into()),
        };
        let in_flight = InFlight;
        let pushed_bytes = departure.arrived();
        for external in bound.iter().filter(|external| external.staged.is_none()) {
            external.allocation.launched(self.turn, &external.shifted(&written[external.memory].all));
        }
        account.report.phases_us.launch = account.launching.elapsed();
        let executing = Instant::now();
        let completion = loop {
            // Without a timeout a wait ends with the launch.
            if let Some(completion) = execution.wait(None) {
                break completion;
            }
        };
        std::mem::forget(in_flight);
        drop(execution);
        account.report.phases_us.execute = executing.elapsed();
        let collecting = Instant::now();
        let Completion { result, .. } = completion;
        let outcome = match result {
            Ok(()) => {
                for (external, pushed_bytes) in bound.iter().zip(pushed_bytes) {
                    if external.staged.is_none() {
                        let certainly = external.shifted(&written[external.memory].certainly);
                        external.allocation.retired(self.turn, pushed_bytes, &certainly);
                    }
                }
                self.copy_back(&written, bound).map(|d2h| account.report.bytes.d2h += d2h)
            }
            Err(source) => {
                let pushes_arrived = !matches!(source, LaunchError::Push { .. });
                // Now every resident tensor's writes matter, whether it tracks them or not.
                let written = image.written_ranges(&vec![true; image.memories().len()]);
                for (external, pushed_bytes) in bound.iter().zip(pushed_bytes) {
                    if external.staged.is_none() {
                        let written = external.shifted(&written[external.memory].all);
                        external.allocation.failed(self.turn, self.number, pushes_arrived, pushed_bytes, &written);
                    }
                }
                Err(ErrorKind::Run { run: self.number, source }.into())
            }
        };
        // A device may hold on to the image a little longer; then the next run makes its own.
        self.workshop.spare_image = Arc::try_unwrap(image).ok();
        account.report.phases_us.collect = collecting.elapsed();
        outcome
    }

    /// Refuses a launch whose tasks would read what a failed run may have written.
    fn check_poison(&self, image: &Image, external: &Bound<'_>) -> Result<(), Error> {
        if !external.allocation.is_poisoned() {
            return Ok(());
        }
        let read = external.shifted(&image.read_before_written(external.memory));
        match external.allocation.poisoned(&read) {
            None => Ok(()),
            Some((bytes, run)) => {
                let place = Place::Memory;
                Err(ErrorKind::Poisoned { tensor: external.name.to_string(), place, run, bytes }.into())
            }
        }
    }

    /// Puts a staged argument's bytes on the device: all of an IN or INOUT, and of an OUT what tasks read before writing it.
    fn upload(&self, image: &Image, external: &Bound<'_>, staged: &StagedSide<'_>) -> Result<u64, MemoryError> {
        let bytes = staged.bytes.as_slice();
        let needed = match staged.direction {
            Direction::In | Direction::InOut if bytes.is_empty() => RangeSet::new(),
            Direction::In | Direction::InOut => std::iter::once(0..bytes.len() as u64).collect(),
            Direction::Out => image.read_before_written(external.memory),
        };
        let mut copied = 0;
        for range in needed.iter() {
            external.allocation.upload(self.turn, range.start, &bytes[range.start as usize..range.end as usize])?;
            copied += range.end - range.start;
        }
        Ok(copied)
    }

    /// Brings what tasks and the orchestrator wrote of OUT and INOUT arguments to the caller's memory.
    fn copy_back(&self, written: &[Written], bound: &mut [Bound<'_>]) -> Result<u64, Error> {
        let mut copied = 0;
        for external in bound {
            let Some(StagedSide { bytes: StagedBytes::Exclusive(bytes), direction, overlay }) = &mut external.staged
            else {
                continue;
            };
            if !direction.writes() {
                continue;
            }
            let on_device = &written[external.memory].all;
            copied += external
                .allocation
                .download_ranges(self.turn, on_device, bytes)
                .map_err(|error| Error::memory(error, &external.name, || Place::Memory))?;
            for range in overlay.written().iter() {
                // What a task wrote afterwards is newer.
                for range in on_device.gaps(range) {
                    bytes[range.start as usize..range.end as usize].copy_from_slice(overlay.bytes(&range));
                }
            }
        }
        Ok(copied)
    }

    // ---- images built elsewhere ----

    /// Blocks that start together need a core each, on this device as on the one that the image was built for.
    fn check_cores(&self, image: &Image) -> Result<(), Error> {
        let geometry = self.memory.device().info().geometry;
        for (task, record) in image.tasks().iter().enumerate() {
            if record.flags & TASK_START_TOGETHER == 0 {
                continue;
            }
            for &kernel in record.kernels.iter().filter(|&&kernel| kernel != NO_KERNEL) {
                let kind = core_kind_from_code(image.kernels()[usize::from(kernel)].core);
                let cores = match kind {
                    Some(CoreKind::Cube) => geometry.clusters,
                    Some(CoreKind::Vector) | None => geometry.vector_cores,
                };
                if record.blocks > cores {
                    let kind = kind.map_or("", CoreKind::name);
                    let problem = format!(
                        "the {} blocks of task {task} start together, this device has {cores} {kind} cores",
                        record.blocks
                    );
                    return Err(ErrorKind::ImageMismatch { problem }.into());
                }
            }
        }
        Ok(())
    }

    fn bind_image<'a>(&mut self, image: &Image, args: &'a mut [Arg<'_>]) -> Result<Vec<Bound<'a>>, Error> {
        let entries = image.entries();
        if args.len() != entries.len() {
            let callable = self.callable.name().to_owned();
            return Err(ErrorKind::ArgumentCount { callable, expected: entries.len(), got: args.len() }.into());
        }
        let mut bound: Vec<Bound<'a>> = Vec::new();
        for (entry, arg) in entries.iter().zip(args) {
            let name = image.name(entry.name).unwrap_or("?");
            let direction = Direction::from_code(entry.direction as u8).unwrap_or(Direction::InOut);
            let mismatch =
                |problem: String| ErrorKind::ImageMismatch { problem: format!("entry tensor `{name}`: {problem}") };
            self.check_arg(arg, name, direction)?;
            check_entry(image, entry, arg).map_err(mismatch)?;
            let memory = entry.memory as usize;
            let len_bytes = image.memories()[memory].len_bytes;
            let earlier = bound.iter().find(|bound| bound.memory == memory);
            let next = match &mut arg.kind {
                ArgKind::Resident(resident) => {
                    let allocation = Arc::clone(&resident.allocation);
                    let offset_bytes = resident
                        .region()
                        .offset_bytes()
                        .checked_sub(entry.offset_bytes)
                        .filter(|offset| offset.checked_add(len_bytes).is_some_and(|end| end <= allocation.len_bytes()))
                        .ok_or_else(|| {
                            mismatch(format!("its memory needs {len_bytes} B around it, the argument has fewer"))
                        })?;
                    let widest = image.accesses().iter().filter(|access| access.memory() == memory);
                    let widest =
                        widest.map(|access| image.layouts()[access.layout as usize].dtype().size_bytes()).max();
                    if !offset_bytes.is_multiple_of(widest.unwrap_or(1)) {
                        return Err(mismatch(format!("byte {offset_bytes} does not suit the image's elements")).into());
                    }
                    if let Some(earlier) = earlier {
                        if earlier.allocation.id() == allocation.id() && earlier.offset_bytes == offset_bytes {
                            continue;
                        }
                        return Err(mismatch(
                            "it shares memory with another entry tensor, the arguments do not".into(),
                        )
                        .into());
                    }
                    if bound.iter().any(|bound| bound.allocation.id() == allocation.id()) {
                        return Err(mismatch(
                            "the argument shares its allocation with another, the entry tensors do not".into(),
                        )
                        .into());
                    }
                    Bound { name: name.into(), memory, allocation, offset_bytes, staged: None }
                }
                ArgKind::Staged { bytes, .. } => {
                    if earlier.is_some() || entry.offset_bytes != 0 || len_bytes != bytes.as_slice().len() as u64 {
                        return Err(
                            mismatch("it is part of a larger memory, so the argument must be resident".into()).into()
                        );
                    }
                    let bytes = bytes.reborrow(direction.writes());
                    let staged = Some(StagedSide { bytes, direction, overlay: Overlay::new(len_bytes) });
                    Bound {
                        name: name.into(),
                        memory,
                        allocation: self.stage(name, len_bytes)?,
                        offset_bytes: 0,
                        staged,
                    }
                }
            };
            bound.push(next);
        }
        let missing = (0..image.memories().len()).find(|&memory| {
            image.memories()[memory].kind == MemoryKind::External as u32
                && !bound.iter().any(|bound| bound.memory == memory)
        });
        match missing {
            Some(memory) => {
                let problem = format!(
                    "no entry tensor lies in memory {memory}: its orchestration captured it; pass it as an argument"
                );
                Err(ErrorKind::ImageMismatch { problem }.into())
            }
            None => Ok(bound),
        }
    }
}

/// The image's kernels are those of the callable, whatever their order: position in the callable by position in the image.
fn match_kernels(image: &Image, callable: &Callable) -> Result<Vec<u16>, Error> {
    let find = |record: &KernelRecord| {
        let name = image.name(record.name).unwrap_or("?");
        let mismatch = |problem: String| Error::from(ErrorKind::ImageMismatch { problem });
        let signatures = &callable.inner.signatures;
        let position = signatures
            .iter()
            .position(|signature| signature.name == name)
            .ok_or_else(|| mismatch(format!("kernel `{name}` is not registered with `{}`", callable.name())))?;
        if signature_hash(&signatures[position]) == record.signature {
            Ok(position as u16)
        } else {
            Err(mismatch(format!("kernel `{name}` takes other arguments than when the image was built")))
        }
    };
    image.kernels().iter().map(find).collect()
}

/// The argument has the entry tensor's element type and shape.
fn check_entry(image: &Image, entry: &EntryRecord, arg: &Arg<'_>) -> Result<(), String> {
    let record = &image.layouts()[entry.layout as usize];
    let (layout, region) = (record.layout().map_err(|error| error.to_string())?, arg.region());
    if record.dtype() != region.dtype || layout != region.layout {
        return Err(format!(
            "it is {} {layout:?} in the image, the argument is {} {:?}",
            record.dtype(),
            region.dtype,
            region.layout
        ));
    }
    Ok(())
}

/// Where each memory of the image lies.
fn bindings(image: &Image, bound: &[Bound<'_>], arena: &GraphArena) -> Vec<Binding> {
    let mut bindings: Vec<Option<Binding>> = vec![None; image.memories().len()];
    for external in bound {
        bindings[external.memory] =
            Some(Binding { memory: external.allocation.device_memory().id, offset_bytes: external.offset_bytes });
    }
    for (memory, segment) in arena.used() {
        bindings[memory as usize] = Some(Binding { memory: segment.device_memory().id, offset_bytes: 0 });
    }
    bindings.into_iter().map(|binding| binding.expect("every memory is an external's or a segment's")).collect()
}

fn collect_writes(writes: &mut Vec<(u32, u64, Vec<u8>)>, overlay: &Overlay, memory: u32, base: u64) {
    writes.extend(overlay.written().iter().map(|range| (memory, base + range.start, overlay.bytes(range).to_vec())));
}

fn limits(memory: &Memory) -> GraphLimits {
    let geometry = memory.device().info().geometry;
    GraphLimits { cube_cores: geometry.clusters, vector_cores: geometry.vector_cores, ..GraphLimits::default() }
}

/// While a launch is in flight its memory must not go away, whatever happens here: a platform that panics while it is
/// waited for leaves nothing that could be done safely.
struct InFlight;

impl Drop for InFlight {
    fn drop(&mut self) {
        log::error!("waiting for a launch panicked: it may still be running, so the process ends");
        std::process::abort();
    }
}

/// Host writes that a launch is to carry. Unless it arrives they are dirty again.
struct Departure<'r> {
    turn: &'r Turn,
    taken: Vec<Option<Arc<Allocation>>>,
    pushed_bytes: Vec<u64>,
}

impl<'r> Departure<'r> {
    fn new(turn: &'r Turn, externals: usize) -> Self {
        Departure { turn, taken: vec![None; externals], pushed_bytes: vec![0; externals] }
    }

    /// The launch has taken them: bytes by external.
    fn arrived(mut self) -> Vec<u64> {
        self.taken.clear();
        std::mem::take(&mut self.pushed_bytes)
    }
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        for allocation in self.taken.iter().flatten() {
            allocation.launch_refused(self.turn);
        }
    }
}
