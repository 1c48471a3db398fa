//! One connection to one server. It is opened on demand, and reopened after a loss.
//!
//! Callers share one attempt, which goes on when a caller gives up. Raft's time limit may be shorter than a
//! handshake over a long line. After a failure callers get the error at once until a pause has passed. So no
//! caller waits for a dead server twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use quinn::{Connection, ConnectionError, VarInt};
use tokio::sync::watch;

use super::{Dialer, PeerError, explain};
use crate::backoff::Backoff;
use crate::limits;

/// The server at the other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct PeerTarget {
    /// The server's name in messages.
    pub(super) shown: String,
    /// A host and a port.
    pub(super) addr: String,
    /// The name that the server's certificate must have.
    pub(super) dns_name: String,
}

/// The connection to a server.
#[derive(Debug)]
pub(super) struct PeerConnection {
    target: PeerTarget,
    dialer: Arc<Dialer>,
    state: Arc<Mutex<State>>,
    /// Whether the log says that the server cannot be reached; `None` if another connection to the server logs
    /// that.
    logged_unreachable: Option<Arc<AtomicBool>>,
}

#[derive(Debug)]
enum State {
    Down {
        /// The pauses between consecutive failed attempts.
        failures: Backoff,
        /// Time of the next attempt, and the reason for the last failure.
        pause: Option<(Instant, String)>,
    },
    /// A connection is being opened; the channel changes when that attempt has ended.
    Dialing {
        failures: Backoff,
        ended: watch::Receiver<()>,
    },
    Up {
        connection: Connection,
        /// The pauses between the consecutive attempts that failed before.
        failures: Backoff,
        opened: Instant,
        seen: LastReceived,
    },
}

/// The count of datagrams on a connection, and when it was read.
#[derive(Clone, Copy, Debug)]
struct LastReceived {
    datagrams: u64,
    at: Instant,
}

impl PeerConnection {
    /// Creates a connection that is not open. `is_reported`: it logs the loss and the return of the server.
    pub(super) fn new(target: PeerTarget, dialer: Arc<Dialer>, is_reported: bool) -> Self {
        let state = State::Down {
            failures: Backoff::new(limits::PEER_PAUSE_MIN, limits::PEER_PAUSE_MAX),
            pause: None,
        };
        Self {
            target,
            dialer,
            state: Arc::new(Mutex::new(state)),
            logged_unreachable: is_reported.then(Arc::default),
        }
    }

    pub(super) fn target(&self) -> &PeerTarget {
        &self.target
    }

    pub(super) fn unreachable_error(&self, reason: String) -> PeerError {
        PeerError::Unreachable {
            server: self.target.shown.clone(),
            reason,
        }
    }

    pub(super) fn lost_error(&self, reason: String) -> PeerError {
        PeerError::Lost {
            server: self.target.shown.clone(),
            reason,
        }
    }

    /// Returns the connection. Opens one if there is none.
    pub(super) async fn connection(&self) -> Result<Connection, PeerError> {
        loop {
            let mut ended = match &mut *self.lock() {
                State::Up {
                    connection, opened, ..
                } if connection.close_reason().is_none() => {
                    // A server that refuses this one closes the connection sooner.
                    if opened.elapsed() > limits::PEER_SILENCE {
                        self.log_reached();
                    }
                    return Ok(connection.clone());
                }
                State::Down {
                    pause: Some((until, reason)),
                    ..
                } if Instant::now() < *until => return Err(self.unreachable_error(reason.clone())),
                State::Dialing { ended, .. } => ended.clone(),
                state => {
                    if let Some(reason) = take_close_reason(state) {
                        log_lost(self.logged_unreachable.as_deref(), &self.target, &reason);
                        return Err(self.unreachable_error(reason));
                    }
                    self.dial(state)
                }
            };
            // An error means that the attempt is over as well.
            drop(ended.changed().await);
        }
    }

