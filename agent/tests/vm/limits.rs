//! Limits hold under real pressure.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use muster_agent::resources::cgroup::{Controller, CpuStats, Limits, TaskCgroup, disks};
use muster_domain::job::ByteRate;
use muster_domain::resources::IoLimits;

use crate::disk::Disk;
use crate::support::{limits, remove, shell, tree, until};

#[tokio::test]
async fn cpu_quota_holds() {
    quota_holds("cpu_quota_holds", "while :; do :; done", 100).await;
}

/// Half a core for `order`, within 2 % over so many throttled periods. A period that was throttled used all of its quota, and no other
/// used more: so what was used lies between the two, whatever else an emulator's host does.
pub(crate) async fn quota_holds(name: &str, order: &str, periods: u64) {
    let Some(tree) = tree(name, &[Controller::Cpu]) else {
        return;
    };
    let limits = Limits {
        cpu_cores_max: Some(0.5),
        ..limits()
    };
    let task = TaskCgroup::create(&tree, "alloc", "burn", &limits).unwrap();
    let mut child = shell(&task, order);
    let cpu = || task.stats().unwrap().cpu.unwrap();
    let begun = until("the task to burn", || {
        Some(cpu()).filter(|cpu| cpu.throttled_periods > Some(0))
    });

    let ended = until("the throttled periods", || {
        let throttled = cpu().throttled_periods? - begun.throttled_periods?;
        (throttled >= periods).then(cpu)
    });

    let quotas = |periods: fn(&CpuStats) -> Option<u64>| {
        let count = periods(&ended).unwrap() - periods(&begun).unwrap();
        Duration::from_millis(50).as_secs_f64() * count as f64
    };
    let used = Duration::from_micros(ended.usage_us.unwrap() - begun.usage_us.unwrap());
    let (least, most) = (
        quotas(|cpu| cpu.throttled_periods),
        quotas(|cpu| cpu.periods),
    );
    eprintln!("used {used:?}, quota of throttled periods {least} s, of all {most} s");
    assert!(used.as_secs_f64() >= 0.98 * least, "{used:?} < {least} s");
    assert!(used.as_secs_f64() <= 1.02 * most, "{used:?} > {most} s");
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

/// Above its soft limit a task is slowed down and counted, and what of it are files is given back first: a file four
/// times as large is read through within it.
#[tokio::test]
async fn a_soft_memory_limit_is_kept_by_reclaim() {
    let name = "a_soft_memory_limit_is_kept_by_reclaim";
    let Some(tree) = tree(name, &[Controller::Memory]) else {
        return;
    };
    let Some(disk) = Disk::new(name, 64 << 20) else {
        return tree.remove().await.unwrap();
    };
    let soft = 16 << 20;
    let limits = Limits {
        memory_max_bytes: Some(64 << 20),
        memory_high_bytes: Some(soft),
        memory_low_bytes: Some(8 << 20),
        ..limits()
    };
    let task = TaskCgroup::create(&tree, "alloc", "reads", &limits).unwrap();
    let reserved = || fs::read_to_string(tree.v2_dir().join("memory.low")).unwrap();
    assert_eq!(reserved(), "8388608\n");

    let mut child = shell(&task, &format!("exec cat {}", disk.path()));
    let status = child.wait().unwrap();

    assert!(status.success(), "{status}");
    let memory = task.stats().unwrap().memory.unwrap();
    assert!(memory.high_events > Some(0), "{memory:?}");
    assert_eq!(task.oom().unwrap().unwrap().kills, 0);
    let peak = memory.peak_bytes.unwrap_or(memory.current_bytes);
    assert!(peak <= soft + (8 << 20), "{memory:?}");
    task.remove().await.unwrap();
    assert_eq!(reserved(), "0\n");
    tree.remove().await.unwrap();
}

/// A mebibyte in a second, within a tenth over five seconds, counted by the kernel as they go to the disk.
#[tokio::test]
async fn a_disk_rate_holds() {
    let name = "a_disk_rate_holds";
    let Some(tree) = tree(name, &[Controller::Io]) else {
        return;
    };
    let Some(disk) = Disk::new(name, 64 << 20) else {
        return tree.remove().await.unwrap();
    };
    let limit = 1 << 20;
    let io = IoLimits {
        read_rate: Some(ByteRate(limit)),
        weight: Some(50),
        ..IoLimits::default()
    };
    let limits = Limits { io, ..limits() };
    let task = TaskCgroup::create(&tree, "alloc", "reads", &limits).unwrap();
    let unenforced: Vec<_> = task.unenforced().collect();
    // The share is the disk's scheduler's, which a kernel may lack.
    assert!(
        unenforced.iter().all(|it| it.reason.contains("weight")),
        "{unenforced:?}"
    );
    let mut child = shell(&task, &format!("exec cat {}", disk.path()));

    keeps(&task, &disk, "rbytes", limit);

    assert_eq!(
        task.repair(&limits).unwrap(),
        [],
        "what was set is what is read"
    );
    let none = Limits {
        io: IoLimits::default(),
        ..limits.clone()
    };
    let lifted = task.repair(&none).unwrap();
    assert!(
        lifted.iter().any(|drift| drift.set.is_empty()),
        "{lifted:?}"
    );
    remove(tree, task).await;
    child.wait().unwrap();
}

/// Five seconds' worth of `limit` takes five seconds, within a tenth.
pub(crate) fn keeps(task: &TaskCgroup, disk: &Disk, what: &str, limit: u64) {
    let done = || disk.done_for(task, what);
    let (from, begun) = until("the first of it", || {
        let now = done();
        (now > 0).then(|| (now, Instant::now()))
    });

    let to = until("five seconds' worth", || {
        Some(done()).filter(|now| now - from >= 5 * limit)
    });
    let rate = (to - from) as f64 / begun.elapsed().as_secs_f64();

    eprintln!("{rate:.0} {what} a second of {limit}");
    assert!(rate <= 1.1 * limit as f64, "{rate:.0} {what} a second");
    // An emulated guest may be slower than its limit, but not so much that the limit were another.
    assert!(rate >= 0.9 * limit as f64, "{rate:.0} {what} a second");
}

/// A task whose disk is limited by `io` does `order` with it, for ever, at the rate of `limit`.
async fn check_disk_rate(name: &str, io: IoLimits, order: &str, what: &str, limit: u64) {
    let Some(tree) = tree(name, &[Controller::Io]) else {
        return;
    };
    let Some(disk) = Disk::new(name, 64 << 20) else {
        return tree.remove().await.unwrap();
    };
    let limits = Limits { io, ..limits() };
    let task = TaskCgroup::create(&tree, "alloc", "works", &limits).unwrap();
    let order = order.replace("DISK", disk.path());
    let mut child = shell(&task, &format!("while :; do {order}; done"));

    keeps(&task, &disk, what, limit);

    remove(tree, task).await;
    child.wait().unwrap();
}

/// The disk comes when the task runs.
#[tokio::test]
async fn hotplugged_disk_is_limited_on_next_scan() {
    let name = "hotplugged_disk_is_limited_on_next_scan";
    let Some(tree) = tree(name, &[Controller::Io]) else {
        return;
    };
    let limit = 1 << 20;
    let io = IoLimits {
        read_rate: Some(ByteRate(limit)),
        ..IoLimits::default()
    };
    let limits = Limits { io, ..limits() };
    let task = TaskCgroup::create(&tree, "alloc", "reads", &limits).unwrap();
    let Some(disk) = Disk::new(name, 64 << 20) else {
        return remove(tree, task).await;
    };

    let limited = task.limit_new_disks(&disks()).unwrap();
    let again = task.limit_new_disks(&disks()).unwrap();
    let mut child = shell(&task, &format!("exec cat {}", disk.path()));

    assert_eq!(limited, [disk.number()]);
    assert_eq!(again, [""; 0]);
    keeps(&task, &disk, "rbytes", limit);
    remove(tree, task).await;
    child.wait().unwrap();
}

#[tokio::test]
async fn disk_writes_stay_within_rate_limit() {
    let io = IoLimits {
        write_rate: Some(ByteRate(1 << 20)),
        ..IoLimits::default()
    };
    let order = "dd if=/dev/zero of=DISK bs=64k count=512 oflag=direct";
    let name = "disk_writes_stay_within_rate_limit";
    check_disk_rate(name, io, order, "wbytes", 1 << 20).await;
}

#[tokio::test]
async fn reads_of_a_disk_keep_their_rate() {
    let io = IoLimits {
        read_ops: Some(100),
        ..IoLimits::default()
    };
    let order = "dd if=DISK of=/dev/null bs=4k iflag=direct";
    check_disk_rate("reads_of_a_disk_keep_their_rate", io, order, "rios", 100).await;
}

#[tokio::test]
async fn writes_of_a_disk_keep_their_rate() {
    let io = IoLimits {
        write_ops: Some(100),
        ..IoLimits::default()
    };
    let order = "dd if=/dev/zero of=DISK bs=4k count=8192 oflag=direct";
    check_disk_rate("writes_of_a_disk_keep_their_rate", io, order, "wios", 100).await;
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
async fn killing_reaches_hidden_processes() {
    let Some(tree) = tree("killing_reaches_hidden_processes", &[]) else {
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
        let procs = fs::read_to_string(nested.join("cgroup.procs")).unwrap_or_default();
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
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        (allowed.trim() == "0").then_some(())
    });

    remove(tree, task).await;
    child.wait().unwrap();
}
