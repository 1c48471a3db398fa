//! Versions of jobs, each in memory once.
//!
//! Every desired allocation arrives with its job. A thousand instances of one job would be a thousand copies.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use muster_domain::id::JobKey;
use muster_domain::job::JobVersion;

/// Number of known versions before the first sweep for versions that no allocation has any more.
const SWEEP_MIN: usize = 64;

/// The newest version of each job that an allocation here has.
#[derive(Debug, Default)]
pub(super) struct JobVersionCache {
    known: BTreeMap<JobKey, Weak<JobVersion>>,
    /// Number of known versions that triggers the next sweep.
    sweep_at: usize,
}

impl JobVersionCache {
    /// Returns `job`, or the equal one that an allocation has already.
    pub(super) fn intern(&mut self, job: Arc<JobVersion>) -> Arc<JobVersion> {
        let key = job.spec.key();
        let known = self.known.get(&key).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| *known == job) {
            return known;
        }
        self.known.insert(key, Arc::downgrade(&job));
        if self.known.len() > self.sweep_at {
            self.known.retain(|_, job| job.strong_count() > 0);
            self.sweep_at = (self.known.len() * 2).max(SWEEP_MIN);
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, version: u64) -> Arc<JobVersion> {
        let mut job = muster_domain::fixture::job(id).version();
        Arc::make_mut(&mut job).version = version;
        job
    }

    #[test]
    fn equal_versions_are_one_and_others_are_not() {
        let mut jobs = JobVersionCache::default();

        let first = jobs.intern(job("web", 0));

        assert!(Arc::ptr_eq(&first, &jobs.intern(job("web", 0))));
        assert!(!Arc::ptr_eq(&first, &jobs.intern(job("db", 0))));
        let second = jobs.intern(job("web", 1));
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &jobs.intern(job("web", 1))));
    }

    #[test]
    fn versions_that_no_allocation_has_are_forgotten() {
        let mut jobs = JobVersionCache::default();
        let kept = jobs.intern(job("kept", 0));

        for number in 0..10 * SWEEP_MIN {
            drop(jobs.intern(job(&number.to_string(), 0)));
        }

        assert!(jobs.known.len() <= SWEEP_MIN, "{}", jobs.known.len());
        assert!(Arc::ptr_eq(&kept, &jobs.intern(job("kept", 0))));
    }
}
