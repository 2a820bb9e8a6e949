//! `periscope run`

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use comfy_table::{Attribute, Cell, Color};
use periscope::{Device, Phases, Report, TensorView, ViewCounts};
use periscope_workloads::{Check, Prepared, Progress, Residency, Session, find};
use serde::Serialize;

use crate::failure::Failure;
use crate::progress::Bars;
use crate::table::{self, bytes, grouped, micros};

/// Run a workload, check its result, report times, bytes and host views
#[derive(Args)]
pub(crate) struct Options {
    /// What to run; `periscope list` shows all
    workload: String,
    /// Which row of parameters [default: the workload's own]
    #[arg(long)]
    case: Option<String>,
    /// Where to run it
    #[arg(long, value_name = "URI", default_value = "sim")]
    platform: String,
    /// How the graph is built and executed
    #[arg(long, value_enum, default_value = "host_build_graph")]
    runtime: Runtime,
    /// Which entry tensors live on the device
    #[arg(long, value_enum, default_value = "resident")]
    residency: ResidencyName,
    /// How often to run it; the first run is cold
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Seed of the inputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Runtime {
    /// Builds the whole graph on the host, then launches it
    #[value(name = "host_build_graph")]
    HostBuildGraph,
}

#[derive(Clone, Copy, ValueEnum)]
enum ResidencyName {
    /// None: all are copied in for each run
    Staged,
    /// The large ones; control tensors are staged
    Mixed,
    /// All
    Resident,
}

impl From<ResidencyName> for Residency {
    fn from(name: ResidencyName) -> Residency {
        match name {
            ResidencyName::Staged => Residency::Staged,
            ResidencyName::Mixed => Residency::Mixed,
            ResidencyName::Resident => Residency::Resident,
        }
    }
}

/// The JSON object.
#[derive(Serialize)]
struct Outcome<'a> {
    workload: &'a str,
    case: &'a str,
    platform: &'a str,
    runtime: &'static str,
    residency: &'static str,
    seed: u64,
    tasks: u64,
    edges: u64,
    setup_bytes: SetupBytes,
    runs: Vec<RunLine>,
    summary_us: Summary,
    views: &'a [TensorView],
    check: CheckLine,
}

#[derive(Serialize)]
struct SetupBytes {
    h2d: u64,
}

#[derive(Serialize)]
struct RunLine {
    phases_us: Phases,
    bytes: periscope::Bytes,
    views: ViewCounts,
}

#[derive(Serialize)]
struct Summary {
    bind: Spread,
    orchestrate: Spread,
    launch: Spread,
    execute: Spread,
    collect: Spread,
    total: Spread,
}

#[derive(Serialize, Clone, Copy)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

#[derive(Serialize)]
struct CheckLine {
    pass: bool,
    /// Null if not finite, which JSON cannot say.
    max_abs_err: Option<f64>,
    max_rel_err: Option<f64>,
    rtol: f64,
    atol: f64,
}

