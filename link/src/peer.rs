//! What a peer's certificate says it is.
//!
//! A server checks it before it reads a frame: an agent can never speak Raft.

use quinn::Connection;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::tls::{DOMAIN, Role};

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

/// What the peer of `connection` is within `cluster`.
///
/// # Errors
///
/// [`PeerError`] if its certificate does not say.
pub fn role(connection: &Connection, cluster: &str) -> Result<Role, PeerError> {
    let chain = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
        .ok_or(PeerError::NoCertificate)?;
    let leaf = chain.first().ok_or(PeerError::NoCertificate)?;
    let names = names(leaf)?;
    let (role, theirs) = names
        .iter()
        .find_map(|name| parse_name(name))
        .ok_or_else(|| PeerError::NoRole(names.join(", ")))?;
    if theirs != cluster {
        return Err(PeerError::Cluster {
            theirs,
            ours: cluster.to_owned(),
        });
    }
    Ok(role)
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

/// The role and cluster in a name such as `agent.local.muster`.
#[must_use]
pub fn parse_name(name: &str) -> Option<(Role, String)> {
    let mut labels = name.split('.');
    let role = match labels.next()? {
        "agent" => Role::Agent,
        "server" => Role::Server,
        _ => return None,
    };
    let cluster = labels.next()?.to_owned();
    (labels.next() == Some(DOMAIN) && labels.next().is_none()).then_some((role, cluster))
}
