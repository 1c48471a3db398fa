//! Updates, migrations, reschedules and nodes out of reach.

use std::time::Duration;

use crate::fault::Fault;
use crate::job::{
    DelayFunction, Disconnect, JobType, MigrateStrategy, ReschedulePolicy, UpdateStrategy,
};

/// The lowest delay before a replacement, and the lowest interval: Nomad's.
const DELAY_MIN: Duration = Duration::from_secs(5);

/// Checks that replacements fit in their interval.
pub(super) fn check_reschedule(
    at: &str,
    job_type: JobType,
    policy: &ReschedulePolicy,
    faults: &mut Vec<Fault>,
) {
    let at = format!("{at} → reschedule");
    if !policy.is_enabled() {
        return;
    }
    if matches!(job_type, JobType::System | JobType::SysBatch) {
        faults.push(Fault::new(
            at,
            format!("a `{job_type}` job has an instance on every node, so none goes to another: leave it out"),
        ));
        return;
    }
    if policy.unlimited && policy.attempts > 0 {
        faults.push(Fault::new(
            at.clone(),
            "has `attempts` and is `unlimited`: choose one",
        ));
    }
    if policy.delay < DELAY_MIN {
        faults.push(Fault::new(
            format!("{at} → delay"),
            format!("{:?} is below {DELAY_MIN:?}", policy.delay),
        ));
    }
    let grows = policy.delay_function != DelayFunction::Constant;
    if grows && policy.max_delay < policy.delay {
        faults.push(Fault::new(
            format!("{at} → max_delay"),
            format!("{:?} is below delay ({:?})", policy.max_delay, policy.delay),
        ));
    }
    if !policy.unlimited && policy.interval < DELAY_MIN {
        faults.push(Fault::new(
            format!("{at} → interval"),
            format!("{:?} is below {DELAY_MIN:?}", policy.interval),
        ));
    }
    if !policy.unlimited && !fits_interval(policy) {
        faults.push(Fault::new(
            at,
            format!(
                "{} attempts with a delay of {:?} do not fit in an interval of {:?}",
                policy.attempts, policy.delay, policy.interval
            ),
        ));
    }
}

/// Whether the attempts of a limited policy fit in its interval, by Nomad's calculation.
fn fits_interval(policy: &ReschedulePolicy) -> bool {
    let ReschedulePolicy {
        attempts,
        interval,
        delay,
        delay_function,
        max_delay,
        unlimited: _,
    } = *policy;
    let (doubles, steps) = match delay_function {
        DelayFunction::Constant => return delay.saturating_mul(attempts) <= interval,
        DelayFunction::Exponential => (true, attempts.saturating_sub(1)),
        DelayFunction::Fibonacci => (false, attempts.saturating_sub(2)),
    };
    let (mut last, mut before) = (delay, delay);
    for step in 0..steps {
        let next = if doubles {
            last.saturating_mul(2)
        } else {
            last.saturating_add(before)
        };
        if next > max_delay {
            // Each further attempt adds the maximum delay.
            let rest = max_delay.saturating_mul(steps - step);
            last = if doubles {
                last.saturating_add(rest)
            } else {
                rest
            };
            break;
        }
        (last, before) = (next, last);
    }
    if doubles {
        last < interval
    } else {
        last <= interval
    }
}

/// Checks that the times of an update are consistent.
pub(super) fn check_update(
    at: &str,
    job_type: JobType,
    count: u32,
    update: &UpdateStrategy,
    faults: &mut Vec<Fault>,
) {
    let at = format!("{at} → update");
    match job_type {
        JobType::Service | JobType::System => {}
        JobType::Batch | JobType::SysBatch => {
            faults.push(Fault::new(
                at,
                format!("a `{job_type}` job runs to its end and is not updated: leave it out"),
            ));
            return;
        }
    }
    if update.stagger.is_zero() {
        faults.push(Fault::new(format!("{at} → stagger"), "must be above 0"));
    }
    if update.healthy_deadline <= update.min_healthy_time {
        faults.push(Fault::new(
            format!("{at} → healthy_deadline"),
            format!(
                "{:?} is not above min_healthy_time ({:?})",
                update.healthy_deadline, update.min_healthy_time
            ),
        ));
    }
    if !update.progress_deadline.is_zero() && update.progress_deadline <= update.healthy_deadline {
        faults.push(Fault::new(
            format!("{at} → progress_deadline"),
            format!(
                "{:?} is not above healthy_deadline ({:?}); 0 means none",
                update.progress_deadline, update.healthy_deadline
            ),
        ));
    }
    if update.auto_promote && update.canary == 0 {
        faults.push(Fault::new(
            format!("{at} → auto_promote"),
            "needs canaries: set `canary`",
        ));
    }
    if count > 0 && update.max_parallel == 0 && update.canary > 0 {
        faults.push(Fault::new(
            format!("{at} → canary"),
            "needs a deployment, which max_parallel = 0 rules out",
        ));
    }
}

/// Checks that a migration can make progress.
pub(super) fn check_migrate(
    at: &str,
    job_type: JobType,
    migrate: &MigrateStrategy,
    faults: &mut Vec<Fault>,
) {
    let at = format!("{at} → migrate");
    if job_type != JobType::Service {
        faults.push(Fault::new(
            at,
            format!(
                "only instances of services migrate, not those of a `{job_type}` job: leave it out"
            ),
        ));
        return;
    }
    if migrate.max_parallel == 0 {
        faults.push(Fault::new(
            format!("{at} → max_parallel"),
            "must be at least 1, or nothing would ever leave a node",
        ));
    }
    if migrate.healthy_deadline < migrate.min_healthy_time {
        faults.push(Fault::new(
            format!("{at} → healthy_deadline"),
            format!(
                "{:?} is below min_healthy_time ({:?})",
                migrate.healthy_deadline, migrate.min_healthy_time
            ),
        ));
    }
}

/// Checks the handling of instances whose node is out of reach.
pub(super) fn check_disconnect(
    at: &str,
    job_type: JobType,
    disconnect: &Disconnect,
    faults: &mut Vec<Fault>,
) {
    let at = format!("{at} → disconnect");
    if disconnect.lost_after.is_some() && disconnect.stop_on_client_after.is_some() {
        faults.push(Fault::new(
            at.clone(),
            "has lost_after and stop_on_client_after: an instance that the agent stops cannot come back",
        ));
    }
    if disconnect.lost_after.is_some_and(|after| after.is_zero()) {
        faults.push(Fault::new(
            format!("{at} → lost_after"),
            "must be above 0; leave it out to have instances lost at once",
        ));
    }
    if disconnect.stop_on_client_after.is_some()
        && matches!(job_type, JobType::System | JobType::SysBatch)
    {
        faults.push(Fault::new(
            format!("{at} → stop_on_client_after"),
            format!("is for service and batch jobs, not for `{job_type}`"),
        ));
    }
}
