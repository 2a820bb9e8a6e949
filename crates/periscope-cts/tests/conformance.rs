//! Every clause over every device of every platform, as one table. Arguments select clauses whose name contains one of them.

use std::process::ExitCode;

use periscope_cts::{Clause, Report, Subject, clauses, platforms};

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
            report.add_device(&uri.to_string(), clauses.iter().map(|clause| clause.verdict(subject)).collect());
        }
    }
    println!("{report}");
    ExitCode::from(u8::from(report.failures() > 0))
}
