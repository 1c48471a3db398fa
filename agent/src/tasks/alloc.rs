//! Runs one allocation: passes events to its runner and carries out the runner's actions.
//!
//! Each allocation has one asynchronous task, and each of its tasks with a process has another. All of them are
//! dropped when the agent stops, which changes nothing for the processes.

mod starts;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_core::alloc::{AllocRunner, Effect, Event};
use muster_agent_core::task::{TaskEffect, TaskInput};
use muster_domain::alloc::{DesiredAlloc, DesiredStatus};
use muster_domain::id::{AllocId, Timestamp};
use muster_domain::job::Task;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::context::AgentContext;
use crate::logs::FifoOwner;
use crate::resources::users::WorkloadUsers;
use crate::session::clock::now;
use crate::storage::StorageContext;
use crate::storage::allocdir::{DataDir, DirError, owner_of};
use crate::storage::disk::DiskLimit;
use crate::storage::store::{PendingWrite, TaskRecord, Write};
use crate::storage::{gc, migrate};
use crate::tasks::alloc_input::Input;
use crate::tasks::live::TaskInputSender;
use crate::tasks::missing_record::MissingRecordMeaning;
use crate::tasks::task;
use crate::tasks::task_ref::TaskRef;

pub(crate) use self::starts::PendingStarts;

/// An allocation to run.
#[derive(Debug)]
pub(crate) struct AllocTask {
    /// The context that all allocations share.
    pub(crate) context: Arc<AgentContext>,
    /// The desired state of the allocation.
    pub(crate) desired: Arc<DesiredAlloc>,
    pub(crate) runner: AllocRunner,
    /// The stored records of its tasks, by name.
    pub(crate) records: BTreeMap<String, TaskRecord>,
    /// The meaning of a missing record.
    pub(crate) unrecorded: MissingRecordMeaning,
    /// The allocation was read from the store.
    pub(crate) restored: bool,
    /// The store may hold handles of its remote tasks.
    pub(crate) has_remote_stored: bool,
    /// The state that was last passed to the store, unless it is known to be on disk.
    pub(crate) pending_write: Option<PendingWrite>,
    /// Starts in progress, each with its job.
    pub(crate) starts: PendingStarts,
    /// Cancelled when the allocation should not begin any more.
    pub(crate) stopped: CancellationToken,
}

