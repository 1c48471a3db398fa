//! Reasons why instances of a group can go to a node or not. Nomad has no such answer.

#![expect(missing_docs, reason = "fields say what they are")]

use serde::{Deserialize, Serialize};

/// The placement of one more instance of a group, as `GET /v1/job/:id/why` reports it for each group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Why {
    pub group: String,
    pub missing: u32,
    /// Nodes on which one more would fit.
    pub fitting: u32,
    /// The smallest change that would let one fit, if none does.
    pub advice: String,
    /// Nodes that fit, best first, then nodes that lack the least.
    pub nodes: Vec<WhyNode>,
}

/// The fit of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WhyNode {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub node_name: String,
    pub fits: bool,
    /// Between -1 and 1, higher is better; `null` if the node does not fit.
    pub score: Option<f64>,
    pub scores: std::collections::BTreeMap<String, f64>,
    /// All obstacles to an instance on the node.
    pub obstacles: Vec<Obstacle>,
}

/// An obstacle to an instance on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Obstacle {
    /// `node`, `pool`, `datacenter`, `constraint`, `missing`, `cpu`, `memory`, `disk`, `cores`, `port`, `ports`,
    /// `devices`, `distinct_hosts` or `distinct_property`.
    pub kind: String,
    /// The obstacle, as text.
    pub text: String,
    /// The amount that one instance needs, for a numeric obstacle; MHz or MiB.
    pub needed: Option<u64>,
    /// The amount that is free.
    pub free: Option<u64>,
    /// The allocation that is in the way; empty without one.
    #[serde(rename = "HeldByAllocID")]
    pub held_by_alloc_id: String,
}
