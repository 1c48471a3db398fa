//! `muster net`: packets that network policies allowed and denied.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use muster_wire::api::alloc::AllocListStub;
use muster_wire::api::network::{AllocNetwork, Verdict};
use serde_json::json;

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output};

/// The interval of requests to nodes.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Arguments of `muster net`.
#[derive(Debug, Args)]
pub struct NetArgs {
    /// The job, an allocation of it, or a one-off task.
    #[arg(value_name = "JOB|ALLOC")]
    pub name: String,
    /// Only refused traffic.
    #[arg(long)]
    pub denied: bool,
    /// Show verdicts as they happen, until interrupted. Counts are exact. Of one rule and task, at most one verdict
    /// in 10 ms and CPU is shown. Missed verdicts are counted.
    #[arg(short, long)]
    pub follow: bool,
}

/// Carries out the command.
///
/// # Errors
///
/// [`CliError`].
pub fn run(client: &Client, json: bool, args: &NetArgs) -> CliResult {
    if args.follow {
        return follow(client, json, args);
    }
    let mut shown = Vec::new();
    for alloc in allocs(client, &args.name)? {
        let mut network = fetch_network(client, &alloc, 0)?;
        if args.denied {
            network.rules.retain(|rule| rule.action == "deny");
            network.verdicts.retain(|verdict| verdict.action == "deny");
        }
        shown.push((alloc, network));
    }
    if json {
        let all = shown.iter();
        let all: Vec<_> = all
            .map(|(alloc, network)| json!({ "AllocID": alloc.id, "Network": network }))
            .collect();
        output::print_json(&all)?;
        return Ok(Exit::Done);
    }
    show(&shown, args.denied)?;
    Ok(Exit::Done)
}

fn show(shown: &[(AllocListStub, AllocNetwork)], denied: bool) -> Result<(), CliError> {
    let mut table = output::table(&[
        "ALLOC",
        "TASK",
        "DIRECTION",
        "ACTION",
        "RULE",
        "PACKETS",
        "BYTES",
    ]);
    for (alloc, network) in shown {
        for rule in &network.rules {
            table.add_row([
                output::short_id(&alloc.id).to_owned(),
                output::clean(&rule.task),
                rule.direction.clone(),
                rule.action.clone(),
                output::clean(&rule.rule),
                rule.packets.to_string(),
                output::bytes(rule.bytes),
            ]);
        }
    }
    if shown.iter().all(|(_, network)| network.rules.is_empty()) {
        let what = if denied {
            "nothing was refused"
        } else {
            "no packet met a rule"
        };
        output::print(&format!("{what} since these tasks run\n"))?;
    } else {
        output::print_table(&table)?;
    }
    for (alloc, network) in shown {
        if let Some(address) = &network.address {
            let id = output::short_id(&alloc.id);
            output::print(&format!(
                "{id} has the address {}\n",
                output::clean(address)
            ))?;
        }
        for verdict in &network.verdicts {
            output::print(&line(alloc, verdict))?;
        }
    }
    Ok(())
}

/// Shows verdicts as they occur. It includes allocations that start later.
fn follow(client: &Client, json: bool, args: &NetArgs) -> CliResult {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    loop {
        let allocs = allocs(client, &args.name)?;
        seen.retain(|id, _| allocs.iter().any(|alloc| alloc.id == *id));
        for alloc in allocs {
            let before = seen.get(&alloc.id).copied();
            let after = before.unwrap_or(0);
            let network = match fetch_network(client, &alloc, after) {
                Ok(network) => network,
                Err(error) if error.exit == Exit::Unreachable => return Err(error),
                // The allocation's node is temporarily unreachable.
                Err(_) => continue,
            };
            // Verdicts from before the first look are not reported as missing.
            if before.is_some()
                && let Some(note) = gap(&alloc, &network, after)
            {
                if json {
                    output::print_json(&json!({ "AllocID": alloc.id, "Missed": network.missed }))?;
                } else {
                    output::eprint(&note);
                }
            }
            for verdict in &network.verdicts {
                if args.denied && verdict.action != "deny" {
                    continue;
                }
                if json {
                    output::print_json(&json!({ "AllocID": alloc.id, "Verdict": verdict }))?;
                } else {
                    output::print(&line(&alloc, verdict))?;
                }
            }
            seen.insert(alloc.id, network.last);
        }
        std::thread::sleep(FOLLOW_EVERY);
    }
}

