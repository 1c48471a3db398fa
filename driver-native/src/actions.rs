//! Carries out a tree of actions as one task.
//!
//! The task's first process is the reaper of `init`, which does nothing else. All actions use its namespaces and its
//! mounts. The driver follows, finds, measures and kills a task with a tree like any other. `tree` implements the
//! kinds of actions, `executor` starts their processes. `transfer` implements downloads and uploads, `failure`
//! represents their failures, `result` reads the result file.
//!
//! When the tree has ended, every process left in the cgroup is killed, and only then has the task ended. When a
//! driver dies, the next driver continues the tree if that is possible (`resume`). Otherwise it ends the tree and
//! reports that. No action is started twice.

pub(crate) mod check;
mod executor;
mod failure;
mod progress;
mod result;
mod resume;
mod transfer;
mod tree;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::FutureExt;
use muster_driver::{ActionsEnd, ExitResult, TaskConfig};
use rustix::process::Signal;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::cgroup::ActionCgroup;
use crate::config::NativeConfig;
use crate::kill_on_drop::KillOnDrop;
use crate::limits;
use crate::process::Process;
use crate::task::NativeTask;
use executor::{NativeActionExecutor, lost_action};
use failure::Failure;
use progress::ProgressFile;
use resume::EarlierActions;

/// The failure reason of actions whose processes something else killed.
const KILLED: &str = "the task was killed";

/// The failure reason of successful actions without a result, as in Diego.
const NO_RESULT: &str = "failed to fetch result";

/// A running tree, as its task uses it.
#[derive(Debug, Default)]
pub(crate) struct RunningTree {
    /// Cancelled when no further action may start and running actions must end.
    stop: CancellationToken,
    /// Cancelled when the task's first process has ended. All processes in the cgroup are then killed, or will be.
    first_ended: CancellationToken,
    /// The processes of actions, in the order of their starts.
    running: Mutex<BTreeMap<u64, Process>>,
    next: AtomicU64,
    outcome: watch::Sender<Option<Outcome>>,
}

/// The result of a tree.
#[derive(Clone, Debug)]
struct Outcome {
    code: i32,
    end: ActionsEnd,
}

/// Starts the task's tree, if it has one. Must be called within a runtime.
pub(crate) fn begin(
    task: &NativeTask,
    config: &TaskConfig,
    native: &NativeConfig,
    spawn_permits: &Arc<Semaphore>,
) {
    let (Some(action), Some(tree)) = (&native.actions, &task.task_process.tree) else {
        return;
    };
    match ProgressFile::create(config, action) {
        Ok(file) => spawn_executor(
            task,
            (config, native),
            spawn_permits,
            (file, EarlierActions::default()),
        ),
        Err(error) => {
            let failure = Failure::plain("", format!("record the progress of actions: {error}"));
            end_before_actions(task, (config, native), tree, failure);
        }
    }
}

/// Carries out the rest of the tree after an earlier driver's part.
fn spawn_executor(
    task: &NativeTask,
    (config, native): (&TaskConfig, &NativeConfig),
    spawn_permits: &Arc<Semaphore>,
    (file, earlier): (ProgressFile, EarlierActions),
) {
    let (Some(action), Some(tree)) = (native.actions.clone(), task.task_process.tree.clone())
    else {
        return;
    };
    if !earlier.is_empty() {
        // The names of action cgroups are numbered, and cgroups of the earlier driver may still exist.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let first = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX / 2);
        tree.next.store(first, Ordering::Relaxed);
    }
    let (config, native) = (config.clone(), native.clone());
    let executor = NativeActionExecutor::new(
        task,
        (&config, &native),
        Arc::clone(&tree),
        spawn_permits,
        (file, earlier),
    );
    let (task_process, node) = (Arc::clone(&task.task_process), Arc::clone(&task.node));
    tokio::spawn(async move {
        let executing = tree::execute(&executor, &action, &native.log_source, &tree.stop);
        let ended = AssertUnwindSafe(executing).catch_unwind().await;
        let ended = ended.unwrap_or_else(|_panic| Err(Failure::plain("", "the driver failed")));
        debug!(task = config.id, ?ended, "the actions of a task ended");
        // The executor must not hold the task's output open once the task has ended.
        drop(executor);
        let bytes_max = node.policy().result_bytes_max;
        let read = move || outcome((&config, &native), bytes_max, ended);
        let read = tokio::task::spawn_blocking(read).await;
        tree.set_outcome(read.unwrap_or_else(|_panic| Outcome {
            code: 1,
            end: ActionsEnd::failure(NO_RESULT),
        }));
        if let Err(error) = task_process.kill_all() {
            warn!(pid = task_process.process.pid, %error, "cannot kill what actions left running");
        }
    });
}

