//! A process of the agent, identified by pid and start time. The pid alone may belong to another process by now.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use muster_link::private;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

/// A recorded process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// The start time, in clock ticks since boot.
    pub(crate) start_ticks: u64,
}

impl ProcessId {
    /// Returns the process that has `pid` at this moment.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, start_ticks) = parse_stat(&stat)?;
        // A zombie has ended, and only its parent has not waited for it.
        (state != 'Z' && state != 'X').then_some(Self { pid, start_ticks })
    }

    /// Reads the record at `path`.
    pub(crate) fn load(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Writes the record to `path`.
    pub(crate) fn store(self, path: &Path) -> io::Result<()> {
        let temporary = path.with_extension("new");
        private::write(&temporary, serde_json::to_vec(&self)?)?;
        std::fs::rename(temporary, path)
    }

    /// Whether the process still runs.
    pub(crate) fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Opens a pidfd and checks that it belongs to this process; `None` if the process has ended.
    pub(crate) fn open(self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The kernel cannot reuse the pid while the descriptor is open and the process is alive.
        self.is_alive().then_some(fd)
    }

    /// Sends `signal` to the process; false if it has ended.
    pub(crate) fn signal(self, signal: Signal) -> bool {
        self.open()
            .is_some_and(|fd| pidfd_send_signal(fd, signal).is_ok())
    }

    /// Returns when the process has ended.
    pub(crate) async fn ended(self) {
        #[expect(
            deprecated,
            reason = "the other constructor is unsafe; an OwnedFd stays open and the same while it is registered"
        )]
        let Some(fd) = self.open().and_then(|fd| AsyncFd::new(fd).ok()) else {
            return;
        };
        // A pidfd becomes readable at the end of its process. An error has the same meaning here.
        drop(fd.readable().await);
    }
}

/// State and start time in a line of `/proc/<pid>/stat` (`proc_pid_stat(5)`, fields 3 and 22).
fn parse_stat(line: &str) -> Option<(char, u64)> {
    // The name before it may contain anything, including closing parentheses.
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_is_skipped() {
        let line = "7 (a) b (c)) S 1 7 7 0 -1 4194560 0 0 0 0 1 2 3 4 20 0 1 0 4711 0 0";

        assert_eq!(parse_stat(line), Some(('S', 4711)));
    }

    #[test]
    fn own_process_is_alive_with_matching_start_time() {
        let this = ProcessId::of(std::process::id()).unwrap();

        assert!(this.is_alive());
        assert!(
            !ProcessId {
                start_ticks: this.start_ticks + 1,
                ..this
            }
            .is_alive()
        );
    }

    #[test]
    fn a_record_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("driver.json");
        let this = ProcessId {
            pid: 7,
            start_ticks: 9,
        };

        this.store(&path).unwrap();

        assert_eq!(ProcessId::load(&path), Some(this));
    }
}
