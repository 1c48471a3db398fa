//! The server itself, its peers and its health.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::route::Route;

/// Routes of servers.
pub const ROUTES: &[Route] = &[
    Route::read("/v1/agent/self"),
    Route::read("/v1/agent/members"),
    Route::read("/v1/agent/servers"),
    Route::read("/v1/agent/health"),
    Route::read("/v1/status/leader"),
    Route::read("/v1/status/peers"),
    Route::read("/v1/regions"),
];

/// A server of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Member {
    pub name: String,
    pub addr: String,
    pub port: u16,
    pub tags: BTreeMap<String, String>,
    pub status: String,
    pub protocol_min: u8,
    pub protocol_max: u8,
    pub protocol_cur: u8,
    pub delegate_min: u8,
    pub delegate_max: u8,
    pub delegate_cur: u8,
}

/// The answer to `GET /v1/agent/members`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MembersResponse {
    pub server_name: String,
    pub server_region: String,
    #[serde(rename = "ServerDC")]
    pub server_dc: String,
    pub members: Vec<Member>,
}

/// The answer to `GET /v1/agent/self`. One of the few shapes with lower-case names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SelfResponse {
    /// Configuration; the parts that clients read.
    pub config: Value,
    pub member: Member,
    /// Groups of texts: `raft`, `runtime`, `nomad`, `muster`.
    pub stats: BTreeMap<String, BTreeMap<String, String>>,
}

/// The answer to `GET /v1/agent/health`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthResponse {
    pub server: Health,
}

/// Whether something works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    pub message: String,
    pub ok: bool,
}
