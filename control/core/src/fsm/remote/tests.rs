use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::Allocation;
use muster_domain::eval::Trigger;
use muster_domain::fixture::{job, node};
use muster_domain::id::{JobKey, NodeId};
use muster_domain::job::JobSpec;
use muster_domain::node::{DrainSpec, Eligibility};

use super::*;
use crate::fixture::Cluster;
use crate::fsm::{AllocCommand, NodeCommand};
use crate::snapshot;

/// Two nodes and a job of one instance, whose task runs on another system.
struct TwoNodes {
    cluster: Cluster,
    /// The instance that started the remote task.
    first: Arc<Allocation>,
    handle: RemoteHandle,
}

fn handle(task: &str, number: u8) -> RemoteHandle {
    RemoteHandle {
        task: task.to_owned(),
        handle: vec![number],
    }
}

impl TwoNodes {
    fn new(edit: impl FnOnce(&mut JobSpec)) -> Self {
        let mut cluster = Cluster::new();
        cluster.node(node("one").build());
        cluster.node(node("two").build());
        let mut spec = job("web").build();
        edit(&mut spec);
        cluster.run(spec);
        let first = cluster.live("web").remove(0);
        let handle = handle(&first.group().tasks[0].name, 1);
        cluster.report_remote(first.id, ClientStatus::Running, vec![handle.clone()]);
        Self {
            cluster,
            first,
            handle,
        }
    }

    fn remote(&self, alloc_id: &AllocId) -> (&[RemoteHandle], &[RemoteHandle]) {
        let alloc = self.cluster.state.allocs().get(alloc_id).unwrap();
        (alloc.remote().running(), alloc.remote().handed())
    }

    /// The replacement of the first instance.
    fn replacement(&self) -> Option<AllocId> {
        let allocs = self.cluster.state.allocs();
        let mut live = allocs.of_job(&JobKey::in_default("web"));
        live.find(|alloc| alloc.id() != self.first.id && !alloc.is_terminal())
            .map(AllocView::id)
    }

    fn node_status(&mut self, status: NodeStatus) {
        self.cluster.node_status(self.first.node_id, status);
        self.cluster.settle();
    }

    fn drain(&mut self, node_id: NodeId) {
        let at = self.cluster.now;
        let drain = Some(DrainSpec {
            deadline: Some(Duration::from_hours(1)),
            ignore_system_jobs: false,
        });
        self.cluster.apply(
            NodeCommand::Drain {
                node_id,
                drain,
                mark_eligible: false,
            }
            .at(at),
        );
        self.migrate(Trigger::NodeDrain);
    }

    /// Sets whether the node without the first instance takes work.
    fn take_work_elsewhere(&mut self, takes: bool) {
        let mut nodes = self.cluster.state.nodes().iter();
        let other = nodes.find(|it| it.spec.id != self.first.node_id);
        let node_id = other.unwrap().spec.id;
        drop(nodes);
        let eligibility = if takes {
            Eligibility::Eligible
        } else {
            Eligibility::Ineligible
        };
        let at = self.cluster.now;
        self.cluster.apply(
            NodeCommand::SetEligibility {
                node_id,
                eligibility,
            }
            .at(at),
        );
        self.cluster.settle();
    }

    fn migrate(&mut self, trigger: Trigger) {
        let at = self.cluster.now;
        self.cluster.apply(
            AllocCommand::Migrate {
                alloc_ids: vec![self.first.id],
                trigger,
            }
            .at(at),
        );
        self.cluster.settle();
    }

    fn update(&mut self, edit: impl FnOnce(&mut JobSpec)) {
        let mut spec = self.first.job.spec.clone();
        edit(&mut spec);
        self.cluster.run(spec);
    }
}

