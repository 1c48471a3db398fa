mod golden;

use std::convert::Infallible;
use std::time::Duration;

use muster_domain::alloc::{ClientStatus, RemoteHandle};
use muster_domain::fixture::{job, node};
use muster_domain::job::{JobType, UpdateStrategy};
use muster_domain::scheduling::SchedulerConfig;

use super::*;
use crate::fixture::Cluster;
use crate::state::State;

fn handle() -> RemoteHandle {
    RemoteHandle {
        task: "main".to_owned(),
        handle: vec![1, 2, 3],
    }
}

/// Adds one-off tasks, fresh domains, and times that are not the defaults.
fn one_offs(cluster: &mut Cluster) {
    for guid in ["queued", "cancelled"] {
        let tasks = vec![crate::fsm::NewOneOff {
            guid: guid.to_owned(),
            domain: "apps".to_owned(),
            definition: muster_domain::fixture::definition(),
        }];
        let at = cluster.now;
        cluster.apply(crate::fsm::Entry::desire_one_offs(tasks, at));
    }
    for (domain, until) in [("apps", None), ("other", Some(cluster.now))] {
        cluster.apply(
            crate::fsm::OneOffCommand::FreshenDomain {
                domain: domain.to_owned(),
                until,
            }
            .at(Timestamp(cluster.now.0 - 1)),
        );
    }
    cluster.apply(
        crate::fsm::OneOffCommand::SetTimes {
            times: OneOffTimings {
                callback_claim: Duration::from_mins(1),
                ..Default::default()
            },
        }
        .at(cluster.now),
    );
    let cancelled = crate::fsm::OneOffChange {
        guid: "cancelled".to_owned(),
        generation: None,
        step: crate::fsm::OneOffStep::Cancel,
    };
    cluster.apply(
        crate::fsm::OneOffCommand::Change {
            changes: vec![cancelled],
        }
        .at(cluster.now),
    );
}

/// Adds a tag of a version and a scaling event.
fn tag_and_scale(cluster: &mut Cluster) {
    cluster.apply(
        crate::fsm::JobCommand::TagVersion {
            key: JobKey::in_default("web"),
            name: "golden".to_owned(),
            given: Some(crate::fsm::TagAssignment {
                version: Some(0),
                description: "it works".to_owned(),
            }),
        }
        .at(cluster.now),
    );
    cluster.apply(
        crate::fsm::JobCommand::ScaleGroup {
            key: JobKey::in_default("web"),
            scaling: Box::new(crate::fsm::GroupScaling {
                group: "main".to_owned(),
                count: None,
                error: true,
                message: "no metrics".to_owned(),
                meta_json: r#"{"source":"a test"}"#.to_owned(),
            }),
            check_index: None,
        }
        .at(cluster.now),
    );
}

/// Returns a state with rows in every table, gaps among the columns, and versions that only an allocation refers to.
fn populated() -> State {
    let mut cluster = Cluster::new();
    for name in ["n1", "n2", "n3", "n4"] {
        cluster.node(node(name).build());
    }
    cluster.run(job("web").count(3).dynamic_port("http").build());
    // The next version stops it, and it stays in the state until it has ended.
    let alloc_id = cluster.live("web")[0].id;
    cluster.report_remote(alloc_id, ClientStatus::Running, vec![handle()]);
    cluster.run(
        job("web")
            .count(3)
            .dynamic_port("http")
            .cpu_mhz(200)
            .build(),
    );
    cluster.run(job("sum").job_type(JobType::Batch).count(2).build());
    cluster.run(job("huge").memory_mb(1_000_000).build());
    let mut rolling = job("rolling").build();
    rolling.groups[0].update = Some(UpdateStrategy::default());
    cluster.run(rolling);
    cluster.apply(
        crate::fsm::ConfigCommand::SetScheduler {
            config: SchedulerConfig {
                memory_oversubscription: true,
                ..SchedulerConfig::default()
            },
            check_index: None,
        }
        .at(cluster.now),
    );
    one_offs(&mut cluster);
    let alloc_id = cluster.live("sum")[0].id;
    cluster.report(alloc_id, ClientStatus::Failed);
    let down = cluster.state.nodes().iter().next().unwrap().spec.id;
    cluster.node_status(down, NodeStatus::Down);
    cluster.settle();
    cluster.advance(Duration::from_mins(1));
    cluster.settle();
    let key = JobKey::in_default("sum");
    cluster.apply(crate::fsm::JobCommand::Purge { key }.at(cluster.now));
    cluster.settle();
    // A node that is gone while an allocation on it is kept: the job's other instance still runs.
    for name in ["big-1", "big-2"] {
        cluster.node(node(name).memory_mb(100_000).build());
    }
    let kept = job("kept").job_type(JobType::Batch).count(2);
    cluster.run(kept.memory_mb(60_000).build());
    let done = cluster.live("kept").remove(0);
    cluster.report(done.id, ClientStatus::Complete);
    cluster.node_status(done.node_id, NodeStatus::Down);
    let commands = crate::gc::Collector::forced(cluster.now).into_iter();
    // The first command collects one-off tasks, which are to stay in the state.
    for command in commands.skip(1) {
        cluster.apply(command);
    }
    let evaluate = crate::fsm::JobCommand::Evaluate {
        force_reschedule: false,
        key: JobKey::in_default("web"),
    }
    .at(cluster.now);
    let key = muster_domain::id::WriteKey::new("a-key").unwrap();
    cluster.apply(evaluate.keyed(key));
    cluster.apply(
        crate::fsm::ConfigCommand::SetClusterPolicy {
            policy: Box::new(muster_domain::fixture::network_policy()),
            check_index: None,
        }
        .at(cluster.now),
    );
    tag_and_scale(&mut cluster);
    cluster.state
}

