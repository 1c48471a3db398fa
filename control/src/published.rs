//! The state machine's results, published to the rest of the process.
//!
//! The apply loop is the only writer. Readers take a snapshot that stays valid while writes go on; they never
//! delay the writer. A state taken after [`Published::applied`] showed an index contains that index, and so does
//! [`Published::events`].

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use muster_control_core::fsm::{ApplyResult, Effect};
use muster_control_core::state::{State, StateHash};
use muster_domain::id::LogIndex;
use tokio::sync::{mpsc, watch};

use crate::events::{Batch, EventRing, LoggedReport};
use crate::limits;

/// An effect of an entry, and the term whose leader proposed the entry.
pub(crate) type TermEffect = (u64, Effect);

/// Results of applied entries that are not published yet.
#[derive(Debug, Default)]
pub(crate) struct PendingResults {
    effects: Vec<TermEffect>,
    batches: Vec<Batch>,
    hashes: Vec<(LogIndex, StateHash)>,
    /// Rows that were written or removed.
    rows: usize,
}

impl PendingResults {
    /// Adds the entry with that index and term. The entry left `state` with the outcome `applied`. `cause` is the
    /// type of its events, and `reports` are the reports in it.
    pub(crate) fn add(
        &mut self,
        (index, term): (LogIndex, u64),
        cause: &'static str,
        state: &State,
        mut applied: ApplyResult,
        reports: Vec<LoggedReport>,
    ) {
        self.rows += applied.changed.len();
        let effects = std::mem::take(&mut applied.effects);
        self.effects
            .extend(effects.into_iter().map(|effect| (term, effect)));
        self.batches
            .extend(Batch::capture(index, cause, state, &applied, reports));
        self.hashes.push((index, state.hash()));
    }
}

/// Values that published entries replaced. An old root may own much that the newer root does not share, especially
/// during garbage collection.
#[derive(Debug)]
pub(crate) struct Retired {
    _state: State,
    _batches: Vec<Arc<Batch>>,
    /// The approximate number of rows that are freed with it.
    pub(crate) rows: usize,
}

/// The newest state, and the channels for its changes.
#[derive(Debug)]
pub(crate) struct Published {
    state: RwLock<State>,
    applied: watch::Sender<LogIndex>,
    effects: mpsc::Sender<Vec<TermEffect>>,
    effects_lost: AtomicBool,
    events: EventRing,
    hashes: Mutex<Hashes>,
    halted: OnceLock<String>,
    freed_by_applier: AtomicU64,
    /// Servers with faults, according to the last notes in the log. A restarted server has only the notes since
    /// its start.
    unwell_servers: Mutex<BTreeSet<u64>>,
}

