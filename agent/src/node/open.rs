//! Opens the parts of a node, in the order of their dependencies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use muster_agent_core::gc::GcConfig;
use muster_domain::error_chain::chain;
use muster_domain::id::{AllocId, NodeId};
use muster_domain::node::NodeSecret;
use muster_driver::HostInfo;
use muster_driver::plugin::Client;
use muster_link::private;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::spec::Publisher;
use super::{StartAgentError, pin_dir, stale_policies};
use crate::bpf::{Adoption, Bpf, BpfConfig, LAYOUT};
use crate::context::AgentContext;
use crate::limits::{EXEC_SESSIONS_MAX, FETCHES_MAX, LOG_READERS_MAX, NATIVE_STARTS_MAX};
use crate::monitoring::MonitoringContext;
use crate::monitoring::conditions::Conditions;
use crate::monitoring::fingerprint::{boot_id, meminfo, topology};
use crate::monitoring::history::Histories;
use crate::monitoring::pressure;
use crate::monitoring::start_health::{self, StartHealth};
use crate::network::NetworkContext;
use crate::network::bridge::Bridge;
use crate::network::bridge::node_network::NodeNetwork;
use crate::network::cni::CniNetworks;
use crate::network::node_rules::NodeRules;
use crate::network::verdicts::VerdictLog;
use crate::node::config::AgentConfig;
use crate::node::event::Event;
use crate::resources::ResourceContext;
use crate::resources::cgroup::{Hierarchies, NodeTree};
use crate::resources::cores::Cores;
use crate::resources::users::WorkloadUsers;
use crate::resources::{new_disks, oom_score};
use crate::ring::LogRing;
use crate::session::SessionContext;
use crate::session::contact::ContactFile;
use crate::session::reports::Outbox;
use crate::session::status::ControlPlaneStatus;
use crate::storage::StorageContext;
use crate::storage::allocdir::DataDir;
use crate::storage::disk::{DiskEnforcementMode, Disks};
use crate::storage::leftovers::Leftovers;
use crate::storage::store::{self, Store, StoreContents};
use crate::storage::trash::Trash;
use crate::tasks::TaskContext;
use crate::tasks::drivers::native::{self, NativeProcess};
use crate::tasks::drivers::networks::DriverNetworks;
use crate::tasks::drivers::nomad::NomadDrivers;
use crate::tasks::drivers::plugin::{self, SupervisorContext};
use crate::tasks::drivers::task_events::follow_events;
use crate::tasks::drivers::{DriverHealth, DriverSlot, Drivers, follow_fingerprint};
use crate::tasks::live::LiveTasks;
use crate::tasks::task;

/// The opened parts of the agent.
pub(super) struct AgentParts {
    pub(super) context: Arc<AgentContext>,
    pub(super) loaded: StoreContents,
    pub(super) publisher: Publisher,
    /// Drivers in processes of their own.
    pub(super) clients: Vec<Client>,
    /// Allocations that have a cgroup with processes.
    pub(super) found: BTreeSet<AllocId>,
    /// The file with the time of the last heartbeat that a leader counted.
    pub(super) contact: ContactFile,
}

