//! Reports of nodes on their way to the log.
//!
//! While one entry commits, the reports of all nodes that arrive are gathered for the next: a quiet cluster
//! waits for nothing, a busy one writes few entries. Only the last word about an allocation is kept, and only
//! one entry is under way, so reports of an allocation are written in order. A report is acknowledged when it is
//! committed; a session that ends takes along what it has not written, because its agent says it again to
//! the next server.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_control_core::fsm::{Command, Response};
use muster_control_core::state::State;
use muster_domain::alloc::AllocReport;
use muster_domain::id::{AllocId, NodeId};
use muster_wire::rpc::{ToAgent, report_bytes};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::handle::{Control, Retry};
use crate::limits;

/// What one session has to write.
#[derive(Debug)]
struct Pending {
    /// The newest message of the agent.
    sequence: u64,
    reports: BTreeMap<AllocId, AllocReport>,
    outbox: mpsc::Sender<ToAgent>,
}

/// Reports of all sessions.
#[derive(Debug, Default)]
pub(super) struct Reports {
    pending: Mutex<BTreeMap<NodeId, Pending>>,
    news: Notify,
    taken: Notify,
}

/// A part of an entry: what one session told.
#[derive(Clone, Debug)]
struct Part {
    node_id: NodeId,
    reports: Vec<AllocReport>,
    /// Acknowledges up to here; `None` if more of the session's reports wait for the next entry.
    sequence: Option<u64>,
    outbox: mpsc::Sender<ToAgent>,
}

impl Reports {
    /// Takes one message of the agent of `node_id`. Waits while that agent has too much under way.
    pub(super) async fn put(
        &self,
        node_id: NodeId,
        sequence: u64,
        reports: Vec<AllocReport>,
        outbox: &mpsc::Sender<ToAgent>,
    ) {
        loop {
            let taken = self.taken.notified();
            if self.has_room(node_id, outbox) {
                break;
            }
            taken.await;
        }
        {
            let mut pending = self.lock();
            let entry = pending.entry(node_id).or_insert_with(|| Pending {
                sequence: 0,
                reports: BTreeMap::new(),
                outbox: outbox.clone(),
            });
            if !entry.outbox.same_channel(outbox) {
                // Of an earlier session; its agent says in this one what was not acknowledged in that.
                entry.sequence = 0;
                entry.reports.clear();
                entry.outbox = outbox.clone();
            }
            entry.sequence = entry.sequence.max(sequence);
            let newer = reports.into_iter().map(|report| (report.alloc_id, report));
            entry.reports.extend(newer);
        }
        self.news.notify_one();
    }

    fn has_room(&self, node_id: NodeId, outbox: &mpsc::Sender<ToAgent>) -> bool {
        self.lock().get(&node_id).is_none_or(|pending| {
            !pending.outbox.same_channel(outbox)
                || pending.reports.len() < limits::REPORTS_PER_SESSION_MAX
        })
    }

    /// Takes what fits into one entry, beginning with the first node after `after`: a node with much to say must
    /// not keep others waiting.
    fn take(&self, after: &mut NodeId) -> Vec<Part> {
        let mut pending = self.lock();
        pending.retain(|_, pending| !pending.outbox.is_closed());
        let order: Vec<NodeId> = pending
            .range((Bound::Excluded(*after), Bound::Unbounded))
            .chain(pending.range(..=*after))
            .map(|(node_id, _)| *node_id)
            .collect();
        let (mut count, mut bytes) = (0, 0);
        let mut parts = Vec::new();
        for node_id in order {
            let Some(waiting) = pending.get_mut(&node_id) else {
                continue;
            };
            let mut reports = Vec::new();
            while let Some((_, report)) = waiting.reports.first_key_value()
                && (count == 0
                    || (count < limits::REPORTS_PER_ENTRY_MAX
                        && bytes + report_bytes(report) <= limits::REPORT_BYTES_PER_ENTRY_MAX))
            {
                count += 1;
                bytes += report_bytes(report);
                reports.extend(waiting.reports.pop_first().map(|(_, report)| report));
            }
            let whole = waiting.reports.is_empty();
            if !whole && reports.is_empty() {
                break;
            }
            *after = node_id;
            parts.push(Part {
                node_id,
                reports,
                sequence: whole.then_some(waiting.sequence),
                outbox: waiting.outbox.clone(),
            });
            if whole {
                pending.remove(&node_id);
            }
        }
        drop(pending);
        self.taken.notify_waiters();
        parts
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Pending>> {
        // Each change is one insertion or removal, so a panic elsewhere leaves the map whole.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those of `reports` that can change `state`: nothing more is heard of an allocation that has ended. An agent that starts
/// says all it knows again, of thousands that have.
pub(super) fn news(state: &State, mut reports: Vec<AllocReport>) -> Vec<AllocReport> {
    let allocs = state.allocs();
    reports.retain(|report| {
        let known = allocs.get(&report.alloc_id);
        known.is_none_or(|alloc| !alloc.client_status().is_terminal())
    });
    reports
}

/// Writes what is gathered until `stop`.
pub(super) async fn write(control: &Control, reports: &Reports, stop: &CancellationToken) {
    let mut after = NodeId([0; 16]);
    loop {
        let parts = reports.take(&mut after);
        let work = async {
            if parts.is_empty() {
                reports.news.notified().await;
            } else {
                commit(control, parts).await;
            }
        };
        if stop.run_until_cancelled(work).await.is_none() {
            return;
        }
    }
}

/// Proposes `parts` until they are committed, and acknowledges them. To write a report twice is harmless.
async fn commit(control: &Control, mut parts: Vec<Part>) {
    loop {
        parts.retain(|part| !part.outbox.is_closed());
        if parts.is_empty() {
            return;
        }
        let written: Vec<(NodeId, Vec<AllocReport>)> = parts
            .iter()
            .filter(|part| !part.reports.is_empty())
            .map(|part| (part.node_id, part.reports.clone()))
            .collect();
        if written.is_empty() {
            acknowledge(parts, &[]);
            return;
        }
        let command = Command::ReportNodes {
            reports: written,
            at: control.now(),
        };
        match control.propose(command).await {
            Ok((_, Response::NodesReported { unknown })) => {
                acknowledge(parts, &unknown);
                return;
            }
            Ok((_, response)) => {
                tracing::error!(?response, "reports have an answer that is none");
                return;
            }
            Err(error) if error.retry() == Retry::Never => {
                tracing::error!(error = super::chain(&error), "reports cannot be written");
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "reports wait");
                tokio::time::sleep(limits::REPORT_RETRY_PAUSE).await;
            }
        }
    }
}

/// Tells the agents what is committed. One whose node is `unknown` has to register again, in a new session.
fn acknowledge(parts: Vec<Part>, unknown: &[NodeId]) {
    for part in parts {
        let message = if unknown.contains(&part.node_id) {
            ToAgent::Refused {
                reason: format!(
                    "node {} is not registered any more: it registers again",
                    part.node_id
                ),
            }
        } else if let Some(sequence) = part.sequence {
            ToAgent::ReportAck { sequence }
        } else {
            continue;
        };
        // An agent that reads nothing is not waited for: its next acknowledgement covers this one.
        if let Err(mpsc::error::TrySendError::Full(message)) = part.outbox.try_send(message) {
            tokio::spawn(async move { drop(part.outbox.send(message).await) });
        }
    }
}

#[cfg(test)]
mod tests;
