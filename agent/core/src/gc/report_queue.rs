//! Reports of collections on their way to the servers: one under way, and one that waits.
//!
//! A new collection joins the waiting report while one report is under way, without a server, or soon after the last
//! report. So the reports never grow. A report leaves the queue when it is committed. A report whose session broke before that
//! is sent again unchanged. A server that has the report already recognises it by its start time. Reports that are
//! not committed end with their agent.

use muster_domain::id::Timestamp;
use muster_domain::node::NodeCollected;

use crate::limits::GC_REPORT_PAUSE;

/// The report under way and the report that waits.
#[derive(Debug, Default)]
pub struct GcReportQueue {
    waiting: Option<NodeCollected>,
    /// The report under way and its message; `None` if the session of that message is over.
    sent: Option<(NodeCollected, Option<u64>)>,
    /// An unrequested report is not sent before this time.
    not_before: Timestamp,
}

impl GcReportQueue {
    /// A collection is over.
    pub fn handle_collected(&mut self, report: NodeCollected) {
        self.waiting = Some(match self.waiting.take() {
            Some(earlier) => earlier.and(report),
            None => report,
        });
    }

    /// A session begins: a report that is not committed is sent again.
    pub fn handle_session(&mut self) {
        if let Some((_, message)) = &mut self.sent {
            *message = None;
        }
    }

    /// Messages up to `sequence` are committed.
    pub fn acknowledge(&mut self, sequence: u64) {
        self.sent
            .take_if(|(_, message)| message.is_some_and(|message| message <= sequence));
    }

    /// The report to send in the message `sequence`, if any.
    pub fn poll_report(&mut self, sequence: u64, now: Timestamp) -> Option<NodeCollected> {
        if self.poll_timeout(now)? > now {
            return None;
        }
        let report = match self.sent.take() {
            Some((report, _)) => report,
            None => {
                self.not_before = now.plus(GC_REPORT_PAUSE);
                self.waiting.take()?
            }
        };
        self.sent = Some((report.clone(), Some(sequence)));
        Some(report)
    }

    /// The time of the next report; `None` while nothing waits or an answer has to come first.
    #[must_use]
    pub fn poll_timeout(&self, now: Timestamp) -> Option<Timestamp> {
        match &self.sent {
            Some((_, Some(_))) => None,
            Some((_, None)) => Some(now),
            None => self.waiting.as_ref().map(|report| {
                // A clock that was set back must not prolong the wait.
                let is_late = self.not_before > now.plus(GC_REPORT_PAUSE);
                let is_due = report.is_forced() || is_late;
                if is_due {
                    now
                } else {
                    self.not_before.max(now)
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use muster_domain::node::{GcReason, KeptReason};

    use super::*;

    const START: Timestamp = Timestamp(1_000_000_000_000);

    fn collected(began_at: u64, reason: GcReason) -> NodeCollected {
        NodeCollected {
            began_at: Timestamp(began_at),
            ended_at: Timestamp(began_at + 1),
            rounds: 1,
            took: Duration::from_nanos(1),
            destroyed: BTreeMap::from([(reason, 2)]),
            refusals: 1,
            inodes: 3,
            bytes: 4,
            delete_failures: 5,
            kept: BTreeMap::from([(KeptReason::Running, began_at)]),
            disk_percent: 50,
            ..NodeCollected::default()
        }
    }

    /// The second and the third report are added while the first is under way.
    #[test]
    fn unsent_gc_reports_are_added_up() {
        let mut queue = GcReportQueue::default();
        let first = collected(1, GcReason::Disk);
        queue.handle_collected(first.clone());
        assert_eq!(queue.poll_report(1, START), Some(first));
        queue.handle_collected(collected(10, GcReason::Disk));
        queue.handle_collected(collected(20, GcReason::Inodes));
        let later = START.plus(GC_REPORT_PAUSE);

        let unanswered = queue.poll_report(2, later);
        queue.acknowledge(1);
        let rest = queue.poll_report(2, later).unwrap();

        assert_eq!(unanswered, None);
        let both = NodeCollected {
            began_at: Timestamp(10),
            ended_at: Timestamp(21),
            rounds: 2,
            took: Duration::from_nanos(2),
            destroyed: BTreeMap::from([(GcReason::Disk, 2), (GcReason::Inodes, 2)]),
            refusals: 2,
            inodes: 6,
            bytes: 8,
            delete_failures: 10,
            kept: BTreeMap::from([(KeptReason::Running, 20)]),
            disk_percent: 50,
            ..NodeCollected::default()
        };
        assert_eq!(rest, both);
    }

    #[test]
    fn gc_reports_wait_for_the_pause() {
        let mut queue = GcReportQueue::default();
        queue.handle_collected(collected(1, GcReason::Disk));
        queue.poll_report(1, START);
        queue.acknowledge(1);
        queue.handle_collected(collected(2, GcReason::Disk));
        let due = START.plus(GC_REPORT_PAUSE);

        assert_eq!(queue.poll_report(2, Timestamp(due.0 - 1)), None);
        assert_eq!(queue.poll_timeout(START), Some(due));
        assert!(queue.poll_report(2, due).is_some());
    }

    #[test]
    fn forced_collections_are_reported_at_once() {
        let mut queue = GcReportQueue::default();
        queue.handle_collected(collected(1, GcReason::Disk));
        queue.poll_report(1, START);
        queue.acknowledge(1);

        queue.handle_collected(collected(2, GcReason::Forced));

        assert_eq!(queue.poll_timeout(START), Some(START));
        assert!(queue.poll_report(2, START).is_some());
    }

    /// The report's session broke before the answer came, and another collection ended meanwhile.
    #[test]
    fn uncommitted_gc_report_is_resent_unchanged() {
        let mut queue = GcReportQueue::default();
        queue.handle_collected(collected(1, GcReason::Disk));
        let first = queue.poll_report(7, START);
        queue.handle_collected(collected(2, GcReason::Disk));

        queue.handle_session();
        let again = queue.poll_report(1, START);

        assert_eq!(first, again);
        queue.acknowledge(1);
        assert_eq!(queue.poll_report(2, START), None);
    }

    #[test]
    fn backward_clock_jump_does_not_delay_gc_report() {
        let mut queue = GcReportQueue::default();
        queue.handle_collected(collected(1, GcReason::Disk));
        queue.poll_report(1, START);
        queue.acknowledge(1);
        queue.handle_collected(collected(2, GcReason::Disk));

        assert!(queue.poll_report(2, Timestamp(5)).is_some());
    }
}
