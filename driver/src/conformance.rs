//! The tests that every driver passes, in process or through the plugin protocol.
//!
//! A crate with a driver implements [`DriverUnderTest`], which builds the `config` blocks for "sleep" or "exit 3". It
//! calls [`driver_conformance!`](crate::driver_conformance) in a test file, and each case becomes a separate test. A
//! case panics when the driver is wrong.
#![expect(
    clippy::missing_panics_doc,
    reason = "every function here is a test and panics by design"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt, join_all};
use futures::stream::StreamExt;
use serde_json::Value;

use crate::error::{DriverError, RecoverTaskError, StartTaskError, TaskError};
use crate::task::{ExitResult, TaskConfig, TaskHandle, TaskState};
use crate::task_driver::TaskDriver;

mod many_tasks;
mod node;
mod session;

pub use self::many_tasks::{fifty_tasks_run_at_once, two_hundred_tasks_live_at_once};
pub use self::node::{
    events_are_of_their_own_task, network_is_made_once, settings_may_come_more_than_once,
};
pub use self::session::{
    command_in_an_ended_task_is_refused, command_that_takes_too_long_is_ended,
    session_carries_input_and_output, session_has_a_terminal_with_a_size,
    session_in_no_task_is_not_found, session_keeps_outputs_apart_and_tells_the_exit,
};

/// The deadline of a step. It is far longer than any driver needs on a loaded machine, so only a driver that hangs
/// reaches it.
const STEP_DEADLINE: Duration = Duration::from_mins(1);
/// The deadline of a driver's first fingerprint. A host waits for it before it registers. A driver that reports only
/// at its next check, after half a minute, is too late.
const FIRST_WORD_DEADLINE: Duration = Duration::from_secs(10);
/// The run time of a task that is not meant to end. It is longer than any case.
const FOREVER: Duration = Duration::from_mins(10);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A driver under test.
pub trait DriverUnderTest: Send + Sync {
    /// Returns a driver that has no task.
    fn driver(&self) -> BoxFuture<'_, Arc<dyn TaskDriver>>;

    /// Returns the driver after a restart: `old` crashes, its tasks continue, and the new driver has no record of
    /// them.
    fn restart(&self, old: Arc<dyn TaskDriver>) -> BoxFuture<'_, Arc<dyn TaskDriver>>;

    /// Returns a task configuration with everything this driver requires from its host, and no `config`.
    fn host_part(&self, task_id: &str) -> TaskConfig;

    /// Returns a `config` that runs for a time and exits with 0.
    fn runs_for(&self, time: Duration) -> Value;

    /// Returns a `config` that exits with `code` immediately.
    fn exits_with(&self, code: i32) -> Value;

    /// Returns a `config` that runs forever and ignores every signal that can be ignored.
    fn ignores_signals(&self) -> Value;

    /// Returns a `config` that cannot start.
    fn broken(&self) -> Value;

    /// Returns a command that prints `text`, for drivers that can run commands.
    fn prints(&self, text: &str) -> Vec<String>;

    /// Returns a `config` whose start fails temporarily, if there is one.
    fn busy(&self) -> Option<Value> {
        None
    }

    /// Returns a command that copies its input to its output.
    fn copies_input(&self) -> Vec<String> {
        vec!["cat".to_owned()]
    }

    /// Returns a command that writes `text` to its error output and exits with 1.
    fn complains(&self, text: &str) -> Vec<String> {
        shell_command(&format!("printf '%s' '{text}' >&2; exit 1"))
    }

    /// Returns a command that answers each line of its terminal with `<lines> <columns>`.
    fn prints_size(&self) -> Vec<String> {
        shell_command("while read -r line; do stty size; done")
    }

    /// Returns a command that does not end.
    fn sleeps(&self) -> Vec<String> {
        vec!["sleep".to_owned(), FOREVER.as_secs().to_string()]
    }

    /// Whether the driver can run commands with their input and output as streams. A driver that cannot must return
    /// "unsupported".
    fn streams_exec(&self) -> bool {
        false
    }

    /// Whether the driver can find a task by its handle after [`Self::restart`].
    fn recovers(&self) -> bool {
        true
    }

    /// Returns a driver configuration whose fingerprint differs from the default one, if there is any.
    fn other_settings(&self) -> Option<Value> {
        None
    }

