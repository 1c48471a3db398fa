//! Allocations, with indexes by node, by evaluation, by job and by deployment.
//!
//! A row is found by its key: the entry that made it and its position among that entry's rows. The id of an allocation
//! contains the same data, so no map from ids is needed. Keys ascend in the order in which allocations are made; every
//! list here is in that order. Indexes hold keys, as runs where siblings are consecutive.
//!
//! Many rows are removed at a time: each index is touched once for all removed siblings. A node's list is long, shared
//! with every snapshot, and loses a few keys at a time. Therefore it keeps keys of removed rows until they are most of
//! the list. A key without a row is skipped, and is never used again.
//!
//! The usage of a node is in [`super::Nodes`]; `State` updates both.

mod marks;
mod remote;
mod row;
mod tasks;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;
use muster_domain::alloc::ClientStatus;
use muster_domain::id::{
    AllocId, ClusterTag, DeploymentId, EvalId, JobKey, LogIndex, NodeId, NodeNumber,
};
use muster_domain::number;
use muster_domain::resources::Amount;

use crate::limits;

use super::paged::{self, Paged};
use super::prefix;
use super::runs::Runs;
use super::table::{Storage, Table};

use remote::Remote;
pub(crate) use row::{PlanShared, Row, RowRecord};
pub(crate) use tasks::Tasks;
pub use view::{AllocView, SavedAlloc};

/// Allocations of a group by client status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    pub pending: u32,
    pub running: u32,
    pub complete: u32,
    pub failed: u32,
    /// Lost with their node.
    pub lost: u32,
    pub unknown: u32,
}

impl GroupCounts {
    /// Returns every status and its count.
    fn each(self) -> [(ClientStatus, u32); 6] {
        [
            (ClientStatus::Pending, self.pending),
            (ClientStatus::Running, self.running),
            (ClientStatus::Complete, self.complete),
            (ClientStatus::Failed, self.failed),
            (ClientStatus::Lost, self.lost),
            (ClientStatus::Unknown, self.unknown),
        ]
    }

    /// Returns the count of one status.
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
    /// Counts ascending by the group's name; groups of older versions are included while they have allocations. The
    /// list has room for no more than it holds: most jobs have one group, and a tree would take room for eleven.
    groups: Vec<(String, GroupCounts)>,
}

impl JobSummary {
    /// Returns the groups that have allocations, ascending by name.
    pub fn groups(&self) -> impl Iterator<Item = (&str, GroupCounts)> {
        self.groups
            .iter()
            .map(|(name, counts)| (name.as_str(), *counts))
    }

    fn count(&mut self, group: &str, status: ClientStatus, count: u32) {
        let at = match self.find(group) {
            Ok(at) => at,
            Err(at) => {
                self.groups.reserve_exact(1);
                let counts = GroupCounts::default();
                self.groups.insert(at, (group.to_owned(), counts));
                at
            }
        };
        *self.groups[at].1.of(status) += count;
    }

    /// Reduces a count. A group without allocations is removed.
    fn uncount(&mut self, group: &str, status: ClientStatus, count: u32) {
        if let Ok(at) = self.find(group) {
            let counts = &mut self.groups[at].1;
            *counts.of(status) -= count;
            if *counts == GroupCounts::default() {
                self.groups.remove(at);
                self.groups.shrink_to_fit();
            }
        }
    }

    /// Returns the position of the group, or else the one where it belongs.
    fn find(&self, group: &str) -> Result<usize, usize> {
        self.groups
            .binary_search_by(|(name, _)| name.as_str().cmp(group))
    }
}

/// Bits of a key for the position among an entry's rows. They suffice for the placements of one command
/// ([`crate::limits::PLACEMENTS_MAX`]). The other bits hold every index that a log can reach.
const ORDINAL_BITS: u32 = 20;
/// Number of rows that one entry can make.
pub(crate) const ORDINALS: u32 = 1 << ORDINAL_BITS;

/// Returns the key of the `ordinal`-th allocation that the entry at `index` makes.
pub(crate) fn key_at(index: LogIndex, ordinal: u32) -> u64 {
    debug_assert!(ordinal < ORDINALS, "placements of a command are bounded");
    index.0 << ORDINAL_BITS | u64::from(ordinal)
}

/// Returns the key in an id; `None` if no allocation of the cluster can have it.
fn key_of(cluster: ClusterTag, alloc_id: &AllocId) -> Option<u64> {
    let (of, index, ordinal) = alloc_id.origin()?;
    let fits = ordinal < ORDINALS && index.0 >> (u64::BITS - ORDINAL_BITS) == 0;
    (fits && of == cluster).then(|| key_at(index, ordinal))
}

