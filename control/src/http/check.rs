//! Whether the servers agree, and whether they are well.

use std::time::Duration;

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::Response;
use muster_control_core::state::StateHash;
use muster_wire::api::operator::{
    ClockConfirmed, OperatorHealth, ServerHealth, StateCheck, StateCheckServer,
};
use muster_wire::api::{duration, time};

use super::Http;
use super::query::Query;
use super::status::ApiError;
use crate::consistency_check::{StateHashComparison, StateHashReport};
use crate::handle::{Consistency, Control};
use crate::limits;
use crate::peers::message::{MemberRecord, PeerReply, PeerRequest, Troubles};
use crate::raft::membership::is_healthy;

/// Compares the states of all servers at the newest index that a read may see.
pub(super) async fn states(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let members = http.control.list_peers().await?;
    // Every server has applied, or soon will, what the leader had.
    let read = http.control.read(Consistency::Leader).await?;
    let index = *http.control.applied().borrow();
    drop(read);
    let comparison = StateHashComparison::at(&http.control, index, members).await;
    query.json(&shape(&comparison))
}

fn shape(comparison: &StateHashComparison) -> StateCheck {
    let right = comparison.right();
    let differing = comparison.differing();
    let server = |one: &StateHashReport| {
        let (hash, error) = match &one.hash {
            Ok(hash) => (Some(hash), String::new()),
            Err(error) => (None, error.clone()),
        };
        let differs = match (hash, &right) {
            (Some(hash), Some(right)) => hash.differing(right),
            (_, _) => Vec::new(),
        };
        StateCheckServer {
            id: one.server.server_id.to_string(),
            name: one.server.node.name.clone(),
            address: one.server.node.quic_addr.clone(),
            hash: hash.map(|hash| hex(hash.whole())).unwrap_or_default(),
            tables: hash.map(tables).unwrap_or_default(),
            differing: differs.into_iter().map(str::to_owned).collect(),
            error,
        }
    };
    let all_said = comparison.testimonies.iter().all(|one| one.hash.is_ok());
    StateCheck {
        index: comparison.index.0,
        agree: differing.is_empty() && all_said,
        differing: differing.into_iter().map(str::to_owned).collect(),
        servers: comparison.testimonies.iter().map(server).collect(),
    }
}

fn tables(hash: &StateHash) -> std::collections::BTreeMap<String, String> {
    let tables = hash.tables().into_iter();
    tables
        .map(|(name, hash)| (name.to_owned(), hex(hash)))
        .collect()
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// How every server is, as the leader sees it.
pub(super) async fn health(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let members = http.control.list_peers().await?;
    let asked = members
        .iter()
        .map(|member| troubles(&http.control, member.server_id));
    let told = futures::future::join_all(asked).await;
    let health = operator_health(&http, &members, &told);
    let mut response = query.json(&health)?;
    if !health.healthy {
        // Nomad's answer for "not all is well".
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    Ok(response)
}

/// Takes this server's wall clock for right although it has jumped.
pub(super) async fn confirm_clock(
    Shared(http): Shared<Http>,
    query: Query,
) -> Result<Response, ApiError> {
    let jump = http.control.clock().confirm();
    query.json(&ClockConfirmed {
        server: http.control.server_info().name.clone(),
        jump: jump.map(duration::text).unwrap_or_default(),
    })
}

/// Troubles of a server, as it reports them; none if it does not answer, which shows otherwise.
async fn troubles(control: &Control, server_id: u64) -> Troubles {
    if server_id == control.peers().me().server_id {
        return control.troubles();
    }
    let waited = limits::HELLO_WAIT;
    let calling = control
        .peers()
        .call_within(server_id, PeerRequest::Troubles, waited);
    match calling.await {
        Ok(PeerReply::Troubles(troubles)) => troubles,
        Ok(_) | Err(_) => Troubles::default(),
    }
}

fn operator_health(http: &Http, members: &[MemberRecord], told: &[Troubles]) -> OperatorHealth {
    let info = http.control.server_info();
    let server = |(member, told): (&MemberRecord, &Troubles)| {
        let own = told.0.iter().cloned();
        let reasons: Vec<String> = trouble(member).into_iter().chain(own).collect();
        let reason = reasons.join("; ");
        ServerHealth {
            id: member.server_id.to_string(),
            name: member.node.name.clone(),
            address: member.node.quic_addr.clone(),
            serf_status: if reason.is_empty() { "alive" } else { "failed" }.to_owned(),
            version: info.version.to_owned(),
            leader: member.leader,
            last_contact: member
                .last_contact_ms
                .map(|ms| duration::text(Duration::from_millis(ms)))
                .unwrap_or_default(),
            last_term: http.control.leadership().borrow().term,
            last_index: member.log_index.map_or(0, |index| index.0),
            entries_behind: member.behind,
            healthy: reason.is_empty(),
            voter: member.voter,
            stable_since: time::text(info.started_at),
            reason,
        }
    };
    let mut servers: Vec<ServerHealth> = members.iter().zip(told).map(server).collect();
    servers.sort_by(|left, right| left.name.cmp(&right.name));
    let voters = servers.iter().filter(|server| server.voter);
    let well = voters.clone().filter(|server| server.healthy).count();
    let needed = voters.clone().count() / 2 + 1;
    OperatorHealth {
        healthy: servers.iter().all(|server| server.healthy),
        failure_tolerance: u32::try_from(well.saturating_sub(needed)).unwrap_or(u32::MAX),
        leader: servers
            .iter()
            .find(|server| server.leader)
            .map(|server| server.id.clone())
            .unwrap_or_default(),
        voters: voters.map(|server| server.id.clone()).collect(),
        servers,
    }
}

/// Why a server is not well, as the leader sees it.
fn trouble(member: &MemberRecord) -> Option<String> {
    let stalled = Duration::from_millis(member.stalled_ms);
    match member.last_contact_ms {
        None => Some("the leader has never heard of it".to_owned()),
        Some(ms) if !is_healthy(member) => Some(format!(
            "the leader has not heard of it for {} s",
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
        let why = |contact, behind, stalled| trouble(&member(contact, behind, stalled));
        assert_eq!(why(Some(20), 10, 900), None);
        assert!(why(None, 0, 0).unwrap().contains("never"));
        assert!(why(Some(60_000), 0, 0).unwrap().contains("60 s"));
        assert!(why(Some(20), 1_000_000, 0).unwrap().contains("behind"));
        // One entry, for ever: it was called healthy.
        let stalled = why(Some(20), 1, 7_000).unwrap();
        assert!(stalled.contains("has not advanced for 7 s"), "{stalled}");
    }
}
