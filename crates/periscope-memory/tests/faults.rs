//! Device calls that fail: nothing is lost, nothing is half done, and what can be tried again succeeds the second time.

use std::sync::Arc;

use periscope_core::{DType, Region};
use periscope_cts::faults::{Faulty, PROFILES};
use periscope_hal::DeviceOp;
use periscope_memory::{Allocation, Hold, Init, Mechanism, Memory, MemoryError, MemorySettings};
use rangemap::RangeSet;

struct World {
    uri: &'static str,
    spy: Arc<Faulty>,
    memory: Memory,
}

impl World {
    fn open(uri: &'static str) -> World {
        let spy = Faulty::open(uri);
        let memory = Memory::new(Arc::clone(&spy) as Arc<dyn periscope_hal::Device>, MemorySettings::default());
        World { uri, spy, memory }
    }

    /// An allocation that holds 0, 1, 2, …
    fn ascending(&self) -> Arc<Allocation> {
        let allocation = self.memory.alloc(64, Init::Uninit).unwrap();
        let turn = self.memory.take_turn().unwrap();
        allocation.upload(&turn, 0, &(0..64).collect::<Vec<u8>>()).unwrap();
        allocation
    }

    fn download(&self, allocation: &Allocation) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        allocation.download(&self.memory.take_turn().unwrap(), 0, &mut bytes).unwrap();
        bytes
    }

    fn store(&self, allocation: &Arc<Allocation>, at: u64, value: u8) {
        let turn = self.memory.take_turn().unwrap();
        let mut hold = Hold::new(Arc::clone(allocation), &turn, "test", false).unwrap();
        hold.store(at, value).unwrap();
    }
}

fn everywhere(test: impl Fn(&World)) {
    for uri in PROFILES {
        test(&World::open(uri));
    }
}

fn device_op(error: MemoryError) -> DeviceOp {
    match error {
        MemoryError::Device { op, .. } => op,
        other => panic!("{other}"),
    }
}

#[test]
fn a_failed_allocation_leaves_nothing_allocated() {
    everywhere(|world| {
        world.spy.fail(DeviceOp::Alloc, 1);
        assert_eq!(device_op(world.memory.alloc(64, Init::Zeroed).unwrap_err()), DeviceOp::Alloc);
        world.spy.fail(DeviceOp::Fill, 1);
        assert_eq!(device_op(world.memory.alloc(64, Init::Zeroed).unwrap_err()), DeviceOp::Fill);
        let counts = world.memory.counts();
        assert_eq!((counts.allocations, counts.frees), (1, 1), "{}", world.uri);
        assert_eq!(world.spy.count(DeviceOp::Alloc), world.spy.count(DeviceOp::Free));
        drop(world.memory.alloc(64, Init::Zeroed).unwrap());
    });
}

#[test]
fn a_failed_fill_can_be_tried_again() {
    for uri in ["sim:a2a3-64k", "sim:a5"] {
        let world = World::open(uri);
        let allocation = world.ascending();
        {
            let turn = world.memory.take_turn().unwrap();
            let mut hold = Hold::new(Arc::clone(&allocation), &turn, "test", false).unwrap();
            hold.store(5, 99u8).unwrap();
            // The host's byte divides the chunk, so this fill is a list of ranges.
            world.spy.fail(DeviceOp::CopyOutRanges, 1);
            assert_eq!(device_op(hold.load::<u8>(3).unwrap_err()), DeviceOp::CopyOutRanges);
            assert_eq!(hold.load::<u8>(5).unwrap(), 99, "what the host wrote is served");
            assert_eq!(world.memory.counts().filled_bytes, 0);
            let region = Region::contiguous(DType::U8, &[64]).unwrap();
            let mut to = [0x55; 64];
            world.spy.fail(DeviceOp::CopyOutRanges, 1);
            hold.read_region(&region, &mut to).unwrap_err();
            assert_eq!(to, [0x55; 64]);
            world.spy.fail(DeviceOp::CopyOutRanges, 1);
            hold.view_mut::<u8>(&region).unwrap_err();
            hold.read_region(&region, &mut to).unwrap();
            let mut expected: Vec<u8> = (0..64).collect();
            expected[5] = 99;
            assert_eq!(to.to_vec(), expected);
            assert_eq!(world.memory.counts().fills, 1);
        }
        assert_eq!(world.download(&allocation)[4..7], [4, 99, 6], "{uri}");
    }
}

