//! A machine: its processes, its disk, and the agent that runs on it now and then.
//!
//! The mock driver is here: its processes outlive the agent, not the machine. The agent's
//! store is here too; data not yet written when the agent dies are lost.

pub mod event;

use std::collections::{BTreeMap, BTreeSet};

use muster_agent_core::alloc::AllocSnapshot;
use muster_domain::alloc::{DesiredAlloc, Exit};
use muster_domain::id::{AllocId, Timestamp};
use muster_domain::node::NodeSpec;

use crate::agent::Agent;
use crate::env::{Env, Event};

pub use event::{HostEvent, TaskKey};

/// A process, or what is remembered of it.
#[derive(Clone, Debug)]
pub struct Process {
    /// The number of its start of the task.
    pub attempt: u32,
    /// The start that the note on its cgroup says. It is another one if an agent that had lost its store adopted it.
    pub noted: u32,
    /// The way it ended.
    pub ended: Option<Exit>,
    /// It does not end when it is asked to.
    pub stubborn: bool,
    /// The agent's life that hears of its end, and when it heard of the start.
    pub watched: Option<(u64, Timestamp)>,
}

/// The data that an agent stores.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// Allocations: what is wanted, and where they are.
    pub allocs: BTreeMap<AllocId, (DesiredAlloc, Option<AllocSnapshot>)>,
    pub started: BTreeMap<TaskKey, Start>,
}

/// The stored data of a task's last start.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The number of the start.
    pub attempt: u32,
    /// The boot of the machine in which it was made.
    pub boot: u64,
    /// The way it ended: on disk before the agent reports it.
    pub ended: Option<Exit>,
}

/// A machine.
#[derive(Debug)]
pub struct Host {
    pub at: usize,
    pub spec: NodeSpec,
    pub boot: u64,
    pub life: u64,
    /// Counts the agent's sessions, over all its lives.
    pub sessions: u64,
    pub processes: BTreeMap<TaskKey, Process>,
    /// The store on disk.
    pub stored: Store,
    /// The store that the agent has handed over for writing.
    pub store: Store,
    /// The store was lost.
    pub store_lost: bool,
    /// Allocations of which a task was begun and that are not destroyed: their directories outlive the machine's rest.
    pub dirs: BTreeSet<AllocId>,
    /// Allocations whose end was reported: nothing of them may start again.
    pub over: BTreeSet<AllocId>,
    /// Until then the node must not be taken for down.
    pub lease_until: Timestamp,
    /// The agent, while it runs.
    pub agent: Option<Agent>,
}

impl Host {
    /// A machine without an agent.
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
            over: BTreeSet::new(),
            lease_until: Timestamp(0),
            agent: None,
        }
    }

    /// The agent dies; processes go on. Data not written are lost.
    pub fn kill_agent(&mut self) {
        self.agent = None;
        self.life += 1;
        self.store = self.stored.clone();
    }

    /// The machine restarts: nothing runs any more.
    pub fn reboot(&mut self) {
        self.kill_agent();
        self.boot += 1;
        self.processes.clear();
    }

    /// Everything the agent stored is gone, but for the node's id.
    pub fn lose_store(&mut self) {
        self.store = Store::default();
        self.stored = Store::default();
        self.store_lost = true;
    }

    /// Everything handed over is written.
    pub fn flush(&mut self) {
        self.stored = self.store.clone();
    }

    /// Processes that run, by task.
    pub fn running(&self) -> impl Iterator<Item = &TaskKey> {
        self.processes
            .iter()
            .filter(|(_, process)| process.ended.is_none())
            .map(|(task, _)| task)
    }

    /// Whether the driver knows a process of an allocation, ended or not.
    #[must_use]
    pub fn has_processes(&self, alloc_id: AllocId) -> bool {
        self.processes.keys().any(|(of, _)| *of == alloc_id)
    }

    /// Ends a process, if it is that start and still runs.
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
            let at = env.now.max(answered_at).plus(env.dice.micros(100, 50_000));
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
