//! Invariants of deployments.
//!
//! A deployment goes through its states once, and no active deployment outlives its job. A job reverts to an earlier
//! version only when its deployment fails.
//!
//! The versions of a job come from the users' registrations and from observed reverts, not from the state.

use std::collections::{BTreeMap, BTreeSet};

use muster_control_core::fsm::{ApplyResult, ChangedRow};
use muster_control_core::state::State;
use muster_domain::deployment::{Deployment, DeploymentStatus};
use muster_domain::id::{DeploymentId, JobKey};
use muster_domain::job::{Job, JobSpec};

use super::Oracle;
use crate::Rollouts;
use crate::machine::Machine;

/// The history of deployments.
#[derive(Debug, Default)]
pub struct Deployments {
    /// The number of deployments by outcome.
    pub rollouts: Rollouts,
    known: BTreeMap<DeploymentId, DeploymentSnapshot>,
    versions: BTreeMap<JobKey, Versions>,
}

/// The state of a deployment after the previous entry.
#[derive(Clone, Copy, Debug)]
struct DeploymentSnapshot {
    status: DeploymentStatus,
    promoted: bool,
}

/// The versions of a job.
#[derive(Debug)]
struct Versions {
    current: u64,
    specs: BTreeMap<u64, JobSpec>,
    /// Versions whose deployment was successful.
    stable: BTreeSet<u64>,
}

impl Versions {
    /// Returns the version to which the job reverts.
    fn last_stable(&self) -> Option<(u64, &JobSpec)> {
        let older = self.stable.range(..self.current).next_back();
        older.and_then(|version| Some((*version, self.specs.get(version)?)))
    }
}

impl Oracle {
    /// Records that a registered specification became `version` of its job. The version may be known already.
    pub(super) fn registered(&mut self, spec: &JobSpec, version: u64) {
        let all = &mut self.deployments.versions;
        if version == 0 {
            // Version 0 means that the job is new, so an earlier job of this name was collected.
            all.remove(&spec.key());
        }
        let versions = all.entry(spec.key()).or_insert_with(|| Versions {
            current: version,
            specs: BTreeMap::new(),
            stable: BTreeSet::new(),
        });
        versions.current = version;
        versions.specs.insert(version, spec.clone());
    }

    /// Checks the deployments that an entry changed, and the jobs that must revert because of a failure.
    pub(super) fn check_deployments(&mut self, applied: &ApplyResult, machine: &Machine) {
        let mut failed = Vec::new();
        for changed in &applied.changed {
            let ChangedRow::Deployment(id) = changed else {
                continue;
            };
            let row = machine.state.deployments().get(id);
            self.deployment_goes_on(*id, row.map(AsRef::as_ref), &machine.state, &mut failed);
        }
        self.check_reverted_jobs(&failed, &machine.state);
    }

    fn deployment_goes_on(
        &mut self,
        id: DeploymentId,
        row: Option<&Deployment>,
        state: &State,
        failed: &mut Vec<(JobKey, u64)>,
    ) {
        let known = &mut self.deployments.known;
        let Some(row) = row else {
            known.remove(&id);
            return;
        };
        let promoted = row.groups.iter().all(|group| group.promoted);
        let status = row.status;
        let before = known.insert(id, DeploymentSnapshot { status, promoted });
        let counts = &mut self.deployments.rollouts;
        counts.begun += u64::from(before.is_none());
        counts.promoted += u64::from(promoted && before.is_some_and(|before| !before.promoted));
        let from = before.map(|before| before.status);
        if from == Some(status) {
            return;
        }
        if from.is_some_and(|from| !from.is_active()) {
            self.fault(&format!("deployment {id} goes from {from:?} to {status:?}"));
            return;
        }
        match status {
            DeploymentStatus::Running | DeploymentStatus::Paused => {}
            DeploymentStatus::Cancelled => counts.cancelled += 1,
            DeploymentStatus::Successful => {
                counts.successful += 1;
                let versions = self.deployments.versions.get_mut(&row.job);
                if let Some(versions) = versions.filter(|_| is_of_current_job(state, row)) {
                    versions.stable.insert(row.job_version);
                }
            }
            DeploymentStatus::Failed => {
                counts.failed += 1;
                failed.push((row.job.clone(), row.job_version));
            }
        }
    }

    /// Checks the jobs that reverted. `failed` holds the versions whose deployments failed in this entry.
    fn check_reverted_jobs(&mut self, failed: &[(JobKey, u64)], state: &State) {
        let mut faults = Vec::new();
        for (key, versions) in &mut self.deployments.versions {
            let (Some(job), Some(wanted)) = (state.jobs().get(key), self.jobs.get_mut(key)) else {
                continue;
            };
            let may = failed.contains(&(key.clone(), versions.current)) && !wanted.stopped;
            let current = versions.specs.get(&versions.current);
            let reverts = current.is_some_and(reverts);
            let target = versions.last_stable().filter(|_| may && reverts);
            let target = target.filter(|(_, spec)| Some(*spec) != current);
            if job.current.version == versions.current {
                let is_kept = |to: u64| state.jobs().version(key, to).is_some();
                if let Some((to, _)) = target.filter(|(to, _)| is_kept(*to)) {
                    faults.push(format!("job {key} does not go back to version {to}"));
                }
                continue;
            }
            match target {
                Some((_, spec)) if *spec == job.current.spec => {}
                _ => faults.push(describe_wrong_revert(key, versions, job)),
            }
            self.deployments.rollouts.reverted += 1;
            wanted.count = job.current.spec.groups[0].count;
            versions.current = job.current.version;
            let spec = job.current.spec.clone();
            versions.specs.insert(versions.current, spec);
        }
        self.faults.extend(faults);
    }
}

/// Whether `row` belongs to the current job, and not to a collected job of the same name.
fn is_of_current_job(state: &State, row: &Deployment) -> bool {
    let job = state.jobs().get(&row.job);
    job.is_some_and(|job| job.current.create_index == row.job_create_index)
}

fn reverts(spec: &JobSpec) -> bool {
    let mut groups = spec.groups.iter();
    groups.any(|group| group.update.is_some_and(|update| update.auto_revert))
}

fn describe_wrong_revert(key: &JobKey, versions: &Versions, job: &Job) -> String {
    let (known, stable) = (versions.current, &versions.stable);
    let version = job.current.version;
    format!(
        "job {key} goes from version {known} to {version}, although no user says so and no deployment has failed \
         that would go back there; {stable:?} are stable"
    )
}
