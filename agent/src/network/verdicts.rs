//! The newest verdicts on packets of the node's tasks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_domain::id::{AllocId, Timestamp};
use muster_wire::rpc::Verdict;
use nix::time::{ClockId, clock_gettime};

use crate::bpf::{Direction, PacketVerdict};
use crate::limits::{VERDICT_ALLOCS_MAX, VERDICTS_KEPT, VERDICTS_PER_ANSWER_MAX};
use crate::session::clock::now;

/// The newest verdicts of all tasks, each with its number within its allocation. The numbers show a slow reader how
/// many it missed.
#[derive(Debug, Default)]
pub(crate) struct VerdictLog {
    kept: Mutex<RecentVerdicts>,
}

#[derive(Debug, Default)]
struct RecentVerdicts {
    /// The number of each allocation's newest verdict.
    newest: HashMap<AllocId, u64>,
    verdicts: VecDeque<(AllocId, Verdict)>,
}

impl VerdictLog {
    pub(crate) fn push(&self, alloc_id: AllocId, verdict: Verdict) {
        let mut kept = self.locked();
        let newest = kept.newest.entry(alloc_id).or_default();
        *newest += 1;
        let number = *newest;
        kept.verdicts
            .push_back((alloc_id, Verdict { number, ..verdict }));
        if kept.verdicts.len() > VERDICTS_KEPT {
            kept.verdicts.pop_front();
        }
        if kept.newest.len() > VERDICT_ALLOCS_MAX {
            let RecentVerdicts { newest, verdicts } = &mut *kept;
            let alloc_ids: HashSet<AllocId> = verdicts.iter().map(|(id, _)| *id).collect();
            newest.retain(|id, _| alloc_ids.contains(id));
        }
    }

    /// The newest verdicts of an allocation after number `after`, oldest first, and the number of its newest. A number
    /// higher than the newest came from an earlier agent: then all verdicts are new.
    pub(crate) fn of(&self, alloc_id: AllocId, after: u64) -> (Vec<Verdict>, u64) {
        let kept = self.locked();
        let last = kept.newest.get(&alloc_id).copied().unwrap_or(0);
        if last == after {
            return (Vec::new(), last);
        }
        let after = if last < after { 0 } else { after };
        let newest = kept.verdicts.iter().rev();
        let mut found: Vec<Verdict> = newest
            .filter(|(id, _)| *id == alloc_id)
            .take_while(|(_, verdict)| verdict.number > after)
            .take(VERDICTS_PER_ANSWER_MAX)
            .map(|(_, verdict)| verdict.clone())
            .collect();
        found.reverse();
        (found, last)
    }

    fn locked(&self) -> MutexGuard<'_, RecentVerdicts> {
        // A panic elsewhere leaves at most one verdict without a number.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn reported_verdict(task: &str, verdict: PacketVerdict) -> Verdict {
    let PacketVerdict {
        at_ns,
        task: _,
        direction,
        rule,
        allowed,
        protocol,
        remote,
        remote_port,
        local_port,
        bytes,
    } = verdict;
    Verdict {
        number: 0,
        at: wall_time(at_ns),
        task: task.to_owned(),
        egress: direction == Direction::Egress,
        rule,
        allowed,
        protocol,
        remote,
        remote_port,
        local_port,
        bytes,
    }
}

/// Returns the wall-clock time at which the monotonic clock showed `at_ns`.
fn wall_time(at_ns: u64) -> Timestamp {
    let monotonic = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(at_ns, |time| {
        u64::try_from(std::time::Duration::from(time).as_nanos()).unwrap_or(at_ns)
    });
    Timestamp(now().0.saturating_sub(monotonic.saturating_sub(at_ns)))
}

#[cfg(test)]
mod tests {
    use muster_domain::id::LogIndex;

    use super::*;

    fn verdict() -> Verdict {
        Verdict {
            number: 0,
            at: Timestamp(0),
            task: "web".to_owned(),
            egress: true,
            rule: "default".to_owned(),
            allowed: false,
            protocol: 6,
            remote: [10, 0, 0, 1].into(),
            remote_port: 80,
            local_port: 0,
            bytes: 0,
        }
    }

    #[test]
    fn reader_gets_new_verdicts_of_one_alloc() {
        let log = VerdictLog::default();
        let (one, other) = (AllocId::at(LogIndex(1), 0), AllocId::at(LogIndex(2), 0));
        for alloc_id in [one, other, one, one] {
            log.push(alloc_id, verdict());
        }
        let numbers = |after| {
            let (verdicts, last) = log.of(one, after);
            let numbers: Vec<u64> = verdicts.iter().map(|verdict| verdict.number).collect();
            (numbers, last)
        };
        assert_eq!(numbers(0), (vec![1, 2, 3], 3));
        assert_eq!(numbers(2), (vec![3], 3));
        assert_eq!(numbers(3), (vec![], 3));
        assert_eq!(numbers(9), (vec![1, 2, 3], 3), "an earlier agent's number");
    }

    /// A slow reader sees by the numbers how many verdicts it missed, even if other allocations have many meanwhile.
    #[test]
    fn verdict_numbers_reveal_missed_entries_to_slow_reader() {
        let log = VerdictLog::default();
        let (one, other) = (AllocId::at(LogIndex(1), 0), AllocId::at(LogIndex(2), 0));
        for _ in 0..10 {
            log.push(one, verdict());
        }
        for _ in 0..VERDICTS_KEPT {
            log.push(other, verdict());
        }
        log.push(one, verdict());

        let (verdicts, last) = log.of(one, 4);

        assert_eq!((verdicts.len(), verdicts[0].number, last), (1, 11, 11));
    }

    #[test]
    fn verdict_numbers_of_evicted_allocs_are_dropped() {
        let log = VerdictLog::default();
        let count = u32::try_from(VERDICT_ALLOCS_MAX).unwrap() + 1;
        for name in 0..count {
            log.push(AllocId::at(LogIndex(1), name), verdict());
        }

        let (newest, oldest) = (
            log.of(AllocId::at(LogIndex(1), count - 1), 0),
            log.of(AllocId::at(LogIndex(1), 0), 0),
        );

        assert_eq!(log.locked().newest.len(), VERDICTS_KEPT);
        assert_eq!((newest.1, oldest.1), (1, 0));
    }

    #[test]
    fn the_log_is_bounded_and_keeps_the_newest() {
        let log = VerdictLog::default();
        let alloc_id = AllocId::at(LogIndex(1), 0);
        for _ in 0..VERDICTS_KEPT + 10 {
            log.push(alloc_id, verdict());
        }
        assert_eq!(log.locked().verdicts.len(), VERDICTS_KEPT);
        let (verdicts, last) = log.of(alloc_id, 0);
        assert_eq!(verdicts.len(), VERDICTS_PER_ANSWER_MAX);
        assert_eq!(verdicts.last().unwrap().number, last);
    }
}
