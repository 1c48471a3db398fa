//! The time at which a failed instance is replaced.

use std::time::Duration;

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::id::Timestamp;
use muster_domain::job::{DelayFunction, ReschedulePolicy};

use super::Instance;

/// A replacement that is due within this time is made at once.
pub(super) const WINDOW: Duration = Duration::from_secs(1);
/// Replacements within this time of the first share an evaluation.
pub(super) const BATCH_WINDOW: Duration = Duration::from_secs(5);

/// Returns the time at which `instance` may be replaced; `None`: it may not be replaced.
pub(in crate::scheduler) fn next_time(
    instance: &Instance,
    policy: Option<&ReschedulePolicy>,
) -> Option<Timestamp> {
    let policy = policy?;
    if instance.desired == DesiredStatus::Stop || instance.client != ClientStatus::Failed {
        return None;
    }
    let delay = next_delay(instance, policy);
    let allowed = if policy.attempts > 0 && !instance.events.is_empty() {
        let attempted = instance
            .events
            .iter()
            .filter(|event| instance.ended_at.since(event.at) < policy.interval)
            .count();
        attempted < policy.attempts as usize && delay < policy.interval
    } else {
        policy.unlimited || policy.attempts > 0
    };
    allowed.then(|| instance.ended_at.plus(delay))
}

/// The delay before the next replacement.
pub(in crate::scheduler) fn next_delay(instance: &Instance, policy: &ReschedulePolicy) -> Duration {
    let Some(last) = instance.events.last() else {
        return policy.delay;
    };
    let delay = match policy.delay_function {
        DelayFunction::Constant => return policy.delay,
        DelayFunction::Exponential => last.delay.saturating_mul(2),
        DelayFunction::Fibonacci => match instance.events.as_slice() {
            [.., before, last] => {
                // After a long run without failure a new series has begun.
                if before.delay == policy.max_delay && last.delay == policy.delay {
                    last.delay
                } else {
                    last.delay.saturating_add(before.delay)
                }
            }
            _ => policy.delay,
        },
    };
    if policy.max_delay.is_zero() || delay <= policy.max_delay {
        return delay;
    }
    // A run that was longer than the longest delay begins a new series.
    if instance.ended_at.since(last.at) > policy.max_delay {
        policy.delay
    } else {
        policy.max_delay
    }
}
