//! The state that all parts of the world share: time, random numbers, the network, the event queue, the trace.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write as _};
use std::time::Duration;

use muster_control_core::broker::Delivery;
use muster_control_core::scheduler::ScheduleOutcome;
use muster_domain::id::Timestamp;

use crate::bug::Bug;
use crate::host::event::HostEvent;
use crate::limits;
use crate::message::{Endpoint, Message};
use crate::network::Network;
use crate::oracle::Oracle;
use crate::rng::SimRng;

/// An event in the future.
#[derive(Debug)]
pub enum Event {
    Deliver {
        from: Endpoint,
        to: Endpoint,
        message: Box<Message>,
    },
    /// The next message on a stream arrives.
    Stream {
        from: Endpoint,
        to: Endpoint,
    },
    /// A server's disk has finished a sync.
    Synced {
        server: usize,
        life: u64,
        /// The number of the last write that is synced.
        upto: u64,
    },
    /// A leader's worker has finished.
    WorkerDone {
        server: usize,
        leadership: (u64, u64),
        /// The delivery that the worker held.
        delivery: Delivery,
        /// The outcome that the worker produced.
        outcome: Option<Box<ScheduleOutcome>>,
    },
    /// An event in a machine.
    Host {
        host: usize,
        what: HostEvent,
    },
    ServerCrashes(usize),
    /// A server starts again.
    ServerStarts(usize),
    /// An agent starts again.
    AgentStarts(usize),
    /// A client sends its next request, or repeats one.
    Client(usize),
    Fault,
}

/// The shared state of all parts of the world.
#[derive(Debug)]
pub struct Env {
    /// The random number generator of the run.
    pub rng: SimRng,
    pub now: Timestamp,
    /// Whether faults and user requests have stopped.
    pub is_calm: bool,
    /// The deliberate bug that is switched on.
    pub bug: Option<Bug>,
    pub network: Network,
    /// The checker of the invariants.
    pub oracle: Oracle,
    /// The trace of the events so far.
    pub trace: Trace,
    queue: BTreeMap<(Timestamp, u64), Event>,
    next: u64,
    streams: BTreeMap<(Endpoint, Endpoint), Stream>,
}

/// Messages under way between an agent and a server, in order.
#[derive(Debug, Default)]
struct Stream {
    messages: VecDeque<(Timestamp, Message)>,
    /// Number of times that a cut link has held up the first message.
    tries: u32,
}

impl Env {
    /// Creates an empty world at `now`.
    #[must_use]
    pub fn new(rng: SimRng, now: Timestamp, bug: Option<Bug>, servers: usize) -> Self {
        Self {
            rng,
            now,
            is_calm: false,
            bug,
            network: Network::default(),
            oracle: Oracle::new(servers),
            trace: Trace::default(),
            queue: BTreeMap::new(),
            next: 0,
            streams: BTreeMap::new(),
        }
    }

    /// Whether `bug` is switched on.
    #[must_use]
    pub fn has_bug(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns true in `percent` of cases during the storm, and false after it.
    pub fn fault_chance(&mut self, percent: u32) -> bool {
        self.rng.chance(percent) && !self.is_calm
    }

    /// Schedules `event` at `at`.
    pub fn at(&mut self, at: Timestamp, event: Event) {
        self.queue.insert((at, self.next), event);
        self.next += 1;
    }

    /// Schedules `event` between `low_ms` and `high_ms` milliseconds from now.
    pub fn after(&mut self, low_ms: u64, high_ms: u64, event: Event) {
        let at = self.now.plus(self.rng.millis(low_ms, high_ms));
        self.at(at, event);
    }

    /// Returns the time of the next event.
    #[must_use]
    pub fn next_at(&self) -> Option<Timestamp> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns and removes the next event.
    pub fn pop(&mut self) -> Option<Event> {
        self.queue.pop_first().map(|(_, event)| event)
    }

    /// Sends a message. Between agents and servers it travels on a stream, in order. The second copy of a doubled
    /// message arrives at any time.
    pub fn send(&mut self, from: Endpoint, to: Endpoint, message: Message) {
        let on_stream = matches!(from, Endpoint::Host(_)) || matches!(to, Endpoint::Host(_));
        if on_stream {
            let delay = self.network.stream(&mut self.rng);
            self.send_on_stream(from, to, message, delay);
            return;
        }
        let delays = if self.network.is_open(from, to) {
            self.network.datagram(&mut self.rng)
        } else {
            Vec::new()
        };
        for delay in delays {
            let event = Event::Deliver {
                from,
                to,
                message: Box::new(message.clone()),
            };
            self.at(self.now.plus(delay), event);
        }
    }

    fn send_on_stream(&mut self, from: Endpoint, to: Endpoint, message: Message, delay: Duration) {
        let at = self.now.plus(delay);
        let stream = self.streams.entry((from, to)).or_default();
        stream.messages.push_back((at, message));
        if stream.messages.len() == 1 {
            self.at(at, Event::Stream { from, to });
        }
    }

    /// Returns the next message of a stream. If the link is cut, the message is sent again later, until both ends
    /// must have ended the session.
    pub fn next_on_stream(&mut self, from: Endpoint, to: Endpoint) -> Option<Message> {
        let now = self.now;
        let is_open = self.network.is_open(from, to);
        let stream = self.streams.get_mut(&(from, to))?;
        if !is_open && stream.tries < limits::STREAM_TRIES_MAX {
            stream.tries += 1;
            self.after(300, 700, Event::Stream { from, to });
            return None;
        }
        stream.tries = 0;
        if !is_open {
            stream.messages.clear();
            return None;
        }
        let (_, message) = stream.messages.pop_front()?;
        let next_at = stream.messages.front().map(|(at, _)| now.max(*at));
        if let Some(at) = next_at {
            self.at(at, Event::Stream { from, to });
        }
        if self.rng.chance(self.network.duplicated) {
            let message = Box::new(message.clone());
            let late_ms = self.network.late_ms;
            self.after(0, late_ms, Event::Deliver { from, to, message });
        }
        Some(message)
    }

    /// Writes a line to the trace.
    pub fn trace_line(&mut self, line: fmt::Arguments<'_>) {
        let now = self.now;
        self.trace.trace_line(now, line);
    }
}

/// A trace with one line per event. Its digest covers every event, including events without a line.
#[derive(Debug, Default)]
pub struct Trace {
    pub text: String,
    /// Whether the trace also has a line for each row that an entry changed.
    pub has_rows: bool,
    digest: u64,
    events: u64,
}

impl Trace {
    /// Mixes an event into the digest.
    pub fn note(&mut self, at: Timestamp, place: u64) {
        self.events += 1;
        for word in [at.0, place] {
            self.digest = (self.digest ^ word).wrapping_mul(0x0100_0000_01b3);
            self.digest ^= self.digest >> 29;
        }
    }

    /// Returns the number of events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    fn trace_line(&mut self, now: Timestamp, line: fmt::Arguments<'_>) {
        let since = now.since(limits::EPOCH);
        let (seconds, millis) = (since.as_secs(), since.subsec_millis());
        let digest = self.digest & 0xffff;
        writeln!(self.text, "{seconds:>5}.{millis:03} {digest:04x} {line}")
            .expect("writing to a String cannot fail");
    }
}

/// Returns a duration of `ms` milliseconds.
#[must_use]
pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
