//! Converts a state into records.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use muster_domain::alloc::PlacementMetrics;
use muster_domain::id::{ClusterTag, NodeId, NodeNumber};
use muster_domain::job::{Job, JobVersion};
use muster_domain::node::Node;

use super::{
    CohortRecord, Header, JobRecord, NodeRecord, Record, RemovedNodeRecord, ScalingRecord,
    TagsRecord, VERSION, whole_rows,
};
use crate::state::{JobRow, PlanShared, Row, RowRecord, State};

/// Returns the records of `state`, in order.
///
/// # Panics
///
/// If a node of the state has no number, which [`crate::state::check`] excludes.
pub fn records(state: &State) -> impl Iterator<Item = Record> {
    let State {
        applied,
        nodes,
        jobs,
        allocs,
        evals,
        deployments,
        one_offs,
        // The others are in `whole_rows`.
        ..
    } = state;
    let header = Header {
        version: VERSION,
        applied: *applied,
        nodes_index: nodes.index(),
        jobs_index: jobs.index(),
        allocs_index: allocs.index(),
        evals_index: evals.index(),
        deployments_index: deployments.index(),
        one_offs_index: one_offs.index(),
        hash: state.hash(),
    };
    let nodes_rows = nodes.iter().map(move |node| {
        let number = nodes.number(&node.spec.id);
        Item::Node(number.expect("every row has a number"), node)
    });
    let held = nodes
        .held()
        .map(|(node_id, number)| Item::Held(node_id, number));
    let cluster = Some(state.cluster()).filter(|cluster| *cluster != ClusterTag::default());
    let source = nodes_rows
        .chain(held)
        .chain(jobs.rows().map(|(_, row)| Item::Job(row)))
        .chain(
            evals
                .iter()
                .map(|row| Item::Whole(Record::Eval(Arc::clone(row)))),
        )
        .chain(allocs.rows().map(|(key, row)| Item::Alloc(key, row)))
        .chain(whole_rows(state).map(Item::Whole));
    Records {
        source: Some(source),
        shared: SharedIndexes::default(),
        ready: std::iter::once(Record::Header(header))
            .chain(cluster.map(Record::Cluster))
            .collect(),
        given: 0,
    }
}

/// A row.
enum Item<'a> {
    Node(NodeNumber, &'a Arc<Node>),
    Held(NodeId, NodeNumber),
    Job(&'a Arc<JobRow>),
    Alloc(u64, &'a Row),
    /// A row whose record needs no other record.
    Whole(Record),
}

/// An iterator over records.
struct Records<I> {
    /// The remaining rows. `None` at the end.
    source: Option<I>,
    shared: SharedIndexes,
    ready: VecDeque<Record>,
    given: u64,
}

impl<'a, I: Iterator<Item = Item<'a>>> Iterator for Records<I> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        while self.ready.is_empty() {
            match self.source.as_mut()?.next() {
                Some(item) => self.take(item),
                None => {
                    self.source = None;
                    self.ready.push_back(Record::End {
                        records: self.given,
                    });
                }
            }
        }
        self.given += 1;
        self.ready.pop_front()
    }
}

impl<I> Records<I> {
    fn take(&mut self, item: Item<'_>) {
        let record = match item {
            Item::Alloc(key, row) => {
                let cohort = self.shared.cohort(row.cohort(), &mut self.ready);
                Record::Alloc(Box::new(RowRecord::of(key, row, cohort)))
            }
            Item::Node(number, node) => Record::Node(Box::new(node_record(number, node))),
            Item::Held(node_id, number) => Record::Held(RemovedNodeRecord { number, node_id }),
            Item::Job(row) => {
                let record = self.shared.job_record(row, &mut self.ready);
                self.ready.push_back(Record::Job(record));
                if !row.job.tags.is_empty() {
                    self.ready.push_back(Record::Tags(TagsRecord {
                        key: row.job.key(),
                        tags: row.job.tags.clone(),
                    }));
                }
                if row.job.scaling_events.is_empty() {
                    return;
                }
                Record::Scaling(ScalingRecord {
                    key: row.job.key(),
                    events: Arc::clone(&row.job.scaling_events),
                })
            }
            Item::Whole(record) => record,
        };
        self.ready.push_back(record);
    }
}

/// Positions in the stream of shared data, by address. The state is borrowed, so no address is used twice; numbers
/// follow the order of the first use.
#[derive(Default)]
struct SharedIndexes {
    versions: BTreeMap<usize, u32>,
    metrics: BTreeMap<usize, u32>,
    cohorts: BTreeMap<usize, u32>,
}

fn next(places: &BTreeMap<usize, u32>) -> u32 {
    u32::try_from(places.len()).expect("fewer objects than 32 bits count")
}

impl SharedIndexes {
    fn version(&mut self, version: &Arc<JobVersion>, ready: &mut VecDeque<Record>) -> u32 {
        let place = next(&self.versions);
        let address = Arc::as_ptr(version).addr();
        *self.versions.entry(address).or_insert_with(|| {
            ready.push_back(Record::JobVersion(Arc::clone(version)));
            place
        })
    }

    fn metrics(&mut self, metrics: &Arc<PlacementMetrics>, ready: &mut VecDeque<Record>) -> u32 {
        let place = next(&self.metrics);
        let address = Arc::as_ptr(metrics).addr();
        *self.metrics.entry(address).or_insert_with(|| {
            ready.push_back(Record::Metrics(Arc::clone(metrics)));
            place
        })
    }

    fn cohort(&mut self, cohort: &Arc<PlanShared>, ready: &mut VecDeque<Record>) -> u32 {
        let address = Arc::as_ptr(cohort).addr();
        if let Some(place) = self.cohorts.get(&address) {
            return *place;
        }
        let place = next(&self.cohorts);
        let record = CohortRecord {
            job: self.version(cohort.job(), ready),
            group_at: cohort.group_at(),
            eval_id: cohort.eval_id(),
            metrics: self.metrics(cohort.metrics(), ready),
            create_time: cohort.create_time(),
            deployment: cohort.deployment(),
        };
        ready.push_back(Record::Cohort(record));
        self.cohorts.insert(address, place);
        place
    }

    fn job_record(&mut self, row: &JobRow, ready: &mut VecDeque<Record>) -> JobRecord {
        let JobRow {
            job,
            older,
            plan_index,
        } = row;
        let Job {
            current,
            stop,
            status,
            stable,
            // Tags and scaling events have records of their own.
            tags: _,
            scaling_events: _,
            launched_at,
            modify_index,
        } = &**job;
        JobRecord {
            current: self.version(current, ready),
            older: older
                .iter()
                .map(|version| self.version(version, ready))
                .collect(),
            stop: *stop,
            status: *status,
            stable: stable.clone(),
            launched_at: *launched_at,
            modify_index: *modify_index,
            plan_index: *plan_index,
        }
    }
}

fn node_record(number: NodeNumber, node: &Node) -> NodeRecord {
    let Node {
        spec,
        status,
        status_at,
        eligibility,
        drain,
        events,
        create_index,
        modify_index,
    } = node;
    NodeRecord {
        number,
        spec: Arc::clone(spec),
        status: *status,
        status_at: *status_at,
        eligibility: *eligibility,
        drain: *drain,
        events: Arc::clone(events),
        create_index: *create_index,
        modify_index: *modify_index,
    }
}
