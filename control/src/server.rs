//! The server: assembles all parts of a control plane process.
//!
//! ```text
//! agents (QUIC) ─┐                       ┌─ leader's duties ◄─ effects ─┐
//! HTTP ──────────┴──► Control ── propose ─► Raft ─► log on disk ─► state machine ─► published state
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use muster_control_core::gc::GcConfig;
use muster_domain::id::Timestamp;
use muster_link::certificates::Certificates;
use muster_link::endpoint::{self, OpenEndpointError};
use muster_link::tls::{self, Identity, Role, TlsError};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::agents::{self, Nodes};
use crate::bbs::Bbs;
pub use crate::bbs::{BbsConfig, BbsTlsError, OpenBbsError};
pub use crate::callback::{TasksConfig, TasksConfigError};
use crate::clock::Clock;
use crate::consistency_check::{self, DivergedError};
use crate::data_dir::{DataDir, OpenDataDirError};
use crate::handle::{Control, ControlParts, ServerInfo};
use crate::http;
use crate::http::cross_site::SitePolicy;
pub use crate::http::cross_site::{AllowedHost, AllowedHostError};
use crate::leader::{self, DutyChannels};
use crate::limits;
use crate::listen;
use crate::niceness::yield_to_others;
use crate::one_off::batch;
use crate::peers::Peers;
use crate::peers::autopilot::{self, ServersConfig};
use crate::peers::bootstrap::Bootstrap;
use crate::peers::join::{self, JoinConfig};
use crate::peers::message::{PeerInfo, ServerNode};
use crate::published::Published;
use crate::raft::{Raft, RaftConfig, StartRaftError};

/// The default port for HTTP; Nomad's.
pub const DEFAULT_HTTP_PORT: u16 = 4646;
/// The default port for QUIC; the one Nomad uses between its processes.
pub const DEFAULT_QUIC_PORT: u16 = 4647;
/// Default silence after which a node is down; Nomad's least.
pub const DEFAULT_HEARTBEAT_TTL: Duration = Duration::from_secs(10);
/// Default addition to the silence: a dead node is noticed within 15 s (Nomad: 20 s at the least).
pub const DEFAULT_HEARTBEAT_GRACE: Duration = Duration::from_secs(5);
/// Default silence after which a server counts as lost. It is longer than a reboot and shorter than a night with
/// one server less.
pub const DEFAULT_DEAD_SERVER_AFTER: Duration = Duration::from_mins(10);
/// The file in which a running server writes its addresses, within its data directory.
pub const ADDRESS_FILE: &str = "server.json";

/// Settings of a server at its start.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The directory of all data that the server keeps.
    pub data_dir: PathBuf,
    /// The address for HTTP; port 0 takes a free one.
    pub http_addr: SocketAddr,
    /// Names and addresses of the server besides the machine's own, such as those of a proxy. Web pages from them
    /// may also use the API.
    pub http_allowed_hosts: Vec<AllowedHost>,
    /// The address for QUIC; port 0 takes a free one.
    pub quic_addr: SocketAddr,
    /// The cluster's name: letters, digits, hyphens.
    pub cluster: String,
    pub name: String,
    /// Silence after which a node is down.
    pub heartbeat_ttl: Duration,
    /// Time added to `heartbeat_ttl` for the transfer of a heartbeat to the leader.
    pub heartbeat_grace: Duration,
    /// How many servers found a cluster together. 1: this server alone, at once; 0: it founds none, but joins.
    pub bootstrap_expect: u32,
    /// Addresses of other servers for QUIC: hosts and ports. One answering server is enough to join a cluster. To
    /// found a cluster, each server needs the addresses of all others, or all need the address of one server.
    pub join: Vec<String>,
    /// The directory with `ca.pem`, `server.pem` and `server.key`. `None`: the data directory, where missing files
    /// are made. That is enough for a server on its own.
    pub tls_dir: Option<PathBuf>,
    /// The IP address under which other servers and clients reach this server, if it is not the bound address.
    pub advertise: Option<IpAddr>,
    /// Silence after which a server counts as lost. It is removed if another server has joined in its place.
    pub dead_server_after: Duration,
    /// Settings of garbage collection.
    pub gc: GcConfig,
    /// Time limits of one-off tasks, and the settings of their callbacks.
    pub tasks: TasksConfig,
    /// Settings of the listener for Diego's clients. `None`: no such listener.
    pub bbs: Option<BbsConfig>,
}

