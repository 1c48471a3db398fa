//! Forgets what is over: by age, and at once when asked.

use std::collections::VecDeque;

use muster_control_core::fsm::Command;
use muster_control_core::gc::{Collector, GcConfig};
use muster_domain::id::Timestamp;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::handle::{Control, ProposeError, Proposed};

type Reply = oneshot::Sender<Result<(), ProposeError>>;

/// The core, its commands in order, and who waits for them.
#[derive(Debug)]
pub(super) struct Garbage {
    control: Control,
    core: Collector,
    queue: VecDeque<Work>,
    /// At most one.
    under_way: JoinSet<(Command, Proposed)>,
}

#[derive(Debug)]
enum Work {
    Propose(Command),
    /// Everything asked for before is done.
    Answer(Reply),
}

impl Garbage {
    pub(super) fn begin(control: Control, now: Timestamp) -> Self {
        let core = Collector::new(GcConfig::default(), now);
        Self {
            control,
            core,
            queue: VecDeque::new(),
            under_way: JoinSet::new(),
        }
    }

    /// Collects everything that is over, whatever its age, then answers.
    pub(super) fn force(&mut self, reply: Reply, now: Timestamp) {
        self.queue
            .extend(Collector::forced(now).into_iter().map(Work::Propose));
        self.queue.push_back(Work::Answer(reply));
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        self.core.poll_timeout()
    }

    pub(super) fn advance(&mut self, now: Timestamp) {
        self.queue
            .extend(self.core.handle_timeout(now).into_iter().map(Work::Propose));
        while self.under_way.is_empty() {
            match self.queue.pop_front() {
                None => return,
                // Whoever asked may have gone away.
                Some(Work::Answer(reply)) => drop(reply.send(Ok(()))),
                Some(Work::Propose(command)) => {
                    let control = self.control.clone();
                    self.under_way.spawn(async move {
                        let result = control.propose(command.clone()).await;
                        (command, result)
                    });
                }
            }
        }
    }

    /// Waits until a command is answered. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        match self.under_way.join_next().await {
            None => std::future::pending().await,
            Some(Ok((command, Ok((_, response))))) => {
                if let Some(next) =
                    Collector::next_slice(&command, &response, self.control.monotonic())
                {
                    self.queue.push_front(Work::Propose(next));
                }
            }
            Some(Ok((_, Err(error)))) => self.give_up(error),
            Some(Err(error)) => {
                tracing::error!(%error, "a command's task failed");
                self.give_up(ProposeError::Stopped {
                    reason: error.to_string(),
                });
            }
        }
    }

    /// Drops the commands that wait; the next round finds the same garbage. Tells the first who asked.
    fn give_up(&mut self, error: ProposeError) {
        tracing::warn!(%error, "garbage was not collected");
        let mut error = Some(error);
        for work in self.queue.drain(..) {
            if let Work::Answer(reply) = work {
                let reason = error
                    .take()
                    .unwrap_or(ProposeError::NotLeader { leader: None });
                drop(reply.send(Err(reason)));
            }
        }
    }
}
