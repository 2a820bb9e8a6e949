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
    for round in 0..40 {
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
    println!("graph P: min {:.1}, median {:.1} ns/task of 39", times[0], times[times.len() / 2]);
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
