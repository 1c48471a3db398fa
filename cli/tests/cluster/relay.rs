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
    dice: AtomicU64,
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
    air: Arc<DatagramQueue>,
    threads: Vec<JoinHandle<()>>,
}

type Sockets = Arc<Mutex<Vec<Arc<UdpSocket>>>>;

impl Relay {
    /// Forwards datagrams from each first address to the second, and answers back.
    pub(crate) fn start(ways: &[(SocketAddr, SocketAddr)], weather: LinkFaults) -> Self {
        let air = Arc::new(DatagramQueue::default());
        air.dice.store(0x2545_f491_4f6c_dd1d, Ordering::Relaxed);
        let stop = Arc::new(AtomicBool::new(false));
        let sockets: Sockets = Arc::default();
        let mut threads = Vec::new();
        for (front, back) in ways.iter().copied() {
            let socket = add(&sockets, front);
            let (air, stop, sockets) = (Arc::clone(&air), Arc::clone(&stop), Arc::clone(&sockets));
            threads.push(thread::spawn(move || {
                forward(socket, back, weather, &air, &sockets, &stop);
            }));
        }
        let (sending, stopping) = (Arc::clone(&air), Arc::clone(&stop));
        threads.push(thread::spawn(move || sending.deliver(&sockets, &stopping)));
        Self { stop, air, threads }
    }

    /// Datagrams lost, doubled, and passed on.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [0, 1, 2].map(|at: usize| self.air.counts[at].load(Ordering::Relaxed))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.air.more.notify_all();
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
    weather: LinkFaults,
    air: &Arc<DatagramQueue>,
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
            let (air, stop) = (Arc::clone(air), Arc::clone(stop));
            thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while !stop.load(Ordering::Acquire) {
                    if let Ok((count, _)) = upstream.recv_from(&mut buffer) {
                        air.take(front, from, &buffer[..count], weather);
                    }
                }
            });
            place
        });
        air.take(upstream, back, &buffer[..count], weather);
    }
}

impl DatagramQueue {
    /// A number below a hundred.
    fn throw(&self) -> u64 {
        let mut dice = self.dice.load(Ordering::Relaxed);
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        self.dice.store(dice, Ordering::Relaxed);
        (dice >> 33) % 100
    }

    fn take(&self, socket: usize, to: SocketAddr, bytes: &[u8], weather: LinkFaults) {
        if self.throw() < weather.lost {
            self.counts[0].fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut copies = 1;
        if self.throw() < weather.doubled {
            self.counts[1].fetch_add(1, Ordering::Relaxed);
            copies = 2;
        }
        self.counts[2].fetch_add(1, Ordering::Relaxed);
        for _ in 0..copies {
            let jitter = weather.jitter.mul_f64(self.throw() as f64 / 100.0);
            let datagram = Datagram {
                socket,
                to,
                bytes: bytes.to_vec(),
            };
            let number = self.number.fetch_add(1, Ordering::Relaxed);
            let due = Instant::now() + weather.delay + jitter;
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
