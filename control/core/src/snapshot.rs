//! A state as a stream of records, and back.
//!
//! The first record says the format and the hash that the state must have. The last closes the stream, so that a cut
//! one is noticed. Data that rows share are written once, before the first that needs them. They are referred to by
//! their place among their kind. Indexes are not written: they follow from the rows. Every record's encoding is
//! persisted: variants are appended, and `testdata/` keeps the bytes of each. A record that changes raises the version
//! of its kind. The writer of the stream puts that version before it; see ARCHITECTURE.md for the needs of a table.
//!
//! [`records`] makes records as they are taken and keeps only the places of shared data. The state that it reads may
//! be a clone, which costs nothing and does not stop the writer.

mod restore;
mod stream;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::alloc::PlacementMetrics;
use muster_domain::deployment::Deployment;
use muster_domain::eval::Evaluation;
use muster_domain::id::{
    ClusterTag, DeploymentId, EvalId, JobKey, LogIndex, NodeId, NodeNumber, Timestamp,
};
use muster_domain::job::{JobStatus, JobVersion, ScalingEvent, VersionTag};
use muster_domain::node::{Drain, Eligibility, NodeEvent, NodeSpec, NodeStatus, NodeSubsystem};
use muster_domain::one_off::{OneOff, OneOffTimings};
use serde::{Deserialize, Serialize};

use crate::state::{Answer, ClusterPolicy, Config, RowRecord, StateHash};

pub use restore::{RestoreError, StateRestore, restore};
pub use stream::records;

/// The newest format of the stream that this build reads, and the one it writes. Kinds of records have
/// versions of their own: [`Record::KINDS`].
pub const VERSION: u32 = 1;

/// One record of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    Header(Header),
    /// A version of a job. Numbered from 0 in the order of the stream.
    JobVersion(Arc<JobVersion>),
    /// The metrics of the choice of places. Numbered from 0 in the order of the stream.
    Metrics(Arc<PlacementMetrics>),
    /// The data that some allocations share. Numbered from 0 in the order of the stream.
    Cohort(CohortRecord),
    Node(Box<NodeRecord>),
    /// A node that is gone and that allocations still mean by its number.
    Held(RemovedNodeRecord),
    Job(JobRecord),
    Eval(Arc<Evaluation>),
    /// An allocation, packed as it lies in the state; its cohort by its place in the stream.
    Alloc(Box<RowRecord>),
    Deployment(Arc<Deployment>),
    /// The settings, unless they are the defaults.
    Config(Config),
    /// The answer to a keyed write.
    Answer(Arc<Answer>),
    End {
        /// Records before this one.
        records: u64,
    },
    OneOff(Arc<OneOff>),
    /// The times of one-off tasks, unless they are the defaults.
    OneOffTimes(OneOffTimings),
    /// A domain that is fresh.
    Domain(DomainRecord),
    /// The cluster's network policy, unless none was ever written.
    Network(Box<ClusterPolicy>),
    /// The tags of a job's versions, after the job; none of a job without any.
    Tags(TagsRecord),
    /// The cluster's part of derived ids, before every row; none if it is 0.
    Cluster(ClusterTag),
    /// The scaling events of a job, after the job; none of a job without any.
    Scaling(ScalingRecord),
}

