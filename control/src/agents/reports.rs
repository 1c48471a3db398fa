//! Reports of allocations and of garbage collections from nodes, until they are in the log.
//!
//! While one entry commits, the reports of all nodes gather for the next entry. A quiet cluster has no delay, and
//! a busy one writes few entries. Only the last report about an allocation is kept. Only one entry is under way,
//! so reports of an allocation are written in order. A report is acknowledged when it is committed. The reports of
//! an ended session that are not written are dropped, because the agent repeats them to the next server.
//!
//! A report that a one-off task prepares or runs does not change the state of the task: it may have started since
//! its placement. No caller waits for such a report, so it is delayed. A task that ends meanwhile is written once.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_control_core::fsm::{AllocCommand, Entry, NodeCommand, Response};
use muster_control_core::state::State;
use muster_domain::alloc::{AllocReport, ClientStatus};
use muster_domain::error_chain::chain;
use muster_domain::id::{AllocId, NodeId, Timestamp};
use muster_domain::node::NodeCollected;
use muster_wire::rpc::{ToAgent, report_bytes};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::handle::{Control, Retry};
use crate::limits;

/// The reports that one session has to write.
#[derive(Debug)]
struct SessionQueue {
    /// The sequence number of the agent's newest message.
    sequence: u64,
    reports: BTreeMap<AllocId, PendingReport>,
    collected: Option<PendingCollection>,
    outbox: mpsc::Sender<ToAgent>,
}

/// Results of a node's collections that are not written yet.
#[derive(Debug)]
struct PendingCollection {
    report: NodeCollected,
    /// The sequence number of the first message with these results.
    sequence: u64,
    /// The earliest time to write the results.
    at: Instant,
}

/// A report that is not written yet.
#[derive(Debug)]
struct PendingReport {
    report: AllocReport,
    /// The sequence number of the report's message.
    sequence: u64,
    /// The earliest time to write the report, if it can wait.
    at: Option<Instant>,
}

impl PendingReport {
    fn is_due(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| at <= now)
    }
}

/// One report of a message, and whether it can wait.
#[derive(Debug)]
pub(super) struct QueuedReport {
    report: AllocReport,
    can_wait: bool,
}

/// Reports of all sessions.
#[derive(Debug, Default)]
pub(super) struct Reports {
    pending: Mutex<BTreeMap<NodeId, SessionQueue>>,
    report_queued: Notify,
    reports_taken: Notify,
}

/// The reports of one session in an entry.
#[derive(Clone, Debug)]
struct SessionReports {
    node_id: NodeId,
    reports: Vec<AllocReport>,
    collected: Option<NodeCollected>,
    /// The sequence number to acknowledge. `None` if more of the session's reports wait for the next entry.
    sequence: Option<u64>,
    outbox: mpsc::Sender<ToAgent>,
}

impl Reports {
    /// Queues the reports of one message of `node_id`'s agent. Waits while too many reports of that agent are
    /// queued.
    pub(super) async fn put(
        &self,
        node_id: NodeId,
        sequence: u64,
        reports: Vec<QueuedReport>,
        outbox: &mpsc::Sender<ToAgent>,
    ) {
        let now = Instant::now();
        loop {
            let taken = self.reports_taken.notified();
            if self.has_room(node_id, outbox) {
                break;
            }
            taken.await;
        }
        // Waiting reports have a known due time; later reports are due later.
        let wakes;
        {
            let mut pending = self.lock();
            let is_due = reports.is_empty() || reports.iter().any(|queued| !queued.can_wait);
            wakes = is_due || pending.is_empty();
            let entry = session_queue(&mut pending, node_id, outbox);
            entry.sequence = entry.sequence.max(sequence);
            for QueuedReport { report, can_wait } in reports {
                let alloc_id = report.alloc_id;
                let before = entry.reports.get(&alloc_id);
                // A repeated report does not wait for ever, and a due report stays due.
                let since = before.map_or(Some(now + limits::PROGRESS_WAIT), |before| before.at);
                let waiting = PendingReport {
                    report,
                    sequence,
                    at: since.filter(|_| can_wait),
                };
                entry.reports.insert(alloc_id, waiting);
            }
        }
        if wakes {
            self.report_queued.notify_one();
        }
    }

    /// Queues the agent's report about collections on `node_id` and adds it to those not written yet.
    pub(super) fn put_collected(
        &self,
        node_id: NodeId,
        sequence: u64,
        report: NodeCollected,
        outbox: &mpsc::Sender<ToAgent>,
    ) {
        {
            let mut pending = self.lock();
            let entry = session_queue(&mut pending, node_id, outbox);
            entry.sequence = entry.sequence.max(sequence);
            entry.collected = Some(match entry.collected.take() {
                Some(earlier) => PendingCollection {
                    report: earlier.report.and(report),
                    ..earlier
                },
                None => PendingCollection {
                    report,
                    sequence,
                    at: Instant::now() + limits::PROGRESS_WAIT,
                },
            });
        }
        self.report_queued.notify_one();
    }

