//! One launch from the moment it is queued until it has ended: what to run, and how far it has come.
//!
//! A [`Work`] is recycled: its arrays keep their capacity, so that a warm launch allocates nothing that grows with the
//! graph. It is changed through `&mut` while one thread owns it (queued, being set up, ended) and through atomics while
//! several execute it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use periscope_core::image::{Image, TaskRecord};
use periscope_hal::kernel::{Bases, HostKernel};
use periscope_hal::{Completion, Launch, LaunchError};

use crate::memory::{Memory, Pin};

/// A launch, queued or executing.
#[derive(Default)]
pub(crate) struct Work {
    /// The launch and the memory it uses; `None` when recycled.
    subject: Option<(Launch, Arc<Memory>)>,
    /// Where each memory of the image begins.
    pub(crate) bases: Vec<*mut u8>,
    /// The image's kernels.
    pub(crate) kernels: Vec<Arc<HostKernel>>,
    /// Allocations held until the end.
    pub(crate) pins: Vec<Pin>,
    began: Option<Instant>,
    /// Predecessors that each task still waits for; then, for a task of many blocks, the next block to be claimed.
    pending: Vec<AtomicU32>,
    /// For a task of many blocks: blocks that have ended.
    blocks_done: Vec<AtomicU32>,
    /// Tasks that wait for none, in submission order. Not filled for one thread, which finds them as it goes.
    roots: Vec<u32>,
    next_root: CachePadded<AtomicUsize>,
    /// Tasks not completed. A member subtracts what it completed when it runs out of work.
    remaining: CachePadded<AtomicUsize>,
    stop: AtomicBool,
    first_cause: Mutex<Option<LaunchError>>,
    tasks_done: AtomicU64,
}

// SAFETY: the addresses in `bases` are the only part that is not `Send`; what may be done at them is settled per task
// by the image's edges, and the device's memory outlives the launch since `subject` holds it.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

impl Work {
    /// Takes up a launch. Bases, kernels and pins have been filled.
    pub(crate) fn fill(&mut self, launch: Launch, memory: Arc<Memory>) {
        self.subject = Some((launch, memory));
    }

    /// Forgets the launch and lets go of what it held. Its arrays stay.
    pub(crate) fn clear(&mut self) {
        if let Some((launch, memory)) = self.subject.take() {
            memory.unpin(&self.pins);
            drop(launch);
        }
        self.forget();
    }

    /// Forgets what was filled for a launch that did not come about.
    pub(crate) fn forget(&mut self) {
        self.bases.clear();
        self.kernels.clear();
        self.pins.clear();
    }

    fn subject(&self) -> &(Launch, Arc<Memory>) {
        self.subject.as_ref().expect("a work in use has a launch")
    }

    pub(crate) fn launch(&self) -> &Launch {
        &self.subject().0
    }

    pub(crate) fn image(&self) -> &Image {
        &self.launch().image
    }

