//! The terms of a node's own part of the score, and the components that they give.

use std::sync::Arc;

use muster_domain::alloc::{Component, NodeScore, Score};
use muster_domain::id::NodeId;
use muster_domain::resources::Amount;
use muster_domain::scheduling::Algorithm;

use super::own_score::OwnScore;
use super::rules::{NodeScores, RULES};
use super::{anti_affinity, binpack, reschedule_penalty};

/// Components of the terms: binpack, anti-affinity, penalty, the rules and devices.
pub(super) const COMPONENTS: usize = 4 + RULES.len();

/// Each applicable component with its name.
pub(super) type Components = [Option<(&'static str, f64)>; COMPONENTS];

/// The terms of a node's own part of the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ScoreTerms {
    pub(super) total: Amount,
    pub(super) used: Amount,
    /// Number of instances of the group that are on the node.
    pub(super) collisions: u32,
    /// Whether the instance failed there before.
    pub(super) avoided: bool,
    pub(super) by_rules: NodeScores,
    pub(super) device_score: Option<f64>,
}

impl ScoreTerms {
    /// Returns the components. Bin-packing always applies.
    pub(super) fn components(self, algorithm: Algorithm, count: u32) -> Components {
        let fit = match algorithm {
            Algorithm::Binpack => binpack::score(self.total, self.used),
            Algorithm::Spread => binpack::spread_score(self.total, self.used),
        };
        let mut components = [None; COMPONENTS];
        components[0] = Some((Component::BINPACK, fit));
        components[1] = anti_affinity::score(self.collisions, count)
            .map(|score| (Component::ANTI_AFFINITY, score));
        components[2] = self
            .avoided
            .then_some((Component::RESCHEDULE_PENALTY, reschedule_penalty::SCORE));
        let by_rules = RULES.iter().zip(self.by_rules);
        for (component, (rule, score)) in components[3..].iter_mut().zip(by_rules) {
            *component = score.map(|score| (rule.name, score));
        }
        components[COMPONENTS - 1] = self.device_score.map(|score| (Component::DEVICES, score));
        components
    }

    pub(super) fn own(self, algorithm: Algorithm, count: u32) -> OwnScore {
        sum_components(self.components(algorithm, count))
    }
}

/// The own part of a node that cannot take an instance.
pub(super) const FULL: OwnScore = OwnScore {
    sum: f64::NEG_INFINITY,
    components: 1,
};

pub(super) fn sum_components(components: Components) -> OwnScore {
    OwnScore::of(components.into_iter().flatten().map(|(_, score)| score))
}

pub(super) fn node_score(node_id: NodeId, own: Components, shared: f64, score: f64) -> NodeScore {
    NodeScore {
        node_id,
        components: named(own, shared),
        normalised: Score::new(score),
    }
}

/// The components of a score, in the form for display.
pub(super) type NamedScores = Arc<[(Component, Score)]>;

pub(super) fn named(own: Components, shared: f64) -> NamedScores {
    let shared = Some(shared)
        .filter(|shared| *shared != 0.0)
        .map(|shared| (Component::SPREAD, shared));
    let components = own.into_iter().chain([shared]).flatten();
    let mut named: Vec<(Component, Score)> = Vec::with_capacity(own.len() + 1);
    named.extend(components.map(|(name, score)| (name.into(), Score::new(score))));
    named.into()
}

/// A node without cpu or memory has no score: Nomad would divide by zero.
pub(super) fn has_capacity(total: Amount) -> Result<(), &'static str> {
    if total.cpu_mhz == 0 {
        return Err("cpu");
    }
    if total.memory_mb == 0 {
        return Err("memory");
    }
    Ok(())
}