#[test]
fn a_failed_push_keeps_its_bytes_to_be_pushed() {
    for uri in ["sim:a2a3-64k", "sim:a5"] {
        let world = World::open(uri);
        let allocation = world.ascending();
        world.store(&allocation, 5, 99);
        let mut bytes = [0x55; 64];
        {
            let turn = world.memory.take_turn().unwrap();
            world.spy.fail(DeviceOp::CopyInRanges, 1);
            let error = allocation.download(&turn, 0, &mut bytes).unwrap_err();
            assert_eq!(device_op(error), DeviceOp::CopyInRanges);
            assert_eq!(bytes, [0x55; 64]);
            // A launch takes them, is refused, takes them again.
            let push = allocation.before_launch(&turn, true).unwrap().unwrap();
            assert_eq!((push.ranges, push.bytes), (std::iter::once(5..6).collect(), vec![99]));
            assert_eq!(allocation.before_launch(&turn, true).unwrap(), None, "it is under way");
            allocation.launch_refused(&turn);
            assert_eq!(allocation.before_launch(&turn, true).unwrap().unwrap().bytes, [99]);
            // It starts, and its pushes fail: also those that a task was to overwrite.
            let written: RangeSet<u64> = std::iter::once(0..64).collect();
            allocation.launched(&turn, &written);
            allocation.failed(&turn, 1, false, 0, &written);
            assert!(!allocation.is_poisoned(), "no kernel has run");
            assert_eq!(allocation.before_launch(&turn, true).unwrap().unwrap().bytes, [99]);
            allocation.launch_refused(&turn);
        }
        assert_eq!(world.memory.counts().pushes, 0);
        assert_eq!(world.download(&allocation)[4..7], [4, 99, 6], "{uri}");
        assert_eq!((world.memory.counts().pushes, world.memory.counts().pushed_bytes), (1, 1));
    }
}

#[test]
fn a_failed_transfer_loses_no_host_write() {
    everywhere(|world| {
        let (allocation, other) = (world.ascending(), world.ascending());
        for op in [DeviceOp::CopyIn, DeviceOp::Fill, DeviceOp::CopyWithin] {
            world.store(&allocation, 5, 99);
            let turn = world.memory.take_turn().unwrap();
            world.spy.fail(op, 1);
            let result = match op {
                DeviceOp::CopyIn => allocation.upload(&turn, 0, &[1; 64]),
                DeviceOp::Fill => allocation.fill(&turn, 0..64, 1),
                _ => allocation.copy_from(&turn, 0, &other, 0, 64),
            };
            assert_eq!(device_op(result.unwrap_err()), op);
            drop(turn);
            assert_eq!(world.download(&allocation)[4..7], [4, 99, 6], "{} {op}", world.uri);
            let turn = world.memory.take_turn().unwrap();
            let hold = Hold::new(Arc::clone(&allocation), &turn, "test", false).unwrap();
            assert_eq!((hold.load::<u8>(4).unwrap(), hold.load::<u8>(5).unwrap()), (4, 99), "{} {op}", world.uri);
        }
        let turn = world.memory.take_turn().unwrap();
        allocation.copy_from(&turn, 2, &other, 0, 8).unwrap();
        allocation.fill(&turn, 12..14, 7).unwrap();
        drop(turn);
        let expected = [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 7, 7, 14];
        assert_eq!(world.download(&allocation)[..15], expected, "{}", world.uri);
    });
}

#[test]
fn a_failed_transfer_to_memory_without_a_value_gives_it_none() {
    everywhere(|world| {
        let allocation = world.memory.alloc(64, Init::Uninit).unwrap();
        let turn = world.memory.take_turn().unwrap();
        world.spy.fail(DeviceOp::CopyIn, 1);
        allocation.upload(&turn, 0, &[1; 64]).unwrap_err();
        let error = allocation.download(&turn, 0, &mut [0; 4]).unwrap_err();
        assert_eq!(error, MemoryError::NoValue { range: 0..4 });
    });
}

