//! The end of a task: determines how it ended, and removes all remains of that start.
//!
//! The driver that was its parent has the exit status. If the driver died, the eBPF exit ledger has it. If neither
//! observed the end, the status is unknown, and the report says so. A known end is stored before anything is
//! removed, so that an agent that dies in between reports the same.

use std::time::Instant;

use muster_agent_core::task::TaskInput;
use muster_domain::alloc::Exit;
use muster_domain::error_chain::chain;
use muster_domain::one_off::Oom;
use muster_driver::{ExitResult, RecoverTaskError};

use super::one_off::{self, ObservedExit};
use super::remote;
use crate::bpf::{Bpf, OomRecord};
use crate::context::AgentContext;
use crate::limits::{CGROUP_EMPTY_INTERVAL, DRIVER_PAUSE_MAX, DRIVER_SETTLED, LEDGER_DEADLINE};
use crate::resources::cgroup::OomCount;
use crate::resources::teardown::kill;
use crate::session::clock::now;
use crate::storage::store::Ended;
use crate::tasks::live::{LiveTask, TaskInputSender};
use crate::tasks::task::cleanup::clean_up;
use crate::tasks::task::driver_calls::RETRY_PAUSE;
use crate::tasks::task::record::store_record;
use crate::tasks::task_ref::TaskRef;

/// The parties that were notified that the task runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartKnowledge {
    /// Neither yet: the driver must first confirm that the task runs. The messages are then sent to the operator.
    No(Vec<String>),
    /// The runner; the driver has to recover the task.
    ToRunner,
    ToRunnerAndDriver,
}

/// Waits for the end of a task, cleans up, and reports to its runner.
pub(super) async fn end(
    context: &AgentContext,
    task: &TaskRef,
    live: &LiveTask,
    known: StartKnowledge,
    inputs: &TaskInputSender,
) {
    let observed = tokio::select! {
        biased;
        () = live.detaching.cancelled() => {
            let note = remote::detach(context, task, live).await;
            context.tasks.live.remove(task.alloc_id(), task.name());
            inputs.send(TaskInput::Detached { note }).await;
            return;
        }
        observed = wait(context.bpf(), live, known, inputs) => observed,
    };
    let observed = match observed {
        Ok(observed) => observed,
        Err(UnreachableTask { reason }) => {
            remote::remove_remains(context, task, live).await;
            context.tasks.live.remove(task.alloc_id(), task.name());
            inputs.send(TaskInput::Lost { reason }).await;
            return;
        }
    };
    let MemoryOutcome {
        exit,
        mut detail,
        oom,
        peak_bytes,
    } = with_memory(context.bpf(), task, live, observed.exit);
    if let Some(why) = &observed.stopped {
        push_detail(&mut detail, why);
    }
    if !exit.success()
        && let Some(full) = context.storage.disks.full(task.alloc_id())
    {
        push_detail(&mut detail, &full);
    }
    let end = task.is_one_off().then(|| {
        let usage = one_off::usage(context.bpf(), live.cgroup.as_ref(), peak_bytes);
        Box::new(one_off::end(observed, exit, oom, usage, now()))
    });
    let mut record = live.record.clone();
    record.ended = Some(Ended {
        exit,
        detail: detail.clone(),
        end: end.clone(),
    });
    store_record(&context.storage.store, task, &record).await;

    if let Some(cgroup) = &live.cgroup {
        kill(cgroup).await;
    }
    let left = live.streams.close(&context.ring).await;
    if left > 0 {
        push_detail(
            &mut detail,
            &format!("{left} bytes of output could not be saved"),
        );
    }
    clean_up(context, task, &live.slot, &record, live.cgroup.as_ref()).await;
    context.tasks.live.remove(task.alloc_id(), task.name());
    inputs.send(TaskInput::Exited { exit, detail, end }).await;
}

/// A task that runs elsewhere, and that its driver cannot recover.
#[derive(Debug)]
struct UnreachableTask {
    reason: String,
}

