//! Carries out the collection of finished allocations. `agent-core` decides which allocation is next.
//!
//! A destroy has three steps. The drivers and the kernel release the resources that they did not release when the tasks
//! ended ([`release`]). Then one rename each moves the directories to the trash ([`destroy`]). Then the record is
//! removed. Deletion follows in the background ([`crate::storage::trash`]). Each step may be repeated, so after a crash
//! between two steps the next agent finishes the destroy.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_agent_core::gc::{Collector, GcReading, GcState, KeptReason};
use muster_agent_core::limits::{DESTROY_PAUSE_MAX, DESTROY_PAUSE_MIN};
use muster_domain::error_chain::chain;
use muster_domain::id::AllocId;
use muster_driver::TaskError;
use tokio::sync::oneshot;

use crate::context::AgentContext;
use crate::limits::{COLLECT_ASKS_MAX, DESTROY_TASK_DEADLINE};
use crate::node::event::Event;
use crate::resources::cgroup::{RemoveCgroupError, TaskCgroup};
use crate::session::clock::now;
use crate::storage::StorageContext;
use crate::storage::gc_outcome::GcOutcome;
use crate::storage::leftovers::Leftover;
use crate::storage::store::Write;
use crate::storage::trash::Trash;
use crate::tasks::drivers::DriverSlot;

/// The reason why a task's resources are not released.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReleaseError {
    /// The driver refuses, or does not answer.
    #[error("driver `{driver}` does not destroy task {task_id}; see the driver's log")]
    Driver {
        driver: String,
        task_id: String,
        #[source]
        source: TaskError,
    },
    /// The driver does not answer in time.
    #[error(
        "driver `{driver}` did not destroy task {task_id} within {DESTROY_TASK_DEADLINE:?}; see the driver's log"
    )]
    Silent { driver: String, task_id: String },
    /// The kernel does not release the counters.
    #[error("the eBPF entries of task {task_id} cannot be removed")]
    Counters {
        task_id: String,
        #[source]
        source: std::io::Error,
    },
    /// The kernel does not release the cgroup.
    #[error("the cgroup of task {task_id} cannot be removed")]
    Cgroup {
        task_id: String,
        #[source]
        source: RemoveCgroupError,
    },
}

/// Asks the driver to destroy its resources of the start `task_id`. A driver without a record of the start is success.
pub(crate) async fn destroy_task(
    slot: &DriverSlot,
    driver: &str,
    task_id: &str,
) -> Result<(), ReleaseError> {
    let asked = slot.driver.destroy_task(task_id, true);
    let names = || (driver.to_owned(), task_id.to_owned());
    match tokio::time::timeout(DESTROY_TASK_DEADLINE, asked).await {
        Ok(Ok(()) | Err(TaskError::NotFound { .. })) => Ok(()),
        Ok(Err(source)) => {
            let (driver, task_id) = names();
            Err(ReleaseError::Driver {
                driver,
                task_id,
                source,
            })
        }
        Err(_elapsed) => {
            let (driver, task_id) = names();
            Err(ReleaseError::Silent { driver, task_id })
        }
    }
}

/// Records the resources that could not be released when a task ended. Their release is tried again before the
/// allocation is destroyed.
pub(crate) async fn keep(
    storage: &StorageContext,
    alloc_id: AllocId,
    leftover: Leftover,
    error: &(dyn std::error::Error + Send + Sync),
) {
    tracing::warn!(
        %alloc_id, task = leftover.task, error = chain(error),
        "something of a task that ended is left; it is released when the allocation is destroyed"
    );
    storage.leftovers.insert(alloc_id, leftover.clone());
    let write = Write::Leftover(alloc_id, Box::new(leftover));
    // The store's thread reports a failure to the operator.
    drop(storage.store.write(vec![write]).await);
}

