//! Laws of the state over random histories. Commands come in an order that a cluster would not choose, nodes come,
//! leave and come back, and plans are applied late.
//!
//! After every command the fixture checks every invariant, and that the rows reported as changed are those that differ.
//! Replaying a history compares two runs of one process. A map with random order would differ between them, because
//! each map has a seed of its own.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{
    AllocReport, Allocation, Exit, RemoteHandle, TaskEvent, TaskEventKind, TaskPhase, TaskState,
};
use muster_domain::fixture::definition;
use muster_domain::id::WriteKey;
use proptest::prelude::*;

use super::*;
use crate::chance::config;
use crate::scheduler::ScheduleOutcome;
use crate::snapshot::{self, Record};
use crate::state::AllocView;
use crate::state::check;
use muster_domain::job::JobSpec;
use muster_domain::one_off::OneOffTimings;

/// A step of a test run.
#[derive(Clone, Debug)]
enum ClusterEvent {
    /// The size of a node stays: an agent that reports less than before may overbook it.
    Node {
        node: u8,
        zone: u32,
    },
    NodeStatus {
        node: u8,
        status: NodeStatus,
    },
    Eligibility {
        node: u8,
        eligible: bool,
    },
    Run {
        job: u8,
        count: u32,
        cpu_mhz: u32,
        batch: bool,
        port: bool,
        key: Option<u8>,
        placed: bool,
    },
    Stop {
        job: u8,
        purge: bool,
    },
    Report {
        pick: usize,
        status: ClientStatus,
        message: String,
    },
    /// Plans the next evaluation and keeps the plan.
    Plan,
    /// Applies a plan that was kept.
    Late {
        pick: usize,
    },
    /// A one-off task is desired.
    Desire {
        task: u8,
        domain: u8,
        callback: bool,
        /// Whether the command has the place that the scheduler finds, even if the place is taken when the entry is
        /// applied.
        placed: bool,
    },
    /// A client requests a step of a one-off task.
    Task {
        task: u8,
        step: OneOffStep,
    },
    /// A domain is marked as fresh.
    Freshen {
        domain: u8,
        seconds: Option<u64>,
    },
    /// A leader has another configuration.
    Times {
        seconds: u64,
    },
    /// Carries out the changes of one-off tasks that are due.
    Converge,
    Settle,
    Wait {
        seconds: u64,
    },
    Collect,
}

fn steps() -> impl Strategy<Value = Vec<ClusterEvent>> {
    let node_status = prop_oneof![Just(NodeStatus::Ready), Just(NodeStatus::Down)];
    let client_status = prop_oneof![
        Just(ClientStatus::Running),
        Just(ClientStatus::Complete),
        Just(ClientStatus::Failed)
    ];
    let text = prop_oneof![Just("tasks are running".to_owned()), "[a-z]{0,50}"];
    let step = prop_oneof![
        3 => (0..5_u8, 0..3_u32).prop_map(|(node, zone)| ClusterEvent::Node { node, zone }),
        4 => (0..5_u8, node_status).prop_map(|(node, status)| ClusterEvent::NodeStatus { node, status }),
        1 => (0..5_u8, any::<bool>()).prop_map(|(node, eligible)| ClusterEvent::Eligibility { node, eligible }),
        5 => (0..3_u8, 0..5_u32, 1..4_u32, any::<[bool; 3]>(), proptest::option::of(0..3_u8))
            .prop_map(|(job, count, cpu, [batch, port, placed], key)| ClusterEvent::Run {
                job, count, cpu_mhz: cpu * 200, batch, port, key, placed,
            }),
        1 => (0..3_u8, any::<bool>()).prop_map(|(job, purge)| ClusterEvent::Stop { job, purge }),
        6 => (any::<usize>(), client_status, text)
            .prop_map(|(pick, status, message)| ClusterEvent::Report { pick, status, message }),
        2 => Just(ClusterEvent::Plan),
        2 => any::<usize>().prop_map(|pick| ClusterEvent::Late { pick }),
        4 => (0..3_u8, 0..2_u8, any::<bool>(), any::<bool>())
            .prop_map(|(task, domain, callback, placed)| ClusterEvent::Desire {
                task, domain, callback, placed,
            }),
        4 => (0..3_u8, one_off_step()).prop_map(|(task, step)| ClusterEvent::Task { task, step }),
        1 => (0..3_u8, proptest::option::of(1..50_u64))
            .prop_map(|(domain, seconds)| ClusterEvent::Freshen { domain, seconds }),
        1 => (45..90_u64).prop_map(|seconds| ClusterEvent::Times { seconds }),
        2 => Just(ClusterEvent::Converge),
        6 => Just(ClusterEvent::Settle),
        5 => (1..100_u64).prop_map(|seconds| ClusterEvent::Wait { seconds }),
        1 => Just(ClusterEvent::Collect),
    ];
    proptest::collection::vec(step, 1..60)
}

