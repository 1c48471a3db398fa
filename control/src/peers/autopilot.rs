//! Changes of the membership that the leader makes by itself.
//!
//! - A learner that answers and has caught up gets its vote.
//! - A voter that has been silent for [`ServersConfig::dead_after`] is removed if another has joined in its place:
//!   if the number of voters is even, and all remaining voters answer. Three servers with one dead stay three until
//!   a fourth joins; then the dead one is removed.
//! - A leader with a full disk transfers leadership.
//! - Faults of servers are recorded in the log, where they become events.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use muster_control_core::fsm::ServerCommand;
use muster_domain::id::LogIndex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::health;
use super::message::MemberRecord;
use crate::handle::Control;
use crate::limits;
use crate::raft::DiskHealth;
use crate::raft::membership::is_healthy;

/// Settings of the leader's own changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServersConfig {
    /// Silence after which a server counts as lost.
    pub(crate) dead_after: Duration,
}

/// Runs until `shutdown`.
pub(crate) async fn run(control: Control, config: ServersConfig, shutdown: CancellationToken) {
    let mut leadership = control.leadership();
    let mut disk = control.raft().disk();
    // The time since when each server has been silent for this leader.
    let mut silent: BTreeMap<u64, Instant> = BTreeMap::new();
    let mut faults = NotedFaults::default();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = leadership.changed() => if changed.is_err() {
                return;
            },
            changed = disk.changed() => if changed.is_err() {
                return;
            },
            () = tokio::time::sleep(limits::AUTOPILOT_INTERVAL) => {}
        }
        if !control.leads() {
            silent.clear();
            faults.clear();
            continue;
        }
        let health = disk.borrow_and_update().clone();
        if let DiskHealth::Full { dir, reason } = health {
            transfer_leadership(&control, &dir, &reason).await;
            continue;
        }
        let members = control.raft().members();
        note_silent(&mut silent, &members);
        faults.advance(&control, &members).await;
        promote(&control, &members).await;
        let dead = lost(&members, &silent, config.dead_after);
        if let Some(member) = dead {
            let name = &member.node.name;
            tracing::warn!(name, silent = ?config.dead_after, "a server is lost and another has come in its place: removed");
            if let Err(error) = control.raft().remove(member.server_id).await {
                tracing::warn!(name, %error, "the lost server was not removed");
            }
        }
    }
}

/// Transfers leadership if the leader's disk is full, to a server that can write.
async fn transfer_leadership(control: &Control, dir: &Path, reason: &str) {
    if control.raft().successor().is_none() {
        return;
    }
    match control.raft().transfer(None).await {
        Ok(leader) => {
            tracing::warn!(to = leader.name, dir = %dir.display(), reason, "the log cannot grow: handed leadership over");
        }
        Err(error) => {
            tracing::warn!(%error, dir = %dir.display(), reason, "the log cannot grow, and leadership was not handed over");
        }
    }
}

fn note_silent(silent: &mut BTreeMap<u64, Instant>, members: &[MemberRecord]) {
    silent.retain(|server_id, _| {
        members
            .iter()
            .any(|member| member.server_id == *server_id && !is_healthy(member))
    });
    for member in members.iter().filter(|member| !is_healthy(member)) {
        silent.entry(member.server_id).or_insert_with(Instant::now);
    }
}

/// Faults of servers in the log, and the check under way. An earlier leader may have recorded a fault that this
/// leader finds over.
#[derive(Debug, Default)]
struct NotedFaults {
    /// Time since when each server has faults. A new leader has no contacts yet, and a fault must last to be
    /// recorded.
    since: BTreeMap<u64, Instant>,
    /// The check under way; at most one. It returns the faults of each server.
    under_way: JoinSet<Vec<(MemberRecord, Vec<String>)>>,
}

impl NotedFaults {
    /// Handles the faults of the last check, and begins the next check.
    async fn advance(&mut self, control: &Control, members: &[MemberRecord]) {
        match self.under_way.try_join_next() {
            None if !self.under_way.is_empty() => return,
            Some(Ok(found)) => self.note(control, found).await,
            Some(Err(error)) => tracing::error!(%error, "the health of servers was not looked at"),
            None => {}
        }
        let (control, members) = (control.clone(), members.to_vec());
        self.under_way.spawn(async move {
            let faults = health::faults(&control, &members).await;
            members.into_iter().zip(faults).collect()
        });
    }

    /// Drops all records: this server does not lead any more.
    fn clear(&mut self) {
        *self = Self::default();
    }