#[expect(
    clippy::too_many_lines,
    reason = "opens each part of the node, and puts them together"
)]
pub(super) async fn open(
    config: &AgentConfig,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
    node: mpsc::Sender<Event>,
) -> Result<AgentParts, StartAgentError> {
    let data = prepared(config)?;
    let open_files = start_health::raise_open_files();
    let native = native_process(config, &data, open_files)?;
    let conditions = Conditions::default();
    let (node_id, store, mut loaded) = open_store(&data, &conditions)?;
    let node_secret = store::node_secret(data.root(), fresh_node_secret())?;
    let boot_id = boot_id();
    let contact = ContactFile::open(data.root(), &boot_id);
    let (hierarchies, tree) = reserving_tree(config, &data, node_id)?;
    let (network, bpf, bridge) = open_network(config, &data, node_id, &loaded, &tree);
    let cni = Arc::new(CniNetworks::open(data.root(), config.cni.clone()));
    let ring = LogRing::start(config.ring)?;
    let trash = open_trash(&data, config.gc)?;
    let disks = open_disks(config, &data)?;

    let (health, watched_health) = watch::channel(DriverHealth::new());
    let mut drivers = in_process(config);
    let supervisor = supervisor_context(config, &data, &tree, &health, stop);
    let mut clients = Vec::new();
    if let Some(process) = native {
        clients.push(start_native(process, &supervisor, &mut drivers, tasks));
    }
    if let Some(dir) = &config.plugin_dir {
        let plugins =
            plugin::start_all(dir, &config.plugins, &supervisor, &mut drivers, tasks).await?;
        clients.extend(plugins);
    }
    plugin::check_names(&config.plugins, config.plugin_dir.as_deref(), &drivers)?;
    watch_health(&drivers, &health, stop, tasks);
    let nomad_drivers = NomadDrivers::missing_from(&drivers, allows_raw(config));

    let facts = super::spec::NodeFacts {
        node_id,
        hierarchies,
        bpf: bpf.as_ref().map(Bpf::adoption).map_err(Clone::clone),
        no_bridge: bridge.unsupported().map(str::to_owned),
        engine: ring.engine().clone(),
        disks: disks.means().clone(),
        unenforced: tree.unenforced().to_vec(),
        core_ids: tree.core_ids(),
        node_secret,
        nomad_drivers: nomad_drivers.clone(),
        cni_attributes: cni.attributes().await,
        cni: Arc::clone(&cni),
    };
    let (publisher, spec) = Publisher::new(
        config,
        data.clone(),
        facts,
        watched_health,
        conditions.clone(),
    );
    let storage = StorageContext {
        data,
        store,
        disks,
        chroot_env: Arc::new(config.chroot_env.clone()),
        dir_leases: Arc::default(),
        fetches: Semaphore::new(FETCHES_MAX),
        trash: Arc::new(trash),
        leftovers: Leftovers::new(std::mem::take(&mut loaded.leftovers)),
        destroys: Semaphore::new(config.gc.parallel_destroys.max(1)),
        collection: watch::Sender::default(),
    };
    let network = NetworkContext {
        rules: network,
        bridge,
        cni,
        driver_networks: DriverNetworks::new(std::mem::take(&mut loaded.driver_networks)),
        verdicts: VerdictLog::default(),
        allow_tasks_without_network_policy: config.allow_tasks_without_network_policy,
    };
    let resources = ResourceContext {
        tree,
        cores: Cores::default(),
        users: WorkloadUsers::new(config.users, std::mem::take(&mut loaded.users)),
        strict_limits: config.strict_limits,
        limits_repaired: AtomicU64::new(0),
    };
    let monitoring = MonitoringContext {
        start_health: StartHealth::new(conditions.clone()),
        conditions,
        histories: Histories::default(),
        ebpf_stale_removed: AtomicU64::new(0),
    };
    let session = SessionContext {
        node_secret,
        spec,
        standing: ControlPlaneStatus::default(),
        outbox: Outbox::default(),
        log_readers: Semaphore::new(LOG_READERS_MAX),
        sessions: Semaphore::new(EXEC_SESSIONS_MAX),
        log_bytes_unacknowledged: AtomicU64::new(0),
    };
    let context = Arc::new(AgentContext {
        storage,
        network,
        resources,
        monitoring,
        tasks: TaskContext {
            drivers,
            nomad_drivers,
            live: LiveTasks::default(),
        },
        session,
        bpf,
        ring,
        boot_id,
        node,
    });
    follow_all(&context, stop, tasks);
    let found = populated(&context.resources.tree);
    if !loaded.lost {
        let known = loaded.allocs.keys().chain(&found).copied().collect();
        let orphans = context.network.cni.orphans(&known);
        tasks.spawn(super::follow::recover_cni_networks(
            Arc::clone(&context),
            orphans,
            stop.clone(),
        ));
    }
    Ok(AgentParts {
        context,
        loaded,
        publisher,
        clients,
        found,
        contact,
    })
}

