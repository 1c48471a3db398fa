//! From a task's configuration to a process: what must be opened and looked up before the start.

use std::error::Error;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use muster_driver::{StartTaskError, TaskConfig};
use thiserror::Error;
use tracing::debug;

use crate::cgroup::{OpenCgroupError, TaskCgroup, open_joins};
use crate::config::{ConfigError, NativeConfig};
use crate::paths::{self, PathError};
use crate::spawn::{OpenFiles, Spawn, SpawnError, Spawned, Step, spawn};
use crate::user::{Identity, UserError};

/// Why a process was not started.
#[derive(Debug, Error)]
pub(crate) enum StartProcessError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Cgroup(#[from] OpenCgroupError),
    /// A zero byte or an equals sign where there can be none.
    #[error("{what} {value:?} cannot be given to a process: {reason}")]
    Text {
        what: &'static str,
        value: String,
        reason: &'static str,
    },
    /// The program did not run.
    #[error("run {}: {hint}", program.display())]
    Run {
        program: PathBuf,
        hint: &'static str,
        #[source]
        source: SpawnError,
    },
    /// The process was started and could not be looked at.
    #[error("look at the started process")]
    Look(#[source] io::Error),
}

impl StartProcessError {
    /// The error of the driver's interface: the whole chain in one line, and whether to try again.
    pub(crate) fn into_start_error(self, task_name: &str) -> StartTaskError {
        let mut message = format!("start task {task_name}: {self}");
        let mut source = self.source();
        while let Some(error) = source {
            message.push_str(": ");
            message.push_str(&error.to_string());
            source = error.source();
        }
        if self.passing() {
            StartTaskError::Recoverable { message }
        } else {
            StartTaskError::Fatal { message }
        }
    }

    /// Errors of a node that is short of something, which passes.
    fn passing(&self) -> bool {
        let mut source: Option<&dyn Error> = Some(self);
        while let Some(error) = source {
            if let Some(error) = error.downcast_ref::<io::Error>() {
                return matches!(
                    error.raw_os_error(),
                    Some(
                        libc::EAGAIN
                            | libc::ENOMEM
                            | libc::EMFILE
                            | libc::ENFILE
                            | libc::ENOSPC
                            | libc::ETXTBSY
                    )
                );
            }
            source = error.source();
        }
        false
    }
}

/// The task's outputs, held open until the task is destroyed.
#[derive(Debug)]
pub(crate) struct HeldOutput {
    _files: [OwnedFd; 2],
}

/// The files of a process to be.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl Streams {
    /// What keeps the task's output in its FIFOs when the last process of the task ends while nobody
    /// reads them: the kernel discards what a FIFO holds when its last file is closed.
    pub(crate) fn into_held(self) -> HeldOutput {
        HeldOutput {
            _files: [self.stdout, self.stderr],
        }
    }

    /// The null device in, the task's FIFOs out.
    pub(crate) fn of_task(config: &TaskConfig) -> Result<Self, PathError> {
        Ok(Self {
            stdin: paths::open_null()?,
            stdout: paths::open_output("stdout of the task", &config.stdout_path)?,
            stderr: paths::open_output("stderr of the task", &config.stderr_path)?,
        })
    }
}

