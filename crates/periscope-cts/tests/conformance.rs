//! Every clause over every device of every platform, as one table. Arguments select clauses whose name contains one of them.

use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use periscope_cts::{Clause, Report, Subject, clauses, platforms};

/// A clause that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let selected = |clause: &Clause| {
        let name = format!("{}::{}", clause.group, clause.name);
        wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str()))
    };
    let clauses: Vec<Clause> = clauses().into_iter().filter(selected).collect();
    // Clauses make kernels panic on purpose; a verdict says what matters of any other panic.
    std::panic::set_hook(Box::new(|_| ()));
    let mut report = Report::new(&clauses);
    let (progress, watched) = channel::<String>();
    std::thread::spawn(move || {
        let mut now = String::new();
        loop {
            match watched.recv_timeout(PATIENCE) {
                Ok(next) => now = next,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("FAILED: {now} has not ended for {PATIENCE:?}");
                    std::process::exit(1);
                }
            }
        }
    });
    for platform in platforms() {
        let devices = platform.devices();
        if devices.is_empty() {
            report.skip(platform.scheme(), "it has no device here");
        }
        for (uri, _) in devices {
            if let Err(error) = platform.open(&uri) {
                report.skip(&uri.to_string(), &error.to_string());
                continue;
            }
            let subject = Subject { platform: &*platform, uri: &uri };
            let verdicts = clauses.iter().map(|clause| {
                let _ = progress.send(format!("{}::{} on {uri}", clause.group, clause.name));
                clause.verdict(subject)
            });
            report.add_device(&uri.to_string(), verdicts.collect());
        }
    }
    println!("{report}");
    ExitCode::from(u8::from(report.failures() > 0))
}
