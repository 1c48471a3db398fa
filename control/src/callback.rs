//! Completion callbacks: one `POST` to wherever a client of one-off tasks wants to hear of the end.
//!
//! What came of it is all this module says; when to try, and again, is the leader's duty
//! (`leader/one_offs.rs`), and that it was tried is in the replicated state. An endpoint is a stranger: it may hang,
//! drip, send without end, or lead somewhere else. So every call has one deadline for all of it, its answer's body is
//! never read, and no redirect is followed.

mod resolve;
mod sign;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_domain::one_off::OneOff;
use muster_wire::api::task::CallbackBody;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;

use crate::limits;
use resolve::Guarded;

/// How completed one-off tasks are kept, claimed and told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TasksConfig {
    /// In which a task must start that names no time of its own. Diego's 30 minutes.
    pub start_timeout: Duration,
    /// For which a completed task is kept that names no time of its own. Diego's 2 minutes.
    pub retention: Duration,
    /// For which a claim on a completed task holds. Diego's 30 s.
    pub claim: Duration,
    /// From a task's completion, after which a callback that was never taken is given up.
    pub callback_deadline: Duration,
    /// Whether callbacks may go to loopback, private and link-local addresses.
    pub callback_private: bool,
    /// Certificates that callbacks by HTTPS are checked with, in PEM. `None`: [`CA_FILE`], if it is there.
    pub callback_ca: Option<PathBuf>,
    /// A file with the key that callbacks are signed with. `None`: they are not.
    pub callback_key: Option<PathBuf>,
}

impl Default for TasksConfig {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_mins(30),
            retention: Duration::from_mins(2),
            claim: Duration::from_secs(30),
            callback_deadline: Duration::from_hours(1),
            callback_private: true,
            callback_ca: None,
            callback_key: None,
        }
    }
}

/// Where Debian keeps the certificates that a machine trusts.
pub(crate) const CA_FILE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Why callbacks cannot be made as configured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenCallbacksError {
    /// A file cannot be read.
    #[error("read {} for callbacks of one-off tasks", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not what it should be.
    #[error("{} for callbacks of one-off tasks: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it is.
        reason: String,
    },
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The endpoint took it, or refuses it for good.
    Taken {
        /// The status.
        status: u16,
    },
    /// It may take it another time.
    Failed {
        /// Why not.
        reason: String,
    },
}

/// Makes calls.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    http: ureq::Agent,
    key: Option<Arc<[u8]>>,
}

impl Caller {
    /// One that calls as configured. Reads files.
    pub(crate) fn open(config: &TasksConfig) -> Result<Self, OpenCallbacksError> {
        Self::open_within(config, limits::CALLBACK_WAIT)
    }

    /// One whose calls take at most `wait`.
    fn open_within(config: &TasksConfig, wait: Duration) -> Result<Self, OpenCallbacksError> {
        let key = match &config.callback_key {
            Some(path) => Some(key(path)?),
            None => None,
        };
        let provider = rustls::crypto::ring::default_provider();
        let tls = TlsConfig::builder()
            .root_certs(roots(config.callback_ca.as_deref())?)
            .unversioned_rustls_crypto_provider(Arc::new(provider))
            .build();
        let http = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Nothing of the server's own environment decides where a task's result goes.
            .proxy(None)
            .timeout_global(Some(wait))
            // An endpoint keeps a connection of ours for one call.
            .max_idle_connections(0)
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        let guarded = Guarded {
            private: config.callback_private,
        };
        Ok(Self {
            http: ureq::Agent::with_parts(http, DefaultConnector::default(), guarded),
            key,
        })
    }

    /// Tells the client of `row` that it is completed. Blocks, for at most [`limits::CALLBACK_WAIT`].
    pub(crate) fn call(&self, row: &OneOff) -> Delivery {
        let body = match serde_json::to_vec(&CallbackBody::from(row)) {
            Ok(body) => body,
            Err(error) => {
                return Delivery::Failed {
                    reason: error.to_string(),
                };
            }
        };
        let mut request = self
            .http
            .post(&row.definition.completion_callback_url)
            .header("content-type", "application/json")
            .header(
                "idempotency-key",
                format!("{}-{}", row.guid, row.create_index.0),
            );
        if let Some(key) = &self.key {
            request = request.header("x-muster-signature", sign::signature(key, &body));
        }
        match request.send(&body) {
            Ok(response) => judge(response.status().as_u16()),
            Err(error) => Delivery::Failed {
                reason: error.to_string(),
            },
        }
    }
}

/// What a status says of a callback. A redirect is not followed, so nobody took it.
fn judge(status: u16) -> Delivery {
    match status {
        300..400 | 408 | 429 | 500.. => Delivery::Failed {
            reason: format!("it answered {status}"),
        },
        status => Delivery::Taken { status },
    }
}

fn roots(path: Option<&Path>) -> Result<RootCerts, OpenCallbacksError> {
    let from = path.unwrap_or(Path::new(CA_FILE));
    let pem = match std::fs::read(from) {
        Ok(pem) => pem,
        // A machine without certificates calls by HTTP alone.
        Err(error) if path.is_none() && error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(source) => {
            return Err(OpenCallbacksError::Read {
                path: from.to_owned(),
                source,
            });
        }
    };
    let mut all = Vec::new();
    for found in CertificateDer::pem_slice_iter(&pem) {
        let found = found.map_err(|error| OpenCallbacksError::Content {
            path: from.to_owned(),
            reason: format!("it holds no certificates in PEM: {error}"),
        })?;
        all.push(Certificate::from_der(&found).to_owned());
    }
    Ok(RootCerts::Specific(Arc::new(all)))
}

fn key(path: &Path) -> Result<Arc<[u8]>, OpenCallbacksError> {
    let read = std::fs::read(path).map_err(|source| OpenCallbacksError::Read {
        path: path.to_owned(),
        source,
    })?;
    let key = read.trim_ascii();
    if key.len() < limits::CALLBACK_KEY_BYTES_MIN {
        return Err(OpenCallbacksError::Content {
            path: path.to_owned(),
            reason: format!(
                "a key has at least {} bytes, this one {}: make one with `openssl rand -hex 32`",
                limits::CALLBACK_KEY_BYTES_MIN,
                key.len()
            ),
        });
    }
    Ok(key.into())
}

#[cfg(test)]
mod tests;
