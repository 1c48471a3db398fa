//! Starts a plugin's process and reads its handshake line, which contains its address.
//!
//! The process outlives its host, so its output goes to files instead of pipes. A pipe without a reader kills the
//! program that writes into it. The output file holds the handshake line and is unused afterwards. The error file is
//! the plugin's log, which [`super::output`] follows.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::process::{Child, Command};

use super::handshake::{
    COOKIE_KEY, COOKIE_VALUE, HandshakeError, PLUGIN_VERSION, SOCKET_DIR_KEY, VERSIONS_KEY, parse,
};
use crate::limits::{
    HANDSHAKE_BYTES_MAX, HANDSHAKE_POLL_INTERVAL, LOG_TAIL_BYTES_MAX, SOCKET_NAME_BYTES,
    SOCKET_PATH_BYTES_MAX,
};

/// Variables that every host sets for its plugins. The port range has no effect with unix sockets.
const PORTS: [(&str, &str); 2] = [("PLUGIN_MIN_PORT", "10000"), ("PLUGIN_MAX_PORT", "14512")];

/// The command that starts a plugin.
#[derive(Clone, Debug)]
pub struct PluginCommand {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// The environment of the plugin, in addition to the protocol's variables.
    pub env: Vec<(OsString, OsString)>,
    /// The directory for the plugin's output and, if the plugin uses it, for its socket.
    pub dir: PathBuf,
    /// The first part of the names of the plugin's files in `dir`.
    pub name: String,
}

/// The reason why a plugin could not be started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// A file for the plugin's output cannot be created.
    #[error("start plugin {}: open {}", program.display(), path.display())]
    File {
        program: PathBuf,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("start plugin {}", program.display())]
    Spawn {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The plugin ended before it printed its handshake line.
    #[error("start plugin {}: it ended at once ({status}) and said: {}", program.display(), or_placeholder(output))]
    Ended {
        program: PathBuf,
        status: ExitStatus,
        /// The end of the plugin's output.
        output: String,
    },
    /// The plugin did not print its handshake line in time.
    #[error("start plugin {}: it did not say where it listens within {after:?}; its log is {}", program.display(), log.display())]
    Silent {
        program: PathBuf,
        /// The time that the plugin had.
        after: Duration,
        log: PathBuf,
    },
    /// The plugin printed an invalid handshake line.
    #[error("start plugin {}: {reason}", program.display())]
    Handshake {
        program: PathBuf,
        /// The fault of the handshake.
        #[source]
        reason: HandshakeError,
    },
}

fn or_placeholder(output: &str) -> &str {
    match output {
        "" => "nothing",
        output => output,
    }
}

impl PluginCommand {
    /// Returns the path of the plugin's log file.
    pub fn log(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    fn output(&self) -> PathBuf {
        self.dir.join(format!("{}.out", self.name))
    }

    /// Starts the process. The process continues to run when its host ends.
    ///
    /// # Errors
    ///
    /// [`LaunchError::File`] and [`LaunchError::Spawn`].
    pub fn spawn(&self) -> Result<Child, LaunchError> {
        let open = |path: PathBuf, truncate: bool| {
            let opened = OpenOptions::new()
                .mode(0o600)
                .create(true)
                .append(!truncate)
                .write(true)
                .truncate(truncate)
                .open(&path);
            opened.map_err(|source| LaunchError::File {
                program: self.program.clone(),
                path,
                source,
            })
        };
        let output = open(self.output(), true)?;
        let log = open(self.log(), false)?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .env_clear()
            .envs(self.env.iter().cloned())
            .env(COOKIE_KEY, COOKIE_VALUE)
            .env(VERSIONS_KEY, PLUGIN_VERSION.to_string())
            .envs(PORTS)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(log)
            // A signal to the host's process group, such as Ctrl-C, must not reach the plugin.
            .process_group(0);
        if self.dir.as_os_str().len() + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES_MAX {
            command.env(SOCKET_DIR_KEY, &self.dir);
        }
        command.spawn().map_err(|source| LaunchError::Spawn {
            program: self.program.clone(),
            source,
        })
    }

    /// Waits at most `deadline` for the handshake line of `child`. Returns the socket on which the plugin listens.
    ///
    /// # Errors
    ///
    /// [`LaunchError`] when the plugin ends, prints nothing or prints something else. The plugin may still run then.
    pub async fn handshake(
        &self,
        child: &mut Child,
        deadline: Duration,
    ) -> Result<PathBuf, LaunchError> {
        let until = Instant::now() + deadline;
        loop {
            if let Some(line) = first_line(&self.output()) {
                return parse(&line).map_err(|reason| LaunchError::Handshake {
                    program: self.program.clone(),
                    reason,
                });
            }
            if let Ok(Some(status)) = child.try_wait() {
                let mut output = read_log_tail(&self.log());
                if output.is_empty() {
                    output = read_log_tail(&self.output());
                }
                return Err(LaunchError::Ended {
                    program: self.program.clone(),
                    status,
                    output,
                });
            }
            if Instant::now() >= until {
                return Err(LaunchError::Silent {
                    program: self.program.clone(),
                    after: deadline,
                    log: self.log(),
                });
            }
            tokio::time::sleep(HANDSHAKE_POLL_INTERVAL).await;
        }
    }
}

/// Returns the first line of a file once it is complete. A line longer than any handshake is cut and therefore
/// refused.
fn first_line(path: &Path) -> Option<String> {
    let mut start = Vec::new();
    let file = File::open(path).ok()?;
    file.take(HANDSHAKE_BYTES_MAX)
        .read_to_end(&mut start)
        .ok()?;
    let end = start.iter().position(|byte| *byte == b'\n');
    let full = u64::try_from(start.len()).is_ok_and(|length| length == HANDSHAKE_BYTES_MAX);
    let end = end.or_else(|| full.then_some(start.len()))?;
    Some(String::from_utf8_lossy(&start[..end]).into_owned())
}

/// Returns the end of a file as one line.
fn read_log_tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES_MAX)))?;
        let mut output = Vec::new();
        file.take(LOG_TAIL_BYTES_MAX).read_to_end(&mut output)?;
        Ok(output)
    };
    let output = read().unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    output.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A file in a plugin directory that the agent does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedFile {
    pub path: PathBuf,
    pub reason: String,
}

/// Returns the executables in a plugin directory by name, and the files that are not executable or not safe to
/// execute.
///
/// # Errors
///
/// When the directory cannot be read.
pub fn discover(dir: &Path) -> io::Result<(Vec<PathBuf>, Vec<UnusedFile>)> {
    let mut programs = Vec::new();
    let mut unused = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        match executable(&path) {
            Ok(()) => programs.push(path),
            Err(reason) => unused.push(UnusedFile { path, reason }),
        }
    }
    programs.sort();
    unused.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((programs, unused))
}

fn executable(path: &Path) -> Result<(), String> {
    /// The write permission for all other users.
    const OTHERS_WRITE: u32 = 0o002;
    let meta = std::fs::metadata(path).map_err(|error| error.to_string())?;
    let mode = meta.permissions().mode();
    if !meta.is_file() {
        Err("it is not a file".to_owned())
    } else if mode & 0o111 == 0 {
        Err("it is not executable: chmod +x makes it so".to_owned())
    } else if mode & OTHERS_WRITE != 0 {
        Err(format!(
            "everybody may write to it (owner {}, mode {:o}), and it would run as the agent's user: chmod o-w",
            meta.uid(),
            mode & 0o7777
        ))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