/// Waits until the task has ended, through any number of deaths of its driver.
async fn wait(
    bpf: Option<&Bpf>,
    live: &LiveTask,
    mut known: StartKnowledge,
    inputs: &TaskInputSender,
) -> Result<ObservedExit, UnreachableTask> {
    let driver = &live.slot.driver;
    let mut pause = RETRY_PAUSE;
    loop {
        if known != StartKnowledge::ToRunnerAndDriver {
            live.slot.ready().await;
            match driver.recover_task(live.handle()).await {
                Ok(()) => {
                    if let StartKnowledge::No(messages) =
                        std::mem::replace(&mut known, StartKnowledge::ToRunner)
                    {
                        // The task has no process of the agent, or has just ended.
                        let (elsewhere, _) = remote::handle(&live.slot, &live.handle()).await;
                        if let Some(handle) = elsewhere {
                            inputs.send(TaskInput::RunsElsewhere { handle }).await;
                        }
                        inputs.send(TaskInput::Recovered).await;
                        for message in messages {
                            inputs.send(TaskInput::Message { message }).await;
                        }
                    }
                }
                Err(RecoverTaskError::Gone { .. }) => {
                    return Ok(from_ledger(bpf, live).await);
                }
                Err(
                    error @ (RecoverTaskError::HandleVersion { .. }
                    | RecoverTaskError::InvalidHandle { .. }),
                ) => {
                    if remote::is_remote(&live.slot).await {
                        // A new start would run the task twice.
                        let reason = remote::not_taken(&chain(&error));
                        return Err(UnreachableTask { reason });
                    }
                    tracing::error!(
                        task_id = live.record.task_id,
                        error = chain(&error),
                        "the driver cannot take the task back, so it is ended"
                    );
                    return Ok(from_ledger(bpf, live).await);
                }
                Err(RecoverTaskError::Driver(_)) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(DRIVER_PAUSE_MAX);
                    continue;
                }
            }
        }
        let asked = Instant::now();
        match driver.wait_task(&live.record.task_id).await {
            Ok(result) if result.status_known => return Ok(seen_by_driver(result)),
            Ok(unknown) => {
                return Ok(ObservedExit {
                    stopped: unknown.stopped,
                    ..from_ledger(bpf, live).await
                });
            }
            Err(error) => {
                tracing::debug!(task_id = live.record.task_id, %error, "waiting for a task was interrupted");
                known = StartKnowledge::ToRunner;
                if asked.elapsed() > DRIVER_SETTLED {
                    // The pause grows only for a driver that answers each call with an error.
                    pause = RETRY_PAUSE;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(DRIVER_PAUSE_MAX);
            }
        }
    }
}

fn seen_by_driver(result: ExitResult) -> ObservedExit {
    ObservedExit {
        exit: Exit {
            code: result.exit_code,
            signal: result.signal,
            oom_killed: result.oom_killed,
            unknown: !result.exit_known(),
        },
        actions: result.actions,
        by_driver: true,
        stopped: result.stopped.or(result.err),
    }
}

/// Returns the kernel's record of a task whose end its driver did not see.
async fn from_ledger(bpf: Option<&Bpf>, live: &LiveTask) -> ObservedExit {
    ObservedExit {
        exit: exit_in_ledger(bpf, live).await,
        actions: None,
        by_driver: false,
        stopped: None,
    }
}

async fn exit_in_ledger(bpf: Option<&Bpf>, live: &LiveTask) -> Exit {
    if let Some(cgroup) = &live.cgroup {
        // The children outlived the main process. If the driver had seen its end, the driver would have ended them.
        kill(cgroup).await;
    }
    let unknown = Exit {
        unknown: true,
        ..Exit::default()
    };
    let Some(bpf) = bpf else {
        return unknown;
    };
    let deadline = Instant::now() + LEDGER_DEADLINE;
    loop {
        match bpf.exit_of(live.record.cgroup_id) {
            Ok(Some(record)) => return from_wait_status(record.wait_status),
            Ok(None) if Instant::now() < deadline => {
                tokio::time::sleep(CGROUP_EMPTY_INTERVAL).await;
            }
            Ok(None) => return unknown,
            Err(error) => {
                tracing::error!(%error, "the exit ledger cannot be read");
                return unknown;
            }
        }
    }
}

/// Decodes the status of `wait(2)`: the low seven bits are a signal, else the second byte is the code.
fn from_wait_status(status: i32) -> Exit {
    let signal = status & 0x7f;
    let code = if signal == 0 { (status >> 8) & 0xff } else { 0 };
    Exit {
        code,
        signal,
        ..Exit::default()
    }
}

/// The part of memory in the end of a task.
struct MemoryOutcome {
    /// The exit, with its out-of-memory flag corrected.
    exit: Exit,
    /// Details of the end, as text.
    detail: String,
    /// The details of an out-of-memory end.
    oom: Option<Oom>,
    peak_bytes: Option<u64>,
}

/// Adds facts about memory. The cgroup's own count decides, and the eBPF programs name the process. If the cgroup
/// is no longer readable, the programs decide, too.
fn with_memory(bpf: Option<&Bpf>, task: &TaskRef, live: &LiveTask, exit: Exit) -> MemoryOutcome {
    let count = live
        .cgroup
        .as_ref()
        .and_then(|cgroup| cgroup.oom().ok().flatten());
    let record = bpf.and_then(|bpf| {
        bpf.oom_of(live.record.cgroup_id)
            .inspect_err(|error| tracing::error!(%error, "the record of victims cannot be read"))
            .ok()
            .flatten()
    });
    let resources = &task.task().resources;
    let asked = resources.memory_limit().unwrap_or_default().bytes();
    let oom = one_off::oom(count, record.as_ref(), asked);
    let (exit, detail) = classify_memory(exit, count, record, asked);
    MemoryOutcome {
        exit,
        detail,
        oom: exit.oom_killed.then_some(oom),
        peak_bytes: count.and_then(|count| count.peak_bytes),
    }
}

