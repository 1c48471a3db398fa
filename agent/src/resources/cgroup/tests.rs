//! Tests on the real hierarchies of this host, below this process's own groups. They need root; without it each test
//! reports that it was skipped.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use muster_domain::fixture::recorded::skipped;
use muster_domain::job::ByteRate;
use muster_domain::resources::IoLimits;

use crate::resources::cgroup::{
    ApplyLimitError, Controller, ControllerMode, CpuStats, CreateTaskCgroupError, Hierarchies,
    Limits, NodeTree, NodeTreeError, NodeTreeRecord, RemoveCgroupError, TaskCgroup, TaskName,
    TaskStats, remove,
};

const PATIENCE: Duration = Duration::from_secs(30);
const MIB: u64 = 1024 * 1024;

/// A tree of its own for each test, killed and removed on drop.
struct Fixture {
    tree: NodeTree,
    hierarchies: Hierarchies,
}

/// Reports that the test of this thread cannot run here.
fn skip(reason: &str) {
    let test = std::thread::current();
    skipped(test.name().unwrap_or("cgroup"), reason);
}

impl Fixture {
    fn new() -> Option<Self> {
        let hierarchies = Hierarchies::probe().unwrap();
        let id = uuid::Uuid::new_v4().simple().to_string();
        match NodeTree::create(&hierarchies, &format!("muster-{}", &id[..8])) {
            Ok(tree) => Some(Self { tree, hierarchies }),
            Err(error) => {
                skip(&format!("{error:?}; run as root"));
                None
            }
        }
    }

    fn task(&self, limits: &Limits) -> TaskCgroup {
        TaskCgroup::create(&self.tree, "a1", "web", limits).unwrap()
    }

