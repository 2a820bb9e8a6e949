//! The frozen graph: one flat, pointer-free buffer that a device executes, a file holds and another process reads.
//!
//! ```text
//! header │ memories │ entries │ kernels │ layouts │ tasks+1 │ accesses │ scalars │ successors │ predicates │ writes │ payload │ strings
//! ```
//!
//! Every section is an array of plain records of fixed size, aligned to 8 bytes and found by an offset in the header.
//! Records refer to others by position. Task `i` owns the records from its own `first_*` up to the next task's, hence
//! one closing record after the last task. Tasks stand in submission order and every edge goes to a later task, so an
//! image cannot hold a cycle.
//!
//! What makes an [`Image`] sound to execute is that every position and extent holds and that the edges order every pair
//! of tasks that touch common bytes with one of them writing. A builder makes it so for objects that really do not
//! overlap; [`Image::prove`] checks it, whatever the image's origin, and [`Image::decode`] does so at once. That is what lets
//! a device hand its kernels references without further checks.

use bytemuck::{Pod, Zeroable};

use crate::dtype::DType;
use crate::ids::TaskId;
use crate::layout::{Layout, LayoutError, LayoutRef, MAX_RANK};
use crate::task::{Comparison, CoreKind, Direction, KernelSignature};

/// First word of every image: "PSCIMG" and the format version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PSCIMG\x00\x01");

/// A contiguous range of device memory that the image's accesses refer to by position. Bound to real memory at launch.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryRecord {
    /// Bytes that must be there.
    pub len_bytes: u64,
    /// A [`MemoryKind`].
    pub kind: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Where a memory of an image comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum MemoryKind {
    /// An allocation that the run was given (staged or resident) or that its orchestration captured.
    External = 0,
    /// Memory that the graph allocated: its contents before and after the run are nobody's.
    Graph = 1,
}

/// An entry tensor: what another process binds to execute the image.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct EntryRecord {
    /// Position of its memory.
    pub memory: u32,
    /// Position of its layout.
    pub layout: u32,
    /// Its first byte in the memory.
    pub offset_bytes: u64,
    /// A [`Direction`].
    pub direction: u32,
    /// Position of its name in the strings.
    pub name: u32,
}

/// A kernel that the image's tasks call by position.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct KernelRecord {
    /// Position of its name in the strings.
    pub name: u32,
    /// A [`CoreKind`].
    pub core: u32,
    /// [`signature_hash`] of the kernel that the graph was built with.
    pub signature: u64,
}

/// Element type, shape, strides and split of accesses: shared by all that have the same.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct LayoutRecord {
    /// A [`DType`] code.
    pub dtype: u8,
    /// Number of dimensions.
    pub rank: u8,
    /// The dimension shared out among blocks, or [`NO_SPLIT`].
    pub split_dim: u8,
    /// Always 0.
    pub reserved: [u8; 5],
    /// Lengths; 0 beyond `rank`.
    pub shape: [u64; MAX_RANK],
    /// Strides in elements; 0 beyond `rank`.
    pub strides: [u64; MAX_RANK],
}

/// [`LayoutRecord::split_dim`] of an access whose blocks all get the whole.
pub const NO_SPLIT: u8 = u8::MAX;

impl LayoutRecord {
    /// The record of a layout.
    #[must_use]
    pub fn new(dtype: DType, layout: &Layout, split_dim: Option<u8>) -> LayoutRecord {
        let mut record = LayoutRecord {
            dtype: dtype as u8,
            rank: layout.rank() as u8,
            split_dim: split_dim.unwrap_or(NO_SPLIT),
            ..LayoutRecord::zeroed()
        };
        record.shape[..layout.rank()].copy_from_slice(layout.shape());
        record.strides[..layout.rank()].copy_from_slice(layout.strides());
        record
    }

    /// The element type.
    ///
    /// # Panics
    /// On a code that is none, which [`Image::decode`] refuses.
    #[must_use]
    pub fn dtype(&self) -> DType {
        DType::from_code(self.dtype).expect("the image was checked when it was made")
    }

    /// Shape and strides, where they are.
    #[must_use]
    #[inline]
    pub fn as_layout(&self) -> LayoutRef<'_> {
        let rank = usize::from(self.rank).min(MAX_RANK);
        LayoutRef::new(&self.shape[..rank], &self.strides[..rank])
    }

    /// Shape and strides.
    ///
    /// # Errors
    /// [`LayoutError`] if the numbers overflow, which [`Image::decode`] refuses.
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        let rank = usize::from(self.rank);
        if rank > MAX_RANK {
            return Err(LayoutError::RankTooLarge { rank });
        }
        Layout::strided(&self.shape[..rank], &self.strides[..rank])
    }
}

