//! Commands that change a job: registered, stopped, looked at again.

pub(super) mod check;
pub(super) mod version;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::alloc::{ClientStatus, Transition};
use muster_domain::deployment::{Deployment, DeploymentStatus};
use muster_domain::eval::Trigger;
use muster_domain::id::{EvalId, JobKey, LogIndex, Timestamp};
use muster_domain::job::{Job, JobSpec, JobType, ScalingEvent, VersionTag};
use muster_domain::limits::COUNT_MAX;
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::eval_update;
use super::launch::Dispatch;
use super::plan::{self, JobPlacement};
use super::rejection::{JobRejection, Rejection};
use super::response::Response;
use super::{garbage, launch};
use crate::limits;
use crate::state::{AllocView, JobRow, State};
use check::{admissible, check_instances, known};
use version::{
    first_version, kept_stable, mark_stable, next_version, retain_versions, revert_to_version,
};

/// A change of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobCommand {
    /// A user submits a job. For a new job, the leader may have found places for all its instances. If one of the
    /// places is taken meanwhile, the evaluation of the job places the instances.
    Register {
        spec: Box<JobSpec>,
        /// The places of the job's instances, if the leader found them.
        places: Option<Box<JobPlacement>>,
        /// Refuse unless the job was last registered by this entry; 0: refuse unless there is no such job.
        check_index: Option<LogIndex>,
    },
    /// A user stops a job.
    Deregister { key: JobKey },
    /// A user stops a job and has it removed. The answer counts the removed objects.
    Purge { key: JobKey },
    /// A user asks for an evaluation of a job.
    Evaluate {
        key: JobKey,
        /// Replace failed instances at once, under any policy.
        force_reschedule: bool,
    },
    /// A user scales a group, or an autoscaler reports an event of it. The job keeps the event.
    ScaleGroup {
        key: JobKey,
        /// The action or the event.
        scaling: Box<GroupScaling>,
        /// Refuse unless the job was last registered by this entry.
        check_index: Option<LogIndex>,
    },
    /// A user reverts a job to an older version.
    Revert {
        key: JobKey,
        /// The version to revert to.
        version: u64,
        /// Refuse unless this is the current version.
        check_version: Option<u64>,
    },
    /// A user sets whether a version of a job is stable.
    SetStable {
        key: JobKey,
        version: u64,
        stable: bool,
    },
    /// A user gives a version of a job a name, or takes the name back.
    TagVersion {
        key: JobKey,
        name: String,
        /// The version that is to have the name; `None` takes the name back.
        given: Option<TagAssignment>,
    },
    /// A user runs a parameterized job.
    Dispatch {
        key: JobKey,
        /// The end of the new job's id, which distinguishes this dispatch from others.
        suffix: String,
        /// The data for the new job, in bytes.
        payload: Vec<u8>,
        /// Metadata, besides the job's own.
        meta: BTreeMap<String, String>,
        /// A token by which a repeated dispatch is recognised; empty for none.
        idempotency_token: String,
        /// The priority of the new job; `None` for that of the parameterized job.
        priority: Option<u8>,
    },
    /// A periodic job is due, or a user forces its launch.
    LaunchPeriodic {
        key: JobKey,
        /// The time it is launched for.
        due: Timestamp,
        /// A user forces the launch: overlap is allowed.
        forced: bool,
    },
}

/// A scaling action on a group, or an event of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupScaling {
    pub group: String,
    /// Instances; `None` records only the event.
    pub count: Option<u32>,
    pub error: bool,
    /// A message for the user.
    pub message: String,
    /// Data of the client, as a JSON object; empty for none.
    pub meta_json: String,
}

/// A name to give to a version of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagAssignment {
    /// The version; `None` for the current one.
    pub version: Option<u64>,
    /// The purpose of the name, in the user's words.
    pub description: String,
}

impl JobCommand {
    /// The cause of entries that record a job.
    pub const REGISTERED: &str = "JobRegistered";

