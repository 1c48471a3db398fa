//! What the state machine shows to the rest of the process.
//!
//! The apply loop is the only writer. Readers take a snapshot that stays valid while writes go on;
//! they never hold the writer up. A state taken after [`Published::applied`] showed an index contains
//! that index.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use muster_control_core::fsm::Effect;
use muster_control_core::state::State;
use muster_domain::id::LogIndex;
use tokio::sync::{mpsc, watch};

use crate::limits;

/// The newest state, and where its changes are heard.
#[derive(Debug)]
pub(crate) struct Published {
    state: RwLock<State>,
    applied: watch::Sender<LogIndex>,
    effects: mpsc::Sender<Vec<Effect>>,
    effects_lost: AtomicBool,
}

impl Published {
    /// Shows an empty state; effects come out of the receiver.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Vec<Effect>>) {
        let (effects, receiver) = mpsc::channel(limits::EFFECT_BATCHES_MAX);
        let (applied, _) = watch::channel(LogIndex(0));
        let published = Self {
            state: RwLock::new(State::default()),
            applied,
            effects,
            effects_lost: AtomicBool::new(false),
        };
        (published, receiver)
    }

    /// The newest state.
    pub(crate) fn state(&self) -> State {
        // A poisoned lock holds a whole state all the same: it is replaced in one assignment.
        self.state
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The index of the newest state.
    pub(crate) fn applied(&self) -> watch::Receiver<LogIndex> {
        self.applied.subscribe()
    }

    /// Whether effects were lost since the last question: then whoever acts on them must scan.
    pub(crate) fn take_effects_lost(&self) -> bool {
        self.effects_lost.swap(false, Ordering::AcqRel)
    }

    /// Shows `state`, which contains the entry at `index`, and passes `effects` on.
    pub(crate) fn publish(&self, state: State, index: LogIndex, effects: Vec<Effect>) {
        let old = {
            let mut shown = self.state.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *shown, state)
        };
        self.applied.send_replace(index);
        if !effects.is_empty() && self.effects.try_send(effects).is_err() {
            self.effects_lost.store(true, Ordering::Release);
        }
        // Freed outside the lock: an old root may own much that the newer one does not share.
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::EvalId;

    use super::*;

    /// Nobody waits for a slow duty: effects beyond the bound are dropped, and that is said once.
    #[test]
    fn a_full_channel_of_effects_is_told() {
        let (published, mut effects) = Published::new();
        let effect = || vec![Effect::EnqueueEval(EvalId([1; 16]))];

        for index in 0..limits::EFFECT_BATCHES_MAX {
            published.publish(State::default(), LogIndex(index as u64), effect());
        }
        assert!(!published.take_effects_lost());
        published.publish(State::default(), LogIndex(9_999), effect());

        assert!(published.take_effects_lost());
        assert!(!published.take_effects_lost());
        assert_eq!(*published.applied().borrow(), LogIndex(9_999));
        assert!(effects.try_recv().is_ok());
    }
}
