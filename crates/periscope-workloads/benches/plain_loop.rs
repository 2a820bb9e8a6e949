//! Paged attention through the runtime beside a plain loop over the same kernels: what the runtime costs.
//!
//! `cargo bench -p periscope-workloads --bench plain_loop [-- CASE [ROUNDS]]`
//!
//! The loop has one thread per core, each with its share of the sequences, and calls the same tile functions on the same
//! device memory of the `sim` profile: inputs are the resident tensors, scratch is a resident tensor of the size that the graph
//! allocates, every block in a place of its own ("distinct"), as in the graph. "reused" gives each thread one block's
//! scratch, which stays in cache: what graph memory reused by liveness could reach. The three take turns; minima and
//! medians of the rounds are printed, with the rate over the flops of the two products.
#![expect(unsafe_code, reason = "the loop reads and writes device memory directly, as kernels do")]

use std::time::Instant;

use half::bf16;
use periscope::{Device, Resident};
use periscope_workloads::paged_attention::{Params, prepare};
use periscope_workloads::tile::{self, Accumulators, BlockResult, Shape};
use periscope_workloads::{NoProgress, PagedAttention, Prepared, Residency, Session, Workload};

/// The elements of a resident tensor of the `sim` profile, whose device addresses are host addresses.
///
/// # Safety
/// No other reference to the part of the tensor that the caller writes through it, and no run meanwhile.
unsafe fn elements<'a, T>(tensor: &Resident) -> &'a mut [T] {
    // SAFETY: identity address space; the tensor is live and contiguous; exclusivity is the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(tensor.device_address() as *mut T, tensor.num_elems() as usize) }
}

/// Scratch of one block, in f32 words: scores, weights, row maxima and sums, weighted values; with the graph's alignment.
fn block_words(shape: Shape) -> usize {
    let aligned = |words: usize| words.next_multiple_of(32);
    aligned(shape.m * shape.n) + aligned(shape.m * shape.n / 2) + 2 * aligned(shape.m) + aligned(shape.m * shape.d)
}

struct Loop<'a> {
    params: Params,
    prepared: &'a Prepared,
    session: &'a Session<'a>,
    scratch: &'a Resident,
    out: Vec<f32>,
}