    fn has_room(&self, node_id: NodeId, outbox: &mpsc::Sender<ToAgent>) -> bool {
        self.lock().get(&node_id).is_none_or(|pending| {
            !pending.outbox.same_channel(outbox)
                || pending.reports.len() < limits::REPORTS_PER_SESSION_MAX
        })
    }

    /// Takes the due reports that fit into one entry, beginning with the first node after `after`. So a node with
    /// many reports does not delay the others.
    fn take(&self, after: &mut NodeId, now: Instant) -> Vec<SessionReports> {
        let mut pending = self.lock();
        pending.retain(|_, pending| !pending.outbox.is_closed());
        let order: Vec<NodeId> = pending
            .range((Bound::Excluded(*after), Bound::Unbounded))
            .chain(pending.range(..=*after))
            .map(|(node_id, _)| *node_id)
            .collect();
        // When one collection is due, all others are written with it.
        let mut collected = pending.values().filter_map(|of| of.collected.as_ref());
        let are_collections_due = collected.any(|collected| collected.at <= now);
        let (mut count, mut bytes) = (0, 0);
        let mut parts = Vec::new();
        for node_id in order {
            let Some(waiting) = pending.get_mut(&node_id) else {
                continue;
            };
            let due = waiting.reports.iter();
            let due = due.filter(|(_, waiting)| waiting.is_due(now));
            let (mut fitting, mut is_full) = (Vec::new(), false);
            for (alloc_id, PendingReport { report, .. }) in due {
                let more = bytes + report_bytes(report);
                is_full = count > 0
                    && (count >= limits::REPORTS_PER_ENTRY_MAX
                        || more > limits::REPORT_BYTES_PER_ENTRY_MAX);
                if is_full {
                    break;
                }
                (count, bytes) = (count + 1, more);
                fitting.push(*alloc_id);
            }
            if is_full && fitting.is_empty() {
                break;
            }
            let collected = waiting.collected.take_if(|_| are_collections_due);
            let has_more = !waiting.reports.is_empty() || waiting.collected.is_some();
            if fitting.is_empty() && collected.is_none() && has_more {
                continue;
            }
            let reports = fitting.iter();
            let reports = reports.filter_map(|alloc_id| waiting.reports.remove(alloc_id));
            let reports = reports.map(|waiting| waiting.report).collect();
            *after = node_id;
            // The remaining reports came in later messages, or in some of these.
            let left = waiting.reports.values().map(|waiting| waiting.sequence);
            let acknowledged = left
                .chain(waiting.collected.iter().map(|waiting| waiting.sequence))
                .min()
                .map_or(Some(waiting.sequence), |first| first.checked_sub(1));
            parts.push(SessionReports {
                node_id,
                reports,
                collected: collected.map(|collected| collected.report),
                sequence: acknowledged.filter(|sequence| *sequence > 0),
                outbox: waiting.outbox.clone(),
            });
            if waiting.reports.is_empty() && waiting.collected.is_none() {
                pending.remove(&node_id);
            }
        }
        drop(pending);
        self.reports_taken.notify_waiters();
        parts
    }

