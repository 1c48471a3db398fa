//! The certificates of a process, which may be replaced while it runs.
//!
//! The process checks the files at an interval and on request. Each new connection uses the newest certificates, and
//! existing connections are kept. Files that cannot be used change nothing. The process keeps its certificates and
//! logs the reason, once for each state of the files.
//!
//! To replace certificates, write the three files and rename them into place. Between two renames the key does not
//! fit its certificate. The process treats that as an unusable state and checks the files again later.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls_pki_types::{ServerName, UnixTime};
use tokio::sync::{Notify, watch};

use crate::endpoint;
use crate::tls::{Identity, Role, TlsError};

/// Interval between two checks of the files. It is shorter than the time that an operator needs to verify a
/// replacement. Its three `stat` calls cost microseconds.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// The remaining lifetime of a certificate below which each start and change warns.
const WARN_BEFORE: Duration = Duration::from_hours(7 * 24);

/// The reason why new certificates are not used.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The certificates cannot be loaded.
    #[error(transparent)]
    Load(#[from] TlsError),
    /// The certificates belong to another cluster.
    #[error(
        "the certificate in {} is for cluster `{found}`, this process belongs to `{ours}`",
        dir.display()
    )]
    Cluster {
        dir: PathBuf,
        found: String,
        ours: String,
    },
    /// The files do not fit together, or the certificate is not valid at this time.
    #[error(
        "the certificate in {} does not work here: {reason}",
        dir.display()
    )]
    Unfit { dir: PathBuf, reason: String },
}

/// The state of a file: modification time in seconds and nanoseconds, size, inode number.
pub type FileStamp = Option<(i64, i64, u64, u64)>;

/// The paths of the certificate files.
#[derive(Debug)]
struct Files {
    dir: PathBuf,
    role: Role,
}

impl Files {
    fn stamps(&self) -> Vec<FileStamp> {
        let word = self.role.as_str();
        [
            "ca.pem".to_owned(),
            format!("{word}.pem"),
            format!("{word}.key"),
        ]
        .map(|name| stamp(&self.dir.join(name)))
        .to_vec()
    }
}

/// Returns the stamp of the file at `path`.
#[must_use]
pub fn stamp(path: &Path) -> FileStamp {
    let data = std::fs::metadata(path).ok()?;
    Some((data.mtime(), data.mtime_nsec(), data.size(), data.ino()))
}

#[derive(Debug)]
struct CertificateState {
    /// The paths of the files. `None`: the certificates never change.
    files: Option<Files>,
    /// The stamps of the files at the last check.
    stamps_at_last_check: Mutex<Vec<FileStamp>>,
    current: watch::Sender<Arc<Identity>>,
    asked: Notify,
}

/// The certificates of this process. Clones share the same certificates.
#[derive(Clone, Debug)]
pub struct Certificates {
    shared: Arc<CertificateState>,
}

impl Certificates {
    /// Loads the certificates of `role` from `dir`. [`Self::follow`] later checks the same files.
    ///
    /// # Errors
    ///
    /// [`TlsError`], naming the file.
    pub fn load(dir: &Path, role: Role) -> Result<Self, TlsError> {
        let files = Files {
            dir: dir.to_owned(),
            role,
        };
        // The stamps are taken before the files are read. Otherwise a change in between would go unnoticed.
        let stamps = files.stamps();
        let identity = Identity::load(dir, role)?;
        if let Err(reason) = check(&identity, role) {
            tracing::error!(dir = %dir.display(), reason, "the certificate does not work; peers will refuse it");
        }
        warn_of_end(&identity);
        Ok(Self::new(identity, Some(files), stamps))
    }

    fn new(identity: Identity, files: Option<Files>, stamps: Vec<FileStamp>) -> Self {
        Self {
            shared: Arc::new(CertificateState {
                files,
                stamps_at_last_check: Mutex::new(stamps),
                current: watch::Sender::new(Arc::new(identity)),
                asked: Notify::new(),
            }),
        }
    }

    /// Returns the current identity.
    #[must_use]
    pub fn current(&self) -> Arc<Identity> {
        Arc::clone(&self.shared.current.borrow())
    }