/// Returns the id of the cluster's allocation with this key.
pub(crate) fn id_of(cluster: ClusterTag, key: u64) -> AllocId {
    let ordinal = u32::try_from(key & u64::from(ORDINALS - 1)).unwrap_or_default();
    AllocId::in_cluster(cluster, created(key), ordinal)
}

fn created(key: u64) -> LogIndex {
    LogIndex(key >> ORDINAL_BITS)
}

/// The allocations on a node.
#[derive(Clone, Debug)]
struct NodeAllocs {
    node_id: NodeId,
    /// The keys, ascending; at least one has a row.
    keys: Arc<Vec<u64>>,
    /// Number of keys without a row.
    gone: u32,
    /// Number of rows that are not terminal.
    live: u32,
}

impl NodeAllocs {
    /// Returns whether the list must be compacted because it has many keys without a row. Compaction looks up every
    /// remaining key, so it is rare. The threshold differs between nodes by their number: otherwise nodes that fill up
    /// and empty together would be due at once.
    fn is_stale(&self, number: u64) -> bool {
        const STEPS: usize = 16;
        let turn = usize::try_from(number % STEPS as u64).unwrap_or_default();
        // The threshold is between three quarters and fifteen sixteenths.
        let most = self.keys.len() * (12 * STEPS + 3 * turn) / (16 * STEPS);
        self.gone as usize > most
    }
}

/// The allocations that an evaluation placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct EvalAllocs {
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
    fn count(&mut self, counted: CountedRows, row: &PreviousRow) {
        let count = counted.count();
        if let CountedRows::New { first, .. } = counted {
            self.keys.insert(first, count);
        }
        self.live += if row.is_terminal { 0 } else { count };
        let group = &row.cohort.group().name;
        self.summary.count(group, row.status, count);
    }
}

/// The rows that are counted.
#[derive(Clone, Copy, Debug)]
enum CountedRows {
    /// New rows that count alike, with consecutive keys.
    New { first: u64, count: u32 },
    /// One existing row that counts differently than before.
    Changed,
}

impl CountedRows {
    fn count(self) -> u32 {
        match self {
            Self::New { first: _, count } => count,
            Self::Changed => 1,
        }
    }
}

/// The values of a row before a write that determine the hash and the counts.
struct PreviousRow {
    hash: u64,
    status: ClientStatus,
    is_terminal: bool,
    cohort: Arc<PlanShared>,
    ask: Amount,
}

impl PreviousRow {
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

/// The effect of an update on the usage of its node.
#[derive(Debug)]
pub(super) struct UpdateEffect<'a> {
    pub(super) view: AllocView<'a>,
    /// The amounts that the allocation took of its node before, if it was live.
    pub(super) ask_before: Option<Amount>,
    /// The rows of other tables that may count differently.
    pub(super) affected: AffectedRows,
}

/// The effects on other tables when rows were removed.
#[derive(Debug, Default)]
pub(super) struct RemovalEffect {
    pub(super) keys: Vec<u64>,
    pub(super) jobs: Vec<Arc<JobKey>>,
    /// Their nodes, each with whether the last row of the node was removed.
    pub(super) nodes: Vec<(NodeId, bool)>,
    /// Evaluations that have lost their last allocation, or have no terminal one any more.
    pub(super) evals: Vec<EvalId>,
    /// Deployments that have no live allocation any more.
    pub(super) deployments: Vec<DeploymentId>,
    /// Their size, without the data that they share with other rows.
    pub(super) bytes: u64,
}

/// Siblings that are removed together and count alike.
#[derive(Debug)]
struct RemovedSiblings {
    cohort: Arc<PlanShared>,
    status: ClientStatus,
    is_terminal: bool,
    count: u32,
}

impl RemovedSiblings {
    fn counts(&self, row: &Row) -> bool {
        Arc::ptr_eq(&self.cohort, &row.cohort)
            && self.status == row.client_status
            && self.is_terminal == row.is_terminal()
    }

    fn terminal(&self) -> u32 {
        if self.is_terminal { self.count } else { 0 }
    }

    fn live(&self) -> u32 {
        self.count - self.terminal()
    }
}

/// The rows of other tables for which a write may have changed something.
#[derive(Debug, Default)]
pub(super) struct AffectedRows {
    /// The evaluation, if it has its first or last allocation, or its first or last terminal one.
    pub(super) eval_id: Option<EvalId>,
    /// Deployments that have their first or last live allocation.
    pub(super) deployments: [Option<DeploymentId>; 2],
}

