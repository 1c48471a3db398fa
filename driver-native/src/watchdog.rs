//! The time without a host, for tasks that must not run forever without one.
//!
//! An agent stops its tasks when it has no server for too long. A dead agent stops nothing. So the driver, which
//! continues to run, measures the time since the end of the last connection, on the monotonic clock. A restarted
//! driver measures from its own start. It has only the tasks that an agent gives back to it, and only an agent starts
//! it.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The time when the last host connection ended; `None` while a host is connected, or when connections are not
/// reported.
#[derive(Debug, Default)]
pub(crate) struct HostWatchdog {
    since: watch::Sender<Option<Instant>>,
}

impl HostWatchdog {
    /// Records that a host is connected, or that none is connected any more.
    pub(crate) fn host_present(&self, present: bool) {
        self.since.send_replace((!present).then(Instant::now));
    }

    /// Returns when no host was connected for `max`. Never returns if the watchdog is dropped before.
    pub(crate) fn lasts(&self, max: Duration) -> impl Future<Output = ()> + Send + use<> {
        let mut since = self.since.subscribe();
        async move {
            loop {
                let began = *since.borrow_and_update();
                let over = async {
                    match began.and_then(|began| began.checked_add(max)) {
                        Some(at) => tokio::time::sleep_until(at).await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    changed = since.changed() => if changed.is_err() {
                        pending::<()>().await;
                    },
                    () = over => return,
                }
            }
        }
    }
}

/// Returns the reason for stopping a task that may run for `max` without an agent.
pub(crate) fn reason(max: Duration) -> String {
    if max.subsec_nanos() == 0 {
        format!("stopped: no agent for {} s", max.as_secs())
    } else {
        format!("stopped: no agent for {} ms", max.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(30);
    const NEARLY: Duration = Duration::from_secs(29);

    /// Returns whether the wait has finished by now.
    async fn is_over(waiting: &mut tokio::task::JoinHandle<()>) -> bool {
        // With a paused clock, this runs all tasks that can make progress.
        tokio::time::sleep(Duration::from_millis(1)).await;
        waiting.is_finished()
    }

    #[tokio::test(start_paused = true)]
    async fn watchdog_counts_from_last_disconnect() {
        let absence = HostWatchdog::default();
        let mut waiting = tokio::spawn(absence.lasts(MAX));
        absence.host_present(true);
        tokio::time::advance(MAX * 10).await;
        assert!(!is_over(&mut waiting).await, "a host is there");

        absence.host_present(false);
        tokio::time::advance(NEARLY).await;
        assert!(!is_over(&mut waiting).await);

        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(is_over(&mut waiting).await);
    }

    #[tokio::test(start_paused = true)]
    async fn host_reconnect_resets_watchdog_timer() {
        let absence = HostWatchdog::default();
        absence.host_present(false);
        let mut waiting = tokio::spawn(absence.lasts(MAX));

        for _ in 0..3 {
            tokio::time::advance(NEARLY).await;
            assert!(!is_over(&mut waiting).await);
            absence.host_present(true);
            absence.host_present(false);
        }

        tokio::time::advance(MAX).await;
        assert!(is_over(&mut waiting).await);
    }

    /// A task that was given back to a driver after some time without a host.
    #[tokio::test(start_paused = true)]
    async fn later_task_shares_elapsed_watchdog_time() {
        let absence = HostWatchdog::default();
        absence.host_present(false);
        tokio::time::advance(MAX).await;

        let mut waiting = tokio::spawn(absence.lasts(MAX));

        assert!(is_over(&mut waiting).await);
    }

    /// Covers a driver inside its host process, and a dropped driver.
    #[tokio::test(start_paused = true)]
    async fn watchdog_never_expires_in_host_or_after_drop() {
        let absence = HostWatchdog::default();
        let mut waiting = tokio::spawn(absence.lasts(MAX));
        let mut longest = tokio::spawn(absence.lasts(Duration::MAX));
        tokio::time::advance(MAX * 10).await;
        assert!(!is_over(&mut waiting).await);

        absence.host_present(false);
        drop(absence);
        tokio::time::advance(MAX * 10).await;

        assert!(!is_over(&mut waiting).await);
        assert!(!is_over(&mut longest).await);
    }

    #[test]
    fn reasons_contain_the_duration() {
        assert_eq!(reason(MAX), "stopped: no agent for 30 s");
        let short = Duration::from_millis(1_500);
        assert_eq!(reason(short), "stopped: no agent for 1500 ms");
    }
}
