//! Random inputs: the same for a seed on every machine.
//!
//! Large tensors are generated in parallel, in parts that each draw from a stream of their own, so that the values do not
//! depend on the number of threads.

use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::workload::Progress;

/// Elements that are drawn from one stream.
const PART_ELEMS: usize = 1 << 20;

/// The generator of stream `stream` of a seed.
pub(crate) fn stream(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(stream);
    generator
}

/// Fills with values uniform in ±`half_width`, from the streams after `first_stream` (one per part).
pub(crate) fn fill_uniform_bf16(
    to: &mut [bf16],
    half_width: f32,
    seed: u64,
    first_stream: u64,
    what: &str,
    progress: &dyn Progress,
) {
    let parts: Vec<&mut [bf16]> = to.chunks_mut(PART_ELEMS).collect();
    in_parallel(parts, what, progress, |position, part| {
        let mut generator = stream(seed, first_stream + position as u64);
        // Each 64 random bits make four values.
        for values in part.chunks_mut(4) {
            let bits: u64 = generator.random();
            for (lane, value) in values.iter_mut().enumerate() {
                let unit = f32::from((bits >> (16 * lane)) as u16) / 32768.0 - 1.0;
                *value = bf16::from_f32(unit * half_width);
            }
        }
    });
}

/// Does `work` on every item, on all cores, telling how many are done.
pub(crate) fn in_parallel<T: Send>(items: Vec<T>, what: &str, progress: &dyn Progress, work: impl Fn(usize, T) + Sync) {
    let total = items.len() as u64;
    let queue = std::sync::Mutex::new(items.into_iter().enumerate());
    let done = std::sync::atomic::AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(total as usize) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no thread panics with the queue").next();
                    let Some((position, item)) = next else { return };
                    work(position, item);
                    let done = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
                    progress.step(what, done, total);
                }
            });
        }
    });
}
