//! A server that wants what it is told and remembers what it hears.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_domain::alloc::{
    AllocReport, ClientStatus, DesiredAlloc, DesiredStatus, RemoteAlloc, TaskState,
};
use muster_domain::id::{AllocId, LogIndex};
use muster_domain::node::{NodeCollected, NodeSpec};
use muster_link::endpoint;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_link::tls::{Identity, Role, ensure_cluster};
use muster_wire::frame::{self, Protocol};
use muster_wire::rpc::{
    ALPN_AGENT, AgentRequest, FromAgent, LogOrigin, LogStream, LogsRequest, NodeReply, NodeRequest,
    TaskStats, ToAgent,
};
use quinn::Connection;
use tokio::sync::mpsc;

use super::eventually;

const CLUSTER: &str = "it";
/// Time to live of the node.
const TTL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct State {
    index: u64,
    wanted: BTreeMap<AllocId, DesiredAlloc>,
    remote: BTreeMap<AllocId, RemoteAlloc>,
    reports: BTreeMap<AllocId, AllocReport>,
    /// Every report message: sequence and the allocations in it.
    messages: Vec<(u64, Vec<AllocId>)>,
    collected: Vec<NodeCollected>,
    node: Option<NodeSpec>,
    sessions: u32,
    heartbeats: u32,
    /// When the last one came, and the longest time that none did.
    heartbeat_at: Option<Instant>,
    silence: Duration,
    mute: bool,
    leaderless: bool,
    /// The cluster's servers, as it tells agents.
    servers: Vec<SocketAddr>,
    /// The addresses where servers listen for clients, as it tells agents.
    apis: Vec<SocketAddr>,
    connection: Option<Connection>,
    /// The protocol version of its messages, if it is another one.
    version: Option<u16>,
    push: Option<mpsc::Sender<ToAgent>>,
}

/// The server. Ends with its last clone.
#[derive(Clone, Debug)]
pub(crate) struct FakeServer {
    addr: SocketAddr,
    tls: PathBuf,
    state: Arc<Mutex<State>>,
    endpoint: quinn::Endpoint,
}

impl FakeServer {
    /// Listens on a free port of the loopback; certificates go below `dir`.
    pub(crate) fn start(dir: &Path) -> Self {
        let tls = dir.join("tls");
        ensure_cluster(&tls, CLUSTER, "server").unwrap();
        Self::listen(tls)
    }

    /// Another server of the same cluster.
    pub(crate) fn sibling(&self) -> Self {
        Self::listen(self.tls.clone())
    }

