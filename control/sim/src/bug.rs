//! Deliberate bugs: what the simulator must be able to find.
//!
//! A simulator that finds nothing proves nothing. Each of these is a mistake that somebody has made in a
//! system like this one; switched on, it must be found within a stated number of seeds (`tests/bugs.rs`).
//! They live in the simulator's shell around the cores, so no release contains them.

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// A leader commits what its own disk has.
    CommitWithoutQuorum,
    /// A follower acknowledges entries that its disk does not have yet.
    AckBeforeSync,
    /// A vote for another is not written down, so that a server votes twice in a term.
    VoteForgotten,
    /// Applying looks at the server's own clock.
    ApplyWithClock,
    /// Effects that were lost are never looked for in the state.
    LostEffect,
    /// A server that comes to lead schedules before its state holds all that was committed, and plans
    /// are not checked against the newest state.
    DoublePlacement,
    /// A leader answers a linearizable read without asking whether it still leads.
    StaleRead,
    /// A server that comes to lead does not give nodes a full period.
    ForgottenGrace,
    /// A follower acknowledges heartbeats that no leader has counted.
    UncountedHeartbeat,
    /// An agent takes whatever message comes last for the newest.
    OlderDesired,
    /// The key of a write is not looked at, so that a retry is applied twice.
    KeyIgnored,
    /// A collection that somebody asked for is over with the first slice of each rule.
    HalfCollection,
    /// Ages are reckoned by the clock of deadlines, not by that of rows.
    OtherClock,
    /// A job goes without its deployments.
    LeftDeployments,
    /// A job that was stopped goes back, and runs, when its deployment fails.
    RevivedJob,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::CommitWithoutQuorum,
        Self::AckBeforeSync,
        Self::VoteForgotten,
        Self::ApplyWithClock,
        Self::LostEffect,
        Self::DoublePlacement,
        Self::StaleRead,
        Self::ForgottenGrace,
        Self::UncountedHeartbeat,
        Self::OlderDesired,
        Self::KeyIgnored,
        Self::HalfCollection,
        Self::OtherClock,
        Self::LeftDeployments,
        Self::RevivedJob,
    ];

    /// The word used on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CommitWithoutQuorum => "commit-without-quorum",
            Self::AckBeforeSync => "ack-before-sync",
            Self::VoteForgotten => "vote-forgotten",
            Self::ApplyWithClock => "apply-with-clock",
            Self::LostEffect => "lost-effect",
            Self::DoublePlacement => "double-placement",
            Self::StaleRead => "stale-read",
            Self::ForgottenGrace => "forgotten-grace",
            Self::UncountedHeartbeat => "uncounted-heartbeat",
            Self::OlderDesired => "older-desired",
            Self::KeyIgnored => "key-ignored",
            Self::HalfCollection => "half-collection",
            Self::OtherClock => "other-clock",
            Self::LeftDeployments => "left-deployments",
            Self::RevivedJob => "revived-job",
        }
    }

    /// The bug named `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| bug.as_str() == name)
    }
}
