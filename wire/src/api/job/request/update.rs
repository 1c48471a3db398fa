//! Reads the settings for replacing instances. Values that a group omits come from the job, and otherwise from Nomad's
//! defaults for the type of job.

use muster_domain::job::{
    Disconnect, JobType, MigrateStrategy, ReschedulePolicy, TaskGroup, UpdateStrategy,
};

use serde_json::{Value, json};

use crate::api::block::Block;
use crate::api::duration::nanos;
use crate::api::job::steps::{self as job, Migrate, Reschedule, Update};
use crate::api::job::table::{BlockForm, JsonForm, block_forms, json_form, read_one};

/// The defaults that the job sets for all its groups.
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
        // A job that is sent back as it was read has an empty `update` block.
        let asked = job
            .block("Update")
            .map(|block| Update::read_block(block, &update.unwrap_or_default()))
            .filter(|asked| !is_blank(asked));
        let policy = ReschedulePolicy::default_for(job_type);
        let steps = Self {
            job_type,
            update: asked.or(update),
            migrate: <Option<Migrate>>::read(job, "Migrate", &migrate),
            reschedule: policy,
        };
        let reschedule = read_one::<Reschedule, _>(job, "Reschedule", &policy);
        steps.check_reschedule(job, "Reschedule", reschedule);
        Self {
            reschedule,
            ..steps
        }
    }

    /// Refuses a non-default policy in the block `name` of `parent` if no instance can move to another node.
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

    /// The job's own pace, if the updates of `groups` do not imply it.
    pub(super) fn job_update(&self, groups: &[TaskGroup]) -> Option<Value> {
        let own = self.update?;
        let common = Update::common(groups);
        let stagger = nanos(own.stagger);
        let differs = common.stagger != stagger || common.max_parallel != own.max_parallel;
        differs.then(|| json!({ "Stagger": stagger, "MaxParallel": own.max_parallel }))
    }
}

block_forms! {
    Reschedule of ReschedulePolicy;
}

json_form! {
    Option<job::Disconnect>, of Disconnect: read_group_disconnect,
        |value| (*value != Disconnect::default()).then(|| job::Disconnect::write_block(value));
}

/// Nomad answers with such an update for a job that has none.
fn is_blank(update: &UpdateStrategy) -> bool {
    update.max_parallel == 0 && update.min_healthy_time.is_zero() && update.stagger.is_zero()
}

/// Reads the `disconnect` block, or Nomad's two older fields.
fn read_group_disconnect(
    group: &mut Block<'_>,
    name: &'static str,
    default: &Disconnect,
) -> Disconnect {
    let default = Disconnect {
        lost_after: group.duration("MaxClientDisconnect"),
        stop_on_client_after: group.duration("StopAfterClientDisconnect"),
        ..*default
    };
    read_one::<job::Disconnect, _>(group, name, &default)
}

/// The `disconnect` block.
pub(in crate::api) fn read_disconnect(block: &mut Block<'_>, default: &Disconnect) -> Disconnect {
    let mut read = job::Disconnect::read_fields(block, default);
    // Go clients send 0 for an omitted value.
    if read.lost_after.is_some_and(|after| after.is_zero()) {
        read.lost_after = default.lost_after;
    }
    if read == Disconnect::default() {
        block.keep_as(&json!(job::Disconnect::write_block(&read)));
    }
    read
}
