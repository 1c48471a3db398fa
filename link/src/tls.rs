//! Certificates of a cluster.
//!
//! A cluster has one authority. A certificate's DNS name states the role of its holder: `server.<cluster>.muster`,
//! `agent.<cluster>.muster` or `operator.<cluster>.muster`. A server's certificate also contains the server's name:
//! `<name>.server.<cluster>.muster`. Only the owner of a key can read it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::peer::Peer;
use crate::private;

/// The last label of every name in our certificates.
pub const DOMAIN: &str = "muster";
/// The longest name of a cluster or a server, in bytes. A complete DNS name then stays far below 253 bytes, and each
/// label below 63.
pub const NAME_BYTES_MAX: usize = 40;
/// The default lifetime of a certificate: one year. A certificate is renewed as part of ordinary maintenance, and is
/// reloaded without a restart.
pub const CERTIFICATE_LIFE: Duration = Duration::from_hours(365 * 24);
/// The lifetime of an authority.
const AUTHORITY_LIFE: Duration = Duration::from_hours(10 * 365 * 24);
/// Time by which a certificate's validity begins earlier, because the clocks of machines differ.
const CLOCK_SKEW: Duration = Duration::from_hours(1);
/// The cluster name of a server that was given none.
pub const DEFAULT_CLUSTER: &str = "local";

/// The role of a certificate's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Agent,
    /// A person or a program that uses the HTTP API.
    Operator,
    /// A server of the control plane.
    Server,
}

impl Role {
    /// Returns the first label of the certificate's name. It is also the stem of the file names.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Operator => "operator",
            Self::Server => "server",
        }
    }

    /// Returns the DNS name in a certificate of this role.
    #[must_use]
    pub fn dns_name(self, cluster: &str) -> String {
        format!("{}.{cluster}.{DOMAIN}", self.as_str())
    }
}

/// Returns the DNS name in the certificate of one server.
#[must_use]
pub fn server_dns_name(server: &str, cluster: &str) -> String {
    format!("{server}.{}", Role::Server.dns_name(cluster))
}

/// Whether a certificate can contain `name`: 1 to 40 letters, digits and hyphens.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// The subject of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateSubject<'a> {
    /// Any agent of the cluster.
    Agent,
    /// A user of the HTTP API.
    Operator,
    /// The server with this name.
    Server {
        name: &'a str,
        /// Host names and IP addresses under which clients reach the server, besides `localhost` and `127.0.0.1`.
        hosts: &'a [String],
    },
}

impl CertificateSubject<'_> {
    /// Returns the role of the certificate's holder.
    #[must_use]
    pub fn role(&self) -> Role {
        match self {
            Self::Agent => Role::Agent,
            Self::Operator => Role::Operator,
            Self::Server { .. } => Role::Server,
        }
    }
}

/// The reason why certificates could not be created or loaded.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("certificate file {} cannot be read: give --tls-dir the directory that holds ca.pem and the role's .pem and .key", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("certificate file {} cannot be written", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The content of a file is not valid.
    #[error("{} holds no usable {what}: {reason}", path.display())]
    Malformed {
        path: PathBuf,
        what: &'static str,
        /// The reason why the content is not valid.
        reason: String,
    },
    /// A certificate could not be created.
    #[error("the certificate of {name} cannot be made")]
    Generate {
        name: String,
        #[source]
        source: rcgen::Error,
    },
    /// The cluster's name cannot be part of a certificate.
    #[error("`{name}` cannot name a cluster: use 1 to 40 letters, digits and hyphens")]
    ClusterName { name: String },
    /// The server's name cannot be part of a certificate.
    #[error("`{name}` cannot name a server: use 1 to 40 letters, digits and hyphens")]
    ServerName { name: String },
    /// An authority already exists.
    #[error("{} is there already: a new authority would make every certificate of the cluster worthless; give another directory, or remove it first", path.display())]
    Exists { path: PathBuf },
}

