//! Broken rules that the simulator notices, and what is particular to its profiles. Whether it keeps the rules itself is
//! the conformance suite's matter.
#![expect(unsafe_code, reason = "tests call the device trait directly, and break its contract on purpose")]
#![allow(clippy::single_range_in_vec_init, reason = "a list of one range is what the call takes")]

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use periscope_core::task::{CoreKind, Direction};
use periscope_hal::{
    AddressSpace, Binding, Device, DeviceError, Kernel, Launch, MapAnswer, MemoryId, ModuleId, OpenError, Platform,
    Push, WindowMode,
};
use periscope_sim::{OPAQUE_BASE, Profile, SimDevice, SimPlatform, SimSettings};

mod support;
use support::{Rig, words};

fn open(profile: Profile) -> SimDevice {
    SimDevice::open(profile, SimSettings { memory_bytes: 1 << 30, ..SimSettings::default() }).unwrap()
}

/// The message of a contract error.
#[track_caller]
fn broken<T: std::fmt::Debug>(result: Result<T, DeviceError>) -> String {
    match result {
        Err(DeviceError::Contract { message, .. }) => message,
        other => panic!("expected a broken contract, got {other:?}"),
    }
}

#[test]
fn calls_on_memory_that_is_not_there() {
    for profile in Profile::ALL {
        let device = open(profile);
        let freed = device.alloc(100).unwrap().id;
        // SAFETY: the simulator checks every call before it touches memory, which is what is tested here.
        unsafe {
            device.free(freed).unwrap();
            for (memory, why) in
                [(freed, "was freed"), (MemoryId(77), "never allocated"), (MemoryId(0), "never allocated")]
            {
                let messages = [
                    broken(device.free(memory)),
                    broken(device.copy_in(memory, 0, &[1])),
                    broken(device.copy_out(memory, 0, &mut [1])),
                    broken(device.copy_in_ranges(memory, &[0..1], &[1])),
                    broken(device.copy_out_ranges(memory, &[0..1], &mut [1])),
                    broken(device.copy_within(memory, 0, memory, 10, 5)),
                    broken(device.fill(memory, 0..1, 0)),
                    broken(device.map(memory, 0..1)),
                    broken(device.unmap(memory)),
                    broken(device.open_window(memory, WindowMode::Read)),
                    broken(device.close_window(memory)),
                ];
                assert!(messages.iter().all(|message| message.contains(why)), "{messages:?}");
            }
        }
    }
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "a reversed range is one of the mistakes to notice")]
fn ranges_outside_or_empty_or_out_of_order() {
    for profile in Profile::ALL {
        let device = open(profile);
        broken(device.alloc(0));
        let memory = device.alloc(1000).unwrap().id;
        // SAFETY: as above; calls that pass touch live memory that nothing else uses.
        unsafe {
            device.copy_in(memory, 990, &[0; 10]).unwrap();
            assert!(
                broken(device.copy_in(memory, 991, &[0; 10])).contains("1000 B"),
                "beyond what was asked for, within the block"
            );
            broken(device.copy_in(memory, u64::MAX, &[0; 10]));
            broken(device.copy_in(memory, 0, &[]));
            broken(device.copy_out(memory, 1000, &mut [0]));
            broken(device.fill(memory, 5..1001, 0));
            broken(device.fill(memory, 5..4, 0));
            broken(device.copy_in_ranges(memory, &[0..2, 1..3], &[0; 4]));
            broken(device.copy_in_ranges(memory, &[4..6, 0..2], &[0; 4]));
            broken(device.copy_in_ranges(memory, &[0..2], &[0; 3]));
            broken(device.copy_out_ranges(memory, &[0..2, 3..3], &mut [0; 2]));
            broken(device.copy_out_ranges(memory, &[999..1001], &mut [0; 2]));
            broken(device.copy_within(memory, 0, memory, 9, 10));
            broken(device.copy_within(memory, 0, memory, 995, 10));
            broken(device.map(memory, 0..1001));
            broken(device.map(memory, 7..7));
        }
    }
}

