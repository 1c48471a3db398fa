//! A process next to a task's first process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use muster_driver::ExitResult;

use crate::process::{Process, ProcessEnd};
use crate::spawn::watch as watch_pidfd;

/// A process next to the task's first process. Dropping this value kills the process with its group and reaps it.
#[derive(Debug)]
pub(crate) struct KillOnDrop(Option<Process>);

impl KillOnDrop {
    pub(crate) fn new(process: Process) -> Self {
        Self(Some(process))
    }

    pub(crate) fn process(&self) -> io::Result<&Process> {
        self.0
            .as_ref()
            .ok_or_else(|| io::Error::other("the command was reaped"))
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        self.process()?.kill_group()
    }

    /// Waits for the end of the process without reaping it.
    pub(crate) async fn wait(&self) -> io::Result<ExitResult> {
        let process = self.process()?;
        let pidfd = watch_pidfd(process.pidfd())?;
        loop {
            let mut ready = pidfd.readable().await?;
            match process.ended()? {
                Some(ProcessEnd::Exited(code)) => return Ok(ExitResult::exited(code)),
                Some(ProcessEnd::Signaled(signal)) => return Ok(ExitResult::signaled(signal)),
                Some(ProcessEnd::Unknown) => {
                    return Ok(ExitResult::unknown(
                        "its exit status was reaped elsewhere".to_owned(),
                    ));
                }
                None => ready.clear_ready(),
            }
        }
    }

    /// Reaps the process after [`Self::wait`].
    pub(crate) fn reap(mut self) {
        if let Some(process) = self.0.take() {
            // The process has ended, so this does not block.
            if let Err(error) = process.reap() {
                tracing::warn!(pid = process.pid, %error, "cannot reap a command");
            }
        }
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let Some(process) = self.0.take() else {
            return;
        };
        if let Err(error) = process.kill_group() {
            tracing::warn!(pid = process.pid, %error, "cannot kill a command");
        }
        let reap = move || {
            let pidfd: Arc<OwnedFd> = process.pidfd();
            let mut files = [rustix::event::PollFd::new(
                &pidfd,
                rustix::event::PollFlags::IN,
            )];
            let poll = || rustix::event::poll(&mut files, None);
            if rustix::io::retry_on_intr(poll).is_ok() {
                let _ended = process.reap();
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                let _reaping = runtime.spawn_blocking(reap);
            }
            // Without a runtime the driver process is ending; init inherits its children.
            Err(_no_runtime) => {}
        }
    }
}
