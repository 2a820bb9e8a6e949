//! Tables and numbers for people.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table with these column titles; `right` columns are aligned to the right.
pub(crate) fn table(titles: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if !titles.is_empty() {
        table.set_header(titles);
    }
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        table.force_no_tty();
    }
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Prints a table without the spaces that pad its last column.
pub(crate) fn print(table: &Table) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// `1,234,567`
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1.5 GiB`; exact below 1 KiB.
pub(crate) fn bytes(number: u64) -> String {
    if number < 1 << 10 {
        return format!("{number} B");
    }
    let (mut value, mut unit) = (number as f64 / 1024.0, "KiB");
    for larger in ["MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    let text = if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Microseconds, with a unit that suits.
pub(crate) fn micros(us: f64) -> String {
    if us < 1e3 {
        format!("{us:.1} µs")
    } else if us < 1e6 {
        format!("{:.2} ms", us / 1e3)
    } else {
        format!("{:.2} s", us / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(256 << 10), "256 KiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(micros(12.34), "12.3 µs");
        assert_eq!(micros(1234.0), "1.23 ms");
    }
}