#[cfg(test)]
thread_local! {
    /// Number of rows that were looked up one by one on this thread.
    pub(crate) static LOOKED_UP: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The table of allocations. Its rows lie in pages, by key.
pub type Allocs = Table<Paged<Row>, AllocIndexes>;

impl<T: Clone> Storage for Paged<T> {
    fn count(&self) -> usize {
        self.len()
    }
}

/// The indexes of allocations.
#[derive(Clone, Debug, Default)]
pub struct AllocIndexes {
    /// The cluster's part of each id.
    cluster: ClusterTag,
    /// Allocations by the node's number.
    by_node: Paged<NodeAllocs>,
    by_eval: OrdMap<EvalId, EvalAllocs>,
    by_job: OrdMap<Arc<JobKey>, Arc<JobAllocs>>,
    /// Number of live allocations of each deployment that has any.
    of_deployment: OrdMap<DeploymentId, u32>,
}

/// Compares by content: which keys without a row a node's list keeps depends on its history.
impl PartialEq for Allocs {
    fn eq(&self, other: &Self) -> bool {
        let AllocIndexes {
            cluster,
            by_node,
            by_eval,
            by_job,
            of_deployment,
        } = &self.indexes;
        let theirs = &other.indexes;
        let same_node = |(number, node): (u64, &NodeAllocs)| {
            let theirs = theirs.by_node.get(number);
            theirs.is_some_and(|theirs| {
                node.node_id == theirs.node_id
                    && node.live == theirs.live
                    && self.existing_keys(node).eq(&other.existing_keys(theirs))
            })
        };
        *cluster == theirs.cluster
            && self.rows == other.rows
            && by_node.len() == theirs.by_node.len()
            && by_node.iter().all(same_node)
            && *by_eval == theirs.by_eval
            && *by_job == theirs.by_job
            && *of_deployment == theirs.of_deployment
            && self.hash() == other.hash()
            && self.index() == other.index()
    }
}

impl Eq for Allocs {}

impl Allocs {
    /// Returns the allocation with this id.
    #[must_use]
    pub fn get(&self, alloc_id: &AllocId) -> Option<AllocView<'_>> {
        self.at(self.key_of(alloc_id)?)
    }

    /// Returns the cluster's part of the ids.
    #[must_use]
    pub fn cluster(&self) -> ClusterTag {
        self.indexes.cluster
    }

    pub(super) fn set_cluster(&mut self, cluster: ClusterTag) {
        debug_assert!(self.rows.is_empty(), "ids of rows do not change");
        self.indexes.cluster = cluster;
    }

    /// Returns the key in an id; `None` if no allocation of this table can have it.
    #[must_use]
    pub fn key_of(&self, alloc_id: &AllocId) -> Option<u64> {
        key_of(self.indexes.cluster, alloc_id)
    }

    /// Returns the id of the allocation with this key.
    #[must_use]
    pub fn id_of(&self, key: u64) -> AllocId {
        id_of(self.indexes.cluster, key)
    }

    /// Returns the allocation with this key.
    pub(crate) fn at(&self, key: u64) -> Option<AllocView<'_>> {
        #[cfg(test)]
        LOOKED_UP.set(LOOKED_UP.get() + 1);
        let row = self.rows.get(key)?;
        Some(self.view(key, row))
    }

    /// Returns a cursor for looking up allocations one after the other. It is cheaper than [`Self::get`] for
    /// allocations that were made together.
    #[must_use]
    pub fn finder(&self) -> AllocCursor<'_> {
        AllocCursor {
            table: self,
            rows: self.rows.finder(),
        }
    }

    fn view<'a>(&'a self, key: u64, row: &'a Row) -> AllocView<'a> {
        AllocView {
            table: self,
            key,
            row,
        }
    }

    /// Returns all allocations, in the order they were made.
    pub fn iter(&self) -> impl Iterator<Item = AllocView<'_>> {
        self.rows.iter().map(|(key, row)| self.view(key, row))
    }

    /// Returns allocations whose id begins with `text`, by id. It looks at every allocation: ids are scattered.
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

    /// Returns `allocs` in the order of their ids, as lists show them.
    pub fn by_id<'a>(allocs: impl Iterator<Item = AllocView<'a>>) -> Vec<AllocView<'a>> {
        let mut allocs: Vec<AllocView<'_>> = allocs.collect();
        allocs.sort_by_cached_key(|alloc| alloc.id());
        allocs
    }

    /// Returns the allocations on one node. `number` is the node's; see [`super::Nodes::number`].
    pub fn on(&self, number: NodeNumber) -> impl Iterator<Item = AllocView<'_>> + use<'_> {
        self.indexes
            .by_node
            .get(u64::from(number.0))
            .into_iter()
            .flat_map(|node| node.keys.iter())
            .filter_map(|key| self.at(*key))
    }

    /// Returns the number of allocations on one node that are not terminal. It is counted with every change, so no
    /// allocation is looked at.
    pub(super) fn live_on(&self, number: NodeNumber) -> u32 {
        let node = self.indexes.by_node.get(u64::from(number.0));
        node.map_or(0, |node| node.live)
    }

    /// Returns the allocations placed by one evaluation.
    pub fn of_eval(&self, eval_id: &EvalId) -> impl Iterator<Item = AllocView<'_>> + use<'_> {
        self.among(self.indexes.by_eval.get(eval_id).map(|eval| &eval.keys))
    }

    /// Returns the allocations placed by one evaluation, from a key on.
    pub(crate) fn of_eval_from(
        &self,
        eval_id: &EvalId,
        from: u64,
    ) -> impl Iterator<Item = AllocView<'_>> + use<'_> {
        let eval = self.indexes.by_eval.get(eval_id);
        let ranges = eval.map(|eval| eval.keys.ranges_from(from));
        ranges.into_iter().flatten().flat_map(|range| {
            let rows = self.rows.from(range.start);
            let rows = rows.take_while(move |(key, _)| *key < range.end);
            rows.map(|(key, row)| self.view(key, row))
        })
    }

    /// Returns the number of existing allocations that one evaluation placed.
    pub(crate) fn count_of_eval(&self, eval_id: &EvalId) -> usize {
        self.indexes
            .by_eval
            .get(eval_id)
            .map_or(0, |eval| eval.keys.len())
    }

    /// Returns whether an evaluation has no allocations, or a terminal one.
    pub(super) fn may_free(&self, eval_id: &EvalId) -> bool {
        self.indexes
            .by_eval
            .get(eval_id)
            .is_none_or(|eval| eval.terminal > 0)
    }

    /// Returns whether a deployment has a live allocation.
    pub(crate) fn is_deployed(&self, id: &DeploymentId) -> bool {
        self.indexes.of_deployment.contains_key(id)
    }

    /// Returns the allocations of one job.
    pub fn of_job(&self, key: &JobKey) -> impl Iterator<Item = AllocView<'_>> + use<'_> {
        self.among(self.indexes.by_job.get(key).map(|job| &job.keys))
    }

    fn among<'a>(
        &'a self,
        keys: Option<&'a Runs>,
    ) -> impl Iterator<Item = AllocView<'a>> + use<'a> {
        keys.into_iter()
            .flat_map(Runs::iter)
            .filter_map(|key| self.at(key))
    }

    /// Returns the counts by group and client status; `None` if the job has no allocation.
    #[must_use]
    pub fn summary(&self, key: &JobKey) -> Option<&JobSummary> {
        self.indexes.by_job.get(key).map(|job| &job.summary)
    }

    /// Returns the number of allocations with each client status. The counts of each job suffice, so no allocation is
    /// looked at.
    #[must_use]
    pub fn by_client_status(&self) -> BTreeMap<ClientStatus, u64> {
        let mut all = BTreeMap::new();
        let jobs = self.indexes.by_job.iter().map(|(_, job)| &job.summary);
        for (_, counts) in jobs.flat_map(JobSummary::groups) {
            for (status, count) in counts.each().into_iter().filter(|(_, count)| *count > 0) {
                *all.entry(status).or_default() += u64::from(count);
            }
        }
        all
    }

    /// Returns the number of allocations of a job that are not terminal.
    #[must_use]
    pub fn live_of_job(&self, key: &JobKey) -> u32 {
        self.indexes.by_job.get(key).map_or(0, |job| job.live)
    }

    /// Returns the node to which its allocations refer by `number`; all zeros if none do.
    pub(super) fn node_id(&self, number: NodeNumber) -> NodeId {
        self.indexes
            .by_node
            .get(u64::from(number.0))
            .map_or(NodeId([0; 16]), |node| node.node_id)
    }

    /// Returns whether any allocation is on the node of this number.
    pub(super) fn is_on(&self, number: NodeNumber) -> bool {
        self.indexes.by_node.get(u64::from(number.0)).is_some()
    }

    /// Returns the nodes with allocations, by number.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (NodeNumber, NodeId)> {
        self.indexes.by_node.iter().map(|(number, node)| {
            let number = u32::try_from(number).expect("nodes are numbered with 32 bits");
            (NodeNumber(number), node.node_id)
        })
    }

    /// Returns all rows with their keys, for a snapshot.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (u64, &Row)> {
        self.rows.iter()
    }

    /// Writes a new row. `node_id` is the node of `row.node`.
    pub(super) fn insert(&mut self, key: u64, row: Row, node_id: NodeId) -> AffectedRows {
        self.touch(row.modify_index);
        let now = PreviousRow::of(key, &row);
        self.rehash(0, now.hash);
        self.put_on_node(&row, node_id, key);
        let one = CountedRows::New {
            first: key,
            count: 1,
        };
        let affected = self.count(one, &now);
        self.rows.insert(key, row);
        affected
    }

    /// Writes new rows with consecutive keys from `first` on. They are of one cohort and of one status, none is
    /// terminal, and each comes with the node of its number. Every index is touched once for all rows, except the index
    /// by node.
    pub(super) fn insert_siblings(
        &mut self,
        first: u64,
        rows: Vec<Row>,
        nodes: &[NodeId],
    ) -> AffectedRows {
        let Some(eldest) = rows.first() else {
            return AffectedRows::default();
        };
        let alike = PreviousRow::of(first, eldest);
        for ((key, row), node_id) in (first..).zip(&rows).zip(nodes) {
            debug_assert!(
                alike.counts_like(&PreviousRow::of(key, row)) && !alike.is_terminal,
                "siblings count alike"
            );
            self.touch(row.modify_index);
            self.rehash(0, row.hash(key));
            self.put_on_node(row, *node_id, key);
        }
        // A command makes fewer than a million.
        let count = number::count(rows.len());
        let affected = self.count(CountedRows::New { first, count }, &alike);
        self.rows.insert_all(first, rows);
        affected
    }

    fn put_on_node(&mut self, row: &Row, node_id: NodeId, key: u64) {
        let number = u64::from(row.node.0);
        let live = u32::from(!row.is_terminal());
        if let Some(node) = self.indexes.by_node.get_mut(number) {
            node.live += live;
            let keys = Arc::make_mut(&mut node.keys);
            match keys.last() {
                Some(last) if *last > key => {
                    let at = keys.partition_point(|other| *other < key);
                    keys.insert(at, key);
                }
                Some(_) | None => keys.push(key),
            }
        } else {
            let node = NodeAllocs {
                node_id,
                keys: Arc::new(vec![key]),
                gone: 0,
                live,
            };
            self.indexes.by_node.insert(number, node);
        }
    }

    /// Changes an existing row.
    pub(super) fn update(
        &mut self,
        key: u64,
        change: impl FnOnce(&mut Row),
    ) -> Option<UpdateEffect<'_>> {
        let row = self.rows.get_mut(key)?;
        let before = PreviousRow::of(key, row);
        change(row);
        let after = PreviousRow::of(key, row);
        let (number, modify_index) = (u64::from(row.node.0), row.modify_index);
        self.touch(modify_index);
        self.rehash(before.hash, after.hash);
        let mut affected = AffectedRows::default();
        if before.is_terminal != after.is_terminal
            && let Some(node) = self.indexes.by_node.get_mut(number)
        {
            node.live += u32::from(before.is_terminal);
            node.live -= u32::from(after.is_terminal);
        }
        if !before.counts_like(&after) {
            let uncounted = self.uncount(&before);
            let counted = self.count(CountedRows::Changed, &after);
            affected.eval_id = uncounted.eval_id.or(counted.eval_id);
            affected.deployments = [uncounted.deployments[0], counted.deployments[0]];
        }
        Some(UpdateEffect {
            view: self.at(key)?,
            ask_before: (!before.is_terminal).then_some(before.ask),
            affected,
        })
    }

    /// Removes rows, and passes each to the caller before that. [`Self::index`] is not changed: see
    /// [`Self::set_index`].
    pub(super) fn remove_all(
        &mut self,
        mut keys: Vec<u64>,
        mut each: impl FnMut(&Row),
    ) -> RemovalEffect {
        keys.sort_unstable();
        let mut removed = RemovalEffect {
            keys: Vec::with_capacity(keys.len()),
            ..RemovalEffect::default()
        };
        let mut numbers: Vec<NodeNumber> = Vec::with_capacity(keys.len());
        let mut live: Vec<NodeNumber> = Vec::new();
        let mut all: Vec<RemovedSiblings> = Vec::new();
        let mut hash: u64 = 0;
        self.rows.remove_all(&keys, |key, row| {
            let digest = row.digest(key);
            hash = hash.wrapping_add(digest.finish());
            removed.bytes += digest.size();
            removed.keys.push(key);
            numbers.push(row.node);
            if !row.is_terminal() {
                live.push(row.node);
            }
            match all.last_mut() {
                Some(gone) if gone.counts(row) => gone.count += 1,
                Some(_) | None => all.push(RemovedSiblings {
                    cohort: Arc::clone(&row.cohort),
                    status: row.client_status,
                    is_terminal: row.is_terminal(),
                    count: 1,
                }),
            }
            each(row);
        });
        self.rehash(hash, 0);
        self.forget_for_evals(&all, &mut removed);
        self.forget_for_jobs(&all, &mut removed);
        self.forget_for_deployments(&all, &mut removed);
        for number in live {
            if let Some(node) = self.indexes.by_node.get_mut(u64::from(number.0)) {
                node.live -= 1;
            }
        }
        self.forget_for_nodes(numbers, &mut removed);
        removed
    }

    fn forget_for_evals(&mut self, all: &[RemovedSiblings], removed: &mut RemovalEffect) {
        let mut keys = removed.keys.as_slice();
        for siblings in all.chunk_by(|one, next| one.cohort.eval_id == next.cohort.eval_id) {
            let eval_id = siblings[0].cohort.eval_id;
            let of_eval = take(&mut keys, siblings);
            let Some(eval) = self.indexes.by_eval.get_mut(&eval_id) else {
                continue;
            };
            let terminal: u32 = siblings.iter().map(RemovedSiblings::terminal).sum();
            eval.terminal -= terminal;
            eval.keys.remove_all(of_eval);
            let is_empty = eval.keys.is_empty();
            if is_empty || (terminal > 0 && eval.terminal == 0) {
                removed.evals.push(eval_id);
            }
            if is_empty {
                self.indexes.by_eval.remove(&eval_id);
            }
        }
    }

    fn forget_for_jobs(&mut self, all: &[RemovedSiblings], removed: &mut RemovalEffect) {
        let mut keys = removed.keys.as_slice();
        for siblings in all.chunk_by(|one, next| one.cohort.key == next.cohort.key) {
            let name = &siblings[0].cohort.key;
            let of_job = take(&mut keys, siblings);
            removed.jobs.push(Arc::clone(name));
            let Some(job) = self.indexes.by_job.get_mut(name) else {
                continue;
            };
            let job = Arc::make_mut(job);
            for gone in siblings {
                job.live -= gone.live();
                let group = &gone.cohort.group().name;
                job.summary.uncount(group, gone.status, gone.count);
            }
            job.keys.remove_all(of_job);
            if job.keys.is_empty() {
                self.indexes.by_job.remove(name);
            }
        }
    }

    fn forget_for_deployments(&mut self, all: &[RemovedSiblings], removed: &mut RemovalEffect) {
        for gone in all.iter().filter(|gone| !gone.is_terminal) {
            if let Some(id) = gone.cohort.deployment
                && self.end_deployed(&id, gone.count)
            {
                removed.deployments.push(id);
            }
        }
    }

    fn forget_for_nodes(&mut self, mut numbers: Vec<NodeNumber>, removed: &mut RemovalEffect) {
        numbers.sort_unstable();
        let mut stale = Vec::new();
        for same in numbers.chunk_by(|one, next| one == next) {
            let number = u64::from(same[0].0);
            let Some(node) = self.indexes.by_node.get_mut(number) else {
                continue;
            };
            node.gone += number::count(same.len());
            let is_last = node.gone as usize == node.keys.len();
            removed.nodes.push((node.node_id, is_last));
            if is_last {
                self.indexes.by_node.remove(number);
            } else if node.is_stale(number) {
                stale.push(number);
            }
        }
        let mut looked_up = 0;
        for number in stale {
            let Some(node) = self.indexes.by_node.get(number) else {
                continue;
            };
            looked_up += node.keys.len();
            if looked_up > node.keys.len() && looked_up > limits::STALE_KEYS_MAX {
                break;
            }
            let left = self.existing_keys(node);
            if let (Some(left), Some(node)) = (left, self.indexes.by_node.get_mut(number)) {
                node.keys = Arc::new(left);
                node.gone = 0;
            }
        }
    }

    /// Returns the keys of a node that have a row; `None` if their number is not the expected one.
    fn existing_keys(&self, node: &NodeAllocs) -> Option<Vec<u64>> {
        let count = node.keys.len().checked_sub(node.gone as usize)?;
        let mut left = Vec::with_capacity(count);
        let keys = node.keys.iter().copied();
        left.extend(keys.filter(|key| self.rows.get(*key).is_some()));
        (left.len() == count).then_some(left)
    }

    /// Counts rows for their evaluation, their job and their deployment. `row` is what each of them counts as.
    fn count(&mut self, counted: CountedRows, row: &PreviousRow) -> AffectedRows {
        let mut affected = AffectedRows::default();
        let eval_id = row.cohort.eval_id;
        let count = counted.count();
        let is_new = matches!(counted, CountedRows::New { .. });
        if is_new || row.is_terminal {
            let eval = self.indexes.by_eval.entry(eval_id).or_default();
            let is_first = eval.keys.is_empty() || (row.is_terminal && eval.terminal == 0);
            affected.eval_id = is_first.then_some(eval_id);
            eval.terminal += if row.is_terminal { count } else { 0 };
            if let CountedRows::New { first, count } = counted {
                eval.keys.insert(first, count);
            }
        }
        if let Some(job) = self.indexes.by_job.get_mut(&row.cohort.key) {
            Arc::make_mut(job).count(counted, row);
        } else {
            let mut job = JobAllocs::default();
            job.count(counted, row);
            let name = Arc::clone(&row.cohort.key);
            self.indexes.by_job.insert(name, Arc::new(job));
        }
        if let Some(id) = row.cohort.deployment.filter(|_| !row.is_terminal) {
            let live = self.indexes.of_deployment.entry(id).or_default();
            let is_first = *live == 0;
            *live += count;
            affected.deployments[0] = is_first.then_some(id);
        }
        affected
    }

    fn uncount(&mut self, row: &PreviousRow) -> AffectedRows {
        let mut affected = AffectedRows::default();
        let eval_id = row.cohort.eval_id;
        if row.is_terminal
            && let Some(eval) = self.indexes.by_eval.get_mut(&eval_id)
        {
            eval.terminal -= 1;
            affected.eval_id = (eval.terminal == 0).then_some(eval_id);
        }
        if let Some(id) = row.cohort.deployment.filter(|_| !row.is_terminal)
            && self.end_deployed(&id, 1)
        {
            affected.deployments[0] = Some(id);
        }
        if let Some(job) = self.indexes.by_job.get_mut(&row.cohort.key) {
            let job = Arc::make_mut(job);
            job.live -= u32::from(!row.is_terminal);
            job.summary.uncount(&row.cohort.group().name, row.status, 1);
        }
        affected
    }

    /// Subtracts live allocations from a deployment. Returns whether they were the last.
    fn end_deployed(&mut self, id: &DeploymentId, count: u32) -> bool {
        let is_last = self.indexes.of_deployment.get_mut(id).is_some_and(|live| {
            *live -= count;
            *live == 0
        });
        if is_last {
            self.indexes.of_deployment.remove(id);
        }
        is_last
    }
}

