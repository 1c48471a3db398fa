//! One-off tasks by guid, with indexes by what is due of them.
//!
//! A name stands in several of them and is one piece of memory: a tree copies the keys beside the one that it writes.

mod place;

use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use muster_domain::id::{LogIndex, Timestamp};
use muster_domain::one_off::{Callback, OneOff, OneOffState, OneOffTimings, Phase};

use super::digest::Digest;
use super::sets::take_out;
pub use place::place_of;

/// The table of one-off tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OneOffs {
    /// With the hash of each.
    rows: OrdMap<Arc<str>, (Arc<OneOff>, u64)>,
    domains: OrdMap<Arc<str>, OrdSet<Arc<str>>>,
    /// Tasks by the time at which time alone changes them: see [`due_at`].
    due: OrdSet<(Timestamp, Arc<str>)>,
    /// Completed ones whose callback is to be delivered, by where to and when it may be tried: one place that
    /// takes none keeps no other waiting.
    callbacks: OrdMap<Arc<str>, OrdSet<(Timestamp, Arc<str>)>>,
    /// Number of claimed callbacks, by the place they go to.
    delivering: OrdMap<Arc<str>, usize>,
    /// The times that all servers use alike.
    times: OneOffTimings,
    /// Domains that clients called fresh, until when; `None` means for ever. Some may be over.
    fresh: OrdMap<Arc<str>, Option<Timestamp>>,
    index: LogIndex,
    hash: u64,
}

impl OneOffs {
    /// The task called so.
    #[must_use]
    pub fn get(&self, guid: &str) -> Option<&Arc<OneOff>> {
        self.rows.get(guid).map(|(row, _)| row)
    }

