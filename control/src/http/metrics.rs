//! Metrics: counts of the rows of each table by status, as JSON or as Prometheus text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::extract::State as Shared;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use muster_control_core::fsm::{GcKept, GcKind};
use muster_control_core::state::State;
use muster_wire::api::operator::{Gauge, Metrics};

use super::handler::Http;
use super::query::Query;
use super::status::ApiError;
use crate::callback::{self, Outcome};
use crate::garbage;

/// One sample of a metric.
#[derive(Debug)]
struct Sample {
    name: &'static str,
    help: &'static str,
    label: Option<(&'static str, String)>,
    value: f64,
}

pub(super) async fn read(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let state = http.control.state();
    let counted = tokio::task::spawn_blocking(move || count(&state));
    let mut samples = counted
        .await
        .map_err(|error| ApiError::Internal(error.to_string()))?;
    let agents = http.control.nodes().connected().len() as f64;
    let is_leader = f64::from(u8::from(
        http.control.leader().is_some_and(|leader| leader.is_self),
    ));
    samples.push(Sample::one(
        "muster_agents_connected",
        "Agents with a session on this server.",
        agents,
    ));
    samples.push(Sample::one(
        "muster_raft_leader",
        "Whether this server leads.",
        is_leader,
    ));
    samples.push(Sample::one(
        "muster_clock_jump_seconds",
        "Seconds by which the wall clock has jumped forward, until an operator confirms the jump.",
        http.control
            .clock()
            .jump()
            .map_or(0.0, |by| by.as_secs_f64()),
    ));
    samples.push(Sample::one(
        "muster_log_disk_full",
        "Whether the disk of the Raft log is full.",
        f64::from(u8::from(http.control.raft().check_disk().is_err())),
    ));
    for member in http
        .control
        .known_peers()
        .iter()
        .filter(|_| is_leader > 0.0)
    {
        samples.push(Sample {
            name: "muster_raft_server_entries_behind",
            help: "Log entries that a server has not received yet, as the leader counts them.",
            label: Some(("server", member.node.name.clone())),
            value: member.behind as f64,
        });
    }
    samples.push(Sample::one(
        "muster_apply_freed_states_total",
        "Old states that the thread that applies log entries freed itself, because the freeing thread was behind.",
        http.control.published().freed_by_applier() as f64,
    ));
    samples.extend(collections(&http.control.gc_totals().read()));
    samples.extend(callbacks(http.control.callbacks()));
    let build = ("version", http.control.server_info().version.to_owned());
    let help = "The version that runs; always 1.";
    samples.push(Sample {
        name: "muster_build_info",
        help,
        label: Some(build),
        value: 1.0,
    });
    match query.text("format") {
        None => query.json(&shape(
            &samples,
            muster_wire::api::time::text(http.control.now()),
        )),
        Some("prometheus") => Ok(exposition(prometheus(&samples))),
        Some(other) => Err(unknown_format(other)),
    }
}

/// An answer in Prometheus' text format.
pub(super) fn exposition(text: String) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// The error for an unknown format.
pub(super) fn unknown_format(format: &str) -> ApiError {
    ApiError::Malformed(format!("Invalid format: `{format}` is not prometheus"))
}

/// Samples of callbacks of one-off tasks, by outcome.
fn callbacks(totals: &callback::Totals) -> impl Iterator<Item = Sample> {
    Outcome::ALL.into_iter().map(|outcome| Sample {
        name: "muster_one_off_callbacks_total",
        help: "Completion callbacks of one-off tasks that this server sent, by outcome.",
        label: Some(("outcome", outcome.as_str().to_owned())),
        value: totals.of(outcome) as f64,
    })
}

impl Sample {
    fn one(name: &'static str, help: &'static str, value: f64) -> Self {
        Self {
            name,
            help,
            label: None,
            value,
        }
    }
}

/// Samples of this server's garbage collections; a server that does not lead has none.
fn collections(read: &garbage::TotalsReading) -> Vec<Sample> {
    let freed = GcKind::ALL.into_iter().zip(read.freed);
    let mut samples: Vec<Sample> = freed
        .map(|(kind, count)| Sample {
            name: "muster_gc_freed_total",
            help: "Objects that garbage collection freed while this server led, and jobs that were purged through it.",
            label: Some(("kind", kind.as_str().to_owned())),
            value: count as f64,
        })
        .collect();
    let kept = GcKept::ALL.into_iter().zip(read.kept);
    samples.extend(kept.map(|(why, count)| Sample {
        name: "muster_gc_kept",
        help: "Ended objects that the last round of garbage collection kept, by reason.",
        label: Some(("reason", why.as_str().to_owned())),
        value: count as f64,
    }));
    let numbers = [
        (
            "muster_gc_freed_bytes_total",
            "Bytes of the freed objects, without data that they shared with others.",
            read.bytes as f64,
        ),
        (
            "muster_gc_slices_total",
            "Log entries that garbage collection wrote.",
            read.slices as f64,
        ),
        (
            "muster_gc_slices_seconds_total",
            "Time from the proposal of these log entries until they were applied.",
            read.slices_took.as_secs_f64(),
        ),
        (
            "muster_gc_slice_seconds_max",
            "The longest time of one such log entry.",
            read.slice_max.as_secs_f64(),
        ),
        (
            "muster_gc_rounds_total",
            "Rounds of garbage collection.",
            read.rounds as f64,
        ),
        (
            "muster_gc_round_seconds",
            "Duration of the last round of garbage collection.",
            read.last_round.as_secs_f64(),
        ),
        (
            "muster_gc_failures_total",
            "Rounds of garbage collection that were given up.",
            read.failures as f64,
        ),
        (
            "muster_gc_under_way",
            "Whether a round of garbage collection is under way.",
            f64::from(u8::from(read.under_way)),
        ),
    ];
    let numbers = numbers.into_iter();
    samples.extend(numbers.map(|(name, help, value)| Sample::one(name, help, value)));
    samples
}

fn count(state: &State) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut table = |name, help, words: &mut dyn Iterator<Item = &'static str>| {
        let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
        for word in words {
            *counts.entry(word).or_default() += 1.0;
        }
        for (word, value) in counts {
            samples.push(Sample {
                name,
                help,
                label: Some(("status", word.to_owned())),
                value,
            });
        }
    };
    table(
        "muster_nodes",
        "Nodes by status.",
        &mut state.nodes().iter().map(|node| node.status.as_str()),
    );
    table(
        "muster_jobs",
        "Jobs by status.",
        &mut state.jobs().iter().map(|job| job.status.as_str()),
    );
    table(
        "muster_evals",
        "Evaluations by status.",
        &mut state.evals().iter().map(|eval| eval.status.as_str()),
    );
    table(
        "muster_deployments",
        "Deployments by status.",
        &mut state.deployments().iter().map(|row| row.status.as_str()),
    );
    table(
        "muster_one_off_tasks",
        "One-off tasks by phase.",
        &mut state.one_offs().iter().map(|row| row.phase.as_str()),
    );
    let allocs = state.allocs().by_client_status().into_iter();
    samples.extend(allocs.map(|(status, count)| Sample {
        name: "muster_allocs",
        help: "Allocations by client status.",
        label: Some(("status", status.as_str().to_owned())),
        value: count as f64,
    }));
    samples.push(Sample::one(
        "muster_nodes_draining",
        "Nodes that are draining.",
        state.nodes().draining().count() as f64,
    ));
    let applied = state.applied().0 as f64;
    samples.push(Sample::one(
        "muster_raft_applied_index",
        "The last log entry applied.",
        applied,
    ));
    samples
}

