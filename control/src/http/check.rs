//! Whether the servers agree, and whether they are well.

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::Response;
use muster_control_core::state::StateHash;
use muster_wire::api::operator::{OperatorHealth, ServerHealth, StateCheck, StateCheckServer};
use muster_wire::api::{duration, time};

use super::Http;
use super::query::Query;
use super::status::ApiError;
use crate::comparison::{Comparison, Testimony};
use crate::handle::Consistency;
use crate::limits;
use crate::peers::message::MemberRecord;
use crate::raft::membership::is_healthy;

/// Compares the states of all servers at the newest index that a read may see.
pub(super) async fn states(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let members = http.control.list_peers().await?;
    // Every server has applied, or soon will, what the leader had.
    let read = http.control.read(Consistency::Leader).await?;
    let index = *http.control.applied().borrow();
    drop(read);
    let comparison = Comparison::at(&http.control, index, members).await;
    query.json(&shape(&comparison))
}

fn shape(comparison: &Comparison) -> StateCheck {
    let right = comparison.right();
    let differing = comparison.differing();
    let server = |one: &Testimony| {
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
    let health = judge(&http, &members);
    let mut response = query.json(&health)?;
    if !health.healthy {
        // Nomad's answer for "not all is well".
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    Ok(response)
}

fn judge(http: &Http, members: &[MemberRecord]) -> OperatorHealth {
    let newest = members.iter().filter_map(|member| member.log_index).max();
    let info = http.control.server_info();
    let server = |member: &MemberRecord| {
        let reason = trouble(member, newest.map_or(0, |index| index.0));
        ServerHealth {
            id: member.server_id.to_string(),
            name: member.node.name.clone(),
            address: member.node.quic_addr.clone(),
            serf_status: if reason.is_empty() { "alive" } else { "failed" }.to_owned(),
            version: info.version.to_owned(),
            leader: member.leader,
            last_contact: member
                .last_contact_ms
                .map(|ms| duration::text(std::time::Duration::from_millis(ms)))
                .unwrap_or_default(),
            last_term: http.control.leadership().borrow().term,
            last_index: member.log_index.map_or(0, |index| index.0),
            healthy: reason.is_empty(),
            voter: member.voter,
            stable_since: time::text(info.started_at),
            reason,
        }
    };
    let mut servers: Vec<ServerHealth> = members.iter().map(server).collect();
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

/// Why a server is not well; empty if it is.
fn trouble(member: &MemberRecord, newest: u64) -> String {
    let behind = newest.saturating_sub(member.log_index.map_or(0, |index| index.0));
    match member.last_contact_ms {
        None => "the leader has never heard of it".to_owned(),
        Some(ms) if !is_healthy(member) => {
            format!("the leader has not heard of it for {} s", ms / 1_000)
        }
        Some(_) if behind > limits::HEALTHY_ENTRIES_BEHIND => {
            format!("its log is {behind} entries behind")
        }
        Some(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::LogIndex;

    use super::*;
    use crate::peers::message::ServerNode;

    fn member(last_contact_ms: Option<u64>, log_index: u64) -> MemberRecord {
        MemberRecord {
            server_id: 1,
            node: ServerNode::default(),
            voter: true,
            leader: false,
            last_contact_ms,
            log_index: Some(LogIndex(log_index)),
        }
    }

    #[test]
    fn a_server_is_well_that_was_heard_of_and_keeps_up() {
        assert_eq!(trouble(&member(Some(20), 100), 110), "");
        assert!(trouble(&member(None, 100), 110).contains("never"));
        assert!(trouble(&member(Some(60_000), 100), 110).contains("60 s"));
        assert!(trouble(&member(Some(20), 100), 1_000_000).contains("behind"));
    }
}
