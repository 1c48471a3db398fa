//! Runs a CNI plugin: a program with its input, its environment and a deadline.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::limits::{CNI_EXCERPT_BYTES_MAX, CNI_OUTPUT_BYTES_MAX};

/// Directories of programs that plugins start, such as iptables.
const PROGRAM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The reason why a plugin did not carry out a request.
#[derive(Debug, thiserror::Error)]
#[error("CNI plugin {plugin} failed: {reason}")]
pub(crate) struct PluginError {
    plugin: String,
    pub(super) reason: PluginFault,
}

/// A failure of a plugin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PluginFault {
    #[error(
        "no such program in {dirs}: install it, or name its directory in client {{ cni_path }}"
    )]
    Missing { dirs: String },
    #[error("the program {} cannot be started: {source}", program.display())]
    Spawn { program: PathBuf, source: io::Error },
    #[error("it did not end within {after:?} and was killed")]
    Deadline { after: Duration },
    #[error("code {code}: {message}")]
    Refused { code: u64, message: String },
    #[error("{status}: {output}")]
    Ended { status: ExitStatus, output: String },
    #[error("it printed more than {CNI_OUTPUT_BYTES_MAX} bytes")]
    TooMuch,
    #[error("it printed no result of CNI ({reason}): {output}")]
    InvalidOutput { reason: String, output: String },
}

impl PluginError {
    pub(super) fn new(plugin: &str, reason: PluginFault) -> Self {
        Self {
            plugin: plugin.to_owned(),
            reason,
        }
    }

    /// Makes the fault of a plugin whose output is not a result.
    pub(super) fn invalid_output(plugin: &str, reason: String, printed: &[u8]) -> Self {
        let output = output_excerpt(printed);
        Self::new(plugin, PluginFault::InvalidOutput { reason, output })
    }
}

/// A plugin's answer to an error.
#[derive(Debug, Deserialize)]
struct Refusal {
    code: u64,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

/// A call of a plugin.
#[derive(Debug)]
pub(super) struct PluginInvocation<'a> {
    pub(super) plugin: &'a str,
    pub(super) program: &'a Path,
    pub(super) env: Vec<(&'static str, String)>,
    pub(super) input: &'a [u8],
    pub(super) deadline: Duration,
}

/// The output of a plugin.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl PluginInvocation<'_> {
    /// Runs the plugin and returns its output.
    pub(super) async fn run(&self) -> Result<Vec<u8>, PluginError> {
        let failed = |reason| PluginError::new(self.plugin, reason);
        let Output {
            status,
            stdout,
            stderr,
        } = self.output().await.map_err(failed)?;
        if status.success() {
            return Ok(stdout);
        }
        let reason = match serde_json::from_slice::<Refusal>(&stdout) {
            Ok(Refusal { code, msg, details }) => {
                let message = if details.is_empty() {
                    msg
                } else {
                    format!("{msg}; {details}")
                };
                let message = output_excerpt(message.as_bytes());
                PluginFault::Refused { code, message }
            }
            Err(_) => {
                let printed = if stderr.is_empty() { &stdout } else { &stderr };
                let output = output_excerpt(printed);
                PluginFault::Ended { status, output }
            }
        };
        Err(failed(reason))
    }

    /// Runs the plugin and its children at most until the deadline.
    pub(super) async fn output(&self) -> Result<Output, PluginFault> {
        let spawned = Command::new(self.program)
            .env_clear()
            .env("PATH", PROGRAM_PATH)
            .envs(self.env.iter().map(|(name, value)| (*name, value)))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut child = spawned.map_err(|source| PluginFault::Spawn {
            program: self.program.to_owned(),
            source,
        })?;
        let group = child.id().map(ProcessGroup);
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let work = async {
            let feed = async {
                if let Some(mut stdin) = stdin {
                    // A plugin that does not read its configuration reports that in its answer.
                    drop(stdin.write_all(self.input).await);
                }
            };
            let ((), stdout, stderr) = tokio::join!(feed, drain(stdout), drain(stderr));
            (stdout, stderr, child.wait().await)
        };
        let worked = tokio::time::timeout(self.deadline, work).await;
        let Ok((stdout, stderr, status)) = worked else {
            drop(group);
            // The wait prevents a zombie. A process that is stuck in the kernel is left to the reaper.
            drop(tokio::time::timeout(self.deadline, child.wait()).await);
            return Err(PluginFault::Deadline {
                after: self.deadline,
            });
        };
        let status = status.map_err(|source| PluginFault::Spawn {
            program: self.program.to_owned(),
            source,
        })?;
        // The group's number may belong to another group by now.
        std::mem::forget(group);
        let stdout = stdout.ok_or(PluginFault::TooMuch)?;
        Ok(Output {
            status,
            stdout,
            stderr: stderr.unwrap_or_default(),
        })
    }
}

/// A process group that is killed when this is dropped.
#[derive(Debug)]
struct ProcessGroup(u32);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.0)
            && let Err(error) = killpg(Pid::from_raw(pid), Signal::SIGKILL)
        {
            tracing::debug!(%error, pid, "the processes of a CNI plugin are not killed");
        }
    }
}

/// Reads to the end; `None` if the output exceeds the limit.
async fn drain(stream: Option<impl AsyncRead + Unpin>) -> Option<Vec<u8>> {
    let Some(mut stream) = stream else {
        return Some(Vec::new());
    };
    let (mut kept, mut is_whole) = (Vec::new(), true);
    let mut buffer = [0; 4_096];
    loop {
        let count = stream.read(&mut buffer).await.unwrap_or(0);
        let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else {
            return is_whole.then_some(kept);
        };
        if kept.len() + read.len() > CNI_OUTPUT_BYTES_MAX {
            is_whole = false;
        } else {
            kept.extend_from_slice(read);
        }
    }
}

/// Returns the start of a plugin's output in one line.
fn output_excerpt(bytes: &[u8]) -> String {
    let start = bytes.get(..CNI_EXCERPT_BYTES_MAX).unwrap_or(bytes);
    let text = String::from_utf8_lossy(start);
    let text: String = text
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .collect();
    match text.split_whitespace().collect::<Vec<_>>().join(" ") {
        text if text.is_empty() => "nothing was printed".to_owned(),
        text => text,
    }
}