    fn listen(tls: PathBuf) -> Self {
        let identity = Identity::load(&tls, Role::Server).unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let endpoint = endpoint::server(any, &identity, &[ALPN_AGENT]).unwrap();
        let addr = endpoint.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            index: 1,
            ..State::default()
        }));
        let (accepting, shared) = (endpoint.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                if let Ok(connection) = incoming.await {
                    tokio::spawn(session(connection, Arc::clone(&shared)));
                }
            }
        });
        Self {
            addr,
            tls,
            state,
            endpoint,
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn tls_dir(&self) -> &Path {
        &self.tls
    }

    /// Wants `alloc` from now on.
    pub(crate) async fn place(&self, alloc: DesiredAlloc) -> AllocId {
        let alloc_id = alloc.alloc_id;
        self.want(alloc).await;
        alloc_id
    }

    /// Wants the allocation stopped.
    pub(crate) async fn stop(&self, alloc_id: AllocId) {
        let mut alloc = self.state.lock().unwrap().wanted[&alloc_id].clone();
        alloc.desired = DesiredStatus::Stop;
        self.want(alloc).await;
    }

    /// Says from now on that this is what it knows of the allocation.
    pub(crate) fn know(&self, alloc_id: AllocId, status: ClientStatus) {
        let mut state = self.state.lock().unwrap();
        let alloc = state.wanted.get_mut(&alloc_id).unwrap();
        alloc.client_status = status;
    }

    /// Forgets the allocation.
    pub(crate) async fn forget(&self, alloc_id: AllocId) {
        let (index, push) = {
            let mut state = self.state.lock().unwrap();
            state.index += 1;
            state.wanted.remove(&alloc_id);
            (LogIndex(state.index), state.push.clone())
        };
        let gone = vec![alloc_id];
        send(
            push,
            ToAgent::Desired {
                index,
                allocs: Vec::new(),
                unchanged: Vec::new(),
                gone,
                complete: None,
                remote: Vec::new(),
            },
        )
        .await;
    }

    /// Asks the node to collect garbage.
    pub(crate) async fn collect_garbage(&self) {
        let push = self.state.lock().unwrap().push.clone();
        send(push, ToAgent::CollectGarbage).await;
    }

    /// Commits no reports while `mute`.
    pub(crate) fn mute(&self, mute: bool) {
        self.state.lock().unwrap().mute = mute;
    }

    /// Breaks the connection.
    pub(crate) fn disconnect(&self) {
        let connection = self.state.lock().unwrap().connection.take();
        connection
            .unwrap()
            .close(quinn::VarInt::from_u32(1), b"the test breaks it");
    }

    /// Takes no connection any more and says nothing on those there are, as a server that is lost.
    pub(crate) fn stop_listening(&self) {
        let lost = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        self.endpoint.rebind(lost).unwrap();
        self.endpoint.set_server_config(None);
    }

    /// Speaks this version of the protocol in the sessions that begin from now on.
    pub(crate) fn speak(&self, version: u16) {
        self.state.lock().unwrap().version = Some(version);
    }

    /// The reason that the agent gives for the end of its session.
    pub(crate) async fn closed(&self) -> String {
        let connection = eventually("a session", async || {
            self.state.lock().unwrap().connection.clone()
        })
        .await;
        connection.closed().await.to_string()
    }

    /// Counts no heartbeats while `leaderless`.
    pub(crate) fn leaderless(&self, leaderless: bool) {
        self.state.lock().unwrap().leaderless = leaderless;
    }

    /// Says that these are the cluster's servers.
    pub(crate) fn send_servers(&self, servers: Vec<SocketAddr>) {
        self.state.lock().unwrap().servers = servers;
    }

    /// Says in the sessions that begin from now on that servers listen there for clients.
    pub(crate) fn send_apis(&self, apis: Vec<SocketAddr>) {
        self.state.lock().unwrap().apis = apis;
    }

    /// Says so to the agent that has a session, too.
    pub(crate) async fn change_servers(&self, servers: Vec<SocketAddr>) {
        self.send_servers(servers.clone());
        let push = self.state.lock().unwrap().push.clone();
        send(push, ToAgent::Servers { servers }).await;
    }

    /// Says `message` to the agent that has a session.
    pub(crate) async fn send_to_agent(&self, message: ToAgent) {
        let push = self.state.lock().unwrap().push.clone();
        send(push, message).await;
    }

    /// Wants what `other` wants, as a server with the same state.
    pub(crate) fn want_as(&self, other: &Self) {
        let (index, wanted) = {
            let state = other.state.lock().unwrap();
            (state.index, state.wanted.clone())
        };
        let mut state = self.state.lock().unwrap();
        state.index = index;
        state.wanted = wanted;
    }

    /// Sends the agent to other servers.
    pub(crate) async fn send_away(&self, after: Duration) {
        let push = self.state.lock().unwrap().push.clone();
        let reason = "the test wants it".to_owned();
        send(push, ToAgent::TryElsewhere { reason, after }).await;
    }

    /// Whether an agent has a session.
    pub(crate) fn is_connected(&self) -> bool {
        let state = self.state.lock().unwrap();
        let connection = state.connection.as_ref();
        connection.is_some_and(|connection| connection.close_reason().is_none())
    }

    /// The certificate that the agent showed in its newest session.
    pub(crate) fn peer_certificate(&self) -> Vec<u8> {
        let connection = self.state.lock().unwrap().connection.clone();
        let chain = connection.unwrap().peer_identity().unwrap();
        let chain = chain
            .downcast::<Vec<rustls_pki_types::CertificateDer<'static>>>()
            .unwrap();
        chain[0].to_vec()
    }

    pub(crate) fn sessions(&self) -> u32 {
        self.state.lock().unwrap().sessions
    }

    /// The longest time between two heartbeats since this was last asked for.
    pub(crate) fn longest_silence(&self) -> Duration {
        std::mem::take(&mut self.state.lock().unwrap().silence)
    }

    pub(crate) fn heartbeats(&self) -> u32 {
        self.state.lock().unwrap().heartbeats
    }

    /// The collections that the agent reported.
    pub(crate) fn collected(&self) -> Vec<NodeCollected> {
        self.state.lock().unwrap().collected.clone()
    }

    pub(crate) fn messages(&self) -> Vec<(u64, Vec<AllocId>)> {
        self.state.lock().unwrap().messages.clone()
    }

    /// The node's newest registration, once there is one that `wanted` likes.
    pub(crate) async fn node(&self, wanted: impl Fn(&NodeSpec) -> bool) -> NodeSpec {
        eventually("a registration", async || {
            self.state
                .lock()
                .unwrap()
                .node
                .clone()
                .filter(|node| wanted(node))
        })
        .await
    }

    /// The newest report of the allocation.
    pub(crate) fn report(&self, alloc_id: AllocId) -> Option<AllocReport> {
        self.state.lock().unwrap().reports.get(&alloc_id).cloned()
    }

    /// Waits until a report of the allocation says what `wanted` likes.
    pub(crate) async fn reported(
        &self,
        alloc_id: AllocId,
        what: &str,
        wanted: impl Fn(&TaskState, ClientStatus) -> bool,
    ) -> TaskState {
        let found = eventually(what, async || {
            let report = self.report(alloc_id)?;
            let task = report.task_states.first()?.clone();
            wanted(&task, report.client_status).then_some(task)
        });
        // The last report says more than a deadline that passed.
        tokio::select! {
            task = found => task,
            () = tokio::time::sleep(super::DEADLINE.mul_f64(0.9)) => {
                panic!("{what}: the last report is {:#?}", self.report(alloc_id))
            }
        }
    }

    /// Waits for a client status.
    pub(crate) async fn status(&self, alloc_id: AllocId, wanted: ClientStatus) -> TaskState {
        self.reported(alloc_id, wanted.as_str(), |_, status| status == wanted)
            .await
    }

    /// Asks the node, and reads replies until the stream ends or `enough`. A connection that breaks
    /// meanwhile, as when the agent is killed, means that the next one is asked.
    pub(crate) async fn ask(
        &self,
        request: NodeRequest,
        enough: impl Fn(&[NodeReply]) -> bool,
    ) -> Vec<NodeReply> {
        eventually("an answer", async || {
            let connection = self.state.lock().unwrap().connection.clone()?;
            let (send, receive) = connection.open_bi().await.ok()?;
            let (mut sender, mut receiver) = (FrameSender::new(send), FrameReceiver::new(receive));
            sender.send(&request).await.ok()?;
            let mut replies = Vec::new();
            while !enough(&replies)
                && let Some(reply) = receiver.recv::<NodeReply>().await.ok()?
            {
                replies.push(reply);
            }
            Some(replies)
        })
        .await
    }

    /// Asks the node, and leaves the answer to the caller, who holds the stream.
    pub(crate) async fn open(&self, request: &NodeRequest) -> (FrameSender, FrameReceiver) {
        let connection = self.state.lock().unwrap().connection.clone().unwrap();
        let (send, receive) = connection.open_bi().await.unwrap();
        let (mut sender, receiver) = (FrameSender::new(send), FrameReceiver::new(receive));
        sender.send(request).await.unwrap();
        (sender, receiver)
    }

    /// The next request that the agent makes on a stream of its own.
    pub(crate) async fn question(&self) -> (AgentRequest, FrameSender, FrameReceiver) {
        eventually("a question", async || {
            let connection = self.state.lock().unwrap().connection.clone()?;
            let accepted = tokio::time::timeout(super::DEADLINE, connection.accept_bi());
            let (send, receive) = accepted.await.ok()?.ok()?;
            let mut receiver = FrameReceiver::new(receive);
            let request = receiver.recv::<AgentRequest>().await.ok()??;
            Some((request, FrameSender::new(send), receiver))
        })
        .await
    }

    /// All that the task wrote to a stream so far.
    pub(crate) async fn log(&self, alloc_id: AllocId, stream: LogStream) -> String {
        let request = LogsRequest {
            alloc_id,
            task: "main".to_owned(),
            stream,
            from: LogOrigin::Start(0),
            follow: false,
        };
        let replies = self.ask(NodeRequest::Logs(request), |_| false).await;
        let data = replies.into_iter().flat_map(|reply| match reply {
            NodeReply::LogData { data, .. } => data,
            other => format!("{other:?}").into_bytes(),
        });
        String::from_utf8(data.collect()).unwrap()
    }

    /// The first process of the task.
    pub(crate) async fn pid(&self, alloc_id: AllocId) -> u32 {
        self.usage(alloc_id, "a pid", |stats| stats.pid != 0)
            .await
            .pid
    }

    /// The statistics of the task, once `wanted` accepts them.
    pub(crate) async fn usage(
        &self,
        alloc_id: AllocId,
        what: &str,
        wanted: impl Fn(&TaskStats) -> bool,
    ) -> TaskStats {
        eventually(what, async || {
            let request = NodeRequest::AllocStats { alloc_id };
            let replies = self.ask(request, |replies| !replies.is_empty()).await;
            match replies.into_iter().next()? {
                NodeReply::AllocStats(mut stats) => stats.tasks.remove("main").filter(&wanted),
                _ => None,
            }
        })
        .await
    }

    /// Says from now on of the allocation's remote tasks which run already and which are another's; with what is wanted
    /// of it next.
    pub(crate) fn set_remote(&self, remote: RemoteAlloc) {
        let mut state = self.state.lock().unwrap();
        state.remote.insert(remote.alloc_id, remote);
    }

    async fn want(&self, mut alloc: DesiredAlloc) {
        let (message, push) = {
            let mut state = self.state.lock().unwrap();
            state.index += 1;
            alloc.alloc_modify_index = LogIndex(state.index);
            state.wanted.insert(alloc.alloc_id, alloc.clone());
            let message = ToAgent::Desired {
                index: LogIndex(state.index),
                remote: state
                    .remote
                    .get(&alloc.alloc_id)
                    .cloned()
                    .into_iter()
                    .collect(),
                allocs: vec![alloc],
                unchanged: Vec::new(),
                gone: Vec::new(),
                complete: None,
            };
            (message, state.push.clone())
        };
        send(push, message).await;
    }
}