impl AllocTask {
    /// Runs until all of the allocation is destroyed or the agent stops.
    pub(crate) async fn run(
        mut self: Box<Self>,
        inbox: mpsc::Sender<Input>,
        mut inputs: mpsc::Receiver<Input>,
    ) {
        let mut jobs = JoinSet::new();
        let mut reported_finish = None;
        if !self.restored {
            let desired = Write::Desired(Box::new((*self.desired).clone()));
            self.submit(vec![desired]).await;
            if self.unrecorded != MissingRecordMeaning::NeverStarted {
                // The store was lost: the running tasks keep their network.
                self.context.adopt_network(&self.desired, true).await;
            }
        } else if self.runner.finished_at().is_none() {
            self.context.adopt_network(&self.desired, false).await;
            self.watch_disk(&inbox).await;
        }
        loop {
            while let Some(effect) = self.runner.poll_effect() {
                self.execute_effect(effect, &inbox, &mut jobs).await;
            }
            self.report_to_node(&mut reported_finish).await;
            if self.runner.is_destroyed() {
                return;
            }
            let event = tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => match self.event(input, &inbox).await {
                        Some(event) => event,
                        None => continue,
                    },
                    None => return,
                },
                () = until(self.runner.poll_timeout()) => Event::TimerFired,
                Some(finished) = jobs.join_next() => {
                    if let Err(error) = finished {
                        tracing::error!(alloc_id = %self.runner.alloc_id(), %error, "work for an allocation failed");
                    }
                    continue;
                }
            };
            self.runner.handle_event(event, now());
            if self.runner.is_stopping() {
                self.stopped.cancel();
            }
        }
    }

    /// The event for the runner that follows from `input`, if any.
    async fn event(&mut self, input: Input, inbox: &mpsc::Sender<Input>) -> Option<Event> {
        Some(match input {
            Input::RulesChanged => {
                self.starts.outdate();
                self.reattach_policy();
                return None;
            }
            Input::Event(event) => {
                if let Some(task_at) = begun(&event)
                    && self.starts.is_outdated(task_at, &self.desired)
                {
                    self.reattach_policy();
                    self.reapply_limits(None);
                }
                *event
            }
            Input::Destroy => Event::DestroyAsked,
            Input::Disconnected => Event::Disconnected,
            Input::Stop => Event::DesiredChanged(DesiredStatus::Stop),
            Input::Desired(wanted) => {
                let (desired, remote) = *wanted;
                self.runner.handle_remote(&remote);
                self.desired(Box::new(desired), inbox).await
            }
        })
    }

    /// Handles a change of the desired state, which may include an in-place change of the job.
    async fn desired(&mut self, desired: Box<DesiredAlloc>, inbox: &mpsc::Sender<Input>) -> Event {
        let wanted = desired.desired;
        match self.runner.handle_update(&desired, now()) {
            Ok(()) => {
                self.submit(vec![Write::Desired(desired.clone())]).await;
                if desired.deployment != self.desired.deployment {
                    self.context.session.outbox.ask_anew(desired.alloc_id);
                }
                let before = std::mem::replace(&mut self.desired, Arc::new(*desired));
                self.reattach_policy();
                self.reapply_limits(Some(&before));
                if self.runner.finished_at().is_none() {
                    self.watch_disk(inbox).await;
                }
            }
            // A stop takes effect even if the rest of the update is invalid.
            Err(error) => tracing::error!(%error, "an update of an allocation is not followed"),
        }
        Event::DesiredChanged(wanted)
    }

    /// Watches the allocation's disk with the size that its group names now. An allocation without directories is
    /// watched later.
    async fn watch_disk(&self, inbox: &mpsc::Sender<Input>) {
        let (context, desired) = (Arc::clone(&self.context), Arc::clone(&self.desired));
        let inbox = inbox.clone();
        let watched =
            tokio::task::spawn_blocking(move || watch_disk(&context.storage, &desired, &inbox));
        if let Err(error) = watched.await {
            tracing::error!(alloc_id = %self.runner.alloc_id(), %error, "an ephemeral disk is not watched");
        }
    }

    /// Applies the policies of the current job to running tasks.
    fn reattach_policy(&mut self) {
        let context = Arc::clone(&self.context);
        for (alloc_id, name, live) in context.tasks.live.of(Some(self.runner.alloc_id())) {
            let tasks = self.desired.group().map_or(&[][..], |group| &group.tasks);
            let Some(at) = tasks.iter().position(|task| task.name == name) else {
                tracing::error!(%alloc_id, task = name, "a running task is not in its job any more");
                continue;
            };
            let desired = Arc::clone(&self.desired);
            let task = TaskRef { desired, at };
            let message = task::attach_live_policy(&context, &task, &live);
            self.send_event(at, message);
        }
    }

    /// Adds a message for the operator to the history of a task.
    fn send_event(&mut self, task_at: usize, message: Option<String>) {
        if let Some(message) = message {
            let input = TaskInput::Message { message };
            self.runner
                .handle_event(Event::Task { task_at, input }, now());
        }
    }

    /// Applies the limits of the current job to running tasks whose limits `before` were different.
    fn reapply_limits(&mut self, before: Option<&DesiredAlloc>) {
        let context = Arc::clone(&self.context);
        for (_, name, live) in context.tasks.live.of(Some(self.runner.alloc_id())) {
            let resources = |desired: &DesiredAlloc| {
                let task = desired.group().and_then(|group| group.task(&name));
                task.map(|task| task.resources.clone())
            };
            let tasks = self.desired.group().map_or(&[][..], |group| &group.tasks);
            let at = tasks.iter().position(|task| task.name == name);
            let differs = before.is_none_or(|before| resources(before) != resources(&self.desired));
            let Some(at) = at.filter(|_| differs) else {
                continue;
            };
            let desired = Arc::clone(&self.desired);
            let task = TaskRef { desired, at };
            let message = task::reapply_limits(&context.resources, &context.session, &task, &live);
            self.send_event(at, message);
        }
    }

    async fn execute_effect(
        &mut self,
        effect: Effect,
        inbox: &mpsc::Sender<Input>,
        jobs: &mut JoinSet<()>,
    ) {
        let alloc_id = self.runner.alloc_id();
        match effect {
            Effect::Persist => {
                let snapshot = Box::new(self.runner.snapshot());
                let mut writes = vec![Write::Snapshot(alloc_id, snapshot)];
                let remote = self.runner.remote_tasks();
                if self.has_remote_stored || !remote.is_empty() {
                    self.has_remote_stored = !remote.is_empty();
                    writes.push(Write::Remote(alloc_id, remote));
                }
                self.submit(writes).await;
            }
            Effect::PrepareAlloc => {
                let preparation = Preparation {
                    context: Arc::clone(&self.context),
                    desired: Arc::clone(&self.desired),
                    inbox: inbox.clone(),
                    // An allocation that was found on the machine may have running tasks already.
                    has_begun: self.unrecorded != MissingRecordMeaning::NeverStarted,
                    stopped: self.stopped.clone(),
                };
                jobs.spawn(preparation.run());
            }
            Effect::Task { task_at, effect } => {
                // The next agent would repeat a start that is not stored. Directories and reports need not wait.
                self.stored().await;
                self.task_effect(task_at, effect, inbox, jobs);
            }
            Effect::Report { urgent } => {
                if self.runner.is_terminal() {
                    // The control plane relies on a reported end: no crash may start the allocation after all.
                    self.stored().await;
                }
                self.context
                    .session
                    .outbox
                    .put(self.runner.report(), urgent);
            }
            Effect::DestroyAlloc => {
                let context = Arc::clone(&self.context);
                let inbox = inbox.clone();
                jobs.spawn(async move {
                    gc::destroy(&context, alloc_id).await;
                    drop(inbox.send(Event::Destroyed.into()).await);
                });
            }
        }
    }

    fn task_effect(
        &mut self,
        task_at: usize,
        effect: TaskEffect,
        inbox: &mpsc::Sender<Input>,
        jobs: &mut JoinSet<()>,
    ) {
        let context = Arc::clone(&self.context);
        let task = TaskRef {
            desired: Arc::clone(&self.desired),
            at: task_at,
        };
        let inputs = TaskInputSender {
            task_at,
            inbox: inbox.clone(),
        };
        let live = context.tasks.live.get(task.alloc_id(), task.name());
        match &effect {
            TaskEffect::Start { .. } | TaskEffect::TakeOver { .. } | TaskEffect::Recover { .. } => {
                self.starts.begin(task_at, Arc::clone(&self.desired));
            }
            TaskEffect::Stop { .. } | TaskEffect::Detach | TaskEffect::Force => {}
        }
        match effect {
            TaskEffect::Start { attempt } => {
                let stopped = self.stopped.clone();
                jobs.spawn(task::run(context, task, attempt, None, stopped, inputs));
            }
            TaskEffect::TakeOver { attempt, handle } => {
                let (take, stopped) = (Some(handle), self.stopped.clone());
                jobs.spawn(task::run(context, task, attempt, take, stopped, inputs));
            }
            TaskEffect::Recover { attempt } => {
                let record = self.records.remove(task.name());
                let known = (self.unrecorded, self.runner.runs_elsewhere(task_at));
                jobs.spawn(task::find(context, task, attempt, record, known, inputs));
            }
            TaskEffect::Stop { signal, timeout } => {
                let Some(live) = live else { return };
                jobs.spawn(async move {
                    if let Err(error) = live.stop(&signal, timeout).await {
                        inputs
                            .send(TaskInput::StopFailed {
                                reason: error.to_string(),
                            })
                            .await;
                    }
                });
            }
            TaskEffect::Detach => {
                if let Some(live) = live {
                    live.detach();
                }
            }
            TaskEffect::Force => {
                if let Some(live) = live {
                    jobs.spawn(async move {
                        if let Some(message) = live.force().await {
                            inputs.send(TaskInput::Message { message }).await;
                        }
                    });
                }
            }
        }
    }

    /// Reports to the node, once each, that the allocation has finished and that it is destroyed.
    async fn report_to_node(&mut self, reported_finish: &mut Option<Timestamp>) {
        let alloc_id = self.runner.alloc_id();
        let finished = self.runner.finished_at();
        if finished != *reported_finish
            && let Some(at) = finished
        {
            *reported_finish = finished;
            self.context.storage.disks.forget(alloc_id);
            if let Err(reason) = self.context.give_network_back(alloc_id).await {
                crate::network::bridge::warn_network_left(alloc_id, &reason);
            }
            let finished = crate::node::event::Event::Finished { alloc_id, at };
            drop(self.context.node.send(finished).await);
        }
        if self.runner.is_destroyed() {
            // The caller does not wait for the disk. The next agent destroys a recorded allocation without remains
            // again.
            self.submit(vec![Write::Remove(alloc_id)]).await;
            // The next owner of the users stores them after this write.
            self.context.resources.users.release(alloc_id);
            let destroyed = crate::node::event::Event::Destroyed { alloc_id };
            drop(self.context.node.send(destroyed).await);
        }
    }

    async fn submit(&mut self, writes: Vec<Write>) {
        // The store's thread reports the error to the operator. The node continues as far as possible.
        self.pending_write = self.context.storage.store.submit(writes).await.ok();
    }

    /// Waits until all submitted writes are on disk.
    async fn stored(&mut self) {
        if let Some(pending) = self.pending_write.take() {
            drop(pending.stored().await);
        }
    }
}

