//! Allocations, with indexes by node, by evaluation, by job and by deployment.
//!
//! A row is found by its key: the entry that made it and its place among that entry's rows, which is
//! also what its id says, so no map from ids is needed. Keys ascend in the order in which allocations
//! are made; every list here is in that order. Indexes hold keys, as runs where siblings follow one
//! another.
//!
//! What a node uses is kept in [`super::Nodes`]; `State` moves both.

mod marks;
mod row;
mod tasks;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;
use muster_domain::alloc::ClientStatus;
use muster_domain::id::{AllocId, DeploymentId, EvalId, JobKey, LogIndex, NodeId, NodeNumber};
use muster_domain::resources::Amount;

use super::digest::Digest;
use super::paged::Paged;
use super::prefix;
use super::runs::Runs;

pub(crate) use row::{Cohort, Row, RowRecord};
pub(crate) use tasks::Tasks;
pub use view::{AllocView, SavedAlloc};

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
    fn of(&mut self, status: ClientStatus) -> &mut u32 {
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

/// Bits of a key for the place among an entry's rows: as many as one command may place
/// ([`crate::limits::PLACEMENTS_MAX`]); the others hold every index that a log can reach.
const ORDINAL_BITS: u32 = 20;
/// Rows that one entry can make.
pub(crate) const ORDINALS: u32 = 1 << ORDINAL_BITS;

/// The key of the `ordinal`-th allocation that the entry at `index` makes.
pub(crate) fn key_at(index: LogIndex, ordinal: u32) -> u64 {
    debug_assert!(ordinal < ORDINALS, "placements of a command are bounded");
    index.0 << ORDINAL_BITS | u64::from(ordinal)
}

/// The key that an id says; `None` if no allocation can have it.
pub(crate) fn key_of(alloc_id: &AllocId) -> Option<u64> {
    let (index, ordinal) = alloc_id.origin()?;
    let fits = ordinal < ORDINALS && index.0 >> (u64::BITS - ORDINAL_BITS) == 0;
    fits.then(|| key_at(index, ordinal))
}

pub(crate) fn id_of(key: u64) -> AllocId {
    let ordinal = u32::try_from(key & u64::from(ORDINALS - 1)).unwrap_or_default();
    AllocId::at(created(key), ordinal)
}

fn created(key: u64) -> LogIndex {
    LogIndex(key >> ORDINAL_BITS)
}

/// What is on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeAllocs {
    node_id: NodeId,
    /// Ascending; at least one.
    keys: Arc<Vec<u64>>,
}

/// What an evaluation placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct EvalAllocs {
    /// At least one.
    keys: Runs,
    terminal: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct JobAllocs {
    keys: Runs,
    live: u32,
    summary: JobSummary,
}

impl JobAllocs {
    fn count(&mut self, key: u64, row: &Before, is_new: bool) {
        if is_new {
            self.keys.insert(key);
        }
        self.live += u32::from(!row.is_terminal);
        let group = &row.cohort.group().name;
        if let Some(counts) = self.summary.groups.get_mut(group) {
            *counts.of(row.status) += 1;
        } else {
            let mut counts = GroupCounts::default();
            *counts.of(row.status) += 1;
            self.summary.groups.insert(group.clone(), counts);
        }
    }
}

/// What a write changes beside the row.
struct Before {
    hash: u64,
    status: ClientStatus,
    is_terminal: bool,
    cohort: Arc<Cohort>,
    ask: Amount,
}

impl Before {
    fn of(key: u64, row: &Row) -> Self {
        Self {
            hash: row.hash(key),
            status: row.client_status,
            is_terminal: row.is_terminal(),
            cohort: Arc::clone(&row.cohort),
            ask: row.ask(),
        }
    }

    fn counts_like(&self, other: &Self) -> bool {
        self.status == other.status
            && self.is_terminal == other.is_terminal
            && Arc::ptr_eq(&self.cohort, &other.cohort)
    }
}

