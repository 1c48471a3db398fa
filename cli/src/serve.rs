//! The long-running processes: server, agent, dev, driver. Everything is put together here.
//!
//! Each parses, builds, waits for a signal, and takes down in the reverse order.

mod agent;
mod dev;
mod logging;
mod server;
mod signals;

use std::path::{Path, PathBuf};

use clap::Subcommand;

use crate::exit::{CliError, CliResult, Exit};

pub use agent::{AgentArgs, run as agent};
pub use dev::{DevArgs, run as dev};
pub use server::{ServerArgs, run as server};

/// The agent's data directory unless said.
pub const AGENT_DATA_DIR: &str = "/var/lib/muster/agent";
/// The server's data directory unless said.
pub const SERVER_DATA_DIR: &str = "/var/lib/muster/server";

/// Drivers that are built in.
#[derive(Debug, Subcommand)]
pub enum DriverCommand {
    /// Serve the native driver on a unix socket until told to stop. Its tasks outlive it.
    Native {
        /// The socket.
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
    },
}

/// Runs a driver.
///
/// # Errors
///
/// If the socket cannot be served.
pub fn driver(command: &DriverCommand) -> CliResult {
    match command {
        DriverCommand::Native { socket } => {
            logging::start();
            runtime()?
                .block_on(muster_driver_native::serve(socket))
                .map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
            Ok(Exit::Done)
        }
    }
}

/// How to start the native driver: this very program.
fn driver_command() -> Result<Vec<std::ffi::OsString>, CliError> {
    let program = std::env::current_exe().map_err(|error| {
        CliError::new(
            Exit::Failed,
            format!("this program's own path cannot be read: {error}"),
        )
    })?;
    Ok(vec![
        program.into(),
        "driver".into(),
        "native".into(),
        "--socket".into(),
    ])
}

fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(Exit::Failed, format!("threads cannot be started: {error}")))
}

/// `dir` as an absolute path: a process may change its directory, and sockets are named by it.
fn absolute(dir: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(dir)
        .map_err(|error| CliError::new(Exit::Usage, format!("{}: {error}", dir.display())))
}

/// The machine's name; `fallback` if it has none.
fn host_name(fallback: &str) -> String {
    let name = nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().trim().to_owned())
        .unwrap_or_default();
    if name.is_empty() {
        fallback.to_owned()
    } else {
        name
    }
}

/// Ends as `result` says, from a future that ran.
fn ended(result: Result<(), CliError>) -> CliResult {
    result.map(|()| Exit::Done)
}
