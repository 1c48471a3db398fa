//! Reports tasks that are stalled on memory, a disk or processor time.
//!
//! The kernel triggers the check (`Documentation/accounting/psi.rst`, "Monitoring for pressure thresholds"). There
//! is one trigger for each resource, at the root of the node's tree. A trigger at each task's cgroup would cost a
//! descriptor and a kernel thread for each task. Then the agent looks at all tasks twice. A task that was stalled
//! for the same share of the time in between is reported in an event of the task. After a look that finds a task,
//! the pause is [`PRESSURE_PAUSE`]. A look that finds none is repeated sooner, because a task may be stalled while
//! it starts. A start ends a pause of more than [`PRESSURE_START_PAUSE`]. An event is sent once in
//! [`PRESSURE_EVENT_INTERVAL`] for each resource of a task. Where the kernel keeps no pressure, there are no
//! reports.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_core::task::TaskInput;
use muster_domain::id::AllocId;
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::context::AgentContext;
use crate::limits::{
    PRESSURE_EVENT_INTERVAL, PRESSURE_PAUSE, PRESSURE_START_PAUSE, PRESSURE_WINDOW,
};
use crate::resources::cgroup::{NodeTree, PressureResource};
use crate::tasks::live::LiveTasks;

/// A task, independent of its current start.
type TaskKey = (AllocId, String);

/// The resources, each with the share of stalled time, in percent, from which it is reported. Any waiting for
/// memory means that the task's limit is too small. Tasks wait for disks and processors even under normal load.
const PRESSURE_THRESHOLDS: [(PressureResource, u32); 3] = [
    (PressureResource::Cpu, 80),
    (PressureResource::Io, 50),
    (PressureResource::Memory, 10),
];

/// Reports stalled tasks of the node until the agent stops.
pub(crate) async fn follow(context: Arc<AgentContext>, stop: CancellationToken) {
    let followed = PRESSURE_THRESHOLDS.map(|(resource, percent)| {
        let (context, stop) = (Arc::clone(&context), stop.clone());
        async move {
            let (tree, tasks) = (&context.resources.tree, &context.tasks.live);
            tokio::select! {
                ended = follow_resource(tree, tasks, resource, percent) => if let Err(error) = ended {
                    tracing::info!(%error, want = resource.name(), "task events about pressure are off");
                },
                () = stop.cancelled() => {}
            }
        }
    });
    let [cpu, disks, memory] = followed;
    tokio::join!(cpu, disks, memory);
}

async fn follow_resource(
    tree: &NodeTree,
    tasks: &LiveTasks,
    resource: PressureResource,
    percent: u32,
) -> io::Result<()> {
    let trigger = tree.pressure_trigger(
        resource,
        percent_of(PRESSURE_WINDOW, percent),
        PRESSURE_WINDOW,
    )?;
    #[expect(
        deprecated,
        reason = "the other constructor is unsafe; a File stays open and the same while it is registered"
    )]
    let trigger = AsyncFd::with_interest(trigger, Interest::PRIORITY)?;
    let mut reported: BTreeMap<TaskKey, Instant> = BTreeMap::new();
    let mut pauses = Pauses::new();
    loop {
        let waited_since = Instant::now();
        wait(&trigger).await?;
        pauses.handle_trigger(waited_since.elapsed());
        reported.retain(|_, at| at.elapsed() < PRESSURE_EVENT_INTERVAL);
        let starts = tasks.starts();
        let (before, begun) = (stalls(tasks, resource), Instant::now());
        tokio::time::sleep(PRESSURE_WINDOW).await;
        let (after, window) = (stalls(tasks, resource), begun.elapsed());
        let found = stalled_tasks(&before, &after, percent_of(window, percent));
        let pause = pauses.next(!found.is_empty());
        for (key, stalled) in found {
            if reported.contains_key(&key) {
                continue;
            }
            reported.insert(key.clone(), Instant::now());
            send_event(tasks, &key, resource, stalled, window).await;
        }
        if sleep(pause, || tasks.starts() != starts).await {
            pauses = Pauses::new();
        }
    }
}

/// Sleeps for `pause`. Returns early, with true, if tasks have started and [`PRESSURE_START_PAUSE`] is over.
async fn sleep(pause: Duration, have_started: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    tokio::time::sleep(pause.min(PRESSURE_START_PAUSE)).await;
    while begun.elapsed() < pause {
        if have_started() {
            return true;
        }
        let left = pause.saturating_sub(begun.elapsed());
        tokio::time::sleep(left.min(PRESSURE_WINDOW)).await;
    }
    false
}

/// The pauses between looks: doubled after each look that finds no task, up to [`PRESSURE_PAUSE`].
#[derive(Debug)]
struct Pauses {
    next: Duration,
}

impl Pauses {
    fn new() -> Self {
        Self {
            next: PRESSURE_WINDOW,
        }
    }

