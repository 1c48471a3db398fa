//! Policies and counters in eBPF maps whose tasks are gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;

use crate::bpf::Bpf;
use crate::context::AgentContext;
use crate::limits::{RECONCILE_INTERVAL, SWEEP_AFTER};
use crate::resources::cgroup::{NodeTree, TaskCgroup};

/// Removes network policies of tasks that ended while no agent ran.
pub(super) fn sweep(bpf: &Bpf, tree: &NodeTree) {
    if let Err(error) = bpf.sweep_policies(&alive(tree)) {
        tracing::warn!(%error, "network policies that no task has are left");
    }
}

/// Returns the existing cgroups of tasks.
pub(super) fn alive(tree: &NodeTree) -> BTreeSet<u64> {
    let groups = tree.tasks().unwrap_or_default();
    let alive = groups.iter().filter_map(|name| {
        let cgroup = TaskCgroup::open(tree, &name.alloc, &name.task).ok()?;
        Some(cgroup.id())
    });
    alive.collect()
}

/// Removes entries of eBPF maps whose cgroups are gone, at intervals until the agent stops.
pub(super) async fn reconcile(context: Arc<AgentContext>, stop: CancellationToken) {
    let mut before = BTreeSet::new();
    let mut interval = tokio::time::interval(RECONCILE_INTERVAL);
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        let of = Arc::clone(&context);
        let listed = tokio::task::spawn_blocking(move || stale(&of)).await;
        let stale = listed.unwrap_or_default();
        // The runner of a task that has just ended still reads its counts, and removes its entries itself.
        for cgroup in stale.intersection(&before) {
            let Some(Ok(())) = context.bpf().map(|bpf| bpf.forget(*cgroup)) else {
                continue;
            };
            let removed = &context.monitoring.ebpf_stale_removed;
            removed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(cgroup, "entries of eBPF maps had no cgroup and are removed");
        }
        before = stale;
    }
}

/// Returns cgroups in the maps that no longer exist.
fn stale(context: &AgentContext) -> BTreeSet<u64> {
    let known = context.bpf().and_then(|bpf| bpf.collect().ok());
    let Some(known) = known else {
        return BTreeSet::new();
    };
    // The cgroups are read after the maps, because the cgroup of a task is made before its entries. An unreadable
    // tree proves nothing.
    let Ok(tasks) = context.resources.tree.tasks() else {
        return BTreeSet::new();
    };
    if tasks.is_empty() && !context.resources.tree.v2_dir().is_dir() {
        return BTreeSet::new();
    }
    let alive = alive(&context.resources.tree);
    let running = context.tasks.live.of(None);
    let running: BTreeSet<u64> = running
        .iter()
        .map(|(_, _, live)| live.record.cgroup_id)
        .collect();
    let mut stale: BTreeSet<u64> = known.into_keys().collect();
    stale.retain(|cgroup| !alive.contains(cgroup) && !running.contains(cgroup));
    stale
}

/// Removes network policies that tasks had before this agent found the tasks and attached new policies.
pub(super) async fn sweep_later(context: Arc<AgentContext>, stop: CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(SWEEP_AFTER) => {}
        () = stop.cancelled() => return,
    }
    if let Some(bpf) = context.bpf() {
        sweep(bpf, &context.resources.tree);
    }
}
