//! The evaluation broker: decides which evaluation goes to a worker next.
//!
//! This is memory of the leader only; all of it can be found again in the state. An evaluation of higher priority goes
//! first, then the older one. One evaluation of a job is delivered at a time. Of the evaluations queued behind it only
//! the newest is looked at, because it covers the work of the others; the others are cancelled. A delivery has a
//! deadline. An evaluation that is not settled by then is delivered again, with a longer delay each time. It fails
//! after [`limits::DELIVERIES_MAX`] deliveries. A plan that was refused in part is made again at once.
//!
//! Deliberately absent: scheduling, writing. [`Broker::take_updates`] returns the updates that must be written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_domain::eval::{EvalStatus, Evaluation};
use muster_domain::id::{EvalId, JobKey, LogIndex, NodeId, Timestamp};

use crate::applier::EvalOutcomes;
use crate::blocked::{BlockedEvals, WaitKey, wait_key};
use crate::fsm::{EvalUpdate, NextEval};
use crate::limits;
use crate::state::State;

/// The times that the broker waits. The defaults are Nomad's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Time that a worker has for an evaluation.
    pub delivery_timeout: Duration,
    /// Pause before the second delivery.
    pub nack_delay: Duration,
    /// Longer pause before each delivery after the second, multiplied by the number of failed deliveries less one.
    pub nack_delay_later: Duration,
    /// Pause before the follow-up of an evaluation that failed.
    pub follow_up_delay: Duration,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            delivery_timeout: Duration::from_mins(1),
            nack_delay: Duration::from_secs(1),
            nack_delay_later: Duration::from_secs(20),
            follow_up_delay: Duration::from_mins(1),
        }
    }
}

/// An evaluation handed to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The evaluation; read it from a state that is at least as new as this call.
    pub eval_id: EvalId,
    /// A token with which [`Broker::ack`] and [`Broker::nack`] check that this delivery is still the current one.
    pub token: u64,
    /// The number of this delivery, counted from 1.
    pub attempt: u32,
}

/// The position of an evaluation in the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvalState {
    /// The evaluation waits behind another evaluation of its job.
    Queued,
    /// The evaluation is not delivered before this time.
    Delayed(Timestamp),
    /// The evaluation goes to the next worker that asks.
    Ready,
    Out {
        token: u64,
        deadline: Timestamp,
    },
}

#[derive(Debug)]
struct EvalEntry {
    eval: Arc<Evaluation>,
    place: EvalState,
    deliveries: u32,
    /// Number of plans in a row of which no instance was placed.
    retries: u32,
}

/// The evaluations of one job.
#[derive(Debug, Default)]
struct JobQueue {
    active: Option<EvalId>,
    queued: BTreeSet<(LogIndex, EvalId)>,
}

/// The evaluation broker.
#[derive(Debug, Default)]
pub struct Broker {
    config: BrokerConfig,
    entries: BTreeMap<EvalId, EvalEntry>,
    jobs: BTreeMap<JobKey, JobQueue>,
    ready: BTreeSet<WaitKey>,
    /// Deadlines of deliveries and ends of delays.
    timers: BTreeSet<(Timestamp, EvalId)>,
    blocked: BlockedEvals,
    updates: Vec<EvalUpdate>,
    last_token: u64,
}

