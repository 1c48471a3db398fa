//! Carries out a tree of actions as one task.
//!
//! The task's first process is the reaper of `init`, which does nothing else. Its namespaces and its view are those of
//! every action. A task with a tree is followed, found, measured and killed by it like any other. `tree` gives the
//! kinds of actions their meaning, `hands` starts their processes. `transfer` is downloads and uploads, `failure` is
//! the way they fail, `result` reads the client's result.
//!
//! When the tree has ended, every process left in the cgroup is killed, and only then has the task ended. When a driver
//! dies, the next one goes on with the tree where that can be (`resume`), and else ends it and says so. No action is
//! begun twice.

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

/// The failure reason of actions that went well and have no result, as in Diego.
const NO_RESULT: &str = "failed to fetch result";

/// A tree that is carried out, as its task sees it.
#[derive(Debug, Default)]
pub(crate) struct RunningTree {
    /// Nothing more is to be begun, and what runs is to end.
    stop: CancellationToken,
    /// The task's first process ended, and everything in the cgroup was or will be killed.
    gone: CancellationToken,
    /// Processes of actions, by the order of their starts.
    running: Mutex<BTreeMap<u64, Process>>,
    next: AtomicU64,
    outcome: watch::Sender<Option<Outcome>>,
}

/// The end of a tree.
#[derive(Clone, Debug)]
struct Outcome {
    code: i32,
    end: ActionsEnd,
}

/// Begins the task's tree, if it has one. Needs a runtime to be entered.
pub(crate) fn begin(
    task: &NativeTask,
    config: &TaskConfig,
    native: &NativeConfig,
    spawns: &Arc<Semaphore>,
) {
    let (Some(action), Some(tree)) = (&native.actions, &task.life.tree) else {
        return;
    };
    match ProgressFile::create(config, action) {
        Ok(file) => carry_out(
            task,
            (config, native),
            spawns,
            (file, EarlierActions::default()),
        ),
        Err(error) => {
            let failure = Failure::plain("", format!("record the progress of actions: {error}"));
            end_before_actions(task, (config, native), tree, failure);
        }
    }
}

/// Carries out the tree, after what an earlier driver did of it.
fn carry_out(
    task: &NativeTask,
    (config, native): (&TaskConfig, &NativeConfig),
    spawns: &Arc<Semaphore>,
    (file, earlier): (ProgressFile, EarlierActions),
) {
    let (Some(action), Some(tree)) = (native.actions.clone(), task.life.tree.clone()) else {
        return;
    };
    if !earlier.is_empty() {
        // Names of cgroups of actions are counted: those of the earlier driver may still be there.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let first = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX / 2);
        tree.next.store(first, Ordering::Relaxed);
    }
    let (config, native) = (config.clone(), native.clone());
    let hands = NativeActionExecutor::new(
        task,
        (&config, &native),
        Arc::clone(&tree),
        spawns,
        (file, earlier),
    );
    let (life, node) = (Arc::clone(&task.life), Arc::clone(&task.node));
    tokio::spawn(async move {
        let carried_out = tree::carry_out(&hands, &action, &native.log_source, &tree.stop);
        let ended = AssertUnwindSafe(carried_out).catch_unwind().await;
        let ended = ended.unwrap_or_else(|_panic| Err(Failure::plain("", "the driver failed")));
        debug!(task = config.id, ?ended, "the actions of a task ended");
        // Nothing of it holds the task's output open once the task has ended.
        drop(hands);
        let bytes_max = node.policy().result_bytes_max;
        let read = move || outcome((&config, &native), bytes_max, ended);
        let read = tokio::task::spawn_blocking(read).await;
        tree.end(read.unwrap_or_else(|_panic| Outcome {
            code: 1,
            end: ActionsEnd::failure(NO_RESULT),
        }));
        if let Err(error) = life.kill_all() {
            warn!(pid = life.process.pid, %error, "cannot kill what actions left running");
        }
    });
}

