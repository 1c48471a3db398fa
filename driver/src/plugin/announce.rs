//! The plugin's side of the handshake: this process is a plugin of a host.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio::net::UnixListener;

use super::handshake::{
    CLIENT_CERT_KEY, COOKIE_KEY, COOKIE_VALUE, PLUGIN_VERSION, SOCKET_DIR_KEY, VERSIONS_KEY, line,
};

/// The reason why this process cannot be a plugin of the host that started it.
#[derive(Debug, Error)]
pub enum AnnounceError {
    /// The host supports only other versions of the protocol.
    #[error(
        "serve as a plugin: the host speaks versions {offered} of the plugin protocol, this driver speaks {PLUGIN_VERSION}"
    )]
    Version {
        /// The protocol versions of the host.
        offered: String,
    },
    #[error("serve as a plugin: the host asks for encryption, which task drivers do not use")]
    Encryption,
    /// The socket cannot be created.
    #[error("serve as a plugin: listen at {}", path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The handshake line cannot be printed.
    #[error("serve as a plugin: print the handshake")]
    Print(#[source] io::Error),
}

/// Returns whether a plugin host started this process.
pub fn started_by_host() -> bool {
    std::env::var_os(COOKIE_KEY).is_some_and(|cookie| cookie == COOKIE_VALUE)
}

/// A socket that was announced to the host. Dropping this value removes the socket.
#[derive(Debug)]
pub struct AnnouncedSocket {
    path: PathBuf,
}

impl AnnouncedSocket {
    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for AnnouncedSocket {
    fn drop(&mut self) {
        // The host may have removed the socket already.
        let _removed = std::fs::remove_file(&self.path);
    }
}

/// Listens on a new socket and prints its address on the standard output, on which nothing may have
/// been printed before. Must be called within a tokio runtime.
///
/// # Errors
///
/// [`AnnounceError`].
pub fn announce() -> Result<(UnixListener, AnnouncedSocket), AnnounceError> {
    let offered = std::env::var(VERSIONS_KEY).unwrap_or_default();
    let ours = PLUGIN_VERSION.to_string();
    if !offered.is_empty() && !offered.split(',').any(|version| version.trim() == ours) {
        return Err(AnnounceError::Version { offered });
    }
    if std::env::var_os(CLIENT_CERT_KEY).is_some_and(|certificate| !certificate.is_empty()) {
        return Err(AnnounceError::Encryption);
    }
    let dir = std::env::var_os(SOCKET_DIR_KEY)
        .filter(|dir| !dir.is_empty())
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let path = dir.join(format!("plugin{}-{}", std::process::id(), nanos()));
    let failed = |source| AnnounceError::Listen {
        path: path.clone(),
        source,
    };
    let listener = UnixListener::bind(&path).map_err(failed)?;
    let announced = AnnouncedSocket { path: path.clone() };
    private(&path).map_err(failed)?;
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(line(&path).as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(AnnounceError::Print)?;
    Ok((listener, announced))
}

/// Restricts access to the socket to its owner.
fn private(socket: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))
}

/// Returns a suffix that distinguishes the sockets of two processes with the same pid, if the earlier one left its
/// socket behind.
fn nanos() -> u32 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos())
}
