//! Random histories of clusters with most actions that jobs and operators can cause: all except launches, dispatches,
//! ports and forced evaluations.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::alloc::{AllocReport, Allocation, ClientStatus, RemoteHandle};
use muster_domain::eval::Trigger;
use muster_domain::fixture;
use muster_domain::id::{JobKey, NodeId};
use muster_domain::job::{
    Affinity, Constraint, Disconnect, JobSpec, JobType, MigrateStrategy, Operand, Spread,
    SpreadTarget, UpdateStrategy,
};
use muster_domain::node::{
    DeviceGroup, DeviceInstance, DrainSpec, Eligibility, NodeSpec, NodeStatus, limits_in_place,
};
use muster_domain::resources::DeviceAsk;
use muster_domain::scheduling::{Algorithm, PreemptionConfig, SchedulerConfig};
use proptest::prelude::*;

use crate::chance::config;
use crate::fixture::Cluster;
use crate::fsm::{
    AllocCommand, ConfigCommand, DeploymentChange, DeploymentCommand, GroupScaling, JobCommand,
    NodeCommand,
};
use crate::state::{AllocView, waits};
use crate::watch;

const NODES: u64 = 5;

/// The action, and three numbers as its parameters.
type RandomAction = (u8, u16, u16, u16);

fn steps() -> impl Strategy<Value = Vec<RandomAction>> {
    let step = (0..26_u8, any::<u16>(), any::<u16>(), any::<u16>());
    prop::collection::vec(step, 1..40)
}

fn nodes() -> Vec<NodeSpec> {
    (0..NODES)
        .map(|number| {
            let mut spec = fixture::node(&format!("n{number}"))
                .attribute(&limits_in_place("native"), "1")
                .cpu_mhz(2_000 + 500 * number)
                .memory_mb(3_000)
                .build();
            spec.meta
                .insert("rack".to_owned(), format!("r{}", number % 3));
            spec.resources.cores = 4;
            spec.resources.core_ids = vec![0, 1, 2, 3];
            if number < 2 {
                let instances = ["a", "b"].map(|id| DeviceInstance {
                    id: id.to_owned(),
                    healthy: true,
                });
                spec.devices.push(DeviceGroup {
                    vendor: "nvidia".to_owned(),
                    kind: "gpu".to_owned(),
                    name: "t4".to_owned(),
                    attributes: BTreeMap::new(),
                    instances: instances.to_vec(),
                });
            }
            spec
        })
        .collect()
}

fn spread(even: bool) -> Spread {
    let target = SpreadTarget {
        value: "r0".to_owned(),
        percent: 60,
    };
    Spread {
        attribute: "${meta.rack}".to_owned(),
        weight: 50,
        targets: if even { Vec::new() } else { vec![target] },
    }
}

fn job(which: u16, how: u16, more: u16) -> JobSpec {
    let number = which % 6;
    // A job keeps its type.
    let kind = [
        JobType::Service,
        JobType::Service,
        JobType::Batch,
        JobType::Service,
        JobType::System,
        JobType::SysBatch,
    ][usize::from(number)];
    let bit = |at: u16| how >> at & 1 == 1;
    let mut spec = fixture::job(&format!("job{number}"))
        .job_type(kind)
        .count(u32::from(more % 5))
        .cpu_mhz(100 + u32::from(more >> 3 & 7) * 100)
        .memory_mb(100 + u32::from(more >> 6 & 7) * 100)
        .build();
    spec.priority = u8::try_from(how >> 9 & 63).unwrap() + 10;
    if number.is_multiple_of(2) {
        // Only tasks of this driver change their size in place.
        "native".clone_into(&mut spec.groups[0].tasks[0].driver);
    }
    let group = &mut spec.groups[0];
    group.ephemeral_disk.sticky = bit(7);
    match kind {
        JobType::Service => {
            group.migrate = Some(MigrateStrategy::default());
            group.update = bit(0).then(|| UpdateStrategy {
                max_parallel: 1 + u32::from(more >> 9 & 1),
                canary: u32::from(more >> 10 & 1),
                auto_promote: bit(1),
                auto_revert: bit(2),
                ..UpdateStrategy::default()
            });
            group.disconnect = Disconnect {
                lost_after: bit(3).then_some(Duration::from_mins(1)),
                replace: bit(4),
                ..Disconnect::default()
            };
        }
        JobType::System => {
            group.update = bit(0).then(|| UpdateStrategy {
                max_parallel: u32::from(more >> 9 & 3),
                auto_revert: bit(2),
                progress_deadline: Duration::from_mins(if bit(3) { 10 } else { 0 }),
                ..UpdateStrategy::default()
            });
            group.disconnect.lost_after = bit(4).then_some(Duration::from_mins(1));
        }
        JobType::Batch | JobType::SysBatch => {}
    }
    match more >> 11 & 7 {
        0 => spec.spreads.push(spread(true)),
        1 => spec.spreads.push(spread(false)),
        2 => spec.affinities.push(Affinity {
            left: "${meta.rack}".to_owned(),
            operand: Operand::Equal,
            right: "r1".to_owned(),
            weight: 50,
        }),
        3 => spec.constraints.push(Constraint {
            left: String::new(),
            operand: Operand::DistinctHosts,
            right: String::new(),
        }),
        4 => spec.constraints.push(Constraint {
            left: "${meta.rack}".to_owned(),
            operand: Operand::DistinctProperty,
            right: "2".to_owned(),
        }),
        5 => spec.groups[0].tasks[0].resources.cores = 1 + u16::from(bit(5)),
        6 => spec.groups[0].tasks[0].resources.devices.push(DeviceAsk {
            name: "nvidia/gpu".to_owned(),
            count: 1 + u32::from(bit(5)),
            constraints: Vec::new(),
            affinities: Vec::new(),
        }),
        _ => spec.all_at_once = bit(6),
    }
    spec
}

