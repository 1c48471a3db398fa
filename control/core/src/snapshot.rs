//! A state as a stream of records, and back.
//!
//! The first record says the version and how many of each kind follow; the last closes the stream, so
//! that a cut one is noticed. What allocations share is written once, before them, and referred to by
//! its place in the stream. Indexes are not written: they follow from the rows. Every record's encoding
//! is persisted: variants and fields are appended as new variants, and [`VERSION`] is raised.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::alloc::{
    Allocation, ClientStatus, DesiredStatus, PlacementMetrics, Score, TaskState,
};
use muster_domain::eval::Evaluation;
use muster_domain::id::{AllocId, EvalId, LogIndex, NodeId, Timestamp};
use muster_domain::job::{Job, JobStatus, JobVersion};
use muster_domain::node::{Eligibility, Node, NodeSpec, NodeStatus};
use muster_domain::resources::AllocatedPort;
use serde::{Deserialize, Serialize};

use crate::state::{Answer, JobRow, State, StateHash};

/// The newest format of snapshots that this build reads, and the one it writes.
pub const VERSION: u32 = 1;

/// One record of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The first.
    Header(Header),
    /// A version of a job. Numbered from 0 in the order of the stream.
    JobVersion(Arc<JobVersion>),
    /// How places were chosen. Numbered from 0 in the order of the stream.
    Metrics(Arc<PlacementMetrics>),
    /// A node.
    Node(Box<NodeRecord>),
    /// A job.
    Job(JobRecord),
    /// An evaluation.
    Eval(Arc<Evaluation>),
    /// An allocation.
    Alloc(Box<AllocRecord>),
    /// The answer to a keyed write.
    Answer(Arc<Answer>),
    /// The last.
    End {
        /// Records before this one.
        records: u64,
    },
}

/// What a snapshot is of.
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
    /// What the restored state must hash to.
    pub hash: StateHash,
}

/// A node and its number among the columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    number: u32,
    spec: Arc<NodeSpec>,
    status: NodeStatus,
    status_at: Timestamp,
    eligibility: Eligibility,
    create_index: LogIndex,
    modify_index: LogIndex,
}

/// A job, its versions by their place in the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    current: u32,
    older: Vec<u32>,
    stop: bool,
    status: JobStatus,
    modify_index: LogIndex,
    plan_index: LogIndex,
}

/// An allocation; its job's version and its metrics by their place in the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocRecord {
    id: AllocId,
    eval_id: EvalId,
    node_id: NodeId,
    job: u32,
    group_at: u16,
    name_index: u32,
    ports: Vec<AllocatedPort>,
    metrics: u32,
    score: Score,
    desired: DesiredStatus,
    desired_description: String,
    client_status: ClientStatus,
    client_description: String,
    task_states: Vec<TaskState>,
    previous: Option<AllocId>,
    next: Option<AllocId>,
    create_index: LogIndex,
    modify_index: LogIndex,
    alloc_modify_index: LogIndex,
    create_time: Timestamp,
    modify_time: Timestamp,
}

/// Why a stream of records is no state.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError<E> {
    /// A record could not be read.
    #[error("record {at} of the snapshot cannot be read")]
    Read {
        /// Its place in the stream.
        at: u64,
        /// Why.
        #[source]
        source: E,
    },
    /// It was written by a newer version.
    #[error(
        "the snapshot has format {found}, this version reads up to {VERSION}: start a newer muster"
    )]
    Version {
        /// Its format.
        found: u32,
    },
    /// It does not begin with a header, or ends early.
    #[error("the snapshot is cut: {records} records, and no proper {missing}")]
    Cut {
        /// Records read.
        records: u64,
        /// What is missing.
        missing: &'static str,
    },
    /// A record refers to one that was not before it.
    #[error("record {at} of the snapshot refers to a {what} that is not there")]
    Dangling {
        /// Its place in the stream.
        at: u64,
        /// What it refers to.
        what: &'static str,
    },
    /// Its rows are not those that it was made of.
    #[error("the snapshot does not give back the state that it was made of: {} differ", tables.join(", "))]
    Differs {
        /// The tables that differ.
        tables: Vec<&'static str>,
    },
}

/// Shared objects by address, and in the order of the stream.
#[derive(Debug)]
struct Shared<T> {
    numbers: BTreeMap<usize, u32>,
    objects: Vec<Arc<T>>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self {
            numbers: BTreeMap::new(),
            objects: Vec::new(),
        }
    }
}

impl<T> Shared<T> {
    /// The number of `object`. Numbers follow the order of the first use, not the addresses.
    fn number(&mut self, object: &Arc<T>) -> u32 {
        let next =
            u32::try_from(self.objects.len()).expect("fewer objects than addresses of 32 bits");
        *self
            .numbers
            .entry(Arc::as_ptr(object).addr())
            .or_insert_with(|| {
                self.objects.push(Arc::clone(object));
                next
            })
    }
}

