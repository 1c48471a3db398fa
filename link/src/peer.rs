//! What a peer's certificate says it is.
//!
//! A server checks it before it reads a frame: an agent can never speak Raft.

use quinn::Connection;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::tls::{DOMAIN, Role, is_name};

/// Why a peer is not let in.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// It showed no certificate.
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// Its certificate cannot be read.
    #[error("the peer's certificate cannot be read: {0}")]
    Malformed(String),
    /// Its certificate names no role.
    #[error("the peer's certificate names no role of a cluster: {0}")]
    NoRole(String),
    /// It belongs to another cluster.
    #[error("the peer belongs to cluster `{theirs}`, this is cluster `{ours}`")]
    Cluster {
        /// Its cluster.
        theirs: String,
        /// Our cluster.
        ours: String,
    },
}

/// What a certificate says of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What it is.
    pub role: Role,
    /// Its cluster.
    pub cluster: String,
    /// A server's name, if its certificate has one.
    pub server_name: Option<String>,
}

impl Peer {
    /// From the names in its certificate. `None` if they name no role, or different ones.
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

/// Who the peer of `connection` is within `cluster`.
///
/// # Errors
///
/// [`PeerError`] if its certificate does not say.
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

/// What the peer of `connection` is within `cluster`.
///
/// # Errors
///
/// [`PeerError`] if its certificate does not say.
pub fn role(connection: &Connection, cluster: &str) -> Result<Role, PeerError> {
    Ok(identify(connection, cluster)?.role)
}

/// The application protocol of `connection`; `None` before its handshake has said.
#[must_use]
pub fn protocol(connection: &Connection) -> Option<Vec<u8>> {
    connection
        .handshake_data()?
        .downcast::<quinn::crypto::rustls::HandshakeData>()
        .ok()?
        .protocol
}

/// The DNS names in `certificate`.
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

/// The organization that the holder of `certificate` belongs to.
#[must_use]
pub(crate) fn organization(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let organization = parsed.subject().iter_organization().next()?;
    organization.as_str().ok().map(ToOwned::to_owned)
}

/// The role and cluster in a name such as `agent.local.muster`.
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
