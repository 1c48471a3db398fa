//! Limits hold under real pressure.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use muster_agent::cgroup::{Controller, Limits, TaskCgroup};

use crate::support::{limits, remove, shell, tree, until};

/// Half a core for two seconds is one second of CPU, never more. Less is the emulator waiting for its host.
#[tokio::test]
async fn cpu_quota_holds() {
    let Some(tree) = tree("cpu_quota_holds", &[Controller::Cpu]) else {
        return;
    };
    let limits = Limits {
        cpu_cores_max: Some(0.5),
        ..limits()
    };
    let task = TaskCgroup::create(&tree, "alloc", "burn", &limits).unwrap();
    let mut child = shell(&task, "while :; do :; done");
    let usage = || Duration::from_micros(task.stats().unwrap().cpu.unwrap().usage_us.unwrap());
    until("the task to burn", || {
        (usage() > Duration::from_millis(100)).then_some(())
    });

    let (before, begun) = (usage(), Instant::now());
    until("two seconds", || {
        (begun.elapsed() > Duration::from_secs(2)).then_some(())
    });
    let share = usage().saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64();

    assert!((0.25..=0.55).contains(&share), "used {share:.3} of a core");
    assert!(
        task.stats()
            .unwrap()
            .cpu
            .unwrap()
            .throttled_periods
            .unwrap()
            > 0
    );
    remove(tree, task).await;
    child.wait().unwrap();
}

/// A shell that doubles a text until the kernel stops it.
#[tokio::test]
async fn memory_limit_kills_and_is_counted() {
    let Some(tree) = tree("memory_limit_kills_and_is_counted", &[Controller::Memory]) else {
        return;
    };
    let limit = 32 << 20;
    let limits = Limits {
        memory_max_bytes: Some(limit),
        ..limits()
    };
    let task = TaskCgroup::create(&tree, "alloc", "hungry", &limits).unwrap();
    assert_eq!(
        task.stats().unwrap().memory.unwrap().limit_bytes,
        Some(limit)
    );

    let mut child = shell(&task, "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done");
    let status = child.wait().unwrap();

    let oom = task.oom().unwrap().unwrap();
    assert_eq!(status.signal(), Some(9), "{status}");
    assert!(oom.kills >= 1, "{oom:?}");
    assert_eq!(oom.limit_bytes, Some(limit));
    let memory = task.stats().unwrap().memory.unwrap();
    assert!(memory.max_events > Some(0), "{memory:?}");
    assert_eq!(memory.high_events, Some(0), "{memory:?}");
    assert!(memory.kernel_bytes.is_some(), "{memory:?}");
    assert!(
        oom.peak_bytes.is_none_or(|peak| peak <= limit + (1 << 20)),
        "{oom:?}"
    );
    remove(tree, task).await;
}

#[tokio::test]
async fn a_fork_bomb_stops_at_its_limit() {
    let Some(tree) = tree("a_fork_bomb_stops_at_its_limit", &[Controller::Pids]) else {
        return;
    };
    let task = TaskCgroup::create(
        &tree,
        "alloc",
        "bomb",
        &Limits {
            pids_max: 20,
            ..limits()
        },
    )
    .unwrap();

    let mut child = shell(
        &task,
        "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; sleep 1000",
    );
    let most = until("the bomb to reach its limit", || {
        let pids = task.stats().unwrap().pids.unwrap();
        (pids >= 19).then_some(pids)
    });

    assert!(most <= 20, "{most} processes");
    remove(tree, task).await;
    child.wait().unwrap();
}

/// A process that left its session and its parent, in a group it made itself.
#[tokio::test]
async fn killing_reaches_what_hides() {
    let Some(tree) = tree("killing_reaches_what_hides", &[]) else {
        return;
    };
    let task = TaskCgroup::create(&tree, "alloc", "hide", &limits()).unwrap();
    let nested = task.dir().join("nested");
    let script = format!(
        "mkdir '{0}'; (setsid sh -c 'echo $$ > {0}/cgroup.procs; trap \"\" TERM; exec sleep 1000' &) ; sleep 1000",
        nested.display()
    );
    let mut child = shell(&task, &script);
    until("the hidden process", || {
        let procs = std::fs::read_to_string(nested.join("cgroup.procs")).unwrap_or_default();
        (!procs.is_empty()).then_some(())
    });

    remove(tree, task).await;

    child.wait().unwrap();
    assert!(!nested.exists());
}

#[tokio::test]
async fn a_frozen_task_stands_still_and_goes_on() {
    let Some(tree) = tree("a_frozen_task_stands_still_and_goes_on", &[Controller::Cpu]) else {
        return;
    };
    let task = TaskCgroup::create(&tree, "alloc", "freeze", &limits()).unwrap();
    let mut child = shell(&task, "while :; do :; done");
    let usage = || task.stats().unwrap().cpu.unwrap().usage_us.unwrap();
    until("the task to burn", || (usage() > 100_000).then_some(()));

    task.freeze(Duration::from_secs(10)).await.unwrap();
    let frozen = usage();
    let begun = Instant::now();
    until("half a second", || {
        (begun.elapsed() > Duration::from_millis(500)).then_some(())
    });
    assert!(usage() - frozen < 50_000, "a frozen task uses no CPU");

    task.thaw(Duration::from_secs(10)).await.unwrap();
    until("the task to go on", || {
        (usage() > frozen + 100_000).then_some(())
    });
    remove(tree, task).await;
    child.wait().unwrap();
}

/// A task has the core that it was given, in whichever version the controller is.
#[tokio::test]
async fn cores_are_those_that_were_given() {
    let Some(tree) = tree("cores_are_those_that_were_given", &[Controller::Cpuset]) else {
        return;
    };
    let limits = Limits {
        cores: vec![0],
        ..limits()
    };
    let task = TaskCgroup::create(&tree, "alloc", "pinned", &limits).unwrap();
    assert_eq!(task.unenforced().next(), None);
    let mut child = shell(&task, "sleep 600");

    // It joins one group after the other.
    until("a task on its core", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        (allowed.trim() == "0").then_some(())
    });

    remove(tree, task).await;
    child.wait().unwrap();
}
