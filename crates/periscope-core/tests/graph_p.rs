//! How long building a large graph takes. Ignored: timing belongs on a quiet machine.
//! `cargo test --release -p periscope-core --test graph_p -- --ignored --nocapture`

use std::sync::Arc;
use std::time::Instant;

use periscope_core::graph::{EntryWrites, GraphBuilder, GraphLimits};
use periscope_core::image::Image;
use periscope_core::{
    Access, CoreKind, DType, Direction, KernelId, KernelParam, KernelSignature, ObjectId, ObjectRegion, Region,
    TaskDesc,
};

const BATCH: u64 = 256;
const BLOCKS: u64 = 64;
const TILE: u64 = 16;
const DIM: u64 = 64;
const BLOCK: u64 = 64;

fn kernel(name: &str, core: CoreKind, directions: &[Direction]) -> KernelSignature {
    let params = directions
        .iter()
        .map(|&direction| KernelParam { direction, dtype: Some(DType::F32), optional: false })
        .collect();
    KernelSignature { name: name.into(), core, params, scalars: 1 }
}

/// The graph of paged attention: for each of 256 sequences, 64 blocks of QK, softmax, PV and the running update.
fn build(builder: &mut GraphBuilder, kernels: &Arc<[KernelSignature]>, recycled: Option<Image>) -> Image {
    use Direction::{In, InOut, Out};
    builder.begin(kernels.clone());
    let whole = |shape: &[u64]| Region::contiguous(DType::F32, shape).expect("small");
    let query = whole(&[BATCH, TILE, DIM]);
    let cache = whole(&[BATCH * BLOCKS, BLOCK, DIM]);
    let vector = whole(&[BATCH, TILE]);
    let mut external = |region: &Region| builder.add_external(region.extent_bytes(), EntryWrites::Allowed);
    let (q, k, v, out) = (external(&query), external(&cache), external(&cache), external(&query));
    let (m_all, l_all, o_all) = (external(&vector), external(&vector), external(&query));
    let (s_shape, v_shape, o_shape) = (whole(&[TILE, BLOCK]), whole(&[TILE]), whole(&[TILE, DIM]));
    let bytes = 2 * s_shape.extent_bytes() + 2 * v_shape.extent_bytes() + o_shape.extent_bytes();
    let segment = builder.add_segment(bytes * BATCH * BLOCKS);
    let mut next = 0;
    fn arg(object: ObjectId, region: Region, direction: Direction) -> Access<ObjectRegion> {
        Access { tensor: ObjectRegion { object, region }, direction, split_dim: None }
    }
    fn submit(builder: &mut GraphBuilder, kernel: u16, block: u64, accesses: &[Access<ObjectRegion>]) {
        let task = TaskDesc { kernels: &[KernelId(kernel)], accesses, scalars: &[block], ..TaskDesc::default() };
        builder.submit(&task).expect("a good task");
    }
    for sequence in 0..BATCH {
        let qi = query.index(0, sequence).expect("in bounds");
        let mi_all = vector.index(0, sequence).expect("in bounds");
        for block in 0..BLOCKS {
            let mut graph_object = |region: &Region| {
                let object = builder.add_graph_object(segment, next, region.extent_bytes());
                next += region.extent_bytes();
                object
            };
            let (s, p) = (graph_object(&s_shape), graph_object(&s_shape));
            let (m, l, o) = (graph_object(&v_shape), graph_object(&v_shape), graph_object(&o_shape));
            // As a block table would scatter them.
            let at = (sequence * BLOCKS + block) * 7919 % (BATCH * BLOCKS);
            let tile = cache.index(0, at).expect("in bounds");
            submit(builder, 0, block, &[arg(q, qi, In), arg(k, tile, In), arg(s, s_shape, Out)]);
            let softmax = [arg(s, s_shape, In), arg(p, s_shape, Out), arg(m, v_shape, Out), arg(l, v_shape, Out)];
            submit(builder, 1, block, &softmax);
            submit(builder, 2, block, &[arg(p, s_shape, In), arg(v, tile, In), arg(o, o_shape, Out)]);
            let update = [
                arg(m, v_shape, In),
                arg(l, v_shape, In),
                arg(o, o_shape, In),
                arg(m_all, mi_all, InOut),
                arg(l_all, mi_all, InOut),
                arg(o_all, qi, InOut),
                arg(out, qi, Out),
            ];
            submit(builder, 3, block, &update);
        }
    }
    builder.freeze(recycled)
}

