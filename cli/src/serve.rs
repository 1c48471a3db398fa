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
use nix::sys::resource::{Resource, getrlimit, setrlimit};

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
        /// Files that a task may have open; this process's own limit unless given.
        #[arg(long, value_name = "COUNT")]
        task_open_files: Option<u64>,
    },
}

/// Runs a driver.
///
/// # Errors
///
/// If the socket cannot be served.
pub fn driver(command: &DriverCommand) -> CliResult {
    match command {
        DriverCommand::Native {
            socket,
            task_open_files,
        } => {
            logging::start();
            // The driver gives its tasks the limit it was started with, and then raises its own.
            if let Some(count) = task_open_files {
                limit_open_files(*count);
            }
            runtime()?
                .block_on(muster_driver_native::serve(socket))
                .map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
            Ok(Exit::Done)
        }
    }
}

/// Allows this process as many open files as the system does: each task costs the agent about six.
/// Returns the limit that tasks are to have, which is the one from before.
fn raise_open_files() -> Option<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        tracing::warn!(%error, soft, "the limit of open files cannot be raised; about six are needed per task");
    }
    Some(soft)
}

fn limit_open_files(count: u64) {
    let limited = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, count.min(hard), hard));
    if let Err(error) = limited {
        tracing::warn!(%error, count, "the limit of open files of tasks cannot be set");
    }
}

/// How to start the native driver: this very program, with `task_open_files` for its tasks.
fn driver_command(task_open_files: Option<u64>) -> Result<Vec<std::ffi::OsString>, CliError> {
    let program = std::env::current_exe().map_err(|error| {
        CliError::new(
            Exit::Failed,
            format!("this program's own path cannot be read: {error}"),
        )
    })?;
    let mut command: Vec<std::ffi::OsString> =
        vec![program.into(), "driver".into(), "native".into()];
    if let Some(count) = task_open_files {
        command.extend(["--task-open-files".into(), count.to_string().into()]);
    }
    command.push("--socket".into());
    Ok(command)
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