fn classify_memory(
    mut exit: Exit,
    count: Option<OomCount>,
    record: Option<OomRecord>,
    asked_bytes: u64,
) -> (Exit, String) {
    let count = count.unwrap_or_else(|| OomCount {
        kills: record.as_ref().map_or(0, |record| record.kills),
        peak_bytes: None,
        limit_bytes: Some(asked_bytes),
    });
    if count.kills == 0 {
        return (exit, String::new());
    }
    exit.oom_killed = true;
    (exit, oom_detail(count, record.as_ref()))
}

fn oom_detail(count: OomCount, record: Option<&OomRecord>) -> String {
    let OomCount {
        kills,
        peak_bytes,
        limit_bytes,
    } = count;
    let mib = |bytes: Option<u64>| {
        bytes.map_or_else(
            || "unknown".to_owned(),
            |bytes| format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        )
    };
    let processes = if kills == 1 {
        "1 process"
    } else {
        &format!("{kills} processes")
    };
    let which = match record {
        Some(record) if kills == 1 => format!(" ({})", record.process),
        Some(record) => format!(" (the last one {})", record.process),
        None => String::new(),
    };
    format!(
        "{processes}{which} killed, limit {}, peak {}",
        mib(limit_bytes),
        mib(peak_bytes)
    )
}

fn push_detail(detail: &mut String, more: &str) {
    if !detail.is_empty() {
        detail.push_str("; ");
    }
    detail.push_str(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_statuses_are_codes_or_signals() {
        assert_eq!(
            from_wait_status(42 << 8),
            Exit {
                code: 42,
                ..Exit::default()
            }
        );
        assert_eq!(
            from_wait_status(9),
            Exit {
                signal: 9,
                ..Exit::default()
            }
        );
        // The status includes a core dump.
        assert_eq!(
            from_wait_status(0x8b),
            Exit {
                signal: 11,
                ..Exit::default()
            }
        );
        assert_eq!(from_wait_status(0), Exit::default());
    }

    #[test]
    fn driver_error_with_zero_code_is_not_success() {
        let failed = |code| ExitResult {
            err: Some("the executor is gone".to_owned()),
            ..ExitResult::exited(code)
        };

        let observed = seen_by_driver(failed(0));
        assert!(observed.exit.unknown && !observed.exit.success());
        assert_eq!(observed.stopped.as_deref(), Some("the executor is gone"));
        let observed = seen_by_driver(failed(3));
        assert_eq!((observed.exit.unknown, observed.exit.code), (false, 3));
    }

    const COUNT: OomCount = OomCount {
        kills: 1,
        peak_bytes: Some(64 << 20),
        limit_bytes: Some(64 << 20),
    };

    fn victim(kills: u64) -> OomRecord {
        OomRecord {
            kills,
            process: "eater".to_owned(),
            pid: 7,
            at_boottime_ns: 1,
        }
    }

    #[test]
    fn oom_kill_reports_process_limit_and_peak() {
        let (exit, detail) =
            classify_memory(Exit::default(), Some(COUNT), Some(victim(1)), 64 << 20);

        assert!(exit.oom_killed);
        assert_eq!(
            detail,
            "1 process (eater) killed, limit 64.0 MiB, peak 64.0 MiB"
        );
    }

    #[test]
    fn oom_kill_without_ebpf_reports_limit_and_peak() {
        let (_, detail) = classify_memory(Exit::default(), Some(COUNT), None, 64 << 20);

        assert_eq!(detail, "1 process killed, limit 64.0 MiB, peak 64.0 MiB");
    }

    #[test]
    fn cgroup_oom_count_overrides_ebpf_victim() {
        let count = OomCount { kills: 0, ..COUNT };

        let (exit, detail) =
            classify_memory(Exit::default(), Some(count), Some(victim(1)), 64 << 20);

        assert!(!exit.oom_killed);
        assert_eq!(detail, "");
    }

    #[test]
    fn oom_kill_of_removed_cgroup_is_still_reported() {
        let (exit, detail) = classify_memory(Exit::default(), None, Some(victim(3)), 32 << 20);

        assert!(exit.oom_killed);
        assert_eq!(
            detail,
            "3 processes (the last one eater) killed, limit 32.0 MiB, peak unknown"
        );
    }

    #[test]
    fn exit_without_memory_facts_stays_unchanged() {
        let exit = Exit {
            code: 1,
            ..Exit::default()
        };

        assert_eq!(
            classify_memory(exit, None, None, 32 << 20),
            (exit, String::new())
        );
    }
}
