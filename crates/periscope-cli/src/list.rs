//! `periscope list`

use std::io::{self, Write};

use clap::Args;
use periscope::list_devices;
use periscope_workloads::all;
use serde::Serialize;

use crate::failure::Failure;
use crate::table;

/// Show workloads, their cases, and the devices that can be opened
#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listing {
    workloads: Vec<WorkloadLine>,
    platforms: Vec<PlatformLine>,
}

#[derive(Serialize)]
struct WorkloadLine {
    name: &'static str,
    about: &'static str,
    default_case: &'static str,
    cases: Vec<CaseLine>,
}

#[derive(Serialize)]
struct CaseLine {
    name: &'static str,
    about: String,
}

#[derive(Serialize)]
struct PlatformLine {
    uri: String,
    about: String,
}

pub(crate) fn list(options: &Options) -> Result<(), Failure> {
    let workloads = all()
        .iter()
        .map(|workload| WorkloadLine {
            name: workload.name(),
            about: workload.about(),
            default_case: workload.default_case(),
            cases: workload.cases().into_iter().map(|case| CaseLine { name: case.name, about: case.about }).collect(),
        })
        .collect();
    let platforms =
        list_devices().into_iter().map(|(uri, about)| PlatformLine { uri: uri.to_string(), about }).collect();
    let listing = Listing { workloads, platforms };
    let mut out = io::stdout().lock();
    if options.json {
        serde_json::to_writer(&mut out, &listing).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    drop(out);
    let mut workloads = table::table(&["WORKLOAD", "CASE", ""], &[]);
    for workload in &listing.workloads {
        workloads.add_row([workload.name, "", workload.about]);
        for case in &workload.cases {
            let mark = if case.name == workload.default_case { " (default)" } else { "" };
            workloads.add_row(["", &format!("{}{mark}", case.name), &case.about]);
        }
    }
    table::print(&workloads)?;
    writeln!(io::stdout())?;
    let mut platforms = table::table(&["PLATFORM", ""], &[]);
    for platform in &listing.platforms {
        platforms.add_row([&platform.uri, &platform.about]);
    }
    table::print(&platforms)?;
    Ok(())
}
