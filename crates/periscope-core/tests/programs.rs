//! Random programs against the oracle: who is before whom in the frozen image is exactly what the bytes say.
//!
//! A program is a list of numbers, so that proptest can shrink it; every choice is a number modulo what there is. Views are
//! mostly picked from a few per object, so that tiles repeat, cells form, and joins are inferred.

mod oracle;

use std::collections::BTreeSet;
use std::sync::Arc;

use oracle::{Order, Task, Written, ranges};
use periscope_core::graph::{EntryWrites, GraphBuilder, GraphLimits, ScopeKind, SubmitError};
use periscope_core::image::{Image, TASK_INFERRED_JOIN};
use periscope_core::{
    Access, Comparison, CoreKind, DType, Direction, Footprint, KernelId, KernelParam, KernelSignature, Layout,
    ObjectId, ObjectRegion, Predicate, Region, TaskDesc, TaskId,
};
use proptest::prelude::*;

const DIRECTIONS: [Direction; 3] = [Direction::In, Direction::Out, Direction::InOut];

/// A kernel for every list of up to three directions: kernel number is the list read in base 4, `dir + 1` a digit.
fn kernels() -> Arc<[KernelSignature]> {
    (0..64u16)
        .map(|code| {
            let digits = [code % 4, code / 4 % 4, code / 16 % 4];
            let params = digits
                .iter()
                .take_while(|&&digit| digit > 0)
                .map(|&digit| KernelParam { direction: DIRECTIONS[digit as usize - 1], dtype: None, optional: false })
                .collect();
            KernelSignature { name: format!("k{code}"), core: CoreKind::Vector, params, scalars: 0 }
        })
        .collect()
}

fn kernel_of(accesses: &[Access<ObjectRegion>]) -> KernelId {
    KernelId(accesses.iter().rev().fold(0, |code, access| code * 4 + access.direction as u16 + 1))
}