#[test]
fn mappings_out_of_turn() {
    for profile in Profile::ALL {
        let device = open(profile);
        let memory = device.alloc(4 << 20).unwrap().id;
        // SAFETY: as above; nothing uses the mappings.
        unsafe {
            broken(device.unmap(memory));
            if matches!(device.map(memory, 0..100).unwrap(), MapAnswer::Refused { .. }) {
                broken(device.unmap(memory));
                device.free(memory).unwrap();
                continue;
            }
            assert!(broken(device.map(memory, 0..100)).contains("mapped already"));
            assert!(broken(device.free(memory)).contains("still mapped"));
            if profile == Profile::Windowed {
                broken(device.close_window(memory));
                device.open_window(memory, WindowMode::Read).unwrap();
                broken(device.open_window(memory, WindowMode::Read));
                device.open_window(memory, WindowMode::Write).unwrap();
                broken(device.open_window(memory, WindowMode::Read));
                device.close_window(memory).unwrap();
            } else {
                broken(device.open_window(memory, WindowMode::Read));
            }
            device.unmap(memory).unwrap();
            broken(device.unmap(memory));
            device.free(memory).unwrap();
        }
    }
}

/// A kernel that reads its first argument and writes its second, when it is let go.
fn rig(profile: Profile) -> (Rig, std::sync::mpsc::Sender<()>) {
    let (go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let kernel = Kernel::host("gated", CoreKind::Vector, move |args| {
        gate.lock().unwrap().recv().map_err(|_| "nobody opens the gate")?;
        let value = args.input::<u64>(0)?.get(&[0])?;
        Ok(args.output::<u64>(1)?.set(&[0], value)?)
    });
    let settings = SimSettings { memory_bytes: 1 << 30, ..SimSettings::default() };
    (Rig::with(profile, settings, vec![kernel.input::<u64>().output::<u64>()]), go)
}

#[test]
fn memory_of_a_launch_in_flight_is_held() {
    for profile in Profile::ALL {
        let (mut rig, go) = rig(profile);
        let objects = [rig.external(64), rig.external(64)];
        rig.submit(0, &[words(objects[0], 0, 1, Direction::In), words(objects[1], 0, 1, Direction::Out)], &[]);
        let (image, from, to) = (rig.freeze(), rig.alloc(64), rig.alloc(64));
        let execution = rig.launch(&image, &[from, to]);
        // SAFETY: the simulator refuses, which is what is tested; it does free what the launch has let go.
        unsafe {
            assert!(broken(rig.device.free(from)).contains("in flight"));
            assert!(broken(rig.device.free(to)).contains("in flight"));
            go.send(()).unwrap();
            execution.wait(None).unwrap().result.unwrap();
            rig.device.free(from).unwrap();
            rig.device.free(to).unwrap();
        }
    }
}

#[test]
fn windows_and_launches_exclude_each_other() {
    let (mut rig, go) = rig(Profile::Windowed);
    let objects = [rig.external(64), rig.external(64)];
    rig.submit(0, &[words(objects[0], 0, 1, Direction::In), words(objects[1], 0, 1, Direction::Out)], &[]);
    let (image, from, to) = (rig.freeze(), rig.alloc(64), rig.alloc(64));
    let device = Arc::clone(&rig.device);
    let launch = || Launch {
        image: Arc::clone(&image),
        bindings: [from, to].map(|memory| Binding { memory, offset_bytes: 0 }).into(),
        module: rig.module,
        kernels: vec![0],
        pushes: vec![],
    };
    // SAFETY: no reference into a mapping is ever made; launches bind live memory.
    unsafe {
        device.copy_in(from, 0, &[9, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        device.map(from, 0..64).unwrap();
        device.map(to, 0..64).unwrap();
        // Open windows against a launch: writing excludes everything, reading excludes writers.
        for (memory, mode, allowed) in [
            (from, WindowMode::Read, true),
            (from, WindowMode::Write, false),
            (to, WindowMode::Read, false),
            (to, WindowMode::Write, false),
        ] {
            device.open_window(memory, mode).unwrap();
            match device.launch(launch()) {
                Ok(execution) => {
                    assert!(allowed, "{mode:?} window of {memory:?}");
                    go.send(()).unwrap();
                    execution.wait(None).unwrap().result.unwrap();
                }
                refused => {
                    assert!(!allowed, "{mode:?} window of {memory:?}: {refused:?}");
                    assert!(broken(refused).contains("window"));
                }
            }
            device.close_window(memory).unwrap();
        }
        // A push is a write.
        device.open_window(from, WindowMode::Read).unwrap();
        let push = Push { memory: from, ranges: vec![0..1], bytes: vec![1] };
        broken(device.launch(Launch { pushes: vec![push], ..launch() }));
        device.close_window(from).unwrap();
        // A launch in flight against opening windows.
        let execution = device.launch(launch()).unwrap();
        device.open_window(from, WindowMode::Read).unwrap();
        broken(device.open_window(from, WindowMode::Write));
        broken(device.open_window(to, WindowMode::Read));
        broken(device.open_window(to, WindowMode::Write));
        go.send(()).unwrap();
        execution.wait(None).unwrap().result.unwrap();
        device.open_window(from, WindowMode::Write).unwrap();
        device.open_window(to, WindowMode::Write).unwrap();
    }
}

#[test]
fn launches_that_do_not_fit_their_image() {
    let (mut rig, _go) = rig(Profile::Identity);
    let objects = [rig.external(64), rig.external(64)];
    rig.submit(0, &[words(objects[0], 0, 1, Direction::In), words(objects[1], 0, 1, Direction::Out)], &[]);
    let (image, from, to) = (rig.freeze(), rig.alloc(64), rig.alloc(64));
    let other = rig.device.load_kernels(&[Kernel::host("other", CoreKind::Vector, |_| Ok(()))]).unwrap();
    let bind = |memory, offset_bytes| Binding { memory, offset_bytes };
    let sound = Launch {
        image: Arc::clone(&image),
        bindings: vec![bind(from, 0), bind(to, 0)],
        module: rig.module,
        kernels: vec![0],
        pushes: vec![],
    };
    let broken_launches = [
        (Launch { bindings: vec![bind(from, 0)], ..sound.clone() }, "1 bindings for an image of 2"),
        (Launch { bindings: vec![bind(from, 8), bind(to, 0)], ..sound.clone() }, "needs 64 B from byte 8"),
        (Launch { bindings: vec![bind(from, u64::MAX), bind(to, 0)], ..sound.clone() }, "needs 64 B"),
        (Launch { bindings: vec![bind(from, 0), bind(MemoryId(99), 0)], ..sound.clone() }, "never allocated"),
        (Launch { module: ModuleId(9), ..sound.clone() }, "module 9"),
        (Launch { module: other, ..sound.clone() }, "another signature"),
        (Launch { kernels: vec![], ..sound.clone() }, "0 kernels"),
        (Launch { kernels: vec![1], ..sound.clone() }, "kernel 1 of a module of 1"),
        (
            Launch { pushes: vec![Push { memory: to, ranges: vec![60..65], bytes: vec![0; 5] }], ..sound.clone() },
            "outside",
        ),
        (
            Launch { pushes: vec![Push { memory: to, ranges: vec![0..4], bytes: vec![0; 5] }], ..sound.clone() },
            "5 B are packed",
        ),
        (Launch { image: Arc::new(image.with_writes(&[(0, 60, vec![0; 5])])), ..sound.clone() }, "write 0"),
    ];
    for (launch, why) in broken_launches {
        // SAFETY: the simulator refuses before anything runs, which is what is tested.
        let message = broken(unsafe { rig.device.launch(launch) });
        assert!(message.contains(why), "expected {why:?}, got {message:?}");
    }
    // Nothing was held by what was refused.
    // SAFETY: nothing uses the memory.
    unsafe {
        rig.device.free(from).unwrap();
        rig.device.free(to).unwrap();
    }
}

#[test]
fn addresses_are_opaque_and_equal_across_devices() {
    for profile in Profile::ALL {
        let devices = [open(profile), open(profile)];
        let addresses = devices.each_ref().map(|device| device.alloc(5000).unwrap().address);
        assert_eq!(devices[0].info().uri.to_string(), profile.to_string());
        if profile == Profile::Identity {
            assert_eq!(devices[0].info().address_space, AddressSpace::Host);
            assert_ne!(addresses[0], addresses[1]);
        } else {
            assert_eq!(devices[0].info().address_space, AddressSpace::Opaque);
            assert_eq!(addresses[0], addresses[1]);
            assert!(addresses[0] >= OPAQUE_BASE, "{:#x} could be a host address", addresses[0]);
        }
    }
}

#[test]
fn the_platform_lists_what_it_opens() {
    let platform = SimPlatform::new(SimSettings { memory_bytes: 1 << 20, ..SimSettings::default() });
    let devices = platform.devices();
    assert_eq!(devices.len(), 5);
    for (uri, description) in devices {
        let device = platform.open(&uri).unwrap();
        assert_eq!((&device.info().uri, &device.info().description), (&uri, &description));
        assert_eq!(device.info().memory_bytes, 1 << 20);
    }
    match platform.open(&"sim:a7".parse().unwrap()) {
        Err(OpenError::UnknownDevice { uri, known }) => {
            assert_eq!(uri, "sim:a7");
            assert!(known.contains(&"sim:a2a3-64k".to_owned()));
        }
        other => panic!("{other:?}"),
    }
}
