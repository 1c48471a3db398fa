//! The comparison of the servers' states, and the health of the servers.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::Response;
use muster_control_core::state::StateHash;
use muster_domain::number;
use muster_wire::api::operator::{
    ClockConfirmed, DeepCheck, OperatorHealth, ServerHealth, StateCheck, StateCheckServer,
};
use muster_wire::api::{duration, time};

use super::handler::Http;
use super::query::Query;
use super::status::ApiError;
use crate::consistency_check::{StateHashComparison, StateHashReport};
use crate::handle::{Consistency, Control};
use crate::peers::health;
use crate::peers::message::MemberRecord;
use crate::state_rules;

/// The fault of a cluster in which no server leads.
const NO_LEADER: &str = "no leader: an election is going on, or no majority of servers is in reach";

/// Compares the states of all servers at the read index, and lists the faults of the servers. With `deep` it also
/// applies the rules of the state to this server's state.
pub(super) async fn states(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let deep = query.flag("deep")?;
    let control = &http.control;
    let listed = async {
        let members = control
            .list_peers()
            .await
            .map_err(|error| error.to_string())?;
        // Every server has applied the leader's state, or soon will.
        let read = control.read(Consistency::Leader).await;
        drop(read.map_err(|error| error.to_string())?);
        Ok::<_, String>(members)
    };
    let (members, mut faults) = match listed.await {
        Ok(members) => (members, Vec::new()),
        // Without a leader, this server still reports its own state.
        Err(error) => {
            tracing::debug!(%error, "a check found no leader");
            (control.known_peers(), vec![NO_LEADER.to_owned()])
        }
    };
    let index = *control.applied().borrow();
    let has_leader = faults.is_empty();
    let of_servers = if has_leader {
        health::faults(control, &members).await
    } else {
        vec![Vec::new(); members.len()]
    };
    if !has_leader {
        let own = control.troubles().0.into_iter();
        let name = &control.server_info().name;
        faults.extend(own.map(|fault| format!("server {name}: {fault}")));
    }
    for (member, of_server) in members.iter().zip(&of_servers) {
        let name = &member.node.name;
        faults.extend(
            of_server
                .iter()
                .map(|fault| format!("server {name}: {fault}")),
        );
    }
    let behind: BTreeMap<u64, u64> = members
        .iter()
        .map(|member| (member.server_id, member.behind))
        .collect();
    let comparison = StateHashComparison::at(control, index, members).await;
    let mut check = shape(&comparison, &behind);
    // A leader reports a silent server only after some seconds.
    let silent = check.servers.iter().filter(|it| !it.error.is_empty());
    for server in silent.clone() {
        let named = format!("server {}: ", server.name);
        if !faults.iter().any(|fault| fault.starts_with(&named)) {
            faults.push(format!("{named}it does not answer"));
        }
    }
    let (silent, all) = (silent.count(), check.servers.len());
    if !has_leader && silent * 2 >= all {
        faults.push(format!(
            "{} of {all} servers answer, which is not a majority: start more of them",
            all - silent
        ));
    }
    check.faults = faults;
    if deep {
        check.deep = Some(deep_check(control).await);
    }
    check.healthy = check.agree
        && check.faults.is_empty()
        && check
            .deep
            .as_ref()
            .is_none_or(|deep| deep.broken.is_empty() && deep.error.is_empty());
    query.json(&check)
}

/// Applies the rules of the state to a snapshot of it, on a thread of its own.
async fn deep_check(control: &Control) -> DeepCheck {
    let state = control.published().state();
    let index = state.applied().0;
    match state_rules::check_state(state).await {
        Ok(broken) => DeepCheck {
            index,
            broken,
            error: String::new(),
        },
        Err(error) => DeepCheck {
            index,
            broken: Vec::new(),
            error: error.to_string(),
        },
    }
}

fn shape(comparison: &StateHashComparison, behind: &BTreeMap<u64, u64>) -> StateCheck {
    let majority = comparison.majority_hash();
    let differing = comparison.differing();
    let server = |one: &StateHashReport| {
        let (hash, error) = match &one.hash {
            Ok(hash) => (Some(hash), String::new()),
            Err(error) => (None, error.clone()),
        };
        let differs = match (hash, &majority) {
            (Some(hash), Some(majority)) => hash.differing(majority),
            (_, _) => Vec::new(),
        };
        StateCheckServer {
            id: one.server.server_id.to_string(),
            name: one.server.node.name.clone(),
            address: one.server.node.quic_addr.clone(),
            hash: hash.map(|hash| hex(hash.whole())).unwrap_or_default(),
            tables: hash.map(tables).unwrap_or_default(),
            differing: differs.into_iter().map(str::to_owned).collect(),
            entries_behind: behind.get(&one.server.server_id).copied().unwrap_or(0),
            error,
        }
    };
    let has_all_hashes = comparison.reports.iter().all(|one| one.hash.is_ok());
    StateCheck {
        index: comparison.index.0,
        agree: differing.is_empty() && has_all_hashes,
        differing: differing.into_iter().map(str::to_owned).collect(),
        servers: comparison.reports.iter().map(server).collect(),
        ..StateCheck::default()
    }
}

fn tables(hash: &StateHash) -> BTreeMap<String, String> {
    let tables = hash.tables().into_iter();
    tables
        .map(|(name, hash)| (name.to_owned(), hex(hash)))
        .collect()
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// The health of every server, as the leader has it. Without a leader, as this server has it.
pub(super) async fn server_health(
    Shared(http): Shared<Http>,
    query: Query,
) -> Result<Response, ApiError> {
    let health = match http.control.list_peers().await {
        Ok(members) => {
            let faults = health::faults(&http.control, &members).await;
            operator_health(&http, &members, &faults)
        }
        Err(error) => {
            tracing::debug!(%error, "a look at the servers' health found no leader");
            let members = http.control.known_peers();
            let faults = health::faults_without_leader(&http.control, &members).await;
            OperatorHealth {
                healthy: false,
                failure_tolerance: 0,
                ..operator_health(&http, &members, &faults)
            }
        }
    };
    let mut response = query.json(&health)?;
    if !health.healthy {
        // Nomad's status for an unhealthy cluster.
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    Ok(response)
}

/// Accepts this server's wall clock although it has jumped.
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

fn operator_health(
    http: &Http,
    members: &[MemberRecord],
    faults: &[Vec<String>],
) -> OperatorHealth {
    let info = http.control.server_info();
    let server = |(member, faults): (&MemberRecord, &Vec<String>)| {
        let reason = faults.join("; ");
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
    let mut servers: Vec<ServerHealth> = members.iter().zip(faults).map(server).collect();
    servers.sort_by(|left, right| left.name.cmp(&right.name));
    let voters = servers.iter().filter(|server| server.voter);
    let well = voters.clone().filter(|server| server.healthy).count();
    let needed = voters.clone().count() / 2 + 1;
    OperatorHealth {
        healthy: servers.iter().all(|server| server.healthy),
        failure_tolerance: number::count(well.saturating_sub(needed)),
        leader: servers
            .iter()
            .find(|server| server.leader)
            .map(|server| server.id.clone())
            .unwrap_or_default(),
        voters: voters.map(|server| server.id.clone()).collect(),
        servers,
    }
}
