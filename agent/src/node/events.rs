//! The node's loop: which allocations exist.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_core::alloc::{
    AllocRunner, AllocSnapshot, Event as AllocEvent, MalformedAllocError,
};
use muster_agent_core::gc::{
    Collector, GcConfig, GcReading, GcReason, GcRoundTracker, GcSpace, KeptReason,
};
use muster_agent_core::heartbeat_lease::HeartbeatLease;
use muster_agent_core::limits::KILL_TIMEOUT_MAX;
use muster_agent_core::node::{Change, Desired};
use muster_agent_core::start_order::{self, StartDependencies};
use muster_domain::alloc::{AllocReport, ClientStatus, DesiredAlloc, RemoteAlloc};
use muster_domain::error_chain::chain;
use muster_domain::id::{AllocId, Timestamp};
use muster_domain::job::TaskGroup;
use muster_domain::node::NodeCollected;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::context::AgentContext;
use crate::limits::{ALLOC_INBOX_MAX, SWEEP_DELAY_AFTER_LOSS};
use crate::monitoring::fingerprint::disk_usage;
use crate::node::event::Event;
use crate::node::inventory::NodeInventory;
use crate::node::jobs::JobVersionCache;
use crate::resources::ResourceContext;
use crate::resources::cgroup::TaskCgroup;
use crate::session::clock::now;
use crate::session::contact::ContactClock;
use crate::storage::StorageContext;
use crate::storage::gc::{self, GcRequests};
use crate::storage::gc_outcome::GcOutcome;
use crate::storage::store::{StoreContents, TaskRecord, Write};
use crate::tasks::alloc::{self, AllocTask, PendingStarts};
use crate::tasks::alloc_input::Input;
use crate::tasks::missing_record::MissingRecordMeaning;

/// An allocation that exists.
#[derive(Debug)]
struct AllocEntry {
    runner: RunnerState,
    finished: bool,
}

/// The runner of an allocation.
#[derive(Debug)]
enum RunnerState {
    /// No runner until the first input, because the allocation had finished before this agent began. A node may
    /// hold tens of thousands of these.
    Asleep(Box<AllocTask>),
    /// An asynchronous task of its own.
    Awake(mpsc::Sender<Input>),
}

/// The node's allocations.
#[derive(Debug)]
pub(super) struct Node {
    context: Arc<AgentContext>,
    events: mpsc::Sender<Event>,
    desired: Desired,
    contact: HeartbeatLease,
    clock: ContactClock,
    allocs: BTreeMap<AllocId, AllocEntry>,
    jobs: JobVersionCache,
    start_dependencies: StartDependencies,
    /// The allocation that gets the data of another one, by that other one, until the transfer is complete.
    successors: BTreeMap<AllocId, AllocId>,
    collector: Collector,
    gc_rounds: GcRoundTracker,
    gc_requests: GcRequests,
    /// Allocations whose cgroups existed before this agent.
    found: BTreeSet<AllocId>,
    /// Whether unwanted tasks and directories were removed.
    has_swept: bool,
    /// Tasks were found on the machine, but no stored record of any.
    store_lost: bool,
    /// The node had a store before, and this agent began one.
    store_is_new: bool,
    stopping: Option<oneshot::Sender<()>>,
    runners: JoinSet<()>,
}

impl Node {
    pub(super) fn new(
        context: Arc<AgentContext>,
        events: mpsc::Sender<Event>,
        gc: GcConfig,
        found: BTreeSet<AllocId>,
        (clock, earlier): (ContactClock, Option<Timestamp>),
    ) -> Self {
        Self {
            context,
            events,
            desired: Desired::default(),
            contact: HeartbeatLease::new(clock.began(), earlier),
            clock,
            allocs: BTreeMap::new(),
            jobs: JobVersionCache::default(),
            start_dependencies: StartDependencies::default(),
            successors: BTreeMap::new(),
            collector: Collector::new(gc),
            gc_rounds: GcRoundTracker::default(),
            gc_requests: GcRequests::default(),
            found,
            has_swept: false,
            store_lost: false,
            store_is_new: false,
            stopping: None,
            runners: JoinSet::new(),
        }
    }