    /// All, by guid.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<OneOff>> {
        self.rows.values().map(|(row, _)| row)
    }

    /// Returns the tasks of one domain, by guid.
    pub fn of_domain(&self, domain: &str) -> impl Iterator<Item = &Arc<OneOff>> + use<'_> {
        let guids = self.domains.get(domain).into_iter().flatten();
        guids.filter_map(|guid| self.get(guid))
    }

    /// Domains that have tasks, with how many.
    pub fn domains(&self) -> impl Iterator<Item = (&str, usize)> {
        let domains = self.domains.iter();
        domains.map(|(name, guids)| (&**name, guids.len()))
    }

    /// Returns the tasks that time changes, the earliest first.
    pub fn due(&self) -> impl Iterator<Item = (Timestamp, &Arc<OneOff>)> {
        let due = self.due.iter();
        due.filter_map(|(at, guid)| Some((*at, self.get(guid)?)))
    }

    /// The same from one on, which need not be there any more.
    pub(crate) fn due_from(
        &self,
        at: Timestamp,
        guid: &str,
    ) -> impl Iterator<Item = (Timestamp, &Arc<OneOff>)> {
        let due = self.due.range((at, Arc::from(guid))..);
        due.filter_map(|(at, guid)| Some((*at, self.get(guid)?)))
    }

    /// Places that are owed callbacks, those after `from` first, so that a caller that takes some at a time comes to
    /// all.
    pub fn callback_places(&self, from: &str) -> impl Iterator<Item = &str> {
        let from: Arc<str> = Arc::from(from);
        let after = (Bound::Excluded(Arc::clone(&from)), Bound::Unbounded);
        let rest = (Bound::Unbounded, Bound::Included(from));
        let places = self.callbacks.range(after);
        let places = places.chain(self.callbacks.range(rest));
        places.map(|(place, _)| &**place)
    }

    /// Returns the tasks whose callback is to be delivered to one place, by when it may be tried.
    pub fn callbacks(
        &self,
        place: &str,
    ) -> impl Iterator<Item = (Timestamp, &Arc<OneOff>)> + use<'_> {
        let callbacks = self.callbacks.get(place).into_iter().flatten();
        callbacks.filter_map(|(at, guid)| Some((*at, self.get(guid)?)))
    }

    /// Returns the number of claimed callbacks that go to the place of this URL.
    pub(crate) fn delivering(&self, url: &str) -> usize {
        self.delivering.get(&*place_of(url)).copied().unwrap_or(0)
    }

    /// Returns the number of tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The last entry that changed the table.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// The hash of its rows and its index; see [`super::StateHash`].
    pub(super) fn hash(&self) -> u64 {
        self.hash.wrapping_add(Digest::of(&self.index))
    }

    /// Returns the times that all servers use alike.
    #[must_use]
    pub fn times(&self) -> OneOffTimings {
        self.times
    }

    /// Domains that are fresh at `now`, by name, until when; `None` means for ever.
    pub fn fresh(&self, now: Timestamp) -> impl Iterator<Item = (&str, Option<Timestamp>)> {
        let is_fresh = move |until: Option<Timestamp>| until.is_none_or(|until| until > now);
        self.domains_said()
            .filter(move |(_, until)| is_fresh(*until))
    }

    /// Domains that were called fresh and not forgotten yet.
    pub(crate) fn domains_said(&self) -> impl Iterator<Item = (&str, Option<Timestamp>)> {
        self.fresh.iter().map(|(domain, until)| (&**domain, *until))
    }

    pub(crate) fn set_times(&mut self, times: OneOffTimings) {
        // Snapshots have no row for the defaults, and so the hash leaves them out.
        let hash = |times: OneOffTimings| {
            let told = Some(times).filter(|times| *times != OneOffTimings::default());
            told.map_or(0, |times| Digest::of(&times))
        };
        self.hash = self.hash.wrapping_sub(hash(self.times));
        self.hash = self.hash.wrapping_add(hash(times));
        self.times = times;
    }

    /// Calls a domain fresh.
    pub(crate) fn freshen(&mut self, domain: &str, until: Option<Timestamp>) {
        self.forget_fresh(domain);
        self.fresh.insert(Arc::from(domain), until);
        self.hash = self.hash.wrapping_add(Digest::of(&(domain, until)));
    }

    fn forget_fresh(&mut self, domain: &str) {
        if let Some(until) = self.fresh.remove(domain) {
            self.hash = self.hash.wrapping_sub(Digest::of(&(domain, until)));
        }
    }

    /// Forgets the domains that are not fresh any more at `now`.
    pub(crate) fn forget_stale(&mut self, now: Timestamp) {
        let stale = |until: &Option<Timestamp>| until.is_some_and(|until| until <= now);
        let stale: Vec<Arc<str>> = self
            .fresh
            .iter()
            .filter(|(_, until)| stale(until))
            .map(|(domain, _)| Arc::clone(domain))
            .collect();
        for domain in stale {
            self.forget_fresh(&domain);
        }
    }

    /// Writes a row.
    pub(crate) fn put(&mut self, row: OneOff) {
        self.index = self.index.max(row.modify_index);
        let hash = Digest::of(&row);
        self.hash = self.hash.wrapping_add(hash);
        let row = Arc::new(row);
        let guid = self.name(&row.guid);
        let old = self
            .rows
            .insert(Arc::clone(&guid), (Arc::clone(&row), hash));
        let old = old.map(|(old, hash)| {
            self.hash = self.hash.wrapping_sub(hash);
            old
        });
        let (old, new) = (old.as_deref().map(IndexKeys::of), IndexKeys::of(&row));
        self.replace(&guid, old, Some(new));
    }

    /// Forgets a row.
    pub(crate) fn remove(&mut self, guid: &str) -> Option<Arc<OneOff>> {
        let guid = self.name(guid);
        let (old, hash) = self.rows.remove(&*guid)?;
        self.hash = self.hash.wrapping_sub(hash);
        self.replace(&guid, Some(IndexKeys::of(&old)), None);
        Some(old)
    }

    /// The name as the table has it, if it has.
    fn name(&self, guid: &str) -> Arc<str> {
        let known = self.rows.get_key_value(guid);
        known.map_or_else(|| Arc::from(guid), |(name, _)| Arc::clone(name))
    }

    /// Moves a row in the indexes, in those where its place is another.
    fn replace(&mut self, guid: &Arc<str>, old: Option<IndexKeys<'_>>, new: Option<IndexKeys<'_>>) {
        let domain = (
            old.as_ref().map(|old| old.domain),
            new.as_ref().map(|new| new.domain),
        );
        if domain.0 != domain.1 {
            if let Some(old) = domain.0 {
                take_out(&mut self.domains, old, &**guid);
            }
            if let Some(new) = domain.1 {
                let guids = self.domains.entry(Arc::from(new)).or_default();
                guids.insert(Arc::clone(guid));
            }
        }
        let due = (
            old.as_ref().and_then(|old| old.due),
            new.as_ref().and_then(|new| new.due),
        );
        if due.0 != due.1 {
            if let Some(at) = due.0 {
                self.due.remove(&(at, Arc::clone(guid)));
            }
            if let Some(at) = due.1 {
                self.due.insert((at, Arc::clone(guid)));
            }
        }
        let (old_callback, old_delivering) = old.map(IndexKeys::of_callback).unwrap_or_default();
        let (new_callback, new_delivering) = new.map(IndexKeys::of_callback).unwrap_or_default();
        if old_callback != new_callback {
            if let Some((place, at)) = old_callback {
                take_out(&mut self.callbacks, &*place, &(at, Arc::clone(guid)));
            }
            if let Some((place, at)) = new_callback {
                let callbacks = self.callbacks.entry(Arc::from(place)).or_default();
                callbacks.insert((at, Arc::clone(guid)));
            }
        }
        if old_delivering != new_delivering {
            if let Some(place) = old_delivering
                && let Some(count) = self.delivering.get(&*place).copied()
            {
                match count - 1 {
                    0 => self.delivering.remove(&*place),
                    less => self.delivering.insert(Arc::from(place), less),
                };
            }
            if let Some(place) = new_delivering {
                *self.delivering.entry(Arc::from(place)).or_default() += 1;
            }
        }
    }

    pub(crate) fn set_index(&mut self, index: LogIndex) {
        self.index = index;
    }
}

/// The positions of a row in the indexes.
#[derive(Debug, PartialEq, Eq)]
struct IndexKeys<'a> {
    domain: &'a str,
    due: Option<Timestamp>,
    callback: Option<(String, Timestamp)>,
    /// The place to which its callback goes, if that is claimed.
    delivering: Option<String>,
}

impl<'a> IndexKeys<'a> {
    fn of(row: &'a OneOff) -> Self {
        let place = || place_of(&row.definition.completion_callback_url);
        Self {
            domain: &row.domain,
            due: due_at(row),
            callback: callback_at(row).map(|at| (place(), at)),
            delivering: (row.phase == Phase::Delivering).then(place),
        }
    }

    /// Returns the callback it is owed, and where it is being delivered.
    fn of_callback(self) -> (Option<(String, Timestamp)>, Option<String>) {
        (self.callback, self.delivering)
    }
}

/// Returns the time at which a task changes by time alone. The causes are: it has not started in time; it was told to
/// end and its node is out of reach for too long; a claim on it is over; it was kept long enough. A task whose
/// callback is owed is kept however long that takes. One whose callback was given up can be seen for as long as any
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
