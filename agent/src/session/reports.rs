//! Reports of allocations, and of their collection, on their way to the control plane.
//!
//! Only the newest report of an allocation is kept: it replaces the one before. So the outbox is never larger than
//! the number of allocations. A report counts as delivered only when the server reports its commit. After a broken
//! session, all uncommitted reports are sent again.
//!
//! A new agent does not know which reports of the previous one arrived. A node may hold tens of thousands of ended
//! allocations. Of their reports, only those that the control plane lacks are sent. The agent knows them once the
//! first set of a session is complete.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_agent_core::gc::GcReportQueue;
use muster_domain::alloc::{AllocReport, ClientStatus};
use muster_domain::id::AllocId;
use muster_domain::node::NodeCollected;
use muster_wire::limits::REPORT_BATCH_MAX;
use muster_wire::rpc::report_bytes;
use tokio::sync::Notify;

use crate::limits::REPORT_BYTES_MAX;
use crate::session::clock::now;

/// The newest report of each allocation, with its state of delivery.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    entries: Mutex<BTreeMap<AllocId, ReportEntry>>,
    pending: Notify,
    urgent: Notify,
    collections: Mutex<GcReportQueue>,
    collected: Notify,
}

#[derive(Debug)]
struct ReportEntry {
    report: AllocReport,
    /// Counts the reports of the allocation.
    number: u64,
    /// The newest report that was sent in this session: its number and the message that contained it.
    sent: Option<(u64, u64)>,
    /// The number of the newest committed report.
    acked: u64,
    /// A session broke before the server acknowledged a report of the allocation.
    doubtful: bool,
    /// Another deployment waits for the health: the next report is sent even if it equals the last one.
    asked_anew: bool,
    /// An earlier agent may have sent this report. It is held back until the control plane has sent its known
    /// states.
    may_be_known: bool,
}

impl ReportEntry {
    fn new(report: AllocReport) -> Self {
        Self {
            number: 1,
            sent: None,
            acked: 0,
            doubtful: false,
            asked_anew: false,
            may_be_known: false,
            report,
        }
    }
}

impl Outbox {
    /// Adds a report. A report that equals the last one is dropped.
    pub(crate) fn put(&self, report: AllocReport, urgent: bool) {
        {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            match entries.get_mut(&report.alloc_id) {
                Some(entry) if entry.report == report && !entry.asked_anew => return,
                Some(entry) => {
                    entry.asked_anew = false;
                    entry.may_be_known = false;
                    entry.report = report;
                    entry.number += 1;
                }
                None => {
                    let entry = ReportEntry::new(report);
                    entries.insert(entry.report.alloc_id, entry);
                }
            }
        }
        if urgent {
            self.urgent.notify_one();
        } else {
            self.pending.notify_one();
        }
    }

