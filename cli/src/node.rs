//! `muster node`: the machines.

mod drain;
mod eligibility;

use std::collections::BTreeMap;

use clap::Subcommand;
use muster_wire::api::alloc::AllocListStub;
use muster_wire::api::node::{DrainStrategy, Node, NodeListStub};
use muster_wire::api::stats::{Collection, NodeStats};
use serde_json::json;

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output};

/// Commands about nodes.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Show all nodes, or one with its drivers, attributes and allocations.
    Status {
        /// The node: name, id or a unique prefix. Default: all.
        node: Option<String>,
    },
    /// Move allocations off a node and wait until it is empty, or end the drain.
    ///
    /// Example: muster node drain --enable --deadline 30m n1
    Drain(drain::DrainArgs),
    /// Allow or forbid new work on nodes. Running allocations go on.
    ///
    /// Example: muster node eligibility --disable n1 n2
    Eligibility(eligibility::EligibilityArgs),
}

/// Carries out `command`.
///
/// # Errors
///
/// [`crate::exit::CliError`].
pub fn run(client: &Client, json: bool, command: &NodeCommand) -> CliResult {
    match command {
        NodeCommand::Status { node: None } => list(client, json),
        NodeCommand::Status { node: Some(name) } => one(client, json, name),
        NodeCommand::Drain(args) => drain::run(client, json, args),
        NodeCommand::Eligibility(args) => eligibility::run(client, json, args),
    }
}

/// The default name of an agent on this machine.
fn this_machine() -> Result<String, CliError> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    Ok(name.trim().to_owned())
}

fn list(client: &Client, json: bool) -> CliResult {
    let nodes: Vec<NodeListStub> = client.get("/v1/nodes")?;
    if json {
        output::print_json(&nodes)?;
        return Ok(Exit::Done);
    }
    let mut table = output::table(&[
        "NODE",
        "NAME",
        "DATACENTER",
        "POOL",
        "STATUS",
        "ELIGIBILITY",
        "DRAIN",
        "DRIVERS",
        "VERSION",
    ]);
    for node in &nodes {
        let drivers: Vec<String> = node
            .drivers
            .iter()
            .map(|(name, driver)| {
                if driver.healthy {
                    name.clone()
                } else {
                    format!("{name} (unhealthy)")
                }
            })
            .collect();
        table.add_row([
            output::short_id(&node.id).to_owned(),
            output::clean(&node.name),
            node.datacenter.clone(),
            node.node_pool.clone(),
            node.status.clone(),
            node.scheduling_eligibility.clone(),
            if node.drain { "under way" } else { "–" }.to_owned(),
            drivers.join(", "),
            node.version.clone(),
        ]);
    }
    if nodes.is_empty() {
        output::eprint("no nodes; start an agent with `muster agent`");
    } else {
        output::print_table(&table)?;
    }
    output::warn(&shared_names(&nodes));
    Ok(Exit::Done)
}

/// A line for each name that several nodes share. A down node may be the earlier registration of a machine that was set
/// up again.
fn shared_names(nodes: &[NodeListStub]) -> String {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for node in nodes.iter().filter(|node| node.status != "down") {
        *counts.entry(&node.name).or_default() += 1;
    }
    let shared = counts.into_iter().filter(|(_, count)| *count > 1);
    let lines = shared.map(|(name, count)| {
        format!("{count} nodes have the name `{name}`: give each agent another `--name`, or use their ids\n")
    });
    lines.collect()
}

fn one(client: &Client, json: bool, name: &str) -> CliResult {
    let id = names::node(client, name, names::Access::Show)?.id;
    let node: Node = client.get(&format!("/v1/node/{id}"))?;
    let allocs: Vec<AllocListStub> = client.get(&format!("/v1/node/{id}/allocations"))?;
    let stats = client
        .get::<NodeStats>(&format!(
            "/v1/client/stats?node_id={}&counters=true",
            escape(&id)
        ))
        .map_err(|error| error.message);
    if json {
        let (stats, reason) = match &stats {
            Ok(stats) => (Some(stats), None),
            Err(reason) => (None, Some(reason)),
        };
        output::print_json(
            &json!({ "Node": node, "Allocations": allocs, "Stats": stats, "NoStats": reason }),
        )?;
        return Ok(Exit::Done);
    }
    output::print(&format!(
        "{}  {}\n{} · {} · datacenter {} · pool {}\n{} MHz on {} cores · {} MiB memory · {} MiB disk\n",
        node.id,
        output::clean(&node.name),
        node.status,
        node.scheduling_eligibility,
        node.datacenter,
        node.node_pool,
        node.node_resources.cpu.cpu_shares,
        node.node_resources.cpu.total_cpu_cores,
        node.node_resources.memory.memory_mb,
        node.node_resources.disk.disk_mb
    ))?;
    if let Some(strategy) = &node.drain_strategy {
        output::print(&format!("{}\n", draining(strategy)))?;
    }
    match &stats {
        Ok(stats) => output::print(&format!(
            "memory available {} · disk available {} · agent {} resident, {} cpu · eBPF events lost {}\n",
            output::bytes(stats.memory.available),
            output::bytes(stats.alloc_dir_stats.available),
            output::bytes(stats.muster.agent_resident_bytes),
            output::span(std::time::Duration::from_nanos(
                stats.muster.agent_cpu_nanos
            )),
            stats.muster.ebpf_lost.map_or_else(
                || "– (no programs loaded)".to_owned(),
                |lost| lost.to_string()
            )
        ))?,
        Err(reason) => output::print(&format!("usage: –  ({})\n", output::clean(reason)))?,
    }
    if let Ok(stats) = &stats {
        output::print(&collection(&stats.muster.collection))?;
    }
    for (name, driver) in &node.drivers {
        output::print(&format!(
            "driver {name}: {}\n",
            output::clean(&driver.health_description)
        ))?;
    }
    if !node.events.is_empty() {
        let mut table = output::table(&["TIME", "SUBSYSTEM", "EVENT"]);
        for event in node.events.iter().rev() {
            table.add_row([
                output::time_since(event.timestamp.0.0),
                output::clean(&event.subsystem),
                output::clean(&event.message),
            ]);
        }
        output::print("\n")?;
        output::print_table(&table)?;
    }
    let mut table = output::table(&["ATTRIBUTE", "VALUE"]);
    for (key, value) in &node.attributes {
        table.add_row([output::clean(key), output::clean(value)]);
    }
    output::print("\n")?;
    output::print_table(&table)?;
    show_allocs(&allocs)?;
    Ok(Exit::Done)
}

