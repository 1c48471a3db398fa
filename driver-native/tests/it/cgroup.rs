//! Tests of tasks in cgroups: processes start there, are measured there, and are reached there even when they hide.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use muster_driver::{CpuField, ExitResult, TaskDriver, plugin};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::fixture::{
    Cgroups, DEADLINE, Task, allowing_driver, cgroup_line, is_alive, pid_of, shell, sleep_for_ever,
    started, until,
};

/// A task that hides a process: the process has a separate session, and its parent has ended.
const HIDES_A_PROCESS: &str = "setsid sh -c 'echo $$ > hidden; sleep 600' & \
                               while [ ! -s hidden ]; do sleep 0.01; done; exec sleep 600";

#[tokio::test]
async fn task_is_born_in_its_cgroup() {
    let Some(cgroups) = Cgroups::new() else {
        return;
    };
    let mut task = Task::new(sleep_for_ever());
    let placement = cgroups.placement();
    task.config.cgroup = Some(placement.clone());

    let driver = started(&task).await;

    let pid = pid_of(&driver, task.id()).await;
    let line = cgroup_line(pid, "0::");
    let path = line.strip_prefix("0::").unwrap();
    assert!(
        placement.dir.to_str().unwrap().ends_with(path),
        "{line} is not {placement:?}"
    );
    driver.destroy_task(task.id(), true).await.unwrap();
}

#[tokio::test]
async fn stop_reaches_a_process_in_another_session() {
    let Some(cgroups) = Cgroups::new() else {
        return;
    };
    let mut task = Task::new(shell(HIDES_A_PROCESS));
    task.config.cgroup = Some(cgroups.placement());
    let driver = started(&task).await;
    let hidden: i32 = task.read("hidden").parse().unwrap();
    assert!(is_alive(hidden));

    driver
        .stop_task(task.id(), DEADLINE, "SIGTERM")
        .await
        .unwrap();

    let result = driver.wait_task(task.id()).await.unwrap();
    assert_eq!(result, ExitResult::signaled(15));
    until("the hidden process is dead", || !is_alive(hidden));
    driver.destroy_task(task.id(), false).await.unwrap();
}

/// A frozen process handles no signal, and its child receives none at all: both are killed.
async fn stop_of_a_frozen_task_ends_in_a_kill(driver: &dyn TaskDriver, cgroups: &Cgroups) {
    let mut task = Task::new(shell("trap '' TERM; echo $$ > ready; sleep 600; sleep 600"));
    let placement = cgroups.placement();
    task.config.cgroup = Some(placement.clone());
    driver.start_task(task.config.clone()).await.unwrap();
    let first: i32 = task.read("ready").parse().unwrap();
    fs::write(placement.dir.join("cgroup.freeze"), "1").unwrap();
    let holds = |file: &str, text: &str| {
        fs::read_to_string(placement.dir.join(file)).is_ok_and(|it| it.contains(text))
    };
    until("the task is frozen", || holds("cgroup.events", "frozen 1"));
    let timeout = Duration::from_millis(200);

    let began = Instant::now();
    let stopped =
        tokio::time::timeout(DEADLINE, driver.stop_task(task.id(), timeout, "SIGTERM")).await;
    let took = began.elapsed();

    stopped.expect("the stop comes to an end").unwrap();
    assert!(took >= timeout, "{took:?}");
    let result = tokio::time::timeout(DEADLINE, driver.wait_task(task.id())).await;
    let result = result.expect("the task has ended").unwrap();
    assert_eq!(result, ExitResult::signaled(9));
    assert!(!is_alive(first));
    until("no process is left", || {
        holds("cgroup.events", "populated 0")
    });
    driver.destroy_task(task.id(), false).await.unwrap();
}

#[tokio::test]
async fn frozen_task_is_stopped() {
    let Some(cgroups) = Cgroups::new() else {
        return;
    };

    stop_of_a_frozen_task_ends_in_a_kill(&allowing_driver().await, &cgroups).await;
}

