//! The event stream's buffer: the changes of the log's last entries, each row as its entry left it.
//!
//! The apply loop is the only writer and never waits: it keeps references to rows, and readers convert them to
//! JSON. A reader holds only the index that it wants next. If those events are gone when the reader returns, it
//! gets an error. The same entries make the same events on every server.
//!
//! A one-off task that one entry moved by two states has two events: the state in between, then the last state.
//!
//! Deliberately absent: rows that garbage collection removes. Their end was an earlier event. A removed job or
//! node is an event, because a user requested the removal. A collection that freed something is an event when it
//! ends ([`Collections`]). A collection on a node has no row but is an event: the entry that reports it carries it
//! ([`NodeCollection`]). So is a change of a server's health ([`ServerHealthNote`]).

mod collection;
mod node_collection;
mod server_health;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use muster_control_core::fsm::{ApplyResult, ChangedRow, EvalCommand, JobCommand};
use muster_control_core::state::{AllocFinder, SavedAlloc, State};
use muster_domain::deployment::Deployment;
use muster_domain::eval::Evaluation;
use muster_domain::id::{DeploymentId, JobKey, LogIndex, NodeId};
use muster_domain::job::Job;
use muster_domain::node::Node;
use muster_domain::one_off::OneOff;
use muster_wire::api;
use muster_wire::api::alloc::NodeRef;
use muster_wire::api::event::{Event, Payload, Topic};

use crate::limits;

pub(crate) use collection::{Collection, CollectionSlice, Collections};
pub(crate) use node_collection::NodeCollection;
pub(crate) use server_health::ServerHealthNote;

/// A row, as the entry left it.
#[derive(Clone, Debug)]
enum EventRow {
    Job(Arc<Job>),
    JobGone(Arc<JobKey>),
    Eval(Arc<Evaluation>),
    Deployment(Arc<Deployment>),
    Alloc(SavedAlloc, Arc<Node>),
    /// An allocation of a node that no longer exists.
    AllocAlone(SavedAlloc),
    Node(Arc<Node>),
    NodeGone(NodeId),
    Task(Arc<OneOff>),
    TaskGone(Arc<RemovedTask>),
    Collection(Arc<Collection>),
    NodeCollection(Arc<NodeCollection>),
    ServerHealth(Arc<ServerHealthNote>),
}

/// The changes of one entry.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    index: LogIndex,
    cause: &'static str,
    rows: Vec<EventRow>,
    bytes: usize,
}

impl Batch {
    /// Captures the rows that the entry at `index` changed, read from the `state` after it. Earlier versions of
    /// one-off tasks come before them. The entry's reports come after them. Returns `None` if there are no rows.
    pub(crate) fn capture(
        index: LogIndex,
        cause: &'static str,
        state: &State,
        applied: &ApplyResult,
        reports: Vec<LoggedReport>,
    ) -> Option<Self> {
        let passed = applied.passed.iter();
        let passed = passed.map(|row| EventRow::Task(Arc::clone(row)));
        let changed = applied.changed.iter();
        let mut allocs = state.allocs().finder();
        let reports = reports.into_iter().map(EventRow::from);
        let mut rows = Vec::with_capacity(passed.len() + changed.len() + reports.len());
        rows.extend(passed);
        let domains: HashMap<&str, &str> = applied
            .removed
            .iter()
            .map(|row| (row.guid.as_str(), row.domain.as_str()))
            .collect();
        let row = |changed| EventRow::of(state, &mut allocs, &domains, changed);
        rows.extend(changed.filter_map(row));
        rows.extend(reports);
        // A slice of a collection changes thousands of rows, and almost none of them becomes an event.
        rows.shrink_to_fit();
        let bytes = rows.iter().map(EventRow::bytes).sum();
        (!rows.is_empty()).then_some(Self {
            index,
            cause,
            rows,
            bytes,
        })
    }

