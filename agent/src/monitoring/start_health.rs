//! Whether this node can start tasks at all.
//!
//! A node without free file descriptors, or with failing starts, would attract every retry of the cluster, since
//! its resources look free. So starts that exceed the limit of open files are refused with one reason. A node whose
//! starts fail for several jobs has a condition ([`Conditions`]) until a pause is over or a start succeeds.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_domain::saturating;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits::{
    OPEN_FILES_HELD_PER_TASK, OPEN_FILES_PER_TASK, OPEN_FILES_SPARED_MAX, PIDS_PER_TASK,
    PIDS_SPARED, START_FAILURES_MAX, START_JOBS_FAILED_MAX, START_PAUSE_MAX, START_PAUSE_MIN,
};
use crate::monitoring::conditions::Conditions;

/// The condition while there are no file descriptors for another task.
const OPEN_FILES: &str = "open_files";
/// The condition while starts of several jobs fail.
const STARTS: &str = "starts";

/// Errors that no job causes: EMFILE, ENFILE and EIO, as texts of the kernel's messages.
const EXHAUSTION_ERRORS: [&str; 2] = ["Too many open files", "Input/output error"];

/// Raises the limit of open files to the maximum that the service manager allows. Returns the previous limit, which
/// tasks get.
pub(crate) fn raise_open_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, ?current, ?maximum, "the limit of open files cannot be raised; it bounds the tasks");
    }
    current
}

/// The health of the node, as recent starts indicate it.
#[derive(Debug)]
pub(crate) struct StartHealth {
    conditions: Conditions,
    state: Mutex<StartFailures>,
}

#[derive(Debug)]
struct StartFailures {
    /// Descriptors that starts may take before open files are counted again.
    open_files_left: u64,
    /// Consecutive failed starts, and their jobs.
    failures: u32,
    jobs: BTreeSet<String>,
    /// The time at which the condition is cleared, so that a start can test the node.
    paused_until: Option<Instant>,
    pause: Duration,
}

impl StartHealth {
    pub(crate) fn new(conditions: Conditions) -> Self {
        Self {
            conditions,
            state: Mutex::new(StartFailures {
                open_files_left: 0,
                failures: 0,
                jobs: BTreeSet::new(),
                paused_until: None,
                pause: START_PAUSE_MIN,
            }),
        }
    }

    /// Reserves the descriptors that a start needs.
    ///
    /// # Errors
    ///
    /// The reason for which no task can start.
    pub(crate) fn reserve_open_files(&self) -> Result<(), String> {
        self.reserve_open_files_from(open_files_left)
    }

    fn reserve_open_files_from(
        &self,
        count: impl Fn() -> Result<u64, String>,
    ) -> Result<(), String> {
        let mut state = self.locked();
        if state.open_files_left < OPEN_FILES_PER_TASK {
            state.open_files_left =
                count().inspect_err(|reason| self.conditions.set(OPEN_FILES, reason))?;
        }
        state.open_files_left -= OPEN_FILES_PER_TASK;
        Ok(())
    }

    /// Handles the failure of a start of `job` that might succeed later.
    pub(crate) fn handle_failed(&self, job: &str, reason: &str, now: Instant) {
        let mut state = self.locked();
        state.failures = state.failures.saturating_add(1);
        if state.jobs.len() < START_JOBS_FAILED_MAX {
            state.jobs.insert(job.to_owned());
        }
        let is_exhausted = EXHAUSTION_ERRORS.iter().any(|words| reason.contains(words));
        let all_fail =
            state.failures >= START_FAILURES_MAX && state.jobs.len() >= START_JOBS_FAILED_MAX;
        if state.paused_until.is_none() && (is_exhausted || all_fail) {
            state.paused_until = Some(now + state.pause);
            state.pause = (state.pause * 2).min(START_PAUSE_MAX);
            let message = format!("tasks cannot be started here: {reason}");
            self.conditions.set(STARTS, &message);
        }
    }

    /// Handles a successful start of a task.
    pub(crate) fn handle_started(&self) {
        let mut state = self.locked();
        state.failures = 0;
        state.jobs.clear();
        state.pause = START_PAUSE_MIN;
        state.paused_until = None;
        self.conditions.clear(STARTS);
    }

    pub(crate) fn handle_timeout(&self, now: Instant) {
        let mut state = self.locked();
        if state.paused_until.is_some_and(|until| until <= now) {
            // The next failure sets it again.
            state.paused_until = None;
            self.conditions.clear(STARTS);
        }
        match open_files_left() {
            Ok(left) => {
                state.open_files_left = left;
                self.conditions.clear(OPEN_FILES);
            }
            Err(reason) => self.conditions.set(OPEN_FILES, &reason),
        }
    }

    fn locked(&self) -> MutexGuard<'_, StartFailures> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// File descriptors that tasks may take, or why there are none.
fn open_files_left() -> Result<u64, String> {
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return Ok(u64::MAX);
    };
    left_of(limit, open_files().unwrap_or(limit))
}

