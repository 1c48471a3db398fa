//! `muster operator`: the servers themselves. Raft, scheduler, snapshots, certificates, checks.

mod check;
mod inspect;
mod network;
mod raft;
mod scheduler;
mod snapshot;
mod tls;

use clap::Subcommand;

use crate::client::Client;
use crate::exit::CliResult;

/// Commands about the servers.
#[derive(Debug, Subcommand)]
pub enum OperatorCommand {
    /// Show and change the servers of the cluster.
    Raft {
        /// The command on the servers.
        #[command(subcommand)]
        command: raft::RaftCommand,
    },
    /// Show and set the cluster's network policy.
    Network {
        /// The command on the network policy.
        #[command(subcommand)]
        command: network::NetworkCommand,
    },
    /// Show and change settings of the scheduler.
    Scheduler {
        /// The command on the scheduler's settings.
        #[command(subcommand)]
        command: scheduler::SchedulerCommand,
    },
    /// Save, restore and inspect snapshots of the state.
    Snapshot {
        /// The command on snapshots.
        #[command(subcommand)]
        command: snapshot::SnapshotCommand,
    },
    /// Make certificates of servers, agents and operators. Asks no server.
    Tls {
        /// The command on certificates.
        #[command(subcommand)]
        command: tls::TlsCommand,
    },
    /// Manage a server's wall clock.
    Clock {
        /// The command.
        #[command(subcommand)]
        command: ClockCommand,
    },
    /// Check the cluster: a leader, servers that advance, disks with room, equal states. Exit 1 on a fault.
    ///
    /// Example: muster operator check --deep
    Check {
        /// Also check the rules of the state, on the addressed server.
        #[arg(long)]
        deep: bool,
    },
    /// Show the health of every server and how many may fail. Exit 1 if one is unhealthy.
    ///
    /// Example: muster operator health
    Health,
}

/// Commands for a server's wall clock.
#[derive(Debug, Subcommand)]
pub enum ClockCommand {
    /// Confirm the wall clock of the addressed server after it jumped forward.
    ///
    /// Until then the server counts elapsed time, so that nothing expires too early.
    ///
    /// Example: muster operator clock confirm
    Confirm,
}

/// Carries out `command`.
///
/// # Errors
///
/// [`crate::exit::CliError`].
pub fn run(client: &Client, json: bool, command: &OperatorCommand) -> CliResult {
    match command {
        OperatorCommand::Raft { command } => raft::run(client, json, command),
        OperatorCommand::Network { command } => network::run(client, json, command),
        OperatorCommand::Scheduler { command } => scheduler::run(client, json, command),
        OperatorCommand::Snapshot { command } => snapshot::run(client, json, command),
        OperatorCommand::Tls { command } => tls::run(json, command),
        OperatorCommand::Clock {
            command: ClockCommand::Confirm,
        } => check::confirm_clock(client, json),
        OperatorCommand::Check { deep } => check::check(client, json, *deep),
        OperatorCommand::Health => check::health(client, json),
    }
}
