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

muster_domain::text_enum!(pub Bug: "bug" {
    CommitWithoutQuorum => "commit-without-quorum",
    AckBeforeSync => "ack-before-sync",
    VoteForgotten => "vote-forgotten",
    ApplyWithClock => "apply-with-clock",
    LostEffect => "lost-effect",
    DoublePlacement => "double-placement",
    StaleRead => "stale-read",
    ForgottenGrace => "forgotten-grace",
    UncountedHeartbeat => "uncounted-heartbeat",
    OlderDesired => "older-desired",
    KeyIgnored => "key-ignored",
    HalfCollection => "half-collection",
    OtherClock => "other-clock",
    LeftDeployments => "left-deployments",
    RevivedJob => "revived-job",
});