/// Releases the remaining resources of the allocation's tasks. All are tried, and the first error is returned.
pub(crate) async fn release(context: &AgentContext, alloc_id: AllocId) -> Result<(), ReleaseError> {
    let mut first = Ok(());
    for leftover in context.storage.leftovers.of(alloc_id) {
        match release_leftover(context, alloc_id, &leftover).await {
            Ok(()) => {
                context
                    .storage
                    .leftovers
                    .remove(alloc_id, &leftover.task_id);
                let write = Write::LeftoverGone(alloc_id, leftover.task_id);
                drop(context.storage.store.submit(vec![write]).await);
            }
            Err(error) => {
                let left_for = leftover.left_at.map(|at| now().since(at));
                tracing::warn!(
                    %alloc_id, task = leftover.task, ?left_for, error = chain(&error),
                    "an allocation cannot be destroyed yet; it is tried again"
                );
                first = first.and(Err(error));
            }
        }
    }
    first
}

async fn release_leftover(
    context: &AgentContext,
    alloc_id: AllocId,
    leftover: &Leftover,
) -> Result<(), ReleaseError> {
    let Leftover {
        driver,
        task_id,
        task,
        cgroup_id,
        boot_id,
        left_at: _,
    } = leftover;
    match context.tasks.drivers.named(driver) {
        Some(slot) => destroy_task(slot, driver, task_id).await?,
        None => {
            tracing::warn!(
                %alloc_id, driver, task_id,
                "the node has no such driver any more: what it left of the task stays where it is"
            );
            drop(context.node.send(Event::Abandoned).await);
        }
    }
    let cgroup = TaskCgroup::open(&context.resources.tree, &alloc_id.to_string(), task).ok();
    let cgroup = cgroup.filter(|cgroup| cgroup.id() == *cgroup_id && *boot_id == context.boot_id);
    if let Some(cgroup) = &cgroup {
        crate::resources::teardown::kill(cgroup).await;
    }
    release_kernel(context, leftover, cgroup.as_ref()).await
}

/// Releases the kernel's resources of a start: the counters, and the cgroup if it exists. Both are tried, and the first
/// error is returned. After a reboot the kernel has no resources of the start.
pub(crate) async fn release_kernel(
    context: &AgentContext,
    leftover: &Leftover,
    cgroup: Option<&TaskCgroup>,
) -> Result<(), ReleaseError> {
    let Leftover {
        task_id,
        cgroup_id,
        boot_id,
        ..
    } = leftover;
    if *boot_id != context.boot_id {
        return Ok(());
    }
    let forgotten = context.bpf().map_or(Ok(()), |bpf| bpf.forget(*cgroup_id));
    let removed = match cgroup {
        Some(cgroup) => cgroup.remove().await,
        None => Ok(()),
    };
    let counters = |source| ReleaseError::Counters {
        task_id: task_id.clone(),
        source,
    };
    let group = |source| ReleaseError::Cgroup {
        task_id: task_id.clone(),
        source,
    };
    forgotten.map_err(counters).and(removed.map_err(group))
}

/// Destroys an allocation without running processes. Retries until it succeeds, and reports each failure to the node.
pub(crate) async fn destroy(context: &AgentContext, alloc_id: AllocId) {
    let mut pause = DESTROY_PAUSE_MIN;
    while !(release_resources(context, alloc_id).await && discard(&context.storage, alloc_id).await)
    {
        drop(context.node.send(Event::Refused { alloc_id }).await);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(DESTROY_PAUSE_MAX);
    }
}

/// Whether an allocation's network, drivers and the kernel have released it. All of them are asked.
async fn release_resources(context: &AgentContext, alloc_id: AllocId) -> bool {
    let closed = context.give_network_back(alloc_id).await;
    if let Err(error) = &closed {
        tracing::warn!(
            %alloc_id, error,
            "the network of an allocation cannot be removed yet; it is tried again"
        );
    }
    let released = release(context, alloc_id).await;
    closed.is_ok() && released.is_ok()
}

/// Moves directories and logs to the trash. Only a few allocations do this at a time, so that starts do not wait for a
/// thread.
async fn discard(storage: &StorageContext, alloc_id: AllocId) -> bool {
    // The wait for readers comes before the permit, because a transfer to another node may take long.
    storage.dir_leases.wait_for_readers(alloc_id).await;
    let turn = storage.destroys.acquire().await;
    let discarded = storage.discard(alloc_id).await;
    drop(turn);
    discarded
        .inspect_err(|error| {
            tracing::error!(
                %alloc_id, error = chain(error),
                "the directories of an allocation cannot be moved to the trash; it is tried again"
            );
        })
        .is_ok()
}

