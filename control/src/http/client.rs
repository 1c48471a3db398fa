//! Requests to nodes through the server: statistics, logs, commands in tasks and signals to them.

use axum::extract::{Path, State as Shared};
use axum::response::Response;
use axum::routing::{any, get, put};
use muster_control_core::state::AllocView;
use muster_domain::alloc::Allocation;
use muster_domain::id::{AllocId, NodeId};
use muster_domain::node::Node;
use muster_wire::api::alloc::{SignalRequest, read_signal};
use muster_wire::api::history::AllocHistory;
use muster_wire::api::network::AllocNetwork;
use muster_wire::api::stats::{AllocStats, NodeStats};
use muster_wire::rpc::{self, FailureKind, NodeReply, NodeRequest};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

use super::body::RawBody;
use super::handler::{Http, Table};
use super::query::Query;
use super::status::ApiError;
use super::{alloc, exec, logs, metrics, path, usage};
use crate::limits;

pub(super) fn routes(table: Table) -> Table {
    let mut table = table
        .on("/v1/client/stats", get(node_stats))
        .on("/v1/client/allocation/{alloc_id}/stats", get(alloc_stats))
        .on(
            "/v1/client/allocation/{alloc_id}/history",
            get(alloc_history),
        )
        .on(
            "/v1/client/allocation/{alloc_id}/network",
            get(alloc_network),
        )
        .on("/v1/client/allocation/{alloc_id}/checks", get(alloc_checks))
        .on("/v1/client/allocation/{alloc_id}/exec", get(exec::open))
        .on(
            "/v1/client/allocation/{alloc_id}/signal",
            put(signal).post(signal),
        )
        .on("/v1/client/fs/logs/{alloc_id}", get(logs::read));
    // This route is registered only to be refused by name.
    let path = "/v1/client/allocation/{alloc_id}/restart";
    table.router = table.router.route(path, any(restart));
    table
}

async fn restart() -> ApiError {
    ApiError::Unsupported {
        what: "a restart of tasks in place".to_owned(),
    }
}

/// The allocation in the path.
pub(super) async fn find_alloc(
    http: &Http,
    query: &Query,
    text: &str,
) -> Result<Allocation, ApiError> {
    let alloc_id: AllocId = path::id(text, alloc::WHAT)?;
    let seen = query.state(http).await?;
    seen.state
        .allocs()
        .get(&alloc_id)
        .map(AllocView::unpack)
        .ok_or(ApiError::NotFound { what: alloc::WHAT })
}

/// The task in `?task=`; by default the only task.
pub(super) fn task_of(query: &Query, alloc: &Allocation) -> Result<String, ApiError> {
    let names = || {
        alloc
            .group()
            .tasks
            .iter()
            .map(|task| task.name.as_str())
            .collect::<Vec<_>>()
    };
    match (query.text("task"), names().as_slice()) {
        (Some(task), names) if names.contains(&task) => Ok(task.to_owned()),
        (None, &[only]) => Ok(only.to_owned()),
        (Some(task), names) => {
            let reason = format!(
                "task `{task}` is none of this allocation's: it has {}",
                names.join(", ")
            );
            Err(ApiError::NodeFailed {
                reason,
                kind: FailureKind::NotFound,
            })
        }
        (None, names) => Err(ApiError::Malformed(format!(
            "Must provide task name: one of {}",
            names.join(", ")
        ))),
    }
}

async fn find_node(http: &Http, query: &Query, node_id: NodeId) -> Result<Arc<Node>, ApiError> {
    let seen = query.state(http).await?;
    seen.state
        .nodes()
        .get(&node_id)
        .map(Arc::clone)
        .ok_or(ApiError::NotFound { what: "node" })
}

/// The single answer of the node to `request`.
async fn request_node(
    http: &Http,
    node_id: NodeId,
    request: NodeRequest,
) -> Result<NodeReply, ApiError> {
    let timeouts = AnswerTimeouts {
        silence: limits::NODE_REPLY_WAIT,
        total: limits::NODE_REPLY_WAIT,
    };
    ask_within(http, node_id, request, timeouts).await
}

