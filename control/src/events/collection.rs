//! Results of a garbage collection, joined from its slices.
//!
//! All results follow from entries of the log, so every server that applied them reports the same. A server that
//! started or installed a snapshot during a collection does not report that collection.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use muster_control_core::fsm::{self, Command, GcCommand, GcCursor, GcRule, Response};
use muster_control_core::gc::Collector;
use muster_domain::id::{JobKey, Timestamp};
use muster_wire::api::operator::GcRound;

use crate::garbage::{FreedCounts, KeptCounts};
use crate::limits;

/// The subject of a collection. At most one collection of each subject is under way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CollectionSubject {
    /// All objects that a rule covers.
    Rule(GcRule),
    /// The objects that belonged to a purged job.
    Purged(JobKey),
}

/// One slice, as its entry describes it.
#[derive(Debug)]
pub(crate) struct CollectionSlice {
    about: CollectionSubject,
    before: Timestamp,
    after: Option<GcCursor>,
    at: Timestamp,
}

impl CollectionSlice {
    /// The slice in `entry`.
    pub(crate) fn of(entry: &fsm::Entry) -> Option<Self> {
        if let Command::Gc(GcCommand::Collect {
            rule,
            before,
            batch_before: _,
            after,
        }) = &entry.command
        {
            let purged = after.as_ref().and_then(Collector::purged);
            let (about, is_first) = match purged {
                Some((key, is_first)) => (CollectionSubject::Purged(key.clone()), is_first),
                None => (CollectionSubject::Rule(*rule), false),
            };
            Some(Self {
                about,
                before: *before,
                after: after.clone().filter(|_| !is_first),
                at: entry.at,
            })
        } else {
            None
        }
    }
}

/// A collection by one rule, or of a purged job's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    about: CollectionSubject,
    before: Timestamp,
    began_at: Timestamp,
    ended_at: Timestamp,
    is_complete: bool,
    freed: FreedCounts,
    kept: KeptCounts,
}

impl Collection {
    fn begin(slice: &CollectionSlice) -> Self {
        Self {
            about: slice.about.clone(),
            before: slice.before,
            began_at: slice.at,
            ended_at: slice.at,
            is_complete: false,
            freed: FreedCounts::default(),
            kept: KeptCounts::default(),
        }
    }

    /// The name of the collection's rule.
    pub(super) fn rule(&self) -> &'static str {
        match &self.about {
            CollectionSubject::Rule(GcRule::Evals) => "evals",
            CollectionSubject::Rule(GcRule::Jobs) => "jobs",
            CollectionSubject::Rule(GcRule::Nodes) => "nodes",
            CollectionSubject::Rule(GcRule::Deployments) => "deployments",
            CollectionSubject::Rule(GcRule::OneOffs) => "one-offs",
            CollectionSubject::Purged(_) => "purge",
        }
    }

    /// The job that was purged.
    pub(super) fn job(&self) -> Option<&JobKey> {
        match &self.about {
            CollectionSubject::Rule(_) => None,
            CollectionSubject::Purged(key) => Some(key),
        }
    }

    pub(super) fn shape(&self) -> GcRound {
        let kept = self.kept.iter();
        let job = self.job();
        GcRound {
            rule: self.rule().to_owned(),
            namespace: job.map_or_else(String::new, |key| key.namespace.clone()),
            job_id: job.map_or_else(String::new, |key| key.job_id.clone()),
            complete: self.is_complete,
            before: self.before.0,
            began_at: self.began_at.0,
            ended_at: self.ended_at.0,
            slices: self.freed.slices,
            freed: self.freed.by_kind(),
            bytes: self.freed.bytes,
            kept: kept
                .map(|(why, count)| (why.as_str().to_owned(), count))
                .collect(),
        }
    }
}

/// Collections under way, each with the start of its next slice.
#[derive(Debug, Default)]
pub(crate) struct Collections {
    open: BTreeMap<CollectionSubject, (GcCursor, Collection)>,
}

impl Collections {
    /// Adds an applied slice. Returns the collections that ended with it and freed an object.
    pub(crate) fn follow(
        &mut self,
        slice: CollectionSlice,
        response: &Response,
    ) -> Vec<Collection> {
        let mut over = Vec::new();
        let (Some(freed), Response::Collected { next, .. }) = (FreedCounts::of(response), response)
        else {
            return over;
        };
        let goes_on = |(next, one): &(GcCursor, Collection)| {
            one.before == slice.before && slice.after.as_ref() == Some(next)
        };
        let open = self.open.entry(slice.about.clone());
        let mut collection = match (open, &slice.after) {
            (open, None) => {
                // An unfinished collection of the same subject was abandoned, so it ends here.
                if let Entry::Occupied(cut) = open {
                    over.push(cut.remove().1);
                }
                Collection::begin(&slice)
            }
            (Entry::Occupied(open), Some(_)) if goes_on(open.get()) => open.remove().1,
            (Entry::Occupied(_) | Entry::Vacant(_), Some(_)) => return over,
        };
        collection.ended_at = slice.at;
        collection.freed.add(&freed);
        collection.kept.add(response);
        if let Some(next) = next {
            self.open.insert(slice.about, (next.clone(), collection));
            if self.open.len() > limits::COLLECTIONS_FOLLOWED_MAX {
                // Purges sort after rules.
                self.open.pop_last();
            }
        } else {
            collection.is_complete = true;
            over.push(collection);
        }
        over.retain(|one| one.freed.objects() > 0);
        over
    }