fn one_off_step() -> impl Strategy<Value = OneOffStep> {
    let until = Timestamp::from_millis(1_030_000);
    prop_oneof![
        Just(OneOffStep::Cancel),
        any::<bool>().prop_map(move |for_callback| OneOffStep::Claim {
            until,
            for_callback
        }),
        Just(OneOffStep::Resolve),
        proptest::option::of((0_u64..40).prop_map(LogIndex))
            .prop_map(|claim| OneOffStep::Delete { claim }),
        (0_u64..40)
            .prop_map(LogIndex)
            .prop_map(move |claim| OneOffStep::CallbackFailed {
                claim,
                next_at: Some(until)
            }),
        Just(OneOffStep::Converge),
    ]
}

/// A cluster and plans that wait to be applied.
struct History {
    cluster: Cluster,
    late: Vec<ScheduleOutcome>,
    /// An earlier state, in which places are found.
    older: Option<State>,
}

impl History {
    fn of(steps: Vec<ClusterEvent>) -> Self {
        let mut history = Self {
            cluster: Cluster::new(),
            late: Vec::new(),
            older: None,
        };
        history.cluster.history = Some(Vec::new());
        for number in 0..3 {
            let spec = node(&format!("n{number}")).cpu_mhz(1_000);
            history.cluster.node(spec.build());
        }
        for step in steps {
            history.take(step);
        }
        history
    }

    fn apply(&mut self, entry: Entry) {
        self.cluster.apply(entry);
    }

    #[expect(clippy::too_many_lines, reason = "an arm a step, no more in it")]
    fn take(&mut self, step: ClusterEvent) {
        let at = self.cluster.now;
        let node_id = |number: u8| node(&format!("n{number}")).build().id;
        match step {
            ClusterEvent::Node { node: number, zone } => {
                let mut spec = node(&format!("n{number}")).cpu_mhz(1_000).build();
                spec.meta.insert("zone".to_owned(), zone.to_string());
                self.apply(
                    NodeCommand::Register {
                        spec: Box::new(spec),
                    }
                    .at(at),
                );
            }
            ClusterEvent::NodeStatus { node, status } => {
                self.apply(
                    NodeCommand::SetStatus {
                        node_id: node_id(node),
                        status,
                    }
                    .at(at),
                );
            }
            ClusterEvent::Eligibility { node, eligible } => {
                let node_id = node_id(node);
                let eligibility = [Eligibility::Ineligible, Eligibility::Eligible];
                self.apply(
                    NodeCommand::SetEligibility {
                        node_id,
                        eligibility: eligibility[usize::from(eligible)],
                    }
                    .at(at),
                );
            }
            ClusterEvent::Run {
                job: number,
                count,
                cpu_mhz,
                batch,
                port,
                key,
                placed,
            } => {
                let kind = if batch {
                    JobType::Batch
                } else {
                    JobType::Service
                };
                let spec = job(&format!("job{number}")).job_type(kind).count(count);
                let spec = spec.cpu_mhz(cpu_mhz);
                let spec = if port {
                    spec.dynamic_port("http")
                } else {
                    spec
                };
                let command = self.registration(spec.build(), placed);
                let key = key.and_then(|key| WriteKey::new(format!("key{key}")));
                self.apply(match key {
                    Some(key) => command.keyed(key),
                    None => command,
                });
            }
            ClusterEvent::Stop { job, purge } => self.stop(job, purge),
            ClusterEvent::Report {
                pick,
                status,
                message,
            } => self.report(pick, status, message),
            ClusterEvent::Plan => self.late.extend(self.cluster.schedule_next()),
            ClusterEvent::Late { pick } => self.late(pick),
            ClusterEvent::Desire {
                task,
                domain,
                callback,
                placed,
            } => self.desire(task, domain, callback, placed),
            ClusterEvent::Task { task, step } => {
                let changes = vec![OneOffChange {
                    guid: format!("task{task}"),
                    generation: None,
                    step,
                }];
                self.apply(OneOffCommand::Change { changes }.at(at));
            }
            ClusterEvent::Freshen { domain, seconds } => {
                let until = seconds.map(|seconds| at.plus(Duration::from_secs(seconds)));
                let domain = format!("domain{domain}");
                self.apply(OneOffCommand::FreshenDomain { domain, until }.at(at));
            }
            ClusterEvent::Times { seconds } => {
                let times = OneOffTimings {
                    lost_after: Duration::from_secs(seconds),
                    ..OneOffTimings::default()
                };
                self.apply(OneOffCommand::SetTimes { times }.at(at));
            }
            ClusterEvent::Converge => {
                for command in crate::converge::due(&self.cluster.state, at).commands {
                    self.apply(command);
                }
            }
            ClusterEvent::Settle => {
                self.cluster.settle();
            }
            ClusterEvent::Wait { seconds } => self.cluster.advance(Duration::from_secs(seconds)),
            ClusterEvent::Collect => {
                for command in crate::gc::Collector::forced(at) {
                    self.apply(command);
                }
            }
        }
    }

