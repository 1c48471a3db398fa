//! Allocations, with indexes by node, by evaluation, by job and by time of their end.
//!
//! What a node uses is kept in [`super::Nodes`]; `State::put_alloc` moves both.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use muster_domain::alloc::{Allocation, ClientStatus};
use muster_domain::id::{AllocId, EvalId, JobKey, LogIndex, NodeId, Timestamp};

use super::digest::Digest;
use super::prefix;

const LOWEST: AllocId = AllocId([0x00; 16]);
const HIGHEST: AllocId = AllocId([0xff; 16]);

/// Allocations of a group by client status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Not started yet.
    pub pending: u32,
    /// Running.
    pub running: u32,
    /// Ended well.
    pub complete: u32,
    /// Failed for good.
    pub failed: u32,
    /// Lost with their node.
    pub lost: u32,
    /// Out of reach.
    pub unknown: u32,
}

impl GroupCounts {
    /// The count of one status.
    pub(super) fn of(&mut self, status: ClientStatus) -> &mut u32 {
        match status {
            ClientStatus::Pending => &mut self.pending,
            ClientStatus::Running => &mut self.running,
            ClientStatus::Complete => &mut self.complete,
            ClientStatus::Failed => &mut self.failed,
            ClientStatus::Lost => &mut self.lost,
            ClientStatus::Unknown => &mut self.unknown,
        }
    }
}

/// Allocations of a job by group and client status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSummary {
    /// By the group's name; groups of older versions too while they have allocations.
    pub groups: BTreeMap<String, GroupCounts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct JobAllocs {
    ids: OrdSet<AllocId>,
    live: u32,
    summary: JobSummary,
}

/// The table of allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocs {
    rows: OrdMap<AllocId, Arc<Allocation>>,
    by_node: OrdSet<(NodeId, AllocId)>,
    by_eval: OrdSet<(EvalId, AllocId)>,
    by_job: OrdMap<JobKey, Arc<JobAllocs>>,
    /// Terminal ones by the time of their last change.
    terminal: OrdSet<(Timestamp, AllocId)>,
    index: LogIndex,
    hash: u64,
}

impl Allocs {
    /// The allocation called so.
    #[must_use]
    pub fn get(&self, alloc_id: &AllocId) -> Option<&Arc<Allocation>> {
        self.rows.get(alloc_id)
    }

