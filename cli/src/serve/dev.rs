//! `muster dev`: a whole cluster in one process. It is removed at the end.

use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use muster_agent::node::{Agent, AgentConfig, ShutdownPolicy};
use muster_agent::region::{self, DEFAULT_REGION, Region};
use muster_control::server::{AllowedHost, Server, ServerConfig};
use muster_link::tls::{Identity, Role};

use super::{absolute, driver_command, logging, raise_open_files, runtime, signals, to_cli_result};
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// The time for the node to become ready before `dev` prints a warning.
const READY_WAIT: Duration = Duration::from_secs(10);

/// Arguments of `muster dev`.
#[derive(Debug, Args)]
pub struct DevArgs {
    /// Data directory. Default: a new directory that is removed at the end.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// HTTP listen address.
    #[arg(long, default_value = "127.0.0.1:4646", value_name = "ADDR")]
    pub http: SocketAddr,
    /// Further host names of the HTTP API, separated by commas. See `muster server --help`.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub http_allowed_host: Vec<AllowedHost>,
    /// Region of the cluster. Jobs for another region are refused.
    #[arg(long, default_value = DEFAULT_REGION, value_name = "NAME")]
    pub region: Region,
    /// QUIC listen address. Port 0 picks a free port.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDR")]
    pub quic: SocketAddr,
    /// Run tasks with a network also where eBPF does not load. Nothing keeps them from the cloud's metadata and the
    /// servers then.
    #[arg(long)]
    pub allow_tasks_without_network_policy: bool,
}

/// Runs a server and an agent until SIGTERM or SIGINT, then stops every task and cleans up.
///
/// # Errors
///
/// If either cannot start.
pub fn run(args: &DevArgs) -> CliResult {
    logging::start();
    super::warn_missing_object();
    region::set(args.region.clone());
    let (dir, ours) = match &args.data_dir {
        Some(dir) => (absolute(dir)?, false),
        None => (
            std::env::temp_dir().join(format!("muster-dev-{}", std::process::id())),
            true,
        ),
    };
    let result = runtime()?.block_on(serve(args, &dir));
    let cleaned = remove_agent_resources(&dir);
    if ours {
        std::fs::remove_dir_all(&dir)?;
    }
    to_cli_result(result.and(cleaned))
}

async fn serve(args: &DevArgs, dir: &Path) -> Result<(), CliError> {
    let begun = Instant::now();
    // A task that sees the host's files has to pass, and has nothing to see here.
    DirBuilder::new().recursive(true).mode(0o701).create(dir)?;
    let mut config = ServerConfig::new(dir.join("server"));
    config.http_addr = args.http;
    config
        .http_allowed_hosts
        .clone_from(&args.http_allowed_host);
    config.quic_addr = args.quic;
    "dev".clone_into(&mut config.name);
    let server = Server::start(config)
        .await
        .map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
    let agent = match start_agent(args, dir, server.info().quic_addr).await {
        Ok(agent) => agent,
        Err(error) => {
            server.shutdown().await;
            return Err(error);
        }
    };
    if !wait_until_ready(&server).await {
        output::eprint("the node is not ready yet: see the messages above, or `muster doctor`");
    }
    output::eprint(&format!(
        "muster dev is up in {} · http://{} · data in {}\n  try: muster job run examples/web.hcl   then: muster top   end: Ctrl-C (stops every task, removes everything)",
        output::span(begun.elapsed()),
        server.info().http_addr,
        dir.display()
    ));
    let outcome = tokio::select! {
        signal = signals::wait_for_termination() => signal.map(drop),
        reason = server.failed() => Err(CliError::new(Exit::Failed, reason)),
    };
    output::eprint("stopping every task");
    agent.shutdown(ShutdownPolicy::StopTasks).await;
    server.shutdown().await;
    outcome
}

async fn start_agent(args: &DevArgs, dir: &Path, server: SocketAddr) -> Result<Agent, CliError> {
    let identity = Identity::load(&dir.join("server/tls"), Role::Agent)
        .map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
    let mut config = AgentConfig::new(
        dir.join("agent"),
        vec![server],
        identity,
        driver_command(raise_open_files())?,
    );
    "dev".clone_into(&mut config.name);
    config.allow_tasks_without_network_policy = args.allow_tasks_without_network_policy;
    // A client of a dev cluster is on this machine already.
    let native = config.plugins.entry("native".to_owned()).or_default();
    native.config = serde_json::json!({ "allow_raw": true, "allow_local_transfers": true });
    Agent::start(config)
        .await
        .map_err(|error| CliError::from_chain(Exit::Failed, &error))
}

/// Waits until the node takes new allocations and its driver is healthy; `false` after a timeout.
async fn wait_until_ready(server: &Server) -> bool {
    let mut applied = server.control().applied();
    let wait = async {
        loop {
            applied.borrow_and_update();
            let state = server.control().state();
            if state
                .nodes()
                .iter()
                .any(|node| node.takes_work() && node.spec.has_driver("native"))
            {
                return true;
            }
            if applied.changed().await.is_err() {
                return false;
            }
        }
    };
    tokio::time::timeout(READY_WAIT, wait)
        .await
        .unwrap_or(false)
}

/// Removes the agent's resources outside its data directory.
fn remove_agent_resources(dir: &Path) -> Result<(), CliError> {
    let agent = dir.join("agent");
    if agent.exists() {
        muster_agent::clean::run(&agent, true)
            .map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
    }
    Ok(())
}