    /// Waits until the task of [`Self::ignores_signals`] ignores signals.
    fn settled<'a>(&'a self, _config: &'a TaskConfig) -> BoxFuture<'a, ()> {
        async {}.boxed()
    }
}

fn shell_command(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).to_vec()
}

/// Makes a test of each case for the subject that the expression builds.
#[macro_export]
macro_rules! driver_conformance {
    ($subject:expr) => {
        $crate::driver_conformance!(
            $subject;
            task_goes_through_its_life,
            exit_code_is_reported,
            wait_answers_at_once_for_an_ended_task,
            all_waiters_get_the_same_answer,
            destroyed_task_is_not_found,
            unknown_task_is_not_found,
            stop_ends_a_task_and_keeps_it,
            ignored_stop_ends_in_a_kill,
            stop_of_an_ended_task_succeeds,
            signal_reaches_the_task,
            unknown_signal_is_refused,
            signal_to_an_ended_task_is_refused,
            running_task_is_destroyed_by_force_only,
            failed_start_leaves_nothing,
            same_id_starts_once,
            recovered_task_is_the_same_task,
            recovery_of_a_known_task_changes_nothing,
            ended_task_is_not_recovered,
            newer_handle_is_refused,
            damaged_handle_is_refused,
            stored_handle_still_recovers,
            older_handle_is_recovered_or_refused,
            fifty_tasks_run_at_once,
            two_hundred_tasks_live_at_once,
            concurrent_calls_agree,
            stats_end_with_the_task,
            stats_come_at_the_interval,
            fingerprint_comes_at_once,
            fingerprint_tells_a_change_at_once,
            schema_is_an_object,
            listed_tasks_are_the_started_ones,
            command_runs_in_the_task,
            command_that_takes_too_long_is_ended,
            command_in_an_ended_task_is_refused,
            session_carries_input_and_output,
            session_keeps_outputs_apart_and_tells_the_exit,
            session_has_a_terminal_with_a_size,
            session_in_no_task_is_not_found,
            events_are_of_their_own_task,
            network_is_made_once,
            settings_may_come_more_than_once,
            start_that_may_pass_says_so,
            configuration_survives_the_way,
        );
    };
    ($subject:expr; $($case:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let subject = $subject;
                $crate::conformance::$case(&subject).await;
            }
        )+
    };
}

/// Awaits `step`, or panics with the name of the step that hangs.
async fn within<T>(what: &str, step: impl Future<Output = T>) -> T {
    tokio::time::timeout(STEP_DEADLINE, step)
        .await
        .unwrap_or_else(|_elapsed| panic!("{what} took longer than {STEP_DEADLINE:?}"))
}

fn task_id(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let ordinal = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(
        "00000000-0000-4000-8000-{:012x}/{name}/{ordinal:08x}",
        std::process::id()
    )
}

fn task(subject: &dyn DriverUnderTest, name: &str, config: Value) -> TaskConfig {
    let id = task_id(name);
    let mut task = subject.host_part(&id);
    task.alloc_id = id.split('/').next().unwrap_or_default().to_owned();
    task.id = id;
    name.clone_into(&mut task.task_name);
    task.config = config;
    task
}

async fn start(driver: &dyn TaskDriver, config: &TaskConfig) -> TaskHandle {
    within("start", driver.start_task(config.clone()))
        .await
        .expect("the task starts")
        .handle
}

async fn wait(driver: &dyn TaskDriver, task_id: &str) -> ExitResult {
    within("wait", driver.wait_task(task_id))
        .await
        .expect("the task is known")
}

async fn destroy(driver: &dyn TaskDriver, task_id: &str) {
    within("destroy", driver.destroy_task(task_id, true))
        .await
        .expect("the task is destroyed");
}

async fn state(driver: &dyn TaskDriver, task_id: &str) -> TaskState {
    within("inspect", driver.inspect_task(task_id))
        .await
        .expect("the task is known")
        .state
}

