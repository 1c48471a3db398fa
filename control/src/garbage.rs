//! Results of garbage collections: totals of this server since its start, and counts of a requested collection.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use muster_control_core::fsm::{GcKept, GcKind, Response};
use muster_domain::saturating::nanos;
use serde::{Deserialize, Serialize};

/// Objects that a collection freed. Sent between servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FreedCounts {
    pub jobs: u64,
    pub evals: u64,
    pub allocs: u64,
    pub deployments: u64,
    pub nodes: u64,
    /// The size of the objects in bytes: see [`Response::Collected`].
    pub bytes: u64,
    /// The number of log entries for the collection.
    pub slices: u64,
    pub took: Duration,
    pub one_offs: u64,
}

impl FreedCounts {
    /// Objects that one slice freed; `None` if `response` is not the answer to a slice.
    pub(crate) fn of(response: &Response) -> Option<Self> {
        let Response::Collected {
            evals,
            allocs,
            jobs,
            nodes,
            deployments,
            next: _,
            one_offs,
            kept: _,
            bytes,
        } = response
        else {
            return None;
        };
        Some(Self {
            jobs: u64::from(*jobs),
            evals: u64::from(*evals),
            allocs: u64::from(*allocs),
            deployments: u64::from(*deployments),
            nodes: u64::from(*nodes),
            bytes: *bytes,
            slices: 1,
            took: Duration::ZERO,
            one_offs: u64::from(*one_offs),
        })
    }

    /// Objects freed by the entry that purged a job; none for any other `response`.
    pub(crate) fn with_job(response: &Response) -> Self {
        if let Response::JobPurged { deployments, .. } = response {
            Self {
                jobs: 1,
                deployments: u64::from(*deployments),
                ..Self::default()
            }
        } else {
            Self::default()
        }
    }

    /// The number of objects of one kind.
    #[must_use]
    pub(crate) fn count(&self, kind: GcKind) -> u64 {
        match kind {
            GcKind::Jobs => self.jobs,
            GcKind::Evals => self.evals,
            GcKind::Allocs => self.allocs,
            GcKind::Deployments => self.deployments,
            GcKind::Nodes => self.nodes,
            GcKind::OneOffs => self.one_offs,
        }
    }

    /// The number of objects of all kinds.
    #[must_use]
    pub(crate) fn objects(&self) -> u64 {
        GcKind::ALL.into_iter().map(|kind| self.count(kind)).sum()
    }

    /// The numbers of objects by the kind's name, without zeros.
    #[must_use]
    pub(crate) fn by_kind(&self) -> BTreeMap<String, u64> {
        let counts = GcKind::ALL.into_iter();
        let counts = counts.map(|kind| (kind.as_str().to_owned(), self.count(kind)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let Self {
            jobs,
            evals,
            allocs,
            deployments,
            nodes,
            bytes,
            slices,
            took,
            one_offs,
        } = other;
        self.jobs += jobs;
        self.evals += evals;
        self.allocs += allocs;
        self.deployments += deployments;
        self.nodes += nodes;
        self.bytes += bytes;
        self.slices += slices;
        self.took += *took;
        self.one_offs += one_offs;
    }
}

/// Objects that slices examined and kept, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptCounts(BTreeMap<GcKept, u64>);

impl KeptCounts {
    /// Adds the objects that one slice kept, if `response` answers a slice.
    pub(crate) fn add(&mut self, response: &Response) {
        if let Response::Collected { kept, .. } = response {
            for (why, count) in kept {
                *self.0.entry(*why).or_default() += u64::from(*count);
            }
        }
    }

    /// All counts, by reason.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (GcKept, u64)> {
        self.0.iter().map(|(why, count)| (*why, *count))
    }

    /// The number of objects kept for one reason.
    #[must_use]
    pub(crate) fn count(&self, why: GcKept) -> u64 {
        self.0.get(&why).copied().unwrap_or_default()
    }
}

impl fmt::Display for KeptCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (why, count)) in self.0.iter().enumerate() {
            let between = if at == 0 { "" } else { ", " };
            write!(f, "{between}{count} {}", why.as_str())?;
        }
        Ok(())
    }
}