    /// Drops the collections under way: a snapshot moved the state, and the slices in between are unknown.
    pub(crate) fn forget(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use muster_control_core::fsm::GcKept;
    use muster_domain::id::EvalId;

    use super::*;

    fn cursor(at: u64) -> GcCursor {
        GcCursor::Eval {
            at: Timestamp(at),
            eval_id: EvalId([0; 16]),
            alloc: 0,
        }
    }

    /// A slice proposed at the time `at`, and its answer.
    fn slice(
        at: u64,
        after: Option<u64>,
        next: Option<u64>,
        evals: u32,
    ) -> (CollectionSlice, Response) {
        let slice = CollectionSlice {
            about: CollectionSubject::Rule(GcRule::Evals),
            before: Timestamp(1_000),
            after: after.map(cursor),
            at: Timestamp(at),
        };
        let response = Response::Collected {
            evals,
            allocs: 2 * evals,
            jobs: 0,
            nodes: 0,
            deployments: 0,
            next: next.map(cursor),
            one_offs: 0,
            kept: BTreeMap::from([(GcKept::Live, 1)]),
            bytes: 100,
        };
        (slice, response)
    }

    /// The collections that end with each slice in turn.
    fn followed(
        collections: &mut Collections,
        slices: impl IntoIterator<Item = (CollectionSlice, Response)>,
    ) -> Vec<Vec<GcRound>> {
        let slices = slices.into_iter();
        let over = slices.map(|(slice, response)| collections.follow(slice, &response));
        over.map(|over| over.iter().map(Collection::shape).collect())
            .collect()
    }

    #[test]
    fn slices_become_one_collection() {
        let mut collections = Collections::default();

        let rounds = followed(
            &mut collections,
            [
                slice(5, None, Some(1), 3),
                slice(6, Some(1), Some(2), 0),
                slice(9, Some(2), None, 4),
            ],
        );

        assert_eq!((rounds[0].len(), rounds[1].len()), (0, 0));
        let whole = GcRound {
            rule: "evals".to_owned(),
            namespace: String::new(),
            job_id: String::new(),
            complete: true,
            before: 1_000,
            began_at: 5,
            ended_at: 9,
            slices: 3,
            freed: BTreeMap::from([
                ("evaluations".to_owned(), 7),
                ("allocations".to_owned(), 14),
            ]),
            bytes: 300,
            kept: BTreeMap::from([("live".to_owned(), 3)]),
        };
        assert_eq!(rounds[2], [whole]);
        assert!(collections.open.is_empty());
    }

    #[test]
    fn interrupted_gc_is_reported_at_next_start() {
        let rounds = followed(
            &mut Collections::default(),
            [slice(5, None, Some(1), 3), slice(7, None, None, 0)],
        );

        let cut = &rounds[1][0];
        assert_eq!((cut.complete, cut.slices, cut.ended_at), (false, 1, 5));
        // The second collection freed nothing.
        assert_eq!(rounds[1].len(), 1);
    }

    #[test]
    fn gc_with_unseen_start_is_not_reported() {
        let mut collections = Collections::default();
        followed(&mut collections, [slice(5, None, Some(1), 3)]);
        collections.forget();

        let rounds = followed(&mut collections, [slice(6, Some(1), None, 3)]);

        assert_eq!(rounds, [[]]);
    }

    #[test]
    fn followed_collections_are_bounded() {
        let mut collections = Collections::default();
        for at in 0..2 * limits::COLLECTIONS_FOLLOWED_MAX as u64 {
            let job = JobKey::in_default(format!("job-{at}"));
            for about in [
                CollectionSubject::Purged(job),
                CollectionSubject::Rule(GcRule::Evals),
            ] {
                let (begun, response) = slice(at, None, Some(at), 1);
                collections.follow(CollectionSlice { about, ..begun }, &response);
            }
        }

        assert_eq!(collections.open.len(), limits::COLLECTIONS_FOLLOWED_MAX);
        let rule = CollectionSubject::Rule(GcRule::Evals);
        assert!(collections.open.contains_key(&rule));
    }

    /// A round that collects jobs is under way and continues.
    #[test]
    fn purge_reports_its_own_collection() {
        let mut collections = Collections::default();
        let key = JobKey::in_default("web");
        let jobs = CollectionSlice {
            about: CollectionSubject::Rule(GcRule::Jobs),
            ..slice(4, None, Some(1), 1).0
        };
        let begun = CollectionSlice::of(&Collector::below(key.clone(), Timestamp(5))).unwrap();
        assert!(begun.after.is_none());

        collections.follow(jobs, &slice(4, None, Some(1), 1).1);
        let ended = collections.follow(begun, &slice(5, None, None, 2).1);

        let round = ended[0].shape();
        assert_eq!((&*round.rule, &*round.job_id), ("purge", "web"));
        assert_eq!(round.freed["evaluations"], 2);
        assert_eq!(collections.open.len(), 1);
    }
}