    /// The kind of change, as Nomad's event type.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::Deregister { .. } | Self::Purge { .. } => "JobDeregistered",
            Self::Evaluate { .. } => "EvaluationUpdated",
            Self::Register { .. }
            | Self::ScaleGroup { .. }
            | Self::Revert { .. }
            | Self::SetStable { .. }
            | Self::TagVersion { .. }
            | Self::Dispatch { .. }
            | Self::LaunchPeriodic { .. } => Self::REGISTERED,
        }
    }

    fn key(&self) -> JobKey {
        match self {
            Self::Register { spec, .. } => spec.key(),
            Self::Deregister { key }
            | Self::Purge { key }
            | Self::Evaluate { key, .. }
            | Self::ScaleGroup { key, .. }
            | Self::Revert { key, .. }
            | Self::SetStable { key, .. }
            | Self::TagVersion { key, .. }
            | Self::Dispatch { key, .. }
            | Self::LaunchPeriodic { key, .. } => key.clone(),
        }
    }

    /// Returns the command without the values that a server adds to each try of a write; `None` if it has none.
    pub(super) fn without_added(&self) -> Option<Self> {
        let mut plain = match self {
            Self::Register { places, .. } if places.is_some() => self.clone(),
            Self::Dispatch { .. } | Self::LaunchPeriodic { forced: true, .. } => self.clone(),
            Self::Register { .. }
            | Self::Deregister { .. }
            | Self::Purge { .. }
            | Self::Evaluate { .. }
            | Self::ScaleGroup { .. }
            | Self::Revert { .. }
            | Self::SetStable { .. }
            | Self::TagVersion { .. }
            | Self::LaunchPeriodic { .. } => return None,
        };
        if let Self::Register { places, .. } = &mut plain {
            *places = None;
        } else if let Self::Dispatch { suffix, .. } = &mut plain {
            suffix.clear();
        } else if let Self::LaunchPeriodic { due, .. } = &mut plain {
            *due = Timestamp(0);
        }
        Some(plain)
    }
}

pub(super) fn apply(change: &mut Change<'_>, command: JobCommand) -> Result<Response, Rejection> {
    let key = command.key();
    if key.is_one_off() {
        return Err(Rejection::Job(JobRejection::OfOneOff(key)));
    }
    match command {
        JobCommand::Register {
            spec,
            places,
            check_index,
        } => register(change, *spec, places, check_index),
        JobCommand::Deregister { key } => deregister(change, key),
        JobCommand::Purge { key } => purge(change, key),
        JobCommand::Evaluate {
            key,
            force_reschedule,
        } => evaluate(change, key, force_reschedule),
        JobCommand::ScaleGroup {
            key,
            scaling,
            check_index,
        } => scale_group(change, key, *scaling, check_index),
        JobCommand::Revert {
            key,
            version,
            check_version,
        } => revert(change, key, version, check_version),
        JobCommand::SetStable {
            key,
            version,
            stable,
        } => set_stable(change, key, version, stable),
        JobCommand::TagVersion { key, name, given } => tag(change, key, name, given),
        JobCommand::Dispatch {
            key,
            suffix,
            payload,
            meta,
            idempotency_token,
            priority,
        } => {
            let dispatch = Dispatch {
                suffix,
                payload,
                meta,
                idempotency_token,
                priority,
            };
            launch::dispatch(change, key, dispatch)
        }
        JobCommand::LaunchPeriodic { key, due, forced } => {
            launch::periodic(change, key, due, forced)
        }
    }
}

/// Records a job. An unchanged specification makes no version, only an evaluation. A stopped job that is registered
/// again gets a new version even then, so that the work of the stopped version does not count as done.
fn record(
    change: &mut Change<'_>,
    mut spec: JobSpec,
    check_index: Option<LogIndex>,
) -> Result<Response, Rejection> {
    let key = spec.key();
    let stop = std::mem::take(&mut spec.stop);
    if change.state.config.scheduler.reject_job_registration {
        return Err(Rejection::Job(JobRejection::RegistrationOff));
    }
    let old = change.state.jobs.row(&key).map(Arc::clone);
    admissible(&spec, old.as_deref(), check_index)?;
    check_instances(change.state, &spec)?;
    let row = match old {
        Some(row) if row.job.current.spec == spec && row.job.stop == stop => (*row).clone(),
        Some(row) => next_version(change, &row, spec),
        None => first_version(change, spec),
    };
    let row = JobRow {
        job: Arc::new(Job {
            stop,
            ..(*row.job).clone()
        }),
        ..row
    };
    let job = Arc::clone(&row.job);
    change.put_job(row);
    let eval_id = change.add_job_eval(&job, Trigger::JobRegister);
    Ok(Response::JobRegistered {
        eval_id,
        version: job.current.version,
        job_modify_index: job.current.job_modify_index,
    })
}

