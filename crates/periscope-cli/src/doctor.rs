//! `periscope doctor`

use std::io::{self, Write};

use comfy_table::{Cell, Color};
use periscope::{Callable, Device, DeviceOptions, Resident, list_devices};
use periscope_workloads::{NoProgress, Residency, Session, VectorAdd, Workload};

use crate::failure::Failure;
use crate::table::{self, bytes};

const SMALL_ELEMS: u64 = 256;
const LARGE_ELEMS: u64 = 1 << 20;

/// How the host reaches a tensor of `elems` i32: asks the device by touching one.
fn mechanism(device: &Device, elems: u64) -> Result<String, periscope::Error> {
    let tensor: Resident = device.alloc_zeroed::<i32>([elems])?;
    let touch =
        Callable::builder("touch").input("tensor").orchestrate(|ctx, args| ctx.read::<i32>(args[0], [0]).map(|_| ()));
    device.run(&touch, &mut [(&tensor).into()])?;
    Ok(tensor.view_report().map_or_else(|| "none".into(), |view| view.mechanism.to_string()))
}

/// A computation, checked.
fn compute(device: &Device) -> Result<bool, Failure> {
    let prepared = VectorAdd.prepare(VectorAdd.default_case(), 0, &NoProgress)?;
    for residency in Residency::ALL {
        let mut session = Session::open(device, &prepared, residency)?;
        session.run()?;
        if !session.check()?.pass {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Diagnosis {
    memory: String,
    cores: String,
    threads: String,
    small: String,
    large: String,
    works: bool,
}

fn diagnose(uri: &str) -> Result<Diagnosis, Failure> {
    let mut options = DeviceOptions::default();
    // A large view is what is asked for here, not something to be warned about.
    options.memory.warn_bytes = u64::MAX;
    let device = Device::open_with(uri, &options)?;
    let info = device.info();
    Ok(Diagnosis {
        memory: bytes(info.memory_bytes),
        cores: format!("{} + {}", info.geometry.clusters, info.geometry.vector_cores),
        threads: info.host_threads.to_string(),
        small: mechanism(&device, SMALL_ELEMS)?,
        large: mechanism(&device, LARGE_ELEMS)?,
        works: compute(&device)?,
    })
}

pub(crate) fn doctor() -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let cores = std::thread::available_parallelism().map_or_else(|_| "unknown".into(), |cores| cores.to_string());
    writeln!(out, "periscope {} on {} cores", env!("CARGO_PKG_VERSION"), cores)?;
    writeln!(out, "kernels use {}\n", periscope_workloads::tile::instructions())?;
    drop(out);
    let titles = ["PLATFORM", "MEMORY", "CUBE + VECTOR", "THREADS", "HOST VIEW AT 1 KiB", "AT 4 MiB", "vector_add"];
    let mut rows = table::table(&titles, &[1, 2, 3]);
    let mut failures = Vec::new();
    for (uri, _) in list_devices() {
        let uri = uri.to_string();
        match diagnose(&uri) {
            Ok(found) => {
                let verdict = if found.works {
                    Cell::new("ok").fg(Color::Green)
                } else {
                    Cell::new("wrong result").fg(Color::Red)
                };
                if !found.works {
                    failures.push(format!("{uri}: vector_add gives a wrong result"));
                }
                let cells = [uri, found.memory, found.cores, found.threads, found.small, found.large];
                rows.add_row(cells.into_iter().map(Cell::new).chain([verdict]));
            }
            Err(failure) => {
                let why = match failure {
                    Failure::Usage(why) | Failure::Failed(why) => why,
                    Failure::OutputClosed => return Err(Failure::OutputClosed),
                };
                failures.push(format!("{uri}: {why}"));
                rows.add_row([Cell::new(uri), Cell::new("failed").fg(Color::Red)]);
            }
        }
    }
    table::print(&rows)?;
    if failures.is_empty() { Ok(()) } else { Err(Failure::Failed(failures.join("\n"))) }
}