    /// Returns a receiver of the current identity and of each change of it.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Identity>> {
        self.shared.current.subscribe()
    }

    /// Requests a check of the files by [`Self::follow`], as SIGHUP does.
    pub fn ask(&self) {
        // Cleared stamps force a read of the files, even if the files seem unchanged.
        self.lock_stamps().clear();
        self.shared.asked.notify_one();
    }

    /// Reads the files if they have changed since the last check. Returns whether the certificates in use changed.
    ///
    /// # Errors
    ///
    /// [`ReloadError`], once for each state of the files; the certificates in use stay.
    pub fn refresh(&self) -> Result<bool, ReloadError> {
        let Some(files) = &self.shared.files else {
            return Ok(false);
        };
        let stamps = files.stamps();
        {
            let mut stamps_at_last_check = self.lock_stamps();
            if *stamps_at_last_check == stamps {
                return Ok(false);
            }
            *stamps_at_last_check = stamps;
        }
        let identity = Identity::load(&files.dir, files.role)?;
        let current = self.current();
        if identity.cluster != current.cluster {
            return Err(ReloadError::Cluster {
                dir: files.dir.clone(),
                found: identity.cluster,
                ours: current.cluster.clone(),
            });
        }
        if identity.server_name != current.server_name {
            return Err(ReloadError::Unfit {
                dir: files.dir.clone(),
                reason: format!(
                    "it is made for server `{}`, this one is `{}`",
                    identity.server_name.as_deref().unwrap_or_default(),
                    current.server_name.as_deref().unwrap_or_default()
                ),
            });
        }
        check(&identity, files.role).map_err(|reason| ReloadError::Unfit {
            dir: files.dir.clone(),
            reason,
        })?;
        let same = identity.chain == current.chain && identity.authority == current.authority;
        if same {
            return Ok(false);
        }
        warn_of_end(&identity);
        self.shared.current.send_replace(Arc::new(identity));
        Ok(true)
    }

    /// Refreshes the certificates for ever and logs the results. `changed` is called with each new identity.
    pub async fn follow(&self, changed: impl Fn(&Identity)) {
        loop {
            // The timeout only bounds the wait, so its result does not matter.
            drop(tokio::time::timeout(LOOK_INTERVAL, self.shared.asked.notified()).await);
            match self.refresh() {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!("certificates were replaced: connections from here on use them");
                    changed(&self.current());
                }
                Err(error) => {
                    let error = chain(&error);
                    tracing::error!(
                        error,
                        "certificates were replaced by what cannot be used; the earlier ones stay in use"
                    );
                }
            }
        }
    }

    fn lock_stamps(&self) -> std::sync::MutexGuard<'_, Vec<FileStamp>> {
        // A poisoned lock is harmless, because the list of stamps is always consistent.
        self.shared
            .stamps_at_last_check
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Identity> for Certificates {
    /// Creates certificates that never change.
    fn from(identity: Identity) -> Self {
        Self::new(identity, None, Vec::new())
    }
}

/// Checks that peers would accept the certificate: its key fits, the authority signed it, and it is valid now.
fn check(identity: &Identity, role: Role) -> Result<(), String> {
    // Building a configuration compares the key with the certificate.
    endpoint::client_config(identity, b"check").map_err(|error| chain(&error))?;
    let roots = endpoint::roots(&identity.authority).map_err(|error| chain(&error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| chain(&error))?;
    let name = ServerName::try_from(role.dns_name(&identity.cluster))
        .map_err(|error| error.to_string())?;
    let (leaf, others) = identity
        .chain
        .split_first()
        .ok_or("the file holds no certificate")?;
    verifier
        .verify_server_cert(leaf, others, &name, &[], UnixTime::now())
        .map_err(|error| error.to_string())?;
    Ok(())
}

/// Logs a warning if the certificate has expired or expires soon.
fn warn_of_end(identity: &Identity) {
    let Some(left) = identity.chain.first().and_then(crate::peer::time_left) else {
        return;
    };
    if left < WARN_BEFORE {
        let hours = left.as_secs() / 3600;
        tracing::warn!(
            hours,
            "the certificate ends soon: make a new one with `muster operator tls cert`; it is taken up without a restart"
        );
    }
}

/// Formats an error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