/// What an update did to the use of its node.
#[derive(Debug)]
pub(super) struct Updated<'a> {
    /// The row afterwards.
    pub(super) view: AllocView<'a>,
    /// What it took of its node before, if it was live.
    pub(super) took: Option<Amount>,
    /// What was counted otherwise.
    pub(super) moved: Moved,
}

/// What a write may have changed for rows of other tables.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// The evaluation, if it has its first or last allocation, or its first or last terminal one.
    pub(super) eval_id: Option<EvalId>,
    /// Deployments that have their first or last live allocation.
    pub(super) deployments: [Option<DeploymentId>; 2],
}

/// The table of allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocs {
    rows: Paged<Row>,
    /// By the node's number.
    by_node: Paged<NodeAllocs>,
    by_eval: OrdMap<EvalId, EvalAllocs>,
    by_job: OrdMap<Arc<JobKey>, Arc<JobAllocs>>,
    /// Live ones of each deployment that has any.
    of_deployment: OrdMap<DeploymentId, u32>,
    index: LogIndex,
    hash: u64,
}

impl Allocs {
    /// The allocation called so.
    #[must_use]
    pub fn get(&self, alloc_id: &AllocId) -> Option<AllocView<'_>> {
        self.at(key_of(alloc_id)?)
    }

    /// The allocation of this key.
    pub(crate) fn at(&self, key: u64) -> Option<AllocView<'_>> {
        let row = self.rows.get(key)?;
        Some(self.view(key, row))
    }

    fn view<'a>(&'a self, key: u64, row: &'a Row) -> AllocView<'a> {
        AllocView {
            table: self,
            key,
            row,
        }
    }

    /// All, in the order they were made.
    pub fn iter(&self) -> impl Iterator<Item = AllocView<'_>> {
        self.rows.iter().map(|(key, row)| self.view(key, row))
    }

    /// Those whose id begins with `text`, by id. Looks at every allocation: ids are scattered.
    #[must_use]
    pub fn with_prefix(&self, text: &str) -> Vec<AllocView<'_>> {
        let Some((low, high)) = prefix::bounds(text) else {
            return Vec::new();
        };
        let range = AllocId(low)..=AllocId(high);
        let mut found: Vec<(AllocId, AllocView<'_>)> = self
            .iter()
            .map(|alloc| (alloc.id(), alloc))
            .filter(|(alloc_id, _)| range.contains(alloc_id))
            .collect();
        found.sort_unstable_by_key(|(alloc_id, _)| *alloc_id);
        found.into_iter().map(|(_, alloc)| alloc).collect()
    }

    /// `allocs` in the order of their ids, as lists show them.
    pub fn by_id<'a>(allocs: impl Iterator<Item = AllocView<'a>>) -> Vec<AllocView<'a>> {
        let mut allocs: Vec<AllocView<'_>> = allocs.collect();
        allocs.sort_by_cached_key(|alloc| alloc.id());
        allocs
    }

    /// Those on one node. `number` is the node's; see [`super::Nodes::number`].
    pub fn on(&self, number: NodeNumber) -> impl Iterator<Item = AllocView<'_>> + use<'_> {
        self.by_node
            .get(u64::from(number.0))
            .into_iter()
            .flat_map(|node| node.keys.iter())
            .filter_map(|key| self.at(*key))
    }

    /// Those placed by one evaluation.
    pub fn of_eval(&self, eval_id: &EvalId) -> impl Iterator<Item = AllocView<'_>> + use<'_> {
        self.among(self.by_eval.get(eval_id).map(|eval| &eval.keys))
    }

    /// Those placed by one evaluation, from a key on.
    pub(crate) fn of_eval_from(
        &self,
        eval_id: &EvalId,
        from: u64,
    ) -> impl Iterator<Item = AllocView<'_>> + use<'_> {
        let keys = self.by_eval.get(eval_id).map(|eval| eval.keys.from(from));
        keys.into_iter().flatten().filter_map(|key| self.at(key))
    }

    /// Whether an evaluation has no allocations, or one that is terminal.
    pub(super) fn may_free(&self, eval_id: &EvalId) -> bool {
        self.by_eval
            .get(eval_id)
            .is_none_or(|eval| eval.terminal > 0)
    }

    /// Whether a deployment has a live allocation.
    pub(crate) fn is_deployed(&self, id: &DeploymentId) -> bool {
        self.of_deployment.contains_key(id)
    }

    /// Those of one job.
    pub fn of_job(&self, key: &JobKey) -> impl Iterator<Item = AllocView<'_>> + use<'_> {
        self.among(self.by_job.get(key).map(|job| &job.keys))
    }

    fn among<'a>(
        &'a self,
        keys: Option<&'a Runs>,
    ) -> impl Iterator<Item = AllocView<'a>> + use<'a> {
        keys.into_iter()
            .flat_map(Runs::iter)
            .filter_map(|key| self.at(key))
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

    /// The node that its allocations mean by `number`; all zeros if they mean none.
    pub(super) fn node_id(&self, number: NodeNumber) -> NodeId {
        self.by_node
            .get(u64::from(number.0))
            .map_or(NodeId([0; 16]), |node| node.node_id)
    }

    /// Whether any allocation is on the node of this number.
    pub(super) fn is_on(&self, number: NodeNumber) -> bool {
        self.by_node.get(u64::from(number.0)).is_some()
    }

    /// Nodes that allocations are on, by number.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (NodeNumber, NodeId)> {
        self.by_node.iter().map(|(number, node)| {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            (NodeNumber(number), node.node_id)
        })
    }

    /// What of a row only its cohort says, for a snapshot.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (u64, &Row)> {
        self.rows.iter()
    }

    /// The hash of its rows and its index; see [`super::StateHash`].
    pub(super) fn hash(&self) -> u64 {
        self.hash.wrapping_add(Digest::of(&self.index))
    }

    /// Writes a row that is not there. `node_id` is the node that `row.node` means.
    pub(super) fn insert(&mut self, key: u64, row: Row, node_id: NodeId) -> Moved {
        self.index = self.index.max(row.modify_index);
        let now = Before::of(key, &row);
        self.hash = self.hash.wrapping_add(now.hash);
        self.put_on_node(row.node, node_id, key);
        let moved = self.count(key, &now, true);
        self.rows.insert(key, row);
        moved
    }

    fn put_on_node(&mut self, number: NodeNumber, node_id: NodeId, key: u64) {
        let number = u64::from(number.0);
        if let Some(node) = self.by_node.get_mut(number) {
            let keys = Arc::make_mut(&mut node.keys);
            match keys.last() {
                Some(last) if *last > key => {
                    let at = keys.partition_point(|other| *other < key);
                    keys.insert(at, key);
                }
                Some(_) | None => keys.push(key),
            }
        } else {
            let keys = Arc::new(vec![key]);
            self.by_node.insert(number, NodeAllocs { node_id, keys });
        }
    }

    /// Changes a row that is there.
    pub(super) fn update(
        &mut self,
        key: u64,
        change: impl FnOnce(&mut Row),
    ) -> Option<Updated<'_>> {
        let row = self.rows.get_mut(key)?;
        let before = Before::of(key, row);
        change(row);
        let after = Before::of(key, row);
        self.index = self.index.max(row.modify_index);
        self.hash = self.hash.wrapping_sub(before.hash).wrapping_add(after.hash);
        let mut moved = Moved::default();
        if !before.counts_like(&after) {
            let away = self.uncount(key, &before, false);
            let here = self.count(key, &after, false);
            moved.eval_id = away.eval_id.or(here.eval_id);
            moved.deployments = [away.deployments[0], here.deployments[0]];
        }
        Some(Updated {
            view: self.at(key)?,
            took: (!before.is_terminal).then_some(before.ask),
            moved,
        })
    }

    /// Forgets a row. [`Self::index`] is not moved: see [`Self::set_index`].
    pub(super) fn remove(&mut self, key: u64) -> Option<(Row, Moved)> {
        let row = self.rows.remove(key)?;
        let before = Before::of(key, &row);
        self.hash = self.hash.wrapping_sub(before.hash);
        let number = u64::from(row.node.0);
        let is_last = self.by_node.get_mut(number).is_some_and(|node| {
            let keys = Arc::make_mut(&mut node.keys);
            if let Ok(at) = keys.binary_search(&key) {
                keys.remove(at);
            }
            keys.is_empty()
        });
        if is_last {
            self.by_node.remove(number);
        }
        let moved = self.uncount(key, &before, true);
        Some((row, moved))
    }

    /// Counts a row for its evaluation, its job and its deployment.
    fn count(&mut self, key: u64, row: &Before, is_new: bool) -> Moved {
        let mut moved = Moved::default();
        let eval_id = row.cohort.eval_id;
        if is_new || row.is_terminal {
            let eval = self.by_eval.entry(eval_id).or_default();
            let is_first = eval.keys.is_empty() || (row.is_terminal && eval.terminal == 0);
            moved.eval_id = is_first.then_some(eval_id);
            eval.terminal += u32::from(row.is_terminal);
            if is_new {
                eval.keys.insert(key);
            }
        }
        if let Some(job) = self.by_job.get_mut(&row.cohort.key) {
            Arc::make_mut(job).count(key, row, is_new);
        } else {
            let mut job = JobAllocs::default();
            job.count(key, row, is_new);
            let name = Arc::clone(&row.cohort.key);
            self.by_job.insert(name, Arc::new(job));
        }
        if let Some(id) = row.cohort.deployment.filter(|_| !row.is_terminal) {
            let live = self.of_deployment.entry(id).or_default();
            *live += 1;
            moved.deployments[0] = (*live == 1).then_some(id);
        }
        moved
    }

    fn uncount(&mut self, key: u64, row: &Before, is_gone: bool) -> Moved {
        let mut moved = Moved::default();
        let eval_id = row.cohort.eval_id;
        let is_counted = is_gone || row.is_terminal;
        if let Some(eval) = self.by_eval.get_mut(&eval_id).filter(|_| is_counted) {
            eval.terminal -= u32::from(row.is_terminal);
            if is_gone {
                eval.keys.remove(key);
            }
            let is_empty = eval.keys.is_empty();
            let is_last = is_empty || (row.is_terminal && eval.terminal == 0);
            moved.eval_id = is_last.then_some(eval_id);
            if is_empty {
                self.by_eval.remove(&eval_id);
            }
        }
        if let Some(id) = row.cohort.deployment.filter(|_| !row.is_terminal) {
            let is_last = self.of_deployment.get_mut(&id).is_some_and(|live| {
                *live -= 1;
                *live == 0
            });
            if is_last {
                self.of_deployment.remove(&id);
                moved.deployments[0] = Some(id);
            }
        }
        self.uncount_for_job(key, row, is_gone);
        moved
    }

    fn uncount_for_job(&mut self, key: u64, row: &Before, is_gone: bool) {
        let is_last = self.by_job.get_mut(&row.cohort.key).is_some_and(|job| {
            let job = Arc::make_mut(job);
            job.live -= u32::from(!row.is_terminal);
            let group = &row.cohort.group().name;
            if let Some(counts) = job.summary.groups.get_mut(group) {
                *counts.of(row.status) -= 1;
                if *counts == GroupCounts::default() {
                    job.summary.groups.remove(group);
                }
            }
            if is_gone {
                job.keys.remove(key);
            }
            job.keys.is_empty()
        });
        if is_last {
            self.by_job.remove(&row.cohort.key);
        }
    }

    pub(crate) fn set_index(&mut self, index: LogIndex) {
        self.index = index;
    }
}