    /// Adds the last report of an allocation that had ended before this agent began.
    pub(crate) fn put_ended(&self, report: AllocReport) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entry = ReportEntry::new(report);
        entry.may_be_known = true;
        entries.insert(entry.report.alloc_id, entry);
    }

    /// Handles the statuses that the control plane has recorded. An ended allocation never changes again, so an
    /// equal end status means that the report is known.
    pub(crate) fn acknowledge_known(&self, known: impl Iterator<Item = (AllocId, ClientStatus)>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for (alloc_id, status) in known {
            if let Some(entry) = entries.get_mut(&alloc_id)
                && entry.may_be_known
                && entry.report.client_status == status
            {
                entry.may_be_known = false;
                entry.acked = entry.number;
            }
        }
    }

    /// Handles the end of the control plane's first set: reports that it did not confirm are sent.
    pub(crate) fn end_first_reports(&self) {
        {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            for entry in entries.values_mut() {
                entry.may_be_known = false;
            }
        }
        self.pending.notify_one();
    }

    /// Marks that another deployment waits for the allocation's health. The control plane has dropped the answer to
    /// the previous deployment, and needs even an equal report.
    pub(crate) fn ask_anew(&self, alloc_id: AllocId) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get_mut(&alloc_id) {
            entry.asked_anew = true;
        }
    }

    /// Returns when a report may be ready to send, after `delay` unless it is urgent.
    pub(crate) async fn due(&self, delay: std::time::Duration) {
        tokio::select! {
            () = self.urgent.notified() => {}
            () = self.pending.notified() => {
                tokio::select! {
                    () = self.urgent.notified() => {}
                    () = tokio::time::sleep(delay) => {}
                }
            }
        }
    }

    /// Adds the report of a finished collection.
    pub(crate) fn put_collected(&self, report: NodeCollected) {
        self.collections().handle_collected(report);
        self.collected.notify_one();
    }

    /// Returns when the report of a collection is due.
    pub(crate) async fn collected_due(&self) {
        loop {
            let now = now();
            let due = self.collections().poll_timeout(now);
            let wait = due.map(|due| due.since(now));
            if wait.is_some_and(|wait| wait.is_zero()) {
                return;
            }
            let sleep = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.collected.notified() => {}
                () = sleep => {}
            }
        }
    }

    /// The report of a collection for the message `sequence`, if one is due.
    pub(crate) fn collected(&self, sequence: u64) -> Option<NodeCollected> {
        self.collections().poll_report(sequence, now())
    }

    fn collections(&self) -> MutexGuard<'_, GcReportQueue> {
        // A panic elsewhere loses one report at most.
        self.collections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the beginning of a session: uncommitted reports are to be sent again.
    pub(crate) fn begin_session(&self) {
        self.collections().handle_session();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries.values_mut() {
            let under_way = entry
                .sent
                .take()
                .is_some_and(|(number, _)| number > entry.acked);
            entry.doubtful |= under_way;
        }
    }

    /// Sends again the reports that were in flight when a session broke. The server of that session may have
    /// written them only after the next server had written a newer report. A repeated report that is already
    /// written changes nothing.
    pub(crate) fn repeat_doubtful(&self) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries.values_mut() {
            if std::mem::take(&mut entry.doubtful) {
                entry.number += 1;
            }
        }
    }

    /// Reports to send in the message `sequence`; empty if there are none.
    pub(crate) fn batch(&self, sequence: u64) -> Vec<AllocReport> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = 0;
        let unsent = entries.values_mut().filter(|entry| {
            !entry.may_be_known
                && entry.number > entry.acked
                && entry.sent.is_none_or(|(number, _)| number < entry.number)
        });
        unsent
            .take(REPORT_BATCH_MAX)
            .take_while(|entry| {
                let first = bytes == 0;
                bytes += report_bytes(&entry.report);
                first || bytes <= REPORT_BYTES_MAX
            })
            .map(|entry| {
                entry.sent = Some((entry.number, sequence));
                entry.report.clone()
            })
            .collect()
    }

    /// Handles that messages up to `sequence` are committed.
    pub(crate) fn ack(&self, sequence: u64) {
        self.collections().acknowledge(sequence);
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries.values_mut() {
            if let Some((number, message)) = entry.sent
                && message <= sequence
            {
                entry.acked = entry.acked.max(number);
            }
        }
    }

    /// Whether the newest report of the allocation is committed.
    pub(crate) fn is_reported(&self, alloc_id: AllocId) -> bool {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries
            .get(&alloc_id)
            .is_none_or(|entry| entry.acked == entry.number)
    }

    /// Whether every report is committed.
    pub(crate) fn is_empty(&self) -> bool {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.values().all(|entry| entry.acked == entry.number)
    }

    /// Whether tasks of the allocation may still be started.
    pub(crate) fn is_unfinished(&self, alloc_id: AllocId) -> bool {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries
            .get(&alloc_id)
            .is_some_and(|entry| !entry.report.client_status.is_terminal())
    }

    /// Whether a start of the task was attempted, so that it may have output.
    pub(crate) fn was_begun(&self, alloc_id: AllocId, task: &str) -> bool {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let state = entries.get(&alloc_id).and_then(|entry| {
            entry
                .report
                .task_states
                .iter()
                .find(|state| state.name == task)
        });
        state.is_some_and(|state| state.started_at.is_some() || state.restarts > 0 || state.failed)
    }

    /// Removes the report of an allocation that is gone.
    pub(crate) fn forget(&self, alloc_id: AllocId) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.remove(&alloc_id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use muster_domain::alloc::TaskState;
    use muster_domain::id::{LogIndex, Timestamp};

    use super::*;

    fn report(name: u32, description: &str) -> AllocReport {
        AllocReport {
            alloc_id: AllocId::at(LogIndex(1), name),
            client_status: ClientStatus::Running,
            client_description: description.to_owned(),
            task_states: Vec::new(),
            healthy: None,
            end: None,
            remote: Vec::new(),
        }
    }

    fn words(batch: &[AllocReport]) -> Vec<&str> {
        batch
            .iter()
            .map(|report| report.client_description.as_str())
            .collect()
    }

    #[test]
    fn a_later_report_replaces_an_earlier() {
        let outbox = Outbox::default();
        outbox.put(report(1, "a"), false);
        outbox.put(report(1, "b"), false);

        assert_eq!(words(&outbox.batch(1)), ["b"]);
        assert_eq!(words(&outbox.batch(2)), Vec::<&str>::new());
    }

    #[test]
    fn uncommitted_report_is_sent_again() {
        let outbox = Outbox::default();
        outbox.put(report(1, "a"), false);
        outbox.batch(1);

        outbox.begin_session();

        assert_eq!(words(&outbox.batch(1)), ["a"]);
    }

    /// The earlier server may write the report late, over a newer one from the next server.
    #[test]
    fn report_under_way_is_repeated_once() {
        let outbox = Outbox::default();
        outbox.put(report(1, "a"), false);
        outbox.put(report(2, "told"), false);
        outbox.batch(1);
        outbox.ack(1);
        outbox.put(report(1, "b"), false);
        outbox.batch(2);
        outbox.begin_session();
        outbox.batch(1);
        outbox.ack(1);

        outbox.repeat_doubtful();

        assert_eq!(words(&outbox.batch(2)), ["b"]);
        outbox.ack(2);
        outbox.repeat_doubtful();
        assert!(outbox.batch(3).is_empty());
    }

    #[test]
    fn committed_report_is_not_sent_again() {
        let outbox = Outbox::default();
        outbox.put(report(1, "a"), false);
        outbox.batch(1);
        outbox.ack(1);

        outbox.begin_session();

        assert!(outbox.batch(1).is_empty());
        assert!(outbox.is_reported(AllocId::at(LogIndex(1), 1)));
    }

    /// A failed start counts, too. A task that waits for others, or that does not exist, does not count.
    #[test]
    fn tasks_that_were_begun_are_known() {
        let state = |name: &str| TaskState::pending(name);
        let ran = TaskState {
            started_at: Some(Timestamp(1)),
            ..state("ran")
        };
        let failed = TaskState {
            failed: true,
            ..state("failed")
        };
        let tried = TaskState {
            restarts: 1,
            ..state("tried")
        };
        let outbox = Outbox::default();
        outbox.put_ended(AllocReport {
            task_states: vec![state("waits"), ran, failed, tried],
            ..report(1, "")
        });

        let begun = |name| outbox.was_begun(AllocId::at(LogIndex(1), 1), name);

        let names = ["ran", "failed", "tried", "waits", "nosuch"];
        assert_eq!(names.map(begun), [true, true, true, false, false]);
        assert!(!outbox.was_begun(AllocId::at(LogIndex(1), 2), "ran"));
    }

    /// The control plane knows the first end, another status of the second allocation, and nothing of the third.
    #[test]
    fn acknowledged_end_is_not_reported_again() {
        let outbox = Outbox::default();
        let [known, other, unknown] = [1, 2, 3].map(|name| {
            let mut ended = report(name, "ended");
            ended.client_status = ClientStatus::Complete;
            outbox.put_ended(ended.clone());
            ended.alloc_id
        });
        let waiting = outbox.batch(1);

        let acknowledged = [(known, ClientStatus::Complete), (other, ClientStatus::Lost)];
        outbox.acknowledge_known(acknowledged.into_iter());
        let is_reported = [known, other, unknown].map(|alloc_id| outbox.is_reported(alloc_id));
        outbox.end_first_reports();

        assert_eq!(waiting, []);
        assert_eq!(is_reported, [true, false, false]);
        let reported: BTreeSet<AllocId> = outbox
            .batch(1)
            .iter()
            .map(|report| report.alloc_id)
            .collect();
        assert_eq!(reported, BTreeSet::from([other, unknown]));
    }

    /// The control plane has the end, and not the report after the allocation was recovered.
    #[test]
    fn report_changed_before_acknowledgement_is_sent() {
        let outbox = Outbox::default();
        let mut ended = report(1, "ended");
        ended.client_status = ClientStatus::Complete;
        outbox.put_ended(ended.clone());
        ended.client_description = "ended otherwise".to_owned();
        outbox.put(ended.clone(), false);

        outbox.acknowledge_known([(ended.alloc_id, ClientStatus::Complete)].into_iter());

        assert_eq!(words(&outbox.batch(1)), ["ended otherwise"]);
    }

    /// The answer to the first message must not cover a change made after it was sent.
    #[test]
    fn an_acknowledgement_covers_only_sent_changes() {
        let outbox = Outbox::default();
        outbox.put(report(1, "a"), false);
        outbox.batch(1);
        outbox.put(report(1, "b"), false);

        outbox.ack(1);

        assert!(!outbox.is_reported(AllocId::at(LogIndex(1), 1)));
        assert_eq!(words(&outbox.batch(2)), ["b"]);
    }

    #[test]
    fn unchanged_report_is_not_sent_again() {
        let outbox = Outbox::default();
        outbox.put(report(1, "a"), false);
        outbox.batch(1);
        outbox.ack(1);

        outbox.put(report(1, "a"), true);

        assert!(outbox.batch(2).is_empty());
    }

    #[test]
    fn same_report_answers_new_request() {
        let outbox = Outbox::default();
        outbox.put(report(1, "well"), false);
        assert_eq!(words(&outbox.batch(1)), ["well"]);
        outbox.ack(1);

        outbox.ask_anew(report(1, "").alloc_id);
        // The old reports are not sent again by themselves: they answered another deployment.
        assert!(outbox.batch(2).is_empty());
        outbox.put(report(1, "well"), false);
        assert_eq!(words(&outbox.batch(3)), ["well"]);
        outbox.put(report(1, "well"), false);
        outbox.ack(3);
        assert!(outbox.batch(4).is_empty());
    }

    #[test]
    fn batches_are_bounded() {
        let outbox = Outbox::default();
        for name in 0..=u32::try_from(REPORT_BATCH_MAX).unwrap() {
            outbox.put(report(name, "a"), false);
        }

        assert_eq!(outbox.batch(1).len(), REPORT_BATCH_MAX);
        assert_eq!(outbox.batch(2).len(), 1);
    }

    #[test]
    fn batches_fit_a_frame() {
        let outbox = Outbox::default();
        for name in 0..u32::try_from(REPORT_BATCH_MAX).unwrap() {
            outbox.put(report(name, &"x".repeat(100_000)), false);
        }

        let mut sent = 0;
        for sequence in 1.. {
            let batch = outbox.batch(sequence);
            if batch.is_empty() {
                break;
            }
            sent += batch.len();
            assert!(muster_wire::frame::encode(&batch).is_ok());
        }

        assert_eq!(sent, REPORT_BATCH_MAX);
    }

    #[tokio::test]
    async fn urgent_reports_do_not_wait() {
        let outbox = Outbox::default();
        outbox.put(report(1, "a"), false);
        outbox.put(report(1, "b"), true);
        let due = outbox.due(Duration::from_hours(1));

        assert!(
            tokio::time::timeout(Duration::from_mins(1), due)
                .await
                .is_ok()
        );
    }
}