impl Loop<'_> {
    fn run(&mut self, distinct: bool) {
        let Params { batch, heads, head_dim, block, .. } = self.params;
        let shape = Shape { m: heads as usize, n: block as usize, d: head_dim as usize };
        let tensor = |name| self.session.resident(name).expect("all are resident");
        // SAFETY: inputs are only read, the scratch is divided among the threads below, and no run is going on.
        let (query, keys, values, scratch) = unsafe {
            (
                &*elements::<bf16>(tensor("query")),
                &*elements::<bf16>(tensor("key_cache")),
                &*elements::<bf16>(tensor("value_cache")),
                elements::<f32>(self.scratch),
            )
        };
        let table = self.prepared.tensors[3].host.as_slice::<i32>().expect("i32");
        let lens = self.prepared.tensors[4].host.as_slice::<i32>().expect("i32");
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = (batch as usize).div_ceil(threads);
        let per_sequence = self.params.blocks_per_sequence() as usize;
        let (words, width) = (block_words(shape), self.params.table_width() as usize);
        std::thread::scope(|scope| {
            let outs = self.out.chunks_mut(share * shape.m * shape.d);
            let scratches = scratch.chunks_mut(share * per_sequence * words);
            for (thread, (out, scratch)) in outs.zip(scratches).enumerate() {
                scope.spawn(move || {
                    let (mut mi, mut li) = (vec![0f32; shape.m], vec![0f32; shape.m]);
                    let mut oi = vec![0f32; shape.m * shape.d];
                    for (position, out) in out.chunks_exact_mut(shape.m * shape.d).enumerate() {
                        let b = thread * share + position;
                        let len = lens[b] as usize;
                        let q = &query[b * shape.m * shape.d..][..shape.m * shape.d];
                        let used = len.div_ceil(shape.n);
                        for n in 0..used {
                            let first = table[b * width + n] as usize * shape.n * shape.d;
                            let at = if distinct { (position * per_sequence + n) * words } else { 0 };
                            let scratch = &mut scratch[at..at + words];
                            let (s, rest) = scratch.split_at_mut((shape.m * shape.n).next_multiple_of(32));
                            let (p, rest) = rest.split_at_mut((shape.m * shape.n / 2).next_multiple_of(32));
                            let (mij, rest) = rest.split_at_mut(shape.m.next_multiple_of(32));
                            let (lij, o_new) = rest.split_at_mut(shape.m.next_multiple_of(32));
                            let s = &mut s[..shape.m * shape.n];
                            let p: &mut [bf16] = &mut bytemuck::cast_slice_mut(p)[..shape.m * shape.n];
                            let (mij, lij) = (&mut mij[..shape.m], &mut lij[..shape.m]);
                            let o_new = &mut o_new[..shape.m * shape.d];
                            tile::qk(q, &keys[first..][..shape.n * shape.d], s, shape);
                            tile::softmax(s, p, mij, lij, shape, (len - n * shape.n).min(shape.n), 1.0);
                            tile::pv(p, &values[first..][..shape.n * shape.d], o_new, shape);
                            let acc = Accumulators { mi: &mut mi, li: &mut li, oi: &mut oi };
                            let out = (n + 1 == used).then_some(&mut *out);
                            tile::update(BlockResult { mij, lij, o_new }, acc, out, shape, n == 0);
                        }
                    }
                });
            }
        });
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let case = words.first().map_or("mid", String::as_str);
    let rounds: usize = words.get(1).map_or(20, |rounds| rounds.parse().expect("a number of rounds"));
    let params = Params::of_case(case).unwrap_or_else(|| panic!("no case `{case}`: {:?}", PagedAttention.cases()));
    let prepared = prepare(params, 0, &NoProgress).expect("the inputs fit");
    let device = Device::open("sim").expect("the simulator opens");
    let mut session = Session::open(&device, &prepared, Residency::Resident).expect("the tensors fit");
    let shape = Shape { m: params.heads as usize, n: params.block as usize, d: params.head_dim as usize };
    let scratch = device.alloc_zeroed::<f32>([params.blocks() * block_words(shape) as u64]).expect("the scratch fits");
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let mut build = Vec::new();
    for round in 0..rounds + 1 {
        let report = session.run().expect("the run succeeds");
        assert!(session.check().expect("a result").pass, "the runtime's result is wrong");
        let mut plain = Loop {
            params,
            prepared: &prepared,
            session: &session,
            scratch: &scratch,
            out: vec![0f32; (params.batch * params.heads * params.head_dim) as usize],
        };
        let mut took = [report.phases_us.total, Default::default(), Default::default()];
        for (kind, distinct) in [(1, true), (2, false)] {
            let start = Instant::now();
            plain.run(distinct);
            took[kind] = start.elapsed();
            let out: &[u8] = bytemuck::cast_slice(&plain.out);
            assert!(prepared.expected[0].compare(out).pass, "the plain loop's result is wrong");
        }
        // The first round warms caches, arenas and page tables.
        if round > 0 {
            build.push(report.phases_us.orchestrate.as_secs_f64());
            for (times, took) in times.iter_mut().zip(took) {
                times.push(took.as_secs_f64());
            }
        }
    }
    build.sort_by(f64::total_cmp);
    println!("paged_attention {case}: {params}; {rounds} rounds in turn");
    println!("{:<28} {:>10} {:>10} {:>12} {:>10}", "", "min ms", "median ms", "GFLOP/s", "of plain");
    times[1].sort_by(f64::total_cmp);
    let base = times[1][0];
    for (name, times) in
        ["runtime", "plain loop, distinct scratch", "plain loop, reused scratch"].iter().zip(&mut times)
    {
        times.sort_by(f64::total_cmp);
        let (min, median) = (times[0], times[times.len() / 2]);
        println!(
            "{name:<28} {:>10.2} {:>10.2} {:>12.1} {:>10.2}",
            min * 1e3,
            median * 1e3,
            prepared.flops as f64 / min / 1e9,
            min / base
        );
    }
    println!("building the graph: {:.0} ns per task at least", build[0] * 1e9 / params.tasks() as f64);
}
