//! What the system says about this process: mappings and resident memory.

use std::fs;

use crate::clause::{Stop, unsupported};

/// The protection of the page at an address, as in `rw-s`; `None` if nothing is mapped there.
pub(crate) fn protection_at(address: usize) -> Result<Option<String>, Stop> {
    for line in maps()?.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some((start, end)), Some(protection)) =
            (words.next().and_then(|range| range.split_once('-')), words.next())
        else {
            continue;
        };
        let (start, end) = (usize::from_str_radix(start, 16)?, usize::from_str_radix(end, 16)?);
        if (start..end).contains(&address) {
            return Ok(Some(protection.into()));
        }
    }
    Ok(None)
}

/// How many mappings there are.
pub(crate) fn mapping_count() -> Result<usize, Stop> {
    Ok(maps()?.lines().count())
}

fn maps() -> Result<String, Stop> {
    fs::read_to_string("/proc/self/maps").or_else(|_| unsupported("the system has no /proc/self/maps"))
}

/// Bytes of this process that are in memory.
pub(crate) fn resident_bytes() -> Result<u64, Stop> {
    let Ok(status) = fs::read_to_string("/proc/self/status") else {
        return unsupported("the system has no /proc/self/status");
    };
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()).ok_or("no VmRSS in /proc/self/status")?;
    Ok(kib.parse::<u64>()? * 1024)
}
