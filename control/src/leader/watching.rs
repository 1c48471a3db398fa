//! Moves deployments and drains on: looks when the state changed, and when something is due.

use std::time::Duration;

use muster_control_core::fsm::Command;
use muster_control_core::watch;
use muster_domain::id::Timestamp;
use tokio::task::JoinSet;

use crate::handle::{Control, ProposeError};
use crate::limits;

/// When to look, and what is under way.
#[derive(Debug)]
pub(super) struct Watching {
    control: Control,
    /// Not before. `None`: when something changes.
    look_at: Option<Timestamp>,
    /// When was looked last.
    looked_at: Timestamp,
    /// At most one.
    under_way: JoinSet<Result<(), ProposeError>>,
}

impl Watching {
    pub(super) fn begin(control: Control, now: Timestamp) -> Self {
        Self {
            control,
            look_at: Some(now),
            looked_at: Timestamp(0),
            under_way: JoinSet::new(),
        }
    }

    /// Something changed: looks soon, but not for each of many changes.
    pub(super) fn wake(&mut self) {
        let soon = self.looked_at.plus(limits::WATCH_INTERVAL);
        self.look_at = Some(self.look_at.map_or(soon, |at| at.min(soon)));
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        let at = self.look_at.filter(|_| self.under_way.is_empty())?;
        Some((at, "deployments and drains"))
    }

    /// Looks, if it is time, and proposes what is due.
    pub(super) fn advance(&mut self, now: Timestamp) {
        let is_time = self.look_at.is_some_and(|at| at <= now);
        if !is_time || !self.under_way.is_empty() {
            return;
        }
        let state = self.control.state();
        self.looked_at = now;
        self.look_at = None;
        if !watch::is_needed(&state) {
            return;
        }
        let watch::Due { commands, next } = watch::due(&state, self.control.now());
        // The wall clock says what is due, the other one when to look: the difference is a pause.
        let pause = next.map(|at| at.since(self.control.now()));
        self.look_at = pause.map(|pause| now.plus(pause.max(limits::WATCH_INTERVAL)));
        if state.nodes().draining().next().is_some() {
            let again = now.plus(limits::DRAIN_INTERVAL);
            self.look_at = Some(self.look_at.map_or(again, |at| at.min(again)));
        }
        if !commands.is_empty() {
            self.propose(commands);
        }
    }

    fn propose(&mut self, commands: Vec<Command>) {
        let control = self.control.clone();
        self.under_way.spawn(async move {
            for command in commands {
                control.propose(command).await?;
            }
            Ok(())
        });
    }

    /// Waits until what is under way has ended. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        match self.under_way.join_next().await {
            None => std::future::pending().await,
            Some(Ok(Ok(()))) => self.wake(),
            Some(Ok(Err(error))) => {
                tracing::warn!(%error, "deployments and drains are looked at again");
                self.retry();
            }
            Some(Err(error)) => {
                tracing::error!(%error, "a command's task failed");
                self.retry();
            }
        }
    }

    fn retry(&mut self) {
        let later = self.control.monotonic().plus(Duration::from_secs(1));
        self.look_at = Some(later);
    }
}
