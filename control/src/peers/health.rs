//! Faults of servers, as the leader sees them and as the servers report them.

use std::time::Duration;

use futures::future::join_all;

use super::message::{MemberRecord, PeerReply, PeerRequest, Troubles};
use crate::handle::Control;
use crate::limits;
use crate::raft::membership::is_healthy;

/// The faults of each of `members`; empty for a server that is well.
pub(crate) async fn faults(control: &Control, members: &[MemberRecord]) -> Vec<Vec<String>> {
    let asked = members
        .iter()
        .map(|member| troubles(control, member.server_id));
    let answers = join_all(asked).await;
    let pairs = members.iter().zip(answers);
    pairs
        .map(|(member, answer)| {
            // A server that does not answer appears as one without contact to the leader.
            let reported = answer.unwrap_or_default().0;
            fault(member).into_iter().chain(reported).collect()
        })
        .collect()
}

/// The faults of each of `members` as this server sees them while no server leads.
pub(crate) async fn faults_without_leader(
    control: &Control,
    members: &[MemberRecord],
) -> Vec<Vec<String>> {
    let asked = members
        .iter()
        .map(|member| troubles(control, member.server_id));
    let answers = join_all(asked).await;
    answers
        .into_iter()
        .map(|answer| match answer {
            Some(troubles) => troubles.0,
            None => vec!["it does not answer".to_owned()],
        })
        .collect()
}

/// The problems that a server reports; `None` if it does not answer.
async fn troubles(control: &Control, server_id: u64) -> Option<Troubles> {
    if server_id == control.peers().me().server_id {
        return Some(control.troubles());
    }
    let waited = limits::HELLO_WAIT;
    let calling = control
        .peers()
        .call_within(server_id, PeerRequest::Troubles, waited);
    match calling.await {
        Ok(PeerReply::Troubles(troubles)) => Some(troubles),
        Ok(_) | Err(_) => None,
    }
}

/// The fault that the leader observes in a server.
fn fault(member: &MemberRecord) -> Option<String> {
    let stalled = Duration::from_millis(member.stalled_ms);
    match member.last_contact_ms {
        None => Some("the leader has not heard from it since it leads".to_owned()),
        Some(ms) if !is_healthy(member) => Some(format!(
            "the leader has not heard from it for {} s",
            ms / 1_000
        )),
        Some(_) if stalled >= limits::SERVER_STALLED_AFTER => Some(format!(
            "its log is {} entries behind and has not advanced for {} s",
            member.behind,
            stalled.as_secs()
        )),
        Some(_) if member.behind > limits::HEALTHY_ENTRIES_BEHIND => {
            Some(format!("its log is {} entries behind", member.behind))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::LogIndex;

    use super::*;
    use crate::peers::message::ServerNode;

    fn member(last_contact_ms: Option<u64>, behind: u64, stalled_ms: u64) -> MemberRecord {
        MemberRecord {
            server_id: 1,
            node: ServerNode::default(),
            voter: true,
            leader: false,
            last_contact_ms,
            log_index: Some(LogIndex(100)),
            behind,
            stalled_ms,
        }
    }

    #[test]
    fn server_health_requires_contact_and_log_progress() {
        let why = |contact, behind, stalled| fault(&member(contact, behind, stalled));
        assert_eq!(why(Some(20), 10, 900), None);
        assert!(why(None, 0, 0).unwrap().contains("since it leads"));
        assert!(why(Some(60_000), 0, 0).unwrap().contains("60 s"));
        assert!(why(Some(20), 1_000_000, 0).unwrap().contains("behind"));
        // One entry stays missing for ever, and the server was called healthy.
        let stalled = why(Some(20), 1, 7_000).unwrap();
        assert!(stalled.contains("has not advanced for 7 s"), "{stalled}");
    }
}
