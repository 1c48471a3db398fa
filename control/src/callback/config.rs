//! Settings for keeping one-off tasks and for their callbacks. They are the server's own and not replicated. A
//! task keeps the times of its server from when it was desired. The leader's settings apply to callbacks.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use muster_domain::id::Timestamp;
use muster_domain::one_off::{
    LOST_AFTER_MAX, LOST_AFTER_MIN, OneOffTimings, RETENTION_MAX, START_TIMEOUT_MAX,
};

use crate::limits;

/// Settings for completed one-off tasks, their claims and their callbacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TasksConfig {
    /// Time in which a task must start, unless the task has its own. Diego's is 30 minutes.
    pub start_timeout: Duration,
    /// Time for which a completed task is kept, unless the task has its own. Diego's is 2 minutes.
    pub retention: Duration,
    /// How long a claim on a completed task holds. Diego's is 30 s.
    pub claim: Duration,
    /// Time after which a task counts as lost, from the loss of its node. Agents end their tasks before that.
    /// Replicated: the leader's value applies to tasks desired from then on.
    pub lost_after: Duration,
    /// How long the server that makes a callback owns it: at least the time of three calls. Replicated: the
    /// leader's value applies.
    pub callback_claim: Duration,
    /// The longest time for one call: name, connection, answer, redirects. Diego's is 10 s.
    pub callback_wait: Duration,
    /// Pause after a callback's first failure; it doubles after each further one. Diego pauses only between rounds
    /// of three calls, for up to 60 s.
    pub callback_pause: Duration,
    /// The longest pause between two calls.
    pub callback_pause_max: Duration,
    /// Time from a task's completion after which an undelivered callback is given up. Diego gives up after two
    /// minutes.
    pub callback_deadline: Duration,
    /// Redirects that one call follows, each with the same body; 0: a redirect is a failure.
    pub callback_redirects: u32,
    /// Whether callbacks may go to loopback and private addresses that are in neither list below.
    pub callback_private: bool,
    /// Addresses that callbacks may go to. If both lists have prefixes of an address, the longer prefix decides.
    pub callback_allow: Vec<IpNet>,
    /// Addresses that callbacks may not go to. They also win over the same prefix in `callback_allow`.
    pub callback_deny: Vec<IpNet>,
    /// Certificates, in PEM, that verify HTTPS endpoints of callbacks. `None`: [`CA_FILE`], if that file exists.
    ///
    /// [`CA_FILE`]: super::CA_FILE
    pub callback_ca: Option<PathBuf>,
    /// A file with the key that signs callbacks. `None`: callbacks are not signed.
    pub callback_key: Option<PathBuf>,
}

impl Default for TasksConfig {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_mins(30),
            retention: Duration::from_mins(2),
            claim: Duration::from_secs(30),
            lost_after: OneOffTimings::default().lost_after,
            callback_claim: OneOffTimings::default().callback_claim,
            callback_wait: limits::CALLBACK_WAIT_MAX,
            callback_pause: Duration::from_secs(1),
            callback_pause_max: Duration::from_mins(5),
            callback_deadline: Duration::from_hours(1),
            callback_redirects: 0,
            callback_private: true,
            callback_allow: Vec::new(),
            callback_deny: Vec::new(),
            callback_ca: None,
            callback_key: None,
        }
    }
}

/// A configuration of one-off tasks that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TasksConfigError {
    /// A time is outside its bounds.
    #[error("the {what} of one-off tasks is {given:?}: give --{flag} from {min:?} to {max:?}")]
    Time {
        /// The name of the time in messages.
        what: &'static str,
        /// The flag that sets it.
        flag: &'static str,
        /// The value that was given.
        given: Duration,
        min: Duration,
        max: Duration,
    },
    /// There are too many redirects.
    #[error(
        "callbacks of one-off tasks are to follow {given} redirects: give --task-callback-redirects from 0 to {max}"
    )]
    Redirects {
        /// The number that was given.
        given: u32,
        max: u32,
    },
    /// There are too many prefixes.
    #[error(
        "callbacks of one-off tasks have {given} prefixes in --{flag}: give at most {max}, shorter ones"
    )]
    Prefixes {
        /// The flag that sets them.
        flag: &'static str,
        /// The number that was given.
        given: usize,
        max: usize,
    },
}

impl TasksConfig {
    /// Checks whether the configuration can be used.
    ///
    /// # Errors
    ///
    /// [`TasksConfigError`]: the first fault.
    pub fn check(&self) -> Result<(), TasksConfigError> {
        for (what, flag, given, min, max) in self.bounds() {
            if given < min || given > max {
                return Err(TasksConfigError::Time {
                    what,
                    flag,
                    given,
                    min,
                    max,
                });
            }
        }
        let (given, max) = (self.callback_redirects, limits::CALLBACK_REDIRECTS_MAX);
        if given > max {
            return Err(TasksConfigError::Redirects { given, max });
        }
        for (flag, list) in [
            ("task-callback-allow", &self.callback_allow),
            ("task-callback-deny", &self.callback_deny),
        ] {
            let (given, max) = (list.len(), limits::CALLBACK_PREFIXES_MAX);
            if given > max {
                return Err(TasksConfigError::Prefixes { flag, given, max });
            }
        }
        Ok(())
    }