/// The state of a node's drain.
fn draining(strategy: &DrainStrategy) -> String {
    let limit = match (strategy.deadline, strategy.force_deadline) {
        (..0, _) => "everything stops at once".to_owned(),
        (_, Some(at)) => format!("what is left is stopped {}", output::time_until(at.0.0)),
        (_, None) => "without a deadline".to_owned(),
    };
    let system = if strategy.ignore_system_jobs {
        " · system jobs stay"
    } else {
        ""
    };
    format!(
        "draining since {} · {limit}{system}",
        output::time_since(strategy.started_at.0.0)
    )
}

fn show_allocs(allocs: &[AllocListStub]) -> Result<(), CliError> {
    let mut table = output::table(&["ALLOC", "NAME", "DESIRED", "STATUS", "CHANGED"]);
    for alloc in allocs {
        table.add_row([
            output::short_id(&alloc.id).to_owned(),
            output::clean(&alloc.name),
            alloc.desired_status.clone(),
            alloc.client_status.clone(),
            output::time_since(alloc.modify_time),
        ]);
    }
    if !allocs.is_empty() {
        output::print("\n")?;
        output::print_table(&table)?;
    }
    Ok(())
}

/// The past and next collection of finished allocations: a line, and one for each obstacle.
fn collection(collection: &Collection) -> String {
    let destroyed: u64 = collection.destroyed.values().sum();
    let reasons: Vec<String> = collection
        .destroyed
        .iter()
        .map(|(reason, count)| format!("{count} {}", output::clean(reason)))
        .collect();
    let why = if reasons.is_empty() {
        String::new()
    } else {
        format!(" ({})", reasons.join(", "))
    };
    let mut text = format!(
        "collection: {} finished kept · {destroyed} destroyed{why} · {} under way · {} refused · {} being deleted · {} deleted\n",
        collection.finished,
        collection.under_way,
        collection.refused,
        collection.deleting,
        output::bytes(collection.deleted_bytes),
    );
    for (entry, reason) in &collection.stuck {
        let line = format!("  cannot be deleted: {entry}: {reason}");
        text.push_str(&output::clean(&line));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_several_nodes_are_warned_of() {
        let nodes = [
            ("n1", "ready"),
            ("n2", "ready"),
            ("n1", "ready"),
            ("n2", "down"),
        ];
        let nodes = nodes.map(|(name, status)| NodeListStub {
            name: name.to_owned(),
            status: status.to_owned(),
            ..NodeListStub::default()
        });

        let warnings = shared_names(&nodes);

        assert_eq!(
            warnings,
            "2 nodes have the name `n1`: give each agent another `--name`, or use their ids\n"
        );
    }

    #[test]
    fn node_status_shows_gc_summary_and_stuck_entries() {
        let mut state = Collection {
            finished: 3,
            refused: 1,
            deleted_bytes: 2 << 20,
            ..Collection::default()
        };
        state.destroyed.insert("disk usage".to_owned(), 2);
        let stuck = ("a.alloc".to_owned(), "it is mounted".to_owned());
        state.stuck.insert(stuck.0, stuck.1);

        let text = collection(&state);

        assert!(
            text.starts_with(
                "collection: 3 finished kept · 2 destroyed (2 disk usage) · 0 under way · 1 refused"
            ),
            "{text}"
        );
        assert!(
            text.ends_with("  cannot be deleted: a.alloc: it is mounted\n"),
            "{text}"
        );
    }

    /// The node supplies the texts, so control characters must not reach the terminal.
    #[test]
    fn reasons_of_a_node_cannot_steer_the_terminal() {
        let mut state = Collection::default();
        state.destroyed.insert("disk\u{1b}[2J usage".to_owned(), 2);

        let text = collection(&state);

        assert!(text.contains("(2 disk\u{fffd}[2J usage)"), "{text}");
    }
}
