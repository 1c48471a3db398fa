//! Sets of numbers that mostly follow one another: what one command made.

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

/// A set of numbers, as few runs as there are. One run, the usual case, costs no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs(Inner);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Inner {
    #[default]
    Empty,
    One(Run),
    /// At least two, ascending, none touching the next.
    Many(Arc<Vec<Run>>),
}

impl Runs {
    fn as_slice(&self) -> &[Run] {
        match &self.0 {
            Inner::Empty => &[],
            Inner::One(run) => std::slice::from_ref(run),
            Inner::Many(runs) => runs,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.0, Inner::Empty)
    }

    /// All, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + use<'_> {
        self.as_slice().iter().flat_map(|run| run.first..run.end())
    }

    /// From a number on, ascending.
    pub(crate) fn from(&self, first: u64) -> impl Iterator<Item = u64> + use<'_> {
        let runs = self.as_slice();
        let at = runs.partition_point(|run| run.end() <= first);
        runs[at..]
            .iter()
            .flat_map(move |run| run.first.max(first)..run.end())
    }

    /// Adds a number that is not in it.
    pub(crate) fn insert(&mut self, number: u64) {
        let one = Run {
            first: number,
            count: 1,
        };
        match &mut self.0 {
            Inner::Empty => self.0 = Inner::One(one),
            Inner::One(run) if run.end() == number && run.count < u32::MAX => run.count += 1,
            Inner::One(run) => {
                let mut runs = vec![*run];
                insert(&mut runs, one);
                self.set(runs);
            }
            Inner::Many(runs) => {
                let runs = Arc::make_mut(runs);
                insert(runs, one);
                if runs.len() == 1 {
                    self.0 = Inner::One(runs[0]);
                }
            }
        }
    }

    /// Takes a number out; one that is not in it changes nothing.
    pub(crate) fn remove(&mut self, number: u64) {
        match &mut self.0 {
            Inner::Empty => {}
            Inner::One(run) => {
                let mut runs = vec![*run];
                remove(&mut runs, number);
                self.set(runs);
            }
            Inner::Many(runs) => {
                let runs = Arc::make_mut(runs);
                remove(runs, number);
                if runs.len() == 1 {
                    self.0 = Inner::One(runs[0]);
                }
            }
        }
    }

    fn set(&mut self, runs: Vec<Run>) {
        self.0 = match runs.as_slice() {
            [] => Inner::Empty,
            [run] => Inner::One(*run),
            _ => Inner::Many(Arc::new(runs)),
        };
    }
}

fn insert(runs: &mut Vec<Run>, one: Run) {
    let at = runs.partition_point(|run| run.first < one.first);
    let joins_before = at > 0 && runs[at - 1].end() == one.first;
    let joins_after = runs.get(at).is_some_and(|next| one.end() == next.first);
    match (joins_before, joins_after) {
        (true, true) => {
            runs[at - 1].count += 1 + runs[at].count;
            runs.remove(at);
        }
        (true, false) => runs[at - 1].count += 1,
        (false, true) => {
            runs[at].first -= 1;
            runs[at].count += 1;
        }
        (false, false) => runs.insert(at, one),
    }
}

fn remove(runs: &mut Vec<Run>, number: u64) {
    let at = runs.partition_point(|run| run.end() <= number);
    let Some(run) = runs.get_mut(at).filter(|run| run.first <= number) else {
        return;
    };
    let end = run.end();
    let before = u32::try_from(number - run.first).unwrap_or(u32::MAX);
    let after = Run {
        first: number + 1,
        count: u32::try_from(end - number - 1).unwrap_or(u32::MAX),
    };
    run.count = before;
    match (before, after.count) {
        (0, 0) => {
            runs.remove(at);
        }
        (0, _) => runs[at] = after,
        (_, 0) => {}
        (_, _) => runs.insert(at + 1, after),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_behaves_as_a_set_of_as_few_runs_as_possible(
            steps in proptest::collection::vec((0_u64..40, any::<bool>()), 1..200)
        ) {
            let (mut runs, mut model) = (Runs::default(), BTreeSet::new());
            for (number, add) in steps {
                if !add {
                    runs.remove(number);
                    model.remove(&number);
                } else if model.insert(number) {
                    runs.insert(number);
                }
                prop_assert_eq!(runs.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(
                    runs.from(17).collect::<Vec<_>>(),
                    model.range(17..).copied().collect::<Vec<_>>()
                );
                let mut anew = Runs::default();
                for number in &model {
                    anew.insert(*number);
                }
                prop_assert_eq!(&runs, &anew);
                prop_assert_eq!(runs.is_empty(), model.is_empty());
            }
        }
    }
}