/// Records a job. If the job is new and the command has places for its instances, it is placed at once if all places
/// are still free.
fn register(
    change: &mut Change<'_>,
    spec: JobSpec,
    places: Option<Box<JobPlacement>>,
    check_index: Option<LogIndex>,
) -> Result<Response, Rejection> {
    let key = spec.key();
    let is_new = is_unknown(change.state, &key) && !spec.stop;
    let response = record(change, spec, check_index)?;
    if let Some(places) = places
        && let Response::JobRegistered {
            eval_id: Some(eval_id),
            ..
        } = response
        && is_new
    {
        plan::place_new(change, key, eval_id, *places);
    }
    Ok(response)
}

/// Returns whether the state has no object of the job, not even of a purged job with the same name.
pub(crate) fn is_unknown(state: &State, key: &JobKey) -> bool {
    state.jobs.row(key).is_none()
        && state.allocs.summary(key).is_none()
        && state.deployments.latest(key).is_none()
        && state.evals.of_job(key).next().is_none()
}

/// Sets whether a version of a job is stable.
fn set_stable(
    change: &mut Change<'_>,
    key: JobKey,
    version: u64,
    stable: bool,
) -> Result<Response, Rejection> {
    let row = known(change, &key)?;
    if row.version(version).is_none() {
        return Err(no_version(&row, key, version));
    }
    mark_stable(change, &key, version, stable);
    Ok(Response::Done)
}

/// Gives a version of a job a name, or takes the name back.
fn tag(
    change: &mut Change<'_>,
    key: JobKey,
    name: String,
    given: Option<TagAssignment>,
) -> Result<Response, Rejection> {
    let row = known(change, &key)?;
    let mut job = (*row.job).clone();
    match given {
        Some(TagAssignment {
            version,
            description,
        }) => {
            let version = version.unwrap_or(job.current.version);
            if row.version(version).is_none() {
                return Err(no_version(&row, key, version));
            }
            let has_it = job.tags.iter().find(|tag| tag.name == name);
            if let Some(other) = has_it.filter(|tag| tag.version != version) {
                let why = format!(
                    "version {} is tagged `{name}` already: take the tag back first (`muster job tag unset`) or choose another name",
                    other.version
                );
                return Err(Rejection::Job(JobRejection::Request { key, why }));
            }
            job.tags.retain(|tag| tag.version != version);
            if job.tags.len() >= limits::JOB_TAGS_MAX {
                let why = format!(
                    "{} of its versions are tagged, and each is kept: take a tag back first (`muster job tag unset`)",
                    limits::JOB_TAGS_MAX
                );
                return Err(Rejection::Job(JobRejection::Request { key, why }));
            }
            job.tags.push(VersionTag {
                version,
                name,
                description,
                at: change.at,
            });
            job.tags.sort_unstable_by_key(|tag| tag.version);
        }
        None => {
            let before = job.tags.len();
            job.tags.retain(|tag| tag.name != name);
            if job.tags.len() == before {
                let why =
                    format!("no version is tagged `{name}`: list them with `muster job history`");
                return Err(Rejection::Job(JobRejection::Request { key, why }));
            }
        }
    }
    job.modify_index = change.index;
    let mut older = row.older.clone();
    retain_versions(&job, &mut older);
    job.stable = kept_stable(&job, &older);
    change.put_job(JobRow {
        job: Arc::new(job),
        older,
        plan_index: row.plan_index,
    });
    Ok(Response::Done)
}

fn no_version(row: &JobRow, key: JobKey, version: u64) -> Rejection {
    let kept: Vec<String> = std::iter::once(&row.job.current)
        .chain(&row.older)
        .map(|version| version.version.to_string())
        .collect();
    Rejection::Job(JobRejection::Request {
        key,
        why: format!(
            "version {version} is not kept: choose one of {}",
            kept.join(", ")
        ),
    })
}