async fn assert_not_found(driver: &dyn TaskDriver, task_id: &str) {
    let not_found = || TaskError::not_found(task_id);
    let second = Duration::from_secs(1);

    assert_eq!(
        within("wait", driver.wait_task(task_id)).await,
        Err(not_found())
    );
    assert_eq!(
        within("stop", driver.stop_task(task_id, second, "SIGTERM")).await,
        Err(not_found())
    );
    assert_eq!(
        within("destroy", driver.destroy_task(task_id, true)).await,
        Err(not_found())
    );
    assert_eq!(
        within("inspect", driver.inspect_task(task_id)).await,
        Err(not_found())
    );
    assert_eq!(
        within("signal", driver.signal_task(task_id, "SIGTERM")).await,
        Err(not_found())
    );
    let stats = within("stats", driver.task_stats(task_id, second)).await;
    assert_eq!(stats.map(drop), Err(not_found()));
    let exec = driver.exec_task(task_id, vec!["true".to_owned()], second);
    assert_eq!(within("exec", exec).await, Err(not_found()));
}

/// A task starts, runs, exits and is destroyed; each step shows the expected state.
pub async fn task_goes_through_its_life(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(
        subject,
        "life",
        subject.runs_for(Duration::from_millis(300)),
    );

    let handle = start(&*driver, &config).await;
    let running = within("inspect", driver.inspect_task(&config.id)).await;
    let result = wait(&*driver, &config.id).await;
    let ended = within("inspect", driver.inspect_task(&config.id)).await;

    assert_eq!(handle.config, config);
    assert_eq!(handle.state, TaskState::Running);
    let running = running.expect("the task is known");
    assert_eq!(running.id, config.id);
    assert_eq!(running.name, "life");
    assert_eq!(running.state, TaskState::Running);
    assert_eq!(running.result, None);
    assert_eq!(result, ExitResult::exited(0));
    let ended = ended.expect("the task is known");
    assert_eq!(ended.state, TaskState::Exited);
    assert_eq!(ended.result, Some(ExitResult::exited(0)));
    assert!(ended.started_at < ended.completed_at, "{ended:?}");
    within("destroy", driver.destroy_task(&config.id, false))
        .await
        .expect("an ended task needs no force");
    assert_not_found(&*driver, &config.id).await;
}

/// An exit code is neither a success nor a signal.
pub async fn exit_code_is_reported(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "code", subject.exits_with(3));

    start(&*driver, &config).await;
    let result = wait(&*driver, &config.id).await;

    assert_eq!(result, ExitResult::exited(3));
    assert!(!result.successful());
    destroy(&*driver, &config.id).await;
}

/// The driver keeps the exit result until the task is destroyed.
pub async fn wait_answers_at_once_for_an_ended_task(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "again", subject.exits_with(4));

    start(&*driver, &config).await;
    let first = wait(&*driver, &config.id).await;
    let second = wait(&*driver, &config.id).await;

    assert_eq!(first, ExitResult::exited(4));
    assert_eq!(second, first);
    destroy(&*driver, &config.id).await;
}

/// All callers that wait for one task get the same result.
pub async fn all_waiters_get_the_same_answer(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(
        subject,
        "waited",
        subject.runs_for(Duration::from_millis(200)),
    );

    start(&*driver, &config).await;
    let answers = join_all((0..10).map(|_| wait(&*driver, &config.id))).await;

    assert_eq!(answers, vec![ExitResult::exited(0); 10]);
    destroy(&*driver, &config.id).await;
}

/// The driver has no record of a destroyed task.
pub async fn destroyed_task_is_not_found(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "destroyed", subject.exits_with(0));

    start(&*driver, &config).await;
    wait(&*driver, &config.id).await;
    destroy(&*driver, &config.id).await;

    assert_not_found(&*driver, &config.id).await;
}

/// The driver reports a task that never existed like a destroyed one.
pub async fn unknown_task_is_not_found(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;

    assert_not_found(&*driver, "no-alloc/no-task/00000000").await;
}

/// A stop ends the task by its signal, and the driver keeps the task.
pub async fn stop_ends_a_task_and_keeps_it(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "stopped", subject.runs_for(FOREVER));

    start(&*driver, &config).await;
    within("stop", driver.stop_task(&config.id, FOREVER, "SIGTERM"))
        .await
        .expect("the task stops");

    assert_eq!(state(&*driver, &config.id).await, TaskState::Exited);
    assert_eq!(
        wait(&*driver, &config.id).await,
        ExitResult::signaled(SIGTERM)
    );
    destroy(&*driver, &config.id).await;
}