/// The time limits for a node's answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerTimeouts {
    /// Longest time without a heartbeat of the node.
    pub(super) silence: Duration,
    /// Longest time in all.
    pub(super) total: Duration,
}

/// Sends a request like `request_node`, with other time limits.
pub(super) async fn ask_within(
    http: &Http,
    node_id: NodeId,
    request: NodeRequest,
    timeouts: AnswerTimeouts,
) -> Result<NodeReply, ApiError> {
    let AnswerTimeouts { silence, total } = timeouts;
    let mut replies = http.control.nodes().request(node_id, request).await?;
    let reply = describe_failure(&mut replies, silence);
    match tokio::time::timeout(total, reply).await {
        Ok(reply) => reply,
        Err(_) if total > silence => Err(ApiError::NodeBusy { node_id }),
        Err(_) => Err(ApiError::NodeSilent { waited: total }),
    }
}

/// Waits for the answer, for long if the node is not silent.
async fn describe_failure(
    replies: &mut mpsc::Receiver<NodeReply>,
    silence: Duration,
) -> Result<NodeReply, ApiError> {
    loop {
        match tokio::time::timeout(silence, replies.recv()).await {
            Ok(Some(NodeReply::Idle)) => {}
            Ok(Some(NodeReply::Failed { reason, kind })) => {
                return Err(ApiError::NodeFailed { reason, kind });
            }
            Ok(Some(reply)) => return Ok(reply),
            Ok(None) => {
                let reason = "the node ended its answer before it began".to_owned();
                return Err(ApiError::NodeFailed {
                    reason,
                    kind: FailureKind::Other,
                });
            }
            Err(_) => return Err(ApiError::NodeSilent { waited: silence }),
        }
    }
}

fn unexpected(reply: &NodeReply) -> ApiError {
    let mut shown = format!("{reply:?}");
    shown.truncate(shown.find([' ', '(', '{']).unwrap_or(shown.len()));
    ApiError::Internal(format!(
        "the node answered with {shown}, which was not asked for"
    ))
}

async fn sample_node(http: &Http, node_id: NodeId) -> Result<Box<rpc::NodeStats>, ApiError> {
    match request_node(http, node_id, NodeRequest::NodeStats).await? {
        NodeReply::NodeStats(stats) => Ok(stats),
        other => Err(unexpected(&other)),
    }
}

async fn sample_alloc(http: &Http, alloc: &Allocation) -> Result<Box<rpc::AllocStats>, ApiError> {
    match request_node(
        http,
        alloc.node_id,
        NodeRequest::AllocStats { alloc_id: alloc.id },
    )
    .await?
    {
        NodeReply::AllocStats(stats) => Ok(stats),
        other => Err(unexpected(&other)),
    }
}

/// Answers with a node's statistics. With `counters=true` it takes one sample, for callers that compute their own
/// differences. Otherwise it takes two samples and computes the rates between them. With `format=prometheus` it
/// takes one sample of the tasks' usage.
async fn node_stats(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let Some(node_id) = query.text("node_id") else {
        return Err(ApiError::Malformed(
            "node_id is missing: a server has no statistics of its own".to_owned(),
        ));
    };
    let node = find_node(&http, &query, path::id(node_id, "node")?).await?;
    let mhz = node.spec.resources.total.cpu_mhz;
    let is_exposition = match query.text("format") {
        None => false,
        Some("prometheus") => true,
        Some(other) => return Err(metrics::unknown_format(other)),
    };
    let first = sample_node(&http, node.spec.id).await?;
    if is_exposition {
        let text = usage::prometheus(&http.control.state(), &first);
        return Ok(metrics::exposition(text));
    }
    if query.flag("counters")? {
        return query.json(&NodeStats::new(None, &first, mhz));
    }
    tokio::time::sleep(limits::STATS_SAMPLE_GAP).await;
    let second = sample_node(&http, node.spec.id).await?;
    query.json(&NodeStats::new(Some(&first), &second, mhz))
}

