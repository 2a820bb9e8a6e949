//! How many bytes a read moves where the host can only copy.

use periscope::{Callable, Device};

fn reading(indices: Vec<u64>) -> Callable {
    Callable::builder("reading").input("tensor").orchestrate(move |ctx, args| {
        for &index in &indices {
            let value = ctx.read::<u8>(args[0], [index])?;
            assert_eq!(value, 0);
        }
        Ok(())
    })
}

#[test]
fn one_element_of_a_gib_moves_one_chunk() {
    const CHUNK: u64 = 64 << 10;
    let device = Device::open("sim:a5").unwrap();
    let tensor = device.alloc_zeroed::<u8>([1 << 30]).unwrap();
    let report = device.run(&reading(vec![(1 << 29) + 12_345]), &mut [(&tensor).into()]).unwrap();
    assert_eq!((report.bytes.d2h, report.views.fills), (CHUNK, 1));
    // The same chunk again, its neighbours within it, and the next chunk.
    let report = device.run(&reading(vec![(1 << 29) + 12_345, 1 << 29]), &mut [(&tensor).into()]).unwrap();
    assert_eq!(report.bytes.d2h, 0);
    let report = device.run(&reading(vec![(1 << 29) + CHUNK]), &mut [(&tensor).into()]).unwrap();
    assert_eq!(report.bytes.d2h, CHUNK);
}

#[test]
fn all_of_256_kib_move_once_however_many_reads() {
    let device = Device::open("sim:a5").unwrap();
    let tensor = device.alloc_zeroed::<u8>([256 << 10]).unwrap();
    let all = reading((0..256 << 10).collect());
    let report = device.run(&all, &mut [(&tensor).into()]).unwrap();
    assert_eq!((report.bytes.d2h, report.views.fills), (256 << 10, 1));
    assert_eq!(report.tensor_views[0].reads, 256 << 10);
    let report = device.run(&all, &mut [(&tensor).into()]).unwrap();
    assert_eq!((report.bytes.d2h, report.views.fills, report.views.refreshes), (0, 0, 0));
}
