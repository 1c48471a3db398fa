//! Pressure: how long a task's processes stood still for want of something (the kernel's
//! `Documentation/accounting/psi.rst`).
//!
//! The v2 hierarchy keeps it for each group, whatever its controllers are bound to.

use std::path::Path;

use crate::cgroup::file;
use crate::cgroup::stats::{Pressure, PressureStats};

/// What the v2 group `dir` says; `None` where this kernel keeps no pressure.
pub(crate) fn stats(dir: &Path) -> Option<PressureStats> {
    // A kernel with pressure switched off may have the files, and refuse to read them.
    let of = |name: &str| parse(&file::read(dir, name).ok()?);
    Some(PressureStats {
        cpu: of("cpu.pressure")?,
        memory: of("memory.pressure")?,
        io: of("io.pressure")?,
    })
}

/// Reads lines `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, total in microseconds.
fn parse(text: &str) -> Option<Pressure> {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let total = line.split(' ').find_map(|word| word.strip_prefix("total="));
        total?.parse().ok()
    };
    Some(Pressure {
        some_us: total("some ")?,
        full_us: total("full "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read() {
        let text = "some avg10=0.12 avg60=0.00 avg300=0.00 total=4711\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=12\n";

        let pressure = parse(text).unwrap();

        assert_eq!((pressure.some_us, pressure.full_us), (4_711, Some(12)));
        // Before Linux 5.13 nothing was kept of a CPU that nobody got.
        let some_only = parse("some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n").unwrap();
        assert_eq!((some_only.some_us, some_only.full_us), (7, None));
        assert_eq!(parse("other 1\n"), None);
    }
}