impl From<Check> for CheckLine {
    fn from(check: Check) -> CheckLine {
        let finite = |value: f64| value.is_finite().then_some(value);
        CheckLine {
            pass: check.pass,
            max_abs_err: finite(check.max_abs_err),
            max_rel_err: finite(check.max_rel_err),
            rtol: check.rtol,
            atol: check.atol,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let workload = find(&options.workload)?;
    let case = options.case.as_deref().unwrap_or(workload.default_case());
    // A wrong URI should not be found out after minutes of preparation.
    let device = Device::open(&options.platform)?;
    let residency = Residency::from(options.residency);
    let bars = Bars::default();
    let prepared = workload.prepare(case, options.seed, &bars)?;
    let mut session = bars.during("uploading resident tensors", || Session::open(&device, &prepared, residency))?;
    let mut reports = Vec::new();
    let mut check = Check::default();
    for number in 0..options.runs {
        bars.step("running", u64::from(number), u64::from(options.runs));
        reports.push(session.run()?);
        // The last run's values speak for all that started from the same inputs, but a wrong one must not hide.
        let this = session.check()?;
        if check.pass {
            check = this;
        }
    }
    bars.clear();
    let last = reports.last().expect("at least one run");
    if options.json {
        let outcome = Outcome {
            workload: workload.name(),
            case,
            platform: &options.platform,
            runtime: "host_build_graph",
            residency: residency.name(),
            seed: options.seed,
            tasks: last.tasks,
            edges: last.edges,
            setup_bytes: SetupBytes { h2d: session.setup_bytes() },
            runs: reports
                .iter()
                .map(|run| RunLine { phases_us: run.phases_us, bytes: run.bytes, views: run.views })
                .collect(),
            summary_us: summary(&reports),
            views: &last.tensor_views,
            check: check.into(),
        };
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &outcome).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        let title = format!(
            "{} {case} on {} ({residency}, host_build_graph, seed {}): {} tasks, {} edges",
            workload.name(),
            options.platform,
            options.seed,
            grouped(last.tasks),
            grouped(last.edges)
        );
        match print(&title, &reports, &session, &prepared, &check) {
            // A failed check is a failure even if nobody reads about it.
            Err(Failure::OutputClosed) if !check.pass => {}
            printed => printed?,
        }
    }
    if check.pass { Ok(()) } else { Err(Failure::Failed("the result is not the reference's".into())) }
}

fn summary(reports: &[Report]) -> Summary {
    let spread = |phase: fn(&Phases) -> std::time::Duration| {
        let mut times: Vec<f64> =
            reports.iter().map(|report| phase(&report.phases_us).as_nanos() as f64 / 1e3).collect();
        times.sort_by(f64::total_cmp);
        let middle = times.len() / 2;
        let median = if times.len() % 2 == 1 { times[middle] } else { (times[middle - 1] + times[middle]) / 2.0 };
        Spread { min: times[0], median, max: times[times.len() - 1] }
    };
    Summary {
        bind: spread(|phases| phases.bind),
        orchestrate: spread(|phases| phases.orchestrate),
        launch: spread(|phases| phases.launch),
        execute: spread(|phases| phases.execute),
        collect: spread(|phases| phases.collect),
        total: spread(|phases| phases.total),
    }
}

fn print(
    title: &str,
    reports: &[Report],
    session: &Session<'_>,
    prepared: &Prepared,
    check: &Check,
) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{title}")?;
    if session.setup_bytes() > 0 {
        writeln!(out, "uploaded once: {}", bytes(session.setup_bytes()))?;
    }
    writeln!(out)?;
    drop(out);
    let titles = ["RUN", "BIND", "ORCHESTRATE", "LAUNCH", "EXECUTE", "COLLECT", "TOTAL", "TO DEVICE", "TO HOST"];
    let mut runs = table::table(&titles, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for (number, report) in reports.iter().enumerate() {
        let phases = &report.phases_us;
        let phase = |duration: std::time::Duration| micros(duration.as_nanos() as f64 / 1e3);
        runs.add_row([
            (number + 1).to_string(),
            phase(phases.bind),
            phase(phases.orchestrate),
            phase(phases.launch),
            phase(phases.execute),
            phase(phases.collect),
            phase(phases.total),
            bytes(report.bytes.h2d),
            bytes(report.bytes.d2h),
        ]);
    }
    let summary = summary(reports);
    for (name, pick) in [("min", (|spread| spread.min) as fn(Spread) -> f64), ("median", |spread| spread.median)] {
        let cell = |spread| micros(pick(spread));
        runs.add_row([
            name.to_owned(),
            cell(summary.bind),
            cell(summary.orchestrate),
            cell(summary.launch),
            cell(summary.execute),
            cell(summary.collect),
            cell(summary.total),
            String::new(),
            String::new(),
        ]);
    }
    table::print(&runs)?;
    let mut out = io::stdout().lock();
    if prepared.flops > 0 {
        let rate = prepared.flops as f64 / (summary.total.min * 1e3);
        writeln!(out, "\n{rate:.1} GFLOP/s in the fastest run")?;
    }
    writeln!(out)?;
    let views = &reports.last().expect("at least one run").tensor_views;
    if views.is_empty() {
        writeln!(out, "No host views: the orchestrator touched no resident tensor.")?;
        drop(out);
    } else {
        drop(out);
        let titles = ["HOST VIEW", "MECHANISM", "BYTES", "READS", "WRITES", "REFRESHES", "PUSHES", "REASON"];
        let mut rows = table::table(&titles, &[2, 3, 4, 5, 6]);
        for view in views {
            rows.add_row([
                view.tensor.clone(),
                view.mechanism.to_owned(),
                bytes(view.bytes),
                grouped(view.reads),
                grouped(view.writes),
                grouped(view.refreshes),
                grouped(view.pushes),
                view.reason.clone(),
            ]);
        }
        table::print(&rows)?;
    }
    let (word, colour) = if check.pass { ("PASS", Color::Green) } else { ("FAIL", Color::Red) };
    let errors = format!(
        "largest error {:.2e} absolute, {:.2e} relative (accepted: {} + {} × |expected|)",
        check.max_abs_err, check.max_rel_err, check.atol, check.rtol
    );
    let mut line = table::table(&[], &[]);
    line.add_row([Cell::new("check"), Cell::new(word).fg(colour).add_attribute(Attribute::Bold), Cell::new(errors)]);
    writeln!(io::stdout())?;
    table::print(&line)?;
    Ok(())
}
