//! Every reason to refuse a task, each with its numbers, and that a refusal changes nothing.

use std::sync::Arc;

use periscope_core::graph::{Argument, EntryWrites, GraphBuilder, GraphLimits, ScopeError, ScopeKind, SubmitError};
use periscope_core::{
    Access, Comparison, CoreKind, DType, Direction, Footprint, KernelId, KernelParam, KernelSignature, Layout,
    ObjectId, ObjectRegion, Predicate, Region, TaskDesc, TaskId,
};

const COPY: KernelId = KernelId(0);
const COPY_CUBE: KernelId = KernelId(1);
const UPDATE: KernelId = KernelId(2);
const WIDE: KernelId = KernelId(3);

fn builder() -> GraphBuilder {
    let param = |direction, optional| KernelParam { direction, dtype: Some(DType::F32), optional };
    let kernel = |name: &str, core, params: Vec<KernelParam>, scalars| KernelSignature {
        name: name.into(),
        core,
        params,
        scalars,
    };
    let copy = vec![param(Direction::In, false), param(Direction::Out, false), param(Direction::Out, true)];
    let any = KernelParam { direction: Direction::In, dtype: None, optional: true };
    let mut builder = GraphBuilder::new(GraphLimits { max_tasks: 8, max_accesses: 20, ..GraphLimits::default() });
    builder.begin(Arc::new([
        kernel("copy", CoreKind::Vector, copy.clone(), 1),
        kernel("copy_cube", CoreKind::Cube, copy, 1),
        kernel("update", CoreKind::Vector, vec![param(Direction::InOut, false)], 0),
        kernel("wide", CoreKind::Vector, vec![any; 70], 0),
    ]));
    builder
}

fn whole(object: ObjectId) -> ObjectRegion {
    ObjectRegion { object, region: Region::contiguous(DType::F32, &[4, 6]).expect("small") }
}

fn arg(tensor: ObjectRegion, direction: Direction) -> Access<ObjectRegion> {
    Access { tensor, direction, split_dim: None }
}

struct Fixture {
    builder: GraphBuilder,
    a: ObjectId,
    b: ObjectId,
}

fn fixture() -> Fixture {
    let mut builder = builder();
    let a = builder.add_external(96, EntryWrites::Allowed);
    let b = builder.add_external(96, EntryWrites::Allowed);
    Fixture { builder, a, b }
}

