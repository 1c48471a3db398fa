//! Times from the leader's configuration that every server must apply identically. They are stored in the log.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The default of [`OneOffTimings::lost_after`]: the time from a node's status `down` until its tasks count as lost. A
/// node is down one heartbeat TTL after the agent's last message. The agent needs [`OneOffTimings::stop_after`] and
/// [`super::GRACE`] to end a task. The rest is for `SIGKILL` and for a busy machine.
pub const LOST_AFTER: Duration = Duration::from_mins(1);
/// The shortest [`OneOffTimings::lost_after`]. A shorter time would not let an agent wait for an election.
pub const LOST_AFTER_MIN: Duration = Duration::from_secs(45);
/// The longest [`OneOffTimings::lost_after`]. For so long, no client is notified of the end of a task on a lost node.
pub const LOST_AFTER_MAX: Duration = Duration::from_hours(24);
/// The part of [`OneOffTimings::lost_after`] in which an agent ends a task: [`super::GRACE`], `SIGKILL`, and a busy
/// machine.
const ENDING: Duration = Duration::from_secs(30);

/// Times that every server applies identically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneOffTimings {
    /// The time from a node's status `down` until its task counts as lost. A task that was created before a change
    /// keeps the old value.
    pub lost_after: Duration,
    /// Duration of a claim for a callback.
    pub callback_claim: Duration,
}

impl Default for OneOffTimings {
    /// [`LOST_AFTER`], and Diego's time for a claim.
    fn default() -> Self {
        Self {
            lost_after: LOST_AFTER,
            callback_claim: Duration::from_secs(30),
        }
    }
}

impl OneOffTimings {
    /// The time for which an agent without a server lets a task run. After it, the agent still has time to end the task
    /// before the task counts as lost.
    #[must_use]
    pub fn stop_after(&self) -> Duration {
        self.lost_after.saturating_sub(ENDING)
    }
}
