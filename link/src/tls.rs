//! Certificates of a cluster.
//!
//! One authority per cluster; a certificate's DNS name says what its holder is:
//! `server.<cluster>.muster` or `agent.<cluster>.muster`. Keys are readable by their owner only.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// The last label of every name in our certificates.
pub const DOMAIN: &str = "muster";
/// The cluster of a server that was given no name.
pub const DEFAULT_CLUSTER: &str = "local";

/// What the holder of a certificate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A node agent.
    Agent,
    /// A server of the control plane.
    Server,
}

impl Role {
    /// The first label of its certificate's name, and the stem of its files.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Server => "server",
        }
    }

    /// The name in its certificate.
    #[must_use]
    pub fn dns_name(self, cluster: &str) -> String {
        format!("{}.{cluster}.{DOMAIN}", self.word())
    }
}

/// Why certificates could not be made or loaded.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("certificate file {} cannot be read: give --tls-dir the directory that holds ca.pem and the role's .pem and .key", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("certificate file {} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file holds something else.
    #[error("{} holds no usable {what}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// Why it does not.
        reason: String,
    },
    /// A certificate could not be made.
    #[error("the certificate of {name} cannot be made")]
    Generate {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// The cluster's name cannot stand in a certificate.
    #[error("`{name}` cannot name a cluster: use 1 to 40 letters, digits and hyphens")]
    ClusterName {
        /// What was given.
        name: String,
    },
}

/// What a process shows and trusts.
#[derive(Debug)]
pub struct Identity {
    /// The cluster it belongs to, from its certificate.
    pub cluster: String,
    /// Its certificate, leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
    /// The cluster's authority.
    pub authority: CertificateDer<'static>,
}

impl Identity {
    /// Loads `ca.pem`, `<role>.pem` and `<role>.key` from `dir`.
    ///
    /// # Errors
    ///
    /// [`TlsError::Read`] and [`TlsError::Malformed`], naming the file.
    pub fn load(dir: &Path, role: Role) -> Result<Self, TlsError> {
        let authority = certificate(&dir.join("ca.pem"))?;
        let leaf_path = dir.join(format!("{}.pem", role.word()));
        let leaf = certificate(&leaf_path)?;
        let key_path = dir.join(format!("{}.key", role.word()));
        let text = read(&key_path)?;
        let key = PrivateKeyDer::from_pem_slice(&text)
            .map_err(|error| malformed(&key_path, "private key", &error))?;
        let cluster = crate::peer::names(&leaf)
            .map_err(|error| malformed(&leaf_path, "certificate", &error))?
            .iter()
            .find_map(|name| crate::peer::parse_name(name))
            .filter(|(found, _)| *found == role)
            .map(|(_, cluster)| cluster)
            .ok_or_else(|| TlsError::Malformed {
                path: leaf_path,
                what: "certificate",
                reason: format!("its name is not {}", role.dns_name("<cluster>")),
            })?;
        Ok(Self {
            cluster,
            chain: vec![leaf],
            key,
            authority,
        })
    }

    /// A copy; private keys are only ever copied on purpose.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        Self {
            cluster: self.cluster.clone(),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            authority: self.authority.clone(),
        }
    }
}

/// Makes, in `dir`, an authority and a certificate for each role, unless they are there.
///
/// # Errors
///
/// [`TlsError::ClusterName`], [`TlsError::Write`], [`TlsError::Generate`].
pub fn ensure_cluster(dir: &Path, cluster: &str) -> Result<(), TlsError> {
    let fits = (1..=40).contains(&cluster.len())
        && cluster
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !fits {
        return Err(TlsError::ClusterName {
            name: cluster.to_owned(),
        });
    }
    if dir.join("ca.pem").exists() {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(|source| TlsError::Write {
        path: dir.to_owned(),
        source,
    })?;
    let generate = |name: &str| {
        let name = name.to_owned();
        move |source| TlsError::Generate { name, source }
    };

    let ca_name = format!("muster {cluster} authority");
    let ca_key = KeyPair::generate().map_err(generate(&ca_name))?;
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca.distinguished_name
        .push(DnType::CommonName, ca_name.as_str());
    let ca_certificate = ca.self_signed(&ca_key).map_err(generate(&ca_name))?;
    let issuer = Issuer::new(ca, &ca_key);

    for role in [Role::Agent, Role::Server] {
        let name = role.dns_name(cluster);
        let key = KeyPair::generate().map_err(generate(&name))?;
        let mut params = CertificateParams::new(vec![name.clone()]).map_err(generate(&name))?;
        params
            .distinguished_name
            .push(DnType::CommonName, name.as_str());
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let leaf = params.signed_by(&key, &issuer).map_err(generate(&name))?;
        write(
            &dir.join(format!("{}.key", role.word())),
            &key.serialize_pem(),
            0o600,
        )?;
        write(
            &dir.join(format!("{}.pem", role.word())),
            &leaf.pem(),
            0o644,
        )?;
    }
    write(&dir.join("ca.key"), &ca_key.serialize_pem(), 0o600)?;
    // Last: its presence says that the rest is there.
    write(&dir.join("ca.pem"), &ca_certificate.pem(), 0o644)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
}

fn certificate(path: &Path) -> Result<CertificateDer<'static>, TlsError> {
    CertificateDer::from_pem_slice(&read(path)?)
        .map_err(|error| malformed(path, "certificate", &error))
}

fn malformed(path: &Path, what: &'static str, reason: &dyn std::fmt::Display) -> TlsError {
    TlsError::Malformed {
        path: path.to_owned(),
        what,
        reason: reason.to_string(),
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let attempt = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    attempt().map_err(|source| TlsError::Write {
        path: path.to_owned(),
        source,
    })
}
