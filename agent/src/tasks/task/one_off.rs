//! The end of a one-off task's work, assembled from all sources.
//!
//! The driver has the actions. The eBPF programs and the cgroup have the usage, and the programs name the victim of
//! an out-of-memory kill. Unknown parts stay empty.

use muster_agent_core::task::end_of;
use muster_domain::alloc::Exit;
use muster_domain::id::Timestamp;
use muster_domain::one_off::{BlockBytes, Oom, TaskUsageTotals, Usage, WorkEnd, reason};
use muster_driver::ActionsEnd;

use crate::bpf::{Bpf, OomRecord, TaskCounters};
use crate::resources::cgroup::{OomCount, TaskCgroup};
use crate::tasks::task_ref::TaskRef;

/// The failure reason of a task whose driver died with its remaining actions.
const DRIVER_DIED: &str =
    "the driver was started again while the task ran, and its end was not seen";

/// The text in a failure reason that marks a process as out of memory. It is Diego's text.
const OUT_OF_MEMORY: &str = " (out of memory)";

/// The observed end of a task.
#[derive(Debug)]
pub(super) struct ObservedExit {
    pub(super) exit: Exit,
    /// The end of the actions, from the driver of a task that has some.
    pub(super) actions: Option<Box<ActionsEnd>>,
    /// Whether its driver saw the end.
    pub(super) by_driver: bool,
    /// The reason for which its driver stopped it without a request, if it did.
    pub(super) stopped: Option<String>,
}

impl TaskRef {
    /// Whether the task runs at most once, and its end is reported.
    pub(crate) fn is_one_off(&self) -> bool {
        self.desired.job.spec.is_one_off()
    }
}

/// Returns the end of a task from `observed`. `exit` has the out-of-memory facts that `observed` lacks.
pub(super) fn end(
    observed: ObservedExit,
    exit: Exit,
    oom: Option<Oom>,
    usage: Usage,
    at: Timestamp,
) -> WorkEnd {
    let end = match observed.actions {
        Some(actions) => of_actions(*actions, exit),
        None if observed.by_driver => end_of(exit, &exit.message(""), at),
        // The ledger saw the process that runs next to the actions, which proves nothing about them.
        None => WorkEnd::failure(DRIVER_DIED, at),
    };
    WorkEnd {
        oom,
        usage,
        at,
        ..end
    }
}

fn of_actions(actions: ActionsEnd, exit: Exit) -> WorkEnd {
    let ActionsEnd {
        failure_reason,
        failed_action,
        exited,
        result,
        result_truncated,
        result_note,
    } = actions;
    let failed = !exit.success();
    // A driver sees no kill in a cgroup of version 1, so the driver's text is added here. A tree may succeed
    // although a process of it was killed, as under `try`: a success has no reason.
    let is_oom_missing = exit.oom_killed && exited && !failure_reason.contains(OUT_OF_MEMORY);
    let failure_reason = match (failed, is_oom_missing) {
        (false, _) => String::new(),
        (true, true) => reason(&format!("{failure_reason}{OUT_OF_MEMORY}")),
        (true, false) => reason(&failure_reason),
    };
    WorkEnd {
        failed,
        failure_reason,
        failed_action,
        result,
        result_truncated,
        result_note,
        exit: exited.then_some(exit),
        ..WorkEnd::default()
    }
}

/// Returns the known facts of an out-of-memory kill.
pub(super) fn oom(count: Option<OomCount>, record: Option<&OomRecord>, asked_bytes: u64) -> Oom {
    let counted = count.unwrap_or_default();
    Oom {
        limit_bytes: counted.limit_bytes.unwrap_or(asked_bytes),
        peak_bytes: counted.peak_bytes.unwrap_or(0),
        process: record.map_or_else(String::new, |record| record.process.clone()),
    }
}

/// Returns the usage of a task, as counted by the eBPF programs and its cgroup. For CPU time, the programs' count
/// is more exact.
pub(super) fn usage(
    bpf: Option<&Bpf>,
    cgroup: Option<&TaskCgroup>,
    memory_peak_bytes: Option<u64>,
) -> Usage {
    let Some(cgroup) = cgroup else {
        return Usage::default();
    };
    let counters = bpf.and_then(|bpf| match bpf.counters_of(cgroup.id()) {
        Ok(counters) => counters.map(|counters| (counters, !bpf.absent().contains_key("block"))),
        Err(error) => {
            tracing::warn!(%error, "the counters of a task that ended cannot be read; its end is reported without");
            None
        }
    });
    let by_cgroup = || cgroup.cpu_time().unwrap_or_default();
    Usage {
        cpu: counters
            .map(|(counters, _)| counters.cpu_time())
            .or_else(by_cgroup),
        memory_peak_bytes,
        counted: counters.map(|(counters, has_block)| counted(&counters, has_block)),
    }
}

