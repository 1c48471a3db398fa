//! Commands: the effect of each on the state, and its bytes.

mod golden;
mod instances;
mod laws;
mod numbers;
mod one_off;
mod placed;

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::alloc::{AllocReport, ClientStatus, DesiredStatus};
use muster_domain::eval::{EvalStatus, Trigger};
use muster_domain::fixture::{job, node};
use muster_domain::id::{AllocId, JobKey, NodeId};
use muster_domain::job::{JobSpec, JobStatus, JobType, UpdateStrategy};
use muster_domain::node::{Eligibility, NODE_EVENTS_MAX, NodeSecret, NodeStatus, NodeSubsystem};
use muster_domain::plan::Plan;

use super::*;
use crate::fixture::Cluster;
use crate::limits;
use crate::state::AllocView;

fn register(cluster: &mut Cluster, spec: JobSpec, check_index: Option<LogIndex>) -> Response {
    cluster.apply(
        JobCommand::Register {
            spec: Box::new(spec),
            check_index,
            places: None,
        }
        .at(cluster.now),
    )
}

fn job_status(cluster: &Cluster, job_id: &str) -> JobStatus {
    cluster
        .state
        .jobs()
        .get(&JobKey::in_default(job_id))
        .unwrap()
        .status
}

fn open_evals(cluster: &Cluster, job_id: &str) -> Vec<(Trigger, EvalStatus)> {
    let evals = cluster
        .state
        .evals()
        .open_of_job(&JobKey::in_default(job_id));
    evals.map(|eval| (eval.trigger, eval.status)).collect()
}

/// Two instances of `web` and one of `db` are lost: two jobs to look at, not three.
#[test]
fn down_node_creates_one_eval_per_job() {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());
    cluster.run(job("web").count(2).build());
    cluster.run(job("db").build());

    cluster.node_status(node_id, NodeStatus::Down);

    let asked: Vec<&Effect> = cluster
        .effects
        .iter()
        .filter(|effect| matches!(effect, Effect::EnqueueEval(_)))
        .collect();
    assert_eq!(asked.len(), 2);
    assert_eq!(cluster.effects[0], Effect::NodeGone(node_id));
    cluster.settle();
    for alloc in cluster.state.allocs().iter() {
        assert_eq!(
            (alloc.client_status(), alloc.desired()),
            (ClientStatus::Lost, DesiredStatus::Stop)
        );
    }
}

#[test]
fn repeated_node_down_changes_nothing() {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());
    cluster.node_status(node_id, NodeStatus::Down);
    let before = cluster.state.nodes().clone();

    let response = cluster.node_status(node_id, NodeStatus::Down);

    assert_eq!(response, Response::Done);
    assert_eq!(cluster.effects, []);
    assert_eq!(*cluster.state.nodes(), before);
}

#[test]
fn the_same_fingerprint_again_changes_nothing() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let before = cluster.state.nodes().clone();

    cluster.apply(
        NodeCommand::Register {
            spec: Box::new(node("n1").build()),
        }
        .at(cluster.now),
    );

    assert_eq!(*cluster.state.nodes(), before);
}

#[test]
fn an_unusable_fingerprint_is_refused() {
    let mut cluster = Cluster::new();
    let mut spec = node("n1").build();
    spec.datacenter.clear();

    let response = cluster.apply(
        NodeCommand::Register {
            spec: Box::new(spec),
        }
        .at(cluster.now),
    );

    assert!(
        matches!(
            response,
            Response::Rejected(Rejection::Node(NodeRejection::Invalid(_)))
        ),
        "{response:?}"
    );
    assert!(cluster.state.nodes().is_empty());
}

