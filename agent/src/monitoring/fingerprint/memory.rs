//! Memory.

use super::facts::{Facts, read};

/// The lines of `/proc/meminfo` that are used, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemInfo {
    /// `MemTotal`.
    pub(crate) total: u64,
    /// `MemFree`.
    pub(crate) free: u64,
    /// `MemAvailable`.
    pub(crate) available: u64,
}

pub(super) fn add(facts: &mut Facts) {
    let MemInfo { total, .. } = meminfo();
    facts.total.memory_mb = total >> 20;
    facts.attribute("memory.totalbytes", total);
}

/// Reads the memory figures of the machine.
pub(crate) fn meminfo() -> MemInfo {
    parse(&read("/proc/meminfo"))
}

pub(super) fn parse(text: &str) -> MemInfo {
    let bytes = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse::<u64>().ok())
            .map_or(0, |kib| kib * 1024)
    };
    MemInfo {
        total: bytes("MemTotal"),
        free: bytes("MemFree"),
        available: bytes("MemAvailable"),
    }
}
