//! A process that cannot be mistaken for another process.
//!
//! The kernel reuses pids. A [`Process`] holds a pidfd, which refers to one process forever. The identity was checked
//! when the pidfd was opened: the process with that pid started at the recorded tick, in this boot.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use thiserror::Error;

use crate::limits;
use crate::spawn::{ExitInfo, SpawnedProcess, exit_info, move_to_high_fd};

/// The used fields of a process's stat file in `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// `R`, `S`, `D`, `Z`, …
    pub(crate) state: char,
    /// CPU in user code, in ticks.
    pub(crate) user_ticks: u64,
    /// CPU in the kernel, in ticks.
    pub(crate) system_ticks: u64,
    /// Time of the start, in ticks since the boot.
    pub(crate) start_ticks: u64,
    /// Memory that is resident, in pages.
    pub(crate) rss_pages: u64,
}

/// A process, identified by more than its pid.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
    pidfd: Arc<OwnedFd>,
}

/// The reason why a recorded process was not found.
#[derive(Debug, Error)]
pub(crate) enum FindError {
    #[error("no process has pid {pid}")]
    NoProcess { pid: i32 },
    /// Another process has the pid now.
    #[error("pid {pid} belongs to a process started at tick {found}, not {expected}")]
    Other { pid: i32, expected: u64, found: u64 },
    /// The process ended and waits to be reaped by its parent.
    #[error("process {pid} ended and its exit status belongs to its parent")]
    Dead { pid: i32 },
    #[error("look at process {pid}")]
    Io {
        pid: i32,
        #[source]
        source: io::Error,
    },
}

/// The exit status of a process, as its parent reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    Exited(i32),
    Signaled(i32),
    /// The driver is not the parent of the process.
    Unknown,
}

impl Process {
    /// Returns the process that this process just started. Its pid cannot have been reused, because it is not reaped
    /// yet.
    pub(crate) fn started(spawned: &SpawnedProcess) -> io::Result<Self> {
        Ok(Self {
            pid: spawned.pid,
            start_ticks: stat(spawned.pid)?.start_ticks,
            pidfd: Arc::clone(&spawned.pidfd),
        })
    }

