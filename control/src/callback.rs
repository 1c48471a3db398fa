//! Completion callbacks: one `POST` to the address that a client of one-off tasks has named for the task's end.
//!
//! This module makes one call and reports its outcome. The leader's duty (`leader/one_offs.rs`) decides the times
//! of calls and repetitions. The replicated state records that a call was made.
//!
//! An endpoint is not trusted: it may hang, send slowly or without end, or redirect elsewhere, such as to a server
//! of the cluster. So one deadline covers the whole call, and the body of the answer is never read. A redirect is
//! followed only if the server's configuration allows it, and only to checked addresses.

mod config;
mod hop;
mod resolve;
mod sign;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_domain::one_off::OneOff;
use muster_wire::api::task::CallbackBody;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;

use crate::limits;
pub use config::{TasksConfig, TasksConfigError};
use resolve::FilteredResolver;
pub(crate) use resolve::ServerAddresses;

/// The file in which Debian has the certificates that a machine trusts.
pub(crate) const CA_FILE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The reason why callbacks cannot be made as configured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenCallbacksError {
    /// A file cannot be read.
    #[error("read {} for callbacks of one-off tasks", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The content of a file is invalid.
    #[error("{} for callbacks of one-off tasks: {reason}", path.display())]
    Content { path: PathBuf, reason: String },
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The endpoint accepted the callback, or refused it permanently.
    Taken { status: u16 },
    /// The call failed, and a later call may succeed.
    Failed { reason: String },
}

/// Outcomes that metrics count separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The endpoint accepted the callback or refused it permanently.
    Taken,
    Failed,
    /// The callback failed too often.
    GivenUp,
}

muster_domain::text_enum!(pub(crate) Outcome {
    Taken => "taken",
    Failed => "failed",
    GivenUp => "given_up",
});

/// Counts of callbacks by outcome since this server started. On a server that does not lead they do not change.
#[derive(Debug, Default)]
pub(crate) struct Totals([AtomicU64; Outcome::ALL.len()]);

impl Totals {
    pub(crate) fn note(&self, outcome: Outcome) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize].load(Ordering::Relaxed)
    }
}

/// The client that makes the calls.
#[derive(Clone, Debug)]
pub(crate) struct CallbackClient {
    http: ureq::Agent,
    key: Option<Arc<[u8]>>,
    /// The longest time for a whole call.
    wait: Duration,
    redirects: u32,
}

impl CallbackClient {
    /// Creates the client from the configuration. Reads files.
    pub(crate) fn open(
        config: &TasksConfig,
        servers: ServerAddresses,
    ) -> Result<Self, OpenCallbacksError> {
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
            // The server's environment must not choose the destination of a task's result.
            .proxy(None)
            // Each call uses a connection of its own.
            .max_idle_connections(0)
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        let guarded = FilteredResolver::new(config, servers);
        Ok(Self {
            http: ureq::Agent::with_parts(http, DefaultConnector::default(), guarded),
            key,
            wait: config.callback_wait,
            redirects: config.callback_redirects,
        })
    }

    /// Reports the completion to the client of `row`. Blocks at most for the configured time.
    pub(crate) fn call(&self, row: &OneOff) -> Delivery {
        let body = match serde_json::to_vec(&CallbackBody::from(row)) {
            Ok(body) => body,
            Err(error) => {
                return Delivery::Failed {
                    reason: error.to_string(),
                };
            }
        };
        let begun = Instant::now();
        let mut url = row.definition.completion_callback_url.clone();
        let mut redirects = self.redirects;
        loop {
            let left = self.wait.saturating_sub(begun.elapsed());
            let (status, location) = match self.post(&url, row, &body, left) {
                Ok(answer) => answer,
                Err(reason) => return Delivery::Failed { reason },
            };
            if !REPEATED.contains(&status) || redirects == 0 {
                return judge(status);
            }
            redirects -= 1;
            let Some(next) = location.and_then(|location| hop::target(&url, &location)) else {
                return Delivery::Failed {
                    reason: format!("it answered {status} and led nowhere that a callback goes to"),
                };
            };
            url = next;
        }
    }

    /// Makes one request. Returns the status and the target of a redirect.
    fn post(
        &self,
        url: &str,
        row: &OneOff,
        body: &[u8],
        wait: Duration,
    ) -> Result<(u16, Option<String>), String> {
        let mut request = self
            .http
            .post(url)
            .config()
            .timeout_global(Some(wait))
            .build()
            .header("content-type", "application/json")
            .header(
                "idempotency-key",
                format!("{}-{}", row.guid, row.create_index.0),
            );
        if let Some(key) = &self.key {
            request = request.header("x-muster-signature", sign::signature(key, body));
        }
        let response = request.send(body).map_err(|error| error.to_string())?;
        let location = response.headers().get("location");
        let location = location.and_then(|value| value.to_str().ok());
        Ok((response.status().as_u16(), location.map(ToOwned::to_owned)))
    }
}

/// Statuses of redirects that are followed with the same body. 303 asks for a request without the body, which
/// would report nothing. For the first two, clients differ.
const REPEATED: [u16; 4] = [301, 302, 307, 308];

/// Converts a status into the outcome of a callback. A redirect that is not followed counts as a failure.
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
        // A machine without certificates calls only HTTP endpoints.
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
