//! What one stale flag per allocation would get wrong: validity is a set of byte ranges.

use periscope::{Callable, CoreKind, Device, Kernel, KernelId, Resident, list_devices};

/// Fills its argument with 7.
fn sevens() -> Kernel {
    Kernel::host("sevens", CoreKind::Vector, |args| {
        args.output::<u8>(0)?.fill(7);
        Ok(())
    })
    .output::<u8>()
}

/// A task of the run writes [0, 64), the host writes [64, 128) of the same chunk.
fn run_both_write(device: &Device, tensor: &Resident) {
    let callable =
        Callable::builder("both_write").inout("tensor").kernel(KernelId(0), sevens()).orchestrate(|ctx, args| {
            // Established and valid as a whole, before anything is written.
            assert_eq!(ctx.read::<u8>(args[0], [0])?, 1);
            ctx.task(KernelId(0)).output(args[0].slice(0, 0..64)?).submit()?;
            ctx.write_from(args[0].slice(0, 64..128)?, &[9u8; 64])
        });
    device.run(&callable, &mut [tensor.into()]).unwrap();
}

fn read_in_a_run(
    device: &Device,
    tensor: &Resident,
    range: std::ops::Range<u64>,
    expected: Vec<u8>,
) -> periscope::Report {
    let callable = Callable::builder("read").input("tensor").orchestrate(move |ctx, args| {
        let mut bytes = vec![0u8; expected.len()];
        ctx.read_into(args[0].slice(0, range.clone())?, &mut bytes)?;
        assert_eq!(bytes, expected);
        Ok(())
    });
    device.run(&callable, &mut [tensor.into()]).unwrap()
}

#[test]
fn host_and_task_write_neighbouring_bytes_of_one_chunk() {
    for (uri, _) in list_devices() {
        let device = Device::open(&uri.to_string()).unwrap();
        let tensor = device.upload([256], &[1u8; 256]).unwrap();
        run_both_write(&device, &tensor);
        let mut expected = vec![1u8; 256];
        expected[..64].fill(7);
        expected[64..128].fill(9);
        let report = read_in_a_run(&device, &tensor, 0..256, expected.clone());
        if report.tensor_views[0].mechanism == "mirrored" {
            assert_eq!(report.bytes.d2h, 64, "{uri}: only what the task wrote is stale");
        }
        assert_eq!(device.read::<u8>(&tensor).unwrap(), expected, "{uri}");
    }
}

#[test]
fn a_read_after_the_run_leaves_the_hosts_bytes_alone() {
    for (uri, _) in list_devices() {
        let device = Device::open(&uri.to_string()).unwrap();
        let tensor = device.upload([256], &[1u8; 256]).unwrap();
        run_both_write(&device, &tensor);
        // The next run writes on the host's side first, then reads four bytes that the task wrote: what fetches them
        // must not bring back the device's older bytes of the rest of the chunk.
        let callable = Callable::builder("write_then_read").inout("tensor").orchestrate(|ctx, args| {
            ctx.write_from(args[0].slice(0, 64..128)?, &[11u8; 64])?;
            let mut four = [0u8; 4];
            ctx.read_into(args[0].slice(0, 0..4)?, &mut four)?;
            assert_eq!(four, [7; 4]);
            assert_eq!(ctx.read::<u8>(args[0], [64])?, 11);
            assert_eq!(ctx.read::<u8>(args[0], [127])?, 11);
            Ok(())
        });
        let report = device.run(&callable, &mut [(&tensor).into()]).unwrap();
        let mut expected = vec![1u8; 256];
        expected[..64].fill(7);
        expected[64..128].fill(11);
        assert_eq!(device.read::<u8>(&tensor).unwrap(), expected, "{uri}");
        if report.tensor_views[0].mechanism == "mirrored" {
            assert_eq!(report.bytes.h2d, 64, "{uri}: exactly the host's bytes are pushed");
        }
    }
}