/// Counters for metrics. On a server that does not lead they change only for jobs that are purged through it.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    freed: [AtomicU64; GcKind::ALL.len()],
    kept: [AtomicU64; GcKept::ALL.len()],
    bytes: AtomicU64,
    slices: AtomicU64,
    slice_nanos: AtomicU64,
    slice_nanos_max: AtomicU64,
    rounds: AtomicU64,
    last_round_nanos: AtomicU64,
    failures: AtomicU64,
    under_way: AtomicBool,
}

/// A reading of [`Totals`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TotalsReading {
    /// Objects freed by kind, in the order of [`GcKind::ALL`].
    pub(crate) freed: [u64; GcKind::ALL.len()],
    /// Objects kept by the last round, by reason, in the order of [`GcKept::ALL`].
    pub(crate) kept: [u64; GcKept::ALL.len()],
    /// The bytes of all freed objects.
    pub(crate) bytes: u64,
    pub(crate) slices: u64,
    /// Total time between proposal and application of slices.
    pub(crate) slices_took: Duration,
    /// The longest time between proposal and application of one slice.
    pub(crate) slice_max: Duration,
    pub(crate) rounds: u64,
    pub(crate) last_round: Duration,
    pub(crate) failures: u64,
    pub(crate) under_way: bool,
}

impl Totals {
    /// Counts an applied slice, `took` after its proposal. The entry that purges a job has no slices of its own.
    pub(crate) fn slice(&self, freed: &FreedCounts, took: Duration) {
        for (kind, total) in GcKind::ALL.into_iter().zip(&self.freed) {
            total.fetch_add(freed.count(kind), Ordering::Relaxed);
        }
        self.bytes.fetch_add(freed.bytes, Ordering::Relaxed);
        self.slices.fetch_add(freed.slices, Ordering::Relaxed);
        self.slice_nanos.fetch_add(nanos(took), Ordering::Relaxed);
        self.slice_nanos_max
            .fetch_max(nanos(took), Ordering::Relaxed);
    }

    /// Begins a round.
    pub(crate) fn begin(&self) {
        self.under_way.store(true, Ordering::Relaxed);
    }

    /// Ends a round.
    pub(crate) fn end(&self, took: Duration, kept: &KeptCounts) {
        for (why, last) in GcKept::ALL.into_iter().zip(&self.kept) {
            last.store(kept.count(why), Ordering::Relaxed);
        }
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.last_round_nanos.store(nanos(took), Ordering::Relaxed);
        self.under_way.store(false, Ordering::Relaxed);
    }

    /// Counts a round that was given up.
    pub(crate) fn fail(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.under_way.store(false, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> TotalsReading {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        TotalsReading {
            freed: std::array::from_fn(|at| load(&self.freed[at])),
            kept: std::array::from_fn(|at| load(&self.kept[at])),
            bytes: load(&self.bytes),
            slices: load(&self.slices),
            slices_took: Duration::from_nanos(load(&self.slice_nanos)),
            slice_max: Duration::from_nanos(load(&self.slice_nanos_max)),
            rounds: load(&self.rounds),
            last_round: Duration::from_nanos(load(&self.last_round_nanos)),
            failures: load(&self.failures),
            under_way: self.under_way.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(kept: &[(GcKept, u32)]) -> Response {
        Response::Collected {
            evals: 0,
            allocs: 0,
            jobs: 0,
            nodes: 0,
            deployments: 0,
            next: None,
            one_offs: 0,
            kept: kept.iter().copied().collect(),
            bytes: 0,
        }
    }

    /// A round's counts leave out objects kept by an earlier round, also for reasons that only the earlier round
    /// had.
    #[test]
    fn round_counts_rows_kept_by_its_slices() {
        let totals = Totals::default();
        let mut earlier = KeptCounts::default();
        earlier.add(&slice(&[(GcKept::Live, 9), (GcKept::Result, 2)]));
        totals.end(Duration::ZERO, &earlier);
        let mut kept = KeptCounts::default();

        kept.add(&slice(&[(GcKept::Result, 3)]));
        kept.add(&slice(&[(GcKept::Needed, 1), (GcKept::Result, 1)]));
        totals.end(Duration::ZERO, &kept);

        assert_eq!(kept.to_string(), "4 result, 1 needed");
        let by_reason = GcKept::ALL.into_iter().zip(totals.read().kept);
        let some: Vec<_> = by_reason.filter(|(_, count)| *count > 0).collect();
        assert_eq!(some, [(GcKept::Result, 4), (GcKept::Needed, 1)]);
    }
}