    /// The index of the entry.
    pub(crate) fn index(&self) -> LogIndex {
        self.index
    }

    /// The number of rows that the entry changed.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Changes of one-off tasks.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskChange<'_>> {
        self.rows.iter().filter_map(|row| match row {
            EventRow::Task(row) => Some(TaskChange::Now(row)),
            EventRow::TaskGone(task) => Some(TaskChange::Gone(&task.guid)),
            EventRow::Job(_)
            | EventRow::JobGone(_)
            | EventRow::Eval(_)
            | EventRow::Deployment(_)
            | EventRow::Alloc(..)
            | EventRow::AllocAlone(_)
            | EventRow::Node(_)
            | EventRow::NodeGone(_)
            | EventRow::Collection(_)
            | EventRow::NodeCollection(_)
            | EventRow::ServerHealth(_) => None,
        })
    }

    /// Returns the events of the rows that match `wanted`.
    pub(crate) fn events(&self, wanted: &Filter) -> Vec<Event<Payload>> {
        let rows = self.rows.iter().filter(|row| wanted.takes(row));
        rows.map(|row| row.event(self.index, self.cause)).collect()
    }
}

/// A report in an entry without a row in the state.
#[derive(Debug)]
pub(crate) enum LoggedReport {
    /// A collection ended with the entry.
    Collection(Collection),
    /// A collection ended on a node.
    NodeCollection(NodeCollection),
    /// The health of a server changed.
    ServerHealth(ServerHealthNote),
}

impl From<LoggedReport> for EventRow {
    fn from(report: LoggedReport) -> Self {
        match report {
            LoggedReport::Collection(collection) => Self::Collection(Arc::new(collection)),
            LoggedReport::NodeCollection(collection) => Self::NodeCollection(Arc::new(collection)),
            LoggedReport::ServerHealth(note) => Self::ServerHealth(Arc::new(note)),
        }
    }
}

/// A one-off task that was removed.
#[derive(Debug)]
struct RemovedTask {
    guid: String,
    domain: String,
}

