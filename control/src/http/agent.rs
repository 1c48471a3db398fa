//! The server itself: its identity, the leader, and its health.

use std::collections::BTreeMap;

use axum::extract::State as Shared;
use axum::response::Response;
use axum::routing::get;
use muster_domain::region;
use muster_wire::api::agent::{Health, HealthResponse, Member, MembersResponse, SelfResponse};
use serde_json::json;

use super::handler::{Http, Table};
use super::query::Query;
use super::status::ApiError;
use crate::limits;
use crate::peers::message::{PeerInfo, ServerNode};

/// Nomad's API has a datacenter for each server; a server here has only this fixed one.
const DATACENTER: &str = "dc1";

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/agent/self", get(read_self))
        .on("/v1/agent/members", get(members))
        .on("/v1/agent/servers", get(servers))
        .on("/v1/agent/health", get(health))
        .on("/v1/status/leader", get(leader))
        .on("/v1/status/peers", get(peers))
        .on("/v1/regions", get(regions))
}

/// The servers that this one knows; only itself while it belongs to no cluster.
fn known_servers(http: &Http) -> Vec<PeerInfo> {
    let info = http.control.server_info();
    let me = PeerInfo {
        server_id: info.server_id,
        node: ServerNode {
            name: info.name.clone(),
            quic_addr: info.quic_addr.to_string(),
            http_addr: info.http_addr.to_string(),
        },
    };
    let mut servers: Vec<PeerInfo> = http
        .control
        .known_peers()
        .into_iter()
        .map(|member| PeerInfo {
            server_id: member.server_id,
            node: member.node,
        })
        .collect();
    match servers
        .iter_mut()
        .find(|known| known.server_id == me.server_id)
    {
        // The membership may still have an address of an earlier start.
        Some(mine) => *mine = me,
        None => servers.push(me),
    }
    servers
}

fn member(http: &Http, server: &PeerInfo) -> Member {
    let info = http.control.server_info();
    let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let (addr, port) = server
        .node
        .quic_addr
        .rsplit_once(':')
        .unwrap_or((&server.node.quic_addr, ""));
    let addr = addr.trim_matches(['[', ']']);
    let is_me = server.server_id == info.server_id;
    let mut tags = BTreeMap::from([
        tag("role", "nomad"),
        tag("region", region::name()),
        tag("dc", DATACENTER),
        tag("id", &server.server_id.to_string()),
        tag("port", port),
        tag("rpc_addr", addr),
        tag("http_addr", &server.node.http_addr),
        tag("cluster", &info.cluster),
    ]);
    if is_me {
        tags.extend([tag("build", info.version)]);
    }
    let silence = http.control.peers().last_contact(server.server_id);
    let alive = is_me || silence.is_some_and(|silence| silence <= limits::SERVER_HEALTHY_WITHIN);
    Member {
        name: format!("{}.{}", server.node.name, region::name()),
        addr: addr.to_owned(),
        port: port.parse().unwrap_or_default(),
        tags,
        status: if alive { "alive" } else { "failed" }.to_owned(),
        ..Member::default()
    }
}

/// The record of this server.
fn self_member(http: &Http) -> Member {
    let me = http.control.server_info().server_id;
    let servers = known_servers(http);
    let mine = servers.iter().find(|known| known.server_id == me);
    mine.map(|known| member(http, known)).unwrap_or_default()
}

/// The servers' QUIC addresses.
fn addresses(http: &Http) -> Vec<String> {
    let servers = known_servers(http).into_iter();
    servers.map(|known| known.node.quic_addr).collect()
}

fn is_leader(http: &Http) -> bool {
    http.control.leader().is_some_and(|leader| leader.is_self)
}

async fn read_self(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let info = http.control.server_info();
    let config = json!({
        "Region": region::name(),
        "Datacenter": DATACENTER,
        "NodeName": info.name,
        "BindAddr": info.http_addr.ip().to_string(),
        "DataDir": info.data_dir.display().to_string(),
        "AdvertiseAddrs": {
            "HTTP": info.http_addr.to_string(),
            "RPC": info.quic_addr.to_string(),
            "Serf": info.quic_addr.to_string(),
        },
        "Ports": {"HTTP": info.http_addr.port(), "RPC": info.quic_addr.port(), "Serf": info.quic_addr.port()},
        "Server": {"Enabled": true, "BootstrapExpect": http.control.known_peers().len()},
        "Client": {"Enabled": false},
        "ACL": {"Enabled": false},
        "Version": {"Version": info.version, "Revision": "", "VersionPrerelease": "", "VersionMetadata": ""},
    });
    query.json(&SelfResponse {
        config,
        member: self_member(&http),
        stats: stats(&http),
    })
}

fn stats(http: &Http) -> BTreeMap<String, BTreeMap<String, String>> {
    let info = http.control.server_info();
    let group = |pairs: &[(&str, String)]| {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect::<BTreeMap<_, _>>()
    };
    let state = http.control.state();
    let leader = http.control.leader();
    let leads = is_leader(http);
    let role = if leads { "Leader" } else { "Follower" };
    BTreeMap::from([
        (
            "nomad".to_owned(),
            group(&[
                ("server", true.to_string()),
                ("leader", leads.to_string()),
                (
                    "leader_addr",
                    leader.map(|leader| leader.raft_addr).unwrap_or_default(),
                ),
                ("known_regions", 1.to_string()),
            ]),
        ),
        (
            "raft".to_owned(),
            group(&[
                ("state", role.to_owned()),
                ("applied_index", state.applied().0.to_string()),
                (
                    "last_log_index",
                    http.control.last_log_index().0.to_string(),
                ),
            ]),
        ),
        (
            "runtime".to_owned(),
            group(&[
                ("arch", std::env::consts::ARCH.to_owned()),
                ("kernel.name", std::env::consts::OS.to_owned()),
            ]),
        ),
        (
            "muster".to_owned(),
            group(&[
                ("version", info.version.to_owned()),
                ("cluster", info.cluster.clone()),
                ("started_at", muster_wire::api::time::text(info.started_at)),
                ("agents", http.control.nodes().connected().len().to_string()),
                (
                    "heartbeat_ttl",
                    muster_wire::api::duration::text(info.heartbeat_ttl),
                ),
                ("log_bytes_cut", info.log_bytes_cut.to_string()),
            ]),
        ),
    ])
}

async fn members(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    query.json(&MembersResponse {
        server_name: http.control.server_info().name.clone(),
        server_region: region::name().to_owned(),
        server_dc: DATACENTER.to_owned(),
        members: known_servers(&http)
            .iter()
            .map(|known| member(&http, known))
            .collect(),
    })
}

async fn servers(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    query.json(&addresses(&http))
}

async fn health(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    if let Some(reason) = http.control.failed().borrow().as_ref() {
        return Err(ApiError::Internal(format!("the log has stopped: {reason}")));
    }
    let (message, ok) = match (http.control.disk_full(), http.control.leader()) {
        (Some(reason), _) => (reason, false),
        (None, Some(_)) => ("ok".to_owned(), true),
        (None, None) => ("no server leads: an election is going on".to_owned(), false),
    };
    query.json(&HealthResponse {
        server: Health { message, ok },
    })
}

async fn leader(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    query.json(
        &http
            .control
            .leader()
            .map(|leader| leader.raft_addr)
            .unwrap_or_default(),
    )
}

async fn peers(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    query.json(&addresses(&http))
}

async fn regions(query: Query) -> Result<Response, ApiError> {
    query.json(&[region::name()])
}
