//! The leader's duty for one-off tasks: changes due by time, and callbacks.
//!
//! A callback is claimed in the state before the call. So two servers never call at once, and no client works on
//! the same task. The outcome is written after the call. Usually the task's end claims the callback, for the
//! leader of that entry's term. This duty claims the other callbacks.
//!
//! A leader that dies in between leaves a claim, which expires. The next leader calls again under the same
//! idempotency key. Each place has a bounded share of the calls under way, so a hanging endpoint does not delay
//! other places' calls.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use muster_control_core::converge;
use muster_control_core::fsm::{OneOffChange, OneOffCommand, OneOffStep, Response};
use muster_control_core::limits::ONE_OFF_CHANGES_MAX;
use muster_control_core::state::{State, place_of};
use muster_domain::id::{AllocId, EvalId, LogIndex, Timestamp};
use muster_domain::one_off::{OneOff, Phase};
use tokio::task::JoinSet;

use crate::backoff::Backoff;
use crate::callback::{CallbackClient, Delivery, Outcome, ServerAddresses};
use crate::handle::{Control, ProposeError, ProposeResult};
use crate::limits;

/// The duty for one-off tasks: the time of the next check, and the work under way.
#[derive(Debug)]
pub(super) struct OneOffDuty {
    control: Control,
    /// The client for callbacks. `None`: this server makes no callbacks.
    caller: Option<CallbackClient>,
    /// The earliest time of the next check, on the monotonic clock. `None`: the next change triggers it.
    next_check_at: Option<Timestamp>,
    last_check_at: Timestamp,
    /// The pauses after changes that were not written.
    failures: Backoff,
    /// The changes due by time; at most one.
    converging: JoinSet<ProposeResult>,
    /// Callbacks being claimed; at most one entry.
    claiming: JoinSet<(CallbackClaims, ProposeResult)>,
    /// Claimed callbacks whose calls have not started.
    claimed: VecDeque<Arc<OneOff>>,
    calls: JoinSet<(CallbackCall, Delivery)>,
    /// Places of the callbacks claimed or under way, by the task's guid.
    under_way: BTreeMap<String, String>,
    /// The place that was served last. The next round begins after it.
    last_place: String,
    /// Outcomes that are not written yet.
    outcomes: Vec<OneOffChange>,
    /// Whether all waiting tasks must be checked. Another leader's evaluations were blocked, or a failure was not
    /// written.
    unplaceable_is_due: bool,
    /// Outcomes under way to the log; at most one entry.
    writing: JoinSet<(Vec<String>, ProposeResult)>,
}

/// A callback under way, and its claim.
#[derive(Debug)]
struct CallbackCall {
    row: Arc<OneOff>,
    claim: LogIndex,
}

/// Callbacks that are being claimed.
#[derive(Debug)]
struct CallbackClaims {
    rows: Vec<Arc<OneOff>>,
    until: Timestamp,
}

impl OneOffDuty {
    pub(super) fn begin(control: Control, now: Timestamp) -> Self {
        let info = control.server_info();
        let own = [Some(info.http_addr), Some(info.quic_addr), info.bbs_addr];
        let servers = ServerAddresses {
            own_ports: own
                .into_iter()
                .flatten()
                .map(|address| address.port())
                .collect(),
            peers: Some(control.peers().clone()),
        };
        let caller = match CallbackClient::open(control.tasks_config(), servers) {
            Ok(caller) => Some(caller),
            Err(error) => {
                tracing::error!(error = crate::chain(&error), "callbacks are not made");
                None
            }
        };
        Self {
            control,
            caller,
            next_check_at: Some(now),
            last_check_at: Timestamp(0),
            failures: Backoff::new(limits::LEADER_RETRY_PAUSE, limits::DUTY_RETRY_PAUSE_MAX),
            converging: JoinSet::new(),
            claiming: JoinSet::new(),
            claimed: VecDeque::new(),
            calls: JoinSet::new(),
            under_way: BTreeMap::new(),
            last_place: String::new(),
            outcomes: Vec::new(),
            unplaceable_is_due: true,
            writing: JoinSet::new(),
        }
    }

