//! The state machine of a server. Only this module applies commands and runs the state's own checks.

use std::convert::Infallible;

use muster_control_core::fixture;
use muster_control_core::fsm::{self, AllocCommand, ApplyResult, Command, Entry, EvalCommand};
use muster_control_core::snapshot::{self, Record};
use muster_control_core::state::{State, StateHash, check, waits};
use muster_domain::id::{LogIndex, Timestamp, WriteKey};

use crate::bug::Bug;
use crate::limits;
use crate::log::Position;

/// A state as it is kept on disk and sent to servers whose logs are far behind.
#[derive(Debug)]
pub struct Snapshot {
    /// The position of the last entry in the snapshot.
    pub at: Position,
    records: Vec<Record>,
}

/// The state machine: the state and its update by entries.
#[derive(Debug, Default)]
pub struct Machine {
    /// The state after the applied entries of the log.
    pub state: State,
}

impl Machine {
    /// Restores the state from a snapshot.
    ///
    /// # Errors
    ///
    /// If the state cannot be decoded from the snapshot.
    pub fn restore(snapshot: &Snapshot) -> Result<Self, String> {
        let records = snapshot.records.iter().cloned().map(Ok::<_, Infallible>);
        match snapshot::restore(records) {
            Ok(state) => Ok(Self { state }),
            Err(error) => Err(format!("a snapshot cannot be restored: {error}")),
        }
    }

    /// Takes a snapshot of the state. `at` is the position of the last applied entry.
    #[must_use]
    pub fn snapshot(&self, at: Position) -> Snapshot {
        Snapshot {
            at,
            records: snapshot::records(&self.state).collect(),
        }
    }

    /// Applies the entry at `index`. `clock` is the server's own clock and must not influence the result.
    pub fn apply(
        &mut self,
        index: u64,
        entry: &Entry,
        clock: Timestamp,
        bug: Option<Bug>,
    ) -> ApplyResult {
        let mut entry = entry.clone();
        match bug {
            Some(Bug::ApplyWithClock) => set_time(&mut entry, clock),
            Some(Bug::KeyIgnored) => {
                if let Command::Keyed { command: inner, .. } = &entry.command {
                    entry.command = inner.command().clone();
                }
            }
            Some(Bug::DoublePlacement) => {
                if let Command::Eval(EvalCommand::ApplyPlans { plans, .. }) = &mut entry.command {
                    for plan in plans {
                        plan.snapshot_index = LogIndex(index);
                    }
                }
            }
            _ => {}
        }
        let bounds = limits::GC_BOUNDS;
        let is_copied = matches!(bug, Some(Bug::LeftDeployments | Bug::RevivedJob));
        let before = is_copied.then(|| self.state.clone());
        let applied = fsm::apply_within(&mut self.state, LogIndex(index), entry, bounds);
        match (bug, before) {
            (Some(Bug::LeftDeployments), Some(before)) => {
                fixture::leave_deployments(&before, &mut self.state);
            }
            (Some(Bug::RevivedJob), Some(before)) => {
                fixture::revive_jobs(&before, &mut self.state);
            }
            _ => {}
        }
        applied
    }

    /// Returns a hash that is equal for equal states.
    #[must_use]
    pub fn hash(&self) -> StateHash {
        self.state.hash()
    }

    /// Returns the invariants of the state that are violated.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        let mut broken = check::broken(&self.state);
        broken.extend(waits::broken(&self.state));
        broken
    }
}

/// Returns the key of a write, if it has one.
#[must_use]
pub fn key_of(entry: &Entry) -> Option<&WriteKey> {
    match &entry.command {
        Command::Keyed { once, .. } => Some(&once.key),
        _ => None,
    }
}

fn set_time(entry: &mut Entry, clock: Timestamp) {
    match entry.command {
        Command::Alloc(AllocCommand::Report { .. })
        | Command::Eval(EvalCommand::ApplyPlans { .. }) => entry.at = clock,
        _ => {}
    }
}
