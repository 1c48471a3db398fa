//! Starts the processes of actions, waits for them and ends them.
//!
//! A file of the task's directory names the last begun action before its process is made, and its process afterwards.
//! So a driver that finds the task after another one died can follow it, or say what ran.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::{BoxFuture, FutureExt};
use muster_domain::one_off::{Download, GRACE, Run, Upload, go_duration};
use muster_driver::{ExitResult, TaskConfig};
use rustix::process::Signal;
use tokio::net::unix::pipe::Sender;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::failure::{Failure, OUT_OF_MEMORY};
use super::resume::ResumedProcess;
use super::tree::{ActionExecutor, ActionStep, Output};
use super::{ActionProcess, KILLED, RunningTree};
use crate::cgroup::ActionCgroup;
use crate::command::{ProcessConfig, ProcessKind, StartProcessError, Streams, start_beside};
use crate::config::{HOME, NativeConfig};
use crate::isolation::task_dir;
use crate::node::{Node, chain};
use crate::process::Process;
use crate::task::{NativeTask, TaskProcess};
use crate::{limits, paths, transfer_helper};

/// The user that means the driver's default one, as in Diego's cells.
const DEFAULT_USER: &str = "vcap";
/// Holds the place of the action that was begun last.
const NOTE: &str = ".action";

/// Carries out the leaves of a task's tree as processes beside its first one.
pub(crate) struct NativeActionExecutor {
    pub(super) work: Arc<ActionContext>,
    spawns: Arc<Semaphore>,
    stdout: Option<Sender>,
    stderr: Option<Sender>,
    /// The action to go on from, until it is reached: everything before it is done.
    resumed: Mutex<Option<ResumedProcess>>,
}

/// The progress of an action under an earlier driver.
enum ActionProgress {
    Done,
    Here(ResumedProcess),
    /// Nothing: it is this driver's to begin.
    Over,
}

/// Data that a start needs, also after its caller is gone.
pub(super) struct ActionContext {
    pub(super) config: TaskConfig,
    pub(super) native: NativeConfig,
    pub(super) node: Arc<Node>,
    life: Arc<TaskProcess>,
    pub(super) tree: Arc<RunningTree>,
}

