//! Many concurrent processes, each in a cgroup, started by bare system calls: the floor of `task_fleet`.

use std::path::Path;
use std::time::{Duration, Instant};

use super::bare::{self, Script, StartedProcess};
use super::clock::StartTimesFifo;
use super::sandbox::Sandbox;
use crate::cgroup::{Cgroup, CgroupDir};

/// The cgroup in which the processes are started.
pub(in crate::subject) struct Sleepers {
    cgroup: CgroupDir,
    sandbox: Sandbox,
    words: StartTimesFifo,
}

impl Sleepers {
    pub(in crate::subject) fn new(dir: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            cgroup: CgroupDir::create("sleep")?,
            sandbox: Sandbox::prepare(dir, dir)?,
            words: StartTimesFifo::new(dir)?,
        })
    }

    /// Starts `count` processes of `/bin/sleep infinity` and ends them when all run. Returns the duration of the
    /// starts.
    pub(in crate::subject) fn start(
        &self,
        count: u32,
        contained: bool,
    ) -> anyhow::Result<Duration> {
        let program = [c"/bin/sleep", c"infinity"];
        let script = if contained {
            self.sandbox.script(&program, self.words.file())?
        } else {
            let mut script = Script::new(0);
            script.output(self.words.file());
            script.exec(&program)?;
            script
        };
        let mut live = Vec::new();
        let begun = Instant::now();
        let started = (0..count).try_for_each(|number| {
            let cgroup = self.cgroup.child(&format!("sleep-{number}"))?;
            live.push((bare::start(&script, &cgroup), cgroup));
            anyhow::Ok(())
        });
        let took = begun.elapsed();
        started.and(end(live))?;
        Ok(took)
    }
}

/// A program that sleeps until it is killed.
pub(in crate::subject) struct Sleeper(Script);

impl Sleeper {
    pub(in crate::subject) fn new() -> anyhow::Result<Self> {
        let mut script = Script::new(0);
        script.exec(&[c"/bin/sleep", c"infinity"])?;
        Ok(Self(script))
    }

    /// Starts a process in `cgroup`. The caller must kill and reap it, for example by emptying the cgroup.
    pub(in crate::subject) fn start(&self, cgroup: &Cgroup) -> anyhow::Result<()> {
        bare::start(&self.0, cgroup).map(drop)
    }
}

fn end(live: Vec<(anyhow::Result<StartedProcess>, Cgroup)>) -> anyhow::Result<()> {
    let mut outcome = Ok(());
    for (started, cgroup) in live {
        let ended = started.and_then(StartedProcess::kill);
        outcome = outcome.and(ended).and(Ok(cgroup.remove()?));
    }
    outcome
}
