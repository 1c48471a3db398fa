//! What an agent stops by itself because no server was in reach for too long.
//!
//! Time is the agent's monotonic clock, and counts from the sending of the newest heartbeat that a
//! leader is known to have counted; for an agent that was just started, from its start.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_domain::alloc::{DesiredAlloc, DesiredStatus};
use muster_domain::id::{AllocId, Timestamp};

use crate::node::Desired;

/// When a leader last heard of the node.
#[derive(Debug)]
pub struct Contact {
    last: Timestamp,
    /// What was stopped since then.
    stopped: BTreeSet<AllocId>,
}

/// How long the allocation may run without a server; `None` means for ever.
pub(crate) fn patience(desired: &DesiredAlloc) -> Option<Duration> {
    match desired.desired {
        DesiredStatus::Run => desired.group()?.disconnect.stop_on_client_after,
        DesiredStatus::Stop | DesiredStatus::Evict => None,
    }
}

impl Contact {
    /// Of an agent that starts.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            last: now,
            stopped: BTreeSet::new(),
        }
    }

    /// A leader has counted a heartbeat that was sent at `sent`.
    pub fn handle_heartbeat(&mut self, sent: Timestamp) {
        if sent > self.last {
            self.last = sent;
            self.stopped.clear();
        }
    }

    /// The next allocation's turn, if no heartbeat is counted until then, and why.
    #[must_use]
    pub fn poll_timeout(&self, desired: &Desired) -> Option<(Timestamp, &'static str)> {
        let turns = self.turns(desired).map(|(at, _)| at);
        turns.min().map(|at| (at, "stop what has no server"))
    }

    /// The allocations that must stop at `now`; each is named once until a heartbeat is counted.
    pub fn handle_timeout(&mut self, desired: &Desired, now: Timestamp) -> Vec<AllocId> {
        let due: Vec<AllocId> = self
            .turns(desired)
            .filter_map(|(at, alloc_id)| (at <= now).then_some(alloc_id))
            .collect();
        self.stopped.extend(&due);
        due
    }

    fn turns(&self, desired: &Desired) -> impl Iterator<Item = (Timestamp, AllocId)> {
        desired.dependent().filter_map(|alloc| {
            let at = self.last.plus(patience(alloc)?);
            (!self.stopped.contains(&alloc.alloc_id)).then_some((at, alloc.alloc_id))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_domain::alloc::ClientStatus;
    use muster_domain::fixture;
    use muster_domain::id::LogIndex;
    use muster_domain::resources::Holding;

    use super::*;
    use crate::node::News;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_000 * seconds)
    }

    fn id(name: u32) -> AllocId {
        AllocId::at(LogIndex(1), name)
    }

    /// Allocations 0, 1, … that may run so many seconds without a server.
    fn desired(patience: &[Option<u64>]) -> Desired {
        let mut job = fixture::job("web").version();
        Desired::restore((0..).zip(patience).map(|(name, seconds)| {
            let group = &mut Arc::make_mut(&mut job).spec.groups[0];
            group.disconnect.stop_on_client_after = seconds.map(Duration::from_secs);
            DesiredAlloc {
                alloc_id: id(name),
                alloc_modify_index: LogIndex(1),
                desired: DesiredStatus::Run,
                name_index: 0,
                group_at: 0,
                holding: Holding::default(),
                deployment: None,
                canary: false,
                previous: None,
                client_status: ClientStatus::Running,
                job: Arc::clone(&job),
            }
        }))
    }

    /// What a newer version of the job says counts, also for what is known of an allocation already.
    #[test]
    fn a_newer_patience_takes_the_place_of_the_old_one() {
        let mut desired = desired(&[Some(30), None]);
        let contact = Contact::new(at(0));
        let changed = [(id(0), None), (id(1), Some(20))].map(|(alloc_id, seconds)| {
            let mut alloc = desired.get(alloc_id).unwrap().clone();
            alloc.alloc_modify_index = LogIndex(2);
            let group = &mut Arc::make_mut(&mut alloc.job).spec.groups[0];
            group.disconnect.stop_on_client_after = seconds.map(Duration::from_secs);
            alloc
        });

        desired.apply(News {
            index: LogIndex(2),
            allocs: changed.into(),
            ..News::default()
        });

        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(20));
        desired.apply(News {
            index: LogIndex(3),
            gone: vec![id(1)],
            ..News::default()
        });
        assert_eq!(contact.poll_timeout(&desired), None);
    }

    #[test]
    fn each_stops_after_its_own_time() {
        let desired = desired(&[Some(60), None, Some(30)]);
        let mut contact = Contact::new(at(0));
        contact.handle_heartbeat(at(100));

        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(130));
        assert_eq!(contact.handle_timeout(&desired, at(129)), []);
        assert_eq!(contact.handle_timeout(&desired, at(130)), [id(2)]);
        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(160));
        assert_eq!(contact.handle_timeout(&desired, at(500)), [id(0)]);
        assert_eq!(contact.poll_timeout(&desired), None);
    }

    #[test]
    fn a_heartbeat_begins_the_time_anew() {
        let desired = desired(&[Some(30)]);
        let mut contact = Contact::new(at(0));

        contact.handle_heartbeat(at(29));

        assert_eq!(contact.handle_timeout(&desired, at(30)), []);
        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(59));
    }

    /// The answer to a heartbeat may come after the answer to a later one.
    #[test]
    fn an_older_heartbeat_takes_no_time_back() {
        let desired = desired(&[Some(30)]);
        let mut contact = Contact::new(at(0));
        contact.handle_heartbeat(at(20));

        contact.handle_heartbeat(at(10));

        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(50));
    }

    #[test]
    fn an_agent_without_servers_counts_from_its_start() {
        let desired = desired(&[Some(30)]);
        let mut contact = Contact::new(at(5));

        assert_eq!(contact.handle_timeout(&desired, at(35)), [id(0)]);
    }

    #[test]
    fn what_is_to_stop_anyway_needs_no_timer() {
        let mut stopped = desired(&[Some(30)]).iter().next().unwrap().clone();
        stopped.desired = DesiredStatus::Stop;

        let desired = Desired::restore([stopped]);

        assert_eq!(Contact::new(at(0)).poll_timeout(&desired), None);
    }
}