    /// The time at which the next waiting report is due; `None` if none waits.
    fn next_due(&self) -> Option<Instant> {
        let pending = self.lock();
        let waiting = pending
            .values()
            .flat_map(|pending| pending.reports.values());
        let collected = pending.values().filter_map(|of| of.collected.as_ref());
        let collected = collected.map(|collected| collected.at);
        let reports = waiting.filter_map(|waiting| waiting.at);
        reports.chain(collected).min()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, SessionQueue>> {
        // Each change is one insertion or removal, so a panic elsewhere leaves the map whole.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the pending reports of a session. Drops those of an earlier session of the node: the agent repeats all
/// unacknowledged reports in this session.
fn session_queue<'a>(
    pending: &'a mut BTreeMap<NodeId, SessionQueue>,
    node_id: NodeId,
    outbox: &mpsc::Sender<ToAgent>,
) -> &'a mut SessionQueue {
    let nothing = || SessionQueue {
        sequence: 0,
        reports: BTreeMap::new(),
        collected: None,
        outbox: outbox.clone(),
    };
    let entry = pending.entry(node_id).or_insert_with(nothing);
    if !entry.outbox.same_channel(outbox) {
        *entry = nothing();
    }
    entry
}

/// Keeps those of `reports` that can change `state`. An ended allocation does not change any more, and a starting
/// agent reports thousands of ended allocations again.
pub(super) fn relevant_reports(state: &State, reports: Vec<AllocReport>) -> Vec<QueuedReport> {
    let queued = reports.into_iter().filter_map(|report| {
        let known = state.allocs().get(&report.alloc_id);
        let is_over = known.is_some_and(|alloc| alloc.client_status().is_terminal());
        let can_wait = known.is_some_and(|alloc| {
            alloc.job_key().is_one_off()
                && is_under_way(alloc.client_status())
                && is_under_way(report.client_status)
        });
        (!is_over).then_some(QueuedReport { report, can_wait })
    });
    queued.collect()
}

/// Whether a task of an allocation with that status prepares or runs on a reachable node.
fn is_under_way(status: ClientStatus) -> bool {
    match status {
        ClientStatus::Pending | ClientStatus::Running => true,
        ClientStatus::Complete
        | ClientStatus::Failed
        | ClientStatus::Lost
        | ClientStatus::Unknown => false,
    }
}

/// Writes queued reports until `stop`.
pub(super) async fn write(control: &Control, reports: &Reports, stop: &CancellationToken) {
    let mut after = NodeId([0; 16]);
    loop {
        let parts = reports.take(&mut after, Instant::now());
        let next = reports.next_due().filter(|_| parts.is_empty());
        let work = async {
            if parts.is_empty() {
                tokio::select! {
                    () = reports.report_queued.notified() => {}
                    () = sleep_until_due(next) => {}
                }
            } else {
                commit(control, parts).await;
            }
        };
        if stop.run_until_cancelled(work).await.is_none() {
            return;
        }
    }
}

async fn sleep_until_due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Proposes `parts` until they are committed, and acknowledges them. A report may be written twice without harm. A
/// collection that is reported twice is recognised by its start time.
async fn commit(control: &Control, mut parts: Vec<SessionReports>) {
    let Some(mut unknown) = propose(control, &mut parts, reports_command).await else {
        return;
    };
    let Some(more) = propose(control, &mut parts, collections_command).await else {
        return;
    };
    unknown.extend(more);
    acknowledge(parts, &unknown);
}

/// The command that writes the allocations in `parts`; `None` if there are none.
fn reports_command(parts: &[SessionReports], at: Timestamp) -> Option<Entry> {
    let parts = parts.iter().filter(|part| !part.reports.is_empty());
    let reports: Vec<_> = parts
        .map(|part| (part.node_id, part.reports.clone()))
        .collect();
    (!reports.is_empty()).then_some(AllocCommand::Report { reports }.at(at))
}

/// The command that writes the collections in `parts`; `None` if there are none.
fn collections_command(parts: &[SessionReports], at: Timestamp) -> Option<Entry> {
    let parts = parts.iter();
    let collections: Vec<_> = parts
        .filter_map(|part| Some((part.node_id, part.collected.clone()?)))
        .collect();
    (!collections.is_empty()).then_some(NodeCommand::NoteCollections { collections }.at(at))
}

/// Proposes the command that `to_command` makes of the parts with open sessions, until it is committed. Returns
/// the unknown nodes, or `None` if the command cannot be written or no session is open.
async fn propose(
    control: &Control,
    parts: &mut Vec<SessionReports>,
    to_command: fn(&[SessionReports], Timestamp) -> Option<Entry>,
) -> Option<Vec<NodeId>> {
    loop {
        parts.retain(|part| !part.outbox.is_closed());
        if parts.is_empty() {
            return None;
        }
        let Some(command) = to_command(parts, control.now()) else {
            return Some(Vec::new());
        };
        match control.propose(command).await {
            Ok((_, Response::NodesReported { unknown })) => return Some(unknown),
            Ok((_, response)) => {
                tracing::error!(?response, "reports have an answer that is none");
                return None;
            }
            Err(error) if error.retry() == Retry::Never => {
                tracing::error!(error = chain(&error), "reports cannot be written");
                return None;
            }
            Err(error) => {
                tracing::debug!(%error, "reports wait");
                tokio::time::sleep(limits::REPORT_RETRY_PAUSE).await;
            }
        }
    }
}

/// Acknowledges committed reports to the agents. An agent with an `unknown` node must register again, in a new
/// session.
fn acknowledge(parts: Vec<SessionReports>, unknown: &[NodeId]) {
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
        // This does not wait for an agent with a full outbox: a later acknowledgement covers this one.
        if let Err(mpsc::error::TrySendError::Full(message)) = part.outbox.try_send(message) {
            tokio::spawn(async move { drop(part.outbox.send(message).await) });
        }
    }
}

#[cfg(test)]
mod tests;
