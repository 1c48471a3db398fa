//! Counts the objects that a collection would free and those that would stay, by reason. It is a function of the
//! state.

use std::collections::{BTreeMap, BTreeSet};

use muster_domain::eval::Evaluation;
use muster_domain::id::{JobKey, Timestamp};

use super::keep_reason::KeepReason;
use super::rule::{self, Cutoffs};
use crate::state::State;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    Jobs,
    Evals,
    Allocs,
    Deployments,
    Nodes,
    /// One-off tasks. Their allocations count separately, too.
    OneOffs,
}

muster_domain::text_enum!(pub ObjectKind {
    Jobs => "jobs",
    Evals => "evaluations",
    Allocs => "allocations",
    Deployments => "deployments",
    Nodes => "nodes",
    OneOffs => "one-offs",
});

/// The objects of one kind that a collection would free and keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub freed: u64,
    /// The number of objects that stay, by reason.
    pub kept: BTreeMap<KeepReason, u64>,
}

impl Count {
    fn add(&mut self, verdict: Result<(), KeepReason>) {
        match verdict {
            Ok(()) => self.freed += 1,
            Err(why) => *self.kept.entry(why).or_default() += 1,
        }
    }
}

/// The objects of a state that a collection would free and keep, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcDryRun {
    /// The counts by kind; every kind is there.
    pub counts: BTreeMap<ObjectKind, Count>,
}

impl GcDryRun {
    /// Counts the result of a collection of `state` with these cutoffs at `at`. It looks at every object.
    #[must_use]
    pub fn of(state: &State, cutoffs: &Cutoffs, at: Timestamp) -> Self {
        let mut survey = Self::default();
        for kind in ObjectKind::ALL {
            survey.counts.insert(kind, Count::default());
        }
        let mut going = BTreeSet::new();
        for row in state.one_offs.iter() {
            let verdict = rule::one_off(row, cutoffs.one_offs);
            if verdict.is_ok() {
                going.insert(row.job_key());
            }
            survey.add(ObjectKind::OneOffs, verdict);
        }
        survey.jobs(state, cutoffs, at, &mut going);
        for eval in state.evals.iter() {
            let goes_with_job = going.contains(&eval.job);
            survey.eval(state, eval, cutoffs, at, goes_with_job);
        }
        for row in state.deployments.iter() {
            let verdict = if going.contains(&row.job) {
                Ok(())
            } else {
                rule::deployment(state, row, cutoffs.deployments)
            };
            survey.add(ObjectKind::Deployments, verdict);
        }
        for node in state.nodes.iter() {
            survey.add(ObjectKind::Nodes, rule::node(state, node, cutoffs.nodes));
        }
        survey
    }

    /// The count of one kind.
    #[must_use]
    pub fn count(&self, kind: ObjectKind) -> Count {
        self.counts.get(&kind).cloned().unwrap_or_default()
    }

    fn add(&mut self, kind: ObjectKind, verdict: Result<(), KeepReason>) {
        self.counts.entry(kind).or_default().add(verdict);
    }

    /// Adds the jobs that are removed to those that are removed with one-off tasks.
    fn jobs(
        &mut self,
        state: &State,
        cutoffs: &Cutoffs,
        at: Timestamp,
        going: &mut BTreeSet<JobKey>,
    ) {
        for (key, row) in state.jobs.rows() {
            let before = cutoffs.jobs;
            let below_goes = || {
                state.evals.of_job(key).all(|eval| {
                    let mut allocs = state.allocs.of_eval(&eval.id);
                    rule::ended(eval, before).is_ok()
                        && allocs.all(|alloc| {
                            rule::alloc(state, alloc, Some(&row.job), before, at).is_ok()
                        })
                })
            };
            let verdict = match rule::job(&row.job, before) {
                _ if going.contains(key) => Ok(()),
                Ok(()) if !below_goes() => Err(KeepReason::Needed),
                other => other,
            };
            if verdict.is_ok() {
                going.insert(key.clone());
            }
            self.add(ObjectKind::Jobs, verdict);
        }
    }

    fn eval(
        &mut self,
        state: &State,
        eval: &Evaluation,
        cutoffs: &Cutoffs,
        at: Timestamp,
        goes_with_job: bool,
    ) {
        let before = cutoffs.of_evals(eval.job_type);
        let job = state.jobs.get(&eval.job).map(|job| &**job);
        let extent = rule::eval(eval, job, before);
        let mut all_go = true;
        for alloc in state.allocs.of_eval(&eval.id) {
            let verdict = match extent {
                _ if goes_with_job => Ok(()),
                Ok(extent) => rule::alloc_of(extent, state, alloc, job, before, at),
                Err(_) if !alloc.is_terminal() => Err(KeepReason::Live),
                Err(_) => Err(KeepReason::Needed),
            };
            all_go &= verdict.is_ok();
            self.add(ObjectKind::Allocs, verdict);
        }
        let verdict = match extent {
            _ if goes_with_job => Ok(()),
            Err(why) => Err(why),
            Ok(rule::CollectableExtent::Earlier) => Err(KeepReason::Result),
            Ok(rule::CollectableExtent::All) if all_go => Ok(()),
            Ok(rule::CollectableExtent::All) => Err(KeepReason::Needed),
        };
        self.add(ObjectKind::Evals, verdict);
    }
}