/// A cursor for looking up allocations one after the other.
#[derive(Debug)]
pub struct AllocCursor<'a> {
    table: &'a Allocs,
    rows: paged::PageCursor<'a, Row>,
}

impl<'a> AllocCursor<'a> {
    /// Returns the allocation with this id.
    pub fn get(&mut self, alloc_id: &AllocId) -> Option<AllocView<'a>> {
        let key = self.table.key_of(alloc_id)?;
        let row = self.rows.get(key)?;
        Some(self.table.view(key, row))
    }
}

/// Takes as many keys off the front as there are `siblings`.
fn take<'a>(keys: &mut &'a [u64], siblings: &[RemovedSiblings]) -> &'a [u64] {
    let count = siblings.iter().map(|gone| gone.count as usize).sum();
    let (taken, rest) = keys.split_at_checked(count).unwrap_or((keys, &[]));
    *keys = rest;
    taken
}

#[cfg(test)]
mod tests {
    use muster_domain::alloc::{PlacementMetrics, Score};
    use muster_domain::fixture;
    use muster_domain::id::Timestamp;
    use muster_domain::job::JobVersion;

    use super::*;

    const NODES: u32 = 8;
    const ON_EACH: u32 = 1_000;

    /// Returns nodes with the same compaction threshold.
    fn node(at: u32) -> NodeNumber {
        NodeNumber(16 * at)
    }

