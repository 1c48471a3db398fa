//! The server itself: who it is, who leads, whether it works.

use std::collections::BTreeMap;

use axum::extract::State as Shared;
use axum::response::Response;
use axum::routing::get;
use muster_domain::job::DEFAULT_REGION;
use muster_wire::api::agent::{Health, HealthResponse, Member, MembersResponse, SelfResponse};
use serde_json::json;

use super::query::Query;
use super::status::ApiError;
use super::{Http, Table};

/// Nomad's API has a datacenter of the server; ours has none that means anything.
const DATACENTER: &str = "dc1";

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/agent/self", get(itself))
        .on("/v1/agent/members", get(members))
        .on("/v1/agent/servers", get(servers))
        .on("/v1/agent/health", get(health))
        .on("/v1/status/leader", get(leader))
        .on("/v1/status/peers", get(peers))
        .on("/v1/regions", get(regions))
}

fn member(http: &Http) -> Member {
    let info = http.control.server_info();
    let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    Member {
        name: format!("{}.{DEFAULT_REGION}", info.name),
        addr: info.quic_addr.ip().to_string(),
        port: info.quic_addr.port(),
        tags: BTreeMap::from([
            tag("role", "nomad"),
            tag("region", DEFAULT_REGION),
            tag("dc", DATACENTER),
            tag("build", info.version),
            tag("id", &info.server_id.to_string()),
            tag("port", &info.quic_addr.port().to_string()),
            tag("rpc_addr", &info.quic_addr.ip().to_string()),
            tag("cluster", &info.cluster),
        ]),
        status: "alive".to_owned(),
        ..Member::default()
    }
}

fn leads(http: &Http) -> bool {
    http.control.leader().is_some_and(|leader| leader.is_self)
}

async fn itself(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let info = http.control.server_info();
    let config = json!({
        "Region": DEFAULT_REGION,
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
        "Server": {"Enabled": true, "BootstrapExpect": 1},
        "Client": {"Enabled": false},
        "ACL": {"Enabled": false},
        "Version": {"Version": info.version, "Revision": "", "VersionPrerelease": "", "VersionMetadata": ""},
    });
    query.json(&SelfResponse {
        config,
        member: member(&http),
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
    let leads = leads(http);
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
        server_region: DEFAULT_REGION.to_owned(),
        server_dc: DATACENTER.to_owned(),
        members: vec![member(&http)],
    })
}

async fn servers(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    query.json(&[http.control.server_info().quic_addr.to_string()])
}

async fn health(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    if let Some(reason) = http.control.failed().borrow().as_ref() {
        return Err(ApiError::Internal(format!("the log has stopped: {reason}")));
    }
    let (message, ok) = match http.control.leader() {
        Some(_) => ("ok", true),
        None => ("no server leads: an election is going on", false),
    };
    query.json(&HealthResponse {
        server: Health {
            message: message.to_owned(),
            ok,
        },
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
    query.json(&[http.control.server_info().quic_addr.to_string()])
}

async fn regions(query: Query) -> Result<Response, ApiError> {
    query.json(&[DEFAULT_REGION])
}
