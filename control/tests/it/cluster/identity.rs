//! The identities that may speak Raft, and those that may not.

use muster_control::server::{Server, StartServerError};
use muster_link::endpoint;
use muster_link::frames::FrameReceiver;
use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject, Identity, Role};
use muster_wire::frame;
use muster_wire::rpc::{ALPN_AGENT, ALPN_RAFT};
use quinn::ConnectionError;

use super::{Cluster, Member};
use crate::fixture::{self, soon};

/// Connects as `identity` says, sends bytes at once, and hears why the connection was closed.
async fn refusal(member: &Member, identity: &Identity, protocol: &[u8]) -> String {
    let endpoint = endpoint::client(identity, protocol).unwrap();
    let name = Role::Server.dns_name("local");
    let addr = member.server.info().quic_addr;
    let connection = match endpoint.connect(addr, &name).unwrap().await {
        Ok(connection) => connection,
        Err(error) => return error.to_string(),
    };
    if let Ok((mut send, receive)) = connection.open_bi().await {
        // A malformed `Opening` of version 1: a server that reads it says so.
        drop(send.write_all(&[1, 0, 0, 0, 1, 0, 0]).await);
        let mut receiver = FrameReceiver::speaking(frame::SERVER, receive);
        let answer = soon("an end", receiver.recv::<Vec<u8>>()).await;
        assert!(!matches!(answer, Ok(Some(_))), "it was answered");
    }
    match soon("the connection is closed", connection.closed()).await {
        ConnectionError::ApplicationClosed(close) => {
            String::from_utf8_lossy(&close.reason).into_owned()
        }
        other => other.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_cluster_server_certificates_may_use_raft() {
    let cluster = Cluster::new();
    let one = Member::start(cluster.config("s1", 1, &[])).await;
    let dir = cluster.dir.path().join("others");
    cluster.authority.save_certificate(&dir).unwrap();
    for subject in [CertificateSubject::Agent, CertificateSubject::Operator] {
        cluster
            .authority
            .issue(&dir, subject, CERTIFICATE_LIFE)
            .unwrap();
        let identity = Identity::load(&dir, subject.role()).unwrap();

        let reason = refusal(&one, &identity, ALPN_RAFT).await;

        assert!(
            reason.contains("only a server's certificate"),
            "{subject:?}: {reason}"
        );
    }
    // A server of another cluster under the same authority's key is as good as none, and so is a stranger.
    let stranger = cluster.dir.path().join("stranger");
    let other = Authority::generate("local").unwrap();
    let subject = CertificateSubject::Server {
        name: "s1",
        hosts: &[],
    };
    other.issue(&stranger, subject, CERTIFICATE_LIFE).unwrap();
    cluster.authority.save_certificate(&stranger).unwrap();
    let identity = Identity::load(&stranger, Role::Server).unwrap();
    let reason = refusal(&one, &identity, ALPN_RAFT).await;
    assert!(!reason.contains("the session is over"), "{reason}");
    one.register("still-alive").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_certificate_is_rejected_for_agent_role() {
    let cluster = Cluster::new();
    let one = Member::start(cluster.config("s1", 1, &[])).await;
    let identity = Identity::load(one.config.tls_dir.as_deref().unwrap(), Role::Server).unwrap();

    let reason = refusal(&one, &identity, ALPN_AGENT).await;

    assert!(reason.contains("agent"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_anothers_certificate_does_not_start() {
    let cluster = Cluster::new();
    let mut config = cluster.config("s1", 1, &[]);
    config.name = "s2".to_owned();

    let error = Server::start(config).await.unwrap_err();

    assert!(
        matches!(error, StartServerError::CertificateName { .. }),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_need_certificates_of_one_authority() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = fixture::config(dir.path());
    config.join = vec!["127.0.0.1:1".to_owned()];

    let error = Server::start(config).await.unwrap_err();

    assert!(matches!(error, StartServerError::NeedsTls), "{error}");
    assert!(error.to_string().contains("muster operator tls"), "{error}");
}

/// It has a state of its own, which the cluster's would replace.
#[tokio::test(flavor = "multi_thread")]
async fn server_with_existing_cluster_cannot_join() {
    let cluster = Cluster::new();
    let one = Member::start(cluster.config("s1", 1, &[])).await;
    let other = Member::start(cluster.config("s2", 1, &[])).await;
    other.register("mine").await;

    let refused = one
        .control()
        .add_peer(&other.quic_addr())
        .await
        .unwrap_err();

    assert!(refused.to_string().contains("another cluster"), "{refused}");
}
