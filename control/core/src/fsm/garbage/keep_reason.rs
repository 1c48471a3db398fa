//! Reasons for which a collection keeps an object.

use serde::{Deserialize, Serialize};

/// The reason why an object stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KeepReason {
    /// The object is not over.
    Live,
    /// The object ended too short a time ago.
    Young,
    /// The allocation was asked to stop, but its agent has not reported its end.
    Running,
    /// The allocation ended and its job may replace it.
    Replaceable,
    /// The object is the result of a batch job that still exists.
    Result,
    /// Another object that belongs to it stays.
    Needed,
    /// The deployment records that its job's current version failed.
    Failure,
    /// The callback of the task is still to be made.
    Owed,
    /// A caller has claimed the result of the task.
    Claimed,
    /// A version of the job is tagged.
    Tagged,
}

muster_domain::text_enum!(pub KeepReason {
    Live => "live",
    Young => "young",
    Running => "running",
    Replaceable => "replaceable",
    Result => "result",
    Needed => "needed",
    Failure => "failure",
    Owed => "owed",
    Claimed => "claimed",
    Tagged => "tagged",
});

impl KeepReason {
    /// Returns a text for people. It fits one object, and it fits after a count of many.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Live => "not over",
            Self::Young => "ended too recently",
            Self::Running => "asked to stop, but may still run",
            Self::Replaceable => "ended, but may be replaced",
            Self::Result => "held as results of a batch job that is there",
            Self::Needed => "what belongs to it stays",
            Self::Failure => "says that its job's current version failed",
            Self::Owed => "ended, but owed a callback",
            Self::Claimed => "ended, but claimed for the result",
            Self::Tagged => "over, but versions of them are tagged",
        }
    }
}