/// Goes on with the tree of a task whose driver died, or ends it where that cannot be.
pub(crate) fn recover(
    task: &NativeTask,
    config: &TaskConfig,
    native: &NativeConfig,
    spawns: &Arc<Semaphore>,
) {
    let (Some(action), Some(tree)) = (&native.actions, &task.life.tree) else {
        return;
    };
    let found = ProgressFile::open(config, action);
    let obstacle = match &found {
        Some((_, progress)) => resume::obstacle(progress),
        None => Some("an action"),
    };
    if let Some(at) = obstacle {
        let failure = lost_action(at);
        return end_before_actions(task, (config, native), tree, failure);
    }
    if let Some((file, progress)) = found {
        let earlier = EarlierActions::find(progress);
        carry_out(task, (config, native), spawns, (file, earlier));
    }
}

/// Ends a tree of which nothing can be carried out.
fn end_before_actions(
    task: &NativeTask,
    (config, native): (&TaskConfig, &NativeConfig),
    tree: &RunningTree,
    failure: Failure,
) {
    tree.stop.cancel();
    let bytes_max = task.node.policy().result_bytes_max;
    tree.end(outcome((config, native), bytes_max, Err(failure)));
    if let Err(error) = task.life.kill_all() {
        warn!(task = config.id, %error, "cannot kill a task whose actions cannot be carried out");
    }
}

/// The outcome of a tree for the client. Reads its result file.
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
            end.failed_action = failure.at;
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
    /// Nothing more is begun, and what runs is asked to end.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Nothing more is begun, because the first process is gone.
    pub(crate) fn first_is_gone(&self) {
        self.gone.cancel();
    }

    /// Whether the first process is gone.
    fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    /// Sends a signal to the processes of all actions that run.
    pub(crate) fn signal(&self, signal: Signal) -> std::io::Result<()> {
        for process in self.lock().values() {
            process.signal(signal)?;
        }
        Ok(())
    }

    /// The end of the task, given the end of its first process. It is that of its tree, which knows soon after.
    pub(crate) async fn result(&self, first: ExitResult) -> ExitResult {
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

    /// The first end stands.
    fn end(&self, outcome: Outcome) {
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

    /// A name that no other action of the tree has.
    fn action_cgroup_name(&self) -> String {
        format!("action-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Counts a process that an earlier driver started among those that run, as long as the answer is kept.
    fn follow(self: &Arc<Self>, process: &Process) -> AdoptedProcess {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, process.clone());
        AdoptedProcess {
            tree: Arc::clone(self),
            number,
        }
    }

    /// Counts a process among those that run, unless the task is over: then it is killed.
    fn enter(
        self: &Arc<Self>,
        process: Process,
        action_cgroup: Option<ActionCgroup>,
    ) -> Option<ActionProcess> {
        let guard = KillOnDrop::new(process.clone());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, process.clone());
        let entered = ActionProcess {
            tree: Arc::clone(self),
            number,
            process,
            guard: Some(guard),
            action_cgroup,
        };
        // Checked after the entry: code that sets the flag later kills every entered process.
        (!self.is_gone()).then_some(entered)
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

/// A process of an action, killed when nobody waits for it.
#[derive(Debug)]
struct ActionProcess {
    tree: Arc<RunningTree>,
    number: u64,
    process: Process,
    guard: Option<KillOnDrop>,
    /// The cgroup of the process and all it started, if they may have to be killed alone.
    action_cgroup: Option<ActionCgroup>,
}

impl ActionProcess {
    async fn wait(&self) -> std::io::Result<ExitResult> {
        match &self.guard {
            Some(guard) => guard.wait().await,
            None => Err(std::io::Error::other("the process was reaped")),
        }
    }

    /// The process ended, and what it left running goes on.
    fn done(mut self) {
        if let Some(guard) = self.guard.take() {
            guard.done();
        }
        if let Some(action_cgroup) = self.action_cgroup.take() {
            action_cgroup.keep();
        }
    }

    /// Kills the process with its group and, if it has a cgroup of its own, all it started.
    fn kill(&self) -> std::io::Result<()> {
        if let Some(action_cgroup) = &self.action_cgroup {
            action_cgroup.kill();
        }
        self.process.kill_group()
    }

    /// The process was stopped and ended: nothing that it left running goes on.
    async fn clear(&mut self) {
        if let Some(action_cgroup) = self.action_cgroup.take() {
            action_cgroup.end().await;
        }
    }
}

impl Drop for ActionProcess {
    fn drop(&mut self) {
        self.tree.lock().remove(&self.number);
    }
}
