//! A process's certificates, which may be replaced while it runs.
//!
//! The files are looked at once in a while and whenever somebody asks; what is new there is used for every
//! connection from then on, and connections that stand are kept. A file that cannot be used changes
//! nothing: the process goes on with what it has and says why, once for each state of the files.
//!
//! To replace certificates, write the three files and rename them into place. Between two of them the key
//! does not fit its certificate; that is taken for an unusable state and looked at again.

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

/// Between two looks at the files. Somebody who replaced a certificate waits for less than they need to look
/// whether it worked; three `stat` calls cost microseconds.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// The remaining lifetime of a certificate below which each start and change warns.
const WARN_BEFORE: Duration = Duration::from_hours(7 * 24);

/// Why certificates that were found are not used.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// They cannot be loaded.
    #[error(transparent)]
    Load(#[from] TlsError),
    /// They are those of another cluster.
    #[error(
        "the certificate in {} is for cluster `{found}`, this process belongs to `{ours}`",
        dir.display()
    )]
    Cluster {
        dir: PathBuf,
        found: String,
        ours: String,
    },
    /// They do not fit together, or do not hold at this time.
    #[error(
        "the certificate in {} does not work here: {reason}",
        dir.display()
    )]
    Unfit { dir: PathBuf, reason: String },
}

/// The state of a file: time, size, number.
pub type FileStamp = Option<(i64, i64, u64, u64)>;

/// Where the files are.
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
    /// `None`: they never change.
    files: Option<Files>,
    /// The files as they were last looked at.
    looked_at: Mutex<Vec<FileStamp>>,
    current: watch::Sender<Arc<Identity>>,
    asked: Notify,
}

/// The certificates of this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Certificates {
    shared: Arc<CertificateState>,
}

impl Certificates {
    /// Loads those of `role` from `dir`, and follows the files from then on.
    ///
    /// # Errors
    ///
    /// [`TlsError`], naming the file.
    pub fn load(dir: &Path, role: Role) -> Result<Self, TlsError> {
        let files = Files {
            dir: dir.to_owned(),
            role,
        };
        // Before the files are read, or a change in between would go unseen.
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
                looked_at: Mutex::new(stamps),
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

    /// The same, and each change of it.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Identity>> {
        self.shared.current.subscribe()
    }

    /// Looks at the files soon, in [`Self::follow`]; what SIGHUP does.
    pub fn ask(&self) {
        // The files are read even if nothing about them seems to have changed.
        self.looked_at().clear();
        self.shared.asked.notify_one();
    }

    /// Reads the files if they have changed since the last look. Whether other certificates are in use.
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
            let mut looked_at = self.looked_at();
            if *looked_at == stamps {
                return Ok(false);
            }
            *looked_at = stamps;
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

    /// Refreshes for ever, and says what happened. `changed` is called with each new certificate.
    pub async fn follow(&self, changed: impl Fn(&Identity)) {
        loop {
            // A timer that is late is as good as one in time.
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

    fn looked_at(&self) -> std::sync::MutexGuard<'_, Vec<FileStamp>> {
        // A list of times is whole whatever happened elsewhere.
        self.shared
            .looked_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Identity> for Certificates {
    /// Certificates that never change.
    fn from(identity: Identity) -> Self {
        Self::new(identity, None, Vec::new())
    }
}

/// Whether peers will take the certificate: its key fits, the authority signed it, and it holds now.
fn check(identity: &Identity, role: Role) -> Result<(), String> {
    // Building a configuration compares key and certificate.
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

/// Says so if the certificate has ended or soon will.
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

/// An error and its causes on one line.
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