/// A change of a one-off task.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TaskChange<'a> {
    /// The task exists with this row.
    Now(&'a Arc<OneOff>),
    Gone(&'a str),
}

impl EventRow {
    /// Reads a changed row from `state`. `domains` holds the domains of removed tasks by guid.
    fn of(
        state: &State,
        allocs: &mut AllocFinder<'_>,
        domains: &HashMap<&str, &str>,
        changed: &ChangedRow,
    ) -> Option<Self> {
        match changed {
            ChangedRow::Job(key) => Some(match state.jobs().get(key) {
                Some(job) => Self::Job(Arc::clone(job)),
                // The key is copied: the original would keep a page of rows that were removed with it in memory.
                None => Self::JobGone(Arc::new((**key).clone())),
            }),
            ChangedRow::Node(node_id) => Some(match state.nodes().get(node_id) {
                Some(node) => Self::Node(Arc::clone(node)),
                None => Self::NodeGone(*node_id),
            }),
            ChangedRow::Eval(eval_id) => {
                let eval = state.evals().get(eval_id)?;
                Some(Self::Eval(Arc::clone(eval)))
            }
            ChangedRow::OneOff(guid) => Some(match state.one_offs().get(guid) {
                Some(row) => Self::Task(Arc::clone(row)),
                None => Self::TaskGone(Arc::new(RemovedTask {
                    guid: guid.to_string(),
                    domain: (*domains.get(&**guid)?).to_owned(),
                })),
            }),
            ChangedRow::Deployment(id) => {
                let deployment = state.deployments().get(id)?;
                Some(Self::Deployment(Arc::clone(deployment)))
            }
            ChangedRow::AllocGone(_) => None,
            ChangedRow::Alloc(alloc_id) => {
                let alloc = allocs.get(alloc_id)?;
                let node_id = state.node_meant(alloc.node());
                let saved = alloc.save(node_id);
                Some(match state.nodes().get(&node_id) {
                    Some(node) => Self::Alloc(saved, Arc::clone(node)),
                    None => Self::AllocAlone(saved),
                })
            }
        }
    }

    /// Estimates the bytes that the row holds in memory. Rows share much with the state, so the estimate is above
    /// the real cost.
    fn bytes(&self) -> usize {
        match self {
            Self::Job(_) => limits::EVENT_JOB_BYTES,
            Self::Node(_) => limits::EVENT_NODE_BYTES,
            Self::Eval(_)
            | Self::Deployment(_)
            | Self::Alloc(..)
            | Self::AllocAlone(_)
            | Self::Collection(_)
            | Self::NodeCollection(_)
            | Self::ServerHealth(_) => limits::EVENT_ROW_BYTES,
            Self::Task(_) => limits::EVENT_TASK_BYTES,
            Self::JobGone(_) | Self::NodeGone(_) | Self::TaskGone(_) => size_of::<Self>(),
        }
    }

    fn topic(&self) -> Topic {
        match self {
            Self::Job(_) | Self::JobGone(_) => Topic::Job,
            Self::Eval(_) => Topic::Evaluation,
            Self::Deployment(_) => Topic::Deployment,
            Self::Alloc(..) | Self::AllocAlone(_) => Topic::Allocation,
            Self::Node(_) | Self::NodeGone(_) => Topic::Node,
            Self::Task(_) | Self::TaskGone(_) => Topic::Task,
            Self::Collection(_) | Self::NodeCollection(_) => Topic::GarbageCollection,
            Self::ServerHealth(_) => Topic::Server,
        }
    }

    fn namespace(&self) -> &str {
        match self {
            Self::Job(job) => &job.current.spec.namespace,
            Self::JobGone(key) => &key.namespace,
            Self::Eval(eval) => &eval.job.namespace,
            Self::Deployment(deployment) => &deployment.job.namespace,
            Self::Alloc(alloc, _) | Self::AllocAlone(alloc) => &alloc.job().spec.namespace,
            Self::Node(_)
            | Self::NodeGone(_)
            | Self::Task(_)
            | Self::TaskGone(_)
            | Self::Collection(_)
            | Self::NodeCollection(_)
            | Self::ServerHealth(_) => "",
        }
    }

    fn key(&self) -> String {
        match self {
            Self::Job(job) => job.current.spec.id.clone(),
            Self::JobGone(key) => key.job_id.clone(),
            Self::Eval(eval) => eval.id.to_string(),
            Self::Deployment(deployment) => deployment.id.to_string(),
            Self::Alloc(alloc, _) | Self::AllocAlone(alloc) => alloc.id().to_string(),
            Self::Node(node) => node.spec.id.to_string(),
            Self::NodeGone(node_id) => node_id.to_string(),
            Self::Task(row) => row.guid.clone(),
            Self::TaskGone(task) => task.guid.clone(),
            Self::Collection(collection) => collection.rule().to_owned(),
            Self::NodeCollection(collection) => collection.node_id().to_string(),
            Self::ServerHealth(note) => note.server_id().to_string(),
        }
    }

    /// The job that an allocation or evaluation belongs to.
    fn job_id(&self) -> Option<&str> {
        match self {
            Self::Eval(eval) => Some(&eval.job.job_id),
            Self::Deployment(deployment) => Some(&deployment.job.job_id),
            Self::Alloc(alloc, _) | Self::AllocAlone(alloc) => Some(&alloc.job().spec.id),
            // A task is found by its domain, as an allocation is by its job.
            Self::Task(row) => Some(&row.domain),
            Self::TaskGone(task) => Some(&task.domain),
            Self::Job(_)
            | Self::JobGone(_)
            | Self::Node(_)
            | Self::NodeGone(_)
            | Self::Collection(_)
            | Self::NodeCollection(_)
            | Self::ServerHealth(_) => None,
        }
    }

    /// The deployment that an allocation or evaluation belongs to.
    fn deployment(&self) -> Option<DeploymentId> {
        match self {
            Self::Eval(eval) => eval.deployment,
            Self::Alloc(alloc, _) | Self::AllocAlone(alloc) => alloc.deployment(),
            Self::Job(_)
            | Self::JobGone(_)
            | Self::Deployment(_)
            | Self::Node(_)
            | Self::NodeGone(_)
            | Self::Task(_)
            | Self::TaskGone(_)
            | Self::Collection(_)
            | Self::NodeCollection(_)
            | Self::ServerHealth(_) => None,
        }
    }

    fn payload(&self) -> Payload {
        let alone = |alloc: &SavedAlloc, node: &NodeRef| {
            let mut shape = api::alloc::Allocation::new(&alloc.unpack(), node);
            shape.job = None;
            Payload::Allocation(Box::new(shape))
        };
        match self {
            Self::Job(job) => Payload::Job(Some(Box::new(api::job::Job::from_job(job)))),
            Self::JobGone(_) => Payload::Job(None),
            Self::Deployment(deployment) => {
                Payload::Deployment(Box::new(api::deployment::Deployment::from(&**deployment)))
            }
            Self::Eval(eval) => Payload::Evaluation(Box::new(api::eval::Evaluation::from(&**eval))),
            Self::Alloc(alloc, node) => alone(alloc, &NodeRef::from(&**node)),
            Self::AllocAlone(alloc) => alone(alloc, &NodeRef::default()),
            Self::Node(node) => Payload::Node(Some(Box::new(api::node::Node::from(&**node)))),
            Self::NodeGone(_) => Payload::Node(None),
            Self::Task(row) => Payload::Task(Some(Box::new(api::task::Task::from(&**row)))),
            Self::TaskGone(_) => Payload::Task(None),
            Self::Collection(collection) => {
                Payload::GarbageCollection(Box::new(collection.shape()))
            }
            Self::NodeCollection(collection) => {
                Payload::NodeGarbageCollection(Box::new(collection.shape()))
            }
            Self::ServerHealth(note) => Payload::Server(Box::new(note.shape())),
        }
    }

    fn event(&self, index: LogIndex, cause: &str) -> Event<Payload> {
        let event_type = match self {
            Self::NodeGone(_) => "NodeDeregistration",
            Self::JobGone(_) => "JobDeregistered",
            Self::TaskGone(_) => "TaskDeleted",
            // The entry that records a job may also place it.
            Self::Alloc(..) | Self::AllocAlone(_) | Self::Deployment(_)
                if cause == JobCommand::REGISTERED =>
            {
                EvalCommand::PLANNED
            }
            Self::Job(_)
            | Self::Eval(_)
            | Self::Deployment(_)
            | Self::Alloc(..)
            | Self::AllocAlone(_)
            | Self::Node(_)
            | Self::Task(_)
            | Self::Collection(_)
            | Self::NodeCollection(_)
            | Self::ServerHealth(_) => cause,
        };
        Event {
            topic: self.topic(),
            event_type: event_type.to_owned(),
            key: self.key(),
            namespace: self.namespace().to_owned(),
            filter_keys: self.job_id().map(|job_id| {
                let deployment = self.deployment().map(|id| id.to_string());
                vec![job_id.to_owned(), deployment.unwrap_or_default()]
            }),
            index: index.0,
            payload: self.payload(),
        }
    }
}

/// The events that a reader wants.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    /// The namespace; `None` is every namespace.
    pub(crate) namespace: Option<String>,
    pub(crate) topics: Vec<TopicFilter>,
}

