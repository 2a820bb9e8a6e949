//! Graphs on a simulated device, in few words.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![expect(unsafe_code, reason = "tests call the device trait directly")]

use std::sync::Arc;

use periscope_core::graph::{EntryWrites, GraphBuilder, GraphLimits};
use periscope_core::image::Image;
use periscope_core::task::{Access, Direction, KernelId, ObjectRegion, TaskDesc};
use periscope_core::{DType, ObjectId, Region, TaskId};
use periscope_hal::{Binding, Completion, Device, Execution, Kernel, Launch, MemoryId, ModuleId};
use periscope_sim::{Profile, SimDevice, SimSettings};

/// A device with one module of kernels, and a builder for its graphs.
pub struct Rig {
    pub device: Arc<SimDevice>,
    pub module: ModuleId,
    pub kernels: Vec<Kernel>,
    pub builder: GraphBuilder,
}

impl Rig {
    pub fn new(threads: usize, kernels: Vec<Kernel>) -> Rig {
        Rig::with(Profile::Identity, SimSettings { threads, ..SimSettings::default() }, kernels)
    }

    pub fn with(profile: Profile, settings: SimSettings, kernels: Vec<Kernel>) -> Rig {
        let device = Arc::new(SimDevice::open(profile, settings).unwrap());
        let module = device.load_kernels(&kernels).unwrap();
        let mut rig = Rig { device, module, kernels, builder: GraphBuilder::new(GraphLimits::default()) };
        rig.begin();
        rig
    }

    pub fn begin(&mut self) {
        self.builder.begin(self.kernels.iter().map(|kernel| kernel.signature().clone()).collect());
    }

    pub fn external(&mut self, len_bytes: u64) -> ObjectId {
        self.builder.add_external(len_bytes, EntryWrites::Allowed)
    }

    /// A task of kernel `kernel`.
    pub fn submit(&mut self, kernel: u16, accesses: &[Access<ObjectRegion>], after: &[TaskId]) -> TaskId {
        self.builder.submit(&TaskDesc { kernels: &[KernelId(kernel)], accesses, after, ..TaskDesc::default() }).unwrap()
    }

    pub fn freeze(&mut self) -> Arc<Image> {
        Arc::new(self.builder.freeze(None))
    }

    /// # Panics
    /// If the device refuses.
    pub fn launch(&self, image: &Arc<Image>, memories: &[MemoryId]) -> Arc<dyn Execution> {
        let launch = Launch {
            image: Arc::clone(image),
            bindings: memories.iter().map(|&memory| Binding { memory, offset_bytes: 0 }).collect(),
            module: self.module,
            kernels: (0..self.kernels.len() as u16).collect(),
            pushes: Vec::new(),
        };
        // SAFETY: the image is a builder's, the memories are live until the device is dropped, and tests do not share them.
        unsafe { self.device.launch(launch) }.unwrap()
    }

    pub fn run(&self, image: &Arc<Image>, memories: &[MemoryId]) -> Completion {
        self.launch(image, memories).wait(None).unwrap()
    }

    pub fn alloc(&self, len_bytes: u64) -> MemoryId {
        self.device.alloc(len_bytes).unwrap().id
    }

    pub fn read_u64(&self, memory: MemoryId, position: u64) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: nothing runs.
        unsafe { self.device.copy_out(memory, position * 8, &mut bytes) }.unwrap();
        u64::from_le_bytes(bytes)
    }
}

/// Elements `first..first + len` of an object of `u64`s.
pub fn words(object: ObjectId, first: u64, len: u64, direction: Direction) -> Access<ObjectRegion> {
    let mut region = Region::contiguous(DType::U64, &[len]).unwrap();
    region.offset_elems = first;
    Access { tensor: ObjectRegion { object, region }, direction, split_dim: None }
}
