//! The context that every allocation of the node shares: store, cgroup tree, eBPF, log loop, drivers.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use muster_agent_core::gc::GcState;
use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::AllocId;
use muster_domain::node::{NodeSecret, NodeSpec};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::allocdir::{DataDir, DirError};
use crate::bpf::Bpf;
use crate::bridge::{AllocNetwork, Bridge};
use crate::cgroup::{CgroupRows, NodeTree};
use crate::cni::CniNetworks;
use crate::conditions::Conditions;
use crate::control::ControlPlaneStatus;
use crate::cores::Cores;
use crate::disk::Disks;
use crate::drivers::Drivers;
use crate::drivers::networks::DriverNetworks;
use crate::drivers::nomad::NomadDrivers;
use crate::gc::Leftovers;
use crate::history::Histories;
use crate::migrate::DirLeases;
use crate::node::NodeRules;
use crate::reports::Outbox;
use crate::ring::LogRing;
use crate::roots::ChrootEnv;
use crate::start_health::StartHealth;
use crate::store::Store;
use crate::task::{LiveTask, TaskInputSender, chain};
use crate::trash::Trash;
use crate::users::WorkloadUsers;
use crate::verdicts::VerdictLog;

/// Shared by all runners of one agent.
#[derive(Debug)]
pub(crate) struct AgentContext {
    pub(crate) data: DataDir,
    /// The secret with which the node registers.
    pub(crate) node_secret: NodeSecret,
    /// The store, which survives the agent.
    pub(crate) store: Store,
    /// Reasons for which the node takes no new work.
    pub(crate) conditions: Conditions,
    /// Whether starts succeed here.
    pub(crate) start_health: StartHealth,
    pub(crate) tree: NodeTree,
    /// The eBPF programs, or why there are none.
    pub(crate) bpf: Result<Bpf, String>,
    /// The node's additions to every task's network policy.
    pub(crate) network: NodeRules,
    pub(crate) bridge: Bridge,
    /// Networks of allocations that CNI plugins set up.
    pub(crate) cni: Arc<CniNetworks>,
    /// The newest verdicts on their packets.
    pub(crate) verdicts: VerdictLog,
    pub(crate) ring: LogRing,
    /// Limits that were found to be others than their task's, and set again.
    pub(crate) limits_repaired: AtomicU64,
    /// Entries of eBPF maps whose cgroup was gone, and that were removed.
    pub(crate) ebpf_stale_removed: AtomicU64,
    /// Which task has which cores for itself.
    pub(crate) cores: Cores,
    /// The host paths in roots of tasks whose drivers change into one.
    pub(crate) chroot_env: Arc<ChrootEnv>,
    /// The disk limits of allocations.
    pub(crate) disks: Arc<Disks>,
    pub(crate) drivers: Drivers,
    /// Nomad's drivers that the native driver serves.
    pub(crate) nomad_drivers: NomadDrivers,
    /// Network namespaces that drivers made.
    pub(crate) driver_networks: DriverNetworks,
    /// Users of tasks that name none.
    pub(crate) users: WorkloadUsers,
    /// This run of the kernel.
    pub(crate) boot_id: String,
    /// The registered description of the node.
    pub(crate) spec: watch::Receiver<Arc<NodeSpec>>,
    /// How the node stands with the control plane.
    pub(crate) standing: ControlPlaneStatus,
    /// News for the control plane.
    pub(crate) outbox: Outbox,
    /// Tasks that have a process.
    pub(crate) live: LiveTasks,
    /// The usage of tasks in the last minutes.
    pub(crate) histories: Histories,
    /// Places for readers of logs, [`crate::limits::LOG_READERS_MAX`].
    pub(crate) log_readers: Semaphore,
    /// Places for sessions with commands, [`crate::limits::EXEC_SESSIONS_MAX`].
    pub(crate) sessions: Semaphore,
    /// Bytes of logs that are on their way to readers.
    pub(crate) log_owed: AtomicU64,
    /// Data that are read for other nodes.
    pub(crate) dir_leases: Arc<DirLeases>,
    /// Places for allocations that want data from other nodes, [`crate::limits::FETCHES_MAX`].
    pub(crate) fetches: Semaphore,
    /// A task whose memory or number of processes cannot be limited does not start.
    pub(crate) strict_limits: bool,
    /// A task that has a network starts although no eBPF program keeps it from anything.
    pub(crate) allow_tasks_without_network_policy: bool,
    /// The destroyed allocations that are being deleted.
    pub(crate) trash: Arc<Trash>,
    /// The remains that drivers and the kernel did not let go of.
    pub(crate) leftovers: Leftovers,
    /// Allocations whose directories may be moved to the trash at a time.
    pub(crate) destroys: Semaphore,
    /// The state of collection, as the node's loop last said.
    pub(crate) collection: watch::Sender<GcState>,
    pub(crate) node: mpsc::Sender<crate::node::Event>,
}

impl AgentContext {
    /// The eBPF programs, if there are any.
    pub(crate) fn bpf(&self) -> Option<&Bpf> {
        self.bpf.as_ref().ok()
    }

