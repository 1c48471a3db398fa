//! Sets of numbers that are mostly consecutive, such as the keys that one command made.

use std::ops::Range;
use std::sync::Arc;

/// Numbers `first..first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u64,
    count: u32,
}

impl Run {
    fn end(self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// A set of numbers, in as few runs as possible. One run, the usual case, costs no heap allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs(RunList);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum RunList {
    #[default]
    Empty,
    One(Run),
    /// At least two runs, ascending, no two of them adjacent.
    Many(Arc<Vec<Run>>),
}

impl Runs {
    fn as_slice(&self) -> &[Run] {
        match &self.0 {
            RunList::Empty => &[],
            RunList::One(run) => std::slice::from_ref(run),
            RunList::Many(runs) => runs,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.0, RunList::Empty)
    }

    /// Returns all numbers, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + use<'_> {
        self.as_slice().iter().flat_map(|run| run.first..run.end())
    }

    /// Returns the count of numbers in the runs.
    pub(crate) fn len(&self) -> usize {
        self.as_slice().iter().map(|run| run.count as usize).sum()
    }

    /// Returns the numbers from the given one on, as ranges, ascending.
    pub(crate) fn ranges_from(&self, first: u64) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let runs = self.as_slice();
        let at = runs.partition_point(|run| run.end() <= first);
        runs[at..]
            .iter()
            .map(move |run| run.first.max(first)..run.end())
    }

    /// Adds `count` numbers from `first` on, none of which is in the set.
    pub(crate) fn insert(&mut self, first: u64, count: u32) {
        if count == 0 {
            return;
        }
        let new = Run { first, count };
        match &mut self.0 {
            RunList::Empty => self.0 = RunList::One(new),
            RunList::One(run) if run.end() == first && run.count <= u32::MAX - count => {
                run.count += count;
            }
            RunList::One(run) => {
                let mut runs = vec![*run];
                insert(&mut runs, new);
                self.set(runs);
            }
            RunList::Many(runs) => {
                let runs = Arc::make_mut(runs);
                insert(runs, new);
                if runs.len() == 1 {
                    self.0 = RunList::One(runs[0]);
                }
            }
        }
    }

    /// Removes numbers, which ascend; numbers that are not in the set change nothing. The cost depends on the removed
    /// numbers, not on the size of the set.
    pub(crate) fn remove_all(&mut self, numbers: &[u64]) {
        let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else {
            return;
        };
        let runs = self.as_slice();
        let begin = runs.partition_point(|run| run.end() <= *first);
        let end = runs.partition_point(|run| run.first <= *last).max(begin);
        let left = without(&runs[begin..end], numbers);
        if begin == 0 && end == runs.len() {
            self.set(left);
        } else if let RunList::Many(runs) = &mut self.0 {
            let runs = Arc::make_mut(runs);
            runs.splice(begin..end, left);
            if let [run] = runs.as_slice() {
                self.0 = RunList::One(*run);
            }
        }
    }

    fn set(&mut self, runs: Vec<Run>) {
        self.0 = match runs.as_slice() {
            [] => RunList::Empty,
            [run] => RunList::One(*run),
            _ => RunList::Many(Arc::new(runs)),
        };
    }
}

fn insert(runs: &mut Vec<Run>, new: Run) {
    let at = runs.partition_point(|run| run.first < new.first);
    let joins_before = at > 0 && runs[at - 1].end() == new.first;
    let joins_after = runs.get(at).is_some_and(|next| new.end() == next.first);
    match (joins_before, joins_after) {
        (true, true) => {
            runs[at - 1].count += new.count + runs[at].count;
            runs.remove(at);
        }
        (true, false) => runs[at - 1].count += new.count,
        (false, true) => {
            runs[at].first = new.first;
            runs[at].count += new.count;
        }
        (false, false) => runs.insert(at, new),
    }
}

/// Returns runs without the given numbers; both ascend.
fn without(runs: &[Run], numbers: &[u64]) -> Vec<Run> {
    let mut left = Vec::new();
    let mut keep = |range: Range<u64>| {
        if let Some(count) = range
            .end
            .checked_sub(range.start)
            .filter(|count| *count > 0)
        {
            left.push(Run {
                first: range.start,
                count: u32::try_from(count).expect("a part of a run is not longer than it"),
            });
        }
    };
    let mut numbers = numbers.iter().copied().peekable();
    for run in runs {
        let mut from = run.first;
        while let Some(number) = numbers.next_if(|number| *number < run.end()) {
            if number >= from {
                keep(from..number);
                from = number + 1;
            }
        }
        keep(from..run.end());
    }
    left
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_match_set_model_with_minimal_ranges(
            steps in proptest::collection::vec((0_u64..40, 0_u8..7), 1..200)
        ) {
            let (mut runs, mut model) = (Runs::default(), BTreeSet::new());
            for (number, step) in steps {
                if step < 3 {
                    let end = number + 1 + u64::from(step) * 8;
                    let numbers: Vec<u64> = (number..end).filter(|at| step == 0 || at % 4 != 0).collect();
                    runs.remove_all(&numbers);
                    model.retain(|number| !numbers.contains(number));
                } else {
                    // The run ends before the next number of the set, and has four numbers at most.
                    let end = number + u64::from(step) - 2;
                    let free: Vec<u64> = (number..end).take_while(|at| !model.contains(at)).collect();
                    runs.insert(number, u32::try_from(free.len()).unwrap());
                    model.extend(free);
                }
                prop_assert_eq!(runs.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(
                    runs.ranges_from(17).flatten().collect::<Vec<_>>(),
                    model.range(17..).copied().collect::<Vec<_>>()
                );
                let mut anew = Runs::default();
                for number in &model {
                    anew.insert(*number, 1);
                }
                prop_assert_eq!(&runs, &anew);
                prop_assert_eq!(runs.is_empty(), model.is_empty());
                prop_assert_eq!(runs.len(), model.len());
            }
        }
    }
}
