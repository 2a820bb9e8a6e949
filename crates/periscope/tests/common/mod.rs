//! What the tests of the runtime share: a watched device on every profile, kernels, short forms.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part of it")]

use std::sync::Arc;

use periscope::{
    Arg, Callable, Context, CoreKind, Device, Direction, Error, ErrorKind, Kernel, KernelId, MemoryCounts,
    MemorySettings, Report, Resident, Tensor,
};
pub use periscope_cts::faults::{Faulty, PROFILES};
use periscope_hal::{Device as _, DeviceCounters};

pub const IN: Direction = Direction::In;
pub const OUT: Direction = Direction::Out;
pub const INOUT: Direction = Direction::InOut;

/// `out = in`
pub const COPY: KernelId = KernelId(0);
/// `inout += scalar`
pub const ADD: KernelId = KernelId(1);
/// `out = scalar`
pub const FILL: KernelId = KernelId(2);
/// Writes the first element of `inout`, then fails.
pub const FAIL: KernelId = KernelId(3);
/// Panics, having written nothing.
pub const PANIC: KernelId = KernelId(4);
/// Reads.
pub const READ: KernelId = KernelId(5);
/// `out = in + in`, of two inputs.
pub const SUM: KernelId = KernelId(6);

/// Calls `visit` with each index of a shape, in row-major order.
pub fn for_each_index(shape: &[u64], mut visit: impl FnMut(&[u64])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        visit(&index);
        let Some(dim) = (0..shape.len()).rev().find(|&dim| index[dim] + 1 < shape[dim]) else { return };
        index[dim] += 1;
        index[dim + 1..].fill(0);
    }
}

fn with_kernels(mut builder: periscope::CallableBuilder) -> periscope::CallableBuilder {
    let kernels = [
        Kernel::host("copy", CoreKind::Vector, |args| {
            let from = args.input::<i32>(0)?.to_vec();
            args.output::<i32>(1)?.copy_from_slice(&from);
            Ok(())
        })
        .input::<i32>()
        .output::<i32>(),
        Kernel::host("add", CoreKind::Vector, |args| {
            let term = args.scalar(0)? as i32;
            let mut inout = args.output::<i32>(0)?;
            let shape = inout.shape().to_vec();
            for_each_index(&shape, |index| {
                let value = inout.get(index).unwrap();
                inout.set(index, value.wrapping_add(term)).unwrap();
            });
            Ok(())
        })
        .inout::<i32>()
        .scalars(1),
        Kernel::host("fill", CoreKind::Vector, |args| {
            args.output::<i32>(0)?.fill(args.scalar(0)? as i32);
            Ok(())
        })
        .output::<i32>()
        .scalars(1),
        Kernel::host("fail", CoreKind::Vector, |args| {
            let mut inout = args.output::<i32>(0)?;
            let first = vec![0; inout.shape().len()];
            inout.set(&first, -1)?;
            Err("as it was asked to".into())
        })
        .inout::<i32>(),
        Kernel::host("panic", CoreKind::Vector, |_| panic!("as it was asked to")).inout::<i32>(),
        Kernel::host("read", CoreKind::Vector, |args| args.input::<i32>(0).map(|_| ())).input::<i32>(),
        Kernel::host("sum", CoreKind::Vector, |args| {
            let (a, b) = (args.input::<i32>(0)?.to_vec(), args.input::<i32>(1)?.to_vec());
            let sums: Vec<i32> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
            args.output::<i32>(2)?.copy_from_slice(&sums);
            Ok(())
        })
        .input::<i32>()
        .input::<i32>()
        .output::<i32>(),
    ];
    for (id, kernel) in kernels.into_iter().enumerate() {
        builder = builder.kernel(KernelId(id as u16), kernel);
    }
    builder
}

