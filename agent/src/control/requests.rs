//! Questions of servers to this node, each on a stream of its own.

use std::sync::Arc;

use muster_agent_core::gc::KeptReason;
use muster_link::frames::{FrameReceiver, FrameSender, SendFrameError};
use muster_wire::rpc::{NodeReply, NodeRequest};
use quinn::Connection;
use tokio::task::JoinSet;

use super::logs;
use crate::facilities::Facilities;
use crate::gc;
use crate::limits::{REQUESTS_MAX, SESSION_DEADLINE};
use crate::{stats, verdicts};

/// Answers questions until the connection ends.
pub(super) async fn serve(facilities: Arc<Facilities>, connection: Connection) {
    let mut answers = JoinSet::new();
    while let Ok((send, receive)) = connection.accept_bi().await {
        while answers.try_join_next().is_some() {}
        if answers.len() >= REQUESTS_MAX {
            drop(answers.join_next().await);
        }
        let facilities = Arc::clone(&facilities);
        let (sender, receiver) = (FrameSender::new(send), FrameReceiver::new(receive));
        answers.spawn(async move {
            if let Err(error) = answer(&facilities, sender, receiver).await {
                tracing::debug!(%error, "whoever asked has gone");
            }
        });
    }
}

async fn answer(
    facilities: &Facilities,
    mut sender: FrameSender,
    mut receiver: FrameReceiver,
) -> Result<(), SendFrameError> {
    let request = tokio::time::timeout(SESSION_DEADLINE, receiver.recv::<NodeRequest>()).await;
    let reply = match request {
        Ok(Ok(Some(NodeRequest::Logs(request)))) => {
            return logs::stream(facilities, &request, &mut sender).await;
        }
        Ok(Ok(Some(NodeRequest::NodeStats))) => {
            NodeReply::NodeStats(Box::new(stats::node(facilities).await))
        }
        Ok(Ok(Some(NodeRequest::AllocStats { alloc_id }))) => {
            stats::alloc(facilities, alloc_id).await.map_or_else(
                || NodeReply::Failed {
                    reason: format!("no task of allocation {alloc_id} runs on this node"),
                    not_found: true,
                },
                |stats| NodeReply::AllocStats(Box::new(stats)),
            )
        }
        Ok(Ok(Some(NodeRequest::AllocNetwork { alloc_id, after }))) => {
            verdicts::alloc(facilities, alloc_id, after).map_or_else(
                |reason| NodeReply::Failed {
                    reason,
                    not_found: false,
                },
                |network| NodeReply::AllocNetwork(Box::new(network)),
            )
        }
        Ok(Ok(Some(NodeRequest::CollectGarbage { dry_run }))) => collect(facilities, dry_run).await,
        Ok(Err(error)) => NodeReply::Failed {
            reason: error.to_string(),
            not_found: false,
        },
        Ok(Ok(None)) | Err(_) => return Ok(()),
    };
    sender.send(&reply).await?;
    sender.finish();
    Ok(())
}

/// What a collection of everything that is over came to.
async fn collect(facilities: &Facilities, dry_run: bool) -> NodeReply {
    match gc::collect_now(facilities, dry_run).await {
        Some(collected) => NodeReply::Collected {
            freed: collected.freed,
            kept: collected
                .kept
                .into_iter()
                .filter(|(reason, _)| *reason != KeptReason::Running)
                .map(|(reason, count)| (reason.word().to_owned(), count))
                .collect(),
        },
        None => NodeReply::Failed {
            reason: "the agent is stopping".to_owned(),
            not_found: false,
        },
    }
}
