//! Tasks of an allocation that run on another system, and the allocation that manages them.

use muster_domain::alloc::{AllocReport, ClientStatus, RemoteHandle};
use muster_domain::job::TaskGroup;

/// The remote tasks of an allocation, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Remote {
    /// Handles of the running tasks: as its agent reported them, or as another allocation handed them over.
    pub(super) running: Vec<RemoteHandle>,
    /// Handles that were handed over to another allocation. The agent of this allocation leaves the tasks running.
    pub(super) handed: Vec<RemoteHandle>,
    /// Whether a client asked for this very allocation to be stopped, so that no task of it is handed over.
    pub(super) stop_asked: bool,
}

impl Remote {
    pub(super) const NONE: &Self = &Self {
        running: Vec::new(),
        handed: Vec::new(),
        stop_asked: false,
    };

    /// Returns the handles of the running tasks.
    pub(crate) fn running(&self) -> &[RemoteHandle] {
        &self.running
    }

    /// Returns the handles of the tasks that were handed over to another allocation.
    pub(crate) fn handed(&self) -> &[RemoteHandle] {
        &self.handed
    }

    pub(crate) fn is_stop_asked(&self) -> bool {
        self.stop_asked
    }

    /// Returns the remote tasks after a report. An allocation that has ended by its agent's report leaves no task
    /// running any more.
    pub(super) fn reported(&self, report: &AllocReport, group: &TaskGroup) -> Self {
        let has_ended = match report.client_status {
            ClientStatus::Complete | ClientStatus::Failed => true,
            ClientStatus::Pending
            | ClientStatus::Running
            | ClientStatus::Lost
            | ClientStatus::Unknown => false,
        };
        let handed = if has_ended { &[] } else { self.handed() };
        let running = reported_handles(report, group);
        Self {
            stop_asked: self.stop_asked && !running.is_empty(),
            running,
            handed: handed.to_vec(),
        }
    }
}

/// Returns the valid handles of a report: one for each task, none too large.
fn reported_handles(report: &AllocReport, group: &TaskGroup) -> Vec<RemoteHandle> {
    let of_task = |name: &str| {
        let mut handles = report.remote.iter().filter(|handle| handle.fits());
        handles.find(|handle| handle.task == name).cloned()
    };
    let names = group.tasks.iter().map(|task| task.name.as_str());
    names.filter_map(of_task).collect()
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture::job;
    use muster_domain::id::{AllocId, LogIndex};
    use muster_domain::limits::REMOTE_HANDLE_BYTES_MAX;

    use super::*;

    fn handle(task: &str, bytes: usize) -> RemoteHandle {
        RemoteHandle {
            task: task.to_owned(),
            handle: vec![7; bytes],
        }
    }

    fn report(client_status: ClientStatus, remote: Vec<RemoteHandle>) -> AllocReport {
        AllocReport {
            alloc_id: AllocId::at(LogIndex(1), 0),
            client_status,
            client_description: String::new(),
            task_states: Vec::new(),
            healthy: None,
            end: None,
            remote,
        }
    }

    #[test]
    fn invalid_remote_handles_in_report_are_dropped() {
        let spec = job("web").build();
        let group = &spec.groups[0];
        let name = group.tasks[0].name.as_str();
        let handles = vec![
            handle("stranger", 1),
            handle(name, REMOTE_HANDLE_BYTES_MAX + 1),
            handle(name, REMOTE_HANDLE_BYTES_MAX),
            handle(name, 1),
        ];

        let remote = Remote::NONE.reported(&report(ClientStatus::Running, handles), group);

        assert_eq!(remote.running(), [handle(name, REMOTE_HANDLE_BYTES_MAX)]);
    }

    #[test]
    fn remote_handover_is_kept_until_terminal_report() {
        let spec = job("web").build();
        let group = &spec.groups[0];
        let remote = Remote {
            running: Vec::new(),
            handed: vec![handle("main", 1)],
            stop_asked: false,
        };
        for (status, left) in [
            (ClientStatus::Pending, 1),
            (ClientStatus::Running, 1),
            (ClientStatus::Complete, 0),
            (ClientStatus::Failed, 0),
        ] {
            let after = remote.reported(&report(status, Vec::new()), group);

            assert_eq!(after.handed().len(), left, "{status:?}");
        }
    }
}
