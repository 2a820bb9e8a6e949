//! Runs on a device whose calls fail: the first cause is what the caller sees, nothing that the host wrote is lost, no
//! kernel runs that should not, and the next run works.

mod common;

use common::*;
use periscope::{Arg, ErrorKind, LaunchError, Resident};
use periscope_hal::DeviceOp;

const START: [i32; 4] = [1, 2, 3, 4];

/// Writes element 0 from the orchestrator, adds 10 to elements 1 and 2 by a task, by way of graph memory and `staged`.
fn busy_run(bench: &Bench, resident: &Resident, staged: &mut [i32]) -> Result<periscope::Report, periscope::Error> {
    let args = &mut [Arg::from(resident), Arg::write(&[4], staged).unwrap()];
    bench.run(&[("resident", INOUT), ("staged", INOUT)], args, |ctx, tensors| {
        let first = ctx.read::<i32>(tensors[0], [0])?;
        ctx.write(tensors[0], [0], first + 100)?;
        ctx.write(tensors[1], [3], 7)?;
        let memory = ctx.alloc::<i32>([4])?;
        ctx.task(ADD).inout(tensors[0].slice(0, 1..3)?).scalar(10).submit()?;
        ctx.task(SUM).input(tensors[0]).input(tensors[0]).output(memory).submit()?;
        ctx.task(COPY).input(memory.slice(0, 0..3)?).output(tensors[1].slice(0, 0..3)?).submit()?;
        Ok(())
    })
}

#[test]
fn a_failed_push_runs_no_kernel_and_keeps_the_bytes_to_be_pushed() {
    everywhere(|bench| {
        let resident = bench.upload(&START);
        let mut staged = [0; 4];
        bench.spy.fail_push();
        let kind = assert_refused(busy_run(bench, &resident, &mut staged), 601, &["no kernel has run", "injected"]);
        assert!(matches!(kind, ErrorKind::Run { source: LaunchError::Push { .. }, .. }), "{kind:?}");
        assert_eq!(staged, [0; 4]);
        assert_eq!(bench.device.counts().pushes, 0);
        assert_eq!(bench.read(&resident), [101, 2, 3, 4], "{}: written by the host, by no task", bench.uri);
        busy_run(bench, &resident, &mut staged).unwrap();
        assert_eq!(bench.read(&resident), [201, 12, 13, 4], "{}", bench.uri);
        assert_eq!(staged, [402, 24, 26, 7], "{}", bench.uri);
    });
}

#[test]
fn a_refused_launch_loses_nothing_and_poisons_nothing() {
    everywhere(|bench| {
        let resident = bench.upload(&START);
        let mut staged = [0; 4];
        bench.spy.fail(DeviceOp::Launch, 1);
        let kind = assert_refused(busy_run(bench, &resident, &mut staged), 601, &["launch failed", "injected"]);
        assert!(matches!(kind, ErrorKind::Run { source: LaunchError::Device(_), .. }), "{kind:?}");
        assert_eq!(staged, [0; 4]);
        busy_run(bench, &resident, &mut staged).unwrap();
        assert_eq!(bench.read(&resident), [201, 12, 13, 4], "{}", bench.uri);
        assert_eq!(staged, [402, 24, 26, 7], "{}", bench.uri);
    });
}

