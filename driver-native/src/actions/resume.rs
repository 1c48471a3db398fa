//! Continues a tree whose driver died. The processes of the tree outlive the driver.
//!
//! The tree is carried out again. An action that has ended counts with its exit code, and a running action is
//! followed. An action that was started and has no process any more counts as failed: no action is started twice.
//!
//! Since Linux 6.15 the kernel also reports exit statuses to processes other than the parent, if they opened the pidfd
//! before the exit. So a `run` action that ended while no driver ran counts as failed. On older kernels the tree is
//! ended instead.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use muster_driver::ExitResult;

use super::progress::{ActionProgress, Progress, boot_milliseconds};
use crate::process::{Process, ProcessEnd, has_exit_info};
use crate::spawn::watch as watch_pidfd;

/// An action that an earlier driver started.
#[derive(Debug)]
pub(super) enum EarlierAction {
    /// The action ended with this exit code.
    Ended(i32),
    Running(EarlierProcess),
    /// The exit status of the action is unknown, and possibly whether it had a process.
    Lost,
    /// A timeout that expires at this time since the machine's boot, in milliseconds.
    Until(u64),
}

/// The actions that an earlier driver started, by their places in the tree.
#[derive(Debug, Default)]
pub(super) struct EarlierActions(BTreeMap<String, EarlierAction>);

impl EarlierActions {
    /// Finds the processes that still run. The kernel reports an exit only to processes that opened the pidfd before
    /// the exit.
    pub(super) fn find(progress: Progress) -> Self {
        let actions = progress.into_iter().map(|(action_path, progress)| {
            let action = match progress {
                ActionProgress::Ended(code) => EarlierAction::Ended(code),
                ActionProgress::Process(pid, start_ticks) => Process::find(pid, start_ticks)
                    .map_or(EarlierAction::Lost, |process| {
                        EarlierAction::Running(EarlierProcess(process))
                    }),
                ActionProgress::Begun => EarlierAction::Lost,
                ActionProgress::Until(end) => EarlierAction::Until(end),
            };
            (action_path, action)
        });
        Self(actions.collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the action at the place `action_path`. Returns `None` if no earlier driver started it.
    pub(super) fn take(&mut self, action_path: &str) -> Option<EarlierAction> {
        self.0.remove(action_path)
    }

    /// Takes the remaining time of the timeout at the place `action_path` that an earlier driver started.
    pub(super) fn take_time_left(&mut self, action_path: &str) -> Option<Duration> {
        match self.0.remove(action_path)? {
            EarlierAction::Until(end) => {
                let left = end.saturating_sub(boot_milliseconds());
                Some(Duration::from_millis(left))
            }
            EarlierAction::Ended(_) | EarlierAction::Running(_) | EarlierAction::Lost => None,
        }
    }
}

/// Returns the first action that was started and has not ended, if the tree cannot continue.
pub(super) fn find_lost_action(earlier: &Progress) -> Option<&str> {
    if has_exit_info() {
        return None;
    }
    let mut open = earlier.iter().filter(|(_, progress)| {
        matches!(
            progress,
            ActionProgress::Begun | ActionProgress::Process(..)
        )
    });
    open.next().map(|(action_path, _)| action_path.as_str())
}

/// A process of an action that another driver started.
#[derive(Clone, Debug)]
pub(super) struct EarlierProcess(pub(super) Process);

impl EarlierProcess {
    /// Waits for the end of the process.
    pub(super) async fn wait(&self) -> io::Result<ExitResult> {
        let pidfd = watch_pidfd(self.0.pidfd())?;
        while !self.0.is_over()? {
            pidfd.readable().await?.clear_ready();
        }
        match self.0.wait_exit_info().await {
            Some(ProcessEnd::Exited(code)) => Ok(ExitResult::exited(code)),
            Some(ProcessEnd::Signaled(signal)) => Ok(ExitResult::signaled(signal)),
            Some(ProcessEnd::Unknown) | None => Err(io::Error::other("its exit is not known")),
        }
    }
}