async fn alloc_stats(
    Shared(http): Shared<Http>,
    Path(alloc_id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let alloc = find_alloc(&http, &query, &alloc_id).await?;
    let node = find_node(&http, &query, alloc.node_id).await?;
    let resources = &node.spec.resources;
    let core_mhz = resources.total.cpu_mhz as f64 / f64::from(resources.cores.max(1));
    let first = sample_alloc(&http, &alloc).await?;
    if query.flag("counters")? {
        return query.json(&AllocStats::new(None, &first, core_mhz));
    }
    tokio::time::sleep(limits::STATS_SAMPLE_GAP).await;
    let second = sample_alloc(&http, &alloc).await?;
    query.json(&AllocStats::new(Some(&first), &second, core_mhz))
}

/// Answers with the usage of an allocation's tasks in the last minutes, from its node's memory.
async fn alloc_history(
    Shared(http): Shared<Http>,
    Path(alloc_id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let alloc = find_alloc(&http, &query, &alloc_id).await?;
    let request = NodeRequest::AllocHistory { alloc_id: alloc.id };
    match request_node(&http, alloc.node_id, request).await? {
        NodeReply::AllocHistory(history) => query.json(&AllocHistory::from(&*history)),
        other => Err(unexpected(&other)),
    }
}

/// Answers with the network verdicts of an allocation; with `after`, only those with a greater number.
async fn alloc_network(
    Shared(http): Shared<Http>,
    Path(alloc_id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let alloc = find_alloc(&http, &query, &alloc_id).await?;
    let after = query.number("after")?.unwrap_or(0);
    let request = NodeRequest::AllocNetwork {
        alloc_id: alloc.id,
        after,
    };
    match request_node(&http, alloc.node_id, request).await? {
        NodeReply::AllocNetwork(network) => query.json(&AllocNetwork::after(&network, after)),
        other => Err(unexpected(&other)),
    }
}

async fn signal(
    Shared(http): Shared<Http>,
    Path(alloc_id): Path<String>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let SignalRequest { signal, task, .. } = read_signal(&body.0, &alloc_id)?;
    let alloc = find_alloc(&http, &query, &alloc_id).await?;
    let request = NodeRequest::Signal {
        alloc_id: alloc.id,
        task: Some(task).filter(|task| !task.is_empty()),
        signal,
    };
    match request_node(&http, alloc.node_id, request).await? {
        NodeReply::Signaled { .. } => query.json(&serde_json::json!({})),
        other => Err(unexpected(&other)),
    }
}

/// Service checks are not supported: the answer is that of an allocation without them.
async fn alloc_checks(
    Shared(http): Shared<Http>,
    Path(alloc_id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    find_alloc(&http, &query, &alloc_id).await?;
    query.json(&serde_json::json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(30);

    /// The node sends heartbeats for three times the silence limit, then the answer.
    #[tokio::test(start_paused = true)]
    async fn a_node_at_work_is_waited_for() {
        let (sender, mut replies) = mpsc::channel(limits::NODE_REPLIES_MAX);
        let signaled = NodeReply::Signaled { tasks: Vec::new() };
        let answer = signaled.clone();
        let node = tokio::spawn(async move {
            for _second in 0..90 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                sender.send(NodeReply::Idle).await.unwrap();
            }
            sender.send(answer).await.unwrap();
        });

        let reply = describe_failure(&mut replies, SILENCE).await;

        assert_eq!(reply.unwrap(), signaled);
        node.await.unwrap();
    }

    /// The node sends one heartbeat, then none within the limit.
    #[tokio::test(start_paused = true)]
    async fn a_silent_node_is_given_up() {
        let (sender, mut replies) = mpsc::channel(limits::NODE_REPLIES_MAX);
        sender.send(NodeReply::Idle).await.unwrap();

        let reply = describe_failure(&mut replies, SILENCE).await;

        assert!(matches!(
            reply,
            Err(ApiError::NodeSilent { waited: SILENCE })
        ));
    }
}
