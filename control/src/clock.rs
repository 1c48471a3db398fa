//! The clocks of a server.
//!
//! Rows carry the wall clock, which people read. Deadlines (heartbeats, evaluations in flight) run on
//! the monotonic clock, so that a wall clock that is set makes no node look dead.
//!
//! A wall clock that jumps forward would have everything expire that waits for a time in rows: results, jobs, claims,
//! deployments. So the server goes on by elapsed time, until the clock is back or an operator confirms the jump.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_domain::id::Timestamp;
use muster_domain::saturating;

use crate::limits;

/// Tells the time.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_at: Timestamp,
    /// Time since the boot at the start, in which a machine that sleeps goes on. `None` if it cannot be read.
    uptime: Option<Duration>,
    guard: Mutex<JumpDetector>,
    /// Whether the wall clock at the start was far ahead of the state; set when this server first leads.
    gap: OnceLock<bool>,
    is_confirmed: AtomicBool,
}

impl Clock {
    /// A clock that starts here.
    pub(crate) fn start() -> Self {
        let started_at = wall();
        Self {
            started: Instant::now(),
            started_at,
            uptime: uptime(),
            guard: Mutex::new(JumpDetector::new(started_at)),
            gap: OnceLock::new(),
            is_confirmed: AtomicBool::new(false),
        }
    }

    /// When it was started.
    pub(crate) fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// The monotonic clock, as if the wall clock had never been set since the start.
    pub(crate) fn monotonic(&self) -> Timestamp {
        self.started_at.plus(self.started.elapsed())
    }

    /// The wall clock, without a forward jump that nobody has confirmed.
    pub(crate) fn now(&self) -> Timestamp {
        let elapsed = self.started.elapsed();
        let (now, change) = self.guard().read(wall(), elapsed, || self.slept(elapsed));
        match change {
            Some(ClockChange::Jumped(by)) => tracing::error!(
                ?by,
                "the wall clock has jumped forward: nothing expires by that; set it back, or confirm it with \
                 `muster operator clock confirm`"
            ),
            Some(ClockChange::Back) => tracing::info!("the wall clock is back"),
            None => {}
        }
        now
    }

    /// By how much the wall clock has jumped forward, while nobody has confirmed it.
    pub(crate) fn jump(&self) -> Option<Duration> {
        let now = self.now();
        let by = wall().since(now);
        self.guard().is_held.then_some(by)
    }

    /// Takes the wall clock for right from now on. Gives by how much it had jumped.
    pub(crate) fn confirm(&self) -> Option<Duration> {
        let by = self.jump();
        self.is_confirmed.store(true, Ordering::Relaxed);
        self.guard().confirm(wall(), self.started.elapsed());
        if let Some(by) = by {
            tracing::warn!(?by, "the jump of the wall clock was confirmed");
        }
        by
    }

    /// Compares the time of the start with `newest`, the newest time in rows, when this server leads for the first time.
    pub(crate) fn compare_start(&self, newest: Timestamp) {
        let gap = self.started_at.since(newest);
        let is_wide = || newest > Timestamp(0) && gap > limits::CLOCK_GAP_MAX;
        if *self.gap.get_or_init(is_wide) && !self.is_start_trusted() {
            tracing::warn!(
                ?gap,
                held = ?limits::CLOCK_GAP_HOLD,
                "the wall clock is far ahead of the newest change: nothing is collected by age for some time; if the \
                 clock is right, confirm it with `muster operator clock confirm`"
            );
        }
    }

    /// Whether objects may be collected by age. For a time they may not if the wall clock may have jumped while no
    /// server ran: that looks like a long rest of the cluster, and an operator can tell the difference.
    pub(crate) fn is_start_trusted(&self) -> bool {
        self.gap.get() != Some(&true)
            || self.is_confirmed.load(Ordering::Relaxed)
            || self.started.elapsed() >= limits::CLOCK_GAP_HOLD
    }

    /// How long the machine has slept since the start; `elapsed` is how long it was awake.
    fn slept(&self, elapsed: Duration) -> Duration {
        let since = uptime().zip(self.uptime);
        since.map_or(Duration::ZERO, |(now, then)| {
            now.saturating_sub(then).saturating_sub(elapsed)
        })
    }

    fn guard(&self) -> MutexGuard<'_, JumpDetector> {
        // It is replaced by assignments only, so a panic elsewhere leaves it whole.
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The wall clock.
pub(crate) fn wall() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(saturating::nanos(since_epoch))
}

/// Time since the boot, sleep included.
fn uptime() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The result of the newest look at the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockChange {
    /// It has jumped forward by so much.
    Jumped(Duration),
    /// It has come back.
    Back,
}

/// Compares the wall clock with elapsed time.
#[derive(Debug)]
struct JumpDetector {
    /// The wall clock when it was last right.
    base: Timestamp,
    /// Time elapsed until then.
    anchor: Duration,
    /// How long the machine had slept when that was last asked.
    slept: Duration,
    /// The wall clock has jumped, and nobody has confirmed it.
    is_held: bool,
}

impl JumpDetector {
    fn new(wall: Timestamp) -> Self {
        Self {
            base: wall,
            anchor: Duration::ZERO,
            slept: Duration::ZERO,
            is_held: false,
        }
    }

