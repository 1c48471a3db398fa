//! The instance numbers that are taken.

use std::collections::BTreeSet;

/// The numbers of a group of `count` instances.
#[derive(Clone, Debug)]
pub(super) struct NameIndex {
    count: u32,
    taken: BTreeSet<u32>,
}

impl NameIndex {
    pub(super) fn new(count: u32, taken: impl Iterator<Item = u32>) -> Self {
        Self {
            count,
            taken: taken.collect(),
        }
    }

    /// Returns the `number` highest taken numbers, and frees them.
    pub(super) fn highest(&mut self, number: usize) -> BTreeSet<u32> {
        std::iter::from_fn(|| self.taken.pop_last())
            .take(number)
            .collect()
    }

    pub(super) fn free(&mut self, index: u32) {
        self.taken.remove(&index);
    }

    /// Returns `number` numbers for new instances: the lowest free ones, and taken ones if there are too few.
    pub(super) fn next(&mut self, number: u32) -> Vec<u32> {
        let mut next: Vec<u32> = (0..self.count)
            .filter(|index| !self.taken.contains(index))
            .take(number as usize)
            .collect();
        let missing = number - u32::try_from(next.len()).unwrap_or(number);
        next.extend(0..missing);
        if self.taken.is_empty() {
            // Replacing the set in one step costs much less.
            self.taken = next.iter().copied().collect();
        } else {
            self.taken.extend(&next);
        }
        next
    }

    /// Returns `number` numbers for canaries, none of them in `canaries`. Numbers whose instances will be replaced come
    /// first, then free ones, then numbers beyond the count.
    pub(super) fn next_canaries(
        &mut self,
        number: u32,
        canaries: &BTreeSet<u32>,
        destructive: &BTreeSet<u32>,
    ) -> Vec<u32> {
        let replaced = destructive
            .iter()
            .copied()
            .filter(|index| *index < self.count);
        let free = (0..self.count).filter(|index| !self.taken.contains(index));
        let mut next: Vec<u32> = Vec::new();
        for index in replaced.chain(free).chain(self.count..) {
            if next.len() >= number as usize {
                break;
            }
            if !canaries.contains(&index) && !next.contains(&index) {
                next.push(index);
            }
        }
        self.taken.extend(&next);
        next
    }
}
