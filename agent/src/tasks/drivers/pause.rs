//! The pause before a dead driver is started again.

use std::time::Duration;

use crate::limits::{DRIVER_PAUSE_MAX, DRIVER_PAUSE_MIN, DRIVER_SETTLED};

/// Pauses that grow while a driver dies early or does not start at all.
#[derive(Debug)]
pub(super) struct RestartBackoff {
    next: Duration,
}

impl RestartBackoff {
    pub(super) fn new() -> Self {
        Self {
            next: DRIVER_PAUSE_MIN,
        }
    }

    /// Returns the pause after a life that lasted `lived` from its first answer on; `lived` is zero without an
    /// answer.
    pub(super) fn after(&mut self, lived: Duration) -> Duration {
        if lived > DRIVER_SETTLED {
            self.next = DRIVER_PAUSE_MIN;
        }
        let pause = self.next;
        self.next = (pause * 2).min(DRIVER_PAUSE_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    /// 50 ms, doubled nine times, are 25.6 s.
    #[test]
    fn early_driver_exits_double_backoff_to_max() {
        let mut pause = RestartBackoff::new();

        let pauses: Vec<Duration> = (0..1_000).map(|_| pause.after(DRIVER_SETTLED)).collect();

        let (growing, longest) = pauses.split_at(10);
        let expected: Vec<Duration> = (0..10).map(|it| DRIVER_PAUSE_MIN * (1 << it)).collect();
        assert_eq!(growing, expected);
        assert!(longest.iter().all(|pause| *pause == DRIVER_PAUSE_MAX));
    }

    #[test]
    fn long_lived_driver_resets_restart_backoff() {
        let mut pause = RestartBackoff::new();
        let _crashes: Vec<Duration> = (0..20).map(|_| pause.after(MOMENT)).collect();

        let after_a_quiet_time = pause.after(DRIVER_SETTLED + MOMENT);
        let next = pause.after(MOMENT);

        assert_eq!(after_a_quiet_time, DRIVER_PAUSE_MIN);
        assert_eq!(next, DRIVER_PAUSE_MIN * 2);
    }
}
