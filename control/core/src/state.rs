//! The replicated state: each table in its own file, with its indexes.
//!
//! Only `fsm` writes it, through the `pub(crate)` functions here, which update usage, summaries and indexes together
//! with the rows. A clone costs a few pointer copies and does not change with later writes; rows are shared.
//! [`check::broken`] lists every invariant that is violated.
//!
//! Deliberately absent: decisions. `fsm`, `scheduler` and the duties decide.

mod allocs;
mod answers;
pub mod check;
mod config;
mod deployments;
mod digest;
mod evals;
mod holdings;
mod jobs;
mod network;
mod nodes;
mod one_offs;
mod paged;
mod prefix;
mod room;
mod runs;
mod sets;
mod table;
pub mod waits;

use std::sync::Arc;

use muster_domain::deployment::Deployment;
use muster_domain::eval::Evaluation;
use muster_domain::id::{
    AllocId, ClusterTag, DeploymentId, EvalId, JobKey, LogIndex, NodeId, NodeNumber, Timestamp,
};

use allocs::{AffectedRows, RemovalEffect, UpdateEffect};
pub use allocs::{
    AllocCursor as AllocFinder, AllocView, Allocs, GroupCounts, JobSummary, SavedAlloc,
};
pub use answers::{Answer, Answers};
pub use config::Config;
pub use deployments::Deployments;
pub use digest::StateHash;
pub use evals::Evals;
pub use holdings::NodeHoldings;
pub use jobs::Jobs;
pub use network::ClusterPolicy;
pub use nodes::{Column, ColumnPage, NodeClass, Nodes, PAGE_COLUMNS};
pub(crate) use nodes::{Columns, numbered};
pub use one_offs::{OneOffs, due_at, place_of};

#[cfg(test)]
pub(crate) use allocs::LOOKED_UP;
pub(crate) use allocs::id_of;
pub(crate) use allocs::{ORDINALS, PlanShared, Row, RowRecord, Tasks, key_at};
pub(crate) use digest::Digest;
pub(crate) use jobs::{JobRow, instances, is_over};
pub(crate) use room::RemainingCapacity;

/// The result of all entries applied so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub(crate) applied: LogIndex,
    pub(crate) nodes: Nodes,
    pub(crate) jobs: Jobs,
    pub(crate) allocs: Allocs,
    pub(crate) evals: Evals,
    pub(crate) deployments: Deployments,
    pub(crate) config: Config,
    pub(crate) network: ClusterPolicy,
    pub(crate) answers: Answers,
    pub(crate) one_offs: OneOffs,
}

/// A row that a command wrote or removed: if the state does not have the row, it was removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangedRow {
    Node(NodeId),
    /// A job: its versions, its status and its `stop` flag, but not the counts of its allocations.
    Job(Arc<JobKey>),
    Eval(EvalId),
    Deployment(DeploymentId),
    OneOff(Arc<str>),
    Alloc(AllocId),
    /// An allocation that was removed: the state has no row for it.
    AllocGone(AllocId),
}

/// Allocations that were removed.
#[derive(Debug)]
pub(crate) struct RemovedAllocs {
    pub(crate) keys: Vec<u64>,
    /// Their jobs; a job may appear more than once.
    pub(crate) jobs: Vec<Arc<JobKey>>,
    /// Their nodes, each once.
    pub(crate) node_ids: Vec<NodeId>,
    /// Their size, without the data that they share with other rows.
    pub(crate) bytes: u64,
}

impl State {
    /// The last entry applied.
    #[must_use]
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Returns the newest time in rows; 0 without rows. It shows when the cluster last worked.
    #[must_use]
    pub fn newest_time(&self) -> Timestamp {
        let nodes = self.nodes.iter().map(|node| node.status_at);
        let jobs = self.jobs.iter().map(|job| job.current.submit_time);
        let evals = self.evals.iter().map(|eval| eval.modify_time);
        let one_offs = self.one_offs.iter().map(|one_off| one_off.updated_at);
        let times = nodes.chain(jobs).chain(evals).chain(one_offs);
        times.max().unwrap_or(Timestamp(0))
    }

    /// Sets the cluster's part of the ids of rows. Only a state without rows takes a tag.
    pub fn set_cluster(&mut self, cluster: ClusterTag) {
        self.allocs.set_cluster(cluster);
    }

    /// The cluster's part of the ids of rows.
    #[must_use]
    pub fn cluster(&self) -> ClusterTag {
        self.allocs.cluster()
    }

