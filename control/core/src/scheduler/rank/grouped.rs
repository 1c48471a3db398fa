//! The best of many candidates whose score has a part that many share.
//!
//! A spread gives every node with the same values the same part, and placing one instance changes it for all of them at
//! once. So candidates are grouped by values and by the number of components of their mean. Within such a group the sum
//! of a candidate's own components decides, whatever the shared part is. The best of all candidates is the best of the
//! groups' best.

use muster_domain::number;

use super::own_score::OwnScore;
use super::score_terms::COMPONENTS;
use super::tournament::Tournament;

/// The maximum number of a candidate's own components: those of its terms, and the loss by evictions.
const LEVELS: usize = COMPONENTS + 1;

#[derive(Debug, Default)]
struct ComponentLevel {
    sums: Vec<f64>,
    best: Tournament,
    /// The position of this level's best in `tops`.
    top: usize,
}

/// The best of one level of one group.
#[derive(Clone, Copy, Debug)]
struct LevelBest {
    group: usize,
    at: usize,
    own: OwnScore,
}

impl LevelBest {
    /// Returns the best of a level; `number` is the number of the level.
    fn of(group: usize, number: usize, members: &[u32], level: &ComponentLevel) -> Self {
        let winner = level.best.winner();
        Self {
            group,
            at: winner.map_or(0, |winner| members[winner] as usize),
            own: OwnScore {
                sum: winner.map_or(f64::NEG_INFINITY, |winner| level.sums[winner]),
                components: number + 1,
            },
        }
    }
}

/// Candidates with the same values.
#[derive(Debug, Default)]
struct SpreadGroup {
    members: Vec<u32>,
    levels: [Option<ComponentLevel>; LEVELS],
}

/// All candidates.
#[derive(Debug, Default)]
pub(super) struct GroupedCandidates {
    groups: Vec<SpreadGroup>,
    /// The group of each candidate, and its position within the group.
    places: Vec<(u32, u32)>,
    /// The best of every existing level, in one list.
    tops: Vec<LevelBest>,
    first: usize,
}

impl GroupedCandidates {
    /// Groups the candidates. `group_of` is the group of each candidate, numbered from 0; `own_scores` its own part. Of
    /// equal candidates, the first one from `first` on goes first.
    pub(super) fn new(group_of: &[u32], own_scores: &[OwnScore], first: usize) -> Self {
        // A candidate beyond the levels would never be chosen.
        assert!(
            own_scores.iter().all(|own| own.components <= LEVELS),
            "a scoring rule was added without raising LEVELS"
        );
        let count = group_of.iter().max().map_or(0, |last| *last as usize + 1);
        let mut groups: Vec<SpreadGroup> = Vec::new();
        groups.resize_with(count, SpreadGroup::default);
        let mut places = Vec::with_capacity(group_of.len());
        for (at, group) in (0..).zip(group_of) {
            let members = &mut groups[*group as usize].members;
            places.push((*group, number::count(members.len())));
            members.push(at);
        }
        let mut tops = Vec::new();
        for (group_at, group) in groups.iter_mut().enumerate() {
            for (number, slot) in group.levels.iter_mut().enumerate() {
                let sum_of = |at: &u32| {
                    let own = own_scores[*at as usize];
                    if own.components == number + 1 {
                        own.sum
                    } else {
                        f64::NEG_INFINITY
                    }
                };
                let sums: Vec<f64> = group.members.iter().map(sum_of).collect();
                if sums.iter().any(|sum| *sum > f64::NEG_INFINITY) {
                    let begin = group.members.partition_point(|at| (*at as usize) < first);
                    let best = Tournament::new(&sums, begin);
                    let top = tops.len();
                    let level = slot.insert(ComponentLevel { sums, best, top });
                    tops.push(LevelBest::of(group_at, number, &group.members, level));
                }
            }
        }
        Self {
            groups,
            places,
            tops,
            first,
        }
    }

    /// Updates the groups after a candidate's own part changed.
    pub(super) fn update(&mut self, at: usize, own: OwnScore) {
        let (group, place) = self.places[at];
        let group = group as usize;
        let SpreadGroup { members, levels } = &mut self.groups[group];
        for (number, slot) in levels.iter_mut().enumerate() {
            let is_here = own.components == number + 1 && own.sum > f64::NEG_INFINITY;
            let level = match slot {
                Some(level) => level,
                None if is_here => {
                    let sums = vec![f64::NEG_INFINITY; members.len()];
                    let begin = members.partition_point(|at| (*at as usize) < self.first);
                    let best = Tournament::new(&sums, begin);
                    let top = self.tops.len();
                    let level = slot.insert(ComponentLevel { sums, best, top });
                    self.tops.push(LevelBest::of(group, number, members, level));
                    level
                }
                None => continue,
            };
            let sum = if is_here { own.sum } else { f64::NEG_INFINITY };
            let place = place as usize;
            if level.sums[place].to_bits() != sum.to_bits() {
                level.sums[place] = sum;
                level.best.update(&level.sums, place);
                self.tops[level.top] = LevelBest::of(group, number, members, level);
            }
        }
    }

    /// The group of a candidate.
    pub(super) fn group_of(&self, at: usize) -> u32 {
        self.places[at].0
    }

    /// The best candidate and its score; `shared` is the shared part of each group.
    pub(super) fn winner(&self, shared: &[f64]) -> Option<(usize, f64)> {
        // Positions before `first` come last.
        let place = |at: usize| (at < self.first, at);
        let mut best: Option<(usize, f64)> = None;
        let tops = self.tops.iter();
        for LevelBest { group, at, own } in tops.filter(|top| top.own.sum > f64::NEG_INFINITY) {
            let score = own.score(shared[*group]);
            let is_better = best.is_none_or(|(other, top)| {
                let order = score.total_cmp(&top);
                order.then_with(|| place(other).cmp(&place(*at))).is_gt()
            });
            if is_better {
                best = Some((*at, score));
            }
        }
        best
    }
}
