//! Starts in progress, and the job of each.
//!
//! Network policies and limits of a start are those of the job, and of the node's rules, at its beginning. A change
//! during the start is detected here once the task runs. For a running task, its allocation handles a change at
//! once.

use std::sync::Arc;

use muster_domain::alloc::DesiredAlloc;

/// Pending starts by the task's position in its group; one at most for each task.
#[derive(Debug, Default)]
pub(crate) struct PendingStarts {
    under_way: Vec<(usize, PendingStart)>,
}

#[derive(Debug)]
enum PendingStart {
    Of(Arc<DesiredAlloc>),
    /// The node's rules have changed since the beginning of the start.
    Outdated,
}

impl PendingStarts {
    /// Notes that a task is being started, or looked for, as `desired` requires.
    pub(super) fn begin(&mut self, task_at: usize, desired: Arc<DesiredAlloc>) {
        self.take(task_at);
        self.under_way.push((task_at, PendingStart::Of(desired)));
    }

    /// Marks all starts as outdated, because the node's rules have changed.
    pub(super) fn outdate(&mut self) {
        for (_, start) in &mut self.under_way {
            *start = PendingStart::Outdated;
        }
    }

    /// Returns whether a running task was started for another job than the current one, or under other rules.
    /// Removes the start, so each start is queried once.
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
            // Most allocations run for long and have no pending starts, so the memory is freed.
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

    /// The job changes while the task runs. Each later start is of the new job from its beginning.
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
