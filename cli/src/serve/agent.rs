//! `muster agent`, and `muster agent clean`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use muster_agent::node::{Agent, AgentConfig, Leave};
use muster_link::certificates::Certificates;
use muster_link::tls::Role;

use super::{
    AGENT_DATA_DIR, absolute, driver_command, ended, host_name, logging, raise_open_files, runtime,
    signals,
};
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// Arguments of `muster agent`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AgentArgs {
    /// Something else than running the agent.
    #[command(subcommand)]
    pub command: Option<AgentCommand>,
    /// How to run it.
    #[command(flatten)]
    pub run: AgentRunArgs,
}

/// What to do instead of running the agent.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Remove everything an agent left on this machine: driver, cgroups, pinned eBPF objects, mounts.
    Clean {
        /// The agent's data directory.
        #[arg(long, default_value = AGENT_DATA_DIR, value_name = "DIR")]
        data_dir: PathBuf,
        /// Kill tasks that still run.
        #[arg(long)]
        force: bool,
    },
}

/// How to run the agent.
#[derive(Debug, Args)]
pub struct AgentRunArgs {
    /// Everything it keeps: state, allocations, logs.
    #[arg(long, default_value = AGENT_DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// The servers' QUIC addresses, with commas between.
    #[arg(
        long,
        default_value = "127.0.0.1:4647",
        value_name = "ADDR",
        value_delimiter = ','
    )]
    pub servers: Vec<SocketAddr>,
    /// The directory with ca.pem, agent.pem and agent.key; a server makes them in its data directory's `tls`.
    #[arg(long, default_value = "/var/lib/muster/server/tls", value_name = "DIR")]
    pub tls_dir: PathBuf,
    /// The node's name; the machine's unless given.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where the node stands.
    #[arg(long, default_value = "dc1", value_name = "NAME")]
    pub datacenter: String,
    /// Free classification, for constraints.
    #[arg(long, default_value = "", value_name = "NAME")]
    pub class: String,
    /// The pool it belongs to.
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub pool: String,
    /// Free key-value pairs, for constraints. Repeat for several.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub meta: Vec<(String, String)>,
}

/// Runs the agent until SIGTERM or SIGINT, or cleans up after one.
///
/// # Errors
///
/// If it cannot start.
pub fn run(args: &AgentArgs) -> CliResult {
    match &args.command {
        Some(AgentCommand::Clean { data_dir, force }) => clean(data_dir, *force),
        None => start(&args.run),
    }
}

fn start(args: &AgentRunArgs) -> CliResult {
    logging::start();
    let certificates = Certificates::load(&args.tls_dir, Role::Agent)
        .map_err(|error| CliError::from_chain(Exit::Usage, &error))?;
    let config = config(args, certificates)?;
    ended(runtime()?.block_on(async {
        let agent = Agent::start(config)
            .await
            .map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
        let signal = signals::terminated_or(|| agent.certificates().ask()).await?;
        tracing::info!(signal, "stopping; tasks go on");
        agent.shutdown(Leave::KeepTasks).await;
        Ok(())
    }))
}

fn config(args: &AgentRunArgs, certificates: Certificates) -> Result<AgentConfig, CliError> {
    let data_dir = absolute(&args.data_dir)?;
    let meta: BTreeMap<String, String> = args.meta.iter().cloned().collect();
    let mut config = AgentConfig::new(
        data_dir,
        args.servers.clone(),
        certificates,
        driver_command(raise_open_files())?,
    );
    config.name = args.name.clone().unwrap_or_else(|| host_name("agent"));
    config.datacenter.clone_from(&args.datacenter);
    config.class.clone_from(&args.class);
    config.pool.clone_from(&args.pool);
    config.meta = meta;
    Ok(config)
}

fn clean(data_dir: &std::path::Path, force: bool) -> CliResult {
    let removed = muster_agent::clean::run(&absolute(data_dir)?, force)
        .map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
    for thing in &removed {
        output::print(&format!("removed {thing}\n"))?;
    }
    if removed.is_empty() {
        output::print("nothing was left\n")?;
    }
    Ok(Exit::Done)
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not KEY=VALUE")),
    }
}
