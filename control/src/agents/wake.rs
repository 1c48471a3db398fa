//! Wake-ups of a node's session.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::limits;

/// Pending reasons to wake a session.
#[derive(Debug, Default)]
pub(super) struct Wake {
    /// The node's desired allocations may have changed.
    pub(super) desired: Notify,
    /// Allocations of the node were forgotten; the node may receive that later.
    pub(super) forgotten: Notify,
    /// The node should destroy its garbage.
    pub(super) garbage: Notify,
    /// The node needs all desired allocations again.
    start_over: AtomicBool,
}

/// The reason a session was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// The session checks the node's desired allocations for changes.
    CheckDesired,
    /// The node should destroy its garbage.
    CollectGarbage,
}

impl Wake {
    pub(super) fn start_over(&self) {
        self.start_over.store(true, Ordering::Release);
        self.desired.notify_one();
    }

    pub(super) fn take_start_over(&self) -> bool {
        self.start_over.swap(false, Ordering::AcqRel)
    }

    /// Waits for the next reason to act. A check of the node's desired allocations waits until `latest`.
    ///
    /// A check costs in proportion to the node's allocations. So forgotten allocations bring it forward only a
    /// little, and slices of a collection share one message.
    pub(super) async fn next_reason(&self, latest: &mut Instant) -> WakeReason {
        loop {
            tokio::select! {
                () = self.desired.notified() => return WakeReason::CheckDesired,
                () = self.forgotten.notified() => {
                    *latest = (*latest).min(Instant::now() + limits::FORGOTTEN_WAIT);
                }
                () = self.garbage.notified() => return WakeReason::CollectGarbage,
                () = tokio::time::sleep_until(*latest) => return WakeReason::CheckDesired,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn first(wake: &Wake) -> (WakeReason, Duration) {
        let begun = Instant::now();
        let woken = wake
            .next_reason(&mut (begun + limits::SESSION_RESCAN))
            .await;
        (woken, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn forgotten_allocs_are_rescanned_after_batching_delay() {
        let wake = Wake::default();
        for _ in 0..3 {
            wake.forgotten.notify_one();
        }

        assert_eq!(
            first(&wake).await,
            (WakeReason::CheckDesired, limits::FORGOTTEN_WAIT)
        );
        assert_eq!(
            first(&wake).await,
            (WakeReason::CheckDesired, limits::SESSION_RESCAN)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn changed_state_wakes_the_session_at_once() {
        let wake = Wake::default();
        wake.forgotten.notify_one();
        wake.desired.notify_one();

        assert_eq!(
            first(&wake).await,
            (WakeReason::CheckDesired, Duration::ZERO)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_collection_is_asked_for_at_once() {
        let wake = Wake::default();
        wake.forgotten.notify_one();
        wake.garbage.notify_one();

        assert_eq!(
            first(&wake).await,
            (WakeReason::CollectGarbage, Duration::ZERO)
        );
    }
}