impl ServerConfig {
    /// The defaults: this machine only, the usual ports.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            http_addr: SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_HTTP_PORT)),
            http_allowed_hosts: Vec::new(),
            quic_addr: SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_QUIC_PORT)),
            cluster: tls::DEFAULT_CLUSTER.to_owned(),
            name: "server".to_owned(),
            heartbeat_ttl: DEFAULT_HEARTBEAT_TTL,
            heartbeat_grace: DEFAULT_HEARTBEAT_GRACE,
            bootstrap_expect: 1,
            join: Vec::new(),
            tls_dir: None,
            advertise: None,
            dead_server_after: DEFAULT_DEAD_SERVER_AFTER,
            gc: GcConfig::default(),
            tasks: TasksConfig::default(),
            bbs: None,
        }
    }

    /// The server's identity and addresses, once its sockets are bound.
    fn info(&self, data_dir: &DataDir, http_addr: SocketAddr, quic_addr: SocketAddr) -> ServerInfo {
        ServerInfo {
            name: self.name.clone(),
            cluster: self.cluster.clone(),
            server_id: data_dir.server_id(),
            http_addr,
            quic_addr,
            bbs_addr: None,
            version: env!("CARGO_PKG_VERSION"),
            started_at: Timestamp(0),
            data_dir: data_dir.path().to_owned(),
            heartbeat_ttl: self.heartbeat_ttl,
            heartbeat_grace: self.heartbeat_grace,
            log_bytes_cut: 0,
        }
    }

    /// Whether this server should be one of several.
    fn is_one_of_several(&self) -> bool {
        self.bootstrap_expect != 1 || !self.join.is_empty()
    }

    /// The name and addresses that other servers and clients see.
    fn node(&self, quic: SocketAddr, http: SocketAddr) -> Result<ServerNode, StartServerError> {
        Ok(ServerNode {
            name: self.name.clone(),
            quic_addr: self.advertised(quic)?.to_string(),
            http_addr: self.advertised(http)?.to_string(),
        })
    }

    fn raft(&self, peers: &Peers, data_dir: &Arc<DataDir>) -> RaftConfig {
        RaftConfig {
            cluster: self.cluster.clone(),
            peers: peers.clone(),
            alone: self.bootstrap_expect == 1 && self.join.is_empty(),
            data_dir: Arc::clone(data_dir),
        }
    }

    /// The address that others get instead of `bound`.
    fn advertised(&self, bound: SocketAddr) -> Result<SocketAddr, StartServerError> {
        match self.advertise {
            Some(ip) => Ok(SocketAddr::new(ip, bound.port())),
            None if bound.ip().is_unspecified() && self.is_one_of_several() => {
                Err(StartServerError::Advertise { bound })
            }
            None => Ok(bound),
        }
    }
}

