//! The comparison of all servers' states at one index.
//!
//! Every server applies the same entries, so their states have the same hash at the same index. Otherwise a server
//! has a broken memory or disk, or applying is not deterministic. The leader compares every
//! [`limits::STATE_COMPARE_EVERY`] entries. The state of most voters is right, and a server with another state
//! stops permanently. It neither answers nor votes until its data directory is emptied.
//!
//! Every write updates the hashes, so a comparison costs only a message.

use std::io;
use std::path::{Path, PathBuf};

use futures::future::join_all;
use muster_control_core::state::StateHash;
use muster_domain::id::LogIndex;
use muster_link::private;

use crate::handle::Control;
use crate::limits;
use crate::peers::message::{MemberRecord, PeerInfo, PeerReply, PeerRequest};

/// A file in the data directory of a server whose state differs: it does not start while the file is there.
const MARK_FILE: &str = "state-differs";

/// A server's answer about its state at an index.
#[derive(Clone, Debug)]
pub(crate) struct StateHashReport {
    pub(crate) server: PeerInfo,
    pub(crate) voter: bool,
    /// The hash of the server's state, or the reason why it gives none.
    pub(crate) hash: Result<StateHash, String>,
}

/// The answers of all servers about their states at one index.
#[derive(Clone, Debug)]
pub(crate) struct StateHashComparison {
    pub(crate) index: LogIndex,
    /// The answers, by the servers' names.
    pub(crate) reports: Vec<StateHashReport>,
}

impl StateHashComparison {
    /// Asks `members`, including this server, for their hashes.
    pub(crate) async fn at(control: &Control, index: LogIndex, members: Vec<MemberRecord>) -> Self {
        let asked = members
            .into_iter()
            .map(|member| request_state_hash(control, index, member));
        let mut reports = join_all(asked).await;
        reports.sort_by(|left, right| left.server.node.name.cmp(&right.server.node.name));
        Self { index, reports }
    }

    /// The hash of more than half of the voters.
    pub(crate) fn majority_hash(&self) -> Option<StateHash> {
        let voters = self.reports.iter().filter(|one| one.voter);
        let count = voters.clone().count();
        let hashes = voters.filter_map(|one| one.hash.as_ref().ok());
        hashes
            .clone()
            .find(|hash| 2 * hashes.clone().filter(|other| other == hash).count() > count)
            .copied()
    }

    /// Tables in which any two servers differ.
    pub(crate) fn differing(&self) -> Vec<&'static str> {
        let mut hashes = self.reports.iter().filter_map(|one| one.hash.as_ref().ok());
        let Some(first) = hashes.next() else {
            return Vec::new();
        };
        let others: Vec<&StateHash> = hashes.collect();
        let differs = |name: &&str| {
            others
                .iter()
                .any(|other| first.differing(other).contains(name))
        };
        let names = first.tables().map(|(name, _)| name);
        names.into_iter().filter(|name| differs(name)).collect()
    }
}

async fn request_state_hash(
    control: &Control,
    index: LogIndex,
    member: MemberRecord,
) -> StateHashReport {
    let hash = if member.server_id == control.server_info().server_id {
        Ok(state_hash(control, index).await)
    } else {
        let request = PeerRequest::StateHash { index };
        match control.peers().call(member.server_id, request).await {
            Ok(PeerReply::StateHash(hash)) => Ok(hash),
            Ok(other) => Err(format!("it answered {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    };
    StateHashReport {
        server: PeerInfo {
            server_id: member.server_id,
            node: member.node,
        },
        voter: member.voter,
        hash: hash.and_then(|hash| {
            hash.ok_or_else(|| format!("it does not know its state at index {}", index.0))
        }),
    }
}

/// Returns the hash of this server's state at `index`, once that is applied. `None` if that takes too long, or if
/// the hash is no longer kept.
pub(crate) async fn state_hash(control: &Control, index: LogIndex) -> Option<StateHash> {
    let mut applied = control.applied();
    let reached = applied.wait_for(|applied| *applied >= index);
    match tokio::time::timeout(limits::STATE_HASH_WAIT, reached).await {
        Ok(Ok(_)) => control.published().hash_at(index),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Handles the leader's report that most servers have the state `majority` at `index`. If this server has
/// another state, it stops permanently. Returns the tables that differ.
pub(crate) fn stop_if_diverged(
    control: &Control,
    index: LogIndex,
    majority: &StateHash,
) -> Vec<&'static str> {
    let Some(ours) = control.published().hash_at(index) else {
        return Vec::new();
    };
    let tables = ours.differing(majority);
    if tables.is_empty() {
        return tables;
    }
    let info = control.server_info();
    let reason = format!(
        "the state of this server differs from that of most others at index {} in table {}: it has stopped, so that it answers and \
         votes for nothing wrong. Keep a copy of {} for a report, remove the server with `muster operator raft remove {}`, empty \
         the directory and let it join again",
        index.0,
        tables.join(", "),
        info.data_dir.display(),
        info.server_id
    );
    tracing::error!(index = index.0, ?tables, "{reason}");
    if let Err(error) = private::write(&info.data_dir.join(MARK_FILE), &reason) {
        tracing::error!(%error, "that could not be noted: the server would start again");
    }
    control.halt(reason);
    tables
}

/// The reason why a server must not start.
#[derive(Debug, thiserror::Error)]
pub enum DivergedError {
    /// The server's state differed from that of the others.
    #[error("{reason}. ({} says so.)", path.display())]
    Diverged {
        /// The file with the record of the difference.
        path: PathBuf,
        /// The reason recorded in the file.
        reason: String,
    },
    /// The record of a difference cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Refuses a data directory whose state differed.
///
/// # Errors
///
/// [`DivergedError`].
pub(crate) fn check_data_dir(dir: &Path) -> Result<(), DivergedError> {
    let path = dir.join(MARK_FILE);
    match std::fs::read_to_string(&path) {
        Ok(reason) => Err(DivergedError::Diverged { path, reason }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(DivergedError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests;
