//! The leader's garbage collection: by age, and at once on request.
//!
//! One slice is under way at a time. The next is proposed when it is applied, so other entries can be applied
//! between two slices. While other work is under way, a slice waits for a limited time ([`GcThrottle`]).

use std::collections::VecDeque;
use std::time::Duration;

use muster_control_core::fsm::Entry;
use muster_control_core::gc::Collector;
use muster_domain::id::Timestamp;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::garbage::{FreedCounts, KeptCounts};
use crate::handle::{Control, ProposeError, ProposeResult};
use crate::limits;

type Reply = oneshot::Sender<Result<FreedCounts, ProposeError>>;

/// The collector, its commands in order, and the callers that wait for them.
#[derive(Debug)]
pub(super) struct GcDuty {
    control: Control,
    core: Collector,
    queue: VecDeque<GcStep>,
    /// The command under way; at most one.
    under_way: JoinSet<(Entry, Duration, ProposeResult)>,
    /// The results of the round under way.
    round: Option<RoundTotals>,
    throttle: GcThrottle,
}

/// The decision whether the next slice may be proposed.
#[derive(Debug, Default)]
struct GcThrottle {
    /// The time until which the slice waits for other work.
    given_until: Option<Timestamp>,
}

impl GcThrottle {
    /// Whether the slice may be proposed now. `others` is whether other work is under way.
    fn may_proceed(&mut self, others: bool, now: Timestamp) -> bool {
        let given_until = self
            .given_until
            .get_or_insert_with(|| now.plus(limits::GC_SLICE_WAIT_MAX));
        let is_free = !others || now >= *given_until;
        if is_free {
            self.given_until = None;
        }
        is_free
    }
}

/// The results of a round so far.
#[derive(Debug)]
struct RoundTotals {
    began: Timestamp,
    freed: FreedCounts,
    kept: KeptCounts,
}

impl RoundTotals {
    fn begin(now: Timestamp) -> Self {
        Self {
            began: now,
            freed: FreedCounts::default(),
            kept: KeptCounts::default(),
        }
    }
}

#[derive(Debug)]
enum GcStep {
    /// Begins a new round; later slices count for it.
    Begin,
    Propose(Entry),
    /// Ends the round. A caller may wait for it.
    End(Option<Reply>),
}

impl GcDuty {
    pub(super) fn begin(control: Control, now: Timestamp) -> Self {
        let core = Collector::new(control.gc_config(), now);
        let newest = control.published().state().newest_time();
        control.clock().compare_start(newest);
        Self {
            control,
            core,
            queue: VecDeque::new(),
            under_way: JoinSet::new(),
            round: None,
            throttle: GcThrottle::default(),
        }
    }

    /// Collects all garbage, at any age, then answers.
    pub(super) fn force(&mut self, reply: Reply) {
        self.queue_round(Collector::forced(self.control.now()), Some(reply));
    }

    fn queue_round(&mut self, commands: Vec<Entry>, reply: Option<Reply>) {
        self.queue.push_back(GcStep::Begin);
        self.queue.extend(commands.into_iter().map(GcStep::Propose));
        self.queue.push_back(GcStep::End(reply));
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        // While a round is under way, no next round is scheduled.
        if self.queue.is_empty() {
            return self.core.poll_timeout();
        }
        let given_until = self.throttle.given_until?;
        Some((given_until, "the next slice of a collection"))
    }