/// An argument of a task.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AccessRecord {
    /// Position of its memory (low 30 bits) and [`Direction`] (high 2 bits).
    memory_and_direction: u32,
    /// Position of its layout.
    pub layout: u32,
    /// Its first byte in the memory.
    pub offset_bytes: u64,
}

/// The largest number of memories in an image.
pub const MAX_MEMORIES: usize = 1 << 30;

impl AccessRecord {
    /// An access to memory number `memory`, which is below [`MAX_MEMORIES`].
    #[must_use]
    #[inline]
    pub fn new(memory: u32, direction: Direction, layout: u32, offset_bytes: u64) -> AccessRecord {
        debug_assert!((memory as usize) < MAX_MEMORIES);
        AccessRecord { memory_and_direction: memory | (direction as u32) << 30, layout, offset_bytes }
    }

    /// Position of the memory.
    #[must_use]
    #[inline]
    pub fn memory(&self) -> usize {
        (self.memory_and_direction & (MAX_MEMORIES as u32 - 1)) as usize
    }

    /// What the task does with it.
    ///
    /// # Panics
    /// On a code that is none, which [`Image::decode`] refuses.
    #[must_use]
    #[inline]
    pub fn direction(&self) -> Direction {
        Direction::from_code(self.direction_code()).expect("the image was checked when it was made")
    }

    pub(crate) fn direction_code(&self) -> u8 {
        (self.memory_and_direction >> 30) as u8
    }
}

/// A task.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TaskRecord {
    /// Position of its first access; the next task's ends the list.
    pub first_access: u32,
    /// Position of its first scalar.
    pub first_scalar: u32,
    /// Position of its first successor.
    pub first_successor: u32,
    /// How many tasks it waits for.
    pub predecessors: u32,
    /// How many blocks it has; at least 1.
    pub blocks: u32,
    /// Positions of its kernels, one per lane; [`NO_KERNEL`] beyond the last lane.
    pub kernels: [u16; 3],
    /// `TASK_*` bits.
    pub flags: u16,
    /// The submitter's number.
    pub tag: u32,
}

/// [`TaskRecord::kernels`] of a lane that does not exist.
pub const NO_KERNEL: u16 = u16::MAX;
/// [`TaskRecord::flags`]: all blocks start together and may wait for each other.
pub const TASK_START_TOGETHER: u16 = 1 << 0;
/// [`TaskRecord::flags`]: there is a [`PredicateRecord`]; the last access is the element that it reads, not an argument.
pub const TASK_PREDICATED: u16 = 1 << 1;
/// [`TaskRecord::flags`]: a join that inference added, not one that was submitted.
pub const TASK_INFERRED_JOIN: u16 = 1 << 2;
/// [`TaskRecord::flags`]: the submitter promised that blocks which are handed whole arguments stay apart.
pub const TASK_BLOCKS_BY_PROMISE: u16 = 1 << 3;

/// The condition of a predicated task. Sorted by task.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PredicateRecord {
    /// The task's position.
    pub task: u32,
    /// A [`Comparison`] code.
    pub comparison: u32,
    /// The constant, in the element type of the task's last access.
    pub constant_bits: u64,
}

/// Bytes that the orchestrator wrote, to be put in place before the first task.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct WriteRecord {
    /// Position of the memory.
    pub memory: u32,
    /// Always 0.
    pub reserved: u32,
    /// First byte in the memory.
    pub offset_bytes: u64,
    /// How many bytes.
    pub len_bytes: u64,
    /// Where they start in the payload.
    pub payload_offset: u64,
}

const SECTIONS: usize = 12;

/// Positions of the sections, in 8-byte words, and their lengths in records (bytes for payload and strings).
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
struct Header {
    magic: u64,
    /// CRC-32 of everything after the header; 0 in an image that was never encoded.
    checksum: u64,
    /// Words of the whole image.
    words: u64,
    /// Whether the inferred hazards of some scope were left unchecked, which only `unsafe` code can ask for.
    unchecked: u64,
    first_word: [u64; SECTIONS],
    records: [u64; SECTIONS],
}