    /// The time at `elapsed`, when the wall clock says `wall`. A clock that is set back is followed. `slept` is asked only
    /// when the clock seems to have jumped.
    fn read(
        &mut self,
        wall: Timestamp,
        elapsed: Duration,
        slept: impl FnOnce() -> Duration,
    ) -> (Timestamp, Option<ClockChange>) {
        if self.is_right(wall, elapsed) {
            return self.follow(wall, elapsed);
        }
        let slept = slept();
        self.base = self.base.plus(slept.saturating_sub(self.slept));
        self.slept = slept;
        if self.is_right(wall, elapsed) {
            return self.follow(wall, elapsed);
        }
        let now = self.expected(elapsed);
        let is_new = !std::mem::replace(&mut self.is_held, true);
        (now, is_new.then(|| ClockChange::Jumped(wall.since(now))))
    }

    fn confirm(&mut self, wall: Timestamp, elapsed: Duration) {
        self.follow(wall, elapsed);
    }

    fn follow(&mut self, wall: Timestamp, elapsed: Duration) -> (Timestamp, Option<ClockChange>) {
        (self.base, self.anchor) = (wall, elapsed);
        let was_held = std::mem::replace(&mut self.is_held, false);
        (wall, was_held.then_some(ClockChange::Back))
    }

    fn expected(&self, elapsed: Duration) -> Timestamp {
        self.base.plus(elapsed.saturating_sub(self.anchor))
    }

    /// Whether the wall clock is not too far ahead. Between two looks a clock that is slewed gains a little.
    fn is_right(&self, wall: Timestamp, elapsed: Duration) -> bool {
        let slewed = elapsed.saturating_sub(self.anchor) / limits::CLOCK_SLEW_PART;
        wall <= self
            .expected(elapsed)
            .plus(limits::CLOCK_JUMP_MAX)
            .plus(slewed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0).plus(Duration::from_secs(1_000_000 + seconds))
    }

    fn awake() -> Duration {
        Duration::ZERO
    }

    /// An hour forward expires nothing: time goes on second by second until the clock is back.
    #[test]
    fn a_forward_jump_is_not_followed() {
        let mut guard = JumpDetector::new(at(0));
        assert_eq!(guard.read(at(1), SECOND, awake), (at(1), None));
        let jumped = guard.read(at(2).plus(HOUR), 2 * SECOND, awake);
        assert_eq!(jumped, (at(2), Some(ClockChange::Jumped(HOUR))));
        let held = guard.read(at(60).plus(HOUR), 60 * SECOND, awake);
        assert_eq!(held, (at(60), None));
        let back = guard.read(at(61), 61 * SECOND, awake);
        assert_eq!(back, (at(61), Some(ClockChange::Back)));
        assert_eq!(guard.read(at(62), 62 * SECOND, awake), (at(62), None));
    }

    #[test]
    fn a_confirmed_jump_is_followed() {
        let mut guard = JumpDetector::new(at(0));
        guard.read(at(1).plus(HOUR), SECOND, awake);
        guard.confirm(at(2).plus(HOUR), 2 * SECOND);
        let followed = guard.read(at(3).plus(HOUR), 3 * SECOND, awake);
        assert_eq!(followed, (at(3).plus(HOUR), None));
        assert!(!guard.is_held);
    }

    /// Time in which the machine slept has elapsed.
    #[test]
    fn a_sleep_is_no_jump() {
        let mut guard = JumpDetector::new(at(0));
        let woken = guard.read(at(1).plus(HOUR), SECOND, || HOUR);
        assert_eq!(woken, (at(1).plus(HOUR), None));
        // Only once.
        let jumped = guard.read(at(2).plus(2 * HOUR), 2 * SECOND, || HOUR);
        assert_eq!(jumped.0, at(2).plus(HOUR));
        assert!(guard.is_held);
    }

    #[test]
    fn slewing_and_setting_back_are_followed() {
        let mut guard = JumpDetector::new(at(0));
        let slewed = at(100_040);
        assert_eq!(guard.read(slewed, 100_000 * SECOND, awake), (slewed, None));
        let back = guard.read(at(50), 100_001 * SECOND, awake);
        assert_eq!(back, (at(50), None));
    }

    /// A jump while no server ran would have everything collected at the start.
    #[test]
    fn a_gap_before_the_start_holds_collection() {
        let clock = Clock::start();
        let recent = Timestamp(clock.started_at().0 - 1);
        clock.compare_start(recent);
        assert!(clock.is_start_trusted());

        let clock = Clock::start();
        let day = 24 * 3_600 * 1_000_000_000;
        clock.compare_start(Timestamp(clock.started_at().0 - day));
        assert!(!clock.is_start_trusted());
        // Later terms find rows of this start, and do not end it.
        clock.compare_start(clock.started_at());
        assert!(!clock.is_start_trusted());
        clock.confirm();
        assert!(clock.is_start_trusted());
    }

    #[test]
    fn an_empty_state_holds_nothing() {
        let clock = Clock::start();
        clock.compare_start(Timestamp(0));
        assert!(clock.is_start_trusted());
    }
}
