//! The model of an agent: what it runs, and what it would report.

use std::collections::BTreeMap;

use muster_domain::alloc::{AllocReport, ClientStatus, DesiredAlloc, DesiredStatus};
use muster_domain::id::{AllocId, LogIndex};
use muster_domain::job::JobType;
use muster_domain::node::NodeSpec;

/// An allocation as the agent knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The newest message about it.
    pub modify_index: LogIndex,
    /// What is wanted.
    pub desired: DesiredStatus,
    /// What it does.
    pub status: ClientStatus,
    /// Runs to completion.
    pub is_batch: bool,
}

/// What a message made the agent do about an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing.
    Ignored,
    /// It is to be started.
    Starts,
    /// It is to be stopped.
    Stops,
    /// There is nothing to stop; say so.
    Reports,
}

/// An agent and its machine.
#[derive(Debug)]
pub struct Agent {
    /// Its fingerprint.
    pub spec: NodeSpec,
    /// It can speak to the server.
    pub connected: bool,
    /// Counts its connections; messages of older ones are dropped.
    pub session: u64,
    /// Allocations by id.
    pub allocs: BTreeMap<AllocId, Held>,
}

impl Agent {
    /// An agent that has not connected.
    #[must_use]
    pub fn new(spec: NodeSpec) -> Self {
        Self {
            spec,
            connected: false,
            session: 0,
            allocs: BTreeMap::new(),
        }
    }

    /// Takes a message about one allocation. Older ones than the newest change nothing.
    pub fn take(&mut self, wanted: &DesiredAlloc) -> Reaction {
        let is_batch = match wanted.job.spec.job_type {
            JobType::Batch | JobType::SysBatch => true,
            JobType::Service | JobType::System => false,
        };
        let Some(held) = self.allocs.get_mut(&wanted.alloc_id) else {
            let status = if wanted.desired == DesiredStatus::Run {
                wanted.client_status
            } else {
                ClientStatus::Complete
            };
            let held = Held {
                modify_index: wanted.alloc_modify_index,
                desired: wanted.desired,
                status,
                is_batch,
            };
            self.allocs.insert(wanted.alloc_id, held);
            return match (wanted.desired, wanted.client_status.is_terminal()) {
                (_, true) => Reaction::Ignored,
                (DesiredStatus::Run, false) => Reaction::Starts,
                (DesiredStatus::Stop | DesiredStatus::Evict, false) => Reaction::Reports,
            };
        };
        if wanted.alloc_modify_index <= held.modify_index {
            return Reaction::Ignored;
        }
        held.modify_index = wanted.alloc_modify_index;
        let was = std::mem::replace(&mut held.desired, wanted.desired);
        if was == DesiredStatus::Run && wanted.desired != DesiredStatus::Run {
            return if held.status.is_terminal() {
                Reaction::Reports
            } else {
                Reaction::Stops
            };
        }
        Reaction::Ignored
    }

    /// An allocation came into another status. `None`: it has ended already, or is gone.
    pub fn turn(&mut self, alloc_id: &AllocId, status: ClientStatus) -> Option<AllocReport> {
        let held = self.allocs.get_mut(alloc_id)?;
        if held.status.is_terminal() {
            return None;
        }
        held.status = status;
        Some(report(*alloc_id, status))
    }

    /// Everything it would report, as it does when it connects.
    #[must_use]
    pub fn reports(&self) -> Vec<AllocReport> {
        self.allocs
            .iter()
            .map(|(alloc_id, held)| report(*alloc_id, held.status))
            .collect()
    }

    /// The machine restarts: nothing runs any more.
    pub fn reboot(&mut self) {
        for held in self
            .allocs
            .values_mut()
            .filter(|held| !held.status.is_terminal())
        {
            held.status = ClientStatus::Failed;
        }
    }
}

fn report(alloc_id: AllocId, client_status: ClientStatus) -> AllocReport {
    AllocReport {
        alloc_id,
        client_status,
        client_description: String::new(),
        task_states: Vec::new(),
    }
}
