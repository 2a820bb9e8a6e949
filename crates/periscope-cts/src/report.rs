//! What came of it: one row per clause, one column per device.

use std::fmt;

use crate::clause::{Clause, Verdict};

/// The verdicts of all clauses over some devices.
#[derive(Debug, Default)]
pub struct Report {
    devices: Vec<String>,
    rows: Vec<Row>,
    skipped: Vec<String>,
}

#[derive(Debug)]
struct Row {
    group: &'static str,
    name: &'static str,
    verdicts: Vec<Verdict>,
}

impl Report {
    /// A report on these clauses, without devices yet.
    #[must_use]
    pub fn new(clauses: &[Clause]) -> Report {
        let rows = clauses.iter().map(|clause| Row { group: clause.group, name: clause.name, verdicts: Vec::new() });
        Report { devices: Vec::new(), rows: rows.collect(), skipped: Vec::new() }
    }

    /// Adds a device's verdicts, one per clause in order.
    ///
    /// # Panics
    /// If there are more or fewer.
    pub fn add_device(&mut self, name: &str, verdicts: Vec<Verdict>) {
        assert_eq!(verdicts.len(), self.rows.len(), "one verdict per clause");
        self.devices.push(name.into());
        for (row, verdict) in self.rows.iter_mut().zip(verdicts) {
            row.verdicts.push(verdict);
        }
    }

    /// Says that something was not tested, and why.
    pub fn skip(&mut self, what: &str, why: &str) {
        self.skipped.push(format!("{what}: {why}"));
    }

    /// How many verdicts are failures.
    #[must_use]
    pub fn failures(&self) -> usize {
        self.rows
            .iter()
            .flat_map(|row| &row.verdicts)
            .filter(|verdict| matches!(verdict, Verdict::Failed { .. }))
            .count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = |row: &Row| format!("{:<8} {}", row.group, row.name);
        let first = self.rows.iter().map(|row| title(row).len()).max().unwrap_or(0);
        let widths: Vec<usize> = self.devices.iter().map(|device| device.len().max(6)).collect();
        write!(f, "{:first$}", "")?;
        for (device, width) in self.devices.iter().zip(&widths) {
            write!(f, "  {device:>width$}")?;
        }
        writeln!(f)?;
        for row in &self.rows {
            write!(f, "{:<first$}", title(row))?;
            for (verdict, width) in row.verdicts.iter().zip(&widths) {
                let word = match verdict {
                    Verdict::Passed => "ok",
                    Verdict::Unsupported { .. } => "-",
                    Verdict::Failed { .. } => "FAILED",
                };
                write!(f, "  {word:>width$}")?;
            }
            writeln!(f)?;
        }
        for row in &self.rows {
            for (device, verdict) in self.devices.iter().zip(&row.verdicts) {
                if let Verdict::Unsupported { reason } = verdict {
                    writeln!(f, "unsupported: {}::{} on {device}: {reason}", row.group, row.name)?;
                }
            }
        }
        for skipped in &self.skipped {
            writeln!(f, "SKIPPED: {skipped}")?;
        }
        for row in &self.rows {
            for (device, verdict) in self.devices.iter().zip(&row.verdicts) {
                if let Verdict::Failed { message } = verdict {
                    writeln!(f, "FAILED: {}::{} on {device}: {message}", row.group, row.name)?;
                }
            }
        }
        let verdicts = || self.rows.iter().flat_map(|row| &row.verdicts);
        let passed = verdicts().filter(|verdict| **verdict == Verdict::Passed).count();
        let failed = self.failures();
        write!(
            f,
            "{passed} passed, {} unsupported, {failed} failed, {} skipped",
            verdicts().count() - passed - failed,
            self.skipped.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_is_shown_and_failures_count() {
        let clauses = [Clause { group: "copy", name: "bytes_arrive", test: |_| Ok(()) }];
        let mut report = Report::new(&clauses);
        report.add_device("sim", vec![Verdict::Passed]);
        report.add_device("sim:a5", vec![Verdict::Unsupported { reason: "no map path".into() }]);
        report.add_device("opencl:0", vec![Verdict::Failed { message: "byte 3 is 7".into() }]);
        report.skip("cuda", "no driver");
        let text = report.to_string();
        assert!(text.contains("copy     bytes_arrive"), "{text}");
        assert!(text.contains("copy::bytes_arrive on sim:a5: no map path"), "{text}");
        assert!(text.contains("FAILED: copy::bytes_arrive on opencl:0: byte 3 is 7"), "{text}");
        assert!(text.ends_with("1 passed, 1 unsupported, 1 failed, 1 skipped"), "{text}");
        assert_eq!(report.failures(), 1);
    }
}
