//! A graph is frozen, written to a file, its builder dropped, and executed by another process with the same kernels.

use std::path::Path;
use std::process::Command;

use periscope::{Callable, CoreKind, Device, ErrorKind, Image, ImageError, Kernel, KernelId};

const SCALE: KernelId = KernelId(0);
const ADD: KernelId = KernelId(1);
/// Tells the other process which file to execute.
const FILE: &str = "PERISCOPE_TEST_IMAGE";

fn scale() -> Kernel {
    Kernel::host("scale", CoreKind::Vector, |args| {
        let factor = args.scalar(0)? as f32;
        let scaled: Vec<f32> = args.input::<f32>(0)?.to_vec().iter().map(|value| value * factor).collect();
        args.output::<f32>(1)?.copy_from_slice(&scaled);
        Ok(())
    })
    .input::<f32>()
    .output::<f32>()
    .scalars(1)
}

fn add() -> Kernel {
    Kernel::host("add", CoreKind::Vector, |args| {
        let (a, b) = (args.input::<f32>(0)?.to_vec(), args.input::<f32>(1)?.to_vec());
        let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        args.output::<f32>(2)?.copy_from_slice(&sum);
        Ok(())
    })
    .input::<f32>()
    .input::<f32>()
    .output::<f32>()
}

/// out = rows of `x` scaled by `factors`, plus a constant that the orchestrator writes into graph memory. The
/// orchestrator also changes an element of `x`, which the image must carry.
fn builder() -> Callable {
    Callable::builder("rows")
        .input("x")
        .input("factors")
        .output("out")
        .kernel(SCALE, scale())
        .kernel(ADD, add())
        .orchestrate(|ctx, args| {
            let [x, factors, out] = args else { unreachable!() };
            ctx.write(x, [0, 0], 100f32)?;
            let constant = ctx.alloc::<f32>([x.dim(1)])?;
            ctx.write_from(constant, &vec![0.5f32; x.dim(1) as usize])?;
            for row in 0..x.dim(0) {
                let scaled = ctx.alloc::<f32>([x.dim(1)])?;
                let factor = ctx.read::<i32>(factors, [row])? as u64;
                ctx.task(SCALE).input(x.index(0, row)?).output(scaled).scalar(factor).submit()?;
                ctx.task(ADD).input(scaled).input(constant).output(out.index(0, row)?).submit()?;
            }
            Ok(())
        })
}

/// The same kernels in another order, and no orchestration worth the name.
fn executor() -> Callable {
    Callable::builder("executor").kernel(KernelId(0), add()).kernel(KernelId(1), scale()).orchestrate(|_, _| Ok(()))
}

const X: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
const FACTORS: [i32; 2] = [2, 10];
const EXPECTED: [f32; 6] = [200.5, 4.5, 6.5, 40.5, 50.5, 60.5];

fn execute(image: Image, uri: &str, resident: bool) -> Vec<f32> {
    let device = Device::open(uri).unwrap();
    if resident {
        let x = device.upload([2, 3], &X).unwrap();
        let factors = device.upload([2], &FACTORS).unwrap();
        let out = device.alloc_uninit::<f32>([2, 3]).unwrap();
        device.run_image(image, &executor(), &mut [(&x).into(), (&factors).into(), (&out).into()]).unwrap();
        return device.read::<f32>(&out).unwrap();
    }
    let mut out = [0f32; 6];
    let mut args = [
        periscope::Arg::read(&[2, 3], &X).unwrap(),
        periscope::Arg::read(&[2], &FACTORS).unwrap(),
        periscope::Arg::write(&[2, 3], &mut out).unwrap(),
    ];
    device.run_image(image, &executor(), &mut args).unwrap();
    out.to_vec()
}

fn freeze(uri: &str) -> Image {
    let device = Device::open(uri).unwrap();
    let x = device.upload([2, 3], &X).unwrap();
    let factors = device.upload([2], &FACTORS).unwrap();
    let out = device.alloc_uninit::<f32>([2, 3]).unwrap();
    device.freeze(&builder(), &mut [(&x).into(), (&factors).into(), (&out).into()], &[]).unwrap()
}