#[test]
fn unchanged_job_keeps_version_and_six_versions_remain() {
    let mut cluster = Cluster::new();
    register(&mut cluster, job("web").build(), None);
    let response = register(&mut cluster, job("web").build(), None);
    assert!(
        matches!(response, Response::JobRegistered { version: 0, .. }),
        "{response:?}"
    );

    for count in 2..10 {
        register(&mut cluster, job("web").count(count).build(), None);
    }

    let versions = cluster.state.jobs().versions(&JobKey::in_default("web"));
    let numbers: Vec<u64> = versions.iter().map(|version| version.version).collect();
    assert_eq!(numbers, [8, 7, 6, 5, 4, 3]);
    assert_eq!(numbers.len(), limits::JOB_VERSIONS_MAX);
}

fn tag(cluster: &mut Cluster, name: &str, version: Option<u64>) -> Response {
    let given = TagAssignment {
        version,
        description: "it works".to_owned(),
    };
    cluster.apply(
        JobCommand::TagVersion {
            key: JobKey::in_default("web"),
            name: name.to_owned(),
            given: Some(given),
        }
        .at(cluster.now),
    )
}

fn untag(cluster: &mut Cluster, name: &str) -> Response {
    cluster.apply(
        JobCommand::TagVersion {
            key: JobKey::in_default("web"),
            name: name.to_owned(),
            given: None,
        }
        .at(cluster.now),
    )
}

fn versions(cluster: &Cluster) -> Vec<u64> {
    let versions = cluster.state.jobs().versions(&JobKey::in_default("web"));
    versions.iter().map(|version| version.version).collect()
}

#[test]
fn tagged_version_is_kept_until_untagged() {
    let mut cluster = Cluster::new();
    for count in 1..3 {
        register(&mut cluster, job("web").count(count).build(), None);
    }
    assert_eq!(tag(&mut cluster, "first", Some(0)), Response::Done);
    assert_eq!(tag(&mut cluster, "second", None), Response::Done);

    for count in 3..10 {
        register(&mut cluster, job("web").count(count).build(), None);
    }
    let tagged = versions(&cluster);
    assert_eq!(untag(&mut cluster, "first"), Response::Done);

    assert_eq!(tagged, [8, 7, 6, 5, 4, 3, 1, 0]);
    assert_eq!(versions(&cluster), [8, 7, 6, 5, 4, 3, 1]);
    let job = cluster.state.jobs().get(&JobKey::in_default("web"));
    let tags: Vec<_> = job.unwrap().tags.iter().map(|tag| &*tag.name).collect();
    assert_eq!(tags, ["second"]);
}

#[test]
fn version_tags_are_unique_both_ways() {
    let mut cluster = Cluster::new();
    for count in 1..3 {
        register(&mut cluster, job("web").count(count).build(), None);
    }
    tag(&mut cluster, "good", Some(0));

    let refused = [
        tag(&mut cluster, "good", Some(1)),
        tag(&mut cluster, "other", Some(7)),
        untag(&mut cluster, "other"),
    ];
    let again = [
        tag(&mut cluster, "good", Some(0)),
        tag(&mut cluster, "better", Some(0)),
        tag(&mut cluster, "good", Some(1)),
    ];

    for (response, why) in refused
        .iter()
        .zip(["tagged `good`", "version 7", "tagged `other`"])
    {
        assert!(
            matches!(response, Response::Rejected(rejection) if rejection.to_string().contains(why)),
            "{response:?}"
        );
    }
    assert_eq!(again, [Response::Done, Response::Done, Response::Done]);
    let job = cluster
        .state
        .jobs()
        .get(&JobKey::in_default("web"))
        .unwrap();
    let tags: Vec<_> = job
        .tags
        .iter()
        .map(|tag| (tag.version, &*tag.name))
        .collect();
    assert_eq!(tags, [(0, "better"), (1, "good")]);
}

#[test]
fn tags_have_a_bound() {
    let mut cluster = Cluster::new();
    for number in 0..=limits::JOB_TAGS_MAX {
        register(
            &mut cluster,
            job("web")
                .priority(u8::try_from(number).unwrap() + 1)
                .build(),
            None,
        );
        let response = tag(&mut cluster, &format!("t{number}"), None);

        let fits = number < limits::JOB_TAGS_MAX;
        assert_eq!(response == Response::Done, fits, "{number} {response:?}");
    }
}

