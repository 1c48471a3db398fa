//! A machine: its processes, its disk, and the agent that may run on it.
//!
//! This module contains the mock driver. Its processes survive the agent, but not a reboot. This module also contains
//! the agent's store. Data that are not yet written when the agent dies are lost.

pub mod event;

use std::collections::{BTreeMap, BTreeSet};

use muster_agent_core::alloc::AllocSnapshot;
use muster_domain::alloc::{DesiredAlloc, Exit};
use muster_domain::id::{AllocId, Timestamp};
use muster_domain::node::NodeSpec;

use crate::agent::Agent;
use crate::env::{Env, Event};

pub use event::{HostEvent, TaskKey};

/// A process, running or ended.
#[derive(Clone, Debug)]
pub struct Process {
    /// The number of the task's start that created the process.
    pub attempt: u32,
    /// The number of the start in the note on the process's cgroup. It differs from `attempt` if an agent that had
    /// lost its store adopted the process.
    pub noted: u32,
    /// The exit of the process, if it has ended.
    pub ended: Option<Exit>,
    /// Whether the process ignores the request to end.
    pub ignores_signal: bool,
    /// The life of the agent that watches the process, and the time at which that agent receives the start.
    pub watched: Option<(u64, Timestamp)>,
}

/// The data that an agent stores.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// The desired state of each allocation, and the snapshot of its runner.
    pub allocs: BTreeMap<AllocId, (DesiredAlloc, Option<AllocSnapshot>)>,
    pub started: BTreeMap<TaskKey, Start>,
}

/// The stored data of a task's last start.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The number of the start.
    pub attempt: u32,
    /// The boot of the machine during which the start was made.
    pub boot: u64,
    /// The exit of the start. It is on disk before the agent reports it.
    pub ended: Option<Exit>,
}

/// A machine that can run one agent.
#[derive(Debug)]
pub struct Host {
    pub at: usize,
    pub spec: NodeSpec,
    pub boot: u64,
    pub life: u64,
    /// The number of the agent's sessions, over all its lives.
    pub sessions: u64,
    pub processes: BTreeMap<TaskKey, Process>,
    /// The store on disk.
    pub stored: Store,
    /// The store that the agent has handed over, including data that are not on disk yet.
    pub store: Store,
    /// Whether the store was lost.
    pub store_lost: bool,
    /// Allocations with a begun task that are not destroyed. Their directories survive a reboot and a lost store.
    pub dirs: BTreeSet<AllocId>,
    /// Allocations whose end was reported. None of their tasks may start again.
    pub ended_allocs: BTreeSet<AllocId>,
    /// The end of the node's lease. The servers must not consider the node down before it.
    pub lease_until: Timestamp,
    /// The agent, if it runs.
    pub agent: Option<Agent>,
}

impl Host {
    /// Creates a machine without an agent.
    #[must_use]
    pub fn new(at: usize, spec: NodeSpec) -> Self {
        Self {
            at,
            spec,
            boot: 1,
            life: 0,
            sessions: 0,
            processes: BTreeMap::new(),
            stored: Store::default(),
            store: Store::default(),
            store_lost: false,
            dirs: BTreeSet::new(),
            ended_allocs: BTreeSet::new(),
            lease_until: Timestamp(0),
            agent: None,
        }
    }

    /// Kills the agent. Processes continue. Data that are not written are lost.
    pub fn kill_agent(&mut self) {
        self.agent = None;
        self.life += 1;
        self.store = self.stored.clone();
    }

    /// Reboots the machine. No process survives.
    pub fn reboot(&mut self) {
        self.kill_agent();
        self.boot += 1;
        self.processes.clear();
    }

    /// Deletes all data that the agent stored, except the node id.
    pub fn lose_store(&mut self) {
        self.store = Store::default();
        self.stored = Store::default();
        self.store_lost = true;
    }

    /// Writes all data that the agent has handed over.
    pub fn flush(&mut self) {
        self.stored = self.store.clone();
    }

    /// Returns the tasks that have a running process.
    pub fn running(&self) -> impl Iterator<Item = &TaskKey> {
        self.processes
            .iter()
            .filter(|(_, process)| process.ended.is_none())
            .map(|(task, _)| task)
    }

    /// Whether the driver has a process of the allocation, running or ended.
    #[must_use]
    pub fn has_processes(&self, alloc_id: AllocId) -> bool {
        self.processes.keys().any(|(of, _)| *of == alloc_id)
    }

    /// Ends a process, if it belongs to the start `attempt` and still runs.
    pub fn end(&mut self, task: TaskKey, attempt: u32, exit: Exit, env: &mut Env) {
        let Some(process) = self.processes.get_mut(&task) else {
            return;
        };
        if process.attempt != attempt || process.ended.is_some() {
            return;
        }
        process.ended = Some(exit);
        if let Some((life, answered_at)) = process.watched
            && life == self.life
        {
            let at = env.now.max(answered_at).plus(env.rng.micros(100, 50_000));
            let input = muster_agent_core::task::TaskInput::Exited {
                exit,
                detail: String::new(),
                end: None,
            };
            let what = HostEvent::Answered { life, task, input };
            let host = self.at;
            env.at(at, Event::Host { host, what });
        }
    }
}