    fn has(&self, controller: Controller) -> bool {
        let has = self.hierarchies.controller(controller) != ControllerMode::Absent;
        if !has {
            skip(&format!("this host has no {controller} controller"));
        }
        has
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for task in self.tree.tasks().unwrap() {
            TaskCgroup::open(&self.tree, &task.alloc, &task.task)
                .unwrap()
                .kill()
                .unwrap();
        }
        let begun = Instant::now();
        for root in self.tree.roots() {
            while let Err(error) = remove::try_remove(root) {
                assert!(begun.elapsed() < PATIENCE, "{}: {error}", root.display());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// A shell that runs its script once it is in the task's groups. Killed on drop.
struct Shell(Child);

impl Shell {
    fn spawn_in(task: &TaskCgroup, script: &str) -> Self {
        let mut child = Command::new("/bin/sh")
            .args(["-c", &format!("read begin\n{script}")])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let procs = [task.dir().join("cgroup.procs")];
        for file in procs.iter().chain(&task.joins()) {
            fs::write(file, child.id().to_string()).unwrap();
        }
        child.stdin.as_mut().unwrap().write_all(b"begin\n").unwrap();
        Self(child)
    }

    fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(|_| ())) {
            println!("{error}");
        }
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(
            begun.elapsed() < PATIENCE,
            "waited {PATIENCE:?} until {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn read(dir: &Path, file: &str) -> String {
    fs::read_to_string(dir.join(file))
        .unwrap()
        .trim()
        .to_owned()
}

/// The directory and version of a controller's group of the task `a1/web`.
fn group(fixture: &Fixture, controller: Controller) -> (std::path::PathBuf, bool) {
    let bound = &fixture.tree.bound()[&controller];
    (bound.root.join("a1").join("web"), bound.v2)
}

#[test]
fn probe_finds_where_this_process_is() {
    let hierarchies = Hierarchies::probe().unwrap();
    let own = std::process::id().to_string();

    let v2 = hierarchies
        .v2()
        .map(super::hierarchies::MountedHierarchy::own_dir);
    let v1 = Controller::ALL
        .into_iter()
        .filter_map(|c| hierarchies.v1(c));
    for dir in v2
        .into_iter()
        .chain(v1.map(super::hierarchies::MountedHierarchy::own_dir))
    {
        let procs = read(&dir, "cgroup.procs");
        assert!(procs.lines().any(|pid| pid == own), "{}", dir.display());
    }
    assert_eq!(hierarchies.attributes().len(), 1 + Controller::ALL.len());
}

#[test]
fn limits_equal_those_in_the_kernel() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let limits = Limits {
        cpu_mhz: 500,
        cpu_cores_max: Some(1.5),
        memory_max_bytes: Some(64 * MIB + 1),
        memory_low_bytes: Some(16 * MIB),
        pids_max: 77,
        ..Limits::default()
    };

    let task = fixture.task(&limits);

    assert!(task.unenforced().eq(fixture.tree.unenforced()));
    if fixture.has(Controller::Cpu) {
        match group(&fixture, Controller::Cpu) {
            (dir, true) => {
                assert_eq!(read(&dir, "cpu.weight"), "50");
                assert_eq!(read(&dir, "cpu.max"), "150000 100000");
            }
            (dir, false) => {
                assert_eq!(read(&dir, "cpu.shares"), "500");
                assert_eq!(read(&dir, "cpu.cfs_quota_us"), "150000");
            }
        }
    }
    if fixture.has(Controller::Memory) {
        let max = (64 * MIB).to_string();
        match group(&fixture, Controller::Memory) {
            (dir, true) => {
                assert_eq!(read(&dir, "memory.max"), max);
                assert_eq!(read(&dir, "memory.low"), (16 * MIB).to_string());
                assert_eq!(
                    read(dir.parent().unwrap(), "memory.low"),
                    (16 * MIB).to_string()
                );
                assert_eq!(read(&dir, "memory.oom.group"), "1");
            }
            (dir, false) => {
                assert_eq!(read(&dir, "memory.limit_in_bytes"), max);
                assert_eq!(
                    read(&dir, "memory.soft_limit_in_bytes"),
                    (16 * MIB).to_string()
                );
                assert_eq!(read(&dir, "memory.memsw.limit_in_bytes"), max);
            }
        }
    }
    if fixture.has(Controller::Pids) {
        assert_eq!(read(&group(&fixture, Controller::Pids).0, "pids.max"), "77");
    }
}

/// Another process writes into the files between two agents.
#[test]
fn changed_limit_is_restored_and_reported() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !fixture.has(Controller::Pids) || !fixture.has(Controller::Cpu) {
        return;
    }
    let limits = Limits {
        cpu_mhz: 500,
        memory_max_bytes: Some(64 * MIB + 1),
        pids_max: 77,
        ..Limits::default()
    };
    let task = fixture.task(&limits);
    let pids = group(&fixture, Controller::Pids).0;
    let (cpu, v2) = group(&fixture, Controller::Cpu);
    let weight = if v2 { "cpu.weight" } else { "cpu.shares" };
    let weighed = read(&cpu, weight);
    assert_eq!(task.repair(&limits).unwrap(), [], "nobody changed anything");

    fs::write(pids.join("pids.max"), "max").unwrap();
    fs::write(cpu.join(weight), "7").unwrap();
    let adopted = TaskCgroup::open(&fixture.tree, "a1", "web").unwrap();
    let mut corrected = adopted.repair(&limits).unwrap();

    corrected.sort_by_key(|drift| drift.file.file_name().map(ToOwned::to_owned));
    assert_eq!(
        corrected
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        [
            format!("{weight} was 7 and is {weighed} again"),
            "pids.max was max and is 77 again".to_owned()
        ]
    );
    assert_eq!(read(&pids, "pids.max"), "77");
    assert_eq!(read(&cpu, weight), weighed);
    assert_eq!(adopted.repair(&limits).unwrap(), []);
}

/// Each limit is in its own file, for every existing disk.
#[test]
fn disk_limits_become_v1_files() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if fixture.hierarchies.controller(Controller::Io) != ControllerMode::V1 {
        return skip("blkio is not bound to cgroup v1");
    }
    let limits = Limits {
        io: IoLimits {
            read_rate: Some(ByteRate(1 << 20)),
            write_rate: Some(ByteRate(2 << 20)),
            read_ops: Some(100),
            write_ops: Some(200),
            weight: Some(50),
        },
        ..Limits::default()
    };
    let rates = [
        ("read_bps", "1048576"),
        ("write_bps", "2097152"),
        ("read_iops", "100"),
        ("write_iops", "200"),
    ];

    let task = fixture.task(&limits);

    let dir = group(&fixture, Controller::Io).0;
    let rate = |name| read(&dir, &format!("blkio.throttle.{name}_device"));
    for (name, value) in rates {
        let text = rate(name);
        let mut disks = text.lines().map(|line| line.split_once(' ').unwrap().1);
        assert!(!text.is_empty(), "{name}: no disk");
        assert!(disks.all(|got| got == value), "{name}: {text}");
    }
    let has_weight = dir.join("blkio.bfq.weight").exists();
    if has_weight {
        assert_eq!(read(&dir, "blkio.bfq.weight"), "50");
        assert_eq!(read(dir.parent().unwrap(), "blkio.bfq.weight"), "50");
    }
    assert_eq!(task.missing(&limits).is_none(), has_weight);
    assert_eq!(task.repair(&limits).unwrap(), [], "what was set is read");

    let lifted = task.repair(&Limits::default()).unwrap();

    assert_eq!(lifted.len(), rates.len() + usize::from(has_weight));
    for (name, _) in rates {
        assert_eq!(rate(name), "");
    }
}

/// Limits are raised, lowered and removed. v1 refuses a wrong order of memory and swap.
#[test]
fn limits_change_in_place() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let task = fixture.task(&Limits {
        memory_max_bytes: Some(32 * MIB),
        ..Limits::default()
    });

