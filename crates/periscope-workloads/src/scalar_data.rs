//! Control tensors of every element type, read and written by the orchestrator at their first, an interior and their last
//! element, and copied by a kernel. Everything is compared bit for bit.

use half::{bf16, f16};
use periscope::{
    Callable, Context, CoreKind, DType, Direction, Element, Error, HostTensor, Kernel, KernelArgs, KernelError,
    KernelId, Tensor,
};
use rand::Rng;

use crate::check::Expected;
use crate::random::stream;
use crate::session::{entry, output};
use crate::workload::{Case, Prepared, Progress, Role, Workload, WorkloadError};

const SHAPE: [u64; 2] = [5, 7];
const FIRST: [u64; 2] = [0, 0];
const INTERIOR: [u64; 2] = [2, 3];
const LAST: [u64; 2] = [4, 6];

/// The types that can be read as numbers, with the names of their tensors.
const TYPES: [(DType, &str, &str); 13] = [
    (DType::F64, "control_f64", "copy_f64"),
    (DType::F32, "control_f32", "copy_f32"),
    (DType::F16, "control_f16", "copy_f16"),
    (DType::BF16, "control_bf16", "copy_bf16"),
    (DType::I8, "control_i8", "copy_i8"),
    (DType::I16, "control_i16", "copy_i16"),
    (DType::I32, "control_i32", "copy_i32"),
    (DType::I64, "control_i64", "copy_i64"),
    (DType::U8, "control_u8", "copy_u8"),
    (DType::U16, "control_u16", "copy_u16"),
    (DType::U32, "control_u32", "copy_u32"),
    (DType::U64, "control_u64", "copy_u64"),
    (DType::Bool, "control_bool", "copy_bool"),
];

/// Control tensors of every element type, read and written by the orchestrator; compared bit for bit.
#[derive(Clone, Copy, Debug)]
pub struct ScalarData;

fn copy<T: Element>(args: &KernelArgs<'_>) -> Result<(), KernelError> {
    let values = args.input::<T>(0)?.to_vec();
    args.output::<T>(1)?.copy_from_slice(&values);
    Ok(())
}

fn copy_kernel<T: Element>() -> Kernel {
    Kernel::host(&format!("copy_{}", T::DTYPE), CoreKind::Vector, copy::<T>).input::<T>().output::<T>()
}

fn kernels() -> [Kernel; TYPES.len()] {
    [
        copy_kernel::<f64>(),
        copy_kernel::<f32>(),
        copy_kernel::<f16>(),
        copy_kernel::<bf16>(),
        copy_kernel::<i8>(),
        copy_kernel::<i16>(),
        copy_kernel::<i32>(),
        copy_kernel::<i64>(),
        copy_kernel::<u8>(),
        copy_kernel::<u16>(),
        copy_kernel::<u32>(),
        copy_kernel::<u64>(),
        copy_kernel::<bool>(),
    ]
}

/// Reads and writes one tensor through its own type, and returns what was read.
fn touch<T: Element>(ctx: &mut Context<'_>, tensor: &Tensor) -> Result<[u64; 3], Error> {
    let first = ctx.read::<T>(tensor, FIRST)?;
    let interior = ctx.read::<T>(tensor, INTERIOR)?;
    let last = ctx.read::<T>(tensor, LAST)?;
    // The ends change places, the interior is written back through its bits with the lowest one flipped.
    ctx.write(tensor, FIRST, last)?;
    ctx.write(tensor, LAST, first)?;
    ctx.write_bits(tensor, INTERIOR, ctx.read_bits(tensor, INTERIOR)? ^ 1)?;
    Ok([first.to_bits64(), interior.to_bits64(), last.to_bits64()])
}

