//! One attempt of a task, from its cgroup to the removal of everything it left.
//!
//! [`begin`](begin::begin) makes what a process needs and has the driver start it;
//! [`recover`](recover::recover) finds a process that an earlier agent started; [`end`](end::end)
//! waits for its end, learns how it ended, and cleans up. The order matters: what could be lost is
//! recorded before the step that could lose it. When a task is started, stopped or restarted is
//! decided in `agent-core`.

mod begin;
mod end;
mod network_policy;
mod one_off;
mod recover;
mod remote;
mod resources;
mod root;
mod streams;
mod user;
mod waiting;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_core::task::TaskInput;
use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::AllocId;
use muster_domain::job::{Task, TaskGroup};
use muster_domain::resources::HeldCores;
use muster_domain::saturating;
use muster_driver::{DriverError, RecoverTaskError, TaskError, TaskHandle, TaskReach};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::alloc::Input;
use crate::cgroup::{TaskCgroup, TaskName};
use crate::context::AgentContext;
use crate::drivers::usage::DriverUsage;
use crate::drivers::{DriverSlot, native, usage};
use crate::store::{TaskRecord, Write};
use streams::Streams;

pub(crate) use begin::{chain, kill};
pub(crate) use end::clean_up_stray;
pub(crate) use network_policy::{attach_live_policy, attach_recorded_policy};
pub(crate) use recover::{MissingRecordMeaning, limit_again};
pub(crate) use remote::end_unknown;
pub(crate) use streams::{stream_name, why_untaken};

/// The place of a task in its allocation.
#[derive(Clone, Debug)]
pub(crate) struct TaskRef {
    pub(crate) desired: Arc<DesiredAlloc>,
    /// Its position in the group.
    pub(crate) at: usize,
}

impl TaskRef {
    /// The allocation.
    pub(crate) fn alloc_id(&self) -> AllocId {
        self.desired.alloc_id
    }

    /// Its group.
    pub(crate) fn group(&self) -> &TaskGroup {
        self.desired
            .group()
            .expect("a runner exists only for a group that is there")
    }

    /// Its description.
    pub(crate) fn task(&self) -> &Task {
        &self.group().tasks[self.at]
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.task().name
    }

    /// Cores that it has for itself.
    pub(crate) fn cores(&self) -> Option<&HeldCores> {
        let mut held = self.desired.holding.cores.iter();
        held.find(|cores| usize::from(cores.task_at) == self.at)
    }

    /// Takes its cores, if it has any.
    pub(crate) fn hold_cores(&self, context: &AgentContext) {
        if let Some(held) = self.cores() {
            let AgentContext { cores, tree, .. } = context;
            cores.hold(tree, &self.cgroup_name(), &held.ids);
        }
    }

    /// Gives its cores to everybody.
    pub(crate) fn release_cores(&self, context: &AgentContext) {
        if self.cores().is_some() {
            let AgentContext { cores, tree, .. } = context;
            cores.release(tree, &self.cgroup_name());
        }
    }

    fn cgroup_name(&self) -> TaskName {
        TaskName {
            alloc: self.alloc_id().to_string(),
            task: self.name().to_owned(),
        }
    }

