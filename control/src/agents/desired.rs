//! What a node must run: first what changed since it last knew everything, then what changes.
//!
//! A message carries each allocation with its `alloc_modify_index`, so that messages may be repeated
//! and a late one changes nothing. The node is told of every row the state has for it, finished ones
//! too, so that it knows what it may keep; those it knows as they are by id alone. Rows that vanish are named
//! as gone. A set ends with the number of rows there are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use muster_control_core::state::{AllocView, State};
use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::{AllocId, LogIndex, NodeId};
use muster_domain::job::JobVersion;
use muster_wire::codec;
use muster_wire::limits::{DESIRED_BATCH_MAX, FRAME_BYTES_MAX, UNCHANGED_BATCH_MAX};
use muster_wire::rpc::ToAgent;

/// Bytes of jobs in one message: half a frame, the rest is for everything else of an allocation.
const JOB_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// What one session has told its node.
#[derive(Debug)]
pub(super) struct Told {
    node_id: NodeId,
    known: BTreeMap<AllocId, LogIndex>,
    /// What the node knew before the session; `None` once it was told what changed since.
    before: Option<LogIndex>,
}

impl Told {
    /// To a node that knows everything up to `known`.
    pub(super) fn up_to(node_id: NodeId, known: LogIndex) -> Self {
        Self {
            node_id,
            known: BTreeMap::new(),
            before: Some(known),
        }
    }

    /// The messages that bring the node up to `state`; none if it knows everything. The caller sends
    /// all of them in order, or drops `self`.
    pub(super) fn catch_up(&mut self, state: &State) -> Vec<ToAgent> {
        let mut changed = Vec::new();
        let mut unchanged = Vec::new();
        let mut gone = std::mem::take(&mut self.known);
        let before = self.before.take();
        for alloc in state.allocs_on(&self.node_id) {
            let told = gone.remove(&alloc.id()).or(before);
            if told.is_none_or(|told| told < alloc.alloc_modify_index()) {
                changed.push(alloc);
            } else if before.is_some() {
                unchanged.push(alloc.id());
            }
            self.known.insert(alloc.id(), alloc.alloc_modify_index());
        }
        // Oldest first, so that a node that is cut off half-way has what was asked for first.
        changed.sort_by_key(|alloc: &AllocView<'_>| (alloc.alloc_modify_index(), alloc.id()));
        if changed.is_empty() && gone.is_empty() && before.is_none() {
            return Vec::new();
        }
        let mut messages: Vec<ToAgent> = unchanged
            .chunks(UNCHANGED_BATCH_MAX)
            .map(|ids| message(state.applied(), Vec::new(), ids.to_vec()))
            .chain(
                batches(&changed)
                    .into_iter()
                    .map(|allocs| message(state.applied(), allocs, Vec::new())),
            )
            .collect();
        if messages.is_empty() {
            messages.push(message(state.applied(), Vec::new(), Vec::new()));
        }
        if let Some(ToAgent::Desired {
            gone: last_gone,
            complete,
            ..
        }) = messages.last_mut()
        {
            *last_gone = gone.into_keys().collect();
            *complete = Some(u32::try_from(self.known.len()).unwrap_or(u32::MAX));
        }
        messages
    }
}

fn message(index: LogIndex, allocs: Vec<DesiredAlloc>, unchanged: Vec<AllocId>) -> ToAgent {
    ToAgent::Desired {
        index,
        allocs,
        unchanged,
        gone: Vec::new(),
        complete: None,
    }
}

/// Cuts `allocs` into what fits a message.
fn batches(allocs: &[AllocView<'_>]) -> Vec<Vec<DesiredAlloc>> {
    let mut job_bytes: HashMap<*const JobVersion, usize> = HashMap::new();
    let mut batches: Vec<Vec<DesiredAlloc>> = Vec::new();
    let mut bytes = 0;
    for alloc in allocs {
        let job = *job_bytes
            .entry(Arc::as_ptr(alloc.job()))
            .or_insert_with(|| {
                codec::encode(alloc.job()).map_or(JOB_BYTES_MAX, |encoded| encoded.len())
            });
        match batches.last_mut() {
            Some(batch) if batch.len() < DESIRED_BATCH_MAX && bytes + job <= JOB_BYTES_MAX => {
                bytes += job;
                batch.push(alloc.to_desired());
            }
            _ => {
                bytes = job;
                batches.push(vec![alloc.to_desired()]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests;