/// Continues the tree of a task whose driver died, or ends the tree if that is impossible.
pub(crate) fn recover(
    task: &NativeTask,
    config: &TaskConfig,
    native: &NativeConfig,
    spawn_permits: &Arc<Semaphore>,
) {
    let (Some(action), Some(tree)) = (&native.actions, &task.task_process.tree) else {
        return;
    };
    let found = ProgressFile::open(config, action);
    let lost = match &found {
        Some((_, progress)) => resume::find_lost_action(progress),
        None => Some("an action"),
    };
    if let Some(action_path) = lost {
        let failure = lost_action(action_path);
        return end_before_actions(task, (config, native), tree, failure);
    }
    if let Some((file, progress)) = found {
        let earlier = EarlierActions::find(progress);
        spawn_executor(task, (config, native), spawn_permits, (file, earlier));
    }
}

/// Ends a tree that cannot be carried out.
fn end_before_actions(
    task: &NativeTask,
    (config, native): (&TaskConfig, &NativeConfig),
    tree: &RunningTree,
    failure: Failure,
) {
    tree.stop.cancel();
    let bytes_max = task.node.policy().result_bytes_max;
    tree.set_outcome(outcome((config, native), bytes_max, Err(failure)));
    if let Err(error) = task.task_process.kill_all() {
        warn!(task = config.id, %error, "cannot kill a task whose actions cannot be carried out");
    }
}

/// Builds the outcome of a tree for the client, and reads its result file.
fn outcome(
    (config, native): (&TaskConfig, &NativeConfig),
    result_bytes_max: usize,
    ended: Result<(), Failure>,
) -> Outcome {
    let mut end = ActionsEnd::default();
    let mut code = 0;
    match ended {
        Ok(()) => end.exited = true,
        Err(failure) => {
            end.failure_reason = failure.text;
            end.failed_action = failure.action_path;
            end.exited = failure.code.is_some();
            code = failure.code.unwrap_or(1);
        }
    }
    if native.result_file.is_empty() {
        return Outcome { code, end };
    }
    match result::read(config, native, result_bytes_max) {
        Ok(found) => {
            end.result = found.text;
            end.result_truncated = found.truncated;
        }
        Err(error) => {
            end.result_note = format!(
                "{}: {}",
                native.result_file,
                muster_domain::error_chain::chain(&error)
            );
            if native.result_required && code == 0 {
                code = 1;
                end.exited = false;
                NO_RESULT.clone_into(&mut end.failure_reason);
            }
        }
    }
    Outcome { code, end }
}

impl RunningTree {
    /// Starts no further action, and asks the running ones to end.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Starts no further action, because the first process has ended.
    pub(crate) fn mark_first_ended(&self) {
        self.first_ended.cancel();
    }

    /// Returns whether the first process has ended.
    fn has_first_ended(&self) -> bool {
        self.first_ended.is_cancelled()
    }

    /// Sends a signal to the processes of all running actions.
    pub(crate) fn signal(&self, signal: Signal) -> std::io::Result<()> {
        for process in self.lock().values() {
            process.signal(signal)?;
        }
        Ok(())
    }

