//! Reports of a node on their way to the log.
//!
//! While one entry commits, the reports that arrive are gathered for the next: a quiet node waits for
//! nothing, a busy one writes few entries. A report is acknowledged when it is committed.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_control_core::fsm::{Command, Response};
use muster_domain::alloc::AllocReport;
use muster_domain::id::{AllocId, NodeId};
use muster_wire::rpc::ToAgent;
use tokio::sync::mpsc;

use super::session::{self, SessionError};
use crate::handle::{Control, ProposeError, Retry};
use crate::limits;

/// Pause before a report is proposed again after the log took none.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// One message of an agent.
#[derive(Debug)]
pub(super) struct ReportMessage {
    /// Its number.
    pub(super) sequence: u64,
    /// Its news.
    pub(super) reports: Vec<AllocReport>,
}

/// Proposes what comes out of `messages` and acknowledges it, until the channel closes.
pub(super) async fn write(
    node_id: NodeId,
    mut messages: mpsc::Receiver<ReportMessage>,
    outbox: mpsc::Sender<ToAgent>,
    control: &Control,
) -> Result<(), SessionError> {
    while let Some(first) = messages.recv().await {
        // Only the last word about an allocation is written.
        let mut newest: BTreeMap<AllocId, AllocReport> = BTreeMap::new();
        let mut sequence = first.sequence;
        let mut next = Some(first);
        while let Some(message) = next.take() {
            sequence = sequence.max(message.sequence);
            newest.extend(
                message
                    .reports
                    .into_iter()
                    .map(|report| (report.alloc_id, report)),
            );
            if newest.len() < limits::REPORTS_PER_ENTRY_MAX {
                next = messages.try_recv().ok();
            }
        }
        if !newest.is_empty() {
            commit(node_id, newest.into_values().collect(), control).await?;
        }
        session::say(&outbox, ToAgent::ReportAck { sequence }).await?;
    }
    Ok(())
}

/// Proposes `reports` until they are committed. Reporting twice is harmless: the newer state wins.
async fn commit(
    node_id: NodeId,
    reports: Vec<AllocReport>,
    control: &Control,
) -> Result<(), SessionError> {
    loop {
        let command = Command::ReportAllocs {
            node_id,
            reports: reports.clone(),
            at: control.now(),
        };
        match control.propose(command).await {
            Ok((_, Response::Rejected(rejection))) => {
                return Err(SessionError::Refused {
                    reason: rejection.to_string(),
                });
            }
            Ok(_) => return Ok(()),
            Err(error) if error.retry() == Retry::Later => wait_out(&error).await,
            Err(error) => return Err(SessionError::Propose(error)),
        }
    }
}

async fn wait_out(error: &ProposeError) {
    tracing::debug!(%error, "a report waits");
    tokio::time::sleep(RETRY_PAUSE).await;
}
