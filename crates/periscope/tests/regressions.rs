//! Promises that a reader of the code found broken once: each stays as a test.

use periscope::{
    Arg, Callable, Comparison, CoreKind, Device, DeviceOptions, ErrorKind, Geometry, Image, Kernel, KernelId,
    ScopeError, TurnError, list_devices,
};
use periscope_core::graph::{EntryWrites, GraphBuilder, GraphLimits};
use periscope_core::{Access, Direction, ObjectRegion, Region, TaskDesc};

const FILL: KernelId = KernelId(0);

fn fill() -> Kernel {
    Kernel::host("fill", CoreKind::Vector, |args| {
        args.output::<i32>(0)?.fill(7);
        Ok(())
    })
    .output::<i32>()
}

/// An image whose graph objects overlap, which no runtime builds: two tasks write the same bytes and nothing orders them.
fn racing_image() -> Image {
    let mut graph = GraphBuilder::new(GraphLimits::default());
    graph.begin([fill().signature().clone()].into());
    graph.add_external(4, EntryWrites::Allowed);
    let segment = graph.add_segment(1024);
    let region = Region::contiguous(periscope::DType::I32, &[16]).unwrap();
    for offset in [0, 32] {
        let object = graph.add_graph_object(segment, offset, 64);
        let access = Access { tensor: ObjectRegion { object, region }, direction: Direction::Out, split_dim: None };
        graph.submit(&TaskDesc { kernels: &[FILL], accesses: &[access], ..TaskDesc::default() }).unwrap();
    }
    graph.freeze(None)
}

#[test]
fn an_image_is_proven_sound_before_it_is_executed_whatever_its_origin() {
    let device = Device::open("sim").unwrap();
    let callable = Callable::builder("fill").kernel(FILL, fill()).orchestrate(|_, _| Ok(()));
    let error = device.run_image(racing_image(), &callable, &mut []).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Image(_)), "{error}");
    // Writes to a memory that does not exist.
    let sound = Callable::builder("nothing").orchestrate(|_, _| Ok(()));
    let image = device.freeze(&sound, &mut [], &[]).unwrap().with_writes(&[(9, 0, vec![1, 2, 3])]);
    let error = device.run_image(image, &sound, &mut []).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Image(_)), "{error}");
}

#[test]
fn blocks_that_start_together_need_the_cores_of_the_device_that_executes_them() {
    let wide = |vector_cores| {
        let mut options = DeviceOptions::default();
        options.sim.geometry = Geometry { clusters: 4, vector_cores };
        Device::open_with("sim", &options).unwrap()
    };
    let meet = Kernel::host("meet", CoreKind::Vector, |args| args.wait_for_blocks()).inout::<i32>();
    let callable = Callable::builder("meet").inout("data").kernel(FILL, meet).orchestrate(|ctx, args| {
        ctx.task(FILL).split(Direction::InOut, args[0], 0).blocks(8).start_together().submit().map(|_| ())
    });
    let large = wide(8);
    let data = large.alloc_zeroed::<i32>([8]).unwrap();
    let image = large.freeze(&callable, &mut [(&data).into()], &[]).unwrap();
    large.run_image(image.clone(), &callable, &mut [(&data).into()]).unwrap();
    let small = wide(7);
    let data = small.alloc_zeroed::<i32>([8]).unwrap();
    let error = small.run_image(image, &callable, &mut [(&data).into()]).unwrap_err().to_string();
    assert!(error.contains("8 blocks") && error.contains("7 vector cores"), "{error}");
}

#[test]
fn a_task_that_was_skipped_gives_its_output_no_value() {
    for (uri, _) in list_devices() {
        let device = Device::open(&uri.to_string()).unwrap();
        let flag = device.upload([1], &[0i32]).unwrap();
        let out = device.alloc_uninit::<i32>([4]).unwrap();
        let callable =
            Callable::builder("skip").input("flag").output("out").kernel(FILL, fill()).orchestrate(|ctx, args| {
                ctx.task(FILL).output(args[1]).only_if(args[0], Comparison::Gt, 0i32).submit().map(|_| ())
            });
        device.run(&callable, &mut [(&flag).into(), (&out).into()]).unwrap();
        let error = device.read::<i32>(&out).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NoValue { .. }), "{uri}: {error}");
        let fill_all = Callable::builder("fill")
            .output("out")
            .kernel(FILL, fill())
            .orchestrate(|ctx, args| ctx.task(FILL).output(args[0]).submit().map(|_| ()));
        device.run(&fill_all, &mut [(&out).into()]).unwrap();
        assert_eq!(device.read::<i32>(&out).unwrap(), [7; 4], "{uri}");
    }
}

#[test]
fn a_refused_copy_leaves_the_destination_alone() {
    for (uri, _) in list_devices() {
        let device = Device::open(&uri.to_string()).unwrap();
        let from = device.alloc_uninit::<i32>([2, 2]).unwrap();
        device.write(&from.slice(0, 0..1).unwrap(), &[1, 2]).unwrap();
        let to = device.upload([2, 4], &[9i32; 8]).unwrap();
        let error = device.copy(&from, &to.slice(1, 0..2).unwrap()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NoValue { .. }), "{uri}: {error}");
        assert_eq!(device.read::<i32>(&to).unwrap(), [9; 8], "{uri}");
    }
}

