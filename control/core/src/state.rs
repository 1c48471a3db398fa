//! The replicated state: one file a table, its indexes beside it.
//!
//! Written only by `fsm`, through the `pub(crate)` functions here, which keep usage, summaries and
//! indexes in step with the rows. A clone costs a few pointer copies and stays as it is while writes go
//! on; rows are shared. [`check::broken`] lists every invariant that does not hold.
//!
//! Deliberately absent: deciding anything. That is `fsm`'s, `scheduler`'s and the duties'.

mod allocs;
mod answers;
pub mod check;
mod digest;
mod evals;
mod jobs;
mod nodes;
mod prefix;
mod room;

use std::sync::Arc;

use muster_domain::alloc::{Allocation, DesiredAlloc};
use muster_domain::id::{AllocId, LogIndex};

pub use allocs::{Allocs, GroupCounts, JobSummary};
pub use answers::{Answer, Answers};
pub use digest::StateHash;
pub use evals::Evals;
pub use jobs::Jobs;
pub use nodes::{Column, NodeClass, Nodes};

pub(crate) use digest::Digest;
pub(crate) use jobs::JobRow;
pub(crate) use room::Room;

/// Everything the log has said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub(crate) applied: LogIndex,
    pub(crate) nodes: Nodes,
    pub(crate) jobs: Jobs,
    pub(crate) allocs: Allocs,
    pub(crate) evals: Evals,
    pub(crate) answers: Answers,
}

impl State {
    /// The last entry applied.
    #[must_use]
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// The machines.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The jobs and their versions.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// The allocations.
    #[must_use]
    pub fn allocs(&self) -> &Allocs {
        &self.allocs
    }

    /// The evaluations.
    #[must_use]
    pub fn evals(&self) -> &Evals {
        &self.evals
    }

    /// Answers kept for repeated writes.
    #[must_use]
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// The hash of every table. Equal states have equal hashes, on every machine and whatever order they
    /// were written in. Kept up with every write, so asking costs nothing.
    #[must_use]
    pub fn hash(&self) -> StateHash {
        let Self {
            applied: _,
            nodes,
            jobs,
            allocs,
            evals,
            answers,
        } = self;
        StateHash {
            nodes: nodes.hash(),
            jobs: jobs.hash(),
            allocs: allocs.hash(),
            evals: evals.hash(),
            answers: answers.hash(),
        }
    }

    /// Writes a row and moves what its node uses. Says whether it set room free.
    pub(crate) fn put_alloc(&mut self, alloc: Allocation) -> bool {
        let alloc = Arc::new(alloc);
        let old = self.allocs.put(Arc::clone(&alloc));
        let was_live = old.as_ref().is_some_and(|old| !old.is_terminal());
        if let Some(old) = old.filter(|_| was_live) {
            self.nodes.give_back(&old);
        }
        if !alloc.is_terminal() {
            self.nodes.take(&alloc);
        }
        was_live && alloc.is_terminal()
    }

    /// Forgets a row.
    pub(crate) fn remove_alloc(&mut self, alloc_id: &AllocId) -> Option<Arc<Allocation>> {
        let old = self.allocs.remove(alloc_id)?;
        if !old.is_terminal() {
            self.nodes.give_back(&old);
        }
        Some(old)
    }
}

/// What to tell the agent of `alloc`.
#[must_use]
pub fn desired(alloc: &Allocation) -> DesiredAlloc {
    DesiredAlloc {
        alloc_id: alloc.id,
        alloc_modify_index: alloc.alloc_modify_index,
        desired: alloc.desired,
        name_index: alloc.name_index,
        group_at: alloc.group_at,
        ports: alloc.ports.clone(),
        client_status: alloc.client_status,
        job: Arc::clone(&alloc.job),
    }
}