impl Broker {
    /// An empty broker.
    #[must_use]
    pub fn new(config: BrokerConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Begins anew from the state, because this server became leader.
    pub fn lead(&mut self, state: &State, now: Timestamp) {
        let last_token = self.last_token;
        *self = Self::new(self.config);
        self.last_token = last_token;
        self.blocked.reset(state.applied());
        let open: Vec<Arc<Evaluation>> = state.evals().pending().map(Arc::clone).collect();
        for eval in open {
            match eval.status {
                EvalStatus::Blocked => self.block(state, eval.id, eval.snapshot_index, now),
                EvalStatus::Pending => self.enqueue(&eval, now),
                EvalStatus::Complete | EvalStatus::Failed | EvalStatus::Canceled => {}
            }
        }
    }

    /// Takes an evaluation, unless the broker has it already or it has ended.
    pub fn enqueue(&mut self, eval: &Arc<Evaluation>, now: Timestamp) {
        if self.entries.contains_key(&eval.id) {
            return;
        }
        if eval.status.is_terminal() {
            self.blocked.release(&eval.id);
            return;
        }
        self.blocked.forget(&eval.id);
        let entry = EvalEntry {
            eval: Arc::clone(eval),
            place: EvalState::Queued,
            deliveries: 0,
            retries: 0,
        };
        self.entries.insert(eval.id, entry);
        if eval.wait_until > now {
            self.delay(eval.id, eval.wait_until);
        } else {
            self.queue(eval.id);
        }
    }

    /// Hands out the next evaluation.
    pub fn dequeue(&mut self, now: Timestamp) -> Option<Delivery> {
        let (_, _, eval_id) = self.ready.pop_first()?;
        let entry = self.entries.get_mut(&eval_id)?;
        self.last_token += 1;
        let (token, deadline) = (self.last_token, now.plus(self.config.delivery_timeout));
        entry.place = EvalState::Out { token, deadline };
        entry.deliveries += 1;
        self.timers.insert((deadline, eval_id));
        Some(Delivery {
            eval_id,
            token,
            attempt: entry.deliveries,
        })
    }

    /// Returns whether `token` belongs to the current delivery. A plan under an old token must not be submitted.
    #[must_use]
    pub fn is_current(&self, eval_id: &EvalId, token: u64) -> bool {
        self.entries
            .get(eval_id)
            .is_some_and(|entry| match entry.place {
                EvalState::Out { token: out, .. } => out == token,
                EvalState::Queued | EvalState::Delayed(_) | EvalState::Ready => false,
            })
    }

    /// Removes an evaluation whose worker is done with it.
    pub fn ack(&mut self, eval_id: &EvalId, token: u64) {
        if self.is_current(eval_id, token) {
            self.blocked.forget(eval_id);
            self.drop_entry(eval_id);
        }
    }

    /// Handles that the worker could not finish the evaluation. It is delivered later, or fails if it was delivered too
    /// often.
    pub fn nack(&mut self, eval_id: &EvalId, token: u64, now: Timestamp) {
        if self.is_current(eval_id, token) {
            self.redeliver(*eval_id, now);
        }
    }

    /// Gives up for good an evaluation that is not delivered; `why` is the reason.
    pub fn set_aside(&mut self, eval_id: EvalId, why: &str) {
        self.drop_entry(&eval_id);
        self.updates
            .push(ending(eval_id, EvalStatus::Failed, why, NextEval::Nothing));
    }

    /// Queues an evaluation again at once, because a part of its plan was refused. `progress` says whether another part
    /// was placed. Without progress the evaluation fails after [`limits::PLAN_RETRIES_MAX`] times.
    pub fn retry(&mut self, eval_id: &EvalId, progress: bool, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(eval_id) else {
            return;
        };
        let EvalState::Out { deadline, .. } = entry.place else {
            return;
        };
        entry.retries = if progress { 0 } else { entry.retries + 1 };
        if entry.retries > limits::PLAN_RETRIES_MAX {
            self.fail(*eval_id, "its plans were refused too often", now);
            return;
        }
        // A refused plan is not a failure of the worker.
        entry.deliveries -= 1;
        entry.place = EvalState::Ready;
        self.timers.remove(&(deadline, *eval_id));
        let key = wait_key(&entry.eval);
        self.ready.insert(key);
    }

    /// Carries out the outcomes of the evaluations of a merged command.
    pub fn settle(&mut self, state: &State, settled: &EvalOutcomes, now: Timestamp) {
        for eval_id in &settled.done {
            self.drop_entry(eval_id);
        }
        for (eval_id, progress) in &settled.retry {
            self.retry(eval_id, *progress, now);
        }
        for (eval_id, seen) in &settled.waiting {
            self.block(state, *eval_id, *seen, now);
        }
        self.continue_offers(state, now);
    }

    /// Makes an evaluation wait for room. `seen` is the snapshot in which there was none. If room came free since, the
    /// evaluation is queued at once.
    pub fn block(&mut self, state: &State, eval_id: EvalId, seen: LogIndex, now: Timestamp) {
        self.drop_entry(&eval_id);
        let Some(eval) = state.evals().get(&eval_id) else {
            return;
        };
        if eval.status == EvalStatus::Blocked && self.blocked.block(state, eval, seen) {
            self.enqueue(eval, now);
        }
    }

    /// A node has more room since the entry at `index`: queues evaluations that it could help.
    pub fn handle_capacity(
        &mut self,
        state: &State,
        node_id: NodeId,
        index: LogIndex,
        now: Timestamp,
    ) {
        for eval in self.blocked.handle_capacity(state, node_id, index) {
            self.enqueue(&eval, now);
        }
        self.continue_offers(state, now);
    }

    /// Handles that more is allowed since the entry at `index` than before: queues all waiting evaluations.
    pub fn handle_eased(&mut self, index: LogIndex, now: Timestamp) {
        for eval in self.blocked.handle_eased(index) {
            self.enqueue(&eval, now);
        }
    }

    /// Removes an evaluation that has ended.
    pub fn forget(&mut self, state: &State, eval_id: &EvalId, now: Timestamp) {
        let eval = state.evals().get(eval_id);
        let served = eval.is_some_and(|eval| eval.status == EvalStatus::Complete);
        self.blocked.end(eval_id, served);
        self.drop_entry(eval_id);
        self.continue_offers(state, now);
    }

    /// Offers room to the next evaluations if the evaluations woken for it did not take it.
    fn continue_offers(&mut self, state: &State, now: Timestamp) {
        for eval in self.blocked.continue_offers(state) {
            self.enqueue(&eval, now);
        }
    }

    /// Handles deadlines that passed and delays that ended.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((_, eval_id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            let Some(entry) = self.entries.get(&eval_id) else {
                break;
            };
            match entry.place {
                EvalState::Out { .. } => self.redeliver(eval_id, now),
                EvalState::Delayed(until) => {
                    self.timers.remove(&(until, eval_id));
                    self.queue(eval_id);
                }
                EvalState::Queued | EvalState::Ready => break,
            }
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] has something to do, and its purpose.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        self.timers
            .first()
            .map(|(at, _)| (*at, "evaluation delivery or delay"))
    }

    /// Returns updates to write of evaluations that were cancelled or failed; at most [`limits::EVAL_UPDATES_MAX`] at a
    /// time.
    pub fn take_updates(&mut self) -> Vec<EvalUpdate> {
        let more = self
            .updates
            .split_off(self.updates.len().min(limits::EVAL_UPDATES_MAX));
        std::mem::replace(&mut self.updates, more)
    }

    /// Returns the number of evaluations that are ready, queued, delayed or delivered; blocked evaluations do not
    /// count.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no such evaluations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Evaluations that wait for a worker now.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Evaluations that wait for room.
    #[must_use]
    pub fn blocked(&self) -> usize {
        self.blocked.len()
    }

    /// Puts an entry behind the active entry of its job, or makes it the active entry.
    fn queue(&mut self, eval_id: EvalId) {
        let Some(entry) = self.entries.get_mut(&eval_id) else {
            return;
        };
        let job = self.jobs.entry(entry.eval.job.clone()).or_default();
        if job.active.is_some() {
            entry.place = EvalState::Queued;
            job.queued.insert((entry.eval.create_index, eval_id));
        } else {
            entry.place = EvalState::Ready;
            job.active = Some(eval_id);
            self.ready.insert(wait_key(&entry.eval));
        }
    }

    fn delay(&mut self, eval_id: EvalId, until: Timestamp) {
        if let Some(entry) = self.entries.get_mut(&eval_id) {
            entry.place = EvalState::Delayed(until);
            self.timers.insert((until, eval_id));
        }
    }

    fn redeliver(&mut self, eval_id: EvalId, now: Timestamp) {
        let Some(entry) = self.entries.get(&eval_id) else {
            return;
        };
        if entry.deliveries >= limits::DELIVERIES_MAX {
            self.fail(eval_id, "it was delivered too often without an answer", now);
            return;
        }
        let pause = match entry.deliveries {
            0 | 1 => self.config.nack_delay,
            later => self.config.nack_delay_later.saturating_mul(later - 1),
        };
        self.remove_from_queues(&eval_id);
        self.delay(eval_id, now.plus(pause));
    }

    fn fail(&mut self, eval_id: EvalId, why: &str, now: Timestamp) {
        self.drop_entry(&eval_id);
        let wait_until = now.plus(self.config.follow_up_delay);
        self.updates.push(ending(
            eval_id,
            EvalStatus::Failed,
            why,
            NextEval::FailedFollowUp { wait_until },
        ));
    }

    fn drop_entry(&mut self, eval_id: &EvalId) {
        self.blocked.release(eval_id);
        if self.entries.contains_key(eval_id) {
            self.remove_from_queues(eval_id);
            self.entries.remove(eval_id);
        }
    }

    /// Takes an entry out of every queue. If it was the active entry of its job, the newest queued entry follows and
    /// the others are cancelled.
    fn remove_from_queues(&mut self, eval_id: &EvalId) {
        let Some(entry) = self.entries.get(eval_id) else {
            return;
        };
        let eval = Arc::clone(&entry.eval);
        match entry.place {
            EvalState::Queued => {}
            EvalState::Delayed(until) => {
                self.timers.remove(&(until, *eval_id));
            }
            EvalState::Ready => {
                self.ready.remove(&wait_key(&eval));
            }
            EvalState::Out { deadline, .. } => {
                self.timers.remove(&(deadline, *eval_id));
            }
        }
        let Some(job) = self.jobs.get_mut(&eval.job) else {
            return;
        };
        job.queued.remove(&(eval.create_index, *eval_id));
        if job.active != Some(*eval_id) {
            return;
        }
        job.active = None;
        let mut queued = std::mem::take(&mut job.queued);
        let newest = queued.pop_last();
        if newest.is_none() {
            self.jobs.remove(&eval.job);
        }
        for (_, older) in queued {
            self.entries.remove(&older);
            let why = "a newer evaluation of the job sees the same";
            self.updates
                .push(ending(older, EvalStatus::Canceled, why, NextEval::Nothing));
        }
        if let Some((_, newest)) = newest {
            self.queue(newest);
        }
    }
}

fn ending(eval_id: EvalId, status: EvalStatus, why: &str, next: NextEval) -> EvalUpdate {
    EvalUpdate {
        eval_id,
        status,
        description: why.to_owned(),
        snapshot_index: LogIndex(0),
        failed_groups: Vec::new(),
        queued: Vec::new(),
        next,
    }
}

#[cfg(test)]
mod tests;