#[test]
fn whatever_call_of_a_run_fails_the_next_run_works() {
    for op in [
        DeviceOp::Alloc,
        DeviceOp::Map,
        DeviceOp::OpenWindow,
        DeviceOp::CloseWindow,
        DeviceOp::CopyIn,
        DeviceOp::CopyOut,
        DeviceOp::CopyOutRanges,
        DeviceOp::LoadKernels,
        DeviceOp::Launch,
    ] {
        for nth in 1..4 {
            everywhere(|bench| {
                let what = format!("{} {op} {nth}", bench.uri);
                let resident = bench.upload(&START);
                let mut staged = [0; 4];
                bench.spy.fail(op, nth);
                let result = busy_run(bench, &resident, &mut staged);
                let happened = !bench.spy.disarm();
                let mut round = 0;
                match result {
                    Err(error) => {
                        assert!(happened && error.to_string().contains("injected"), "{what}: {error}");
                        // What the tasks did is there only if it was the copying back that failed.
                        let values = bench.read(&resident);
                        round = i32::from(values[1] == 12);
                        let written = values[0] == 101;
                        assert!(written || (round == 0 && values == START), "{what}: {values:?}");
                        bench.device.write(&resident, &START).unwrap();
                        staged = [0; 4];
                        busy_run(bench, &resident, &mut staged).unwrap();
                    }
                    // A map that fails is served by copies.
                    Ok(_) => assert!(!happened || op == DeviceOp::Map, "{what}"),
                }
                assert_eq!(bench.read(&resident), [101, 12, 13, 4], "{what} {round}");
                assert_eq!(staged, [202, 24, 26, 7], "{what}");
                let spy = std::sync::Arc::clone(&bench.spy);
                drop(resident);
                let live = spy.count(DeviceOp::Alloc) - spy.count(DeviceOp::Free);
                assert!(live <= 2, "{what}: {live} allocations are left beside staging buffer and graph memory");
            });
        }
    }
}

#[test]
fn another_arguments_failure_keeps_what_was_to_be_pushed() {
    for uri in ["sim:a2a3-64k", "sim:a5"] {
        let bench = Bench::open(uri);
        let resident = bench.upload(&START);
        let mut staged = START;
        bench.spy.fail(DeviceOp::CopyIn, 1);
        let args = &mut [Arg::from(&resident), Arg::write(&[4], &mut staged).unwrap()];
        let result = bench.run(&[("resident", INOUT), ("staged", INOUT)], args, |ctx, tensors| {
            ctx.write(tensors[0], [2], 33)?;
            ctx.task(READ).input(tensors[1]).submit()?;
            Ok(())
        });
        assert_refused(result, 503, &["injected"]);
        bench.spy.take_pushes();
        bench.run(&[("resident", IN)], &mut [Arg::from(&resident)], |_, _| Ok(())).unwrap();
        let pushes = bench.spy.take_pushes();
        assert_eq!((pushes.len(), pushes[0].ranges.clone()), (1, std::iter::once(8..12).collect()), "{uri}");
        assert_eq!(bench.read(&resident), [1, 2, 33, 4], "{uri}");
    }
}

#[test]
fn a_failed_upload_leaves_a_new_tensor_unmade() {
    everywhere(|bench| {
        bench.spy.fail(DeviceOp::CopyIn, 1);
        assert_refused(bench.device.upload([4], &START), 503, &["copy to device", "injected"]);
        bench.spy.fail(DeviceOp::Fill, 1);
        assert_refused(bench.device.alloc_zeroed::<i32>([4]), 501, &["fill", "injected"]);
        assert_eq!(bench.spy.count(DeviceOp::Alloc), bench.spy.count(DeviceOp::Free), "{}", bench.uri);
        bench.assert_works();
    });
}

#[test]
fn a_failed_fill_of_a_guard_is_latched() {
    for uri in ["sim:a2a3-64k", "sim:a5"] {
        let bench = Bench::open(uri);
        let resident = bench.upload(&START);
        bench.spy.fail(DeviceOp::CopyOut, 1);
        let result = bench.run(&[("resident", INOUT)], &mut [Arg::from(&resident)], |ctx, tensors| {
            ctx.latch_errors();
            assert!(ctx.view_mut::<i32>(tensors[0]).is_err());
            assert!(ctx.view_mut::<i32>(tensors[0]).is_err(), "it would succeed now");
            Ok(())
        });
        assert_refused(result, 503, &["copy to host", "injected"]);
        assert_eq!(bench.read(&resident), START, "{uri}");
    }
}
