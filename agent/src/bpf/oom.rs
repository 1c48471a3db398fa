//! Out-of-memory kills of processes, as read from the map.

use std::io;

use muster_ebpf_common::{CgroupId, oom::OomEntry};

use crate::bpf::map::PinnedMap;

/// The processes of a task that the kernel killed because memory ran out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomRecord {
    /// The number of killed processes that have ended. It may include a process that was ending anyway.
    pub kills: u64,
    /// The name of the process that the kernel selected last, as `ps -o comm` shows it. Processes killed along with it
    /// do not count.
    pub process: String,
    /// The process id in the initial pid namespace.
    pub pid: u64,
    /// The end of the process, in nanoseconds since boot.
    pub at_boottime_ns: u64,
}

/// The map of the stem `oom`.
#[derive(Debug)]
pub(super) struct Oom {
    pub(super) entries: PinnedMap<CgroupId, OomEntry>,
}

impl Oom {
    /// The record of `task`; `None` if the kernel killed none of its processes for memory.
    pub(super) fn of(&self, task: CgroupId) -> io::Result<Option<OomRecord>> {
        let entries = self.entries.lookup(task)?;
        Ok(entries
            .and_then(|entries| entries.first().copied())
            .map(record))
    }
}

fn record(entry: OomEntry) -> OomRecord {
    let OomEntry {
        process,
        chosen_boottime_ns: _,
        at_boottime_ns,
        kills,
        name,
    } = entry;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    OomRecord {
        kills,
        process: String::from_utf8_lossy(name).replace(char::is_control, "?"),
        pid: process.pid,
        at_boottime_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_ends_at_nul_and_is_sanitized() {
        let mut name = [0; 16];
        name[..6].copy_from_slice(b"a\x1bc\xffe\n");
        let entry = OomEntry {
            name,
            kills: 2,
            ..OomEntry::default()
        };

        let record = record(entry);

        assert_eq!(record.process, "a?c\u{fffd}e?");
        assert_eq!(record.kills, 2);
    }
}
