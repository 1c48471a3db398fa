//! The driver as a separate process: `muster driver native`.
//!
//! An agent starts the driver, and the driver outlives the agent, so nothing of the agent may end it. The driver leads
//! a session, ignores interrupts and hang-ups, and leaves its tasks running when it ends. A lock next to the socket
//! prevents a second driver: two drivers would both wait for the same tasks, and each would have half of them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_driver::plugin;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::driver::NativeDriver;
use crate::limits;
use crate::spawn::OpenFiles;

/// The reason why the driver is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Another process holds the lock.
    #[error(
        "serve the native driver at {}: another driver serves there (it holds {}); use it, or end it first",
        socket.display(), lock.display()
    )]
    AlreadyServed { socket: PathBuf, lock: PathBuf },
    /// The path is longer than the kernel allows.
    #[error(
        "serve the native driver at {}: the path has {length} bytes, a unix socket's has at most {max}; use a shorter directory",
        socket.display(), max = limits::SOCKET_PATH_BYTES_MAX
    )]
    PathTooLong {
        socket: PathBuf,
        /// The length of the path in bytes.
        length: usize,
    },
    /// A file could not be created.
    #[error("serve the native driver: {what} {}", path.display())]
    File {
        /// The operation that failed.
        what: &'static str,
        /// The path of the file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The signal handlers could not be installed.
    #[error("serve the native driver: handle signals")]
    Signals(#[source] io::Error),
    /// The host that started this process as a plugin cannot be served.
    #[error(transparent)]
    Announce(#[from] plugin::AnnounceError),
    #[error(transparent)]
    Plugin(#[from] plugin::ServeError),
}

/// Serves a native driver at `socket` until a host requests a shutdown or SIGTERM arrives. The driver's tasks continue
/// to run.
///
/// # Errors
///
/// [`ServeError::AlreadyServed`] when another driver serves there; other errors when the socket cannot be created.
pub async fn serve(socket: &Path) -> Result<(), ServeError> {
    let length = socket.as_os_str().len();
    if length > limits::SOCKET_PATH_BYTES_MAX {
        return Err(ServeError::PathTooLong {
            socket: socket.to_owned(),
            length,
        });
    }
    let _lock = lock(socket)?;
    start_new_session();
    let shutdown = CancellationToken::new();
    handle_signals(shutdown.clone()).map_err(ServeError::Signals)?;
    let task_open_files = raise_open_files();
    let listener = bind(socket)?;
    let driver = Arc::new(NativeDriver::with_open_files(task_open_files));
    info!(socket = %socket.display(), pid = std::process::id(), "the native driver serves");
    let served = plugin::serve(driver, listener, shutdown).await;
    // The lock is still held: no other driver has made the socket its own.
    remove(socket)?;
    served?;
    info!("the native driver ends; its tasks go on");
    Ok(())
}

/// Serves a native driver to the plugin host that started this process, such as Nomad or another agent with this
/// program in its `plugin_dir`. Each driver process has its own socket, so no lock is needed. A host runs one process
/// at a time and recovers the tasks into it.
///
/// # Errors
///
/// [`ServeError::Announce`] when the handshake between host and driver fails.
pub async fn serve_plugin() -> Result<(), ServeError> {
    start_new_session();
    let shutdown = CancellationToken::new();
    handle_signals(shutdown.clone()).map_err(ServeError::Signals)?;
    let task_open_files = raise_open_files();
    let driver = Arc::new(NativeDriver::with_open_files(task_open_files));
    let (listener, announced) = plugin::announce()?;
    info!(socket = %announced.path().display(), pid = std::process::id(), "the native driver serves as a plugin");
    plugin::serve(driver, listener, shutdown).await?;
    info!("the native driver ends; its tasks go on");
    Ok(())
}

/// Locks the lock file. The file stays when its holder ends; the lock does not.
fn lock(socket: &Path) -> Result<Flock<File>, ServeError> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let failed = |source| ServeError::File {
        what: "open the lock file",
        path: path.clone(),
        source,
    };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_file, errno)| match errno {
        Errno::EWOULDBLOCK => ServeError::AlreadyServed {
            socket: socket.to_owned(),
            lock: path.clone(),
        },
        other => failed(other.into()),
    })
}

/// Creates the socket, for its owner only. An existing socket belonged to a driver that has ended.
fn bind(socket: &Path) -> Result<UnixListener, ServeError> {
    remove(socket)?;
    let failed = |what| {
        move |source| ServeError::File {
            what,
            path: socket.to_owned(),
            source,
        }
    };
    let listener = UnixListener::bind(socket).map_err(failed("bind the socket"))?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))
        .map_err(failed("set the mode of the socket"))?;
    Ok(listener)
}

fn remove(socket: &Path) -> Result<(), ServeError> {
    match std::fs::remove_file(socket) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(ServeError::File {
            what: "remove the socket",
            path: socket.to_owned(),
            source,
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Raises the limit of open files: each task costs the driver three or four, and the usual limit is 1 024. Returns the
/// limit for tasks, because programs that use `select` break above 1 024. An agent that raised its own limit passes on
/// its original limit.
fn raise_open_files() -> Option<OpenFiles> {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limit) => limit,
        Err(error) => {
            warn!(%error, "cannot read the limit of open files");
            return None;
        }
    };
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        warn!(%error, soft, hard, "cannot raise the limit of open files; it bounds the tasks");
        return None;
    }
    let found = std::env::var("MUSTER_OPEN_FILES").ok();
    let found = found.and_then(|soft| soft.parse().ok());
    let soft = found.unwrap_or(soft).min(hard);
    Some(OpenFiles { soft, hard })
}

/// Starts a new session, so that a terminal's signals to the agent do not reach this process. The call fails for a
/// process that already leads its group, which is harmless.
fn start_new_session() {
    if let Err(error) = rustix::process::setsid() {
        debug!(%error, "the driver stays in its session");
    }
}

/// Installs the signal handlers: SIGTERM ends the driver; SIGINT, SIGHUP and SIGPIPE have no effect.
fn handle_signals(shutdown: CancellationToken) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut ignored = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::pipe())?,
    ];
    let _handling = tokio::spawn(async move {
        let [interrupt, hangup, pipe] = &mut ignored;
        loop {
            tokio::select! {
                _ = terminate.recv() => {
                    info!("SIGTERM");
                    shutdown.cancel();
                }
                _ = interrupt.recv() => debug!("SIGINT ignored"),
                _ = hangup.recv() => debug!("SIGHUP ignored"),
                _ = pipe.recv() => {}
            }
        }
    });
    Ok(())
}