/// Reverts to an older version, as a new version.
fn revert(
    change: &mut Change<'_>,
    key: JobKey,
    version: u64,
    check_version: Option<u64>,
) -> Result<Response, Rejection> {
    let row = known(change, &key)?;
    let current = row.job.current.version;
    if let Some(expected) = check_version.filter(|expected| *expected != current) {
        let why = format!("its current version is {current}, not {expected}: look at it again");
        return Err(Rejection::Job(JobRejection::Request { key, why }));
    }
    if version == current {
        let why = format!("version {version} is the current one: choose an older one");
        return Err(Rejection::Job(JobRejection::Request { key, why }));
    }
    let Some(target) = row.version(version).map(Arc::clone) else {
        return Err(no_version(&row, key, version));
    };
    check_instances(change.state, &target.spec)?;
    let job = revert_to_version(change, &row, &target);
    Ok(Response::JobRegistered {
        eval_id: change.add_job_eval(&job, Trigger::JobRegister),
        version: job.current.version,
        job_modify_index: job.current.job_modify_index,
    })
}

/// Changes the wanted number of instances of a group.
pub(super) fn scale(
    change: &mut Change<'_>,
    key: JobKey,
    name: &str,
    count: u32,
    check_index: Option<LogIndex>,
) -> Result<Response, Rejection> {
    let row = known(change, &key)?;
    let spec = &row.job.current.spec;
    admissible(spec, Some(&row), check_index)?;
    let refuse = |why: String| {
        Err(Rejection::Job(JobRejection::Request {
            key: key.clone(),
            why,
        }))
    };
    let Some(at) = spec.groups.iter().position(|group| group.name == name) else {
        return refuse(format!("it has no group {name}"));
    };
    match spec.job_type {
        JobType::Service | JobType::Batch => {}
        kind @ (JobType::System | JobType::SysBatch) => {
            return refuse(format!("jobs of type {kind} have no count to change"));
        }
    }
    if row.job.stop {
        return refuse("it is stopped: run it again before you scale it".to_owned());
    }
    if count > COUNT_MAX {
        return refuse(format!("count {count} is above {COUNT_MAX}"));
    }
    if let Some(scaling) = &spec.groups[at].scaling
        && !(scaling.min..=scaling.max).contains(&count)
    {
        return refuse(format!(
            "count {count} of group {name} is outside its bounds, {} to {}",
            scaling.min, scaling.max
        ));
    }
    let is_deploying = change
        .state
        .deployments
        .latest(&key)
        .is_some_and(|latest| latest.status == DeploymentStatus::Running && waits(latest));
    if is_deploying {
        return refuse(
            "a deployment waits for its canaries: promote or fail it before you scale".to_owned(),
        );
    }
    let job = if spec.groups[at].count == count {
        Arc::clone(&row.job)
    } else {
        let mut spec = spec.clone();
        spec.groups[at].count = count;
        check_instances(change.state, &spec)?;
        let next = next_version(change, &row, spec);
        let job = Arc::clone(&next.job);
        change.put_job(next);
        job
    };
    Ok(Response::JobRegistered {
        eval_id: change.add_job_eval(&job, Trigger::JobScale),
        version: job.current.version,
        job_modify_index: job.current.job_modify_index,
    })
}

/// Scales a group if there is a count, and records the event.
fn scale_group(
    change: &mut Change<'_>,
    key: JobKey,
    scaling: GroupScaling,
    check_index: Option<LogIndex>,
) -> Result<Response, Rejection> {
    let GroupScaling {
        group: name,
        count,
        error,
        message,
        meta_json,
    } = scaling;
    let row = known(change, &key)?;
    let current = &row.job.current;
    let Some(group) = current.spec.groups.iter().find(|group| group.name == name) else {
        let why = format!("it has no group {name}");
        return Err(Rejection::Job(JobRejection::Request { key, why }));
    };
    let previous_count = group.count;
    admissible(&current.spec, Some(&row), check_index)?;
    let (response, eval_id) = match count {
        Some(count) => {
            let response = scale(change, key.clone(), &name, count, check_index)?;
            let eval_id = if let Response::JobRegistered { eval_id, .. } = response {
                eval_id
            } else {
                None
            };
            (response, eval_id)
        }
        None => {
            let response = Response::JobRegistered {
                eval_id: None,
                version: current.version,
                job_modify_index: current.job_modify_index,
            };
            (response, None)
        }
    };
    let event = ScalingEvent {
        at: change.at,
        count,
        previous_count,
        error,
        message,
        meta_json,
        eval_id,
        create_index: change.index,
    };
    record_scaling(change, &key, name, event)?;
    Ok(response)
}

