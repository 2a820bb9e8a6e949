//! What building and executing a graph costs per task: paged attention of 256 × 64 blocks with tiny tiles.
//!
//! `cargo bench -p periscope-workloads --bench graph_p [-- ROUNDS]`

use periscope::{Device, DeviceOptions, Phases};
use periscope_workloads::paged_attention::{Params, prepare};
use periscope_workloads::{NoProgress, Residency, Session};

fn main() {
    let rounds: usize = std::env::args()
        .skip(1)
        .find(|arg| !arg.starts_with("--"))
        .map_or(30, |rounds| rounds.parse().expect("a number of rounds"));
    let params = Params { batch: 256, heads: 4, head_dim: 4, block: 4, context: 256, max_len: 512 };
    let prepared = prepare(params, 0, &NoProgress).expect("the inputs fit");
    // A small device, so that tools which cannot reserve much address space can count instructions.
    let mut options = DeviceOptions::default();
    options.sim.memory_bytes = 1 << 30;
    let device = Device::open_with("sim:a2a3", &options).expect("the simulator opens");
    let mut session = Session::open(&device, &prepared, Residency::Resident).expect("the tensors fit");
    let mut reports = Vec::new();
    for _ in 0..rounds + 1 {
        reports.push(session.run().expect("the run succeeds"));
    }
    assert!(session.check().expect("a result").pass);
    let last = &reports[rounds];
    println!("{} tasks, {} edges, image {} B per task", last.tasks, last.edges, last.image_bytes / last.tasks);
    let row = |name: &str, phase: fn(&Phases) -> std::time::Duration| {
        let mut ns: Vec<f64> = reports[1..]
            .iter()
            .map(|report| phase(&report.phases_us).as_nanos() as f64 / report.tasks as f64)
            .collect();
        let first = phase(&reports[0].phases_us).as_nanos() as f64 / reports[0].tasks as f64;
        ns.sort_by(f64::total_cmp);
        println!("{name:<12} min {:>7.1}  median {:>7.1}  first {first:>7.1}  ns/task", ns[0], ns[ns.len() / 2]);
    };
    row("orchestrate", |phases| phases.orchestrate);
    row("launch", |phases| phases.launch);
    row("execute", |phases| phases.execute);
    row("total", |phases| phases.total);
}
