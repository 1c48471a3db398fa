//! Details of a placement, or of its failure.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use muster_domain::alloc::{Allocation, PlacementMetrics};
use muster_domain::job::DEFAULT_NODE_POOL;
use serde::{Deserialize, Serialize};

use crate::api::duration::nanos;
use crate::api::null::{self, Null};

/// The details of a placement, or of its failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Metric {
    pub nodes_evaluated: u32,
    pub nodes_filtered: u32,
    pub nodes_in_pool: u32,
    pub node_pool: String,
    #[serde(with = "null")]
    pub nodes_available: BTreeMap<String, u32>,
    pub class_filtered: Null,
    /// Nodes failed, by constraint or check.
    #[serde(with = "null")]
    pub constraint_filtered: BTreeMap<String, u32>,
    pub nodes_exhausted: u32,
    pub class_exhausted: Null,
    /// Full nodes, by the resource that ran out first.
    #[serde(with = "null")]
    pub dimension_exhausted: BTreeMap<String, u32>,
    pub quota_exhausted: Null,
    pub resources_exhausted: Null,
    pub scores: Null,
    /// The best nodes, best first.
    #[serde(with = "null")]
    pub score_meta_data: Vec<NodeScoreMeta>,
    /// Nanoseconds.
    pub allocation_time: i64,
    /// Further instances of the group that failed for the same reason.
    pub coalesced_failures: u32,
}

impl From<&PlacementMetrics> for Metric {
    fn from(metrics: &PlacementMetrics) -> Self {
        let PlacementMetrics {
            nodes_evaluated,
            nodes_filtered,
            nodes_exhausted,
            nodes_available,
            constraint_filtered,
            dimension_exhausted,
            scores,
            decision_time,
        } = metrics;
        let scores = scores.iter().map(|score| NodeScoreMeta {
            node_id: score.node_id.to_string(),
            scores: score
                .components
                .iter()
                .map(|(name, value)| (name.name().to_owned(), value.value()))
                .collect(),
            norm_score: score.normalised.value(),
        });
        Self {
            nodes_evaluated: *nodes_evaluated,
            nodes_filtered: *nodes_filtered,
            nodes_in_pool: nodes_available.iter().map(|(_, count)| count).sum(),
            node_pool: DEFAULT_NODE_POOL.to_owned(),
            nodes_available: nodes_available.iter().cloned().collect(),
            constraint_filtered: constraint_filtered.iter().cloned().collect(),
            nodes_exhausted: *nodes_exhausted,
            dimension_exhausted: dimension_exhausted.iter().cloned().collect(),
            score_meta_data: scores.collect(),
            allocation_time: nanos(*decision_time),
            ..Self::default()
        }
    }
}

impl Metric {
    /// The metrics of `alloc`. Its own node is always among the scores, even where the plan kept only the
    /// best ones of many instances.
    pub(super) fn of_alloc(alloc: &Allocation) -> Self {
        let mut metric = Self::from(&*alloc.metrics);
        metric.node_pool.clone_from(&alloc.job.spec.node_pool);
        let node_id = alloc.node_id.to_string();
        if metric
            .score_meta_data
            .iter()
            .all(|score| score.node_id != node_id)
        {
            metric.score_meta_data.push(NodeScoreMeta {
                node_id,
                scores: BTreeMap::new(),
                norm_score: alloc.score.value(),
            });
        }
        metric
    }
}

/// The score of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeScoreMeta {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub scores: BTreeMap<String, f64>,
    pub norm_score: f64,
}