    /// Each time: its name in messages, its flag, its value, its minimum and its maximum.
    fn bounds(&self) -> [(&'static str, &'static str, Duration, Duration, Duration); 9] {
        // A task's own time of zero means this time, so this time cannot be zero.
        let least = Duration::from_millis(1);
        [
            (
                "start timeout",
                "task-start-timeout",
                self.start_timeout,
                least,
                START_TIMEOUT_MAX,
            ),
            (
                "retention",
                "task-retention",
                self.retention,
                least,
                RETENTION_MAX,
            ),
            ("claim", "task-claim", self.claim, least, limits::CLAIM_MAX),
            (
                "time to give a node up",
                "task-lost-after",
                self.lost_after,
                LOST_AFTER_MIN,
                LOST_AFTER_MAX,
            ),
            (
                "callback's time",
                "task-callback-wait",
                self.callback_wait,
                limits::CALLBACK_WAIT_MIN,
                limits::CALLBACK_WAIT_MAX,
            ),
            (
                "callback's claim",
                "task-callback-claim",
                self.callback_claim,
                3 * self.callback_wait,
                limits::CLAIM_MAX,
            ),
            (
                "callback's pause",
                "task-callback-pause",
                self.callback_pause,
                limits::CALLBACK_PAUSE_MIN,
                self.callback_pause_max,
            ),
            (
                "callback's longest pause",
                "task-callback-pause-max",
                self.callback_pause_max,
                limits::CALLBACK_PAUSE_MIN,
                limits::CALLBACK_DEADLINE_MAX,
            ),
            (
                "callback's deadline",
                "task-callback-deadline",
                self.callback_deadline,
                Duration::ZERO,
                limits::CALLBACK_DEADLINE_MAX,
            ),
        ]
    }

    /// Times on which all servers must agree.
    pub(crate) fn times(&self) -> OneOffTimings {
        OneOffTimings {
            lost_after: self.lost_after,
            callback_claim: self.callback_claim,
        }
    }

    /// Time of the next call for a task that was completed at `from`. Its callback has failed `attempts` times
    /// before, and now once more. `None`: no further call.
    pub(crate) fn next_try(
        &self,
        attempts: u32,
        from: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let next = now.plus(self.pause_after(attempts));
        (next <= from.plus(self.callback_deadline)).then_some(next)
    }

    /// The pause after `attempts` failures and one more. It doubles up to its bound.
    fn pause_after(&self, attempts: u32) -> Duration {
        let doubled = self.callback_pause.saturating_mul(1 << attempts.min(16));
        doubled.min(self.callback_pause_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_bound() {
        let config = TasksConfig::default();

        assert_eq!(config.pause_after(0), config.callback_pause);
        assert_eq!(config.pause_after(3), config.callback_pause * 8);
        assert_eq!(config.pause_after(u32::MAX), config.callback_pause_max);
    }

    #[test]
    fn callback_is_retried_only_until_deadline() {
        let config = TasksConfig::default();
        let from = Timestamp::from_millis(1_000);
        let end = from.plus(config.callback_deadline);
        let last = Timestamp(end.0 - u64::try_from(config.callback_pause.as_nanos()).unwrap());

        let first = from.plus(config.callback_pause);
        assert_eq!(config.next_try(0, from, from), Some(first));
        assert_eq!(config.next_try(0, from, last), Some(end));
        assert_eq!(config.next_try(0, from, Timestamp(last.0 + 1)), None);
        assert_eq!(config.next_try(1, from, last), None);
        // The clock of another leader may be behind.
        let earlier = Timestamp(0);
        let next = earlier.plus(config.callback_pause);
        assert_eq!(config.next_try(0, from, earlier), Some(next));
    }

    type ConfigChange = fn(&mut TasksConfig);

    #[test]
    fn each_setting_has_its_bounds() {
        let with = |change: ConfigChange| {
            let mut config = TasksConfig::default();
            change(&mut config);
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(|_| {}), Ok(()));
        let table: [(ConfigChange, &str); 16] = [
            (|it| it.lost_after = LOST_AFTER_MIN / 2, "--task-lost-after"),
            (|it| it.lost_after = LOST_AFTER_MAX * 2, "--task-lost-after"),
            (
                |it| it.callback_claim = it.callback_wait * 2,
                "--task-callback-claim",
            ),
            (
                |it| it.callback_claim = limits::CLAIM_MAX * 2,
                "--task-callback-claim",
            ),
            (
                |it| it.start_timeout = Duration::ZERO,
                "--task-start-timeout",
            ),
            (
                |it| it.start_timeout = START_TIMEOUT_MAX * 2,
                "--task-start-timeout",
            ),
            (|it| it.retention = Duration::ZERO, "--task-retention"),
            (|it| it.retention = RETENTION_MAX * 2, "--task-retention"),
            (|it| it.claim = Duration::ZERO, "--task-claim"),
            (
                |it| it.callback_wait = Duration::ZERO,
                "--task-callback-wait",
            ),
            (|it| it.callback_wait *= 2, "--task-callback-wait"),
            (
                |it| it.callback_pause = Duration::ZERO,
                "--task-callback-pause ",
            ),
            (
                |it| it.callback_pause = it.callback_pause_max * 2,
                "--task-callback-pause ",
            ),
            (
                |it| it.callback_deadline = RETENTION_MAX * 2,
                "--task-callback-deadline",
            ),
            (
                |it| it.callback_redirects = 100,
                "--task-callback-redirects",
            ),
            (
                |it| it.callback_deny = vec![IpNet::default(); 2_000],
                "--task-callback-deny",
            ),
        ];
        for (change, flag) in table {
            let reason = with(change).unwrap_err();
            assert!(reason.contains(flag), "{flag}: {reason}");
        }
    }
}