#[test]
fn check_index_mismatch_rejects_job_register() {
    let mut cluster = Cluster::new();
    let (zero, other) = (Some(LogIndex(0)), Some(LogIndex(77)));
    assert!(matches!(
        register(&mut cluster, job("web").build(), zero),
        Response::JobRegistered { .. }
    ));

    let exists = register(&mut cluster, job("web").count(2).build(), zero);
    let moved = register(&mut cluster, job("web").count(2).build(), other);
    let agrees = register(&mut cluster, job("web").count(2).build(), Some(LogIndex(1)));

    let actual = LogIndex(1);
    let key = JobKey::in_default("web");
    let refused = |expected| {
        Response::Rejected(Rejection::Job(JobRejection::CheckIndex {
            key: key.clone(),
            expected,
            actual,
        }))
    };
    assert_eq!(exists, refused(LogIndex(0)));
    assert_eq!(moved, refused(LogIndex(77)));
    assert!(
        matches!(agrees, Response::JobRegistered { version: 1, .. }),
        "{agrees:?}"
    );
}

#[test]
fn a_job_keeps_its_type() {
    let mut cluster = Cluster::new();
    register(&mut cluster, job("web").build(), None);

    let response = register(
        &mut cluster,
        job("web").job_type(JobType::Batch).build(),
        None,
    );

    assert!(
        matches!(
            response,
            Response::Rejected(Rejection::Job(JobRejection::TypeChanged { .. }))
        ),
        "{response:?}"
    );
}

#[test]
fn commands_for_unknown_objects_are_refused() {
    let mut cluster = Cluster::new();
    let (key, at) = (JobKey::in_default("web"), cluster.now);
    let node_id = NodeId([7; 16]);
    let refusals = [
        JobCommand::Deregister { key: key.clone() }.at(at),
        JobCommand::Evaluate {
            force_reschedule: false,
            key: key.clone(),
        }
        .at(at),
        NodeCommand::SetStatus {
            node_id,
            status: NodeStatus::Ready,
        }
        .at(at),
        NodeCommand::SetEligibility {
            node_id,
            eligibility: Eligibility::Eligible,
        }
        .at(at),
    ];

    for command in refusals {
        let response = cluster.apply(command.clone());
        assert!(
            matches!(response, Response::Rejected(_)),
            "{command:?}: {response:?}"
        );
    }
    assert_eq!(
        cluster.state,
        State {
            applied: cluster.state.applied(),
            ..State::default()
        }
    );
}

#[test]
fn job_status_follows_its_allocs() {
    let mut cluster = Cluster::new();
    register(
        &mut cluster,
        job("sum").job_type(JobType::Batch).build(),
        None,
    );
    assert_eq!(job_status(&cluster, "sum"), JobStatus::Pending);
    cluster.node(node("n1").build());
    cluster.settle();
    assert_eq!(job_status(&cluster, "sum"), JobStatus::Running);

    let alloc_id = cluster.live("sum")[0].id;
    cluster.report(alloc_id, ClientStatus::Complete);

    assert_eq!(job_status(&cluster, "sum"), JobStatus::Dead);
}

#[test]
fn purged_job_is_removed_and_its_allocs_stop() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").count(2).build());
    let key = JobKey::in_default("web");

    cluster.apply(JobCommand::Purge { key: key.clone() }.at(cluster.now));
    assert!(cluster.state.jobs().get(&key).is_none());
    cluster.settle();

    assert_eq!(cluster.live("web"), []);
}

/// A later job with the same name gets no evaluation for work that the purged job waited for.
#[test]
fn purge_cancels_evaluations_that_wait() {
    let mut cluster = Cluster::new();
    cluster.run(job("web").build());
    let key = JobKey::in_default("web");
    let open = |cluster: &Cluster| -> Vec<_> {
        let evals = cluster.state.evals().open_of_job(&key);
        evals.map(|eval| (eval.status, eval.trigger)).collect()
    };
    assert_eq!(
        open(&cluster),
        [(EvalStatus::Blocked, Trigger::QueuedAllocs)]
    );

    cluster.apply(JobCommand::Purge { key: key.clone() }.at(cluster.now));

    assert_eq!(
        open(&cluster),
        [(EvalStatus::Pending, Trigger::JobDeregister)]
    );
}

