//! A server whose log lost entries that it had acknowledged.
//!
//! This server's vote counted for those entries. A candidate without them could now win with this vote, and
//! committed entries would be lost. So until the log has them again, this server votes only for candidates that
//! have them, and starts no election.

use openraft::async_runtime::WatchReceiver;

use super::log::LogWatch;
use super::machine::Machine;
use super::types::{LogId, TypeConfig};

/// The lost end, if any, and the log that must reach it again.
#[derive(Debug)]
pub(super) struct LostEnd {
    lost: Option<LogId>,
    log: LogWatch,
}

impl LostEnd {
    pub(super) fn new(lost: Option<LogId>, log: LogWatch) -> Self {
        Self { lost, log }
    }

    /// The index of the last entry that is still missing.
    pub(super) fn last_missing_index(&self) -> Option<u64> {
        self.missing().map(|lost| lost.index)
    }

    fn missing(&self) -> Option<LogId> {
        self.lost.filter(|lost| Some(*lost) > self.log.last())
    }

    /// The reason why a candidate whose log ends with `last` gets no vote.
    pub(super) fn vote_refusal(&self, last: Option<LogId>) -> Option<String> {
        let lost = self.missing().filter(|lost| Some(*lost) > last)?;
        Some(format!(
            "this server lost entries that it had acknowledged, up to {}: it votes for servers that have them",
            lost.index
        ))
    }

    /// Keeps `raft` from starting elections until the log has the end again.
    pub(super) fn disable_elections_until_complete(
        &self,
        raft: openraft::Raft<TypeConfig, Machine>,
    ) {
        let Some(lost) = self.missing() else { return };
        tracing::error!(
            upto = lost.index,
            "the log lost entries that this server had acknowledged: it does not stand for election, and votes only for \
             servers that have them, until it has been brought up to date"
        );
        raft.runtime_config().elect(false);
        let log = self.log.clone();
        tokio::spawn(async move {
            let mut metrics = raft.metrics();
            while Some(lost) > log.last() {
                // Every entry changes the metrics. An error means that Raft has stopped.
                if metrics.changed().await.is_err() {
                    return;
                }
            }
            raft.runtime_config().elect(true);
            tracing::info!(
                upto = lost.index,
                "the log has its end again: this server votes as before"
            );
        });
    }
}