/// A topic and an object name in it; `None` is all objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicFilter {
    pub(crate) topic: Option<Topic>,
    pub(crate) name: Option<String>,
}

impl Filter {
    fn takes(&self, row: &EventRow) -> bool {
        let namespace = row.namespace();
        let here = namespace.is_empty()
            || self
                .namespace
                .as_ref()
                .is_none_or(|wanted| wanted == namespace);
        here && self.topics.iter().any(|filter| filter.takes(row))
    }
}

impl TopicFilter {
    fn takes(&self, row: &EventRow) -> bool {
        self.topic.is_none_or(|topic| topic == row.topic())
            && self.name.as_ref().is_none_or(|name| {
                *name == row.key()
                    || row.job_id() == Some(name)
                    || row.deployment().is_some_and(|id| id.to_string() == *name)
            })
    }
}

/// Some events from the requested index on are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("events before index {} are gone", oldest.0)]
pub(crate) struct Gap {
    /// The oldest index from which on all events are kept.
    pub(crate) oldest: LogIndex,
}

/// The last entries' changes. The buffer is bounded by count and by bytes: the oldest changes are dropped.
#[derive(Debug)]
pub(crate) struct EventRing {
    ring: Mutex<Ring>,
    events_max: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Ring {
    batches: VecDeque<Arc<Batch>>,
    events: usize,
    bytes: usize,
    /// The oldest index from which on all events are kept.
    oldest: LogIndex,
}

impl Default for EventRing {
    fn default() -> Self {
        Self::new(limits::EVENTS_MAX, limits::EVENT_BYTES_MAX)
    }
}

impl EventRing {
    fn new(events_max: usize, bytes_max: usize) -> Self {
        Self {
            ring: Mutex::new(Ring {
                batches: VecDeque::new(),
                events: 0,
                bytes: 0,
                oldest: LogIndex(1),
            }),
            events_max,
            bytes_max,
        }
    }

