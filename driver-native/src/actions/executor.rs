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
    pub(super) work: Arc<ActionContext>,
    spawns: Arc<Semaphore>,
    stdout: Option<Sender>,
    stderr: Option<Sender>,
    /// The actions of an earlier driver that the tree has not reached again.
    earlier: Mutex<EarlierActions>,
    /// The tree has not reached an action yet that this driver must start itself. Until then, the earlier driver has
    /// written all lines.
    replays: AtomicBool,
}

/// The data of a start, which may outlive its caller.
pub(super) struct ActionContext {
    pub(super) config: TaskConfig,
    pub(super) native: NativeConfig,
    pub(super) node: Arc<Node>,
    life: Arc<TaskProcess>,
    pub(super) tree: Arc<RunningTree>,
    pub(super) progress: ProgressFile,
}

impl NativeActionExecutor {
    /// Creates the executor of `task`, after an earlier driver's part of its tree. Must be called within a runtime.
    pub(crate) fn new(
        task: &NativeTask,
        (config, native): (&TaskConfig, &NativeConfig),
        tree: Arc<RunningTree>,
        spawns: &Arc<Semaphore>,
        (progress, earlier): (ProgressFile, EarlierActions),
    ) -> Self {
        Self {
            replays: AtomicBool::new(!earlier.is_empty()),
            earlier: Mutex::new(earlier),
            stdout: output_sender(paths::open_output(
                "stdout of the task",
                &config.stdout_path,
            )),
            stderr: output_sender(paths::open_output(
                "stderr of the task",
                &config.stderr_path,
            )),
            work: Arc::new(ActionContext {
                config: config.clone(),
                native: native.clone(),
                node: Arc::clone(&task.node),
                life: Arc::clone(&task.life),
                tree,
                progress,
            }),
            spawns: Arc::clone(spawns),
        }
    }

    async fn run_to_end(
        &self,
        run: &Run,
        step: &ActionStep,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let at = step.at.as_str();
        match self.replay(at) {
            Some(EarlierAction::Ended(0)) => return Ok(()),
            Some(EarlierAction::Ended(code)) => return Err(self.exited(step, code)),
            Some(EarlierAction::Runs(process)) => {
                return self.follow(run, step, stop, &process).await;
            }
            Some(EarlierAction::Lost | EarlierAction::Until(_)) => return Err(lost_action(at)),
            None => {}
        }
        let entered = match self.start(run, step, stop).await {
            Ok(Some(entered)) => entered,
            Ok(None) if stop.is_cancelled() => return Err(Failure::cancelled(at)),
            Ok(None) => return Err(Failure::plain(at, KILLED)),
            Err(reason) => {
                self.write_progress(run, &format!("failed-creating-process: {reason}"))
                    .await;
                return Err(Failure::plain(at, reason));
            }
        };
        let lost = |error: io::Error| Failure::plain(at, format!("follow {}: {error}", run.path));
        tokio::select! {
            biased;
            ended = entered.wait() => {
                let ended = ended.map_err(lost)?;
                self.work.record(at, ActionProgress::Ended(exit_code(&ended)));
                match self.ended(run, entered, ended, "").await {
                    0 => Ok(()),
                    code => Err(self.exited(step, code)),
                }
            }
            () = stop.cancelled() => self.end(run, entered, at).await.map_err(lost)?,
        }
    }

    /// Returns the action at this place, if an earlier driver started it.
    fn replay(&self, at: &str) -> Option<EarlierAction> {
        let mut earlier = self.lock_earlier();
        let action = earlier.take(at);
        if action.is_none() || earlier.is_empty() {
            self.replays.store(false, Ordering::Relaxed);
        }
        action
    }

    /// Returns the success or failure of a transfer that an earlier driver carried out; `None` if there was none.
    fn replay_transfer(&self, at: &str) -> Option<Result<(), Failure>> {
        Some(match self.replay(at)? {
            EarlierAction::Ended(_) => Ok(()),
            EarlierAction::Runs(_) | EarlierAction::Lost | EarlierAction::Until(_) => {
                Err(lost_action(at))
            }
        })
    }