#[test]
fn purge_counts_and_removes_its_deployments() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let mut spec = job("web").build();
    spec.groups[0].update = Some(UpdateStrategy::default());
    cluster.run(spec);
    let key = JobKey::in_default("web");
    assert_eq!(cluster.state.deployments().of_job(&key).count(), 1);
    let purge = JobCommand::Purge { key: key.clone() }.at(cluster.now);

    let response = cluster.apply(purge.clone());
    let again = cluster.apply(purge);

    assert!(
        matches!(
            response,
            Response::JobPurged {
                eval_id: Some(_),
                deployments: 1
            }
        ),
        "{response:?}"
    );
    assert_eq!(
        again,
        Response::Rejected(Rejection::Job(JobRejection::Unknown(key.clone())))
    );
    assert_eq!(cluster.state.deployments().of_job(&key).count(), 0);
}

#[test]
fn late_and_repeated_reports_change_nothing() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());
    let alloc_id = cluster.live("web")[0].id;
    cluster.report(alloc_id, ClientStatus::Running);
    cluster.report(alloc_id, ClientStatus::Failed);
    let before = cluster.state.clone();

    cluster.report(alloc_id, ClientStatus::Failed);
    cluster.report(alloc_id, ClientStatus::Running);

    assert_eq!(cluster.state.allocs(), before.allocs());
    assert_eq!(cluster.state.evals(), before.evals());
}

/// An agent reported to one server that the instance is pending and to another that it runs; the first server was slow.
#[test]
fn stale_client_status_does_not_regress_alloc() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());
    let alloc_id = cluster.live("web")[0].id;
    cluster.report(alloc_id, ClientStatus::Running);

    cluster.report(alloc_id, ClientStatus::Pending);

    assert_eq!(cluster.live("web")[0].client_status, ClientStatus::Running);
}

#[test]
fn an_agent_cannot_report_allocs_of_other_nodes() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());
    let other = cluster.node(node("n2").build());
    let alloc = cluster.live("web").remove(0);
    let report = AllocReport {
        alloc_id: alloc.id,
        client_status: ClientStatus::Failed,
        client_description: String::new(),
        task_states: Vec::new(),
        healthy: None,
        end: None,
        remote: Vec::new(),
    };

    cluster.apply(
        AllocCommand::Report {
            reports: vec![(other, vec![report])],
        }
        .at(cluster.now),
    );

    assert_eq!(cluster.live("web"), [alloc]);
}

/// Two nodes each lose an instance of the same job: there is one evaluation. The third node is not registered.
#[test]
fn reports_of_many_nodes_share_an_entry() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").cpu_mhz(600).build());
    cluster.node(node("n2").cpu_mhz(600).build());
    cluster.run(job("sum").job_type(JobType::Batch).count(2).build());
    let lost: Vec<_> = cluster.live("sum");
    assert_eq!(lost.len(), 2);
    let stranger = NodeId([9; 16]);
    let report = |alloc_id| AllocReport {
        alloc_id,
        client_status: ClientStatus::Failed,
        client_description: String::new(),
        task_states: Vec::new(),
        healthy: None,
        end: None,
        remote: Vec::new(),
    };
    let mut reports: Vec<_> = lost
        .iter()
        .map(|alloc| (alloc.node_id, vec![report(alloc.id)]))
        .collect();
    reports.push((stranger, vec![report(lost[0].id)]));

    let response = cluster.apply(AllocCommand::Report { reports }.at(cluster.now));

    let unknown = vec![stranger];
    assert_eq!(response, Response::NodesReported { unknown });
    assert!(cluster.live("sum").is_empty());
    assert_eq!(open_evals(&cluster, "sum").len(), 1);
}

