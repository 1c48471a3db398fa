//! Changes of the servers that the leader makes by itself.
//!
//! - A learner that answers and has caught up votes.
//! - A voter that has been silent for [`ServersConfig::dead_after`] is removed if another has come in its place:
//!   if there is an even number of voters, and all that remain answer. Three servers of which one died stay three
//!   until a fourth joins; then the dead one goes.
//! - A leader whose disk takes no more hands over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use muster_domain::id::LogIndex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::message::MemberRecord;
use crate::handle::Control;
use crate::limits;
use crate::raft::DiskHealth;
use crate::raft::membership::is_healthy;

/// Settings for what the leader may do by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServersConfig {
    /// Silence after which a server counts as lost.
    pub(crate) dead_after: Duration,
}

/// Runs until `shutdown`.
pub(crate) async fn run(control: Control, config: ServersConfig, shutdown: CancellationToken) {
    let mut leadership = control.leadership();
    let mut disk = control.raft().disk();
    // Since when each server is silent, as seen by this leader.
    let mut silent: BTreeMap<u64, Instant> = BTreeMap::new();
    let mut stalled = BTreeSet::new();
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
            stalled.clear();
            continue;
        }
        let health = disk.borrow_and_update().clone();
        if let DiskHealth::Full { dir, reason } = health {
            hand_over(&control, &dir, &reason).await;
            continue;
        }
        let members = control.raft().members();
        note_silent(&mut silent, &members);
        note_stalled(&mut stalled, &members);
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

/// A leader that cannot write lets one lead that can.
async fn hand_over(control: &Control, dir: &Path, reason: &str) {
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

/// Tells when a server stops to take entries, and when it goes on.
fn note_stalled(stalled: &mut BTreeSet<u64>, members: &[MemberRecord]) {
    for member in members {
        let name = &member.node.name;
        let is_stalled = Duration::from_millis(member.stalled_ms) >= limits::SERVER_STALLED_AFTER;
        if is_stalled && stalled.insert(member.server_id) {
            tracing::warn!(
                name,
                behind = member.behind,
                "a server takes no entries: see `muster operator health`"
            );
        } else if !is_stalled && stalled.remove(&member.server_id) {
            tracing::info!(name, "a server takes entries again");
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

/// The learners that answer and have what the leader has, nearly.
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

/// A voter that is lost and replaced.
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

        // One more that does not answer: the quorum would not be healthy.
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