/// Destroys all allocations that have finished by now. Returns when they are destroyed and their space is free, except
/// entries that cannot be deleted. With `dry_run` it only returns the expected result. Returns `None` if the agent
/// stops meanwhile.
pub(crate) async fn collect_now(context: &AgentContext, dry_run: bool) -> Option<GcOutcome> {
    let trash = &context.storage.trash;
    let before = trash.state().deleted;
    let (done, collected) = oneshot::channel();
    let asked = context.node.send(Event::Collect { dry_run, done }).await;
    asked.ok()?;
    let collected = collected.await.ok()?;
    if dry_run {
        return Some(collected);
    }
    if !trash.is_idle() {
        // The trash may have been empty between two allocations, which ends the raised priority.
        trash.raise_priority();
        trash.emptied().await;
    }
    let after = trash.state().deleted;
    Some(GcOutcome {
        inodes: after.inodes() - before.inodes(),
        bytes: after.bytes - before.bytes,
        ..collected
    })
}

/// The callers that wait for the end of a forced collection.
#[derive(Debug, Default)]
pub(crate) struct GcRequests {
    requests: Vec<GcRequest>,
}

#[derive(Debug)]
struct GcRequest {
    waiting: BTreeSet<AllocId>,
    freed: u64,
    done: oneshot::Sender<GcOutcome>,
}

impl GcRequests {
    /// Adds a caller that waits for the destroy of the allocations in `waiting`. Beyond the maximum of callers, the
    /// answer is the result known at once.
    pub(crate) fn add(&mut self, waiting: BTreeSet<AllocId>, done: oneshot::Sender<GcOutcome>) {
        let waiting = if self.requests.len() < COLLECT_ASKS_MAX {
            waiting
        } else {
            BTreeSet::new()
        };
        let freed = 0;
        self.requests.push(GcRequest {
            waiting,
            freed,
            done,
        });
    }

    /// Takes in that an allocation was destroyed, or that its destroy was refused.
    pub(crate) fn settled(&mut self, alloc_id: AllocId, destroyed: bool) {
        for ask in &mut self.requests {
            if ask.waiting.remove(&alloc_id) && destroyed {
                ask.freed += 1;
            }
        }
    }

    /// Answers the callers whose wait is over. `outlook` returns the allocations that stay.
    pub(crate) fn answer(&mut self, outlook: impl Fn() -> GcOutcome) {
        let is_over = |ask: &mut GcRequest| ask.waiting.is_empty() || ask.done.is_closed();
        for ask in self.requests.extract_if(.., is_over) {
            let collected = GcOutcome {
                freed: ask.freed,
                ..outlook()
            };
            // The caller may have stopped waiting.
            let _sent = ask.done.send(collected);
        }
    }
}

/// Returns the expected result of a forced collection. `kept` gives the reason why a finished allocation may not be
/// destroyed.
pub(crate) fn outlook(
    collector: &Collector,
    allocs: usize,
    kept: impl Fn(AllocId) -> Option<KeptReason>,
) -> GcOutcome {
    let (freed, kept) = collector.outlook(allocs, kept);
    let kept = kept.into_iter().collect();
    GcOutcome {
        freed,
        kept,
        ..GcOutcome::default()
    }
}

/// Returns the work that collection has done so far, with the counts of deletion.
pub(crate) fn seen(state: GcState, trash: &Trash) -> GcReading {
    let counts = trash.counts();
    GcReading {
        state,
        inodes: counts.deleted.inodes(),
        bytes: counts.deleted.bytes,
        delete_failures: counts.failures,
        deleting: counts.deleting,
    }
}

/// Time between two checks of the node's loop for a possible collection, if no other event comes.
pub(crate) fn interval(collector: &Collector) -> Duration {
    collector.interval().max(crate::limits::GC_INTERVAL_MIN)
}
