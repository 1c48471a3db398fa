//! `muster operator network`: the cluster's network policy for the tasks of all nodes.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use muster_wire::api::operator::{ClusterPolicy, ClusterPolicySetResponse};
use muster_wire::api::policy::{DirectionPolicy, NetworkPolicy, PolicyRule};

use crate::client::Client;
use crate::exit::{CliError, CliResult, Exit};
use crate::output;
use crate::serve::read_policy_file;

const PATH: &str = "/v1/operator/network/policy";

/// Commands about the cluster's network policy.
#[derive(Debug, Subcommand)]
pub enum NetworkCommand {
    /// Show the cluster's network policy, which holds where neither the job nor the node decides.
    GetPolicy,
    /// Set the cluster's network policy, which holds where neither the job nor the node decides.
    ///
    /// It takes effect at once, also for running tasks and their open connections. The file has a block `policy` as
    /// in a task. An empty block leaves all decisions to jobs and nodes.
    ///
    /// Example: muster operator network set-policy policy.hcl
    SetPolicy(SetArgs),
}

/// Arguments of `muster operator network set-policy`.
#[derive(Clone, Debug, Args)]
pub struct SetArgs {
    /// A file with one block, `policy`.
    pub file: PathBuf,
    /// Change the policy only if it still has this modify index.
    #[arg(long, value_name = "INDEX")]
    pub check_index: Option<u64>,
}

/// Carries out `command`.
///
/// # Errors
///
/// [`CliError`].
pub(super) fn run(client: &Client, json: bool, command: &NetworkCommand) -> CliResult {
    match command {
        NetworkCommand::GetPolicy => show(client, json),
        NetworkCommand::SetPolicy(args) => set(client, json, args),
    }
}

fn show(client: &Client, json: bool) -> CliResult {
    let answer: ClusterPolicy = client.get(PATH)?;
    if json {
        output::print_json(&answer)?;
        return Ok(Exit::Done);
    }
    let NetworkPolicy { egress, ingress } = &answer.policy;
    let mut table = output::table(&["DIRECTION", "RULE", "ACTION", "PROTOCOL", "PEERS", "PORTS"]);
    for (name, direction) in [("egress", egress), ("ingress", ingress)] {
        for row in rows(name, direction) {
            table.add_row(row);
        }
    }
    output::print_table(&table)?;
    output::print(&format!("modify index {}\n", answer.modify_index))?;
    Ok(Exit::Done)
}

/// A direction's rules in order, its default action, and its rate.
fn rows(name: &str, direction: &DirectionPolicy) -> Vec<[String; 6]> {
    let any = |words: &[String]| match words {
        [] => "any".to_owned(),
        words => words.join(" "),
    };
    let rule = |rule: &PolicyRule| {
        [
            name.to_owned(),
            rule.name.clone(),
            rule.action.clone(),
            rule.protocol.clone(),
            any(&rule.peers),
            any(&rule.ports),
        ]
    };
    let rest = |word: &str, value: &str| {
        let value = if value.is_empty() { "-" } else { value };
        [name, word, value, "", "", ""].map(str::to_owned)
    };
    let rules = direction.rules.iter().map(rule);
    let others = [
        rest("(default)", &direction.default),
        rest("(rate)", &direction.rate),
    ];
    rules.chain(others).collect()
}

fn set(client: &Client, json: bool, args: &SetArgs) -> CliResult {
    let policy = read(&args.file)?;
    let path = match args.check_index {
        Some(index) => format!("{PATH}?cas={index}"),
        None => PATH.to_owned(),
    };
    let answer: ClusterPolicySetResponse = client.put(&path, &policy)?;
    if !answer.updated {
        return Err(CliError::new(
            Exit::Refused,
            "the policy was changed meanwhile: nothing is changed".to_owned(),
        )
        .help("look at it with `muster operator network get-policy` and try again"));
    }
    if json {
        output::print_json(&answer)?;
        return Ok(Exit::Done);
    }
    output::print(&format!(
        "The cluster's network policy is changed (index {}).\n",
        answer.index
    ))?;
    Ok(Exit::Done)
}

fn read(path: &Path) -> Result<NetworkPolicy, CliError> {
    let policy = read_policy_file(path)?;
    Ok(NetworkPolicy::from(&policy))
}