/// Returns the running task, if the event reports that a task was started or found.
fn begun(event: &Event) -> Option<usize> {
    match event {
        Event::Task {
            task_at,
            input: TaskInput::Started { .. } | TaskInput::Recovered,
        } => Some(*task_at),
        _ => None,
    }
}

/// The work that an allocation needs before its tasks begin.
#[derive(Clone)]
struct Preparation {
    context: Arc<AgentContext>,
    desired: Arc<DesiredAlloc>,
    inbox: mpsc::Sender<Input>,
    has_begun: bool,
    /// Cancelled when the allocation does not begin any more.
    stopped: CancellationToken,
}

impl Preparation {
    async fn run(self) {
        let made = self.make().await;
        let Self {
            context,
            desired,
            inbox,
            has_begun: _,
            stopped: _,
        } = self;
        let alloc_id = desired.alloc_id;
        drop(
            context
                .node
                .send(crate::node::event::Event::Prepared { alloc_id })
                .await,
        );
        let event = match made {
            Ok(()) => Event::Prepared,
            Err(reason) => Event::PrepareFailed { reason },
        };
        drop(inbox.send(event.into()).await);
    }

    async fn make(&self) -> Result<(), String> {
        let prepared = self.run_blocking(|it| {
            let (storage, users) = (&it.context.storage, &it.context.resources.users);
            let _start = storage.trash.start_of();
            prepare(storage, users, &it.desired)
        });
        if let PreviousData::Not = prepared.await?
            && !self.has_begun
            && let Some(previous) = self.desired.fetches_from()
        {
            let stopped = self.stopped.run_until_cancelled(self.fetch(previous));
            stopped.await.unwrap_or(Ok(()))?;
        }
        let watched = self.run_blocking(|it| {
            watch_disk(&it.context.storage, &it.desired, &it.inbox);
            Ok(())
        });
        watched.await
    }