#[test]
fn failed_service_reschedule_delay_grows() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").build());

    for delay in [30, 60, 120] {
        let alloc_id = cluster.live("web")[0].id;
        cluster.report(alloc_id, ClientStatus::Failed);
        assert_eq!(
            open_evals(&cluster, "web"),
            [(Trigger::AllocFailure, EvalStatus::Pending)]
        );
        cluster.advance(Duration::from_secs(delay - 1));
        assert!(cluster.settle().is_empty(), "too early for {delay} s");
        cluster.advance(Duration::from_secs(1));
        assert_eq!(cluster.settle().len(), 1, "not after {delay} s");
    }
}

#[test]
fn plan_drops_placements_on_down_node() {
    let mut cluster = Cluster::new();
    let first = cluster.node(node("n1").build());
    cluster.node(node("n2").build());
    register(&mut cluster, job("web").count(2).build(), None);
    let outcome = cluster.schedule_next().unwrap();
    cluster.node_status(first, NodeStatus::Down);

    let response = cluster.apply(apply_plans(&cluster, outcome.plan, outcome.update));

    let Response::PlansApplied { outcomes } = response else {
        panic!("{response:?}")
    };
    assert_eq!((outcomes[0].placed, outcomes[0].dropped), (1, 1));
    assert_eq!(
        open_evals(&cluster, "web"),
        [(Trigger::JobRegister, EvalStatus::Pending)]
    );
}

fn apply_plans(cluster: &Cluster, plan: Plan, update: Option<EvalUpdate>) -> Entry {
    EvalCommand::ApplyPlans {
        plans: vec![plan],
        evals: update.into_iter().collect(),
    }
    .at(cluster.now)
}

/// A worker that was taken for dead submits its plan after another worker has done the work.
#[test]
fn a_plan_that_comes_twice_places_once() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    register(&mut cluster, job("web").count(2).build(), None);
    let outcome = cluster.schedule_next().unwrap();
    cluster.apply(apply_plans(
        &cluster,
        outcome.plan.clone(),
        outcome.update.clone(),
    ));

    let response = cluster.apply(apply_plans(&cluster, outcome.plan, outcome.update));

    let Response::PlansApplied { outcomes } = response else {
        panic!("{response:?}")
    };
    assert_eq!(outcomes[0].placed, 0);
    assert_eq!(cluster.live("web").len(), 2);
}

#[test]
fn a_plan_for_an_older_version_is_stale() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    register(&mut cluster, job("web").count(2).build(), None);
    let outcome = cluster.schedule_next().unwrap();
    register(&mut cluster, job("web").count(1).build(), None);

    cluster.apply(apply_plans(&cluster, outcome.plan, outcome.update));

    assert_eq!(cluster.live("web"), []);
}

#[test]
fn one_blocked_evaluation_per_job_stays() {
    let mut cluster = Cluster::new();
    cluster.run(job("web").build());
    cluster.run(job("web").count(2).build());
    cluster.run(job("web").count(3).build());

    assert_eq!(
        open_evals(&cluster, "web"),
        [(Trigger::QueuedAllocs, EvalStatus::Blocked)]
    );
}

#[test]
fn ids_are_found_by_their_first_digits() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").count(5).build());

    for alloc in cluster.state.allocs().iter() {
        let found = cluster
            .state
            .allocs()
            .with_prefix(&alloc.id().to_string()[..11]);
        let found: Vec<AllocId> = found.into_iter().map(AllocView::id).collect();
        assert_eq!(found, [alloc.id()]);
    }
    assert_eq!(cluster.state.allocs().with_prefix("").len(), 5);
    assert_eq!(cluster.state.evals().with_prefix("zz").len(), 0);
}

