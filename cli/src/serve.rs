//! The long-running processes: server, agent, dev, driver. This module is the composition root.
//!
//! Each process parses its settings, starts its parts, waits for a signal, and stops the parts in reverse order.

mod agent;
mod dev;
mod log_limit;
mod logging;
mod server;
mod signals;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::exit::{CliError, CliResult, Exit};
use crate::output;

pub(crate) use agent::read_policy_file;
pub use agent::{AgentArgs, run as agent};
pub use dev::{DevArgs, run as dev};
pub use server::{ServerArgs, run as server};

/// Default data directory of the agent.
pub const AGENT_DATA_DIR: &str = "/var/lib/muster/agent";
/// Default data directory of the server.
pub const SERVER_DATA_DIR: &str = "/var/lib/muster/server";

/// The name of this program, or of a link to it, as a plugin.
const PLUGIN_NAME: &str = "muster-driver-native";

/// Drivers that are built in.
#[derive(Debug, Subcommand)]
pub enum DriverCommand {
    /// Serve the native driver on a unix socket. Its tasks outlive it.
    ///
    /// Without a socket it is a plugin of the program that started it, as in a `plugin_dir`.
    Native {
        /// Path of the socket.
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// Limit of open files of a task. Default: the limit of this process.
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
            // The driver passes its initial limit to its tasks, and then raises its own.
            if let Some(count) = task_open_files {
                limit_open_files(*count);
            }
            let served = match socket {
                Some(socket) => runtime()?.block_on(muster_driver_native::serve(socket)),
                None if muster_driver::plugin::started_by_host() => {
                    runtime()?.block_on(muster_driver_native::serve_plugin())
                }
                None => return Err(no_host()),
            };
            served.map_err(|error| CliError::from_chain(Exit::Failed, &error))?;
            Ok(Exit::Done)
        }
    }
}

/// Serves the native driver if this program was started as a plugin. That is a start under a name like
/// `muster-driver-native`, or by a plugin host without arguments. `None` for any other start.
pub fn as_plugin() -> Option<CliResult> {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let name = Path::new(&program).file_name()?.to_str()?;
    let is_plugin_process = muster_driver::plugin::started_by_host() && args.len() == 0;
    if is_plugin_process {
        let command = DriverCommand::Native {
            socket: None,
            task_open_files: None,
        };
        return Some(driver(&command));
    }
    // A start by hand gets an error that explains the program's purpose.
    (name == PLUGIN_NAME && args.len() == 0).then(|| Err(no_host()))
}

fn no_host() -> CliError {
    CliError::new(
        Exit::Usage,
        "the native driver is a plugin and was not started by a host of plugins: put it into the plugin_dir of an agent, or give --socket PATH",
    )
}

/// Raises the limit of open files of this process to the system's maximum. Each task costs the agent about eleven.
/// Returns the earlier limit, which tasks get.
fn raise_open_files() -> Option<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        tracing::warn!(%error, soft, "the limit of open files cannot be raised; about eleven are needed per task");
    }
    Some(soft)
}

/// Warns in one line that this build has no eBPF programs, and names the command that builds them. The agent itself
/// would print many messages.
fn warn_missing_object() {
    if let Err(error) = muster_agent::bpf::Bpf::object() {
        output::eprint(&missing_object(error));
    }
}

fn missing_object(error: &muster_agent::bpf::FindObjectError) -> String {
    format!(
        "{error}; tasks have no eBPF counters and no network policies until you {}",
        error.fix()
    )
}

fn limit_open_files(count: u64) {
    let limited = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, count.min(hard), hard));
    if let Err(error) = limited {
        tracing::warn!(%error, count, "the limit of open files of tasks cannot be set");
    }
}

/// The command line of the native driver: this program, with `task_open_files` for its tasks.
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

/// `dir` as an absolute path. A process may change its directory, and sockets are named after the path.
fn absolute(dir: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(dir)
        .map_err(|error| CliError::new(Exit::Usage, format!("{}: {error}", dir.display())))
}

/// The hostname of the machine; `fallback` if it has none.
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

/// Converts the result of a finished future to the result of the command.
fn to_cli_result(result: Result<(), CliError>) -> CliResult {
    result.map(|()| Exit::Done)
}

#[cfg(test)]
mod tests {
    use muster_agent::bpf::FindObjectError;

    use super::*;

    #[test]
    fn missing_ebpf_object_message_names_build_command() {
        let line = missing_object(&FindObjectError::NotFound {
            searched: vec!["/usr/bin/muster-ebpf.o".into()],
        });

        assert!(line.contains("no eBPF object"), "{line}");
        assert!(line.contains("`cargo xtask build-ebpf`"), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}
