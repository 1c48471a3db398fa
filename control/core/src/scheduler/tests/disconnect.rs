//! Nodes that go out of reach and come back, with jobs that allow it.

use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::fixture;
use muster_domain::id::{AllocId, JobKey, NodeId, Timestamp};
use muster_domain::job::{Disconnect, JobType, ReconcileStrategy, UpdateStrategy};
use muster_domain::node::NodeStatus;

use crate::fixture::Cluster;
use crate::fsm::JobCommand;

const LOST_AFTER: Duration = Duration::from_mins(10);

/// Two nodes, and an instance that runs on one of them.
struct Pair {
    cluster: Cluster,
    node_id: NodeId,
    original: AllocId,
}

impl Pair {
    fn new(disconnect: Disconnect) -> Self {
        let mut cluster = Cluster::new();
        for name in ["a", "b"] {
            cluster.node(fixture::node(name).build());
        }
        let mut spec = fixture::job("web").count(1).build();
        spec.groups[0].disconnect = disconnect;
        cluster.run(spec);
        let alloc = cluster.live("web").remove(0);
        cluster.report(alloc.id, ClientStatus::Running);
        Self {
            cluster,
            node_id: alloc.node_id,
            original: alloc.id,
        }
    }

    fn goes(&mut self, status: NodeStatus) {
        self.cluster.node_status(self.node_id, status);
        self.cluster.settle();
    }

    /// Returns the wanted and the reported status of an allocation.
    fn state(&self, alloc_id: AllocId) -> (DesiredStatus, ClientStatus) {
        let alloc = self.cluster.state.allocs().get(&alloc_id).unwrap();
        (alloc.desired(), alloc.client_status())
    }

    /// Returns the allocation that replaced the original.
    fn replacement(&self) -> Option<AllocId> {
        let original = self.cluster.state.allocs().get(&self.original).unwrap();
        original.next()
    }

    fn count(&self) -> usize {
        self.cluster.state.allocs().iter().count()
    }
}

fn replaced(reconcile: ReconcileStrategy) -> Disconnect {
    Disconnect {
        lost_after: Some(LOST_AFTER),
        reconcile,
        ..Disconnect::default()
    }
}

/// The allocation may come back: it is not stopped, and another one replaces it meanwhile.
#[test]
fn disconnected_alloc_is_replaced_not_stopped() {
    let mut pair = Pair::new(replaced(ReconcileStrategy::BestScore));

    pair.goes(NodeStatus::Down);

    let away = (DesiredStatus::Run, ClientStatus::Unknown);
    assert_eq!(pair.state(pair.original), away);
    let replacement = pair.replacement().unwrap();
    let placed = (DesiredStatus::Run, ClientStatus::Pending);
    assert_eq!(pair.state(replacement), placed);
}

/// Without `replace` the job waits for the instance, even without a `lost_after`.
#[test]
fn one_out_of_reach_is_waited_for() {
    for lost_after in [Some(LOST_AFTER), None] {
        let mut pair = Pair::new(Disconnect {
            lost_after,
            replace: false,
            ..Disconnect::default()
        });

        pair.goes(NodeStatus::Down);

        let away = (DesiredStatus::Run, ClientStatus::Unknown);
        assert_eq!(pair.state(pair.original), away, "{lost_after:?}");
        assert_eq!((pair.replacement(), pair.count()), (None, 1));
    }
}

/// A newer version shortens the time until the instance counts as lost: an evaluation is due at the new time.
#[test]
fn changed_lost_after_applies_to_unknown_allocs() {
    let mut pair = Pair::new(Disconnect {
        replace: false,
        ..Disconnect::default()
    });
    pair.goes(NodeStatus::Down);
    let mut spec = fixture::job("web").count(1).build();
    spec.groups[0].disconnect = replaced(ReconcileStrategy::BestScore);
    pair.cluster.run(spec);
    let due = |pair: &Pair| {
        let evals = pair.cluster.state.evals().pending();
        evals.map(|eval| eval.wait_until).collect::<Vec<_>>()
    };
    assert_eq!(due(&pair).len(), 1);

    // A further evaluation of the job adds no other follow-up.
    pair.cluster.apply(
        JobCommand::Evaluate {
            key: JobKey::in_default("web"),
            force_reschedule: false,
        }
        .at(pair.cluster.now),
    );
    pair.cluster.settle();
    assert_eq!(due(&pair).len(), 1);
    pair.cluster.advance(LOST_AFTER);
    pair.cluster.settle();

    let lost = (DesiredStatus::Stop, ClientStatus::Lost);
    assert_eq!(pair.state(pair.original), lost);
    assert_eq!(due(&pair), Vec::new());
}