    /// Takes over the stored allocations, then handles events until the agent stops.
    pub(super) async fn run(
        mut self,
        loaded: StoreContents,
        mut inbox: mpsc::Receiver<Event>,
        stop: CancellationToken,
    ) {
        self.restore(loaded);
        let mut interval = tokio::time::interval(gc::interval(&self.collector));
        let mut last_contact = self.context.session.standing.last_contact();
        let mut emptied = self.context.storage.trash.times_emptied();
        loop {
            let alone = self.contact.poll_timeout(&self.desired);
            let refused = self.collector.poll_timeout(now());
            tokio::select! {
                event = inbox.recv() => match event {
                    Some(event) => self.handle(event),
                    None => return,
                },
                _ = interval.tick() => {}
                // Space may have been freed.
                Ok(()) = emptied.changed() => {}
                () = alloc::until(refused) => {}
                Ok(()) = last_contact.changed() => {
                    if let Some(sent) = *last_contact.borrow_and_update() {
                        self.contact.handle_heartbeat(self.clock.at(sent));
                    }
                    continue;
                }
                () = until(self.clock, alone) => {
                    self.stop_disconnected();
                    continue;
                }
                Some(ended) = self.runners.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        tracing::error!(%error, "the runner of an allocation failed; restart the agent to take its tasks up again");
                    }
                    continue;
                }
                // The runners are dropped with this loop; their processes run on.
                () = stop.cancelled() => return,
            }
            self.collect();
        }
    }

    fn restore(&mut self, loaded: StoreContents) {
        let StoreContents {
            allocs,
            mut tasks,
            servers: _,
            apis: _,
            cluster_policy: _,
            leftovers: _,
            driver_networks: _,
            users: _,
            mut remote,
            fresh,
            lost,
        } = loaded;
        self.store_lost = fresh && !self.found.is_empty();
        self.store_is_new = lost;
        self.desired = Desired::restore(allocs.values().map(|(desired, _)| desired.clone()));
        let ResourceContext { cores, tree, .. } = &self.context.resources;
        for (desired, _) in allocs.values() {
            cores.adopt(tree, desired);
        }
        // Allocations that have begun come first: the others may wait for one of them.
        let has_begun = |snapshot: &Option<AllocSnapshot>| {
            snapshot.as_ref().is_some_and(|snapshot| snapshot.prepared)
        };
        let (begun, waiting): (Vec<_>, Vec<_>) = allocs
            .into_iter()
            .partition(|(_, (_, snapshot))| has_begun(snapshot));
        for (alloc_id, (desired, snapshot)) in begun.into_iter().chain(waiting) {
            let has_begun = has_begun(&snapshot);
            let before = if has_begun {
                BTreeSet::new()
            } else {
                let mut before = self.before(&desired);
                // The stop of the replaced allocation may not have reached the store.
                let previous = desired.previous.filter(|previous| self.is_live(*previous));
                before.extend(previous);
                before
            };
            let runner = match snapshot {
                Some(snapshot) => {
                    let remote = remote.remove(&alloc_id).unwrap_or_default();
                    AllocRunner::restore_with(&desired, snapshot, remote, &before, now())
                }
                None => {
                    let remote = RemoteAlloc::none(alloc_id);
                    AllocRunner::taking(&desired, &remote, &before, now())
                }
            };
            if !has_begun {
                self.queue(&desired, before);
            }
            let later = tasks.split_off(&(AllocId(next_bytes(alloc_id.0)), String::new()));
            let records = std::mem::replace(&mut tasks, later)
                .into_iter()
                .filter(|((id, _), _)| *id == alloc_id)
                .map(|((_, name), record)| (name, record))
                .collect();
            self.run_alloc(
                desired,
                runner,
                records,
                MissingRecordMeaning::NeverStarted,
                true,
            );
        }
    }

    fn is_live(&self, alloc_id: AllocId) -> bool {
        let entry = self.allocs.get(&alloc_id);
        entry.is_some_and(|entry| !entry.finished)
    }

    /// Returns the allocations that an allocation has to wait for.
    fn before(&self, alloc: &DesiredAlloc) -> BTreeSet<AllocId> {
        let live = self.allocs.iter().filter(|(_, known)| !known.finished);
        start_order::before(
            alloc,
            live.filter_map(|(alloc_id, _)| self.desired.get(*alloc_id)),
        )
    }

    /// Registers an allocation that waits for others. The data that it inherits stay until it has them.
    fn queue(&mut self, alloc: &DesiredAlloc, before: BTreeSet<AllocId>) {
        self.start_dependencies.wait(alloc.alloc_id, before);
        if let Some(previous) = alloc.inherits_from() {
            self.successors.insert(previous, alloc.alloc_id);
        }
    }

    /// Handles an allocation that has the data of the replaced one, or will never need them.
    fn end_data_transfer(&mut self, alloc_id: AllocId) {
        self.successors
            .retain(|_, successor| *successor != alloc_id);
    }

    /// Handles the end of an allocation: allocations that waited for it alone begin.
    fn ended(&mut self, alloc_id: AllocId) {
        self.end_data_transfer(alloc_id);
        for next in self.start_dependencies.handle_ended(alloc_id) {
            self.send_input(next, AllocEvent::TurnCame.into());
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::SessionBegan => self.desired.begin_session(),
            Event::Desired { update, remote } => {
                let known = update.allocs.iter();
                let known = known.map(|alloc| (alloc.alloc_id, alloc.client_status));
                self.context.session.outbox.acknowledge_known(known);
                let merged = self.desired.apply(update);
                let now = self.clock.at(Instant::now());
                for change in merged.changes {
                    if let Change::Start(alloc) = &change {
                        self.contact.handle_alloc_update(alloc, now);
                    }
                    self.change(change, &remote);
                }
                if merged.ask_again {
                    tracing::warn!(
                        "a server took something for known that is not; it is asked for everything"
                    );
                }
                self.context.session.standing.knows(self.desired.index());
                if merged.whole {
                    self.context.session.outbox.end_first_reports();
                }
                if merged.whole && !self.has_swept {
                    self.has_swept = true;
                    self.sweep_later();
                }
            }
            Event::SweepDue { found } => self.sweep(found),
            Event::CollectGarbage => drop(self.force()),
            Event::Collect { dry_run, done } => self.collect_now(dry_run, done),
            Event::Prepared { alloc_id } => self.end_data_transfer(alloc_id),
            Event::Released { alloc_id } => self.send_input(alloc_id, Input::Destroy),
            Event::Refused { alloc_id } => {
                self.collector.handle_refused(alloc_id, now());
                self.gc_requests.settled(alloc_id, false);
            }
            Event::Abandoned => self.collector.handle_abandoned(),
            Event::ReportsCommitted => {}
            Event::RulesChanged => self.send_input_to_active(|| Input::RulesChanged),
            Event::Finished { alloc_id, at } => {
                if let Some(known) = self.allocs.get_mut(&alloc_id) {
                    known.finished = true;
                    self.collector.handle_finished(alloc_id, at);
                }
                self.ended(alloc_id);
                self.report_stopped();
            }
            Event::Destroyed { alloc_id } => {
                self.allocs.remove(&alloc_id);
                self.ended(alloc_id);
                self.collector.handle_destroyed(alloc_id, now());
                self.gc_requests.settled(alloc_id, true);
                self.context.session.outbox.forget(alloc_id);
                self.report_stopped();
            }
            Event::StopAll { done, longest } => {
                let _sent = longest.send(self.longest_stop());
                self.stopping = Some(done);
                self.send_input_to_active(|| Input::Stop);
                self.report_stopped();
            }
        }
    }

    fn change(&mut self, change: Change, remote: &[RemoteAlloc]) {
        let of = |alloc_id| {
            let mut remote = remote.iter();
            let found = remote.find(|remote| remote.alloc_id == alloc_id).cloned();
            found.unwrap_or_else(|| RemoteAlloc::none(alloc_id))
        };
        match change {
            // An allocation that was found here runs already. Its start was recorded in a store that is lost, and
            // its first report was not committed.
            Change::Start(desired)
                if !self.found.contains(&desired.alloc_id) && !self.may_have_run(&desired) =>
            {
                let before = self.before(&desired);
                let remote = of(desired.alloc_id);
                let runner = AllocRunner::taking(&desired, &remote, &before, now());
                self.queue(&desired, before);
                self.run_alloc(
                    *desired,
                    runner,
                    BTreeMap::new(),
                    MissingRecordMeaning::NeverStarted,
                    false,
                );
            }
            Change::Start(desired) | Change::Unremembered(desired) => {
                let any = self.found.contains(&desired.alloc_id);
                let unrecorded = if any {
                    MissingRecordMeaning::Ended
                } else {
                    self.missing_record_meaning(&desired)
                };
                let runner = AllocRunner::adopt(&desired, now());
                self.run_alloc(*desired, runner, BTreeMap::new(), unrecorded, false);
            }
            Change::Update(mut desired) => {
                let (alloc_id, remote) = (desired.alloc_id, of(desired.alloc_id));
                desired.job = self.jobs.intern(desired.job);
                self.send_input(alloc_id, Input::Desired(Box::new((*desired, remote))));
            }
            Change::Gone(alloc_id) => {
                if self.allocs.contains_key(&alloc_id) {
                    self.collector.handle_removed(alloc_id);
                }
                self.send_input(alloc_id, Input::Destroy);
            }
        }
    }

    /// Whether a one-off task without a record was here before. Its directories exist, and the store with the
    /// record was lost. The task runs at most once.
    fn may_have_run(&self, desired: &DesiredAlloc) -> bool {
        desired.job.spec.is_one_off()
            && self
                .context
                .storage
                .data
                .alloc(desired.alloc_id)
                .alloc
                .exists()
    }

    /// Returns the reason for the missing record of an allocation that may have run and has no process.
    fn missing_record_meaning(&self, desired: &DesiredAlloc) -> MissingRecordMeaning {
        let data = &self.context.storage.data;
        if self.store_is_new {
            MissingRecordMeaning::StoreLost
        } else if data.alloc(desired.alloc_id).alloc.exists() {
            MissingRecordMeaning::Untraced
        } else {
            MissingRecordMeaning::NeverHere
        }
    }

    /// Sends an input to every allocation that may have a running task.
    fn send_input_to_active(&mut self, input: impl Fn() -> Input) {
        let asleep = |known: &AllocEntry| matches!(known.runner, RunnerState::Asleep(_));
        let all = self.allocs.iter().filter(|(_, known)| !asleep(known));
        let all: Vec<AllocId> = all.map(|(alloc_id, _)| *alloc_id).collect();
        for alloc_id in all {
            self.send_input(alloc_id, input());
        }
    }

    /// Sends an input without waiting: a runner whose inbox is full may be waiting for this loop.
    fn send_input(&mut self, alloc_id: AllocId, input: Input) {
        let Some(known) = self.allocs.get_mut(&alloc_id) else {
            return;
        };
        let inbox = if let RunnerState::Awake(inbox) = &known.runner {
            inbox.clone()
        } else {
            let (inbox, inputs) = mpsc::channel(ALLOC_INBOX_MAX);
            let slept = std::mem::replace(&mut known.runner, RunnerState::Awake(inbox.clone()));
            if let RunnerState::Asleep(task) = slept {
                self.runners.spawn(task.run(inbox.clone(), inputs));
            }
            inbox
        };
        if let Err(mpsc::error::TrySendError::Full(input)) = inbox.try_send(input) {
            // A runner that has ended has destroyed its allocation.
            self.runners
                .spawn(async move { drop(inbox.send(input).await) });
        }
    }

    fn run_alloc(
        &mut self,
        mut desired: DesiredAlloc,
        runner: Result<AllocRunner, MalformedAllocError>,
        records: BTreeMap<String, TaskRecord>,
        unrecorded: MissingRecordMeaning,
        restored: bool,
    ) {
        let alloc_id = desired.alloc_id;
        desired.job = self.jobs.intern(desired.job);
        let runner = match runner {
            Ok(runner) => runner,
            Err(error) => {
                tracing::error!(%error, "an allocation cannot be run");
                self.context
                    .session
                    .outbox
                    .put(malformed(alloc_id, &error), true);
                return;
            }
        };
        if restored {
            // The agent does not know whether the last report of the earlier agent arrived.
            let report = runner.report();
            if report.client_status.is_terminal() {
                self.context.session.outbox.put_ended(report);
            } else {
                self.context.session.outbox.put(report, false);
            }
        } else {
            let ResourceContext { cores, tree, .. } = &self.context.resources;
            cores.adopt(tree, &desired);
        }
        // An allocation whose network still exists has work left.
        let sleeps = restored
            && !runner.is_destroy_asked()
            && runner.poll_timeout().is_none()
            && !self.context.network.driver_networks.has(alloc_id)
            && !self.context.network.cni.has(alloc_id);
        let finished = runner.finished_at().filter(|_| sleeps);
        let task = Box::new(AllocTask {
            context: Arc::clone(&self.context),
            desired: Arc::new(desired),
            runner,
            records,
            unrecorded,
            restored,
            has_remote_stored: restored,
            pending_write: None,
            starts: PendingStarts::default(),
            stopped: CancellationToken::new(),
        });
        let runner = if let Some(at) = finished {
            self.collector.handle_finished(alloc_id, at);
            RunnerState::Asleep(task)
        } else {
            let (inbox, inputs) = mpsc::channel(ALLOC_INBOX_MAX);
            self.runners.spawn(task.run(inbox.clone(), inputs));
            RunnerState::Awake(inbox)
        };
        let finished = finished.is_some();
        self.allocs
            .insert(alloc_id, AllocEntry { runner, finished });
    }

    fn stop_disconnected(&mut self) {
        let now = self.clock.at(Instant::now());
        for alloc_id in self.contact.handle_timeout(&self.desired, now) {
            if self
                .allocs
                .get(&alloc_id)
                .is_none_or(|known| known.finished)
            {
                continue;
            }
            tracing::warn!(%alloc_id, "no server was in reach for stop_on_client_after: the allocation is stopped");
            self.send_input(alloc_id, Input::Disconnected);
        }
    }

    fn collect(&mut self) {
        let context = Arc::clone(&self.context);
        let allocs = self.allocs.len();
        let limits = self.collector.limits();
        let space = || {
            let space = space(&context.storage);
            if limits.exceeded(&space).is_some() {
                context.storage.trash.raise_priority();
            }
            space
        };
        loop {
            let successors = &self.successors;
            let may_go = |alloc_id| kept(&context, successors, alloc_id).is_none();
            let chosen = self.collector.poll_destroy(allocs, may_go, space, now());
            let Some((alloc_id, reason)) = chosen else {
                break;
            };
            if reason == GcReason::Forced {
                context.storage.trash.raise_priority();
            }
            tracing::info!(%alloc_id, reason = reason.as_str(), "a finished allocation is destroyed");
            if context.storage.leftovers.has(alloc_id) {
                self.release(alloc_id);
            } else {
                self.send_input(alloc_id, Input::Destroy);
            }
        }
        let kept = |alloc_id| kept(&context, &self.successors, alloc_id);
        self.gc_requests
            .answer(|| gc::outlook(&self.collector, allocs, kept));
        let state = self.collector.state();
        self.context.storage.collection.send_if_modified(|known| {
            let changed = *known != state;
            known.clone_from(&state);
            changed
        });
        self.report_collection(gc::seen(state, &context.storage.trash));
    }

    /// Reports a finished collection to the servers, if there is one.
    fn report_collection(&mut self, seen: GcReading) {
        let Some(report) = self.gc_rounds.handle_seen(seen, now()) else {
            return;
        };
        let context = &self.context;
        let kept = |alloc_id| kept(context, &self.successors, alloc_id);
        let space = space(&context.storage);
        context.session.outbox.put_collected(NodeCollected {
            kept: self.collector.kept(self.allocs.len(), kept),
            thresholds: self.collector.limits().into(),
            disk_percent: space.disk_percent,
            inode_percent: space.inode_percent,
            ..report
        });
    }

    /// Asks the drivers to release an allocation that is to be destroyed, in parallel to all other work.
    fn release(&mut self, alloc_id: AllocId) {
        let (context, events) = (Arc::clone(&self.context), self.events.clone());
        self.runners.spawn(async move {
            let event = match gc::release(&context, alloc_id).await {
                Ok(()) => Event::Released { alloc_id },
                Err(_logged) => Event::Refused { alloc_id },
            };
            drop(events.send(event).await);
        });
    }

    fn collect_now(&mut self, dry_run: bool, done: oneshot::Sender<GcOutcome>) {
        let mut waiting = if dry_run {
            BTreeSet::new()
        } else {
            self.force()
        };
        let kept = |alloc_id| kept(&self.context, &self.successors, alloc_id);
        if dry_run {
            let outlook = gc::outlook(&self.collector, self.allocs.len(), kept);
            // The caller may have stopped waiting.
            let _sent = done.send(outlook);
        } else {
            // The caller does not wait for allocations that depend on an unreachable server or on a successor.
            waiting.retain(|alloc_id| kept(*alloc_id).is_none());
            self.gc_requests.add(waiting, done);
        }
    }

    /// Schedules all finished allocations for removal and returns them. Refused deletions are retried at once.
    fn force(&mut self) -> BTreeSet<AllocId> {
        self.context.storage.trash.retry();
        self.collector.handle_forced()
    }

    fn longest_stop(&self) -> Duration {
        let groups = self.desired.iter().filter_map(DesiredAlloc::group);
        let longest = groups.map(longest_stop).max();
        longest.unwrap_or_default().min(KILL_TIMEOUT_MAX)
    }

    fn report_stopped(&mut self) {
        if self.allocs.values().all(|known| known.finished)
            && let Some(done) = self.stopping.take()
        {
            // The caller may have stopped waiting.
            let _sent = done.send(());
        }
    }

    /// Schedules a sweep. The node has all its allocations by then, if the server has them.
    fn sweep_later(&mut self) {
        let delay = if self.store_lost {
            SWEEP_DELAY_AFTER_LOSS
        } else {
            Duration::ZERO
        };
        let events = self.events.clone();
        let context = Arc::clone(&self.context);
        self.runners.spawn(async move {
            tokio::time::sleep(delay).await;
            let scanned = tokio::task::spawn_blocking(move || {
                NodeInventory::scan(&context.resources.tree, &context.storage.data)
            });
            if let Ok(found) = scanned.await {
                drop(events.send(Event::SweepDue { found }).await);
            }
        });
    }

    /// Removes found tasks and directories that belong to no known allocation. The node has all its allocations,
    /// and its list is newer than the scan.
    fn sweep(&mut self, mut found: NodeInventory) {
        found.retain(|alloc_id| !self.allocs.contains_key(&alloc_id));
        let context = Arc::clone(&self.context);
        self.runners
            .spawn(async move { remove_inventory(found, &context).await });
    }
}