    for memory_max_bytes in [Some(64 * MIB), Some(16 * MIB), None, Some(24 * MIB)] {
        let limits = Limits {
            memory_max_bytes,
            cpu_cores_max: Some(0.5),
            ..Limits::default()
        };
        task.apply(&limits).unwrap();
        if fixture.has(Controller::Memory) {
            let memory = task.stats().unwrap().memory.unwrap();
            assert_eq!(memory.limit_bytes, memory_max_bytes);
        }
    }
    task.apply(&Limits::default()).unwrap();
}

#[test]
fn invalid_limit_is_named_and_leaves_no_cgroup() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !fixture.has(Controller::Pids) {
        return;
    }

    let limits = Limits {
        pids_max: u64::MAX / 4,
        ..Limits::default()
    };
    let refused = TaskCgroup::create(&fixture.tree, "a1", "web", &limits).unwrap_err();

    let CreateTaskCgroupError::Limit(ApplyLimitError::Set {
        controller,
        file,
        wanted,
        ..
    }) = &refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(*controller, Controller::Pids);
    assert!(file.ends_with("a1/web/pids.max"), "{}", file.display());
    assert_eq!(*wanted, limits.pids_max.to_string());
    assert_eq!(fixture.tree.tasks().unwrap(), []);
}

/// The kernel stores a smaller value than requested, which must be an error.
#[test]
fn limit_that_does_not_hold_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("pids.max"), "").unwrap();
    let setter = super::resources::Setter {
        controller: Controller::Pids,
        dir: dir.path(),
    };

    let refused = setter
        .set("pids.max", "77", || Ok(()), |got| got == "77")
        .unwrap_err();

    assert!(
        matches!(refused, ApplyLimitError::ReadBack { .. }),
        "{refused}"
    );
}