/// Pushes `message` if there is a session. Everything that is not pushed is sent when a session begins.
async fn send(push: Option<mpsc::Sender<ToAgent>>, message: ToAgent) {
    if let Some(push) = push {
        drop(push.send(message).await);
    }
}

async fn session(connection: Connection, state: Arc<Mutex<State>>) -> Option<()> {
    let (send, receive) = connection.accept_bi().await.ok()?;
    let version = state.lock().unwrap().version;
    let spoken = Protocol {
        version: version.unwrap_or(frame::AGENT_VERSION),
        ..frame::AGENT
    };
    let mut sender = FrameSender::speaking(spoken, send);
    let mut receiver = FrameReceiver::new(receive);
    let FromAgent::Register { node, .. } = receiver.recv().await.ok()?? else {
        return None;
    };
    let (push, mut pushed) = mpsc::channel(1024);
    let first = {
        let mut state = state.lock().unwrap();
        state.node = Some(*node);
        state.sessions += 1;
        state.connection = Some(connection.clone());
        state.push = Some(push.clone());
        ToAgent::Desired {
            index: LogIndex(state.index),
            allocs: state.wanted.values().cloned().collect(),
            unchanged: Vec::new(),
            gone: Vec::new(),
            complete: Some(u32::try_from(state.wanted.len()).unwrap()),
            remote: state.remote.values().cloned().collect(),
        }
    };
    let registered = ToAgent::Registered {
        cluster: CLUSTER.to_owned(),
        heartbeat_ttl: TTL,
        servers: state.lock().unwrap().servers.clone(),
    };
    sender.send(&registered).await.ok()?;
    let addrs = state.lock().unwrap().apis.clone();
    sender.send(&ToAgent::Apis { addrs }).await.ok()?;
    sender.send(&first).await.ok()?;
    tokio::spawn(async move {
        while let Some(message) = pushed.recv().await {
            if sender.send(&message).await.is_err() {
                return;
            }
        }
    });
    loop {
        let message = receiver.recv::<FromAgent>().await.ok()??;
        let answer = handle_message(&state, message);
        if let Some(answer) = answer {
            push.send(answer).await.ok()?;
        }
    }
}

fn handle_message(state: &Mutex<State>, message: FromAgent) -> Option<ToAgent> {
    let mut state = state.lock().unwrap();
    match message {
        FromAgent::Register { node, .. } => {
            state.node = Some(*node);
            None
        }
        FromAgent::Heartbeat { number } => {
            state.heartbeats += 1;
            let before = state.heartbeat_at.replace(Instant::now());
            let silence = before.map_or(Duration::ZERO, |before| before.elapsed());
            state.silence = state.silence.max(silence);
            (!state.leaderless).then_some(ToAgent::HeartbeatAck { number, lease: TTL })
        }
        FromAgent::Report { sequence, reports } => {
            state.messages.push((
                sequence,
                reports.iter().map(|report| report.alloc_id).collect(),
            ));
            if state.mute {
                return None;
            }
            for report in reports {
                if let Some(wanted) = state.wanted.get_mut(&report.alloc_id) {
                    wanted.client_status = report.client_status;
                }
                state.reports.insert(report.alloc_id, report);
            }
            Some(ToAgent::ReportAck { sequence })
        }
        FromAgent::Collected { sequence, report } => {
            if state.mute {
                return None;
            }
            state.collected.push(*report);
            Some(ToAgent::ReportAck { sequence })
        }
    }
}