    /// Gets the data of `previous` from another node, if they are available.
    async fn fetch(&self, previous: AllocId) -> Result<(), String> {
        let Self {
            context, desired, ..
        } = self;
        self.send_event(format!("waiting for the data of allocation {previous}"))
            .await;
        let fetched = migrate::fetch(&context.storage, &context.session, desired, previous).await;
        let settled = self.run_blocking(|it| {
            let (data, users) = (&it.context.storage.data, &it.context.resources.users);
            place_fetched_data(data, users, &it.desired)
        });
        settled.await?;
        self.send_event(fetched.unwrap_or_else(|reason| reason))
            .await;
        Ok(())
    }

    async fn send_event(&self, message: String) {
        drop(self.inbox.send(Event::Message { message }.into()).await);
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let this = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&this)).await;
        done.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// The location of the data of the replaced allocation.
enum PreviousData {
    /// The data were on this node, or came from another node before.
    Here,
    Not,
}

/// The group's tasks and their users.
fn owners(
    users: &WorkloadUsers,
    desired: &DesiredAlloc,
) -> Result<Vec<(String, Option<FifoOwner>)>, String> {
    let group = desired.group().ok_or("the job has no such group")?;
    let owner = |task: &Task| {
        let owner = owner_of(users, desired.alloc_id, task);
        let owner = owner.map_err(|error| error.to_string())?;
        Ok((task.name.clone(), owner))
    };
    group.tasks.iter().map(owner).collect()
}

