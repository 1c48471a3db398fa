//! What the node adds to its tasks' network policies, and what earlier agents left of them.
//!
//! Whoever changes [`NodeRules`] tells the node's loop, which puts tasks that run behind them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use muster_agent_core::policy::NodePolicy;
use muster_domain::id::LogIndex;
use muster_domain::job::{NetworkPolicy, PolicyProtocol};
use tokio_util::sync::CancellationToken;

use super::AgentConfig;
use crate::bpf::Bpf;
use crate::cgroup::{NodeTree, TaskCgroup};
use crate::facilities::Facilities;
use crate::limits::SWEEP_AFTER;
use crate::store::Loaded;

/// What the node adds to every task's policy at this moment. The operator's configuration stays as it is; who the
/// servers are and what the cluster wants may change while tasks run.
#[derive(Debug)]
pub(crate) struct NodeRules {
    /// As configured, with the servers that the operator named.
    configured: NodePolicy,
    current: Mutex<Arc<NodePolicy>>,
    /// The entry that wrote the cluster's policy; 0 while none is known.
    cluster_index: AtomicU64,
}

impl NodeRules {
    /// Those of `config`, with what an earlier agent `loaded` of the servers and of the cluster's policy.
    pub(super) fn new(config: &AgentConfig, loaded: &Loaded) -> Self {
        let mut configured = config.network.clone();
        configured.forbidden.extend(forbidden(&config.servers));
        let (index, policy) = &loaded.cluster_policy;
        configured.cluster.clone_from(policy);
        let rules = Self {
            current: Mutex::new(Arc::new(configured.clone())),
            configured,
            cluster_index: AtomicU64::new(index.0),
        };
        rules.set_servers(&loaded.servers);
        rules
    }

    /// Those that hold.
    pub(crate) fn current(&self) -> Arc<NodePolicy> {
        Arc::clone(&self.locked())
    }

    /// No task reaches `servers`, nor those that the operator named. Says whether that is news.
    pub(crate) fn set_servers(&self, servers: &[SocketAddr]) -> bool {
        self.change(|rules| {
            rules.forbidden.clone_from(&self.configured.forbidden);
            for place in forbidden(servers) {
                if !rules.forbidden.contains(&place) {
                    rules.forbidden.push(place);
                }
            }
        })
    }

    /// The entry that wrote the cluster's policy; 0 while none is known.
    pub(crate) fn cluster_index(&self) -> LogIndex {
        LogIndex(self.cluster_index.load(Ordering::Acquire))
    }

    /// What the entry at `index` wants of all nodes of the cluster. Says whether that is news: what is older than what
    /// is known comes from a server that is behind.
    pub(crate) fn set_cluster(&self, index: LogIndex, policy: &NetworkPolicy) -> bool {
        if index <= self.cluster_index() {
            return false;
        }
        self.cluster_index.store(index.0, Ordering::Release);
        self.change(|rules| rules.cluster.clone_from(policy));
        true
    }

    fn change(&self, change: impl FnOnce(&mut NodePolicy)) -> bool {
        let mut current = self.locked();
        let mut next = (**current).clone();
        change(&mut next);
        let is_news = next != **current;
        if is_news {
            *current = Arc::new(next);
        }
        is_news
    }

    fn locked(&self) -> MutexGuard<'_, Arc<NodePolicy>> {
        // A panic elsewhere leaves it whole: it is replaced in one step.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where servers listen for agents and for each other.
fn forbidden(
    servers: &[SocketAddr],
) -> impl Iterator<Item = (String, IpNet, PolicyProtocol, u16)> + '_ {
    servers.iter().map(|server| {
        let name = "servers".to_owned();
        (name, server.ip().into(), PolicyProtocol::Udp, server.port())
    })
}

/// Removes network policies of tasks that ended while no agent ran.
pub(super) fn sweep(bpf: &Bpf, tree: &NodeTree) {
    if let Err(error) = bpf.sweep_policies(&alive(tree)) {
        tracing::warn!(%error, "network policies that no task has are left");
    }
}

/// The cgroups of tasks that there are.
pub(super) fn alive(tree: &NodeTree) -> BTreeSet<u64> {
    let groups = tree.tasks().unwrap_or_default();
    let alive = groups.iter().filter_map(|name| {
        let cgroup = TaskCgroup::open(tree, &name.alloc, &name.task).ok()?;
        Some(cgroup.id())
    });
    alive.collect()
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
