//! The dry run of registering a job: `PUT /v1/job/:id/plan`.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::alloc::{AllocListStub, Metric};
use crate::api::diff::JobDiff;
use crate::api::eval::Evaluation;
use crate::api::null;
use crate::api::time::Rfc3339;

/// The effects that registering a job would have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PlanResponse {
    pub annotations: PlanAnnotations,
    #[serde(rename = "FailedTGAllocs", with = "null")]
    pub failed_tg_allocs: BTreeMap<String, Metric>,
    /// The index for a conditional registration, which fails if the job changed meanwhile; 0 for an absent job.
    pub job_modify_index: u64,
    #[serde(with = "null")]
    pub created_evals: Vec<Evaluation>,
    /// The differences, if requested.
    pub diff: Option<JobDiff>,
    /// If the job were submitted now.
    pub next_periodic_launch: Option<Rfc3339>,
    /// Warnings as text; empty without any.
    pub warnings: String,
    pub index: u64,
}

/// The effects that registering would have on instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PlanAnnotations {
    #[serde(rename = "DesiredTGUpdates")]
    pub desired_tg_updates: BTreeMap<String, DesiredUpdates>,
    /// Allocations of less important jobs that would have to go.
    #[serde(with = "null")]
    pub preempted_allocs: Vec<AllocListStub>,
}

/// The numbers of a group's instances by planned change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DesiredUpdates {
    pub ignore: u64,
    pub place: u64,
    pub migrate: u64,
    pub stop: u64,
    pub in_place_update: u64,
    pub destructive_update: u64,
    pub canary: u64,
    pub preemptions: u64,
}

impl DesiredUpdates {
    /// Whether an instance would be created or destroyed.
    #[must_use]
    pub fn creates_or_destroys(&self) -> bool {
        let Self {
            ignore: _,
            place,
            migrate,
            stop,
            in_place_update: _,
            destructive_update,
            canary,
            preemptions: _,
        } = self;
        [place, migrate, stop, destructive_update, canary]
            .iter()
            .any(|count| **count > 0)
    }

    /// Counts that are not zero, by human-readable names.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, u64> {
        let Self {
            ignore,
            place,
            migrate,
            stop,
            in_place_update,
            destructive_update,
            canary,
            preemptions: _,
        } = *self;
        let counts = [
            ("ignore", ignore),
            ("create", place),
            ("destroy", stop),
            ("migrate", migrate),
            ("in-place update", in_place_update),
            ("create/destroy update", destructive_update),
            ("canary", canary),
        ];
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        counts
            .map(|(word, count)| (word.to_owned(), count))
            .collect()
    }
}