    pub(crate) fn bases(&self) -> Bases<'_> {
        Bases::new(&self.bases)
    }

    /// The first step of the launch: counts what each task waits for, then puts the host's writes in place.
    pub(crate) fn begin(&mut self, alone: bool) {
        self.began = Some(Instant::now());
        let Work { subject, pending, blocks_done, roots, .. } = self;
        let image = &*subject.as_ref().expect("a work in use has a launch").0.image;
        let tasks = image.tasks();
        grow(pending, tasks.len());
        roots.clear();
        let mut many_blocks = false;
        for (task, (record, pending)) in tasks.iter().zip(&mut *pending).enumerate() {
            *pending.get_mut() = record.predecessors;
            many_blocks |= record.blocks > 1;
            if record.predecessors == 0 && !alone {
                roots.push(task as u32);
            }
        }
        if many_blocks && !alone {
            grow(blocks_done, tasks.len());
            for (record, done) in tasks.iter().zip(&mut *blocks_done) {
                if record.blocks > 1 {
                    *done.get_mut() = 0;
                }
            }
        }
        *self.remaining.get_mut() = tasks.len();
        *self.next_root.get_mut() = 0;
        *self.stop.get_mut() = false;
        *self.tasks_done.get_mut() = 0;
        if let Err(error) = self.push() {
            self.fail(error);
        }
    }

    /// Puts the bytes that the host wrote in place.
    fn push(&self) -> Result<(), LaunchError> {
        let (launch, memory) = self.subject();
        for push in &launch.pushes {
            let bytes = push.bytes.len() as u64;
            let base = memory.pinned(push.memory).map_err(|source| LaunchError::Push { bytes, source })?;
            let mut packed = &push.bytes[..];
            for range in &push.ranges {
                let (from, rest) = packed.split_at((range.end - range.start) as usize);
                // SAFETY: the ranges lie in the allocation (checked when it was pinned), earlier launches have ended,
                // and by the contract of `launch` nothing else uses these bytes now.
                unsafe {
                    base.add(range.start as usize)
                        .copy_from_nonoverlapping(std::ptr::NonNull::from(from).cast(), from.len())
                };
                packed = rest;
            }
        }
        let image = &*launch.image;
        for write in image.writes() {
            let from = &image.payload()[write.payload_offset as usize..][..write.len_bytes as usize];
            // SAFETY: the write lies in its memory (checked when it was pinned); otherwise as above.
            unsafe {
                self.bases[write.memory as usize]
                    .add(write.offset_bytes as usize)
                    .copy_from_nonoverlapping(from.as_ptr(), from.len());
            }
        }
        Ok(())
    }

    /// How the launch ended, once nobody executes it any more.
    pub(crate) fn completion(&mut self) -> Completion {
        let error = self.first_cause.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        Completion {
            result: error.map_or(Ok(()), Err),
            execute: self.began.map_or_else(Default::default, |began| began.elapsed()),
            tasks_done: *self.tasks_done.get_mut(),
        }
    }

    /// Ends the launch for this cause, unless there was one before.
    pub(crate) fn fail(&self, error: LaunchError) {
        self.first_cause.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether no further task or block may start.
    #[inline]
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether nothing is left to run or to wait for. Relaxed: it only makes members leave, and whoever ends the launch
    /// meets every member at the lock through which they leave.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.stopped() || self.remaining.load(Ordering::Relaxed) == 0
    }

    /// Notes that a member completed `tasks` more tasks.
    pub(crate) fn completed(&self, tasks: usize) {
        if tasks > 0 {
            self.tasks_done.fetch_add(tasks as u64, Ordering::Relaxed);
            self.remaining.fetch_sub(tasks, Ordering::Relaxed);
        }
    }

    /// Whether tasks that wait for none have not been claimed.
    #[inline]
    pub(crate) fn has_roots(&self) -> bool {
        self.next_root.load(Ordering::Relaxed) < self.roots.len()
    }

    /// Claims the next few tasks that wait for none: many while there are many, at last one at a time.
    pub(crate) fn claim_roots(&self, threads: usize) -> &[u32] {
        let seen = self.next_root.load(Ordering::Relaxed);
        if seen >= self.roots.len() {
            return &[];
        }
        let wanted = ((self.roots.len() - seen) / (threads * 4)).clamp(1, 32);
        // Relaxed: the roots were written before the launch was opened to members, under the lock.
        let start = self.next_root.fetch_add(wanted, Ordering::Relaxed).min(self.roots.len());
        &self.roots[start..self.roots.len().min(start + wanted)]
    }

    /// Tells the successors of a completed task, and `ready` of each that waits for nothing else.
    #[inline]
    pub(crate) fn release(&self, successors: &[u32], mut ready: impl FnMut(u32)) {
        for &successor in successors {
            // Release: what the task wrote. Partner: the fence below, in whichever thread makes the counter 0.
            if self.pending[successor as usize].fetch_sub(1, Ordering::Release) == 1 {
                fence(Ordering::Acquire);
                ready(successor);
            }
        }
    }

    /// [`Work::release`] where no other thread executes this launch: no locked instruction.
    #[inline]
    pub(crate) fn release_alone(&self, successors: &[u32], mut ready: impl FnMut(u32)) {
        for &successor in successors {
            let pending = &self.pending[successor as usize];
            let left = pending.load(Ordering::Relaxed) - 1;
            pending.store(left, Ordering::Relaxed);
            if left == 0 {
                ready(successor);
            }
        }
    }

    /// The next block of a task that nobody has claimed. Relaxed: a thread gets here through a queue that handed it the
    /// task, and with it what the task's predecessors wrote.
    pub(crate) fn claim_block(&self, task: u32, blocks: u32) -> Option<u32> {
        let next = &self.pending[task as usize];
        if next.load(Ordering::Relaxed) >= blocks {
            return None;
        }
        Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&block| block < blocks)
    }

    /// Notes that a thread has ended `ended` blocks of a task, and answers whether these were the last.
    pub(crate) fn blocks_ended(&self, task: u32, ended: u32, blocks: u32) -> bool {
        // Release and acquire: what other blocks wrote, handed on to the one who releases the successors. Its partners
        // are the same call in the threads that ended the other blocks.
        self.blocks_done[task as usize].fetch_add(ended, Ordering::AcqRel) + ended == blocks
    }
}

/// The successors of a task.
#[inline]
pub(crate) fn successors_of<'a>(tasks_and_end: &[TaskRecord], successors: &'a [u32], task: usize) -> &'a [u32] {
    &successors[tasks_and_end[task].first_successor as usize..tasks_and_end[task + 1].first_successor as usize]
}

fn grow(counters: &mut Vec<AtomicU32>, len: usize) {
    if counters.len() < len {
        counters.resize_with(len, AtomicU32::default);
    }
}