/// Everything an image is made of, borrowed from its builder.
#[derive(Clone, Copy, Default)]
pub(crate) struct Parts<'a> {
    pub(crate) memories: &'a [MemoryRecord],
    pub(crate) entries: &'a [EntryRecord],
    pub(crate) kernels: &'a [KernelRecord],
    pub(crate) layouts: &'a [LayoutRecord],
    /// One more than there are tasks.
    pub(crate) tasks: &'a [TaskRecord],
    pub(crate) accesses: &'a [AccessRecord],
    pub(crate) scalars: &'a [u64],
    pub(crate) successors: &'a [u32],
    pub(crate) predicates: &'a [PredicateRecord],
    pub(crate) writes: &'a [WriteRecord],
    pub(crate) payload: &'a [u8],
    pub(crate) strings: &'a [u8],
    pub(crate) unchecked: bool,
}

/// Why bytes are not an image that can be executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The first bytes are those of something else, or of another version of the format.
    #[error("not a graph image of this version: it starts with {found:#018x}, expected {MAGIC:#018x}")]
    Magic {
        /// The first word found.
        found: u64,
    },
    /// Cut short or padded.
    #[error("the image says it has {expected} bytes, {found} are here")]
    Length {
        /// Bytes that the header promises.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// The contents changed since the image was written.
    #[error("checksum {found:#010x}, the image was written with {expected:#010x}: it is damaged")]
    Checksum {
        /// The checksum in the header.
        expected: u64,
        /// The checksum of the contents.
        found: u64,
    },
    /// A record refers to something that is not there, or holds a value that means nothing.
    #[error("{section} record {position}: {what}")]
    Record {
        /// The section.
        section: &'static str,
        /// The record's position in it.
        position: u64,
        /// What is wrong with it.
        what: String,
    },
    /// Two tasks touch common bytes, one of them writes, and no edge orders them.
    #[error("{first} and {second} touch common bytes of memory {memory} and nothing orders them")]
    Unordered {
        /// The earlier task.
        first: TaskId,
        /// The later task.
        second: TaskId,
        /// The memory's position.
        memory: u32,
    },
    /// The image rests on a promise (an unchecked manual scope, or blocks that are handed whole arguments), so its safety
    /// cannot be shown again here.
    #[error(
        "the image rests on promises (an unchecked scope, or blocks that share whole arguments): it cannot be executed from a file"
    )]
    Unchecked,
}

/// A frozen graph. See the [module documentation](self).
#[derive(Clone)]
pub struct Image {
    words: Vec<u64>,
    header: Header,
    /// It has passed [`Image::prove`].
    proven: bool,
}

impl PartialEq for Image {
    fn eq(&self, other: &Image) -> bool {
        self.words == other.words
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("len_bytes", &self.len_bytes())
            .field("tasks", &self.task_count())
            .field("edges", &self.successors().len())
            .finish_non_exhaustive()
    }
}

const HEADER_WORDS: usize = size_of::<Header>() / 8;

