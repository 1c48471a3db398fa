//! Times from the leader's configuration that every server must apply alike: they are in the log.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The time from a node's being found down until its tasks are taken for gone, unless the leader is configured otherwise
/// ([`OneOffTimings`]). A node is down a heartbeat's time to live after the agent's last word. The agent needs
/// [`OneOffTimings::stop_after`] and [`super::GRACE`] to end a task; the rest is for force and for a machine that is busy.
pub const LOST_AFTER: Duration = Duration::from_mins(1);
/// The shortest [`OneOffTimings::lost_after`]: of less, nothing would be left of an agent's patience for an election.
pub const LOST_AFTER_MIN: Duration = Duration::from_secs(45);
/// The longest: nobody learns of the end of a task on a lost node for so long.
pub const LOST_AFTER_MAX: Duration = Duration::from_hours(24);
/// The part of [`OneOffTimings::lost_after`] in which an agent ends a task: [`super::GRACE`], force, and a busy machine.
const ENDING: Duration = Duration::from_secs(30);

/// Times that every server goes by alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneOffTimings {
    /// The wait after a node was found gone until its task is taken for gone. A task that was desired before a change
    /// keeps the value of that time.
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
    /// The time an agent lets a task run without a server. Within it, and no longer, the agent can end the task before
    /// it is taken for gone.
    #[must_use]
    pub fn stop_after(&self) -> Duration {
        self.lost_after.saturating_sub(ENDING)
    }
}