fn whole(records: Vec<Record>) -> impl Iterator<Item = Result<Record, Infallible>> {
    records.into_iter().map(Ok)
}

#[test]
fn a_restored_state_is_equal() {
    let state = populated();

    let restored = restore(whole(records(&state).collect())).unwrap();

    assert_eq!(restored, state);
    assert_eq!(crate::state::check::broken(&restored), Vec::<String>::new());
}

#[test]
fn ids_of_two_clusters_differ() {
    let ids = |servers: [u64; 3]| {
        let mut cluster = Cluster::new();
        cluster.state.set_cluster(ClusterTag::of_servers(servers));
        cluster.node(node("n1").build());
        cluster.run(job("web").count(3).build());
        let ids: Vec<_> = cluster.live("web").iter().map(|alloc| alloc.id).collect();
        (ids, cluster.state)
    };
    let (first, state) = ids([1, 2, 3]);
    let (second, _) = ids([4, 5, 6]);

    assert_eq!(first.len(), 3);
    assert!(first.iter().all(|id| !second.contains(id)));
    assert!(first.iter().all(|id| state.allocs().get(id).is_some()));
    assert!(second.iter().all(|id| state.allocs().get(id).is_none()));
    let restored = restore(whole(records(&state).collect())).unwrap();
    assert_eq!(restored, state);
    assert_eq!(restored.cluster(), state.cluster());
}

#[test]
fn records_survive_the_codec() {
    for record in records(&populated()) {
        let bytes = muster_wire::codec::encode(&record).unwrap();
        assert_eq!(
            muster_wire::codec::decode::<Record>(&bytes).unwrap(),
            record
        );
    }
}

#[test]
fn allocations_share_their_version_again() {
    let restored = restore(whole(records(&populated()).collect())).unwrap();

    let key = JobKey::in_default("web");
    let job = restored.jobs().get(&key).unwrap();
    let mut allocs = restored
        .allocs()
        .of_job(&key)
        .filter(|alloc| !alloc.is_terminal());
    assert!(allocs.all(|alloc| Arc::ptr_eq(alloc.job(), &job.current)));
}

#[test]
fn equal_states_give_equal_records() {
    let state = populated();
    let restored = restore(whole(records(&state).collect())).unwrap();

    assert!(records(&state).eq(records(&restored)));
}

#[test]
fn a_cut_stream_is_refused() {
    let mut all: Vec<Record> = records(&populated()).collect();
    all.pop();

    let error = restore(whole(all)).unwrap_err();

    assert!(
        matches!(error, RestoreError::Cut { missing: "end", .. }),
        "{error}"
    );
}

#[test]
fn a_missing_record_in_the_middle_is_noticed() {
    let mut all: Vec<Record> = records(&populated()).collect();
    let at = all
        .iter()
        .position(|record| matches!(record, Record::Eval(_)))
        .unwrap();
    all.remove(at);

    assert!(restore(whole(all)).is_err());
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let mut all: Vec<Record> = records(&State::default()).collect();
    let Record::Header(header) = &mut all[0] else {
        panic!("no header")
    };
    header.version = VERSION + 1;

    let error = restore(whole(all)).unwrap_err();

    assert_eq!(error, RestoreError::Version { found: VERSION + 1 });
}

/// Returns the records of a populated state, in which `change` changed the second node's record; it gets the first's as
/// well.
fn with_node(change: impl FnOnce(&mut NodeRecord, &NodeRecord)) -> Vec<Record> {
    let mut all: Vec<Record> = records(&populated()).collect();
    let mut nodes = all.iter_mut().filter_map(|record| {
        if let Record::Node(node) = record {
            Some(node)
        } else {
            None
        }
    });
    let (first, second) = (nodes.next().unwrap(), nodes.next().unwrap());
    change(second, first);
    all
}

/// Each number below the highest takes memory.
#[test]
fn node_number_beyond_the_highest_is_refused() {
    let all = with_node(|node, _| node.number = NodeNumber(u32::MAX));

    let error = restore(whole(all)).unwrap_err();

    assert!(
        matches!(
            error,
            RestoreError::NodeNumber {
                number: u32::MAX,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn second_node_of_a_number_is_refused() {
    let all = with_node(|node, other| node.number = other.number);

    let error = restore(whole(all)).unwrap_err();

    assert!(
        matches!(
            error,
            RestoreError::Dangling {
                what: "free node number",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn second_header_is_refused() {
    let mut all: Vec<Record> = records(&populated()).collect();
    all.insert(1, all[0].clone());

    let error = restore(whole(all)).unwrap_err();

    assert!(
        matches!(
            error,
            RestoreError::Cut {
                missing: "header",
                ..
            }
        ),
        "{error}"
    );
}
