//! `muster system`: the cluster as a whole.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::client::Client;
use crate::exit::{CliResult, Exit};
use crate::output;

/// Commands about the cluster.
#[derive(Debug, Subcommand)]
pub enum SystemCommand {
    /// Forget everything that is over, now, on servers and nodes.
    Gc,
}

/// Carries out `command`.
///
/// # Errors
///
/// [`crate::exit::CliError`].
pub fn run(client: &Client, json: bool, command: &SystemCommand) -> CliResult {
    match command {
        SystemCommand::Gc => {
            let answer: Value = client.put("/v1/system/gc", &json!({}))?;
            if json {
                output::print_json(&answer)?;
            } else {
                output::print("Collected on the servers; the nodes are collecting.\n")?;
            }
            Ok(Exit::Done)
        }
    }
}