    fn lock_earlier(&self) -> MutexGuard<'_, EarlierActions> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exited(&self, step: &ActionStep, code: i32) -> Failure {
        Failure::exited(&step.at, &step.source, code, self.work.out_of_memory())
    }

    /// Follows an action of an earlier driver to its end.
    async fn follow(
        &self,
        run: &Run,
        step: &ActionStep,
        stop: &CancellationToken,
        earlier: &EarlierProcess,
    ) -> Result<(), Failure> {
        let at = step.at.as_str();
        let lost = |error: io::Error| {
            let text = format!("the driver was started again while {at} ran: {error}");
            Failure::plain(at, text)
        };
        let _running = self.work.tree.follow(&earlier.0);
        let waiting = earlier.wait();
        tokio::pin!(waiting);
        let ended = tokio::select! {
            biased;
            ended = &mut waiting => ended.map_err(lost)?,
            () = stop.cancelled() => {
                earlier.0.signal(Signal::TERM).map_err(lost)?;
                let Ok(ended) = tokio::time::timeout(GRACE, &mut waiting).await else {
                    earlier.0.kill_group().map_err(lost)?;
                    return Err(Failure::overstayed(at));
                };
                ended.map_err(lost)?;
                return Err(Failure::cancelled(at));
            }
        };
        self.work
            .record(at, ActionProgress::Ended(exit_code(&ended)));
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
        self.begun(stop, move |work| work.start_run(&run, &step))
            .await
    }

    /// Starts a process on a thread that may block.
    pub(super) async fn begun(
        &self,
        stop: &CancellationToken,
        begin: impl FnOnce(&ActionContext) -> Result<Option<ActionProcess>, StartProcessError>
        + Send
        + 'static,
    ) -> Result<Option<ActionProcess>, String> {
        let permit = stop.run_until_cancelled(self.spawns.acquire()).await;
        if permit.is_none() {
            return Ok(None);
        }
        let work = Arc::clone(&self.work);
        // The start continues when the caller goes away. The started process is then killed.
        let starting = tokio::task::spawn_blocking(move || work.start(begin));
        // A program that already runs is asked to end like any other, and most programs are loaded within a
        // millisecond.
        let patience = async {
            stop.cancelled().await;
            tokio::time::sleep(limits::ACTION_EXIT_DEADLINE).await;
        };
        tokio::select! {
            biased;
            started = starting => match started {
                Ok(started) => started.map_err(|error| chain(&error)),
                Err(_panic) => Err("the driver failed".to_owned()),
            },
            () = patience => Ok(None),
        }
    }

    /// Asks the process to end, and kills it when it does not end in time.
    async fn end(
        &self,
        run: &Run,
        mut entered: ActionProcess,
        at: &str,
    ) -> io::Result<Result<(), Failure>> {
        entered.process.signal(Signal::TERM)?;
        if let Ok(ended) = tokio::time::timeout(GRACE, entered.wait()).await {
            entered.clear().await;
            self.ended(run, entered, ended?, "").await;
            return Ok(Err(Failure::cancelled(at)));
        }
        entered.kill()?;
        let killed = tokio::time::timeout(limits::ACTION_EXIT_DEADLINE, entered.wait()).await;
        let Ok(ended) = killed else {
            return Ok(Err(Failure::plain(at, "process did not exit")));
        };
        entered.clear().await;
        let late = format!(
            " (exceeded {} graceful shutdown interval)",
            go_duration(GRACE)
        );
        self.ended(run, entered, ended?, &late).await;
        Ok(Err(Failure::overstayed(at)))
    }

    /// Reaps the process and reports its exit code.
    async fn ended(
        &self,
        run: &Run,
        entered: ActionProcess,
        result: ExitResult,
        more: &str,
    ) -> i32 {
        entered.done();
        self.report_exit(run, &result, more).await
    }

    /// Writes the exit code to the log. The code of a process that a signal killed is that of a shell.
    async fn report_exit(&self, run: &Run, result: &ExitResult, more: &str) -> i32 {
        let code = exit_code(result);
        let memory = if code != 0 && self.work.out_of_memory() {
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
            match self.replay_transfer(&step.at) {
                Some(ended) => ended,
                None => self.carry_in(download, &step, &stop).await,
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
            match self.replay_transfer(&step.at) {
                Some(ended) => ended,
                None => self.carry_out(upload, &step, &stop).await,
            }
        }
        .boxed()
    }

    fn time_left(&self, at: &str, bound: Duration) -> Duration {
        if let Some(left) = self.lock_earlier().take_time_left(at) {
            return left.min(bound);
        }
        let bound_ms = saturating::millis(bound);
        let until = boot_milliseconds().saturating_add(bound_ms);
        self.work.record(at, ActionProgress::Until(until));
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
        let to = to.filter(|_| !self.replays.load(Ordering::Relaxed));
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
    pub(super) fn record(&self, at: &str, progress: ActionProgress) {
        if let Err(error) = self.progress.write(at, progress) {
            warn!(task = self.config.id, at, %error, "the progress of an action is not recorded");
        }
    }

    pub(super) fn out_of_memory(&self) -> bool {
        let cgroup = self.life.cgroup.as_ref();
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
        self.tree.is_gone() || !matches!(self.life.process.ended(), Ok(None))
    }

    fn start_run(
        &self,
        run: &Run,
        step: &ActionStep,
    ) -> Result<Option<ActionProcess>, StartProcessError> {
        let begun = self.progress.write(&step.at, ActionProgress::Begun);
        begun.map_err(StartProcessError::Record)?;
        let (config, native) = self.configured(run);
        let streams = if run.suppress_log_output {
            Streams {
                stdin: paths::open_null()?,
                stdout: paths::open_null()?,
                stderr: paths::open_null()?,
            }
        } else {
            Streams::of_task(&config)?
        };
        let cgroup = self.life.cgroup.as_ref();
        let action_cgroup = cgroup.filter(|_| step.has_own_cgroup);
        let action_cgroup =
            action_cgroup.map(|cgroup| ActionCgroup::make(cgroup, &self.tree.action_cgroup_name()));
        let action_cgroup = action_cgroup.transpose().map_err(StartProcessError::Look)?;
        let launch = ProcessConfig {
            config: &config,
            native: &native,
            node: &self.node,
            cgroup: action_cgroup.as_ref().map(ActionCgroup::cgroup).or(cgroup),
            command: &run.path,
            args: &run.args,
            own: None,
            streams: &streams,
            terminal: None,
        };
        let process = self.start_in_task(&launch)?;
        if let Err(error) = self.progress.write_process(&step.at, &process) {
            warn!(task = self.config.id, %error, "the process of an action is not recorded");
        }
        Ok(self.tree.enter(process, action_cgroup))
    }

    /// Starts the porter as `user`, to carry the file or directory `path` of the task.
    pub(super) fn start_transfer_helper(
        &self,
        user: &str,
        way: transfer_helper::Direction,
        path: &str,
        streams: &Streams,
    ) -> Result<Option<ActionProcess>, StartProcessError> {
        let (mut config, mut native) = (self.config.clone(), self.native.clone());
        become_user(&mut config, &mut native, user);
        let process = self.start_in_task(&ProcessConfig {
            config: &config,
            native: &native,
            node: &self.node,
            cgroup: self.life.cgroup.as_ref(),
            command: &transfer_helper::NAME.to_string_lossy(),
            args: &[way.as_str().to_owned(), path.to_owned()],
            own: Some(self.node.porter()?),
            streams,
            terminal: None,
        })?;
        Ok(self.tree.enter(process, None))
    }

    fn start_in_task(&self, launch: &ProcessConfig<'_>) -> Result<Process, StartProcessError> {
        let spawned = start_in_task(launch, &self.life.process, ProcessKind::Action)?;
        Process::started(&spawned).map_err(|error| {
            spawned.abandon();
            StartProcessError::Look(error)
        })
    }

    /// Returns the task's configuration with the action's own settings.
    fn configured(&self, run: &Run) -> (TaskConfig, NativeConfig) {
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
pub(super) fn lost_action(at: &str) -> Failure {
    let text = format!("the driver was started again while {at} ran");
    Failure::plain(at, text)
}