    /// Handles a trigger of the kernel after `waited`.
    fn handle_trigger(&mut self, waited: Duration) {
        if waited >= PRESSURE_PAUSE {
            *self = Self::new();
        }
    }

    /// The pause after a look.
    fn next(&mut self, found: bool) -> Duration {
        let pause = if found { PRESSURE_PAUSE } else { self.next };
        self.next = (pause * 2).min(PRESSURE_PAUSE);
        pause
    }
}

/// Waits until the kernel reports pressure.
async fn wait(trigger: &AsyncFd<File>) -> io::Result<()> {
    let mut ready = trigger.ready(Interest::PRIORITY).await?;
    // The kernel reports each window once, so the reported readiness is cleared.
    ready.clear_ready_matching(Ready::PRIORITY);
    Ok(())
}

fn percent_of(window: Duration, percent: u32) -> Duration {
    window * percent / 100
}

/// The time for which each task was stalled since it began.
fn stalls(tasks: &LiveTasks, resource: PressureResource) -> BTreeMap<TaskKey, Duration> {
    let live = tasks.of(None).into_iter();
    live.filter_map(|(alloc_id, task, live)| {
        let stalled = live.cgroup.as_ref()?.stalled(resource)?;
        Some(((alloc_id, task), stalled))
    })
    .collect()
}

/// Returns the tasks that were stalled for `stalled_min` between two looks, with their stalled time.
fn stalled_tasks(
    before: &BTreeMap<TaskKey, Duration>,
    after: &BTreeMap<TaskKey, Duration>,
    stalled_min: Duration,
) -> Vec<(TaskKey, Duration)> {
    let both = after.iter().filter_map(|(key, after)| {
        let stalled = after.checked_sub(*before.get(key)?)?;
        (stalled >= stalled_min).then(|| (key.clone(), stalled))
    });
    both.collect()
}

async fn send_event(
    tasks: &LiveTasks,
    key: &TaskKey,
    resource: PressureResource,
    stalled: Duration,
    window: Duration,
) {
    let (alloc_id, task) = key;
    let Some(live) = tasks.get(*alloc_id, task) else {
        return;
    };
    let id = &live.record.task_id;
    let Some(inputs) = tasks.runner(*alloc_id, task, id) else {
        return;
    };
    let message = format!(
        "stood still for want of {} for {:.1} s of {:.1} s{}",
        resource.name(),
        stalled.as_secs_f64(),
        window.as_secs_f64(),
        resource.help()
    );
    tracing::info!(%alloc_id, task, message, "a task waits");
    inputs.send(TaskInput::Message { message }).await;
}

#[cfg(test)]
mod tests {
    use muster_domain::id::LogIndex;

    use super::*;

    #[test]
    fn looks_that_find_no_task_become_rare() {
        let mut pauses = Pauses::new();

        let seconds: Vec<u64> = (0..7).map(|_| pauses.next(false).as_secs()).collect();

        assert_eq!(seconds, [2, 4, 8, 16, 32, 50, 50]);
        pauses.handle_trigger(Duration::from_secs(3));
        assert_eq!(pauses.next(false), PRESSURE_PAUSE);
        pauses.handle_trigger(PRESSURE_PAUSE);
        assert_eq!(pauses.next(false), PRESSURE_WINDOW);
        assert_eq!(pauses.next(true), PRESSURE_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn starts_end_long_pauses() {
        let begun = Instant::now();

        let short = sleep(PRESSURE_WINDOW, || true).await;
        assert_eq!((short, begun.elapsed()), (false, PRESSURE_WINDOW));
        let cut = sleep(PRESSURE_PAUSE, || true).await;
        let elapsed = begun.elapsed();
        let whole = sleep(PRESSURE_PAUSE, || false).await;

        assert_eq!(
            (cut, elapsed),
            (true, PRESSURE_WINDOW + PRESSURE_START_PAUSE)
        );
        assert_eq!((whole, begun.elapsed()), (false, elapsed + PRESSURE_PAUSE));
    }

    #[test]
    fn tasks_that_stood_still_long_enough_are_found() {
        let at = |times: &[(u32, u64)]| {
            let times = times.iter().map(|(number, ms)| {
                let key = (AllocId::at(LogIndex(1), *number), "main".to_owned());
                (key, Duration::from_millis(*ms))
            });
            times.collect::<BTreeMap<_, _>>()
        };
        // The third task was started anew in between, and the fourth one began.
        let before = at(&[(1, 500), (2, 500), (3, 900)]);
        let after = at(&[(1, 700), (2, 699), (3, 800), (4, 900)]);

        let found = stalled_tasks(&before, &after, percent_of(Duration::from_secs(2), 10));

        let first = (AllocId::at(LogIndex(1), 1), "main".to_owned());
        assert_eq!(found, [(first, Duration::from_millis(200))]);
    }
}
