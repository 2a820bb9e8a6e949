//! What is never touched costs nothing, whatever its size. Alone in its binary, because it looks at the process's memory.

use periscope::{Callable, CoreKind, Device, Kernel, KernelId, list_devices};

/// Resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_38_gib_tensor_that_nobody_touches_costs_nothing() {
    const GIB: u64 = 1 << 30;
    let add_one = Kernel::host("add_one", CoreKind::Vector, |args| {
        let mut data = args.output::<i32>(0)?;
        for value in data.as_mut_slice().ok_or("contiguous")? {
            *value += 1;
        }
        Ok(())
    })
    .inout::<i32>();
    let callable = Callable::builder("untouched").inout("data").input("huge").kernel(KernelId(0), add_one).orchestrate(
        |ctx, args| {
            let value = ctx.read::<i32>(args[0], [0])?;
            assert!(value >= 0);
            // Views of the huge tensor are only arithmetic.
            let view = args[1].slice(0, 7 * GIB..20 * GIB)?.index(0, 5)?;
            assert_eq!(view.rank(), 0);
            ctx.task(KernelId(0)).inout(args[0]).submit()?;
            Ok(())
        },
    );
    for (uri, _) in list_devices() {
        let device = Device::open(&uri.to_string()).unwrap();
        let data = device.upload([64], &[0i32; 64]).unwrap();
        let huge = device.alloc_uninit::<u8>([38 * GIB]).unwrap();
        // Warm: everything that a run of this shape needs exists.
        for _ in 0..2 {
            device.run(&callable, &mut [(&data).into(), (&huge).into()]).unwrap();
        }
        let (counts, resident) = (device.counts(), resident_kib());
        let report = device.run(&callable, &mut [(&data).into(), (&huge).into()]).unwrap();
        let during = device.counts() - counts;
        assert_eq!((report.views.maps, report.views.established, report.views.fills), (0, 0, 0), "{uri}");
        assert_eq!((during.maps, during.allocations), (0, 0), "{uri}");
        assert!(huge.view_report().is_none(), "{uri}: the huge tensor has a host view");
        // On a mirrored profile the read of `data` refreshes its 256 bytes; nothing else moves.
        assert!(report.bytes.h2d == 0 && report.bytes.d2h <= 256, "{uri}: {:?}", report.bytes);
        let grown = resident_kib().saturating_sub(resident);
        assert!(grown < 1024, "{uri}: the process grew by {grown} KiB");
    }
}