/// The reasons to stop an allocation, each with whether its agent leaves the remote task (DETACH) or stops it.
#[test]
fn only_remote_tasks_with_successors_are_detached() {
    type ScenarioStep = fn(&mut TwoNodes);
    let cases: [(&str, ScenarioStep, bool); 9] = [
        ("its node is drained", |it| it.drain(it.first.node_id), true),
        (
            "its node is lost",
            |it| it.node_status(NodeStatus::Down),
            true,
        ),
        (
            "its node is out of reach",
            |it| it.node_status(NodeStatus::Disconnected),
            true,
        ),
        (
            "its job is stopped",
            |it| drop(it.cluster.stop("web")),
            false,
        ),
        (
            "somebody stops it",
            |it| it.migrate(Trigger::AllocStop),
            false,
        ),
        (
            "its task is another one now",
            |it| it.update(|spec| spec.groups[0].tasks[0].config_json = r#"{"a":1}"#.to_owned()),
            false,
        ),
        (
            "its group is gone",
            |it| it.update(|spec| spec.groups[0].name = "other".to_owned()),
            false,
        ),
        (
            "its node is drained when its job is stopped",
            |it| {
                it.cluster.stop("web");
                it.drain(it.first.node_id);
            },
            false,
        ),
        (
            "it makes room",
            |it| {
                let by = AllocId::at(it.cluster.state.applied(), 9);
                let key = it.cluster.state.allocs().get(&it.first.id).unwrap().key();
                let index = it.cluster.state.applied();
                Change::new(
                    &mut it.cluster.state,
                    index,
                    it.cluster.now,
                    crate::fsm::GcBounds::default(),
                )
                .evict(key, by);
            },
            false,
        ),
    ];
    for (why, happens, is_left) in cases {
        let mut scene = TwoNodes::new(|_| {});

        happens(&mut scene);

        let wanted = std::slice::from_ref(&scene.handle);
        let (_, left) = scene.remote(&scene.first.id);
        assert_eq!(left == wanted, is_left, "{why}: {left:?}");
        let taken = scene.replacement().map(|id| scene.remote(&id).0 == wanted);
        assert_eq!(taken.unwrap_or_default(), is_left, "{why}: {taken:?}");
        let alloc = scene.cluster.state.allocs().get(&scene.first.id).unwrap();
        let leave = alloc.to_remote().map_or(0, |remote| remote.leave.len());
        assert_eq!(leave, usize::from(is_left), "{why}");
    }
}

/// Each reason to replace an allocation either hands remote tasks over or does not.
#[test]
fn each_reason_hands_over_or_does_not() {
    for (leaving, hands_over) in [
        (ReplaceReason::Drained, true),
        (ReplaceReason::Lost, true),
        (ReplaceReason::Returned, false),
        (ReplaceReason::OutOfReach, true),
        (ReplaceReason::Failed, true),
        (ReplaceReason::Ended, false),
        (ReplaceReason::Asked, false),
        (ReplaceReason::Preempted, false),
        (ReplaceReason::Unwanted, false),
    ] {
        assert_eq!(leaving.hands_over(), hands_over, "{leaving:?}");
    }
}

/// Its agent reports later that no task of it runs, and receives no further order about it.
#[test]
fn terminal_alloc_has_no_handles_to_leave() {
    let mut scene = TwoNodes::new(|_| {});
    scene.drain(scene.first.node_id);

    scene.cluster.report(scene.first.id, ClientStatus::Complete);

    assert_eq!(scene.remote(&scene.first.id), (&[][..], &[][..]));
}

/// A replacement that is itself drained before its first report hands over the handle that it was given.
#[test]
fn remote_handle_passes_through_successive_replacements() {
    let mut scene = TwoNodes::new(|_| {});
    scene.node_status(NodeStatus::Down);
    let second = scene.replacement().unwrap();
    let third_node = scene.cluster.node(node("three").build());

    let on = scene.cluster.state.allocs().get(&second).unwrap().node_id();
    scene.cluster.node_status(on, NodeStatus::Down);
    scene.cluster.settle();

    let third = scene.replacement().unwrap();
    let found = scene.cluster.state.allocs().get(&third).unwrap();
    assert_eq!(found.node_id(), third_node);
    let wanted = std::slice::from_ref(&scene.handle);
    assert_eq!(scene.remote(&third).0, wanted);
    assert_eq!(scene.remote(&second), (&[][..], wanted));
}

/// Without room the lost task waits with its handle, unless its node is back: then its agent stops it.
#[test]
fn remote_handle_waits_for_capacity_while_node_down() {
    for is_back in [false, true] {
        let mut scene = TwoNodes::new(|_| {});
        scene.take_work_elsewhere(false);
        scene.node_status(NodeStatus::Down);
        assert_eq!(scene.replacement(), None);

        if is_back {
            scene.node_status(NodeStatus::Ready);
        } else {
            scene.take_work_elsewhere(true);
        }

        let second = scene.replacement().unwrap();
        let expected = usize::from(!is_back);
        assert_eq!(scene.remote(&second).0.len(), expected, "{is_back}");
        assert_eq!(scene.remote(&scene.first.id).1.len(), expected, "{is_back}");
    }
}

/// A replacement placed after an update that changes its task runs another task, and starts anew.
#[test]
fn changed_task_is_not_taken_over() {
    for is_changed in [false, true] {
        let mut scene = TwoNodes::new(|_| {});
        scene.take_work_elsewhere(false);
        scene.node_status(NodeStatus::Down);
        scene.update(|spec| {
            let task = &mut spec.groups[0].tasks[0];
            if is_changed {
                task.config_json = r#"{"a":1}"#.to_owned();
            }
            spec.priority += 1;
        });
        scene.take_work_elsewhere(true);

        let second = scene.replacement().unwrap();
        let expected = usize::from(!is_changed);
        assert_eq!(scene.remote(&second).0.len(), expected, "{is_changed}");
    }
}

/// An instance that was out of reach and its replacement manage the same task, and one of them is stopped. The stopped
/// one leaves the task, and the other one continues to manage it.
#[test]
fn alloc_stopped_after_reconnect_leaves_the_task() {
    use muster_domain::job::ReconcileStrategy::{KeepOriginal, KeepReplacement};
    for (strategy, is_kept) in [(KeepOriginal, true), (KeepReplacement, false)] {
        let mut scene = TwoNodes::new(|spec| {
            let disconnect = &mut spec.groups[0].disconnect;
            disconnect.lost_after = Some(Duration::from_hours(1));
            disconnect.reconcile = strategy;
        });
        let handles = vec![scene.handle.clone()];
        scene.take_work_elsewhere(false);
        scene.node_status(NodeStatus::Disconnected);
        scene.take_work_elsewhere(true);
        let second = scene.replacement().unwrap();
        assert_eq!(scene.remote(&second).0, handles);
        assert_eq!(scene.remote(&scene.first.id), (&handles[..], &handles[..]));
        scene
            .cluster
            .report_remote(second, ClientStatus::Running, handles.clone());

        scene.node_status(NodeStatus::Ready);
        scene
            .cluster
            .report_remote(scene.first.id, ClientStatus::Running, handles.clone());
        scene.cluster.settle();

        let (first, second) = (scene.first.id, second);
        let (stays, goes) = if is_kept {
            (first, second)
        } else {
            (second, first)
        };
        let is_live = |id| !scene.cluster.state.allocs().get(&id).unwrap().is_terminal();
        assert!(is_live(stays) && !is_live(goes), "{strategy:?}");
        assert_eq!(
            scene.remote(&stays),
            (&handles[..], &[][..]),
            "{strategy:?}"
        );
        assert_eq!(scene.remote(&goes), (&[][..], &handles[..]), "{strategy:?}");
    }
}

/// A stop of the whole job stops both.
#[test]
fn a_stopped_job_leaves_nothing() {
    let mut scene = TwoNodes::new(|spec| {
        spec.groups[0].disconnect.lost_after = Some(Duration::from_hours(1));
    });
    scene.node_status(NodeStatus::Disconnected);
    let second = scene.replacement().unwrap();

    scene.cluster.stop("web");

    assert_eq!(scene.remote(&second).1, []);
}

#[test]
fn handles_are_in_snapshots() {
    let mut scene = TwoNodes::new(|_| {});
    scene.drain(scene.first.node_id);
    let state = &scene.cluster.state;

    let records = snapshot::records(state).map(Ok::<_, std::convert::Infallible>);
    let restored = snapshot::restore(records).unwrap();

    assert!(restored == *state);
    let second = scene.replacement().unwrap();
    let found = restored.allocs().get(&second).unwrap();
    assert_eq!(found.remote().running().len(), 1);
}
