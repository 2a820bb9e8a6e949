//! Every small workload on every platform profile under every residency: right, and bit-identical everywhere.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use periscope::{Device, DeviceUri, Report, list_devices};
use periscope_workloads::{NoProgress, Prepared, Residency, Session, Workload, all, find};

/// One reference per workload and case in this process: computing it costs more than running against it.
fn prepared(workload: &str, case: &str) -> &'static Prepared {
    static KNOWN: OnceLock<Mutex<HashMap<String, &'static Prepared>>> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap();
    known
        .entry(format!("{workload}/{case}"))
        .or_insert_with(|| Box::leak(Box::new(find(workload).unwrap().prepare(case, 7, &NoProgress).unwrap())))
}

fn profiles() -> Vec<DeviceUri> {
    list_devices().into_iter().map(|(uri, _)| uri).collect()
}

fn outputs(session: &Session<'_>, prepared: &Prepared) -> Vec<Vec<u8>> {
    let written = (0..prepared.tensors.len()).filter(|&position| prepared.tensors[position].direction.writes());
    written.map(|position| session.values(position).unwrap().bytes().to_vec()).collect()
}

fn everywhere(workload: &dyn Workload, case: &str) {
    let prepared = prepared(workload.name(), case);
    let mut first: Option<Vec<Vec<u8>>> = None;
    for uri in profiles() {
        for residency in Residency::ALL {
            let what = format!("{} {case} on {uri}, {residency}", workload.name());
            let device = Device::open(&uri.to_string()).unwrap();
            let mut session = Session::open(&device, prepared, residency).unwrap();
            for run in 0..2 {
                let before = device.counts();
                session.run().unwrap_or_else(|error| panic!("{what}: {error}"));
                let check = session.check().unwrap();
                assert!(check.pass, "{what}: {check:?}");
                if run > 0 {
                    let during = device.counts() - before;
                    assert_eq!((during.allocations, during.frees), (0, 0), "{what}: a warm run allocates nothing");
                    assert_eq!((during.established, during.maps), (0, 0), "{what}");
                }
            }
            let outputs = outputs(&session, prepared);
            match &first {
                None => first = Some(outputs),
                Some(first) => assert!(*first == outputs, "{what}: other bits than the first combination"),
            }
        }
    }
}

#[test]
fn every_workload_is_right_everywhere() {
    for workload in all() {
        for case in workload.cases() {
            if !["case1", "case2"].contains(&case.name) {
                everywhere(&*workload, case.name);
            }
        }
    }
}

fn warm_report(uri: &str, residency: Residency) -> (Report, &'static Prepared) {
    let prepared = prepared("paged_attention", "mid");
    let device = Device::open(uri).unwrap();
    let mut session = Session::open(&device, prepared, residency).unwrap();
    session.run().unwrap();
    (session.run().unwrap(), prepared)
}

#[test]
fn resident_warm_run_copies_nothing_to_the_device_and_establishes_nothing() {
    let expected = [
        ("sim", "identity", "device memory is host memory"),
        ("sim:a2a3", "mapped", "granted"),
        ("sim:a2a3-64k", "mirrored", "map refused"),
        ("sim:a5", "mirrored", "no map path"),
        ("sim:windowed", "windowed", "only while no kernel"),
    ];
    for (uri, mechanism, reason) in expected {
        let (report, _) = warm_report(uri, Residency::Resident);
        assert_eq!(report.bytes.h2d, 0, "{uri}");
        assert_eq!(report.bytes.d2h, 0, "{uri}");
        assert_eq!((report.views.established, report.views.maps, report.views.fills), (0, 0, 0), "{uri}");
        assert_eq!(report.views.releases, 0, "{uri}");
        let mut views: Vec<_> = report.tensor_views.iter().map(|view| view.tensor.as_str()).collect();
        views.sort_unstable();
        assert_eq!(views, ["block_table", "context_lens"], "{uri}");
        for view in &report.tensor_views {
            assert_eq!(view.mechanism, mechanism, "{uri}");
            assert!(view.reason.contains(reason), "{uri}: {}", view.reason);
        }
        assert_eq!((report.tasks, report.edges), (1_024, 1_248), "{uri}");
    }
}

#[test]
fn mixed_run_has_no_views_and_stages_the_control_tensors() {
    for uri in profiles() {
        let (report, prepared) = warm_report(&uri.to_string(), Residency::Mixed);
        assert!(report.tensor_views.is_empty(), "{uri}");
        assert_eq!(report.views.established, 0, "{uri}");
        let control: u64 = ["block_table", "context_lens"]
            .iter()
            .map(|name| prepared.tensors.iter().find(|tensor| tensor.name == *name).unwrap().host.bytes().len() as u64)
            .sum();
        assert_eq!((report.bytes.h2d, report.bytes.d2h), (control, 0), "{uri}");
    }
}

#[test]
fn staged_run_copies_the_inputs_in_and_the_output_back() {
    for uri in profiles() {
        let (report, prepared) = warm_report(&uri.to_string(), Residency::Staged);
        let bytes = |writes: bool| -> u64 {
            let those = prepared.tensors.iter().filter(|tensor| tensor.direction.writes() == writes);
            those.map(|tensor| tensor.host.bytes().len() as u64).sum()
        };
        assert!(report.tensor_views.is_empty(), "{uri}");
        assert_eq!((report.bytes.h2d, report.bytes.d2h), (bytes(false), bytes(true)), "{uri}");
    }
}
