//! Tests of two endpoints on the loopback interface.

use std::net::SocketAddr;
use std::time::Duration;

use muster_link::frames::{FrameReceiver, FrameSender};
use muster_link::tls::{Identity, Role, ensure_cluster};
use muster_link::{endpoint, peer};
use muster_wire::rpc::{ALPN_AGENT, ALPN_RAFT, FromAgent};

fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

#[tokio::test]
async fn a_message_crosses_and_the_role_is_known() {
    let dir = tempfile::tempdir().unwrap();
    ensure_cluster(dir.path(), "local", "server").unwrap();
    let server_identity = Identity::load(dir.path(), Role::Server).unwrap();
    let server = endpoint::server(loopback(), &server_identity, &[ALPN_AGENT]).unwrap();
    let addr = server.local_addr().unwrap();
    let accepted = tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let role = peer::role(&connection, "local").unwrap();
        let (_send, receive) = connection.accept_bi().await.unwrap();
        let message = FrameReceiver::new(receive)
            .recv::<FromAgent>()
            .await
            .unwrap();
        (role, message)
    });

    let agent_identity = Identity::load(dir.path(), Role::Agent).unwrap();
    let client = endpoint::client(&agent_identity, ALPN_AGENT).unwrap();
    let connection = client
        .connect(addr, &Role::Server.dns_name("local"))
        .unwrap()
        .await
        .unwrap();
    let (send, _receive) = connection.open_bi().await.unwrap();
    let report = FromAgent::Report {
        sequence: 1,
        reports: Vec::new(),
    };
    FrameSender::new(send).send(&report).await.unwrap();

    let (role, message) = accepted.await.unwrap();
    assert_eq!(role, Role::Agent);
    assert_eq!(message, Some(report));
}

/// Another authority signed the client's certificate. TLS reports this after the client's handshake has ended, so the
/// first stream fails.
#[tokio::test]
async fn a_stranger_is_refused() {
    let ours = tempfile::tempdir().unwrap();
    let theirs = tempfile::tempdir().unwrap();
    ensure_cluster(ours.path(), "local", "server").unwrap();
    ensure_cluster(theirs.path(), "local", "server").unwrap();
    let identity = Identity::load(ours.path(), Role::Server).unwrap();
    let server = endpoint::server(loopback(), &identity, &[ALPN_AGENT]).unwrap();
    let addr = server.local_addr().unwrap();
    let accepted = tokio::spawn(async move { server.accept().await.unwrap().await.is_ok() });

    let mut stranger = Identity::load(theirs.path(), Role::Agent).unwrap();
    stranger.authority = identity.authority.clone();
    let client = endpoint::client(&stranger, ALPN_AGENT).unwrap();
    let connecting = client
        .connect(addr, &Role::Server.dns_name("local"))
        .unwrap();
    let connecting = async {
        let connection = connecting.await.ok()?;
        let (_send, receive) = connection.open_bi().await.ok()?;
        FrameReceiver::new(receive).recv::<FromAgent>().await.ok()
    };

    let answer = tokio::time::timeout(Duration::from_secs(10), connecting)
        .await
        .unwrap();
    assert!(answer.is_none());
    assert!(!accepted.await.unwrap());
}

#[tokio::test]
async fn an_agent_cannot_speak_another_protocol() {
    let dir = tempfile::tempdir().unwrap();
    ensure_cluster(dir.path(), "local", "server").unwrap();
    let identity = Identity::load(dir.path(), Role::Server).unwrap();
    let server = endpoint::server(loopback(), &identity, &[ALPN_AGENT]).unwrap();
    let addr = server.local_addr().unwrap();
    let accepting = tokio::spawn(async move { server.accept().await.unwrap().await.is_ok() });

    let agent = Identity::load(dir.path(), Role::Agent).unwrap();
    let client = endpoint::client(&agent, ALPN_RAFT).unwrap();
    let connected = client
        .connect(addr, &Role::Server.dns_name("local"))
        .unwrap()
        .await;

    assert!(connected.is_err());
    assert!(!accepting.await.unwrap());
}

#[test]
fn invalid_cluster_name_label_is_rejected() {
    let dir = tempfile::tempdir().unwrap();

    assert!(ensure_cluster(dir.path(), "a.b", "server").is_err());
}

#[test]
fn a_missing_certificate_is_named() {
    let dir = tempfile::tempdir().unwrap();

    let error = Identity::load(dir.path(), Role::Agent).unwrap_err();

    assert!(error.to_string().contains("ca.pem"), "{error}");
}