/// A sentence about verdicts missing after number `after`; `None` if there is no gap.
fn gap(alloc: &AllocListStub, network: &AllocNetwork, after: u64) -> Option<String> {
    let id = output::short_id(&alloc.id);
    let missed = network.missed;
    // A node numbers verdicts from the start again when its agent restarts.
    if network.last < after {
        return Some(format!(
            "{id}: the agent of its node restarted: verdicts that it had not reported are missing, {missed} of those since"
        ));
    }
    (missed > 0).then(|| {
        format!("{id}: {missed} verdicts are missing here: they came faster than they were read")
    })
}

/// The running allocations that `name` means.
fn allocs(client: &Client, name: &str) -> Result<Vec<AllocListStub>, CliError> {
    let Ok(job) = names::job(client, name, names::Access::Show) else {
        return Ok(vec![names::alloc(client, name, names::Access::Show)?]);
    };
    let path = format!("/v1/job/{}/allocations", escape(&job));
    let mut allocs: Vec<AllocListStub> = client.get(&path)?;
    allocs.retain(|alloc| alloc.client_status == "running");
    if allocs.is_empty() {
        let reason = format!("no allocation of {job} runs: see `muster job status {job}`");
        return Err(CliError::new(Exit::Failed, reason));
    }
    Ok(allocs)
}

fn fetch_network(
    client: &Client,
    alloc: &AllocListStub,
    after: u64,
) -> Result<AllocNetwork, CliError> {
    let id = &alloc.id;
    client.get(&format!("/v1/client/allocation/{id}/network?after={after}"))
}

/// One line: time, allocation, verdict, remote address and rule.
fn line(alloc: &AllocListStub, verdict: &Verdict) -> String {
    let Verdict {
        number: _,
        time,
        task,
        direction,
        rule,
        action,
        protocol,
        remote_address,
        remote_port,
        local_port,
        bytes,
    } = verdict;
    let remote = match (*remote_port, remote_address.contains(':')) {
        (0, _) => remote_address.clone(),
        (port, false) => format!("{remote_address}:{port}"),
        (port, true) => format!("[{remote_address}]:{port}"),
    };
    let way = if direction == "egress" { "to" } else { "from" };
    let port = match local_port {
        0 => String::new(),
        port => format!(" port {port}"),
    };
    let what = match bytes {
        0 => "connect".to_owned(),
        bytes => format!("{bytes} B"),
    };
    format!(
        "{} {}/{}{port} {action} {protocol} {way} {remote} {what} by {}\n",
        output::time_since(*time),
        output::short_id(&alloc.id),
        output::clean(task),
        output::clean(rule)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_counts_missing_verdicts() {
        let alloc = AllocListStub {
            id: "0123456789abcdef".to_owned(),
            ..AllocListStub::default()
        };
        let network = |missed, last| AllocNetwork {
            missed,
            last,
            ..AllocNetwork::default()
        };

        assert_eq!(gap(&alloc, &network(0, 9), 9), None);
        let slow = gap(&alloc, &network(3, 9), 4).unwrap();
        assert!(slow.contains("3 verdicts are missing"), "{slow}");
        let anew = gap(&alloc, &network(0, 2), 4).unwrap();
        assert!(anew.contains("the agent of its node restarted"), "{anew}");
    }

    #[test]
    fn a_verdict_reads_as_one_line() {
        let alloc = AllocListStub {
            id: "0123456789abcdef".to_owned(),
            ..AllocListStub::default()
        };
        let verdict = Verdict {
            task: "web".to_owned(),
            direction: "egress".to_owned(),
            rule: "built-in/metadata".to_owned(),
            action: "deny".to_owned(),
            protocol: "tcp".to_owned(),
            remote_address: "169.254.169.254".to_owned(),
            remote_port: 80,
            ..Verdict::default()
        };
        let text = line(&alloc, &verdict);
        assert!(
            text.ends_with("/web deny tcp to 169.254.169.254:80 connect by built-in/metadata\n"),
            "{text}"
        );

        let verdict = Verdict {
            direction: "ingress".to_owned(),
            remote_address: "fd00::1".to_owned(),
            local_port: 9,
            bytes: 60,
            ..verdict
        };
        let text = line(&alloc, &verdict);
        assert!(
            text.ends_with("/web port 9 deny tcp from [fd00::1]:80 60 B by built-in/metadata\n"),
            "{text}"
        );
    }
}
