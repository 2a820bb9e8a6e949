//! Graph memory: what graphs allocate comes from segments of device memory that are kept from run to run.
//!
//! A build places its allocations one after the other. Segments double in size, so that a warm run allocates nothing and
//! a small graph needs little.

use std::sync::Arc;

use periscope_core::graph::GraphBuilder;
use periscope_memory::{Allocation, Init, Memory, MemoryError};

/// Placement boundary: a cache line pair, so that tasks on two cores do not share one.
const ALIGN_BYTES: u64 = 128;
const FIRST_SEGMENT_BYTES: u64 = 1 << 20;
const LAST_SEGMENT_BYTES: u64 = 256 << 20;

/// The segments, and how far this build has come.
#[derive(Debug, Default)]
pub(crate) struct GraphArena {
    segments: Vec<Arc<Allocation>>,
    /// The image memory of each segment that this build has used.
    memories: Vec<u32>,
    /// The segment in use, and its first free byte.
    current: usize,
    next_bytes: u64,
    used_bytes: u64,
}

impl GraphArena {
    /// Starts a build: all segments are free.
    pub(crate) fn reset(&mut self) {
        self.memories.clear();
        self.current = 0;
        self.next_bytes = 0;
        self.used_bytes = 0;
    }

    /// Places `len_bytes`: the image memory and the offset in it.
    pub(crate) fn place(
        &mut self,
        memory: &Memory,
        graph: &mut GraphBuilder,
        len_bytes: u64,
    ) -> Result<(u32, u64), MemoryError> {
        let len_bytes = len_bytes.max(1).next_multiple_of(ALIGN_BYTES);
        loop {
            if let Some(segment) = self.segments.get(self.current) {
                if self.next_bytes + len_bytes <= segment.len_bytes() {
                    if self.memories.len() == self.current {
                        self.memories.push(graph.add_segment(segment.len_bytes()));
                    }
                    let at = self.next_bytes;
                    self.next_bytes += len_bytes;
                    self.used_bytes += len_bytes;
                    return Ok((self.memories[self.current], at));
                }
                if self.memories.len() == self.current {
                    // Not used by this build: replaced by one that is large enough.
                    self.segments.remove(self.current);
                    continue;
                }
                self.current += 1;
                self.next_bytes = 0;
                continue;
            }
            let doubled = FIRST_SEGMENT_BYTES << self.segments.len().min(16);
            let wanted = doubled.min(LAST_SEGMENT_BYTES).max(len_bytes);
            // Graph memory has a value where a task or the orchestrator has written it: tracked by the build, not here.
            self.segments.push(memory.alloc(wanted, Init::Uninit)?);
        }
    }

    /// The segment that is an image memory of this build.
    pub(crate) fn segment_of(&self, memory: u32) -> Option<&Arc<Allocation>> {
        self.used().find(|(known, _)| *known == memory).map(|(_, segment)| segment)
    }

    /// The segments that this build used, with their image memories.
    pub(crate) fn used(&self) -> impl Iterator<Item = (u32, &Arc<Allocation>)> {
        self.memories.iter().copied().zip(&self.segments)
    }

    /// Bytes placed by this build.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Provides for image memory `memory` of a graph that was built elsewhere: a segment of at least `len_bytes`.
    pub(crate) fn adopt(&mut self, memory: &Memory, image_memory: u32, len_bytes: u64) -> Result<(), MemoryError> {
        let position = self.memories.len();
        if self.segments.get(position).is_none_or(|segment| segment.len_bytes() < len_bytes) {
            let segment = memory.alloc(len_bytes.max(1), Init::Uninit)?;
            if position < self.segments.len() {
                self.segments[position] = segment;
            } else {
                self.segments.push(segment);
            }
        }
        self.memories.push(image_memory);
        self.used_bytes += len_bytes;
        Ok(())
    }
}
