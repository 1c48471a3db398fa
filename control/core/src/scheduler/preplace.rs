//! Places for jobs and one-off tasks before they are recorded, so that the entry that records one can place it.
//!
//! Each is looked at as any other, by an evaluation that nobody will ever see. A newcomer has no place here if it does
//! not get all it asks for, or would cost somebody else a place. It is then recorded and waits its turn. So the caller
//! that asks for places must see to it that nobody waits already.

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
    /// They continue to do so until the task is in the state or too much time has passed.
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

    /// Places in `state` for all instances of the job that `spec` describes, if nothing of it is there and all of them
    /// find one. They count as taken as those of tasks do.
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

    /// Returns the result of `pick` for the plan of the job of `spec`. The plan must give the job all it asks for and
    /// do nothing else. It counts as under way if there is a result.
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
            let until = now.plus(limits::PLACED_AHEAD);
            self.ahead.expect(&eval.id, job.key(), until);
        } else {
            self.ahead.give_up(&eval.id);
        }
        places
    }

    /// An id that no entry will give to an evaluation: which of equal nodes is chosen follows from it.
    fn next_placeholder_id(&mut self) -> EvalId {
        self.newcomers += 1;
        EvalId::at(LogIndex(u64::MAX - self.newcomers), 0)
    }
}

/// The place in a plan that places one instance.
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