/// A callable with the kernels above.
pub fn callable(
    params: &[(&str, Direction)],
    orchestration: impl Fn(&mut Context<'_>, &[Tensor]) -> Result<(), Error> + Send + Sync + 'static,
) -> Callable {
    let mut builder = Callable::builder("test");
    for &(name, direction) in params {
        builder = match direction {
            Direction::In => builder.input(name),
            Direction::Out => builder.output(name),
            Direction::InOut => builder.inout(name),
        };
    }
    with_kernels(builder).orchestrate(orchestration)
}

/// An opened device that is watched and can be troubled.
#[derive(Clone, Debug)]
pub struct Bench {
    pub uri: &'static str,
    pub device: Device,
    pub spy: Arc<Faulty>,
}

impl Bench {
    pub fn open(uri: &'static str) -> Bench {
        Bench::open_with(uri, MemorySettings::default())
    }

    pub fn open_with(uri: &'static str, settings: MemorySettings) -> Bench {
        let spy = Faulty::open(uri);
        let device = Device::from_hal(Arc::clone(&spy) as Arc<dyn periscope_hal::Device>, settings);
        // The start-up probe's own.
        spy.forget_calls();
        Bench { uri, device, spy }
    }

    /// Whether small allocations are mirrored here.
    pub fn mirrors(&self) -> bool {
        matches!(self.uri, "sim:a2a3-64k" | "sim:a5")
    }

    /// Everything countable; sleeping threads that were woken are not.
    pub fn counts(&self) -> (MemoryCounts, DeviceCounters) {
        (self.device.counts(), DeviceCounters { wakes: 0, ..self.spy.counters() })
    }

    pub fn upload(&self, elements: &[i32]) -> Resident {
        self.device.upload([elements.len() as u64], elements).unwrap()
    }

    pub fn read(&self, resident: &Resident) -> Vec<i32> {
        self.device.read::<i32>(resident).unwrap()
    }

    /// Runs an orchestration once.
    pub fn run(
        &self,
        params: &[(&str, Direction)],
        args: &mut [Arg<'_>],
        orchestration: impl Fn(&mut Context<'_>, &[Tensor]) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Result<Report, Error> {
        self.device.run(&callable(params, orchestration), args)
    }

    /// The device still runs, reads and writes as it should.
    pub fn assert_works(&self) {
        let resident = self.upload(&[1, 2, 3]);
        let mut out = [0; 3];
        let args = &mut [Arg::from(&resident), Arg::write(&[3], &mut out).unwrap()];
        self.run(&[("from", IN), ("to", OUT)], args, |ctx, tensors| {
            assert_eq!(ctx.read::<i32>(tensors[0], [1])?, 2);
            ctx.task(COPY).input(tensors[0]).output(tensors[1]).submit()?;
            Ok(())
        })
        .unwrap();
        assert_eq!(out, [1, 2, 3], "{}", self.uri);
    }
}

/// Calls `test` with a new device of each profile.
pub fn everywhere(test: impl Fn(&Bench)) {
    for uri in PROFILES {
        test(&Bench::open(uri));
    }
}

/// A way to touch a tensor of `i32`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    Read,
    ReadBits,
    ReadInto,
    View,
    Write,
    WriteBits,
    WriteFrom,
    ViewMut,
}

pub const READS: [Touch; 4] = [Touch::Read, Touch::ReadBits, Touch::ReadInto, Touch::View];
pub const WRITES: [Touch; 4] = [Touch::Write, Touch::WriteBits, Touch::WriteFrom, Touch::ViewMut];

impl Touch {
    /// Reads all elements of a tensor of one dimension, or sets them to `values`.
    pub fn apply(self, ctx: &mut Context<'_>, tensor: &Tensor, values: &[i32]) -> Result<Vec<i32>, Error> {
        const UNTOUCHED: i32 = 0x5555_5555;
        let len = tensor.num_elems();
        match self {
            Touch::Read => (0..len).map(|i| ctx.read::<i32>(tensor, [i])).collect(),
            Touch::ReadBits => (0..len).map(|i| Ok(ctx.read_bits(tensor, [i])? as u32 as i32)).collect(),
            Touch::ReadInto => {
                let mut to = vec![UNTOUCHED; len as usize];
                let result = ctx.read_into(tensor, &mut to);
                if result.is_err() {
                    assert!(to.iter().all(|&element| element == UNTOUCHED), "a refusal changed its destination");
                }
                result.map(|()| to)
            }
            Touch::View => ctx.view::<i32>(tensor).map(|view| view.to_vec()),
            Touch::Write => {
                (0..len).try_for_each(|i| ctx.write(tensor, [i], values[i as usize])).map(|()| values.to_vec())
            }
            Touch::WriteBits => (0..len)
                .try_for_each(|i| ctx.write_bits(tensor, [i], u64::from(values[i as usize] as u32)))
                .map(|()| values.to_vec()),
            Touch::WriteFrom => ctx.write_from(tensor, values).map(|()| values.to_vec()),
            Touch::ViewMut => {
                let mut view = ctx.view_mut::<i32>(tensor)?;
                view.copy_from_slice(values);
                Ok(values.to_vec())
            }
        }
    }
}

/// A refused access: its code, and the words that its message must have.
#[track_caller]
pub fn assert_refused<T: std::fmt::Debug>(result: Result<T, Error>, code: u32, words: &[&str]) -> ErrorKind {
    let error = result.expect_err("this must be refused");
    let message = error.to_string();
    assert_eq!(error.code(), code, "{message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    error.kind().clone()
}
