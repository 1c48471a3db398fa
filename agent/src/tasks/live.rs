//! Tasks that have a process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_agent_core::task::TaskInput;
use muster_domain::id::AllocId;
use muster_driver::{DriverError, RecoverTaskError, TaskError, TaskHandle, TaskReach};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::resources::cgroup::TaskCgroup;
use crate::storage::store::TaskRecord;
use crate::tasks::alloc_input::Input;
use crate::tasks::drivers::DriverSlot;
use crate::tasks::drivers::usage::DriverUsage;
use crate::tasks::task::streams::Streams;

/// Tasks that have a process, by allocation and name.
#[derive(Debug, Default)]
pub(crate) struct LiveTasks {
    tasks: Mutex<BTreeMap<(AllocId, String), LiveTaskEntry>>,
    /// Processes that were inserted since the agent began. Those that ended count, too.
    starts: AtomicU64,
}

/// A task that has a process, and the way to its runner.
type LiveTaskEntry = (Arc<LiveTask>, TaskInputSender);

impl LiveTasks {
    /// A process runs.
    pub(crate) fn insert(
        &self,
        alloc_id: AllocId,
        task: &str,
        live: Arc<LiveTask>,
        runner: TaskInputSender,
    ) {
        self.locked()
            .insert((alloc_id, task.to_owned()), (live, runner));
        self.starts.fetch_add(1, Ordering::Release);
    }

    /// The number of processes that were inserted so far.
    pub(crate) fn starts(&self) -> u64 {
        self.starts.load(Ordering::Acquire)
    }

    /// It ended.
    pub(crate) fn remove(&self, alloc_id: AllocId, task: &str) {
        self.locked().remove(&(alloc_id, task.to_owned()));
    }

    /// The process of a task.
    pub(crate) fn get(&self, alloc_id: AllocId, task: &str) -> Option<Arc<LiveTask>> {
        let tasks = self.locked();
        let (live, _runner) = tasks.get(&(alloc_id, task.to_owned()))?;
        Some(Arc::clone(live))
    }

    /// The runner of the start `task_id` of a task, if that is the one that runs.
    pub(crate) fn runner(
        &self,
        alloc_id: AllocId,
        task: &str,
        task_id: &str,
    ) -> Option<TaskInputSender> {
        let tasks = self.locked();
        let (live, runner) = tasks.get(&(alloc_id, task.to_owned()))?;
        (live.record.task_id == task_id).then(|| runner.clone())
    }

    /// All of them, or those of one allocation.
    pub(crate) fn of(&self, alloc_id: Option<AllocId>) -> Vec<(AllocId, String, Arc<LiveTask>)> {
        self.locked()
            .iter()
            .filter(|((id, _), _)| alloc_id.is_none_or(|wanted| wanted == *id))
            .map(|((id, name), (live, _runner))| (*id, name.clone(), Arc::clone(live)))
            .collect()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<(AllocId, String), LiveTaskEntry>> {
        // A panic elsewhere leaves the map whole: each change of it is one call.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes what happens to one task to its runner.
#[derive(Clone, Debug)]
pub(crate) struct TaskInputSender {
    pub(crate) task_at: usize,
    pub(crate) inbox: mpsc::Sender<Input>,
}

impl TaskInputSender {
    /// Says that `input` happened.
    pub(crate) async fn send(&self, input: TaskInput) {
        let event = muster_agent_core::alloc::Event::Task {
            task_at: self.task_at,
            input,
        };
        // A runner that is gone is one of an agent that stops.
        drop(self.inbox.send(event.into()).await);
    }
}

/// A task that has a process.
#[derive(Debug)]
pub(crate) struct LiveTask {
    pub(crate) slot: DriverSlot,
    /// The stored record of the task.
    pub(crate) record: TaskRecord,
    /// Its cgroups; `None` if they were gone when it was looked for.
    pub(crate) cgroup: Option<TaskCgroup>,
    pub(crate) streams: Streams,
    /// It was started, or taken over, on another system: this finds it there.
    pub(crate) elsewhere: Option<Vec<u8>>,
    /// It is not to be managed here any more.
    pub(crate) leaving: CancellationToken,
    /// The usage that its driver tells.
    pub(crate) usage: DriverUsage,
    /// How far it gets without a network policy, where this node can enforce none.
    pub(crate) reach: TaskReach,
}

impl LiveTask {
    /// The driver's handle, as it is stored: rarely needed, and in its own form several times as large. One that
    /// cannot be read is refused by its driver.
    pub(crate) fn handle(&self) -> TaskHandle {
        TaskHandle::decode(&self.record.handle).unwrap_or_default()
    }

    /// Asks the driver to end it.
    pub(crate) async fn stop(&self, signal: &str, timeout: Duration) -> Result<(), TaskError> {
        let id = &self.record.task_id;
        let asked = self.slot.driver.stop_task(id, timeout, signal).await;
        let asked = match asked {
            // The driver has a new life, into which nobody has recovered the task yet.
            Err(
                TaskError::NotFound { .. } | TaskError::Driver(DriverError::Unavailable { .. }),
            ) => {
                self.slot.ready().await;
                match self.slot.driver.recover_task(self.handle()).await {
                    Ok(()) => self.slot.driver.stop_task(id, timeout, signal).await,
                    Err(RecoverTaskError::Driver(error)) => Err(error.into()),
                    Err(_gone) => Ok(()),
                }
            }
            other => other,
        };
        match asked {
            // It ended by itself, which is what was wanted.
            Err(TaskError::NotFound { .. } | TaskError::NotRunning { .. }) => Ok(()),
            other => other,
        }
    }

    /// Whether there is a process in its cgroup. Tasks of drivers that take no cgroup from the agent are elsewhere.
    pub(crate) fn is_here(&self) -> bool {
        let cgroup = self.cgroup.as_ref();
        cgroup.is_some_and(|cgroup| cgroup.is_populated().unwrap_or(true))
    }

    /// Makes the waiter for its end leave it instead.
    pub(crate) fn leave(&self) {
        self.leaving.cancel();
    }

    /// Kills everything in its cgroup, or for a task that is elsewhere what its driver reaches. Returns why it may
    /// still run.
    pub(crate) async fn force(&self) -> Option<String> {
        let cgroup = self.cgroup.as_ref().filter(|_| self.is_here());
        let Some(cgroup) = cgroup else {
            if let Err(error) = self.stop(FORCE_SIGNAL, Duration::ZERO).await {
                tracing::error!(task = self.record.task_id, %error, "a task cannot be killed by its driver");
                return Some(format!(
                    "the task may still run: its driver `{}` could not kill it ({error}), and no process is in the cgroup of the agent",
                    self.record.driver
                ));
            }
            return None;
        };
        let error = cgroup.kill().err()?;
        tracing::error!(task = self.record.task_id, %error, "a task cannot be killed");
        Some(format!(
            "the task may still run: its cgroup cannot be killed: {error}"
        ))
    }
}

/// The signal that no task can ignore.
pub(crate) const FORCE_SIGNAL: &str = "SIGKILL";