impl Published {
    /// Publishes an empty state. The receiver gets the effects.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Vec<TermEffect>>) {
        let (effects, receiver) = mpsc::channel(limits::EFFECT_BATCHES_MAX);
        let (applied, _) = watch::channel(LogIndex(0));
        let published = Self {
            state: RwLock::new(State::default()),
            applied,
            effects,
            effects_lost: AtomicBool::new(false),
            events: EventRing::default(),
            hashes: Mutex::new(Hashes::of(LogIndex(0), State::default().hash())),
            halted: OnceLock::new(),
            freed_by_applier: AtomicU64::new(0),
            unwell_servers: Mutex::default(),
        };
        (published, receiver)
    }

    /// The newest state.
    pub(crate) fn state(&self) -> State {
        // A poisoned lock still holds a whole state: the state is replaced in one assignment.
        self.state
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The index of the newest state.
    pub(crate) fn applied(&self) -> watch::Receiver<LogIndex> {
        self.applied.subscribe()
    }

    /// Records the health of a server from an applied entry.
    pub(crate) fn note_server_health(&self, server_id: u64, is_well: bool) {
        let mut unwell = self.unwell();
        if is_well {
            unwell.remove(&server_id);
        } else {
            unwell.insert(server_id);
        }
    }

    /// Whether the last note about a server reports faults. The note is valid for every leader.
    pub(crate) fn is_noted_unwell(&self, server_id: u64) -> bool {
        self.unwell().contains(&server_id)
    }

    fn unwell(&self) -> std::sync::MutexGuard<'_, BTreeSet<u64>> {
        self.unwell_servers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes of the last entries.
    pub(crate) fn events(&self) -> &EventRing {
        &self.events
    }

    /// The hash of the state after all entries up to `index`. `None` if that hash is no longer kept or `index` is
    /// not applied yet.
    pub(crate) fn hash_at(&self, index: LogIndex) -> Option<StateHash> {
        if *self.applied.borrow() < index {
            return None;
        }
        self.hashes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .at(index)
    }

    /// Replaces the kept hash of the table of nodes at `index`, as damaged memory would.
    #[cfg(test)]
    pub(crate) fn corrupt_hash(&self, index: LogIndex) {
        let mut hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, hash)) = hashes.0.iter_mut().rev().find(|(kept, _)| *kept <= index) {
            hash.nodes ^= 1;
        }
    }

    /// Stops applying entries because of `reason`. The first reason counts.
    pub(crate) fn halt(&self, reason: String) {
        drop(self.halted.set(reason));
    }

    /// The reason why no entry is applied any more.
    pub(crate) fn halted(&self) -> Option<&str> {
        self.halted.get().map(String::as_str)
    }

    /// Counts a replaced state that the applier itself frees, because the freeing thread is behind.
    pub(crate) fn count_freed_by_applier(&self) {
        self.freed_by_applier.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of replaced states that the applier freed.
    pub(crate) fn freed_by_applier(&self) -> u64 {
        self.freed_by_applier.load(Ordering::Relaxed)
    }

    /// Whether effects were lost since the last call. If so, the caller must scan the state.
    pub(crate) fn take_effects_lost(&self) -> bool {
        self.effects_lost.swap(false, Ordering::AcqRel)
    }

    /// Publishes `state`, which contains all entries up to `index`, and sends their effects. Returns the values
    /// that no reader can reach any more.
    #[must_use = "freeing it can wait until proposers are answered"]
    pub(crate) fn publish(
        &self,
        state: State,
        index: LogIndex,
        entries: PendingResults,
    ) -> Retired {
        let PendingResults {
            effects,
            batches,
            hashes,
            rows,
        } = entries;
        self.hashes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(hashes);
        let batches = self.events.push(batches);
        let state = self.replace_state(state, index);
        if !effects.is_empty() && self.effects.try_send(effects).is_err() {
            self.effects_lost.store(true, Ordering::Release);
        }
        Retired {
            _state: state,
            _batches: batches,
            rows,
        }
    }

    /// Publishes `state` from a snapshot, which contains all entries up to `index`. The effects of the single
    /// entries are unknown. Returns the whole previous state.
    #[must_use = "freeing it can wait"]
    pub(crate) fn publish_snapshot(&self, state: State, index: LogIndex) -> Retired {
        self.hashes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .reset(index, state.hash());
        self.events.reset(index);
        let old = self.replace_state(state, index);
        // The effects are lost, so their receiver must scan the state.
        self.effects_lost.store(true, Ordering::Release);
        Retired {
            _state: old,
            _batches: Vec::new(),
            rows: usize::MAX,
        }
    }

    /// Returns the previous state, so that the caller frees it outside the lock.
    fn replace_state(&self, state: State, index: LogIndex) -> State {
        let old = {
            let mut shown = self.state.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *shown, state)
        };
        self.applied.send_replace(index);
        old
    }
}

/// Hashes of the state after each of the last entries. An entry without a command changes nothing and has no hash:
/// the previous hash applies.
#[derive(Debug)]
struct Hashes(VecDeque<(LogIndex, StateHash)>);

impl Hashes {
    fn of(index: LogIndex, hash: StateHash) -> Self {
        Self(VecDeque::from([(index, hash)]))
    }

