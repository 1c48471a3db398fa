//! The way of a shell: a `cat` for each FIFO, into a file that is never rotated.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::lines;
use crate::program::ran;

/// Far below what a round takes.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// A process for each FIFO, all of them waiting for bytes.
pub(super) struct Cats {
    cats: Vec<Cat>,
}

struct Cat {
    child: Child,
    /// CPU time that does not count.
    begun: Duration,
}

impl Cats {
    /// Starts one for each of `count` FIFOs below `fifos`, which are open for writing elsewhere.
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
            while !waits(cat.child.id())? {
                std::thread::sleep(LOOK_INTERVAL);
            }
            cat.begun = cpu(cat.child.id())?;
        }
        Ok(this)
    }

    /// Leaves out the CPU time that the processes used up to here.
    pub(super) fn restart(&mut self) -> anyhow::Result<()> {
        for cat in &mut self.cats {
            cat.begun = cpu(cat.child.id())?;
        }
        Ok(())
    }

    /// CPU time of all of them, once they have come to the end: no FIFO is open for writing any more.
    pub(super) fn finish(mut self) -> anyhow::Result<Duration> {
        let mut sum = Duration::ZERO;
        for cat in &mut self.cats {
            let pid = i32::try_from(cat.child.id()).ok().and_then(Pid::from_raw);
            let pid = pid.context("a process has an id")?;
            // Its numbers are there until it is waited for in earnest.
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
            // Gone already, unless something failed before.
            drop(cat.child.kill());
            drop(cat.child.wait());
        }
    }
}

/// Whether it is `cat` by now, and sleeps.
fn waits(pid: u32) -> anyhow::Result<bool> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(stat.contains("(cat) S"))
}

/// CPU time of a process of one thread, to the nanosecond.
fn cpu(pid: u32) -> anyhow::Result<Duration> {
    ran(format!("/proc/{pid}/schedstat").as_ref())
}
