//! The servers: the membership, the leader, and changes of both.

use axum::extract::State as Shared;
use axum::response::Response;
use axum::routing::{get, put};
use muster_wire::api::operator::{
    AddServerRequest, RaftConfiguration, RaftIdAddress, RaftServer, TransferResponse,
};

use super::body::RawBody;
use super::handler::{Http, Table};
use super::query::Query;
use super::status::ApiError;
use crate::peers::message::{MemberRecord, PeerInfo};

/// Nomad's protocol version for servers whose ids are not their addresses.
const RAFT_PROTOCOL: &str = "3";

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/operator/raft/configuration", get(configuration))
        .on("/v1/operator/raft/peer", put(add).post(add).delete(remove))
        .on("/v1/operator/raft/init", put(init).post(init))
        .on(
            "/v1/operator/raft/transfer-leadership",
            put(transfer).post(transfer),
        )
}

fn shape(members: &[MemberRecord], index: u64) -> RaftConfiguration {
    let server = |member: &MemberRecord| RaftServer {
        id: member.server_id.to_string(),
        node: member.node.name.clone(),
        address: member.node.quic_addr.clone(),
        leader: member.leader,
        voter: member.voter,
        raft_protocol: RAFT_PROTOCOL.to_owned(),
        http_address: member.node.http_addr.clone(),
    };
    let mut servers: Vec<RaftServer> = members.iter().map(server).collect();
    servers.sort_by(|left, right| left.node.cmp(&right.node));
    RaftConfiguration { servers, index }
}

/// Answers with the membership. With `stale` it is this server's own, which is available without a leader.
async fn configuration(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let members = if query.flag("stale")? {
        http.control.known_peers()
    } else {
        http.control.list_peers().await?
    };
    query.json(&shape(&members, 0))
}

async fn init(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let founded = http.control.init().await?;
    let member = |known: PeerInfo| RaftServer {
        id: known.server_id.to_string(),
        node: known.node.name,
        address: known.node.quic_addr,
        voter: true,
        http_address: known.node.http_addr,
        raft_protocol: RAFT_PROTOCOL.to_owned(),
        leader: false,
    };
    query.json(&RaftConfiguration {
        servers: founded.into_iter().map(member).collect(),
        index: 0,
    })
}

async fn add(
    Shared(http): Shared<Http>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let AddServerRequest { address } = serde_json::from_slice(&body.0)
        .map_err(|error| ApiError::Malformed(format!("the request body is none: {error}")))?;
    if address.is_empty() {
        return Err(ApiError::Malformed(
            "Address is missing: where the server speaks QUIC, host and port".to_owned(),
        ));
    }
    http.control.add_peer(&address).await?;
    query.json(&())
}

/// Returns the server that Nomad's `id` or `address` names.
fn named<'a>(
    query: &Query,
    members: &'a [MemberRecord],
) -> Result<Option<&'a MemberRecord>, ApiError> {
    let is_meant = |member: &&MemberRecord| {
        let by_id = query
            .text("id")
            .map(|id| member.server_id.to_string() == id);
        let by_address = query
            .text("address")
            .map(|address| member.node.quic_addr == address);
        by_id.unwrap_or(true) && by_address.unwrap_or(true)
    };
    if query.text("id").is_none() && query.text("address").is_none() {
        return Ok(None);
    }
    let found = members.iter().find(is_meant);
    found.map(Some).ok_or(ApiError::NotFound { what: "server" })
}

async fn remove(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let members = http.control.list_peers().await?;
    let Some(member) = named(&query, &members)? else {
        return Err(ApiError::Malformed(
            "Must specify either an id or an address of a server to remove".to_owned(),
        ));
    };
    http.control.remove_peer(member.server_id).await?;
    query.json(&())
}

async fn transfer(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let members = http.control.list_peers().await?;
    let to = named(&query, &members)?;
    let from = members.iter().find(|member| member.leader);
    let shape = |member: &MemberRecord| RaftIdAddress {
        id: member.server_id.to_string(),
        name: member.node.name.clone(),
        address: member.node.quic_addr.clone(),
    };
    let noop = to.is_some_and(|to| to.leader);
    if !noop {
        http.control
            .transfer_leadership(to.map(|member| member.server_id))
            .await?;
    }
    let leader = http.control.leader().map(|leader| RaftIdAddress {
        id: leader.server_id.to_string(),
        name: leader.name,
        address: leader.raft_addr,
    });
    query.json(&TransferResponse {
        from: from.map(shape).unwrap_or_default(),
        to: to.map(shape).or(leader).unwrap_or_default(),
        noop,
    })
}