impl Image {
    /// Copies the parts into one buffer, reusing that of `recycled`.
    pub(crate) fn assemble(parts: Parts<'_>, recycled: Option<Image>) -> Image {
        let mut words = recycled.map(|image| image.words).unwrap_or_default();
        words.clear();
        words.resize(HEADER_WORDS, 0);
        let mut header = Header { magic: MAGIC, unchecked: u64::from(parts.unchecked), ..Header::zeroed() };
        let mut section = 0;
        let mut append = |bytes: &[u8], records: usize| {
            header.first_word[section] = words.len() as u64;
            header.records[section] = records as u64;
            section += 1;
            let whole = bytes.len() / 8 * 8;
            words.extend(
                bytes[..whole].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))),
            );
            if whole < bytes.len() {
                let mut last = [0u8; 8];
                last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
                words.push(u64::from_le_bytes(last));
            }
        };
        fn bytes<T: Pod>(records: &[T]) -> (&[u8], usize) {
            (bytemuck::cast_slice(records), records.len())
        }
        for (bytes, records) in [
            bytes(parts.memories),
            bytes(parts.entries),
            bytes(parts.kernels),
            bytes(parts.layouts),
            bytes(parts.tasks),
            bytes(parts.accesses),
            bytes(parts.scalars),
            bytes(parts.successors),
            bytes(parts.predicates),
            bytes(parts.writes),
            bytes(parts.payload),
            bytes(parts.strings),
        ] {
            append(bytes, records);
        }
        header.words = words.len() as u64;
        words[..HEADER_WORDS].copy_from_slice(bytemuck::cast_slice(std::slice::from_ref(&header)));
        Image { words, header, proven: false }
    }

    /// The bytes to put in a file, checksum included. Little-endian, like every platform that is supported.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = bytemuck::cast_slice(&self.words).to_vec();
        let checksum = u64::from(crc32fast::hash(&bytes[size_of::<Header>()..]));
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads what [`Image::encode`] wrote, and checks everything that executing it relies on.
    ///
    /// # Errors
    /// [`ImageError`]: nothing of a damaged, foreign or unsound image is kept.
    pub fn decode(bytes: &[u8]) -> Result<Image, ImageError> {
        let found = bytes.len() as u64;
        if bytes.len() < size_of::<Header>() {
            return Err(ImageError::Length { expected: size_of::<Header>() as u64, found });
        }
        let mut header: Header = bytemuck::pod_read_unaligned(&bytes[..size_of::<Header>()]);
        if header.magic != MAGIC {
            return Err(ImageError::Magic { found: header.magic });
        }
        if header.words.checked_mul(8) != Some(found) {
            return Err(ImageError::Length { expected: header.words.saturating_mul(8), found });
        }
        let checksum = u64::from(crc32fast::hash(&bytes[size_of::<Header>()..]));
        if header.checksum != checksum {
            return Err(ImageError::Checksum { expected: header.checksum, found: checksum });
        }
        let mut words: Vec<u64> = bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        header.checksum = 0;
        words[1] = 0;
        let mut image = Image { words, header, proven: false };
        image.check_sections()?;
        image.prove()?;
        Ok(image)
    }

    /// Checks everything that executing the image relies on, unless that has been done. An image that its own runtime has
    /// just built needs no proof; one that comes from anywhere else does.
    ///
    /// # Errors
    /// [`ImageError`]: the image must not be executed. That includes one built with unchecked scopes or promised blocks,
    /// whose safety is a promise that cannot be shown here.
    pub fn prove(&mut self) -> Result<(), ImageError> {
        if !self.proven {
            crate::verify::check(self)?;
            self.proven = true;
        }
        Ok(())
    }

    fn check_sections(&self) -> Result<(), ImageError> {
        let sizes = [
            size_of::<MemoryRecord>(),
            size_of::<EntryRecord>(),
            size_of::<KernelRecord>(),
            size_of::<LayoutRecord>(),
            size_of::<TaskRecord>(),
            size_of::<AccessRecord>(),
            8,
            4,
            size_of::<PredicateRecord>(),
            size_of::<WriteRecord>(),
            1,
            1,
        ];
        let mut next = HEADER_WORDS as u64;
        for (section, size) in sizes.into_iter().enumerate() {
            let bad =
                |what: &str| ImageError::Record { section: "header", position: section as u64, what: what.into() };
            if self.header.first_word[section] != next {
                return Err(bad("the section does not start where the one before it ends"));
            }
            let bytes = self.header.records[section].checked_mul(size as u64).ok_or_else(|| bad("length overflows"))?;
            next = next
                .checked_add(bytes.div_ceil(8))
                .filter(|&end| end <= self.header.words)
                .ok_or_else(|| bad("the section ends outside the image"))?;
        }
        if next != self.header.words {
            return Err(ImageError::Length { expected: next * 8, found: self.header.words * 8 });
        }
        if self.header.records[4] == 0 {
            return Err(ImageError::Record {
                section: "task",
                position: 0,
                what: "the closing record is missing".into(),
            });
        }
        Ok(())
    }

    #[inline]
    fn section<T: Pod>(&self, section: usize) -> &[T] {
        let first = self.header.first_word[section] as usize;
        let records = self.header.records[section] as usize;
        let words = (records * size_of::<T>()).div_ceil(8);
        let bytes: &[u8] = bytemuck::cast_slice(&self.words[first..first + words]);
        bytemuck::cast_slice(&bytes[..records * size_of::<T>()])
    }

    /// Bytes of the whole image.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// The memories to bind, by position.
    #[must_use]
    #[inline]
    pub fn memories(&self) -> &[MemoryRecord] {
        self.section(0)
    }

    /// The entry tensors, in the order of the callable's signature; captured tensors follow.
    #[must_use]
    #[inline]
    pub fn entries(&self) -> &[EntryRecord] {
        self.section(1)
    }

    /// The kernels, by position.
    #[must_use]
    #[inline]
    pub fn kernels(&self) -> &[KernelRecord] {
        self.section(2)
    }

    /// The layouts, by position.
    #[must_use]
    #[inline]
    pub fn layouts(&self) -> &[LayoutRecord] {
        self.section(3)
    }

    /// The tasks in submission order and the closing record.
    #[must_use]
    #[inline]
    pub fn tasks_and_end(&self) -> &[TaskRecord] {
        self.section(4)
    }

    /// The tasks in submission order.
    #[must_use]
    #[inline]
    pub fn tasks(&self) -> &[TaskRecord] {
        let tasks = self.tasks_and_end();
        &tasks[..tasks.len() - 1]
    }

    /// How many tasks there are, inferred joins included.
    #[must_use]
    #[inline]
    pub fn task_count(&self) -> usize {
        self.header.records[4] as usize - 1
    }

    /// The accesses of all tasks, in task order.
    #[must_use]
    #[inline]
    pub fn accesses(&self) -> &[AccessRecord] {
        self.section(5)
    }

    /// The scalars of all tasks, in task order.
    #[must_use]
    #[inline]
    pub fn scalars(&self) -> &[u64] {
        self.section(6)
    }

    /// The successors of all tasks, in task order: one entry per edge.
    #[must_use]
    #[inline]
    pub fn successors(&self) -> &[u32] {
        self.section(7)
    }

    /// The conditions of predicated tasks, sorted by task.
    #[must_use]
    #[inline]
    pub fn predicates(&self) -> &[PredicateRecord] {
        self.section(8)
    }

    /// What the orchestrator wrote, to be put in place first.
    #[must_use]
    pub fn writes(&self) -> &[WriteRecord] {
        self.section(9)
    }

    /// The bytes of all [`Image::writes`].
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.section(10)
    }

    pub(crate) fn strings(&self) -> &[u8] {
        self.section(11)
    }

    /// Whether some scope's hazards were left unchecked when it was built.
    #[must_use]
    pub fn is_unchecked(&self) -> bool {
        self.header.unchecked != 0
    }

    /// The name at this position of the strings: a 4-byte length and UTF-8.
    #[must_use]
    pub fn name(&self, position: u32) -> Option<&str> {
        let rest = self.strings().get(position as usize..)?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        std::str::from_utf8(rest.get(..u32::from_le_bytes(*len) as usize)?).ok()
    }

    /// The condition of a predicated task.
    #[must_use]
    pub fn predicate_of(&self, task: usize) -> Option<(Comparison, u64)> {
        let predicates = self.predicates();
        let at = predicates.binary_search_by_key(&(task as u32), |predicate| predicate.task).ok()?;
        Some((Comparison::from_code(predicates[at].comparison as u8)?, predicates[at].constant_bits))
    }

    /// The same graph with the orchestrator's writes put into it, so that it can be executed elsewhere.
    /// `writes` are (memory, first byte, bytes).
    #[must_use]
    pub fn with_writes(&self, writes: &[(u32, u64, Vec<u8>)]) -> Image {
        let mut records = Vec::with_capacity(writes.len());
        let mut payload = Vec::new();
        for (memory, offset_bytes, bytes) in writes {
            records.push(WriteRecord {
                memory: *memory,
                reserved: 0,
                offset_bytes: *offset_bytes,
                len_bytes: bytes.len() as u64,
                payload_offset: payload.len() as u64,
            });
            payload.extend_from_slice(bytes);
        }
        let parts = Parts {
            memories: self.memories(),
            entries: self.entries(),
            kernels: self.kernels(),
            layouts: self.layouts(),
            tasks: self.tasks_and_end(),
            accesses: self.accesses(),
            scalars: self.scalars(),
            successors: self.successors(),
            predicates: self.predicates(),
            writes: &records,
            payload: &payload,
            strings: self.strings(),
            unchecked: self.is_unchecked(),
        };
        Image::assemble(parts, None)
    }
}