    /// Returns the process that had `pid` and started at `start_ticks`, if it still runs.
    pub(crate) fn find(pid: i32, start_ticks: u64) -> Result<Self, FindError> {
        let io = |source| FindError::Io { pid, source };
        let number = Pid::from_raw(pid).ok_or(FindError::NoProcess { pid })?;
        let pidfd = match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Err(FindError::NoProcess { pid }),
            Err(source) => return Err(io(source.into())),
        };
        // The start time is read after the pidfd was opened. If the pid was reused in between, the process in /proc
        // started later than the recorded one.
        let stat = match stat(pid) {
            Ok(stat) => stat,
            Err(error) if is_gone(&error) => return Err(FindError::NoProcess { pid }),
            Err(source) => return Err(io(source)),
        };
        if stat.start_ticks != start_ticks {
            return Err(FindError::Other {
                pid,
                expected: start_ticks,
                found: stat.start_ticks,
            });
        }
        let process = Self {
            pid,
            start_ticks,
            pidfd: Arc::new(move_to_high_fd(pidfd)),
        };
        if stat.state == 'Z' && !process.is_child() {
            return Err(FindError::Dead { pid });
        }
        Ok(process)
    }

    /// Returns the pidfd, which becomes readable when the process ends.
    pub(crate) fn pidfd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.pidfd)
    }

    /// Sends a signal to the process; `false` when it has ended.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<bool> {
        match rustix::process::pidfd_send_signal(self.pidfd.as_fd(), signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(source) => Err(source.into()),
        }
    }

    /// Returns whether `signal` would have its default effect: it is neither blocked nor ignored nor handled. Returns
    /// `false` when the process has ended.
    pub(crate) fn takes_default(&self, signal: Signal) -> io::Result<bool> {
        match read_small(Path::new(&format!("/proc/{}/status", self.pid))) {
            Ok(status) => Ok(is_default(&status, signal)),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Kills the process group of the process. Call this only before the process is reaped: afterwards the number may
    /// belong to another group.
    pub(crate) fn kill_group(&self) -> io::Result<()> {
        let Some(group) = Pid::from_raw(self.pid) else {
            return Ok(());
        };
        match rustix::process::kill_process_group(group, Signal::KILL) {
            // A zombie that is alone in its group returns EPERM or ESRCH.
            Ok(()) | Err(rustix::io::Errno::SRCH | rustix::io::Errno::PERM) => Ok(()),
            Err(source) => Err(source.into()),
        }
    }

    /// Returns the exit status without reaping the process; `None` while the process runs.
    pub(crate) fn ended(&self) -> io::Result<Option<ProcessEnd>> {
        self.wait(WaitIdOptions::NOWAIT)
    }

    /// Reaps the process and returns its exit status; `None` while the process runs.
    pub(crate) fn reap(&self) -> io::Result<Option<ProcessEnd>> {
        self.wait(WaitIdOptions::empty())
    }

    /// Returns the exit status of a process that is not a child. The kernel reports it once the parent has reaped the
    /// process. Returns `None` if the kernel does not report it, or the parent takes too long.
    pub(crate) async fn wait_exit_info(&self) -> Option<ProcessEnd> {
        for _ in 0..limits::EXIT_INFO_ATTEMPTS_MAX {
            match exit_info(self.pidfd.as_fd()) {
                ExitInfo::Status(status) if libc::WIFSIGNALED(status) => {
                    return Some(ProcessEnd::Signaled(libc::WTERMSIG(status)));
                }
                ExitInfo::Status(status) => {
                    return Some(ProcessEnd::Exited(libc::WEXITSTATUS(status)));
                }
                ExitInfo::NotReaped => tokio::time::sleep(limits::EXIT_INFO_PAUSE).await,
                ExitInfo::Unsupported => return None,
            }
        }
        None
    }

    fn is_child(&self) -> bool {
        !matches!(self.ended(), Ok(Some(ProcessEnd::Unknown)))
    }

    /// Returns whether the process has ended. A pidfd is readable once its process has ended.
    pub(crate) fn is_over(&self) -> io::Result<bool> {
        let mut files = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let poll = || rustix::event::poll(&mut files, Some(&at_once));
        Ok(rustix::io::retry_on_intr(poll)? > 0)
    }

    fn wait(&self, more: WaitIdOptions) -> io::Result<Option<ProcessEnd>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | more;
        match rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options) {
            Ok(None) => Ok(None),
            Ok(Some(status)) => {
                let signal = status.terminating_signal();
                Ok(Some(match (signal, status.exit_status()) {
                    (Some(signal), _) => ProcessEnd::Signaled(signal),
                    (None, Some(code)) => ProcessEnd::Exited(code),
                    (None, None) => ProcessEnd::Unknown,
                }))
            }
            // The process is not a child: only the fact that it ended is known.
            Err(rustix::io::Errno::CHILD) => Ok(self.is_over()?.then_some(ProcessEnd::Unknown)),
            Err(rustix::io::Errno::INTR) => self.wait(more),
            Err(source) => Err(source.into()),
        }
    }
}

/// Returns whether this kernel reports the exit status of processes that are not children.
pub(crate) fn has_exit_info() -> bool {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    own.is_ok_and(|own| exit_info(own.as_fd()) != ExitInfo::Unsupported)
}

/// Reads the /proc stat file of `pid`.
pub(crate) fn stat(pid: i32) -> io::Result<Stat> {
    let text = read_small(Path::new(&format!("/proc/{pid}/stat")))?;
    parse_stat(&text).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("/proc/{pid}/stat has an unknown form: {text:?}"),
        )
    })
}

/// Parses a stat file. A program name may contain spaces and parentheses, so the fields are counted from the last
/// parenthesis. The first field after it is the third one (proc_pid_stat(5)).
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        user_ticks: number(14)?,
        system_ticks: number(15)?,
        start_ticks: number(22)?,
        rss_pages: number(24)?,
    })
}

