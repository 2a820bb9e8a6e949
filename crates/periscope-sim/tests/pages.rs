//! Resident memory of the process, hence a process of its own.
#![expect(unsafe_code, reason = "tests call the device trait directly")]

use periscope_hal::Device;
use periscope_sim::{Profile, SimDevice, SimSettings};

#[test]
fn freed_pages_are_given_back() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    };
    for profile in Profile::ALL {
        let device = SimDevice::open(profile, SimSettings { memory_bytes: 1 << 30, ..SimSettings::default() }).unwrap();
        let len = 128 << 20;
        let before = resident();
        let memory = device.alloc(len).unwrap().id;
        // SAFETY: live memory that nothing else uses.
        unsafe {
            device.fill(memory, 0..len, 1).unwrap();
            assert!(resident() >= before + len / 2, "{profile}: filling 128 MiB took no memory");
            device.free(memory).unwrap();
        }
        assert!(resident() < before + len / 4, "{profile}: the pages of a freed allocation are still there");
    }
}
