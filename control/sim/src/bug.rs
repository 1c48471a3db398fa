//! Deliberate bugs that the simulator must be able to find.
//!
//! A simulator that finds no bug proves nothing. Each bug is a mistake that developers of similar systems have made.
//! If it is switched on, it must be found within a stated number of seeds (`tests/bugs.rs`). The bugs are in the
//! simulator's shell around the cores, so no release contains them.

/// A deliberate bug that a run can switch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// A leader commits entries as soon as they are on its own disk.
    CommitWithoutQuorum,
    /// A follower acknowledges entries that its disk does not have yet.
    AckBeforeSync,
    /// A vote for another server is not written to disk, so that a server votes twice in a term.
    VoteForgotten,
    /// Applying an entry reads the server's own clock.
    ApplyWithClock,
    /// Lost effects are never recovered from the state.
    LostEffect,
    /// A new leader schedules before its state holds all committed entries, and plans are not checked against the
    /// newest state.
    DoublePlacement,
    /// A leader answers a linearizable read without checking that it still leads.
    StaleRead,
    /// A new leader does not give nodes a full heartbeat period.
    ForgottenGrace,
    /// A follower acknowledges heartbeats that no leader has counted.
    UncountedHeartbeat,
    /// An agent treats the message that arrives last as the newest one.
    OlderDesired,
    /// The key of a write is ignored, so that a retry is applied twice.
    KeyIgnored,
    /// A forced collection ends after the first slice of each rule.
    HalfCollection,
    /// A collection computes ages with the clock of deadlines instead of the clock of rows.
    OtherClock,
    /// A job is removed without its deployments.
    LeftDeployments,
    /// A stopped job reverts to an earlier version, and runs, when its deployment fails.
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