struct SimulatedCluster {
    cluster: Cluster,
    nodes: Vec<NodeId>,
}

impl SimulatedCluster {
    fn new() -> Self {
        let mut cluster = Cluster::new();
        let nodes = nodes().into_iter().map(|spec| cluster.node(spec)).collect();
        Self { cluster, nodes }
    }

    fn of(steps: &[RandomAction]) -> Self {
        let mut life = Self::new();
        for step in steps {
            life.take(*step);
            life.settle_due();
        }
        life
    }

    /// Carries out the changes that are due by time, then schedules.
    fn settle_due(&mut self) {
        for _ in 0..4 {
            self.cluster.settle();
            let commands = watch::due(&self.cluster.state, self.cluster.now).commands;
            if commands.is_empty() {
                break;
            }
            for command in commands {
                self.cluster.apply(command);
            }
        }
        self.cluster.settle();
        assert_eq!(waits::broken(&self.cluster.state), Vec::<String>::new());
    }

    fn report(&mut self, alloc: &Allocation, client_status: ClientStatus, healthy: Option<bool>) {
        let report = AllocReport {
            alloc_id: alloc.id,
            client_status,
            client_description: String::new(),
            task_states: Vec::new(),
            healthy,
            end: None,
            remote: self.remote(alloc, client_status),
        };
        self.cluster.apply(
            AllocCommand::Report {
                reports: vec![(alloc.node_id, vec![report])],
            }
            .at(self.cluster.now),
        );
    }

    /// Returns handles as if every task ran on another system: a task that was taken over keeps its handle, every other
    /// task has its own.
    fn remote(&self, alloc: &Allocation, client_status: ClientStatus) -> Vec<RemoteHandle> {
        let found = self.cluster.state.allocs().get(&alloc.id);
        let known = found.map_or(&[][..], |alloc| alloc.remote().running());
        if client_status.is_terminal() || !known.is_empty() {
            return known.to_vec();
        }
        let tasks = alloc.group().tasks.iter();
        tasks
            .map(|task| RemoteHandle {
                task: task.name.clone(),
                handle: alloc.id.0.to_vec(),
            })
            .collect()
    }

    fn allocs(&self) -> Vec<Allocation> {
        let allocs = self.cluster.state.allocs().iter();
        allocs.map(AllocView::unpack).collect()
    }