/// Objects of a program: their length in bytes and, if they are graph memory, where in the segment.
struct World {
    builder: GraphBuilder,
    objects: Vec<(ObjectId, u64)>,
    /// Few views of each, to be used again and again.
    views: Vec<Vec<Region>>,
    order: Order,
    /// By oracle number.
    ids: Vec<TaskId>,
    /// Open scopes: their numbers, and how if manual.
    scopes: Vec<(usize, Option<bool>)>,
    scope_count: usize,
    unchecked: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Views {
    /// Intervals, tiles of a matrix, strided, broadcast, empty: anything.
    Any,
    /// Tiles of one array: equal strides.
    Tiles,
    Intervals,
}

fn view(kind: Views, len: u64, n: [u16; 6]) -> Region {
    let n = n.map(u64::from);
    let interval = || {
        let offset = n[1] % len;
        let elems = n[2] % (len - offset).min(if n[3] % 3 == 0 { len } else { 24 }) + 1;
        Region { dtype: DType::U8, layout: Layout::contiguous(&[elems]).expect("small"), offset_elems: offset }
    };
    let tile = || {
        // The object as rows of 16 bytes; aligned tiles more often than not.
        let array = Region::contiguous(DType::U8, &[len / 16, 16]).expect("small");
        let (height, width) = ([1, 2, 4][n[1] as usize % 3].min(len / 16), [4, 8, 16, 5][n[2] as usize % 4]);
        let align = |number: u64, size: u64, most: u64| {
            let at = if n[5] % 4 == 0 { number } else { number / size * size };
            at % most / if n[5] % 4 == 0 { 1 } else { size } * if n[5] % 4 == 0 { 1 } else { size }
        };
        let row = align(n[3], height, len / 16 - height + 1);
        let column = align(n[4], width, 16 - width + 1);
        array.slice(0, row..row + height).and_then(|rows| rows.slice(1, column..column + width)).expect("inside")
    };
    match (kind, n[0] % 8) {
        (Views::Intervals, 0..2) | (Views::Any, 0) => Region::contiguous(DType::U8, &[len]).expect("small"),
        (Views::Intervals, 2..5) | (Views::Any, 1) => {
            let size = [8, 16][n[1] as usize % 2];
            let offset = n[2] % (len / size) * size;
            Region { dtype: DType::U8, layout: Layout::contiguous(&[size]).expect("small"), offset_elems: offset }
        }
        (Views::Intervals, _) | (Views::Any, 2..4) => interval(),
        (Views::Tiles, _) | (Views::Any, 4..6) => tile(),
        (Views::Any, 6) => {
            // Any strides, of 4-byte elements.
            let shape = [n[1] % 4 + 1, n[2] % 3 + 1];
            let strides = [n[3] % 9, n[4] % 4];
            let last = (shape[0] - 1) * strides[0] + (shape[1] - 1) * strides[1];
            let layout = Layout::strided(&shape, &strides).expect("small");
            if (last + 1) * 4 > len {
                return interval();
            }
            Region { dtype: DType::F32, layout, offset_elems: n[5] % (len / 4 - last) }
        }
        _ => Region { dtype: DType::F64, layout: Layout::contiguous(&[0, 3]).expect("empty"), offset_elems: n[1] * 99 },
    }
}

fn written(region: &Region) -> Written {
    Written::strided(region.layout.shape(), region.layout.strides(), region.offset_elems)
}

fn bytes(region: &Region) -> BTreeSet<u64> {
    written(region).bytes(region.dtype)
}

impl World {
    fn new(kind: Views, objects: &[u16], views: &[[u16; 6]]) -> World {
        let mut builder = GraphBuilder::new(GraphLimits::default());
        builder.begin(kernels());
        let len_of = |&number: &u16| [64, 128, 256, 512, 1024][number as usize % 5];
        let segment = builder.add_segment(objects.iter().map(len_of).sum());
        let mut next = 0;
        let mut world = World {
            objects: Vec::new(),
            views: Vec::new(),
            order: Order::default(),
            ids: Vec::new(),
            scopes: Vec::new(),
            scope_count: 0,
            unchecked: false,
            builder,
        };
        for number in objects {
            let len = len_of(number);
            let object = if number % 2 == 0 {
                world.builder.add_external(len, EntryWrites::Allowed)
            } else {
                world.builder.add_graph_object(segment, next, len)
            };
            next += len;
            world.objects.push((object, len));
            world.views.push(views.iter().map(|&numbers| view(kind, len, numbers)).collect());
        }
        world
    }

    fn tensor(&self, kind: Views, n: &[u16]) -> (usize, ObjectRegion) {
        let number = n[0] as usize % self.objects.len();
        let (object, len) = self.objects[number];
        let views = &self.views[number];
        let region = if n[1].is_multiple_of(6) {
            view(kind, len, [n[2], n[3], n[4], n[5], n[1], n[0]])
        } else {
            views[n[2] as usize % views.len()]
        };
        (number, ObjectRegion { object, region })
    }

