//! Tasks that take all they can get, beside others.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use muster_agent::resources::cgroup::{
    Controller, Limits, NodeTree, RemoveCgroupError, TaskCgroup,
};
use muster_domain::resources::IoLimits;

use crate::disk::Disk;
use crate::support::{PATIENCE, limits, remove, shell, tree, until};

const BURN: &str = "while :; do :; done";

/// CPU time in microseconds.
fn used(task: &TaskCgroup) -> u64 {
    task.stats().unwrap().cpu.unwrap().usage_us.unwrap()
}

async fn end(task: &TaskCgroup) {
    task.kill().unwrap();
    assert!(task.wait_empty(PATIENCE).await.unwrap());
    task.remove().await.unwrap();
}

fn make(tree: &NodeTree, alloc: &str, limits: &Limits) -> TaskCgroup {
    TaskCgroup::create(tree, alloc, "task", limits).unwrap()
}

#[tokio::test]
async fn cpu_is_shared_by_weight() {
    shared_by_weight("cpu_is_shared_by_weight", BURN).await;
}

/// 1 000 against 3 000 MHz on one core for two that `burn`, within 5 % over eight seconds of it.
pub(crate) async fn shared_by_weight(name: &str, burn: &str) {
    let Some(tree) = tree(name, &[Controller::Cpu, Controller::Cpuset]) else {
        return;
    };
    let on_one_core = |cpu_mhz| Limits {
        cpu_mhz,
        cores: vec![0],
        ..limits()
    };
    let small = make(&tree, "small", &on_one_core(1_000));
    let large = make(&tree, "large", &on_one_core(3_000));
    let mut children = [shell(&small, burn), shell(&large, burn)];
    let both = || (used(&small), used(&large));
    let begun = until("both to burn", || {
        Some(both()).filter(|(small, large)| *small > 200_000 && *large > 200_000)
    });

    let ended = until("eight seconds", || {
        let now = both();
        (now.0 + now.1 >= begun.0 + begun.1 + 8_000_000).then_some(now)
    });

    let (small_us, large_us) = (ended.0 - begun.0, ended.1 - begun.1);
    let ratio = large_us as f64 / small_us as f64;
    eprintln!("{large_us} to {small_us} microseconds: {ratio:.3}");
    assert!(
        (ratio / 3.0 - 1.0).abs() <= 0.05,
        "{ratio:.3} in place of 3"
    );
    end(&small).await;
    remove(tree, large).await;
    for child in &mut children {
        child.wait().unwrap();
    }
}

/// A weight of 50 against one of 150 on a busy disk, within 5 % over 3 000 requests of 5 ms. Each has twelve readers:
/// while some get no processor, others wait for the disk, so that both have requests at all times.
#[tokio::test]
async fn a_disk_is_shared_by_weight() {
    let name = "a_disk_is_shared_by_weight";
    let Some(tree) = tree(name, &[Controller::Io]) else {
        return;
    };
    let Some(disk) = Disk::weighed(name) else {
        return tree.remove().await.unwrap();
    };
    let weighs = |weight| Limits {
        io: IoLimits {
            weight: Some(weight),
            ..IoLimits::default()
        },
        ..limits()
    };
    let small = make(&tree, "small", &weighs(50));
    let large = make(&tree, "large", &weighs(150));
    assert_eq!(small.unenforced().next(), None);
    // Each reads a part of its own: bfq would make one queue of two that are near each other.
    let reads = format!(
        "for part in 0 1 2 3 4 5 6 7 8 9 10 11; do (while :; do dd if={} of=/dev/null bs=4k skip=$((part * 20000)) count=20000 \
         iflag=direct; done) & done; wait",
        disk.path()
    );
    let mut children = [shell(&small, &reads), shell(&large, &reads)];
    let both = || (disk.done_for(&small, "rios"), disk.done_for(&large, "rios"));
    let begun = until("both to read", || {
        Some(both()).filter(|(small, large)| *small > 50 && *large > 50)
    });

    let ended = until("3 000 requests", || {
        let now = both();
        (now.0 + now.1 >= begun.0 + begun.1 + 3_000).then_some(now)
    });

    let (of_small, of_large) = (ended.0 - begun.0, ended.1 - begun.1);
    let ratio = of_large as f64 / of_small as f64;
    eprintln!("{of_large} to {of_small} requests: {ratio:.3}");
    assert!(
        (ratio / 3.0 - 1.0).abs() <= 0.05,
        "{ratio:.3} in place of 3"
    );
    end(&small).await;
    remove(tree, large).await;
    for child in &mut children {
        child.wait().unwrap();
    }
}

