//! Certificates for Diego's clients: the server's own, and the authority that signs the clients' certificates.
//!
//! They may differ from the cluster's certificates and carry no names of Muster: every client of the authority is
//! accepted. They are read again when their files change. Clients with TLS 1.2 in Diego's configuration need an
//! RSA key (`muster operator tls cert --key`). With TLS 1.3 any key is possible.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_link::certificates::{FileStamp, LOOK_INTERVAL, stamp};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;

/// The authorities of clients' certificates; the file may hold several.
const AUTHORITY: &str = "ca.pem";
/// The server's certificate and its intermediate certificates, leaf first.
const CHAIN: &str = "server.pem";
/// The server's private key.
const KEY: &str = "server.key";

/// The reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BbsTlsError {
    /// A file has no usable content.
    #[error(
        "{} holds no usable {what}: {reason}; give --bbs-tls-dir the directory with {AUTHORITY}, {CHAIN} and {KEY}",
        path.display()
    )]
    File {
        path: PathBuf,
        /// The content that the file should have.
        what: &'static str,
        reason: String,
    },
    /// The files do not match each other.
    #[error("the certificates in {} do not fit together", dir.display())]
    Unfit {
        dir: PathBuf,
        #[source]
        source: rustls::Error,
    },
}

/// The files in a directory and their state at the last check.
#[derive(Debug)]
pub(super) struct WatchedFiles {
    dir: PathBuf,
    seen: [FileStamp; 3],
}

impl WatchedFiles {
    /// Opens the files in `dir`, and reads the TLS settings for handshakes from them.
    pub(super) fn open(dir: PathBuf) -> Result<(Self, Arc<ServerConfig>), BbsTlsError> {
        // The stamps are taken before the files are read, so that a change in between is noticed.
        let seen = stamps(&dir);
        let config = load(&dir)?;
        Ok((Self { dir, seen }, config))
    }

    /// Checks the files for ever and publishes new settings. Unusable files change nothing.
    pub(super) async fn follow(mut self, shown: &watch::Sender<Arc<ServerConfig>>) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let found = stamps(&self.dir);
            if found == self.seen {
                continue;
            }
            self.seen = found;
            match load(&self.dir) {
                Ok(config) => {
                    shown.send_replace(config);
                    tracing::info!("certificates for diego's clients were replaced");
                }
                Err(error) => tracing::error!(
                    error = crate::chain(&error),
                    "certificates for diego's clients were replaced by what cannot be used; the earlier ones stay in use"
                ),
            }
        }
    }
}