fn counted(counters: &TaskCounters, has_block: bool) -> TaskUsageTotals {
    let TaskCounters {
        sched: _,
        exec,
        net,
        block,
    } = counters;
    TaskUsageTotals {
        forks: exec.forks,
        net_rx_bytes: net.ingress_bytes,
        net_rx_packets: net.ingress_packets,
        net_tx_bytes: net.egress_bytes,
        net_tx_packets: net.egress_packets,
        block: has_block.then_some(BlockBytes {
            read: block.read_bytes,
            written: block.write_bytes,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(observed: ObservedExit) -> WorkEnd {
        let exit = observed.exit;
        end(observed, exit, None, Usage::default(), Timestamp(7))
    }

    fn code(code: i32) -> Exit {
        Exit {
            code,
            ..Exit::default()
        }
    }

    #[test]
    fn task_end_contains_the_actions_end() {
        let actions = ActionsEnd {
            failure_reason: "x".repeat(2_000),
            failed_action: "serial[1].run".to_owned(),
            exited: true,
            result: "r".to_owned(),
            ..ActionsEnd::default()
        };

        let end = ended(ObservedExit {
            exit: code(3),
            actions: Some(Box::new(actions)),
            by_driver: true,
            stopped: None,
        });

        assert!(end.failed && end.failure_reason.ends_with("(truncated)"));
        assert_eq!(end.failure_reason.len(), 1_024);
        assert_eq!(
            (end.failed_action.as_str(), end.result.as_str()),
            ("serial[1].run", "r")
        );
        assert_eq!((end.exit, end.at), (Some(code(3)), Timestamp(7)));
    }

    #[test]
    fn actions_without_a_deciding_process_have_no_exit() {
        let end = ended(ObservedExit {
            exit: code(1),
            actions: Some(Box::new(ActionsEnd::failure("exceeded 2s timeout"))),
            by_driver: true,
            stopped: None,
        });

        assert_eq!((end.failed, end.exit), (true, None));
        assert_eq!(end.failure_reason, "exceeded 2s timeout");
    }

    #[test]
    fn oom_kill_is_appended_to_failure_reason_once() {
        let exit = Exit {
            oom_killed: true,
            ..code(137)
        };
        for text in [
            "LOG: Exited with status 137",
            "LOG: Exited with status 137 (out of memory)",
        ] {
            let actions = ActionsEnd {
                exited: true,
                ..ActionsEnd::failure(text)
            };
            let end = ended(ObservedExit {
                exit,
                actions: Some(Box::new(actions)),
                by_driver: true,
                stopped: None,
            });
            assert_eq!(
                end.failure_reason,
                "LOG: Exited with status 137 (out of memory)"
            );
        }
    }

    /// A child under `try` was killed for memory, and the tree went on.
    #[test]
    fn success_after_memory_kill_has_no_reason() {
        let exit = Exit {
            oom_killed: true,
            ..code(0)
        };
        let actions = ActionsEnd {
            exited: true,
            ..ActionsEnd::default()
        };

        let end = ended(ObservedExit {
            exit,
            actions: Some(Box::new(actions)),
            by_driver: true,
            stopped: None,
        });

        assert_eq!((end.failed, end.failure_reason.as_str()), (false, ""));
        assert_eq!(end.exit, Some(exit));
    }

    /// An exit of zero in the ledger is that of the process next to the actions.
    #[test]
    fn end_unseen_by_driver_is_failure() {
        let end = ended(ObservedExit {
            exit: code(0),
            actions: None,
            by_driver: false,
            stopped: None,
        });

        assert_eq!((end.failed, end.exit), (true, None));
        assert_eq!(end.failure_reason, DRIVER_DIED);
    }

    #[test]
    fn a_task_without_actions_ends_as_its_process() {
        let observed = |exit| ObservedExit {
            exit,
            actions: None,
            by_driver: true,
            stopped: None,
        };

        assert!(!ended(observed(code(0))).failed);
        assert_eq!(ended(observed(code(4))).failure_reason, "exit code 4");
    }

    #[test]
    fn uncounted_oom_values_are_zero() {
        let oom = oom(None, None, 64);

        assert_eq!(
            (oom.limit_bytes, oom.peak_bytes, oom.process.as_str()),
            (64, 0, "")
        );
    }
}
