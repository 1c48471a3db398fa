//! From a task's configuration to a process: everything that must be opened and looked up before the start.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use muster_domain::job;
use muster_driver::{StartTaskError, TaskConfig};
use thiserror::Error;
use tracing::debug;

use crate::cgroup::{OpenCgroupError, TaskCgroup, open_joins};
use crate::config::{ConfigError, IsolationLevel, NativeConfig};
use crate::isolation::capabilities::Capabilities;
use crate::isolation::privileges::{self, ProcessIo, WorkDir};
use crate::isolation::ranges::Range;
use crate::isolation::template::{MountPoint, TemplateKey};
use crate::isolation::view::{self, DetachedMount, TaskView};
use crate::isolation::{
    Confinement, IsolationError, PathTranslation, TaskNetwork, network, task_dir,
};
use crate::node::Node;
use crate::paths::{self, Owner, PathError};
use crate::process::Process;
use crate::spawn::{
    MountFlags, ProgramLocation, Propagation, Script, Spawn, SpawnError, SpawnStep, SpawnedProcess,
    move_to_high_fd, spawn, user_namespace,
};
use crate::{init, limits, names, spawn_pool};

/// The reason why a process was not started.
#[derive(Debug, Error)]
pub(crate) enum StartProcessError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Cgroup(#[from] OpenCgroupError),
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// A zero byte or an equals sign in a text that must not contain it.
    #[error("{what} {value:?} cannot be given to a process: {reason}")]
    Text {
        what: &'static str,
        value: String,
        reason: &'static str,
    },
    /// The program could not be executed.
    #[error("run {}: {hint}", program.display())]
    Run {
        program: PathBuf,
        hint: &'static str,
        #[source]
        source: SpawnError,
    },
    /// The thread that starts the process could not be created, or it failed.
    #[error("the thread that was to start it failed")]
    Thread(#[source] io::Error),
    /// The start of an action cannot be recorded. After the driver's death, the action would be started twice.
    #[error("record the start of the action")]
    Record(#[source] io::Error),
    /// The process was started, but reading its state failed.
    #[error("look at the started process")]
    Inspect(#[source] io::Error),
}

impl StartProcessError {
    /// Converts the error to that of the driver's interface: the whole chain in one line, and whether to try again.
    pub(crate) fn into_start_error(self, task_name: &str) -> StartTaskError {
        self.start_error(format!("start task {task_name}: "))
    }

    /// Converts the error of a task's own program, with the faulty field of its `config`.
    pub(crate) fn into_start_error_of_task(self, task_name: &str) -> StartTaskError {
        let step = match &self {
            Self::Run {
                source: SpawnError::Child { step, .. },
                ..
            } => Some(*step),
            _ => None,
        };
        let is_absent = matches!(&self, Self::Path(PathError::NoCommand { .. }));
        let is_closed =
            matches!(&self, Self::Path(PathError::Open { what, .. }) if *what == paths::WORK_DIR);
        let field = if is_absent || step == Some(SpawnStep::Exec) {
            "`config.command`: "
        } else if is_closed || step == Some(SpawnStep::WorkDir) {
            "`config.work_dir`: "
        } else {
            ""
        };
        self.start_error(format!("start task {task_name}: {field}"))
    }

    fn start_error(self, beginning: String) -> StartTaskError {
        let mut message = format!("{beginning}{self}");
        let mut source = self.source();
        while let Some(error) = source {
            message.push_str(": ");
            message.push_str(&error.to_string());
            source = error.source();
        }
        if self.is_transient() {
            StartTaskError::Recoverable { message }
        } else {
            StartTaskError::Fatal { message }
        }
    }

    /// Returns whether the error is temporary, because the node lacks a resource.
    fn is_transient(&self) -> bool {
        if matches!(self, Self::Isolation(IsolationError::Changed)) {
            return true;
        }
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
pub(crate) struct OpenOutputs {
    _files: [OwnedFd; 2],
}

/// The standard streams of a process that is about to start.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl Streams {
    /// Returns the files that keep the task's output in its FIFOs when the last process of the task ends while nothing
    /// reads them. The kernel discards the content of a FIFO when its last file is closed.
    pub(crate) fn into_open_outputs(self) -> OpenOutputs {
        OpenOutputs {
            _files: [move_to_high_fd(self.stdout), move_to_high_fd(self.stderr)],
        }
    }

    /// Returns the files in the order of their descriptors: 0, 1, 2.
    pub(crate) fn files(&self) -> [BorrowedFd<'_>; 3] {
        [self.stdin.as_fd(), self.stdout.as_fd(), self.stderr.as_fd()]
    }

    /// Opens the null device for input and the task's FIFOs for output.
    pub(crate) fn of_task(config: &TaskConfig) -> Result<Self, PathError> {
        Ok(Self {
            stdin: paths::open_null()?,
            stdout: paths::open_output("stdout of the task", &config.stdout_path)?,
            stderr: paths::open_output("stderr of the task", &config.stderr_path)?,
        })
    }
}

/// The configuration of a process that is about to start.
#[derive(Debug)]
pub(crate) struct ProcessConfig<'a> {
    pub(crate) config: &'a TaskConfig,
    pub(crate) native: &'a NativeConfig,
    pub(crate) node: &'a Node,
    pub(crate) cgroup: Option<&'a TaskCgroup>,
    /// The command. If it is empty, only the reaper runs, until it is killed.
    pub(crate) command: &'a str,
    pub(crate) args: &'a [String],
    /// A program of the driver to run in place of `command`, which is then the name of that program.
    pub(crate) driver_program: Option<BorrowedFd<'a>>,
    pub(crate) streams: &'a Streams,
    /// The streams are a terminal, which becomes the controlling terminal of the process. The number is the host's id
    /// for id 0 of the task.
    pub(crate) terminal: Option<u32>,
}

/// Starts the task itself. Returns its process, and the ids of a strict task.
pub(crate) fn start_task(
    launch: &ProcessConfig<'_>,
) -> Result<(SpawnedProcess, Option<Range>), StartProcessError> {
    let ProcessConfig {
        config,
        native,
        node,
        ..
    } = launch;
    let policy = node.policy();
    let confinement = Confinement::decide(config, native, &policy, node.open_files)?;
    // The thread gave up the capabilities that such a task keeps, because the policy did not allow them yet.
    let missing = confinement
        .capabilities
        .difference(spawn_pool::bounding_capabilities());
    if !missing.is_empty() {
        return Err(IsolationError::Changed.into());
    }
    let network = network(config, native)?;
    if confinement.level == IsolationLevel::Raw {
        let script = Script::default();
        return Ok((launch.run(script, &confinement, None, 0)?, None));
    }
    let range = match confinement.level {
        IsolationLevel::Strict => Some(range_of(config, node)?),
        IsolationLevel::Raw | IsolationLevel::Contained => None,
    };
    let ids = match &range {
        Some(range) => Some(
            user_namespace(range.first(), limits::IDS_PER_TASK)
                .map_err(IsolationError::UserNamespace)?,
        ),
        None => None,
    };
    let owner = confinement
        .identity
        .as_ref()
        .map(|user| (user.uid, user.gid));
    let builder = ViewBuilder {
        launch,
        owner,
        range: range.as_ref(),
        ids: ids.as_ref(),
        hostname: &confinement.hostname,
    };
    let mut script = Script::default();
    launch.join_cgroups(&mut script)?;
    view::write(&mut script, builder.view()?, &network);
    let mut namespaces = libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if matches!(network, TaskNetwork::Empty) {
        namespaces |= libc::CLONE_NEWNET;
    }
    // The file of a network namespace stays open until the process has entered the namespace.
    let namespaces = u64::from(namespaces.cast_unsigned());
    let mut spawned = launch.run(
        script,
        &confinement,
        ids.as_ref().map(AsFd::as_fd),
        namespaces,
    )?;
    if let Some(mounts) = spawned.parent_file.take() {
        node.mount_namespaces.insert(mounts);
    }
    drop(network);
    Ok((spawned, range))
}

/// The kind of process to start next to a task's first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessKind {
    /// A command that an operator or the host runs in the task. It has no more rights than the task.
    Command,
    /// A part of the task's own work, with a separate user. The node's policy decides its rights.
    Action,
}

/// Starts a process next to the task's first process, in the task's namespaces.
pub(crate) fn start_in_task(
    launch: &ProcessConfig<'_>,
    first: &Process,
    what: ProcessKind,
) -> Result<SpawnedProcess, StartProcessError> {
    let ProcessConfig {
        config,
        native,
        node,
        ..
    } = launch;
    let mut confinement = match what {
        // A right that was allowed when the task started is allowed to a command in the task. The kernel has the upper
        // bound of the task's capabilities.
        ProcessKind::Command => {
            let policy = node.policy().of_running_task();
            let mut confinement = Confinement::of(config, native, &policy, node.open_files)?;
            let bounding = Capabilities::bounding_of(first.pid);
            confinement.capabilities = confinement.capabilities.intersection(bounding);
            // A process cannot enter the Landlock scope of another process. In its own scope, the command could
            // neither inspect the task's processes nor connect to the task.
            confinement.scoped = false;
            confinement
        }
        ProcessKind::Action => Confinement::of(config, native, &node.policy(), node.open_files)?,
    };
    confinement.init = false;
    let mut script = Script::default();
    if confinement.level == IsolationLevel::Raw {
        return launch.run(script, &confinement, None, 0);
    }
    launch.join_cgroups(&mut script)?;
    let pidfd = first.pidfd();
    let entered = libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWNET;
    let args = [pidfd.as_fd().into(), entered.into()];
    let operation = "enter the task's namespaces";
    script.call(SpawnStep::Namespaces, operation, libc::SYS_setns, args);
    let ids = (confinement.level == IsolationLevel::Strict).then(|| pidfd.as_fd());
    std::thread::scope(|scope| {
        let started = scope.spawn(|| {
            // This sets the pid namespace for the children of this thread. The thread ends with this function.
            rustix::thread::move_into_thread_name_spaces(
                pidfd.as_fd(),
                rustix::thread::ThreadNameSpaceType::PROCESS_ID,
            )
            .map_err(|errno| StartProcessError::Inspect(errno.into()))?;
            launch.run(script, &confinement, ids, 0)
        });
        match started.join() {
            Ok(started) => started,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn range_of(config: &TaskConfig, node: &Node) -> Result<Range, IsolationError> {
    let name = format!("{}/{}", config.alloc_id, config.task_name);
    let count = limits::ID_RANGES_MAX;
    node.ranges
        .reserve(&name)
        .ok_or(IsolationError::NoRange { count })
}

impl ProcessConfig<'_> {
    /// Adds the calls that every process makes before its program, and starts the process.
    fn run(
        &self,
        mut script: Script,
        confinement: &Confinement,
        user_namespace: Option<BorrowedFd<'_>>,
        namespaces: u64,
    ) -> Result<SpawnedProcess, StartProcessError> {
        let raw = confinement.level == IsolationLevel::Raw;
        if raw {
            self.join_cgroups(&mut script)?;
        }
        let translation = PathTranslation::of(self.config, confinement.level);
        let command = translation.apply(self.command);
        let path_variable = self.config.env.get("PATH").map(String::as_str);
        let programs = match self.driver_program {
            Some(_) => Vec::new(),
            None => self.programs(&command, path_variable, raw)?,
        };
        let argv = self.argv(&command, &translation)?;
        let envp = environment(self.config, &translation)?;
        let open_dir = if raw {
            let named = self.native.work_dir.as_deref();
            let named = named.map(|named| translation.apply(named));
            Some(paths::open_work_dir(
                &self.config.task_dir,
                named.as_deref(),
            )?)
        } else {
            None
        };
        let work_dir = match &open_dir {
            Some(dir) => WorkDir::Open(dir.as_fd()),
            None => WorkDir::Path(self.work_dir(&translation)?),
        };
        if let (Some(first), Some(user)) = (self.terminal, &confinement.identity) {
            paths::chown_terminal(&self.streams.stdin, first + user.uid)?;
        }
        let process_io = ProcessIo {
            streams: self.streams.files(),
            terminal: self.terminal.is_some(),
            work_dir,
            scope: self.node.scope().filter(|_| confinement.scoped),
            is_driver_program: self.driver_program.is_some(),
            keeps_files: confinement.init || self.driver_program.is_some(),
        };
        privileges::write(&mut script, confinement, user_namespace, &process_io);
        let (program, argv) = if let Some(file) = self.driver_program {
            (ProgramLocation::File(file), argv)
        } else if confinement.init {
            let argv = init::arguments(&programs, &argv);
            (ProgramLocation::File(self.node.init_program()?), argv)
        } else {
            (ProgramLocation::Paths(&programs), argv)
        };
        let start = |script: &Script, cgroup| {
            spawn(&Spawn {
                script,
                program,
                argv: &argv,
                envp: &envp,
                cgroup,
                namespaces,
            })
        };
        let cgroup = self.cgroup.map(TaskCgroup::dir).transpose();
        let cgroup = cgroup.map_err(StartProcessError::Inspect)?;
        let spawned = match start(&script, cgroup.as_ref().map(AsFd::as_fd)) {
            Err(SpawnError::IntoCgroup { source }) => {
                debug!(%source, "the kernel makes no process in this cgroup; the process joins it");
                self.join_cgroups_first(&mut script)?;
                start(&script, None)
            }
            spawned => spawned,
        };
        spawned.map_err(|source| self.explain(source, &programs, raw))
    }

    /// Makes the process write itself into cgroups of v1 hierarchies.
    fn join_cgroups(&self, script: &mut Script) -> Result<(), StartProcessError> {
        let joins = match &self.config.cgroup {
            Some(placement) => open_joins(placement)?,
            None => Vec::new(),
        };
        for join in joins {
            join_cgroup_file(script, join, false);
        }
        Ok(())
    }

    /// Makes the process move itself into the v2 cgroup before any other call.
    fn join_cgroups_first(&self, script: &mut Script) -> Result<(), StartProcessError> {
        let procs = self
            .cgroup
            .map(TaskCgroup::open_procs)
            .transpose()
            .map_err(StartProcessError::Inspect)?;
        if let Some(file) = procs {
            join_cgroup_file(script, file, true);
        }
        Ok(())
    }

    fn programs(
        &self,
        command: &str,
        path_variable: Option<&str>,
        raw: bool,
    ) -> Result<Vec<CString>, StartProcessError> {
        if command.is_empty() {
            return Ok(Vec::new());
        }
        let places = if raw {
            vec![paths::find_command(
                command,
                &self.config.task_dir,
                path_variable,
            )?]
        } else {
            paths::candidate_paths(command, path_variable)
        };
        places
            .iter()
            .map(|place| text("command", place.as_os_str()))
            .collect()
    }

    fn argv(
        &self,
        command: &str,
        translation: &PathTranslation,
    ) -> Result<Vec<CString>, StartProcessError> {
        std::iter::once(command.to_owned())
            .chain(self.args.iter().map(|arg| translation.apply(arg)))
            .map(|arg| text("argument", arg.as_ref()))
            .collect()
    }

    /// Returns the working directory as a path in the task. The default is the root, which contains `local`,
    /// `secrets`, `tmp` and `alloc`. Actions start in `/local`, where they can write.
    fn work_dir(&self, translation: &PathTranslation) -> Result<CString, StartProcessError> {
        let home = match self.native.actions {
            Some(_) => Path::new("/local"),
            None => Path::new("/"),
        };
        let dir = match &self.native.work_dir {
            Some(named) => home.join(translation.apply(named)),
            None => home.to_owned(),
        };
        text("working directory", dir.as_os_str())
    }

    fn explain(&self, source: SpawnError, programs: &[CString], raw: bool) -> StartProcessError {
        let is_missing = matches!(
            &source,
            SpawnError::Child { step: SpawnStep::Exec, source, .. }
                if source.raw_os_error() == Some(libc::ENOENT)
        );
        if is_missing && !raw && !self.command.contains('/') {
            let path_variable = self.config.env.get("PATH").map(String::as_str);
            return paths::not_found(self.command, path_variable).into();
        }
        let program = match programs {
            [only] => PathBuf::from(OsStr::from_bytes(only.as_bytes())),
            _ => PathBuf::from(self.command),
        };
        StartProcessError::Run {
            hint: hint(&source, &program, raw),
            program,
            source,
        }
    }
}

/// Writes one byte, `0`, which stands for the writing process.
fn join_cgroup_file(script: &mut Script, file: OwnedFd, first: bool) {
    let zero = script.text(c"0");
    let file = script.file(file);
    let args = [file, zero, 1_u64.into()];
    script.call(
        SpawnStep::JoinCgroup,
        "join a cgroup",
        libc::SYS_write,
        args,
    );
    if first {
        script.move_last_call_first();
    }
}

/// The data for opening the parts of a task's view.
struct ViewBuilder<'a> {
    launch: &'a ProcessConfig<'a>,
    owner: Option<Owner>,
    range: Option<&'a Range>,
    ids: Option<&'a OwnedFd>,
    hostname: &'a str,
}

impl ViewBuilder<'_> {
    fn view(&self) -> Result<TaskView, IsolationError> {
        let ProcessConfig {
            config,
            native,
            node,
            streams,
            ..
        } = self.launch;
        let mounts = self.mounts()?;
        let task_dirs = self.task_dir_mounts()?;
        let policy = node.policy();
        let mut key = TemplateKey {
            host_dirs: policy.host_dirs.clone(),
            mount_points: BTreeSet::new(),
        };
        let root = match &native.root {
            Some(root) => Some(self.root(root, &task_dirs, &mounts)?),
            None => {
                let points = mounts.iter().map(|(_, point)| point.clone());
                let dir_points = native.client_dirs().iter().map(|(_, target)| MountPoint {
                    path: (*target).to_owned(),
                    is_dir: true,
                });
                key.mount_points = points.chain(dir_points).collect();
                None
            }
        };
        if let Some((uid, gid)) = self.owner {
            let first = self.range.map_or(0, Range::first);
            for file in [&streams.stdout, &streams.stderr] {
                paths::chown_output(file, (first + uid, first + gid))?;
            }
        }
        // Only mounts of the task's own directories may be kept. The mounts of the host must be released before the
        // end of the task is reported.
        let has_task_dirs_only = mounts.is_empty() && root.is_none();
        let memory = u64::try_from(config.resources.linux.memory_limit_bytes).unwrap_or(0);
        Ok(TaskView {
            template: node.template(&key)?,
            root,
            readonly_root: native.isolation == IsolationLevel::Strict
                || native.readonly_root.unwrap_or_default(),
            task_dirs,
            mounts: mounts.into_iter().map(|(mount, _)| mount).collect(),
            hostname: self.hostname.to_owned(),
            shows_cgroup: node.shows_cgroup,
            shm_bytes: if memory == 0 {
                limits::SHM_BYTES
            } else {
                memory
            },
            proc: if has_task_dirs_only {
                node.mount_namespaces.proc_dir()
            } else {
                None
            },
        })
    }

    /// Opens the task's directories: `/local`, `/secrets`, `/tmp`, the directories that clients of one-off tasks
    /// expect, and `/alloc`, which the group shares.
    fn task_dir_mounts(&self) -> Result<Vec<DetachedMount>, IsolationError> {
        let config = self.launch.config;
        let mut task_dirs = Vec::new();
        if let Some(task_dir) = task_dir(config) {
            let base = paths::open_dir("the task's directory", &task_dir)?;
            for (name, mode) in [("local", 0o755), ("secrets", 0o700), ("tmp", 0o1777)] {
                let dir = paths::open_own_dir(&base, name, mode, self.owner)?;
                let flags =
                    MountFlags::default().and_if(name == "secrets", MountFlags::NO_PROGRAMS);
                task_dirs.push(self.dir_mount(&dir, &format!("/{name}"), flags)?);
            }
            for (name, target) in self.launch.native.client_dirs() {
                let dir = paths::open_own_dir(&base, name, 0o1777, self.owner)?;
                task_dirs.push(self.dir_mount(&dir, target, MountFlags::default())?);
            }
        }
        if !config.alloc_dir.as_os_str().is_empty() {
            let base = paths::open_dir("the allocation's directory", &config.alloc_dir)?;
            let dir = paths::open_own_dir(&base, "alloc", 0o777, None)?;
            task_dirs.push(self.dir_mount(&dir, "/alloc", MountFlags::default())?);
        }
        Ok(task_dirs)
    }

    /// Opens one directory. The directory is given to the host's id of the task's user if its file system does not
    /// support mapped owners.
    fn dir_mount(
        &self,
        dir: &OwnedFd,
        target: &str,
        flags: MountFlags,
    ) -> Result<DetachedMount, IsolationError> {
        let ids = self.ids.map(AsFd::as_fd);
        let mount = match view::clone_mount(dir.as_fd(), target, flags, Propagation::Private, ids) {
            Err(error) if ids.is_some() && view::cannot_map(&error) => {
                if let (Some((uid, gid)), Some(range)) = (self.owner, self.range)
                    && target != "/alloc"
                {
                    paths::chown_dir(dir, (range.first() + uid, range.first() + gid))?;
                }
                view::clone_mount(dir.as_fd(), target, flags, Propagation::Private, None)?
            }
            mount => mount?,
        };
        Ok(DetachedMount {
            mount,
            target: target.to_owned(),
        })
    }

    /// Opens the mounts that the job and the host request.
    fn mounts(&self) -> Result<Vec<(DetachedMount, MountPoint)>, IsolationError> {
        let ProcessConfig {
            config,
            native,
            node,
            ..
        } = self.launch;
        let policy = node.policy();
        let task_dir = task_dir(config);
        let mut mounts = Vec::new();
        for (at, mount) in native.mounts.iter().enumerate() {
            let field = format!("config.mount[{at}].source");
            let source = paths::open_source(&field, &mount.source, task_dir.as_deref(), &policy)?;
            let read_only = mount.readonly.unwrap_or(true);
            if !read_only && !source.writable {
                let path = mount.source.clone().into();
                return Err(PathError::NotWritable { field, path }.into());
            }
            mounts.push(self.source_mount(
                &source,
                &mount.target,
                read_only,
                Propagation::Private,
            )?);
        }
        for mount in &config.mounts {
            crate::config::check_target("volume_mount.destination", &mount.task_path)?;
            let source = paths::open_host_mount(&mount.host_path)?;
            // A task cannot mount, so no mount of the task could reach the host.
            let propagation = match job::Propagation::from_name(&mount.propagation_mode) {
                Some(job::Propagation::HostToTask | job::Propagation::Bidirectional) => {
                    Propagation::Slave
                }
                Some(job::Propagation::Private) | None => Propagation::Private,
            };
            mounts.push(self.source_mount(
                &source,
                &mount.task_path,
                mount.readonly,
                propagation,
            )?);
        }
        let is_free = |target: &str| mounts.iter().all(|(_, point)| point.path != target);
        if let Some(dns) = &config.dns
            && is_free(names::RESOLV_CONF)
        {
            let task_dir = task_dir.ok_or(IsolationError::Unsupported {
                what: "name servers (dns) without a directory of the task",
            })?;
            let source = names::write(&task_dir, dns)?;
            mounts.push(self.source_mount(
                &source,
                names::RESOLV_CONF,
                true,
                Propagation::Private,
            )?);
        }
        Ok(mounts)
    }

    fn source_mount(
        &self,
        source: &paths::Source,
        target: &str,
        read_only: bool,
        propagation: Propagation,
    ) -> Result<(DetachedMount, MountPoint), IsolationError> {
        let flags = MountFlags::default().and_if(read_only, MountFlags::READ_ONLY);
        let ids = self.ids.map(AsFd::as_fd).filter(|_| !read_only);
        let mount = view::clone_mount(source.file.as_fd(), target, flags, propagation, ids)?;
        let point = MountPoint {
            path: target.to_owned(),
            is_dir: source.is_dir,
        };
        let target = target.to_owned();
        Ok((DetachedMount { mount, target }, point))
    }

    /// Opens the root directory that the job names. A layer above it takes the task's writes and the mount points.
    fn root(
        &self,
        named: &str,
        task_dirs: &[DetachedMount],
        mounts: &[(DetachedMount, MountPoint)],
    ) -> Result<OwnedFd, IsolationError> {
        let ProcessConfig { config, node, .. } = self.launch;
        let task_dir = task_dir(config).ok_or(IsolationError::Unsupported {
            what: "a root without a directory of the task",
        })?;
        let tree = paths::open_source("config.root", named, Some(&task_dir), &node.policy())?;
        let base = paths::open_dir("the task's directory", &task_dir)?;
        let layers = paths::open_own_dir(&base, ".root", 0o700, Some((0, 0)))?;
        let upper = paths::open_own_dir(&layers, "upper", 0o755, Some((0, 0)))?;
        let work = paths::open_own_dir(&layers, "work", 0o700, Some((0, 0)))?;
        let root = view::overlay(tree.file.as_fd(), upper.as_fd(), work.as_fd(), named)?;
        for place in ["/proc", "/sys", "/dev", "/run"] {
            paths::create_mount_point(&root, place, true)?;
        }
        for attachment in task_dirs {
            paths::create_mount_point(&root, &attachment.target, true)?;
        }
        for (_, point) in mounts {
            paths::create_mount_point(&root, &point.path, point.is_dir)?;
        }
        Ok(root)
    }
}

/// Returns a hint for the operator about a failed step.
fn hint(error: &SpawnError, program: &Path, raw: bool) -> &'static str {
    let (step, source) = match error {
        SpawnError::Clone { .. } | SpawnError::IntoCgroup { .. } => {
            return "the kernel made no process; look at pids.max, memory and `ulimit -u`";
        }
        SpawnError::Killed { .. } => {
            return "it was killed while it started; look at the task's memory limit";
        }
        SpawnError::Child { step, source, .. } => (*step, source),
    };
    match step {
        SpawnStep::JoinCgroup => "the process could not enter its cgroup",
        SpawnStep::Groups | SpawnStep::Group | SpawnStep::User => {
            "the process could not become its user"
        }
        SpawnStep::WorkDir => "the task's user cannot enter the working directory",
        SpawnStep::Namespaces
        | SpawnStep::Mounts
        | SpawnStep::Network
        | SpawnStep::UserNamespace => "the task could not be isolated",
        SpawnStep::Limits => {
            "a limit could not be set; only a driver with CAP_SYS_RESOURCE may raise one"
        }
        SpawnStep::Session
        | SpawnStep::Streams
        | SpawnStep::Capabilities
        | SpawnStep::CloseFiles
        | SpawnStep::NoNewPrivs
        | SpawnStep::Scope
        | SpawnStep::Seccomp => "the process could not be prepared",
        SpawnStep::Exec => match source.raw_os_error() {
            Some(libc::ENOENT) if program.exists() => {
                "the file is there, but its interpreter (first line, or dynamic loader) is not"
            }
            Some(libc::ENOENT) if raw => "command not found on the node",
            Some(libc::ENOENT) => "command, or its interpreter, not found in the task's root",
            Some(libc::EACCES) => "the task's user may not execute it",
            Some(libc::ENOEXEC) => "not a program: a script needs a first line like #!/bin/sh",
            Some(libc::E2BIG) => "arguments and environment are too large together",
            _ => "the program could not be loaded",
        },
    }
}

/// Returns the environment as given. Paths of the host are translated to the paths that the task sees.
fn environment(
    config: &TaskConfig,
    translation: &PathTranslation,
) -> Result<Vec<CString>, StartProcessError> {
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
            let value = translation.apply(value);
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
