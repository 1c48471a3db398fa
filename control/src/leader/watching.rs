//! The duty that advances deployments and drains: it checks them after changes of the state, and at due times.

use muster_control_core::fsm::Entry;
use muster_control_core::watch::Watcher;
use muster_domain::id::Timestamp;
use tokio::task::JoinSet;

use crate::handle::{Control, ProposeError};

/// The time of the next check, and the work under way.
#[derive(Debug)]
pub(super) struct WatchDuty {
    control: Control,
    watcher: Watcher,
    under_way: JoinSet<Result<(), ProposeError>>,
}

impl WatchDuty {
    pub(super) fn begin(control: Control, now: Timestamp) -> Self {
        Self {
            control,
            watcher: Watcher::new(now),
            under_way: JoinSet::new(),
        }
    }

    /// Schedules a check after a change.
    pub(super) fn wake(&mut self) {
        self.watcher.handle_change();
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        self.watcher.poll_timeout()
    }

    /// Checks if it is time, and proposes the due changes.
    pub(super) fn advance(&mut self, now: Timestamp) {
        if self.poll_timeout().is_none_or(|(at, _)| at > now) {
            return;
        }
        let (state, at) = (self.control.state(), self.control.now());
        let commands = self.watcher.handle_timeout(&state, now, at);
        if !commands.is_empty() {
            self.propose(commands);
        }
    }

    fn propose(&mut self, commands: Vec<Entry>) {
        let control = self.control.clone();
        self.under_way.spawn(async move {
            for command in commands {
                control.propose(command).await?;
            }
            Ok(())
        });
    }

    /// Waits until the work under way has ended. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        match self.under_way.join_next().await {
            None => std::future::pending().await,
            Some(Ok(Ok(()))) => self.watcher.handle_written(),
            Some(Ok(Err(error))) => {
                tracing::warn!(%error, "deployments and drains are looked at again");
                self.watcher.handle_failure(self.control.monotonic());
            }
            Some(Err(error)) => {
                tracing::error!(%error, "a command's task failed");
                self.watcher.handle_failure(self.control.monotonic());
            }
        }
    }
}
