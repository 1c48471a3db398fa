//! The changes of desired allocations that a session sends to its node.
//!
//! The session first sends the changes since the node's last complete state, and then each change.
//!
//! A message carries each allocation with its `alloc_modify_index`, so a repeated or late message does no harm.
//! The node receives every row that the state has for it, including finished ones, so that it knows the rows to
//! keep. Rows that the node already has are sent by id alone. Removed rows are sent as gone. A set ends with the
//! number of its rows.

use std::sync::Arc;

use muster_control_core::state::{AllocView, State};
use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::{AllocId, LogIndex, NodeId};
use muster_domain::job::JobVersion;
use muster_domain::number;
use muster_wire::codec;
use muster_wire::limits::{DESIRED_BATCH_MAX, FRAME_BYTES_MAX, UNCHANGED_BATCH_MAX};
use muster_wire::rpc::ToAgent;

/// Bytes of jobs in one message: half a frame. The other half is for the rest of each allocation.
const JOB_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// The rows that one session has sent to its node.
#[derive(Debug)]
pub(super) struct SentDesired {
    node_id: NodeId,
    /// Sent allocations by key. Keys follow the order of creation, as in the state.
    known: Vec<(u64, LogIndex)>,
    /// The newest entry that the node had before the session; `None` once the session has sent the changes since.
    before: Option<LogIndex>,
}

impl SentDesired {
    /// Starts for a node that has all changes up to `known`.
    pub(super) fn up_to(node_id: NodeId, known: LogIndex) -> Self {
        Self {
            node_id,
            known: Vec::new(),
            before: Some(known),
        }
    }

    /// Returns the messages that bring the node up to `state`; none if it has all changes. The caller sends all of
    /// them in order, or drops `self`.
    pub(super) fn catch_up(&mut self, state: &State) -> Vec<ToAgent> {
        let mut changed = Vec::new();
        let mut unchanged = Vec::new();
        let mut gone = Vec::new();
        let before = self.before.take();
        let mut known = Vec::with_capacity(self.known.len() + 1);
        let mut sent = self.known.iter().peekable();
        for alloc in state.allocs_on(&self.node_id) {
            let key = alloc.key();
            // Both lists are in the order of creation.
            while let Some((sent_key, _)) = sent.next_if(|(sent_key, _)| *sent_key < key) {
                gone.push(state.allocs().id_of(*sent_key));
            }
            let sent_index = sent.next_if(|(sent_key, _)| *sent_key == key);
            let sent_index = sent_index.map(|(_, index)| *index).or(before);
            if sent_index.is_none_or(|index| index < alloc.alloc_modify_index()) {
                changed.push(alloc);
            } else if before.is_some() {
                unchanged.push(alloc.id());
            }
            known.push((key, alloc.alloc_modify_index()));
        }
        gone.extend(sent.map(|(key, _)| state.allocs().id_of(*key)));
        self.known = known;
        // The oldest changes come first. A node that is cut off half-way then has the earliest requests.
        changed.sort_unstable_by_key(|alloc: &AllocView<'_>| {
            (alloc.alloc_modify_index(), alloc.key())
        });
        if changed.is_empty() && gone.is_empty() && before.is_none() {
            return Vec::new();
        }
        let mut messages: Vec<ToAgent> = unchanged
            .chunks(UNCHANGED_BATCH_MAX)
            .map(|ids| message(state, &[], ids.to_vec()))
            .chain(
                batches(&changed)
                    .into_iter()
                    .map(|allocs| message(state, allocs, Vec::new())),
            )
            .collect();
        if messages.is_empty() {
            messages.push(message(state, &[], Vec::new()));
        }
        if let Some(ToAgent::Desired {
            gone: last_gone,
            complete,
            ..
        }) = messages.last_mut()
        {
            *last_gone = gone;
            *complete = Some(number::count(self.known.len()));
        }
        messages
    }
}

fn message(state: &State, allocs: &[AllocView<'_>], unchanged: Vec<AllocId>) -> ToAgent {
    let mut desired: Vec<DesiredAlloc> = allocs.iter().map(|alloc| alloc.to_desired()).collect();
    if !state.config().scheduler.memory_oversubscription {
        limit_memory(&mut desired);
    }
    ToAgent::Desired {
        index: state.applied(),
        allocs: desired,
        unchanged,
        gone: Vec::new(),
        complete: None,
        remote: allocs
            .iter()
            .filter_map(|alloc| alloc.to_remote())
            .collect(),
    }
}

/// Removes `memory_max`: it has no effect unless the cluster oversubscribes memory. A one-off task without a limit
/// stays without one.
fn limit_memory(desired: &mut [DesiredAlloc]) {
    // Many allocations share a version of a job.
    let mut limited: Option<(Arc<JobVersion>, Arc<JobVersion>)> = None;
    for alloc in desired {
        if alloc.job.spec.is_one_off() {
            continue;
        }
        let groups = &alloc.job.spec.groups;
        let mut tasks = groups.iter().flat_map(|group| &group.tasks);
        if tasks.all(|task| task.resources.memory_max.is_none()) {
            continue;
        }
        let known = limited
            .as_ref()
            .filter(|(of, _)| Arc::ptr_eq(of, &alloc.job));
        let version = match known {
            Some((_, version)) => Arc::clone(version),
            None => {
                let mut version = (*alloc.job).clone();
                for group in &mut version.spec.groups {
                    for task in &mut group.tasks {
                        task.resources.memory_max = None;
                    }
                }
                let version = Arc::new(version);
                limited = Some((Arc::clone(&alloc.job), Arc::clone(&version)));
                version
            }
        };
        alloc.job = version;
    }
}

/// Splits `allocs` into parts that each fit a message.
fn batches<'a, 's>(allocs: &'a [AllocView<'s>]) -> Vec<&'a [AllocView<'s>]> {
    let mut batches = Vec::new();
    let (mut begin, mut bytes) = (0, 0);
    // A single allocation goes alone, at any size of its job.
    if let [_] = allocs {
        return vec![allocs];
    }
    for (at, alloc) in allocs.iter().enumerate() {
        let job = alloc.job_bytes(|job| codec::encoded_bytes(job).unwrap_or(JOB_BYTES_MAX));
        let remote = alloc.to_remote();
        let more = job + remote.map_or(0, |remote| remote.handle_bytes());
        if at > begin && (at - begin >= DESIRED_BATCH_MAX || bytes + more > JOB_BYTES_MAX) {
            batches.push(&allocs[begin..at]);
            (begin, bytes) = (at, 0);
        }
        bytes += more;
    }
    if begin < allocs.len() {
        batches.push(&allocs[begin..]);
    }
    batches
}

#[cfg(test)]
mod tests;
