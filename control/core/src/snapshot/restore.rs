//! Restores a state from records.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::alloc::PlacementMetrics;
use muster_domain::id::{NodeId, NodeNumber};
use muster_domain::job::{Job, JobVersion};
use muster_domain::node::Node;

use super::{
    CohortRecord, Header, JobRecord, NodeRecord, Record, RemovedNodeRecord, ScalingRecord,
    TagsRecord, VERSION, put_whole,
};
use crate::limits::NODE_NUMBERS_MAX;
#[cfg(any(test, feature = "fixture"))]
use crate::state::StateHash;
use crate::state::{JobRow, PlanShared, RowRecord, State};

/// The reason why a stream of records cannot become a state.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError<E> {
    /// A record could not be read.
    #[error("record {at} of the snapshot cannot be read")]
    Read {
        /// The position of the record in the stream.
        at: u64,
        #[source]
        source: E,
    },
    /// The snapshot was written by a newer version.
    #[error(
        "the snapshot has format {found}, this version reads up to {VERSION}: start a newer muster"
    )]
    Version { found: u32 },
    /// The stream does not begin with a header, or ends early.
    #[error("the snapshot is cut: {records} records, and no proper {missing}")]
    Cut { records: u64, missing: &'static str },
    /// A record refers to a record that did not come before it.
    #[error("record {at} of the snapshot refers to a {what} that is not there")]
    Dangling {
        /// The position of the record in the stream.
        at: u64,
        /// The kind of the missing record.
        what: &'static str,
    },
    /// A node has a number beyond the highest.
    #[error(
        "record {at} of the snapshot has node number {number}, the highest is {}",
        NODE_NUMBERS_MAX - 1
    )]
    NodeNumber {
        /// The position of the record in the stream.
        at: u64,
        number: u32,
    },
    /// The restored rows do not have the hash of the original state.
    #[error(
        "the snapshot does not give back the state that it was made of: {} differ",
        tables.join(", ")
    )]
    Differs {
        /// The tables that differ.
        tables: Vec<&'static str>,
    },
}

/// Returns the state that the records describe.
///
/// # Errors
///
/// [`RestoreError`]; no part of a broken stream is used.
pub fn restore<E>(
    records: impl IntoIterator<Item = Result<Record, E>>,
) -> Result<State, RestoreError<E>> {
    let mut restoring = StateRestore::default();
    for record in records {
        let at = restoring.read;
        let record = record.map_err(|source| RestoreError::Read { at, source })?;
        restoring.take(record)?;
    }
    restoring.finish()
}

/// A state being restored, for a caller that receives the records one by one.
#[derive(Debug, Default)]
pub struct StateRestore {
    state: State,
    header: Option<Header>,
    versions: Vec<Arc<JobVersion>>,
    metrics: Vec<Arc<PlacementMetrics>>,
    cohorts: Vec<Arc<PlanShared>>,
    /// Nodes that are gone.
    held: BTreeMap<NodeNumber, NodeId>,
    read: u64,
    ended: bool,
}

