//! The open connections of one listener, and the choice of the one that is closed for a new one.
//!
//! A connection that only waits (between requests, for a header, for a change, or for a client that reads) may be
//! closed for a new one where there is no room. The address with the most connections loses one first. So clients
//! that hold connections open cannot lock others out, and a short request is never interrupted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The numbers of connections that a listener accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// All connections at once.
    pub(crate) total: usize,
    /// Connections of one address that is not a loopback address.
    pub(crate) per_address: usize,
}

/// The current use of a connection, in the order in which connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    /// No whole request has arrived: an idle connection, or one that sends a header or a body.
    Idle,
    /// The request waits for a change (a blocking query).
    Waiting,
    /// The answer is being sent, a stream included.
    Sending,
    /// The request is being handled. Such a connection is never closed for another.
    Running,
    /// The connection carries an exec session or a snapshot, which have their own limits. It is never closed for
    /// another.
    Session,
}

impl Activity {
    fn gives_way(self) -> bool {
        self < Self::Running
    }
}

#[derive(Debug)]
struct ConnectionEntry {
    address: IpAddr,
    activity: Activity,
    since: Instant,
    /// Bytes of the answer that is being sent.
    bytes: usize,
    close: CancellationToken,
}

#[derive(Debug, Default)]
struct Table {
    next_id: u64,
    open: BTreeMap<u64, ConnectionEntry>,
    by_address: BTreeMap<IpAddr, usize>,
}

impl Table {
    fn of_address(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or(0)
    }

    fn remove(&mut self, id: u64) -> Option<ConnectionEntry> {
        let entry = self.open.remove(&id)?;
        if let Some(count) = self.by_address.get_mut(&entry.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&entry.address);
            }
        }
        Some(entry)
    }

    /// Closes the first connection in that order: of `address` alone, or of the address with the most connections.
    fn close_one(&mut self, address: Option<IpAddr>) -> bool {
        let candidates = self.open.iter().filter(|(_, entry)| {
            entry.activity.gives_way() && address.is_none_or(|address| entry.address == address)
        });
        let first = candidates.min_by_key(|(id, entry)| {
            let load = self.of_address(entry.address);
            (std::cmp::Reverse(load), entry.activity, entry.since, **id)
        });
        let Some(id) = first.map(|(id, _)| *id) else {
            return false;
        };
        let entry = self.remove(id);
        let entry = entry.expect("the id was found in the table");
        tracing::debug!(address = %entry.address, activity = ?entry.activity, "a connection gives way to another");
        entry.close.cancel();
        true
    }
}

/// The open connections of one listener.
#[derive(Debug)]
pub(super) struct Connections {
    limits: ConnectionLimits,
    table: Mutex<Table>,
}

impl Connections {
    pub(super) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            table: Mutex::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection. Closes another one first if there is no room. Returns `None` if none can be closed.
    pub(super) fn register(self: &Arc<Self>, address: IpAddr) -> Option<Registration> {
        let mut table = self.table();
        if !address.is_loopback()
            && table.of_address(address) >= self.limits.per_address
            && !table.close_one(Some(address))
        {
            return None;
        }
        if table.open.len() >= self.limits.total && !table.close_one(None) {
            return None;
        }
        let id = table.next_id;
        table.next_id += 1;
        let close = CancellationToken::new();
        let entry = ConnectionEntry {
            address,
            activity: Activity::Idle,
            since: Instant::now(),
            bytes: 0,
            close: close.clone(),
        };
        table.open.insert(id, entry);
        *table.by_address.entry(address).or_default() += 1;
        drop(table);
        Some(Registration {
            connections: Arc::clone(self),
            id,
            close,
        })
    }

