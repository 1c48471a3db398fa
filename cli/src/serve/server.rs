//! `muster server`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use muster_control::server::{Server, ServerConfig};

use super::{SERVER_DATA_DIR, absolute, ended, host_name, logging, runtime, signals};
use crate::exit::{CliError, CliResult, Exit};

/// Arguments of `muster server`.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Everything it keeps: log, snapshots, certificates.
    #[arg(long, default_value = SERVER_DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Where it speaks HTTP; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:4646", value_name = "ADDR")]
    pub http: SocketAddr,
    /// Where it speaks QUIC to agents; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:4647", value_name = "ADDR")]
    pub quic: SocketAddr,
    /// The cluster's name: letters, digits, hyphens.
    #[arg(long, default_value = muster_link::tls::DEFAULT_CLUSTER, value_name = "NAME")]
    pub cluster: String,
    /// The server's name; the machine's unless given.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Seconds of silence after which a node is down.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub heartbeat_ttl: u64,
}

/// Runs a server until SIGTERM or SIGINT.
///
/// # Errors
///
/// If it cannot start, or its log fails.
pub fn run(args: &ServerArgs) -> CliResult {
    logging::start();
    let mut config = ServerConfig::new(absolute(&args.data_dir)?);
    config.http_addr = args.http;
    config.quic_addr = args.quic;
    config.cluster.clone_from(&args.cluster);
    config.name = args.name.clone().unwrap_or_else(|| host_name("server"));
    config.heartbeat_ttl = Duration::from_secs(args.heartbeat_ttl);
    ended(runtime()?.block_on(serve(config)))
}

async fn serve(config: ServerConfig) -> Result<(), CliError> {
    let server = Server::start(config)
        .await
        .map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
    let reason = tokio::select! {
        signal = signals::terminated() => {
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
