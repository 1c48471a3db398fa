//! Questions of servers to this node, each on a stream of its own.

use std::pin::pin;
use std::sync::Arc;

use muster_agent_core::gc::KeptReason;
use muster_agent_core::task::TaskInput;
use muster_domain::error_chain::chain;
use muster_domain::id::AllocId;
use muster_link::frames::{FrameReceiver, FrameSender, SendFrameError};
use muster_wire::rpc::{FailureKind, LogsRequest, NodeReply, NodeRequest};
use quinn::{Connection, VarInt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::{exec, logs};
use crate::context::AgentContext;
use crate::limits::{IDLE_INTERVAL, LOG_READERS_MAX, REQUESTS_MAX, SESSION_DEADLINE, STREAMS_MAX};
use crate::monitoring::{history, stats};
use crate::session::failure::{fail, failed};
use crate::storage::gc;
use crate::storage::gc_outcome::GcOutcome;
use crate::storage::migrate;
use crate::tasks::live::LiveTasks;

/// Answers questions until the connection ends.
pub(super) async fn serve(context: Arc<AgentContext>, connection: Connection) {
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(STREAMS_MAX));
    let places = Arc::new(Semaphore::new(REQUESTS_MAX));
    let mut answers = JoinSet::new();
    while let Ok(place) = Arc::clone(&places).acquire_owned().await
        && let Ok((send, receive)) = connection.accept_bi().await
    {
        while answers.try_join_next().is_some() {}
        let context = Arc::clone(&context);
        let (sender, receiver) = (FrameSender::new(send), FrameReceiver::new(receive));
        answers.spawn(async move {
            if let Err(error) = answer(&context, sender, receiver, place).await {
                tracing::debug!(%error, "the requester has gone");
            }
        });
    }
}

/// Sends a log for as long as its reader wants it, which may take long. It does not take the place of requests that
/// are answered at once.
async fn read_log(
    context: &AgentContext,
    request: &LogsRequest,
    mut sender: FrameSender,
    taken: Option<FrameReceiver>,
    place: OwnedSemaphorePermit,
) -> Result<(), SendFrameError> {
    let Ok(_reader) = context.session.log_readers.try_acquire() else {
        let reason = format!(
            "this node serves {LOG_READERS_MAX} readers of logs, the most it takes; end some that follow, or try again later"
        );
        return fail(&mut sender, reason, FailureKind::TooMany).await;
    };
    drop(place);
    logs::stream(context, request, &mut sender, taken).await
}

async fn answer(
    context: &Arc<AgentContext>,
    mut sender: FrameSender,
    mut receiver: FrameReceiver,
    place: OwnedSemaphorePermit,
) -> Result<(), SendFrameError> {
    let request = tokio::time::timeout(SESSION_DEADLINE, receiver.recv::<NodeRequest>()).await;
    let reply = match request {
        Ok(Ok(Some(NodeRequest::Logs(request)))) => {
            return read_log(context, &request, sender, None, place).await;
        }
        Ok(Ok(Some(NodeRequest::ReadLogs(request)))) => {
            return read_log(context, &request, sender, Some(receiver), place).await;
        }
        Ok(Ok(Some(NodeRequest::Exec(session)))) => {
            let (sessions, tasks) = (&context.session.sessions, &context.tasks.live);
            return exec::run(sessions, tasks, session, sender, receiver, place).await;
        }
        Ok(Ok(Some(NodeRequest::ReadDisk(request)))) => {
            return migrate::send_alloc_dir(context, request, sender, receiver, place).await;
        }
        Ok(Ok(Some(NodeRequest::Signal {
            alloc_id,
            task,
            signal,
        }))) => signal_tasks(&context.tasks.live, alloc_id, task.as_deref(), &signal).await,
        Ok(Ok(Some(NodeRequest::NodeStats))) => match stats::node(context).await {
            Ok(stats) => NodeReply::NodeStats(Box::new(stats)),
            Err(reason) => failed(reason),
        },
        Ok(Ok(Some(NodeRequest::AllocStats { alloc_id }))) => {
            match stats::alloc(context, alloc_id).await {
                Ok(Some(stats)) => NodeReply::AllocStats(Box::new(stats)),
                Ok(None) => NodeReply::Failed {
                    reason: format!("no task of allocation {alloc_id} runs on this node"),
                    kind: FailureKind::NotFound,
                },
                Err(reason) => failed(reason),
            }
        }
        Ok(Ok(Some(NodeRequest::AllocHistory { alloc_id }))) => {
            history::answer::alloc(context, alloc_id).map_or_else(
                || NodeReply::Failed {
                    reason: format!(
                        "no task of allocation {alloc_id} ran on this node in the last minutes"
                    ),
                    kind: FailureKind::NotFound,
                },
                |history| NodeReply::AllocHistory(Box::new(history)),
            )
        }
        Ok(Ok(Some(NodeRequest::AllocNetwork { alloc_id, after }))) => {
            super::verdicts::alloc(context, alloc_id, after)
                .map_or_else(failed, |network| NodeReply::AllocNetwork(Box::new(network)))
        }
        Ok(Ok(Some(NodeRequest::CollectGarbage { dry_run }))) => {
            collect(context, dry_run, &mut sender).await?
        }
        Ok(Err(error)) => failed(error.to_string()),
        Ok(Ok(None)) | Err(_) => return Ok(()),
    };
    sender.send(&reply).await?;
    sender.finish();
    Ok(())
}

