//! Invariants that are checked after every step.
//!
//! The oracle sees the whole cluster, which no server does. It knows every committed entry, the state after each
//! entry, the leader of each term, and every answer to a client. It also runs a small reference model of the jobs,
//! which must agree with the state.

mod collection;
mod deployments;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_control_core::fsm::{
    self, ApplyResult, ChangedRow, Command, JobCommand, NodeCommand, Response,
};
use muster_control_core::state::StateHash;
use muster_domain::id::{JobKey, LogIndex, NodeId, Timestamp, WriteKey};
use muster_domain::job::JobType;
use muster_domain::node::NodeStatus;
use muster_domain::one_off::OneOffState;

use crate::disk::Image;
use crate::log::{Entry, Payload, Position};
use crate::machine::{self, Machine};

pub use collection::Collections;
pub use deployments::Deployments;

/// A committed entry.
#[derive(Debug)]
struct CommittedEntry {
    entry: Arc<Entry>,
    /// The term in which the entry was committed. Leaders of later terms must have the entry.
    committed_in: u64,
    /// The hash of the state after the entry, from the first server that applied it.
    hash: Option<StateHash>,
    response: Option<Response>,
}

/// A job as the users' requests define it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedJob {
    pub count: u32,
    pub stopped: bool,
    /// Whether the job is over when its instances are, and may be collected then.
    pub ends: bool,
}

/// The invariants, and the history that is needed to check them.
#[derive(Debug)]
pub struct Oracle {
    servers: usize,
    ledger: Vec<CommittedEntry>,
    leaders: BTreeMap<u64, usize>,
    /// Entries committed since the last check. The disks of a quorum must hold them.
    pub unverified: Vec<Position>,
    /// Nodes declared down since the last check. Their leases must be over.
    pub nodes_down: Vec<NodeId>,
    /// The newest entry that was acknowledged to any client.
    acknowledged: u64,
    writes: BTreeMap<WriteKey, Response>,
    promised: BTreeMap<WriteKey, u64>,
    /// The jobs as the users' requests define them.
    pub jobs: BTreeMap<JobKey, RequestedJob>,
    /// The number of starts of each one-off task, by its job and by the entry that created it.
    one_offs: BTreeMap<(JobKey, LogIndex), u32>,
    /// The state of each one-off task.
    tasks: BTreeMap<String, OneOffState>,
    /// One-off tasks that were placed by the entry that created them.
    pub placed_at_once: u64,
    /// The latest end of each callback under way, by task and by the entry that created the task.
    calls: BTreeMap<(String, LogIndex), Timestamp>,
    pub called: u64,
    pub placed: u64,
    /// The history of garbage collections.
    pub collections: Collections,
    /// The history of deployments.
    pub deployments: Deployments,
    /// The number of reads that were checked against the acknowledged writes.
    pub reads: u64,
    /// Violations of the invariants.
    pub faults: Vec<String>,
}

impl Oracle {
    /// Creates an oracle with an empty history.
    #[must_use]
    pub fn new(servers: usize) -> Self {
        Self {
            servers,
            ledger: Vec::new(),
            leaders: BTreeMap::new(),
            unverified: Vec::new(),
            nodes_down: Vec::new(),
            acknowledged: 0,
            writes: BTreeMap::new(),
            promised: BTreeMap::new(),
            jobs: BTreeMap::new(),
            one_offs: BTreeMap::new(),
            tasks: BTreeMap::new(),
            placed_at_once: 0,
            calls: BTreeMap::new(),
            called: 0,
            placed: 0,
            collections: Collections::default(),
            deployments: Deployments::default(),
            reads: 0,
            faults: Vec::new(),
        }
    }

    /// Records a violation of an invariant.
    pub fn fault(&mut self, what: &str) {
        self.faults.push(what.to_owned());
    }