#[tokio::test]
async fn frozen_task_is_stopped_through_the_protocol() {
    let Some(cgroups) = Cgroups::new() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("native.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let shutdown = CancellationToken::new();
    let driver = Arc::new(allowing_driver().await);
    let serving = tokio::spawn(plugin::serve(driver, listener, shutdown.clone()));

    stop_of_a_frozen_task_ends_in_a_kill(&plugin::Client::new("native", &socket), &cgroups).await;

    shutdown.cancel();
    serving.await.unwrap().unwrap();
}

/// The agent removes the directory immediately after destroy.
#[tokio::test]
async fn cgroup_is_empty_after_destroy() {
    let Some(cgroups) = Cgroups::new() else {
        return;
    };
    let mut task = Task::new(shell(HIDES_A_PROCESS));
    let placement = cgroups.placement();
    task.config.cgroup = Some(placement.clone());
    let driver = started(&task).await;
    let _hidden = task.read("hidden");

    driver.destroy_task(task.id(), true).await.unwrap();

    fs::remove_dir(&placement.dir).unwrap();
}

#[tokio::test]
async fn removed_cgroup_counts_as_empty() {
    let Some(cgroups) = Cgroups::new() else {
        return;
    };
    let mut task = Task::new(shell("exit 4"));
    let placement = cgroups.placement();
    task.config.cgroup = Some(placement.clone());
    let driver = started(&task).await;
    let result = driver.wait_task(task.id()).await.unwrap();
    until("the cgroup can be removed", || {
        fs::remove_dir(&placement.dir).is_ok()
    });

    driver.destroy_task(task.id(), false).await.unwrap();

    assert_eq!(result, ExitResult::exited(4));
}

#[tokio::test]
async fn task_joins_its_v1_cgroups_before_it_runs() {
    let Some(cgroups) = Cgroups::new() else {
        return;
    };
    let Some(pids) = Cgroups::of_v1("pids") else {
        return;
    };
    let mut task = Task::new(shell("cat /proc/self/cgroup > out; exec sleep 600"));
    let mut placement = cgroups.placement();
    let v1 = pids.create();
    placement.joins = vec![v1.join("cgroup.procs")];
    task.config.cgroup = Some(placement);

    let driver = started(&task).await;

    let text = task.read("out");
    let line = text.lines().find(|line| line.contains(":pids:")).unwrap();
    let path = line.split(":pids:").nth(1).unwrap();
    assert!(v1.to_str().unwrap().ends_with(path), "{line}");
    driver.destroy_task(task.id(), true).await.unwrap();
}

#[tokio::test]
async fn directory_that_is_no_cgroup_is_refused() {
    let mut task = Task::new(sleep_for_ever());
    task.config.cgroup = Some(muster_driver::CgroupPlacement {
        dir: task.dir.path().to_owned(),
        joins: Vec::new(),
    });
    let driver = allowing_driver().await;

    let error = driver.start_task(task.config.clone()).await.unwrap_err();

    assert!(error.to_string().contains("cgroup.kill"), "{error}");
}

#[tokio::test]
async fn use_of_cpu_is_the_whole_cgroups() {
    let Some(cgroups) = Cgroups::new() else {
        return;
    };
    let mut task = Task::new(shell("(while :; do :; done) & exec sleep 600"));
    task.config.cgroup = Some(cgroups.placement());
    let driver = started(&task).await;

    let stats = driver
        .task_stats(task.id(), Duration::from_millis(50))
        .await
        .unwrap();
    // The main process sleeps: only its child uses CPU.
    let mut busy = stats.filter(|stats| futures::future::ready(stats.usage.cpu.percent > 5.0));
    let busy = tokio::time::timeout(DEADLINE, busy.next())
        .await
        .unwrap()
        .unwrap();

    assert!(busy.usage.cpu.measured.contains(&CpuField::Percent));
    driver.destroy_task(task.id(), true).await.unwrap();
}

#[tokio::test]
async fn command_runs_in_the_tasks_cgroup() {
    let Some(cgroups) = Cgroups::new() else {
        return;
    };
    let mut task = Task::new(sleep_for_ever());
    task.config.cgroup = Some(cgroups.placement());
    let driver = started(&task).await;
    let pid = pid_of(&driver, task.id()).await;

    let result = driver
        .exec_task(
            task.id(),
            ["cat", "/proc/self/cgroup"].map(str::to_owned).to_vec(),
            DEADLINE,
        )
        .await
        .unwrap();

    let output = String::from_utf8(result.stdout).unwrap();
    assert!(output.contains(&cgroup_line(pid, "0::")), "{output}");
    driver.destroy_task(task.id(), true).await.unwrap();
}
