//! What the leader's configuration says and every server must go by alike: it is in the log.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::job::LOST_AFTER;

/// The shortest [`Times::lost_after`]: of less, nothing would be left of an agent's patience for an election.
pub const LOST_AFTER_MIN: Duration = Duration::from_secs(45);
/// The longest: for so long nobody is told of the end of a task on a node that is gone.
pub const LOST_AFTER_MAX: Duration = Duration::from_hours(24);
/// What an agent has of [`Times::lost_after`] to end a task: [`super::GRACE`], force, and a machine that is busy.
const ENDING: Duration = Duration::from_secs(30);

/// Times that every server goes by alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// A task is taken for gone so long after its node was found gone. One that was desired before keeps what held then.
    pub lost_after: Duration,
    /// How long a claim for a callback holds.
    pub callback_claim: Duration,
}

impl Default for Times {
    /// [`LOST_AFTER`], and Diego's time for a claim.
    fn default() -> Self {
        Self {
            lost_after: LOST_AFTER,
            callback_claim: Duration::from_secs(30),
        }
    }
}

impl Times {
    /// How long an agent lets a task run without a server: until then, and no longer, it can end it before it is taken for
    /// gone.
    #[must_use]
    pub fn stop_after(&self) -> Duration {
        self.lost_after.saturating_sub(ENDING)
    }
}