    #[expect(
        clippy::too_many_lines,
        reason = "one arm for each thing that can happen"
    )]
    fn take(&mut self, (what, which, how, more): RandomAction) {
        let at = self.cluster.now;
        let node_id = self.nodes[usize::from(which) % self.nodes.len()];
        let key = JobKey::in_default(format!("job{}", which % 6));
        let apply = |life: &mut Self, command| {
            life.cluster.apply(command);
        };
        match what {
            0..=6 => {
                self.cluster.run(job(which, how, more));
            }
            7 => {
                self.cluster.stop(&format!("job{}", which % 6));
            }
            8 | 9 => {
                self.cluster.node_status(node_id, NodeStatus::Down);
            }
            10..=12 => {
                self.cluster.node_status(node_id, NodeStatus::Ready);
            }
            13..=16 => self.report_some(which, how),
            17 => self
                .cluster
                .advance(Duration::from_secs(u64::from(how % 200))),
            18 => apply(
                self,
                NodeCommand::Drain {
                    node_id,
                    drain: (how % 3 > 0).then(|| DrainSpec {
                        deadline: (how % 3 == 1).then(|| Duration::from_secs(u64::from(more % 90))),
                        ignore_system_jobs: more % 2 == 0,
                    }),
                    mark_eligible: true,
                }
                .at(at),
            ),
            19 => apply(
                self,
                NodeCommand::SetEligibility {
                    node_id,
                    eligibility: if how % 2 == 0 {
                        Eligibility::Eligible
                    } else {
                        Eligibility::Ineligible
                    },
                }
                .at(at),
            ),
            20 => self.change_deployment(which, how),
            21 => apply(
                self,
                JobCommand::ScaleGroup {
                    key,
                    scaling: Box::new(GroupScaling {
                        group: "main".to_owned(),
                        count: Some(u32::from(how % 5)),
                        ..GroupScaling::default()
                    }),
                    check_index: None,
                }
                .at(at),
            ),
            22 => apply(
                self,
                JobCommand::Revert {
                    key,
                    version: u64::from(how % 3),
                    check_version: None,
                }
                .at(at),
            ),
            23 => {
                let live = self.allocs();
                if let Some(alloc) = live.get(usize::from(how) % live.len().max(1)) {
                    let alloc_ids = vec![alloc.id];
                    let trigger = Trigger::AllocStop;
                    apply(self, AllocCommand::Migrate { alloc_ids, trigger }.at(at));
                }
            }
            24 => apply(
                self,
                ConfigCommand::SetScheduler {
                    config: SchedulerConfig {
                        algorithm: if how % 2 == 0 {
                            Algorithm::Binpack
                        } else {
                            Algorithm::Spread
                        },
                        preemption: PreemptionConfig {
                            system: how & 2 == 0,
                            sysbatch: how & 4 == 0,
                            batch: how & 8 == 0,
                            service: how & 16 == 0,
                        },
                        ..SchedulerConfig::default()
                    },
                    check_index: None,
                }
                .at(at),
            ),
            _ => {
                for command in crate::gc::Collector::forced(at) {
                    self.cluster.apply(command);
                }
            }
        }
    }

    fn report_some(&mut self, which: u16, how: u16) {
        let allocs = self.allocs();
        let Some(alloc) = allocs.get(usize::from(which) % allocs.len().max(1)) else {
            return;
        };
        let status = [
            ClientStatus::Running,
            ClientStatus::Running,
            ClientStatus::Running,
            ClientStatus::Complete,
            ClientStatus::Failed,
        ][usize::from(how % 5)];
        let healthy = match how >> 4 & 3 {
            0 => None,
            1 | 2 => Some(true),
            _ => Some(false),
        };
        self.report(alloc, status, healthy);
    }

    fn change_deployment(&mut self, which: u16, how: u16) {
        let deployments: Vec<_> = self.cluster.state.deployments().iter().collect();
        let count = deployments.len().max(1);
        let Some(deployment) = deployments.get(usize::from(which) % count) else {
            return;
        };
        let id = deployment.id;
        let change = match how % 4 {
            0 => DeploymentChange::Promote(None),
            1 => DeploymentChange::Fail,
            2 => DeploymentChange::Pause,
            _ => DeploymentChange::Resume,
        };
        let at = self.cluster.now;
        self.cluster
            .apply(DeploymentCommand::Change { id, change }.at(at));
    }
}

proptest! {
    #![proptest_config(config())]

    /// `Cluster::apply` checks after every entry that no node is overbooked and no item is held twice, and the rest of
    /// `state::check`.
    #[test]
    fn no_life_breaks_an_invariant(steps in steps()) {
        SimulatedCluster::of(&steps);
    }

    #[test]
    fn a_job_at_rest_stays_at_rest(steps in steps()) {
        let mut life = SimulatedCluster::of(&steps);
        // Every wait ends within this time.
        for _ in 0..20 {
            life.cluster.advance(Duration::from_mins(10));
            life.settle_due();
        }
        let jobs: Vec<_> = life.cluster.state.jobs().iter().map(|job| job.key()).collect();
        for key in jobs {
            life.cluster.apply(JobCommand::Evaluate {
                key: key.clone(),
                force_reschedule: false,
            }.at(life.cluster.now));
            let plans = life.cluster.settle();
            prop_assert!(plans.is_empty(), "{key}: {plans:?}");
        }
    }

    /// The verdict of `why` on a node agrees with the scheduler's.
    #[test]
    fn why_agrees_with_the_scheduler(steps in steps()) {
        let life = SimulatedCluster::of(&steps);
        let state = &life.cluster.state;
        for job in state.jobs().iter() {
            let reasons = crate::scheduler::why(state, &job.key(), None).unwrap();
            for why in reasons {
                let group = job.current.spec.group(&why.group).unwrap();
                for node in why.nodes {
                    let fits = crate::scheduler::fits_on(state, &job.current.spec, group, &node.node_id);
                    prop_assert_eq!(node.obstacles.is_empty(), fits, "{:?}", node);
                }
            }
        }
    }

    #[test]
    fn equal_inputs_give_equal_plans(steps in steps()) {
        let life = SimulatedCluster::of(&steps);
        let state = &life.cluster.state;
        for eval in state.evals().iter() {
            let mut eval = (**eval).clone();
            eval.status = muster_domain::eval::EvalStatus::Pending;
            let one = crate::scheduler::schedule(state, &eval, life.cluster.now);
            let other = crate::scheduler::schedule(&state.clone(), &eval, life.cluster.now);
            prop_assert_eq!(one, other);
        }
    }
}
