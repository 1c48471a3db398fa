//! A seeded cluster on virtual time: several servers, agents and users, with injected faults.
//!
//! Muster makes its decisions in pure code. In `control-core` this is `fsm`, broker, scheduler, applier and leader
//! duties. In `agent-core` it is allocation and task runners and the merge of desired state. The simulator puts its
//! own shells around that code. Its network delays, loses, doubles and reorders messages, and links are cut. Its
//! disks lose data that were not synced. Its servers and agents die, pause and start again. The consensus is a
//! compact model. The simulator checks all invariants after every step. At the end the faults stop, and every part
//! must come to rest in its expected state.
//!
//! | module | content |
//! |---|---|
//! | [`rng`], [`env`](mod@env), [`network`], [`message`] | random numbers, time, links, messages |
//! | [`log`], [`disk`], [`raft`] | the consensus and its data on disk |
//! | [`machine`], [`duties`], [`server`] | a server |
//! | [`host`], [`agent`] | a machine with its processes, and its agent |
//! | [`client`] | users |
//! | [`oracle`], `quiescence` | invariants of every step, and conditions at rest |
//! | [`bug`] | deliberate bugs that must be found |
//! | `world` | the loop and the faults |
//!
//! The same seed gives the same trace, byte for byte.

#![forbid(unsafe_code)]

pub mod agent;
pub mod brief;
pub mod bug;
pub mod client;
pub mod disk;
pub mod duties;
pub mod env;
pub mod host;
pub mod limits;
pub mod log;
pub mod machine;
pub mod message;
pub mod network;
pub mod oracle;
mod quiescence;
pub mod raft;
pub mod rng;
pub mod server;
mod world;

use std::time::Duration;

pub use bug::Bug;
use world::World;

/// The settings of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimConfig {
    pub seed: u64,
    /// The number of servers: 1, 3 or 5.
    pub servers: usize,
    /// Virtual time with faults and user requests.
    pub storm: Duration,
    /// Virtual time after the storm in which the world must come to rest.
    pub calm: Duration,
    pub bug: Option<Bug>,
    /// Whether the trace also shows the rows that each entry changed.
    pub has_rows: bool,
}

impl SimConfig {
    /// Returns settings with 100 seconds of storm. The seed decides the number of servers. The calm is longer than
    /// the longest pause before a failed instance is replaced. That pause doubles with each failure in the storm.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            servers: [3, 3, 5, 3, 1][usize::try_from(seed % 5).unwrap_or(0)],
            storm: Duration::from_secs(100),
            calm: Duration::from_mins(20),
            bug: None,
            has_rows: false,
        }
    }

    /// Returns settings with ten minutes of storm.
    #[must_use]
    pub fn long(seed: u64) -> Self {
        Self {
            storm: Duration::from_mins(10),
            calm: Duration::from_mins(90),
            ..Self::new(seed)
        }
    }

    /// Switches a deliberate bug on.
    #[must_use]
    pub fn with(self, bug: Bug) -> Self {
        let bug = Some(bug);
        Self { bug, ..self }
    }
}

/// Collections whose leader was lost before they were over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptedCollections {
    /// Collections whose leader lost its leadership.
    pub lost_leadership: u64,
    /// Collections whose leader died while other servers existed.
    pub died: u64,
    /// Collections whose leader died as the only server.
    pub died_alone: u64,
}

/// The number of deployments by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollouts {
    pub begun: u64,
    /// Deployments whose canaries were promoted.
    pub promoted: u64,
    /// Deployments in which every instance became healthy.
    pub successful: u64,
    /// Deployments whose final status is failed.
    pub failed: u64,
    /// Jobs that reverted to an earlier version because their deployment failed.
    pub reverted: u64,
    /// Deployments that a newer version or the end of the job cancelled.
    pub cancelled: u64,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The events, one line each.
    pub trace: String,
    /// The number of entries in the log.
    pub entries: u64,
    pub placed: u64,
    /// Objects that collections have freed.
    pub collected: u64,
    /// Forced collections of which a client received the answer.
    pub forced: u64,
    /// Collection slices that continued an earlier slice.
    pub slices: u64,
    /// Collections whose leader was lost before they were over.
    pub cut_short: InterruptedCollections,
    pub rollouts: Rollouts,
    /// One-off tasks that started.
    pub one_offs: usize,
    /// One-off tasks that were placed by the entry that created them.
    pub placed_at_once: u64,
    pub called: u64,
    pub terms: usize,
    /// Writes acknowledged to users.
    pub acknowledged_writes: usize,
    pub reads: u64,
    pub events: u64,
    /// Virtual time from the end of the storm until the world was at rest.
    pub calm: Duration,
    /// The faults that were found. The list is empty if there are none.
    pub faults: Vec<String>,
}

/// Runs one seed to its end, or to its first fault.
#[must_use]
pub fn run(config: SimConfig) -> Report {
    World::new(&config).run(&config)
}

#[cfg(test)]
mod tests;