/// The node may be away for long, and other evaluations of the job change nothing.
#[test]
fn unreplaced_disconnected_alloc_resumes_on_reconnect() {
    for job_type in [JobType::Service, JobType::Batch, JobType::System] {
        let mut cluster = Cluster::new();
        let node_id = cluster.node(fixture::node("n1").build());
        let mut spec = fixture::job("web").job_type(job_type).count(1).build();
        spec.groups[0].disconnect.replace = false;
        cluster.run(spec.clone());
        let original = cluster.live("web")[0].id;
        cluster.report(original, ClientStatus::Running);
        let all = |cluster: &Cluster| -> Vec<(AllocId, DesiredStatus, ClientStatus)> {
            let allocs = cluster.state.allocs().iter();
            let state = allocs.map(|it| (it.id(), it.desired(), it.client_status()));
            state.collect()
        };

        cluster.node_status(node_id, NodeStatus::Down);
        cluster.settle();
        cluster.advance(Duration::from_hours(100));
        spec.priority += 1;
        cluster.run(spec);
        let away = (original, DesiredStatus::Run, ClientStatus::Unknown);
        assert_eq!(all(&cluster), [away], "{job_type:?}");

        cluster.node_status(node_id, NodeStatus::Ready);
        cluster.report(original, ClientStatus::Running);
        cluster.settle();
        let back = (original, DesiredStatus::Run, ClientStatus::Running);
        assert_eq!(all(&cluster), [back], "{job_type:?}");
    }
}

#[test]
fn reconnect_keeps_original_or_replacement_by_strategy() {
    for (strategy, keeps_original) in [
        (ReconcileStrategy::KeepOriginal, true),
        (ReconcileStrategy::KeepReplacement, false),
    ] {
        let mut pair = Pair::new(replaced(strategy));
        pair.goes(NodeStatus::Down);
        let replacement = pair.replacement().unwrap();
        pair.cluster.report(replacement, ClientStatus::Running);

        pair.goes(NodeStatus::Ready);
        pair.cluster.report(pair.original, ClientStatus::Running);
        pair.cluster.settle();

        let (kept, left) = if keeps_original {
            (pair.original, replacement)
        } else {
            (replacement, pair.original)
        };
        let desired = |alloc_id| pair.state(alloc_id).0;
        assert_eq!(desired(kept), DesiredStatus::Run, "{strategy:?}");
        assert_eq!(desired(left), DesiredStatus::Stop, "{strategy:?}");
        assert_eq!(pair.count(), 2, "{strategy:?}");
    }
}

/// An instance that was replaced when it went out of reach is not replaced again.
#[test]
fn disconnected_alloc_past_deadline_is_lost_once() {
    let mut pair = Pair::new(replaced(ReconcileStrategy::BestScore));
    pair.goes(NodeStatus::Down);
    let replacement = pair.replacement().unwrap();
    pair.cluster.report(replacement, ClientStatus::Running);

    pair.cluster.advance(LOST_AFTER);
    pair.cluster.settle();

    let lost = (DesiredStatus::Stop, ClientStatus::Lost);
    assert_eq!(pair.state(pair.original), lost);
    let runs = (DesiredStatus::Run, ClientStatus::Running);
    assert_eq!(pair.state(replacement), runs);
    assert_eq!(pair.count(), 2);
}

