//! Starts the processes of actions, waits for them and stops them.
//!
//! The progress of each action is recorded (`progress`), so that the next driver can continue after this driver's
//! death.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use muster_domain::error_chain::chain;
use muster_domain::one_off::{Download, GRACE, Run, Upload, go_duration};
use muster_domain::saturating;
use muster_driver::{ExitResult, TaskConfig};
use rustix::process::Signal;
use tokio::net::unix::pipe::Sender;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::failure::{Failure, OUT_OF_MEMORY};
use super::progress::{ActionProgress, ProgressFile, boot_milliseconds};
use super::resume::{EarlierAction, EarlierActions, EarlierProcess};
use super::tree::{ActionExecutor, ActionStep, Output};
use super::{ActionProcess, KILLED, RunningTree};
use crate::cgroup::ActionCgroup;
use crate::command::{ProcessConfig, ProcessKind, StartProcessError, Streams, start_in_task};
use crate::config::{HOME, NativeConfig};
use crate::node::Node;
use crate::process::Process;
use crate::task::{NativeTask, TaskProcess};
use crate::{limits, paths, transfer_helper};

/// The user name that means the driver's default user, as in Diego's cells.
const DEFAULT_USER: &str = "vcap";

/// Carries out the leaves of a task's tree as processes next to its first process.
pub(crate) struct NativeActionExecutor {
    pub(super) context: Arc<ActionContext>,
    spawn_permits: Arc<Semaphore>,
    stdout: Option<Sender>,
    stderr: Option<Sender>,
    /// The actions of an earlier driver that the tree has not reached again.
    earlier: Mutex<EarlierActions>,
    /// The tree has not reached an action yet that this driver must start itself. Until then, the earlier driver has
    /// written all lines.
    is_replaying: AtomicBool,
}

/// The data of a start, which may outlive its caller.
pub(super) struct ActionContext {
    pub(super) config: TaskConfig,
    pub(super) native: NativeConfig,
    pub(super) node: Arc<Node>,
    task_process: Arc<TaskProcess>,
    pub(super) tree: Arc<RunningTree>,
    pub(super) progress: ProgressFile,
}

impl NativeActionExecutor {
    /// Creates the executor of `task`, after an earlier driver's part of its tree. Must be called within a runtime.
    pub(crate) fn new(
        task: &NativeTask,
        (config, native): (&TaskConfig, &NativeConfig),
        tree: Arc<RunningTree>,
        spawn_permits: &Arc<Semaphore>,
        (progress, earlier): (ProgressFile, EarlierActions),
    ) -> Self {
        Self {
            is_replaying: AtomicBool::new(!earlier.is_empty()),
            earlier: Mutex::new(earlier),
            stdout: output_sender(paths::open_output(
                "stdout of the task",
                &config.stdout_path,
            )),
            stderr: output_sender(paths::open_output(
                "stderr of the task",
                &config.stderr_path,
            )),
            context: Arc::new(ActionContext {
                config: config.clone(),
                native: native.clone(),
                node: Arc::clone(&task.node),
                task_process: Arc::clone(&task.task_process),
                tree,
                progress,
            }),
            spawn_permits: Arc::clone(spawn_permits),
        }
    }

    async fn run_to_end(
        &self,
        run: &Run,
        step: &ActionStep,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let action_path = step.action_path.as_str();
        match self.take_earlier(action_path) {
            Some(EarlierAction::Ended(0)) => return Ok(()),
            Some(EarlierAction::Ended(code)) => return Err(self.exited(step, code)),
            Some(EarlierAction::Running(process)) => {
                return self.follow(run, step, stop, &process).await;
            }
            Some(EarlierAction::Lost | EarlierAction::Until(_)) => {
                return Err(lost_action(action_path));
            }
            None => {}
        }
        let running = match self.start(run, step, stop).await {
            Ok(Some(running)) => running,
            Ok(None) if stop.is_cancelled() => return Err(Failure::cancelled(action_path)),
            Ok(None) => return Err(Failure::plain(action_path, KILLED)),
            Err(reason) => {
                self.write_progress(run, &format!("failed-creating-process: {reason}"))
                    .await;
                return Err(Failure::plain(action_path, reason));
            }
        };
        let lost =
            |error: io::Error| Failure::plain(action_path, format!("follow {}: {error}", run.path));
        tokio::select! {
            biased;
            ended = running.wait() => {
                let ended = ended.map_err(lost)?;
                self.context.record(action_path, ActionProgress::Ended(exit_code(&ended)));
                match self.reap_and_report(run, running, ended, "").await {
                    0 => Ok(()),
                    code => Err(self.exited(step, code)),
                }
            }
            () = stop.cancelled() => {
                self.stop_process(run, running, action_path).await.map_err(lost)?
            }
        }
    }

