//! Forgets what is over: by age, and at once when asked.
//!
//! One slice is under way at a time, and the next is proposed when it is applied, so that whatever else waits to
//! be applied comes between two of them. While others are at work it lets them go first, for a while ([`GcThrottle`]).

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

/// The core, its commands in order, and who waits for them.
#[derive(Debug)]
pub(super) struct GcDuty {
    control: Control,
    core: Collector,
    queue: VecDeque<GcStep>,
    /// The command under way; at most one.
    under_way: JoinSet<(Entry, Duration, ProposeResult)>,
    /// The one that is under way.
    round: Option<RoundTotals>,
    throttle: GcThrottle,
}

/// Whether the next slice may go.
#[derive(Debug, Default)]
struct GcThrottle {
    /// Time until which it lets others go first.
    given_until: Option<Timestamp>,
}

impl GcThrottle {
    /// Whether it goes now. `others` are at work, or are not.
    fn may_proceed(&mut self, others: bool, now: Timestamp) -> bool {
        let given_until = self
            .given_until
            .get_or_insert_with(|| now.plus(limits::GC_GIVES_WAY));
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
    /// A new round begins; later slices count for it.
    Begin,
    Propose(Entry),
    /// The round is over. Somebody may wait for it.
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

    /// Collects everything that is over, whatever its age, then answers.
    pub(super) fn force(&mut self, reply: Reply) {
        self.queue_round(Collector::forced(self.control.now()), Some(reply));
    }

    fn queue_round(&mut self, commands: Vec<Entry>, reply: Option<Reply>) {
        self.queue.push_back(GcStep::Begin);
        self.queue.extend(commands.into_iter().map(GcStep::Propose));
        self.queue.push_back(GcStep::End(reply));
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        // A round that takes longer than its interval has no next one waiting for it.
        if self.queue.is_empty() {
            return self.core.poll_timeout();
        }
        let given_until = self.throttle.given_until?;
        Some((given_until, "the next slice of a collection"))
    }

    /// Starts what is due; `others` are at work, or are not.
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

    /// Drops the commands that wait; the next round finds the same garbage. Tells the first who asked.
    fn give_up(&mut self, error: ProposeError) {
        tracing::warn!(%error, "garbage was not collected");
        self.control.gc_totals().fail();
        self.round = None;
        // A slice that is under way was let go by it.
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
    /// The duties ended in the middle of a round: the next leader begins anew.
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
        let almost = begin.plus(limits::GC_GIVES_WAY.saturating_sub(Duration::from_nanos(1)));
        let over = begin.plus(limits::GC_GIVES_WAY);
        let mut way = GcThrottle::default();
        assert!(way.may_proceed(false, begin));

        assert!(!way.may_proceed(true, begin));
        assert_eq!(way.given_until, Some(over));
        assert!(!way.may_proceed(true, almost));
        assert!(way.may_proceed(true, over));

        // The next one waits anew, and goes as soon as nobody is at work.
        assert!(!way.may_proceed(true, over));
        assert!(way.may_proceed(false, over));
        assert_eq!(way.given_until, None);
    }
}