fn shape(samples: &[Sample], timestamp: String) -> Metrics {
    let gauges = samples.iter().map(|sample| Gauge {
        name: sample.name.to_owned(),
        value: sample.value,
        labels: sample
            .label
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
    });
    Metrics {
        timestamp,
        gauges: gauges.collect(),
        ..Metrics::default()
    }
}

/// Formats Prometheus text: help and type once for each name, followed by all samples of that name.
fn prometheus(samples: &[Sample]) -> String {
    let mut text = String::new();
    let mut last = "";
    for Sample {
        name,
        help,
        label,
        value,
    } in samples
    {
        let header = if *name == last {
            String::new()
        } else {
            format!("# HELP {name} {help}\n# TYPE {name} gauge\n")
        };
        last = name;
        let label = label
            .as_ref()
            .map(|(key, value)| format!("{{{key}=\"{value}\"}}"))
            .unwrap_or_default();
        // Writing to a `String` cannot fail.
        let written = writeln!(text, "{header}{name}{label} {value}");
        debug_assert!(written.is_ok());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_explained_once() {
        let sample = |word: &str, value| Sample {
            name: "muster_nodes",
            help: "Nodes by status.",
            label: Some(("status", word.to_owned())),
            value,
        };

        let text = prometheus(&[sample("down", 1.0), sample("ready", 2.0)]);

        assert_eq!(
            text,
            "# HELP muster_nodes Nodes by status.\n# TYPE muster_nodes gauge\n\
             muster_nodes{status=\"down\"} 1\nmuster_nodes{status=\"ready\"} 2\n"
        );
    }
}
