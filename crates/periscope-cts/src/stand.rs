//! An opened device with its kernels, and the calls of the device trait that clauses make, on memory they own.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use periscope_hal::{
    Binding, Completion, Device, DeviceMemory, Execution, Kernel, Launch, LaunchError, MapAnswer, ModuleId, Push,
    WindowMode,
};

use crate::clause::{Stop, Subject, unsupported};
use crate::graph::Frozen;

/// An opened device.
pub(crate) struct Stand {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) kernels: Vec<Kernel>,
    module: ModuleId,
}

/// An allocation of a stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mem {
    pub(crate) made: DeviceMemory,
    pub(crate) len: u64,
}

/// A granted mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    pub(crate) mem: Mem,
    pub(crate) address: NonNull<u8>,
    pub(crate) len: u64,
    pub(crate) identity: bool,
    pub(crate) windowed: bool,
}

impl Stand {
    pub(crate) fn open(subject: Subject<'_>, kernels: Vec<Kernel>) -> Result<Stand, Stop> {
        let device = subject.platform.open(subject.uri)?;
        let module = device.load_kernels(&kernels)?;
        Ok(Stand { device, kernels, module })
    }

    pub(crate) fn alloc(&self, len: u64) -> Result<Mem, Stop> {
        Ok(Mem { made: self.device.alloc(len)?, len })
    }

    /// An allocation that holds these words.
    pub(crate) fn words(&self, words: &[u64]) -> Result<Mem, Stop> {
        let mem = self.alloc(words.len() as u64 * 8)?;
        self.store(mem, 0, &bytes_of(words))?;
        Ok(mem)
    }

    pub(crate) fn free(&self, mem: Mem) -> Result<(), Stop> {
        // SAFETY: clauses free what they own when they are done with it.
        unsafe { self.device.free(mem.made.id) }.map_err(Stop::from)
    }

    pub(crate) fn store(&self, mem: Mem, offset: u64, bytes: &[u8]) -> Result<(), Stop> {
        // SAFETY: clauses store inside allocations that nothing else uses at the time.
        unsafe { self.device.copy_in(mem.made.id, offset, bytes) }.map_err(Stop::from)
    }