    /// Returns the action at this place, if an earlier driver started it.
    fn take_earlier(&self, action_path: &str) -> Option<EarlierAction> {
        let mut earlier = self.lock_earlier();
        let action = earlier.take(action_path);
        if action.is_none() || earlier.is_empty() {
            self.is_replaying.store(false, Ordering::Relaxed);
        }
        action
    }

    /// Returns the success or failure of a transfer that an earlier driver carried out; `None` if there was none.
    fn take_earlier_transfer(&self, action_path: &str) -> Option<Result<(), Failure>> {
        Some(match self.take_earlier(action_path)? {
            EarlierAction::Ended(_) => Ok(()),
            EarlierAction::Running(_) | EarlierAction::Lost | EarlierAction::Until(_) => {
                Err(lost_action(action_path))
            }
        })
    }

    fn lock_earlier(&self) -> MutexGuard<'_, EarlierActions> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exited(&self, step: &ActionStep, code: i32) -> Failure {
        Failure::exited(
            &step.action_path,
            &step.source,
            code,
            self.context.out_of_memory(),
        )
    }

    /// Follows an action of an earlier driver to its end.
    async fn follow(
        &self,
        run: &Run,
        step: &ActionStep,
        stop: &CancellationToken,
        earlier: &EarlierProcess,
    ) -> Result<(), Failure> {
        let action_path = step.action_path.as_str();
        let lost = |error: io::Error| {
            let text = format!("the driver was started again while {action_path} ran: {error}");
            Failure::plain(action_path, text)
        };
        let _running = self.context.tree.register_adopted(&earlier.0);
        let waiting = earlier.wait();
        tokio::pin!(waiting);
        let ended = tokio::select! {
            biased;
            ended = &mut waiting => ended.map_err(lost)?,
            () = stop.cancelled() => {
                earlier.0.signal(Signal::TERM).map_err(lost)?;
                let Ok(ended) = tokio::time::timeout(GRACE, &mut waiting).await else {
                    earlier.0.kill_group().map_err(lost)?;
                    return Err(Failure::stop_timed_out(action_path));
                };
                ended.map_err(lost)?;
                return Err(Failure::cancelled(action_path));
            }
        };
        self.context
            .record(action_path, ActionProgress::Ended(exit_code(&ended)));
        match self.report_exit(run, &ended, "").await {
            0 => Ok(()),
            code => Err(self.exited(step, code)),
        }
    }

    /// Starts the process; returns `None` if the action is stopped before the process exists, or if the task has
    /// ended.
    async fn start(
        &self,
        run: &Run,
        step: &ActionStep,
        stop: &CancellationToken,
    ) -> Result<Option<ActionProcess>, String> {
        let (run, step) = (run.clone(), step.clone());
        self.start_process(stop, move |context| context.start_run(&run, &step))
            .await
    }

    /// Starts a process on a thread that may block.
    pub(super) async fn start_process(
        &self,
        stop: &CancellationToken,
        begin: impl FnOnce(&ActionContext) -> Result<Option<ActionProcess>, StartProcessError>
        + Send
        + 'static,
    ) -> Result<Option<ActionProcess>, String> {
        let permit = stop.run_until_cancelled(self.spawn_permits.acquire()).await;
        if permit.is_none() {
            return Ok(None);
        }
        let context = Arc::clone(&self.context);
        // The start continues when the caller goes away. The started process is then killed.
        let starting = tokio::task::spawn_blocking(move || context.start(begin));
        // A program that already runs is asked to end like any other, and most programs are loaded within a
        // millisecond.
        let stop_deadline = async {
            stop.cancelled().await;
            tokio::time::sleep(limits::ACTION_EXIT_DEADLINE).await;
        };
        tokio::select! {
            biased;
            started = starting => match started {
                Ok(started) => started.map_err(|error| chain(&error)),
                Err(_panic) => Err("the driver failed".to_owned()),
            },
            () = stop_deadline => Ok(None),
        }
    }

    /// Asks the process to end, and kills it when it does not end in time.
    async fn stop_process(
        &self,
        run: &Run,
        mut running: ActionProcess,
        action_path: &str,
    ) -> io::Result<Result<(), Failure>> {
        running.process.signal(Signal::TERM)?;
        if let Ok(ended) = tokio::time::timeout(GRACE, running.wait()).await {
            running.kill_descendants().await;
            self.reap_and_report(run, running, ended?, "").await;
            return Ok(Err(Failure::cancelled(action_path)));
        }
        running.kill()?;
        let killed = tokio::time::timeout(limits::ACTION_EXIT_DEADLINE, running.wait()).await;
        let Ok(ended) = killed else {
            return Ok(Err(Failure::plain(action_path, "process did not exit")));
        };
        running.kill_descendants().await;
        let late = format!(
            " (exceeded {} graceful shutdown interval)",
            go_duration(GRACE)
        );
        self.reap_and_report(run, running, ended?, &late).await;
        Ok(Err(Failure::stop_timed_out(action_path)))
    }

    /// Reaps the process and reports its exit code.
    async fn reap_and_report(
        &self,
        run: &Run,
        running: ActionProcess,
        result: ExitResult,
        more: &str,
    ) -> i32 {
        running.reap();
        self.report_exit(run, &result, more).await
    }

    /// Writes the exit code to the log. The code of a process that a signal killed is that of a shell.
    async fn report_exit(&self, run: &Run, result: &ExitResult, more: &str) -> i32 {
        let code = exit_code(result);
        let memory = if code != 0 && self.context.out_of_memory() {
            OUT_OF_MEMORY
        } else {
            ""
        };
        self.write_progress(run, &format!("Exit status {code}{more}{memory}"))
            .await;
        code
    }

    async fn write_progress(&self, run: &Run, line: &str) {
        if !run.suppress_log_output {
            self.write_line(Output::Stdout, line).await;
        }
    }
}

