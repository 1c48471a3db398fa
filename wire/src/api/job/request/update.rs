//! Reads how instances are replaced. What a group does not say is what the job says, and what that does not say is
//! Nomad's default for the type of job.

use muster_domain::job::{
    Disconnect, JobType, MigrateStrategy, ReschedulePolicy, TaskGroup, UpdateStrategy,
};

use serde_json::{Value, json};

use super::PLAIN;
use crate::api::block::Block;
use crate::api::duration::nanos;
use crate::api::job::table::json_form;
use crate::api::job::{self, Update};

/// The defaults that the job has for all its groups.
#[derive(Debug)]
pub(super) struct JobSteps {
    job_type: JobType,
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
        let steps = Self {
            job_type,
            update: asked.or(update),
            migrate: read_migrate(job, migrate),
            reschedule: policy,
        };
        let reschedule = read_reschedule(job, "Reschedule", &policy);
        steps.check_reschedule(job, "Reschedule", reschedule);
        Self {
            reschedule,
            ..steps
        }
    }

    /// Refuses a policy in the block `name` of `parent` that is not the default, if no instance can go to another node.
    pub(super) fn check_reschedule(
        &self,
        parent: &mut Block<'_>,
        name: &'static str,
        read: ReschedulePolicy,
    ) {
        let job_type = self.job_type;
        if !job_type.is_on_every_node() || read == self.reschedule {
            return;
        }
        // Earlier versions answered with a policy of zeros.
        if parent.block(name).is_some_and(|block| !block.is_blank()) {
            parent.fault(
                name,
                format!("a `{job_type}` job has an instance on every node, so none goes to another: leave it out"),
            );
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
    Option<job::Reschedule>, of ReschedulePolicy:
        read_reschedule,
        |value: &ReschedulePolicy| Some(job::Reschedule::from(value));
    Option<job::Disconnect>, of Disconnect:
        |block: &mut Block<'_>, _, _: &Disconnect| read_disconnect(block),
        |value: &Disconnect| {
            (*value != Disconnect::default()).then(|| job::Disconnect::from(value))
        };
}

/// Nomad answers with such an update for a job that has none.
fn is_blank(update: &UpdateStrategy) -> bool {
    update.max_parallel == 0 && update.min_healthy_time.is_zero() && update.stagger.is_zero()
}

fn read_update(mut block: Block<'_>, default: UpdateStrategy) -> UpdateStrategy {
    let read = Update::read_fields(&mut block, &default);
    block.finish(&PLAIN);
    read
}

fn read_migrate(
    parent: &mut Block<'_>,
    default: Option<MigrateStrategy>,
) -> Option<MigrateStrategy> {
    let Some(mut block) = parent.block("Migrate") else {
        return default;
    };
    let read = job::Migrate::read_fields(&mut block, &default.unwrap_or_default());
    block.finish(&PLAIN);
    Some(read)
}

fn read_reschedule(
    parent: &mut Block<'_>,
    name: &'static str,
    default: &ReschedulePolicy,
) -> ReschedulePolicy {
    let Some(mut block) = parent.block(name) else {
        return *default;
    };
    let read = job::Reschedule::read_fields(&mut block, default);
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
