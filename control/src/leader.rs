//! The leader's duties: one task that owns the pure cores and carries out their decisions.
//!
//! Effects of applied entries and timers wake a duty. A lost effect costs time, not correctness: the duties then
//! start again from the state, as they do when this server becomes leader. While another server leads, the task
//! only wakes the sessions of nodes with changed allocations, because their agents may be connected here.

pub(crate) mod consistency_check;
mod garbage;
mod heartbeats;
pub(crate) mod lease;
mod one_offs;
mod periodic;
mod scheduling;
mod watching;

use std::time::Duration;

use muster_control_core::fsm::Effect;
use muster_domain::id::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::consistency_check::ComparisonDuty;
use self::garbage::GcDuty;
use self::heartbeats::NodeHeartbeats;
use self::lease::ServerHeartbeats;
use self::one_offs::OneOffDuty;
use self::periodic::PeriodicDuty;
use self::scheduling::SchedulingPipeline;
use self::watching::WatchDuty;
use crate::backoff::Backoff;
use crate::handle::{Control, DutyRequest, ProposeError};
use crate::limits;
use crate::published::TermEffect;
use crate::raft::Leadership;

/// Channels from the rest of the process to the duties.
#[derive(Debug)]
pub(crate) struct DutyChannels {
    /// Effects of applied entries.
    pub(crate) effects: mpsc::Receiver<Vec<TermEffect>>,
    /// Heartbeats that servers have gathered from their nodes.
    pub(crate) beats: mpsc::Receiver<ServerHeartbeats>,
    pub(crate) requests: mpsc::Receiver<DutyRequest>,
}

/// Runs until `shutdown`: follows while another server leads, and leads while this one does.
pub(crate) async fn run(control: Control, mut inputs: DutyChannels, shutdown: CancellationToken) {
    let mut leadership = control.leadership();
    let mut failures = Backoff::new(limits::LEADER_RETRY_PAUSE, limits::DUTY_RETRY_PAUSE_MAX);
    loop {
        let leads = leadership.borrow_and_update().is_self();
        let continues = if leads {
            // Without a majority of servers, the barrier ends only after `PROPOSE_WAIT`.
            let started = shutdown.run_until_cancelled(begin_to_lead(&control, &mut failures));
            match started.await {
                None => false,
                Some(false) => true,
                Some(true) => lead(&control, &mut inputs, &mut leadership, &shutdown).await,
            }
        } else {
            follow(&control, &mut inputs, &mut leadership, &shutdown).await
        };
        if !continues {
            return;
        }
    }
}

/// Follows until leadership changes. Returns false at a shutdown.
async fn follow(
    control: &Control,
    inputs: &mut DutyChannels,
    leadership: &mut watch::Receiver<Leadership>,
    shutdown: &CancellationToken,
) -> bool {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return false,
            changed = leadership.changed() => return changed.is_ok(),
            Some(effects) = inputs.effects.recv() => {
                wake_nodes(control, &effects);
                if control.published().take_effects_lost() {
                    control.nodes().wake_all();
                }
            }
            // The dropped reply signals that this server does not lead.
            Some(_) = inputs.beats.recv() => {}
            Some(request) = inputs.requests.recv() => match request {
                DutyRequest::CollectGarbage(reply) => {
                    drop(reply.send(Err(ProposeError::NotLeader { leader: control.leader() })));
                }
                // Without an answer the caller gets no places. The leader finds them once the tasks or the job are
                // recorded.
                DutyRequest::Place(_) => {}
            },
            else => return false,
        }
    }
}

/// Waits until the state contains every entry committed before. Otherwise a finished evaluation would run again.
/// Returns false if that failed.
async fn begin_to_lead(control: &Control, failures: &mut Backoff) -> bool {
    let Err(error) = control.raft().barrier().await else {
        failures.reset();
        return true;
    };
    tracing::warn!(%error, "cannot begin to lead");
    tokio::time::sleep(failures.next_pause()).await;
    false
}

