//! A walk over groups finds the same as their files tell.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use muster_agent::bpf::{Bpf, BpfConfig, ensure_bpffs, remove_pins, unmount_bpffs};
use muster_agent::resources::cgroup::{
    CpuStats, Limits, MemoryStats, NodeTree, TaskCgroup, TaskStats,
};

use crate::support::{PATIENCE, limits, remove, shell, skipped, tree, until};

/// The programs of a node whose tree this is.
struct Programs {
    bpf: Bpf,
    config: BpfConfig,
    dir: tempfile::TempDir,
}

impl Programs {
    /// With a tree of the test's own, or said why not.
    fn with_tree(test: &str) -> Option<(NodeTree, Self)> {
        if Bpf::object().is_err() {
            skipped(test, "no eBPF object; run: cargo xtask build-ebpf");
            return None;
        }
        let tree = tree(test, &[])?;
        let dir = tempfile::tempdir().unwrap();
        let config = BpfConfig {
            pin_dir: ensure_bpffs(dir.path()).unwrap().join("muster-test"),
            cgroup_dir: tree.v2_dir().to_owned(),
            task_level: tree.task_level().unwrap(),
        };
        let bpf = Bpf::open(&config).unwrap();
        Some((tree, Self { bpf, config, dir }))
    }

    /// The statistics of the task that a walk finds; CPU time is not in them.
    fn walked(&self, tree: &NodeTree, task: &TaskCgroup) -> Option<TaskStats> {
        let walked = tree.walk(|root, is_v2| self.bpf.groups_below(root, is_v2));
        task.stats_in(&walked.unwrap()).unwrap()
    }

    fn remove(self) {
        drop(self.bpf);
        remove_pins(&self.config.pin_dir).unwrap();
        unmount_bpffs(self.dir.path()).unwrap();
    }
}

/// The statistics that the files tell, without those that a walk does not find.
fn by_files(task: &TaskCgroup) -> TaskStats {
    let stats = task.stats().unwrap();
    let cpu = stats.cpu.map(|cpu| CpuStats {
        usage_us: None,
        user_us: None,
        system_us: None,
        ..cpu
    });
    TaskStats { cpu, ..stats }
}

/// Two tasks of two allocations, one of which has used its quota up, some memory and groups of its own.
#[tokio::test]
async fn walk_matches_cgroup_files() {
    const NAME: &str = "walk_matches_cgroup_files";
    let Some((tree, programs)) = Programs::with_tree(NAME) else {
        return;
    };
    let limits = Limits {
        cpu_cores_max: Some(0.2),
        memory_max_bytes: Some(64 << 20),
        ..limits()
    };
    let busy = TaskCgroup::create(&tree, "one", "busy", &limits).unwrap();
    let quiet = TaskCgroup::create(&tree, "two", "quiet", &Limits::default()).unwrap();
    fs::create_dir_all(busy.dir().join("below/deeper")).unwrap();
    let mut child = shell(
        &busy,
        "x=aaaaaaaaaaaaaaaa; i=0; while [ $i -lt 18 ]; do x=$x$x; i=$((i+1)); done; while :; do :; done",
    );
    let full = until("the task to have memory, and to be throttled", || {
        let stats = busy.stats().unwrap();
        let memory = stats.memory.map_or(u64::MAX, |memory| memory.current_bytes);
        let is_throttled = stats.cpu?.throttled_us.is_none_or(|time| time > 0);
        (memory > 4 << 20 && is_throttled).then_some(stats)
    });
    busy.freeze(PATIENCE).await.unwrap();

    // Pressure is summed up every two seconds.
    let (found, expected) = until("the walk to find what files tell", || {
        let (found, expected) = (programs.walked(&tree, &busy)?, by_files(&busy));
        (found == expected).then_some((found, expected))
    });
    let still = until("the walk to find the other", || {
        let (found, expected) = (programs.walked(&tree, &quiet)?, by_files(&quiet));
        (found == expected).then_some(found)
    });

    assert_eq!(found, expected);
    assert_eq!(found.pids, full.pids);
    assert_eq!(still.pids, full.pids.map(|_| 0));
    let limit = |memory: MemoryStats| memory.limit_bytes;
    assert_eq!(found.memory.map(limit), full.memory.map(|_| Some(64 << 20)));
    assert_eq!(still.memory.map(limit), full.memory.map(|_| None));
    eprintln!("{found:?}");
    busy.thaw(PATIENCE).await.unwrap();
    busy.kill().unwrap();
    child.wait().unwrap();
    programs.remove();
    quiet.remove().await.unwrap();
    remove(tree, busy).await;
}

/// In v1 each group counts its own kills alone.
#[tokio::test]
async fn oom_kills_in_nested_cgroups_count_for_task() {
    const NAME: &str = "oom_kills_in_nested_cgroups_count_for_task";
    let Some((tree, programs)) = Programs::with_tree(NAME) else {
        return;
    };
    let limits = Limits {
        memory_max_bytes: Some(32 << 20),
        ..limits()
    };
    let task = TaskCgroup::create(&tree, "alloc", "hungry", &limits).unwrap();
    let after = TaskCgroup::create(&tree, "alloc", "other", &limits).unwrap();
    if task.stats().unwrap().memory.is_none() {
        skipped(NAME, "no memory controller; run: cargo xtask vm");
    } else {
        let memory = task.joins();
        let memory = memory
            .iter()
            .find(|path| path.to_string_lossy().contains("/memory/"));
        let group = memory
            .and_then(|path| path.parent())
            .map_or_else(|| task.dir().into(), PathBuf::from);
        let below = group.join("below");
        fs::create_dir(&below).unwrap();
        let enter = format!("echo 0 > '{}/cgroup.procs'", below.display());
        let mut child = shell(
            &task,
            &format!("{enter} || exit 98; x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"),
        );
        assert_eq!(child.wait().unwrap().signal(), Some(9));

        let kills = |task| {
            programs
                .walked(&tree, task)
                .unwrap()
                .memory
                .unwrap()
                .oom_kills
        };
        assert!(kills(&task) >= 1, "{}", kills(&task));
        assert_eq!(kills(&task), task.oom().unwrap().unwrap().kills);
        assert_eq!(kills(&after), 0);
    }
    programs.remove();
    after.remove().await.unwrap();
    remove(tree, task).await;
}