#[test]
#[ignore = "a measurement"]
fn graph_p_costs() {
    use Direction::{In, InOut, Out};
    let kernels: Arc<[KernelSignature]> = Arc::new([
        kernel("qk", CoreKind::Cube, &[In, In, Out]),
        kernel("softmax", CoreKind::Vector, &[In, Out, Out, Out]),
        kernel("pv", CoreKind::Cube, &[In, In, Out]),
        kernel("update", CoreKind::Vector, &[In, In, In, InOut, InOut, InOut, Out]),
    ]);
    let mut builder = GraphBuilder::new(GraphLimits::default());
    let tasks = (BATCH * BLOCKS * 4) as f64;
    let mut times = Vec::new();
    let mut image = None;
    // Fewer under an instruction counter.
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(40);
    for round in 0..rounds {
        let start = Instant::now();
        let built = build(&mut builder, &kernels, image.take());
        let ns = start.elapsed().as_nanos() as f64 / tasks;
        if round == 0 {
            println!("first graph: {ns:.1} ns/task");
        } else {
            times.push(ns);
        }
        assert_eq!(built.task_count(), tasks as usize);
        assert_eq!(built.successors().len(), 81_664);
        image = Some(built);
    }
    times.sort_by(f64::total_cmp);
    let image = image.expect("built");
    println!("graph P: min {:.1}, median {:.1} ns/task of {}", times[0], times[times.len() / 2], times.len());
    let mut freezes: Vec<f64> = Vec::new();
    let mut recycled = None;
    for _ in 0..20 {
        let start = Instant::now();
        recycled = Some(builder.freeze(recycled.take()));
        freezes.push(start.elapsed().as_nanos() as f64 / tasks);
    }
    freezes.sort_by(f64::total_cmp);
    println!("of which freeze: min {:.1} ns/task; image {:.1} B/task", freezes[0], image.len_bytes() as f64 / tasks);
    let bytes = image.encode();
    let start = Instant::now();
    let decoded = Image::decode(&bytes).expect("sound");
    println!("decode and verify: {:.1} ns/task", start.elapsed().as_nanos() as f64 / tasks);
    assert_eq!(decoded, image);
}

/// Graphs of other shapes, of joins (no kernel is needed to see what their accesses cost).
#[test]
#[ignore = "a measurement"]
fn other_shapes_cost() {
    use Direction::{In, InOut};
    let measure = |name: &str, len_bytes: u64, tasks: &dyn Fn(u64) -> Vec<(Region, Direction)>, count: u64| {
        let mut builder = GraphBuilder::new(GraphLimits::default());
        let programs: Vec<_> = (0..count).map(tasks).collect();
        let mut best = f64::MAX;
        for _ in 0..6 {
            builder.reset();
            let object = builder.add_external(len_bytes, EntryWrites::Allowed);
            let start = Instant::now();
            for accesses in &programs {
                let access = |&(region, direction): &(Region, Direction)| Access {
                    tensor: ObjectRegion { object, region },
                    direction,
                    split_dim: None,
                };
                let accesses: Vec<_> = accesses.iter().map(access).collect();
                builder.submit(&TaskDesc { accesses: &accesses, ..TaskDesc::default() }).expect("a good task");
            }
            best = best.min(start.elapsed().as_nanos() as f64 / count as f64);
        }
        let joins = builder.total_task_count() - builder.task_count();
        println!("{name}: {best:.1} ns/task, {} edges, {joins} joins", builder.edge_count());
    };
    // C += A·B with 40³ tiles of 8 × 8, all three in one allocation.
    let matrix = |number: u64| Region {
        offset_elems: number * 320 * 320,
        ..Region::contiguous(DType::F32, &[320, 320]).expect("small")
    };
    let tile = |of: &Region, row: u64, column: u64| {
        let rows = of.slice(0, row * 8..row * 8 + 8).expect("inside");
        rows.slice(1, column * 8..column * 8 + 8).expect("inside")
    };
    let (a, b, c) = (matrix(0), matrix(1), matrix(2));
    let gemm = |task: u64| {
        let (i, j, k) = (task / 1600, task / 40 % 40, task % 40);
        vec![(tile(&a, i, k), In), (tile(&b, k, j), In), (tile(&c, i, j), InOut)]
    };
    measure("40³ strided tiles", 3 * 320 * 320 * 4, &gemm, 64_000);
    // A cache of 1,024 blocks of 64 rows: one row is appended, then its block is read.
    let cache = Region::contiguous(DType::F32, &[65_536, 32]).expect("small");
    let append = |task: u64| {
        let row = task / 2;
        if task.is_multiple_of(2) {
            vec![(cache.slice(0, row..row + 1).expect("inside"), Direction::Out)]
        } else {
            vec![(cache.slice(0, row / 64 * 64..row / 64 * 64 + 64).expect("inside"), In)]
        }
    };
    measure("appended rows, blocks read", 65_536 * 32 * 4, &append, 65_536);
    let bytes = Region::contiguous(DType::U8, &[1 << 20]).expect("small");
    let tiles = |task: u64| {
        if task % 65 == 64 {
            vec![(bytes, In)]
        } else {
            let at = task * 7919 % 4096 * 256;
            vec![(bytes.slice(0, at..at + 256).expect("inside"), InOut)]
        }
    };
    measure("all read after every 64 tiles", 1 << 20, &tiles, 65_536);
    let random = |task: u64| {
        let mix = |salt: u64| (task + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ salt).rotate_left(29) >> 20;
        let at = mix(1) % ((1 << 20) - 2000);
        vec![(bytes.slice(0, at..at + mix(7) % 1999 + 1).expect("inside"), if mix(3) % 3 == 0 { InOut } else { In })]
    };
    measure("random ranges", 1 << 20, &random, 65_536);
    let windows = |task: u64| {
        let at = task * 128 % ((1 << 20) - 256);
        vec![(bytes.slice(0, at..at + 256).expect("inside"), InOut)]
    };
    measure("half-overlapping windows", 1 << 20, &windows, 65_536);
    // Panels of B read over and over while its tiles were written one by one.
    let panels = |task: u64| {
        if task < 1600 {
            vec![(tile(&b, task / 40, task % 40), Direction::Out)]
        } else {
            vec![(b.slice(1, task % 40 * 8..task % 40 * 8 + 8).expect("inside"), In)]
        }
    };
    measure("column panels of tiles", 3 * 320 * 320 * 4, &panels, 20_000);
}
