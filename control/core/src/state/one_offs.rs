//! One-off tasks by guid, with indexes by the work that is due for them.
//!
//! A name is in several of the indexes and is one piece of memory: a write to a tree copies the adjacent keys, too.

mod place;

use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use muster_domain::id::{LogIndex, Timestamp};
use muster_domain::one_off::{Callback, OneOff, OneOffState, OneOffTimings, Phase};

use super::digest::Digest;
use super::table::{Indexes, MapTable, RowChange};
pub use place::place_of;

/// The table of one-off tasks.
pub type OneOffs = MapTable<OneOffIndexes>;

/// The indexes of one-off tasks, and the values that the table keeps in addition to the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OneOffIndexes {
    domains: OrdMap<Arc<str>, OrdSet<Arc<str>>>,
    /// Tasks by the time at which they change by time alone: see [`due_at`].
    due: OrdSet<(Timestamp, Arc<str>)>,
    /// Completed tasks whose callback is to be delivered, by place and by the time of the next try. So a place that
    /// accepts none does not delay another place.
    callbacks: OrdMap<Arc<str>, OrdSet<(Timestamp, Arc<str>)>>,
    /// Number of claimed callbacks, by their place.
    delivering: OrdMap<Arc<str>, u64>,
    /// The times that all servers use alike. No row has them.
    times: OneOffTimings,
    /// Domains that clients marked as fresh, each with its end; `None` means no end. Some may be over. No row has them.
    fresh: OrdMap<Arc<str>, Option<Timestamp>>,
}

impl Indexes for OneOffIndexes {
    type Key = Arc<str>;
    type Query = str;
    type Row = Arc<OneOff>;
    type Shown = Arc<OneOff>;
    type Fact = ();

    const SHARES_KEYS: bool = true;

    fn key(row: &Arc<OneOff>) -> Arc<str> {
        Arc::from(row.guid.as_str())
    }

    fn shown(row: &Arc<OneOff>) -> &Arc<OneOff> {
        row
    }

    fn hash(row: &Arc<OneOff>) -> u64 {
        Digest::of(&**row)
    }

    fn modify_index(row: &Arc<OneOff>) -> LogIndex {
        row.modify_index
    }

    fn follow(&mut self, guid: &Arc<str>, change: RowChange<'_, Arc<OneOff>>, (): ()) {
        let place = |row: &OneOff| -> Arc<str> {
            Arc::from(place_of(&row.definition.completion_callback_url))
        };
        if change.old.map(|old| &old.domain) != change.new.map(|new| &new.domain) {
            change.group(&mut self.domains, |row| {
                Some((Arc::from(row.domain.as_str()), Arc::clone(guid)))
            });
        }
        change.set(&mut self.due, |row| {
            due_at(row).map(|at| (at, Arc::clone(guid)))
        });
        change.group(&mut self.callbacks, |row| {
            callback_at(row).map(|at| (place(row), (at, Arc::clone(guid))))
        });
        change.sum(&mut self.delivering, |row| {
            (row.phase == Phase::Delivering).then(|| (place(row), 1))
        });
    }
}

