//! Loops that run as long as the agent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use muster_domain::id::AllocId;
use tokio_util::sync::CancellationToken;

use crate::bpf::PacketVerdict;
use crate::context::AgentContext;
use crate::limits::{BRIDGE_LOOK_INTERVAL, START_HEALTH_INTERVAL};
use crate::network::verdicts::reported_verdict;

/// Handles changes of the machine's devices until the agent stops.
pub(super) async fn bridge_devices(context: Arc<AgentContext>, stop: CancellationToken) {
    let bridge = &context.network.bridge;
    if bridge.unsupported().is_some() {
        return;
    }
    let mut interval = tokio::time::interval(BRIDGE_LOOK_INTERVAL);
    let mut first = true;
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = stop.cancelled() => return,
        }
        // The leftovers of an earlier agent are swept once. After that, a node without such jobs does nothing.
        if let Some(bpf) = context.bpf()
            && (first || bridge.is_used())
        {
            bridge.reconcile(bpf).await;
        }
        first = false;
    }
}

/// Cleans up after earlier agents, which left networks of these allocations.
pub(super) async fn recover_cni_networks(
    context: Arc<AgentContext>,
    orphans: Vec<AllocId>,
    stop: CancellationToken,
) {
    let recovered = async {
        context.network.cni.recover(orphans).await;
        context.network.cni.collect().await;
    };
    stop.run_until_cancelled(recovered).await;
}

/// Checks the health of starts at intervals until the agent stops.
pub(super) async fn start_health(context: Arc<AgentContext>, stop: CancellationToken) {
    let mut interval = tokio::time::interval(START_HEALTH_INTERVAL);
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        context
            .monitoring
            .start_health
            .handle_timeout(Instant::now());
    }
}

/// Reads verdicts from the programs until the agent stops.
pub(super) async fn packet_verdicts(context: Arc<AgentContext>, stop: CancellationToken) {
    let Some(bpf) = context.bpf() else { return };
    let mut verdicts = match bpf.verdicts() {
        Ok(verdicts) => verdicts,
        Err(error) => {
            tracing::error!(
                error = muster_domain::error_chain::chain(&error),
                "refused packets are counted but not reported one by one"
            );
            return;
        }
    };
    // The owner of each cgroup, including tasks that ended a moment ago.
    let mut tasks: HashMap<u64, (AllocId, String)> = HashMap::new();
    loop {
        let mut batch: Vec<PacketVerdict> = Vec::new();
        let waited = tokio::select! {
            waited = verdicts.next(bpf, |verdict| batch.push(verdict)) => waited,
            () = stop.cancelled() => return,
        };
        if let Err(error) = waited {
            tracing::error!(%error, "refused packets are no longer reported one by one");
            return;
        }
        if batch
            .iter()
            .any(|verdict| !tasks.contains_key(&verdict.task))
        {
            let live = context.tasks.live.of(None).into_iter();
            tasks = live
                .map(|(id, name, live)| (live.record.cgroup_id, (id, name)))
                .collect();
        }
        for verdict in batch {
            if let Some((alloc_id, task)) = tasks.get(&verdict.task) {
                let verdict = reported_verdict(task, verdict);
                context.network.verdicts.push(*alloc_id, verdict);
            }
        }
    }
}