/// Appends a name in the form that [`Image::name`] reads, and returns its position.
pub(crate) fn push_name(strings: &mut Vec<u8>, name: &str) -> u32 {
    let position = strings.len() as u32;
    strings.extend_from_slice(&(name.len() as u32).to_le_bytes());
    strings.extend_from_slice(name.as_bytes());
    position
}

/// A number that two processes get for kernels of the same signature (not of the same code: the name stands for that).
#[must_use]
pub fn signature_hash(signature: &KernelSignature) -> u64 {
    let mut bytes = vec![signature.core as u8];
    bytes.extend((signature.scalars as u64).to_le_bytes());
    for param in &signature.params {
        bytes.extend([
            param.direction as u8,
            param.dtype.map_or(u8::MAX, |dtype| dtype as u8),
            u8::from(param.optional),
        ]);
    }
    // Two CRCs with different prefixes make 64 bits; this is no defence against malice, only against mistakes.
    let low = crc32fast::hash(&bytes);
    bytes.insert(0, 0x5a);
    u64::from(crc32fast::hash(&bytes)) << 32 | u64::from(low)
}

/// The core kind with this code.
#[must_use]
pub fn core_kind_from_code(code: u32) -> Option<CoreKind> {
    [CoreKind::Cube, CoreKind::Vector].into_iter().find(|&kind| kind as u32 == code)
}
