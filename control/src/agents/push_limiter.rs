//! The rate at which sessions send desired allocations to nodes.
//!
//! A message costs both ends some tens of microseconds at any size. So sending one allocation each to many nodes
//! costs more than placing them. Below a rate every node gets its message at once. Above it, nodes wait in the
//! order of their wake-ups, and further changes for a waiting node go into the same message. So a higher load
//! lowers the cost of each allocation. No node waits longer than one turn of every node. While new changes keep
//! arriving, the rate is lower, so that placement has priority.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_domain::saturating;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::limits;

/// Turns of a server's sessions.
#[derive(Debug)]
pub(super) struct PushLimiter {
    cores: u32,
    /// Turns that may be taken at once.
    turns: Semaphore,
    turn_taken: Notify,
    begun: Instant,
    /// Time of the last new change, in milliseconds since `begun`.
    last_change_millis: AtomicU64,
}

impl PushLimiter {
    /// Creates the limiter for a machine with `cores`.
    pub(super) fn of(cores: usize) -> Self {
        let cores = saturating::to_u32(cores);
        Self {
            cores,
            turns: Semaphore::new(turns_within(
                limits::DESIRED_PER_CORE,
                cores,
                limits::DESIRED_BURST,
            )),
            turn_taken: Notify::new(),
            begun: Instant::now(),
            last_change_millis: AtomicU64::new(0),
        }
    }

    /// Records that new changes arrived.
    pub(super) fn note_change(&self) {
        let millis = saturating::millis(self.begun.elapsed());
        self.last_change_millis.store(millis, Ordering::Relaxed);
    }

    /// Waits for this session's turn, in the order of the calls.
    pub(super) async fn wait_for_turn(&self) {
        if let Ok(turn) = self.turns.acquire().await {
            turn.forget();
        }
        self.turn_taken.notify_one();
    }

    /// Hands out turns until `stop`.
    pub(super) async fn issue_turns(&self, stop: &CancellationToken) {
        let mut given = Instant::now();
        while stop.run_until_cancelled(self.wait()).await.is_some() {
            let now = Instant::now();
            self.refill(now, now.saturating_duration_since(given));
            given = now;
        }
    }

    /// Waits one tick, in which turns accumulate. While all turns are available, first waits until one is taken.
    async fn wait(&self) {
        if self.is_full() {
            self.turn_taken.notified().await;
        }
        tokio::time::sleep(limits::DESIRED_TICK).await;
    }

    fn burst(&self) -> usize {
        turns_within(limits::DESIRED_PER_CORE, self.cores, limits::DESIRED_BURST)
    }

    fn is_full(&self) -> bool {
        self.turns.available_permits() >= self.burst()
    }

    fn refill(&self, now: Instant, elapsed: Duration) {
        let last_change =
            self.begun + Duration::from_millis(self.last_change_millis.load(Ordering::Relaxed));
        let rate = if now.saturating_duration_since(last_change) < limits::DESIRED_QUIET {
            limits::DESIRED_PER_CORE_MEANWHILE
        } else {
            limits::DESIRED_PER_CORE
        };
        let room = self.burst().saturating_sub(self.turns.available_permits());
        self.turns
            .add_permits(turns_within(rate, self.cores, elapsed).min(room));
    }
}

/// The number of turns in `time` at `rate` a second and core; at least one.
fn turns_within(rate: u32, cores: u32, time: Duration) -> usize {
    let turns = u128::from(rate) * u128::from(cores) * time.as_micros() / 1_000_000;
    saturating::to_usize(turns).max(1)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// The number of turns without waiting.
    fn turns_without_waiting(limiter: &PushLimiter) -> usize {
        std::iter::from_fn(|| limiter.wait_for_turn().now_or_never()).count()
    }

    #[test]
    fn push_limiter_burst_does_not_accumulate() {
        let limiter = PushLimiter::of(4);
        let burst = limiter.burst();
        assert_eq!(turns_without_waiting(&limiter), burst);

        let later = limiter.begun + Duration::from_hours(1);
        limiter.refill(later, Duration::from_hours(1));
        limiter.refill(later, Duration::from_hours(1));

        assert_eq!(turns_without_waiting(&limiter), burst);
    }

    #[test]
    fn recent_changes_reduce_the_turn_rate() {
        let limiter = PushLimiter::of(2);
        turns_without_waiting(&limiter);
        let tick = limits::DESIRED_TICK;
        let later = limiter.begun + Duration::from_secs(1);

        limiter.refill(later, tick);
        let quiet = turns_without_waiting(&limiter);
        limiter.last_change_millis.store(1_000, Ordering::Relaxed);
        limiter.refill(later, tick);
        let meanwhile = turns_without_waiting(&limiter);

        assert_eq!(quiet, turns_within(limits::DESIRED_PER_CORE, 2, tick));
        assert_eq!(
            meanwhile,
            turns_within(limits::DESIRED_PER_CORE_MEANWHILE, 2, tick)
        );
        assert!(meanwhile < quiet);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_sessions_get_turns_in_order() {
        let limiter = PushLimiter::of(1);
        turns_without_waiting(&limiter);
        let stop = CancellationToken::new();
        let begun = Instant::now();
        let mut ended = Vec::new();
        let waiting = async {
            for number in 0..100 {
                limiter.wait_for_turn().await;
                ended.push(number);
            }
            stop.cancel();
        };

        tokio::join!(waiting, limiter.issue_turns(&stop));

        assert!(ended.is_sorted());
        assert!(
            begun.elapsed() < Duration::from_secs(1),
            "{:?}",
            begun.elapsed()
        );
    }
}