/// Adds the newest scaling event of a group. Events of groups that the job no longer has are removed.
fn record_scaling(
    change: &mut Change<'_>,
    key: &JobKey,
    group: String,
    event: ScalingEvent,
) -> Result<(), Rejection> {
    let row = known(change, key)?;
    let mut job = (*row.job).clone();
    let mut events = (*job.scaling_events).clone();
    let groups = &job.current.spec.groups;
    events.retain(|name, _| groups.iter().any(|group| group.name == *name));
    let of_group = events.entry(group).or_default();
    of_group.insert(0, event);
    of_group.truncate(limits::SCALING_EVENTS_MAX);
    job.scaling_events = Arc::new(events);
    job.modify_index = change.index;
    change.put_job(JobRow {
        job: Arc::new(job),
        ..(*row).clone()
    });
    Ok(())
}

fn waits(deployment: &Deployment) -> bool {
    deployment.requires_promotion()
}

/// Records that a job is to be stopped. Its allocations are stopped by the evaluation.
fn deregister(change: &mut Change<'_>, key: JobKey) -> Result<Response, Rejection> {
    let Some(row) = change.state.jobs.row(&key).map(Arc::clone) else {
        return Err(Rejection::Job(JobRejection::Unknown(key)));
    };
    if !row.job.stop {
        let job = Job {
            stop: true,
            modify_index: change.index,
            ..(*row.job).clone()
        };
        change.put_job(JobRow {
            job: Arc::new(job),
            ..(*row).clone()
        });
    }
    let eval_id = change.add_job_eval(&row.job, Trigger::JobDeregister);
    Ok(Response::JobDeregistered { eval_id })
}

/// Purges a job, and counts the removed deployments. The evaluation stops its allocations, which are removed after they
/// have ended. Deployments above the bound of `bounds` are removed with the allocations.
fn purge(change: &mut Change<'_>, key: JobKey) -> Result<Response, Rejection> {
    let (eval_id, deployments) = forget(change, key)?;
    Ok(Response::JobPurged {
        eval_id,
        deployments,
    })
}

/// Removes a job and its deployments. Returns the evaluation that stops its allocations, and the number of removed
/// deployments.
fn forget(change: &mut Change<'_>, key: JobKey) -> Result<(Option<EvalId>, u32), Rejection> {
    let Some(row) = change.state.jobs.row(&key).map(Arc::clone) else {
        return Err(Rejection::Job(JobRejection::Unknown(key)));
    };
    let deployments = garbage::purge(change, &row);
    eval_update::cancel_waiting(change, &key);
    Ok((
        change.add_job_eval(&row.job, Trigger::JobDeregister),
        deployments,
    ))
}

/// Adds an evaluation of a job without a change of it. With `force_reschedule`, failed instances are replaced under any
/// policy.
fn evaluate(
    change: &mut Change<'_>,
    key: JobKey,
    force_reschedule: bool,
) -> Result<Response, Rejection> {
    let row = known(change, &key)?;
    if row.job.current.spec.is_template() {
        let why = "it only makes other jobs: there is nothing to place".to_owned();
        return Err(Rejection::Job(JobRejection::Request { key, why }));
    }
    if force_reschedule {
        let failed: Vec<u64> = change
            .state
            .allocs
            .of_job(&key)
            .filter(|alloc| {
                alloc.client_status() == ClientStatus::Failed
                    && !alloc.server_terminal()
                    && alloc.next().is_none()
            })
            .map(AllocView::key)
            .collect();
        for key in failed {
            change.update_silently(key, |row| {
                row.set_transition(Transition {
                    force_reschedule: true,
                    ..row.transition()
                });
            });
        }
    }
    let eval_id = change.add_eval(&row.job, Trigger::JobRegister);
    Ok(Response::EvalCreated { eval_id })
}
