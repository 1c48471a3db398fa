//! The scheduling eligibility of nodes.

use clap::{ArgGroup, Args};
use muster_wire::api::node::{EligibilityRequest, NodeListStub, NodeUpdateResponse};

use crate::client::Client;
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output};

/// Arguments of `muster node eligibility`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").args(["enable", "disable"]).required(true))]
#[command(group = ArgGroup::new("which").args(["nodes", "this"]).required(true))]
pub struct EligibilityArgs {
    /// Names or ids of the nodes.
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Use the node with this machine's name.
    #[arg(long = "self", id = "this")]
    pub this: bool,
    /// Let the nodes accept new work.
    #[arg(long)]
    pub enable: bool,
    /// Keep new work away. Running allocations go on.
    #[arg(long)]
    pub disable: bool,
}

impl EligibilityArgs {
    fn as_str(&self) -> &'static str {
        if self.enable {
            "eligible"
        } else {
            "ineligible"
        }
    }
}

/// Sets the eligibility of each node. All nodes are looked up before the first is changed.
///
/// # Errors
///
/// [`CliError`].
pub(super) fn run(client: &Client, json: bool, args: &EligibilityArgs) -> CliResult {
    let mut names = args.nodes.clone();
    if args.this {
        names.push(super::this_machine()?);
    }
    let nodes: Vec<NodeListStub> = names
        .iter()
        .map(|name| names::node(client, name, names::Access::Change))
        .collect::<Result<_, CliError>>()?;
    let mut answers: Vec<NodeUpdateResponse> = Vec::with_capacity(nodes.len());
    for node in &nodes {
        let path = format!("/v1/node/{}/eligibility", node.id);
        let request = EligibilityRequest {
            node_id: node.id.clone(),
            eligibility: args.as_str().to_owned(),
        };
        answers.push(client.put(&path, &request)?);
        if !json {
            let name = output::clean(&node.name);
            output::print(&if args.enable {
                format!("Node {name} takes work.\n")
            } else {
                format!(
                    "Node {name} takes no new work; what runs there goes on.   undo: muster node eligibility --enable {name}\n"
                )
            })?;
        }
    }
    if json {
        output::print_json(&answers)?;
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestArgs {
        #[command(flatten)]
        args: EligibilityArgs,
    }

    fn read(line: &str) -> Result<EligibilityArgs, clap::Error> {
        let words = std::iter::once("eligibility").chain(line.split_whitespace());
        TestArgs::try_parse_from(words).map(|line| line.args)
    }

    #[test]
    fn nodes_are_named_or_this_one() {
        assert_eq!(read("--disable n1 n2").unwrap().nodes, ["n1", "n2"]);
        assert!(read("--enable --self").unwrap().this);
    }

    #[test]
    fn a_node_is_made_eligible_or_not() {
        assert_eq!(read("--enable n").unwrap().as_str(), "eligible");
        assert_eq!(read("--disable n").unwrap().as_str(), "ineligible");
    }

    #[test]
    fn flags_that_do_not_fit_are_refused() {
        for line in ["n", "--enable", "--enable --disable n", "--enable --self n"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