    /// Starts an attempt.
    fn dial(&self, state: &mut State) -> watch::Receiver<()> {
        let failures = match state {
            State::Down { failures, .. } | State::Dialing { failures, .. } => failures.clone(),
            State::Up { .. } => Backoff::new(limits::PEER_PAUSE_MIN, limits::PEER_PAUSE_MAX),
        };
        let (end, ended) = watch::channel(());
        *state = State::Dialing {
            failures: failures.clone(),
            ended: ended.clone(),
        };
        let (target, dialer, shared) = (
            self.target.clone(),
            Arc::clone(&self.dialer),
            Arc::clone(&self.state),
        );
        let logged_unreachable = self.logged_unreachable.clone();
        tokio::spawn(async move {
            let result =
                match tokio::time::timeout(limits::PEER_DIAL_WAIT, dial(&target, &dialer)).await {
                    Ok(result) => result,
                    Err(_) => Err(format!("no answer within {:?}", limits::PEER_DIAL_WAIT)),
                };
            let next = match result {
                Ok(connection) => State::Up {
                    seen: LastReceived::of(&connection),
                    opened: Instant::now(),
                    failures,
                    connection,
                },
                Err(reason) => {
                    log_lost(logged_unreachable.as_deref(), &target, &reason);
                    State::down(failures, reason)
                }
            };
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = next;
            end.send_replace(());
        });
        ended
    }

    /// Closes the connection if no datagram has arrived for a while. A caller waits for an answer in vain, and the
    /// path may be dead without any error.
    pub(super) fn check(&self) {
        if let State::Up {
            connection, seen, ..
        } = &mut *self.lock()
        {
            let now = LastReceived::of(connection);
            if now.datagrams != seen.datagrams {
                *seen = now;
            } else if seen.at.elapsed() >= limits::PEER_SILENCE {
                tracing::debug!(peer = self.target.shown, "silent: given up");
                connection.close(VarInt::from_u32(0), b"silent");
            }
        }
    }

    /// Closes the connection because the server has another address.
    pub(super) fn abandon(&self) {
        if let State::Up { connection, .. } = &*self.lock() {
            connection.close(VarInt::from_u32(0), b"moved");
        }
    }

    /// Logs that the server can be reached again, if it could not be.
    fn log_reached(&self) {
        if self
            .logged_unreachable
            .as_ref()
            .is_some_and(|logged_unreachable| logged_unreachable.swap(false, Ordering::Relaxed))
        {
            tracing::info!(peer = self.target.shown, "a server can be reached again");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is replaced in one assignment, so a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The state after a failed attempt.
    fn down(mut failures: Backoff, reason: String) -> Self {
        let until = Instant::now() + failures.next_pause();
        Self::Down {
            failures,
            pause: Some((until, reason)),
        }
    }
}

/// Logs that the server cannot be reached: once, for any number of attempts.
fn log_lost(logged_unreachable: Option<&AtomicBool>, target: &PeerTarget, reason: &str) {
    match logged_unreachable {
        Some(logged_unreachable) if !logged_unreachable.swap(true, Ordering::Relaxed) => {
            tracing::warn!(
                peer = target.shown,
                reason,
                "a server cannot be reached; it is tried again, less and less often"
            );
        }
        _ => tracing::debug!(peer = target.shown, reason, "no connection"),
    }
}

/// Returns the reason why the other server closed a connection right after its opening. That is a failed attempt
/// too: the server refuses this one, and would again.
fn take_close_reason(state: &mut State) -> Option<String> {
    let State::Up {
        connection,
        failures,
        opened,
        ..
    } = state
    else {
        return None;
    };
    let closed = connection.close_reason()?;
    if !matches!(closed, ConnectionError::ApplicationClosed(_))
        || opened.elapsed() > limits::PEER_SILENCE
    {
        return None;
    }
    let reason = explain(&closed);
    *state = State::down(failures.clone(), reason.clone());
    Some(reason)
}

impl LastReceived {
    fn of(connection: &Connection) -> Self {
        Self {
            datagrams: connection.stats().udp_rx.datagrams,
            at: Instant::now(),
        }
    }
}

async fn dial(target: &PeerTarget, dialer: &Dialer) -> Result<Connection, String> {
    let mut addresses = tokio::net::lookup_host(&target.addr)
        .await
        .map_err(|error| format!("`{}` cannot be resolved: {error}", target.addr))?;
    let addr = addresses
        .next()
        .ok_or_else(|| format!("`{}` has no address", target.addr))?;
    dialer
        .endpoint
        .connect_with(dialer.config(), addr, &target.dns_name)
        .map_err(|error| error.to_string())?
        .await
        .map_err(|error| explain(&error))
}