    /// Returns the registration, with places that were found in an older state if it is to be `placed`.
    fn registration(&mut self, spec: JobSpec, placed: bool) -> Entry {
        let at = self.cluster.now;
        let places = placed.then(|| {
            let state = self.cluster.state.clone();
            let older = self.older.replace(state.clone()).unwrap_or(state);
            crate::scheduler::Scheduler::default().place_job(&older, &spec, at)
        });
        let places = places.flatten().map(Box::new);
        JobCommand::Register {
            spec: Box::new(spec),
            places,
            check_index: None,
        }
        .at(at)
    }

    fn desire(&mut self, task: u8, domain: u8, callback: bool, placed: bool) {
        let mut definition = definition();
        if callback {
            "http://localhost/".clone_into(&mut definition.completion_callback_url);
        }
        let new = NewOneOff {
            guid: format!("task{task}"),
            domain: format!("domain{domain}"),
            definition,
        };
        let at = self.cluster.now;
        let tasks = vec![new];
        if !placed {
            self.apply(Entry::desire_one_offs(tasks, at));
            return;
        }
        let state = self.cluster.state.clone();
        let older = self.older.replace(state.clone()).unwrap_or(state);
        let places = crate::scheduler::Scheduler::default().place_new(&older, &tasks, at);
        let seen = older.applied();
        let tasks = tasks.into_iter().zip(places).collect();
        self.apply(OneOffCommand::Desire { tasks, seen }.at(at));
    }

    fn stop(&mut self, job: u8, purge: bool) {
        let at = self.cluster.now;
        let key = JobKey::in_default(format!("job{job}"));
        let below = crate::gc::Collector::below(key.clone(), at);
        self.apply(if purge {
            JobCommand::Purge { key }.at(at)
        } else {
            JobCommand::Deregister { key }.at(at)
        });
        if purge {
            self.apply(below);
        }
    }

    fn late(&mut self, pick: usize) {
        if !self.late.is_empty() {
            let ScheduleOutcome { plan, update, .. } = self.late.remove(pick % self.late.len());
            self.apply(
                EvalCommand::ApplyPlans {
                    plans: vec![plan],
                    evals: update.into_iter().collect(),
                }
                .at(self.cluster.now),
            );
        }
    }

    fn report(&mut self, pick: usize, status: ClientStatus, message: String) {
        let at = self.cluster.now;
        let allocs: Vec<(AllocId, NodeId)> = self
            .cluster
            .state
            .allocs()
            .iter()
            .map(|alloc| (alloc.id(), alloc.node_id()))
            .collect();
        let Some((alloc_id, node_id)) = allocs.get(pick % allocs.len().max(1)).copied() else {
            return;
        };
        let mut task = TaskState::pending("main");
        task.phase = TaskPhase::Dead;
        task.started_at = Some(at);
        task.push(TaskEvent {
            at,
            kind: TaskEventKind::Terminated(Exit::default()),
            message: message.clone(),
        });
        let report = AllocReport {
            alloc_id,
            client_status: status,
            client_description: message,
            task_states: vec![task],
            healthy: None,
            end: None,
            remote: vec![RemoteHandle {
                task: "main".to_owned(),
                handle: alloc_id.0.to_vec(),
            }],
        };
        self.apply(
            AllocCommand::Report {
                reports: vec![(node_id, vec![report])],
            }
            .at(at),
        );
    }
}

