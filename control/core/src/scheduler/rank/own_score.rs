//! The part of a candidate's score that it shares with no other.

/// A candidate's own part of its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OwnScore {
    /// The sum of its components; minus infinity for a node that cannot be used.
    pub(super) sum: f64,
    /// Number of the components; at least one.
    pub(super) components: usize,
}

impl OwnScore {
    pub(super) fn of(components: impl Iterator<Item = f64>) -> Self {
        let none = Self {
            sum: 0.0,
            components: 0,
        };
        components.fold(none, |own, score| Self {
            sum: own.sum + score,
            components: own.components + 1,
        })
    }

    /// Returns the score, including the shared part.
    pub(super) fn score(self, shared: f64) -> f64 {
        let components = self.components + usize::from(shared != 0.0);
        (self.sum + shared) / components as f64
    }
}
