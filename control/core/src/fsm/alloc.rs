//! Commands that change allocations: their reports, and their migration.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_domain::alloc::{AllocReport, Transition};
use muster_domain::eval::Trigger;
use muster_domain::id::{AllocId, EvalId, JobKey, NodeId};
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::rejection::{AllocRejection, Rejection};
use super::report;
use super::response::Response;

/// A change of allocations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocCommand {
    /// Agents of one server report the states of allocations: one entry for many nodes.
    Report {
        /// The reports of each node. Of two reports about the same allocation, the later one counts.
        reports: Vec<(NodeId, Vec<AllocReport>)>,
    },
    /// Allocations are to migrate to other nodes.
    Migrate {
        alloc_ids: Vec<AllocId>,
        trigger: Trigger,
    },
}

impl AllocCommand {
    /// The kind of change, as Nomad's event type.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::Report { .. } => "AllocationUpdated",
            Self::Migrate { .. } => "AllocationUpdateDesiredStatus",
        }
    }
}

pub(super) fn apply(change: &mut Change<'_>, command: AllocCommand) -> Result<Response, Rejection> {
    match command {
        AllocCommand::Report { reports } => Ok(report::apply(change, reports)),
        AllocCommand::Migrate { alloc_ids, trigger } => migrate(change, &alloc_ids, trigger),
    }
}

/// Marks allocations for migration, and adds one evaluation for each job. Allocations that have ended are skipped. If
/// no allocation is known at all, the command is refused.
fn migrate(
    change: &mut Change<'_>,
    alloc_ids: &[AllocId],
    trigger: Trigger,
) -> Result<Response, Rejection> {
    let mut jobs: BTreeSet<Arc<JobKey>> = BTreeSet::new();
    let mut is_known = alloc_ids.is_empty();
    for alloc_id in alloc_ids {
        let Some(alloc) = change.state.allocs.get(alloc_id) else {
            continue;
        };
        is_known = true;
        if alloc.is_terminal() {
            continue;
        }
        let (key, transition) = (alloc.key(), alloc.transition());
        jobs.insert(Arc::clone(alloc.job_key()));
        change.update_silently(key, |row| {
            row.set_transition(Transition {
                migrate: true,
                ..transition
            });
            if trigger == Trigger::AllocStop {
                row.ask_to_stop();
            }
        });
    }
    match alloc_ids.first() {
        Some(first) if !is_known => return Err(Rejection::Alloc(AllocRejection::Unknown(*first))),
        Some(_) | None => {}
    }
    let mut eval_ids: Vec<EvalId> = Vec::new();
    for key in jobs {
        if let Some(job) = change.state.jobs.get(&key).map(Arc::clone) {
            eval_ids.push(change.add_eval(&job, trigger));
        }
    }
    Ok(Response::EvalsCreated { eval_ids })
}