    /// Returns the end of the task, given the end of its first process. The end of the task is that of its tree, which
    /// ends soon after.
    pub(crate) async fn wait_result(&self, first: ExitResult) -> ExitResult {
        let mut outcome = self.outcome.subscribe();
        let ended = outcome.wait_for(Option::is_some);
        let outcome = match tokio::time::timeout(limits::ACTIONS_END_DEADLINE, ended).await {
            Ok(Ok(ended)) => ended.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        let outcome = outcome.unwrap_or_else(|| Outcome {
            code: 1,
            end: ActionsEnd::failure(KILLED),
        });
        ExitResult {
            oom_killed: first.oom_killed,
            actions: Some(Box::new(outcome.end)),
            ..ExitResult::exited(outcome.code)
        }
    }

    /// Records the outcome; later outcomes are ignored.
    fn set_outcome(&self, outcome: Outcome) {
        self.outcome.send_if_modified(|known| {
            let first = known.is_none();
            if first {
                *known = Some(outcome);
            }
            first
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Process>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a name that no other action of the tree has.
    fn action_cgroup_name(&self) -> String {
        format!("action-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers a process that an earlier driver started. Dropping the returned value removes it.
    fn register_adopted(self: &Arc<Self>, process: &Process) -> AdoptedProcess {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, process.clone());
        AdoptedProcess {
            tree: Arc::clone(self),
            number,
        }
    }

    /// Registers a running process. If the task has ended, the process is killed instead.
    fn register(
        self: &Arc<Self>,
        process: Process,
        action_cgroup: Option<ActionCgroup>,
    ) -> Option<ActionProcess> {
        let guard = KillOnDrop::new(process.clone());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, process.clone());
        let running = ActionProcess {
            tree: Arc::clone(self),
            number,
            process,
            guard: Some(guard),
            action_cgroup,
        };
        // Checked after the entry: code that sets the flag later kills every entered process.
        (!self.has_first_ended()).then_some(running)
    }
}

/// A process of an action that an earlier driver started.
#[derive(Debug)]
struct AdoptedProcess {
    tree: Arc<RunningTree>,
    number: u64,
}

impl Drop for AdoptedProcess {
    fn drop(&mut self) {
        self.tree.lock().remove(&self.number);
    }
}

/// A process of an action. Dropping this value kills the process.
#[derive(Debug)]
struct ActionProcess {
    tree: Arc<RunningTree>,
    number: u64,
    process: Process,
    guard: Option<KillOnDrop>,
    /// The cgroup of the process and its descendants, if they may have to be killed without the task.
    action_cgroup: Option<ActionCgroup>,
}

impl ActionProcess {
    async fn wait(&self) -> std::io::Result<ExitResult> {
        match &self.guard {
            Some(guard) => guard.wait().await,
            None => Err(std::io::Error::other("the process was reaped")),
        }
    }

    /// Marks that the process ended by itself; processes that it left running continue.
    fn reap(mut self) {
        if let Some(guard) = self.guard.take() {
            guard.reap();
        }
        if let Some(action_cgroup) = self.action_cgroup.take() {
            action_cgroup.keep_processes();
        }
    }

    /// Kills the process with its group, and all its descendants if it has a separate cgroup.
    fn kill(&self) -> std::io::Result<()> {
        if let Some(action_cgroup) = &self.action_cgroup {
            action_cgroup.kill();
        }
        self.process.kill_group()
    }

    /// Kills everything that a stopped process left running.
    async fn kill_descendants(&mut self) {
        if let Some(action_cgroup) = self.action_cgroup.take() {
            action_cgroup.kill_and_wait().await;
        }
    }
}

impl Drop for ActionProcess {
    fn drop(&mut self) {
        self.tree.lock().remove(&self.number);
    }
}
