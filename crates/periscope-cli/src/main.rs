//! The command line of Periscope.
//!
//! Standard output carries results only (a table, or one JSON object); progress, warnings and errors go to standard error.
//! Exit status: 0 done and checked, 1 a check or a run failed, 2 wrong use.

mod doctor;
mod failure;
mod list;
mod progress;
mod run;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Run task graphs whose host orchestrator reads and writes tensors wherever they live.
#[derive(Parser)]
#[command(
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  periscope run paged_attention                              a decoder's attention on the embedded simulator
  periscope run paged_attention --platform sim:a5            the same where the host can only copy
  periscope run paged_attention --case case1 --residency staged --runs 5
  periscope list                                             workloads, cases and platforms
  periscope doctor                                           does everything work here?

Exit status: 0 done and checked, 1 a check or a run failed, 2 wrong use.
NO_COLOR turns colours off; RUST_LOG=periscope_memory=debug says more."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show workloads, their cases, and the devices that can be opened
    List(list::Options),
    /// Try every device of this machine and say what works, and how the host reaches its memory
    Doctor,
    /// Run a workload, check its result, report times, bytes and host views
    Run(run::Options),
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn"))
        .format_timestamp(None)
        .format_target(false)
        .init();
    let result = match Cli::parse().command {
        Command::List(options) => list::list(&options),
        Command::Doctor => doctor::doctor(),
        Command::Run(options) => run::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
            failure.exit_code()
        }
    }
}
