//! What a node must run: first everything, then changes.
//!
//! A message carries each allocation with its `alloc_modify_index`, so that messages may be repeated
//! and a late one changes nothing. The node is told of every row the state has for it, finished ones
//! too, so that it knows what it may keep; rows that vanish are named as gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use muster_control_core::state::{self, State};
use muster_domain::alloc::{Allocation, DesiredAlloc};
use muster_domain::id::{AllocId, LogIndex, NodeId};
use muster_domain::job::JobVersion;
use muster_wire::codec;
use muster_wire::limits::{DESIRED_BATCH_MAX, FRAME_BYTES_MAX};
use muster_wire::rpc::ToAgent;

/// Bytes of jobs in one message: half a frame, the rest is for everything else of an allocation.
const JOB_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// What one session has told its node.
#[derive(Debug)]
pub(super) struct Told {
    node_id: NodeId,
    known: BTreeMap<AllocId, LogIndex>,
    complete: bool,
}

impl Told {
    /// Nothing so far.
    pub(super) fn nothing(node_id: NodeId) -> Self {
        Self {
            node_id,
            known: BTreeMap::new(),
            complete: false,
        }
    }

    /// The messages that bring the node up to `state`; none if it knows everything. The caller sends
    /// all of them in order, or drops `self`.
    pub(super) fn catch_up(&mut self, state: &State) -> Vec<ToAgent> {
        let mut changed = Vec::new();
        let mut gone = std::mem::take(&mut self.known);
        for alloc in state.allocs().of_node(&self.node_id) {
            let told = gone.remove(&alloc.id);
            if told.is_none_or(|told| told < alloc.alloc_modify_index) {
                changed.push(alloc);
            }
            self.known.insert(alloc.id, alloc.alloc_modify_index);
        }
        // Oldest first, so that a node that is cut off half-way has what was asked for first.
        changed.sort_by_key(|alloc| (alloc.alloc_modify_index, alloc.id));
        let first = !std::mem::replace(&mut self.complete, true);
        if changed.is_empty() && gone.is_empty() && !first {
            return Vec::new();
        }
        let count = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        messages(state.applied(), &changed, gone.into_keys().collect(), count)
    }
}

/// Cuts `allocs` into messages; the last one completes the node's knowledge.
fn messages(
    index: LogIndex,
    allocs: &[&Arc<Allocation>],
    gone: Vec<AllocId>,
    count: u32,
) -> Vec<ToAgent> {
    let mut job_bytes: HashMap<*const JobVersion, usize> = HashMap::new();
    let mut batches: Vec<Vec<DesiredAlloc>> = vec![Vec::new()];
    let mut bytes = 0;
    for alloc in allocs {
        let job = *job_bytes.entry(Arc::as_ptr(&alloc.job)).or_insert_with(|| {
            codec::encode(&alloc.job).map_or(JOB_BYTES_MAX, |encoded| encoded.len())
        });
        let batch = batches.last().map_or(0, Vec::len);
        if batch == DESIRED_BATCH_MAX || (batch > 0 && bytes + job > JOB_BYTES_MAX) {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += job;
        batches
            .last_mut()
            .expect("there is always a last batch")
            .push(state::desired(alloc));
    }
    let mut gone = Some(gone);
    let last = batches.len() - 1;
    let message = |(at, allocs)| ToAgent::Desired {
        index,
        allocs,
        unchanged: Vec::new(),
        gone: if at == last {
            gone.take().unwrap_or_default()
        } else {
            Vec::new()
        },
        complete: (at == last).then_some(count),
    };
    batches.into_iter().enumerate().map(message).collect()
}
