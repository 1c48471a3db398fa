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
    /// Number of processes that were inserted since the agent began, including ended ones.
    starts: AtomicU64,
}

/// A task that has a process, and the way to its runner.
type LiveTaskEntry = (Arc<LiveTask>, TaskInputSender);

impl LiveTasks {
    /// Adds the process of a task.
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

    /// Removes the ended process of a task.
    pub(crate) fn remove(&self, alloc_id: AllocId, task: &str) {
        self.locked().remove(&(alloc_id, task.to_owned()));
    }

    /// The process of a task.
    pub(crate) fn get(&self, alloc_id: AllocId, task: &str) -> Option<Arc<LiveTask>> {
        let tasks = self.locked();
        let (live, _runner) = tasks.get(&(alloc_id, task.to_owned()))?;
        Some(Arc::clone(live))
    }

    /// The runner of a task, if its running start is `task_id`.
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

    /// Returns the running tasks of all allocations, or of one.
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

/// Sends the inputs of one task to its runner.
#[derive(Clone, Debug)]
pub(crate) struct TaskInputSender {
    pub(crate) task_at: usize,
    pub(crate) inbox: mpsc::Sender<Input>,
}

impl TaskInputSender {
    /// Sends `input` to the runner.
    pub(crate) async fn send(&self, input: TaskInput) {
        let event = muster_agent_core::alloc::Event::Task {
            task_at: self.task_at,
            input,
        };
        // A runner is gone only when the agent stops.
        drop(self.inbox.send(event.into()).await);
    }
}

/// A task that has a process.
#[derive(Debug)]
pub(crate) struct LiveTask {
    pub(crate) slot: DriverSlot,
    /// The stored record of the task.
    pub(crate) record: TaskRecord,
    /// Its cgroups; `None` if they were gone when the agent looked for them.
    pub(crate) cgroup: Option<TaskCgroup>,
    pub(crate) streams: Streams,
    /// The handle of a task that was started, or taken over, on another system.
    pub(crate) elsewhere: Option<Vec<u8>>,
    /// Cancelled when the task is to be managed by another agent.
    pub(crate) detaching: CancellationToken,
    /// The usage that its driver reports.
    pub(crate) usage: DriverUsage,
    /// The reach of the task's packets without a network policy, where this node can enforce none.
    pub(crate) reach: TaskReach,
}

impl LiveTask {
    /// Decodes the driver's handle from its stored form. It is rarely needed, and the decoded form is several times
    /// as large. The driver refuses an unreadable handle.
    pub(crate) fn handle(&self) -> TaskHandle {
        TaskHandle::decode(&self.record.handle).unwrap_or_default()
    }

    /// Asks the driver to end the task.
    pub(crate) async fn stop(&self, signal: &str, timeout: Duration) -> Result<(), TaskError> {
        let id = &self.record.task_id;
        let asked = self.slot.driver.stop_task(id, timeout, signal).await;
        let asked = match asked {
            // The driver has a new life, into which the task is not recovered yet.
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
            // The task ended by itself, as the caller wanted.
            Err(TaskError::NotFound { .. } | TaskError::NotRunning { .. }) => Ok(()),
            other => other,
        }
    }

    /// Whether a process is in the task's cgroup. Tasks of drivers that use no cgroup of the agent have none there.
    pub(crate) fn is_here(&self) -> bool {
        let cgroup = self.cgroup.as_ref();
        cgroup.is_some_and(|cgroup| cgroup.is_populated().unwrap_or(true))
    }

    /// Makes the asynchronous task that waits for the end detach the task instead.
    pub(crate) fn detach(&self) {
        self.detaching.cancel();
    }

    /// Kills all processes in the task's cgroup. For a task elsewhere, asks its driver to kill it. Returns the
    /// reason if the task may still run.
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