    /// Its share of CPU: what it asks for, or what its cores are worth.
    pub(crate) fn cpu_mhz(&self) -> u32 {
        let asked = self.task().resources.cpu.0;
        self.cores()
            .map_or(asked, |cores| saturating::to_u32(cores.mhz))
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
const FORCE_SIGNAL: &str = "SIGKILL";

/// Starts a task, or takes over the one that `take` finds, waits for its end and cleans up after it.
pub(crate) async fn run(
    context: Arc<AgentContext>,
    task: TaskRef,
    attempt: u32,
    take: Option<Vec<u8>>,
    stopped: CancellationToken,
    inputs: TaskInputSender,
) {
    let beginning = async {
        // The start itself reports a driver that is not there.
        let slot = context.drivers.named(&task.task().driver);
        let _room = match slot {
            Some(slot) => slot.room().await,
            None => None,
        };
        begin::begin(&context, &task, attempt, take, &stopped).await
    };
    let begun = {
        // On the heap, and gone once the task runs: what a start takes would be most of what a task keeps.
        let beginning = Box::pin(beginning);
        let reported = Box::pin(waiting::report(&context, &task, &inputs));
        tokio::select! {
            biased;
            begun = beginning => begun,
            never = reported => match never {},
        }
    };
    match begun {
        Ok((live, note)) => {
            context.start_health.handle_started();
            let live = Arc::new(live);
            context.live.insert(
                task.alloc_id(),
                task.name(),
                Arc::clone(&live),
                inputs.clone(),
            );
            if let Some(handle) = live.elsewhere.clone() {
                inputs.send(TaskInput::RunsElsewhere { handle }).await;
            }
            if let Some(network) = live.usage.network() {
                let network = Box::new(network);
                inputs.send(TaskInput::Reached { network }).await;
            }
            inputs.send(TaskInput::Started { note }).await;
            attend(
                &context,
                &task,
                &live,
                end::StartKnowledge::ToRunnerAndDriver,
                &inputs,
            )
            .await;
        }
        Err(failure) => {
            let begin::StartFailure { reason, next } = failure;
            if next == begin::StartRetry::Retry {
                let job = &task.desired.job.spec.id;
                let health = &context.start_health;
                health.handle_failed(job, &reason, Instant::now());
            }
            tracing::warn!(alloc_id = %task.alloc_id(), task = task.name(), reason, "a task cannot be started");
            inputs
                .send(match next {
                    begin::StartRetry::Retry | begin::StartRetry::GiveUp => {
                        TaskInput::StartFailed {
                            reason,
                            retryable: next == begin::StartRetry::Retry,
                        }
                    }
                    begin::StartRetry::StartAnew => TaskInput::NothingToTake { reason },
                })
                .await;
        }
    }
}

/// Waits for the end of a task and cleans up after it; meanwhile its driver tells what it uses, if nobody else can.
async fn attend(
    context: &AgentContext,
    task: &TaskRef,
    live: &LiveTask,
    known: end::StartKnowledge,
    inputs: &TaskInputSender,
) {
    let mut ending = pin!(end::end(context, task, live, known, inputs));
    if live.record.driver == native::NAME {
        return ending.await;
    }
    // On the heap: most tasks have no need of it.
    let followed = Box::pin(usage::follow(live, inputs));
    tokio::select! {
        biased;
        () = &mut ending => {}
        never = followed => match never {}
    }
}

/// Finds a task that an earlier agent started, perhaps on another system, waits for its end and cleans up after it.
pub(crate) async fn find(
    context: Arc<AgentContext>,
    task: TaskRef,
    attempt: u32,
    record: Option<TaskRecord>,
    (unrecorded, elsewhere): (MissingRecordMeaning, bool),
    inputs: TaskInputSender,
) {
    let found = recover::recover(&context, &task, attempt, record, unrecorded, elsewhere);
    match Box::pin(found).await {
        recover::RecoveredTask::Nothing(input) => {
            task.release_cores(&context);
            inputs.send(input).await;
        }
        recover::RecoveredTask::Live(live, told) => {
            let live = Arc::new(*live);
            context.live.insert(
                task.alloc_id(),
                task.name(),
                Arc::clone(&live),
                inputs.clone(),
            );
            let runs = live
                .cgroup
                .as_ref()
                .is_some_and(|cgroup| cgroup.is_populated().unwrap_or(false));
            let known = if runs {
                // There is a process, whatever becomes of its driver.
                inputs.send(TaskInput::Recovered).await;
                let repaired = recover::repair_limits(&context, &task, &live);
                for message in told.into_iter().chain(repaired) {
                    inputs.send(TaskInput::Message { message }).await;
                }
                end::StartKnowledge::ToRunner
            } else {
                end::StartKnowledge::No(told)
            };
            attend(&context, &task, &live, known, &inputs).await;
        }
    }
}

async fn store_record(context: &AgentContext, task: &TaskRef, record: &TaskRecord) {
    let write = Write::Task(
        task.alloc_id(),
        task.name().to_owned(),
        Box::new(record.clone()),
    );
    // The store's thread tells the operator. The task goes on: it is found by its cgroup.
    drop(context.store.write(vec![write]).await);
}