/// The driver waits for the given timeout, then kills the task.
pub async fn ignored_stop_ends_in_a_kill(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "stubborn", subject.ignores_signals());
    let timeout = Duration::from_millis(300);

    start(&*driver, &config).await;
    within("settle", subject.settled(&config)).await;
    let began = Instant::now();
    within("stop", driver.stop_task(&config.id, timeout, "SIGTERM"))
        .await
        .expect("the task stops");

    assert!(began.elapsed() >= timeout, "{:?}", began.elapsed());
    assert_eq!(
        wait(&*driver, &config.id).await,
        ExitResult::signaled(SIGKILL)
    );
    destroy(&*driver, &config.id).await;
}

/// A stop of an ended task is no failure, and does not change the task's exit result.
pub async fn stop_of_an_ended_task_succeeds(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "late", subject.exits_with(5));

    start(&*driver, &config).await;
    wait(&*driver, &config.id).await;
    within("stop", driver.stop_task(&config.id, FOREVER, "SIGTERM"))
        .await
        .expect("there is nothing left to stop");

    assert_eq!(wait(&*driver, &config.id).await, ExitResult::exited(5));
    destroy(&*driver, &config.id).await;
}

/// A signal reaches the task and ends it if the task does not handle the signal.
pub async fn signal_reaches_the_task(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "signalled", subject.runs_for(FOREVER));

    start(&*driver, &config).await;
    within("signal", driver.signal_task(&config.id, "SIGUSR1"))
        .await
        .expect("the signal is sent");

    assert_eq!(wait(&*driver, &config.id).await, ExitResult::signaled(10));
    destroy(&*driver, &config.id).await;
}

/// The driver refuses an unknown signal name, quotes it in the error, and leaves the task alone.
pub async fn unknown_signal_is_refused(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "unsignalled", subject.runs_for(FOREVER));
    let unknown = || TaskError::UnknownSignal {
        signal: "SIGNOTHING".to_owned(),
    };

    start(&*driver, &config).await;
    let signal = within("signal", driver.signal_task(&config.id, "SIGNOTHING")).await;
    let stop = within(
        "stop",
        driver.stop_task(&config.id, Duration::ZERO, "SIGNOTHING"),
    )
    .await;

    assert_eq!(signal, Err(unknown()));
    assert_eq!(stop, Err(unknown()));
    assert_eq!(state(&*driver, &config.id).await, TaskState::Running);
    destroy(&*driver, &config.id).await;
}

/// A signal to an ended task has no target. Another process can have the task's pid.
pub async fn signal_to_an_ended_task_is_refused(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "ended", subject.exits_with(0));

    start(&*driver, &config).await;
    wait(&*driver, &config.id).await;
    let signal = within("signal", driver.signal_task(&config.id, "SIGTERM")).await;

    assert_eq!(
        signal,
        Err(TaskError::NotRunning {
            task_id: config.id.clone()
        })
    );
    destroy(&*driver, &config.id).await;
}

/// A running task is destroyed only with `force`.
pub async fn running_task_is_destroyed_by_force_only(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "forced", subject.runs_for(FOREVER));

    start(&*driver, &config).await;
    let gentle = within("destroy", driver.destroy_task(&config.id, false)).await;
    let still = state(&*driver, &config.id).await;
    destroy(&*driver, &config.id).await;

    assert_eq!(
        gentle,
        Err(TaskError::StillRunning {
            task_id: config.id.clone()
        })
    );
    assert_eq!(still, TaskState::Running);
    assert_not_found(&*driver, &config.id).await;
}

/// A failed start returns an error, and its id is free again.
pub async fn failed_start_leaves_nothing(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let mut config = task(subject, "broken", subject.broken());

    let failed = within("start", driver.start_task(config.clone())).await;
    assert!(
        matches!(failed, Err(StartTaskError::Fatal { .. })),
        "{failed:?}"
    );
    assert_not_found(&*driver, &config.id).await;

    config.config = subject.exits_with(0);
    start(&*driver, &config).await;
    assert_eq!(wait(&*driver, &config.id).await, ExitResult::exited(0));
    destroy(&*driver, &config.id).await;
}