#[test]
fn cluster_policy_change_notifies_every_node() {
    let mut cluster = Cluster::new();
    let policy = muster_domain::fixture::network_policy();
    let set = |cluster: &mut Cluster, check_index| {
        cluster.apply(
            ConfigCommand::SetClusterPolicy {
                policy: Box::new(policy.clone()),
                check_index,
            }
            .at(cluster.now),
        )
    };

    assert_eq!(set(&mut cluster, Some(LogIndex(0))), Response::Done);

    let row = cluster.state.network().clone();
    assert_eq!(*row.policy, policy);
    assert_eq!(row.create_index, cluster.state.applied());
    assert_eq!(row.modify_index, cluster.state.applied());
    assert_eq!(cluster.effects, [Effect::ClusterPolicyChanged]);

    let moved = set(&mut cluster, Some(LogIndex(0)));

    let rejection = Rejection::Config(ConfigRejection::Index {
        expected: LogIndex(0),
        actual: row.modify_index,
    });
    assert_eq!(moved, Response::Rejected(rejection));
    assert_eq!(*cluster.state.network(), row);
    assert_eq!(cluster.effects, []);
}

/// A node that has received a later policy treats the restored policy as newer all the same.
#[test]
fn a_restored_policy_is_the_newest() {
    let mut cluster = Cluster::new();
    cluster.apply(
        ConfigCommand::SetClusterPolicy {
            policy: Box::default(),
            check_index: None,
        }
        .at(cluster.now),
    );
    let mut state = cluster.state.clone();

    state.restored_at(LogIndex(100));

    assert_eq!(state.network().modify_index, LogIndex(100));
    let mut without = State::default();
    without.restored_at(LogIndex(100));
    assert_eq!(without.network().modify_index, LogIndex(0));
}

#[test]
fn node_with_another_secret_is_refused() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    let before = cluster.state.nodes().clone();
    let mut spec = node("n1").build();
    spec.secret_hash = NodeSecret([1; 32]).hash();
    spec.address = "192.0.2.1".to_owned();

    let response = cluster.apply(
        NodeCommand::Register {
            spec: Box::new(spec),
        }
        .at(cluster.now),
    );

    assert!(
        matches!(
            response,
            Response::Rejected(Rejection::Node(NodeRejection::Secret(_)))
        ),
        "{response:?}"
    );
    assert_eq!(*cluster.state.nodes(), before);
}

#[test]
fn node_keeps_its_newest_events() {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());
    let add = |cluster: &mut Cluster, message: &str| {
        cluster.apply(
            NodeCommand::AddEvent {
                node_id,
                subsystem: NodeSubsystem::Storage,
                message: message.to_owned(),
                details: BTreeMap::new(),
            }
            .at(cluster.now),
        )
    };
    for number in 0..2 * NODE_EVENTS_MAX {
        assert_eq!(
            add(&mut cluster, &format!("event {number}")),
            Response::Done
        );
    }
    // An event that repeats the newest one is not recorded again.
    let last = format!("event {}", 2 * NODE_EVENTS_MAX - 1);
    add(&mut cluster, &last);

    let node = cluster.state.nodes().get(&node_id).unwrap();
    let messages: Vec<&str> = node
        .events
        .iter()
        .map(|event| event.message.as_str())
        .collect();
    assert_eq!(messages.len(), NODE_EVENTS_MAX);
    assert_eq!(messages.last(), Some(&last.as_str()));
    assert_eq!(messages[0], format!("event {NODE_EVENTS_MAX}"));
}

#[test]
fn node_events_record_status_and_eligibility() {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());
    cluster.node_status(node_id, NodeStatus::Down);
    cluster.node_status(node_id, NodeStatus::Ready);
    cluster.apply(
        NodeCommand::SetEligibility {
            node_id,
            eligibility: Eligibility::Ineligible,
        }
        .at(cluster.now),
    );

    let node = cluster.state.nodes().get(&node_id).unwrap();
    let messages: Vec<&str> = node
        .events
        .iter()
        .map(|event| event.message.as_str())
        .collect();
    assert_eq!(
        messages,
        [
            "Node registered",
            "Node heartbeat missed",
            "Node reregistered by heartbeat",
            "Node marked as ineligible for scheduling",
        ]
    );
}