/// Opens the network rules of tasks, the programs that enforce them, and the networks of allocations. Running tasks
/// get their network policies before fresh maps take effect.
fn open_network(
    config: &AgentConfig,
    data: &DataDir,
    node_id: NodeId,
    loaded: &StoreContents,
    tree: &NodeTree,
) -> (NodeRules, Result<Bpf, String>, Bridge) {
    let rules = NodeRules::new(config, loaded);
    let bpf = open_bpf(data, node_id, tree, &|bpf| {
        task::attach_recorded_policy(
            bpf,
            loaded,
            &rules.current(),
            data,
            &stale_policies::alive(tree),
        );
    });
    let network = NodeNetwork::new(node_id, config.bridge_subnet);
    let bridge = Bridge::new(network, bpf.as_ref().map_err(String::as_str));
    (rules, bpf, bridge)
}

/// Collects the context for drivers in processes of their own. The agent's OOM score may not apply to them.
fn supervisor_context(
    config: &AgentConfig,
    data: &DataDir,
    tree: &NodeTree,
    health: &watch::Sender<DriverHealth>,
    stop: &CancellationToken,
) -> SupervisorContext {
    let leaf = tree.clone();
    let is_spared = config.oom_score_adj.is_some();
    let is_free = |core: &u16| !config.reserved_cores.contains(core);
    let cores: Vec<u16> = tree.core_ids().into_iter().filter(is_free).collect();
    let topology = topology(&cores, config.reserved.cpu_mhz);
    SupervisorContext {
        host: Arc::new(HostInfo::new(topology)),
        dir: data.drivers(),
        place: Arc::new(move |pid| {
            if let Err(error) = leaf.add_driver(pid) {
                tracing::error!(%error, pid, "the driver's process is not in its own cgroup");
            }
            if is_spared {
                oom_score::set_for(pid, oom_score::DEFAULT);
            }
        }),
        health: health.clone(),
        stop: stop.clone(),
    }
}

/// Opens the store, and returns the node's id and the stored state. A node that had an id and has no state has lost
/// its store.
fn open_store(
    data: &DataDir,
    conditions: &Conditions,
) -> Result<(NodeId, Store, StoreContents), StartAgentError> {
    let is_known = store::known_node_id(data.root()).is_some();
    let node_id = store::node_id(data.root(), fresh_node_id())?;
    let (store, mut loaded) = store::open(data.root(), conditions.clone())?;
    loaded.lost = loaded.fresh && is_known;
    Ok((node_id, store, loaded))
}

/// Returns the data directory with the agent's own directories in it.
fn prepared(config: &AgentConfig) -> Result<DataDir, StartAgentError> {
    let data = DataDir::new(&config.data_dir);
    let data = data.map_err(|error| StartAgentError::Dirs(error.to_string()))?;
    data.prepare()?;
    Ok(data)
}

fn in_process(config: &AgentConfig) -> Drivers {
    let mut drivers = Drivers::default();
    for (name, driver) in &config.drivers {
        drivers.add(name, DriverSlot::in_process(Arc::clone(driver)));
    }
    drivers
}

/// Starts the loops that follow drivers, eBPF programs and the machine until the agent stops.
fn follow_all(context: &Arc<AgentContext>, stop: &CancellationToken, tasks: &mut JoinSet<()>) {
    tasks.spawn(super::follow::packet_verdicts(
        Arc::clone(context),
        stop.clone(),
    ));
    tasks.spawn(new_disks::follow(Arc::clone(context), stop.clone()));
    tasks.spawn(super::follow::start_health(
        Arc::clone(context),
        stop.clone(),
    ));
    tasks.spawn(pressure::follow(Arc::clone(context), stop.clone()));
    tasks.spawn(crate::monitoring::history::recorder::run(
        Arc::clone(context),
        stop.clone(),
    ));
    tasks.spawn(stale_policies::reconcile(Arc::clone(context), stop.clone()));
    tasks.spawn(stale_policies::sweep_later(
        Arc::clone(context),
        stop.clone(),
    ));
    tasks.spawn(super::follow::bridge_devices(
        Arc::clone(context),
        stop.clone(),
    ));
    for (name, slot) in context.tasks.drivers.iter() {
        let context = Arc::clone(context);
        let follow = follow_events(name.to_owned(), slot.clone(), context, stop.clone());
        tasks.spawn(follow);
    }
}

