//! A state as a stream of records, and back.
//!
//! The first record has the format and the hash that the state must have. The last record closes the stream, so that a
//! truncated stream is detected. Shared data are written once, before the first record that needs them. Other records
//! refer to them by their position among their kind. Indexes are not written: they follow from the rows. Every record's
//! encoding is persisted: variants are appended, and `testdata/` keeps the bytes of each. A changed record raises the
//! version of its kind. The writer of the stream puts that version before the record; see ARCHITECTURE.md for the needs
//! of a table.
//!
//! [`records`] makes records as the caller takes them and keeps only the positions of shared data. The state that it
//! reads may be a clone, which costs nothing and does not stop the writer.

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

use crate::state::{Answer, ClusterPolicy, Config, RowRecord, State, StateHash};

pub use restore::{RestoreError, StateRestore, restore};
pub use stream::records;

/// The newest format of the stream that this build reads, and the format that it writes. Kinds of records have versions
/// of their own: [`Record::KINDS`].
pub const VERSION: u32 = 1;

/// Makes the enum of records, and the list of their kinds.
macro_rules! records {
    ($($(#[doc = $doc:literal])* $variant:ident $fields:tt = $name:literal, $version:literal;)+) => {
        /// One record of a snapshot.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Record {
            $($(#[doc = $doc])* $variant $fields,)+
        }

        /// The variants of [`Record`] by number.
        enum Kind {
            $($variant,)+
        }

        impl Record {
            /// Every kind of record by name, with the newest version of its encoding that this build reads, which it
            /// also writes. The order is that of the variants.
            pub const KINDS: [(&'static str, u32); [$($name),+].len()] = [$(($name, $version)),+];

            /// Returns its position in [`Self::KINDS`], which is also the first byte of its encoding.
            #[must_use]
            pub fn kind(&self) -> usize {
                match self {
                    $(Self::$variant { .. } => Kind::$variant as usize,)+
                }
            }
        }
    };
}

records! {
    Header(Header) = "header", 1;
    /// A version of a job. Numbered from 0 in the order of the stream.
    JobVersion(Arc<JobVersion>) = "job versions", 1;
    /// The metrics of the choice of places. Numbered from 0 in the order of the stream.
    Metrics(Arc<PlacementMetrics>) = "placement metrics", 1;
    /// The data that some allocations share. Numbered from 0 in the order of the stream.
    Cohort(CohortRecord) = "cohorts", 1;
    Node(Box<NodeRecord>) = "nodes", 2;
    /// A node that is gone and to whose number allocations still refer.
    Held(RemovedNodeRecord) = "nodes gone", 1;
    Job(JobRecord) = "jobs", 1;
    Eval(Arc<Evaluation>) = "evaluations", 1;
    /// An allocation, packed as in the state; it refers to its cohort by position in the stream.
    Alloc(Box<RowRecord>) = "allocations", 1;
    Deployment(Arc<Deployment>) = "deployments", 1;
    /// The settings, unless they are the defaults.
    Config(Config) = "settings", 1;
    /// The answer to a keyed write.
    Answer(Arc<Answer>) = "answers", 1;
    End {
        /// Number of records before this one.
        records: u64,
    } = "end", 1;
    OneOff(Arc<OneOff>) = "one-off tasks", 1;
    /// The times of one-off tasks, unless they are the defaults.
    OneOffTimes(OneOffTimings) = "times of one-off tasks", 1;
    /// A domain that is fresh.
    Domain(DomainRecord) = "domains", 1;
    /// The cluster's network policy, unless none was ever written.
    Network(Box<ClusterPolicy>) = "network policy", 1;
    /// The tags of a job's versions, after the job; none of a job without any.
    Tags(TagsRecord) = "tags of job versions", 1;
    /// The cluster's part of derived ids, before every row; none if it is 0.
    Cluster(ClusterTag) = "cluster", 1;
    /// The scaling events of a job, after the job; none of a job without any.
    Scaling(ScalingRecord) = "scaling events", 1;
}

/// Returns the records of rows that need no other record, in the order of the stream. Evaluations are not among them:
/// they come before the allocations.
fn whole_rows(state: &State) -> impl Iterator<Item = Record> {
    let State {
        // These are in the header, and in records that `stream` makes.
        applied: _,
        nodes: _,
        jobs: _,
        allocs: _,
        evals: _,
        deployments,
        config,
        network,
        answers,
        one_offs,
    } = state;
    let times = Some(one_offs.times()).filter(|times| *times != OneOffTimings::default());
    let domains = one_offs.domains_marked_fresh().map(|(domain, until)| {
        let domain = domain.to_owned();
        Record::Domain(DomainRecord { domain, until })
    });
    let deployments = deployments.iter().map(Arc::clone);
    let is_configured = *config != Config::default();
    let has_policy = *network != ClusterPolicy::default();
    deployments
        .map(Record::Deployment)
        .chain(is_configured.then_some(Record::Config(*config)))
        .chain(has_policy.then(|| Record::Network(Box::new(network.clone()))))
        .chain(answers.iter().map(Arc::clone).map(Record::Answer))
        .chain(one_offs.iter().map(Arc::clone).map(Record::OneOff))
        .chain(times.map(Record::OneOffTimes))
        .chain(domains)
}

/// Writes a row from a record that needed no other record.
fn put_whole(state: &mut State, record: Record) {
    match record {
        Record::Eval(eval) => state.put_eval(Arc::unwrap_or_clone(eval)),
        Record::Deployment(row) => state.put_deployment(Arc::unwrap_or_clone(row)),
        Record::Config(config) => state.config = config,
        Record::Network(policy) => state.network = *policy,
        Record::Answer(answer) => state.answers.put(Arc::unwrap_or_clone(answer)),
        Record::OneOff(row) => state.one_offs.put(Arc::unwrap_or_clone(row)),
        Record::OneOffTimes(times) => state.one_offs.set_times(times),
        Record::Domain(DomainRecord { domain, until }) => state.one_offs.freshen(&domain, until),
        // `restore` handles these records.
        Record::Header(_)
        | Record::JobVersion(_)
        | Record::Metrics(_)
        | Record::Cohort(_)
        | Record::Node(_)
        | Record::Held(_)
        | Record::Job(_)
        | Record::Alloc(_)
        | Record::End { .. }
        | Record::Tags(_)
        | Record::Cluster(_)
        | Record::Scaling(_) => {}
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

/// A node that is gone and to whose number allocations still refer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedNodeRecord {
    number: NodeNumber,
    node_id: NodeId,
}

/// A domain that is fresh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainRecord {
    domain: String,
    /// The end of the freshness. `None`: it does not end.
    until: Option<Timestamp>,
}

/// A job, with its versions by position in the stream.
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

/// The data shared by the instances that one plan placed for one group. The version of their job and the metrics are
/// given by position in the stream.
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