/// Reads and writes one tensor, and returns what was read.
type Touch = fn(&mut Context<'_>, &Tensor) -> Result<[u64; 3], Error>;

fn orchestrate(ctx: &mut Context<'_>, args: &[Tensor]) -> Result<(), Error> {
    let touches: [Touch; TYPES.len()] = [
        touch::<f64>,
        touch::<f32>,
        touch::<f16>,
        touch::<bf16>,
        touch::<i8>,
        touch::<i16>,
        touch::<i32>,
        touch::<i64>,
        touch::<u8>,
        touch::<u16>,
        touch::<u32>,
        touch::<u64>,
        touch::<bool>,
    ];
    let (controls, rest) = args.split_at(TYPES.len());
    let (copies, seen) = rest.split_at(TYPES.len());
    for (position, touch) in touches.iter().enumerate() {
        let read = touch(ctx, &controls[position])?;
        ctx.write_from(seen[0].index(0, position as u64)?, &read)?;
        ctx.task(KernelId(position as u16)).input(controls[position]).output(copies[position]).submit()?;
        // Reading what a task reads is always possible; this is its new value.
        let written = ctx.read_bits(controls[position], FIRST)?;
        if written != read[2] {
            return Err(Error::orchestration(format!(
                "{}: wrote {:#x}, read {written:#x}",
                TYPES[position].1, read[2]
            )));
        }
    }
    Ok(())
}

impl Workload for ScalarData {
    fn name(&self) -> &'static str {
        "scalar_data"
    }

    fn about(&self) -> &'static str {
        "the orchestrator reads and writes control tensors of every element type; exact"
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case { name: "default", about: format!("{} tensors of shape {SHAPE:?}", TYPES.len()) }]
    }

    fn default_case(&self) -> &'static str {
        "default"
    }

    fn prepare(&self, case: &str, seed: u64, _progress: &dyn Progress) -> Result<Prepared, WorkloadError> {
        if case != "default" {
            return Err(self.unknown_case(case));
        }
        let mut generator = stream(seed, 0);
        let mut builder = Callable::builder("scalar_data");
        let (mut controls, mut copies, mut expected, mut seen) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (position, &(dtype, control, copy)) in TYPES.iter().enumerate() {
            let mut before = HostTensor::zeros(dtype, &SHAPE)?;
            for byte in before.bytes_mut() {
                // Any bits will do but for bool, whose values are 0 and 1.
                *byte = if dtype == DType::Bool { generator.random_range(0..2) } else { generator.random() };
            }
            let size = dtype.size_bytes() as usize;
            let at = |index: [u64; 2]| {
                let start = (index[0] * SHAPE[1] + index[1]) as usize * size;
                start..start + size
            };
            let mut after = before.clone();
            after.bytes_mut()[at(FIRST)].copy_from_slice(&before.bytes()[at(LAST)]);
            after.bytes_mut()[at(LAST)].copy_from_slice(&before.bytes()[at(FIRST)]);
            after.bytes_mut()[at(INTERIOR).start] ^= 1;
            for index in [FIRST, INTERIOR, LAST] {
                let mut word = [0; 8];
                word[..size].copy_from_slice(&before.bytes()[at(index)]);
                seen.push(u64::from_le_bytes(word));
            }
            for tensor in [position, TYPES.len() + position] {
                expected.push(Expected { tensor, values: after.clone(), rtol: 0.0, atol: 0.0 });
            }
            controls.push(entry(control, Direction::InOut, Role::Control, before));
            copies.push(output(copy, Role::Large, dtype, &SHAPE)?);
        }
        let seen_shape = [TYPES.len() as u64, 3];
        let seen_at = 2 * TYPES.len();
        expected.push(Expected {
            tensor: seen_at,
            values: HostTensor::from_slice(&seen_shape, &seen)?,
            rtol: 0.0,
            atol: 0.0,
        });
        let mut tensors = controls;
        tensors.extend(copies);
        tensors.push(output("seen", Role::Control, DType::U64, &seen_shape)?);
        for tensor in &tensors {
            builder = if tensor.direction == Direction::InOut {
                builder.inout(tensor.name)
            } else {
                builder.output(tensor.name)
            };
        }
        for (position, kernel) in kernels().into_iter().enumerate() {
            builder = builder.kernel(KernelId(position as u16), kernel);
        }
        Ok(Prepared { callable: builder.orchestrate(orchestrate), tensors, scalars: Vec::new(), expected, flops: 0 })
    }
}
