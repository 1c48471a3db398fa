//! Starts a plugin's process and reads the line in which it says where it listens.
//!
//! The process outlives its host, so that its output goes to files, not to pipes: a pipe without a
//! reader kills the program that writes into it. The output file holds the handshake and is of no
//! use after it; the error file is the plugin's log, which [`super::output`] follows.

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
    HANDSHAKE_BYTES_MAX, HANDSHAKE_LOOK_INTERVAL, LAST_WORDS_BYTES_MAX, SOCKET_NAME_BYTES,
    SOCKET_PATH_BYTES_MAX,
};

/// Variables that plugins of every host are given; the range means nothing where sockets are files.
const PORTS: [(&str, &str); 2] = [("PLUGIN_MIN_PORT", "10000"), ("PLUGIN_MAX_PORT", "14512")];

/// How to start a plugin.
#[derive(Clone, Debug)]
pub struct PluginCommand {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Its environment, besides what the protocol asks for.
    pub env: Vec<(OsString, OsString)>,
    /// Directory for its output and, if it looks for one, its socket.
    pub dir: PathBuf,
    /// First part of the names of its files in `dir`.
    pub name: String,
}

/// Why a plugin could not be started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// A file for its output cannot be made.
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
    /// It ended before it said where it listens.
    #[error("start plugin {}: it ended at once ({status}) and said: {}", program.display(), or_nothing(words))]
    Ended {
        program: PathBuf,
        status: ExitStatus,
        /// The end of what it printed.
        words: String,
    },
    /// It did not say where it listens.
    #[error("start plugin {}: it did not say where it listens within {after:?}; its log is {}", program.display(), log.display())]
    Silent {
        program: PathBuf,
        /// How long it had.
        after: Duration,
        log: PathBuf,
    },
    /// It said something else.
    #[error("start plugin {}: {reason}", program.display())]
    Handshake {
        program: PathBuf,
        /// The fault of the handshake.
        #[source]
        reason: HandshakeError,
    },
}

fn or_nothing(words: &str) -> &str {
    match words {
        "" => "nothing",
        words => words,
    }
}

impl PluginCommand {
    /// The file that its log goes to.
    pub fn log(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    fn output(&self) -> PathBuf {
        self.dir.join(format!("{}.out", self.name))
    }

    /// Starts the process. It does not end with its host.
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
            // A signal to the host's group, such as Ctrl-C, is none to the plugin.
            .process_group(0);
        if self.dir.as_os_str().len() + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES_MAX {
            command.env(SOCKET_DIR_KEY, &self.dir);
        }
        command.spawn().map_err(|source| LaunchError::Spawn {
            program: self.program.clone(),
            source,
        })
    }

    /// Waits for the line of `child`, at most `deadline`. The answer is the socket where it listens.
    ///
    /// # Errors
    ///
    /// [`LaunchError`] when it ends, says nothing or something else. It may still run then.
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
                let mut words = tail(&self.log());
                if words.is_empty() {
                    words = tail(&self.output());
                }
                return Err(LaunchError::Ended {
                    program: self.program.clone(),
                    status,
                    words,
                });
            }
            if Instant::now() >= until {
                return Err(LaunchError::Silent {
                    program: self.program.clone(),
                    after: deadline,
                    log: self.log(),
                });
            }
            tokio::time::sleep(HANDSHAKE_LOOK_INTERVAL).await;
        }
    }
}

/// The first line of a file, once it is whole. A longer one than any handshake is cut and so refused.
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

/// The end of a file, in one line.
fn tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS_BYTES_MAX)))?;
        let mut words = Vec::new();
        file.take(LAST_WORDS_BYTES_MAX).read_to_end(&mut words)?;
        Ok(words)
    };
    let words = read().unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A file of a plugin directory that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedFile {
    pub path: PathBuf,
    pub reason: String,
}

/// The executables in a plugin directory by name, and the files that are none or are not safe to
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
    /// Anybody may write.
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