/// Starts `command` with `args` as a process of the task: its user, environment, directory and
/// cgroups.
pub(crate) fn start_process(
    config: &TaskConfig,
    native: &NativeConfig,
    cgroup: Option<&TaskCgroup>,
    command: &str,
    args: &[String],
    streams: &Streams,
    open_files: Option<OpenFiles>,
) -> Result<Spawned, StartProcessError> {
    let identity = Identity::of(&config.user)?;
    let path_variable = config.env.get("PATH").map(String::as_str);
    let program = paths::find_command(command, &config.task_dir, path_variable)?;
    let work_dir = paths::open_work_dir(&config.task_dir, native.work_dir.as_deref())?;
    let joins = match &config.cgroup {
        Some(placement) => open_joins(placement)?,
        None => Vec::new(),
    };
    let program_text = text("command", program.as_os_str())?;
    let argv = std::iter::once(command)
        .chain(args.iter().map(String::as_str))
        .map(|arg| text("argument", arg.as_ref()))
        .collect::<Result<Vec<_>, _>>()?;
    let envp = environment(config)?;
    let join_fds: Vec<BorrowedFd<'_>> = joins.iter().map(AsFd::as_fd).collect();
    let request = Spawn {
        program: &program_text,
        argv: &argv,
        envp: &envp,
        stdin: streams.stdin.as_fd(),
        stdout: streams.stdout.as_fd(),
        stderr: streams.stderr.as_fd(),
        work_dir: work_dir.as_fd(),
        cgroup: cgroup.map(TaskCgroup::as_fd),
        joins: &join_fds,
        identity: identity.as_ref(),
        no_new_privs: native.no_new_privs.0,
        open_files,
    };
    match spawn(&request) {
        Err(SpawnError::IntoCgroup { source }) => {
            debug!(%source, "the kernel makes no process in this cgroup; the process joins it");
            let procs = cgroup
                .map(TaskCgroup::procs)
                .transpose()
                .map_err(StartProcessError::Look)?;
            let joining: Vec<BorrowedFd<'_>> = procs
                .iter()
                .map(AsFd::as_fd)
                .chain(join_fds.iter().copied())
                .collect();
            spawn(&Spawn {
                cgroup: None,
                joins: &joining,
                ..request
            })
        }
        spawned => spawned,
    }
    .map_err(|source| StartProcessError::Run {
        hint: hint(&source, &program),
        program,
        source,
    })
}

/// What an operator should know about a failed step.
fn hint(error: &SpawnError, program: &Path) -> &'static str {
    let (step, source) = match error {
        SpawnError::Clone { .. } | SpawnError::IntoCgroup { .. } => {
            return "the kernel made no process; look at pids.max, memory and `ulimit -u`";
        }
        SpawnError::Killed { .. } => {
            return "it was killed while it started; look at the task's memory limit";
        }
        SpawnError::Child { step, source } => (*step, source),
    };
    match step {
        Step::JoinCgroup => "the process could not enter its cgroup",
        Step::Groups | Step::Group | Step::User => "the process could not become its user",
        Step::WorkDir => "the task's user cannot enter the working directory",
        Step::Session | Step::Streams | Step::OpenFiles | Step::CloseFiles | Step::NoNewPrivs => {
            "the process could not be prepared"
        }
        Step::Exec => match source.raw_os_error() {
            Some(libc::ENOENT) if program.exists() => {
                "the file is there, but its interpreter (first line, or dynamic loader) is not"
            }
            Some(libc::ENOENT) => "command not found on the node",
            Some(libc::EACCES) => "the task's user may not execute it",
            Some(libc::ENOEXEC) => "not a program: a script needs a first line like #!/bin/sh",
            Some(libc::E2BIG) => "arguments and environment are too large together",
            _ => "the program could not be loaded",
        },
    }
}

/// The environment as given, nothing added.
fn environment(config: &TaskConfig) -> Result<Vec<CString>, StartProcessError> {
    config
        .env
        .iter()
        .map(|(name, value)| {
            if name.is_empty() || name.contains('=') {
                return Err(StartProcessError::Text {
                    what: "environment variable",
                    value: name.clone(),
                    reason: "its name is empty or holds an equals sign",
                });
            }
            text("environment variable", format!("{name}={value}").as_ref())
        })
        .collect()
}

fn text(what: &'static str, value: &OsStr) -> Result<CString, StartProcessError> {
    CString::new(value.as_bytes()).map_err(|_nul| StartProcessError::Text {
        what,
        value: value.to_string_lossy().into_owned(),
        reason: "it holds a zero byte",
    })
}
