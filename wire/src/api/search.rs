//! Ids by prefix.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::block::{self, FieldNames};
use crate::api::read_error::ReadJobError;
use crate::api::route::Route;

/// Routes of searches.
pub const ROUTES: &[Route] = &[Route::write("/v1/search")];

/// The body of `PUT /v1/search`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SearchRequest {
    pub prefix: String,
    pub context: String,
}

impl SearchRequest {
    /// Kinds that can be searched; `all` means all of them.
    pub const CONTEXTS: [&'static str; 6] = [
        "allocs",
        "deployment",
        "evals",
        "jobs",
        "namespaces",
        "nodes",
    ];
    /// Nomad's other kinds: they are accepted, and have no results.
    pub const EMPTY_CONTEXTS: [&'static str; 8] = [
        "host_volumes",
        "node_pools",
        "plugins",
        "quotas",
        "recommendations",
        "scaling_policy",
        "vars",
        "volumes",
    ];

    /// The request in `body`.
    ///
    /// # Errors
    ///
    /// [`ReadJobError`] for malformed bodies and unknown contexts.
    pub fn read(body: &[u8]) -> Result<Self, ReadJobError> {
        const KNOWN: FieldNames = FieldNames {
            derived: &["Region", "Namespace", "AuthToken"],
            harmless: &[],
            unsupported: &[],
            rows: &[],
        };
        block::read(body, &KNOWN, |block| {
            let prefix = block.string("Prefix").unwrap_or_default();
            let context = block.word("Context").unwrap_or_else(|| "all".to_owned());
            let is_known = Self::CONTEXTS.contains(&context.as_str())
                || Self::EMPTY_CONTEXTS.contains(&context.as_str());
            if context != "all" && !is_known {
                block.fault(
                    "Context",
                    format!(
                        "`{context}` is none: use one of {} or all",
                        Self::CONTEXTS.join(", ")
                    ),
                );
            }
            Some(Self { prefix, context })
        })
    }
}

/// The answer to `PUT /v1/search`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SearchResponse {
    pub matches: BTreeMap<String, Option<Vec<String>>>,
    /// Whether there are more, by kind.
    pub truncations: BTreeMap<String, bool>,
    pub index: u64,
    pub last_contact: u64,
    pub known_leader: bool,
}