/// Returns the rows of two states that differ, in the order of [`Applied::changed`].
fn differing(before: &State, after: &State) -> Vec<ChangedRow> {
    let ids = |state: &State| -> BTreeSet<ChangedRow> {
        let nodes = state
            .nodes()
            .iter()
            .map(|node| ChangedRow::Node(node.spec.id));
        let jobs = state
            .jobs()
            .iter()
            .map(|job| ChangedRow::Job(Arc::new(job.key())));
        let evals = state.evals().iter().map(|eval| ChangedRow::Eval(eval.id));
        let allocs = state
            .allocs()
            .iter()
            .map(|alloc| ChangedRow::Alloc(alloc.id()));
        let deployments = state
            .deployments()
            .iter()
            .map(|row| ChangedRow::Deployment(row.id));
        let one_offs = state
            .one_offs()
            .iter()
            .map(|row| ChangedRow::OneOff(Arc::from(row.guid.as_str())));
        let all = nodes.chain(jobs).chain(evals).chain(deployments);
        all.chain(one_offs).chain(allocs).collect()
    };
    let differs = |changed: &ChangedRow| match changed {
        ChangedRow::Node(node_id) => before.nodes().get(node_id) != after.nodes().get(node_id),
        ChangedRow::Job(key) => before.jobs().get(key) != after.jobs().get(key),
        ChangedRow::Eval(eval_id) => before.evals().get(eval_id) != after.evals().get(eval_id),
        ChangedRow::Deployment(id) => before.deployments().get(id) != after.deployments().get(id),
        ChangedRow::OneOff(guid) => before.one_offs().get(guid) != after.one_offs().get(guid),
        ChangedRow::Alloc(alloc_id) | ChangedRow::AllocGone(alloc_id) => {
            let row = |state: &State| -> Option<Allocation> {
                state.allocs().get(alloc_id).map(AllocView::unpack)
            };
            row(before) != row(after)
        }
    };
    let all: BTreeSet<ChangedRow> = ids(before).union(&ids(after)).cloned().collect();
    all.into_iter().filter(differs).collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_restored_state_is_the_state(steps in steps()) {
        let state = History::of(steps).cluster.state;

        let bytes: Vec<Vec<u8>> = snapshot::records(&state)
            .map(|record| muster_wire::codec::encode(&record).unwrap())
            .collect();
        let records = bytes
            .iter()
            .map(|bytes| Ok::<_, Infallible>(muster_wire::codec::decode::<Record>(bytes).unwrap()));
        let restored = snapshot::restore(records).unwrap();

        prop_assert_eq!(restored.hash(), state.hash());
        prop_assert_eq!(check::broken(&restored), Vec::<String>::new());
        prop_assert!(snapshot::records(&restored).eq(snapshot::records(&state)));
        prop_assert_eq!(restored, state);
    }

    #[test]
    fn replayed_log_yields_same_state_and_responses(steps in steps()) {
        let cluster = History::of(steps).cluster;
        let (mut one, mut other) = (State::default(), State::default());

        for (at, command) in (1..).zip(cluster.history.unwrap()) {
            let snapshot = one.clone();
            let applied = apply(&mut one, LogIndex(at), command.clone());
            prop_assert_eq!(&applied, &apply(&mut other, LogIndex(at), command));
            prop_assert_eq!(one.hash(), other.hash());
            // A snapshot does not change, and the rows reported as changed are those that differ from it.
            let differing: BTreeSet<ChangedRow> = differing(&snapshot, &one).into_iter().collect();
            let mut changed = BTreeSet::new();
            for row in &applied.changed {
                changed.insert(if let ChangedRow::AllocGone(alloc_id) = row {
                    prop_assert!(snapshot.allocs().get(alloc_id).is_some(), "it was not there");
                    prop_assert!(one.allocs().get(alloc_id).is_none(), "it is not gone");
                    ChangedRow::Alloc(*alloc_id)
                } else {
                    row.clone()
                });
            }
            prop_assert_eq!(changed.len(), applied.changed.len(), "a row is named twice");
            prop_assert!(differing.is_subset(&changed), "{:?} is not named", differing.difference(&changed));
        }

        prop_assert_eq!(&one, &other);
        prop_assert_eq!(one, cluster.state);
    }
}