impl StateRestore {
    /// Handles the next record.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]; the restoring is over then.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "`put_whole` names every kind"
    )]
    pub fn take<E>(&mut self, record: Record) -> Result<(), RestoreError<E>> {
        // The header is the first record and no other.
        if self.ended || self.header.is_some() == matches!(record, Record::Header(_)) {
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
            Record::Cluster(_) if self.read > 1 => {
                return Err(RestoreError::Cut {
                    records: self.read,
                    missing: "cluster record before its rows",
                });
            }
            Record::Cluster(cluster) => self.state.set_cluster(cluster),
            Record::JobVersion(version) => self.versions.push(version),
            Record::Metrics(metrics) => self.metrics.push(metrics),
            Record::Cohort(cohort) => self.cohort(&cohort)?,
            Record::Node(node) => self.node(*node)?,
            Record::Held(RemovedNodeRecord { number, node_id }) => {
                self.check_free(number, node_id)?;
                self.held.insert(number, node_id);
                self.state.nodes.hold(node_id, number);
            }
            Record::Job(job) => self.job(&job)?,
            Record::Tags(record) => self.tags(record)?,
            Record::Scaling(record) => self.scaling(record)?,
            Record::Alloc(row) => self.alloc(*row)?,
            Record::End { records } => {
                self.ended = records == self.read;
            }
            whole => put_whole(&mut self.state, whole),
        }
        self.read += 1;
        Ok(())
    }

    /// Returns the hash that the header must have for the records so far; `None` before the header.
    #[cfg(any(test, feature = "fixture"))]
    #[must_use]
    pub fn hash(&self) -> Option<StateHash> {
        let mut state = self.state.clone();
        set_indexes(&mut state, self.header.as_ref()?);
        Some(state.hash())
    }

    /// Returns the state, if the records are complete.
    ///
    /// # Errors
    ///
    /// [`RestoreError`].
    pub fn finish<E>(self) -> Result<State, RestoreError<E>> {
        let Some(header) = self.header.filter(|_| self.ended) else {
            return Err(RestoreError::Cut {
                records: self.read,
                missing: "end",
            });
        };
        let mut state = self.state;
        set_indexes(&mut state, &header);
        let differing = state.hash().differing(&header.hash);
        if !differing.is_empty() {
            return Err(RestoreError::Differs { tables: differing });
        }
        Ok(state)
    }

    fn dangling<E>(&self, what: &'static str) -> RestoreError<E> {
        RestoreError::Dangling {
            at: self.read,
            what,
        }
    }

    /// Refuses a number of another node, and a second number for the same node.
    fn check_free<E>(&self, number: NodeNumber, node_id: NodeId) -> Result<(), RestoreError<E>> {
        if number.0 >= NODE_NUMBERS_MAX {
            return Err(RestoreError::NodeNumber {
                at: self.read,
                number: number.0,
            });
        }
        let nodes = &self.state.nodes;
        let is_taken = nodes
            .column_at(number)
            .is_some_and(|column| column.occupied)
            || self.held.contains_key(&number);
        if is_taken || nodes.number_of_any(&node_id).is_some() {
            return Err(self.dangling("free node number"));
        }
        Ok(())
    }

    fn node<E>(&mut self, record: NodeRecord) -> Result<(), RestoreError<E>> {
        let NodeRecord {
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
        self.check_free(number, spec.id)?;
        let node = Node {
            spec,
            status,
            status_at,
            eligibility,
            drain,
            events,
            create_index,
            modify_index,
        };
        self.state.nodes.put_at(node, number);
        Ok(())
    }

    fn version<E>(&self, at: u32) -> Result<Arc<JobVersion>, RestoreError<E>> {
        let version = self.versions.get(at as usize).map(Arc::clone);
        version.ok_or_else(|| self.dangling("job version"))
    }

    fn job<E>(&mut self, record: &JobRecord) -> Result<(), RestoreError<E>> {
        let JobRecord {
            current,
            older,
            stop,
            status,
            stable,
            launched_at,
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
            stable: stable.clone(),
            tags: Vec::new(),
            scaling_events: Arc::default(),
            launched_at: *launched_at,
            modify_index: *modify_index,
        };
        self.state.jobs.put(JobRow {
            job: Arc::new(job),
            older,
            plan_index: *plan_index,
        });
        Ok(())
    }

    fn tags<E>(&mut self, record: TagsRecord) -> Result<(), RestoreError<E>> {
        let row = self.state.jobs.row(&record.key).map(Arc::clone);
        let row = row.ok_or_else(|| self.dangling("job"))?;
        let mut job = (*row.job).clone();
        job.tags = record.tags;
        self.state.jobs.put(JobRow {
            job: Arc::new(job),
            ..(*row).clone()
        });
        Ok(())
    }

    fn scaling<E>(&mut self, record: ScalingRecord) -> Result<(), RestoreError<E>> {
        let row = self.state.jobs.row(&record.key).map(Arc::clone);
        let row = row.ok_or_else(|| self.dangling("job"))?;
        let mut job = (*row.job).clone();
        job.scaling_events = record.events;
        self.state.jobs.put(JobRow {
            job: Arc::new(job),
            ..(*row).clone()
        });
        Ok(())
    }

    fn cohort<E>(&mut self, record: &CohortRecord) -> Result<(), RestoreError<E>> {
        let CohortRecord {
            job,
            group_at,
            eval_id,
            metrics,
            create_time,
            deployment,
        } = record;
        let job = self.version(*job)?;
        let metrics = self.metrics.get(*metrics as usize).map(Arc::clone);
        let metrics = metrics.ok_or_else(|| self.dangling("metrics record"))?;
        let cohort = PlanShared::new(job, *group_at, *eval_id, metrics, *create_time, *deployment);
        let cohort = cohort.ok_or_else(|| self.dangling("task group"))?;
        self.cohorts.push(cohort);
        Ok(())
    }

    fn alloc<E>(&mut self, record: RowRecord) -> Result<(), RestoreError<E>> {
        let cohort = self.cohorts.get(record.cohort as usize).map(Arc::clone);
        let cohort = cohort.ok_or_else(|| self.dangling("cohort"))?;
        let (key, row) = record
            .into_row(cohort)
            .ok_or_else(|| self.dangling("task of the group"))?;
        let column = self.state.nodes.column_at(row.node());
        let node_id = column
            .filter(|column| column.occupied)
            .map(|column| column.node_id)
            .or_else(|| self.held.get(&row.node()).copied())
            .ok_or_else(|| self.dangling("node"))?;
        if self.state.allocs.at(key).is_some() {
            return Err(self.dangling("free key"));
        }
        self.state.insert_alloc_on(key, row, node_id);
        Ok(())
    }
}

fn set_indexes(state: &mut State, header: &Header) {
    state.applied = header.applied;
    state.nodes.set_index(header.nodes_index);
    state.jobs.set_index(header.jobs_index);
    state.allocs.set_index(header.allocs_index);
    state.evals.set_index(header.evals_index);
    state.deployments.set_index(header.deployments_index);
    state.one_offs.set_index(header.one_offs_index);
}
