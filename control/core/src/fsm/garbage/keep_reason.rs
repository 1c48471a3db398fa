//! Reasons for which a collection keeps an object.

use serde::{Deserialize, Serialize};

/// The reason why an object stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KeepReason {
    /// It is not over.
    Live,
    /// It ended too short a time ago.
    Young,
    /// It was told to stop, but its agent has not said that it did.
    Running,
    /// It ended and its job may replace it.
    Replaceable,
    /// It is the result of a batch job that is there.
    Result,
    /// An object that belongs to it stays.
    Needed,
    /// It says that its job's current version failed.
    Failure,
    /// Its callback is to be made.
    Owed,
    /// Somebody has claimed its result.
    Claimed,
    /// A version of it is tagged.
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
    /// For people, of one and after a count of many.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Live => "not over",
            Self::Young => "ended too recently",
            Self::Running => "told to stop, but may still run",
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
