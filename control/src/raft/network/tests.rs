//! A server of version 1 together with servers of this version: its recorded bytes, over a real link.
//!
//! `testdata/old-server.v1.txt` replaces the old server and is never written again. Its frames were recorded: a
//! server founded a cluster, added server 2 and sent it the log, and sent server 3 a snapshot. The commands and
//! the rows in them are those of `testdata/upgrade.v1.txt`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use muster_control_core::fsm;
use muster_domain::id::LogIndex;
use muster_link::endpoint;
use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject, Identity, Role};
use muster_wire::frame::{self, HEADER_BYTES, Protocol, SERVER_VERSION};
use muster_wire::rpc::ALPN_RAFT;
use openraft::EntryPayload;
use quinn::{Connection, Endpoint};
use tempfile::TempDir;
use tokio::sync::Notify;

use super::*;
use crate::data_dir::DataDir;
use crate::peers::message::StreamHeader;
use crate::raft::tests::recorded;
use crate::raft::types::EncodedCommand;
use crate::server::{Server, ServerConfig};

const RECORDED: &str = include_str!("../../../testdata/old-server.v1.txt");
/// The last entry of the recorded log.
const LAST: LogIndex = LogIndex(7);
/// The time limit for each step on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// The protocol of a later version.
const LATER: Protocol = Protocol {
    version: SERVER_VERSION + 1,
    ..frame::SERVER
};

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(STEP_TIMEOUT, work).await {
        Ok(value) => value,
        Err(error) => panic!("{what}: not within {STEP_TIMEOUT:?}: {error}"),
    }
}

fn frames(name: &str) -> Vec<Vec<u8>> {
    let all = recorded(RECORDED, name).into_iter();
    all.map(|(_, bytes)| bytes).collect()
}

/// Server 1, which sends its recorded answers.
struct OldServer {
    dir: TempDir,
    authority: Authority,
    endpoint: Endpoint,
    /// Signals that a server has asked to join.
    joining: Arc<Notify>,
    _answering: AbortOnDropHandle<()>,
}

impl OldServer {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::generate("local").unwrap();
        let identity = identity(dir.path(), &authority, "s1");
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut endpoint = endpoint::server(free, &identity, &[ALPN_RAFT]).unwrap();
        endpoint.set_default_client_config(endpoint::client_config(&identity, ALPN_RAFT).unwrap());
        let joining = Arc::new(Notify::new());
        let answering = tokio::spawn(answer_all(endpoint.clone(), Arc::clone(&joining)));
        Self {
            dir,
            authority,
            endpoint,
            joining,
            _answering: AbortOnDropHandle::new(answering),
        }
    }

    /// Starts a server of this version that asks the old server to join.
    async fn joined_by(&self, name: &str, server_id: u64) -> Server {
        identity(self.dir.path(), &self.authority, name);
        let data_dir = self.dir.path().join(name);
        drop(DataDir::open(&data_dir).unwrap());
        fs::write(data_dir.join("raft/id"), format!("{server_id}\n")).unwrap();
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = ServerConfig {
            name: name.to_owned(),
            http_addr: free,
            quic_addr: free,
            bootstrap_expect: 0,
            join: vec![self.endpoint.local_addr().unwrap().to_string()],
            tls_dir: Some(self.dir.path().join(format!("{name}-tls"))),
            ..ServerConfig::new(data_dir)
        };
        let server = Server::start(config).await.unwrap();
        soon("a server that asks to be taken in", self.joining.notified()).await;
        server
    }

    async fn connect(&self, server: &Server) -> Connection {
        let name = Role::Server.dns_name("local");
        let connecting = self.endpoint.connect(server.info().quic_addr, &name);
        soon("a connection", connecting.unwrap()).await.unwrap()
    }

    /// Sends the recorded log. Returns the stream when the server has received all of it.
    async fn send_log(&self, server: &Server) -> (FrameSender, FrameReceiver) {
        let (mut send, receive) = self.connect(server).await.open_bi().await.unwrap();
        let frames = frames("entries");
        send.write_all(&frames.concat()).await.unwrap();
        let mut receiver = FrameReceiver::speaking(frame::SERVER, receive);
        // The first frame opens the stream.
        for _ in &frames[1..] {
            let answer = receiver.recv::<StreamAppendResult<TypeConfig>>();
            let answer = soon("an answer", answer).await;
            assert!(matches!(answer, Ok(Some(Ok(_)))), "{answer:?}");
        }
        let mut applied = server.control().applied();
        let applied = applied.wait_for(|index| *index >= LAST);
        soon("the last entry", applied).await.unwrap();
        (FrameSender::speaking(frame::SERVER, send), receiver)
    }

    /// Sends a snapshot with the file `file`. Returns the server's answer.
    async fn send_snapshot(
        &self,
        server: &Server,
        file: &[u8],
    ) -> Option<SnapshotResponse<TypeConfig>> {
        let (mut send, receive) = self.connect(server).await.open_bi().await.unwrap();
        send.write_all(&frames("snapshot").concat()).await.unwrap();
        let mut receiver = FrameReceiver::speaking(frame::SERVER, receive);
        let start = soon("a start", receiver.recv::<snapshot::SnapshotStart>()).await;
        assert!(start.unwrap().is_some());
        send.write_all(file).await.unwrap();
        send.finish().unwrap();
        soon("an answer", receiver.recv()).await.unwrap()
    }
}