/// The TLS settings for handshakes, from the files in `dir`.
fn load(dir: &Path) -> Result<Arc<ServerConfig>, BbsTlsError> {
    let unfit = |source| BbsTlsError::Unfit {
        dir: dir.to_owned(),
        source,
    };
    let file = |name: &str, what, reason: String| BbsTlsError::File {
        path: dir.join(name),
        what,
        reason,
    };
    let mut roots = RootCertStore::empty();
    for authority in certificates(dir, AUTHORITY)? {
        roots.add(authority).map_err(unfit)?;
    }
    let key = PrivateKeyDer::from_pem_file(dir.join(KEY))
        .map_err(|error| file(KEY, "private key", error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| file(AUTHORITY, "authority", error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(unfit)?
        .with_client_cert_verifier(clients)
        .with_single_cert(certificates(dir, CHAIN)?, key)
        .map_err(unfit)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(dir: &Path, name: &str) -> Result<Vec<CertificateDer<'static>>, BbsTlsError> {
    let path = dir.join(name);
    let failed = |reason: String| BbsTlsError::File {
        path: path.clone(),
        what: "certificate",
        reason,
    };
    let read = CertificateDer::pem_file_iter(&path).map_err(|error| failed(error.to_string()))?;
    let all: Result<Vec<_>, _> = read.collect();
    match all {
        Ok(all) if all.is_empty() => Err(failed("there is none in it".to_owned())),
        Ok(all) => Ok(all),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Stamps of the files; they change when a file does.
fn stamps(dir: &Path) -> [FileStamp; 3] {
    [AUTHORITY, CHAIN, KEY].map(|name| stamp(&dir.join(name)))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject};
    use tempfile::TempDir;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::http::connections::ConnectionLimits;
    use crate::http::cross_site::SitePolicy;
    use crate::http::listen::{self, ListenOptions};

    fn certificates() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::generate("diego").unwrap();
        authority.save(dir.path()).unwrap();
        let server = CertificateSubject::Server {
            name: "bbs",
            hosts: &[],
        };
        authority
            .issue(dir.path(), server, CERTIFICATE_LIFE)
            .unwrap();
        dir
    }

    /// A listener that admits one connection at a time. Returns its address and the way to stop it.
    async fn single_connection_listener() -> (std::net::SocketAddr, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = load(certificates().path()).unwrap();
        let options = ListenOptions {
            connections: ConnectionLimits {
                total: 1,
                per_address: 1,
            },
            answer_bytes_max: 1 << 20,
            tls: Some(watch::Sender::new(config).subscribe()),
            sites: SitePolicy::bbs(),
        };
        let shutdown = CancellationToken::new();
        tokio::spawn(listen::accept(
            listener,
            options,
            Router::new(),
            shutdown.clone(),
        ));
        (address, shutdown)
    }

    async fn read_to_end(mut stream: TcpStream) -> Vec<u8> {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        all
    }

    #[test]
    fn missing_or_invalid_tls_file_is_named() {
        for name in [AUTHORITY, CHAIN, KEY] {
            let dir = certificates();
            std::fs::write(dir.path().join(name), "nothing").unwrap();
            let empty = load(dir.path()).unwrap_err().to_string();
            std::fs::remove_file(dir.path().join(name)).unwrap();
            let missing = load(dir.path()).unwrap_err().to_string();

            for error in [empty, missing] {
                assert!(error.contains(name), "{error}");
            }
        }
    }

    #[test]
    fn mismatched_key_is_refused() {
        let (dir, other) = (certificates(), certificates());
        std::fs::copy(other.path().join(KEY), dir.path().join(KEY)).unwrap();

        let error = load(dir.path()).unwrap_err();

        assert!(matches!(error, BbsTlsError::Unfit { .. }), "{error:?}");
    }

    /// An RSA key of 2048 bits, only for tests.
    const RSA_KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/rsa.key");

    /// Makes a handshake with the suites that Diego's clients offer with TLS 1.2, against the server's key.
    fn agree(dir: &Path) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        for authority in super::certificates(dir, AUTHORITY).unwrap() {
            roots.add(authority).unwrap();
        }
        let mut provider = rustls::crypto::ring::default_provider();
        provider.cipher_suites.retain(|suite| {
            let name = format!("{:?}", suite.suite());
            name.starts_with("TLS_ECDHE_RSA_WITH_AES")
        });
        let key = PrivateKeyDer::from_pem_file(dir.join(KEY)).unwrap();
        let client = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(super::certificates(dir, CHAIN).unwrap(), key)
            .unwrap();
        let name = "localhost".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = rustls::ServerConnection::new(load(dir).unwrap()).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets()?;
            wire.clear();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn rsa_key_serves_tls12_clients() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::generate("diego").unwrap();
        authority.save(dir.path()).unwrap();
        let server = CertificateSubject::Server {
            name: "bbs",
            hosts: &[],
        };
        let key = Path::new(RSA_KEY);
        authority
            .issue_for_key(dir.path(), server, CERTIFICATE_LIFE, key)
            .unwrap();

        agree(dir.path()).unwrap();
        agree(certificates().path()).unwrap_err();
    }

    /// Files that change before `follow` runs are published as well.
    #[tokio::test(start_paused = true)]
    async fn tls_files_replaced_before_follow_are_noticed() {
        let (dir, other) = (certificates(), certificates());
        let (files, first) = WatchedFiles::open(dir.path().to_owned()).unwrap();
        let shown = watch::Sender::new(Arc::clone(&first));
        let mut seen = shown.subscribe();
        for name in [AUTHORITY, CHAIN, KEY] {
            std::fs::rename(other.path().join(name), dir.path().join(name)).unwrap();
        }

        tokio::select! {
            () = files.follow(&shown) => {}
            changed = tokio::time::timeout(LOOK_INTERVAL * 2, seen.changed()) => changed.unwrap().unwrap(),
        }

        assert!(!Arc::ptr_eq(&first, &seen.borrow()));
    }

    /// Time is paused: the ten seconds pass as soon as all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn stalled_tls_handshake_closes_connection() {
        let (address, _shutdown) = single_connection_listener().await;

        let silent = TcpStream::connect(address).await.unwrap();

        assert!(read_to_end(silent).await.is_empty());
    }

    #[tokio::test]
    async fn excess_connections_are_cut_and_shutdown_interrupts_handshakes() {
        let (address, shutdown) = single_connection_listener().await;
        let first = TcpStream::connect(address).await.unwrap();

        let second = TcpStream::connect(address).await.unwrap();
        assert!(read_to_end(second).await.is_empty());

        shutdown.cancel();
        assert!(read_to_end(first).await.is_empty());
    }
}
