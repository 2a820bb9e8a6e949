//! Invalid submissions and accesses: each is refused with its own error, and the graph and the tensors are as before.

use periscope::{
    Access, Callable, Context, CoreKind, DType, Device, Direction, Error, ErrorKind, HostTensor, Kernel, KernelArgs,
    KernelId, SubmitError, TaskDesc, Tensor,
};

use crate::check::Expected;
use crate::session::{entry, output};
use crate::workload::{Case, Prepared, Progress, Role, Workload, WorkloadError};

const INCREMENT: KernelId = KernelId(0);
const TOGETHER: KernelId = KernelId(1);
const ELEMS: u64 = 64;

/// Invalid submissions and accesses, each refused with its own error.
#[derive(Clone, Copy, Debug)]
pub struct Validation;

/// Runs something that must be refused, and says so if it is not refused as expected.
fn refused<T>(what: &str, result: Result<T, Error>, expected: impl Fn(&ErrorKind) -> bool) -> Result<(), Error> {
    match result {
        Err(error) if expected(error.kind()) => Ok(()),
        Err(error) => Err(Error::orchestration(format!("{what}: refused for another reason: {error}"))),
        Ok(_) => Err(Error::orchestration(format!("{what}: was not refused"))),
    }
}

fn submit_error(kind: &ErrorKind) -> Option<&SubmitError> {
    match kind {
        ErrorKind::Submit { source, .. } => Some(source),
        _ => None,
    }
}

fn orchestrate(ctx: &mut Context<'_>, args: &[Tensor], foreign: Tensor) -> Result<(), Error> {
    let [input, out] = args else { unreachable!("the signature has two tensors") };
    let accesses = [
        Access { tensor: *input, direction: Direction::In, split_dim: Some(0) },
        Access { tensor: *out, direction: Direction::Out, split_dim: Some(0) },
    ];
    let blocks = |kernels: &'static [KernelId], blocks, start_together| TaskDesc {
        kernels,
        blocks,
        start_together,
        accesses: &accesses,
        ..TaskDesc::default()
    };
    refused("zero blocks", ctx.submit(&blocks(&[INCREMENT], 0, false)), |kind| {
        matches!(submit_error(kind), Some(SubmitError::NoBlocks))
    })?;
    let cores = ctx.cores(CoreKind::Vector);
    let too_many = cores.next_power_of_two() * 2;
    let wide = ctx.alloc::<f32>([u64::from(too_many)])?;
    let wide_accesses = [Access { tensor: wide, direction: Direction::InOut, split_dim: Some(0) }];
    let wide_task = TaskDesc {
        kernels: &[TOGETHER],
        accesses: &wide_accesses,
        blocks: too_many,
        start_together: true,
        ..TaskDesc::default()
    };
    refused("too many blocks that start together", ctx.submit(&wide_task), |kind| {
        matches!(submit_error(kind), Some(SubmitError::TooManyBlocks { .. }))
    })?;
    refused("read through a forged owner", ctx.read::<f32>(foreign, [0]), |kind| {
        matches!(kind, ErrorKind::Foreign { .. })
    })?;
    refused("write through a forged owner", ctx.write(foreign, [0], 1f32), |kind| {
        matches!(kind, ErrorKind::Foreign { .. })
    })?;
    refused("task on a forged owner", ctx.task(INCREMENT).input(foreign).output(out).submit(), |kind| {
        matches!(kind, ErrorKind::Foreign { .. })
    })?;
    refused("an index of the wrong rank", ctx.read::<f32>(input, [0, 0]), |kind| {
        matches!(kind, ErrorKind::Index { .. })
    })?;
    refused("an index out of shape", ctx.read::<f32>(input, [ELEMS]), |kind| matches!(kind, ErrorKind::Index { .. }))?;
    let half = input.slice(0, 0..ELEMS / 2)?;
    refused("an index beyond a view, within its tensor", ctx.read::<f32>(half, [ELEMS / 2]), |kind| {
        matches!(kind, ErrorKind::Index { .. })
    })?;
    refused("another element type", ctx.read::<i32>(input, [0]), |kind| matches!(kind, ErrorKind::DType { .. }))?;
    refused("writing an IN", ctx.task(INCREMENT).input(out).output(input).submit(), |kind| {
        matches!(submit_error(kind), Some(SubmitError::NotAnOutput { .. }))
    })?;
    refused("arguments that overlap", ctx.task(INCREMENT).input(out).output(out).submit(), |kind| {
        matches!(submit_error(kind), Some(SubmitError::ArgumentsOverlap { .. }))
    })?;
    if ctx.task_count() != 0 {
        return Err(Error::orchestration("a refused task was counted"));
    }
    ctx.task(INCREMENT).input(input).output(out).submit()?;
    refused("reading what a task writes", ctx.read::<f32>(out, [0]), |kind| {
        matches!(kind, ErrorKind::HasWriter { .. })
    })?;
    refused("writing what a task reads", ctx.write(input, [0], 1f32), |kind| {
        matches!(kind, ErrorKind::HasReader { .. })
    })?;
    Ok(())
}

impl Workload for Validation {
    fn name(&self) -> &'static str {
        "validation"
    }

    fn about(&self) -> &'static str {
        "invalid submissions and accesses: each is refused with its own error, and nothing changes"
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case { name: "default", about: "13 refusals around one valid task".into() }]
    }

    fn default_case(&self) -> &'static str {
        "default"
    }

    fn prepare(&self, case: &str, _seed: u64, _progress: &dyn Progress) -> Result<Prepared, WorkloadError> {
        if case != "default" {
            return Err(self.unknown_case(case));
        }
        // A tensor of another device: to this run's device, a forged owner.
        let other = Device::open("sim")?.upload([ELEMS], &[0f32; ELEMS as usize])?;
        let callable = Callable::builder("validation")
            .input("input")
            .output("out")
            .kernel(
                INCREMENT,
                Kernel::host("increment", CoreKind::Vector, |args: &KernelArgs<'_>| {
                    let values: Vec<f32> = args.input::<f32>(0)?.to_vec().iter().map(|value| value + 1.0).collect();
                    args.output::<f32>(1)?.copy_from_slice(&values);
                    Ok(())
                })
                .input::<f32>()
                .output::<f32>(),
            )
            .kernel(TOGETHER, Kernel::host("together", CoreKind::Vector, |_| Ok(())).inout::<f32>())
            .orchestrate(move |ctx, args| orchestrate(ctx, args, other.tensor()));
        let values: Vec<f32> = (0..ELEMS).map(|i| i as f32).collect();
        let incremented: Vec<f32> = values.iter().map(|value| value + 1.0).collect();
        let exactly = |tensor, values: &[f32]| -> Result<Expected, WorkloadError> {
            Ok(Expected { tensor, values: HostTensor::from_slice(&[ELEMS], values)?, rtol: 0.0, atol: 0.0 })
        };
        Ok(Prepared {
            callable,
            tensors: vec![
                entry("input", Direction::In, Role::Control, HostTensor::from_slice(&[ELEMS], &values)?),
                output("out", Role::Large, DType::F32, &[ELEMS])?,
            ],
            scalars: Vec::new(),
            expected: vec![exactly(0, &values)?, exactly(1, &incremented)?],
            flops: 0,
        })
    }
}