impl ActionExecutor for NativeActionExecutor {
    fn run<'a>(
        &'a self,
        run: &'a Run,
        step: ActionStep,
        stop: CancellationToken,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move { self.run_to_end(run, &step, &stop).await }.boxed()
    }

    fn download<'a>(
        &'a self,
        download: &'a Download,
        step: ActionStep,
        stop: CancellationToken,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            match self.take_earlier_transfer(&step.action_path) {
                Some(ended) => ended,
                None => self.run_download(download, &step, &stop).await,
            }
        }
        .boxed()
    }

    fn upload<'a>(
        &'a self,
        upload: &'a Upload,
        step: ActionStep,
        stop: CancellationToken,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            match self.take_earlier_transfer(&step.action_path) {
                Some(ended) => ended,
                None => self.run_upload(upload, &step, &stop).await,
            }
        }
        .boxed()
    }

    fn time_left(&self, action_path: &str, bound: Duration) -> Duration {
        if let Some(left) = self.lock_earlier().take_time_left(action_path) {
            return left.min(bound);
        }
        let bound_ms = saturating::millis(bound);
        let until = boot_milliseconds().saturating_add(bound_ms);
        self.context
            .record(action_path, ActionProgress::Until(until));
        bound
    }

    /// Writes a line. A line that finds no room in time is lost: no process reads the output, and the actions
    /// continue.
    fn write_line<'a>(&'a self, output: Output, line: &'a str) -> BoxFuture<'a, ()> {
        let to = match output {
            Output::Stdout => self.stdout.as_ref(),
            Output::Stderr => self.stderr.as_ref(),
        };
        // An earlier driver has written the line.
        let to = to.filter(|_| !self.is_replaying.load(Ordering::Relaxed));
        async move {
            let Some(to) = to else { return };
            let line = format!("{line}\n");
            let writing = write_all(to, line.as_bytes());
            match tokio::time::timeout(limits::ACTION_LINE_DEADLINE, writing).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn!(%error, "a line of an action is lost"),
                Err(_elapsed) => warn!("a line of an action is lost: the task's output is full"),
            }
        }
        .boxed()
    }
}

