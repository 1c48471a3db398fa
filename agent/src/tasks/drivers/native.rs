//! The native driver's process, which the agent starts and which outlives it.
//!
//! Its socket, its log and a record of its pid and start time are in `<data>/drivers`. A process that answers at
//! the socket is taken over. A process that dies is started again, with a pause that grows while it dies early. The
//! waiting runners recover their tasks into it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use muster_driver::plugin::Client;
use muster_link::private;
use serde_json::Value;
use tokio::process::Child;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::limits::{
    DRIVER_PING_INTERVAL, DRIVER_START_DEADLINE, DRIVER_WATCH_INTERVAL, SOCKET_PATH_BYTES_MAX,
};
use crate::tasks::drivers::introduce::introduce;
use crate::tasks::drivers::pause::RestartBackoff;
use crate::tasks::drivers::{DriverHealth, publish, unreachable, wait, watch_answers};
use crate::tasks::process::ProcessId;

/// The driver's name.
pub(crate) const NAME: &str = "native";

/// Size at which a log is renamed before a driver is started. One renamed log is kept.
const LOG_BYTES_MAX: u64 = 10 << 20;

/// Variables of the agent that the driver inherits; tasks get none of them.
const ENV_KEPT: [&str; 6] = [
    "PATH",
    "LANG",
    "HOME",
    "TMPDIR",
    "RUST_LOG",
    "RUST_BACKTRACE",
];

/// Why the driver's process cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum DriverConfigError {
    /// A unix socket's path is short.
    #[error(
        "{}: a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes and this has {bytes}; give a shorter --data-dir",
        path.display()
    )]
    SocketPath { path: PathBuf, bytes: usize },
    #[error(
        "the command that starts the native driver is empty; this is a mistake in the program that embeds the agent"
    )]
    NoCommand,
}

/// The command and the paths of the process.
#[derive(Clone, Debug)]
pub(crate) struct NativeProcess {
    command: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: PathBuf,
    /// The driver's own configuration, for each of its processes.
    config: Value,
}

impl NativeProcess {
    /// Returns the process of `command`, which gets the socket's path as its last argument. `env` is added to a few
    /// variables; the driver receives `config`.
    pub(crate) fn new(
        command: Vec<OsString>,
        env: Vec<(OsString, OsString)>,
        dir: PathBuf,
        config: Value,
    ) -> Result<Self, DriverConfigError> {
        let this = Self {
            command,
            env,
            dir,
            config,
        };
        let path = this.socket();
        let bytes = path.as_os_str().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            return Err(DriverConfigError::SocketPath { path, bytes });
        }
        if this.command.is_empty() {
            return Err(DriverConfigError::NoCommand);
        }
        Ok(this)
    }

    /// The path of its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        socket(&self.dir)
    }

    fn spawn(&self) -> io::Result<Child> {
        let log = self.log()?;
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let kept = ENV_KEPT
            .iter()
            .filter_map(|name| Some((*name, std::env::var_os(name)?)));
        let mut child = tokio::process::Command::new(program)
            .args(arguments)
            .arg(self.socket())
            .env_clear()
            .envs(kept)
            .envs(self.env.iter().cloned())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A signal to the agent's process group, such as Ctrl-C, must not reach the driver.
            .process_group(0)
            .spawn()?;
        if let Some(process) = child.id().and_then(ProcessId::of)
            && let Err(error) = process.store(&pid_record(&self.dir))
        {
            // Without a record, as on a full disk, no later agent would find the process.
            child.start_kill()?;
            return Err(error);
        }
        Ok(child)
    }

    fn log(&self) -> io::Result<File> {
        let path = self.dir.join("native.log");
        if std::fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
            std::fs::rename(&path, self.dir.join("native.log.1"))?;
        }
        let log = private::options().create(true).append(true).open(path)?;
        private::restrict(&log)?;
        Ok(log)
    }
}

/// The path of the driver's socket, where `dir` is its data directory.
pub(crate) fn socket(dir: &Path) -> PathBuf {
    dir.join("native.sock")
}

/// The path of the record of its pid and start time.
pub(crate) fn pid_record(dir: &Path) -> PathBuf {
    dir.join("native.json")
}