/// The records of `state`, in order. Costs a table of what is shared; rows are made as they are taken.
pub fn records(state: &State) -> impl Iterator<Item = Record> {
    let State {
        applied,
        nodes,
        jobs,
        allocs,
        evals,
        answers,
    } = state;
    let header = Header {
        version: VERSION,
        applied: *applied,
        nodes_index: nodes.index(),
        jobs_index: jobs.index(),
        allocs_index: allocs.index(),
        evals_index: evals.index(),
        hash: state.hash(),
    };
    let mut versions = Shared::<JobVersion>::default();
    let mut metrics = Shared::<PlacementMetrics>::default();
    for (_, row) in jobs.rows() {
        for version in std::iter::once(&row.job.current).chain(&row.older) {
            versions.number(version);
        }
    }
    for alloc in allocs.iter() {
        versions.number(&alloc.job);
        metrics.number(&alloc.metrics);
    }
    let shared: Vec<Record> = (versions
        .objects
        .iter()
        .map(|one| Record::JobVersion(Arc::clone(one))))
    .chain(
        metrics
            .objects
            .iter()
            .map(|one| Record::Metrics(Arc::clone(one))),
    )
    .collect();
    let count =
        1 + shared.len() + nodes.len() + jobs.len() + evals.len() + allocs.len() + answers.len();
    let job_records: Vec<Record> = jobs
        .rows()
        .map(|(_, row)| Record::Job(job_record(row, &mut versions)))
        .collect();
    let node_records = nodes
        .iter()
        .map(|node| Record::Node(Box::new(node_record(state, node))));
    let eval_records = evals.iter().map(|eval| Record::Eval(Arc::clone(eval)));
    let alloc_records = allocs.iter().map(move |alloc| {
        let (job, metrics) = (versions.number(&alloc.job), metrics.number(&alloc.metrics));
        Record::Alloc(Box::new(alloc_record(alloc, job, metrics)))
    });
    std::iter::once(Record::Header(header))
        .chain(shared)
        .chain(node_records)
        .chain(job_records)
        .chain(eval_records)
        .chain(alloc_records)
        .chain(
            answers
                .iter()
                .map(|answer| Record::Answer(Arc::clone(answer))),
        )
        .chain(std::iter::once(Record::End {
            records: count as u64,
        }))
}

fn node_record(state: &State, node: &Node) -> NodeRecord {
    let Node {
        spec,
        status,
        status_at,
        eligibility,
        create_index,
        modify_index,
    } = node;
    let number = state
        .nodes
        .number(&spec.id)
        .expect("every row has a number");
    NodeRecord {
        number: u32::try_from(number).expect("numbers have 32 bits"),
        spec: Arc::clone(spec),
        status: *status,
        status_at: *status_at,
        eligibility: *eligibility,
        create_index: *create_index,
        modify_index: *modify_index,
    }
}

fn job_record(row: &JobRow, versions: &mut Shared<JobVersion>) -> JobRecord {
    let JobRow {
        job,
        older,
        plan_index,
    } = row;
    let Job {
        current,
        stop,
        status,
        modify_index,
    } = &**job;
    JobRecord {
        current: versions.number(current),
        older: older
            .iter()
            .map(|version| versions.number(version))
            .collect(),
        stop: *stop,
        status: *status,
        modify_index: *modify_index,
        plan_index: *plan_index,
    }
}

fn alloc_record(alloc: &Allocation, job: u32, metrics: u32) -> AllocRecord {
    let alloc = alloc.clone();
    AllocRecord {
        id: alloc.id,
        eval_id: alloc.eval_id,
        node_id: alloc.node_id,
        job,
        group_at: alloc.group_at,
        name_index: alloc.name_index,
        ports: alloc.ports,
        metrics,
        score: alloc.score,
        desired: alloc.desired,
        desired_description: alloc.desired_description,
        client_status: alloc.client_status,
        client_description: alloc.client_description,
        task_states: alloc.task_states,
        previous: alloc.previous,
        next: alloc.next,
        create_index: alloc.create_index,
        modify_index: alloc.modify_index,
        alloc_modify_index: alloc.alloc_modify_index,
        create_time: alloc.create_time,
        modify_time: alloc.modify_time,
    }
}

/// The state that the records describe.
///
/// # Errors
///
/// [`RestoreError`]; nothing of a broken stream is used.
pub fn restore<E>(
    records: impl IntoIterator<Item = Result<Record, E>>,
) -> Result<State, RestoreError<E>> {
    let mut restoring = Restoring::default();
    for record in records {
        let at = restoring.read;
        let record = record.map_err(|source| RestoreError::Read { at, source })?;
        restoring.take(record)?;
        restoring.read += 1;
    }
    restoring.finish()
}

