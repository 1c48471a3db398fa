//! Pressure: the time that a task's processes stalled because a resource was short (the kernel's
//! `Documentation/accounting/psi.rst`).
//!
//! The v2 hierarchy keeps it for each group, even if controllers are bound to v1.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::resources::cgroup::file;
use crate::resources::cgroup::open_files::{CgroupFileReader, GroupHierarchy};
use crate::resources::cgroup::stats::{Pressure, PressureStats};
use crate::resources::cgroup::task::TaskCgroup;
use crate::resources::cgroup::tree::NodeTree;

/// The files that [`stats`] reads.
pub(crate) const FILES: [&str; 3] = ["cpu.pressure", "memory.pressure", "io.pressure"];

/// The pressure of the v2 group; `None` if this kernel keeps none.
pub(crate) fn stats<D: Fn(GroupHierarchy) -> PathBuf>(
    files: &mut CgroupFileReader<'_, D>,
) -> Option<PressureStats> {
    // A kernel with disabled pressure may have the files, and refuse to read them.
    let mut of = |name| parse(files.read(None, name).ok()?);
    let [cpu, memory, io] = FILES;
    Some(PressureStats {
        cpu: of(cpu)?,
        memory: of(memory)?,
        io: of(io)?,
    })
}

/// The resource that a task may have to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PressureResource {
    Cpu,
    Io,
    Memory,
}

impl PressureResource {
    /// The name in messages to operators.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "processor time",
            Self::Io => "a disk",
            Self::Memory => "memory",
        }
    }

    /// Advice for the operator. It begins with the separator from the text before it.
    pub(crate) fn help(self) -> &'static str {
        match self {
            Self::Cpu => ": give it more `cpu`, or take `cpu_hard_limit` away",
            Self::Io => ": see `resources { io }` of it and of its neighbours",
            Self::Memory => ": give it more `memory`, or more `memory_max`",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Cpu => "cpu.pressure",
            Self::Io => "io.pressure",
            Self::Memory => "memory.pressure",
        }
    }
}

impl NodeTree {
    /// Opens a file that has priority events when a task of the node stalled for `stall` within `window`.
    ///
    /// # Errors
    ///
    /// The error of the kernel, for example that it keeps no pressure.
    pub(crate) fn pressure_trigger(
        &self,
        want: PressureResource,
        stall: Duration,
        window: Duration,
    ) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK);
        let mut file = options.open(self.v2_dir().join(want.file()))?;
        let trigger = format!("some {} {}", stall.as_micros(), window.as_micros());
        file.write_all(trigger.as_bytes())?;
        Ok(file)
    }
}

impl TaskCgroup {
    /// The time that at least one process of the task stalled; `None` if it is unknown.
    pub(crate) fn stalled(&self, want: PressureResource) -> Option<Duration> {
        let pressure = parse(&file::read(self.dir(), want.file()).ok()?)?;
        Some(Duration::from_micros(pressure.some_us))
    }
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
        // Before Linux 5.13 the kernel kept no `full` line for CPU pressure.
        let some_only = parse("some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n").unwrap();
        assert_eq!((some_only.some_us, some_only.full_us), (7, None));
        assert_eq!(parse("other 1\n"), None);
    }
}