/// An id names one task.
pub async fn same_id_starts_once(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "once", subject.runs_for(FOREVER));

    start(&*driver, &config).await;
    let again = within("start", driver.start_task(config.clone())).await;

    assert_eq!(
        again.map(drop),
        Err(StartTaskError::AlreadyStarted {
            task_id: config.id.clone()
        })
    );
    assert_eq!(state(&*driver, &config.id).await, TaskState::Running);
    destroy(&*driver, &config.id).await;
}

/// A recovered task is found by its id and is the started task: the attributes are the same, including the pid.
pub async fn recovered_task_is_the_same_task(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "recovered", subject.runs_for(FOREVER));
    let handle = start(&*driver, &config).await;
    let before = within("inspect", driver.inspect_task(&config.id))
        .await
        .expect("the task is known");

    let driver = subject.restart(driver).await;
    assert_not_found(&*driver, &config.id).await;
    within("recover", driver.recover_task(handle))
        .await
        .expect("the task is recovered");

    let after = within("inspect", driver.inspect_task(&config.id))
        .await
        .expect("the task is known");
    assert_eq!(after.attributes, before.attributes);
    assert_eq!(after.state, TaskState::Running);
    assert_eq!(after.started_at, before.started_at);
    within("stop", driver.stop_task(&config.id, FOREVER, "SIGTERM"))
        .await
        .expect("a recovered task can be stopped");
    wait(&*driver, &config.id).await;
    assert_eq!(state(&*driver, &config.id).await, TaskState::Exited);
    destroy(&*driver, &config.id).await;
}

/// A second recovery of the same task changes nothing. A host that is not sure may recover a task twice.
pub async fn recovery_of_a_known_task_changes_nothing(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "known", subject.runs_for(FOREVER));

    let handle = start(&*driver, &config).await;
    let recovered = within("recover", driver.recover_task(handle)).await;

    assert_eq!(recovered, Ok(()));
    assert_eq!(state(&*driver, &config.id).await, TaskState::Running);
    destroy(&*driver, &config.id).await;
}

/// A task that ended while no driver watched is reported as gone, and is not mistaken for another.
pub async fn ended_task_is_not_recovered(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "unseen", subject.exits_with(0));
    let handle = start(&*driver, &config).await;
    wait(&*driver, &config.id).await;

    let driver = subject.restart(driver).await;
    let recovered = within("recover", driver.recover_task(handle)).await;

    assert!(
        matches!(recovered, Err(RecoverTaskError::Gone { .. })),
        "{recovered:?}"
    );
    assert_not_found(&*driver, &config.id).await;
}

/// A handle of a later version is refused, with both versions in the error.
pub async fn newer_handle_is_refused(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "newer", subject.runs_for(FOREVER));
    let handle = start(&*driver, &config).await;

    let driver = subject.restart(driver).await;
    let newer = TaskHandle {
        version: handle.version + 1_000,
        ..handle.clone()
    };
    let refused = within("recover", driver.recover_task(newer)).await;

    assert_eq!(
        refused,
        Err(RecoverTaskError::HandleVersion {
            found: handle.version + 1_000,
            supported: handle.version
        })
    );
    within("recover", driver.recover_task(handle))
        .await
        .expect("the handle itself is good");
    destroy(&*driver, &config.id).await;
}

/// Bytes that are no driver state are refused, not misread.
pub async fn damaged_handle_is_refused(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "damaged", subject.runs_for(FOREVER));
    let handle = start(&*driver, &config).await;

    let driver = subject.restart(driver).await;
    let damaged = TaskHandle {
        driver_state: vec![0xff; 3],
        ..handle.clone()
    };
    let refused = within("recover", driver.recover_task(damaged)).await;

    assert!(
        matches!(refused, Err(RecoverTaskError::InvalidHandle { .. })),
        "{refused:?}"
    );
    within("recover", driver.recover_task(handle))
        .await
        .expect("the handle itself is good");
    destroy(&*driver, &config.id).await;
}

/// A handle still recovers its task after it was encoded and decoded.
pub async fn stored_handle_still_recovers(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "stored", subject.runs_for(FOREVER));
    let handle = start(&*driver, &config).await;
    let stored = handle.encode().expect("a handle can be stored");

    let driver = subject.restart(driver).await;
    let read = TaskHandle::decode(&stored).expect("a stored handle can be read");
    assert_eq!(read, handle);
    within("recover", driver.recover_task(read))
        .await
        .expect("the task is recovered");

    assert_eq!(state(&*driver, &config.id).await, TaskState::Running);
    destroy(&*driver, &config.id).await;
}