    fn step(&mut self, kind: Views, scopes: bool, n: &[u16; 24]) {
        if scopes && n[23].is_multiple_of(8) {
            return self.scope(n[22]);
        }
        let join = n[23] % 8 == 1;
        let count = n[0] as usize % 3 + 1;
        let mut accesses = Vec::new();
        let mut task = Task { accesses: Vec::new(), after: Vec::new(), manual_scope: None };
        if let Some(&(number, Some(_))) = self.scopes.last() {
            task.manual_scope = Some(number);
        }
        let predicate = (n[21].is_multiple_of(8)).then(|| {
            let (number, mut tensor) = self.tensor(kind, &n[1..7]);
            let at = u64::from(n[20]) % self.objects[number].1;
            tensor.region =
                Region { dtype: DType::U8, layout: Layout::contiguous(&[]).expect("one"), offset_elems: at };
            (number, Predicate { tensor, comparison: Comparison::Ne, constant_bits: 0 })
        });
        for argument in 0..count {
            let n = &n[1 + argument * 6..];
            let (number, tensor) = self.tensor(kind, n);
            let direction = [Direction::In, Direction::In, Direction::Out, Direction::InOut][n[3] as usize % 4];
            accesses.push(Access { tensor, direction, split_dim: None });
            let reads = direction.reads() || predicate.is_some();
            task.accesses.push((number, bytes(&tensor.region), reads, direction.writes()));
        }
        if let Some((number, predicate)) = &predicate {
            task.accesses.push((*number, bytes(&predicate.tensor.region), true, false));
        }
        let mut after = Vec::new();
        let explicit = if self.scopes.is_empty() { n[19].is_multiple_of(6) } else { n[19].is_multiple_of(2) };
        if explicit && !self.ids.is_empty() {
            for n in [n[18], n[17], n[16]] {
                // Recent ones mostly.
                let back = (n as usize % 5 + 1).min(self.ids.len());
                task.after.push(self.ids.len() - back);
                after.push(self.ids[self.ids.len() - back]);
            }
        }
        let kernel = [kernel_of(&accesses)];
        let before = (self.builder.total_task_count(), self.builder.edge_count());
        let result = self.builder.submit(&TaskDesc {
            kernels: if join { &[] } else { &kernel },
            accesses: &accesses,
            after: &after,
            predicate: predicate.map(|(_, predicate)| predicate),
            ..TaskDesc::default()
        });
        let overlap = |task: &Task| {
            task.accesses.iter().enumerate().any(|(position, first)| {
                task.accesses[position + 1..]
                    .iter()
                    .any(|second| first.0 == second.0 && (first.3 || second.3) && !first.1.is_disjoint(&second.1))
            })
        };
        let aliased =
            accesses.iter().any(|access| access.direction.writes() && written(&access.tensor.region).has_duplicates());
        let checked = matches!(self.scopes.last(), Some((_, Some(true))));
        let uncovered = self.order.place(&task).1.filter(|_| checked);
        match result {
            Ok(id) => {
                assert!(join || !overlap(&task), "overlapping arguments were accepted");
                assert!(!aliased, "a view that falls on itself was accepted");
                assert_eq!(uncovered, None, "task {} meets it uncovered", self.ids.len());
                self.ids.push(id);
                self.order.push(task);
            }
            Err(error) => {
                match &error {
                    SubmitError::ArgumentsOverlap { .. } => assert!(!join && overlap(&task)),
                    // Not provably distinct is enough.
                    SubmitError::AliasedWrite { .. } => assert_eq!(kind, Views::Any),
                    SubmitError::UncoveredHazard { earlier_task, .. } => {
                        assert!(uncovered.is_some(), "{error}");
                        let earlier = self.ids.iter().position(|id| id == earlier_task).expect("a submitted task");
                        assert!(self.order.tasks[earlier].conflicts(&task));
                    }
                    _ => panic!("{error}"),
                }
                assert_eq!(before, (self.builder.total_task_count(), self.builder.edge_count()));
            }
        }
    }

    fn scope(&mut self, n: u16) {
        if n.is_multiple_of(3) || self.scopes.len() > 2 {
            let ended = self.builder.scope_end();
            assert_eq!(ended.is_ok(), self.scopes.pop().is_some());
            return;
        }
        let (kind, manual) = match n / 3 % 4 {
            0 => (ScopeKind::Auto, None),
            1 => (ScopeKind::Manual { check: false }, Some(false)),
            _ => (ScopeKind::Manual { check: true }, Some(true)),
        };
        self.unchecked |= manual == Some(false);
        self.builder.scope_begin(kind);
        self.scope_count += 1;
        self.scopes.push((self.scope_count, manual));
    }

    fn check_queries(&self, number: usize, region: &Region) {
        let (object, _) = self.objects[number];
        let (footprint, at) = Footprint::of_region(region);
        let at = if footprint.is_empty() { 0 } else { at };
        let asked = bytes(region);
        let touches = |id: TaskId, must_write: bool| {
            let task = self.ids.iter().position(|&known| known == id).expect("a submitted task is named");
            self.order.tasks[task]
                .accesses
                .iter()
                .any(|(of, bytes, _, writes)| *of == number && (*writes || !must_write) && !bytes.is_disjoint(&asked))
        };
        let expect = |must_write: bool| self.ids.iter().any(|&id| touches(id, must_write));
        let writer = self.builder.writer_of(object, &footprint, at);
        assert_eq!(writer.is_some(), expect(true), "{region:?}");
        assert!(writer.is_none_or(|id| touches(id, true)));
        let user = self.builder.user_of(object, &footprint, at);
        assert_eq!(user.map(|(_, writes)| writes), expect(false).then(|| expect(true)), "{region:?}");
        assert!(user.is_none_or(|(id, writes)| touches(id, writes)));
    }

