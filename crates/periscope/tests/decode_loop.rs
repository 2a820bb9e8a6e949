//! The case that Periscope exists for, end to end: lengths and the block table live on the device, kernels advance the
//! lengths, the next run's orchestration reads them, submits as many tasks as they say, and names new blocks.

use periscope::{Callable, CoreKind, Device, Kernel, KernelId, Report, Resident, list_devices};

const ADVANCE: KernelId = KernelId(0);
const TOUCH_BLOCK: KernelId = KernelId(1);
const BLOCK: u64 = 4;
const MAX_BLOCKS: u64 = 8;

/// Adds one to every length.
fn advance() -> Kernel {
    Kernel::host("advance", CoreKind::Vector, |args| {
        for len in args.output::<i32>(0)?.as_mut_slice().ok_or("contiguous")? {
            *len += 1;
        }
        Ok(())
    })
    .inout::<i32>()
}

/// out[table[b, n]] += 1: the kernel finds the block in the table itself, so it shows what the device sees there.
fn touch_block() -> Kernel {
    Kernel::host("touch_block", CoreKind::Vector, |args| {
        let block = args.input::<i32>(0)?.get(&[])?;
        let mut out = args.output::<i32>(1)?;
        let index = [u64::try_from(block).map_err(|_| format!("block {block}"))?];
        let value = out.get(&index)?;
        out.set(&index, value + 1)?;
        Ok(())
    })
    .input::<i32>()
    .inout::<i32>()
}

fn step() -> Callable {
    Callable::builder("step")
        .inout("context_lens")
        .inout("block_table")
        .inout("out")
        .kernel(ADVANCE, advance())
        .kernel(TOUCH_BLOCK, touch_block())
        .orchestrate(|ctx, args| {
            let [lens, table, out] = args else { unreachable!() };
            for b in 0..lens.dim(0) {
                let len = ctx.read::<i32>(lens, [b])? as u64;
                let blocks = len / BLOCK + 1;
                if len.is_multiple_of(BLOCK) {
                    // The sequence starts a block: give it one that nobody has.
                    ctx.write(table, [b, len / BLOCK], (b * MAX_BLOCKS + len / BLOCK) as i32)?;
                }
                for n in 0..blocks {
                    ctx.task(TOUCH_BLOCK).input(table.index(0, b)?.index(0, n)?).inout(out).submit()?;
                }
            }
            ctx.task(ADVANCE).inout(lens).submit()?;
            Ok(())
        })
}

fn run(device: &Device, callable: &Callable, tensors: &[Resident; 3]) -> Report {
    let mut args: Vec<_> = tensors.iter().map(Into::into).collect();
    device.run(callable, &mut args).unwrap()
}

#[test]
fn lengths_that_kernels_advance_decide_the_next_runs_tasks() {
    const STEPS: u64 = 10;
    let starts = [0i32, 3, 5];
    for (uri, _) in list_devices() {
        let device = Device::open(&uri.to_string()).unwrap();
        let table = [-1i32; 3 * MAX_BLOCKS as usize];
        let tensors = [
            device.upload([3], &starts).unwrap(),
            device.upload([3, MAX_BLOCKS], &table).unwrap(),
            device.alloc_zeroed::<i32>([3 * MAX_BLOCKS]).unwrap(),
        ];
        // Blocks that a sequence had before the first step.
        device.write(&tensors[1].slice(0, 1..2).unwrap().slice(1, 0..1).unwrap(), &[MAX_BLOCKS as i32]).unwrap();
        device
            .write(
                &tensors[1].slice(0, 2..3).unwrap().slice(1, 0..2).unwrap(),
                &[2 * MAX_BLOCKS as i32, 2 * MAX_BLOCKS as i32 + 1],
            )
            .unwrap();
        let callable = step();
        let mut expected = vec![0i32; 3 * MAX_BLOCKS as usize];
        for step in 0..STEPS {
            let report = run(&device, &callable, &tensors);
            let mut tasks = 1;
            for (b, start) in starts.iter().enumerate() {
                let blocks = (*start as u64 + step) / BLOCK + 1;
                tasks += blocks;
                for n in 0..blocks {
                    expected[b * MAX_BLOCKS as usize + n as usize] += 1;
                }
            }
            assert_eq!(report.tasks, tasks, "{uri}, step {step}");
            if step > 0 {
                assert_eq!((report.views.established, report.views.maps), (0, 0), "{uri}, step {step}");
            }
            if report.tensor_views[0].mechanism == "mirrored" {
                // Three lengths come back after each step; only the table entries that were written go out.
                let written =
                    starts.iter().filter(|&&start| (start as u64 + step).is_multiple_of(BLOCK)).count() as u64;
                assert_eq!(report.bytes.h2d, written * 4, "{uri}, step {step}");
                assert_eq!(report.bytes.d2h, 12, "{uri}, step {step}");
            } else {
                assert_eq!((report.bytes.h2d, report.bytes.d2h), (0, 0), "{uri}, step {step}");
            }
        }
        assert_eq!(device.read::<i32>(&tensors[2]).unwrap(), expected, "{uri}");
        let lens: Vec<i32> = starts.iter().map(|start| start + STEPS as i32).collect();
        assert_eq!(device.read::<i32>(&tensors[0]).unwrap(), lens, "{uri}");
    }
}
