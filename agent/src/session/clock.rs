//! The clock of the agent, which deadlines and events share.
//!
//! Restart delays, kill timeouts and health deadlines are times of the wall clock, because they outlive the agent.
//! A wall clock that is set forward would let them all pass, and one that is set back would prolong them. So the
//! agent continues by elapsed time when the wall clock jumps. It follows the wall clock again when the clock
//! returns, and after a restart of the agent, which restarts no task.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_domain::clock_jump::{ClockChange, JumpDetector, SetBack};
use muster_domain::id::Timestamp;
use nix::time::{ClockId, clock_gettime};

static CLOCK: LazyLock<Mutex<JumpDetector>> =
    LazyLock::new(|| Mutex::new(JumpDetector::new(wall(), since_boot(), SetBack::Hold)));

/// The time for the cores: the wall clock without jumps during the life of this agent.
pub(crate) fn now() -> Timestamp {
    // A panic elsewhere leaves the detector whole: each change is one assignment.
    let mut detector = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (now, change) = detector.read(wall(), since_boot());
    drop(detector);
    match change {
        Some(ClockChange::Forward(by)) => tracing::error!(
            ?by,
            "the wall clock has jumped forward: deadlines go on by elapsed time; set it back, or restart the agent, \
             which then follows it"
        ),
        Some(ClockChange::Backward(by)) => tracing::error!(
            ?by,
            "the wall clock was set back: deadlines go on by elapsed time; restart the agent, which then follows it"
        ),
        Some(ClockChange::Back) => tracing::info!("the wall clock is back"),
        None => {}
    }
    now
}

fn wall() -> Timestamp {
    Timestamp(0).plus(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

/// Time since the boot, including suspend. Every kernel that runs an agent has this clock.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Into::into)
}
