//! A server on free ports, and an agent that only talks.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_control::handle::Control;
use muster_control::server::{Server, ServerConfig, StartServerError};
use muster_control_core::fsm::{Entry, JobCommand, Response};
use muster_control_core::state::{AllocView, State};
use muster_domain::alloc::{AllocReport, ClientStatus, DesiredAlloc, DesiredStatus, TaskState};
use muster_domain::fixture::JobBuilder;
use muster_domain::id::{AllocId, JobKey, LogIndex, NodeId};
use muster_domain::node::{NodeCollected, NodeSecret, NodeSpec};
use muster_domain::one_off::WorkEnd;
use muster_link::endpoint;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_link::tls::{Identity, Role};
use muster_wire::rpc::{ALPN_AGENT, FromAgent, NodeReply, NodeRequest, ToAgent};
use tempfile::TempDir;
use tokio::sync::{Mutex, mpsc};
use tokio_util::task::AbortOnDropHandle;

/// How long anything may take before a test fails. Generous: machines are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Time to live of nodes in these tests. Beats come five times as often, also where many tests run at once.
pub(crate) const TTL: Duration = Duration::from_secs(3);

pub(crate) use muster_domain::fixture::recorded::skipped;

/// Waits for `work`, but not for ever.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(value) => value,
        Err(error) => panic!("{what}: not within {PATIENCE:?}: {error}"),
    }
}

/// A configuration on free ports.
pub(crate) fn config(dir: &Path) -> ServerConfig {
    ServerConfig {
        http_addr: SocketAddr::from(([127, 0, 0, 1], 0)),
        quic_addr: SocketAddr::from(([127, 0, 0, 1], 0)),
        heartbeat_ttl: TTL,
        heartbeat_grace: Duration::from_millis(500),
        ..ServerConfig::new(dir)
    }
}

/// A server and the directory it lives in.
pub(crate) struct TestServer {
    pub(crate) server: Server,
    pub(crate) dir: TempDir,
}

/// Starts a server on free ports in a directory of its own.
pub(crate) async fn server() -> TestServer {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await.unwrap();
    TestServer { server, dir }
}