#[derive(Debug, Default)]
struct Restoring {
    state: State,
    header: Option<Header>,
    versions: Vec<Arc<JobVersion>>,
    metrics: Vec<Arc<PlacementMetrics>>,
    read: u64,
    ended: bool,
}

impl Restoring {
    fn take<E>(&mut self, record: Record) -> Result<(), RestoreError<E>> {
        if self.ended || (self.header.is_none() && !matches!(record, Record::Header(_))) {
            return Err(RestoreError::Cut {
                records: self.read,
                missing: "header",
            });
        }
        match record {
            Record::Header(header) if header.version > VERSION => {
                return Err(RestoreError::Version {
                    found: header.version,
                });
            }
            Record::Header(header) => self.header = Some(header),
            Record::JobVersion(version) => self.versions.push(version),
            Record::Metrics(metrics) => self.metrics.push(metrics),
            Record::Node(node) => self.node(*node),
            Record::Job(job) => self.job(&job)?,
            Record::Eval(eval) => self.state.evals.put(Arc::unwrap_or_clone(eval)),
            Record::Alloc(alloc) => self.alloc(*alloc)?,
            Record::Answer(answer) => self.state.answers.put(Arc::unwrap_or_clone(answer)),
            Record::End { records } => {
                self.ended = records == self.read;
            }
        }
        Ok(())
    }

    fn finish<E>(self) -> Result<State, RestoreError<E>> {
        let Some(header) = self.header.filter(|_| self.ended) else {
            return Err(RestoreError::Cut {
                records: self.read,
                missing: "end",
            });
        };
        let mut state = self.state;
        state.applied = header.applied;
        state.nodes.set_index(header.nodes_index);
        state.jobs.set_index(header.jobs_index);
        state.allocs.set_index(header.allocs_index);
        state.evals.set_index(header.evals_index);
        let differing = state.hash().differing(&header.hash);
        if differing.is_empty() {
            Ok(state)
        } else {
            Err(RestoreError::Differs { tables: differing })
        }
    }

    fn node(&mut self, record: NodeRecord) {
        let NodeRecord {
            number,
            spec,
            status,
            status_at,
            eligibility,
            create_index,
            modify_index,
        } = record;
        let node = Node {
            spec,
            status,
            status_at,
            eligibility,
            create_index,
            modify_index,
        };
        self.state.nodes.put_at(node, number);
    }

    fn version<E>(&self, at: u32) -> Result<Arc<JobVersion>, RestoreError<E>> {
        let dangling = RestoreError::Dangling {
            at: self.read,
            what: "job version",
        };
        self.versions
            .get(at as usize)
            .map(Arc::clone)
            .ok_or(dangling)
    }

    fn job<E>(&mut self, record: &JobRecord) -> Result<(), RestoreError<E>> {
        let JobRecord {
            current,
            older,
            stop,
            status,
            modify_index,
            plan_index,
        } = record;
        let older = older
            .iter()
            .map(|at| self.version(*at))
            .collect::<Result<_, _>>()?;
        let job = Job {
            current: self.version(*current)?,
            stop: *stop,
            status: *status,
            modify_index: *modify_index,
        };
        self.state.jobs.put(JobRow {
            job: Arc::new(job),
            older,
            plan_index: *plan_index,
        });
        Ok(())
    }

    fn alloc<E>(&mut self, record: AllocRecord) -> Result<(), RestoreError<E>> {
        let job = self.version(record.job)?;
        let dangling = RestoreError::Dangling {
            at: self.read,
            what: "metrics record",
        };
        let metrics = self
            .metrics
            .get(record.metrics as usize)
            .map(Arc::clone)
            .ok_or(dangling)?;
        if usize::from(record.group_at) >= job.spec.groups.len() {
            return Err(RestoreError::Dangling {
                at: self.read,
                what: "task group",
            });
        }
        self.state.put_alloc(Allocation {
            id: record.id,
            eval_id: record.eval_id,
            node_id: record.node_id,
            job,
            group_at: record.group_at,
            name_index: record.name_index,
            ports: record.ports,
            metrics,
            score: record.score,
            desired: record.desired,
            desired_description: record.desired_description,
            client_status: record.client_status,
            client_description: record.client_description,
            task_states: record.task_states,
            previous: record.previous,
            next: record.next,
            create_index: record.create_index,
            modify_index: record.modify_index,
            alloc_modify_index: record.alloc_modify_index,
            create_time: record.create_time,
            modify_time: record.modify_time,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
