//! The agent: composition root of a node, and its one loop.
//!
//! [`Agent::start`] opens everything in the order in which things need each other and starts every
//! long-lived task; [`Agent::shutdown`] ends them in reverse. The loop (`events`) alone decides which
//! allocations exist; each runs in `alloc`.

pub(crate) mod config;
pub(crate) mod event;
mod events;
mod follow;
pub(crate) mod inventory;
mod jobs;
mod open;
mod spec;
mod stale_policies;

use std::sync::Arc;
use std::time::Instant;

use muster_agent_core::gc::GcState;
use muster_agent_core::limits::STOP_GRACE;
use muster_agent_core::servers::Servers;
use muster_domain::id::NodeId;
use muster_domain::node::NodeSpec;
use muster_link::certificates::Certificates;
use muster_wire::rpc::ALPN_AGENT;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bpf::ensure_bpffs;
use crate::context::AgentContext;
use crate::limits::{CLOSE_INTERVAL, LAST_REPORTS_DEADLINE, REPORT_DELAY, SHUTDOWN_GRACE};
use crate::resources::oom_score;
use crate::ring::StartRingError;
use crate::session::{SessionContext, control};
use crate::storage::StorageContext;
use crate::storage::allocdir::{DataDir, DirError};
use crate::storage::store::{DataDirLock, LockDataDirError, OpenStoreError};
use crate::tasks::drivers::native::DriverConfigError;
use crate::tasks::drivers::plugin::PluginError;

pub(crate) use crate::node::event::Event;
pub use config::{AgentConfig, ShutdownPolicy, parse_host_volume};
pub use muster_domain::job::NetworkPolicy;
pub use muster_domain::node::HostVolume;
pub use muster_domain::resources::Amount;
pub(crate) use open::{recorded_tree, tree_name};

/// Why the agent did not start. No part of it is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartAgentError {
    /// The agent needs root for cgroups, eBPF and tasks of other users.
    #[error("the agent is not root: run it with sudo, or from a system service")]
    NotRoot,
    /// The data directory belongs to another agent, or cannot be used.
    #[error(transparent)]
    Lock(#[from] LockDataDirError),
    /// A directory cannot be made.
    #[error("the data directory cannot be prepared: {0}")]
    Dirs(String),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    /// Tasks cannot be kept apart.
    #[error("cgroups cannot be used: {0}; see `muster doctor`")]
    Cgroup(String),
    /// The reservation leaves no memory for tasks.
    #[error(
        "`reserved` keeps {reserved_mb} MiB of memory from tasks, and this machine has {total_mb} MiB: reserve less"
    )]
    Reserved {
        /// MiB that are reserved.
        reserved_mb: u64,
        /// MiB that there are.
        total_mb: u64,
    },
    /// Output of tasks cannot be taken.
    #[error(transparent)]
    Ring(#[from] StartRingError),
    /// The native driver's process cannot be started from this data directory.
    #[error(transparent)]
    Driver(#[from] DriverConfigError),
    /// The plugin directory or the configuration of a plugin is wrong.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The agent's side of the connection to servers cannot be opened.
    #[error("the connection to servers cannot be prepared")]
    Endpoint(#[from] muster_link::endpoint::OpenEndpointError),
    /// No server is configured to register with.
    #[error("no server is named; give --servers ADDRESS:4647")]
    NoServers,
}

impl From<DirError> for StartAgentError {
    fn from(error: DirError) -> Self {
        Self::Dirs(muster_domain::error_chain::chain(&error))
    }
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    node_id: NodeId,
    events: mpsc::Sender<Event>,
    context: Arc<AgentContext>,
    drivers: Vec<muster_driver::plugin::Client>,
    certificates: Certificates,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _lock: DataDirLock,
}

impl Agent {
    /// Starts the agent: adopts the tasks of an earlier agent, and connects to the servers. It returns before the
    /// first connection is established.
    ///
    /// # Errors
    ///
    /// [`StartAgentError`]. Missing eBPF, controllers or io_uring are no errors. The agent works without them and
    /// lists them in the node's attributes. [`crate::monitoring::doctor::findings`] names the fix.
    pub async fn start(config: AgentConfig) -> Result<Self, StartAgentError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(StartAgentError::NotRoot);
        }
        if config.servers.is_empty() {
            return Err(StartAgentError::NoServers);
        }
        let lock = DataDirLock::take(&config.data_dir)?;
        if let Some(score) = config.oom_score_adj {
            oom_score::set_own(score);
        }
        let endpoint = muster_link::endpoint::client(&config.certificates.current(), ALPN_AGENT)?;
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();

        let (events, inbox) = mpsc::channel(crate::limits::NODE_INBOX_MAX);
        let opened = open::open(&config, &stop, &mut tasks, events.clone()).await?;
        let open::AgentParts {
            context,
            loaded,
            publisher,
            clients,
            found,
            contact,
        } = opened;
        let node_id = context.session.spec().id;

        tasks.spawn(publisher.run(stop.clone()));
        let certificates = config.certificates;
        let session = control::Link {
            context: Arc::clone(&context),
            endpoint,
            servers: Servers::new(node_id, config.servers, loaded.servers.clone()),
            certificates: certificates.clone(),
            node: events.clone(),
        };
        let node = events::Node::new(
            Arc::clone(&context),
            events.clone(),
            config.gc,
            found,
            contact.known(),
        );
        tasks.spawn(contact.follow(context.session.standing.last_contact(), stop.clone()));
        tasks.spawn(node.run(loaded, inbox, stop.clone()));
        tasks.spawn(session.run(stop.clone()));
        Ok(Self {
            node_id,
            events,
            context,
            drivers: clients,
            certificates,
            stop,
            tasks,
            _lock: lock,
        })
    }

    /// The node's id, the same at each start on its data directory.
    pub fn node_id(&self) -> NodeId {
        self.node_id
    }

    /// Returns the description of the node that is registered; it changes with its fingerprint.
    pub fn spec(&self) -> watch::Receiver<Arc<NodeSpec>> {
        self.context.session.spec.clone()
    }

    /// The agent's certificates; [`Certificates::ask`] looks for replaced files at once.
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// The time until which the control plane certainly counts the node as alive. `None` before a leader has
    /// counted a heartbeat.
    pub fn lease(&self) -> watch::Receiver<Option<Instant>> {
        self.context.session.standing.lease()
    }

    /// Destroys all allocations that have finished by now, and returns when they are destroyed and their space is
    /// free. That may take long if a driver is slow or files are many. With `dry_run`, it changes nothing, and the
    /// result describes the expected work. Returns `None` if the agent stops meanwhile.
    pub async fn collect_now(
        &self,
        dry_run: bool,
    ) -> Option<crate::storage::gc_outcome::GcOutcome> {
        crate::storage::gc::collect_now(&self.context, dry_run).await
    }

    /// Returns the state of collection: finished and pending work.
    pub fn collection(&self) -> watch::Receiver<GcState> {
        self.context.storage.collection.subscribe()
    }

    /// Stops the agent. With [`ShutdownPolicy::KeepTasks`] tasks and their driver run on, and the next agent
    /// on the data directory adopts them.
    pub async fn shutdown(self, policy: ShutdownPolicy) {
        let Self {
            events,
            context,
            drivers,
            stop,
            mut tasks,
            _lock,
            node_id: _,
            certificates: _,
        } = self;
        if policy == ShutdownPolicy::StopTasks {
            stop_tasks(&events).await;
            flush_reports(&context.session).await;
            context.network.bridge.undo().await;
        }
        stop.cancel();
        drop(events);
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_GRACE, ended).await.is_err() {
            tracing::warn!("parts of the agent did not end in time and are dropped");
            tasks.shutdown().await;
        }
        if policy == ShutdownPolicy::StopTasks {
            for driver in drivers {
                if let Err(error) = driver.shutdown().await {
                    tracing::warn!(%error, driver = driver.name(), "a driver's process was not ended");
                }
            }
        }
        close(context).await;
    }
}

