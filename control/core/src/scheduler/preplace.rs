//! Places for jobs and one-off tasks before they are recorded, so that the entry that records one can place it.
//!
//! Each newcomer is scheduled like any other job, by an evaluation that is never recorded. A newcomer gets no place
//! here if it does not get all it asks for, or would cost another allocation its place. It is then recorded and waits
//! for its turn. So a caller that asks for places must make sure that no evaluation waits already.

use muster_domain::eval::{EvalStatus, Evaluation, Trigger};
use muster_domain::id::{EvalId, LogIndex, Timestamp};
use muster_domain::job::{Job, JobSpec, JobType};
use muster_domain::one_off;
use muster_domain::plan::{PlacementRun, Plan};

use super::{ScheduleOutcome, Scheduler, generic};
use crate::fsm::{self, EvalUpdate, JobPlacement, NewOneOff, NextEval, OneOffPlacement};
use crate::limits;
use crate::state::State;

impl Scheduler {
    /// Finds a place for each of `tasks` in `state`, where there is one. The places of earlier tasks count as taken.
    /// They do so until the task is in the state or too much time has passed.
    #[must_use]
    pub fn place_new(
        &mut self,
        state: &State,
        tasks: &[NewOneOff],
        now: Timestamp,
    ) -> Vec<Option<OneOffPlacement>> {
        let places = tasks.iter();
        places.map(|task| self.place(state, task, now)).collect()
    }

    /// Finds places in `state` for all instances of the job that `spec` describes. There are none unless the job is new
    /// and every instance finds a place. The places count as taken like those of tasks.
    #[must_use]
    pub fn place_job(
        &mut self,
        state: &State,
        spec: &JobSpec,
        now: Timestamp,
    ) -> Option<JobPlacement> {
        let has_count = matches!(spec.job_type, JobType::Service | JobType::Batch);
        if !has_count || spec.is_template() || !fsm::is_unknown(state, &spec.key()) {
            return None;
        }
        self.look_ahead(state, spec.clone(), now, |plan, update| {
            let places = JobPlacement { plan, update };
            (!places.plan.is_empty()).then_some(places)
        })
    }

    fn place(
        &mut self,
        state: &State,
        task: &NewOneOff,
        now: Timestamp,
    ) -> Option<OneOffPlacement> {
        let key = one_off::job_key(&task.guid);
        if state.one_offs().get(&task.guid).is_some() || state.jobs().get(&key).is_some() {
            return None;
        }
        let spec = one_off::job(
            &task.guid,
            &task.domain,
            &task.definition,
            state.one_offs().times(),
        );
        self.look_ahead(state, spec, now, |plan, _update| only_place(plan))
    }

    /// Returns the result of `pick` for the plan of the job of `spec`. The plan must place all instances of the job and
    /// do nothing else. A plan with a result counts as in flight.
    fn look_ahead<T>(
        &mut self,
        state: &State,
        spec: JobSpec,
        now: Timestamp,
        pick: impl FnOnce(Plan, EvalUpdate) -> Option<T>,
    ) -> Option<T> {
        let job = Job::first_version(spec, now, state.applied());
        let eval = Evaluation::of_job(
            self.next_placeholder_id(),
            &job,
            Trigger::JobRegister,
            state.applied(),
            now,
        );
        self.ahead.begin(state, &eval.id, now);
        let Self { kinds, ahead, .. } = self;
        let ScheduleOutcome {
            plan,
            update,
            is_partial,
            desired: _,
        } = generic::schedule(state, Some(&job), &eval, now, kinds, ahead);
        let is_whole = |update: &EvalUpdate| {
            update.status == EvalStatus::Complete
                && update.failed_groups.is_empty()
                && update.next == NextEval::Nothing
        };
        let update = update.filter(|update| !is_partial && is_whole(update) && plan.only_places());
        let places = update.and_then(|update| pick(plan, update));
        if places.is_some() {
            let until = now.plus(limits::PREPLACEMENT_MAX);
            self.ahead.expect_job(&eval.id, job.key(), until);
        } else {
            self.ahead.remove(&eval.id);
        }
        places
    }

    /// Returns an id that no entry will give to an evaluation. The choice among equal nodes depends on this id.
    fn next_placeholder_id(&mut self) -> EvalId {
        self.unrecorded_job_count += 1;
        EvalId::at(LogIndex(u64::MAX - self.unrecorded_job_count), 0)
    }
}

/// Returns the place in a plan that places one instance.
fn only_place(plan: Plan) -> Option<OneOffPlacement> {
    let mut groups = plan.groups;
    let mut group = groups.pop()?;
    let run = group.placements.pop()?;
    let is_more =
        plan.new_deployment.is_some() || !groups.is_empty() || !group.placements.is_empty();
    if is_more || run.count != 1 {
        return None;
    }
    let PlacementRun {
        node,
        first_index: _,
        count: _,
        score,
        detail,
    } = run;
    Some(OneOffPlacement {
        node,
        score,
        holding: detail.map(|detail| detail.holding).unwrap_or_default(),
        metrics: group.metrics,
    })
}