    /// Records that this state, read from a saved snapshot, became the state with the entry at `index`. So a caller
    /// that waits for a change of a table sees one.
    pub fn restored_at(&mut self, index: LogIndex) {
        let Self {
            applied,
            nodes,
            jobs,
            allocs,
            evals,
            deployments,
            config: _,
            network,
            answers: _,
            one_offs,
        } = self;
        *applied = index;
        if network.create_index > LogIndex(0) {
            // Nodes may have a later policy; with this index the restored policy is newer than that.
            network.modify_index = index;
        }
        nodes.set_index(index);
        jobs.set_index(index);
        allocs.set_index(index);
        evals.set_index(index);
        deployments.set_index(index);
        one_offs.set_index(index);
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

    /// The deployments.
    #[must_use]
    pub fn deployments(&self) -> &Deployments {
        &self.deployments
    }

    /// Returns the settings that operators change.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the policy that the cluster adds to the network policies of all tasks.
    #[must_use]
    pub fn network(&self) -> &ClusterPolicy {
        &self.network
    }

    /// Returns the answers kept for repeated writes.
    #[must_use]
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// The one-off tasks.
    #[must_use]
    pub fn one_offs(&self) -> &OneOffs {
        &self.one_offs
    }

    /// Returns the hash of every table. Equal states have equal hashes, on every machine and after writes in any
    /// order. The hash is kept up with every write, so asking costs nothing.
    #[must_use]
    pub fn hash(&self) -> StateHash {
        let Self {
            applied: _,
            nodes,
            jobs,
            allocs,
            evals,
            deployments,
            config,
            network,
            answers,
            one_offs,
        } = self;
        StateHash {
            encoding: digest::ENCODING,
            nodes: nodes.hash(),
            jobs: jobs.hash(),
            allocs: allocs.hash(),
            evals: evals.hash(),
            deployments: deployments.hash(),
            config: config.hash().wrapping_add(network.hash()),
            answers: answers.row_hash(),
            one_offs: one_offs.hash(),
        }
    }

    /// Returns the state rebuilt from its rows, for a check of its indexes.
    pub(crate) fn rebuilt(&self) -> Self {
        let Self {
            applied,
            nodes,
            jobs,
            allocs,
            evals,
            deployments,
            config,
            network,
            answers,
            one_offs,
        } = self;
        let mut anew = Self {
            applied: *applied,
            nodes: nodes.rebuilt(|_| false),
            jobs: jobs.rebuilt(|_| ()),
            config: *config,
            network: network.clone(),
            answers: answers.rebuilt(|_| ()),
            one_offs: one_offs.rebuilt(|_| ()),
            ..Self::default()
        };
        for (number, node_id) in allocs.nodes() {
            if anew.nodes.number(&node_id).is_none() {
                anew.nodes.hold(node_id, number);
            }
        }
        anew.set_cluster(allocs.cluster());
        for (key, row) in allocs.rows() {
            anew.insert_alloc_on(key, row.clone(), allocs.node_id(row.node()));
        }
        anew.allocs.set_index(allocs.index());
        anew.evals = evals.rebuilt(|eval| anew.allocs.may_free(&eval.id));
        anew.deployments = deployments.rebuilt(|row| anew.allocs.is_deployed(&row.id));
        for (domain, until) in one_offs.domains_marked_fresh() {
            anew.one_offs.freshen(domain, until);
        }
        anew.one_offs.set_times(one_offs.times());
        anew
    }

    /// Returns the names of the tables in which two states differ.
    pub(crate) fn differing(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            applied: _,
            nodes,
            jobs,
            allocs,
            evals,
            deployments,
            config,
            network,
            answers,
            one_offs,
        } = self;
        let same = [
            ("nodes", *nodes == other.nodes),
            ("jobs", *jobs == other.jobs),
            ("allocations", *allocs == other.allocs),
            ("evaluations", *evals == other.evals),
            ("deployments", *deployments == other.deployments),
            ("settings", *config == other.config),
            ("network policy", *network == other.network),
            ("answers", *answers == other.answers),
            ("one-off tasks", *one_offs == other.one_offs),
        ];
        let differing = same.into_iter().filter(|(_, same)| !same);
        differing.map(|(table, _)| table).collect()
    }