    fn finish(mut self) -> Image {
        let frozen = self.builder.freeze(None);
        for (number, &(object, len)) in self.objects.iter().enumerate() {
            // Bytes of a memory that holds this object and perhaps others, from the object's own start.
            let (memory, base) = self.builder.memory_of(object);
            let within = |set: &rangemap::RangeSet<u64>| {
                let both = set
                    .overlapping(base..base + len.max(1))
                    .map(|range| (range.start.max(base) - base, range.end.min(base + len) - base));
                both.filter(|(start, end)| start < end).collect::<Vec<_>>()
            };
            let written = self.order.written(number);
            assert_eq!(
                within(&frozen.written_ranges(&vec![true; frozen.memories().len()])[memory as usize].all),
                ranges(&written)
            );
            assert_eq!(
                frozen.written_memories()[memory as usize],
                self.objects.iter().enumerate().any(|(other, &(object, _))| {
                    self.builder.memory_of(object).0 == memory && !self.order.written(other).is_empty()
                })
            );
            assert_eq!(self.builder.has_writer(object), !written.is_empty());
            let read = self.order.read_before_written(number);
            assert_eq!(within(&frozen.read_before_written(memory as usize)), ranges(&read));
            let touched = self.order.tasks.iter().flat_map(|task| &task.accesses);
            let touched = touched.filter(|(of, bytes, ..)| *of == number && !bytes.is_empty()).count() > 0;
            assert_eq!(self.builder.is_untouched(object), !touched);
            for view in &self.views[number] {
                self.check_queries(number, view);
            }
            for byte in (0..len).step_by(7) {
                let layout = Layout::contiguous(&[]).expect("one");
                self.check_queries(number, &Region { dtype: DType::U8, layout, offset_elems: byte });
            }
        }
        let image = self.builder.freeze(None);
        assert_eq!(image.successors().len(), self.builder.edge_count());
        let before = ancestors(&image);
        for (number, id) in self.ids.iter().enumerate() {
            let found: BTreeSet<usize> = self
                .ids
                .iter()
                .enumerate()
                .filter(|(_, other)| before[id.index()].contains(&other.index()))
                .map(|(n, _)| n)
                .collect();
            assert_eq!(
                found, self.order.before[number],
                "before task {number} ({id}): left is the image's, right the bytes'"
            );
        }
        let decoded = Image::decode(&image.encode());
        if self.unchecked {
            assert!(decoded.is_err())
        } else {
            assert_eq!(decoded.as_ref(), Ok(&image))
        }
        image
    }
}

/// For each task of an image all that must end before it.
fn ancestors(image: &Image) -> Vec<BTreeSet<usize>> {
    let tasks = image.tasks_and_end();
    let mut before = vec![BTreeSet::new(); image.task_count()];
    for task in 0..image.task_count() {
        let mut mine: BTreeSet<usize> = before[task].clone();
        mine.insert(task);
        for &to in &image.successors()[tasks[task].first_successor as usize..tasks[task + 1].first_successor as usize] {
            before[to as usize].extend(&mine);
        }
    }
    before
}

fn run(kind: Views, scopes: bool, objects: &[u16], views: &[[u16; 6]], steps: &[[u16; 24]]) -> Image {
    let mut world = World::new(kind, objects, views);
    for step in steps {
        world.step(kind, scopes, step);
        let (number, tensor) = world.tensor(kind, &step[10..]);
        world.check_queries(number, &tensor.region);
    }
    world.finish()
}

/// Programs, and the views that they use again and again.
fn programs(most: usize) -> impl Strategy<Value = (Vec<u16>, Vec<[u16; 6]>, Vec<[u16; 24]>)> {
    (
        prop::collection::vec(any::<u16>(), 1..4),
        prop::collection::vec(any::<[u16; 6]>(), 1..10),
        prop::collection::vec(any::<[u16; 24]>(), 1..most),
    )
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(700))]

    #[test]
    fn nothing_missed_nothing_extra_any_views((objects, views, steps) in programs(60)) {
        run(Views::Any, false, &objects, &views, &steps);
    }

    #[test]
    fn nothing_missed_nothing_extra_intervals((objects, views, steps) in programs(60)) {
        run(Views::Intervals, false, &objects, &views, &steps);
    }

    #[test]
    fn nothing_missed_nothing_extra_tiles((objects, views, steps) in programs(60)) {
        run(Views::Tiles, false, &objects, &views, &steps);
    }

    #[test]
    fn scopes_leave_out_what_they_check((objects, views, steps) in programs(60)) {
        run(Views::Any, true, &objects, &views, &steps);
    }

    /// One object and many tasks: wide views meet many tiles, so joins are inferred, cells are cut and cut anew.
    #[test]
    fn long_programs_on_one_object(
        kind in prop::sample::select(vec![Views::Any, Views::Intervals, Views::Tiles]),
        scopes in prop::bool::weighted(0.2),
        object in any::<u16>(),
        views in prop::collection::vec(any::<[u16; 6]>(), 1..40),
        steps in prop::collection::vec(any::<[u16; 24]>(), 60..160),
    ) {
        run(kind, scopes, &[object], &views, &steps);
    }
}

