//! Decides which allocations an agent stops by itself because no server was in reach for too long.
//!
//! Time is the machine's time since its boot. It counts from the sending of the newest heartbeat that a leader is known
//! to have counted. That heartbeat may be an earlier agent's, so repeated starts of the agent gain no time. Without a
//! record of an earlier agent in this boot, time counts from the agent's start. A recorded contact that is too old only
//! stops allocations sooner.
//!
//! An agent that finds an expired deadline at its start gives its servers a moment to answer ([`FIRST_CONTACT`]).
//! Further starts do not move the bound of that moment ([`FIRST_CONTACT_LATE_MAX`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_domain::alloc::{DesiredAlloc, DesiredStatus};
use muster_domain::id::{AllocId, Timestamp};

use crate::limits::{FIRST_CONTACT, FIRST_CONTACT_LATE_MAX};
use crate::node::Desired;

/// The time of the last heartbeat that a leader counted.
#[derive(Debug)]
pub struct HeartbeatLease {
    last: Timestamp,
    /// The start of this agent, if `last` comes from an earlier agent.
    began: Option<Timestamp>,
    /// Allocations that a server first named since the last contact, with the time. The control plane places no
    /// allocation on a node that is down.
    received_at: BTreeMap<AllocId, Timestamp>,
    /// Allocations that were stopped since the last contact.
    stopped: BTreeSet<AllocId>,
}

/// The time that the allocation may run without a server; `None` means for ever.
pub(crate) fn disconnect_timeout(desired: &DesiredAlloc) -> Option<Duration> {
    match desired.desired {
        DesiredStatus::Run => desired.group()?.disconnect.stop_on_client_after,
        DesiredStatus::Stop | DesiredStatus::Evict => None,
    }
}

impl HeartbeatLease {
    /// Creates the lease of an agent that starts. `earlier` is the contact of the agent before it in this boot.
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

    /// Takes in an allocation that never ran. A server may send it before the leader has counted the session's first
    /// heartbeat.
    pub fn handle_alloc_update(&mut self, alloc: &DesiredAlloc, now: Timestamp) {
        if disconnect_timeout(alloc).is_some() {
            self.received_at.insert(alloc.alloc_id, now);
        }
    }

    /// Returns the time at which the next allocation stops if no heartbeat is counted before, and the reason.
    #[must_use]
    pub fn poll_timeout(&self, desired: &Desired) -> Option<(Timestamp, &'static str)> {
        let deadlines = self.deadlines(desired).map(|(at, _)| at);
        deadlines.min().map(|at| (at, "stop what has no server"))
    }

    /// Returns the allocations that must stop at `now`. Each is returned once until a heartbeat is counted.
    pub fn handle_timeout(&mut self, desired: &Desired, now: Timestamp) -> Vec<AllocId> {
        let due: Vec<AllocId> = self
            .deadlines(desired)
            .filter_map(|(at, alloc_id)| (at <= now).then_some(alloc_id))
            .collect();
        self.stopped.extend(&due);
        due
    }

    fn deadlines(&self, desired: &Desired) -> impl Iterator<Item = (Timestamp, AllocId)> {
        desired.dependent().filter_map(|alloc| {
            let alloc_id = alloc.alloc_id;
            let at = self.stop_time(alloc_id, self.last.plus(disconnect_timeout(alloc)?));
            (!self.stopped.contains(&alloc_id)).then_some((at, alloc_id))
        })
    }

    /// The time at which an allocation with the deadline `due` stops.
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

    /// Allocations 0, 1, … that may run without a server for the given seconds.
    fn desired(timeouts: &[Option<u64>]) -> Desired {
        let mut job = fixture::job("web").version();
        Desired::restore((0..).zip(timeouts).map(|(name, seconds)| {
            let group = &mut Arc::make_mut(&mut job).spec.groups[0];
            group.disconnect.stop_on_client_after = seconds.map(Duration::from_secs);
            DesiredAlloc {
                client_status: ClientStatus::Running,
                ..fixture::desired(id(name), Arc::clone(&job))
            }
        }))
    }

    /// The limit of a newer version of the job applies, also to an allocation that is known already.
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

    /// Each agent would wait for the whole time again if it counted from its own start.
    #[test]
    fn restarted_agent_continues_disconnect_countdown() {
        let desired = desired(&[Some(30)]);

        let mut second = HeartbeatLease::new(at(29), Some(at(0)));
        let mut third = HeartbeatLease::new(at(33), Some(at(0)));

        assert_eq!(second.handle_timeout(&desired, at(33)), []);
        assert_eq!(third.poll_timeout(&desired).unwrap().0, at(38));
        assert_eq!(third.handle_timeout(&desired, at(38)), [id(0)]);
    }

    /// For any number of starts: ten seconds after its end, no deadline is extended.
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
        // The second deadline is not extended beyond its own limit.
        assert_eq!(contact.poll_timeout(&desired).unwrap().0, at(34));
    }

    /// A file that another program wrote must not prolong a deadline.
    #[test]
    fn no_contact_is_in_the_future() {
        let contact = HeartbeatLease::new(at(5), Some(at(500)));

        assert_eq!(
            contact.poll_timeout(&desired(&[Some(30)])).unwrap().0,
            at(35)
        );
    }

    /// The node returns after a long absence. The server sends newly placed allocations before the leader has counted
    /// the node's first heartbeat.
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

    /// The servers mark such tasks lost a minute after they detected the node's loss. That is later than a minute after
    /// the node's last contact.
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
