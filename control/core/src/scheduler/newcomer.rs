//! Places for one-off tasks before they are recorded, so that the entry that records one can place it.
//!
//! Looked at as any other, by an evaluation that nobody will ever see. What is more than one instance on one node, at
//! nobody's cost, has no place here: it is recorded and waits its turn. So whoever asks for places sees to it that nobody
//! waits already.

use std::sync::Arc;

use muster_domain::eval::{EvalStatus, Evaluation, Trigger};
use muster_domain::id::{EvalId, LogIndex, Timestamp};
use muster_domain::job::{Job, JobStatus, JobVersion};
use muster_domain::one_off;
use muster_domain::plan::{PlacementRun, Plan};

use super::{Scheduler, generic};
use crate::fsm::{NewOneOff, OneOffPlace};
use crate::limits;
use crate::state::State;

impl Scheduler {
    /// A place for each of `tasks` in `state`, where there is one; the places of those before it count as taken, and go on
    /// to do so until the task is in the state or too much time has passed.
    #[must_use]
    pub fn place_new(
        &mut self,
        state: &State,
        tasks: &[NewOneOff],
        now: Timestamp,
    ) -> Vec<Option<OneOffPlace>> {
        let places = tasks.iter();
        places.map(|task| self.place(state, task, now)).collect()
    }

    fn place(&mut self, state: &State, task: &NewOneOff, now: Timestamp) -> Option<OneOffPlace> {
        let key = one_off::job_key(&task.guid);
        if state.one_offs().get(&task.guid).is_some() || state.jobs().get(&key).is_some() {
            return None;
        }
        let job = job(state, task, now);
        let eval = eval(self.next_newcomer(), &job, now);
        self.ahead.begin(state, &eval.id, now);
        let Self { kinds, ahead, .. } = self;
        let outcome = generic::schedule(state, Some(&job), &eval, now, kinds, ahead);
        let is_whole = outcome
            .update
            .is_some_and(|update| update.failed_groups.is_empty());
        let place = only_place(outcome.plan).filter(|_| is_whole);
        if place.is_some() {
            let until = now.plus(limits::PLACED_AHEAD);
            self.ahead.expect(&eval.id, key, until);
        } else {
            self.ahead.give_up(&eval.id);
        }
        place
    }

    /// An id that no entry will give to an evaluation: which of equal nodes is chosen follows from it.
    fn next_newcomer(&mut self) -> EvalId {
        self.newcomers += 1;
        EvalId::at(LogIndex(u64::MAX - self.newcomers), 0)
    }
}

/// The job that will run `task`.
fn job(state: &State, task: &NewOneOff, now: Timestamp) -> Job {
    let index = state.applied();
    Job {
        current: Arc::new(JobVersion {
            spec: one_off::job(&task.guid, &task.domain, &task.definition),
            version: 0,
            submit_time: now,
            create_index: index,
            job_modify_index: index,
        }),
        stop: false,
        status: JobStatus::Pending,
        stable: Vec::new(),
        launched_at: None,
        modify_index: index,
    }
}

fn eval(id: EvalId, job: &Job, now: Timestamp) -> Evaluation {
    let index = job.modify_index;
    Evaluation {
        id,
        job: job.key(),
        job_type: job.current.spec.job_type,
        priority: job.current.spec.priority,
        trigger: Trigger::JobRegister,
        node_id: None,
        deployment: None,
        status: EvalStatus::Pending,
        status_description: String::new(),
        previous: None,
        blocked: None,
        failed_groups: Vec::new(),
        wait_until: Timestamp(0),
        queued: Vec::new(),
        job_modify_index: index,
        snapshot_index: index,
        create_index: index,
        modify_index: index,
        create_time: now,
        modify_time: now,
    }
}

/// The place in a plan that places one instance and does nothing else.
fn only_place(plan: Plan) -> Option<OneOffPlace> {
    let Plan {
        eval_id: _,
        job: _,
        job_version: _,
        snapshot_index: _,
        mut groups,
        stops,
        failed: _,
        new_deployment,
        deployment_update,
        follow_ups,
        unreachable,
        all_at_once: _,
    } = plan;
    let is_more = !stops.is_empty()
        || new_deployment.is_some()
        || deployment_update.is_some()
        || !follow_ups.is_empty()
        || !unreachable.is_empty();
    let mut group = groups.pop()?;
    let run = group.placements.pop()?;
    if is_more || !groups.is_empty() || !group.placements.is_empty() || run.count != 1 {
        return None;
    }
    let PlacementRun {
        node,
        first_index: _,
        count: _,
        score,
        detail,
    } = run;
    let detail = detail.map(|detail| *detail).unwrap_or_default();
    let is_free = detail.preempted.is_empty() && detail.previous.is_none();
    is_free.then_some(OneOffPlace {
        node,
        score,
        holding: detail.holding,
        metrics: group.metrics,
    })
}
