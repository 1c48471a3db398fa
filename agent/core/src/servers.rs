//! Decides which server the agent tries next, and when.
//!
//! Every known server is tried in turn, in an order that is the node's own, so that the nodes of a cluster spread over
//! its servers. A server that fails is not tried for a pause that grows. The other servers are tried meanwhile, so an
//! agent does not stay with a server that is dead or has no leader. All pauses are jittered by a sequence that the
//! node's id seeds, so nodes that lose the same server do not return together.
//!
//! Time is the agent's monotonic clock. The module does not interpret addresses.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Duration;

use muster_domain::id::{NodeId, Timestamp};
use muster_domain::saturating;

use crate::limits::{RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN, RETRY_AFTER_MAX, SERVERS_MAX};

/// The record of one server's failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ServerBackoff {
    failures: u32,
    /// Time of the next attempt, at the earliest.
    until: Timestamp,
}

/// The servers to choose from.
#[derive(Debug)]
pub struct Servers<A> {
    /// The servers that the operator named. They are used while no server has named others, and after all of those.
    configured: Vec<A>,
    /// The servers that the control plane named.
    learned: Vec<A>,
    backoffs: BTreeMap<A, ServerBackoff>,
    /// No attempt is made before this time, so that nodes do not come back together.
    paused_until: Timestamp,
    seed: u64,
    draws: u64,
    pause_max: Duration,
}

impl<A: Clone + Hash + Ord> Servers<A> {
    /// Creates the list from the servers `configured` by the operator and those `learned` by an earlier agent.
    #[must_use]
    pub fn new(node_id: NodeId, configured: Vec<A>, learned: Vec<A>) -> Self {
        let seed = u128::from_be_bytes(node_id.0) >> 64;
        let mut servers = Self {
            configured,
            learned: Vec::new(),
            backoffs: BTreeMap::new(),
            paused_until: Timestamp(0),
            // 64 bits are left after the shift.
            seed: saturating::to_u64(seed),
            draws: 0,
            pause_max: RECONNECT_PAUSE_MAX,
        };
        servers.learn(learned);
        servers
    }

    /// Replaces the learned servers by the control plane's list, at most [`SERVERS_MAX`] of them. Returns whether the
    /// list changed. An empty list changes nothing.
    pub fn learn(&mut self, mut servers: Vec<A>) -> bool {
        servers.sort_unstable();
        servers.dedup();
        servers.truncate(SERVERS_MAX);
        if servers.is_empty() || servers == self.learned {
            return false;
        }
        self.learned = servers;
        let Self {
            configured,
            learned,
            backoffs,
            ..
        } = self;
        backoffs.retain(|server, _| learned.contains(server) || configured.contains(server));
        true
    }

    /// The servers that the control plane named.
    #[must_use]
    pub fn learned(&self) -> &[A] {
        &self.learned
    }

    /// Sets the node's time to live. A node is down after a silence slightly longer than `ttl`, so no pause may exceed
    /// half of it.
    pub fn set_ttl(&mut self, ttl: Duration) {
        self.pause_max = (ttl / 2).clamp(RECONNECT_PAUSE_MIN, RECONNECT_PAUSE_MAX);
    }

    /// Returns the server to try, and the earliest time for the attempt. Returns `None` without servers.
    #[must_use]
    pub fn next(&self, now: Timestamp) -> Option<(A, Timestamp)> {
        let candidates = self.learned.iter().chain(
            self.configured
                .iter()
                .filter(|server| !self.learned.contains(server)),
        );
        candidates
            .map(|server| {
                let backoff = self.backoffs.get(server).copied().unwrap_or_default();
                // A server that only the operator named may be long gone. It comes after those that work.
                let gone = !self.learned.is_empty() && !self.learned.contains(server);
                let at = backoff.until.max(self.paused_until).max(now);
                (at, backoff.failures, gone, self.rank(server), server)
            })
            .min()
            .map(|(at, .., server)| (server.clone(), at))
    }

    /// The leader has counted a heartbeat that went through `server`.
    pub fn handle_served(&mut self, server: &A) {
        self.backoffs.remove(server);
    }

    /// Takes in that a session with `server` has ended, or never began.
    pub fn handle_failure(&mut self, server: &A, now: Timestamp) {
        let failures = self.failures(server);
        let pause = RECONNECT_PAUSE_MIN
            .saturating_mul(1 << failures.min(16))
            .min(self.pause_max);
        let pause = self.jittered(pause);
        self.set_backoff(server, failures + 1, now.plus(pause));
    }

    /// `server` asked not to be tried before `after` has passed. The agent tries it after twice that time at the
    /// latest, because the request may be outdated.
    pub fn handle_sent_away(&mut self, server: &A, after: Duration, now: Timestamp) {
        let failures = self.failures(server);
        let after = after.clamp(RECONNECT_PAUSE_MIN, RETRY_AFTER_MAX);
        let pause = after + self.jittered(after);
        self.set_backoff(server, failures + 1, now.plus(pause));
    }

    /// A session that was served has ended. Other nodes lose the same server at this moment, so the next attempt waits
    /// for a random time.
    pub fn handle_lost(&mut self, server: &A, now: Timestamp) {
        self.handle_failure(server, now);
        let spread = self.pause_max / 4;
        self.paused_until = now.plus(spread.mul_f64(self.next_random()));
    }

    fn failures(&self, server: &A) -> u32 {
        self.backoffs
            .get(server)
            .map_or(0, |backoff| backoff.failures)
    }

    fn set_backoff(&mut self, server: &A, failures: u32, until: Timestamp) {
        self.backoffs
            .insert(server.clone(), ServerBackoff { failures, until });
    }

    /// Returns a random time between half of `pause` and all of it.
    fn jittered(&mut self, pause: Duration) -> Duration {
        pause / 2 + pause.mul_f64(self.next_random() / 2.0)
    }

    /// Returns the next number of the node's sequence, from 0 to 1.
    fn next_random(&mut self) -> f64 {
        self.draws += 1;
        let [high, low, ..] = mix(self.seed.wrapping_add(self.draws)).to_be_bytes();
        f64::from(u16::from_be_bytes([high, low])) / f64::from(u16::MAX)
    }

    /// The position of `server` in the node's own order.
    fn rank(&self, server: &A) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.seed.hash(&mut hasher);
        server.hash(&mut hasher);
        hasher.finish()
    }
}

/// The finalizer of `SplitMix64`: neighbouring inputs give unrelated outputs.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