    /// Returns the number of servers.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.servers
    }

    /// Returns the number of servers that make a majority.
    #[must_use]
    pub fn quorum(&self) -> usize {
        self.servers / 2 + 1
    }

    /// Returns the index of the last committed entry.
    #[must_use]
    pub fn committed_index(&self) -> u64 {
        self.ledger.len() as u64
    }

    /// Returns the number of terms that have a leader.
    #[must_use]
    pub fn terms(&self) -> usize {
        self.leaders.len()
    }

    /// Returns the number of writes that were acknowledged to clients.
    #[must_use]
    pub fn acknowledged_writes(&self) -> usize {
        self.promised.len()
    }

    /// Returns the newest entry that was acknowledged to any client. A read that begins now must see it.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Checks a server that has won an election.
    pub fn elected(&mut self, server: usize, image: &Image) {
        if let Some(other) = self.leaders.insert(image.term, server)
            && other != server
        {
            let term = image.term;
            self.fault(&format!(
                "servers {other} and {server} both lead term {term}"
            ));
        }
        let due = self
            .ledger
            .iter()
            .rfind(|line| line.committed_in < image.term);
        if let Some(line) = due
            && !image.holds(line.entry.at)
        {
            let index = line.entry.at.index;
            self.fault(&format!(
                "server {server} leads without the committed entry {index}"
            ));
        }
    }

    /// Checks the entries after `from` up to `to`, which a server considers committed.
    pub fn committed(&mut self, server: usize, image: &Image, from: u64, to: u64) {
        for index in from + 1..=to {
            let Some(entry) = image.log.get(index) else {
                continue;
            };
            let known = self.line(index).map(|line| *line.entry == **entry);
            match known {
                Some(true) => {}
                Some(false) => self.fault(&format!(
                    "server {server} committed another entry {index} than was committed before"
                )),
                None if index == self.committed_index() + 1 => {
                    self.unverified.push(entry.at);
                    self.ledger.push(CommittedEntry {
                        entry: Arc::clone(entry),
                        committed_in: image.term,
                        hash: None,
                        response: None,
                    });
                }
                None => self.fault(&format!("server {server} committed {index} before others")),
            }
        }
    }

    /// Checks an entry that a server has applied. `applied` is the result if the entry is a command. Returns whether
    /// the server is the first to apply it.
    pub fn applied(
        &mut self,
        server: usize,
        entry: &Entry,
        applied: Option<&ApplyResult>,
        machine: &Machine,
    ) -> bool {
        let (index, hash) = (entry.at.index, machine.hash());
        let Some(line) = self.line(index) else {
            self.fault(&format!("server {server} applied {index}, never committed"));
            return false;
        };
        if *line.entry != *entry {
            self.fault(&format!("server {server} applied another entry {index}"));
            return false;
        }
        if let Some(first) = line.hash {
            let same = first == hash && line.response.as_ref() == applied.map(|a| &a.response);
            if !same {
                let tables = first.differing(&hash).join(", ");
                self.fault(&format!(
                    "server {server} has another state at {index}: {tables} differ"
                ));
            }
            return false;
        }
        line.hash = Some(hash);
        line.response = applied.map(|applied| applied.response.clone());
        for broken in machine.broken() {
            self.fault(&format!("after entry {index}: {broken}"));
        }
        if let (Payload::Command(command), Some(applied)) = (&entry.payload, applied) {
            self.first_applied(command, applied, machine);
        }
        true
    }

    /// Checks the state that a server restored from a snapshot of the entry at `at`.
    pub fn restored(&mut self, server: usize, at: Position, machine: &Machine) {
        let hash = machine.hash();
        match self.line(at.index) {
            Some(line) if line.entry.at == at && line.hash.is_none_or(|first| first == hash) => {}
            Some(_) | None => self.fault(&format!(
                "server {server} restored another state at {} than was there",
                at.index
            )),
        }
    }

    /// Checks the acknowledgement of a client's write at `index`.
    pub fn acknowledge(&mut self, key: &WriteKey, index: LogIndex, response: &Response) {
        let held = self.line(index.0).is_some_and(|line| {
            let entry_key = match &line.entry.payload {
                Payload::Command(command) => machine::key_of(command),
                Payload::Blank => None,
            };
            entry_key == Some(key) && line.response.as_ref() == Some(response)
        });
        if !held {
            self.fault(&format!(
                "a client was told that {key} is at {}, which says something else",
                index.0
            ));
        }
        self.acknowledged = self.acknowledged.max(index.0);
        self.promised.insert(key.clone(), index.0);
    }

    /// Checks a linearizable read that saw `index`. `min_index` was acknowledged before the read began.
    pub fn read(&mut self, min_index: u64, index: u64) {
        self.reads += 1;
        if index < min_index {
            self.fault(&format!(
                "a linearizable read saw {index}, although {min_index} was acknowledged before it began"
            ));
        }
    }

    /// Checks the start of a process of a one-off task. `key` is the job that runs the task, and `generation` is the
    /// entry that created it. There must be only one start.
    pub fn one_off_starts(&mut self, key: JobKey, generation: LogIndex) {
        let guid = key.job_id.clone();
        let starts = self.one_offs.entry((key, generation)).or_default();
        *starts += 1;
        if *starts > 1 {
            let starts = *starts;
            self.fault(&format!("task {guid} has begun {starts} times"));
        }
    }

    /// Checks a callback that is made from `now` until `ends` at the latest. No other callback of the same task may
    /// be under way.
    pub fn calls(&mut self, guid: &str, generation: LogIndex, now: Timestamp, ends: Timestamp) {
        self.called += 1;
        let key = (guid.to_owned(), generation);
        if self
            .calls
            .insert(key, ends)
            .is_some_and(|until| until > now)
        {
            self.fault(&format!(
                "the callback of task {guid} is made twice at once"
            ));
        }
    }

    /// Returns the number of one-off tasks that started.
    #[must_use]
    pub fn one_offs(&self) -> usize {
        self.one_offs.len()
    }

    fn line(&mut self, index: u64) -> Option<&mut CommittedEntry> {
        let at = usize::try_from(index.checked_sub(1)?).ok()?;
        self.ledger.get_mut(at)
    }

    /// Checks a command at its first application, and updates the reference model.
    fn first_applied(&mut self, entry: &fsm::Entry, applied: &ApplyResult, machine: &Machine) {
        if let Some(key) = machine::key_of(entry) {
            match self.writes.get(key) {
                Some(first) if *first == applied.response && applied.changed.is_empty() => return,
                Some(_) => {
                    self.fault(&format!("the write {key} was applied twice"));
                    return;
                }
                None => {
                    self.writes.insert(key.clone(), applied.response.clone());
                }
            }
        }
        self.check_one_off_states(applied, machine);
        let command = match &entry.command {
            Command::Keyed { command, .. } => command.command(),
            other => other,
        };
        match (command, &applied.response) {
            (_, Response::Rejected(_)) => {}
            (
                Command::Node(NodeCommand::SetStatus {
                    node_id, status, ..
                }),
                _,
            ) if *status == NodeStatus::Down && !applied.changed.is_empty() => {
                self.nodes_down.push(*node_id);
            }
            (Command::Job(JobCommand::Register { spec, .. }), _) => {
                let placed = applied.changed.iter();
                let placed = placed.filter(|changed| matches!(changed, ChangedRow::Alloc(_)));
                self.placed += placed.count() as u64;
                let wanted = RequestedJob {
                    count: spec.groups[0].count,
                    stopped: false,
                    ends: matches!(spec.job_type, JobType::Batch | JobType::SysBatch),
                };
                self.jobs.insert(spec.key(), wanted);
                if let Response::JobRegistered { version, .. } = applied.response {
                    self.registered(spec, version);
                }
            }
            (Command::Job(JobCommand::Deregister { key } | JobCommand::Purge { key }), _) => {
                if let Some(wanted) = self.jobs.get_mut(key) {
                    wanted.stopped = true;
                }
            }
            (_, Response::PlansApplied { outcomes }) => {
                let placed = outcomes.iter().map(|outcome| u64::from(outcome.placed));
                self.placed += placed.sum::<u64>();
            }
            (_, response @ Response::Collected { .. }) => {
                self.record_slice(command, response, machine.state.applied().0);
            }
            _ => {}
        }
        self.check_deployments(applied, machine);
        self.jobs_agree(machine);
    }

    /// Checks that one-off tasks change state only as allowed, including tasks that change twice in one entry.
    fn check_one_off_states(&mut self, applied: &ApplyResult, machine: &Machine) {
        let passed = applied.passed.iter();
        let passed = passed.map(|row| (row.guid.clone(), Some(row.state)));
        let rows = machine.state.one_offs();
        let changed = applied.changed.iter().filter_map(|changed| match changed {
            ChangedRow::OneOff(guid) => {
                Some((guid.to_string(), rows.get(guid).map(|row| row.state)))
            }
            _ => None,
        });
        let steps: Vec<(String, Option<OneOffState>)> = passed.chain(changed).collect();
        for (guid, to) in steps {
            let from = self.tasks.get(&guid).copied();
            if !OneOffState::may_follow(from, to) {
                self.fault(&format!("task {guid} goes from {from:?} to {to:?}"));
            }
            if from == Some(OneOffState::Pending)
                && applied.passed.iter().any(|row| row.guid == guid)
            {
                self.placed_at_once += u64::from(to == Some(OneOffState::Running));
            }
            match to {
                Some(to) => self.tasks.insert(guid, to),
                None => self.tasks.remove(&guid),
            };
        }
    }

    /// Checks that the state has the jobs that users requested, with the requested contents.
    fn jobs_agree(&mut self, machine: &Machine) {
        let jobs = machine.state.jobs();
        let mut faults = Vec::new();
        for (key, wanted) in &self.jobs {
            match jobs.get(key) {
                Some(job) if job.stop == wanted.stopped => {
                    if job.current.spec.groups[0].count != wanted.count {
                        faults.push(format!("job {key} has another count than its user wanted"));
                    }
                }
                Some(job) => faults.push(format!("job {key} says stop {}", job.stop)),
                None if wanted.stopped || wanted.ends => {}
                None => faults.push(format!("job {key} is gone, and nobody stopped it")),
            }
        }
        for job in jobs
            .iter()
            .filter(|job| !self.jobs.contains_key(&job.key()))
            .filter(|job| !job.current.spec.is_one_off())
        {
            faults.push(format!("nobody asked for job {}", job.key()));
        }
        self.faults.extend(faults);
    }
}