/// Allocations that the node takes at once: `configured`, or fewer if the machine has less room. 0 means no limit.
pub(crate) fn max_allocs(configured: u32) -> u32 {
    let pids = std::fs::read_to_string("/proc/sys/kernel/pid_max");
    let pids = pids.ok().and_then(|text| text.trim().parse().ok());
    let files = getrlimit(Resource::Nofile).current;
    max_allocs_within(configured, files, pids)
}

/// `None` means no limit of open files or of process numbers.
fn max_allocs_within(configured: u32, files: Option<u64>, pids: Option<u64>) -> u32 {
    let by_files = files.map(|limit| (limit - spared(limit)) / OPEN_FILES_HELD_PER_TASK);
    let by_pids = pids.map(|max| max.saturating_sub(PIDS_SPARED) / PIDS_PER_TASK);
    let configured = Some(u64::from(configured)).filter(|max| *max > 0);
    let limits = [by_files, by_pids, configured];
    let least = limits.into_iter().flatten().min();
    // A node without room for any allocation reports it at its first start.
    least.map_or(0, |max| saturating::to_u32(max).max(1))
}

/// File descriptors of `limit` that tasks do not take.
fn spared(limit: u64) -> u64 {
    (limit / 8).min(OPEN_FILES_SPARED_MAX)
}

/// Counts the open files of this process. Since Linux 6.2, the directory's size is their count; an earlier kernel
/// reports 0. `None` without /proc, or without a descriptor to read it; then a failed start reveals the shortage.
fn open_files() -> Option<u64> {
    let dir = Path::new("/proc/self/fd");
    match std::fs::metadata(dir).ok()?.len() {
        0 => Some(std::fs::read_dir(dir).ok()?.count() as u64),
        count => Some(count),
    }
}

fn left_of(limit: u64, open: u64) -> Result<u64, String> {
    let spared = spared(limit);
    let left = limit.saturating_sub(spared).saturating_sub(open);
    if left < OPEN_FILES_PER_TASK {
        return Err(format!(
            "the agent has {open} of {limit} files open, a task needs {OPEN_FILES_PER_TASK}, and {spared} are spared: raise LimitNOFILE of its service"
        ));
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> StartHealth {
        StartHealth::new(Conditions::default())
    }

    fn is_set(health: &StartHealth, name: &str) -> bool {
        health.conditions.reason(name).is_some()
    }

    #[test]
    fn starts_are_refused_at_the_limit_of_files() {
        let health = health();
        let room_for_two = || Ok(2 * OPEN_FILES_PER_TASK);
        health.reserve_open_files_from(room_for_two).unwrap();
        health
            .reserve_open_files_from(|| panic!("counted for each start"))
            .unwrap();

        let refused = health
            .reserve_open_files_from(|| left_of(4_096, 3_900))
            .unwrap_err();

        assert!(refused.contains("3900 of 4096"), "{refused}");
        assert!(is_set(&health, OPEN_FILES));
    }

    #[test]
    fn node_offers_room_by_its_scarcest_limit() {
        let max = max_allocs_within;
        assert_eq!(max(0, Some(4_096), Some(4_194_304)), 716);
        assert_eq!(max(0, Some(1_048_576), Some(32_768)), 7_936);
        assert_eq!(max(100, Some(4_096), None), 100);
        assert_eq!(max(1_000, Some(4_096), None), 716);
        assert_eq!(max(0, Some(4), Some(300)), 1);
        assert_eq!(max(0, None, None), 0);
    }

    #[test]
    fn open_files_are_counted() {
        let before = open_files().unwrap();
        let _files: Vec<_> = (0..100)
            .map(|_| std::fs::File::open("/dev/null").unwrap())
            .collect();
        // Other tests open and close files meanwhile.
        assert!(open_files().unwrap() > before + 50);
    }

    #[test]
    fn one_broken_job_is_not_the_node() {
        let health = health();
        for _ in 0..1_000 {
            health.handle_failed("web", "no such file", Instant::now());
        }
        assert!(!is_set(&health, STARTS));
    }

    #[test]
    fn a_node_where_every_start_fails_pauses() {
        let health = health();
        let now = Instant::now();
        let fail = |now| {
            for at in 0..START_FAILURES_MAX as usize {
                health.handle_failed(&format!("job-{at}"), "no", now);
            }
        };
        fail(now);
        assert!(is_set(&health, STARTS));

        health.handle_timeout(now + START_PAUSE_MIN);
        assert!(!is_set(&health, STARTS), "one start may try");
        health.handle_failed("job-1", "no", now + START_PAUSE_MIN);
        assert!(is_set(&health, STARTS));
        health.handle_timeout(now + START_PAUSE_MIN * 2);
        assert!(is_set(&health, STARTS), "the pause grows");

        health.handle_started();
        assert!(!is_set(&health, STARTS));
    }

    #[test]
    fn an_exhausted_node_pauses_at_once() {
        let health = health();
        let reason = "make FIFO: Too many open files (os error 24)";
        health.handle_failed("web", reason, Instant::now());
        assert!(is_set(&health, STARTS));
    }
}