impl Record {
    /// Every kind of record by name, with the newest version of its encoding that this build reads, which is
    /// the one it writes. In the order of the variants.
    pub const KINDS: [(&'static str, u32); 20] = [
        ("header", 1),
        ("job versions", 1),
        ("placement metrics", 1),
        ("cohorts", 1),
        ("nodes", 2),
        ("nodes gone", 1),
        ("jobs", 1),
        ("evaluations", 1),
        ("allocations", 1),
        ("deployments", 1),
        ("settings", 1),
        ("answers", 1),
        ("end", 1),
        ("one-off tasks", 1),
        ("times of one-off tasks", 1),
        ("domains", 1),
        ("network policy", 1),
        ("tags of job versions", 1),
        ("cluster", 1),
        ("scaling events", 1),
    ];

    /// Its place in [`Self::KINDS`], which is also the first byte of its encoding.
    #[must_use]
    pub fn kind(&self) -> usize {
        match self {
            Self::Header(_) => 0,
            Self::JobVersion(_) => 1,
            Self::Metrics(_) => 2,
            Self::Cohort(_) => 3,
            Self::Node(_) => 4,
            Self::Held(_) => 5,
            Self::Job(_) => 6,
            Self::Eval(_) => 7,
            Self::Alloc(_) => 8,
            Self::Deployment(_) => 9,
            Self::Config(_) => 10,
            Self::Answer(_) => 11,
            Self::End { .. } => 12,
            Self::OneOff(_) => 13,
            Self::OneOffTimes(_) => 14,
            Self::Domain(_) => 15,
            Self::Network(_) => 16,
            Self::Tags(_) => 17,
            Self::Cluster(_) => 18,
            Self::Scaling(_) => 19,
        }
    }
}

/// The identity of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The format; see [`VERSION`].
    pub version: u32,
    /// The last entry applied.
    pub applied: LogIndex,
    /// The last entry that changed the nodes.
    pub nodes_index: LogIndex,
    /// The last entry that changed the jobs.
    pub jobs_index: LogIndex,
    /// The last entry that changed the allocations.
    pub allocs_index: LogIndex,
    /// The last entry that changed the evaluations.
    pub evals_index: LogIndex,
    /// The last entry that changed the deployments.
    pub deployments_index: LogIndex,
    /// The last entry that changed the one-off tasks.
    pub one_offs_index: LogIndex,
    /// The hash that the restored state must have.
    pub hash: StateHash,
}

/// A node and its number among the columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    number: NodeNumber,
    spec: Arc<NodeSpec>,
    status: NodeStatus,
    status_at: Timestamp,
    eligibility: Eligibility,
    drain: Option<Drain>,
    events: Arc<Vec<NodeEvent>>,
    create_index: LogIndex,
    modify_index: LogIndex,
}

/// [`NodeRecord`] of version 1, whose events have no details.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodeRecordV1 {
    number: NodeNumber,
    spec: Arc<NodeSpec>,
    status: NodeStatus,
    status_at: Timestamp,
    eligibility: Eligibility,
    drain: Option<Drain>,
    events: Vec<NodeEventV1>,
    create_index: LogIndex,
    modify_index: LogIndex,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct NodeEventV1 {
    subsystem: NodeSubsystem,
    message: String,
    at: Timestamp,
    index: LogIndex,
}

impl From<NodeRecordV1> for NodeRecord {
    fn from(record: NodeRecordV1) -> Self {
        let NodeRecordV1 {
            number,
            spec,
            status,
            status_at,
            eligibility,
            drain,
            events,
            create_index,
            modify_index,
        } = record;
        let events = events.into_iter().map(|event| NodeEvent {
            subsystem: event.subsystem,
            message: event.message,
            details: BTreeMap::new(),
            at: event.at,
            index: event.index,
        });
        Self {
            number,
            spec,
            status,
            status_at,
            eligibility,
            drain,
            events: Arc::new(events.collect()),
            create_index,
            modify_index,
        }
    }
}

/// A node that is gone and that allocations still mean by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedNodeRecord {
    number: NodeNumber,
    node_id: NodeId,
}

/// A domain that is fresh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainRecord {
    domain: String,
    /// `None`: for ever.
    until: Option<Timestamp>,
}

/// A job, its versions by their place in the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    current: u32,
    older: Vec<u32>,
    stop: bool,
    status: JobStatus,
    stable: Vec<u64>,
    launched_at: Option<Timestamp>,
    modify_index: LogIndex,
    plan_index: LogIndex,
}

/// The tags of a job's versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagsRecord {
    key: JobKey,
    tags: Vec<VersionTag>,
}

/// The scaling events of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingRecord {
    key: JobKey,
    events: Arc<BTreeMap<String, Vec<ScalingEvent>>>,
}

/// The data shared by the instances that one plan placed for one group. Their job's version and metrics are given by
/// their place in the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CohortRecord {
    job: u32,
    group_at: u16,
    eval_id: EvalId,
    metrics: u32,
    create_time: Timestamp,
    deployment: Option<DeploymentId>,
}

#[cfg(test)]
mod tests;
