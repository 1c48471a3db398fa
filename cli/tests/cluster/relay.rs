//! A relay for UDP that delays, drops, doubles and reorders.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The faults of a link and their probabilities.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkFaults {
    /// The minimum delay of a datagram.
    pub(crate) delay: Duration,
    /// The maximum additional delay, by which datagrams are reordered.
    pub(crate) jitter: Duration,
    /// Percentage of lost datagrams.
    pub(crate) lost: u64,
    /// Percentage of duplicated datagrams.
    pub(crate) doubled: u64,
}

/// Datagrams on their way.
#[derive(Debug, Default)]
struct DatagramQueue {
    queue: Mutex<BinaryHeap<Reverse<(Instant, u64, Datagram)>>>,
    more: Condvar,
    number: AtomicU64,
    random_state: AtomicU64,
    pub(crate) counts: [AtomicU64; 3],
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Datagram {
    /// The socket to send from, by its position in the list.
    socket: usize,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// A relay. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    stop: Arc<AtomicBool>,
    queue: Arc<DatagramQueue>,
    threads: Vec<JoinHandle<()>>,
}

type Sockets = Arc<Mutex<Vec<Arc<UdpSocket>>>>;

impl Relay {
    /// Forwards datagrams from each first address to the second, and answers back.
    pub(crate) fn start(ways: &[(SocketAddr, SocketAddr)], link_faults: LinkFaults) -> Self {
        let queue = Arc::new(DatagramQueue::default());
        queue
            .random_state
            .store(0x2545_f491_4f6c_dd1d, Ordering::Relaxed);
        let stop = Arc::new(AtomicBool::new(false));
        let sockets: Sockets = Arc::default();
        let mut threads = Vec::new();
        for (front, back) in ways.iter().copied() {
            let socket = add(&sockets, front);
            let (queue, stop, sockets) =
                (Arc::clone(&queue), Arc::clone(&stop), Arc::clone(&sockets));
            threads.push(thread::spawn(move || {
                forward(socket, back, link_faults, &queue, &sockets, &stop);
            }));
        }
        let (sending, stopping) = (Arc::clone(&queue), Arc::clone(&stop));
        threads.push(thread::spawn(move || sending.deliver(&sockets, &stopping)));
        Self {
            stop,
            queue,
            threads,
        }
    }

    /// Datagrams lost, doubled, and passed on.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [0, 1, 2].map(|at: usize| self.queue.counts[at].load(Ordering::Relaxed))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.queue.more.notify_all();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// Binds a socket and adds it to the list; returns its position.
fn add(sockets: &Sockets, address: SocketAddr) -> (usize, Arc<UdpSocket>) {
    let socket = Arc::new(UdpSocket::bind(address).unwrap());
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
    sockets.push(Arc::clone(&socket));
    (sockets.len() - 1, socket)
}

/// Forwards datagrams of `front`. Each sender gets a socket of its own for answers.
fn forward(
    (front, socket): (usize, Arc<UdpSocket>),
    back: SocketAddr,
    link_faults: LinkFaults,
    queue: &Arc<DatagramQueue>,
    sockets: &Sockets,
    stop: &Arc<AtomicBool>,
) {
    let mut senders: HashMap<SocketAddr, usize> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Acquire) {
        let Ok((count, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let upstream = *senders.entry(from).or_insert_with(|| {
            let (place, upstream) = add(sockets, SocketAddr::from(([0, 0, 0, 0], 0)));
            let (queue, stop) = (Arc::clone(queue), Arc::clone(stop));
            thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while !stop.load(Ordering::Acquire) {
                    if let Ok((count, _)) = upstream.recv_from(&mut buffer) {
                        queue.take(front, from, &buffer[..count], link_faults);
                    }
                }
            });
            place
        });
        queue.take(upstream, back, &buffer[..count], link_faults);
    }
}

impl DatagramQueue {
    /// A number below a hundred.
    fn random_percent(&self) -> u64 {
        let mut random_state = self.random_state.load(Ordering::Relaxed);
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        self.random_state.store(random_state, Ordering::Relaxed);
        (random_state >> 33) % 100
    }

    fn take(&self, socket: usize, to: SocketAddr, bytes: &[u8], link_faults: LinkFaults) {
        if self.random_percent() < link_faults.lost {
            self.counts[0].fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut copies = 1;
        if self.random_percent() < link_faults.doubled {
            self.counts[1].fetch_add(1, Ordering::Relaxed);
            copies = 2;
        }
        self.counts[2].fetch_add(1, Ordering::Relaxed);
        for _ in 0..copies {
            let jitter = link_faults
                .jitter
                .mul_f64(self.random_percent() as f64 / 100.0);
            let datagram = Datagram {
                socket,
                to,
                bytes: bytes.to_vec(),
            };
            let number = self.number.fetch_add(1, Ordering::Relaxed);
            let due = Instant::now() + link_faults.delay + jitter;
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push(Reverse((due, number, datagram)));
        }
        self.more.notify_one();
    }

    fn deliver(&self, sockets: &Sockets, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let wait = queue
                .peek()
                .map_or(Duration::from_millis(200), |Reverse((due, ..))| {
                    due.saturating_duration_since(now)
                });
            if wait > Duration::ZERO {
                drop(self.more.wait_timeout(queue, wait));
                continue;
            }
            let datagram = queue.pop();
            drop(queue);
            if let Some(Reverse((_, _, datagram))) = datagram {
                let socket = {
                    let sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
                    Arc::clone(&sockets[datagram.socket])
                };
                // A datagram that cannot be sent is lost, as datagrams are.
                drop(socket.send_to(&datagram.bytes, datagram.to));
            }
        }
    }
}