#[test]
fn task_over_its_memory_is_killed_and_counted() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !fixture.has(Controller::Memory) {
        return;
    }
    let limit = 16 * MIB;
    let task = fixture.task(&Limits {
        memory_max_bytes: Some(limit),
        ..Limits::default()
    });
    assert_eq!(task.oom().unwrap().unwrap().kills, 0);

    // `tail` keeps its whole input in memory, because the input has no line end.
    let mut shell = Shell::spawn_in(&task, "head -c 256m /dev/zero | tail");
    shell.wait();

    let oom = task.oom().unwrap().unwrap();
    assert!(oom.kills >= 1, "{oom:?}");
    assert_eq!(oom.limit_bytes, Some(limit));
    assert!(
        oom.peak_bytes
            .is_some_and(|peak| peak > limit / 2 && peak <= limit),
        "{oom:?}"
    );
}

/// A file in memory stays charged to the task that wrote it, as long as the file exists.
#[test]
fn tmpfs_files_are_counted_as_cache() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !fixture.has(Controller::Memory) {
        return;
    }
    let task = fixture.task(&Limits::default());
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let write = format!("head -c 4m /dev/zero > '{}'", file.path().display());

    Shell::spawn_in(&task, &write).wait();

    let memory = task.stats().unwrap().memory.unwrap();
    assert_eq!(memory.shmem_bytes, Some(4 * MIB), "{memory:?}");
    assert!(memory.cache_bytes >= memory.shmem_bytes, "{memory:?}");
}

#[tokio::test]
async fn oom_of_a_nested_group_survives_its_removal() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !fixture.has(Controller::Memory) {
        return;
    }
    let task = fixture.task(&Limits {
        memory_max_bytes: Some(16 * MIB),
        ..Limits::default()
    });
    let nested = group(&fixture, Controller::Memory)
        .0
        .join("made by the task");
    fs::create_dir(&nested).unwrap();
    let enter = format!("echo 0 > '{}/cgroup.procs'", nested.display());

    let mut shell = Shell::spawn_in(&task, &format!("{enter}; head -c 256m /dev/zero | tail"));
    shell.wait();
    let count = task.oom().unwrap().unwrap();
    task.remove().await.unwrap();

    assert!(count.kills >= 1, "{count:?}");
    assert!(task.oom().unwrap_err().is_gone());
}

#[test]
fn fork_bomb_stops_at_the_limit() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !fixture.has(Controller::Pids) {
        return;
    }
    let task = fixture.task(&Limits {
        pids_max: 10,
        ..Limits::default()
    });

    let script = "for n in $(seq 50); do sleep 1000 & done; sleep 1000";
    let _shell = Shell::spawn_in(&task, script);

    until("the limit is reached", || {
        task.stats().unwrap().pids == Some(10)
    });
    assert!(task.procs().unwrap().len() <= 10);
}

/// A task without a limit of its own is killed at the limit of all tasks, and the machine keeps the rest.
#[test]
fn all_tasks_together_leave_the_reservation() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !fixture.has(Controller::Memory) || !fixture.has(Controller::Cpu) {
        return;
    }
    fixture.tree.reserve(Some(32 * MIB)).unwrap();
    let task = fixture.task(&Limits::default());

    let mut shell = Shell::spawn_in(&task, "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done");

    assert_eq!(shell.wait().signal(), Some(9));
    let memory = &fixture.tree.bound()[&Controller::Memory];
    let (limit, peak) = if memory.v2 {
        ("memory.max", "memory.peak")
    } else {
        ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
    };
    let number = |name| read(&memory.root, name).parse::<u64>().unwrap();
    assert_eq!(number(limit), 32 * MIB);
    assert!(!memory.root.join(peak).exists() || number(peak) <= 32 * MIB);
    let cpu = &fixture.tree.bound()[&Controller::Cpu];
    let weight = if cpu.v2 { "cpu.weight" } else { "cpu.shares" };
    let drivers = cpu.root.join("drivers");
    assert_eq!(
        read(&drivers, weight),
        if cpu.v2 { "1000" } else { "10000" }
    );

    fixture.tree.reserve(None).unwrap();
    assert_ne!(read(&memory.root, limit), (32 * MIB).to_string());
}

