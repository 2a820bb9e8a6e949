//! Transfers outside runs: fills and copies of views, and addresses that resolve.

use periscope::{Device, ErrorKind, list_devices};

#[test]
fn fill_and_copy_touch_exactly_the_view() {
    for (uri, _) in list_devices() {
        let device = Device::open(&uri.to_string()).unwrap();
        let matrix = device.alloc_full::<f32>([4, 6], 1.5).unwrap();
        assert_eq!(device.read::<f32>(&matrix).unwrap(), [1.5; 24], "{uri}");
        let columns = matrix.slice(1, 2..4).unwrap();
        device.fill(&columns, 0f32).unwrap();
        let mut expected = [1.5f32; 24];
        for row in 0..4 {
            expected[row * 6 + 2..row * 6 + 4].fill(0.0);
        }
        assert_eq!(device.read::<f32>(&matrix).unwrap(), expected, "{uri}");
        // A transposed view to a contiguous tensor: element by element.
        let values: Vec<f32> = (0..8).map(|value| value as f32).collect();
        let source = device.upload([2, 4], &values).unwrap();
        device.copy(&source.transpose(0, 1).unwrap(), &columns).unwrap();
        for row in 0..4 {
            expected[row * 6 + 2] = row as f32;
            expected[row * 6 + 3] = (row + 4) as f32;
        }
        assert_eq!(device.read::<f32>(&matrix).unwrap(), expected, "{uri}");
        let error = device.copy(&source, &columns).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::CopyMismatch { .. }), "{error}");
        let error = device.copy(&matrix.slice(0, 0..1).unwrap(), &matrix.slice(0, 1..2).unwrap()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::CopyMismatch { .. }), "{error}");
    }
}

#[test]
fn an_address_range_resolves_to_its_allocation() {
    let device = Device::open("sim:a5").unwrap();
    let (first, second) = (device.alloc_zeroed::<u8>([1000]).unwrap(), device.alloc_zeroed::<u8>([1000]).unwrap());
    let (id, offset) = device.resolve_address(second.device_address() + 10, 990).unwrap();
    assert_eq!(offset, 10);
    assert_eq!(device.resolve_address(second.device_address(), 1).unwrap().0, id);
    assert_ne!(device.resolve_address(first.device_address(), 1000).unwrap().0, id);
    // Beyond the end of one allocation, though perhaps within the next.
    assert!(device.resolve_address(second.device_address() + 10, 991).is_none());
    assert!(device.resolve_address(1, 1).is_none());
    let address = first.device_address();
    drop(first);
    assert!(device.resolve_address(address, 1).is_none());
}

#[test]
fn a_prefetched_view_is_the_one_that_runs_use() {
    for (uri, _) in list_devices() {
        let device = Device::open(&uri.to_string()).unwrap();
        let tensor = device.upload([16], &[3i32; 16]).unwrap();
        device.prefetch(&tensor).unwrap();
        device.prefetch(&tensor).unwrap();
        assert_eq!(device.counts().established, 1, "{uri}");
        assert_eq!(device.counts().fills, 0, "{uri}");
        // An upload writes through what is mirrored, so that the next read still moves nothing.
        let read = periscope::Callable::builder("read").input("tensor").orchestrate(|ctx, args| {
            let value = ctx.read::<i32>(args[0], [15])?;
            if value == 3 { Ok(()) } else { Err(periscope::Error::orchestration(value)) }
        });
        let report = device.run(&read, &mut [(&tensor).into()]).unwrap();
        assert_eq!(report.views.established, 0, "{uri}");
        device.write(&tensor, &[4i32; 16]).unwrap();
        let report = device.run(&read, &mut [(&tensor).into()]).unwrap_err();
        assert_eq!(report.to_string(), "4", "{uri}");
        assert_eq!(device.counts().refreshes, 0, "{uri}");
    }
}