fn watch_health(
    drivers: &Drivers,
    health: &watch::Sender<DriverHealth>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    for (name, slot) in drivers.iter() {
        let follow =
            follow_fingerprint(name.to_owned(), slot.clone(), health.clone(), stop.clone());
        tasks.spawn(follow);
    }
}

fn start_native(
    process: NativeProcess,
    supervisor: &SupervisorContext,
    drivers: &mut Drivers,
    tasks: &mut JoinSet<()>,
) -> Client {
    let client = Client::new(native::NAME, &process.socket());
    let (generations, generation) = watch::channel(0);
    let slot = DriverSlot::watched(Arc::new(client.clone()), generation)
        .with_starts_max(NATIVE_STARTS_MAX);
    drivers.add(native::NAME, slot);
    let place = Arc::clone(&supervisor.place);
    tasks.spawn(native::supervise(
        process,
        client.clone(),
        generations,
        move |pid| place(pid),
        supervisor.health.clone(),
        supervisor.stop.clone(),
    ));
    client
}

/// A secret of 244 random bits.
fn fresh_node_secret() -> NodeSecret {
    let mut secret = [0; 32];
    for half in secret.chunks_exact_mut(16) {
        half.copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    }
    NodeSecret(secret)
}

fn fresh_node_id() -> NodeId {
    NodeId(*uuid::Uuid::new_v4().as_bytes())
}

/// Whether the configuration of the native driver allows raw tasks.
fn allows_raw(config: &AgentConfig) -> bool {
    let settings = config.plugins.get(native::NAME);
    settings.is_some_and(|settings| settings.config["allow_raw"] == true)
}

fn native_process(
    config: &AgentConfig,
    data: &DataDir,
    open_files: Option<u64>,
) -> Result<Option<NativeProcess>, StartAgentError> {
    if config.driver_command.is_empty() {
        return Ok(None);
    }
    let command = config.driver_command.clone();
    let settings = config.plugins.get(native::NAME);
    let mut env = config.driver_env.clone();
    // The driver inherits the agent's limit, which was raised; tasks get the original one.
    env.extend(open_files.map(|soft| ("MUSTER_OPEN_FILES".into(), soft.to_string().into())));
    let process = NativeProcess::new(
        command,
        env,
        data.drivers(),
        settings.map_or(serde_json::Value::Null, |settings| settings.config.clone()),
    )?;
    Ok(Some(process))
}

/// Opens the tree of an earlier agent, wherever it is, or else one below this process's own cgroup.
fn open_tree(data: &DataDir, node_id: NodeId) -> Result<(Hierarchies, NodeTree), StartAgentError> {
    let failed = |error: &dyn std::error::Error| StartAgentError::Cgroup(chain(error));
    let hierarchies = Hierarchies::probe().map_err(|error| failed(&error))?;
    if let Some(tree) = recorded_tree(data) {
        return Ok((hierarchies, tree));
    }
    let name = tree_name(node_id);
    let tree = NodeTree::create(&hierarchies, &name).map_err(|error| failed(&error))?;
    let record = serde_json::to_vec(tree.record()).map_err(|error| failed(&error))?;
    let path = data.tree_record();
    let temporary = path.with_extension("new");
    private::write(&temporary, record)
        .and_then(|()| std::fs::rename(&temporary, &path))
        .map_err(|error| failed(&error))?;
    Ok((hierarchies, tree))
}

/// Opens the tree and keeps the operator's reserved resources from it.
fn reserving_tree(
    config: &AgentConfig,
    data: &DataDir,
    node_id: NodeId,
) -> Result<(Hierarchies, NodeTree), StartAgentError> {
    let (hierarchies, tree) = open_tree(data, node_id)?;
    reserve(config, &tree)?;
    Ok((hierarchies, tree))
}