/// For any limit of a single task, processes beyond all tasks' share are refused, and the test continues.
#[test]
fn all_tasks_together_leave_processes_to_the_machine() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !fixture.has(Controller::Pids) {
        return;
    }
    fixture.tree.reserve(None).unwrap();
    let pids = &fixture.tree.bound()[&Controller::Pids];
    let number = |path: &str| {
        fs::read_to_string(path)
            .unwrap()
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    let kernel = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
    let limit: u64 = read(&pids.root, "pids.max").parse().unwrap();
    assert!(limit < kernel && limit >= kernel / 2, "{limit} of {kernel}");

    // A smaller share shows that the limit holds.
    crate::resources::cgroup::pids::limit_all(&pids.root, 10).unwrap();
    let limits = Limits {
        pids_max: 1_000,
        ..Limits::default()
    };
    let task = fixture.task(&limits);
    let script = "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; wait";
    let _shell = Shell::spawn_in(&task, script);
    until("the limit of all tasks is reached", || {
        task.stats().unwrap().pids == Some(10)
    });
    assert!(task.procs().unwrap().len() <= 10);
}

#[test]
fn busy_loop_is_throttled_and_counted() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !fixture.has(Controller::Cpu) {
        return;
    }
    let task = fixture.task(&Limits {
        cpu_cores_max: Some(0.1),
        ..Limits::default()
    });

    let _shell = Shell::spawn_in(&task, "while :; do :; done");

    let cpu = || task.stats().unwrap().cpu.unwrap();
    until("five periods are throttled", || {
        cpu().throttled_periods > Some(5)
    });
    let CpuStats {
        usage_us,
        throttled_us,
        periods,
        ..
    } = cpu();
    assert!(throttled_us > Some(0));
    // A tenth of each period, and one period's worth for time that is not settled yet.
    let most = (periods.unwrap() + 1) * 10_000 + 10_000;
    assert!(
        usage_us > Some(10_000) && usage_us <= Some(most),
        "{usage_us:?} {most}"
    );
    let stalled = || task.stats().unwrap().pressure;
    if Path::new("/proc/pressure/cpu").exists() {
        // The kernel sums a group's pressure up every two seconds, even if it is read in between.
        until("the group is said to have waited", || {
            stalled().unwrap().cpu.some_us > 0
        });
    } else {
        assert_eq!(stalled(), None);
    }
}

/// A kill reaches a process that left the session, one that stopped itself, and processes in a frozen group.
#[tokio::test]
async fn kill_reaches_every_descendant() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let task = fixture.task(&Limits::default());
    let script = "setsid sleep 1000 & sleep 1000 & sleep 1000 & kill -STOP $$";
    let mut shell = Shell::spawn_in(&task, script);
    until("all are there", || task.procs().unwrap().len() >= 4);

    task.freeze(PATIENCE).await.unwrap();
    let begun = Instant::now();
    task.kill().unwrap();

    assert!(task.wait_empty(PATIENCE).await.unwrap());
    assert!(!task.is_populated().unwrap());
    assert!(begun.elapsed() < PATIENCE);
    shell.wait();
    task.remove().await.unwrap();
    assert_eq!(fixture.tree.tasks().unwrap(), []);
}

/// The open files of the groups of `tree`, by descriptor.
fn open_files(tree: &NodeTree) -> Vec<(String, std::path::PathBuf)> {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let name = entry.file_name().to_str()?.to_owned();
        let ours = target.to_str()?.contains(tree.name());
        ours.then_some((name, target))
    });
    let mut open: Vec<_> = open.collect();
    open.sort();
    open
}

