//! Random programs against a model of plain arrays, executed one step after the other.
//!
//! A program allocates, drops, uploads, downloads and runs; a run stages some tensors, is given views of resident ones,
//! captures others, reads and writes elements, ranges and guards, makes graph memory, and submits tasks over views, some
//! of which fail; now and then the device refuses a launch or a push. The model knows for each element whether it has a
//! value, which bytes tasks of the graph read and write, and what the signature allows. It does its own index arithmetic
//! and shares no code with the product. Every step is checked: values, or the code of the refusal and that no counter
//! moved.
//!
//! `PERISCOPE_LONG=1` runs many more programs. A failure prints the shrunk program.

mod common;

use std::sync::{Arc, Mutex};

use common::*;
use periscope::{Arg, Context, Direction, Error, ErrorKind, LaunchError, MemorySettings, Resident, Tensor};
use periscope_hal::DeviceOp;
use proptest::prelude::*;

const SHAPES: [&[u64]; 8] = [&[1], &[12], &[3, 4], &[2, 3, 4], &[40], &[5, 8], &[64], &[2, 2, 2, 2]];

// ---- programs ----

/// Three numbers that the interpreter reduces to what is possible where they are used.
type Raw = (u8, u16, u16);
/// How to come from a whole tensor to a view.
type Chain = Vec<Raw>;

#[derive(Clone, Debug)]
enum Step {
    Alloc { shape: usize, init: u8, seed: i32 },
    Drop { which: u16 },
    Upload { which: u16, chain: Chain, seed: i32 },
    Download { which: u16, chain: Chain },
    Run { args: Vec<ArgSpec>, actions: Vec<Action>, fault: u8 },
}

#[derive(Clone, Debug)]
struct ArgSpec {
    /// Staged with this shape, or resident.
    staged: Option<usize>,
    which: u16,
    chain: Chain,
    direction: u8,
    seed: i32,
}

#[derive(Clone, Debug)]
enum Action {
    Capture { which: u16 },
    Graph { shape: usize },
    Touch { tensor: u16, chain: Chain, touch: u8, element: u16, seed: i32 },
    Task { kernel: u8, tensors: [(u16, Chain); 3], scalar: u16 },
    ScopeBegin,
    ScopeEnd,
    Fail,
}

