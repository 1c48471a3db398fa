//! Users of tasks that name no user and whose driver supports users without an entry in a user database.
//!
//! Each such task has a number of its own, as user and as group. The number is from a range that the operator keeps
//! free. The task keeps it from its first start until its allocation is destroyed, so that its files belong to no other
//! user meanwhile. The holders of numbers are stored before a task is started. If the store was lost, the number of a
//! running task is in the configuration of its handle. Two agents on one machine need separate ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_domain::id::AllocId;

use crate::logs::FifoOwner;

/// The prefix of the user name that drivers get, as drivers for Nomad parse it.
const NAME_PREFIX: &str = "nomad-";

/// Numbers of users that are in no user database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRange {
    min: u32,
    max: u32,
}

/// A range that holds no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{min} to {max} holds no user: the lowest is to be at least 1, and the highest no less than that and below {}",
    u32::MAX
)]
pub struct UserRangeError {
    min: u32,
    max: u32,
}

impl UserRange {
    /// Creates the range from `min` to `max`, both included.
    ///
    /// # Errors
    ///
    /// If the range is empty, or contains root or the number that means no user.
    pub fn new(min: u32, max: u32) -> Result<Self, UserRangeError> {
        if min == 0 || max < min || max == u32::MAX {
            return Err(UserRangeError { min, max });
        }
        Ok(Self { min, max })
    }

    fn holds(self, number: u32) -> bool {
        (self.min..=self.max).contains(&number)
    }

    /// The number after `number`; the first one follows the last.
    fn after(self, number: u32) -> u32 {
        if number >= self.max {
            self.min
        } else {
            number + 1
        }
    }
}

impl Default for UserRange {
    /// Nomad's default: ten thousand numbers, more than a node has tasks.
    fn default() -> Self {
        Self {
            min: 80_000,
            max: 89_999,
        }
    }
}

/// Every number of the range is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "all {} users from {} to {} are taken by tasks of this node: widen `client {{ users {{ dynamic_user_min, dynamic_user_max }} }}`, collect finished allocations (`muster system gc`), or name a `user` in the task",
    range.max - range.min + 1, range.min, range.max
)]
pub(crate) struct NoUserLeftError {
    range: UserRange,
}

/// The number that each task has.
#[derive(Debug)]
pub(crate) struct WorkloadUsers {
    range: UserRange,
    table: Mutex<UserTable>,
}

#[derive(Debug, Default)]
struct UserTable {
    by_task: BTreeMap<AllocId, BTreeMap<String, u32>>,
    taken: BTreeSet<u32>,
    /// The number that was assigned last. The next search begins after it, so that a released number stays unused as
    /// long as possible.
    last: Option<u32>,
}

impl WorkloadUsers {
    /// Creates the table with the numbers of earlier agents' tasks, which may be outside of the range.
    pub(crate) fn new(range: UserRange, by_task: BTreeMap<AllocId, BTreeMap<String, u32>>) -> Self {
        let taken: BTreeSet<u32> = by_task
            .values()
            .flat_map(|tasks| tasks.values().copied())
            .collect();
        let last = taken.iter().rev().copied().find(|it| range.holds(*it));
        let table = UserTable {
            by_task,
            taken,
            last,
        };
        Self {
            range,
            table: Mutex::new(table),
        }
    }

    /// The number of a task, if it has one.
    pub(crate) fn of(&self, alloc_id: AllocId, task: &str) -> Option<u32> {
        self.locked().by_task.get(&alloc_id)?.get(task).copied()
    }

    /// The numbers of an allocation's tasks, in their stored form.
    pub(crate) fn of_alloc(&self, alloc_id: AllocId) -> BTreeMap<String, u32> {
        let table = self.locked();
        table.by_task.get(&alloc_id).cloned().unwrap_or_default()
    }

    /// Returns the number of a task. A task without a number gets a free one.
    pub(crate) fn take(&self, alloc_id: AllocId, task: &str) -> Result<u32, NoUserLeftError> {
        let mut table = self.locked();
        if let Some(number) = table.by_task.get(&alloc_id).and_then(|it| it.get(task)) {
            return Ok(*number);
        }
        let range = self.range;
        let first = table.last.map_or(range.min, |last| range.after(last));
        let mut number = first;
        while table.taken.contains(&number) {
            number = range.after(number);
            if number == first {
                return Err(NoUserLeftError { range });
            }
        }
        table.last = Some(number);
        table.assign(alloc_id, task, number);
        Ok(number)
    }