/// The driver distinguishes a temporary start failure from a permanent one.
pub async fn start_that_may_pass_says_so(subject: &dyn DriverUnderTest) {
    let Some(busy) = subject.busy() else {
        return;
    };
    let driver = subject.driver().await;
    let config = task(subject, "busy", busy);

    let failed = within("start", driver.start_task(config.clone())).await;

    assert!(
        matches!(failed, Err(StartTaskError::Recoverable { .. })),
        "{failed:?}"
    );
    assert_not_found(&*driver, &config.id).await;
}

/// A handle of an earlier version is understood or refused, never misread: the recovered task is the task that was
/// started.
pub async fn older_handle_is_recovered_or_refused(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "older", subject.runs_for(FOREVER));
    let handle = start(&*driver, &config).await;
    let before = within("inspect", driver.inspect_task(&config.id))
        .await
        .expect("the task is known");
    let mut older = handle.clone();
    older.version = handle.version - 1;

    let driver = subject.restart(driver).await;
    match within("recover", driver.recover_task(older)).await {
        Ok(()) => {
            let after = within("inspect", driver.inspect_task(&config.id)).await;
            assert_eq!(after.expect("the task is known"), before);
        }
        Err(error) => {
            assert!(
                matches!(
                    error,
                    RecoverTaskError::HandleVersion { .. } | RecoverTaskError::InvalidHandle { .. }
                ),
                "{error:?}"
            );
            assert_not_found(&*driver, &config.id).await;
            within("recover", driver.recover_task(handle))
                .await
                .expect("the task is still there for its own handle");
        }
    }
    destroy(&*driver, &config.id).await;
}

/// Concurrent stops, waits and inspections of one task all succeed.
pub async fn concurrent_calls_agree(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "busy", subject.runs_for(FOREVER));
    start(&*driver, &config).await;

    let stops = join_all((0..8).map(|_| driver.stop_task(&config.id, FOREVER, "SIGTERM")));
    let waits = join_all((0..8).map(|_| wait(&*driver, &config.id)));
    let looks = join_all((0..8).map(|_| driver.inspect_task(&config.id)));
    let (stops, waits, looks) =
        within("all calls", async { tokio::join!(stops, waits, looks) }).await;

    assert_eq!(stops, vec![Ok(()); 8]);
    assert_eq!(waits, vec![ExitResult::signaled(SIGTERM); 8]);
    assert!(looks.iter().all(Result::is_ok), "{looks:?}");
    destroy(&*driver, &config.id).await;
}

/// The statistics stream ends when the task ends.
pub async fn stats_end_with_the_task(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "measured", subject.runs_for(FOREVER));
    start(&*driver, &config).await;

    let mut stats = within("stats", driver.task_stats(&config.id, FOREVER))
        .await
        .expect("a running task has statistics");
    let first = within("the first item", stats.next()).await;
    within("stop", driver.stop_task(&config.id, FOREVER, "SIGTERM"))
        .await
        .expect("the task stops");
    let end = within("the end of the stream", stats.next()).await;

    assert_eq!(first.map(|stats| stats.task_id), Some(config.id.clone()));
    assert_eq!(end, None);
    destroy(&*driver, &config.id).await;
}

/// The driver keeps the interval roughly, and never reports faster.
pub async fn stats_come_at_the_interval(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "paced", subject.runs_for(FOREVER));
    let interval = Duration::from_millis(100);
    start(&*driver, &config).await;

    let began = Instant::now();
    let stats = within("stats", driver.task_stats(&config.id, interval))
        .await
        .expect("a running task has statistics");
    let items: Vec<_> = within("four items", stats.take(4).collect()).await;

    assert_eq!(items.len(), 4);
    assert!(began.elapsed() >= interval * 3, "{:?}", began.elapsed());
    assert!(items.windows(2).all(|pair| pair[0].at < pair[1].at));
    destroy(&*driver, &config.id).await;
}

