//! The identity in a peer's certificate.
//!
//! A server checks it before it reads a frame, so an agent can never use the Raft protocol.

use std::time::{Duration, SystemTime};

use quinn::{Connection, ConnectionError, TransportErrorCode};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::tls::{DOMAIN, Role, is_name};

/// TLS's alert `certificate_expired`. It is also sent for a certificate that is not valid yet.
const EXPIRED: u64 = 45;
/// TLS's alert `certificate_required`.
const REQUIRED: u64 = 116;
/// TLS's alert `no_application_protocol`.
const PROTOCOL: u64 = 120;

/// The reason why a peer is rejected.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The peer presented no certificate.
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// The peer's certificate cannot be read.
    #[error("the peer's certificate cannot be read: {0}")]
    Malformed(String),
    /// The peer's certificate names no role.
    #[error("the peer's certificate names no role of a cluster: {0}")]
    NoRole(String),
    /// The peer belongs to another cluster.
    #[error("the peer belongs to cluster `{theirs}`, this is cluster `{ours}`")]
    Cluster { theirs: String, ours: String },
}

/// The facts that a certificate states about its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub role: Role,
    pub cluster: String,
    /// The name of the server, if its certificate has one.
    pub server_name: Option<String>,
}

impl Peer {
    /// Derives the peer from the names in its certificate. Returns `None` if the names have no role, or different
    /// roles.
    #[must_use]
    pub fn from_names(names: &[String]) -> Option<Self> {
        let mut roles = names.iter().filter_map(|name| parse_name(name));
        let (role, cluster) = roles.next()?;
        if roles.any(|other| other != (role, cluster.clone())) {
            return None;
        }
        let suffix = format!(".{}", Role::Server.dns_name(&cluster));
        let server_name = names
            .iter()
            .filter_map(|name| name.strip_suffix(&suffix))
            .find(|server| role == Role::Server && is_name(server))
            .map(ToOwned::to_owned);
        Some(Self {
            role,
            cluster,
            server_name,
        })
    }
}

/// Identifies the peer of `connection` within `cluster`.
///
/// # Errors
///
/// [`PeerError`] if the peer's certificate does not identify it.
pub fn identify(connection: &Connection, cluster: &str) -> Result<Peer, PeerError> {
    let chain = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
        .ok_or(PeerError::NoCertificate)?;
    let leaf = chain.first().ok_or(PeerError::NoCertificate)?;
    let names = names(leaf)?;
    let peer = Peer::from_names(&names).ok_or_else(|| PeerError::NoRole(names.join(", ")))?;
    if peer.cluster != cluster {
        return Err(PeerError::Cluster {
            theirs: peer.cluster,
            ours: cluster.to_owned(),
        });
    }
    Ok(peer)
}

/// Returns the role of the peer of `connection` within `cluster`.
///
/// # Errors
///
/// [`PeerError`] if the peer's certificate does not identify it.
pub fn role(connection: &Connection, cluster: &str) -> Result<Role, PeerError> {
    Ok(identify(connection, cluster)?.role)
}

/// Returns the application protocol of `connection`. Returns `None` before the handshake has negotiated it.
#[must_use]
pub fn protocol(connection: &Connection) -> Option<Vec<u8>> {
    connection
        .handshake_data()?
        .downcast::<quinn::crypto::rustls::HandshakeData>()
        .ok()?
        .protocol
}

/// Returns the DNS names in `certificate`.
///
/// # Errors
///
/// [`PeerError::Malformed`] if it cannot be read.
pub fn names(certificate: &CertificateDer<'_>) -> Result<Vec<String>, PeerError> {
    let malformed = |error: &dyn std::fmt::Display| PeerError::Malformed(error.to_string());
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| malformed(&error))?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|error| malformed(&error))?;
    Ok(names
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect())
}

/// Returns the organization of the holder of `certificate`.
#[must_use]
pub(crate) fn organization(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let organization = parsed.subject().iter_organization().next()?;
    organization.as_str().ok().map(ToOwned::to_owned)
}

/// Returns how long `certificate` is still valid. It is zero if the certificate has expired, and `None` if it cannot
/// be read.
pub(crate) fn time_left(certificate: &CertificateDer<'_>) -> Option<Duration> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let end = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(end);
    Some(end.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Returns advice about a certificate error. The TLS library itself only names a number or a rule.
#[must_use]
pub fn explain(error: &ConnectionError) -> Option<String> {
    // QUIC encodes a TLS alert as 0x100 plus its number (RFC 9001, section 4.8).
    let alert = |code: TransportErrorCode| u64::from(code).checked_sub(0x100);
    match error {
        ConnectionError::TransportError(error) => {
            let theirs = match alert(error.code)? {
                EXPIRED => {
                    "the peer's certificate does not hold at this time: make a new one with `muster operator tls cert`, or set this machine's clock"
                }
                42 | 46 | 48 => {
                    "the peer's certificate is not of this cluster's authority: compare ca.pem on both machines"
                }
                REQUIRED => "the peer showed no certificate",
                PROTOCOL => "the peer is not a Muster server, or its version is not supported",
                _ => return None,
            };
            Some(format!("{theirs} ({})", error.reason))
        }
        ConnectionError::ConnectionClosed(close) => {
            let ours = match alert(close.error_code)? {
                EXPIRED => {
                    "the peer refuses this process's certificate because it does not hold at this time: make a new one with `muster operator tls cert`, which is taken up without a restart, or compare the machines' clocks"
                }
                42 | 46 | 48 => {
                    "the peer refuses this process's certificate because another authority signed it: compare ca.pem on both machines"
                }
                REQUIRED => "the peer wants a certificate",
                PROTOCOL => "the peer does not speak this protocol: is it a server of Muster?",
                _ => return None,
            };
            Some(ours.to_owned())
        }
        _ => None,
    }
}

/// Whether the peer currently refuses connections (RFC 9000, `CONNECTION_REFUSED`).
#[must_use]
pub fn is_refused(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::ConnectionClosed(close) if close.error_code == TransportErrorCode::CONNECTION_REFUSED)
}

/// Returns the role and the cluster in a name such as `agent.local.muster`.
#[must_use]
pub fn parse_name(name: &str) -> Option<(Role, String)> {
    let mut labels = name.split('.');
    let role = match labels.next()? {
        "agent" => Role::Agent,
        "operator" => Role::Operator,
        "server" => Role::Server,
        _ => return None,
    };
    let cluster = labels.next()?.to_owned();
    (labels.next() == Some(DOMAIN) && labels.next().is_none()).then_some((role, cluster))
}