/// Sends a signal to a task, or to every running task of an allocation.
async fn signal_tasks(
    tasks: &LiveTasks,
    alloc_id: AllocId,
    task: Option<&str>,
    signal: &str,
) -> NodeReply {
    let mut signaled = Vec::new();
    for (_, name, live) in tasks.of(Some(alloc_id)) {
        if task.is_some_and(|task| task != name) {
            continue;
        }
        let task_id = &live.record.task_id;
        // The signal may end the task, and the task's history should give the reason.
        let runner = tasks.runner(alloc_id, &name, task_id);
        if let Err(error) = live.slot.driver.signal_task(task_id, signal).await {
            let reason = format!("task `{name}` was not sent {signal}: {}", chain(&error));
            return failed(reason);
        }
        if let Some(runner) = runner {
            let message = format!("{signal} was sent to the task on request");
            runner.send(TaskInput::Message { message }).await;
        }
        signaled.push(name);
    }
    if signaled.is_empty() {
        let what = task.map_or_else(|| "no task".to_owned(), |task| format!("no task `{task}`"));
        return NodeReply::Failed {
            reason: format!(
                "{what} of allocation {alloc_id} runs: see `muster alloc status {alloc_id}`"
            ),
            kind: FailureKind::NotFound,
        };
    }
    NodeReply::Signaled { tasks: signaled }
}

/// Collects all finished allocations and returns the result. Messages in between show the caller that the node is
/// alive.
async fn collect(
    context: &AgentContext,
    dry_run: bool,
    sender: &mut FrameSender,
) -> Result<NodeReply, SendFrameError> {
    let mut collecting = pin!(gc::collect_now(context, dry_run));
    let collected = loop {
        match tokio::time::timeout(IDLE_INTERVAL, &mut collecting).await {
            Ok(collected) => break collected,
            Err(_elapsed) => sender.send(&NodeReply::Idle).await?,
        }
    };
    let Some(collected) = collected else {
        return Ok(NodeReply::Failed {
            reason: "the agent is stopping".to_owned(),
            kind: FailureKind::Unavailable,
        });
    };
    let GcOutcome {
        freed,
        inodes,
        bytes,
        kept,
    } = collected;
    let kept = kept.into_iter();
    let kept = kept.filter(|(reason, _)| *reason != KeptReason::Running);
    Ok(NodeReply::Collected {
        freed,
        inodes,
        bytes,
        kept: kept
            .map(|(reason, count)| (reason.as_str().to_owned(), count))
            .collect(),
    })
}
