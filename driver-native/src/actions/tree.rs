//! The semantics of the kinds of actions, without processes and files, which [`ActionExecutor`] handles.
//!
//! Every action ends: by itself, or some time after a stop. A stopped action reports that ([`Failure::cancelled`]),
//! and no parent action treats it as a success: neither a `try` nor a `serial` continues after it.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use muster_domain::one_off::{
    Action, Actions, Download, EmitProgress, GRACE, Run, Timeout, Upload, go_duration,
};
use tokio_util::sync::CancellationToken;

use super::failure::{Failure, FailureKind};
use crate::limits;

/// The stream of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Stdout,
    Stderr,
}

/// An action's place in its tree.
#[derive(Clone, Debug)]
pub(crate) struct ActionStep {
    /// The place of the action, such as `serial[1].timeout.run`.
    pub(crate) action_path: String,
    /// The name on the action's lines and failures.
    pub(crate) source: String,
    /// Another part of the tree continues when this action fails.
    ignores_failure: bool,
    /// The action may be stopped while another part of the tree continues, and then none of its processes may be left.
    /// Processes of other actions are killed when the tree ends.
    pub(crate) has_own_cgroup: bool,
}

/// Runs the leaf actions of a tree.
pub(crate) trait ActionExecutor: Send + Sync {
    /// Runs a program until it ends, or until some time after `stop`. Dropping the future kills the program.
    fn run<'a>(
        &'a self,
        run: &'a Run,
        step: ActionStep,
        stop: CancellationToken,
    ) -> BoxFuture<'a, Result<(), Failure>>;

    /// Downloads a file or an archive. Dropping the future ends the transfer.
    fn download<'a>(
        &'a self,
        download: &'a Download,
        step: ActionStep,
        stop: CancellationToken,
    ) -> BoxFuture<'a, Result<(), Failure>>;

    /// Uploads a file. Dropping the future ends the transfer.
    fn upload<'a>(
        &'a self,
        upload: &'a Upload,
        step: ActionStep,
        stop: CancellationToken,
    ) -> BoxFuture<'a, Result<(), Failure>>;

    /// Returns the remaining time of the timeout at this place: `bound`, less the time under an earlier driver.
    fn time_left(&self, action_path: &str, bound: Duration) -> Duration;

    /// Writes a line to the task's log.
    fn write_line<'a>(&'a self, output: Output, line: &'a str) -> BoxFuture<'a, ()>;
}

/// Carries out a whole tree.
pub(crate) async fn execute(
    executor: &dyn ActionExecutor,
    tree: &Action,
    log_source: &str,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let root = ActionStep {
        action_path: tree.as_str().to_owned(),
        source: if log_source.is_empty() {
            DEFAULT_SOURCE.to_owned()
        } else {
            log_source.to_owned()
        },
        ignores_failure: false,
        has_own_cgroup: false,
    };
    step(executor, tree, root, stop.clone()).await
}

/// The default name on log lines, as in Diego.
const DEFAULT_SOURCE: &str = "LOG";

fn step<'a>(
    executor: &'a dyn ActionExecutor,
    action: &'a Action,
    parent: ActionStep,
    stop: CancellationToken,
) -> BoxFuture<'a, Result<(), Failure>> {
    let named = log_source(action);
    let mut current = parent;
    if !named.is_empty() {
        named.clone_into(&mut current.source);
    }
    async move {
        if stop.is_cancelled() {
            return Err(Failure::cancelled(&current.action_path));
        }
        match action {
            Action::Download(download) => executor.download(download, current, stop).await,
            Action::Upload(upload) => executor.upload(upload, current, stop).await,
            Action::Run(run) => executor.run(run, current, stop).await,
            Action::Timeout(bounded) => timeout(executor, bounded, &current, &stop).await,
            Action::EmitProgress(watched) => emit_progress(executor, watched, &current, stop).await,
            Action::Try(tried) => {
                let child = current.child(&tried.action).ignore_failure();
                let ended = step(executor, &tried.action, child, stop.clone()).await;
                // The action ended because of the stop, not because of a failure.
                if stop.is_cancelled() { ended } else { Ok(()) }
            }
            Action::Parallel(all) => parallel(executor, all, &current, &stop).await,
            Action::Serial(all) => serial(executor, all, &current, &stop).await,
            Action::Codependent(all) => codependent(executor, all, &current, &stop).await,
        }
    }
    .boxed()
}

fn log_source(action: &Action) -> &str {
    match action {
        Action::Download(it) => &it.log_source,
        Action::Upload(it) => &it.log_source,
        Action::Run(it) => &it.log_source,
        Action::Timeout(it) => &it.log_source,
        Action::EmitProgress(it) => &it.log_source,
        Action::Try(it) => &it.log_source,
        Action::Parallel(it) | Action::Serial(it) | Action::Codependent(it) => &it.log_source,
    }
}

impl ActionStep {
    fn child(&self, action: &Action) -> Self {
        Self {
            action_path: format!("{}.{}", self.action_path, action.as_str()),
            ..self.clone()
        }
    }

