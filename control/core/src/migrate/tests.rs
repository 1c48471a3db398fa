use muster_domain::eval::Trigger;
use muster_domain::fixture::{job, node};
use muster_domain::job::JobSpec;

use super::*;
use crate::fixture::Cluster;
use crate::fsm::{AllocCommand, NodeCommand};

/// Two nodes, and an instance that was moved from one to the other.
struct TwoNodes {
    cluster: Cluster,
    former: AllocId,
    heir: AllocId,
    former_node: NodeId,
    heir_node: NodeId,
}

impl TwoNodes {
    fn new(edit: impl FnOnce(&mut JobSpec)) -> Self {
        let mut cluster = Cluster::new();
        cluster.node(node("one").build());
        let mut spec = job("web").build();
        spec.groups[0].ephemeral_disk.migrate = true;
        edit(&mut spec);
        cluster.run(spec);
        let first = cluster.live("web").remove(0);
        cluster.report(first.id, ClientStatus::Running);
        cluster.node(node("two").build());
        Self::set_eligible(&mut cluster, first.node_id, false);
        cluster.apply(
            AllocCommand::Migrate {
                alloc_ids: vec![first.id],
                trigger: Trigger::NodeDrain,
            }
            .at(cluster.now),
        );
        cluster.settle();
        let heir = cluster.live("web").remove(0);
        assert_eq!(heir.previous, Some(first.id));
        Self {
            cluster,
            former: first.id,
            heir: heir.id,
            former_node: first.node_id,
            heir_node: heir.node_id,
        }
    }

    fn set_eligible(cluster: &mut Cluster, node_id: NodeId, eligible: bool) {
        let eligibility = if eligible {
            muster_domain::node::Eligibility::Eligible
        } else {
            muster_domain::node::Eligibility::Ineligible
        };
        cluster.apply(
            NodeCommand::SetEligibility {
                node_id,
                eligibility,
            }
            .at(cluster.now),
        );
    }

    fn judge(&self) -> DiskSource {
        judge(&self.cluster.state, self.heir_node, self.heir, self.former)
    }
}

fn scene() -> TwoNodes {
    TwoNodes::new(|_| {})
}

#[test]
fn data_are_had_once_their_writer_has_ended() {
    let mut scene = scene();
    let before = scene.judge();

    scene.cluster.report(scene.former, ClientStatus::Complete);

    assert_eq!(before, DiskSource::NotEnded);
    let at = DiskSource::At {
        node_id: scene.former_node,
        tasks: vec!["main".to_owned()],
    };
    assert_eq!(scene.judge(), at);
}

#[test]
fn data_of_failed_allocations_are_migrated() {
    let mut scene = scene();

    scene.cluster.report(scene.former, ClientStatus::Failed);

    assert!(matches!(scene.judge(), DiskSource::At { .. }));
}

/// An agent gets only the data of the allocation that one of its own allocations replaces.
#[test]
fn foreign_allocs_get_no_disk_data() {
    let mut scene = scene();
    scene.cluster.report(scene.former, ClientStatus::Complete);
    let TwoNodes {
        cluster,
        former,
        heir,
        former_node,
        heir_node,
    } = &scene;
    let ask = |asking, alloc_id, previous| judge(&cluster.state, asking, alloc_id, previous);
    let nothing = DiskSource::Nothing;

    let foreign = ask(*former_node, *heir, *former);
    assert_eq!(foreign, nothing(NoDataError::NotYours(*heir)));
    let not_its = NoDataError::NotItsHeir {
        alloc_id: *heir,
        previous: *heir,
    };
    assert_eq!(ask(*heir_node, *heir, *heir), nothing(not_its));
    let none = NoDataError::NotItsHeir {
        alloc_id: *former,
        previous: *heir,
    };
    assert_eq!(ask(*former_node, *former, *heir), nothing(none));
    let nobody = AllocId([7; 16]);
    let unknown = DiskSource::Unknown(UnknownReplacement(nobody));
    assert_eq!(ask(*heir_node, nobody, *former), unknown);
}

#[test]
fn group_without_migrate_gets_no_disk_data() {
    let mut scene = TwoNodes::new(|spec| spec.groups[0].ephemeral_disk.migrate = false);

    scene.cluster.report(scene.former, ClientStatus::Complete);

    let group = scene.cluster.live("web")[0].group().name.clone();
    assert_eq!(
        scene.judge(),
        DiskSource::Nothing(NoDataError::NotAsked(group))
    );
}

#[test]
fn unreachable_node_provides_no_disk_data() {
    for status in [NodeStatus::Down, NodeStatus::Disconnected] {
        let mut scene = scene();
        let node_id = scene.former_node;

        scene.cluster.node_status(node_id, status);

        let out = NoDataError::OutOfReach { node_id, status };
        assert_eq!(scene.judge(), DiskSource::Nothing(out));
    }
}

/// The node comes back, and the allocation may have run on without reports.
#[test]
fn lost_alloc_provides_no_disk_data() {
    let mut scene = scene();
    let node_id = scene.former_node;

    scene.cluster.node_status(node_id, NodeStatus::Down);
    scene.cluster.node_status(node_id, NodeStatus::Ready);

    let given_up = NoDataError::GivenUp {
        previous: scene.former,
        status: ClientStatus::Lost,
    };
    assert_eq!(scene.judge(), DiskSource::Nothing(given_up));
}