    /// Records that a running task has `number`. Returns whether the number was unknown.
    pub(crate) fn claim(&self, alloc_id: AllocId, task: &str, number: u32) -> bool {
        let mut table = self.locked();
        let of_alloc = table.by_task.get(&alloc_id);
        if of_alloc.is_some_and(|tasks| tasks.contains_key(task)) {
            return false;
        }
        if table.taken.contains(&number) {
            tracing::error!(
                %alloc_id, task, number,
                "a running task has the same user as another one: the store was lost, and the number given again before the task was found"
            );
        }
        table.assign(alloc_id, task, number);
        true
    }

    /// Releases the numbers of an allocation's tasks.
    pub(crate) fn release(&self, alloc_id: AllocId) {
        let mut table = self.locked();
        for number in table.by_task.remove(&alloc_id).into_iter().flatten() {
            table.taken.remove(&number.1);
        }
    }

    fn locked(&self) -> MutexGuard<'_, UserTable> {
        // A panic elsewhere leaves the table valid; at worst a number stays taken.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UserTable {
    fn assign(&mut self, alloc_id: AllocId, task: &str, number: u32) {
        self.taken.insert(number);
        let of_alloc = self.by_task.entry(alloc_id).or_default();
        of_alloc.insert(task.to_owned(), number);
    }
}

/// The name that a driver gets as `user`.
pub(crate) fn name_of(number: u32) -> String {
    format!("{NAME_PREFIX}{number}")
}

/// The number in a user name that a driver got, if the name came from this module.
pub(crate) fn number_in(name: &str) -> Option<u32> {
    name.strip_prefix(NAME_PREFIX)?.parse().ok()
}

/// The user and the group of one number.
pub(crate) fn owner(number: u32) -> FifoOwner {
    FifoOwner {
        uid: number,
        gid: number,
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::LogIndex;

    use super::*;

    const FIRST: AllocId = AllocId([1; 16]);
    const SECOND: AllocId = AllocId([2; 16]);

    fn three() -> UserRange {
        UserRange::new(10, 12).unwrap()
    }

    fn fresh() -> WorkloadUsers {
        WorkloadUsers::new(three(), BTreeMap::new())
    }

    #[test]
    fn task_keeps_its_unique_uid() {
        let users = fresh();

        let given = [(FIRST, "a"), (FIRST, "b"), (FIRST, "a"), (SECOND, "a")]
            .map(|(alloc_id, task)| users.take(alloc_id, task).unwrap());

        assert_eq!(given, [10, 11, 10, 12]);
        assert_eq!(users.of(FIRST, "b"), Some(11));
        assert_eq!(users.of(SECOND, "b"), None);
    }

    #[test]
    fn an_exhausted_range_names_the_way_out() {
        let users = fresh();
        for task in ["a", "b", "c"] {
            users.take(FIRST, task).unwrap();
        }

        let error = users.take(SECOND, "a").unwrap_err().to_string();

        assert!(
            error.starts_with("all 3 users from 10 to 12 are taken"),
            "{error}"
        );
        assert_eq!(users.take(FIRST, "c"), Ok(12), "who has one keeps it");
        users.release(FIRST);
        assert_eq!(users.take(SECOND, "a"), Ok(10));
    }

    /// A released number is assigned last, because its task may have files that are still being read.
    #[test]
    fn a_number_that_was_given_back_rests() {
        let users = fresh();
        users.take(FIRST, "a").unwrap();
        users.release(FIRST);

        let next = [SECOND, FIRST, AllocId::at(LogIndex(9), 9)].map(|it| users.take(it, "a"));

        assert_eq!(next, [Ok(11), Ok(12), Ok(10)]);
    }

    #[test]
    fn users_of_earlier_agents_stay_assigned() {
        let known = BTreeMap::from([(FIRST, BTreeMap::from([("a".to_owned(), 11)]))]);
        let users = WorkloadUsers::new(three(), known);
        assert!(users.claim(SECOND, "b", 12));
        assert!(!users.claim(FIRST, "a", 10), "what is stored is believed");

        assert_eq!(users.take(FIRST, "a"), Ok(11));
        assert_eq!(users.take(SECOND, "a"), Ok(10));
        assert!(users.take(SECOND, "c").is_err());
    }

    #[test]
    fn ranges_without_a_user_are_refused() {
        for (min, max) in [(0, 5), (6, 5), (1, u32::MAX)] {
            assert!(UserRange::new(min, max).is_err(), "{min} to {max}");
        }
        assert!(UserRange::new(7, 7).is_ok());
    }

    #[test]
    fn names_are_those_of_nomads_drivers() {
        assert_eq!(name_of(80_001), "nomad-80001");
        assert_eq!(number_in("nomad-80001"), Some(80_001));
        for name in ["", "nomad", "nomad-", "nomad-x", "80001"] {
            assert_eq!(number_in(name), None, "{name}");
        }
    }
}