    /// Logs and proposes each change between well and unwell. The texts change with every entry that a server
    /// lacks, so a new text alone is no change.
    async fn note(&mut self, control: &Control, found: Vec<(MemberRecord, Vec<String>)>) {
        let is_member = |server_id: &u64| found.iter().any(|(it, _)| it.server_id == *server_id);
        self.since.retain(|server_id, _| is_member(server_id));
        for (member, faults) in found {
            let server_id = member.server_id;
            if faults.is_empty() {
                self.since.remove(&server_id);
            } else {
                let since = self.since.entry(server_id).or_insert_with(Instant::now);
                if since.elapsed() < limits::SERVER_FAULT_NOTED_AFTER {
                    continue;
                }
            }
            if faults.is_empty() != control.published().is_noted_unwell(server_id) {
                continue;
            }
            let name = member.node.name;
            let command = ServerCommand::NoteHealth {
                server_id,
                name: name.clone(),
                faults: faults.clone(),
            }
            .at(control.now());
            // The next check finds an unrecorded change again.
            if let Err(error) = control.propose(command).await {
                tracing::debug!(%error, name, "the health of a server was not noted");
                continue;
            }
            if faults.is_empty() {
                tracing::info!(name, "a server is well again");
            } else {
                tracing::warn!(
                    name,
                    faults = faults.join("; "),
                    "a server is unwell: see `muster operator health`"
                );
            }
        }
    }
}

async fn promote(control: &Control, members: &[MemberRecord]) {
    let ready = caught_up(members);
    if ready.is_empty() {
        return;
    }
    match control.raft().promote(ready.clone()).await {
        Ok(()) => tracing::info!(servers = ?ready, "caught up: they vote from now on"),
        Err(error) => tracing::debug!(%error, "learners do not vote yet"),
    }
}

/// The learners that answer and have almost all of the leader's entries.
fn caught_up(members: &[MemberRecord]) -> BTreeSet<u64> {
    let newest = members
        .iter()
        .filter(|member| member.leader)
        .find_map(|member| member.log_index)
        .unwrap_or(LogIndex(0));
    members
        .iter()
        .filter(|member| !member.voter && is_healthy(member))
        .filter(|member| {
            member
                .log_index
                .is_some_and(|index| index.0 + limits::PROMOTE_LAG_MAX >= newest.0)
        })
        .map(|member| member.server_id)
        .collect()
}

/// Returns a voter that is lost and replaced.
fn lost<'a>(
    members: &'a [MemberRecord],
    silent: &BTreeMap<u64, Instant>,
    dead_after: Duration,
) -> Option<&'a MemberRecord> {
    let voters: Vec<&MemberRecord> = members.iter().filter(|member| member.voter).collect();
    let lost = voters.iter().find(|member| {
        silent
            .get(&member.server_id)
            .is_some_and(|since| since.elapsed() >= dead_after)
    })?;
    let replaced = voters.len() > 2 && voters.len().is_multiple_of(2);
    let others_answer = voters
        .iter()
        .all(|member| member.server_id == lost.server_id || is_healthy(member));
    (replaced && others_answer).then_some(*lost)
}

#[cfg(test)]
mod tests {
    use super::super::message::ServerNode;
    use super::*;

    fn member(
        server_id: u64,
        voter: bool,
        last_contact_ms: Option<u64>,
        index: u64,
    ) -> MemberRecord {
        MemberRecord {
            server_id,
            node: ServerNode::default(),
            voter,
            leader: server_id == 1,
            last_contact_ms,
            log_index: Some(LogIndex(index)),
            behind: 0,
            stalled_ms: 0,
        }
    }

    #[test]
    fn a_learner_votes_when_it_has_caught_up() {
        let far = 1_000_000;
        let members = [
            member(1, true, Some(0), far),
            member(2, false, Some(10), far - 1),
            member(3, false, Some(10), 1),
            member(4, false, None, far),
        ];

        assert_eq!(caught_up(&members), BTreeSet::from([2]));
    }

    #[tokio::test(start_paused = true)]
    async fn dead_server_is_removed_after_replacement_joins() {
        let dead_after = Duration::from_mins(1);
        let mut members = vec![
            member(1, true, Some(0), 9),
            member(2, true, Some(5), 9),
            member(3, true, Some(70_000), 9),
        ];
        let mut silent = BTreeMap::new();
        note_silent(&mut silent, &members);
        tokio::time::advance(dead_after).await;

        assert_eq!(lost(&members, &silent, dead_after), None);
        members.push(member(4, true, Some(5), 9));
        let found = lost(&members, &silent, dead_after);
        assert_eq!(found.map(|member| member.server_id), Some(3));

        // With a second silent server, the quorum would not be healthy.
        members[1].last_contact_ms = Some(30_000);
        assert_eq!(lost(&members, &silent, dead_after), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_again_is_not_lost() {
        let mut silent = BTreeMap::new();
        note_silent(&mut silent, &[member(3, true, Some(70_000), 9)]);
        note_silent(&mut silent, &[member(3, true, Some(1), 9)]);

        assert!(silent.is_empty());
    }
}