    /// Schedules a check soon, but not for each of many changes.
    pub(super) fn wake(&mut self) {
        self.schedule_check(self.last_check_at.plus(limits::ONE_OFFS_INTERVAL));
    }

    fn schedule_check(&mut self, at: Timestamp) {
        self.next_check_at = Some(self.next_check_at.map_or(at, |earlier| earlier.min(at)));
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        Some((self.next_check_at?, "one-off tasks"))
    }

    /// Fails the task of a blocked evaluation if no node could ever hold the task.
    pub(super) fn handle_blocked(&mut self, state: &State, eval_id: &EvalId) {
        self.outcomes.extend(converge::unplaceable(state, eval_id));
    }

    /// Queues the callback that the end of the task of `alloc_id` has claimed for this leader.
    pub(super) fn handle_claimed(&mut self, state: &State, alloc_id: &AllocId) {
        let alloc = state.allocs().get(alloc_id);
        let row = alloc.and_then(|alloc| state.one_offs().get(&alloc.job_key().job_id));
        let row = row.filter(|row| row.alloc_id.as_ref() == Some(alloc_id));
        if let Some(row) = row.filter(|row| row.phase == Phase::Delivering)
            && self.caller.is_some()
            && !self.under_way.contains_key(&row.guid)
        {
            self.claimed.push_back(Arc::clone(row));
        }
    }

    /// Starts the calls of claimed callbacks, up to the bound of each place.
    ///
    /// Skips a callback whose claim could expire during the call, by another server's clock. It is claimed again
    /// after its claim has expired.
    fn call_claimed(&mut self) {
        let Some(caller) = self.caller.clone().filter(|_| !self.claimed.is_empty()) else {
            return;
        };
        let min_expiry = self.min_claim_expiry();
        for row in std::mem::take(&mut self.claimed) {
            let is_over = row.until.is_none_or(|until| until <= min_expiry);
            let Some(claim) = row.claim().filter(|_| !is_over) else {
                continue;
            };
            if self.under_way.contains_key(&row.guid) {
                continue;
            }
            let place = place_of(&row.definition.completion_callback_url);
            if self.under_way.len() >= limits::CALLBACKS_MAX
                || self.calls_to(&place) >= limits::CALLBACKS_PER_PLACE_MAX
            {
                self.claimed.push_back(row);
                continue;
            }
            self.under_way.insert(row.guid.clone(), place);
            self.call(&caller, CallbackCall { row, claim });
        }
    }

    fn calls_to(&self, place: &str) -> usize {
        self.under_way.values().filter(|it| *it == place).count()
    }

    fn call(&mut self, caller: &CallbackClient, call: CallbackCall) {
        let caller = caller.clone();
        self.calls.spawn_blocking(move || {
            let delivery = caller.call(&call.row);
            (call, delivery)
        });
    }

