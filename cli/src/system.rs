//! `muster system`: the cluster as a whole.

use std::time::Duration;

use clap::Subcommand;
use muster_wire::api::operator::{GcKept, GcReport};
use serde_json::{Value, json};

use crate::client::Client;
use crate::exit::{CliResult, Exit};
use crate::output;

/// The time for servers and nodes to collect everything: half a minute for the leader and ten minutes for the nodes.
/// Nodes wait until the space is free.
const GC_WAIT: Duration = Duration::from_secs(10 * 60 + 30);

/// Commands about the cluster.
#[derive(Debug, Subcommand)]
pub enum SystemCommand {
    /// Delete every ended object on servers and nodes, whatever its age.
    Gc {
        /// Also wait for the nodes, and print how much was deleted and kept.
        #[arg(long)]
        wait: bool,
        /// Only print how much would be deleted and kept.
        #[arg(long)]
        dry_run: bool,
    },
}

/// Carries out `command`.
///
/// # Errors
///
/// [`crate::exit::CliError`].
pub fn run(client: &Client, json: bool, command: &SystemCommand) -> CliResult {
    let SystemCommand::Gc { wait, dry_run } = command;
    if *wait || *dry_run {
        let flag = if *dry_run { "dry_run" } else { "wait" };
        let path = format!("/v1/system/gc?{flag}=true");
        let report: GcReport = client.put_with_timeout(&path, &json!({}), GC_WAIT)?;
        if json {
            output::print_json(&report)?;
        } else {
            output::print(&shown(&report))?;
        }
        let failed = report.nodes.iter().any(|node| !node.error.is_empty());
        return Ok(if failed { Exit::Failed } else { Exit::Done });
    }
    let answer: Value = client.put("/v1/system/gc", &json!({}))?;
    if json {
        output::print_json(&answer)?;
    } else {
        output::print("Collected on the servers; the nodes are collecting.\n")?;
    }
    Ok(Exit::Done)
}

/// The freed and kept objects: a line for each kind and for each node.
fn shown(report: &GcReport) -> String {
    let (freed, kept) = if report.dry_run {
        ("would be freed", "would be kept")
    } else {
        ("freed", "kept")
    };
    let mut text = String::new();
    for count in &report.state {
        let kind = &count.kind;
        let line = format!(
            "{kind:<12} {:>9} {freed}, {}\n",
            count.freed,
            reasons(kept, &count.kept)
        );
        text.push_str(&line);
    }
    if !report.dry_run {
        let line = format!(
            "{} of state, {} log entries, {} ms\n",
            output::bytes(report.bytes),
            report.slices,
            report.took_ms
        );
        text.push_str(&line);
    }
    text.extend(report.nodes.iter().map(|node| {
        let what = if node.error.is_empty() {
            let space = if report.dry_run {
                String::new()
            } else {
                let bytes = output::bytes(node.bytes);
                format!(" ({} inodes, {bytes})", node.inodes)
            };
            format!(
                "{} {freed}{space}, {}",
                output::count_with_noun(node.freed, "allocation"),
                reasons(kept, &node.kept)
            )
        } else {
            node.error.clone()
        };
        format!("node {}: {what}\n", node.name)
    }));
    text
}

fn reasons(kept: &str, reasons: &[GcKept]) -> String {
    let total: u64 = reasons.iter().map(|one| one.count).sum();
    if total == 0 {
        return format!("none {kept}");
    }
    let each: Vec<String> = reasons
        .iter()
        .map(|one| format!("{} {}", one.count, one.reason))
        .collect();
    format!("{total} {kept} ({})", each.join(", "))
}

#[cfg(test)]
mod tests {
    use muster_wire::api::operator::{GcCount, GcNode};

    use super::*;

    #[test]
    fn gc_report_lists_kept_rows_with_reasons() {
        let report = GcReport {
            dry_run: true,
            state: vec![
                GcCount {
                    kind: "allocations".to_owned(),
                    freed: 12,
                    kept: vec![
                        GcKept {
                            reason: "not over".to_owned(),
                            count: 2,
                        },
                        GcKept {
                            reason: "ended, but may be replaced".to_owned(),
                            count: 1,
                        },
                    ],
                },
                GcCount {
                    kind: "one-offs".to_owned(),
                    freed: 3,
                    kept: vec![GcKept {
                        reason: "ended, but owed a callback".to_owned(),
                        count: 1,
                    }],
                },
            ],
            nodes: vec![GcNode {
                name: "n1".to_owned(),
                error: "not connected".to_owned(),
                ..GcNode::default()
            }],
            ..GcReport::default()
        };

        assert_eq!(
            shown(&report),
            "allocations         12 would be freed, 3 would be kept (2 not over, 1 ended, but may be replaced)\n\
             one-offs             3 would be freed, 1 would be kept (1 ended, but owed a callback)\n\
             node n1: not connected\n"
        );
    }

    #[test]
    fn gc_report_shows_freed_space() {
        let report = GcReport {
            nodes: vec![GcNode {
                name: "n1".to_owned(),
                freed: 2,
                inodes: 40,
                bytes: 3 << 20,
                ..GcNode::default()
            }],
            ..GcReport::default()
        };

        assert_eq!(
            shown(&report),
            "0 B of state, 0 log entries, 0 ms\n\
             node n1: 2 allocations freed (40 inodes, 3.0 MiB), none kept\n"
        );
    }
}
