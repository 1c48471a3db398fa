//! `muster agent`, and `muster agent clean`.

mod chroot_env;
mod file;
mod policy;
mod reserved;
mod users;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use muster_agent::node::{
    Agent, AgentConfig, HostVolume, ShutdownPolicy, StartAgentError, parse_host_volume,
};
use muster_agent::region::{self, Region};
use muster_driver::{Schema, TaskDriver as _};
use muster_link::certificates::Certificates;
use muster_link::tls::Role;

use super::{
    AGENT_DATA_DIR, absolute, driver_command, host_name, logging, raise_open_files, runtime,
    signals, to_cli_result,
};
use crate::exit::{CliError, CliResult, Exit};
use crate::output;
use file::AgentFile;

pub(crate) use policy::read_policy_file;

/// Default directory of the certificates.
const SERVER_TLS_DIR: &str = "/var/lib/muster/server/tls";

/// Default address of a server.
const DEFAULT_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4647);

/// The default `oom_score_adj` of the agent. The kernel kills the agent after all processes except those at -1000.
const OOM_SCORE_ADJ: i16 = -900;

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

/// A command that replaces running the agent.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Remove everything an agent left on this machine: driver, cgroups, pinned eBPF objects, mounts.
    Clean {
        /// The agent's data directory.
        #[arg(long, default_value = AGENT_DATA_DIR, value_name = "DIR")]
        data_dir: PathBuf,
        /// Kill running tasks first.
        #[arg(long)]
        force: bool,
    },
}

/// How to run the agent.
///
/// A flag overrides the configuration file, and the file overrides the default.
#[derive(Debug, Args)]
pub struct AgentRunArgs {
    /// Configuration file in HCL: names of flags with underscores, and a block for each driver.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Data directory: state, allocations, logs. [default: /var/lib/muster/agent]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// QUIC addresses of servers, separated by commas. [default: 127.0.0.1:4647]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub servers: Option<Vec<SocketAddr>>,
    /// Directory with ca.pem, agent.pem and agent.key. A server makes them in `tls` of its data directory. [default:
    /// /var/lib/muster/server/tls]
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// Name of the node. Default: the host name.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Datacenter of the node. [default: dc1]
    #[arg(long, value_name = "NAME")]
    pub datacenter: Option<String>,
    /// Region of the cluster. [default: global]
    #[arg(long, value_name = "NAME")]
    pub region: Option<Region>,
    /// Node class, for constraints.
    #[arg(long, value_name = "NAME")]
    pub class: Option<String>,
    /// Node pool. [default: default]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Metadata of the node, for constraints. May be repeated. Added to that of the file.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub meta: Vec<(String, String)>,
    /// Directory of task drivers. Every executable in it runs as a plugin, Nomad's included.
    #[arg(long, value_name = "DIR")]
    pub plugin_dir: Option<PathBuf>,
    /// Directory that jobs may request by name, read-only with `:ro` at the end. May be repeated. Added to those of
    /// the file.
    #[arg(long, value_name = "NAME=PATH[:ro]", value_parser = parse_host_volume)]
    pub host_volume: Vec<(String, HostVolume)>,
}

/// Runs the agent until SIGTERM or SIGINT, or cleans up after an earlier agent.
///
/// # Errors
///
/// If the agent cannot start.
pub fn run(args: &AgentArgs) -> CliResult {
    match &args.command {
        Some(AgentCommand::Clean { data_dir, force }) => clean(data_dir, *force),
        None => start(&args.run),
    }
}

fn start(args: &AgentRunArgs) -> CliResult {
    logging::start();
    super::warn_missing_object();
    let file = match &args.config {
        Some(path) => AgentFile::read(path)?,
        None => AgentFile::default(),
    };
    let config = config(args, &file)?;
    to_cli_result(runtime()?.block_on(async {
        check_native(&file).await?;
        let agent = Agent::start(config).await.map_err(|error| {
            let placed = match &error {
                StartAgentError::Plugin(error) => file.plugin_error(error),
                _ => None,
            };
            placed.unwrap_or_else(|| CliError::from_chain(Exit::Failed, &error))
        })?;
        let signal =
            signals::wait_for_termination_with_reload(|| agent.certificates().ask()).await?;
        tracing::info!(signal, "stopping; tasks go on");
        agent.shutdown(ShutdownPolicy::KeepTasks).await;
        Ok(())
    }))
}