async fn write_all(to: &Sender, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the writer for a FIFO of the task. The null device needs no writer.
fn output_sender(output: Result<OwnedFd, paths::PathError>) -> Option<Sender> {
    Sender::from_owned_fd(output.ok()?).ok()
}

impl ActionContext {
    /// Records the progress of a started action. Without the record, the next driver treats the action as failed.
    pub(super) fn record(&self, action_path: &str, progress: ActionProgress) {
        if let Err(error) = self.progress.write(action_path, progress) {
            warn!(task = self.config.id, at = action_path, %error,
                "the progress of an action is not recorded");
        }
    }

    pub(super) fn out_of_memory(&self) -> bool {
        let cgroup = self.task_process.cgroup.as_ref();
        cgroup.is_some_and(|cgroup| cgroup.oom_kills() > 0)
    }

    /// Starts a process of an action. Blocks until its program is loaded.
    fn start(
        &self,
        begin: impl FnOnce(&Self) -> Result<Option<ActionProcess>, StartProcessError>,
    ) -> Result<Option<ActionProcess>, StartProcessError> {
        if self.is_over() {
            return Ok(None);
        }
        match begin(self) {
            Err(_) if self.is_over() => Ok(None),
            started => started,
        }
    }

    /// Returns whether the first process has ended, so that no process may be started next to it.
    fn is_over(&self) -> bool {
        self.tree.has_first_ended() || !matches!(self.task_process.process.ended(), Ok(None))
    }

    fn start_run(
        &self,
        run: &Run,
        step: &ActionStep,
    ) -> Result<Option<ActionProcess>, StartProcessError> {
        let begun = self
            .progress
            .write(&step.action_path, ActionProgress::Begun);
        begun.map_err(StartProcessError::Record)?;
        let (config, native) = self.action_config(run);
        let streams = if run.suppress_log_output {
            Streams {
                stdin: paths::open_null()?,
                stdout: paths::open_null()?,
                stderr: paths::open_null()?,
            }
        } else {
            Streams::of_task(&config)?
        };
        let cgroup = self.task_process.cgroup.as_ref();
        let action_cgroup = cgroup.filter(|_| step.has_own_cgroup);
        let action_cgroup =
            action_cgroup.map(|cgroup| ActionCgroup::make(cgroup, &self.tree.action_cgroup_name()));
        let action_cgroup = action_cgroup
            .transpose()
            .map_err(StartProcessError::Inspect)?;
        let launch = ProcessConfig {
            config: &config,
            native: &native,
            node: &self.node,
            cgroup: action_cgroup.as_ref().map(ActionCgroup::cgroup).or(cgroup),
            command: &run.path,
            args: &run.args,
            driver_program: None,
            streams: &streams,
            terminal: None,
        };
        let process = self.start_in_task(&launch)?;
        if let Err(error) = self.progress.write_process(&step.action_path, &process) {
            warn!(task = self.config.id, %error, "the process of an action is not recorded");
        }
        Ok(self.tree.register(process, action_cgroup))
    }

    /// Starts the porter as `user`, to carry the file or directory `path` of the task.
    pub(super) fn start_transfer_helper(
        &self,
        user: &str,
        direction: transfer_helper::Direction,
        path: &str,
        streams: &Streams,
    ) -> Result<Option<ActionProcess>, StartProcessError> {
        let (mut config, mut native) = (self.config.clone(), self.native.clone());
        become_user(&mut config, &mut native, user);
        let process = self.start_in_task(&ProcessConfig {
            config: &config,
            native: &native,
            node: &self.node,
            cgroup: self.task_process.cgroup.as_ref(),
            command: &transfer_helper::NAME.to_string_lossy(),
            args: &[direction.as_str().to_owned(), path.to_owned()],
            driver_program: Some(self.node.porter_program()?),
            streams,
            terminal: None,
        })?;
        Ok(self.tree.register(process, None))
    }

    fn start_in_task(&self, launch: &ProcessConfig<'_>) -> Result<Process, StartProcessError> {
        let spawned = start_in_task(launch, &self.task_process.process, ProcessKind::Action)?;
        Process::started(&spawned).map_err(|error| {
            spawned.kill_and_reap();
            StartProcessError::Inspect(error)
        })
    }

    /// Returns the task's configuration with the action's own settings.
    fn action_config(&self, run: &Run) -> (TaskConfig, NativeConfig) {
        let (mut config, mut native) = (self.config.clone(), self.native.clone());
        for (name, value) in account_env(&run.user, &native) {
            config.env.entry(name.to_owned()).or_insert(value);
        }
        let env = run.env.iter();
        config
            .env
            .extend(env.map(|var| (var.name.clone(), var.value.clone())));
        become_user(&mut config, &mut native, &run.user);
        if !run.dir.is_empty() {
            native.work_dir = Some(run.dir.clone());
        }
        if let Some(nofile) = run.resource_limits.and_then(|limits| limits.nofile) {
            native
                .rlimits
                .insert("nofile".to_owned(), nofile.to_string());
        }
        (config, native)
    }
}

/// The directory of home directories in images.
const HOMES: &str = "/home";

/// Returns the environment of a user's account, as in Diego's containers.
fn account_env(user: &str, native: &NativeConfig) -> [(&'static str, String); 2] {
    let home = match user {
        _ if native.root.is_none() => HOME.to_owned(),
        "root" => "/root".to_owned(),
        user => format!("{HOMES}/{user}"),
    };
    [("HOME", home), ("USER", user.to_owned())]
}

/// Sets the action's user in place of the task's.
fn become_user(config: &mut TaskConfig, native: &mut NativeConfig, user: &str) {
    config.user.clear();
    native.user = (user != DEFAULT_USER).then(|| user.to_owned());
}

/// Returns the exit code of a shell, also for a process that a signal killed.
fn exit_code(result: &ExitResult) -> i32 {
    match result.signal {
        0 => result.exit_code,
        signal => 128 + signal,
    }
}

/// Creates the failure of an action whose end no driver saw.
pub(super) fn lost_action(action_path: &str) -> Failure {
    let text = format!("the driver was started again while {action_path} ran");
    Failure::plain(action_path, text)
}
