//! Where the floor is not written: it needs the machine's own system call instruction.

use std::path::Path;

use crate::cgroup::Cgroup;

/// A program without arguments and environment, ready for exec.
#[derive(Debug)]
pub(super) struct Program;

impl Program {
    pub(super) fn new(_: &Path) -> anyhow::Result<Self> {
        anyhow::bail!("the bare system calls are written for x86-64 only: see task_start/bare.rs")
    }
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct Started;

impl Started {
    pub(super) fn wait(self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Never called: there is no [`Program`].
pub(super) fn start(_: &Program, _: &Cgroup) -> anyhow::Result<Started> {
    Ok(Started)
}
