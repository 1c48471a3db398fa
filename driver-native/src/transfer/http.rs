//! An HTTP client for untrusted servers. It makes one request for each connection, bounds every wait, checks every
//! address, and holds no more than a chunk in memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::TryStreamExt;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::http::uri::{PathAndQuery, Scheme};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_util::io::ReaderStream;
use tokio_util::task::AbortOnDropHandle;

use super::address::{self, ConnectError};
use super::{Sink, SinkError, UploadFile};
use crate::limits;

/// The file in which Debian keeps a machine's trusted certificates.
const CA_FILE: &str = "/etc/ssl/certs/ca-certificates.crt";
const AGENT: &str = concat!("muster/", env!("CARGO_PKG_VERSION"));

/// The reason why a transfer failed.
#[derive(Debug, Error)]
pub(crate) enum HttpError {
    #[error("its URL cannot be used: {0}")]
    Url(&'static str),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("read certificates of authorities from {}", path.display())]
    Authorities {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("agree with {host} upon TLS")]
    Tls {
        host: String,
        #[source]
        source: io::Error,
    },
    #[error("speak HTTP with {host}")]
    Http {
        host: String,
        #[source]
        source: hyper::Error,
    },
    #[error("{host} said nothing for {}", muster_domain::one_off::go_duration(*after))]
    Silent { host: String, after: Duration },
    #[error("{host} answered {status}")]
    Status { host: String, status: StatusCode },
    #[error("it leads on more than {} times", limits::REDIRECTS_MAX)]
    Redirects,
    #[error(transparent)]
    Sink(#[from] SinkError),
}

impl HttpError {
    /// Returns whether another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connect(error) => matches!(
                error,
                ConnectError::Lookup { .. } | ConnectError::Connect { .. }
            ),
            // A faulty certificate stays faulty in the next attempt.
            Self::Tls { source, .. } => source.kind() != io::ErrorKind::InvalidData,
            Self::Http { .. } | Self::Silent { .. } => true,
            Self::Status { status, .. } => {
                status.is_server_error()
                    || *status == StatusCode::REQUEST_TIMEOUT
                    || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Url(_) | Self::Authorities { .. } | Self::Redirects | Self::Sink(_) => false,
        }
    }
}

/// The HTTP settings of a node.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) allow_local: bool,
    /// The certificates of the authorities, in PEM; the default is the machine's.
    pub(crate) ca_file: Option<PathBuf>,
}

/// A stream that carries HTTP.
trait HttpStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> HttpStream for T {}

impl Client {
    /// Downloads `from` into `sink`, and follows redirects.
    pub(crate) async fn get(&self, from: &str, sink: &mut Sink) -> Result<(), HttpError> {
        let mut url = Url::read(from)?;
        for _ in 0..=limits::REDIRECTS_MAX {
            let request = url.request(Method::GET).body(Empty::<Bytes>::new());
            let request = request.map_err(|_invalid| HttpError::Url(NO_URL))?;
            let sending = self.send_request(&url, request);
            let answered = tokio::time::timeout(limits::TRANSFER_IDLE_DEADLINE, sending).await;
            let (response, _connection) = answered.map_err(|_elapsed| url.idle_timeout())??;
            let status = response.status();
            if let Some(next) = url.redirect(&response)? {
                url = next;
                continue;
            }
            if status != StatusCode::OK {
                let host = url.host;
                return Err(HttpError::Status { host, status });
            }
            return url.read_body(response.into_body(), sink).await;
        }
        Err(HttpError::Redirects)
    }

    /// Uploads a file. A redirect is a failure, because the file was already sent to this URL.
    pub(crate) async fn post(&self, to: &str, outgoing: &UploadFile) -> Result<(), HttpError> {
        let url = Url::read(to)?;
        let file = outgoing.reader().map_err(SinkError::Io)?;
        let chunks = ReaderStream::with_capacity(file, limits::TRANSFER_CHUNK_BYTES);
        let request = url
            .request(Method::POST)
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(header::CONTENT_LENGTH, outgoing.bytes)
            .header("content-md5", STANDARD.encode(&outgoing.md5))
            .header(
                "content-digest",
                format!("sha-256=:{}:", STANDARD.encode(&outgoing.sha256)),
            )
            .body(StreamBody::new(chunks.map_ok(Frame::data)));
        let request = request.map_err(|_invalid| HttpError::Url(NO_URL))?;
        let (response, _connection) = self.send_request(&url, request).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let host = url.host;
        Err(HttpError::Status { host, status })
    }

    /// Sends a request on a separate connection, which lasts as long as the second value.
    async fn send_request<B>(
        &self,
        url: &Url,
        request: Request<B>,
    ) -> Result<(Response<Incoming>, AbortOnDropHandle<()>), HttpError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let connecting = self.connect(url);
        let connected = tokio::time::timeout(limits::TRANSFER_CONNECT_DEADLINE, connecting).await;
        let stream = connected.map_err(|_elapsed| HttpError::Silent {
            host: url.host.clone(),
            after: limits::TRANSFER_CONNECT_DEADLINE,
        })??;
        let failed = |source| HttpError::Http {
            host: url.host.clone(),
            source,
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        let connection_task = tokio::spawn(async move {
            // The caller that waits for the answer gets the connection's errors.
            let _ended = connection.await;
        });
        let connection_task = AbortOnDropHandle::new(connection_task);
        let response = sender.send_request(request).await.map_err(failed)?;
        Ok((response, connection_task))
    }