/// Checks the native driver's configuration. The driver is part of this program, so its faults are found before its
/// start.
async fn check_native(file: &AgentFile) -> Result<(), CliError> {
    let Some(block) = file.plugins.get(muster_driver_native::NAME) else {
        return Ok(());
    };
    let spec = muster_driver_native::NativeDriver::new()
        .config_schema()
        .await;
    let Some(spec) = spec.map_err(|error| CliError::from_chain(Exit::Failed, &error))? else {
        return Ok(());
    };
    let schema = Schema::new(&spec).map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
    match schema.decode("config", &block.settings.config) {
        Ok(_) => Ok(()),
        Err(faults) => Err(file
            .config_faults(muster_driver_native::NAME, &faults)
            .unwrap_or_else(|| CliError::new(Exit::Usage, "the native driver's block is wrong"))),
    }
}

fn config(args: &AgentRunArgs, file: &AgentFile) -> Result<AgentConfig, CliError> {
    let path = |flag: &Option<PathBuf>, file: &Option<PathBuf>, default: &str| {
        let path = flag.as_ref().or(file.as_ref());
        absolute(path.map_or(Path::new(default), PathBuf::as_path))
    };
    let text = |flag: &Option<String>, file: &Option<String>| flag.clone().or(file.clone());
    let tls_dir = path(&args.tls_dir, &file.tls_dir, SERVER_TLS_DIR)?;
    let certificates = Certificates::load(&tls_dir, Role::Agent)
        .map_err(|error| CliError::from_chain(Exit::Usage, &error))?;
    let servers = args.servers.clone().or(file.servers.clone());
    let mut config = AgentConfig::new(
        path(&args.data_dir, &file.data_dir, AGENT_DATA_DIR)?,
        servers.unwrap_or_else(|| vec![DEFAULT_SERVER]),
        certificates,
        driver_command(raise_open_files())?,
    );
    config.name = text(&args.name, &file.name).unwrap_or_else(|| host_name("agent"));
    if let Some(datacenter) = text(&args.datacenter, &file.datacenter) {
        config.datacenter = datacenter;
    }
    if let Some(region) = args.region.clone().or_else(|| file.region.clone()) {
        region::set(region);
    }
    if let Some(class) = text(&args.class, &file.class) {
        config.class = class;
    }
    if let Some(pool) = text(&args.pool, &file.pool) {
        config.pool = pool;
    }
    config.gc = file.gc;
    config.disk = file.disk;
    config.max_allocs = file.node_max_allocs;
    config.oom_score_adj = Some(file.oom_score_adj.unwrap_or(OOM_SCORE_ADJ));
    config.allow_tasks_without_network_policy = file.allow_tasks_without_network_policy;
    config.allow_api_from_tasks = file.allow_api_from_tasks;
    config.allow_host_from_bridge = file.allow_host_from_bridge;
    config.chroot_env.clone_from(&file.chroot_env);
    config.users = file.users;
    config.reserved = file.reserved.amount;
    config.reserved_cores.clone_from(&file.reserved.cores);
    config.reserved_ports.clone_from(&file.reserved.ports);
    if let Some(subnet) = file.bridge_subnet {
        config.bridge_subnet = subnet;
    }
    if let Some(path) = &file.cni_path {
        config.cni.path.clone_from(path);
    }
    if let Some(dir) = &file.cni_config_dir {
        config.cni.config_dir.clone_from(dir);
    }
    config.network.policy.clone_from(&file.policy);
    config.meta.clone_from(&file.meta);
    config.meta.extend(args.meta.iter().cloned());
    config.host_volumes.extend(file.host_volumes.clone());
    config.host_volumes.extend(args.host_volume.iter().cloned());
    let plugin_dir = args.plugin_dir.as_ref().or(file.plugin_dir.as_ref());
    config.plugin_dir = plugin_dir.map(|dir| absolute(dir)).transpose()?;
    let plugins = file.plugins.iter();
    config.plugins = plugins
        .map(|(name, block)| (name.clone(), block.settings.clone()))
        .collect();
    Ok(config)
}

fn clean(data_dir: &Path, force: bool) -> CliResult {
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