/// Does nothing by itself: the other test starts this binary again to run it.
#[test]
fn other_process_executes_the_file() {
    let Ok(file) = std::env::var(FILE) else { return };
    for uri in ["sim", "sim:a2a3", "sim:a5", "sim:windowed"] {
        for resident in [false, true] {
            let image = Image::decode(&std::fs::read(&file).unwrap()).unwrap();
            assert_eq!(execute(image, uri, resident), EXPECTED, "{uri}");
        }
    }
    std::fs::write(format!("{file}.done"), "executed").unwrap();
}

#[test]
fn a_frozen_graph_executes_in_another_process() {
    for uri in ["sim", "sim:a5"] {
        let folder =
            std::env::temp_dir().join(format!("periscope-image-{}-{}", std::process::id(), uri.replace(':', "-")));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("graph.image");
        // Builder, device and tensors are gone when the file is executed.
        std::fs::write(&file, freeze(uri).encode()).unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_process_executes_the_file"])
            .env(FILE, &file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let done = format!("{}.done", file.display());
        assert!(Path::new(&done).exists(), "the other process did not run the test");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn an_image_that_does_not_fit_is_refused() {
    let image = freeze("sim");
    let device = Device::open("sim").unwrap();
    let x = device.upload([2, 3], &X).unwrap();
    let wrong_shape = device.upload([3], &[1i32; 3]).unwrap();
    let factors = device.upload([2], &FACTORS).unwrap();
    let out = device.alloc_uninit::<f32>([2, 3]).unwrap();
    let refuse = |callable: &Callable, args: &mut [periscope::Arg<'_>]| {
        device.run_image(image.clone(), callable, args).unwrap_err()
    };
    let error = refuse(&executor(), &mut [(&x).into(), (&wrong_shape).into(), (&out).into()]);
    assert!(matches!(error.kind(), ErrorKind::ImageMismatch { problem } if problem.contains("factors")), "{error}");
    let error = refuse(&executor(), &mut [(&x).into(), (&factors).into()]);
    assert!(matches!(error.kind(), ErrorKind::ArgumentCount { expected: 3, got: 2, .. }), "{error}");
    let no_kernels = Callable::builder("none").orchestrate(|_, _| Ok(()));
    let error = refuse(&no_kernels, &mut [(&x).into(), (&factors).into(), (&out).into()]);
    assert!(matches!(error.kind(), ErrorKind::ImageMismatch { problem } if problem.contains("scale")), "{error}");
    let other = Kernel::host("scale", CoreKind::Vector, |_| Ok(())).input::<f32>().output::<f32>();
    let changed =
        Callable::builder("changed").kernel(KernelId(0), other).kernel(KernelId(1), add()).orchestrate(|_, _| Ok(()));
    let error = refuse(&changed, &mut [(&x).into(), (&factors).into(), (&out).into()]);
    assert!(
        matches!(error.kind(), ErrorKind::ImageMismatch { problem } if problem.contains("other arguments")),
        "{error}"
    );
    // Two entry tensors that were apart must not share memory now.
    let both = device.upload([4, 3], &[0f32; 12]).unwrap();
    let (first, second) = (both.slice(0, 0..2).unwrap(), both.slice(0, 2..4).unwrap());
    let error = refuse(&executor(), &mut [(&first).into(), (&factors).into(), (&second).into()]);
    assert!(matches!(error.kind(), ErrorKind::ImageMismatch { .. }), "{error}");
    assert_eq!(device.read::<f32>(&x).unwrap(), X);
}

#[test]
fn a_damaged_file_is_refused() {
    let bytes = freeze("sim").encode();
    assert!(matches!(Image::decode(&bytes[..bytes.len() - 8]), Err(ImageError::Length { .. })));
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(Image::decode(&damaged), Err(ImageError::Checksum { .. })));
    let mut foreign = bytes;
    foreign[0] = b'X';
    assert!(matches!(Image::decode(&foreign), Err(ImageError::Magic { .. })));
}