/// Reads the signal masks of /proc's `status`, where bit 0 is signal 1.
fn is_default(status: &str, signal: Signal) -> bool {
    let bit = 1_u64 << (signal.as_raw() - 1).clamp(0, 63);
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    ["SigBlk:", "SigIgn:", "SigCgt:"]
        .into_iter()
        .all(|name| mask(name).is_some_and(|mask| mask & bit == 0))
}

/// Returns the v2 cgroup of `pid`, as a path from the root of the hierarchy.
pub(crate) fn cgroup(pid: i32) -> io::Result<String> {
    let text = read_small(Path::new(&format!("/proc/{pid}/cgroup")))?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"));
    Ok(path.unwrap_or_default().to_owned())
}

/// Returns the id of this boot. A handle of another boot refers to no process of this boot.
pub(crate) fn boot_id() -> io::Result<String> {
    let text = read_small(Path::new("/proc/sys/kernel/random/boot_id"))?;
    Ok(text.trim().to_owned())
}

/// Returns whether the error means that the process has ended. /proc reports that the directory is missing or, in a
/// race, that the process is.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn read_small(path: &Path) -> io::Result<String> {
    let mut text = String::with_capacity(limits::KERNEL_FILE_BYTES);
    File::open(path)?
        .take(limits::KERNEL_FILE_BYTES_MAX)
        .read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_hostile_name_is_read() {
        let text = "7 (a) S 9 (b) R 1 7 7 0 -1 4194304 1 2 3 4 11 12 5 6 20 0 1 0 9999 1000 42 18";

        let stat = parse_stat(text).unwrap();

        assert_eq!(
            stat,
            Stat {
                state: 'R',
                user_ticks: 11,
                system_ticks: 12,
                start_ticks: 9_999,
                rss_pages: 42,
            }
        );
    }

    #[test]
    fn own_process_is_found_by_its_start() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let start = stat(pid).unwrap().start_ticks;

        let found = Process::find(pid, start).unwrap();

        assert_eq!(found.pid, pid);
    }

    /// The pid is right and the start time is not, so this is another process.
    #[test]
    fn reused_pid_is_not_the_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let start = stat(pid).unwrap().start_ticks;

        let error = Process::find(pid, start - 1).unwrap_err();

        assert!(matches!(error, FindError::Other { .. }), "{error}");
    }

    #[test]
    fn unused_pid_is_no_process() {
        let error = Process::find(i32::MAX, 1).unwrap_err();

        assert!(matches!(error, FindError::NoProcess { .. }), "{error}");
    }

    /// The parent of this process is a shell. Its exit status is reported if the kernel supports that, and is never
    /// wrong.
    #[tokio::test]
    async fn non_child_exit_status_is_reported() {
        use std::io::{BufRead as _, BufReader};

        let mut shell = std::process::Command::new("/bin/sh")
            .args([
                "-c",
                "exec 3<&0; (read line <&3; exit 7) & echo $!; wait $!",
            ])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut pid = String::new();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut pid).unwrap();
        let pid = pid.trim().parse().unwrap();
        let process = Process::find(pid, stat(pid).unwrap().start_ticks).unwrap();

        drop(shell.stdin.take());
        assert_eq!(shell.wait().unwrap().code(), Some(7));

        assert_eq!(process.ended().unwrap(), Some(ProcessEnd::Unknown));
        let end = process.wait_exit_info().await;
        if exit_info(process.pidfd.as_fd()) == ExitInfo::Unsupported {
            assert_eq!(end, None);
        } else {
            assert_eq!(end, Some(ProcessEnd::Exited(7)));
        }
    }

    #[test]
    fn any_mask_takes_the_default_away() {
        let status = |blocked, ignored, caught| {
            format!("Name:\tx\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n")
        };
        let (none, term) = ("0000000000000000", "0000000000004000");

        assert!(is_default(&status(none, none, none), Signal::TERM));
        assert!(is_default(&status(term, term, term), Signal::INT));
        for held in [
            status(term, none, none),
            status(none, term, none),
            status(none, none, term),
        ] {
            assert!(!is_default(&held, Signal::TERM), "{held}");
        }
    }
}
