//! Numbers of feasible and refused nodes.

use muster_domain::alloc::PlacementMetrics;

use super::candidate::Candidate;
use crate::scheduler::feasible::{
    ClassFeasibility, Feasibility, FeasibilityCheck, FeasibilityCounts,
};
use crate::scheduler::fleet::ProjectedNodes;

/// Counts nodes by their verdict.
#[derive(Debug, Default)]
pub(super) struct FilterCounts {
    evaluated: u32,
    /// Refused nodes by reason, in order.
    filtered: Vec<(String, u32)>,
    available: Vec<(String, u32)>,
}

impl FilterCounts {
    /// Counts nodes that take work, and returns the feasible ones.
    pub(super) fn take(
        &mut self,
        fleet: &ProjectedNodes<'_>,
        needs: FeasibilityCheck,
    ) -> Vec<Candidate> {
        let nodes = fleet.state().nodes();
        let mut verdicts = ClassFeasibility::new(needs);
        let mut candidates = Vec::with_capacity(fleet.columns().len());
        let mut counts = FeasibilityCounts::default();
        for (number, column) in fleet.columns().iter().enumerate() {
            if !column.takes_work {
                continue;
            }
            let (judgement, verdict) = verdicts.of(column.class, || {
                nodes.get(&column.node_id).map(|node| &*node.spec)
            });
            counts.add(judgement.at, 1);
            if *verdict == Feasibility::Feasible {
                candidates.push(Candidate {
                    number,
                    class: judgement.class,
                    collisions: 0,
                    of_job: 0,
                });
            }
        }
        self.count_all(&verdicts, &counts);
        candidates
    }

    /// Counts nodes by the verdict on them.
    pub(super) fn count_all(&mut self, verdicts: &ClassFeasibility, counts: &FeasibilityCounts) {
        for (class_at, count) in counts.iter() {
            let datacenter = verdicts.datacenter(class_at);
            self.count(verdicts.verdict(class_at), datacenter, count);
        }
    }

    fn count(&mut self, verdict: &Feasibility, datacenter: &str, nodes: u32) {
        if *verdict == Feasibility::OtherPool {
            return;
        }
        add(&mut self.available, datacenter, nodes);
        match verdict {
            Feasibility::OtherPool | Feasibility::OtherDatacenter => {}
            Feasibility::Feasible => self.evaluated += nodes,
            Feasibility::Filtered(reason) => {
                self.evaluated += nodes;
                add(&mut self.filtered, reason, nodes);
            }
        }
    }

    pub(super) fn into_metrics(self) -> PlacementMetrics {
        PlacementMetrics {
            nodes_evaluated: self.evaluated,
            nodes_filtered: self.filtered.iter().map(|(_, nodes)| nodes).sum(),
            nodes_available: self.available,
            constraint_filtered: self.filtered,
            ..PlacementMetrics::default()
        }
    }
}

fn add(counts: &mut Vec<(String, u32)>, key: &str, more: u32) {
    match counts.binary_search_by(|(other, _)| other.as_str().cmp(key)) {
        Ok(at) => counts[at].1 += more,
        Err(at) => counts.insert(at, (key.to_owned(), more)),
    }
}
