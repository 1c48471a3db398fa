//! Decides which allocations an agent stops by itself because no server was in reach for too long.
//!
//! Time is the machine's since its boot, and counts from the sending of the newest heartbeat that a
//! leader is known to have counted, be it an earlier agent's: one that is started again and again
//! gains no time by it. Where nothing is known of an earlier agent in this boot, it counts from the
//! agent's start. An earlier contact that is older than it really was only stops sooner.
//!
//! An agent that finds a patience over at its start gives its servers a moment to answer
//! ([`FIRST_CONTACT`]), up to a bound that no further start moves ([`FIRST_CONTACT_LATE_MAX`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_domain::alloc::{DesiredAlloc, DesiredStatus};
use muster_domain::id::{AllocId, Timestamp};

use crate::limits::{FIRST_CONTACT, FIRST_CONTACT_LATE_MAX};
use crate::node::Desired;

/// When a leader last heard of the node.
#[derive(Debug)]
pub struct HeartbeatLease {
    last: Timestamp,
    /// When this agent began, if `last` is an earlier one's.
    began: Option<Timestamp>,
    /// Allocations that a server named first since the last contact, with the time. Nothing is placed on a node that is
    /// gone.
    received_at: BTreeMap<AllocId, Timestamp>,
    /// Allocations that were stopped since the last contact.
    stopped: BTreeSet<AllocId>,
}

/// How long the allocation may run without a server; `None` means for ever.
pub(crate) fn patience(desired: &DesiredAlloc) -> Option<Duration> {
    match desired.desired {
        DesiredStatus::Run => desired.group()?.disconnect.stop_on_client_after,
        DesiredStatus::Stop | DesiredStatus::Evict => None,
    }
}

impl HeartbeatLease {
    /// The contact of an agent that starts; `earlier` is that of the agent before it in this boot.
    #[must_use]
    pub fn new(now: Timestamp, earlier: Option<Timestamp>) -> Self {
        Self {
            last: earlier.map_or(now, |earlier| earlier.min(now)),
            began: earlier.map(|_| now),
            received_at: BTreeMap::new(),
            stopped: BTreeSet::new(),
        }
    }

    /// A leader has counted a heartbeat that was sent at `sent`.
    pub fn handle_heartbeat(&mut self, sent: Timestamp) {
        if sent > self.last {
            self.last = sent;
            self.began = None;
            self.received_at.clear();
            self.stopped.clear();
        }
    }