proptest! {
    #![proptest_config(config(300))]

    /// Phases of many alike: m tiles are written, n tasks read all of them, and so on.
    #[test]
    fn phases_of_tiles_and_whole_reads(
        phases in prop::collection::vec((0u8..7, 1usize..40, any::<[u16; 4]>()), 1..10),
        part in 0u64..3,
    ) {
        let mut world = World::new(Views::Intervals, &[4], &[[0; 6]]);
        let mut edges_allowed = 0;
        let mut total = 0;
        for (kind, count, n) in phases {
            // Tiles are written, parts are read, or everything (or much of it) is written once.
            let (writes, whole, turns) = (kind < 3 || kind == 6, kind == 6, kind == 5);
            let count = if whole { 1 } else if turns { count * 3 } else { count };
            for task in 0..count as u64 {
                let (offset, len) = if whole {
                    [(0, 1024), (0, 600), (300, 700)][n[3] as usize % 3]
                } else if turns {
                    // Overlapping views that take turns, large ones or small ones.
                    (task % 9 * 40, if n[0].is_multiple_of(2) { 600 } else { 10 })
                } else if writes {
                    let size = [16, 32, 24][n[0] as usize % 3];
                    ((task * 7 + u64::from(n[1])) % (1024 / size) * size, size)
                } else {
                    [(0, 1024), (64, 900), (0, 512)][(part as usize + (n[2] as usize + task as usize) % 2) % 3]
                };
                let region = Region { dtype: DType::U8, layout: Layout::contiguous(&[len]).expect("small"), offset_elems: offset };
                let direction = if writes { Direction::InOut } else { Direction::In };
                let (object, _) = world.objects[0];
                let access = Access { tensor: ObjectRegion { object, region }, direction, split_dim: None };
                let kernels = [kernel_of(&[access])];
                let id = world.builder.submit(&TaskDesc { kernels: &kernels, accesses: &[access], ..TaskDesc::default() });
                world.ids.push(id.expect("a good task"));
                world.order.push(Task { accesses: vec![(0, bytes(&region), true, writes)], after: vec![], manual_scope: None });
                total += 1;
            }
            // Each phase may cost a search for its first two tasks, and 17 edges for every other.
            edges_allowed += 2 * total + 40 * count + 64;
        }
        prop_assert!(world.builder.edge_count() <= edges_allowed, "{} edges", world.builder.edge_count());
        let image = world.finish();
        let joins = image.tasks().iter().filter(|task| task.flags & TASK_INFERRED_JOIN != 0).count();
        prop_assert!(joins <= total);
    }
}
