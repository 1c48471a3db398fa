//! The network: it decides which messages arrive, and when.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::message::Endpoint;
use crate::rng::SimRng;

/// The faults of all links, and the set of cut links.
#[derive(Debug)]
pub struct Network {
    cut: BTreeSet<(Endpoint, Endpoint)>,
    /// Percent of messages that are lost.
    pub loss: u32,
    /// Percent of messages that arrive twice.
    pub duplicated: u32,
    /// Percent of messages that later messages overtake.
    pub late: u32,
    /// Longest usual delay of a message, in milliseconds.
    pub usual_ms: u64,
    /// Longest delay of a late message, in milliseconds.
    pub late_ms: u64,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            cut: BTreeSet::new(),
            loss: 0,
            duplicated: 0,
            late: 0,
            usual_ms: 4,
            late_ms: 200,
        }
    }
}

impl Network {
    /// Draws new fault rates from the seed. Cut links stay cut.
    pub fn change_fault_rates(&mut self, rng: &mut SimRng) {
        self.loss = [0, 0, 1, 5, 20][rng.below(5)];
        self.duplicated = [0, 2, 10, 30][rng.below(4)];
        self.late = [0, 2, 10, 30][rng.below(4)];
        self.usual_ms = [2, 4, 20, 80][rng.below(4)];
        self.late_ms = [50, 200, 1_500, 8_000][rng.below(4)];
    }

    /// Removes all faults and restores all cut links.
    pub fn heal(&mut self) {
        *self = Self::default();
    }

    /// Restores all cut links.
    pub fn join(&mut self) {
        self.cut.clear();
    }

    /// Cuts the link from `from` to `to`.
    pub fn cut(&mut self, from: Endpoint, to: Endpoint) {
        self.cut.insert((from, to));
    }

    /// Whether a message from `from` can get to `to`.
    #[must_use]
    pub fn is_open(&self, from: Endpoint, to: Endpoint) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// Returns the delay of each copy of a datagram. The list is empty if the datagram is lost.
    pub fn datagram(&self, rng: &mut SimRng) -> Vec<Duration> {
        if rng.chance(self.loss) {
            return Vec::new();
        }
        self.copies(rng)
    }

    /// Returns the delay of a message on a stream. A lost message is sent again, so it only arrives later.
    pub fn stream(&self, rng: &mut SimRng) -> Duration {
        let again = if rng.chance(self.loss) {
            rng.millis(200, 800)
        } else {
            Duration::ZERO
        };
        self.delay(rng) + again
    }

    fn copies(&self, rng: &mut SimRng) -> Vec<Duration> {
        let mut copies = vec![self.delay(rng)];
        if rng.chance(self.duplicated) {
            copies.push(self.delay(rng) + rng.millis(0, self.late_ms));
        }
        copies
    }

    fn delay(&self, rng: &mut SimRng) -> Duration {
        if rng.chance(self.late) {
            rng.micros(100, self.late_ms * 1_000)
        } else {
            rng.micros(100, self.usual_ms * 1_000)
        }
    }
}