/// The reason why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartServerError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] OpenDataDirError),
    /// This server's state differed from that of the other servers.
    #[error(transparent)]
    Diverged(#[from] DivergedError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The data directory belongs to another cluster.
    #[error(
        "the certificates in {} belong to cluster `{theirs}`, this server was started for `{ours}`: start it with --cluster {theirs}, or \
         give it another data directory",
        dir.display()
    )]
    Cluster {
        dir: PathBuf,
        theirs: String,
        /// The cluster in the settings.
        ours: String,
    },
    /// A cluster of several needs certificates that all its servers trust.
    #[error(
        "a server with --join or --bootstrap-expect needs --tls-dir: make one authority with `muster operator tls ca`, and on it a certificate \
         for each server with `muster operator tls cert`"
    )]
    NeedsTls,
    /// The certificate belongs to another server.
    #[error(
        "the certificate in {} is made for server `{theirs}`, this one is `{ours}`: start it with --name {theirs}, or make a certificate \
         for {ours} with `muster operator tls cert`",
        dir.display()
    )]
    CertificateName {
        dir: PathBuf,
        /// The name in the certificate.
        theirs: String,
        ours: String,
    },
    /// The server's name is not valid in a certificate.
    #[error("`{name}` cannot name a server: use 1 to 40 letters, digits and hyphens in --name")]
    Name { name: String },
    /// The server has no address that others can use.
    #[error(
        "{bound} means every address of this machine: say with --advertise which one other servers are to use"
    )]
    Advertise {
        /// The address to which the socket is bound.
        bound: SocketAddr,
    },
    /// The address for HTTP is taken.
    #[error(
        "TCP {addr} cannot be bound: another process may hold it; choose another with --http, or see `ss -ltnp`"
    )]
    BindHttp {
        addr: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// The address for QUIC is taken.
    #[error(transparent)]
    BindQuic(#[from] OpenEndpointError),
    /// One-off tasks cannot be kept as configured.
    #[error(transparent)]
    Tasks(#[from] TasksConfigError),
    /// Diego's clients cannot be answered as configured.
    #[error(transparent)]
    Bbs(#[from] OpenBbsError),
    /// Threads cannot be started.
    #[error("the threads for the agents' sessions cannot be started")]
    Threads(#[source] io::Error),
    /// An address cannot be read back.
    #[error("the address of a socket cannot be read")]
    LocalAddr(#[source] io::Error),
    /// The log cannot start.
    #[error(transparent)]
    Raft(#[from] StartRaftError),
}

/// The contents of [`ADDRESS_FILE`].
#[derive(Debug, Serialize)]
struct AddressFile<'a> {
    http: SocketAddr,
    quic: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    bbs: Option<SocketAddr>,
    cluster: &'a str,
    name: &'a str,
    pid: u32,
    tls: PathBuf,
}

/// A task of the server and the way to stop it.
#[derive(Debug)]
struct ServerTask {
    name: &'static str,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl ServerTask {
    fn start<F>(name: &'static str, run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = AbortOnDropHandle::new(tokio::spawn(run(stop.clone())));
        Self { name, stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        match tokio::time::timeout(limits::SHUTDOWN_WAIT, self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(part = self.name, %error, "failed"),
            Err(_) => {
                tracing::warn!(part = self.name, waited = ?limits::SHUTDOWN_WAIT, "did not stop in time: cut off");
            }
        }
    }
}

/// Threads for agents' sessions.
///
/// Thousands of sessions have work at the same time. On shared threads, an entry on its way through the log would
/// queue behind all of them at every step. The session threads also yield to that entry's work. A late session
/// sends its node all changes in one message.
#[derive(Debug)]
struct SessionThreads(Option<Runtime>);

impl SessionThreads {
    /// Starts the threads. Returns them and the handle that spawns tasks on them.
    fn start() -> Result<(Self, Handle), StartServerError> {
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .thread_name("sessions")
            .on_thread_start(|| yield_to_others(limits::SESSIONS_NICENESS, "sessions"))
            .build()
            .map_err(StartServerError::Threads)?;
        let handle = runtime.handle().clone();
        Ok((Self(Some(runtime)), handle))
    }
}

impl Drop for SessionThreads {
    fn drop(&mut self) {
        // The server part of each task on these threads stops it; blocking is not allowed here.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A running server. Dropped without [`Self::shutdown`] it stops at once, as if it were killed.
#[derive(Debug)]
pub struct Server {
    control: Control,
    data_dir: Arc<DataDir>,
    tls_dir: PathBuf,
    certificates: Certificates,
    /// The parts, in the order of their start.
    parts: Vec<ServerTask>,
    /// The session threads; they stop after the parts that run on them.
    sessions: SessionThreads,
}

impl Server {
    /// Starts a server. When this returns, the server answers requests, and leads if it is on its own.
    ///
    /// # Errors
    ///
    /// [`StartServerError`]; nothing is left running.
    pub async fn start(config: ServerConfig) -> Result<Self, StartServerError> {
        // The future is large, and boxed so that the caller's future stays small.
        Box::pin(Self::open(config)).await
    }

    async fn open(config: ServerConfig) -> Result<Self, StartServerError> {
        config.tasks.check()?;
        let clock = Clock::start();
        let data_dir = Arc::new(DataDir::open(&config.data_dir)?);
        consistency_check::check_data_dir(data_dir.path())?;
        let (identity, tls_dir) = identity(&config, &data_dir)?;
        let certificates = Certificates::load(&tls_dir, Role::Server)?;
        let (sessions, on_sessions) = SessionThreads::start()?;
        let (api, quic) = bind(&config, &identity).await?;
        let bbs = Bbs::open(config.bbs.as_ref()).await?;
        let http_addr = api.addr;
        let quic_addr = quic.local_addr().map_err(StartServerError::LocalAddr)?;
        let me = PeerInfo {
            server_id: data_dir.server_id(),
            node: config.node(quic_addr, http_addr)?,
        };
        let peers = Peers::new(quic.clone(), &identity, me)?;

        let (published, effects) = Published::new();
        let published = Arc::new(published);
        let raft = config.raft(&peers, &data_dir);
        let raft = Raft::start(raft, Arc::clone(&published)).await?;
        let info = ServerInfo {
            log_bytes_cut: raft.log_bytes_cut(),
            started_at: clock.started_at(),
            bbs_addr: bbs.as_ref().map(Bbs::addr),
            ..config.info(&data_dir, http_addr, quic_addr)
        };
        let (beats, beat_inbox) = mpsc::channel(limits::BEATS_MAX);
        let (duties, requests) = mpsc::channel(limits::DUTY_REQUESTS_MAX);
        let (one_offs, receivers) = batch::channel();
        let nodes = Nodes::new(peers.clone());
        let control = Control::new(ControlParts {
            raft,
            published,
            nodes,
            peers,
            expect: config.bootstrap_expect,
            founder: Bootstrap::open(Arc::clone(&data_dir)),
            info,
            clock,
            beats,
            duties,
            gc: config.gc,
            tasks: config.tasks.clone(),
            one_offs,
        });

        let inputs = DutyChannels {
            effects,
            beats: beat_inbox,
            requests,
        };
        let mut parts = vec![
            ServerTask::start("leader", |stop| leader::run(control.clone(), inputs, stop)),
            ServerTask::start("agents", |stop| agents::run(control.clone(), stop)),
            ServerTask::start("certificates", |stop| {
                follow_certificates(certificates.clone(), quic.clone(), control.clone(), stop)
            }),
            ServerTask::start("quic", |stop| {
                listen::serve(quic, control.clone(), on_sessions, stop)
            }),
            ServerTask::start("one-off requests", |stop| {
                batch::write(control.clone(), receivers, stop)
            }),
            ServerTask::start("http", |stop| serve_http(api, control.clone(), stop)),
        ];
        parts.extend(peer_tasks(&control, config.join, config.dead_server_after));
        let bbs = bbs.map(|bbs| ServerTask::start("bbs", |stop| bbs.serve(control.clone(), stop)));
        parts.extend(bbs);
        let server = Self {
            control,
            data_dir,
            tls_dir,
            certificates,
            parts,
            sessions,
        };
        server.write_addresses()?;
        tracing::info!(%http_addr, %quic_addr, data_dir = %config.data_dir.display(), "the server is up");
        Ok(server)
    }

    /// The server's handle.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// This server's identity and addresses.
    #[must_use]
    pub fn info(&self) -> &ServerInfo {
        self.control.server_info()
    }

    /// The server's certificates; [`Certificates::ask`] looks for replaced files at once.
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// Resolves with the reason if the log fails. The process should then end: the state in memory may be ahead of
    /// the disk.
    pub async fn failed(&self) -> String {
        let mut failed = self.control.failed();
        let reason = match failed.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone(),
            Err(_) => None,
        };
        match reason {
            Some(reason) => reason,
            // The log was shut down in order, so it will not fail.
            None => std::future::pending().await,
        }
    }

    /// Hands leadership over, if this server leads, and stops in the reverse order of the start.
    pub async fn shutdown(mut self) {
        self.data_dir.remove(ADDRESS_FILE);
        self.transfer_leadership().await;
        while let Some(part) = self.parts.pop() {
            part.stop().await;
        }
        self.control.raft().shutdown().await;
        drop(self.sessions);
        tracing::info!("the server is down");
    }

    /// Transfers leadership, so that the other servers need no election after a silence.
    async fn transfer_leadership(&self) {
        let raft = self.control.raft();
        if !self.control.leads() || raft.successor().is_none() {
            return;
        }
        match raft.transfer(None).await {
            Ok(leader) => tracing::info!(to = leader.name, "handed leadership over"),
            Err(error) => {
                tracing::warn!(%error, "leadership was not handed over: the others elect");
            }
        }
    }

    fn write_addresses(&self) -> Result<(), StartServerError> {
        let info = self.info();
        let addresses = AddressFile {
            http: info.http_addr,
            quic: info.quic_addr,
            bbs: info.bbs_addr,
            cluster: &info.cluster,
            name: &info.name,
            pid: std::process::id(),
            tls: self.tls_dir.clone(),
        };
        let text =
            serde_json::to_string(&addresses).expect("addresses and names are always valid JSON");
        Ok(self.data_dir.write(ADDRESS_FILE, &text)?)
    }
}

/// The parts that work with the other servers.
fn peer_tasks(control: &Control, join: Vec<String>, dead_after: Duration) -> [ServerTask; 2] {
    let search = JoinConfig { join };
    let servers = ServersConfig { dead_after };
    [
        ServerTask::start("join", |stop| join::run(control.clone(), search, stop)),
        ServerTask::start("autopilot", |stop| {
            autopilot::run(control.clone(), servers, stop)
        }),
    ]
}

/// The socket for HTTP.
#[derive(Debug)]
struct ApiListener {
    listener: TcpListener,
    addr: SocketAddr,
    /// The rules for requests that a browser sends for other sites' pages.
    sites: SitePolicy,
}

/// The sockets for HTTP and for QUIC.
async fn bind(
    config: &ServerConfig,
    identity: &Identity,
) -> Result<(ApiListener, quinn::Endpoint), StartServerError> {
    let bind_http = |source| StartServerError::BindHttp {
        addr: config.http_addr,
        source,
    };
    let listener = TcpListener::bind(config.http_addr)
        .await
        .map_err(bind_http)?;
    let addr = listener.local_addr().map_err(StartServerError::LocalAddr)?;
    let sites = SitePolicy::api(addr.ip(), config.advertise, &config.http_allowed_hosts);
    let quic = endpoint::server(config.quic_addr, identity, &listen::PROTOCOLS)?;
    let api = ApiListener {
        listener,
        addr,
        sites,
    };
    Ok((api, quic))
}

/// The server's TLS identity and its directory on disk.
fn identity(
    config: &ServerConfig,
    data_dir: &DataDir,
) -> Result<(Identity, PathBuf), StartServerError> {
    if !tls::is_name(&config.name) {
        return Err(StartServerError::Name {
            name: config.name.clone(),
        });
    }
    let dir = match &config.tls_dir {
        Some(dir) => dir.clone(),
        None if config.is_one_of_several() => return Err(StartServerError::NeedsTls),
        None => {
            tls::ensure_cluster(&data_dir.tls(), &config.cluster, &config.name)?;
            data_dir.tls()
        }
    };
    let identity = Identity::load(&dir, Role::Server)?;
    if identity.cluster != config.cluster {
        return Err(StartServerError::Cluster {
            dir,
            theirs: identity.cluster,
            ours: config.cluster.clone(),
        });
    }
    match &identity.server_name {
        Some(theirs) if config.tls_dir.is_some() && *theirs != config.name => {
            Err(StartServerError::CertificateName {
                dir,
                theirs: theirs.clone(),
                ours: config.name.clone(),
            })
        }
        _ => Ok((identity, dir)),
    }
}

/// Uses replaced certificates for connections from then on.
async fn follow_certificates(
    certificates: Certificates,
    quic: quinn::Endpoint,
    control: Control,
    stop: CancellationToken,
) {
    let changed = |identity: &Identity| {
        let shown = endpoint::server_config(identity, &listen::PROTOCOLS).and_then(|config| {
            quic.set_server_config(Some(config));
            control.peers().set_identity(identity)
        });
        if let Err(error) = shown {
            tracing::error!(
                error = crate::chain(&error),
                "replaced certificates cannot be shown"
            );
        }
    };
    stop.run_until_cancelled(certificates.follow(changed)).await;
}

async fn serve_http(api: ApiListener, control: Control, stop: CancellationToken) {
    let ApiListener {
        listener, sites, ..
    } = api;
    if let Err(error) = http::serve(listener, sites, control, stop).await {
        tracing::error!(%error, "HTTP has stopped");
    }
}