/// Leads until leadership changes. Returns false at a shutdown.
async fn lead(
    control: &Control,
    inputs: &mut DutyChannels,
    leadership: &mut watch::Receiver<Leadership>,
    shutdown: &CancellationToken,
) -> bool {
    let term = leadership.borrow().term;
    tracing::info!(term, "leading");
    let mut duties = Duties::begin(control, term);
    let mut effects = Vec::new();
    loop {
        let now = control.monotonic();
        if control.published().take_effects_lost() {
            control.nodes().wake_all();
            duties.restart(now);
        }
        duties.advance(!inputs.effects.is_empty(), now);
        let pause = duties.pause(now);
        tokio::select! {
            () = shutdown.cancelled() => return false,
            changed = leadership.changed() => {
                if changed.is_err() {
                    return false;
                }
                let current = leadership.borrow_and_update();
                // Before a later term another server may have led, so the duties begin anew.
                if !current.is_self() || current.term != term {
                    tracing::info!("this leadership is over");
                    return true;
                }
            }
            count = inputs.effects.recv_many(&mut effects, limits::EFFECT_BATCHES_MAX) => {
                if count == 0 {
                    return false;
                }
                for batch in effects.drain(..) {
                    wake_nodes(control, &batch);
                    duties.handle_effects(batch, now);
                }
            }
            Some(beats) = inputs.beats.recv() => duties.heartbeats.handle_heartbeats(beats, now),
            Some(request) = inputs.requests.recv() => match request {
                DutyRequest::CollectGarbage(reply) => duties.garbage.force(reply),
                DutyRequest::Place(wanted) => duties.scheduling.find_places(wanted),
            },
            () = duties.scheduling.progress() => {}
            () = duties.heartbeats.progress() => {}
            () = duties.garbage.progress() => {}
            () = duties.watching.progress() => {}
            () = duties.periodic.progress() => {}
            () = duties.one_offs.progress() => {}
            () = duties.comparing.progress() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The duties of a leader.
#[derive(Debug)]
struct Duties {
    term: u64,
    scheduling: SchedulingPipeline,
    heartbeats: NodeHeartbeats,
    garbage: GcDuty,
    watching: WatchDuty,
    periodic: PeriodicDuty,
    one_offs: OneOffDuty,
    comparing: ComparisonDuty,
}

impl Duties {
    fn begin(control: &Control, term: u64) -> Self {
        let now = control.monotonic();
        Self {
            term,
            scheduling: SchedulingPipeline::begin(control.clone(), now),
            heartbeats: NodeHeartbeats::begin(control.clone(), term, now),
            garbage: GcDuty::begin(control.clone(), now),
            watching: WatchDuty::begin(control.clone(), now),
            periodic: PeriodicDuty::begin(control.clone(), now),
            one_offs: OneOffDuty::begin(control.clone(), now),
            comparing: ComparisonDuty::begin(control.clone()),
        }
    }

    /// Starts the duties again from the state, because effects were lost.
    fn restart(&mut self, now: Timestamp) {
        tracing::warn!("effects were lost: the duties begin again from the state");
        self.scheduling.restart(now);
        self.heartbeats.restart(now);
        self.watching.wake();
        self.periodic.wake(now);
        self.one_offs.wake();
    }

    fn handle_effects(&mut self, effects: Vec<TermEffect>, now: Timestamp) {
        let state = self.scheduling.state();
        if muster_control_core::watch::is_needed(&state) {
            self.watching.wake();
        }
        for (term, effect) in effects {
            match effect {
                Effect::EnqueueEval(eval_id) => self.scheduling.enqueue(&state, eval_id, now),
                Effect::BlockEval(eval_id) => {
                    self.scheduling.block(&state, eval_id, now);
                    self.one_offs.handle_blocked(&state, &eval_id);
                }
                Effect::ForgetEval(eval_id) => self.scheduling.forget(&state, eval_id, now),
                Effect::CapacityFreed { node_id } => {
                    self.scheduling.handle_capacity(&state, node_id, now);
                }
                Effect::RulesEased => self.scheduling.handle_eased(&state, now),
                Effect::NodeReady(node_id) => self.heartbeats.track(node_id, now),
                Effect::NodeGone(node_id) => self.heartbeats.untrack(node_id),
                Effect::DutiesDue => {
                    self.periodic.wake(now);
                    self.one_offs.wake();
                }
                // A callback claimed by an entry of another term belongs to another leader.
                Effect::CallbackClaimed(alloc_id) if term == self.term => {
                    self.one_offs.handle_claimed(&state, &alloc_id);
                }
                Effect::CallbackClaimed(_)
                | Effect::NodeChanged(_)
                | Effect::NodeForgot(_)
                | Effect::ClusterPolicyChanged => {}
            }
        }
    }

    /// Starts due work. `effects_wait` is whether more effects are queued.
    fn advance(&mut self, effects_wait: bool, now: Timestamp) {
        self.heartbeats.advance(now);
        self.watching.advance(now);
        self.periodic.advance(now);
        self.one_offs.advance(now);
        self.comparing.advance();
        self.scheduling.advance(now);
        let others = effects_wait || self.scheduling.is_placing();
        self.garbage.advance(others, now);
    }

    /// The time until the next due work.
    fn pause(&self, now: Timestamp) -> Duration {
        [
            self.scheduling.poll_timeout(),
            self.heartbeats.poll_timeout(),
            self.garbage.poll_timeout(),
            self.watching.poll_timeout(),
            self.periodic.poll_timeout(),
            self.one_offs.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .map(|(at, _)| at.since(now))
        .fold(limits::DUTY_INTERVAL, Duration::min)
    }
}

fn wake_nodes(control: &Control, effects: &[TermEffect]) {
    let changed = effects.iter().filter_map(|(_, effect)| match effect {
        Effect::NodeChanged(node_id) => Some(*node_id),
        _ => None,
    });
    control.nodes().wake(changed);
    let forgot = effects.iter().filter_map(|(_, effect)| match effect {
        Effect::NodeForgot(node_id) => Some(*node_id),
        _ => None,
    });
    control.nodes().wake_for_forgotten(forgot);
    let is_policy = |(_, effect): &TermEffect| matches!(effect, Effect::ClusterPolicyChanged);
    if effects.iter().any(is_policy) {
        control.nodes().wake_all();
    }
}