/// Starts a server on `dir` again, as soon as the one before has let go of it.
pub(crate) async fn server_on(dir: TempDir) -> TestServer {
    soon("the directory is free again", async {
        loop {
            match Server::start(config(dir.path())).await {
                Ok(server) => return TestServer { server, dir },
                Err(StartServerError::DataDir(muster_control::OpenDataDirError::InUse {
                    ..
                })) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    })
    .await
}

impl TestServer {
    pub(crate) fn control(&self) -> &Control {
        self.server.control()
    }

    pub(crate) async fn propose(&self, entry: Entry) -> (LogIndex, Response) {
        self.control().propose(entry).await.unwrap()
    }

    /// Registers a job; the index of its entry.
    pub(crate) async fn register(&self, job: JobBuilder) -> LogIndex {
        let at = self.control().now();
        let command = JobCommand::Register {
            spec: Box::new(job.build()),
            check_index: None,
            places: None,
        }
        .at(at);
        let (index, response) = self.propose(command).await;
        assert!(
            matches!(response, Response::JobRegistered { .. }),
            "{response:?}"
        );
        index
    }

    /// Waits until the state is as wanted.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&State) -> bool) -> State {
        until(self.control(), what, wanted).await
    }

    /// Stops in order and gives the directory back.
    pub(crate) async fn shutdown(self) -> TempDir {
        soon("shutdown", self.server.shutdown()).await;
        self.dir
    }

    /// Drops everything at once, as a crash would, and gives the directory back.
    pub(crate) fn crash(self) -> TempDir {
        drop(self.server);
        self.dir
    }
}

/// Waits until the state of a server is as wanted.
pub(crate) async fn until(control: &Control, what: &str, wanted: impl Fn(&State) -> bool) -> State {
    let mut applied = control.applied();
    soon(what, async {
        loop {
            let state = control.state();
            if wanted(&state) {
                return state;
            }
            applied.changed().await.unwrap();
        }
    })
    .await
}

/// The client statuses of a job's allocations, sorted.
pub(crate) fn statuses(state: &State, job: &str) -> Vec<ClientStatus> {
    let mut statuses: Vec<_> = state
        .allocs()
        .of_job(&JobKey::in_default(job))
        .map(AllocView::client_status)
        .collect();
    statuses.sort_unstable();
    statuses
}

/// An agent that runs nothing: it says what the test tells it to.
pub(crate) struct FakeAgent {
    pub(crate) node_id: NodeId,
    connection: quinn::Connection,
    sender: Arc<Mutex<FrameSender>>,
    inbox: mpsc::Receiver<ToAgent>,
    beats: Option<AbortOnDropHandle<()>>,
    sequence: u64,
    _reader: AbortOnDropHandle<()>,
    _endpoint: quinn::Endpoint,
}

/// Opens a connection with the certificate of `role`.
pub(crate) async fn connect(
    server: &TestServer,
    role: Role,
) -> (
    quinn::Endpoint,
    Result<quinn::Connection, quinn::ConnectionError>,
) {
    let tls = server.server.info().data_dir.join("tls");
    connect_with(&server.server, &tls, role).await
}

/// The same, with the certificates in `tls`.
async fn connect_with(
    server: &Server,
    tls: &Path,
    role: Role,
) -> (
    quinn::Endpoint,
    Result<quinn::Connection, quinn::ConnectionError>,
) {
    let info = server.info();
    let identity = Identity::load(tls, role).unwrap();
    let endpoint = endpoint::client(&identity, ALPN_AGENT).unwrap();
    let name = Role::Server.dns_name(&info.cluster);
    let connection = endpoint.connect(info.quic_addr, &name).unwrap().await;
    (endpoint, connection)
}

impl FakeAgent {
    /// Connects, registers `node`, and sends heartbeats from then on.
    pub(crate) async fn join(server: &TestServer, node: NodeSpec) -> Self {
        let tls = server.server.info().data_dir.join("tls");
        Self::join_with(&server.server, &tls, node).await
    }

    /// The same, with the certificates in `tls`. A server that cannot serve it at the moment is asked again.
    pub(crate) async fn join_with(server: &Server, tls: &Path, node: NodeSpec) -> Self {
        soon("a registration", async {
            loop {
                let mut agent = Self::register(server, tls, node.clone()).await;
                match agent.next().await {
                    Some(ToAgent::Registered {
                        heartbeat_ttl: TTL, ..
                    }) => return agent,
                    Some(ToAgent::TryElsewhere { .. }) => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    other => panic!("{other:?}"),
                }
            }
        })
        .await
    }

    async fn register(server: &Server, tls: &Path, node: NodeSpec) -> Self {
        let node_id = node.id;
        let (endpoint, connection) = connect_with(server, tls, Role::Agent).await;
        let connection = connection.unwrap();
        let (send, receive) = connection.open_bi().await.unwrap();
        let mut sender = FrameSender::new(send);
        sender
            .send(&FromAgent::Register {
                node: Box::new(node),
                known: LogIndex(0),
                secret: NodeSecret::default(),
            })
            .await
            .unwrap();
        let (messages, inbox) = mpsc::channel(1024);
        let reader = tokio::spawn(async move {
            let mut receiver = FrameReceiver::new(receive);
            while let Ok(Some(message)) = receiver.recv::<ToAgent>().await {
                if messages.send(message).await.is_err() {
                    return;
                }
            }
        });
        let sender = Arc::new(Mutex::new(sender));
        let beating = Arc::clone(&sender);
        let beats = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TTL / 5);
            while beating
                .lock()
                .await
                .send(&FromAgent::Heartbeat { number: 1 })
                .await
                .is_ok()
            {
                ticks.tick().await;
            }
        });
        Self {
            node_id,
            connection,
            sender,
            inbox,
            beats: Some(AbortOnDropHandle::new(beats)),
            sequence: 0,
            _reader: AbortOnDropHandle::new(reader),
            _endpoint: endpoint,
        }
    }

    /// The next message that is neither a heartbeat's acknowledgement nor of sockets that are no node's business here; `None`
    /// when the session is over.
    pub(crate) async fn next(&mut self) -> Option<ToAgent> {
        soon("a message to the agent", async {
            loop {
                match self.inbox.recv().await {
                    Some(ToAgent::HeartbeatAck { .. } | ToAgent::Apis { .. }) => {}
                    message => return message,
                }
            }
        })
        .await
    }

    /// The next allocation to run.
    pub(crate) async fn next_to_run(&mut self) -> DesiredAlloc {
        self.next_wanted(DesiredStatus::Run).await
    }

    /// The next allocation of which that is wanted.
    pub(crate) async fn next_wanted(&mut self, desired: DesiredStatus) -> DesiredAlloc {
        loop {
            if let Some(ToAgent::Desired { allocs, .. }) = self.next().await
                && let Some(alloc) = allocs.into_iter().find(|alloc| alloc.desired == desired)
            {
                return alloc;
            }
        }
    }

    /// Reports an allocation's status and waits until that is committed.
    pub(crate) async fn report(&mut self, alloc_id: AllocId, client_status: ClientStatus) {
        self.report_status(alloc_id, client_status, Vec::new(), None)
            .await;
    }

    /// Reports an allocation that runs, and how its tasks are.
    pub(crate) async fn report_tasks(&mut self, alloc_id: AllocId, task_states: Vec<TaskState>) {
        self.report_status(alloc_id, ClientStatus::Running, task_states, None)
            .await;
    }

    /// The same of a one-off task that has ended.
    pub(crate) async fn report_end(
        &mut self,
        alloc_id: AllocId,
        client_status: ClientStatus,
        end: WorkEnd,
    ) {
        self.report_status(alloc_id, client_status, Vec::new(), Some(Box::new(end)))
            .await;
    }

    async fn report_status(
        &mut self,
        alloc_id: AllocId,
        client_status: ClientStatus,
        task_states: Vec<TaskState>,
        end: Option<Box<WorkEnd>>,
    ) {
        self.sequence += 1;
        let report = AllocReport {
            alloc_id,
            client_status,
            client_description: String::new(),
            task_states,
            healthy: None,
            end,
            remote: Vec::new(),
        };
        let message = FromAgent::Report {
            sequence: self.sequence,
            reports: vec![report],
        };
        self.send_and_wait(&message).await;
    }

    /// Tells what collections of it came to, and waits until that is committed.
    pub(crate) async fn report_collection(&mut self, report: NodeCollected) {
        self.sequence += 1;
        let message = FromAgent::Collected {
            sequence: self.sequence,
            report: Box::new(report),
        };
        self.send_and_wait(&message).await;
    }

    /// Says `message`, and waits until all that it said is committed.
    async fn send_and_wait(&mut self, message: &FromAgent) {
        self.sender.lock().await.send(message).await.unwrap();
        loop {
            match self.next().await {
                Some(ToAgent::ReportAck { sequence }) if sequence == self.sequence => return,
                Some(_) => {}
                None => panic!("the session ended before the report was acknowledged"),
            }
        }
    }

    /// The next question and where to send replies.
    pub(crate) async fn question(&self) -> (NodeRequest, FrameSender) {
        let (send, receive) = self.connection.accept_bi().await.unwrap();
        let request = FrameReceiver::new(receive).recv().await.unwrap().unwrap();
        (request, FrameSender::new(send))
    }

    /// Answers the next question with `replies`.
    pub(crate) async fn answer(&self, replies: &[NodeReply]) -> NodeRequest {
        let (request, mut sender) = self.question().await;
        for reply in replies {
            sender.send(reply).await.unwrap();
        }
        sender.finish();
        sender.stopped().await;
        request
    }

    /// Stays connected and says nothing any more.
    pub(crate) fn fall_silent(&mut self) {
        self.beats = None;
    }
}
