//! Which instances of a group are there: `job.group[i]` for i below the count.

use std::collections::BTreeSet;

/// The instance numbers in use.
#[derive(Debug, Default)]
pub(super) struct Names {
    taken: BTreeSet<u32>,
}

impl Names {
    /// Takes `index`. Says whether it was free.
    pub(super) fn take(&mut self, index: u32) -> bool {
        self.taken.insert(index)
    }

    /// How many are taken.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.taken.len()).unwrap_or(u32::MAX)
    }

    /// Free numbers, lowest first, without end.
    pub(super) fn free(&self) -> impl Iterator<Item = u32> {
        let mut taken = self.taken.iter().copied().peekable();
        (0..).filter(move |index| {
            while taken.next_if(|taken| taken < index).is_some() {}
            taken.next_if_eq(index).is_none()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_names_are_the_gaps() {
        let mut names = Names::default();
        for index in [0, 2, 3, 6] {
            names.take(index);
        }

        let free: Vec<u32> = names.free().take(4).collect();

        assert_eq!(free, [1, 4, 5, 7]);
    }
}
