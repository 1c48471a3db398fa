//! The reasons why instances of a job can or cannot go to nodes.

use axum::response::Response;
use muster_control_core::scheduler::{self, Obstacle, Why, WhyNode};
use muster_control_core::state::State;
use muster_domain::id::JobKey;
use muster_domain::number;
use muster_wire::api::why as api;

use super::NOT_FOUND;
use crate::http::answer;
use crate::http::handler::Http;
use crate::http::query::Query;
use crate::http::status::ApiError;

pub(super) async fn why(http: &Http, query: &Query, key: JobKey) -> Result<Response, ApiError> {
    let seen = query.state(http).await?;
    let only = query.text("group").map(str::to_owned);
    let snapshot = seen.state.clone();
    // The answer takes some microseconds for each node: too long for a thread that serves other requests.
    let asked = tokio::task::spawn_blocking(move || {
        let groups = scheduler::why(&snapshot, &key, only.as_deref())?;
        let shaped = groups.iter().map(|why| shape(&snapshot, why));
        Some((only, shaped.collect::<Vec<_>>()))
    });
    let answer = asked
        .await
        .map_err(|error| ApiError::Internal(error.to_string()))?;
    match answer {
        None => Err(NOT_FOUND),
        Some((Some(group), groups)) if groups.is_empty() => Err(ApiError::Malformed(format!(
            "the job has no group \"{group}\""
        ))),
        Some((_, groups)) => {
            let response = query.json(&groups)?;
            Ok(answer::stamp(response, &seen, seen.state.applied()))
        }
    }
}

fn shape(state: &State, why: &Why) -> api::Why {
    let nodes: Vec<api::WhyNode> = why
        .nodes
        .iter()
        .map(|node| shape_node(state, node))
        .collect();
    let fitting = nodes.iter().filter(|node| node.fits).count();
    let advice = match (why.nearest(), nodes.first()) {
        (Some(nearest), Some(node)) => advice(nearest, &node.node_name),
        (Some(_) | None, _) => String::new(),
    };
    api::Why {
        group: why.group.clone(),
        missing: why.missing,
        fitting: number::count(fitting),
        advice,
        nodes,
    }
}

fn shape_node(state: &State, node: &WhyNode) -> api::WhyNode {
    let row = state.nodes().get(&node.node_id);
    api::WhyNode {
        node_id: node.node_id.to_string(),
        node_name: row.map_or_else(String::new, |row| row.spec.name.clone()),
        fits: node.obstacles.is_empty(),
        score: node.score.as_ref().map(|score| score.normalised.value()),
        scores: node
            .score
            .iter()
            .flat_map(|score| score.components.iter())
            .map(|(name, score)| (name.name().to_owned(), score.value()))
            .collect(),
        obstacles: node
            .obstacles
            .iter()
            .map(|obstacle| shape_obstacle(state, obstacle))
            .collect(),
    }
}

/// The changes that the nearest node needs.
fn advice(node: &WhyNode, name: &str) -> String {
    let changes: Vec<String> = node.obstacles.iter().map(change).collect();
    format!("on node {name}: {}", changes.join("; "))
}

fn change(obstacle: &Obstacle) -> String {
    match obstacle {
        Obstacle::NotTaking { state } => format!("the node is {state}: let it take work again"),
        Obstacle::Pool { is, .. } => format!("ask for node_pool \"{is}\""),
        Obstacle::Datacenter { is, .. } => format!("add datacenter \"{is}\""),
        Obstacle::Constraint { text, .. } => format!("leave out the constraint `{text}`"),
        Obstacle::Missing { what } => format!("mend that: {what}"),
        Obstacle::Short { what, needed, free } => {
            let missing = needed.saturating_sub(*free);
            format!(
                "ask for {missing}{} less {what}, or free as much",
                unit(what)
            )
        }
        Obstacle::Port { port, .. } => format!("free port {port}, or ask for any port"),
        Obstacle::Held { what } => format!("free {what}, or ask for fewer"),
        Obstacle::Apart { rule } => format!("leave out {rule}, or ask for fewer instances"),
    }
}

fn unit(what: &str) -> &'static str {
    match what {
        "cpu" => " MHz",
        "memory" | "disk" => " MiB",
        _ => "",
    }
}

fn shape_obstacle(state: &State, obstacle: &Obstacle) -> api::Obstacle {
    let api_obstacle = |kind: &str, text: String| api::Obstacle {
        kind: kind.to_owned(),
        text,
        ..api::Obstacle::default()
    };
    match obstacle {
        Obstacle::NotTaking { state } => api_obstacle("node", format!("the node is {state}")),
        Obstacle::Pool { wanted, is } => api_obstacle(
            "pool",
            format!("the node is in pool \"{is}\", not in \"{wanted}\""),
        ),
        Obstacle::Datacenter { wanted, is } => api_obstacle(
            "datacenter",
            format!(
                "the node is in datacenter \"{is}\", not in {}",
                wanted.join(", ")
            ),
        ),
        Obstacle::Constraint { text, left, right } => {
            let read = |side: &Option<String>| match side {
                Some(text) => format!("\"{text}\""),
                None => "nothing".to_owned(),
            };
            let sides = format!("{} against {}", read(left), read(right));
            api_obstacle(
                "constraint",
                format!("constraint `{text}` does not hold: {sides}"),
            )
        }
        Obstacle::Missing { what } => api_obstacle("missing", what.clone()),
        Obstacle::Short { what, needed, free } => api::Obstacle {
            needed: Some(*needed),
            free: Some(*free),
            ..api_obstacle(
                what,
                format!("{what}: {needed}{0} needed, {free}{0} free", unit(what)),
            )
        },
        Obstacle::Port { port, by } => {
            let holder = by.and_then(|by| state.allocs().get(&by));
            let name = holder.map_or_else(
                || "kept from tasks".to_owned(),
                |alloc| format!("taken by {}", alloc.name()),
            );
            api::Obstacle {
                held_by_alloc_id: by.map(|by| by.to_string()).unwrap_or_default(),
                ..api_obstacle("port", format!("port {port} is {name}"))
            }
        }
        Obstacle::Held { what } => api_obstacle(what, format!("there are not enough free {what}")),
        Obstacle::Apart { rule } => {
            api_obstacle(rule, format!("{rule} keeps another instance away"))
        }
    }
}
