//! The rules of the state, checked on the state of a running server.
//!
//! `muster operator check --deep` requests a check. A debug build checks every [`limits::STATE_RULES_EVERY`]
//! entries, and stops when a rule is broken. Both check a snapshot, on a thread of its own, while the log is
//! applied.

use std::sync::atomic::{AtomicBool, Ordering};

use muster_control_core::state::{State, check, waits};
use muster_domain::id::LogIndex;

use crate::limits;

/// Whether a check is under way in this process. Each may need as much memory as the indexes of the state.
static IS_BUSY: AtomicBool = AtomicBool::new(false);

/// The reason why a check was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StateRulesError {
    /// Another check is under way.
    #[error("another check of the state is under way on this server: try again when it is over")]
    Busy,
    /// The check would take too much memory.
    #[error("the state has {rows} rows: a check takes at most {max}")]
    TooLarge {
        /// Rows of the state.
        rows: usize,
        max: usize,
    },
    /// The check itself failed.
    #[error("the check failed: {0}")]
    Failed(String),
}

/// The right to check, until it is dropped.
#[derive(Debug)]
struct Permit;

impl Permit {
    fn take() -> Result<Self, StateRulesError> {
        if IS_BUSY.swap(true, Ordering::AcqRel) {
            return Err(StateRulesError::Busy);
        }
        Ok(Self)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        IS_BUSY.store(false, Ordering::Release);
    }
}

/// Returns descriptions of the broken rules of `state`: at most [`limits::BROKEN_RULES_MAX`].
///
/// # Errors
///
/// [`StateRulesError`].
pub(crate) async fn check_state(state: State) -> Result<Vec<String>, StateRulesError> {
    let rows = rows(&state);
    let max = limits::STATE_RULES_ROWS_MAX;
    if rows > max {
        return Err(StateRulesError::TooLarge { rows, max });
    }
    let permit = Permit::take()?;
    let checking = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        broken(&state)
    });
    checking
        .await
        .map_err(|error| StateRulesError::Failed(error.to_string()))
}

fn broken(state: &State) -> Vec<String> {
    let mut broken = check::broken(state);
    broken.extend(waits::broken(state));
    broken.truncate(limits::BROKEN_RULES_MAX);
    broken
}

fn rows(state: &State) -> usize {
    state.allocs().len()
        + state.evals().len()
        + state.jobs().len()
        + state.nodes().len()
        + state.one_offs().len()
}

/// The periodic check of a debug build, on a thread of its own.
#[derive(Debug, Default)]
pub(crate) struct PeriodicCheck {
    checked: LogIndex,
}

impl PeriodicCheck {
    /// Checks `state`, which has applied `index`, if enough entries came since the last check. Calls `halt` with
    /// the broken rules.
    pub(crate) fn handle_applied(
        &mut self,
        state: &State,
        index: LogIndex,
        halt: impl FnOnce(String) + Send + 'static,
    ) {
        if !cfg!(debug_assertions) || index.0 < self.checked.0 + limits::STATE_RULES_EVERY {
            return;
        }
        self.checked = index;
        if rows(state) > limits::STATE_RULES_DEBUG_ROWS_MAX {
            return;
        }
        let Ok(permit) = Permit::take() else {
            return;
        };
        let state = state.clone();
        let check = move || {
            let _permit = permit;
            let broken = broken(&state);
            if !broken.is_empty() {
                let reason = format!(
                    "rules of the state are broken at index {}: {}",
                    index.0,
                    broken.join("; ")
                );
                tracing::error!(index = index.0, "{reason}");
                halt(reason);
            }
        };
        let started = std::thread::Builder::new()
            .name("state-rules".to_owned())
            .spawn(check);
        if let Err(error) = started {
            tracing::warn!(%error, "the rules of the state are not checked");
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_control_core::fixture::Cluster;
    use muster_domain::fixture;

    use super::*;

    #[tokio::test]
    async fn one_check_at_a_time_finds_nothing() {
        let mut cluster = Cluster::new();
        cluster.node(fixture::node("n1").build());
        cluster.run(fixture::job("web").build());

        assert_eq!(check_state(cluster.state.clone()).await, Ok(Vec::new()));
        let permit = Permit::take().unwrap();
        assert_eq!(
            check_state(cluster.state.clone()).await,
            Err(StateRulesError::Busy)
        );
        drop(permit);
        assert_eq!(check_state(cluster.state).await, Ok(Vec::new()));
    }
}