#[test]
fn a_kernel_that_calls_its_own_device_is_refused_not_hung() {
    for threads in [1, 2] {
        let mut options = DeviceOptions::default();
        options.sim.threads = threads;
        let device = Device::open_with("sim", &options).unwrap();
        let (inner, data) = (device.clone(), device.upload([4], &[1i32; 4]).unwrap());
        let other = data.clone();
        let nosy = Kernel::host("nosy", CoreKind::Vector, move |_| {
            let error = inner.read::<i32>(&other).unwrap_err();
            match error.kind() {
                ErrorKind::Turn(TurnError::Held | TurnError::InKernel) => Ok(()),
                _ => Err(error.to_string().into()),
            }
        })
        .inout::<i32>();
        let callable = Callable::builder("nosy").inout("data").kernel(FILL, nosy).orchestrate(|ctx, args| {
            // Many independent tasks, so that every thread gets some.
            for element in 0..4 {
                for _ in 0..50 {
                    ctx.task(FILL).inout(args[0].slice(0, element..element + 1)?).submit()?;
                }
            }
            Ok(())
        });
        device.run(&callable, &mut [(&data).into()]).unwrap();
    }
}

#[test]
fn a_scope_that_its_body_leaves_unbalanced_is_an_error() {
    let device = Device::open("sim").unwrap();
    let run = |body: fn(&mut periscope::Context<'_>) -> Result<(), periscope::Error>| {
        let callable = Callable::builder("scopes").orchestrate(move |ctx, _| ctx.scope(body));
        device.run(&callable, &mut []).unwrap_err()
    };
    let error = run(|ctx| ctx.scope_begin());
    assert!(matches!(error.kind(), ErrorKind::Scope(ScopeError::Unbalanced { expected: 1, found: 2 })), "{error}");
    let error = run(|ctx| ctx.scope_end());
    assert!(matches!(error.kind(), ErrorKind::Scope(ScopeError::Unbalanced { expected: 1, found: 0 })), "{error}");
}

#[test]
fn kernels_are_let_go_with_their_callable() {
    let device = Device::open("sim").unwrap();
    let token = std::sync::Arc::new(());
    for _ in 0..10 {
        let held = std::sync::Arc::clone(&token);
        let kernel = Kernel::host("hold", CoreKind::Vector, move |_| {
            let _ = &held;
            Ok(())
        });
        let callable = Callable::builder("hold").kernel(FILL, kernel).orchestrate(|_, _| Ok(()));
        device.run(&callable, &mut []).unwrap();
    }
    // The last one is let go when the next callable is loaded.
    assert!(std::sync::Arc::strong_count(&token) <= 2, "{}", std::sync::Arc::strong_count(&token));
}

#[test]
fn reads_of_a_partly_defined_tensor_do_not_depend_on_how_scattered_its_values_are() {
    for (uri, _) in list_devices() {
        let device = Device::open(&uri.to_string()).unwrap();
        let cache = device.alloc_uninit::<i32>([2, 4096]).unwrap();
        // Every second element has a value: 4,096 ranges without one.
        let values: Vec<i32> = (0..4096).collect();
        device.write(&cache.reshape(&[8192]).unwrap().step_by(0, 2).unwrap(), &values).unwrap();
        let callable = Callable::builder("read").input("cache").orchestrate(|ctx, args| {
            let flat = args[0].reshape(&[8192])?;
            for at in 0..8192u64 {
                match ctx.read::<i32>(flat, [at]) {
                    Ok(value) if at.is_multiple_of(2) => assert_eq!(value as u64, at / 2),
                    Err(error) => assert!(!at.is_multiple_of(2) && error.code() == 204, "{error}"),
                    Ok(value) => panic!("element {at} has no value, {value} was read"),
                }
            }
            Ok(())
        });
        let report = device.run(&callable, &mut [(&cache).into()]).unwrap();
        // Mirrored: one transfer, of exactly the bytes that have a value.
        let mirrored = report.tensor_views[0].mechanism == "mirrored";
        assert_eq!(report.bytes.d2h, if mirrored { 4096 * 4 } else { 0 }, "{uri}");
        assert_eq!(report.views.fills, u64::from(mirrored), "{uri}");
    }
}

#[test]
fn a_transfer_of_a_strided_view_is_one_transfer() {
    for (uri, _) in list_devices() {
        let device = Device::open(&uri.to_string()).unwrap();
        let matrix = device.upload([64, 64], &[0i32; 64 * 64]).unwrap();
        let column: Vec<i32> = (0..64).collect();
        let columns = matrix.transpose(0, 1).unwrap().slice(0, 3..5).unwrap();
        let two: Vec<i32> = column.iter().chain(&column).copied().collect();
        let before = device.device_counters();
        device.write(&columns, &two).unwrap();
        assert_eq!(device.read::<i32>(&columns).unwrap(), two, "{uri}");
        let during = device.device_counters();
        let calls = |counters: &periscope::DeviceCounters| {
            counters.copies_in + counters.copies_out + counters.range_copies_in + counters.range_copies_out
        };
        assert!(calls(&during) - calls(&before) <= 4, "{uri}: {during:?}");
    }
}

/// Arguments of a blocking run are plain slices; a wrong one is told by name.
#[test]
fn shared_memory_cannot_be_an_output() {
    let device = Device::open("sim").unwrap();
    let callable = Callable::builder("fill").output("out").kernel(FILL, fill()).orchestrate(|_, _| Ok(()));
    let memory = [0i32; 4];
    let error = device.run(&callable, &mut [Arg::read(&[4], &memory).unwrap()]).unwrap_err();
    assert_eq!(error.code(), 106);
    assert!(error.to_string().contains("`out`"), "{error}");
}
