//! Tests of certificates that are replaced while connections exist.

#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use muster_link::certificates::{Certificates, ReloadError};
use muster_link::tls::{Authority, CertificateSubject, Identity, Role, ensure_cluster};
use muster_link::{endpoint, peer};
use muster_wire::rpc::ALPN_AGENT;
use quinn::{Connection, ConnectionError, Endpoint};
use tempfile::TempDir;

const YEAR: Duration = Duration::from_hours(365 * 24);

fn cluster() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    ensure_cluster(dir.path(), "local", "s1").unwrap();
    dir
}

/// Writes a new certificate for the files of `role` in `dir`, valid for `life`.
fn issue(dir: &Path, role: Role, life: Duration) {
    let subject = match role {
        Role::Agent => CertificateSubject::Agent,
        Role::Operator => CertificateSubject::Operator,
        Role::Server => CertificateSubject::Server {
            name: "s1",
            hosts: &[],
        },
    };
    Authority::load(dir)
        .unwrap()
        .issue(dir, subject, life)
        .unwrap();
}

/// Writes a certificate that has already expired. Validity counts in whole seconds, so the function waits for the
/// next second.
fn issue_ended(dir: &Path, role: Role) {
    issue(dir, role, Duration::ZERO);
    let second = || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap().as_secs()
    };
    let issued = second();
    while second() <= issued + 1 {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn listen(certificates: &Certificates) -> (Endpoint, SocketAddr) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let endpoint = endpoint::server(any, &certificates.current(), &[ALPN_AGENT]).unwrap();
    let addr = endpoint.local_addr().unwrap();
    (endpoint, addr)
}

/// Returns both ends of a connection, or the error of each.
async fn connect(
    server: &Endpoint,
    addr: SocketAddr,
    agent: &Certificates,
) -> (
    Result<Connection, ConnectionError>,
    Result<Connection, ConnectionError>,
) {
    let identity = agent.current();
    let client = endpoint::client(&identity, ALPN_AGENT).unwrap();
    let connecting = client
        .connect(addr, &Role::Server.dns_name("local"))
        .unwrap();
    let dialled = async {
        let connection = connecting.await?;
        // TLS reports a rejected client certificate only after the client's handshake has ended.
        match connection.accept_uni().await {
            Ok(_) => Ok(connection),
            Err(error) => Err(error),
        }
    };
    let accepted = async {
        let connection = server.accept().await.unwrap().await?;
        connection.open_uni().await?.write_all(b"x").await.unwrap();
        Ok(connection)
    };
    tokio::join!(dialled, accepted)
}

fn leaf(connection: &Connection) -> Vec<u8> {
    let chain = connection.peer_identity().unwrap();
    let chain = chain
        .downcast::<Vec<rustls_pki_types::CertificateDer<'static>>>()
        .unwrap();
    chain[0].to_vec()
}

#[tokio::test]
async fn a_new_certificate_is_shown_to_new_connections() {
    let dir = cluster();
    let server = Certificates::load(dir.path(), Role::Server).unwrap();
    let agent = Certificates::load(dir.path(), Role::Agent).unwrap();
    let (endpoint, addr) = listen(&server);
    let (dialled, accepted) = connect(&endpoint, addr, &agent).await;
    let (old, old_accepted) = (dialled.unwrap(), accepted.unwrap());

    issue(dir.path(), Role::Server, YEAR);
    assert!(server.refresh().unwrap());
    let config = endpoint::server_config(&server.current(), &[ALPN_AGENT]).unwrap();
    endpoint.set_server_config(Some(config));

    let (dialled, accepted) = connect(&endpoint, addr, &agent).await;
    let new = dialled.unwrap();
    assert_ne!(leaf(&old), leaf(&new));
    assert!(old.close_reason().is_none());
    assert!(old_accepted.close_reason().is_none());
    drop(accepted);
}

#[test]
fn unchanged_files_are_not_read_again() {
    let dir = cluster();
    let server = Certificates::load(dir.path(), Role::Server).unwrap();

    assert!(!server.refresh().unwrap());
    server.ask();
    assert!(!server.refresh().unwrap());
}

#[test]
fn invalid_certificate_file_keeps_current_and_reports_once() {
    let dir = cluster();
    let server = Certificates::load(dir.path(), Role::Server).unwrap();
    let before = server.current().chain.clone();

    std::fs::write(dir.path().join("server.pem"), "nonsense").unwrap();

    let error = server.refresh().unwrap_err();
    assert!(error.to_string().contains("server.pem"), "{error}");
    assert_eq!(server.current().chain, before);
    assert!(!server.refresh().unwrap());
    issue(dir.path(), Role::Server, YEAR);
    assert!(server.refresh().unwrap());
    assert_ne!(server.current().chain, before);
}

#[test]
fn a_key_that_does_not_fit_is_refused() {
    let dir = cluster();
    let server = Certificates::load(dir.path(), Role::Server).unwrap();

    std::fs::copy(dir.path().join("agent.key"), dir.path().join("server.key")).unwrap();

    let error = server.refresh().unwrap_err();
    assert!(matches!(error, ReloadError::Unfit { .. }), "{error}");
}

#[test]
fn a_certificate_of_another_authority_is_refused() {
    let (ours, theirs) = (cluster(), cluster());
    let server = Certificates::load(ours.path(), Role::Server).unwrap();

    for name in ["server.pem", "server.key"] {
        std::fs::copy(theirs.path().join(name), ours.path().join(name)).unwrap();
    }

    let error = server.refresh().unwrap_err();
    assert!(matches!(error, ReloadError::Unfit { .. }), "{error}");
}

#[test]
fn a_certificate_that_has_ended_is_refused() {
    let dir = cluster();
    let server = Certificates::load(dir.path(), Role::Server).unwrap();

    issue_ended(dir.path(), Role::Server);

    let error = server.refresh().unwrap_err();
    assert!(error.to_string().contains("expired"), "{error}");
}

#[tokio::test]
async fn expired_peer_certificate_error_suggests_fix() {
    let dir = cluster();
    let server = Certificates::load(dir.path(), Role::Server).unwrap();
    issue_ended(dir.path(), Role::Agent);
    let agent = Certificates::from(Identity::load(dir.path(), Role::Agent).unwrap());
    let (endpoint, addr) = listen(&server);

    let (dialled, accepted) = connect(&endpoint, addr, &agent).await;

    let message = peer::explain(&dialled.unwrap_err()).unwrap();
    assert!(message.contains("muster operator tls cert"), "{message}");
    let logged = peer::explain(&accepted.unwrap_err()).unwrap();
    assert!(logged.contains("expired"), "{logged}");
}

#[test]
fn a_certificate_of_another_server_is_refused() {
    let dir = cluster();
    let server = Certificates::load(dir.path(), Role::Server).unwrap();
    let other = CertificateSubject::Server {
        name: "s2",
        hosts: &[],
    };

    Authority::load(dir.path())
        .unwrap()
        .issue(dir.path(), other, YEAR)
        .unwrap();

    let error = server.refresh().unwrap_err();
    assert!(error.to_string().contains("s2"), "{error}");
}