/// Closes log loop and store, so that nothing of the agent is left when `shutdown` returns.
async fn close(context: Arc<AgentContext>) {
    let deadline = Instant::now() + SHUTDOWN_GRACE;
    // A remaining holder is a dropped asynchronous task, which releases the context at its next step.
    while Arc::strong_count(&context) > 1 && Instant::now() < deadline {
        tokio::time::sleep(CLOSE_INTERVAL).await;
    }
    match Arc::into_inner(context) {
        Some(AgentContext { ring, storage, .. }) => {
            let StorageContext { store, trash, .. } = storage;
            drop(trash);
            ring.stop();
            store.close();
        }
        None => {
            tracing::warn!("a part of the agent is still busy; its store is closed when it ends");
        }
    }
}

/// Waits a short time for the last reports to be committed.
async fn flush_reports(session: &SessionContext) {
    let committed = async {
        while !session.outbox.is_empty() {
            tokio::time::sleep(REPORT_DELAY / 10).await;
        }
    };
    if tokio::time::timeout(LAST_REPORTS_DEADLINE, committed)
        .await
        .is_err()
    {
        tracing::info!("the last reports were not committed; the next agent sends them again");
    }
}

async fn stop_tasks(events: &mpsc::Sender<Event>) {
    let (done, stopped) = oneshot::channel();
    let (longest, longest_stop) = oneshot::channel();
    if events.send(Event::StopAll { done, longest }).await.is_err() {
        return;
    }
    let deadline = longest_stop.await.unwrap_or_default() + STOP_GRACE + SHUTDOWN_GRACE;
    if tokio::time::timeout(deadline, stopped).await.is_err() {
        tracing::error!("tasks did not stop in time; `muster agent clean --force` ends them");
    }
}

/// The directory in which the node's eBPF programs are pinned, below a bpffs.
pub(crate) fn pin_dir(data: &DataDir, node_id: NodeId) -> Result<std::path::PathBuf, String> {
    let bpffs =
        ensure_bpffs(data.root()).map_err(|error| muster_domain::error_chain::chain(&error))?;
    Ok(bpffs.join("muster").join(node_id.to_string()))
}