    /// Fills [`ON_EACH`] allocations into each of [`NODES`] in turn; also returns the keys of each node in their order.
    fn filled() -> (Allocs, Vec<Vec<u64>>) {
        let version = JobVersion {
            spec: fixture::job("web").build(),
            version: 0,
            submit_time: Timestamp(0),
            create_index: LogIndex(1),
            job_modify_index: LogIndex(1),
        };
        let (eval_id, metrics) = (EvalId([1; 16]), Arc::new(PlacementMetrics::default()));
        let cohort = PlanShared::new(Arc::new(version), 0, eval_id, metrics, Timestamp(0), None);
        let cohort = cohort.unwrap();
        let mut allocs = Allocs::default();
        let mut keys = vec![Vec::new(); NODES as usize];
        for number in 0..NODES * ON_EACH {
            let (key, at) = (key_at(LogIndex(2), number), number % NODES);
            let row = Row::placed(&cohort, node(at), number, Score::default(), LogIndex(2));
            allocs.insert(key, row, NodeId([1; 16]));
            keys[at as usize].push(key);
        }
        (allocs, keys)
    }

    #[test]
    fn job_summary_lists_nonempty_groups_by_name() {
        let mut summary = JobSummary::default();
        for group in ["web", "db", "cache", "db"] {
            summary.count(group, ClientStatus::Running, 2);
        }
        let counted = |summary: &JobSummary| {
            let groups = summary.groups();
            groups
                .map(|(name, counts)| (name.to_owned(), counts.running, counts.lost))
                .collect::<Vec<_>>()
        };
        let group = |name: &str, running| (name.to_owned(), running, 0);
        let all = [group("cache", 2), group("db", 4), group("web", 2)];
        assert_eq!(counted(&summary), all);

        summary.uncount("db", ClientStatus::Running, 4);
        summary.uncount("web", ClientStatus::Running, 1);
        summary.uncount("gone", ClientStatus::Lost, 1);

        assert_eq!(counted(&summary), [group("cache", 2), group("web", 1)]);
    }

