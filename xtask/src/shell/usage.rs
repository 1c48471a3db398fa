//! Processor time of the programs that the developer commands start.

use std::cell::Cell;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, SysconfVar, sysconf};

thread_local! {
    static CPU: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the processor time, user and system, of all programs that this thread has waited for.
///
/// It includes the children that those programs waited for. It does not include daemons, which init adopts.
pub(crate) fn cpu_time() -> Duration {
    CPU.get()
}

/// Adds `time` to the sum of this thread, for work that another thread did on its behalf.
pub(crate) fn add_cpu_time(time: Duration) {
    CPU.set(CPU.get() + time);
}

/// Waits for `child` and adds its processor time to the sum of this thread.
///
/// # Errors
///
/// When the child cannot be waited for.
pub(crate) fn wait(child: &mut Child) -> anyhow::Result<ExitStatus> {
    if let Some(time) = time_at_exit(child.id()) {
        add_cpu_time(time);
    }
    child.wait().context("cannot wait for a program")
}

/// Waits until `pid` has ended and reads its times, which the kernel keeps until the process is reaped.
fn time_at_exit(pid: u32) -> Option<Duration> {
    let pid_to_wait = Pid::from_raw(i32::try_from(pid).ok()?);
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while let Err(error) = waitid(Id::Pid(pid_to_wait), flags) {
        if error != nix::errno::Errno::EINTR {
            return None;
        }
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks_per_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    let ticks_per_second = u64::try_from(ticks_per_second).ok()?;
    ticks(&stat).map(|ticks| Duration::from_millis(ticks * 1_000 / ticks_per_second.max(1)))
}

/// Returns the sum of utime, stime, cutime and cstime: fields 14 to 17 of `/proc/PID/stat` (proc(5)).
fn ticks(stat: &str) -> Option<u64> {
    // The second field is a name in parentheses, which may contain blanks and parentheses.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ').skip(11).take(4);
    let mut sum = 0;
    for _ in 0..4 {
        sum += fields.next()?.parse::<u64>().ok()?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn times_are_read_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1";

        assert_eq!(ticks(stat), Some(100));
        assert_eq!(ticks("7 (a"), None);
    }

    #[test]
    fn a_busy_child_is_counted() {
        let before = cpu_time();
        let mut child = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"])
            .spawn()
            .unwrap();

        let status = wait(&mut child).unwrap();

        assert!(status.success());
        assert!(cpu_time() > before, "{:?}", cpu_time());
    }
}