    /// The network of an allocation whose group wants one of its own. All its tasks have the same. A driver that makes it
    /// has little time left once the allocation is `stopped`.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub(crate) async fn ensure_network(
        &self,
        desired: &DesiredAlloc,
        stopped: &CancellationToken,
    ) -> Result<Option<Arc<AllocNetwork>>, String> {
        let bridged = self.bridge.ensure(self, desired, stopped).await;
        if let Some(network) = bridged.map_err(|error| chain(&error))? {
            return Ok(Some(network));
        }
        let ensured = self.cni.ensure(self, desired, stopped).await;
        ensured.map_err(|error| chain(&error))
    }

    /// Takes the network up that an earlier agent made for an allocation. `is_lost`: so is what that agent had stored.
    pub(crate) async fn adopt_network(&self, desired: &DesiredAlloc, is_lost: bool) {
        self.bridge.adopt(self, desired, is_lost).await;
        self.cni.adopt(self, desired).await;
    }

    /// The network of its own that an allocation has by now.
    pub(crate) fn network_of(&self, alloc_id: AllocId) -> Option<Arc<AllocNetwork>> {
        let bridged = self.bridge.of(alloc_id);
        bridged.or_else(|| self.cni.of(alloc_id))
    }

    /// Removes the network of an allocation of which nothing runs. The next call removes what is left.
    ///
    /// # Errors
    ///
    /// A description of what is left.
    pub(crate) async fn give_network_back(&self, alloc_id: AllocId) -> Result<(), String> {
        // Before a driver takes its namespace back, in which the plugins work.
        let unplugged = self.cni.give_back(alloc_id).await;
        unplugged.map_err(|error| chain(&error))?;
        let given = self.bridge.give_back(self, alloc_id).await;
        given.map_err(|error| chain(&error))
    }

    /// Keeps tasks from the servers of this machine at addresses that the machine has got since.
    pub(crate) async fn cover_new_addresses(&self) {
        if self.network.cover_new_addresses() {
            // Without the node's loop the agent is stopping.
            drop(self.node.send(crate::node::Event::RulesChanged).await);
        }
    }

    /// Returns the result of one walk over all tasks' groups. Returns `None` where the programs cannot walk, and files
    /// have to be read.
    pub(crate) fn walked(&self) -> Option<CgroupRows> {
        let bpf = self.bpf()?;
        let walked = self.tree.walk(|root, is_v2| bpf.groups_below(root, is_v2));
        let told = |error: &std::io::Error| tracing::debug!(%error, "groups are read by files");
        walked.inspect_err(told).ok()
    }

    /// Moves everything of an allocation to the trash: one rename for its directories, one for its logs.
    pub(crate) async fn discard(&self, alloc_id: AllocId) -> Result<(), DirError> {
        // A reader that lends them to another node would get half of what is there.
        self.dir_leases.leave(alloc_id).await;
        let (data, trash) = (self.data.clone(), Arc::clone(&self.trash));
        let disks = Arc::clone(&self.disks);
        let moved = tokio::task::spawn_blocking(move || {
            disks.release(&data.alloc(alloc_id).alloc);
            data.discard_alloc(&trash, alloc_id)
        });
        // A panic there is ours. What was moved before it stays in the trash; the rest is moved when it
        // is tried again.
        let moved = moved.await;
        let moved = moved.unwrap_or_else(|panic| Err(DirError::panicked(&panic)));
        if moved.is_ok() {
            self.dir_leases.left(alloc_id);
        }
        moved
    }

    /// Returns the description of the node that is registered at this moment.
    pub(crate) fn spec(&self) -> Arc<NodeSpec> {
        Arc::clone(&self.spec.borrow())
    }
}

/// Tasks that have a process, by allocation and name.
#[derive(Debug, Default)]
pub(crate) struct LiveTasks {
    tasks: Mutex<BTreeMap<(AllocId, String), LiveTaskEntry>>,
}

/// A task that has a process, and the way to its runner.
type LiveTaskEntry = (Arc<LiveTask>, TaskInputSender);

impl LiveTasks {
    /// A process runs.
    pub(crate) fn insert(
        &self,
        alloc_id: AllocId,
        task: &str,
        live: Arc<LiveTask>,
        runner: TaskInputSender,
    ) {
        self.locked()
            .insert((alloc_id, task.to_owned()), (live, runner));
    }

    /// It ended.
    pub(crate) fn remove(&self, alloc_id: AllocId, task: &str) {
        self.locked().remove(&(alloc_id, task.to_owned()));
    }

    /// The process of a task.
    pub(crate) fn get(&self, alloc_id: AllocId, task: &str) -> Option<Arc<LiveTask>> {
        let tasks = self.locked();
        let (live, _runner) = tasks.get(&(alloc_id, task.to_owned()))?;
        Some(Arc::clone(live))
    }

    /// The runner of the start `task_id` of a task, if that is the one that runs.
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

    /// All of them, or those of one allocation.
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
