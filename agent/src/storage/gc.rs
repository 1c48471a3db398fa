//! Carries out collection of finished allocations; which one goes next is decided in `agent-core`.
//!
//! Destroying one is: its drivers and the kernel let go of what they could not let go of when its tasks
//! ended ([`release`]), its directories go to the trash by one rename each ([`destroy`]), and its record is
//! removed. Deletion follows in the background ([`crate::storage::trash`]). Each step may be repeated, so that an
//! agent that dies between two of them finishes with the next.

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

/// Why a task's resources are not released.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReleaseError {
    /// The driver refuses or does not answer.
    #[error("driver `{driver}` does not destroy task {task_id}; see the driver's log")]
    Driver {
        driver: String,
        task_id: String,
        #[source]
        source: TaskError,
    },
    /// The driver says nothing.
    #[error(
        "driver `{driver}` did not destroy task {task_id} within {DESTROY_TASK_DEADLINE:?}; see the driver's log"
    )]
    Silent { driver: String, task_id: String },
    /// The kernel keeps its counters.
    #[error("the eBPF entries of task {task_id} cannot be removed")]
    Counters {
        task_id: String,
        #[source]
        source: std::io::Error,
    },
    /// The kernel keeps its group.
    #[error("the cgroup of task {task_id} cannot be removed")]
    Cgroup {
        task_id: String,
        #[source]
        source: RemoveCgroupError,
    },
}

/// Has the driver destroy what it has of the start `task_id`; that it knows nothing of it is success.
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

/// Remembers what could not be released when a task ended: it is tried again before the allocation is
/// destroyed.
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
    // The store's thread tells the operator.
    drop(storage.store.write(vec![write]).await);
}

/// Releases what is left of the allocation's tasks. All are tried; the first error is told.
pub(crate) async fn release(context: &AgentContext, alloc_id: AllocId) -> Result<(), ReleaseError> {
    let mut first = Ok(());
    for leftover in context.storage.leftovers.of(alloc_id) {
        match release_one(context, alloc_id, &leftover).await {
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

async fn release_one(
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

/// Has the kernel let go of what it has of a start: counters, and its cgroup if that is there. Both are
/// tried; the first error is told. A kernel that was started since has nothing of it.
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

/// Destroys an allocation of which nothing runs. Tries until it succeeds, and reports each failure to the node.
pub(crate) async fn destroy(context: &AgentContext, alloc_id: AllocId) {
    let mut pause = DESTROY_PAUSE_MIN;
    while !(let_go(context, alloc_id).await && discard(&context.storage, alloc_id).await) {
        drop(context.node.send(Event::Refused { alloc_id }).await);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(DESTROY_PAUSE_MAX);
    }
}

/// Whether its network, drivers and the kernel have let go of an allocation; all are asked.
async fn let_go(context: &AgentContext, alloc_id: AllocId) -> bool {
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

/// Moves directories and logs to the trash; a few allocations at a time, so that nobody who starts one
/// waits for a thread.
async fn discard(storage: &StorageContext, alloc_id: AllocId) -> bool {
    // Not in its turn: the way to another node may be long.
    storage.dir_leases.leave(alloc_id).await;
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

/// Destroys everything that has finished by now, and returns when it is and its space is free, but for what cannot be
/// deleted; with `dry_run` nothing is done and the answer says what would be. `None` if the agent stops meanwhile.
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
        // It may have been empty between two allocations, and does not hurry any more.
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

/// Those who wait for the end of a forced collection.
#[derive(Debug, Default)]
pub(crate) struct GcRequests {
    asks: Vec<GcRequest>,
}

#[derive(Debug)]
struct GcRequest {
    waiting: BTreeSet<AllocId>,
    freed: u64,
    done: oneshot::Sender<GcOutcome>,
}

impl GcRequests {
    /// Somebody waits for these to be destroyed. Without room the answer is what is known at once.
    pub(crate) fn add(&mut self, waiting: BTreeSet<AllocId>, done: oneshot::Sender<GcOutcome>) {
        let waiting = if self.asks.len() < COLLECT_ASKS_MAX {
            waiting
        } else {
            BTreeSet::new()
        };
        let freed = 0;
        self.asks.push(GcRequest {
            waiting,
            freed,
            done,
        });
    }

    /// An allocation was destroyed, or refused to be.
    pub(crate) fn settled(&mut self, alloc_id: AllocId, destroyed: bool) {
        for ask in &mut self.asks {
            if ask.waiting.remove(&alloc_id) && destroyed {
                ask.freed += 1;
            }
        }
    }

    /// Answers those who need not wait any more. `outlook` says what stays.
    pub(crate) fn answer(&mut self, outlook: impl Fn() -> GcOutcome) {
        let is_over = |ask: &mut GcRequest| ask.waiting.is_empty() || ask.done.is_closed();
        for ask in self.asks.extract_if(.., is_over) {
            let collected = GcOutcome {
                freed: ask.freed,
                ..outlook()
            };
            // The caller may have stopped waiting.
            let _sent = ask.done.send(collected);
        }
    }
}

/// Returns what a forced collection would do. `kept` says why an allocation that has finished may not go.
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

/// Returns what collection did so far, with the counts of deletion.
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

/// Time between two looks of the node's loop at what collection could do, if nothing else happens.
pub(crate) fn interval(collector: &Collector) -> Duration {
    collector.interval().max(crate::limits::GC_INTERVAL_MIN)
}
