//! What the node adds to its tasks' network policies, and what earlier agents left of them.

use std::sync::Arc;

use muster_agent_core::policy::NodePolicy;
use muster_domain::job::PolicyProtocol;
use tokio_util::sync::CancellationToken;

use super::AgentConfig;
use crate::bpf::Bpf;
use crate::cgroup::{NodeTree, TaskCgroup};
use crate::facilities::Facilities;
use crate::limits::SWEEP_AFTER;

/// What the node adds to every task's policy; its servers are out of reach of its tasks.
pub(super) fn policy(config: &AgentConfig) -> NodePolicy {
    let mut network = config.network.clone();
    let servers = config.servers.iter();
    network.forbidden.extend(servers.map(|server| {
        let name = "servers".to_owned();
        (name, server.ip().into(), PolicyProtocol::Udp, server.port())
    }));
    network
}

/// Removes network policies of tasks that ended while no agent ran.
pub(super) fn sweep(bpf: &Bpf, tree: &NodeTree) {
    let groups = tree.tasks().unwrap_or_default();
    let alive = groups.iter().filter_map(|name| {
        let cgroup = TaskCgroup::open(tree, &name.alloc, &name.task).ok()?;
        Some(cgroup.id())
    });
    if let Err(error) = bpf.sweep_policies(&alive.collect()) {
        tracing::warn!(%error, "network policies that no task has are left");
    }
}

/// Removes network policies that tasks had before this agent found them and gave them theirs.
pub(super) async fn sweep_later(facilities: Arc<Facilities>, stop: CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(SWEEP_AFTER) => {}
        () = stop.cancelled() => return,
    }
    if let Some(bpf) = facilities.bpf() {
        sweep(bpf, &facilities.tree);
    }
}