/// Ends the tasks of an inventory, and removes the tasks and directories.
async fn remove_inventory(inventory: NodeInventory, context: &AgentContext) {
    for name in inventory.tasks {
        tracing::warn!(
            alloc_id = name.alloc,
            task = name.task,
            "a task that belongs to no allocation is stopped"
        );
        end_stray(context, &name.alloc, &name.task).await;
    }
    for alloc_id in inventory.allocs {
        if let Err(error) = context.storage.discard(alloc_id).await {
            tracing::warn!(error = chain(&error), "directories of no allocation remain");
        }
        let write = vec![Write::Remove(alloc_id)];
        drop(context.storage.store.write(write).await);
    }
}

/// The longest time that a stop of the group may take: its delay, its leader, then the slowest of the others.
fn longest_stop(group: &TaskGroup) -> Duration {
    let longest = |leader: bool| {
        let tasks = group.tasks.iter().filter(|task| task.leader == leader);
        let times = tasks.map(|task| task.shutdown_delay.saturating_add(task.kill_timeout));
        times.max().unwrap_or_default()
    };
    group
        .shutdown_delay
        .saturating_add(longest(true))
        .saturating_add(longest(false))
}

async fn end_stray(context: &AgentContext, alloc: &str, task: &str) {
    let Ok(cgroup) = TaskCgroup::open(&context.resources.tree, alloc, task) else {
        return;
    };
    for (_, slot) in context.tasks.drivers.iter() {
        for handle in slot.driver.list_tasks().await.unwrap_or_default() {
            if handle.config.alloc_id == alloc && handle.config.task_name == task {
                crate::tasks::task::end_unknown(slot, &handle.config.id).await;
            }
        }
    }
    crate::tasks::task::clean_up_stray(context.bpf(), &cgroup).await;
}

