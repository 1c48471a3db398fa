//! A state built row by row, in forms that no cluster reaches: for rules that depend on rows alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredStatus, PlacementMetrics, Reschedule, Score};
use muster_domain::deployment::{Deployment, DeploymentStatus};
use muster_domain::eval::{EvalStatus, Evaluation, Trigger};
use muster_domain::fixture::{job, node};
use muster_domain::id::{
    AllocId, DeploymentId, EvalId, JobKey, LogIndex, NodeId, NodeNumber, Timestamp,
};
use muster_domain::job::{Job, JobSpec, JobStatus, JobType, JobVersion, VersionTag};
use muster_domain::node::{Eligibility, Node, NodeStatus};

use super::Collector;
use crate::fsm::{self, Entry, Response};
use crate::state::{JobRow, PlanShared, Row, State, key_at};

/// The job to which all rows belong.
pub(super) const JOB: &str = "app";
/// The time of collections: ages of minutes lie before it, in whatever unit rows use.
pub(super) const NOW: Timestamp = Timestamp(1_000_000_000_000_000_000);

/// The job's current version.
const VERSION: u64 = 7;

/// A state under construction.
#[derive(Debug, Default)]
pub(super) struct StateBuilder {
    pub(super) state: State,
    /// Allocations in the order in which they were added.
    pub(super) allocs: Vec<AllocId>,
    numbers: BTreeMap<NodeId, NodeNumber>,
}

/// An allocation to add.
#[derive(Clone, Debug)]
pub(super) struct AllocBuilder {
    pub(super) eval_id: EvalId,
    pub(super) node_id: NodeId,
    pub(super) deployment: Option<DeploymentId>,
    pub(super) job_create_index: u64,
    pub(super) desired: DesiredStatus,
    pub(super) client: ClientStatus,
    pub(super) modified: Timestamp,
    pub(super) replaced: bool,
    pub(super) follow_up: Option<EvalId>,
    /// The times at which the earlier allocations were replaced, oldest first.
    pub(super) reschedules: Vec<Timestamp>,
}

impl StateBuilder {
    pub(super) fn job(&mut self, spec: JobSpec, create_index: u64, stop: bool, status: JobStatus) {
        let current = version(spec, create_index);
        self.state.jobs.put(JobRow {
            job: Arc::new(Job {
                current,
                stop,
                status,
                stable: Vec::new(),
                tags: Vec::new(),
                scaling_events: Arc::default(),
                launched_at: None,
                modify_index: LogIndex(1),
            }),
            older: Vec::new(),
            plan_index: LogIndex(0),
        });
    }

    /// Tags this number of versions of the job.
    pub(super) fn tag(&mut self, tags: u64) {
        let key = JobKey::in_default(JOB);
        let row = self.state.jobs.row(&key).map(Arc::clone).unwrap();
        let mut job = (*row.job).clone();
        job.tags = (0..tags)
            .map(|version| VersionTag {
                version,
                name: version.to_string(),
                description: String::new(),
                at: NOW,
            })
            .collect();
        self.state.jobs.put(JobRow {
            job: Arc::new(job),
            ..(*row).clone()
        });
    }

    pub(super) fn eval(
        &mut self,
        id: EvalId,
        job_id: &str,
        kind: JobType,
        status: EvalStatus,
        at: Timestamp,
    ) {
        self.state.put_eval(Evaluation {
            id,
            job: JobKey::in_default(job_id),
            job_type: kind,
            priority: 50,
            trigger: Trigger::JobRegister,
            node_id: None,
            deployment: None,
            status,
            status_description: String::new(),
            previous: None,
            blocked: None,
            failed_groups: Vec::new(),
            wait_until: Timestamp(0),
            queued: Vec::new(),
            job_modify_index: LogIndex(1),
            snapshot_index: LogIndex(0),
            create_index: LogIndex(0),
            modify_index: LogIndex(1),
            create_time: Timestamp(0),
            modify_time: at,
        });
    }

    pub(super) fn node(&mut self, id: NodeId, status: NodeStatus, at: Timestamp) {
        let number = NodeNumber(u32::try_from(self.numbers.len()).unwrap());
        self.numbers.insert(id, number);
        let mut spec = node("n").build();
        spec.id = id;
        let row = Node {
            spec: Arc::new(spec),
            status,
            status_at: at,
            eligibility: Eligibility::Eligible,
            drain: None,
            events: Arc::default(),
            create_index: LogIndex(1),
            modify_index: LogIndex(1),
        };
        self.state.nodes.put_at(row, number);
    }

    /// Adds a deployment of the job's current version or of the version before it.
    pub(super) fn deployment(
        &mut self,
        id: DeploymentId,
        is_current: bool,
        status: DeploymentStatus,
        at: Timestamp,
    ) {
        self.state.put_deployment(Deployment {
            id,
            job: JobKey::in_default(JOB),
            job_version: if is_current { VERSION } else { VERSION - 1 },
            job_modify_index: LogIndex(1),
            job_create_index: LogIndex(1),
            status,
            status_description: String::new(),
            groups: Vec::new(),
            create_index: LogIndex(1),
            modify_index: LogIndex(1),
            create_time: Timestamp(0),
            modify_time: at,
        });
    }

    pub(super) fn alloc(&mut self, put: &AllocBuilder) {
        let version = version(job(JOB).build(), put.job_create_index);
        let metrics = Arc::new(PlacementMetrics::default());
        let cohort = PlanShared::new(
            version,
            0,
            put.eval_id,
            metrics,
            Timestamp(0),
            put.deployment,
        );
        let ordinal = u32::try_from(self.allocs.len()).unwrap();
        let number = self.numbers[&put.node_id];
        let mut row = Row::placed(&cohort.unwrap(), number, ordinal, Score(0), LogIndex(1));
        if !put.reschedules.is_empty() {
            let earlier = put.reschedules.iter().map(|at| Reschedule {
                at: *at,
                delay: Duration::ZERO,
                previous: AllocId([9; 16]),
                previous_node: put.node_id,
            });
            row = row.replacing(AllocId([9; 16]), earlier.collect());
        }
        row.set_desired(put.desired, "");
        row.set_client(put.client, "");
        if put.replaced {
            row.set_next(AllocId([8; 16]));
        }
        if let Some(eval_id) = put.follow_up {
            row.set_follow_up(eval_id);
        }
        row.touch(LogIndex(1), put.modified);
        let key = key_at(LogIndex(1), ordinal);
        self.allocs.push(AllocId::at(LogIndex(1), ordinal));
        self.state.insert_alloc_on(key, row, put.node_id);
    }

    /// Returns the state after `commands` and all slices that follow them.
    pub(super) fn after(&self, commands: Vec<Entry>) -> State {
        let mut state = self.state.clone();
        for command in commands {
            let mut next = Some(command);
            while let Some(command) = next {
                let index = LogIndex(state.applied().0.max(1) + 1);
                let response = fsm::apply(&mut state, index, command.clone()).response;
                assert!(matches!(response, Response::Collected { .. }));
                next = Collector::next_slice(&command, &response, NOW);
            }
        }
        state
    }
}

fn version(spec: JobSpec, create_index: u64) -> Arc<JobVersion> {
    Arc::new(JobVersion {
        spec,
        version: VERSION,
        submit_time: Timestamp(create_index),
        create_index: LogIndex(create_index),
        job_modify_index: LogIndex(create_index),
    })
}