impl OneOffs {
    /// Returns the tasks of one domain, by guid.
    pub fn of_domain(&self, domain: &str) -> impl Iterator<Item = &Arc<OneOff>> + use<'_> {
        let guids = self.indexes.domains.get(domain).into_iter().flatten();
        guids.filter_map(|guid| self.get(guid))
    }

    /// Returns the domains that have tasks, each with the number of tasks.
    pub fn domains(&self) -> impl Iterator<Item = (&str, usize)> {
        let domains = self.indexes.domains.iter();
        domains.map(|(name, guids)| (&**name, guids.len()))
    }

    /// Returns the tasks that change by time, the earliest first.
    pub fn due(&self) -> impl Iterator<Item = (Timestamp, &Arc<OneOff>)> {
        let due = self.indexes.due.iter();
        due.filter_map(|(at, guid)| Some((*at, self.get(guid)?)))
    }

    /// Returns these tasks from the given one on, which may be gone.
    pub(crate) fn due_from(
        &self,
        at: Timestamp,
        guid: &str,
    ) -> impl Iterator<Item = (Timestamp, &Arc<OneOff>)> {
        let due = self.indexes.due.range((at, Arc::from(guid))..);
        due.filter_map(|(at, guid)| Some((*at, self.get(guid)?)))
    }

    /// Returns places to which callbacks are owed. Places after `from` come first, so that a caller that takes some at
    /// a time reaches all.
    pub fn callback_places(&self, from: &str) -> impl Iterator<Item = &str> {
        let from: Arc<str> = Arc::from(from);
        let after = (Bound::Excluded(Arc::clone(&from)), Bound::Unbounded);
        let rest = (Bound::Unbounded, Bound::Included(from));
        let places = self.indexes.callbacks.range(after);
        let places = places.chain(self.indexes.callbacks.range(rest));
        places.map(|(place, _)| &**place)
    }

    /// Returns the tasks whose callback is to be delivered to one place, by the time of the next try.
    pub fn callbacks(
        &self,
        place: &str,
    ) -> impl Iterator<Item = (Timestamp, &Arc<OneOff>)> + use<'_> {
        let callbacks = self.indexes.callbacks.get(place).into_iter().flatten();
        callbacks.filter_map(|(at, guid)| Some((*at, self.get(guid)?)))
    }

    /// Returns the number of claimed callbacks to the place of this URL.
    pub(crate) fn delivering(&self, url: &str) -> u64 {
        self.indexes
            .delivering
            .get(&*place_of(url))
            .copied()
            .unwrap_or(0)
    }

    /// Returns the times that all servers use alike.
    #[must_use]
    pub fn times(&self) -> OneOffTimings {
        self.indexes.times
    }

    /// Returns the domains that are fresh at `now`, by name, each with its end; `None` means no end.
    pub fn fresh(&self, now: Timestamp) -> impl Iterator<Item = (&str, Option<Timestamp>)> {
        let is_fresh = move |until: Option<Timestamp>| until.is_none_or(|until| until > now);
        self.domains_marked_fresh()
            .filter(move |(_, until)| is_fresh(*until))
    }

    /// Returns the domains that were marked as fresh and are not removed yet.
    pub(crate) fn domains_marked_fresh(&self) -> impl Iterator<Item = (&str, Option<Timestamp>)> {
        self.indexes
            .fresh
            .iter()
            .map(|(domain, until)| (&**domain, *until))
    }

    pub(crate) fn set_times(&mut self, times: OneOffTimings) {
        // Snapshots have no record for the defaults, so the hash leaves them out, too.
        let hash = |times: OneOffTimings| {
            let stored = Some(times).filter(|times| *times != OneOffTimings::default());
            stored.map_or(0, |times| Digest::of(&times))
        };
        self.rehash(hash(self.indexes.times), hash(times));
        self.indexes.times = times;
    }

    /// Marks a domain as fresh.
    pub(crate) fn freshen(&mut self, domain: &str, until: Option<Timestamp>) {
        self.forget_fresh(domain);
        self.indexes.fresh.insert(Arc::from(domain), until);
        self.rehash(0, Digest::of(&(domain, until)));
    }

    fn forget_fresh(&mut self, domain: &str) {
        if let Some(until) = self.indexes.fresh.remove(domain) {
            self.rehash(Digest::of(&(domain, until)), 0);
        }
    }

    /// Removes the domains that are not fresh any more at `now`.
    pub(crate) fn forget_stale(&mut self, now: Timestamp) {
        let stale = |until: &Option<Timestamp>| until.is_some_and(|until| until <= now);
        let stale: Vec<Arc<str>> = self
            .indexes
            .fresh
            .iter()
            .filter(|(_, until)| stale(until))
            .map(|(domain, _)| Arc::clone(domain))
            .collect();
        for domain in stale {
            self.forget_fresh(&domain);
        }
    }
}

/// Returns the time at which a task changes by time alone. There are four causes. The task has not started in time. It
/// was asked to end and its node is out of reach for too long. A claim on it is over. It was kept long enough. A task
/// with an owed callback is kept however long that takes. A task whose callback was given up is kept as long as any
/// other result.
#[must_use]
pub fn due_at(row: &OneOff) -> Option<Timestamp> {
    let after =
        |from: Timestamp, ms: u64| Timestamp(from.0.saturating_add(ms.saturating_mul(1_000_000)));
    match row.state {
        OneOffState::Pending | OneOffState::Running => match row.phase {
            Phase::Placing | Phase::Queued | Phase::Preparing => {
                Some(after(row.created_at, row.definition.start_timeout_ms))
            }
            Phase::Unreachable => row.until,
            Phase::Running
            | Phase::Cancelling
            | Phase::Completed
            | Phase::Delivering
            | Phase::Resolving => None,
        },
        OneOffState::Completed if row.owes_callback() => None,
        OneOffState::Completed => row
            .first_completed_at
            .max(row.callback.and_then(Callback::given_up_at))
            .map(|at| after(at, row.definition.retention_ms)),
        OneOffState::Resolving => row.until,
    }
}

fn callback_at(row: &OneOff) -> Option<Timestamp> {
    let callback = row.callback.filter(|callback| !callback.given_up)?;
    (row.state == OneOffState::Completed).then_some(callback.next_at)
}