/// Restarts the driver when it dies, until the agent stops. `generations` receives the number of its process,
/// 0 while it does not answer; `place` puts a process into its cgroup.
pub(crate) async fn supervise(
    process: NativeProcess,
    client: Client,
    generations: watch::Sender<u64>,
    place: impl Fn(u32) + Send + Sync + 'static,
    health: watch::Sender<DriverHealth>,
    stop: CancellationToken,
) {
    let mut generation = 0;
    let mut pause = RestartBackoff::new();
    while !stop.is_cancelled() {
        let lived = match introduced(&process, &client, &place, &stop).await {
            Ok(driver) => {
                generation += 1;
                generations.send_replace(generation);
                tracing::info!(life = generation, "the native driver answers");
                let answered = Instant::now();
                let ended = async {
                    tokio::select! {
                        () = driver.ended(&client) => {}
                        () = watch_answers(&client, NAME, &health) => {}
                    }
                };
                let _ended = stop.run_until_cancelled(ended).await;
                if stop.is_cancelled() {
                    return;
                }
                generations.send_replace(0);
                tracing::warn!("the native driver has ended; its tasks run on");
                answered.elapsed()
            }
            Err(error) => {
                tracing::error!(%error, "the native driver cannot be used");
                publish(&health, NAME, unreachable(&error.to_string()));
                Duration::ZERO
            }
        };
        wait(pause.after(lived), &stop).await;
    }
}

/// A driver process that answers.
enum Driver {
    /// A process that this agent started.
    Child(Child),
    /// A process that an earlier agent started.
    Adopted(Option<ProcessId>),
}

impl Driver {
    async fn ended(self, client: &Client) {
        match self {
            Self::Child(mut child) => {
                let status = child.wait().await;
                tracing::warn!(?status, "the native driver's process ended");
            }
            Self::Adopted(Some(process)) => process.ended().await,
            Self::Adopted(None) => {
                while client.ping().await.is_ok() {
                    tokio::time::sleep(DRIVER_WATCH_INTERVAL).await;
                }
            }
        }
    }
}

/// Returns a driver that answers and has accepted its configuration. A driver that refuses the configuration keeps
/// running, because it may have tasks that an earlier configuration allowed.
async fn introduced(
    process: &NativeProcess,
    client: &Client,
    place: &(impl Fn(u32) + Send + Sync),
    stop: &CancellationToken,
) -> io::Result<Driver> {
    let driver = begin(process, client, place, stop).await?;
    introduce(client, &process.config)
        .await
        .map_err(io::Error::other)?;
    Ok(driver)
}

async fn begin(
    process: &NativeProcess,
    client: &Client,
    place: &(impl Fn(u32) + Send + Sync),
    stop: &CancellationToken,
) -> io::Result<Driver> {
    let recorded = ProcessId::load(&pid_record(&process.dir)).filter(|driver| driver.is_alive());
    if client.ping().await.is_ok() {
        return Ok(Driver::Adopted(recorded));
    }
    if let Some(old) = recorded {
        // The process may be starting or stopping.
        if answers(client, stop).await {
            return Ok(Driver::Adopted(Some(old)));
        }
        tracing::error!(
            pid = old.pid,
            "the native driver does not answer and is killed; its tasks run on"
        );
        old.signal(rustix::process::Signal::KILL);
        old.ended().await;
    }
    let child = process.spawn()?;
    if let Some(pid) = child.id() {
        place(pid);
    }
    if answers(client, stop).await {
        return Ok(Driver::Child(child));
    }
    let log = process.dir.join("native.log");
    reap(child);
    Err(io::Error::other(format!(
        "it did not answer within {DRIVER_START_DEADLINE:?}; its words are in {}",
        log.display()
    )))
}

/// Ends a driver that does not answer.
fn reap(mut child: Child) {
    if let Err(error) = child.start_kill() {
        tracing::warn!(%error, "a native driver that does not answer cannot be killed");
    }
}

async fn answers(client: &Client, stop: &CancellationToken) -> bool {
    let deadline = Instant::now() + DRIVER_START_DEADLINE;
    while Instant::now() < deadline && !stop.is_cancelled() {
        if client.ping().await.is_ok() {
            return true;
        }
        tokio::time::sleep(DRIVER_PING_INTERVAL).await;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory in the place of the record makes it fail for root as well, as a full disk does.
    #[tokio::test]
    async fn a_driver_that_cannot_be_recorded_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(pid_record(dir.path())).unwrap();
        let pid_file = dir.path().join("pid");
        let script = format!("echo $$ > {}; exec sleep 1000", pid_file.display());
        let command = ["/bin/sh", "-c", &script].map(OsString::from).to_vec();
        let config = Value::Null;
        let process = NativeProcess::new(command, vec![], dir.path().to_owned(), config).unwrap();

        let error = process.spawn().unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::IsADirectory, "{error}");
        let Ok(pid) = std::fs::read_to_string(pid_file) else {
            // The process was killed before it wrote anything.
            return;
        };
        if let Some(child) = pid.trim().parse().ok().and_then(ProcessId::of) {
            tokio::time::timeout(DRIVER_START_DEADLINE, child.ended())
                .await
                .unwrap();
        }
    }
}