    /// Appends `batches`, which follow the kept ones. The newest batch stays at any size, so a reader that keeps
    /// up never meets a gap. Returns the dropped batches, so that the caller frees them outside the lock.
    pub(crate) fn push(&self, batches: Vec<Batch>) -> Vec<Arc<Batch>> {
        let mut dropped = Vec::new();
        if batches.is_empty() {
            return dropped;
        }
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        for batch in batches {
            ring.events += batch.len();
            ring.bytes += batch.bytes;
            ring.batches.push_back(Arc::new(batch));
        }
        while ring.batches.len() > 1
            && (ring.events > self.events_max || ring.bytes > self.bytes_max)
        {
            let Some(oldest) = ring.batches.pop_front() else {
                break;
            };
            ring.events -= oldest.len();
            ring.bytes -= oldest.bytes;
            ring.oldest = LogIndex(oldest.index.0 + 1);
            dropped.push(oldest);
        }
        drop(ring);
        dropped
    }

    /// Drops all batches: a snapshot moved the state to `index`, and the changes in between are unknown.
    pub(crate) fn reset(&self, index: LogIndex) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let batches = std::mem::take(&mut ring.batches);
        ring.events = 0;
        ring.bytes = 0;
        ring.oldest = LogIndex(index.0 + 1);
        drop(ring);
        drop(batches);
    }

    /// The oldest index from which on all events are kept.
    pub(crate) fn oldest(&self) -> LogIndex {
        self.ring
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .oldest
    }