    /// Returns the last entry that changed each table, by the table's name. The table of answers has none.
    pub(crate) fn indexes(&self) -> [(&'static str, LogIndex); 8] {
        let Self {
            applied: _,
            nodes,
            jobs,
            allocs,
            evals,
            deployments,
            config,
            network,
            answers: _,
            one_offs,
        } = self;
        [
            ("nodes", nodes.index()),
            ("jobs", jobs.index()),
            ("allocations", allocs.index()),
            ("evaluations", evals.index()),
            ("deployments", deployments.index()),
            ("settings", config.modify_index),
            ("network policy", network.modify_index),
            ("one-off tasks", one_offs.index()),
        ]
    }

    /// Returns the allocations that are on one node.
    pub fn allocs_on(&self, node_id: &NodeId) -> impl Iterator<Item = AllocView<'_>> + use<'_> {
        let number = self.nodes.number_of_any(node_id);
        number.into_iter().flat_map(|number| self.allocs.on(number))
    }

    /// Returns the number of allocations on one node that are not terminal.
    pub(crate) fn live_on(&self, node_id: &NodeId) -> u32 {
        let number = self.nodes.number_of_any(node_id);
        number.map_or(0, |number| self.allocs.live_on(number))
    }

    /// Writes a new allocation, and takes its share of its node.
    pub(crate) fn insert_alloc(&mut self, key: u64, row: Row) {
        let node_id = self.node_meant(row.node());
        self.insert_alloc_on(key, row, node_id);
    }

    /// Returns the node to which allocations refer by `number`, even if it is gone. This is cheaper than through the
    /// allocation.
    #[must_use]
    pub fn node_meant(&self, number: NodeNumber) -> NodeId {
        match self.nodes.column_at(number) {
            Some(column) if column.occupied => column.node_id,
            Some(_) | None => self.allocs.node_id(number),
        }
    }

    /// Writes new allocations with consecutive keys from `first` on, and takes their shares of their nodes. They are
    /// instances of one cohort that are placed and have no holdings except amounts.
    pub(crate) fn insert_siblings(&mut self, first: u64, rows: Vec<Row>) {
        let mut nodes = Vec::with_capacity(rows.len());
        for row in &rows {
            nodes.push(self.node_meant(row.node()));
            self.nodes.take(row.node(), row.ask(), row.held());
        }
        let affected = self.allocs.insert_siblings(first, rows, &nodes);
        self.update_affected_rows(&affected);
    }

    /// Inserts an allocation on a node that may be gone.
    pub(crate) fn insert_alloc_on(&mut self, key: u64, row: Row, node_id: NodeId) {
        if !row.is_terminal() {
            self.nodes.take(row.node(), row.ask(), row.held());
        }
        let affected = self.allocs.insert(key, row, node_id);
        self.update_affected_rows(&affected);
    }

    /// Writes an evaluation.
    pub(crate) fn put_eval(&mut self, eval: Evaluation) {
        let may_free = self.allocs.may_free(&eval.id);
        self.evals.write(Arc::new(eval), may_free);
    }

    /// Writes a deployment.
    pub(crate) fn put_deployment(&mut self, deployment: Deployment) {
        let is_used = self.allocs.is_deployed(&deployment.id);
        self.deployments.write(Arc::new(deployment), is_used);
    }

    /// Updates whether evaluations may be freed, and whether deployments are in use.
    fn update_affected_rows(&mut self, affected: &AffectedRows) {
        let AffectedRows {
            eval_id,
            deployments,
        } = affected;
        if let Some(eval_id) = eval_id {
            let may_free = self.allocs.may_free(eval_id);
            self.evals.set_may_free(eval_id, may_free);
        }
        for id in deployments.iter().flatten() {
            let is_used = self.allocs.is_deployed(id);
            self.deployments.set_used(id, is_used);
        }
    }

    /// Changes an allocation and updates the usage of its node. Returns whether some or all of its share was freed.
    pub(crate) fn update_alloc(&mut self, key: u64, change: impl FnOnce(&mut Row)) -> bool {
        let Some(updated) = self.allocs.update(key, change) else {
            return false;
        };
        let UpdateEffect {
            view,
            ask_before,
            affected,
        } = updated;
        let (before, after) = (ask_before, (!view.is_terminal()).then(|| view.ask()));
        if before != after {
            if let Some(ask) = before {
                self.nodes.give_back(view.node(), ask, view.holding());
            }
            if let Some(ask) = after {
                self.nodes.take(view.node(), ask, view.holding());
            }
        }
        self.update_affected_rows(&affected);
        before.is_some_and(|took| after.is_none_or(|takes| took.exceeds(takes).is_some()))
    }

    /// Removes allocations. Returns the removed ones and their nodes.
    pub(crate) fn remove_allocs(&mut self, keys: Vec<u64>) -> RemovedAllocs {
        let nodes = &mut self.nodes;
        let removed = self.allocs.remove_all(keys, |row| {
            if !row.is_terminal() {
                nodes.give_back(row.node(), row.ask(), row.held());
            }
        });
        let RemovalEffect {
            keys,
            jobs,
            nodes,
            evals,
            deployments,
            bytes,
        } = removed;
        for eval_id in &evals {
            let may_free = self.allocs.may_free(eval_id);
            self.evals.set_may_free(eval_id, may_free);
        }
        for id in &deployments {
            let is_used = self.allocs.is_deployed(id);
            self.deployments.set_used(id, is_used);
        }
        let mut node_ids = Vec::with_capacity(nodes.len());
        for (node_id, is_last) in nodes {
            if is_last {
                self.nodes.release(&node_id);
            }
            node_ids.push(node_id);
        }
        RemovedAllocs {
            keys,
            jobs,
            node_ids,
            bytes,
        }
    }

    /// Removes an evaluation.
    pub(crate) fn remove_eval(
        &mut self,
        eval_id: &EvalId,
        index: LogIndex,
    ) -> Option<Arc<Evaluation>> {
        self.evals.delete(eval_id, false, index)
    }

    /// Removes a deployment.
    pub(crate) fn remove_deployment(
        &mut self,
        id: &DeploymentId,
        index: LogIndex,
    ) -> Option<Arc<Deployment>> {
        self.deployments.delete(id, false, index)
    }

    /// Removes a node.
    pub(crate) fn remove_node(&mut self, node_id: &NodeId, index: LogIndex) {
        let is_meant = self
            .nodes
            .number(node_id)
            .is_some_and(|number| self.allocs.is_on(number));
        self.nodes.remove(node_id, is_meant, index);
    }
}
