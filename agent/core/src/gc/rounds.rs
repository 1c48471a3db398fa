//! Builds collections from counters. A collection begins when a destroy is chosen. It ends when no allocation is being
//! destroyed or deleted.

use std::collections::BTreeMap;

use muster_domain::id::Timestamp;
use muster_domain::node::{GcReason, NodeCollected};

use super::GcState;
use crate::limits::GC_ROUND_MAX;

/// Counters since the agent's start, as read at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcReading {
    /// Counts of allocations that were destroyed and that are being destroyed.
    pub state: GcState,
    /// Files and directories deleted.
    pub inodes: u64,
    /// Bytes deleted with them.
    pub bytes: u64,
    pub delete_failures: u64,
    /// Whether a destroyed allocation is still being deleted.
    pub deleting: bool,
}

impl GcReading {
    fn is_in_progress(&self) -> bool {
        self.state.under_way > 0 || self.deleting
    }

    /// Whether there is progress to report since `before`. Deletions alone do not count: their destroys were reported
    /// before.
    fn has_progress_since(&self, before: &Self) -> bool {
        self.state.destroyed != before.state.destroyed
            || self.state.refusals != before.state.refusals
            || self.delete_failures != before.delete_failures
    }
}

/// The running collection, and the counters at its start.
#[derive(Debug, Default)]
pub struct GcRoundTracker {
    open: Option<Timestamp>,
    last_began: Timestamp,
    /// The counters at the last report. Later deletions belong to the next report, so that the reports add up to the
    /// whole work.
    reported: GcReading,
}

impl GcRoundTracker {
    /// Reports a collection that is over as of `seen`, or that has lasted for `GC_ROUND_MAX`. The caller fills in the
    /// allocations that stay and the thresholds.
    pub fn handle_seen(&mut self, seen: GcReading, now: Timestamp) -> Option<NodeCollected> {
        let has_progress = seen.has_progress_since(&self.reported);
        if self.open.is_none() && (seen.state.under_way > 0 || has_progress) {
            // A clock that was set back must not yield the same start time twice.
            let began_at = now.max(Timestamp(self.last_began.0.saturating_add(1)));
            self.last_began = began_at;
            self.open = Some(began_at);
        }
        let began_at = self.open?;
        let took = now.since(began_at);
        let is_in_progress = seen.is_in_progress();
        if !is_in_progress {
            self.open = None;
        }
        if !has_progress || (is_in_progress && took < GC_ROUND_MAX) {
            return None;
        }
        self.open = None;
        let before = std::mem::replace(&mut self.reported, seen);
        let seen = &self.reported;
        Some(NodeCollected {
            began_at,
            ended_at: now.max(began_at),
            rounds: 1,
            took,
            destroyed: progress_since(&seen.state.destroyed, &before.state.destroyed),
            refusals: seen.state.refusals.saturating_sub(before.state.refusals),
            inodes: seen.inodes.saturating_sub(before.inodes),
            bytes: seen.bytes.saturating_sub(before.bytes),
            delete_failures: seen.delete_failures.saturating_sub(before.delete_failures),
            ..NodeCollected::default()
        })
    }
}

/// The increase of each count from `before` to `now`.
fn progress_since(
    now: &BTreeMap<GcReason, u64>,
    before: &BTreeMap<GcReason, u64>,
) -> BTreeMap<GcReason, u64> {
    let counts = now.iter().map(|(reason, count)| {
        let earlier = before.get(reason).copied().unwrap_or_default();
        (*reason, count.saturating_sub(earlier))
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const START: Timestamp = Timestamp(1_000);

    /// The counters after `destroyed` destroys, with `under_way` under way, and `deleted` files.
    fn seen(destroyed: u64, under_way: usize, deleted: u64) -> GcReading {
        let counts = [(GcReason::Allocs, destroyed)];
        GcReading {
            state: GcState {
                destroyed: counts.into_iter().filter(|(_, count)| *count > 0).collect(),
                under_way,
                ..GcState::default()
            },
            inodes: deleted,
            bytes: 10 * deleted,
            ..GcReading::default()
        }
    }

    fn after(seconds: u64) -> Timestamp {
        START.plus(Duration::from_secs(seconds))
    }

    /// Two allocations are destroyed; the files of the second are deleted three seconds later.
    #[test]
    fn a_collection_ends_with_the_last_deletion() {
        let mut rounds = GcRoundTracker::default();
        let deleting = GcReading {
            deleting: true,
            ..seen(2, 0, 3)
        };

        let none = [
            rounds.handle_seen(seen(0, 0, 0), after(0)),
            rounds.handle_seen(seen(0, 2, 0), after(1)),
            rounds.handle_seen(seen(1, 1, 2), after(2)),
            rounds.handle_seen(deleting, after(3)),
        ];
        let reported = rounds.handle_seen(seen(2, 0, 7), after(6)).unwrap();

        assert_eq!(none, [None, None, None, None]);
        assert_eq!((reported.began_at, reported.ended_at), (after(1), after(6)));
        assert_eq!(reported.took, Duration::from_secs(5));
        assert_eq!(reported.destroyed, BTreeMap::from([(GcReason::Allocs, 2)]));
        assert_eq!(
            (reported.inodes, reported.bytes, reported.rounds),
            (7, 70, 1)
        );
        assert_eq!(rounds.handle_seen(seen(2, 0, 7), after(7)), None);
    }

    #[test]
    fn collection_that_destroyed_nothing_is_not_reported() {
        let mut rounds = GcRoundTracker::default();

        let reported = [
            rounds.handle_seen(seen(0, 1, 0), after(0)),
            rounds.handle_seen(seen(0, 0, 0), after(1)),
        ];

        assert_eq!(reported, [None, None]);
    }

    #[test]
    fn refusal_is_reported_without_anything_destroyed() {
        let mut rounds = GcRoundTracker::default();
        let mut refused = seen(0, 0, 0);
        refused.state.refusals = 1;

        let reported = rounds.handle_seen(refused, after(1)).unwrap();

        assert_eq!((reported.refusals, reported.destroyed.len()), (1, 0));
    }

    /// The deletion of the first allocation takes longer than one report covers. Its rest is reported with the second.
    #[test]
    fn reports_of_long_collections_add_up() {
        let mut rounds = GcRoundTracker::default();
        let deleting = |deleted| GcReading {
            deleting: true,
            ..seen(1, 0, deleted)
        };
        let limit = GC_ROUND_MAX.as_secs();

        rounds.handle_seen(seen(0, 1, 0), after(0));
        let early = rounds.handle_seen(deleting(3), after(limit - 1));
        let cut = rounds.handle_seen(deleting(5), after(limit)).unwrap();
        let silent = rounds.handle_seen(deleting(6), after(3 * limit));
        rounds.handle_seen(seen(1, 1, 8), after(3 * limit + 1));
        let rest = rounds
            .handle_seen(seen(2, 0, 9), after(3 * limit + 2))
            .unwrap();

        assert_eq!((early, silent), (None, None));
        assert_eq!((cut.inodes, rest.inodes), (5, 4));
        assert_eq!(rest.destroyed[&GcReason::Allocs], 1);
    }

    /// The clock does not advance, or is set back.
    #[test]
    fn no_two_collections_begin_at_the_same_time() {
        let mut rounds = GcRoundTracker::default();

        let first = rounds.handle_seen(seen(1, 0, 1), after(5)).unwrap();
        let second = rounds.handle_seen(seen(2, 0, 2), after(0)).unwrap();

        assert!(second.began_at > first.began_at);
        assert!(second.ended_at >= second.began_at);
    }
}
