//! Commands that run next to a task's processes: in its cgroups, as its user, with its environment.
//!
//! This module collects the output of a command. `session` streams input and output; `terminal` replaces the pipes of
//! a session.

mod session;
mod terminal;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use muster_driver::{DriverError, ExecResult, Retry, TaskConfig, TaskError};
use rustix::pipe::PipeFlags;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use crate::command::{ProcessConfig, ProcessKind, Streams, start_in_task};
use crate::config::NativeConfig;
use crate::kill_on_drop::KillOnDrop;
use crate::limits;
use crate::paths;
use crate::process::Process;
use crate::task::{NativeTask, failed};

/// A running command.
#[derive(Debug)]
pub(crate) struct RunningCommand {
    process: Process,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// Starts `command` in `task`. Blocks until the program is loaded.
pub(crate) fn start(task: &NativeTask, command: &[String]) -> Result<RunningCommand, TaskError> {
    let (stdout, stdout_end) = pipe().map_err(prepare_error)?;
    let (stderr, stderr_end) = pipe().map_err(prepare_error)?;
    let streams = Streams {
        stdin: paths::open_null().map_err(|error| failed(error.to_string()))?,
        stdout: stdout_end,
        stderr: stderr_end,
    };
    let (config, native) = task.definition()?;
    let process = launch(task, (&config, &native), command, &streams, false)?;
    Ok(RunningCommand {
        process,
        stdout,
        stderr,
    })
}

/// Starts `command` in `task` with the environment of `config`. With `terminal`, all streams are one terminal, which
/// becomes the controlling terminal of the command.
fn launch(
    task: &NativeTask,
    (config, native): (&TaskConfig, &NativeConfig),
    command: &[String],
    streams: &Streams,
    terminal: bool,
) -> Result<Process, TaskError> {
    let Some((program, args)) = command.split_first() else {
        return Err(refused("no command was given".to_owned()));
    };
    let launch = ProcessConfig {
        config,
        native,
        node: &task.node,
        cgroup: task.task_process.cgroup.as_ref(),
        command: program,
        args,
        driver_program: None,
        streams,
        terminal: terminal.then(|| task.first_id()),
    };
    let spawned = start_in_task(&launch, &task.task_process.process, ProcessKind::Command)
        .map_err(|error| refused(error.into_start_error(&config.task_name).to_string()))?;
    Process::started(&spawned).map_err(|error| {
        spawned.kill_and_reap();
        failed(format!("run {program} in the task: {error}"))
    })
}

fn prepare_error(error: io::Error) -> TaskError {
    failed(format!("prepare a command in the task: {error}"))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}

fn refused(message: String) -> TaskError {
    DriverError::Failed {
        message,
        retry: Retry::Never,
    }
    .into()
}

impl RunningCommand {
    /// Collects the output until the command ends or `timeout` passes; zero means no timeout. Dropping the future
    /// kills the command.
    pub(crate) async fn finish(self, timeout: Duration) -> Result<ExecResult, TaskError> {
        let Self {
            process,
            stdout,
            stderr,
        } = self;
        let guard = KillOnDrop::new(process);
        let io = |error: io::Error| failed(format!("follow a command in the task: {error}"));
        let mut stdout = Output::new(stdout).map_err(io)?;
        let mut stderr = Output::new(stderr).map_err(io)?;
        let ended = {
            let work = async {
                let reading = async { tokio::join!(stdout.read_all(), stderr.read_all()) };
                let waiting = guard.wait();
                tokio::pin!(reading, waiting);
                tokio::select! {
                    ended = &mut waiting => {
                        // The content of the pipes belongs to the result. A process that the command left running may
                        // hold the pipes open.
                        let _late = tokio::time::timeout(limits::EXEC_DRAIN_DEADLINE, reading).await;
                        ended
                    }
                    _both = &mut reading => waiting.await,
                }
            };
            let timeout = if timeout.is_zero() {
                Duration::MAX
            } else {
                timeout
            };
            tokio::time::timeout(timeout, work).await
        };
        let mut result = match ended {
            Ok(ended) => ended.map_err(io)?,
            Err(_elapsed) => {
                guard.kill().map_err(io)?;
                let mut result = guard.wait().await.map_err(io)?;
                result.err = Some(format!(
                    "the command did not end within {timeout:?}; killed"
                ));
                result
            }
        };
        guard.reap();
        if stdout.is_truncated || stderr.is_truncated {
            result.err.get_or_insert_with(|| {
                format!(
                    "more than {} bytes of output; the rest was thrown away",
                    limits::EXEC_OUTPUT_BYTES_MAX
                )
            });
        }
        Ok(ExecResult {
            stdout: stdout.bytes,
            stderr: stderr.bytes,
            result,
        })
    }
}

pub(crate) use session::open;

/// One output of a command.
struct Output {
    pipe: Receiver,
    bytes: Vec<u8>,
    is_truncated: bool,
}

impl Output {
    fn new(pipe: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            pipe: Receiver::from_owned_fd(pipe)?,
            bytes: Vec::new(),
            is_truncated: false,
        })
    }

    /// Reads to the end, so that the command never blocks, and keeps the output up to the bound.
    async fn read_all(&mut self) {
        let mut chunk = vec![0; limits::EXEC_READ_BYTES];
        loop {
            match self.pipe.read(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    let room = limits::EXEC_OUTPUT_BYTES_MAX - self.bytes.len();
                    self.is_truncated |= read > room;
                    self.bytes.extend_from_slice(&chunk[..read.min(room)]);
                }
            }
        }
    }
}
