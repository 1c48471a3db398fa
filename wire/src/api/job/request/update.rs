//! Reads how instances are replaced. What a group does not say is what the job says, and what that does not say is
//! Nomad's default for the type of job.

use muster_domain::job::{
    Disconnect, HealthCheck, JobType, MigrateStrategy, ReschedulePolicy, TaskGroup, UpdateStrategy,
};

use serde_json::{Value, json};

use super::PLAIN;
use crate::api::block::Block;
use crate::api::duration::nanos;
use crate::api::job::table::{JsonForm, json_form};
use crate::api::job::{self, Update};

/// The defaults that the job has for all its groups.
#[derive(Debug)]
pub(super) struct JobSteps {
    pub(super) update: Option<UpdateStrategy>,
    pub(super) migrate: Option<MigrateStrategy>,
    pub(super) reschedule: ReschedulePolicy,
}

impl JobSteps {
    pub(super) fn read(job: &mut Block<'_>, job_type: JobType) -> Self {
        let (update, migrate) = match job_type {
            JobType::Service => (
                Some(UpdateStrategy::default()),
                Some(MigrateStrategy::default()),
            ),
            JobType::System => (Some(UpdateStrategy::default()), None),
            JobType::Batch | JobType::SysBatch => (None, None),
        };
        // A job that was sent back as it was read names an update of nothing.
        let asked = job
            .block("Update")
            .map(|block| read_update(block, update.unwrap_or_default()))
            .filter(|asked| !is_blank(asked));
        let policy = ReschedulePolicy::default_for(job_type);
        Self {
            update: asked.or(update),
            migrate: read_migrate(job, migrate),
            reschedule: read_reschedule(job, "Reschedule", policy, job_type),
        }
    }

    /// The job's own pace, if it is not the one that the updates of `groups` tell.
    pub(super) fn own_pace(&self, groups: &[TaskGroup]) -> Option<Value> {
        let own = self.update?;
        let told = Update::common(groups);
        let stagger = nanos(own.stagger);
        let differs = told.stagger != stagger || told.max_parallel != own.max_parallel;
        differs.then(|| json!({ "Stagger": stagger, "MaxParallel": own.max_parallel }))
    }
}

json_form! {
    Option<Update>, of Option<UpdateStrategy>:
        |block: &mut Block<'_>, name, default: &Option<UpdateStrategy>| {
            let own = block.block(name);
            let own = own.map(|block| read_update(block, default.unwrap_or_default()));
            own.or(*default)
        },
        |value: &Option<UpdateStrategy>| value.as_ref().map(Update::from);
    Option<job::Migrate>, of Option<MigrateStrategy>:
        |block: &mut Block<'_>, _, default: &Option<MigrateStrategy>| read_migrate(block, *default),
        |value: &Option<MigrateStrategy>| value.as_ref().map(job::Migrate::from);
    Option<job::Disconnect>, of Disconnect:
        |block: &mut Block<'_>, _, _: &Disconnect| read_disconnect(block),
        |value: &Disconnect| {
            (*value != Disconnect::default()).then(|| job::Disconnect::from(value))
        };
}

impl JsonForm<ReschedulePolicy> for Option<job::Reschedule> {
    fn read(
        group: &mut Block<'_>,
        name: &'static str,
        default: &ReschedulePolicy,
        job_type: JobType,
    ) -> ReschedulePolicy {
        read_reschedule(group, name, *default, job_type)
    }

    fn write(policy: &ReschedulePolicy, job_type: JobType) -> Self {
        (!job_type.is_on_every_node()).then(|| job::Reschedule::from(policy))
    }
}

/// Nomad answers with such an update for a job that has none.
fn is_blank(update: &UpdateStrategy) -> bool {
    update.max_parallel == 0 && update.min_healthy_time.is_zero() && update.stagger.is_zero()
}