#[tokio::test]
async fn only_task_over_memory_limit_is_oom_killed() {
    the_greedy_is_killed(
        "only_task_over_memory_limit_is_oom_killed",
        32 << 20,
        "x=$(head -c 5000000 /dev/zero | tr '\\0' a); sleep 600",
        "sleep 600 & x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done",
    )
    .await;
}

/// Of two tasks with the same limit the one that goes beyond it is killed, whole, and the other, which takes an eighth
/// of it, is left alone.
pub(crate) async fn the_greedy_is_killed(name: &str, limit: u64, modestly: &str, greedily: &str) {
    let Some(tree) = tree(name, &[Controller::Memory]) else {
        return;
    };
    let limits = Limits {
        memory_max_bytes: Some(limit),
        ..limits()
    };
    let (modest, greedy) = (
        make(&tree, "modest", &limits),
        make(&tree, "greedy", &limits),
    );
    let mut quiet = shell(&modest, modestly);
    until("the modest one's memory", || {
        let memory = modest.stats().unwrap().memory.unwrap();
        (memory.current_bytes > limit / 8).then_some(())
    });

    let mut child = shell(&greedy, greedily);
    let status = child.wait().unwrap();

    assert_eq!(status.signal(), Some(9), "{status}");
    until("the greedy one's helper to go with it", || {
        (!greedy.is_populated().unwrap()).then_some(())
    });
    assert!(greedy.oom().unwrap().unwrap().kills >= 1);
    assert_eq!(modest.oom().unwrap().unwrap().kills, 0);
    assert_eq!(quiet.try_wait().unwrap(), None);
    end(&greedy).await;
    remove(tree, modest).await;
    quiet.wait().unwrap();
}

#[tokio::test]
async fn fork_bomb_does_not_affect_neighbour_pids() {
    let bomb = "bomb() { bomb | bomb & }; bomb; sleep 600";
    the_bomb_is_kept("fork_bomb_does_not_affect_neighbour_pids", bomb).await;
}

/// A process that forks as fast as it can never has more than its limit. Its neighbour can still fork, and it is
/// killed.
pub(crate) async fn the_bomb_is_kept(name: &str, order: &str) {
    let Some(tree) = tree(name, &[Controller::Pids, Controller::Cpu]) else {
        return;
    };
    let bomb = make(
        &tree,
        "bomb",
        &Limits {
            pids_max: 64,
            ..limits()
        },
    );
    let neighbour = make(&tree, "neighbour", &limits());
    let mut child = shell(&bomb, order);
    until("the bomb to be refused a process", || {
        let events = std::fs::read_to_string(bomb.dir().join("pids.events")).unwrap();
        (events.trim() != "max 0").then_some(())
    });

    let forks = shell(
        &neighbour,
        "i=0; while [ $i -lt 50 ]; do (exit 0) || exit 1; i=$((i+1)); done",
    );
    let status = forks.wait_with_output().unwrap().status;

    assert!(status.success(), "{status}");
    let most = bomb.stats().unwrap().pids.unwrap();
    assert!(most <= 64, "{most}");
    end(&neighbour).await;
    remove(tree, bomb).await;
    child.wait().unwrap();
}

/// Frozen in a group that the task made in a group that it made: busy until it is killed, and gone then.
#[tokio::test]
async fn a_frozen_nested_and_busy_group_is_removed() {
    let name = "a_frozen_nested_and_busy_group_is_removed";
    let Some(tree) = tree(name, &[]) else {
        return;
    };
    let task = make(&tree, "alloc", &limits());
    let inner = task.dir().join("a/b");
    let script = format!(
        "mkdir -p '{0}'; (trap '' TERM; echo 0 >'{0}/cgroup.procs'; while :; do :; done) & sleep 600",
        inner.display()
    );
    let mut child = shell(&task, &script);
    let inside = until("a process inside", || {
        let procs = std::fs::read_to_string(inner.join("cgroup.procs")).ok()?;
        procs.lines().next()?.parse::<u32>().ok()
    });
    task.freeze(Duration::from_secs(30)).await.unwrap();

    let refused = task.remove().await.unwrap_err();

    let RemoveCgroupError::Busy { pids, .. } = refused else {
        panic!("{refused:?}");
    };
    assert!(pids.contains(&inside), "{pids:?} without {inside}");
    task.freeze(Duration::from_secs(30)).await.unwrap();
    remove(tree, task).await;
    assert!(!inner.exists());
    child.wait().unwrap();
}
