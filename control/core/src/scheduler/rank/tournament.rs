//! The best of many scores, updated as single scores change: a binary tree of winners.

/// A tree over positions in a slice of scores that its owner keeps.
#[derive(Debug, Default)]
pub(super) struct Tournament {
    /// Leaves: a power of two, at least `len`.
    leaves: usize,
    /// Winners; the root is at 1, the leaves from `leaves`. `NONE` where there is no score.
    winners: Vec<u32>,
    /// Of equal scores, the first one from this position on wins; positions before it come last.
    first: usize,
}

const NONE: u32 = u32::MAX;

impl Tournament {
    /// Returns a tree over `scores`. Of equal scores, the first one from `first` on wins; positions before it come
    /// last.
    pub(super) fn new(scores: &[f64], first: usize) -> Self {
        let len = scores.len();
        let leaves = len.next_power_of_two();
        let mut winners = vec![NONE; 2 * leaves];
        for at in 0..len {
            winners[leaves + at] = u32::try_from(at).unwrap_or(NONE);
        }
        let mut tree = Self {
            leaves,
            winners,
            first,
        };
        for at in (1..leaves).rev() {
            tree.winners[at] = tree.better(scores, tree.winners[2 * at], tree.winners[2 * at + 1]);
        }
        tree
    }

    /// The position of the best score.
    pub(super) fn winner(&self) -> Option<usize> {
        self.winners
            .get(1)
            .filter(|winner| **winner != NONE)
            .map(|winner| *winner as usize)
    }

    /// Updates the tree after the score at `at` changed.
    pub(super) fn update(&mut self, scores: &[f64], at: usize) {
        let mut node = usize::midpoint(self.leaves, at);
        while node >= 1 {
            self.winners[node] =
                self.better(scores, self.winners[2 * node], self.winners[2 * node + 1]);
            node /= 2;
        }
    }

    /// Returns whether the score at `one` goes before the score at `other`.
    pub(super) fn is_before(&self, scores: &[f64], one: usize, other: usize) -> bool {
        // Positions before `first` come last.
        let place = |at: usize| (at < self.first, at);
        scores[one]
            .total_cmp(&scores[other])
            .then_with(|| place(other).cmp(&place(one)))
            .is_gt()
    }

    fn better(&self, scores: &[f64], one: u32, other: u32) -> u32 {
        match (one, other) {
            (NONE, other) => other,
            (one, NONE) => one,
            (one, other) if self.is_before(scores, one as usize, other as usize) => one,
            (_, other) => other,
        }
    }
}