    async fn connect(&self, url: &Url) -> Result<Box<dyn HttpStream>, HttpError> {
        let stream = address::connect(&url.host, url.port, self.allow_local).await?;
        if !url.is_https {
            return Ok(Box::new(stream));
        }
        let failed = |source| HttpError::Tls {
            host: url.host.clone(),
            source,
        };
        let unbracketed = url.host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(unbracketed.to_owned())
            .map_err(|_invalid| HttpError::Url("its host is neither a name nor an address"))?;
        let ca_file = self.ca_file.clone();
        let config = tokio::task::spawn_blocking(move || tls(ca_file.as_deref()));
        let config = config
            .await
            .map_err(|error| failed(io::Error::other(error)))??;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Box::new(
            connector.connect(name, stream).await.map_err(failed)?,
        ))
    }
}

/// Returns a TLS configuration that trusts the authorities in `ca_file`. Reads that file.
fn tls(ca_file: Option<&Path>) -> Result<ClientConfig, HttpError> {
    let path = ca_file.unwrap_or(Path::new(CA_FILE));
    let failed = |source| HttpError::Authorities {
        path: path.to_owned(),
        source,
    };
    let pem = std::fs::read(path).map_err(failed)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| failed(io::Error::other(error)))?;
        // A machine may trust a certificate that rustls rejects; the others still count.
        if let Err(error) = roots.add(certificate) {
            tracing::debug!(%error, "a certificate of an authority is passed over");
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(io::Error::other(error)))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

const NO_URL: &str = "it is not an http or https URL";

/// The target of a request. Its text may contain secrets, so errors name only the host.
#[derive(Debug)]
struct Url {
    is_https: bool,
    host: String,
    port: u16,
    /// The host and port as in the URL.
    authority: HeaderValue,
    path: PathAndQuery,
    authorization: Option<HeaderValue>,
}

impl Url {
    fn read(text: &str) -> Result<Self, HttpError> {
        if text.len() > limits::URL_BYTES_MAX {
            return Err(HttpError::Url("it is too long"));
        }
        let uri: Uri = text.parse().map_err(|_invalid| HttpError::Url(NO_URL))?;
        let is_https = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(_) | None => return Err(HttpError::Url(NO_URL)),
        };
        let authority = uri.authority().ok_or(HttpError::Url(NO_URL))?;
        let host = authority.host().to_owned();
        if host.is_empty() {
            return Err(HttpError::Url(NO_URL));
        }
        let (user, place) = match authority.as_str().rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority.as_str()),
        };
        let invalid = |_invalid| HttpError::Url(NO_URL);
        let authorization = match user {
            Some(user) => {
                let encoded = STANDARD.encode(super::percent_decode(user));
                let mut value =
                    HeaderValue::from_str(&format!("Basic {encoded}")).map_err(invalid)?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Self {
            is_https,
            host,
            port: authority
                .port_u16()
                .unwrap_or(if is_https { 443 } else { 80 }),
            authority: HeaderValue::from_str(place).map_err(invalid)?,
            path: uri
                .path_and_query()
                .cloned()
                .unwrap_or(PathAndQuery::from_static("/")),
            authorization,
        })
    }

    fn request(&self, method: Method) -> hyper::http::request::Builder {
        let path = match self.path.as_str() {
            "" => "/",
            path => path,
        };
        let mut builder = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.authority.clone())
            .header(header::USER_AGENT, AGENT)
            .header(header::CONNECTION, "close");
        if let Some(value) = &self.authorization {
            builder = builder.header(header::AUTHORIZATION, value.clone());
        }
        builder
    }

    /// Returns the URL of a redirect, if the answer is one. Refuses a redirect from HTTPS to HTTP.
    fn redirect(&self, response: &Response<Incoming>) -> Result<Option<Self>, HttpError> {
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let to = response.headers().get(header::LOCATION);
        let to = to.and_then(|to| to.to_str().ok());
        let to = to.ok_or(HttpError::Url("it leads nowhere"))?;
        let next = Self::read(&self.resolve(to))?;
        if self.is_https && !next.is_https {
            return Err(HttpError::Url("it leads from https to http"));
        }
        Ok(Some(next))
    }

    /// Resolves `to` relative to this URL.
    fn resolve(&self, to: &str) -> String {
        let scheme = if self.is_https { "https" } else { "http" };
        let place = String::from_utf8_lossy(self.authority.as_bytes()).into_owned();
        if to.contains("://") {
            to.to_owned()
        } else if to.starts_with("//") {
            format!("{scheme}:{to}")
        } else if to.starts_with('/') {
            format!("{scheme}://{place}{to}")
        } else {
            let dir = self.path.path().rsplit_once('/').map_or("", |(dir, _)| dir);
            format!("{scheme}://{place}{dir}/{to}")
        }
    }

    fn idle_timeout(&self) -> HttpError {
        HttpError::Silent {
            host: self.host.clone(),
            after: limits::TRANSFER_IDLE_DEADLINE,
        }
    }

    async fn read_body(&self, mut body: Incoming, sink: &mut Sink) -> Result<(), HttpError> {
        if let Some(announced) = body.size_hint().exact() {
            sink.check_size(announced)?;
        }
        loop {
            let frame = tokio::time::timeout(limits::TRANSFER_IDLE_DEADLINE, body.frame()).await;
            let frame = match frame.map_err(|_elapsed| self.idle_timeout())? {
                None => return Ok(sink.finish().await?),
                Some(frame) => frame.map_err(|source| HttpError::Http {
                    host: self.host.clone(),
                    source,
                })?,
            };
            if let Ok(bytes) = frame.into_data() {
                sink.write(&bytes).await?;
            }
        }
    }
}

#[cfg(test)]
mod tests;
