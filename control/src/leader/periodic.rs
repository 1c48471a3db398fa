//! Launches periodic jobs when they are due.

use std::collections::VecDeque;

use muster_control_core::fsm::{Entry, Response};
use muster_control_core::periodic::PeriodicLaunches;
use muster_domain::id::Timestamp;
use tokio::task::JoinSet;

use crate::handle::{Control, ProposeResult};
use crate::limits;

/// The periodic core, its commands in order, and the time of the next check.
#[derive(Debug)]
pub(super) struct PeriodicDuty {
    control: Control,
    core: PeriodicLaunches,
    queue: VecDeque<Entry>,
    /// The time of the next launch, on the monotonic clock. `None`: the next change determines it.
    due: Option<Timestamp>,
    under_way: JoinSet<ProposeResult>,
}

impl PeriodicDuty {
    pub(super) fn begin(control: Control, now: Timestamp) -> Self {
        Self {
            control,
            core: PeriodicLaunches::default(),
            queue: VecDeque::new(),
            due: Some(now),
            under_way: JoinSet::new(),
        }
    }

    /// Schedules a check, because jobs changed.
    pub(super) fn wake(&mut self, now: Timestamp) {
        self.due = Some(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        // While a launch is under way, the duty waits for its answer and not for a time.
        let due = self.due.filter(|_| self.under_way.is_empty());
        due.map(|due| (due, "periodic jobs"))
    }

    pub(super) fn advance(&mut self, now: Timestamp) {
        if !self.under_way.is_empty() {
            return;
        }
        // Launch times use the wall clock, which may be set during this wait, so the wait is bounded.
        if self.queue.is_empty() && self.due.is_some_and(|due| due <= now) {
            let wall = self.control.now();
            let (commands, again) = self.core.due(&self.control.state(), wall);
            self.queue.extend(commands);
            let pause = again.map(|at| at.since(wall).min(limits::PERIODIC_LOOK_INTERVAL));
            self.due = pause.map(|pause| now.plus(pause));
        }
        if let Some(command) = self.queue.pop_front() {
            let control = self.control.clone();
            self.under_way
                .spawn(async move { control.propose(command).await });
        }
    }

    /// Waits until a launch is answered. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        match self.under_way.join_next().await {
            None => std::future::pending().await,
            Some(Ok(Ok((_, Response::Rejected(rejection))))) => {
                // The job was stopped or changed meanwhile.
                tracing::info!(%rejection, "a periodic job was not launched");
            }
            Some(Ok(Ok(_))) => {}
            Some(Ok(Err(error))) => {
                tracing::warn!(%error, "periodic jobs were not launched");
                self.later();
            }
            Some(Err(error)) => {
                tracing::error!(%error, "a launch's task failed");
                self.later();
            }
        }
    }

    /// Drops the waiting launches; the next check finds them again.
    fn later(&mut self) {
        self.queue.clear();
        let now = self.control.monotonic();
        self.due = Some(now.plus(limits::PERIODIC_LOOK_INTERVAL));
    }
}