/// Keeps the operator's reserved resources from tasks, whatever the tasks request.
fn reserve(config: &AgentConfig, tree: &NodeTree) -> Result<(), StartAgentError> {
    let (total, reserved) = (meminfo().total, config.reserved.memory_mb);
    let left = total.saturating_sub(reserved.saturating_mul(1 << 20));
    if left == 0 {
        let total_mb = total >> 20;
        return Err(StartAgentError::Reserved {
            reserved_mb: reserved,
            total_mb,
        });
    }
    let max = (reserved > 0).then_some(left);
    tree.reserve(max)
        .map_err(|error| StartAgentError::Cgroup(chain(&error)))
}

/// The name of a node's tree.
pub(crate) fn tree_name(node_id: NodeId) -> String {
    format!("muster-{}", node_id.short())
}

/// The tree that is recorded in the data directory, if it is still there.
pub(crate) fn recorded_tree(data: &DataDir) -> Option<NodeTree> {
    let record = serde_json::from_slice(&std::fs::read(data.tree_record()).ok()?).ok()?;
    match NodeTree::open(record) {
        Ok(tree) => Some(tree),
        Err(error) => {
            tracing::info!(%error, "the node's cgroup tree is made anew");
            None
        }
    }
}

/// Opens the eBPF programs, or logs and returns the reason for their absence. `fill` gets programs with fresh maps
/// before they judge any packet.
fn open_bpf(
    data: &DataDir,
    node_id: NodeId,
    tree: &NodeTree,
    fill: &dyn Fn(&Bpf),
) -> Result<Bpf, String> {
    let bpf = try_bpf(data, node_id, tree, fill).inspect(|bpf| stale_policies::sweep(bpf, tree));
    bpf.inspect_err(|reason| {
        tracing::warn!(
            reason,
            "no eBPF programs: tasks are counted by their cgroups alone, and kept from nothing on the network"
        );
    })
}

fn try_bpf(
    data: &DataDir,
    node_id: NodeId,
    tree: &NodeTree,
    fill: &dyn Fn(&Bpf),
) -> Result<Bpf, String> {
    Bpf::object().map_err(|error| format!("{error}; {}", error.fix()))?;
    let task_level = tree.task_level().ok_or(
        "the agent is in a cgroup namespace, where the level of a task's cgroup is not known; start it outside of containers",
    )?;
    let config = BpfConfig {
        pin_dir: pin_dir(data, node_id)?,
        cgroup_dir: tree.v2_dir().to_owned(),
        task_level,
    };
    let prepared = Bpf::prepare(&config, LAYOUT).map_err(|error| chain(&error))?;
    if prepared.bpf().adoption() == Adoption::Fresh {
        fill(prepared.bpf());
    }
    prepared.activate().map_err(|error| chain(&error))
}

/// Opens the trash. Remains of earlier agents are deleted in the background.
fn open_trash(data: &DataDir, gc: GcConfig) -> Result<Trash, StartAgentError> {
    let trash = Trash::start(&data.trash(), gc.parallel_destroys.max(1));
    let trash = trash.map_err(|error| StartAgentError::Dirs(format!("the trash: {error}")))?;
    for dir in [data.allocs(), data.root().join("logs")] {
        trash.add_sibling_root(&dir);
    }
    Ok(trash)
}

/// Opens ephemeral disks. Logs the reason if they are only measured and not limited.
fn open_disks(config: &AgentConfig, data: &DataDir) -> Result<Arc<Disks>, StartAgentError> {
    let disks = Disks::start(&data.allocs(), config.disk);
    let disks = disks.map_err(|error| StartAgentError::Dirs(format!("its disks: {error}")))?;
    if let DiskEnforcementMode::Accounted { reason } = disks.means() {
        tracing::info!(
            reason,
            "ephemeral disks are measured, and allocations beyond them stopped"
        );
    }
    Ok(Arc::new(disks))
}

fn populated(tree: &NodeTree) -> BTreeSet<AllocId> {
    let tasks = tree.tasks().unwrap_or_else(|error| {
        tracing::error!(%error, "the node's cgroups cannot be listed");
        Vec::new()
    });
    tasks
        .iter()
        .filter_map(|name| name.alloc.parse().ok())
        .collect()
}