    fn nth(&self, index: usize, action: &Action) -> Self {
        Self {
            action_path: format!("{}[{index}].{}", self.action_path, action.as_str()),
            ..self.clone()
        }
    }

    /// Marks an action whose failure does not fail the tree.
    fn ignore_failure(self) -> Self {
        Self {
            ignores_failure: true,
            ..self
        }
    }

    /// Marks an action that its parent may stop.
    fn allow_stop(self) -> Self {
        Self {
            has_own_cgroup: self.has_own_cgroup || self.ignores_failure,
            ..self
        }
    }
}

/// Stops the action when its time is over, and waits for its end as long as a stop may take. Dropping the action then
/// kills the rest.
async fn timeout(
    executor: &dyn ActionExecutor,
    bounded: &Timeout,
    current: &ActionStep,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let bound = bounded.bound();
    let inner_stop = stop.child_token();
    let mut inner = step(
        executor,
        &bounded.action,
        current.child(&bounded.action).allow_stop(),
        inner_stop.clone(),
    );
    let left = executor.time_left(&current.action_path, bound);
    if let Ok(ended) = tokio::time::timeout(left, &mut inner).await {
        return ended;
    }
    let stopped_before = stop.is_cancelled();
    inner_stop.cancel();
    let ended = tokio::time::timeout(GRACE + limits::ACTION_EXIT_DEADLINE, inner).await;
    match ended {
        Ok(ended) if stopped_before => ended,
        Err(_elapsed) if stopped_before => Err(Failure::cancelled(&current.action_path)),
        Ok(Err(failure)) if failure.kind == FailureKind::Shown => {
            let text = format!("exceeded {} timeout; {}", go_duration(bound), failure.text);
            Err(Failure::shown(&current.action_path, text))
        }
        Ok(_) | Err(_) => {
            let text = format!("exceeded {} timeout", go_duration(bound));
            Err(Failure::shown(&current.action_path, text))
        }
    }
}

async fn emit_progress(
    executor: &dyn ActionExecutor,
    watched: &EmitProgress,
    current: &ActionStep,
    stop: CancellationToken,
) -> Result<(), Failure> {
    if !watched.start_message.is_empty() {
        executor
            .write_line(Output::Stdout, &watched.start_message)
            .await;
    }
    let ended = step(
        executor,
        &watched.action,
        current.child(&watched.action),
        stop,
    )
    .await;
    let prefix = &watched.failure_message_prefix;
    match &ended {
        Ok(()) if !watched.success_message.is_empty() => {
            executor
                .write_line(Output::Stdout, &watched.success_message)
                .await;
        }
        Err(failure) if !prefix.is_empty() => {
            let line = match failure.kind {
                FailureKind::Shown => format!("{prefix}: {}", failure.text),
                FailureKind::Plain | FailureKind::StopTimedOut | FailureKind::Cancelled => {
                    prefix.clone()
                }
            };
            executor.write_line(Output::Stderr, &line).await;
        }
        Ok(()) | Err(_) => {}
    }
    ended
}

/// Runs all actions at once and waits for all of them.
async fn parallel(
    executor: &dyn ActionExecutor,
    all: &Actions,
    current: &ActionStep,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let children = all.actions.iter().enumerate();
    let children = children.map(|(index, action)| {
        let current = current.nth(index, action).ignore_failure();
        step(executor, action, current, stop.clone())
    });
    let failures = join_all(children).await.into_iter().filter_map(Result::err);
    Failure::join(failures.collect()).map_or(Ok(()), Err)
}

/// Runs the actions one after another, up to the first failure.
async fn serial(
    executor: &dyn ActionExecutor,
    all: &Actions,
    current: &ActionStep,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    for (index, action) in all.actions.iter().enumerate() {
        step(executor, action, current.nth(index, action), stop.clone()).await?;
    }
    Ok(())
}

/// Runs all actions at once. The first to end stops the others, and its end counts as a failure in every case.
async fn codependent(
    executor: &dyn ActionExecutor,
    all: &Actions,
    current: &ActionStep,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let stop_all = stop.child_token();
    let mut children: FuturesUnordered<_> = all
        .actions
        .iter()
        .enumerate()
        .map(|(index, action)| {
            let current = current.nth(index, action).allow_stop().ignore_failure();
            let action_path = current.action_path.clone();
            step(executor, action, current, stop_all.clone()).map(move |ended| (action_path, ended))
        })
        .collect();
    let mut failures = Vec::new();
    while let Some((action_path, ended)) = children.next().await {
        match ended {
            Err(failure) => failures.push(failure),
            Ok(()) if stop_all.is_cancelled() => {}
            Ok(()) => failures.push(Failure::shown(&action_path, "Codependent step exited")),
        }
        stop_all.cancel();
    }
    // All actions ended successfully after the stop, so no failure is left to report.
    Err(Failure::join(failures).unwrap_or_else(|| Failure::cancelled(&current.action_path)))
}

#[cfg(test)]
mod tests;