    /// Closes connections whose answer has been sent for longer than `age`, until `bytes` are free. Those of the
    /// address with the most connections are closed first.
    pub(super) fn close_slow_readers(&self, age: Duration, bytes: usize) {
        let now = Instant::now();
        let mut table = self.table();
        let mut slow: Vec<_> = table
            .open
            .iter()
            .filter(|(_, entry)| {
                entry.activity == Activity::Sending
                    && entry.bytes > 0
                    && now.duration_since(entry.since) > age
            })
            .map(|(id, entry)| {
                let load = table.of_address(entry.address);
                (std::cmp::Reverse(load), entry.since, *id)
            })
            .collect();
        slow.sort_unstable();
        let mut freed = 0;
        for (_, _, id) in slow {
            if freed >= bytes {
                break;
            }
            if let Some(entry) = table.remove(id) {
                tracing::debug!(address = %entry.address, bytes = entry.bytes, "a slow reader is cut off");
                freed += entry.bytes;
                entry.close.cancel();
            }
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.table().open.len()
    }
}

/// A registered connection. Its drop removes it from the table.
#[derive(Debug)]
pub(super) struct Registration {
    connections: Arc<Connections>,
    id: u64,
    close: CancellationToken,
}

impl Registration {
    /// The token that is cancelled when the connection must make room.
    pub(super) fn close_token(&self) -> &CancellationToken {
        &self.close
    }

    pub(super) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Records the use of the connection from now on. A session stays a session.
    pub(super) fn set(&self, activity: Activity) {
        self.set_with_bytes(activity, 0);
    }

    /// Records that an answer of `bytes` bytes is being sent.
    pub(super) fn set_sending(&self, bytes: usize) {
        self.set_with_bytes(Activity::Sending, bytes);
    }

    /// Ends a session; its request continues.
    pub(super) fn end_session(&self) {
        let mut table = self.connections.table();
        if let Some(entry) = table.open.get_mut(&self.id) {
            entry.activity = Activity::Running;
            entry.since = Instant::now();
        }
    }

    fn set_with_bytes(&self, activity: Activity, bytes: usize) {
        let mut table = self.connections.table();
        if let Some(entry) = table.open.get_mut(&self.id)
            && entry.activity != Activity::Session
        {
            entry.activity = activity;
            entry.since = Instant::now();
            entry.bytes = bytes;
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.connections.table().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits {
        total: 4,
        per_address: 3,
    };

    fn address(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
    }

    fn is_open(registration: &Registration) -> bool {
        !registration.close_token().is_cancelled()
    }

    #[test]
    fn address_cannot_take_all_room() {
        let connections = Connections::new(LIMITS);
        let of_one: Vec<_> = (0..5).map(|_| connections.register(address(1))).collect();

        assert_eq!(connections.count(), LIMITS.per_address);
        assert!(of_one.iter().all(Option::is_some));
        drop(of_one);
        assert_eq!(connections.count(), 0);
        assert!(connections.table().by_address.is_empty());
    }

    #[test]
    fn oldest_idle_connection_of_heaviest_address_gives_way() {
        let connections = Connections::new(LIMITS);
        let single = connections.register(address(1)).unwrap();
        let heavy: Vec<_> = (0..3)
            .map(|_| connections.register(address(2)).unwrap())
            .collect();
        heavy[0].set(Activity::Waiting);

        let _new = connections.register(address(3)).unwrap();

        assert!(is_open(&single) && is_open(&heavy[0]) && is_open(&heavy[2]));
        assert!(!is_open(&heavy[1]));
    }

    #[test]
    fn running_requests_and_sessions_never_give_way() {
        let connections = Connections::new(LIMITS);
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let open: Vec<_> = (0..4)
            .map(|_| connections.register(local).unwrap())
            .collect();
        for one in &open {
            one.set(Activity::Running);
        }
        open[0].set(Activity::Session);
        open[0].set(Activity::Sending);

        assert!(connections.register(local).is_none());
        open[1].set(Activity::Waiting);
        assert!(connections.register(local).is_some());
        assert!(is_open(&open[0]) && !is_open(&open[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_readers_are_cut_until_enough_is_free() {
        let connections = Connections::new(LIMITS);
        let open: Vec<_> = (0..3)
            .map(|_| connections.register(address(1)).unwrap())
            .collect();
        open[0].set_sending(10);
        open[1].set_sending(10);
        tokio::time::advance(Duration::from_secs(6)).await;
        open[2].set_sending(10);

        connections.close_slow_readers(Duration::from_secs(5), 5);
        assert!(!is_open(&open[0]) && is_open(&open[1]));

        connections.close_slow_readers(Duration::from_secs(5), 100);
        assert!(!is_open(&open[1]) && is_open(&open[2]));
    }
}