/// The certificate that a process presents, and the authority that it trusts.
#[derive(Debug)]
pub struct Identity {
    /// The cluster of the process, from its certificate.
    pub cluster: String,
    /// The server's name in its certificate; `None` for agents and for a certificate without one.
    pub server_name: Option<String>,
    /// The certificate chain, leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
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
        let leaf_path = dir.join(format!("{}.pem", role.as_str()));
        let leaf = certificate(&leaf_path)?;
        let key_path = dir.join(format!("{}.key", role.as_str()));
        let text = read(&key_path)?;
        let key = PrivateKeyDer::from_pem_slice(&text)
            .map_err(|error| malformed(&key_path, "private key", &error))?;
        let names = crate::peer::names(&leaf)
            .map_err(|error| malformed(&leaf_path, "certificate", &error))?;
        let peer = Peer::from_names(&names)
            .filter(|peer| peer.role == role)
            .ok_or_else(|| TlsError::Malformed {
                path: leaf_path,
                what: "certificate",
                reason: format!("its name is not {}", role.dns_name("<cluster>")),
            })?;
        Ok(Self {
            cluster: peer.cluster,
            server_name: peer.server_name,
            chain: vec![leaf],
            key,
            authority,
        })
    }

    /// Copies the identity. Private keys are copied only by explicit calls.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        Self {
            cluster: self.cluster.clone(),
            server_name: self.server_name.clone(),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            authority: self.authority.clone(),
        }
    }
}

/// Creates an authority and a certificate for each role in `dir`, unless they exist. The server's certificate is
/// issued for `server`.
///
/// # Errors
///
/// [`TlsError::ClusterName`], [`TlsError::ServerName`], [`TlsError::Write`], [`TlsError::Generate`].
pub fn ensure_cluster(dir: &Path, cluster: &str, server: &str) -> Result<(), TlsError> {
    check_cluster(cluster)?;
    if dir.join("ca.pem").exists() {
        return Ok(());
    }
    create(dir)?;
    let authority = Authority::generate(cluster)?;
    let server = CertificateSubject::Server {
        name: server,
        hosts: &[],
    };
    for subject in [
        CertificateSubject::Agent,
        CertificateSubject::Operator,
        server,
    ] {
        authority.issue(dir, subject, CERTIFICATE_LIFE)?;
    }
    // The certificate is written last, so that its presence shows that the other files exist.
    authority.save(dir)
}

