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
    disconnected_at: watch::Sender<Option<Instant>>,
}

impl HostWatchdog {
    /// Records that a host is connected, or that none is connected any more.
    pub(crate) fn host_present(&self, present: bool) {
        self.disconnected_at
            .send_replace((!present).then(Instant::now));
    }

    /// Returns when no host was connected for `max`. Never returns if the watchdog is dropped before.
    pub(crate) fn wait_expired(&self, max: Duration) -> impl Future<Output = ()> + Send + use<> {
        let mut disconnected_at = self.disconnected_at.subscribe();
        async move {
            loop {
                let began = *disconnected_at.borrow_and_update();
                let over = async {
                    match began.and_then(|began| began.checked_add(max)) {
                        Some(at) => tokio::time::sleep_until(at).await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    changed = disconnected_at.changed() => if changed.is_err() {
                        pending::<()>().await;
                    },
                    () = over => return,
                }
            }
        }
    }
}

/// Returns the reason for stopping a task that may run for `max` without an agent.
pub(crate) fn stop_reason(max: Duration) -> String {
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
        let watchdog = HostWatchdog::default();
        let mut waiting = tokio::spawn(watchdog.wait_expired(MAX));
        watchdog.host_present(true);
        tokio::time::advance(MAX * 10).await;
        assert!(!is_over(&mut waiting).await, "a host is there");

        watchdog.host_present(false);
        tokio::time::advance(NEARLY).await;
        assert!(!is_over(&mut waiting).await);

        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(is_over(&mut waiting).await);
    }

    #[tokio::test(start_paused = true)]
    async fn host_reconnect_resets_watchdog_timer() {
        let watchdog = HostWatchdog::default();
        watchdog.host_present(false);
        let mut waiting = tokio::spawn(watchdog.wait_expired(MAX));

        for _ in 0..3 {
            tokio::time::advance(NEARLY).await;
            assert!(!is_over(&mut waiting).await);
            watchdog.host_present(true);
            watchdog.host_present(false);
        }

        tokio::time::advance(MAX).await;
        assert!(is_over(&mut waiting).await);
    }

    /// A task that was given back to a driver after some time without a host.
    #[tokio::test(start_paused = true)]
    async fn later_task_shares_elapsed_watchdog_time() {
        let watchdog = HostWatchdog::default();
        watchdog.host_present(false);
        tokio::time::advance(MAX).await;

        let mut waiting = tokio::spawn(watchdog.wait_expired(MAX));

        assert!(is_over(&mut waiting).await);
    }

    /// Covers a driver inside its host process, and a dropped driver.
    #[tokio::test(start_paused = true)]
    async fn watchdog_never_expires_in_host_or_after_drop() {
        let watchdog = HostWatchdog::default();
        let mut waiting = tokio::spawn(watchdog.wait_expired(MAX));
        let mut longest = tokio::spawn(watchdog.wait_expired(Duration::MAX));
        tokio::time::advance(MAX * 10).await;
        assert!(!is_over(&mut waiting).await);

        watchdog.host_present(false);
        drop(watchdog);
        tokio::time::advance(MAX * 10).await;

        assert!(!is_over(&mut waiting).await);
        assert!(!is_over(&mut longest).await);
    }

    #[test]
    fn reasons_contain_the_duration() {
        assert_eq!(stop_reason(MAX), "stopped: no agent for 30 s");
        let short = Duration::from_millis(1_500);
        assert_eq!(stop_reason(short), "stopped: no agent for 1500 ms");
    }
}
