//! `muster operator raft`: the servers of the cluster and their leader.

use std::time::{Duration, Instant};

use clap::Subcommand;
use muster_wire::api::operator::{
    AddServerRequest, RaftConfiguration, RaftServer, TransferResponse,
};
use serde_json::{Value, json};

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// The time for which a list waits for a leader.
const ELECTION_WAIT: Duration = Duration::from_secs(3);
/// The answer about servers of which none leads.
pub(super) const NO_LEADER: &str =
    "No server leads: an election is going on, or too few servers are up.";
/// Pause between two looks.
const ELECTION_PAUSE: Duration = Duration::from_millis(200);

/// Commands about the servers of the cluster.
#[derive(Debug, Subcommand)]
pub enum RaftCommand {
    /// Show the servers, the voters and the leader.
    ListPeers,
    /// Form the cluster from the waiting servers. Needed once, at the beginning.
    Init,
    /// Add the server that waits at an address. It catches up, then it votes.
    ///
    /// Example: muster operator raft add 10.0.0.4:4647
    Add {
        /// QUIC address of the server: host and port.
        address: String,
    },
    /// Remove a server for good. Its data directory cannot be used again.
    ///
    /// Example: muster operator raft remove s3
    Remove {
        /// Name, number or address of the server.
        server: String,
    },
    /// Transfer leadership to another server.
    Transfer {
        /// Name, number or address of the server. Default: the most up-to-date one.
        server: Option<String>,
    },
}

/// Carries out `command`.
///
/// # Errors
///
/// [`CliError`].
pub(super) fn run(client: &Client, json: bool, command: &RaftCommand) -> CliResult {
    match command {
        RaftCommand::ListPeers => list(client, json),
        RaftCommand::Init => init(client, json),
        RaftCommand::Add { address } => add(client, json, address),
        RaftCommand::Remove { server } => remove(client, json, server),
        RaftCommand::Transfer { server } => transfer(client, json, server.as_deref()),
    }
}

/// The servers as one of them knows them, which works without a leader. The client waits for an election.
fn servers(client: &Client) -> Result<RaftConfiguration, CliError> {
    let deadline = Instant::now() + ELECTION_WAIT;
    loop {
        let known: RaftConfiguration = client.get("/v1/operator/raft/configuration?stale")?;
        let led = known.servers.iter().any(|server| server.leader);
        if led || Instant::now() >= deadline {
            return Ok(known);
        }
        client.select_next_server();
        std::thread::sleep(ELECTION_PAUSE);
    }
}

fn list(client: &Client, json: bool) -> CliResult {
    let configuration = servers(client)?;
    if json {
        output::print_json(&configuration)?;
        return Ok(Exit::Done);
    }
    let mut table = output::table(&["SERVER", "ID", "ADDRESS", "HTTP", "STATE", "VOTER"]);
    for server in &configuration.servers {
        table.add_row([
            server.node.clone(),
            server.id.clone(),
            server.address.clone(),
            server.http_address.clone(),
            if server.leader { "leader" } else { "follower" }.to_owned(),
            server.voter.to_string(),
        ]);
    }
    output::print_table(&table)?;
    if !configuration.servers.iter().any(|server| server.leader) {
        output::eprint(NO_LEADER);
    }
    Ok(Exit::Done)
}

fn init(client: &Client, json: bool) -> CliResult {
    let configuration: RaftConfiguration = client.put("/v1/operator/raft/init", &json!({}))?;
    if json {
        output::print_json(&configuration)?;
        return Ok(Exit::Done);
    }
    let names: Vec<&str> = configuration
        .servers
        .iter()
        .map(|server| server.node.as_str())
        .collect();
    output::print(&format!("The cluster is founded: {}.\n", names.join(", ")))?;
    Ok(Exit::Done)
}

fn add(client: &Client, json: bool, address: &str) -> CliResult {
    let request = AddServerRequest {
        address: address.to_owned(),
    };
    let answer: Value = client.put("/v1/operator/raft/peer", &request)?;
    if json {
        output::print_json(&answer)?;
        return Ok(Exit::Done);
    }
    output::print(&format!(
        "The server at {address} is added; it votes as soon as it has caught up: muster operator raft list-peers\n"
    ))?;
    Ok(Exit::Done)
}

fn remove(client: &Client, json: bool, name: &str) -> CliResult {
    let server = find(servers(client)?.servers, name)?;
    let path = format!("/v1/operator/raft/peer?id={}", escape(&server.id));
    let answer: Value = client.delete(&path)?;
    if json {
        output::print_json(&answer)?;
        return Ok(Exit::Done);
    }
    output::print(&format!(
        "{} ({}) is removed. To use its machine again, empty its data directory and let it join.\n",
        server.node, server.id
    ))?;
    Ok(Exit::Done)
}

fn transfer(client: &Client, json: bool, name: Option<&str>) -> CliResult {
    let path = match name {
        None => "/v1/operator/raft/transfer-leadership".to_owned(),
        Some(name) => {
            let server = find(servers(client)?.servers, name)?;
            format!(
                "/v1/operator/raft/transfer-leadership?id={}",
                escape(&server.id)
            )
        }
    };
    let answer: TransferResponse = client.put(&path, &json!({}))?;
    if json {
        output::print_json(&answer)?;
        return Ok(Exit::Done);
    }
    let text = match (answer.noop, answer.to.name.is_empty()) {
        (true, _) => format!("{} leads already.\n", answer.to.name),
        (false, true) => format!("{} hands over.\n", answer.from.name),
        (false, false) => format!("{} hands over to {}.\n", answer.from.name, answer.to.name),
    };
    output::print(&text)?;
    Ok(Exit::Done)
}

/// The server that `name` means: a name, a number or an address.
fn find(servers: Vec<RaftServer>, name: &str) -> Result<RaftServer, CliError> {
    let known: Vec<String> = servers.iter().map(|server| server.node.clone()).collect();
    let matches_name =
        |server: &RaftServer| server.node == name || server.id == name || server.address == name;
    let mut matching: Vec<RaftServer> = servers.into_iter().filter(matches_name).collect();
    match matching.len() {
        1 => Ok(matching.remove(0)),
        0 => Err(CliError::new(
            Exit::NotFound,
            format!("unknown server `{name}`: use one of {}", known.join(", ")),
        )),
        count => {
            let ids: Vec<String> = matching.into_iter().map(|server| server.id).collect();
            Err(CliError::new(
                Exit::NotFound,
                format!("`{name}` means {count} servers: {}", ids.join(", ")),
            )
            .help("give the number"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: &str, node: &str) -> RaftServer {
        RaftServer {
            id: id.to_owned(),
            node: node.to_owned(),
            address: format!("10.0.0.{id}:4647"),
            ..RaftServer::default()
        }
    }

    #[test]
    fn raft_peer_lookup_accepts_name_id_and_address() {
        let servers = vec![server("1", "s1"), server("2", "s2")];

        for name in ["s2", "2", "10.0.0.2:4647"] {
            assert_eq!(find(servers.clone(), name).unwrap().id, "2", "{name}");
        }
        assert_eq!(find(servers, "s9").unwrap_err().exit, Exit::NotFound);
    }

    #[test]
    fn a_name_that_two_have_is_not_guessed() {
        let error = find(vec![server("1", "s"), server("2", "s")], "s").unwrap_err();

        assert!(error.to_string().contains("1, 2"), "{error}");
    }
}