/// The driver sends the first fingerprint immediately, not after the fingerprint period.
pub async fn fingerprint_comes_at_once(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;

    let mut stream = within("fingerprint", driver.fingerprint())
        .await
        .expect("a driver has a fingerprint");
    let first = tokio::time::timeout(FIRST_WORD_DEADLINE, stream.next()).await;

    let first = first.expect("the first item comes at once and not at the next look");
    assert!(first.is_some());
}

/// The driver sends a changed fingerprint immediately on the open stream.
pub async fn fingerprint_tells_a_change_at_once(subject: &dyn DriverUnderTest) {
    let Some(settings) = subject.other_settings() else {
        return;
    };
    let driver = subject.driver().await;
    within("the default", driver.set_config(Value::Null))
        .await
        .expect("the default configuration is one");
    let mut stream = within("fingerprint", driver.fingerprint())
        .await
        .expect("a driver has a fingerprint");
    let before = within("the first item", stream.next()).await;

    within("set", driver.set_config(settings))
        .await
        .expect("the other configuration is one");
    let after = tokio::time::timeout(FIRST_WORD_DEADLINE, stream.next()).await;

    let after = after.expect("a change comes at once and not at the next look");
    assert!(after.is_some());
    assert_ne!(after, before);
}

/// A task's `config` is a block, so its schema is an object.
pub async fn schema_is_an_object(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;

    let schema = within("schema", driver.task_config_schema()).await;
    let info = within("info", driver.plugin_info()).await;

    assert!(matches!(schema, Ok(crate::Spec::Object(_))), "{schema:?}");
    assert!(info.is_ok_and(|info| !info.name.is_empty()));
}

/// A driver returns the handles of its started tasks to a host that lost its records, or reports that it cannot.
pub async fn listed_tasks_are_the_started_ones(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let config = task(subject, "listed", subject.runs_for(FOREVER));
    let handle = start(&*driver, &config).await;

    let listed = within("list", driver.list_tasks()).await;
    destroy(&*driver, &config.id).await;
    let after = within("list", driver.list_tasks()).await;

    match listed {
        Ok(handles) => {
            assert!(handles.contains(&handle), "{handles:?}");
            let after = after.expect("a list that worked once works again");
            assert!(!after.contains(&handle), "{after:?}");
        }
        Err(error) => assert!(
            matches!(error, DriverError::Unsupported { .. }),
            "{error:?}"
        ),
    }
}

/// The output and the exit code of a command are returned, if the driver can run commands.
pub async fn command_runs_in_the_task(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let capabilities = within("capabilities", driver.capabilities())
        .await
        .expect("a driver knows what it can do");
    let config = task(subject, "exec", subject.runs_for(FOREVER));
    start(&*driver, &config).await;

    let command = subject.prints("hello from inside");
    let result = within(
        "exec",
        driver.exec_task(&config.id, command, Duration::from_secs(30)),
    )
    .await;

    if capabilities.exec {
        let result = result.expect("the command runs");
        assert_eq!(
            String::from_utf8_lossy(&result.stdout).trim(),
            "hello from inside"
        );
        assert_eq!(result.result, ExitResult::exited(0));
    } else {
        assert!(
            matches!(
                result,
                Err(TaskError::Driver(DriverError::Unsupported { .. }))
            ),
            "{result:?}"
        );
    }
    destroy(&*driver, &config.id).await;
}

/// The handle contains the whole configuration that the host sent.
pub async fn configuration_survives_the_way(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let mut config = task(subject, "full", subject.runs_for(FOREVER));
    "a-job".clone_into(&mut config.job_id);
    "default".clone_into(&mut config.namespace);
    config.resources.cpu_mhz = 500;
    config.resources.memory_mb = 256;
    config.kill_signal = Some("SIGTERM".to_owned());
    config.env.insert("EMPTY".to_owned(), String::new());
    config.env.insert("LINES".to_owned(), "a\nb=c".to_owned());

    let handle = start(&*driver, &config).await;
    within("stop", driver.stop_task(&config.id, FOREVER, ""))
        .await
        .expect("the task stops");

    assert_eq!(handle.config, config);
    assert_eq!(
        wait(&*driver, &config.id).await,
        ExitResult::signaled(SIGTERM),
        "a stop without a signal uses the task's own"
    );
    destroy(&*driver, &config.id).await;
}