    /// Checks tasks if it is time, and proposes the due changes.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.write();
        self.call_claimed();
        if self.next_check_at.is_none_or(|at| at > now) {
            return;
        }
        self.last_check_at = now;
        self.next_check_at = None;
        let state = self.control.state();
        self.write_time_limits(&state);
        if state.one_offs().is_empty() {
            return;
        }
        self.fail_unplaceable(&state);
        let wall = self.control.now();
        if self.converging.is_empty() {
            let due = converge::due(&state, wall);
            if let Some(next) = due.next {
                // The wall clock may be set during this pause, so the pause is bounded.
                let pause = next.since(wall).min(limits::PERIODIC_LOOK_INTERVAL);
                self.schedule_check(now.plus(pause.max(limits::ONE_OFFS_INTERVAL)));
            }
            for command in due.commands {
                let control = self.control.clone();
                self.converging
                    .spawn(async move { control.propose(command).await });
            }
        }
        if self.claiming.is_empty() && self.caller.is_some() {
            let picked = self.pick(&state, now, wall);
            self.claim(picked, wall);
        }
    }

    /// Fails waiting tasks that no node could ever hold, a bounded number at a time.
    fn fail_unplaceable(&mut self, state: &State) {
        if !self.unplaceable_is_due || !self.writing.is_empty() {
            return;
        }
        let changes = converge::all_unplaceable(state);
        self.unplaceable_is_due = !changes.is_empty();
        self.outcomes.extend(changes);
        self.write();
    }

    /// Writes this leader's time limits if they differ from those in the log. Every server uses those in the log.
    fn write_time_limits(&mut self, state: &State) {
        let times = self.control.tasks_config().times();
        if state.one_offs().times() == times || !self.converging.is_empty() {
            return;
        }
        let at = self.control.now();
        let control = self.control.clone();
        self.converging.spawn(async move {
            control
                .propose(OneOffCommand::SetTimes { times }.at(at))
                .await
        });
    }

    /// Picks the due callbacks to call now, for each place up to its bound.
    fn pick(&mut self, state: &State, now: Timestamp, wall: Timestamp) -> Vec<Arc<OneOff>> {
        let mut picked = Vec::new();
        let mut next: Option<Timestamp> = None;
        let last_place = self.last_place.clone();
        for place in state.one_offs().callback_places(&last_place) {
            // The end of a call triggers the next check.
            if self.under_way.len() >= limits::CALLBACKS_MAX {
                break;
            }
            let mut left = limits::CALLBACKS_PER_PLACE_MAX.saturating_sub(self.calls_to(place));
            for (at, row) in state.one_offs().callbacks(place) {
                if at > wall {
                    next = Some(next.map_or(at, |next| next.min(at)));
                    break;
                }
                if left == 0 || self.under_way.len() >= limits::CALLBACKS_MAX {
                    break;
                }
                if self.under_way.contains_key(&row.guid) {
                    continue;
                }
                self.under_way.insert(row.guid.clone(), place.to_owned());
                picked.push(Arc::clone(row));
                place.clone_into(&mut self.last_place);
                left -= 1;
            }
        }
        if let Some(next) = next {
            let pause = next.since(wall).min(limits::PERIODIC_LOOK_INTERVAL);
            self.schedule_check(now.plus(pause.max(limits::ONE_OFFS_INTERVAL)));
        }
        picked
    }

    fn claim(&mut self, picked: Vec<Arc<OneOff>>, wall: Timestamp) {
        if picked.is_empty() {
            return;
        }
        // The claim prevents a second call for the same callback.
        let until = wall.plus(self.control.tasks_config().callback_claim);
        let step = OneOffStep::Claim {
            until,
            for_callback: true,
        };
        let changes = picked.iter().map(|row| converge::change(row, step));
        let changes = changes.collect();
        let control = self.control.clone();
        self.claiming.spawn(async move {
            let command = OneOffCommand::Change { changes }.at(wall);
            let claims = CallbackClaims {
                rows: picked,
                until,
            };
            (claims, control.propose(command).await)
        });
    }

    fn handle_claims_written(&mut self, claims: CallbackClaims, proposed: ProposeResult) {
        let CallbackClaims { rows, until } = claims;
        let is_in_time = until > self.min_claim_expiry();
        let (claim, outcomes) = match proposed {
            Ok((claim, Response::OneOffsChanged { outcomes })) => (claim, outcomes),
            Ok((claim, other)) => {
                tracing::error!(
                    ?other,
                    "claims of callbacks were answered with something else"
                );
                (claim, Vec::new())
            }
            Err(error) => {
                self.failed(&error);
                (LogIndex(0), Vec::new())
            }
        };
        let mut outcomes = outcomes.into_iter();
        for row in rows {
            match (outcomes.next(), self.caller.clone()) {
                (Some(None), Some(caller)) if is_in_time => {
                    self.call(&caller, CallbackCall { row, claim });
                }
                // A client was faster, the outcome is unknown, or the claim could expire during the call.
                _ => {
                    self.under_way.remove(&row.guid);
                }
            }
        }
    }

    fn handle_call_ended(&mut self, call: &CallbackCall, delivery: Delivery) {
        let CallbackCall { row, claim } = call;
        let claim = *claim;
        let step = match delivery {
            Delivery::Taken { status } => {
                tracing::debug!(task = row.guid, status, "a callback was taken");
                self.control.callbacks().note(Outcome::Taken);
                OneOffStep::Delete { claim: Some(claim) }
            }
            Delivery::Failed { reason } => {
                let next_at = self.next_try(row);
                let url = &row.definition.completion_callback_url;
                let totals = self.control.callbacks();
                totals.note(Outcome::Failed);
                if next_at.is_some() {
                    tracing::info!(task = row.guid, url, reason, "a callback is tried again");
                } else {
                    totals.note(Outcome::GivenUp);
                    tracing::warn!(task = row.guid, url, reason, "a callback is given up");
                }
                OneOffStep::CallbackFailed { claim, next_at }
            }
        };
        self.outcomes.push(converge::change(row, step));
    }

    /// Returns the time of the next call for a failed callback; `None`: no further call.
    fn next_try(&self, row: &OneOff) -> Option<Timestamp> {
        let attempts = row.callback.map_or(0, |callback| callback.attempts);
        let from = row.first_completed_at.unwrap_or(row.created_at);
        let config = self.control.tasks_config();
        config.next_try(attempts, from, self.control.now())
    }

    /// Returns the least expiry of a claim whose call may begin now. It allows for the call's time limit, and for
    /// as much difference between servers' clocks.
    fn min_claim_expiry(&self) -> Timestamp {
        let wait = self.control.tasks_config().callback_wait;
        self.control.now().plus(2 * wait)
    }

    /// Writes the outcomes of calls.
    fn write(&mut self) {
        if self.outcomes.is_empty() || !self.writing.is_empty() {
            return;
        }
        let count = self.outcomes.len().min(ONE_OFF_CHANGES_MAX);
        let changes: Vec<_> = self.outcomes.drain(..count).collect();
        let guids = changes.iter().map(|change| change.guid.clone()).collect();
        let control = self.control.clone();
        self.writing.spawn(async move {
            let at = control.now();
            let proposed = control.propose(OneOffCommand::Change { changes }.at(at));
            (guids, proposed.await)
        });
    }

    /// Waits until something under way has ended. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        tokio::select! {
            Some(done) = self.converging.join_next() => {
                match done {
                    Ok(Err(error)) => self.failed(&error),
                    Ok(Ok(_)) => self.written(),
                    Err(error) => self.handle_panic(&error),
                }
            }
            Some(done) = self.claiming.join_next() => match done {
                Ok((claims, proposed)) => self.handle_claims_written(claims, proposed),
                Err(error) => self.handle_panic(&error),
            },
            Some(done) = self.calls.join_next() => match done {
                Ok((call, delivery)) => self.handle_call_ended(&call, delivery),
                Err(error) => self.handle_panic(&error),
            },
            Some(done) = self.writing.join_next() => match done {
                Ok((guids, proposed)) => {
                    for guid in guids {
                        self.under_way.remove(&guid);
                    }
                    // A callback whose outcome was not written is called again after its claim has expired.
                    match proposed {
                        Err(error) => {
                            self.unplaceable_is_due = true;
                            self.failed(&error);
                        }
                        Ok(_) => self.written(),
                    }
                }
                Err(error) => self.handle_panic(&error),
            },
            else => std::future::pending().await,
        }
    }

    /// Schedules a check after a successful write.
    fn written(&mut self) {
        self.failures.reset();
        self.wake();
    }

    fn failed(&mut self, error: &ProposeError) {
        tracing::warn!(%error, "one-off tasks are looked at again");
        let later = self.control.monotonic().plus(self.failures.next_pause());
        self.schedule_check(later);
    }

    /// Handles the panic of one of this duty's tasks: its work under way is unknown.
    fn handle_panic(&mut self, error: &tokio::task::JoinError) {
        tracing::error!(%error, "a callback's task failed");
        if self.calls.is_empty() && self.claiming.is_empty() {
            self.under_way.clear();
        }
        self.wake();
    }
}