impl NativeActionExecutor {
    /// Hands for `task`. Needs a runtime to be entered.
    pub(crate) fn new(
        task: &NativeTask,
        (config, native): (&TaskConfig, &NativeConfig),
        tree: Arc<RunningTree>,
        spawns: &Arc<Semaphore>,
        resumed: Option<ResumedProcess>,
    ) -> Self {
        Self {
            resumed: Mutex::new(resumed),
            stdout: voice(paths::open_output(
                "stdout of the task",
                &config.stdout_path,
            )),
            stderr: voice(paths::open_output(
                "stderr of the task",
                &config.stderr_path,
            )),
            work: Arc::new(ActionContext {
                config: config.clone(),
                native: native.clone(),
                node: Arc::clone(&task.node),
                life: Arc::clone(&task.life),
                tree,
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
            ActionProgress::Done => return Ok(()),
            ActionProgress::Here(resumed) => return self.follow(run, step, stop, &resumed).await,
            ActionProgress::Over => {}
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
                let code = self.ended(run, entered, ended.map_err(lost)?, "").await;
                match code {
                    0 => Ok(()),
                    code => Err(Failure::exited(at, &step.source, code, self.work.out_of_memory())),
                }
            }
            () = stop.cancelled() => self.end(run, entered, at).await.map_err(lost)?,
        }
    }

    /// Whether the action at this place was carried out, or begun, by an earlier driver.
    fn replay(&self, at: &str) -> ActionProgress {
        let mut resumed = self.resumed.lock().unwrap_or_else(PoisonError::into_inner);
        match resumed.take_if(|resumed| resumed.at == at) {
            Some(here) => ActionProgress::Here(here),
            None if resumed.is_some() => ActionProgress::Done,
            None => ActionProgress::Over,
        }
    }

    fn is_replaying(&self) -> bool {
        let resumed = self.resumed.lock().unwrap_or_else(PoisonError::into_inner);
        resumed.is_some()
    }

    /// Follows an action to its end that an earlier driver started.
    async fn follow(
        &self,
        run: &Run,
        step: &ActionStep,
        stop: &CancellationToken,
        resumed: &ResumedProcess,
    ) -> Result<(), Failure> {
        let at = step.at.as_str();
        let lost = |error: io::Error| {
            let text = format!("the driver was started again while {at} ran: {error}");
            Failure::plain(at, text)
        };
        let _running = self.work.tree.follow(&resumed.process);
        let waiting = resumed.wait();
        tokio::pin!(waiting);
        let ended = tokio::select! {
            biased;
            ended = &mut waiting => ended.map_err(lost)?,
            () = stop.cancelled() => {
                resumed.process.signal(Signal::TERM).map_err(lost)?;
                let Ok(ended) = tokio::time::timeout(GRACE, &mut waiting).await else {
                    resumed.process.kill_group().map_err(lost)?;
                    return Err(Failure::overstayed(at));
                };
                ended.map_err(lost)?;
                return Err(Failure::cancelled(at));
            }
        };
        match self.report_exit(run, &ended, "").await {
            0 => Ok(()),
            code => Err(Failure::exited(
                at,
                &step.source,
                code,
                self.work.out_of_memory(),
            )),
        }
    }

    /// Starts the process; `None` if it is stopped before it is there, or the task is over.
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
        // Goes on when nobody waits: what it has started is killed then.
        let starting = tokio::task::spawn_blocking(move || work.start(begin));
        // A program that runs already is asked to end like any other, and most are loaded in a millisecond.
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

    /// Asks the process to end, and kills it when it does not.
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

    /// Takes and tells the exit code.
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

    /// Tells the exit code; that of a process that died by a signal is as a shell has it.
    async fn report_exit(&self, run: &Run, result: &ExitResult, more: &str) -> i32 {
        let code = match result.signal {
            0 => result.exit_code,
            signal => 128 + signal,
        };
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
            match self.replay(&step.at) {
                ActionProgress::Over => self.carry_in(download, &step, &stop).await,
                ActionProgress::Done | ActionProgress::Here(_) => Ok(()),
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
            match self.replay(&step.at) {
                ActionProgress::Over => self.carry_out(upload, &step, &stop).await,
                ActionProgress::Done | ActionProgress::Here(_) => Ok(()),
            }
        }
        .boxed()
    }

    /// A line that finds no room for a while is lost: nobody reads, and the work goes on.
    fn write_line<'a>(&'a self, output: Output, line: &'a str) -> BoxFuture<'a, ()> {
        let to = match output {
            Output::Stdout => self.stdout.as_ref(),
            Output::Stderr => self.stderr.as_ref(),
        };
        // An earlier driver has said it.
        let to = to.filter(|_| !self.is_replaying());
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

/// The writer for a FIFO of the task. The null device needs no writer.
fn voice(output: Result<OwnedFd, paths::PathError>) -> Option<Sender> {
    Sender::from_owned_fd(output.ok()?).ok()
}

impl ActionContext {
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

    /// Whether the first process has ended, so that nothing may be started beside it.
    fn is_over(&self) -> bool {
        self.tree.is_gone() || !matches!(self.life.process.ended(), Ok(None))
    }

    fn start_run(
        &self,
        run: &Run,
        step: &ActionStep,
    ) -> Result<Option<ActionProcess>, StartProcessError> {
        note(&self.config, &step.at);
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
        note_process(&self.config, &step.at, &process);
        Ok(self.tree.enter(process, action_cgroup))
    }

    /// Starts the porter as `user`, which carries `path` of the task.
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
        let spawned = start_beside(launch, &self.life.process, ProcessKind::Action)?;
        Process::started(&spawned).map_err(|error| {
            spawned.abandon();
            StartProcessError::Look(error)
        })
    }

    /// The task's configuration with what the action has of its own.
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

/// The directory in which images have the homes of their users.
const HOMES: &str = "/home";

/// The environment of a user's account, as Diego's containers have it.
fn account_env(user: &str, native: &NativeConfig) -> [(&'static str, String); 2] {
    let home = match user {
        _ if native.root.is_none() => HOME.to_owned(),
        "root" => "/root".to_owned(),
        user => format!("{HOMES}/{user}"),
    };
    [("HOME", home), ("USER", user.to_owned())]
}

/// An action's user is its own, not the task's.
fn become_user(config: &mut TaskConfig, native: &mut NativeConfig, user: &str) {
    config.user.clear();
    native.user = (user != DEFAULT_USER).then(|| user.to_owned());
}

/// Notes where in its tree the task is. Without a note the end of a dead driver's task names no action.
pub(super) fn note(config: &TaskConfig, at: &str) {
    write_note(config, at);
}

/// Notes the process of the action as well, so that another driver can follow it.
fn note_process(config: &TaskConfig, at: &str, process: &Process) {
    let (pid, start_ticks) = (process.pid, process.start_ticks);
    write_note(config, &format!("{at}\n{pid} {start_ticks}"));
}

/// Writes a note over the last one in a single call, so that a driver that dies leaves one of them whole.
fn write_note(config: &TaskConfig, text: &str) {
    let Some(dir) = task_dir(config) else { return };
    let text = format!("{text:\n<width$}", width = limits::ACTION_NOTE_BYTES);
    let noted = paths::create_own_file(&dir, NOTE)
        .map_err(io::Error::other)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    if let Err(error) = noted {
        warn!(task = config.id, %error, "the action that runs is not noted");
    }
}

/// The note of the action that was begun last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ActionNote {
    /// Its place; empty if nothing can be read.
    pub(crate) at: String,
    /// The pid and start time of its process; `None` if it may not have started.
    pub(crate) process: Option<(i32, u64)>,
}

impl ActionNote {
    /// Reads the note of a task.
    pub(crate) fn read(config: &TaskConfig) -> Self {
        let mut text = String::new();
        let file = task_dir(config).map(|dir| paths::open_own_file(&dir, NOTE));
        if let Some(Ok(file)) = file {
            let read = file
                .take(limits::ACTION_NOTE_BYTES_MAX)
                .read_to_string(&mut text);
            if read.is_err() {
                text.clear();
            }
        }
        Self::parse(&text)
    }

    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let at = lines.next().unwrap_or_default().to_owned();
        let words = lines.next().and_then(|line| line.split_once(' '));
        let process = words.and_then(|(pid, ticks)| Some((pid.parse().ok()?, ticks.parse().ok()?)));
        Self { at, process }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_names_action_and_process() {
        let noted = |text: &str| {
            let ActionNote { at, process } = ActionNote::parse(text);
            (at, process)
        };
        let at = || "serial[1].run".to_owned();
        assert_eq!(noted("serial[1].run\n17 9"), (at(), Some((17, 9))));
        assert_eq!(noted("serial[1].run\n\n\n"), (at(), None));
        assert_eq!(noted("serial[1].run\n17 x"), (at(), None));
        assert_eq!(noted(""), (String::new(), None));
    }
}
