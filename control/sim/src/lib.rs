//! A seeded cluster on virtual time: several servers, several agents, users, and everything that goes wrong.
//!
//! Muster's decisions are made in pure code. In `control-core` these are `fsm`, broker, scheduler, applier and leader
//! duties. In `agent-core` they are allocation and task runners and the merge of desired state. The simulator
//! puts its own shells around that code: a network that delays, loses, doubles, reorders and is cut; disks
//! that lose what was not synced; servers and agents that die, stand still and start again; a compact model
//! of the consensus. After every step everything that must be true is checked. At the end faults stop, and
//! everything must come to rest where it should.
//!
//! | module | what |
//! |---|---|
//! | [`rng`], [`env`](mod@env), [`network`], [`message`] | chance, time, links, what is said |
//! | [`log`], [`disk`], [`raft`] | the consensus and what it writes |
//! | [`machine`], [`duties`], [`server`] | a server |
//! | [`host`], [`agent`] | a machine with its processes, and its agent |
//! | [`client`] | users |
//! | [`oracle`], `rest` | what must be true: always, and when all is quiet |
//! | [`bug`] | deliberate bugs that must be found |
//! | `world` | the loop, the weather |
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
    /// Servers: 1, 3 or 5.
    pub servers: usize,
    /// Virtual time with faults and users.
    pub storm: Duration,
    /// Virtual time in which all must come to rest.
    pub calm: Duration,
    pub bug: Option<Bug>,
    /// The trace also shows the rows that each entry changed.
    pub has_rows: bool,
}

impl SimConfig {
    /// A hundred seconds of storm; the seed decides how many servers there are. The calm is longer than the
    /// longest pause before a failed instance is replaced, which doubles with each failure in the storm.
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

    /// Ten minutes of storm.
    #[must_use]
    pub fn long(seed: u64) -> Self {
        Self {
            storm: Duration::from_mins(10),
            calm: Duration::from_mins(90),
            ..Self::new(seed)
        }
    }

    /// With a deliberate bug.
    #[must_use]
    pub fn with(self, bug: Bug) -> Self {
        let bug = Some(bug);
        Self { bug, ..self }
    }
}

/// Collections that were not over when their leader was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptedCollections {
    /// It led no more.
    pub unseated: u64,
    /// It died, and another may go on.
    pub died: u64,
    /// It died, and was the only server.
    pub died_alone: u64,
}

/// Deployments by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollouts {
    pub begun: u64,
    /// Their canaries were promoted.
    pub promoted: u64,
    /// Every instance was healthy.
    pub successful: u64,
    /// They were given up.
    pub failed: u64,
    /// Jobs that went back when they were.
    pub reverted: u64,
    /// A newer version or the end of the job made them needless.
    pub cancelled: u64,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The events, one line each.
    pub trace: String,
    /// Entries in the log.
    pub entries: u64,
    pub placed: u64,
    /// Objects that collections have freed.
    pub collected: u64,
    /// Collections that users asked for and got an answer to.
    pub forced: u64,
    /// Slices that went on where another had ended.
    pub slices: u64,
    /// Collections whose leader was lost before they were over.
    pub cut_short: InterruptedCollections,
    pub rollouts: Rollouts,
    /// One-off tasks that began.
    pub one_offs: usize,
    /// One-off tasks placed by the entry that made them.
    pub placed_at_once: u64,
    pub called: u64,
    pub terms: usize,
    /// Writes acknowledged to users.
    pub promises: usize,
    pub reads: u64,
    pub events: u64,
    /// Virtual time from the end of the storm to rest.
    pub calm: Duration,
    /// The faults found; empty if there are none.
    pub faults: Vec<String>,
}

/// Runs one seed to its end, or to its first fault.
#[must_use]
pub fn run(config: SimConfig) -> Report {
    World::new(&config).run(&config)
}

#[cfg(test)]
mod tests;
