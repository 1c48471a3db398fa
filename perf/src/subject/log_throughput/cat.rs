//! The way of a shell: one `cat` per FIFO, which writes to a file that is never rotated.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::lines;
use crate::program::thread_cpu_time;

/// Interval between two checks. It is far shorter than a round.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// One `cat` process per FIFO. All of them wait for bytes.
pub(super) struct Cats {
    cats: Vec<Cat>,
}

struct Cat {
    child: Child,
    /// The CPU time that does not count, because it was spent before the measurement.
    begun: Duration,
}

impl Cats {
    /// Starts a `cat` for each of `count` FIFOs below `fifos`. Another process has the FIFOs open for writing.
    pub(super) fn start(fifos: &Path, logs: &Path, count: u64) -> anyhow::Result<Self> {
        let mut this = Self { cats: Vec::new() };
        for number in 0..count {
            let name = lines::stream_name(number);
            let child = Command::new("cat")
                .stdin(File::open(fifos.join(&name))?)
                .stdout(File::create(logs.join(format!("{name}.0")))?)
                .spawn()
                .context("start cat")?;
            let begun = Duration::ZERO;
            this.cats.push(Cat { child, begun });
        }
        for cat in &mut this.cats {
            while !is_waiting(cat.child.id())? {
                std::thread::sleep(LOOK_INTERVAL);
            }
            cat.begun = cpu(cat.child.id())?;
        }
        Ok(this)
    }

    /// Excludes the CPU time that the processes have used so far.
    pub(super) fn restart(&mut self) -> anyhow::Result<()> {
        for cat in &mut self.cats {
            cat.begun = cpu(cat.child.id())?;
        }
        Ok(())
    }

    /// Returns the CPU time of all processes after they have reached the end of their FIFOs, which are not open for
    /// writing any more.
    pub(super) fn finish(mut self) -> anyhow::Result<Duration> {
        let mut sum = Duration::ZERO;
        for cat in &mut self.cats {
            let pid = i32::try_from(cat.child.id()).ok().and_then(Pid::from_raw);
            let pid = pid.context("a process has an id")?;
            // The kernel keeps the process's CPU time until the process is reaped.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(pid), options)?;
            sum += cpu(cat.child.id())?.saturating_sub(cat.begun);
            let status = cat.child.wait()?;
            ensure!(status.success(), "cat ended with {status}");
        }
        Ok(sum)
    }
}

impl Drop for Cats {
    fn drop(&mut self) {
        for cat in &mut self.cats {
            // The process has ended already, unless an earlier step failed.
            drop(cat.child.kill());
            drop(cat.child.wait());
        }
    }
}

/// Whether the process has executed `cat` and sleeps.
fn is_waiting(pid: u32) -> anyhow::Result<bool> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(stat.contains("(cat) S"))
}

/// Returns the CPU time of a single-threaded process, with nanosecond precision.
fn cpu(pid: u32) -> anyhow::Result<Duration> {
    thread_cpu_time(format!("/proc/{pid}/schedstat").as_ref())
}