#[tokio::test]
async fn stat_files_stay_open_between_reads() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let task = fixture.task(&Limits::default());
    assert_eq!(open_files(&fixture.tree), []);

    let first = task.stats().unwrap();
    let held = open_files(&fixture.tree);
    let second = task.stats().unwrap();

    let kinds = |stats: &TaskStats| {
        let TaskStats {
            cpu,
            memory,
            pids,
            pressure,
        } = stats;
        [
            cpu.is_some(),
            memory.is_some(),
            pids.is_some(),
            pressure.is_some(),
        ]
    };
    assert_eq!(kinds(&first), kinds(&second));
    assert_eq!(open_files(&fixture.tree), held);
    let mut paths: Vec<_> = held.iter().map(|(_, path)| path).collect();
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), held.len(), "none is held twice: {held:?}");
    assert!(
        paths.iter().any(|path| path.ends_with("cpu.stat")),
        "{held:?}"
    );
    drop(task);
    assert_eq!(open_files(&fixture.tree), []);
}

#[tokio::test]
async fn frozen_task_uses_no_cpu_until_thawed() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let task = fixture.task(&Limits::default());
    let _shell = Shell::spawn_in(&task, "while :; do :; done");
    let usage = || task.stats().unwrap().cpu.unwrap().usage_us.unwrap();
    until("it runs", || usage() > 10_000);

    task.freeze(PATIENCE).await.unwrap();
    let frozen = usage();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(usage(), frozen);
    task.thaw(PATIENCE).await.unwrap();

    until("it runs again", || usage() > frozen);
}

#[tokio::test]
async fn wait_empty_times_out_and_remove_names_pids() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let task = fixture.task(&Limits::default());
    let mut shell = Shell::spawn_in(&task, "exec sleep 1000");

    assert!(!task.wait_empty(Duration::from_millis(5)).await.unwrap());
    let busy = task.remove().await.unwrap_err();
    let again = TaskCgroup::create(&fixture.tree, "a1", "web", &Limits::default()).unwrap_err();
    task.kill().unwrap();
    shell.wait();
    task.remove().await.unwrap();

    let pid = shell.0.id();
    let named = matches!(&busy, RemoveCgroupError::Busy { pids, .. } if *pids == [pid]);
    assert!(named, "{busy:?}");
    let named = matches!(&again, CreateTaskCgroupError::Occupied { pids, .. } if *pids == [pid]);
    assert!(named, "{again:?}");
}

#[tokio::test]
async fn removal_takes_groups_the_task_made() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let task = fixture.task(&Limits::default());
    fs::create_dir_all(task.dir().join("x/y/z")).unwrap();
    fs::create_dir_all(task.dir().join("x/odd name \u{1b}[31m")).unwrap();

    task.remove().await.unwrap();
    task.remove().await.unwrap();

    assert!(!task.dir().parent().unwrap().exists());
    for root in fixture.tree.roots() {
        assert_eq!(
            super::subgroups::children(root).unwrap(),
            [root.join("drivers")]
        );
    }
}

#[tokio::test]
async fn allocation_weight_is_the_sum_of_tasks() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !fixture.has(Controller::Cpu) {
        return;
    }
    let limits = |cpu_mhz| Limits {
        cpu_mhz,
        ..Limits::default()
    };
    let one = TaskCgroup::create(&fixture.tree, "a1", "one", &limits(3_000)).unwrap();
    let two = TaskCgroup::create(&fixture.tree, "a1", "two", &limits(2_000)).unwrap();
    let bound = &fixture.tree.bound()[&Controller::Cpu];
    let (file, unit) = if bound.v2 {
        ("cpu.weight", 10)
    } else {
        ("cpu.shares", 1)
    };
    let weight = || read(&bound.root.join("a1"), file);

    assert_eq!(weight(), (5_000 / unit).to_string());
    one.remove().await.unwrap();
    assert_eq!(weight(), (2_000 / unit).to_string());
    two.remove().await.unwrap();
    assert!(!bound.root.join("a1").exists());
}