    fn extend(&mut self, hashes: Vec<(LogIndex, StateHash)>) {
        let surplus = (self.0.len() + hashes.len()).saturating_sub(limits::STATE_HASHES_KEPT);
        // The surplus is removed first, so that the queue never exceeds its bound.
        self.0.drain(..surplus.min(self.0.len()));
        self.0.extend(hashes);
    }

    fn reset(&mut self, index: LogIndex, hash: StateHash) {
        *self = Self::of(index, hash);
    }

    fn at(&self, index: LogIndex) -> Option<StateHash> {
        let after = self.0.partition_point(|(kept, _)| *kept <= index);
        let newest = after.checked_sub(1)?;
        self.0.get(newest).map(|(_, hash)| *hash)
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::EvalId;

    use super::*;

    fn with_effect() -> PendingResults {
        PendingResults {
            effects: vec![(1, Effect::EnqueueEval(EvalId([1; 16])))],
            ..PendingResults::default()
        }
    }

    fn hash(nodes: u64) -> StateHash {
        StateHash {
            nodes,
            ..StateHash::default()
        }
    }

    /// The writer does not wait for a slow duty: effects beyond the bound are dropped, and the loss is reported
    /// once.
    #[test]
    fn full_effects_channel_is_reported_once() {
        let (published, mut effects) = Published::new();

        for index in 0..limits::EFFECT_BATCHES_MAX {
            drop(published.publish(State::default(), LogIndex(index as u64), with_effect()));
        }
        assert!(!published.take_effects_lost());
        drop(published.publish(State::default(), LogIndex(9_999), with_effect()));

        assert!(published.take_effects_lost());
        assert!(!published.take_effects_lost());
        assert_eq!(*published.applied().borrow(), LogIndex(9_999));
        assert!(effects.try_recv().is_ok());
    }

    /// Entries 4 and 5 are Raft's own: they change nothing.
    #[test]
    fn a_hash_is_found_by_its_index() {
        let (published, _effects) = Published::new();
        let entries = PendingResults {
            hashes: vec![
                (LogIndex(2), hash(20)),
                (LogIndex(3), hash(30)),
                (LogIndex(6), hash(60)),
            ],
            ..PendingResults::default()
        };

        drop(published.publish(State::default(), LogIndex(7), entries));

        assert_eq!(
            published.hash_at(LogIndex(1)),
            Some(State::default().hash())
        );
        assert_eq!(published.hash_at(LogIndex(2)), Some(hash(20)));
        assert_eq!(published.hash_at(LogIndex(5)), Some(hash(30)));
        assert_eq!(published.hash_at(LogIndex(7)), Some(hash(60)));
        assert_eq!(published.hash_at(LogIndex(8)), None);
    }

    #[test]
    fn a_snapshot_forgets_how_it_came_about() {
        let (published, _effects) = Published::new();
        let entries = PendingResults {
            hashes: vec![(LogIndex(2), hash(20))],
            ..PendingResults::default()
        };
        drop(published.publish(State::default(), LogIndex(2), entries));

        drop(published.publish_snapshot(State::default(), LogIndex(9)));

        assert_eq!(published.hash_at(LogIndex(2)), None);
        assert_eq!(
            published.hash_at(LogIndex(9)),
            Some(State::default().hash())
        );
        assert!(published.take_effects_lost());
        assert!(published.events().from(LogIndex(9), 1).is_err());
    }

    #[test]
    fn hashes_are_bounded() {
        let mut hashes = Hashes::of(LogIndex(0), hash(0));

        for index in 1..2 * limits::STATE_HASHES_KEPT as u64 {
            hashes.extend(vec![(LogIndex(index), hash(index))]);
        }

        assert_eq!(hashes.0.len(), limits::STATE_HASHES_KEPT);
        assert_eq!(hashes.0.capacity(), limits::STATE_HASHES_KEPT);
        assert_eq!(hashes.at(LogIndex(0)), None);
    }
}