/// The authority of a cluster, with the key that signs certificates.
#[derive(Debug)]
pub struct Authority {
    cluster: String,
    certificate: String,
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Generates an authority for `cluster` in memory. [`Self::save`] writes it to disk.
    ///
    /// # Errors
    ///
    /// [`TlsError::ClusterName`], [`TlsError::Generate`].
    pub fn generate(cluster: &str) -> Result<Self, TlsError> {
        check_cluster(cluster)?;
        let name = format!("muster {cluster} authority");
        let key = KeyPair::generate().map_err(generate_error(&name))?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, name.as_str());
        // The name identifies the cluster when the authority is loaded again.
        params
            .distinguished_name
            .push(DnType::OrganizationName, cluster);
        set_validity(&mut params, AUTHORITY_LIFE);
        let certificate = params.self_signed(&key).map_err(generate_error(&name))?;
        Ok(Self {
            cluster: cluster.to_owned(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Loads `ca.pem` and `ca.key` from `dir`.
    ///
    /// # Errors
    ///
    /// [`TlsError::Read`] and [`TlsError::Malformed`], naming the file.
    pub fn load(dir: &Path) -> Result<Self, TlsError> {
        let path = dir.join("ca.pem");
        let cluster = crate::peer::organization(&certificate(&path)?)
            .ok_or_else(|| malformed(&path, "authority", &"it names no cluster"))?;
        let key_path = dir.join("ca.key");
        let text = |path: &Path| {
            String::from_utf8(read(path)?).map_err(|error| malformed(path, "PEM text", &error))
        };
        let (certificate, key) = (text(&path)?, text(&key_path)?);
        let pair =
            KeyPair::from_pem(&key).map_err(|error| malformed(&key_path, "private key", &error))?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, pair)
            .map_err(|error| malformed(&path, "authority", &error))?;
        Ok(Self {
            cluster,
            certificate,
            key,
            issuer,
        })
    }

    /// Returns the name of the authority's cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Writes `ca.pem` and `ca.key` into `dir`.
    ///
    /// # Errors
    ///
    /// [`TlsError::Exists`] if there is an authority; [`TlsError::Write`].
    pub fn save(&self, dir: &Path) -> Result<(), TlsError> {
        let path = dir.join("ca.pem");
        if path.exists() {
            return Err(TlsError::Exists { path });
        }
        create(dir)?;
        write(&dir.join("ca.key"), &self.key)?;
        write(&path, &self.certificate)
    }

    /// Writes a certificate for `subject` into `dir`: `<role>.pem` and `<role>.key`. It is valid for `life`.
    ///
    /// # Errors
    ///
    /// [`TlsError::ServerName`], [`TlsError::Generate`], [`TlsError::Write`].
    pub fn issue(
        &self,
        dir: &Path,
        subject: CertificateSubject<'_>,
        life: Duration,
    ) -> Result<(), TlsError> {
        let name = subject.role().dns_name(&self.cluster);
        let key = KeyPair::generate().map_err(generate_error(&name))?;
        self.issue_with(dir, subject, life, &key)
    }

    /// Writes a certificate as [`Self::issue`] does, for the private key in the file `key`. The key is PKCS#8 in PEM:
    /// RSA, P-256, P-384 or Ed25519.
    ///
    /// # Errors
    ///
    /// As [`Self::issue`], and [`TlsError::Read`] and [`TlsError::Malformed`] for the key.
    pub fn issue_for_key(
        &self,
        dir: &Path,
        subject: CertificateSubject<'_>,
        life: Duration,
        key: &Path,
    ) -> Result<(), TlsError> {
        let wrong = |error: &dyn std::fmt::Display| malformed(key, "PKCS#8 private key", error);
        let text = String::from_utf8(read(key)?).map_err(|error| wrong(&error))?;
        let pair = KeyPair::from_pem(&text).map_err(|error| wrong(&error))?;
        self.issue_with(dir, subject, life, &pair)
    }

    fn issue_with(
        &self,
        dir: &Path,
        subject: CertificateSubject<'_>,
        life: Duration,
        key: &KeyPair,
    ) -> Result<(), TlsError> {
        let role = subject.role();
        let name = role.dns_name(&self.cluster);
        let mut names = vec![name.clone()];
        if let CertificateSubject::Server {
            name: server,
            hosts,
        } = subject
        {
            if !is_name(server) {
                return Err(TlsError::ServerName {
                    name: server.to_owned(),
                });
            }
            names.push(server_dns_name(server, &self.cluster));
            names.extend(["localhost".to_owned(), "127.0.0.1".to_owned()]);
            names.extend(hosts.iter().cloned());
        }
        let mut params = CertificateParams::new(names).map_err(generate_error(&name))?;
        params
            .distinguished_name
            .push(DnType::CommonName, name.as_str());
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        set_validity(&mut params, life);
        let leaf = params
            .signed_by(key, &self.issuer)
            .map_err(generate_error(&name))?;
        create(dir)?;
        let file = |suffix: &str| dir.join(format!("{}.{suffix}", role.as_str()));
        write(&file("key"), &key.serialize_pem())?;
        write(&file("pem"), &leaf.pem())
    }

    /// Writes the authority's certificate, without its key, into `dir`. Each holder of a certificate needs it.
    ///
    /// # Errors
    ///
    /// [`TlsError::Write`].
    pub fn save_certificate(&self, dir: &Path) -> Result<(), TlsError> {
        create(dir)?;
        write(&dir.join("ca.pem"), &self.certificate)
    }
}

fn check_cluster(cluster: &str) -> Result<(), TlsError> {
    if is_name(cluster) {
        return Ok(());
    }
    Err(TlsError::ClusterName {
        name: cluster.to_owned(),
    })
}

fn generate_error(name: &str) -> impl FnOnce(rcgen::Error) -> TlsError + use<> {
    let name = name.to_owned();
    move |source| TlsError::Generate { name, source }
}

fn set_validity(params: &mut CertificateParams, life: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + life).into();
}

fn create(dir: &Path) -> Result<(), TlsError> {
    private::create_dir(dir).map_err(|source| TlsError::Write {
        path: dir.to_owned(),
        source,
    })
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

fn write(path: &Path, text: &str) -> Result<(), TlsError> {
    let attempt = || {
        let mut file = private::create(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    attempt().map_err(|source| TlsError::Write {
        path: path.to_owned(),
        source,
    })
}
