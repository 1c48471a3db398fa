//! `muster server`.

mod bbs;
mod gc;
mod tasks;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use muster_agent::region::{self, DEFAULT_REGION, Region};
use muster_control::server::{AllowedHost, DEFAULT_DEAD_SERVER_AFTER, Server, ServerConfig};
use muster_link::tls::NAME_BYTES_MAX;

use super::{SERVER_DATA_DIR, absolute, host_name, logging, runtime, signals, to_cli_result};
use crate::exit::{CliError, CliResult, Exit};
use bbs::BbsArgs;
use gc::GcArgs;
use tasks::TasksArgs;

/// Arguments of `muster server`.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Data directory: log, snapshots, certificates.
    #[arg(long, default_value = SERVER_DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// HTTP listen address. Port 0 picks a free port.
    #[arg(long, default_value = "127.0.0.1:4646", value_name = "ADDR")]
    pub http: SocketAddr,
    /// Further host names of the HTTP API, such as a proxy's, separated by commas. Give the port unless it is 80 or
    /// 443. Web pages from there may use the API. The machine's addresses, its host name and loopback names are
    /// always allowed.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub http_allowed_host: Vec<AllowedHost>,
    /// QUIC listen address for agents and other servers. Port 0 picks a free port.
    #[arg(long, default_value = "127.0.0.1:4647", value_name = "ADDR")]
    pub quic: SocketAddr,
    /// Name of the cluster: letters, digits, hyphens.
    #[arg(long, default_value = muster_link::tls::DEFAULT_CLUSTER, value_name = "NAME")]
    pub cluster: String,
    /// Region of the cluster, the same for all servers and agents. Jobs for another region are refused.
    #[arg(long, default_value = DEFAULT_REGION, value_name = "NAME")]
    pub region: Region,
    /// Name of the server: letters, digits, hyphens. Default: the host name.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Form a cluster when this many servers have found each other. Start all with the same number. Without this flag
    /// and --join the server is a cluster of its own.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=7))]
    pub bootstrap_expect: Option<u32>,
    /// QUIC addresses (host:port) of other servers, separated by commas. One that answers is enough.
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub join: Vec<String>,
    /// Directory with ca.pem, server.pem and server.key, as `muster operator tls` makes them. A single server makes
    /// them in its data directory.
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// IP address that other servers and agents use, if it differs from that of --quic and --http.
    #[arg(long, value_name = "IP")]
    pub advertise: Option<IpAddr>,
    /// Seconds of silence after which a replaced server is removed.
    #[arg(long, default_value_t = DEFAULT_DEAD_SERVER_AFTER.as_secs(), value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(10..))]
    pub dead_server_after: u64,
    /// Seconds of silence after which a node is down.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub heartbeat_ttl: u64,
    /// Intervals and thresholds of garbage collection.
    #[command(flatten)]
    pub gc: GcArgs,
    /// Times of one-off tasks.
    #[command(flatten)]
    pub tasks: TasksArgs,
    /// Address and certificates for Diego's clients.
    #[command(flatten)]
    pub bbs: BbsArgs,
}

/// Runs a server until SIGTERM or SIGINT.
///
/// # Errors
///
/// If the server cannot start, or its log fails.
pub fn run(args: &ServerArgs) -> CliResult {
    logging::start();
    region::set(args.region.clone());
    let mut config = ServerConfig::new(absolute(&args.data_dir)?);
    config.http_addr = args.http;
    config
        .http_allowed_hosts
        .clone_from(&args.http_allowed_host);
    config.quic_addr = args.quic;
    config.cluster.clone_from(&args.cluster);
    config.name = args
        .name
        .clone()
        .unwrap_or_else(|| as_label(&host_name("server")));
    config.bootstrap_expect = args
        .bootstrap_expect
        .unwrap_or(u32::from(args.join.is_empty()));
    config.join.clone_from(&args.join);
    config.tls_dir = args.tls_dir.as_deref().map(absolute).transpose()?;
    config.advertise = args.advertise;
    config.dead_server_after = Duration::from_secs(args.dead_server_after);
    config.heartbeat_ttl = Duration::from_secs(args.heartbeat_ttl);
    config.gc = args.gc.config();
    config.tasks = args.tasks.config()?;
    config.bbs = args.bbs.config()?;
    to_cli_result(runtime()?.block_on(serve(config)))
}

/// Converts a hostname to a server's name: characters that a certificate does not allow become hyphens.
fn as_label(host: &str) -> String {
    host.chars()
        .take(NAME_BYTES_MAX)
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect()
}

async fn serve(config: ServerConfig) -> Result<(), CliError> {
    let server = Server::start(config)
        .await
        .map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
    let reason = tokio::select! {
        signal = signals::wait_for_termination_with_reload(|| server.certificates().ask()) => {
            tracing::info!(signal = signal?, "stopping");
            None
        }
        reason = server.failed() => Some(reason),
    };
    server.shutdown().await;
    match reason {
        None => Ok(()),
        Some(reason) => Err(CliError::new(Exit::Failed, reason)),
    }
}