    /// Removing together and one by one have the same result.
    #[test]
    fn client_statuses_are_counted_of_all_jobs_together() {
        let (mut allocs, keys) = filled();
        let pending = |count| BTreeMap::from([(ClientStatus::Pending, u64::from(count))]);
        assert_eq!(allocs.by_client_status(), pending(NODES * ON_EACH));

        allocs.update(keys[0][0], |row| {
            row.client_status = ClientStatus::Complete;
        });
        allocs.remove_all(keys[1].clone(), |_| {});

        let mut left = pending(NODES * ON_EACH - ON_EACH - 1);
        left.insert(ClientStatus::Complete, 1);
        assert_eq!(allocs.by_client_status(), left);
        allocs.remove_all(keys.concat(), |_| {});
        assert_eq!(allocs.by_client_status(), BTreeMap::new());
    }

    #[test]
    fn siblings_are_written_as_one_by_one() {
        const FIRST: u64 = 40;
        let (filled, _) = filled();
        let cohort = Arc::clone(&filled.rows().next().unwrap().1.cohort);
        let row = |at: u32| Row::placed(&cohort, node(at % 3), at, Score::default(), LogIndex(9));
        let ids = [1, 2, 3].map(|id| NodeId([id; 16]));
        let (mut alone, mut together) = (filled.clone(), filled);

        for (key, at) in (FIRST..).zip(0..100) {
            alone.insert(key, row(at), ids[at as usize % 3]);
        }
        let nodes: Vec<NodeId> = (0..100).map(|at| ids[at % 3]).collect();
        together.insert_siblings(FIRST, (0..100).map(row).collect(), &nodes);

        assert_eq!(alone, together);
        assert_eq!(alone.on(node(1)).count(), together.on(node(1)).count());
    }

    /// Returns the number of nodes whose lists keep no key of a row that is gone.
    fn thinned(allocs: &Allocs) -> usize {
        let nodes = allocs.indexes.by_node.iter();
        nodes.filter(|(_, node)| node.gone == 0).count()
    }

    /// Only one list of a thousand keys is looked up at a time, although all are due at once.
    #[test]
    fn node_alloc_lists_are_compacted_incrementally() {
        let (mut allocs, keys) = filled();
        let most = keys.iter().flat_map(|keys| &keys[..900]).copied();
        allocs.remove_all(most.collect(), |_| {});
        let mut seen = vec![thinned(&allocs)];

        for round in 900..904 {
            allocs.remove_all(keys.iter().map(|keys| keys[round]).collect(), |_| {});
            let full = allocs
                .indexes
                .by_node
                .iter()
                .filter(|(_, node)| node.keys.len() > 100);
            seen.push(NODES as usize - full.count());
        }

        assert_eq!(seen, [1, 2, 3, 4, 5]);
        for (at, keys) in (0..).zip(&keys) {
            let left: Vec<u64> = allocs.on(node(at)).map(AllocView::key).collect();
            assert_eq!(left, keys[904..]);
        }
    }
}
