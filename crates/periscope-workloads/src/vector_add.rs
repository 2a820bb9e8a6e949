//! f = (a + b + 1)(a + b + 2), as four tasks: the smallest graph with a fork and a join.

use periscope::{Callable, CoreKind, DType, Direction, HostTensor, Kernel, KernelArgs, KernelError, KernelId};
use rand::Rng;

use crate::check::Expected;
use crate::random::stream;
use crate::session::{entry, output};
use crate::workload::{Case, Prepared, Progress, Role, Workload, WorkloadError};

const ADD: KernelId = KernelId(0);
const ADD_SCALAR: KernelId = KernelId(1);
const MUL: KernelId = KernelId(2);
const ELEMS: u64 = 16_384;

/// f = (a + b + 1)(a + b + 2), as four tasks.
#[derive(Clone, Copy, Debug)]
pub struct VectorAdd;

fn slice<'a>(args: &KernelArgs<'a>, position: usize) -> Result<&'a [f32], KernelError> {
    args.input::<f32>(position)?.as_slice().ok_or_else(|| format!("argument {position} has gaps").into())
}

fn binary(args: &KernelArgs<'_>, op: impl Fn(f32, f32) -> f32) -> Result<(), KernelError> {
    let (a, b) = (slice(args, 0)?, slice(args, 1)?);
    let mut out = args.output::<f32>(2)?;
    let out = out.as_mut_slice().ok_or("the output has gaps")?;
    if a.len() != out.len() || b.len() != out.len() {
        return Err("operands of different lengths".into());
    }
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = op(*a, *b);
    }
    Ok(())
}

fn callable() -> Callable {
    Callable::builder("vector_add")
        .input("a")
        .input("b")
        .output("f")
        .kernel(
            ADD,
            Kernel::host("add", CoreKind::Vector, |args| binary(args, |a, b| a + b))
                .input::<f32>()
                .input::<f32>()
                .output::<f32>(),
        )
        .kernel(
            ADD_SCALAR,
            Kernel::host("add_scalar", CoreKind::Vector, |args| {
                let term = f32::from_bits(args.scalar(0)? as u32);
                let a = slice(args, 0)?;
                let mut out = args.output::<f32>(1)?;
                for (out, a) in out.as_mut_slice().ok_or("the output has gaps")?.iter_mut().zip(a) {
                    *out = a + term;
                }
                Ok(())
            })
            .input::<f32>()
            .output::<f32>()
            .scalars(1),
        )
        .kernel(
            MUL,
            Kernel::host("mul", CoreKind::Vector, |args| binary(args, |a, b| a * b))
                .input::<f32>()
                .input::<f32>()
                .output::<f32>(),
        )
        .orchestrate(|ctx, args| {
            let [a, b, f] = args else { unreachable!("the signature has three tensors") };
            let (sum, plus_one, plus_two) =
                (ctx.alloc::<f32>(a.shape())?, ctx.alloc::<f32>(a.shape())?, ctx.alloc::<f32>(a.shape())?);
            ctx.task(ADD).input(a).input(b).output(sum).submit()?;
            ctx.task(ADD_SCALAR).input(sum).output(plus_one).scalar(u64::from(1f32.to_bits())).submit()?;
            ctx.task(ADD_SCALAR).input(sum).output(plus_two).scalar(u64::from(2f32.to_bits())).submit()?;
            ctx.task(MUL).input(plus_one).input(plus_two).output(f).submit()?;
            Ok(())
        })
}

impl Workload for VectorAdd {
    fn name(&self) -> &'static str {
        "vector_add"
    }

    fn about(&self) -> &'static str {
        "f = (a + b + 1)(a + b + 2) as four tasks"
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case { name: "default", about: format!("{ELEMS} f32") }]
    }

    fn default_case(&self) -> &'static str {
        "default"
    }

    fn prepare(&self, case: &str, seed: u64, _progress: &dyn Progress) -> Result<Prepared, WorkloadError> {
        if case != "default" {
            return Err(self.unknown_case(case));
        }
        let mut generator = stream(seed, 0);
        let mut draw = || (0..ELEMS).map(|_| generator.random_range(-1.0f32..1.0)).collect::<Vec<f32>>();
        let (a, b) = (draw(), draw());
        let f: Vec<f32> = a
            .iter()
            .zip(&b)
            .map(|(&a, &b)| ((f64::from(a) + f64::from(b) + 1.0) * (f64::from(a) + f64::from(b) + 2.0)) as f32)
            .collect();
        Ok(Prepared {
            callable: callable(),
            tensors: vec![
                entry("a", Direction::In, Role::Large, HostTensor::from_slice(&[ELEMS], &a)?),
                entry("b", Direction::In, Role::Large, HostTensor::from_slice(&[ELEMS], &b)?),
                output("f", Role::Large, DType::F32, &[ELEMS])?,
            ],
            scalars: Vec::new(),
            expected: vec![Expected {
                tensor: 2,
                values: HostTensor::from_slice(&[ELEMS], &f)?,
                rtol: 1e-5,
                atol: 1e-5,
            }],
            flops: 0,
        })
    }
}