#[test]
fn a_failed_map_is_a_mirror() {
    everywhere(|world| {
        let (mirrored, usual) = (world.ascending(), world.ascending());
        world.spy.fail(DeviceOp::Map, 1);
        world.store(&mirrored, 5, 99);
        world.store(&usual, 5, 98);
        assert_eq!(mirrored.view_report().unwrap().mechanism, Mechanism::Mirrored);
        assert!(mirrored.view_report().unwrap().reason.contains("injected"));
        assert_eq!((world.download(&mirrored)[5], world.download(&usual)[5]), (99, 98), "{}", world.uri);
    });
}

#[test]
fn what_cannot_be_unmapped_or_freed_is_quarantined() {
    for uri in PROFILES {
        for op in [DeviceOp::Unmap, DeviceOp::CloseWindow, DeviceOp::Free] {
            let world = World::open(uri);
            let allocation = world.ascending();
            world.store(&allocation, 5, 99);
            let (id, address) = (allocation.id(), allocation.device_memory().address);
            world.spy.fail(op, 1);
            drop(allocation);
            let counts = world.memory.counts();
            let happens = match op {
                DeviceOp::Unmap => ["sim", "sim:a2a3", "sim:windowed"].contains(&uri),
                DeviceOp::CloseWindow => uri == "sim:windowed",
                _ => true,
            };
            assert_eq!((counts.quarantined, counts.frees), if happens { (1, 0) } else { (0, 1) }, "{uri} {op}");
            assert_eq!(world.memory.resolve(id).unwrap_err(), MemoryError::Freed { id });
            // Never handed out again.
            let others: Vec<_> = (0..8).map(|_| world.memory.alloc(64, Init::Zeroed).unwrap()).collect();
            if happens {
                assert!(others.iter().all(|other| other.device_memory().address != address), "{uri} {op}");
            }
        }
    }
}

#[test]
fn a_window_that_cannot_be_opened_or_closed_is_an_error_that_can_be_tried_again() {
    let world = World::open("sim:windowed");
    let allocation = world.ascending();
    let turn = world.memory.take_turn().unwrap();
    // The start-up probe has used windows too.
    let before = (world.spy.count(DeviceOp::OpenWindow), world.spy.count(DeviceOp::CloseWindow));
    {
        let mut hold = Hold::new(Arc::clone(&allocation), &turn, "test", false).unwrap();
        world.spy.fail(DeviceOp::OpenWindow, 1);
        assert_eq!(device_op(hold.load::<u8>(3).unwrap_err()), DeviceOp::OpenWindow);
        assert_eq!(hold.load::<u8>(3).unwrap(), 3);
        world.spy.fail(DeviceOp::OpenWindow, 1);
        assert_eq!(device_op(hold.store(3, 9u8).unwrap_err()), DeviceOp::OpenWindow);
        assert_eq!(hold.load::<u8>(3).unwrap(), 3, "the read window is still open");
        hold.store(3, 9u8).unwrap();
    }
    world.spy.fail(DeviceOp::CloseWindow, 1);
    assert_eq!(device_op(allocation.before_launch(&turn, false).unwrap_err()), DeviceOp::CloseWindow);
    allocation.before_launch(&turn, false).unwrap();
    let (opened, closed) = (world.spy.count(DeviceOp::OpenWindow), world.spy.count(DeviceOp::CloseWindow));
    assert_eq!((opened - before.0, closed - before.1), (2, 1));
    // A read window may stay open while a launch only reads.
    {
        let hold = Hold::new(Arc::clone(&allocation), &turn, "test", false).unwrap();
        assert_eq!(hold.load::<u8>(3).unwrap(), 9);
    }
    allocation.before_launch(&turn, false).unwrap();
    assert_eq!(world.spy.count(DeviceOp::CloseWindow) - before.1, 1);
    allocation.before_launch(&turn, true).unwrap();
    assert_eq!(world.spy.count(DeviceOp::CloseWindow) - before.1, 2);
}

