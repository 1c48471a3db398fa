//! Certificates for Diego's clients: the server's own, and the authority that theirs come from.
//!
//! They need not be those of the cluster and carry no names of ours: every client of the authority is let in. They
//! are read again when their files change. Clients that speak TLS 1.2 as Diego configures it want a key of RSA; with
//! TLS 1.3 any key will do.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_link::certificates::LOOK_INTERVAL;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;

/// What clients' certificates come from; several may stand in it.
const AUTHORITY: &str = "ca.pem";
/// The server's certificate and what lies between it and its authority, leaf first.
const CHAIN: &str = "server.pem";
/// Its key.
const KEY: &str = "server.key";

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BbsTlsError {
    /// A file holds nothing that can be used.
    #[error(
        "{} holds no usable {what}: {reason}; give --bbs-tls-dir the directory with {AUTHORITY}, {CHAIN} and {KEY}",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// Why it does not.
        reason: String,
    },
    /// They do not fit together.
    #[error("the certificates in {} do not fit together", dir.display())]
    Unfit {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
}

/// What handshakes are made with, from the files in `dir`.
pub(super) fn load(dir: &Path) -> Result<Arc<ServerConfig>, BbsTlsError> {
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

/// Looks at the files in `dir` for ever and shows what is new there. What cannot be used changes nothing.
pub(super) async fn follow(dir: &Path, shown: &watch::Sender<Arc<ServerConfig>>) {
    let mut seen = stamps(dir);
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let found = stamps(dir);
        if found == seen {
            continue;
        }
        seen = found;
        match load(dir) {
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

/// What tells one state of the files from another: time, size, number of each.
fn stamps(dir: &Path) -> [Option<(i64, i64, u64, u64)>; 3] {
    [AUTHORITY, CHAIN, KEY].map(|name| {
        let found = std::fs::metadata(dir.join(name)).ok()?;
        Some((found.mtime(), found.mtime_nsec(), found.size(), found.ino()))
    })
}