fn read_update(mut block: Block<'_>, default: UpdateStrategy) -> UpdateStrategy {
    let read = UpdateStrategy {
        stagger: block.duration("Stagger").unwrap_or(default.stagger),
        max_parallel: block
            .number("MaxParallel", u32::MAX)
            .unwrap_or(default.max_parallel),
        health_check: read_health(&mut block, default.health_check),
        min_healthy_time: block
            .duration("MinHealthyTime")
            .unwrap_or(default.min_healthy_time),
        healthy_deadline: block
            .duration("HealthyDeadline")
            .unwrap_or(default.healthy_deadline),
        progress_deadline: block
            .duration("ProgressDeadline")
            .unwrap_or(default.progress_deadline),
        auto_revert: block.boolean("AutoRevert").unwrap_or(default.auto_revert),
        auto_promote: block.boolean("AutoPromote").unwrap_or(default.auto_promote),
        canary: block.number("Canary", u32::MAX).unwrap_or(default.canary),
    };
    block.finish(&PLAIN);
    read
}

fn read_health(block: &mut Block<'_>, default: HealthCheck) -> HealthCheck {
    block.choice("HealthCheck").unwrap_or(default)
}

fn read_migrate(
    parent: &mut Block<'_>,
    default: Option<MigrateStrategy>,
) -> Option<MigrateStrategy> {
    let Some(mut block) = parent.block("Migrate") else {
        return default;
    };
    let default = default.unwrap_or_default();
    let read = MigrateStrategy {
        max_parallel: block
            .number("MaxParallel", u32::MAX)
            .unwrap_or(default.max_parallel),
        health_check: read_health(&mut block, default.health_check),
        min_healthy_time: block
            .duration("MinHealthyTime")
            .unwrap_or(default.min_healthy_time),
        healthy_deadline: block
            .duration("HealthyDeadline")
            .unwrap_or(default.healthy_deadline),
    };
    block.finish(&PLAIN);
    Some(read)
}

fn read_reschedule(
    parent: &mut Block<'_>,
    name: &'static str,
    default: ReschedulePolicy,
    job_type: JobType,
) -> ReschedulePolicy {
    let Some(mut block) = parent.block(name) else {
        return default;
    };
    let function = block.choice("DelayFunction");
    let read = ReschedulePolicy {
        attempts: block
            .number("Attempts", u32::MAX)
            .unwrap_or(default.attempts),
        interval: block.duration("Interval").unwrap_or(default.interval),
        delay: block.duration("Delay").unwrap_or(default.delay),
        delay_function: function.unwrap_or(default.delay_function),
        max_delay: block.duration("MaxDelay").unwrap_or(default.max_delay),
        unlimited: block.boolean("Unlimited").unwrap_or(default.unlimited),
    };
    // Earlier versions answered with a policy of zeros.
    if job_type.is_on_every_node() && read != default && !block.is_blank() {
        parent.fault(
            name,
            format!("a `{job_type}` job has an instance on every node, so none goes to another: leave it out"),
        );
    }
    block.finish(&PLAIN);
    read
}

/// The `disconnect` block, or the two fields that came before it.
fn read_disconnect(group: &mut Block<'_>) -> Disconnect {
    let default = Disconnect {
        lost_after: group.duration("MaxClientDisconnect"),
        stop_on_client_after: group.duration("StopAfterClientDisconnect"),
        ..Disconnect::default()
    };
    let Some(mut block) = group.block("Disconnect") else {
        return default;
    };
    let reconcile = block.choice("Reconcile").unwrap_or(default.reconcile);
    let lost_after = block.duration("LostAfter").filter(|after| !after.is_zero());
    let read = Disconnect {
        lost_after: lost_after.or(default.lost_after),
        stop_on_client_after: block
            .duration("StopOnClientAfter")
            .or(default.stop_on_client_after),
        replace: block.boolean("Replace").unwrap_or(default.replace),
        reconcile,
    };
    if read == Disconnect::default() {
        block.keep_as(&json!(job::Disconnect::from(&read)));
    }
    block.finish(&PLAIN);
    read
}