#[test]
fn holds_and_turns_are_exclusive() {
    everywhere(|world| {
        let allocation = world.ascending();
        let turn = world.memory.take_turn().unwrap();
        assert!(world.memory.take_turn().is_err(), "not twice by one thread");
        let hold = Hold::new(Arc::clone(&allocation), &turn, "test", false).unwrap();
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Hold::new(Arc::clone(&allocation), &turn, "test", false).map(|_| ())
        }));
        assert!(again.is_err());
        for transfer in [0, 1, 2] {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match transfer {
                0 => allocation.upload(&turn, 0, &[1]),
                1 => allocation.download(&turn, 0, &mut [0]),
                _ => allocation.before_launch(&turn, true).map(|_| ()),
            }));
            assert!(result.is_err(), "a transfer under a hold");
        }
        assert_eq!(hold.load::<u8>(63).unwrap(), 63);
        drop(hold);
        allocation.upload(&turn, 0, &[1]).unwrap();
        let foreign = World::open(world.uri);
        let elsewhere = foreign.memory.take_turn().unwrap();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| allocation.upload(&elsewhere, 0, &[1])));
        assert!(result.is_err(), "another device's turn");
    });
}

#[test]
fn identities_are_never_reused() {
    everywhere(|world| {
        let first = world.memory.alloc(64, Init::Zeroed).unwrap();
        let id = first.id();
        assert_eq!(world.memory.resolve(id).unwrap().id(), id);
        drop(first);
        assert_eq!(world.memory.resolve(id).unwrap_err(), MemoryError::Freed { id });
        let second = world.memory.alloc(64, Init::Zeroed).unwrap();
        assert_eq!(second.id().slot, id.slot, "the slot is reused, so this shows something");
        assert_eq!(world.memory.resolve(id).unwrap_err(), MemoryError::Freed { id });
        let other = World::open(world.uri);
        assert!(matches!(other.memory.resolve(second.id()), Err(MemoryError::Foreign { .. })));
        let mut unknown = second.id();
        unknown.generation += 1_000_000;
        assert!(matches!(world.memory.resolve(unknown), Err(MemoryError::Unknown { .. })));
        unknown.slot = u32::MAX;
        assert!(matches!(world.memory.resolve(unknown), Err(MemoryError::Unknown { .. })));
    });
}

#[test]
fn what_lies_outside_is_refused_and_nothing_is_a_success() {
    everywhere(|world| {
        let allocation = world.ascending();
        let turn = world.memory.take_turn().unwrap();
        for at in [61, 64, u64::MAX] {
            let refused = |result: Result<(), MemoryError>| matches!(result, Err(MemoryError::OutOfBounds { .. }));
            assert!(refused(allocation.upload(&turn, at, &[0; 4])));
            assert!(refused(allocation.download(&turn, at, &mut [0; 4])));
            assert!(refused(allocation.fill(&turn, at..at.saturating_add(4).max(65), 0)));
        }
        let before = world.spy.calls().len();
        allocation.upload(&turn, 64, &[]).unwrap();
        allocation.download(&turn, 64, &mut []).unwrap();
        allocation.fill(&turn, 3..3, 0).unwrap();
        assert_eq!(world.spy.calls().len(), before);
        let mut hold = Hold::new(Arc::clone(&allocation), &turn, "test", false).unwrap();
        for at in [61, 64, u64::MAX] {
            assert!(matches!(hold.load::<u32>(at), Err(MemoryError::OutOfBounds { .. })));
            assert!(matches!(hold.store(at, 0u32), Err(MemoryError::OutOfBounds { .. })));
        }
        // Unaligned elements, also across chunks, are bytes like any others.
        hold.store(3, 0x0102_0304u32).unwrap();
        assert_eq!(hold.load::<u32>(3).unwrap(), 0x0102_0304);
        assert_eq!((hold.load::<u8>(2).unwrap(), hold.load::<u8>(7).unwrap()), (2, 7));
    });
}