#[tokio::test]
async fn recorded_tree_is_adopted_with_its_tasks() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let task = fixture.task(&Limits::default());
    let mut shell = Shell::spawn_in(&task, "exec sleep 1000");
    let stored = serde_json::to_string(fixture.tree.record()).unwrap();

    let record: NodeTreeRecord = serde_json::from_str(&stored).unwrap();
    let tree = NodeTree::open(record.clone()).unwrap();
    let names = tree.tasks().unwrap();
    let adopted = TaskCgroup::open(&tree, "a1", "web").unwrap();

    assert_eq!(
        names,
        [TaskName {
            alloc: "a1".into(),
            task: "web".into()
        }]
    );
    assert_eq!((adopted.id(), adopted.joins()), (task.id(), task.joins()));
    assert_eq!(adopted.procs().unwrap(), [shell.0.id()]);
    adopted.kill().unwrap();
    shell.wait();
    tree.remove().await.unwrap();
    assert!(matches!(
        NodeTree::open(record),
        Err(NodeTreeError::Gone { .. })
    ));
    let gone = TaskCgroup::open(&tree, "a1", "web");
    assert!(matches!(gone, Err(CreateTaskCgroupError::Gone { .. })));
}

/// The kernel's own value of the task's level.
#[test]
fn task_level_counts_the_groups_above() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let task = fixture.task(&Limits::default());
    let shell = Shell::spawn_in(&task, "exec sleep 1000");

    let groups = fs::read_to_string(format!("/proc/{}/cgroup", shell.0.id())).unwrap();
    let path = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap();

    assert!(
        path.ends_with(&format!("{}/a1/web", fixture.tree.name())),
        "{path}"
    );
    let level = u32::try_from(path.split('/').count()).unwrap();
    assert_eq!(fixture.tree.task_level(), Some(level));
}

#[test]
fn driver_leaves_the_agents_groups() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let child = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = child.id();
    let mut child = Shell(child);

    fixture.tree.add_driver(pid).unwrap();

    for root in fixture.tree.roots() {
        assert_eq!(read(&root.join("drivers"), "cgroup.procs"), pid.to_string());
    }
    child.0.kill().unwrap();
    child.wait();
}

#[test]
fn names_that_are_no_component_are_refused() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let long = "x".repeat(256);

    for name in [
        "", ".", "..", "a/b", "drivers", "agent", "a\nb", "\0", &long,
    ] {
        for (alloc, task) in [(name, "web"), ("a1", name)] {
            let made = TaskCgroup::create(&fixture.tree, alloc, task, &Limits::default());
            let error = made.expect_err(name);
            let named = matches!(
                error,
                CreateTaskCgroupError::Make(NodeTreeError::Name { .. })
            );
            assert!(named, "{name:?}: {error}");
        }
    }
    let file = TaskCgroup::create(&fixture.tree, "a1", "cgroup.procs", &Limits::default());
    let refused = matches!(
        file,
        Err(CreateTaskCgroupError::Make(NodeTreeError::Make { .. }))
    );
    assert!(refused, "{file:?}");
    assert!(!fixture.tree.v2_dir().join("a1").exists());
}

#[tokio::test]
async fn running_task_yields_cores_to_exclusive_task() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let all = fixture.tree.core_ids();
    let [first, .., last] = all[..] else {
        skip("this host has no cpuset controller, or one core");
        return;
    };
    let allowed = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"));
        line.unwrap().to_owned()
    };
    let task = fixture.task(&Limits::default());
    let mut shell = Shell::spawn_in(&task, "sleep 600");
    let pid = shell.0.id();
    let before = allowed(pid);

    fixture.tree.share_cores(|_| true, &[first]);
    let meanwhile = allowed(pid);
    fixture.tree.share_cores(|_| true, &all);

    assert!(
        meanwhile.ends_with(&format!("\t{first}")),
        "{meanwhile} of {last}"
    );
    assert_eq!(allowed(pid), before);
    task.kill().unwrap();
    shell.wait();
    task.remove().await.unwrap();
    fixture.tree.remove().await.unwrap();
}

#[test]
fn adopted_tree_recreates_drivers_cgroup() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    fs::remove_dir(fixture.tree.drivers_dir()).unwrap();

    let adopted = NodeTree::open(fixture.tree.record().clone()).unwrap();

    assert!(adopted.drivers_dir().is_dir());
}