/// An entry is written some time after its plan was made, most of all after an election. The evaluation at the time in
/// the plan must find the allowed time over, because no later evaluation follows.
#[test]
fn late_committed_plan_still_marks_alloc_lost() {
    for job_type in [JobType::Service, JobType::System] {
        let mut cluster = Cluster::new();
        let node_id = cluster.node(fixture::node("n1").build());
        let mut spec = fixture::job("web").job_type(job_type).build();
        spec.groups[0].disconnect = Disconnect {
            replace: false,
            ..replaced(ReconcileStrategy::BestScore)
        };
        cluster.run(spec);
        let original = cluster.live("web")[0].id;
        cluster.report(original, ClientStatus::Running);
        cluster.node_status(node_id, NodeStatus::Down);
        let outcome = cluster.schedule_next().unwrap();
        let looks_at = outcome.plan.follow_ups[0].wait_until;
        cluster.advance(Duration::from_secs(3));
        let mut plans = Vec::new();
        cluster.commit(vec![outcome], Vec::new(), &mut plans);
        let status = |cluster: &Cluster| {
            let alloc = cluster.state.allocs().get(&original).unwrap();
            alloc.client_status()
        };
        assert_eq!(status(&cluster), ClientStatus::Unknown, "{job_type:?}");

        cluster.now = Timestamp(looks_at.0 - 1);
        cluster.settle();
        assert_eq!(status(&cluster), ClientStatus::Unknown, "{job_type:?}");
        cluster.now = looks_at;
        cluster.settle();

        assert_eq!(status(&cluster), ClientStatus::Lost, "{job_type:?}");
    }
}

/// More instances are wanted than before, so there is room for one without a previous allocation.
#[test]
fn replacement_keeps_name_index_of_lost_alloc() {
    let mut pair = Pair::new(replaced(ReconcileStrategy::BestScore));
    pair.goes(NodeStatus::Down);
    let mut spec = fixture::job("web").count(3).build();
    spec.groups[0].disconnect = replaced(ReconcileStrategy::BestScore);
    pair.cluster.run(spec);

    pair.cluster.advance(LOST_AFTER);
    pair.cluster.settle();

    let live = pair.cluster.live("web");
    let mut names: Vec<u32> = live.iter().map(|alloc| alloc.name_index).collect();
    names.sort_unstable();
    assert_eq!(names, [0, 1, 2]);
}

/// A cluster of six nodes and `count` instances, the first of whose nodes has gone out of reach.
fn with_one_away(count: u32) -> Cluster {
    let mut cluster = Cluster::new();
    for number in 0..6 {
        cluster.node(fixture::node(&format!("n{number}")).build());
    }
    let mut spec = fixture::job("web").count(count).build();
    spec.groups[0].disconnect = Disconnect {
        lost_after: Some(LOST_AFTER),
        replace: true,
        ..Disconnect::default()
    };
    cluster.run(spec);
    let live = cluster.live("web");
    for alloc in &live {
        cluster.report(alloc.id, ClientStatus::Running);
    }
    cluster.node_status(live[0].node_id, NodeStatus::Down);
    cluster.settle();
    cluster
}

#[test]
fn lost_alloc_with_replacement_is_not_replaced_again() {
    let mut cluster = with_one_away(3);
    let failed = cluster.live("web").pop().unwrap();
    assert_eq!(failed.name_index, 2);

    // Another instance fails meanwhile, so that there are fewer instances than wanted when the first counts as lost.
    cluster.advance(LOST_AFTER);
    cluster.report(failed.id, ClientStatus::Failed);
    cluster.settle();
    cluster.advance(LOST_AFTER);
    cluster.settle();

    let indexes: Vec<u32> = cluster
        .live("web")
        .iter()
        .map(|alloc| alloc.name_index)
        .collect();
    assert_eq!(indexes, [0, 1, 2]);
}

#[test]
fn failed_replacement_of_lost_alloc_is_replaced() {
    let mut cluster = with_one_away(1);
    let away = ClientStatus::Unknown;
    let mut live = cluster.live("web").into_iter();
    let replacement = live.find(|alloc| alloc.client_status != away).unwrap();
    cluster.report(replacement.id, ClientStatus::Failed);
    // More instances are wanted, but a canary comes first. The job waits for the node no longer, so the instance is
    // lost.
    let mut spec = fixture::job("web").count(3).cpu_mhz(200).build();
    spec.groups[0].update = Some(UpdateStrategy {
        canary: 1,
        ..UpdateStrategy::default()
    });
    cluster.run(spec);
    cluster.advance(LOST_AFTER);
    cluster.settle();

    let of_old = cluster
        .live("web")
        .into_iter()
        .filter(|alloc| !alloc.canary);
    let mut names: Vec<u32> = of_old.map(|alloc| alloc.name_index).collect();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "one runs twice");
    assert!(names.contains(&0), "the replacement was replaced");
}