    /// All, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        self.rows.values()
    }

    /// Those whose id begins with `text`.
    #[must_use]
    pub fn with_prefix(&self, text: &str) -> Vec<&Arc<Allocation>> {
        let Some((low, high)) = prefix::bounds(text) else {
            return Vec::new();
        };
        self.rows
            .range(AllocId(low)..=AllocId(high))
            .map(|(_, row)| row)
            .collect()
    }

    /// Those on one node, by id.
    pub fn of_node(&self, node_id: &NodeId) -> impl Iterator<Item = &Arc<Allocation>> + use<'_> {
        self.by_node
            .range((*node_id, LOWEST)..=(*node_id, HIGHEST))
            .filter_map(|(_, alloc_id)| self.rows.get(alloc_id))
    }

    /// Those placed by one evaluation, by id.
    pub fn of_eval(&self, eval_id: &EvalId) -> impl Iterator<Item = &Arc<Allocation>> + use<'_> {
        self.by_eval
            .range((*eval_id, LOWEST)..=(*eval_id, HIGHEST))
            .filter_map(|(_, alloc_id)| self.rows.get(alloc_id))
    }

    /// Those of one job, by id.
    pub fn of_job(&self, key: &JobKey) -> impl Iterator<Item = &Arc<Allocation>> + use<'_> {
        self.by_job
            .get(key)
            .into_iter()
            .flat_map(|job| job.ids.iter())
            .filter_map(|alloc_id| self.rows.get(alloc_id))
    }

    /// Counts by group and client status; `None` if the job never had an allocation that is kept.
    #[must_use]
    pub fn summary(&self, key: &JobKey) -> Option<&JobSummary> {
        self.by_job.get(key).map(|job| &job.summary)
    }

    /// How many of a job are not terminal.
    #[must_use]
    pub fn live_of_job(&self, key: &JobKey) -> u32 {
        self.by_job.get(key).map_or(0, |job| job.live)
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The last entry that changed the table.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// The hash of its rows and its index; see [`super::StateHash`].
    pub(super) fn hash(&self) -> u64 {
        self.hash.wrapping_add(Digest::of(&self.index))
    }

    /// Writes a row and gives back the one it replaces.
    pub(super) fn put(&mut self, alloc: Arc<Allocation>) -> Option<Arc<Allocation>> {
        self.index = self.index.max(alloc.modify_index);
        self.hash = self.hash.wrapping_add(row_hash(&alloc));
        let old = self.rows.insert(alloc.id, Arc::clone(&alloc));
        if let Some(old) = &old {
            self.uncount(old);
        } else {
            self.by_node.insert((alloc.node_id, alloc.id));
            self.by_eval.insert((alloc.eval_id, alloc.id));
        }
        let job = Arc::make_mut(self.by_job.entry(alloc.job_key()).or_default());
        job.ids.insert(alloc.id);
        match job.summary.groups.get_mut(&alloc.group().name) {
            Some(counts) => *counts.of(alloc.client_status) += 1,
            None => {
                let mut counts = GroupCounts::default();
                *counts.of(alloc.client_status) += 1;
                job.summary
                    .groups
                    .insert(alloc.group().name.clone(), counts);
            }
        }
        if alloc.is_terminal() {
            self.terminal.insert((alloc.modify_time, alloc.id));
        } else {
            job.live += 1;
        }
        old
    }

    /// Forgets a row. [`Self::index`] is not moved: see [`Self::set_index`].
    pub(super) fn remove(&mut self, alloc_id: &AllocId) -> Option<Arc<Allocation>> {
        let old = self.rows.remove(alloc_id)?;
        self.uncount(&old);
        self.by_node.remove(&(old.node_id, old.id));
        self.by_eval.remove(&(old.eval_id, old.id));
        let key = old.job_key();
        let empty = self.by_job.get_mut(&key).is_some_and(|job| {
            let job = Arc::make_mut(job);
            job.ids.remove(alloc_id);
            job.ids.is_empty()
        });
        if empty {
            self.by_job.remove(&key);
        }
        Some(old)
    }

    fn uncount(&mut self, old: &Allocation) {
        self.hash = self.hash.wrapping_sub(row_hash(old));
        if old.is_terminal() {
            self.terminal.remove(&(old.modify_time, old.id));
        }
        if let Some(job) = self.by_job.get_mut(&old.job_key()) {
            let job = Arc::make_mut(job);
            if !old.is_terminal() {
                job.live -= 1;
            }
            let group = &old.group().name;
            if let Some(counts) = job.summary.groups.get_mut(group) {
                *counts.of(old.client_status) -= 1;
                if *counts == GroupCounts::default() {
                    job.summary.groups.remove(group);
                }
            }
        }
    }

    pub(crate) fn set_index(&mut self, index: LogIndex) {
        self.index = index;
    }
}

fn row_hash(alloc: &Allocation) -> u64 {
    let Allocation {
        id,
        eval_id,
        node_id,
        job,
        group_at,
        name_index,
        ports,
        metrics,
        score,
        desired,
        desired_description,
        client_status,
        client_description,
        task_states,
        previous,
        next,
        create_index,
        modify_index,
        alloc_modify_index,
        create_time,
        modify_time,
    } = alloc;
    let mut digest = Digest::default();
    digest.value(&(id, eval_id, node_id, &job.spec.namespace, &job.spec.id));
    digest.value(&(
        job.job_modify_index,
        group_at,
        name_index,
        ports,
        metrics,
        score,
    ));
    digest.value(&(
        desired,
        desired_description,
        client_status,
        client_description,
    ));
    digest.value(&(task_states, previous, next, create_index, modify_index));
    digest.value(&(alloc_modify_index, create_time, modify_time));
    digest.finish()
}