fn malformed(alloc_id: AllocId, error: &MalformedAllocError) -> AllocReport {
    AllocReport {
        alloc_id,
        client_status: ClientStatus::Failed,
        client_description: error.to_string(),
        task_states: Vec::new(),
        healthy: None,
        end: None,
        remote: Vec::new(),
    }
}

/// Sleeps until a core's timeout on that clock; for ever if there is none.
async fn until(clock: ContactClock, timeout: Option<(Timestamp, &'static str)>) {
    match timeout {
        Some((at, _why)) => tokio::time::sleep_until(clock.instant(at).into()).await,
        None => std::future::pending().await,
    }
}

/// The reason why a finished allocation must stay, even on request.
fn kept(
    context: &AgentContext,
    successors: &BTreeMap<AllocId, AllocId>,
    alloc_id: AllocId,
) -> Option<KeptReason> {
    if !context.session.outbox.is_reported(alloc_id) {
        Some(KeptReason::Unreported)
    } else if successors.contains_key(&alloc_id) || context.storage.dir_leases.has(alloc_id) {
        Some(KeptReason::DataAwaited)
    } else {
        None
    }
}

/// The usage of the file system of the allocations.
fn space(storage: &StorageContext) -> GcSpace {
    let usage = disk_usage(&storage.data.allocs());
    GcSpace {
        disk_percent: usage.percent,
        inode_percent: usage.inode_percent,
        deleting: !storage.trash.is_idle(),
    }
}

/// The number after `bytes`.
fn next_bytes(bytes: [u8; 16]) -> [u8; 16] {
    u128::from_be_bytes(bytes).saturating_add(1).to_be_bytes()
}
