//! Starts that are under way, and the job that each is made for.
//!
//! Network policies and limits of a start are those of the job, and of the node's rules, as they were when it began. What changes
//! meanwhile is seen here when the task runs; what changes while it runs is its allocation's affair, at once.

use std::sync::Arc;

use muster_domain::alloc::DesiredAlloc;

/// By the task's place in its group; one at most for each task.
#[derive(Debug, Default)]
pub(crate) struct PendingStarts {
    under_way: Vec<(usize, PendingStart)>,
}

#[derive(Debug)]
enum PendingStart {
    Of(Arc<DesiredAlloc>),
    /// The node's rules have changed since.
    Outdated,
}

impl PendingStarts {
    /// A task is started, or looked for, as `desired` says.
    pub(super) fn begin(&mut self, task_at: usize, desired: Arc<DesiredAlloc>) {
        self.take(task_at);
        self.under_way.push((task_at, PendingStart::Of(desired)));
    }

    /// The node's rules have changed.
    pub(super) fn outdate(&mut self) {
        for (_, start) in &mut self.under_way {
            *start = PendingStart::Outdated;
        }
    }

    /// A task runs: whether it was started for another job than the one that is wanted now, or by other rules. A start is
    /// asked for once.
    pub(super) fn is_outdated(&mut self, task_at: usize, desired: &DesiredAlloc) -> bool {
        match self.take(task_at) {
            Some(PendingStart::Of(begun)) => !begun.job.is_same(&desired.job),
            Some(PendingStart::Outdated) => true,
            None => false,
        }
    }

    fn take(&mut self, task_at: usize) -> Option<PendingStart> {
        let mut starts = self.under_way.iter();
        let at = starts.position(|(of, _)| *of == task_at)?;
        let (_, start) = self.under_way.swap_remove(at);
        if self.under_way.is_empty() {
            // Allocations that run for long are many, and have none.
            self.under_way = Vec::new();
        }
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture;
    use muster_domain::id::{AllocId, LogIndex};

    use super::*;

    fn desired(version: u64) -> Arc<DesiredAlloc> {
        let mut job = (*fixture::job("web").version()).clone();
        job.version = version;
        job.job_modify_index = LogIndex(version);
        Arc::new(DesiredAlloc {
            alloc_modify_index: LogIndex(version),
            ..fixture::desired(AllocId::at(LogIndex(1), 0), Arc::new(job))
        })
    }

    #[test]
    fn job_change_during_start_outdates_start_once() {
        let (old, new) = (desired(1), desired(2));
        let mut starts = PendingStarts::default();

        starts.begin(0, Arc::clone(&old));
        starts.begin(1, Arc::clone(&old));

        assert!(starts.is_outdated(0, &new));
        assert!(!starts.is_outdated(0, &new), "it was made good");
        assert!(!starts.is_outdated(1, &old));
    }

    /// The job changed while the task ran: each later start is of that job from the beginning.
    #[test]
    fn job_change_before_start_does_not_outdate_it() {
        let (old, new) = (desired(1), desired(2));
        let mut starts = PendingStarts::default();
        starts.begin(0, Arc::clone(&old));
        starts.is_outdated(0, &old);

        for _restart in 0..2 {
            starts.begin(0, Arc::clone(&new));
            assert!(!starts.is_outdated(0, &new));
        }
    }

    #[test]
    fn rules_that_change_during_a_start_outdate_it() {
        let job = desired(1);
        let mut starts = PendingStarts::default();
        starts.begin(0, Arc::clone(&job));

        starts.outdate();
        starts.begin(1, Arc::clone(&job));

        assert!(starts.is_outdated(0, &job));
        assert!(!starts.is_outdated(1, &job));
    }
}