    /// Changes of entries from `index` on, in order, at most `batches_max` entries.
    ///
    /// # Errors
    ///
    /// [`Gap`] if some of them may be gone.
    pub(crate) fn from(&self, index: LogIndex, batches_max: usize) -> Result<Vec<Arc<Batch>>, Gap> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if index < ring.oldest {
            return Err(Gap {
                oldest: ring.oldest,
            });
        }
        let first = ring.batches.partition_point(|batch| batch.index < index);
        Ok(ring
            .batches
            .range(first..)
            .take(batches_max)
            .map(Arc::clone)
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use muster_control_core::fsm::{self, NewOneOff, OneOffChange, OneOffCommand, OneOffStep};
    use muster_domain::id::Timestamp;

    use super::*;

    /// Registers job `web` by the entry at `index`. Returns the entry's batch.
    fn registered(state: &mut State, index: u64, job_id: &str) -> Batch {
        let command = JobCommand::Register {
            spec: Box::new(muster_domain::fixture::job(job_id).build()),
            check_index: None,
            places: None,
        }
        .at(Timestamp(index));
        let cause = command.command.cause();
        let applied = fsm::apply(state, LogIndex(index), command);
        Batch::capture(LogIndex(index), cause, state, &applied, Vec::new()).unwrap()
    }

    fn all() -> Filter {
        Filter {
            namespace: None,
            topics: vec![TopicFilter {
                topic: None,
                name: None,
            }],
        }
    }

    fn indexes(batches: &[Arc<Batch>]) -> Vec<u64> {
        batches.iter().map(|batch| batch.index().0).collect()
    }

    #[test]
    fn entry_makes_an_event_per_written_row() {
        let mut state = State::default();

        let batch = registered(&mut state, 7, "web");
        let events = batch.events(&all());

        let summaries: Vec<(Topic, &str, u64)> = events
            .iter()
            .map(|event| (event.topic, event.event_type.as_str(), event.index))
            .collect();
        assert_eq!(
            summaries,
            [
                (Topic::Job, "JobRegistered", 7),
                (Topic::Evaluation, "JobRegistered", 7)
            ]
        );
        assert_eq!(events[1].filter_keys.as_deref().unwrap()[0], "web");
        let payload = serde_json::to_value(&events[0].payload).unwrap();
        assert_eq!(payload["Job"]["ID"], "web");
    }

    /// The state changes later, but the event stays as it was.
    #[test]
    fn event_shows_row_as_of_its_entry() {
        let mut state = State::default();
        let first = registered(&mut state, 7, "web");
        let key = JobKey::in_default("web");
        let stop = JobCommand::Purge { key }.at(Timestamp(8));
        let cause = stop.command.cause();
        let applied = fsm::apply(&mut state, LogIndex(8), stop);
        let second = Batch::capture(LogIndex(8), cause, &state, &applied, Vec::new()).unwrap();

        let before = serde_json::to_value(&first.events(&all())[0].payload).unwrap();
        let after = &second.events(&all())[0];

        assert_eq!(before["Job"]["Stop"], false);
        assert_eq!(after.event_type, "JobDeregistered");
        assert_eq!(after.payload, Payload::Job(None));
    }

    #[test]
    fn name_filter_matches_job_and_related_objects() {
        let mut state = State::default();
        let web = registered(&mut state, 7, "web");
        let other = registered(&mut state, 8, "db");
        let named = |topic, name: &str| Filter {
            namespace: None,
            topics: vec![TopicFilter {
                topic: Some(topic),
                name: Some(name.to_owned()),
            }],
        };

        assert_eq!(web.events(&named(Topic::Job, "web")).len(), 1);
        assert_eq!(web.events(&named(Topic::Evaluation, "web")).len(), 1);
        assert_eq!(other.events(&named(Topic::Evaluation, "web")).len(), 0);
        assert_eq!(web.events(&named(Topic::Node, "web")).len(), 0);
        let elsewhere = Filter {
            namespace: Some("other".to_owned()),
            ..all()
        };
        assert_eq!(web.events(&elsewhere).len(), 0);
    }

    #[test]
    fn removed_task_is_found_by_its_domain() {
        let mut state = State::default();
        let task = NewOneOff {
            guid: "task-1".to_owned(),
            domain: "apps".to_owned(),
            definition: muster_domain::fixture::definition(),
        };
        let entry = fsm::Entry::desire_one_offs(vec![task], Timestamp(1));
        fsm::apply(&mut state, LogIndex(1), entry);
        let mut step = |index, step| {
            let change = OneOffChange {
                guid: "task-1".to_owned(),
                generation: None,
                step,
            };
            let changes = vec![change];
            let entry = OneOffCommand::Change { changes }.at(Timestamp(index));
            let applied = fsm::apply(&mut state, LogIndex(index), entry);
            Batch::capture(LogIndex(index), "TaskUpdated", &state, &applied, Vec::new()).unwrap()
        };
        step(2, OneOffStep::Cancel);
        let batch = step(3, OneOffStep::Resolve);
        let events_of = |domain: &str| {
            batch.events(&Filter {
                namespace: None,
                topics: vec![TopicFilter {
                    topic: Some(Topic::Task),
                    name: Some(domain.to_owned()),
                }],
            })
        };

        let events = events_of("apps");

        let last = events.last().unwrap();
        assert_eq!((&*last.event_type, &*last.key), ("TaskDeleted", "task-1"));
        assert_eq!(last.filter_keys.as_deref().unwrap()[0], "apps");
        assert!(events_of("others").is_empty());
    }

    #[test]
    fn full_event_ring_drops_oldest_and_reports_gap() {
        let mut state = State::default();
        // Each registration is two events.
        let ring = EventRing::new(4, usize::MAX);

        for index in 10..14 {
            ring.push(vec![registered(&mut state, index, "web")]);
        }

        assert_eq!(indexes(&ring.from(LogIndex(12), 9).unwrap()), [12, 13]);
        assert_eq!(
            ring.from(LogIndex(11), 9).unwrap_err(),
            Gap {
                oldest: LogIndex(12)
            }
        );
        assert_eq!(indexes(&ring.from(LogIndex(13), 9).unwrap()), [13]);
        assert!(ring.from(LogIndex(99), 9).unwrap().is_empty());
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut state = State::default();
        let ring = EventRing::new(usize::MAX, 1);

        for index in 10..14 {
            ring.push(vec![registered(&mut state, index, "web")]);
        }

        assert_eq!(indexes(&ring.from(LogIndex(13), 9).unwrap()), [13]);
        assert_eq!(ring.oldest(), LogIndex(13));
    }

    #[test]
    fn a_snapshot_leaves_a_gap() {
        let mut state = State::default();
        let ring = EventRing::default();
        ring.push(vec![registered(&mut state, 10, "web")]);

        ring.reset(LogIndex(50));

        assert!(ring.from(LogIndex(50), 9).is_err());
        assert!(ring.from(LogIndex(51), 9).unwrap().is_empty());
    }

    #[test]
    fn a_read_is_bounded() {
        let mut state = State::default();
        let ring = EventRing::default();
        for index in 1..6 {
            ring.push(vec![registered(&mut state, index, "web")]);
        }

        assert_eq!(indexes(&ring.from(LogIndex(2), 2).unwrap()), [2, 3]);
    }

    /// The ring counts the events that it delivers, so rows without an event must not be kept.
    #[test]
    fn event_batch_allocates_only_for_published_rows() {
        let mut state = State::default();
        drop(registered(&mut state, 7, "web"));
        let mut changed = vec![ChangedRow::Node(NodeId([1; 16]))];
        changed.extend((0..99).map(|n| ChangedRow::Eval(muster_domain::id::EvalId([n; 16]))));
        let applied = ApplyResult {
            response: fsm::Response::Done,
            effects: Vec::new(),
            changed,
            passed: Vec::new(),
            removed: Vec::new(),
        };

        let batch = Batch::capture(LogIndex(8), "X", &state, &applied, Vec::new()).unwrap();

        assert_eq!((batch.len(), batch.rows.capacity()), (1, 1));
    }

    #[test]
    fn an_entry_that_changes_nothing_is_no_event() {
        let state = State::default();
        let applied = ApplyResult {
            response: fsm::Response::Done,
            effects: Vec::new(),
            changed: Vec::new(),
            passed: Vec::new(),
            removed: Vec::new(),
        };

        assert!(Batch::capture(LogIndex(1), "X", &state, &applied, Vec::new()).is_none());
    }
}