impl Fixture {
    /// Submits what `change` makes of a good copy from `a` to `b`; it is refused, and nothing changes.
    #[track_caller]
    fn refused(&mut self, change: impl Fn(&mut TaskDesc<'_, ObjectRegion>)) -> SubmitError {
        let accesses = [arg(whole(self.a), Direction::In), arg(whole(self.b), Direction::Out)];
        let mut task = TaskDesc { kernels: &[COPY], accesses: &accesses, scalars: &[7], ..TaskDesc::default() };
        change(&mut task);
        self.refused_task(&task)
    }

    #[track_caller]
    fn refused_args(&mut self, accesses: [Access<ObjectRegion>; 2]) -> SubmitError {
        self.refused_task(&TaskDesc { kernels: &[COPY], accesses: &accesses, scalars: &[7], ..TaskDesc::default() })
    }

    #[track_caller]
    fn refused_task(&mut self, task: &TaskDesc<'_, ObjectRegion>) -> SubmitError {
        let state = |builder: &mut GraphBuilder| builder.freeze(None).encode();
        let before = state(&mut self.builder);
        let error = self.builder.submit(task).expect_err("not a good task");
        assert_eq!(before, state(&mut self.builder), "a refusal changes nothing");
        error
    }
}

#[test]
fn kernels_lanes_and_counts() {
    let mut f = fixture();
    assert_eq!(f.refused(|task| task.kernels = &[KernelId(9)]), SubmitError::UnknownKernel { kernel: 9, kernels: 4 });
    assert_eq!(f.refused(|task| task.kernels = &[COPY; 4]), SubmitError::TooManyLanes { lanes: 4 });
    let differ = SubmitError::LanesDiffer { lane: 1, first: "copy".into(), other: "update".into() };
    assert_eq!(f.refused(|task| task.kernels = &[COPY, UPDATE]), differ);
    let of_one_kind = SubmitError::LanesOfOneKind { kind: CoreKind::Vector, lanes: 3, most: 2 };
    assert_eq!(f.refused(|task| task.kernels = &[COPY, COPY, COPY]), of_one_kind);
    let of_one_kind = SubmitError::LanesOfOneKind { kind: CoreKind::Cube, lanes: 2, most: 1 };
    assert_eq!(f.refused(|task| task.kernels = &[COPY_CUBE, COPY, COPY_CUBE]), of_one_kind);
    let count = SubmitError::ArgumentCount { kernel: "copy".into(), min: 2, max: 3, got: 0 };
    assert_eq!(count.to_string(), "kernel `copy` takes 2 to 3 arguments, 0 were given");
    assert_eq!(f.refused(|task| task.accesses = &[]), count);
    let scalars = SubmitError::ScalarCount { kernel: "copy".into(), expected: 1, got: 2 };
    assert_eq!(f.refused(|task| task.scalars = &[1, 2]), scalars);
    let scalars = SubmitError::ScalarCount { kernel: "join".into(), expected: 0, got: 1 };
    assert_eq!(f.refused(|task| task.kernels = &[]), scalars);
    assert_eq!(f.refused(|task| task.blocks = 0), SubmitError::NoBlocks);
    let many = [arg(whole(f.a), Direction::In); 65];
    let error = f.refused_task(&TaskDesc { kernels: &[WIDE], accesses: &many, ..TaskDesc::default() });
    assert!(
        matches!(error, SubmitError::Exhausted { needed: 65, limit: 64, setting: "max_kernel_args", .. }),
        "{error}"
    );
    // A cube core and two vector cores make a good task of three lanes.
    let accesses = [arg(whole(f.a), Direction::In), arg(whole(f.b), Direction::Out)];
    let kernels = [COPY_CUBE, COPY, COPY];
    let task = TaskDesc { kernels: &kernels, accesses: &accesses, scalars: &[7], tag: 3, ..TaskDesc::default() };
    assert_eq!(f.builder.submit(&task), Ok(TaskId(0)));
    assert_eq!(f.builder.describe(TaskId(0)), "task 0 (`copy_cube` + `copy` + `copy`, tag 3)");
}

#[test]
fn arguments() {
    let mut f = fixture();
    let (a, b) = (whole(f.a), whole(f.b));
    let argument = Argument::Tensor(0);
    let mut wrong = a;
    wrong.region.dtype = DType::I32;
    let error = f.refused_args([arg(wrong, Direction::In), arg(b, Direction::Out)]);
    let (expected, got) = (DType::F32, DType::I32);
    assert_eq!(error, SubmitError::ArgumentDType { kernel: "copy".into(), argument, expected, got });
    let error = f.refused_args([arg(a, Direction::InOut), arg(b, Direction::Out)]);
    assert_eq!(error.to_string(), "argument 0 of kernel `copy` is IN, it was submitted as INOUT");
    let mut wrong = a;
    wrong.region.offset_elems = 1;
    let error = f.refused_args([arg(wrong, Direction::In), arg(b, Direction::Out)]);
    assert_eq!(error, SubmitError::OutsideObject { argument, object: f.a, start: 4, end: 100, len_bytes: 96 });
    wrong.region.offset_elems = u64::MAX / 2;
    let error = f.refused_args([arg(wrong, Direction::In), arg(b, Direction::Out)]);
    assert!(matches!(error, SubmitError::OutsideObject { .. }));
    let error = f.refused_args([arg(whole(ObjectId(7)), Direction::In), arg(b, Direction::Out)]);
    assert_eq!(error, SubmitError::UnknownObject { argument, object: ObjectId(7), objects: 2 });
    let mut broadcast = b;
    broadcast.region = broadcast.region.index(0, 0).and_then(|row| row.broadcast(&[4, 6])).expect("a view");
    let error = f.refused_args([arg(a, Direction::In), arg(broadcast, Direction::Out)]);
    assert!(matches!(error, SubmitError::AliasedWrite { argument: Argument::Tensor(1), .. }));
    // Read, it is welcome.
    let accesses = [arg(broadcast, Direction::In), arg(a, Direction::Out)];
    let task = TaskDesc { kernels: &[COPY], accesses: &accesses, scalars: &[7], ..TaskDesc::default() };
    assert!(f.builder.submit(&task).is_ok());
    let error = f.refused_args([arg(a, Direction::In), arg(a, Direction::Out)]);
    let (first, second) = (Argument::Tensor(0), Argument::Tensor(1));
    assert_eq!(error, SubmitError::ArgumentsOverlap { first, second, object: f.a });
    assert!(error.to_string().contains("one INOUT"));
    let error = f.refused(|task| task.after = &[TaskId(0), TaskId(5)]);
    assert_eq!(error, SubmitError::UnknownTask { position: 1, after: TaskId(5), tasks: 1 });
}

#[test]
fn entry_tensors_that_are_not_outputs() {
    let mut f = fixture();
    f.builder.set_entry_writes(f.b, EntryWrites::Only(vec![]));
    let argument = Argument::Tensor(1);
    assert_eq!(f.refused(|_| {}), SubmitError::NotAnOutput { argument, object: f.b });
    // Two halves of rows 0 to 2 are declared, so rows 1 and 2 may be written, row 3 not.
    let rows = whole(f.b).region.slice(0, 0..3).expect("inside");
    let half = |columns| Footprint::of_region(&rows.slice(1, columns).expect("inside"));
    f.builder.set_entry_writes(f.b, EntryWrites::Only(vec![half(0..3), half(3..6)]));
    let mut part = whole(f.b);
    part.region = part.region.slice(0, 1..4).expect("inside");
    let error = f.refused_args([arg(whole(f.a), Direction::In), arg(part, Direction::Out)]);
    assert_eq!(error, SubmitError::NotAnOutput { argument, object: f.b });
    part.region = part.region.slice(0, 0..2).expect("inside");
    let accesses = [arg(whole(f.a), Direction::In), arg(part, Direction::Out)];
    let task = TaskDesc { kernels: &[COPY], accesses: &accesses, scalars: &[7], ..TaskDesc::default() };
    assert!(f.builder.submit(&task).is_ok());
}

#[test]
fn blocks() {
    let mut f = fixture();
    let argument = Argument::Tensor(1);
    assert_eq!(f.refused(|task| task.blocks = 2), SubmitError::NotSplit { argument, blocks: 2 });
    let split = |f: &Fixture, dim| {
        [arg(whole(f.a), Direction::In), Access { split_dim: Some(dim), ..arg(whole(f.b), Direction::Out) }]
    };
    let submit = |f: &mut Fixture, dim, blocks, start_together| {
        let accesses = split(f, dim);
        let kernels = [COPY_CUBE];
        let task = TaskDesc { kernels: &kernels, accesses: &accesses, scalars: &[7], ..TaskDesc::default() };
        f.refused_task(&TaskDesc { blocks, start_together, ..task })
    };
    assert_eq!(submit(&mut f, 2, 2, false), SubmitError::SplitDimension { argument, dim: 2, rank: 2 });
    assert_eq!(submit(&mut f, 0, 3, false), SubmitError::SplitUneven { argument, dim: 0, len: 4, blocks: 3 });
    let too_many = SubmitError::TooManyBlocks { kind: CoreKind::Cube, asked: 25, cores: 24 };
    assert_eq!(submit(&mut f, 0, 25, true), too_many);
    assert_eq!(too_many.to_string(), "25 cube cores are needed to start all blocks together, the device has 24");
    let accesses = split(&f, 0);
    let task = TaskDesc { kernels: &[COPY], accesses: &accesses, scalars: &[7], blocks: 4, ..TaskDesc::default() };
    assert!(f.builder.submit(&task).is_ok());
    let accesses = [arg(whole(f.a), Direction::In), arg(whole(f.b), Direction::Out)];
    let promised = TaskDesc { accesses: &accesses, blocks_disjoint_by_promise: true, ..task };
    assert!(f.builder.submit(&promised).is_ok());
    let decoded = periscope_core::image::Image::decode(&f.builder.freeze(None).encode());
    assert_eq!(decoded, Err(periscope_core::image::ImageError::Unchecked));
}

#[test]
fn predicates() {
    let mut f = fixture();
    let predicate = |tensor| Some(Predicate { tensor, comparison: Comparison::Gt, constant_bits: 0 });
    let a = f.a;
    assert_eq!(f.refused(|task| task.predicate = predicate(whole(a))), SubmitError::PredicateElems { elems: 24 });
    let element = |object, dtype| {
        let layout = Layout::contiguous(&[1]).expect("one");
        ObjectRegion { object, region: Region { dtype, layout, offset_elems: 3 } }
    };
    let opaque = f.refused(|task| task.predicate = predicate(element(a, DType::F8E4M3)));
    assert_eq!(opaque, SubmitError::PredicateDType { dtype: DType::F8E4M3 });
    let b = f.b;
    let error = f.refused(|task| task.predicate = predicate(element(b, DType::I32)));
    let (first, second) = (Argument::Tensor(1), Argument::Predicate);
    assert_eq!(error, SubmitError::ArgumentsOverlap { first, second, object: b });
    let accesses = [arg(whole(a), Direction::In), arg(whole(b), Direction::Out)];
    let task = TaskDesc { kernels: &[COPY], accesses: &accesses, scalars: &[7], ..TaskDesc::default() };
    let task = TaskDesc { predicate: predicate(element(a, DType::I32)), ..task };
    assert!(f.builder.submit(&task).is_ok());
    let image = f.builder.freeze(None);
    // The OUT of a predicated task counts as INOUT: what was there matters.
    assert!(image.read_before_written(f.builder.memory_of(b).0 as usize).contains(&0));
    assert_eq!(image.predicate_of(0), Some((Comparison::Gt, 0)));
    assert_eq!(image.accesses().len(), 3);
}

#[test]
fn scopes_and_capacity() {
    let mut f = fixture();
    assert_eq!(f.builder.scope_end(), Err(ScopeError::NotOpen));
    let segment = f.builder.add_segment(1024);
    f.builder.scope_begin(ScopeKind::Auto);
    let inner = f.builder.add_graph_object(segment, 0, 96);
    assert!(f.builder.object_open(inner) && f.builder.is_untouched(inner));
    assert_eq!(f.builder.memory_of(inner), (segment, 0));
    assert_eq!((f.builder.depth(), f.builder.scope_end(), f.builder.depth()), (1, Ok(()), 0));
    assert!(!f.builder.object_open(inner));
    let error = f.refused_args([arg(whole(inner), Direction::In), arg(whole(f.b), Direction::Out)]);
    assert_eq!(error, SubmitError::ObjectClosed { argument: Argument::Tensor(0), object: inner });
    let accesses = [arg(whole(f.b), Direction::InOut)];
    for _ in 0..8 {
        let task = TaskDesc { kernels: &[UPDATE], accesses: &accesses, ..TaskDesc::default() };
        f.builder.submit(&task).expect("there is room");
    }
    let error = f.refused(|_| {});
    assert_eq!(error.to_string(), "tasks: 9 needed, the limit is 8; raise `max_tasks`");
    let mut f = fixture();
    let many = vec![arg(whole(f.a), Direction::In); 21];
    let error = f.refused_task(&TaskDesc { accesses: &many, ..TaskDesc::default() });
    assert_eq!(error.to_string(), "accesses: 21 needed, the limit is 20; raise `max_accesses`");
}