fn dir_failed(error: DirError) -> String {
    muster_domain::error_chain::chain(&error)
}

/// Makes the allocation's directories, with the data of the replaced allocation that are on this node.
fn prepare(
    storage: &StorageContext,
    users: &WorkloadUsers,
    desired: &DesiredAlloc,
) -> Result<PreviousData, String> {
    let limit = DiskLimit::of_alloc(desired).ok_or("the job has no such group")?;
    let tasks = owners(users, desired)?;
    let StorageContext { data, disks, .. } = storage;
    let root = data.make_alloc_root(desired.alloc_id).map_err(dir_failed)?;
    disks
        .limit(&root, limit)
        .map_err(|error| format!("the quota of the ephemeral disk cannot be set: {error}"))?;
    data.make_alloc(desired.alloc_id, &tasks)
        .map_err(dir_failed)?;
    if place_fetched_data(data, users, desired)? {
        return Ok(PreviousData::Here);
    }
    let Some(previous) = desired.inherits_from() else {
        return Ok(PreviousData::Not);
    };
    let is_here = data.alloc(previous).alloc.exists();
    let carry = |tree, dir: &Path| disks.carry(tree, dir);
    if data
        .inherit(previous, desired.alloc_id, &tasks, carry)
        .map_err(dir_failed)?
    {
        tracing::info!(alloc_id = %desired.alloc_id, %previous, "the data of the allocation that it replaces are taken over");
        // The moved data still have the owners of the earlier tasks.
        data.make_alloc(desired.alloc_id, &tasks)
            .map_err(dir_failed)?;
    }
    Ok(if is_here {
        PreviousData::Here
    } else {
        PreviousData::Not
    })
}

/// Moves complete data from another node to their places, and deletes incomplete data. Returns whether the data
/// were complete.
fn place_fetched_data(
    data: &DataDir,
    users: &WorkloadUsers,
    desired: &DesiredAlloc,
) -> Result<bool, String> {
    let tasks = owners(users, desired)?;
    let names = tasks.iter().map(|(name, _)| name.clone());
    let came = migrate::settle(data, desired.alloc_id, names).map_err(dir_failed)?;
    if came {
        // The migrated data still have the owners of the tasks on the other node.
        data.make_alloc(desired.alloc_id, &tasks)
            .map_err(dir_failed)?;
    } else {
        migrate::discard(data, desired.alloc_id);
    }
    Ok(came)
}

/// Watches an allocation's disk, if it has directories.
fn watch_disk(storage: &StorageContext, desired: &DesiredAlloc, inbox: &mpsc::Sender<Input>) {
    let StorageContext { data, disks, .. } = storage;
    let dir = data.alloc(desired.alloc_id).alloc;
    if let Some(limit) = DiskLimit::of_alloc(desired)
        && dir.is_dir()
    {
        disks.watch(desired.alloc_id, &dir, limit, inbox);
    }
}

/// Sleeps until a core's timeout; sleeps for ever without one.
pub(crate) async fn until(timeout: Option<(Timestamp, &'static str)>) {
    let Some((at, _why)) = timeout else {
        return std::future::pending().await;
    };
    // The loop never spins: an expired timeout is due at once, and the core then names another.
    let left = at.since(now()).max(Duration::from_micros(1));
    tokio::time::sleep(left).await;
}