fn identity(dir: &Path, authority: &Authority, name: &str) -> Identity {
    let tls = dir.join(format!("{name}-tls"));
    let subject = CertificateSubject::Server { name, hosts: &[] };
    authority.issue(&tls, subject, CERTIFICATE_LIFE).unwrap();
    authority.save_certificate(&tls).unwrap();
    Identity::load(&tls, Role::Server).unwrap()
}

/// Answers all servers that connect.
async fn answer_all(endpoint: Endpoint, joining: Arc<Notify>) {
    let mut tasks = tokio::task::JoinSet::new();
    while let Some(incoming) = endpoint.accept().await {
        let joining = Arc::clone(&joining);
        tasks.spawn(async move {
            let connection = incoming.await?;
            loop {
                let (mut send, receive) = connection.accept_bi().await?;
                let mut receiver = FrameReceiver::speaking(frame::SERVER, receive);
                let Ok(Some(header)) = receiver.recv::<StreamHeader>().await else {
                    return Ok(());
                };
                let is_hello = matches!(header.request, PeerRequest::Hello(_));
                let reply = frames(if is_hello { "hello" } else { "joined" }).concat();
                // An error means that the server has gone.
                if send.write_all(&reply).await.is_ok() {
                    drop(send.finish());
                }
                if matches!(header.request, PeerRequest::Join(_)) {
                    joining.notify_one();
                }
            }
            #[expect(unreachable_code, reason = "it types the errors")]
            Ok::<(), quinn::ConnectionError>(())
        });
    }
}