    /// Starts the due commands. `others` is whether other work is under way.
    pub(super) fn advance(&mut self, others: bool, now: Timestamp) {
        if self.queue.is_empty() {
            if !self.control.clock().is_start_trusted() {
                self.core.hold(now.plus(limits::CLOCK_GAP_LOOK));
            }
            let due = self.core.handle_timeout(now, self.control.now());
            if !due.is_empty() {
                self.queue_round(due, None);
            }
        }
        let others = others || (self.under_way.is_empty() && self.control.proposals() > 0);
        while self.under_way.is_empty() {
            if let Some(GcStep::Propose(_)) = self.queue.front()
                && !self.throttle.may_proceed(others, now)
            {
                return;
            }
            match self.queue.pop_front() {
                None => return,
                Some(GcStep::Begin) => {
                    self.control.gc_totals().begin();
                    self.round = Some(RoundTotals::begin(now));
                }
                Some(GcStep::End(reply)) => self.end(reply, now),
                Some(GcStep::Propose(command)) => {
                    let control = self.control.clone();
                    self.under_way.spawn(async move {
                        let begun = control.monotonic();
                        let result = control.propose(command.clone()).await;
                        (command, control.monotonic().since(begun), result)
                    });
                }
            }
        }
    }

    fn end(&mut self, reply: Option<Reply>, now: Timestamp) {
        let RoundTotals {
            began,
            mut freed,
            kept,
        } = self.round.take().unwrap_or_else(|| RoundTotals::begin(now));
        freed.took = now.since(began);
        self.control.gc_totals().end(freed.took, &kept);
        if freed.objects() > 0 || reply.is_some() {
            tracing::info!(
                objects = freed.objects(),
                bytes = freed.bytes,
                %kept,
                slices = freed.slices,
                took = ?freed.took,
                "collected garbage"
            );
        }
        if let Some(reply) = reply {
            // The caller may have gone away.
            drop(reply.send(Ok(freed)));
        }
    }

    /// Waits until a command is answered. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        match self.under_way.join_next().await {
            None => std::future::pending().await,
            Some(Ok((command, took, Ok((_, response))))) => {
                if let Some(slice) = FreedCounts::of(&response) {
                    self.control.gc_totals().slice(&slice, took);
                    if let Some(round) = &mut self.round {
                        round.freed.add(&slice);
                        round.kept.add(&response);
                    }
                }
                let next = Collector::next_slice(&command, &response, self.control.now());
                if let Some(next) = next {
                    self.queue.push_front(GcStep::Propose(next));
                }
            }
            Some(Ok((_, _, Err(error)))) => self.give_up(error),
            Some(Err(error)) => {
                tracing::error!(%error, "a command's task failed");
                self.give_up(ProposeError::Stopped {
                    reason: error.to_string(),
                });
            }
        }
    }

    /// Drops the waiting commands; the next round finds the same garbage. Sends the error to the first waiting
    /// caller, and `NotLeader` to the others.
    fn give_up(&mut self, error: ProposeError) {
        tracing::warn!(%error, "garbage was not collected");
        self.control.gc_totals().fail();
        self.round = None;
        // A slice under way has already passed the throttle.
        debug_assert_eq!(self.throttle.given_until, None);
        let mut error = Some(error);
        for work in self.queue.drain(..) {
            if let GcStep::End(Some(reply)) = work {
                let reason = error
                    .take()
                    .unwrap_or(ProposeError::NotLeader { leader: None });
                drop(reply.send(Err(reason)));
            }
        }
    }
}

impl Drop for GcDuty {
    /// The duties may end in the middle of a round; the next leader begins a new round.
    fn drop(&mut self) {
        if self.round.is_some() {
            self.control.gc_totals().fail();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gc_slice_yields_for_limited_time() {
        let begin = Timestamp(1_000_000_000);
        let almost = begin.plus(limits::GC_SLICE_WAIT_MAX.saturating_sub(Duration::from_nanos(1)));
        let over = begin.plus(limits::GC_SLICE_WAIT_MAX);
        let mut throttle = GcThrottle::default();
        assert!(throttle.may_proceed(false, begin));

        assert!(!throttle.may_proceed(true, begin));
        assert_eq!(throttle.given_until, Some(over));
        assert!(!throttle.may_proceed(true, almost));
        assert!(throttle.may_proceed(true, over));

        // The next slice waits anew, and is proposed as soon as no other work is under way.
        assert!(!throttle.may_proceed(true, over));
        assert!(throttle.may_proceed(false, over));
        assert_eq!(throttle.given_until, None);
    }
}
