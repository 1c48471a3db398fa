//! Garbage collections on request, and collection of a purged job's objects.

use std::time::Instant;

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use muster_control_core::fsm::{GcCutoffs, GcKept, GcSurvey};
use muster_control_core::gc::Collector;
use muster_control_core::state::State;
use muster_domain::id::{JobKey, NodeId, Timestamp};
use muster_domain::node::NodeStatus;
use muster_domain::saturating;
use muster_wire::api::operator::{GcCount, GcKept as KeptShape, GcNode, GcReport};
use muster_wire::rpc::{NodeReply, NodeRequest};

use super::client::{self, AnswerTimeouts};
use super::handler::Http;
use super::query::Query;
use super::status::ApiError;
use crate::garbage::FreedCounts;
use crate::limits;

/// The report's reason why a node that is down freed nothing.
const IS_DOWN: &str = "it is down and was not asked; what it keeps goes by its own triggers, or ask again once its agent is back";

/// Forgets all garbage, at any age, and answers when that is done in the state. With `wait`, it also waits for the
/// nodes and reports freed and kept objects. With `dry_run`, it only reports them.
pub(super) async fn collect(
    Shared(http): Shared<Http>,
    query: Query,
) -> Result<Response, ApiError> {
    let dry_run = query.flag("dry_run")?;
    if !dry_run && !query.flag("wait")? {
        http.control.collect_garbage().await?;
        return Ok(StatusCode::OK.into_response());
    }
    let freed = if dry_run {
        None
    } else {
        Some(http.control.collect_garbage_of_state().await?)
    };
    // The state must be as new as the leader's, so that it contains the collection.
    let state = query.state(&http).await?.state;
    let (nodes, down) = split_by_status(&state);
    let at = http.control.now();
    let surveyed =
        tokio::task::spawn_blocking(move || GcSurvey::of(&state, &GcCutoffs::NONE, at)).await;
    let survey = surveyed.map_err(|error| ApiError::Internal(error.to_string()))?;
    let until = Instant::now() + limits::COLLECT_NODES_WAIT;
    let asked = nodes.into_iter().map(|(node_id, name)| {
        let http = &http;
        async move { collect_node(http, node_id, name, dry_run, until).await }
    });
    let mut nodes: Vec<GcNode> = futures::stream::iter(asked)
        .buffer_unordered(limits::COLLECT_NODES_MAX)
        .collect()
        .await;
    nodes.extend(down);
    nodes.sort_by(|a, b| (&a.name, &a.node_id).cmp(&(&b.name, &b.node_id)));
    query.json(&report(freed, &survey, nodes))
}

/// Forgets the ended objects of a job purged at the time `at`. The rules collect the remaining objects later:
/// those that had not ended, or all if the log takes no more changes. Adds the freed objects to `freed`.
pub(super) async fn forget_below(http: &Http, key: JobKey, at: Timestamp, freed: &mut FreedCounts) {
    let totals = http.control.gc_totals();
    let mut next = Some(Collector::below(key, at));
    while let Some(command) = next {
        let begun = http.control.monotonic();
        match http.control.propose(command.clone()).await {
            Ok((_, response)) => {
                if let Some(slice) = FreedCounts::of(&response) {
                    totals.slice(&slice, http.control.monotonic().since(begun));
                    freed.add(&slice);
                }
                next = Collector::next_slice(&command, &response, http.control.now());
            }
            Err(error) => {
                tracing::warn!(%error, "what a purged job left is left to the next collections");
                next = None;
            }
        }
    }
}

/// Returns the nodes that are not down, and the report's rows for the nodes that are down.
fn split_by_status(state: &State) -> (Vec<(NodeId, String)>, Vec<GcNode>) {
    let nodes = state.nodes().iter();
    let (down, up): (Vec<_>, Vec<_>) = nodes.partition(|node| node.status == NodeStatus::Down);
    let up = up.into_iter();
    let up = up.map(|node| (node.spec.id, node.spec.name.clone()));
    let down = down.into_iter().map(|node| GcNode {
        node_id: node.spec.id.to_string(),
        name: node.spec.name.clone(),
        error: IS_DOWN.to_owned(),
        ..GcNode::default()
    });
    (up.collect(), down.collect())
}

async fn collect_node(
    http: &Http,
    node_id: NodeId,
    name: String,
    dry_run: bool,
    until: Instant,
) -> GcNode {
    let request = NodeRequest::CollectGarbage { dry_run };
    let timeouts = AnswerTimeouts {
        silence: limits::COLLECT_WAIT,
        total: until.saturating_duration_since(Instant::now()),
    };
    let answer = client::ask_within(http, node_id, request, timeouts).await;
    let node = GcNode {
        node_id: node_id.to_string(),
        name,
        ..GcNode::default()
    };
    match answer {
        Ok(NodeReply::Collected {
            freed,
            inodes,
            bytes,
            kept,
        }) => {
            let kept = kept.into_iter();
            let kept = kept.map(|(reason, count)| KeptShape { reason, count });
            GcNode {
                freed,
                inodes,
                bytes,
                kept: kept.collect(),
                ..node
            }
        }
        Ok(_) => GcNode {
            error: "it answered something else".to_owned(),
            ..node
        },
        Err(error) => GcNode {
            error: error.to_string(),
            ..node
        },
    }
}

/// Builds the report. `freed` has the freed counts; without it the survey gives the expected counts.
fn report(freed: Option<FreedCounts>, survey: &GcSurvey, nodes: Vec<GcNode>) -> GcReport {
    let state = survey.counts.iter().map(|(kind, count)| GcCount {
        kind: kind.as_str().to_owned(),
        freed: freed.map_or(count.freed, |freed| freed.count(*kind)),
        kept: count.kept.iter().map(kept).collect(),
    });
    GcReport {
        dry_run: freed.is_none(),
        state: state.collect(),
        bytes: freed.map_or(0, |freed| freed.bytes),
        slices: freed.map_or(0, |freed| freed.slices),
        took_ms: freed.map_or(0, |freed| saturating::millis(freed.took)),
        nodes,
    }
}

fn kept((why, count): (&GcKept, &u64)) -> KeptShape {
    KeptShape {
        reason: why.text().to_owned(),
        count: *count,
    }
}
