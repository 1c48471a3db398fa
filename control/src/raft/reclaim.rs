//! Frees replaced states on a thread of its own.
//!
//! An old root may own a slice of garbage, or after a restore a whole state. The thread frees it without a waiting
//! caller.
//!
//! The queue to the thread is short, because its states use memory. If it is full, the applier frees the state
//! itself. The thread ends when the applier is dropped and all states are freed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use crate::limits;
use crate::niceness::yield_to_others;
use crate::published::{Published, Retired};

/// The thread's name.
const NAME: &str = "outdated states";

/// The sender to the thread.
#[derive(Debug)]
pub(super) struct StateReclaimer {
    /// The queue of the thread; `None` if no thread could be started.
    queue: Option<SyncSender<Retired>>,
    published: Arc<Published>,
}

impl StateReclaimer {
    pub(super) fn start(published: Arc<Published>) -> Self {
        let (sender, receiver) = sync_channel(limits::OUTDATED_STATES_MAX);
        let started = thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            yield_to_others(limits::OUTDATED_NICENESS, NAME);
            free(&receiver);
        });
        let queue = match started {
            Ok(_thread) => Some(sender),
            Err(error) => {
                tracing::warn!(%error, "outdated states are freed by the thread that applies entries");
                None
            }
        };
        Self { queue, published }
    }

    /// Sends `outdated` to the thread. Frees it here if it has few rows, or if the thread is behind.
    pub(super) fn take(&self, outdated: Retired) {
        if outdated.rows < limits::OUTDATED_ROWS_MIN {
            return;
        }
        let left = match &self.queue {
            None => Err(outdated),
            Some(queue) => queue.try_send(outdated).map_err(|error| match error {
                TrySendError::Full(outdated) | TrySendError::Disconnected(outdated) => outdated,
            }),
        };
        if let Err(outdated) = left {
            self.published.count_freed_by_applier();
            drop(outdated);
        }
    }
}

fn free(outdated: &Receiver<Retired>) {
    while let Ok(one) = outdated.recv() {
        drop(one);
    }
}

#[cfg(test)]
mod tests {
    use muster_control_core::state::State;
    use muster_domain::id::LogIndex;

    use super::*;
    use crate::published::PendingResults;

    fn outdated(published: &Published, rows: usize) -> Retired {
        let entries = PendingResults::default();
        let mut outdated = published.publish(State::default(), LogIndex(1), entries);
        outdated.rows = rows;
        outdated
    }

    #[test]
    fn applier_frees_states_when_queue_is_full() {
        let published = Arc::new(Published::new().0);
        // No thread receives from this queue.
        let (sender, receiver) = sync_channel(limits::OUTDATED_STATES_MAX);
        let reclaimer = StateReclaimer {
            queue: Some(sender),
            published: Arc::clone(&published),
        };

        for _ in 0..limits::OUTDATED_STATES_MAX + 3 {
            reclaimer.take(outdated(&published, limits::OUTDATED_ROWS_MIN));
            reclaimer.take(outdated(&published, limits::OUTDATED_ROWS_MIN - 1));
        }

        assert_eq!(published.freed_by_applier(), 3);
        assert_eq!(receiver.try_iter().count(), limits::OUTDATED_STATES_MAX);
    }

    #[test]
    fn reclaimer_thread_drains_queue_and_exits() {
        let published = Arc::new(Published::new().0);
        let (sender, receiver) = sync_channel(limits::OUTDATED_STATES_MAX);
        let reclaimer = StateReclaimer {
            queue: Some(sender),
            published: Arc::clone(&published),
        };
        reclaimer.take(published.publish_snapshot(State::default(), LogIndex(2)));
        let thread = thread::spawn(move || {
            free(&receiver);
            receiver.try_iter().count()
        });

        drop(reclaimer);

        assert_eq!(thread.join().unwrap(), 0);
        assert_eq!(published.freed_by_applier(), 0);
    }
}