    /// A server tells of an allocation that never ran. It may do so before the leader has counted the session's
    /// first heartbeat.
    pub fn handle_alloc_update(&mut self, alloc: &DesiredAlloc, now: Timestamp) {
        if patience(alloc).is_some() {
            self.received_at.insert(alloc.alloc_id, now);
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
            let alloc_id = alloc.alloc_id;
            let at = self.stop_time(alloc_id, self.last.plus(patience(alloc)?));
            (!self.stopped.contains(&alloc_id)).then_some((at, alloc_id))
        })
    }

    /// When an allocation stops whose patience is over at `due`.
    fn stop_time(&self, alloc_id: AllocId, due: Timestamp) -> Timestamp {
        let first = |from: Timestamp| from.plus(FIRST_CONTACT);
        let at_start = self.began.map(first);
        let at_start = at_start.map(|at| at.min(due.plus(FIRST_CONTACT_LATE_MAX)));
        let at_receipt = self.received_at.get(&alloc_id).copied().map(first);
        at_start.max(at_receipt).unwrap_or(due).max(due)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_domain::alloc::ClientStatus;
    use muster_domain::fixture;
    use muster_domain::id::LogIndex;

    use super::*;
    use crate::node::DesiredUpdate;

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
                client_status: ClientStatus::Running,
                ..fixture::desired(id(name), Arc::clone(&job))
            }
        }))
    }

    /// The patience of a newer version of the job counts, also for an allocation that is known already.
    #[test]
    fn newer_stop_after_client_disconnect_replaces_old() {
        let mut desired = desired(&[Some(30), None]);
        let contact = HeartbeatLease::new(at(0), None);
        let changed = [(id(0), None), (id(1), Some(20))].map(|(alloc_id, seconds)| {
            let mut alloc = desired.get(alloc_id).unwrap().clone();
            alloc.alloc_modify_index = LogIndex(2);
            let group = &mut Arc::make_mut(&mut alloc.job).spec.groups[0];
            group.disconnect.stop_on_client_after = seconds.map(Duration::from_secs);
            alloc
        });

        desired.apply(DesiredUpdate {
            index: LogIndex(2),
            allocs: changed.into(),
            ..DesiredUpdate::default()
        });

        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(20));
        desired.apply(DesiredUpdate {
            index: LogIndex(3),
            gone: vec![id(1)],
            ..DesiredUpdate::default()
        });
        assert_eq!(contact.poll_timeout(&desired), None);
    }

    #[test]
    fn each_stops_after_its_own_time() {
        let desired = desired(&[Some(60), None, Some(30)]);
        let mut contact = HeartbeatLease::new(at(0), None);
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
        let mut contact = HeartbeatLease::new(at(0), None);

        contact.handle_heartbeat(at(29));

        assert_eq!(contact.handle_timeout(&desired, at(30)), []);
        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(59));
    }

    /// The answer to a heartbeat may come after the answer to a later one.
    #[test]
    fn an_older_heartbeat_takes_no_time_back() {
        let desired = desired(&[Some(30)]);
        let mut contact = HeartbeatLease::new(at(0), None);
        contact.handle_heartbeat(at(20));

        contact.handle_heartbeat(at(10));

        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(50));
    }

    #[test]
    fn an_agent_without_servers_counts_from_its_start() {
        let desired = desired(&[Some(30)]);
        let mut contact = HeartbeatLease::new(at(5), None);

        assert_eq!(contact.handle_timeout(&desired, at(35)), [id(0)]);
    }

    /// Each of them would have been patient again if it counted from its own start.
    #[test]
    fn restarted_agent_continues_disconnect_countdown() {
        let desired = desired(&[Some(30)]);

        let mut second = HeartbeatLease::new(at(29), Some(at(0)));
        let mut third = HeartbeatLease::new(at(33), Some(at(0)));

        assert_eq!(second.handle_timeout(&desired, at(33)), []);
        assert_eq!(third.poll_timeout(&desired).unwrap().0, at(38));
        assert_eq!(third.handle_timeout(&desired, at(38)), [id(0)]);
    }

    /// However often it is started: from ten seconds after its end no patience is lengthened.
    #[test]
    fn long_expired_disconnect_deadline_gets_no_extension() {
        let desired = desired(&[Some(30)]);

        let late = HeartbeatLease::new(at(38), Some(at(0)));
        let mut too_late = HeartbeatLease::new(at(41), Some(at(0)));

        assert_eq!(late.poll_timeout(&desired).unwrap().0, at(40));
        assert_eq!(too_late.handle_timeout(&desired, at(41)), [id(0)]);
    }

    #[test]
    fn timely_heartbeat_keeps_all_allocs_running() {
        let desired = desired(&[Some(30), Some(1)]);
        let mut contact = HeartbeatLease::new(at(32), Some(at(0)));

        contact.handle_heartbeat(at(33));

        assert_eq!(contact.handle_timeout(&desired, at(33)), []);
        // The second is given no more than it asks for.
        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(34));
    }

    /// A file that somebody else wrote must not make a patience longer than it is.
    #[test]
    fn no_contact_is_in_the_future() {
        let contact = HeartbeatLease::new(at(5), Some(at(500)));

        assert_eq!(
            contact.poll_timeout(&desired(&[Some(30)])).unwrap().0,
            at(35)
        );
    }

    /// The node was away for long and is back: what was placed on it since is told before the leader has counted
    /// its first heartbeat.
    #[test]
    fn newly_assigned_alloc_survives_until_first_heartbeat() {
        let desired = desired(&[Some(30)]);
        let mut contact = HeartbeatLease::new(at(300), Some(at(0)));
        contact.handle_alloc_update(desired.get(id(0)).unwrap(), at(302));

        assert_eq!(contact.handle_timeout(&desired, at(302)), []);
        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(307));

        contact.handle_heartbeat(at(303));
        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(333));
    }

    /// The servers take such tasks for gone a minute after they found the node gone, which is later than a minute
    /// after its last contact.
    #[test]
    fn one_off_tasks_stop_before_servers_mark_lost() {
        use muster_domain::one_off::{GRACE, LOST_AFTER, OneOffTimings};

        let ended = OneOffTimings::default().stop_after()
            + FIRST_CONTACT_LATE_MAX
            + GRACE
            + crate::limits::STOP_GRACE;

        assert!(ended < LOST_AFTER, "{ended:?}");
    }

    #[test]
    fn stopping_alloc_needs_no_timer() {
        let mut stopped = desired(&[Some(30)]).iter().next().unwrap().clone();
        stopped.desired = DesiredStatus::Stop;

        let desired = Desired::restore([stopped]);

        assert_eq!(
            HeartbeatLease::new(at(0), None).poll_timeout(&desired),
            None
        );
    }
}
