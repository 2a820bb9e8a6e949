//! Large tensors that the host reads where it can only copy: read-ahead, the budget of mirrors, eviction.

use periscope::{Callable, Device, DeviceOptions, Report, Resident};

const CHUNK: u64 = 64 << 10;

fn device(budget_bytes: Option<u64>) -> Device {
    let mut options = DeviceOptions::default();
    options.memory.mirror_budget_bytes = budget_bytes;
    Device::open_with("sim:a5", &options).unwrap()
}

/// `len` i32, each its own index plus `base`.
fn counted(device: &Device, len: u64, base: i32) -> Resident {
    let values: Vec<i32> = (0..len as i32).map(|value| value + base).collect();
    device.upload([len], &values).unwrap()
}

/// Reads elements `step` apart, one by one, and compares them.
fn walk(device: &Device, tensor: &Resident, step: usize, base: i32) -> Report {
    let callable = Callable::builder("walk").input("tensor").orchestrate(move |ctx, args| {
        for at in (0..args[0].dim(0)).step_by(step) {
            assert_eq!(ctx.read::<i32>(args[0], [at])?, at as i32 + base);
        }
        Ok(())
    });
    device.run(&callable, &mut [tensor.into()]).unwrap()
}

#[test]
fn a_walk_in_ascending_order_fetches_ahead() {
    let device = device(None);
    let tensor = counted(&device, 64 * CHUNK / 4, 0);
    let report = walk(&device, &tensor, 1, 0);
    // 1, 1, 2, 4, 8, 16, 16 and the 16 that are left.
    assert_eq!((report.bytes.d2h, report.views.fills), (64 * CHUNK, 8));
    let report = walk(&device, &tensor, 1, 0);
    assert_eq!((report.bytes.d2h, report.views.fills), (0, 0));
}

#[test]
fn reads_here_and_there_fetch_no_more_than_their_chunks() {
    let device = device(None);
    let tensor = counted(&device, 64 * CHUNK / 4, 0);
    let report = walk(&device, &tensor, (3 * CHUNK / 4) as usize, 0);
    assert_eq!((report.bytes.d2h, report.views.fills), (22 * CHUNK, 22));
}

#[test]
fn the_least_recently_used_mirror_makes_room() {
    const BYTES: u64 = 128 << 10;
    let device = device(Some(2 * BYTES));
    let tensors: Vec<Resident> = (0..3).map(|base| counted(&device, BYTES / 4, base)).collect();
    for base in [0, 1] {
        assert_eq!(walk(&device, &tensors[base], 1, base as i32).bytes.d2h, BYTES);
    }
    // Used again: now the second is the least recently used.
    assert_eq!(walk(&device, &tensors[0], 1, 0).bytes.d2h, 0);
    assert_eq!(walk(&device, &tensors[2], 1, 2).bytes.d2h, BYTES);
    assert_eq!(device.counts().evictions, 1);
    assert_eq!(walk(&device, &tensors[0], 1, 0).bytes.d2h, 0, "the first was kept");
    assert_eq!(walk(&device, &tensors[1], 1, 1).bytes.d2h, BYTES, "the second was not");
}

#[test]
fn what_the_host_wrote_is_never_evicted() {
    const BYTES: u64 = 128 << 10;
    let device = device(Some(BYTES));
    let (dirty, other) = (counted(&device, BYTES / 4, 0), counted(&device, BYTES / 4, 5));
    // Mirrored as a whole, then left dirty by a run that fails in its orchestration.
    walk(&device, &dirty, 1, 0);
    let write = Callable::builder("write").inout("tensor").orchestrate(|ctx, args| {
        ctx.write(args[0], [7], -1i32)?;
        Err(periscope::Error::orchestration("changed my mind"))
    });
    device.run(&write, &mut [(&dirty).into()]).unwrap_err();
    walk(&device, &other, 1, 5);
    walk(&device, &other, 1, 5);
    assert_eq!(device.read::<i32>(&dirty).unwrap()[6..9], [6, -1, 8]);
}

#[test]
fn a_tensor_larger_than_the_budget_is_read_without_being_kept() {
    let device = device(Some(2 * CHUNK));
    let tensor = counted(&device, 16 * CHUNK / 4, 0);
    let report = walk(&device, &tensor, 1, 0);
    // Two chunks are kept, each of the others is fetched once as the walk comes by.
    assert_eq!(report.bytes.d2h, 16 * CHUNK);
    assert_eq!(device.counts().bounces, 14);
    let bulk = Callable::builder("bulk").input("tensor").orchestrate(|ctx, args| {
        let mut all = vec![0i32; args[0].num_elems() as usize];
        ctx.read_into(args[0], &mut all)?;
        assert!(all.iter().enumerate().all(|(at, &value)| value == at as i32));
        // A guard needs its bytes in one place, budget or not.
        let view = ctx.view::<i32>(args[0])?;
        assert_eq!(view.as_slice().map(<[i32]>::len), Some(all.len()));
        assert_eq!(view.as_slice().unwrap(), all);
        Ok(())
    });
    device.run(&bulk, &mut [(&tensor).into()]).unwrap();
}

#[test]
fn host_writes_show_through_chunks_that_are_not_kept() {
    let device = device(Some(CHUNK));
    let tensor = counted(&device, 8 * CHUNK / 4, 0);
    let callable = Callable::builder("write").inout("tensor").orchestrate(|ctx, args| {
        // The budget is used up by the first chunk.
        assert_eq!(ctx.read::<i32>(args[0], [0])?, 0);
        let at = 5 * CHUNK / 4 + 3;
        assert_eq!(ctx.read::<i32>(args[0], [at])?, at as i32);
        ctx.write(args[0], [at], -9i32)?;
        assert_eq!(ctx.read::<i32>(args[0], [at])?, -9);
        // Half of this is the host's, half has to be fetched.
        let mut two = [0i32; 2];
        ctx.read_into(args[0].slice(0, at..at + 2)?, &mut two)?;
        assert_eq!(two, [-9, at as i32 + 1]);
        assert_eq!(ctx.read::<i32>(args[0], [at + 1])?, at as i32 + 1);
        Ok(())
    });
    let report = device.run(&callable, &mut [(&tensor).into()]).unwrap();
    assert_eq!(report.bytes.h2d, 4);
    assert_eq!(device.read::<i32>(&tensor).unwrap()[(5 * CHUNK / 4 + 3) as usize], -9);
}
