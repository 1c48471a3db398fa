//! Reports that are not committed yet. This module stands for `agent/src/session/reports.rs`.

use std::collections::BTreeMap;

use muster_domain::alloc::AllocReport;
use muster_domain::id::AllocId;

#[derive(Debug)]
struct ReportEntry {
    report: AllocReport,
    number: u64,
    /// The number of the newest report sent in this session, and the sequence number of its message.
    sent: Option<(u64, u64)>,
    acked: u64,
    /// Whether the next report must be sent even if it equals the previous one.
    must_send: bool,
}

/// The newest report of each allocation.
#[derive(Debug, Default)]
pub(super) struct Outbox(BTreeMap<AllocId, ReportEntry>);

impl Outbox {
    /// Stores a report. A report equal to the previous one is dropped unless [`Self::force_report`] was called.
    pub(super) fn put(&mut self, report: AllocReport) {
        match self.0.get_mut(&report.alloc_id) {
            Some(entry) if entry.report == report && !entry.must_send => {}
            Some(entry) => {
                entry.must_send = false;
                entry.report = report;
                entry.number += 1;
            }
            None => {
                let entry = ReportEntry {
                    number: 1,
                    sent: None,
                    acked: 0,
                    must_send: false,
                    report,
                };
                self.0.insert(entry.report.alloc_id, entry);
            }
        }
    }

    /// Makes the next report count as new, because the allocation belongs to another deployment now. That deployment
    /// needs the report even if it is unchanged.
    pub(super) fn force_report(&mut self, alloc_id: AllocId) {
        if let Some(entry) = self.0.get_mut(&alloc_id) {
            entry.must_send = true;
        }
    }

    /// Begins a session. Every report that is not committed becomes pending again.
    pub(super) fn begin_session(&mut self) {
        for entry in self.0.values_mut() {
            entry.sent = None;
        }
    }

    /// Returns the pending reports, and notes that the message `sequence` carries them.
    pub(super) fn batch(&mut self, sequence: u64) -> Vec<AllocReport> {
        let mut batch = Vec::new();
        for entry in self.0.values_mut().filter(|entry| entry.is_pending()) {
            entry.sent = Some((entry.number, sequence));
            batch.push(entry.report.clone());
        }
        batch
    }

    /// Whether a report is pending.
    pub(super) fn has_pending(&self) -> bool {
        self.0.values().any(ReportEntry::is_pending)
    }

    /// Notes that all messages up to `sequence` are committed.
    pub(super) fn ack(&mut self, sequence: u64) {
        for entry in self.0.values_mut() {
            if let Some((number, message)) = entry.sent
                && message <= sequence
            {
                entry.acked = entry.acked.max(number);
            }
        }
    }

    /// Whether every report is committed.
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(|entry| entry.acked == entry.number)
    }

    /// Whether the newest report of the allocation is committed.
    pub(super) fn is_reported(&self, alloc_id: AllocId) -> bool {
        self.0
            .get(&alloc_id)
            .is_none_or(|entry| entry.acked == entry.number)
    }

    /// Describes the reports on the allocation, for display.
    pub(super) fn describe(&self, alloc_id: AllocId) -> String {
        self.0.get(&alloc_id).map_or_else(String::new, |entry| {
            let status = entry.report.client_status.as_str();
            format!("{status} {} {:?} {}", entry.number, entry.sent, entry.acked)
        })
    }

    /// Removes the reports of an allocation that was destroyed.
    pub(super) fn forget(&mut self, alloc_id: AllocId) {
        self.0.remove(&alloc_id);
    }
}

impl ReportEntry {
    fn is_pending(&self) -> bool {
        self.number > self.acked && self.sent.is_none_or(|(number, _)| number < self.number)
    }
}