fn chain() -> impl Strategy<Value = Chain> {
    prop_oneof![
        2 => Just(Vec::new()),
        3 => prop::collection::vec(any::<Raw>(), 1..4),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let tensors = [(any::<u16>(), chain()), (any::<u16>(), chain()), (any::<u16>(), chain())];
    prop_oneof![
        1 => any::<u16>().prop_map(|which| Action::Capture { which }),
        3 => (0..SHAPES.len()).prop_map(|shape| Action::Graph { shape }),
        10 => (any::<u16>(), chain(), 0..12u8, any::<u16>(), any::<i32>())
            .prop_map(|(tensor, chain, touch, element, seed)| Action::Touch { tensor, chain, touch, element, seed }),
        8 => (0..24u8, tensors, any::<u16>())
            .prop_map(|(kernel, tensors, scalar)| Action::Task { kernel, tensors, scalar }),
        1 => Just(Action::ScopeBegin),
        1 => Just(Action::ScopeEnd),
        1 => prop::bool::weighted(0.2).prop_map(|fail| if fail { Action::Fail } else { Action::ScopeBegin }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let arg = (prop::option::of(0..SHAPES.len()), any::<u16>(), chain(), 0..3u8, any::<i32>())
        .prop_map(|(staged, which, chain, direction, seed)| ArgSpec { staged, which, chain, direction, seed });
    prop_oneof![
        3 => (0..SHAPES.len(), 0..6u8, any::<i32>()).prop_map(|(shape, init, seed)| Step::Alloc { shape, init, seed }),
        1 => any::<u16>().prop_map(|which| Step::Drop { which }),
        2 => (any::<u16>(), chain(), any::<i32>()).prop_map(|(which, chain, seed)| Step::Upload { which, chain, seed }),
        2 => (any::<u16>(), chain()).prop_map(|(which, chain)| Step::Download { which, chain }),
        8 => (prop::collection::vec(arg, 0..4), prop::collection::vec(action(), 0..20), 0..20u8)
            .prop_map(|(args, actions, fault)| Step::Run { args, actions, fault }),
    ]
}

// ---- the model ----

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    Value(i32),
    Nothing,
    Poisoned,
}

/// From an index of a view to one of what it is a view of.
type IndexMap = Box<dyn Fn(&mut Vec<u64>)>;

/// A view, as the elements of its tensor that it shows, in row-major order.
#[derive(Clone, Debug)]
struct View {
    shape: Vec<u64>,
    elems: Vec<usize>,
    /// The same, for the product: kind, dimension, two numbers.
    steps: Vec<(u8, usize, u64, u64)>,
}

impl View {
    fn whole(shape: &[u64]) -> View {
        let elems = (0..shape.iter().product::<u64>() as usize).collect();
        View { shape: shape.to_vec(), elems, steps: Vec::new() }
    }

    fn then(mut self, chain: &Chain) -> View {
        for &(kind, a, b) in chain {
            if self.shape.is_empty() {
                break;
            }
            let dim = usize::from(kind >> 3) % self.shape.len();
            let len = self.shape[dim];
            let old = (self.shape.clone(), std::mem::take(&mut self.elems));
            let from: IndexMap = match kind % 4 {
                0 => {
                    let (a, b) = (u64::from(a) % (len + 1), u64::from(b) % (len + 1));
                    let (start, end) = (a.min(b), a.max(b));
                    self.steps.push((0, dim, start, end));
                    self.shape[dim] = end - start;
                    Box::new(move |index| index[dim] += start)
                }
                1 => {
                    let step = u64::from(a) % 3 + 1;
                    self.steps.push((1, dim, step, 0));
                    self.shape[dim] = len.div_ceil(step);
                    Box::new(move |index| index[dim] *= step)
                }
                2 if len > 0 => {
                    let at = u64::from(a) % len;
                    self.steps.push((2, dim, at, 0));
                    self.shape.remove(dim);
                    Box::new(move |index| index.insert(dim, at))
                }
                _ => {
                    let other = usize::from(a) % self.shape.len();
                    self.steps.push((3, dim, other as u64, 0));
                    self.shape.swap(dim, other);
                    Box::new(move |index| index.swap(dim, other))
                }
            };
            let mut elems = Vec::new();
            for_each_index(&self.shape, |index| {
                let mut index = index.to_vec();
                from(&mut index);
                let at = index.iter().zip(&old.0).fold(0, |at, (i, len)| at * len + i);
                elems.push(old.1[at as usize]);
            });
            self.elems = elems;
        }
        self
    }

    fn of(&self, tensor: &Tensor) -> Tensor {
        let step = |tensor: Tensor, &(kind, dim, a, b): &(u8, usize, u64, u64)| match kind {
            0 => tensor.slice(dim, a..b),
            1 => tensor.step_by(dim, a),
            2 => tensor.index(dim, a),
            _ => tensor.transpose(dim, a as usize),
        };
        self.steps.iter().try_fold(*tensor, step).unwrap()
    }

    fn of_resident(&self, tensor: &Resident) -> Resident {
        let step = |tensor: Resident, &(kind, dim, a, b): &(u8, usize, u64, u64)| match kind {
            0 => tensor.slice(dim, a..b),
            1 => tensor.step_by(dim, a),
            2 => tensor.index(dim, a),
            _ => tensor.transpose(dim, a as usize),
        };
        self.steps.iter().try_fold(tensor.clone(), step).unwrap()
    }
}

fn values(seed: i32, count: usize) -> Vec<i32> {
    (0..count as i32).map(|i| seed.wrapping_add(i.wrapping_mul(7919))).collect()
}

/// An object of a run.
#[derive(Clone, Debug)]
struct Object {
    shape: Vec<u64>,
    /// What the host sees.
    host: Vec<Known>,
    /// What the tasks so far leave.
    tasks: Vec<Known>,
    written: Vec<bool>,
    read: Vec<bool>,
    may_write: Vec<bool>,
    open: bool,
}

impl Object {
    fn new(shape: &[u64], known: Vec<Known>) -> Object {
        let len = known.len();
        Object {
            shape: shape.to_vec(),
            tasks: known.clone(),
            host: known,
            written: vec![false; len],
            read: vec![false; len],
            may_write: vec![false; len],
            open: true,
        }
    }

    /// The code with which reading or writing `elems` is refused.
    fn refusal(&self, elems: &[usize], write: bool) -> Vec<u32> {
        let any = |set: &[bool]| elems.iter().any(|&elem| set[elem]);
        if !self.open {
            return vec![305];
        }
        if any(&self.written) {
            return vec![201];
        }
        if write {
            return if any(&self.read) { vec![202] } else { vec![] };
        }
        // If both are there, either may be found first.
        let mut codes = Vec::new();
        for (code, known) in [(204, Known::Nothing), (205, Known::Poisoned)] {
            if elems.iter().any(|&elem| self.host[elem] == known) {
                codes.push(code);
            }
        }
        codes
    }

    fn set(&mut self, elem: usize, value: i32) {
        self.host[elem] = Known::Value(value);
        self.tasks[elem] = Known::Value(value);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Resident(usize),
    Staged(usize),
    Graph,
}

/// A tensor of a run: a view of an object.
#[derive(Clone, Debug)]
struct Entry {
    tensor: Tensor,
    object: usize,
    view: View,
}

/// The model of one run.
#[derive(Debug, Default)]
struct RunModel {
    objects: Vec<Object>,
    origins: Vec<Origin>,
    entries: Vec<Entry>,
    /// Graph objects of each open scope.
    scopes: Vec<Vec<usize>>,
    tasks: u64,
    a_task_fails: bool,
    poison_is_read: bool,
}

struct LiveTensor {
    resident: Resident,
    shape: Vec<u64>,
    known: Vec<Known>,
}

impl RunModel {
    fn object_of(&mut self, origin: Origin, shape: &[u64], known: &[Known]) -> usize {
        if let Some(object) = self.origins.iter().position(|&known| known == origin) {
            return object;
        }
        self.origins.push(origin);
        self.objects.push(Object::new(shape, known.to_vec()));
        self.objects.len() - 1
    }

    fn pick(&self, which: u16, chain: &Chain) -> Option<Entry> {
        let entry = self.entries.get(usize::from(which) % self.entries.len().max(1))?;
        // The chain goes on from the entry's own view.
        let inner = View::whole(&entry.view.shape).then(chain);
        let elems = inner.elems.iter().map(|&elem| entry.view.elems[elem]).collect();
        let tensor = inner.of(&entry.tensor);
        Some(Entry { tensor, object: entry.object, view: View { elems, ..inner } })
    }
}

// ---- the interpreter ----

fn touch(bench: &Bench, ctx: &mut Context<'_>, model: &mut RunModel, entry: &Entry, kind: u8, element: u16, seed: i32) {
    let kind = [
        Touch::Read,
        Touch::ReadBits,
        Touch::ReadInto,
        Touch::View,
        Touch::Write,
        Touch::WriteBits,
        Touch::WriteFrom,
        Touch::ViewMut,
        // The ways with a path of their own to the bytes.
        Touch::Read,
        Touch::Read,
        Touch::ReadBits,
        Touch::Write,
    ][usize::from(kind)];
    let elems = &entry.view.elems;
    if elems.is_empty() {
        let origin = vec![0; entry.view.shape.len()];
        assert_refused(ctx.read::<i32>(entry.tensor, &origin), 102, &[]);
        return;
    }
    let object = &mut model.objects[entry.object];
    let write = WRITES.contains(&kind);
    let before = bench.counts();
    let one = usize::from(element) % elems.len();
    let mut index = Vec::new();
    let mut position = 0;
    for_each_index(&entry.view.shape, |candidate| {
        if position == one {
            index = candidate.to_vec();
        }
        position += 1;
    });
    let single = [elems[one]];
    let touched: &[usize] = match kind {
        Touch::Read | Touch::ReadBits | Touch::Write | Touch::WriteBits => &single,
        _ => elems,
    };
    let new = values(seed, touched.len());
    let result: Result<Option<Vec<i32>>, Error> = match kind {
        Touch::Read => ctx.read::<i32>(entry.tensor, &index).map(|value| Some(vec![value])),
        Touch::ReadBits => ctx.read_bits(entry.tensor, &index).map(|bits| Some(vec![bits as u32 as i32])),
        Touch::ReadInto => {
            let mut to = vec![0x5555_5555; touched.len()];
            let result = ctx.read_into(entry.tensor, &mut to);
            assert!(
                result.is_ok() || to.iter().all(|&value| value == 0x5555_5555),
                "a refusal changed its destination"
            );
            result.map(|()| Some(to))
        }
        Touch::View => ctx.view::<i32>(entry.tensor).map(|view| Some(view.to_vec())),
        Touch::Write => ctx.write(entry.tensor, &index, new[0]).map(|()| None),
        Touch::WriteBits => ctx.write_bits(entry.tensor, &index, u64::from(new[0] as u32)).map(|()| None),
        Touch::WriteFrom => ctx.write_from(entry.tensor, &new).map(|()| None),
        Touch::ViewMut => ctx.view_mut::<i32>(entry.tensor).map(|mut view| {
            // What has a value is there before it is replaced.
            for (value, &elem) in view.as_strided().to_vec().iter().zip(elems) {
                if let Known::Value(known) = object.host[elem] {
                    assert_eq!(*value, known, "{}: a guard for writing", bench.uri);
                }
            }
            view.copy_from_slice(&new);
            None
        }),
    };
    let refusal = object.refusal(touched, write);
    match result {
        Ok(read) => {
            assert_eq!(refusal, [], "{} {kind:?}: this must be refused", bench.uri);
            if let Some(read) = read {
                let expected: Vec<Known> = touched.iter().map(|&elem| object.host[elem]).collect();
                assert_eq!(read.into_iter().map(Known::Value).collect::<Vec<_>>(), expected, "{} {kind:?}", bench.uri);
            } else {
                for (&elem, &value) in touched.iter().zip(&new) {
                    object.set(elem, value);
                }
            }
        }
        Err(error) => {
            assert!(refusal.contains(&error.code()), "{} {kind:?}: expected {refusal:?}: {error}", bench.uri);
            assert_eq!(bench.counts(), before, "{} {kind:?}: a refusal moved a counter", bench.uri);
        }
    }
}

fn task(ctx: &mut Context<'_>, model: &mut RunModel, kernel: u8, entries: &[Entry], scalar: u16) {
    let kernel = match kernel {
        0..6 => COPY,
        6..12 => ADD,
        12..17 => FILL,
        17..22 => SUM,
        22 => READ,
        _ => FAIL,
    };
    let directions: &[Direction] = match kernel {
        COPY => &[IN, OUT],
        SUM => &[IN, IN, OUT],
        READ => &[IN],
        FILL => &[OUT],
        _ => &[INOUT],
    };
    let entries = &entries[..directions.len()];
    let count = entries[0].view.elems.len();
    // The kernels want as many elements everywhere; a failing one wants one to spoil.
    if entries.iter().any(|entry| entry.view.elems.len() != count) || count == 0 {
        return;
    }
    let uses = || entries.iter().zip(directions);
    // What a task makes of bytes without a value is nobody's to say.
    let mut reads = uses().filter(|(_, direction)| direction.reads());
    if reads.any(|(entry, _)| {
        entry.view.elems.iter().any(|&elem| model.objects[entry.object].tasks[elem] == Known::Nothing)
    }) {
        return;
    }
    let mut builder = ctx.task(kernel);
    for (entry, &direction) in uses() {
        builder = match direction {
            Direction::In => builder.input(entry.tensor),
            Direction::Out => builder.output(entry.tensor),
            Direction::InOut => builder.inout(entry.tensor),
        };
    }
    if kernel == ADD || kernel == FILL {
        builder = builder.scalar(u64::from(scalar));
    }
    let result = builder.submit();
    let closed = entries.iter().any(|entry| !model.objects[entry.object].open);
    let undeclared = uses().any(|(entry, direction)| {
        direction.writes() && entry.view.elems.iter().any(|&elem| !model.objects[entry.object].may_write[elem])
    });
    let meets = |a: usize, b: usize| {
        entries[a].object == entries[b].object
            && (directions[a].writes() || directions[b].writes())
            && entries[a].view.elems.iter().any(|elem| entries[b].view.elems.contains(elem))
    };
    let overlap = (0..entries.len()).any(|a| (0..a).any(|b| meets(a, b)));
    if closed || undeclared || overlap {
        // Which of them is found first is the runtime's business.
        let code = result.as_ref().unwrap_err().code();
        assert!(closed && code == 411 || undeclared && code == 414 || overlap && code == 413, "{code}");
        return;
    }
    result.unwrap();
    model.tasks += 1;
    model.a_task_fails |= kernel == FAIL;
    let inputs: Vec<Vec<i32>> = uses()
        .filter(|(_, direction)| direction.reads())
        .map(|(entry, _)| {
            let object = &model.objects[entry.object];
            let poisoned = entry.view.elems.iter().any(|&elem| object.tasks[elem] == Known::Poisoned);
            model.poison_is_read |= poisoned;
            let value = |&elem: &usize| match object.tasks[elem] {
                Known::Value(value) => value,
                _ => 0,
            };
            entry.view.elems.iter().map(value).collect()
        })
        .collect();
    for (entry, direction) in uses() {
        let object = &mut model.objects[entry.object];
        for (position, &elem) in entry.view.elems.iter().enumerate() {
            object.read[elem] |= direction.reads();
            if direction.writes() {
                object.written[elem] = true;
                object.tasks[elem] = Known::Value(match kernel {
                    COPY => inputs[0][position],
                    SUM => inputs[0][position].wrapping_add(inputs[1][position]),
                    ADD => inputs[0][position].wrapping_add(i32::from(scalar)),
                    _ => i32::from(scalar),
                });
            }
        }
    }
}

fn orchestrate(
    bench: &Bench,
    ctx: &mut Context<'_>,
    model: &mut RunModel,
    live: &[(Tensor, Vec<u64>, Vec<Known>)],
    actions: &[Action],
) -> Result<(), Error> {
    for action in actions {
        match action {
            Action::Capture { which } => {
                if live.is_empty() {
                    continue;
                }
                let which = usize::from(*which) % live.len();
                let (tensor, shape, known) = &live[which];
                let new = !model.origins.contains(&Origin::Resident(which));
                let object = model.object_of(Origin::Resident(which), shape, known);
                // A captured tensor counts as INOUT; one that is an argument is what the signature says.
                if new {
                    model.objects[object].may_write.fill(true);
                }
                model.entries.push(Entry { tensor: *tensor, object, view: View::whole(shape) });
            }
            Action::Graph { shape } => {
                let shape = SHAPES[*shape];
                let tensor = ctx.alloc::<i32>(shape)?;
                let view = View::whole(shape);
                model.origins.push(Origin::Graph);
                model.objects.push(Object::new(shape, vec![Known::Nothing; view.elems.len()]));
                let object = model.objects.len() - 1;
                model.objects[object].may_write.fill(true);
                model.entries.push(Entry { tensor, object, view });
                if let Some(scope) = model.scopes.last_mut() {
                    scope.push(object);
                }
            }
            Action::Touch { tensor, chain, touch: kind, element, seed } => {
                if let Some(entry) = model.pick(*tensor, chain) {
                    touch(bench, ctx, model, &entry, *kind, *element, *seed);
                }
            }
            Action::Task { kernel, tensors, scalar } => {
                let entries: Option<Vec<Entry>> =
                    tensors.iter().map(|(tensor, chain)| model.pick(*tensor, chain)).collect();
                if let Some(entries) = entries {
                    task(ctx, model, *kernel, &entries, *scalar);
                }
            }
            Action::ScopeBegin => {
                ctx.scope_begin()?;
                model.scopes.push(Vec::new());
            }
            Action::ScopeEnd => match model.scopes.pop() {
                Some(closed) => {
                    ctx.scope_end()?;
                    closed.into_iter().for_each(|object| model.objects[object].open = false);
                }
                None => {
                    assert_refused(ctx.scope_end(), 400, &[]);
                }
            },
            Action::Fail => return Err(Error::orchestration("the program says so")),
        }
    }
    assert_eq!(ctx.task_count(), model.tasks);
    Ok(())
}

fn run(bench: &Bench, live: &mut [LiveTensor], specs: &[ArgSpec], actions: &[Action], fault: u8) {
    let mut model = RunModel::default();
    let mut hosts: Vec<Vec<i32>> = Vec::new();
    let mut params: Vec<(String, Direction)> = Vec::new();
    // Which argument is what: a staged tensor's number or a resident view.
    let mut given: Vec<Result<usize, Resident>> = Vec::new();
    let mut views: Vec<(usize, View)> = Vec::new();
    for (position, spec) in specs.iter().enumerate() {
        let direction = [IN, OUT, INOUT][usize::from(spec.direction)];
        let (object, view) = match spec.staged {
            Some(shape) => {
                let view = View::whole(SHAPES[shape]);
                let host = values(spec.seed, view.elems.len());
                let known: Vec<Known> = host.iter().copied().map(Known::Value).collect();
                let object = model.object_of(Origin::Staged(hosts.len()), SHAPES[shape], &known);
                given.push(Ok(hosts.len()));
                hosts.push(host);
                (object, view)
            }
            None if live.is_empty() => continue,
            None => {
                let which = usize::from(spec.which) % live.len();
                let view = View::whole(&live[which].shape).then(&spec.chain);
                let object = model.object_of(Origin::Resident(which), &live[which].shape, &live[which].known);
                given.push(Err(view.of_resident(&live[which].resident)));
                (object, view)
            }
        };
        if direction.writes() {
            view.elems.iter().for_each(|&elem| model.objects[object].may_write[elem] = true);
        }
        views.push((object, view));
        params.push((format!("arg{position}"), direction));
    }
    match fault {
        0 => bench.spy.fail_push(),
        1 => bench.spy.fail(DeviceOp::Launch, 1),
        _ => {}
    }
    let model = Arc::new(Mutex::new(model));
    let shared = Arc::clone(&model);
    let known: Vec<_> =
        live.iter().map(|live| (live.resident.tensor(), live.shape.clone(), live.known.clone())).collect();
    let (inner, actions) = (bench.clone(), actions.to_vec());
    let fails = Arc::new(Mutex::new(false));
    let orchestration_failed = Arc::clone(&fails);
    let names: Vec<_> = params.iter().map(|(name, direction)| (name.as_str(), *direction)).collect();
    let mut after = hosts.clone();
    let result = {
        let mut memory = after.iter_mut();
        let mut args: Vec<Arg<'_>> = Vec::new();
        for (given, (object, _)) in given.iter().zip(&views) {
            args.push(match given {
                Ok(_) => Arg::write(&model.lock().unwrap().objects[*object].shape, memory.next().unwrap()).unwrap(),
                Err(resident) => Arg::from(resident),
            });
        }
        bench.run(&names, &mut args, move |ctx, tensors| {
            let model = &mut *shared.lock().unwrap();
            for (tensor, (object, view)) in tensors.iter().zip(&views) {
                // The tensor is the view already: what comes later starts from there.
                model.entries.push(Entry { tensor: *tensor, object: *object, view: view.clone() });
            }
            let result = orchestrate(&inner, ctx, model, &known, &actions);
            *orchestration_failed.lock().unwrap() = result.is_err();
            result
        })
    };
    let pending = bench.spy.disarm();
    let model = model.lock().unwrap();
    let mut succeeded = false;
    let mut poisons = false;
    let error = result.as_ref().err().map(Error::kind);
    if *fails.lock().unwrap() {
        assert!(matches!(error, Some(ErrorKind::Orchestration(_))), "{}: {result:?}", bench.uri);
    } else if model.poison_is_read {
        assert!(matches!(error, Some(ErrorKind::Poisoned { .. })), "{}: {result:?}", bench.uri);
    } else if fault == 0 && !pending {
        assert!(
            matches!(error, Some(ErrorKind::Run { source: LaunchError::Push { .. }, .. })),
            "{}: {result:?}",
            bench.uri
        );
    } else if fault == 1 {
        assert!(
            matches!(error, Some(ErrorKind::Run { source: LaunchError::Device(_), .. })),
            "{}: {result:?}",
            bench.uri
        );
    } else if model.a_task_fails {
        assert!(
            matches!(error, Some(ErrorKind::Run { source: LaunchError::Kernel { .. }, .. })),
            "{}: {result:?}",
            bench.uri
        );
        poisons = true;
    } else {
        assert_eq!(result.as_ref().unwrap().tasks, model.tasks);
        succeeded = true;
    }
    for (object, origin) in model.objects.iter().zip(&model.origins) {
        match *origin {
            Origin::Resident(which) => {
                let known = &mut live[which].known;
                known.clone_from(if succeeded { &object.tasks } else { &object.host });
                for (known, _) in known.iter_mut().zip(&object.written).filter(|(_, written)| poisons && **written) {
                    *known = Known::Poisoned;
                }
            }
            Origin::Staged(host) => {
                let position = given.iter().position(|given| *given.as_ref().unwrap_or(&usize::MAX) == host).unwrap();
                let returned = succeeded && params[position].1.writes();
                let expected: Vec<Known> = if returned {
                    object.tasks.clone()
                } else {
                    hosts[host].iter().copied().map(Known::Value).collect()
                };
                let found: Vec<Known> = after[host].iter().copied().map(Known::Value).collect();
                assert_eq!(found, expected, "{}: staged argument {position}", bench.uri);
            }
            Origin::Graph => {}
        }
    }
}

fn download(bench: &Bench, live: &LiveTensor, view: &View) {
    let result = bench.device.read::<i32>(&view.of_resident(&live.resident));
    let known: Vec<Known> = view.elems.iter().map(|&elem| live.known[elem]).collect();
    let codes: Vec<u32> = [(204, Known::Nothing), (205, Known::Poisoned)]
        .into_iter()
        .filter(|(_, bad)| known.contains(bad))
        .map(|(code, _)| code)
        .collect();
    match result {
        Ok(read) => {
            assert_eq!(read.into_iter().map(Known::Value).collect::<Vec<_>>(), known, "{}: a download", bench.uri);
        }
        Err(error) => assert!(codes.contains(&error.code()), "{}: expected {codes:?}: {error}", bench.uri),
    }
}

fn interpret(uri: &'static str, settings: &MemorySettings, program: &[Step]) {
    let bench = Bench::open_with(uri, settings.clone());
    let mut live: Vec<LiveTensor> = Vec::new();
    for step in program {
        match step {
            Step::Alloc { shape, init, seed } => {
                let shape = SHAPES[*shape];
                let len = shape.iter().product::<u64>() as usize;
                let (resident, known) = match init {
                    0..3 => (bench.device.alloc_uninit::<i32>(shape).unwrap(), vec![Known::Nothing; len]),
                    3 => (bench.device.alloc_zeroed::<i32>(shape).unwrap(), vec![Known::Value(0); len]),
                    _ => {
                        let values = values(*seed, len);
                        let known = values.iter().copied().map(Known::Value).collect();
                        (bench.device.upload(shape, &values).unwrap(), known)
                    }
                };
                live.push(LiveTensor { resident, shape: shape.to_vec(), known });
            }
            Step::Drop { which } if !live.is_empty() => {
                live.swap_remove(usize::from(*which) % live.len());
            }
            Step::Upload { which, chain, seed } if !live.is_empty() => {
                let which = usize::from(*which) % live.len();
                let live = &mut live[which];
                let view = View::whole(&live.shape).then(chain);
                let values = values(*seed, view.elems.len());
                bench.device.write(&view.of_resident(&live.resident), &values).unwrap();
                for (&elem, &value) in view.elems.iter().zip(&values) {
                    live.known[elem] = Known::Value(value);
                }
            }
            Step::Download { which, chain } if !live.is_empty() => {
                let live = &live[usize::from(*which) % live.len()];
                download(&bench, live, &View::whole(&live.shape).then(chain));
            }
            Step::Run { args, actions, fault } => run(&bench, &mut live, args, actions, *fault),
            _ => {}
        }
    }
    for live in &live {
        for (elem, known) in live.known.iter().enumerate() {
            if let Known::Value(value) = known {
                let flat = live.resident.reshape(&[live.known.len() as u64]).unwrap();
                let one = flat.slice(0, elem as u64..elem as u64 + 1).unwrap();
                assert_eq!(bench.read(&one), [*value], "{uri}: element {elem} at the end");
            }
        }
    }
    live.clear();
    let spy = Arc::clone(&bench.spy);
    let counts = bench.device.counts();
    drop(bench);
    assert_eq!((counts.established, counts.maps), (counts.releases, counts.unmaps), "{uri}");
    assert_eq!(counts.quarantined, 0);
    let device = periscope_hal::Device::counters(&*spy);
    assert_eq!((device.allocs, device.maps), (device.frees, device.unmaps), "{uri}");
}

fn config() -> ProptestConfig {
    let long = std::env::var("PERISCOPE_LONG").is_ok_and(|value| value != "0");
    ProptestConfig {
        cases: if long { 20_000 } else { 800 },
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn programs_do_what_plain_arrays_do(
        chunk in prop::sample::select(vec![(64u64 << 10, 256u64 << 10), (8, 0), (32, 0), (64, 100)]),
        budget in prop::sample::select(vec![None, Some(0u64), Some(24), Some(100)]),
        poison: bool,
        program in prop::collection::vec(step(), 1..14),
    ) {
        let mut settings = MemorySettings::default();
        (settings.chunk_bytes, settings.whole_fill_max_bytes) = chunk;
        // So little that mirrors are read without being kept, and lose what they had.
        settings.mirror_budget_bytes = budget;
        settings.poison_uninit = poison;
        for uri in PROFILES {
            interpret(uri, &settings, &program);
        }
    }
}