    pub(crate) fn load(&self, mem: Mem, offset: u64, len: u64) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0xa5; len as usize];
        // SAFETY: clauses load from inside allocations that nothing writes at the time.
        unsafe { self.device.copy_out(mem.made.id, offset, &mut bytes)? };
        Ok(bytes)
    }

    /// All words of an allocation.
    pub(crate) fn load_words(&self, mem: Mem) -> Result<Vec<u64>, Stop> {
        Ok(words_of(&self.load(mem, 0, mem.len / 8 * 8)?))
    }

    pub(crate) fn map_answer(&self, mem: Mem, offset: u64, len: u64) -> Result<MapAnswer, Stop> {
        // SAFETY: clauses map ranges inside live allocations.
        Ok(unsafe { self.device.map(mem.made.id, offset..offset + len)? })
    }

    /// A mapping of a range; the clause does not apply if this allocation has none.
    pub(crate) fn map(&self, mem: Mem, offset: u64, len: u64) -> Result<Host, Stop> {
        let (address, identity, windowed) = match self.map_answer(mem, offset, len)? {
            MapAnswer::Identity(address) => (address.0, true, false),
            MapAnswer::Mapped(address) => (address.0, false, false),
            MapAnswer::Windowed(address) => (address.0, false, true),
            MapAnswer::Refused { reason } => return unsupported(reason),
        };
        Ok(Host { mem, address, len, identity, windowed })
    }

    pub(crate) fn unmap(&self, host: Host) -> Result<(), Stop> {
        // SAFETY: clauses use a mapping only through the functions below, one call at a time.
        unsafe { self.device.unmap(host.mem.made.id) }.map_err(Stop::from)
    }

    pub(crate) fn open_window(&self, host: Host, mode: WindowMode) -> Result<(), Stop> {
        // SAFETY: as in `unmap`: no reference into the mapping is kept.
        unsafe { self.device.open_window(host.mem.made.id, mode) }.map_err(Stop::from)
    }

    pub(crate) fn close_window(&self, host: Host) -> Result<(), Stop> {
        // SAFETY: as above.
        unsafe { self.device.close_window(host.mem.made.id) }.map_err(Stop::from)
    }

    /// Stores through a mapping, inside a window if it needs one.
    pub(crate) fn host_store(&self, host: Host, offset: u64, bytes: &[u8]) -> Result<(), Stop> {
        assert!(offset + bytes.len() as u64 <= host.len);
        if host.windowed {
            self.open_window(host, WindowMode::Write)?;
        }
        // SAFETY: inside the mapping (asserted), which is open, and nothing else uses these bytes now.
        unsafe { host.address.as_ptr().add(offset as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        if host.windowed {
            self.close_window(host)?;
        }
        Ok(())
    }

    /// Loads through a mapping, inside a window if it needs one.
    pub(crate) fn host_load(&self, host: Host, offset: u64, len: u64) -> Result<Vec<u8>, Stop> {
        if host.windowed {
            self.open_window(host, WindowMode::Read)?;
        }
        let bytes = peek(host, offset, len);
        if host.windowed {
            self.close_window(host)?;
        }
        Ok(bytes)
    }

    /// Launches a graph whose memories are `mems`, in order.
    pub(crate) fn launch(&self, graph: &Frozen, mems: &[Mem]) -> Result<Arc<dyn Execution>, Stop> {
        self.launch_after(graph, mems, Vec::new())
    }

    /// The same, with pushes.
    pub(crate) fn launch_after(
        &self,
        graph: &Frozen,
        mems: &[Mem],
        pushes: Vec<Push>,
    ) -> Result<Arc<dyn Execution>, Stop> {
        let bindings = mems.iter().map(|mem| Binding { memory: mem.made.id, offset_bytes: 0 }).collect();
        self.launch_bound(graph, bindings, pushes)
    }

    /// The same, with any bindings.
    pub(crate) fn launch_bound(
        &self,
        graph: &Frozen,
        bindings: Vec<Binding>,
        pushes: Vec<Push>,
    ) -> Result<Arc<dyn Execution>, Stop> {
        let launch = Launch {
            image: Arc::clone(&graph.image),
            bindings,
            module: self.module,
            kernels: (0..self.kernels.len() as u16).collect(),
            pushes,
        };
        // SAFETY: the image is a builder's and was built with this module's kernels; clauses bind live memory of their own,
        // as large as they told the builder, and leave it alone until the launch has ended.
        unsafe { self.device.launch(launch) }.map_err(Stop::from)
    }

    /// Launches a graph and waits for its end.
    pub(crate) fn finish(&self, graph: &Frozen, mems: &[Mem]) -> Result<Completion, Stop> {
        ended(&*self.launch(graph, mems)?)
    }

    /// Launches a graph, waits for its end, and wants it to have succeeded.
    pub(crate) fn run(&self, graph: &Frozen, mems: &[Mem]) -> Result<Completion, Stop> {
        let completion = self.finish(graph, mems)?;
        completion.result.clone()?;
        Ok(completion)
    }

    /// Launches a graph, waits for its end, and wants it to have failed.
    pub(crate) fn run_to_failure(&self, graph: &Frozen, mems: &[Mem]) -> Result<LaunchError, Stop> {
        match self.finish(graph, mems)?.result {
            Ok(()) => Err(Stop::Failed("the launch succeeded, it should have failed".into())),
            Err(error) => Ok(error),
        }
    }
}

/// Loads through a mapping that is open.
pub(crate) fn peek(host: Host, offset: u64, len: u64) -> Vec<u8> {
    assert!(offset + len <= host.len);
    let mut bytes = vec![0; len as usize];
    // SAFETY: inside the mapping (asserted), which is open, and nothing writes these bytes now.
    unsafe { host.address.as_ptr().add(offset as usize).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// How a launch ended, without waiting for ever.
pub(crate) fn ended(execution: &dyn Execution) -> Result<Completion, Stop> {
    match execution.wait(None) {
        Some(completion) => Ok(completion),
        None => Err(Stop::Failed("a wait without timeout ended before the launch".into())),
    }
}

/// The same for a clause in which a broken device might hang: fails after a generous time, naming what runs.
pub(crate) fn ended_in_time(execution: &dyn Execution) -> Result<Completion, Stop> {
    match execution.wait(Some(Duration::from_secs(30))) {
        Some(completion) => Ok(completion),
        None => Err(Stop::Failed(format!("no end after 30 s; running: {:?}", execution.running()))),
    }
}

pub(crate) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

/// Bytes that differ from their neighbours and from those of another seed.
pub(crate) fn pattern(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