/// The log and the snapshot lead to one state, which lacks nothing of the old server's state.
#[tokio::test(flavor = "multi_thread")]
async fn old_servers_log_and_snapshot_agree() {
    let old = OldServer::start();
    let by_log = old.joined_by("s2", 2).await;
    let by_snapshot = old.joined_by("s3", 3).await;

    let _stream = old.send_log(&by_log).await;
    let file = frames("file").concat();
    let installed = old.send_snapshot(&by_snapshot, &file).await;

    assert!(installed.is_some());
    let states = [&by_log, &by_snapshot].map(|server| server.control().state());
    for state in &states {
        assert_eq!((state.jobs().len(), state.one_offs().len()), (3, 1));
        let node = state.nodes().iter().next().unwrap();
        let messages: Vec<_> = node.events.iter().map(|event| &*event.message).collect();
        assert!(messages.contains(&"Registration refused"), "{messages:?}");
    }
    assert_eq!(states[0].hash().nodes, states[1].hash().nodes);
    by_log.shutdown().await;
    by_snapshot.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_entry_stops_the_server_by_name() {
    let old = OldServer::start();
    let server = old.joined_by("s2", 2).await;
    let (mut sender, _receiver) = old.send_log(&server).await;
    let last = frames("entries").pop().unwrap();
    let mut request: AppendEntriesRequest<TypeConfig> =
        codec::decode(&last[HEADER_BYTES..]).unwrap();
    let mut newer = request.entries.pop().unwrap();
    let at = |index| openraft::testing::log_id::<TypeConfig>(1, 1, index);
    newer.log_id = at(LAST.0 + 1);
    newer.payload = EntryPayload::Normal(EncodedCommand {
        format: fsm::VERSION + 1,
        body: Arc::from(&b"from the future"[..]),
    });
    request.prev_log_id = Some(at(LAST.0));
    request.leader_commit = Some(newer.log_id);
    request.entries = vec![newer];

    sender.send(&request).await.unwrap();
    let reason = soon("the end of the log", server.failed()).await;

    let expected = format!(
        "log entry 8 has command format {}; this server understands up to {}: start the newer version that wrote it",
        fsm::VERSION + 1,
        fsm::VERSION
    );
    assert!(reason.contains(&expected), "{reason}");
    assert_eq!(*server.control().applied().borrow(), LAST);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_with_a_newer_table_changes_nothing() {
    let old = OldServer::start();
    let server = old.joined_by("s3", 3).await;
    let file = frames("file").concat();
    let mut newer = file.clone();
    let name = b"allocations";
    let at = newer.windows(name.len()).position(|part| part == name);
    newer[at.unwrap() + name.len()] = 7;
    let end = newer.len() - size_of::<u32>();
    let checksum = crc32fast::hash(&newer[..end]);
    newer[end..].copy_from_slice(&checksum.to_le_bytes());

    let refused = old.send_snapshot(&server, &newer).await;
    let jobs = server.control().state().jobs().len();
    let taken = old.send_snapshot(&server, &file).await;

    assert!(refused.is_none(), "{refused:?}");
    assert_eq!(jobs, 0);
    assert!(taken.is_some());
    assert_eq!(server.control().state().jobs().len(), 3);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn later_link_is_refused_with_both_versions() {
    let old = OldServer::start();
    let server = old.joined_by("s2", 2).await;
    let connection = old.connect(&server).await;
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    let mut later = frames("entries").concat();
    later[4..HEADER_BYTES].copy_from_slice(&LATER.version.to_le_bytes());

    send.write_all(&later).await.unwrap();
    let closed = soon("the end of the connection", connection.closed()).await;

    let expected = format!(
        "got version {} of the server protocol, expected version {SERVER_VERSION}: upgrade the older one",
        LATER.version
    );
    assert!(closed.to_string().contains(&expected), "{closed}");
    // The refusal ends only that connection.
    let _stream = old.send_log(&server).await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_of_a_later_link_is_refused() {
    let old = OldServer::start();
    let server = old.joined_by("s2", 2).await;
    let identity = Identity::load(&old.dir.path().join("s1-tls"), Role::Server).unwrap();
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let endpoint = endpoint::server(free, &identity, &[ALPN_RAFT]).unwrap();
    let addr = endpoint.local_addr().unwrap().to_string();
    let later = tokio::spawn(async move {
        let connection = endpoint.accept().await.unwrap().await.unwrap();
        let (send, _receive) = connection.accept_bi().await.unwrap();
        let mut sender = FrameSender::speaking(LATER, send);
        sender.send(&PeerReply::Done).await.unwrap();
        sender.finish();
        connection.closed().await
    });

    let peers = server.control().peers();
    let answer = peers.call_address(&addr, PeerRequest::Members, STEP_TIMEOUT);
    let refused = soon("an answer", answer).await.unwrap_err().to_string();

    let expected = format!(
        "the peer speaks version {} of the server protocol, this is version {SERVER_VERSION}: upgrade the older one",
        LATER.version
    );
    assert!(refused.contains(&expected), "{refused}");
    later.abort();
    server.shutdown().await;
}
