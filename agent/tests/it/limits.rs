//! Limits that a job asks of its tasks' cgroups, also on nodes where nobody can keep them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use muster_domain::alloc::{ClientStatus, DesiredAlloc, TaskEventKind};
use muster_domain::id::AllocId;
use muster_domain::job::ByteRate;
use muster_domain::node::NodeSpec;
use muster_domain::resources::{CpuMhz, Mb};
use muster_wire::rpc::{NodeReply, NodeRequest, TaskStats};

use crate::support::{
    AllocBuilder, FakeServer, Machine, OOM_SCORE_ADJ, TestAgent, eventually, privileged, service,
    skipped, start_ticks,
};

/// The statistics of an allocation's task.
pub(crate) async fn stats(server: &FakeServer, alloc_id: AllocId) -> TaskStats {
    let request = NodeRequest::AllocStats { alloc_id };
    let replies = server.ask(request, |replies| !replies.is_empty()).await;
    let NodeReply::AllocStats(stats) = &replies[0] else {
        panic!("{replies:?}");
    };
    stats.tasks["main"].clone()
}

/// A twentieth of a core: as much in each period of 100 ms is 5 ms, and a period is throttled when they are used up. So
/// it does not matter what else the machine does.
#[tokio::test(flavor = "multi_thread")]
async fn a_hard_limit_of_cpu_is_kept() {
    let name = "a_hard_limit_of_cpu_is_kept";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|node| node.has_driver("native")).await;
    if node.attributes["cgroup.cpu"] == "absent" {
        skipped(name, "no cpu controller; run: cargo xtask vm");
        return agent.end().await;
    }
    let share = twentieth_of_a_core(&node);

    let limited = service(1, "while :; do :; done").with(|spec, _| {
        let resources = &mut spec.groups[0].tasks[0].resources;
        resources.cpu = share;
        resources.cpu_hard_limit = true;
    });
    let alloc_id = server.place(limited.build()).await;
    server.status(alloc_id, ClientStatus::Running).await;

    let used = eventually("twenty throttled periods", async || {
        let used = stats(&server, alloc_id).await;
        (used.throttled_periods >= Some(20)).then_some(used)
    })
    .await;
    let throttled = used.throttled_periods.unwrap() as f64 * 0.005;
    let cpu = used.cpu.unwrap().as_secs_f64();
    assert!(cpu >= 0.9 * throttled, "{cpu} s in {used:?}");
    // Not each period is throttled on a busy machine; three times as many would be a limit that is not one.
    assert!(cpu <= 3.0 * throttled, "{cpu} s in {used:?}");
    server.stop(alloc_id).await;
    agent.end().await;
}

/// The job asks for more memory and a hard limit of CPU while its task runs: the same process has both.
#[tokio::test(flavor = "multi_thread")]
async fn job_update_changes_limits_of_running_task() {
    let name = "job_update_changes_limits_of_running_task";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|node| node.has_driver("native")).await;
    if ["cgroup.cpu", "cgroup.memory"].map(|name| node.attributes[name] == "absent") != [false; 2] {
        skipped(name, "no cpu or memory controller; run: cargo xtask vm");
        return agent.end().await;
    }
    let alloc = service(1, "while :; do :; done").memory_mb(32).build();
    let alloc_id = server.place(alloc.clone()).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let pid = server.pid(alloc_id).await;
    assert_eq!(
        stats(&server, alloc_id).await.memory_limit_bytes,
        Some(32 << 20)
    );

    let mut changed = alloc;
    let mut job = (*changed.job).clone();
    job.version += 1;
    let resources = &mut job.spec.groups[0].tasks[0].resources;
    resources.memory_max = Some(Mb(64));
    resources.cpu_hard_limit = true;
    changed.job = Arc::new(job);
    server.place(changed).await;

    server
        .reported(alloc_id, "told of the limits", |task, _| {
            let is_reported = |message: &str| message.starts_with("limits changed with the job: ");
            task.events.iter().any(|event| is_reported(&event.message))
        })
        .await;
    let limited = eventually("a throttled period", async || {
        let now = stats(&server, alloc_id).await;
        (now.throttled_periods > Some(0)).then_some(now)
    })
    .await;
    assert_eq!(limited.memory_limit_bytes, Some(64 << 20));
    assert_eq!(server.pid(alloc_id).await, pid);
    server.stop(alloc_id).await;
    agent.end().await;
}

/// The next version of the job, whose task is of that size.
fn sized(alloc: &DesiredAlloc, mhz: u32, mb: u32) -> DesiredAlloc {
    let mut job = (*alloc.job).clone();
    job.version += 1;
    let resources = &mut job.spec.groups[0].tasks[0].resources;
    (resources.cpu, resources.memory) = (CpuMhz(mhz), Mb(mb));
    DesiredAlloc {
        job: Arc::new(job),
        ..alloc.clone()
    }
}

/// The task says that it went from a weight of so many MHz to another: in tenths on cgroup v2.
async fn resized(server: &FakeServer, alloc_id: AllocId, from: u32, to: u32) {
    let v2 = format!("cpu.weight was \"{}\" and is \"{}\"", from / 10, to / 10);
    let messages = [v2, format!("cpu.shares was \"{from}\" and is \"{to}\"")];
    server
        .reported(alloc_id, "told of its size", |task, _| {
            let is_reported =
                |message: &str| messages.iter().any(|wanted| message.contains(wanted));
            task.events.iter().any(|event| is_reported(&event.message))
        })
        .await;
}

/// The job asks for more CPU and memory, and then for less CPU, while its task runs. The same process has as much, and
/// the next agent finds that it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_changes_its_size_where_it_is() {
    let name = "a_task_changes_its_size_where_it_is";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let node = server.node(|node| node.has_driver("native")).await;
    if ["cgroup.cpu", "cgroup.memory"].map(|name| node.attributes[name] == "absent") != [false; 2] {
        skipped(name, "no cpu or memory controller; run: cargo xtask vm");
        return agent.kill();
    }
    let first = sized(&service(1, "while :; do :; done").build(), 1_000, 32);
    let alloc_id = server.place(first.clone()).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let pid = server.pid(alloc_id).await;
    let start = start_ticks(pid).unwrap();

    let grown = sized(&first, 2_000, 64);
    server.place(grown.clone()).await;
    resized(&server, alloc_id, 1_000, 2_000).await;
    let memory = stats(&server, alloc_id).await.memory_limit_bytes;
    assert_eq!(memory, Some(64 << 20));

    agent.kill();
    let agent = machine.agent(&server).await;
    let task = server
        .reported(alloc_id, "recovered", |task, _| {
            let mut events = task.events.iter();
            events.any(|event| matches!(event.kind, TaskEventKind::Recovered))
        })
        .await;
    let drifted = |message: &str| message.starts_with("limits were not the task's");
    let drift = task.events.iter().find(|event| drifted(&event.message));
    assert!(drift.is_none(), "{drift:?}");

    server.place(sized(&grown, 500, 64)).await;
    resized(&server, alloc_id, 2_000, 500).await;
    assert_eq!(server.pid(alloc_id).await, pid);
    assert_eq!(start_ticks(pid), Some(start));
    server.stop(alloc_id).await;
    agent.end().await;
}

/// A task above its soft limit that goes on asking for memory waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn memory_pressure_becomes_task_event() {
    let name = "memory_pressure_becomes_task_event";
    let Some(node) = PressureNode::start(name, "memory").await else {
        return;
    };
    // `tail` keeps a line without an end whole, so the kernel has nothing to reclaim. An emulated processor reads some
    // 4 MB a second, so the limit is small.
    let script = "dd if=/dev/zero bs=64k | tail";
    let greedy = service(1, script)
        .memory_mb(10)
        .with(|spec, _| spec.groups[0].tasks[0].resources.memory_max = Some(Mb(64)));

    node.assert_waits(greedy, "for want of memory").await;
}

/// A task that may have a twentieth of a core and wants all of it stands still for the rest.
#[tokio::test(flavor = "multi_thread")]
async fn cpu_pressure_becomes_task_event() {
    let name = "cpu_pressure_becomes_task_event";
    let Some(node) = PressureNode::start(name, "cpu").await else {
        return;
    };
    let share = twentieth_of_a_core(&node.spec);
    let limited = service(1, "while :; do :; done").with(|spec, _| {
        let resources = &mut spec.groups[0].tasks[0].resources;
        resources.cpu = share;
        resources.cpu_hard_limit = true;
    });

    node.assert_waits(limited, "for want of processor time")
        .await;
}

/// A task that may read 64 KiB in a second of a disk, and wants all of it.
#[tokio::test(flavor = "multi_thread")]
async fn io_pressure_becomes_task_event() {
    let name = "io_pressure_becomes_task_event";
    let Some(node) = PressureNode::start(name, "io").await else {
        return;
    };
    let Some(disk) = LoopDevice::new(&node.machine.data().with_extension("disk")) else {
        skipped(name, "no loop device; run: cargo xtask vm");
        return node.agent.end().await;
    };
    let LoopDevice(device) = &disk;
    let script = format!("while :; do dd if={device} of=/dev/null bs=64k iflag=direct; done");
    let limited = service(1, &script).raw().with(|spec, _| {
        let io = &mut spec.groups[0].tasks[0].resources.io;
        io.read_rate = Some(ByteRate(64 << 10));
    });

    node.assert_waits(limited, "for want of a disk").await;
}

fn twentieth_of_a_core(node: &NodeSpec) -> CpuMhz {
    let core_mhz = node.resources.total.cpu_mhz / u64::from(node.resources.cores);
    CpuMhz(u32::try_from(core_mhz / 20).unwrap())
}

/// A node that tells how long its tasks wait for what a controller of v2 divides.
struct PressureNode {
    machine: Machine,
    server: FakeServer,
    agent: TestAgent,
    spec: NodeSpec,
}

impl PressureNode {
    /// `None`, said as a skip of `test`, where there is no such controller, or no pressure.
    async fn start(test: &str, controller: &str) -> Option<Self> {
        if !privileged(test) {
            return None;
        }
        let machine = Machine::new();
        let server = machine.server();
        let agent = machine.agent(&server).await;
        let spec = server.node(|node| node.has_driver("native")).await;
        let pressure = machine.tree().join(format!("{controller}.pressure"));
        let is_v2 = spec.attributes[&format!("cgroup.{controller}")] == "v2";
        if !is_v2 || std::fs::read_to_string(pressure).is_err() {
            let reason =
                format!("no {controller} controller in v2, or no pressure; run: cargo xtask vm");
            skipped(test, &reason);
            agent.end().await;
            return None;
        }
        Some(Self {
            machine,
            server,
            agent,
            spec,
        })
    }

    /// A task of this kind says that it stood still, and why.
    async fn assert_waits(self, waits: AllocBuilder, why: &str) {
        let prefix = format!("stood still {why}");
        let alloc_id = self.server.place(waits.build()).await;

        self.server
            .reported(alloc_id, "told of its waiting", |task, _| {
                let is_reported = |message: &str| message.starts_with(&prefix);
                task.events.iter().any(|event| is_reported(&event.message))
            })
            .await;
        self.server.stop(alloc_id).await;
        self.agent.end().await;
    }
}

/// Lets one test at a time make loop devices: two could be given the same one, and an agent that knows the device of
/// another test does not find its own as new.
static LOOP_DEVICES: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A loop device over a file, freed on drop.
struct LoopDevice(String);

impl LoopDevice {
    /// `None` where there is none.
    fn new(file: &Path) -> Option<Self> {
        std::fs::write(file, vec![0; 1 << 20]).unwrap();
        let free = Command::new("losetup").arg("-f").output().ok()?;
        let device = String::from_utf8_lossy(&free.stdout).trim().to_owned();
        let taken = Command::new("losetup").arg(&device).arg(file).output();
        taken.ok()?.status.success().then_some(Self(device))
    }

    /// As the kernel numbers it.
    fn number(&self) -> String {
        let name = Path::new(&self.0).file_name().unwrap();
        let number = Path::new("/sys/block").join(name).join("dev");
        std::fs::read_to_string(number).unwrap().trim().to_owned()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let freed = Command::new("losetup").args(["-d", &self.0]).status();
        assert!(std::thread::panicking() || freed.unwrap().success());
    }
}

/// The kernel's counts of a task's disk, in either version of the controller.
struct DiskCounts {
    dir: PathBuf,
    v2: bool,
    number: String,
}

impl DiskCounts {
    fn new(machine: &Machine, node: &NodeSpec, alloc_id: AllocId, disk: &LoopDevice) -> Self {
        let v2 = node.attributes["cgroup.io"] == "v2";
        let v1_root = || {
            let record = tree_record(machine);
            PathBuf::from(record["bound"]["io"]["root"].as_str().unwrap())
        };
        let root = if v2 { machine.tree() } else { v1_root() };
        Self {
            dir: root.join(alloc_id.to_string()).join("main"),
            v2,
            number: disk.number(),
        }
    }

    /// The file of the limit of bytes written.
    fn file(&self) -> PathBuf {
        let v1 = "blkio.throttle.write_bps_device";
        self.dir.join(if self.v2 { "io.max" } else { v1 })
    }

    /// The limit of bytes written in a second.
    fn write_rate(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.file()).unwrap_or_default();
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let (_, limits) = lines.find(|(number, _)| *number == self.number)?;
        if !self.v2 {
            return limits.parse().ok();
        }
        let others = ["rbps=max", "riops=max", "wiops=max"];
        assert!(others.iter().all(|other| limits.contains(other)));
        let mut limits = limits.split(' ');
        limits.find_map(|limit| limit.strip_prefix("wbps=")?.parse().ok())
    }

    /// Sets another limit than the task's.
    fn disturb(&self, rate: u64) {
        let key = if self.v2 { "wbps=" } else { "" };
        let line = format!("{} {key}{rate}", self.number);
        std::fs::write(self.file(), line).unwrap();
    }

    /// Bytes written, as v1 counts them.
    fn written(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.dir.join("blkio.throttle.io_service_bytes"));
        let text = text.unwrap_or_default();
        let key = format!("{} Write ", self.number);
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(&key)?.parse().ok())
    }
}

/// The agent's stored record of its tree.
fn tree_record(machine: &Machine) -> serde_json::Value {
    let record = std::fs::read(machine.data().join("cgroup-tree.json")).unwrap();
    serde_json::from_slice(&record).unwrap()
}

/// The limit holds for a disk that the job cannot know, is another after an update of the job, and is gone after one
/// more; what somebody made of it while there was no agent is made good by the next; the process is the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_rate_follows_the_job() {
    let name = "a_disk_rate_follows_the_job";
    if !privileged(name) {
        return;
    }
    let _one_at_a_time = LOOP_DEVICES.lock().await;
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|node| node.has_driver("native")).await;
    let disk = LoopDevice::new(&machine.data().with_extension("disk"));
    let Some(disk) = disk.filter(|_| node.attributes["cgroup.io"] != "absent") else {
        skipped(
            name,
            "no loop device, or no io controller; run: cargo xtask vm",
        );
        return agent.end().await;
    };
    let mut alloc = service(1, "sleep 600").build();
    let with_rate = |alloc: &mut DesiredAlloc, rate: Option<u64>| {
        let mut job = (*alloc.job).clone();
        job.version += 1;
        job.spec.groups[0].tasks[0].resources.io.write_rate = rate.map(ByteRate);
        alloc.job = Arc::new(job);
    };
    let of_disk = DiskCounts::new(&machine, &node, alloc.alloc_id, &disk);

    with_rate(&mut alloc, Some(1 << 20));
    let alloc_id = server.place(alloc.clone()).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let pid = server.pid(alloc_id).await;

    assert_eq!(of_disk.write_rate(), Some(1 << 20));
    for rate in [Some(2 << 20), None, Some(3 << 20)] {
        with_rate(&mut alloc, rate);
        server.place(alloc.clone()).await;
        eventually("the limit of the job as it is now", async || {
            (of_disk.write_rate() == rate).then_some(())
        })
        .await;
    }
    agent.leave().await;
    of_disk.disturb(4 << 20);
    let agent = machine.agent(&server).await;
    server
        .reported(alloc_id, "told of what was made good", |task, _| {
            let is_reported = |message: &str| message.contains("limits were not the task's");
            task.events.iter().any(|event| is_reported(&event.message))
        })
        .await;
    assert_eq!(of_disk.write_rate(), Some(3 << 20));
    assert_eq!(server.pid(alloc_id).await, pid);
    server.stop(alloc_id).await;
    agent.end().await;
}

/// A disk that comes while the task runs has the task's limit once the agent has looked.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_comes_later_is_limited() {
    let name = "a_disk_that_comes_later_is_limited";
    if !privileged(name) {
        return;
    }
    let _one_at_a_time = LOOP_DEVICES.lock().await;
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|node| node.has_driver("native")).await;
    if node.attributes["cgroup.io"] == "absent" {
        skipped(name, "no io controller; run: cargo xtask vm");
        return agent.end().await;
    }
    let limited = service(1, "sleep 600").with(|spec, _| {
        spec.groups[0].tasks[0].resources.io.write_rate = Some(ByteRate(1 << 20));
    });
    let alloc_id = server.place(limited.build()).await;
    server.status(alloc_id, ClientStatus::Running).await;

    if let Some(disk) = LoopDevice::new(&machine.data().with_extension("disk")) {
        let of_disk = DiskCounts::new(&machine, &node, alloc_id, &disk);
        server
            .reported(alloc_id, "told of the disk", |task, _| {
                let is_reported = |message: &str| {
                    message.starts_with("limits of disks hold for ")
                        && message.contains(&of_disk.number)
                };
                task.events.iter().any(|event| is_reported(&event.message))
            })
            .await;
        assert_eq!(of_disk.write_rate(), Some(1 << 20));
    } else {
        skipped(name, "no loop device; run: cargo xtask vm");
    }
    server.stop(alloc_id).await;
    agent.end().await;
}

/// Writes that pass the cache keep to a mebibyte a second, within a tenth over five seconds. An event of the task says
/// that other writes are not held. In v2 the guest's tests show it.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_rate_holds_in_v1() {
    let name = "a_disk_rate_holds_in_v1";
    if !privileged(name) {
        return;
    }
    let _one_at_a_time = LOOP_DEVICES.lock().await;
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|node| node.has_driver("native")).await;
    let disk = LoopDevice::new(&machine.data().with_extension("disk"));
    let Some(disk) = disk.filter(|_| node.attributes["cgroup.io"] == "v1") else {
        skipped(name, "no loop device, or blkio is not bound to cgroup v1");
        return agent.end().await;
    };
    let LoopDevice(device) = &disk;
    let script = format!(
        "while :; do dd if=/dev/zero of={device} bs=64k count=16 oflag=direct conv=notrunc; done"
    );
    let limited = service(1, &script).raw().with(|spec, _| {
        spec.groups[0].tasks[0].resources.io.write_rate = Some(ByteRate(1 << 20));
    });

    let alloc_id = server.place(limited.build()).await;

    let of_disk = DiskCounts::new(&machine, &node, alloc_id, &disk);
    let (from, begun) = eventually("the first of it", async || {
        let now = of_disk.written().filter(|bytes| *bytes > 0)?;
        Some((now, Instant::now()))
    })
    .await;
    let to = eventually("five seconds' worth", async || {
        of_disk.written().filter(|now| now - from >= 5 << 20)
    })
    .await;
    let rate = (to - from) as f64 / begun.elapsed().as_secs_f64() / f64::from(1 << 20);
    eprintln!("{rate:.3} MiB a second");
    assert!((0.9..=1.1).contains(&rate), "{rate:.3} MiB a second");
    server
        .reported(alloc_id, "told what is not held", |task, _| {
            let is_reported = |message: &str| message.contains("O_DIRECT");
            task.events.iter().any(|event| is_reported(&event.message))
        })
        .await;
    server.stop(alloc_id).await;
    agent.end().await;
}

/// A node whose tree has no groups where disks are limited.
#[tokio::test(flavor = "multi_thread")]
async fn disk_rate_without_io_controller_is_refused() {
    let name = "disk_rate_without_io_controller_is_refused";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|node| node.has_driver("native")).await;
    if node.attributes["cgroup.io"] == "v2" {
        skipped(name, "disk rates can be kept here");
        return agent.end().await;
    }
    agent.leave().await;
    let mut record = tree_record(&machine);
    let taken = record["bound"].as_object_mut().unwrap().remove("io");
    let text = serde_json::to_vec(&record).unwrap();
    std::fs::write(machine.data().join("cgroup-tree.json"), text).unwrap();
    let agent = machine.agent(&server).await;

    let limited = service(1, "sleep 600").with(|spec, _| {
        spec.groups[0].tasks[0].resources.io.write_rate = Some(ByteRate(1 << 20));
    });
    let alloc_id = server.place(limited.build()).await;

    server
        .reported(alloc_id, "refused", |task, status| {
            let is_reported = |message: &str| message.contains("cgroup_no_v1=blkio");
            status == ClientStatus::Failed
                && task.events.iter().any(|event| is_reported(&event.message))
        })
        .await;
    agent.end().await;
    // Nobody knows of them any more.
    if let Some(io) = taken {
        let root = Path::new(io["root"].as_str().unwrap());
        for group in [root.join("drivers"), root.to_owned()] {
            // The driver may be ending still.
            eventually("the group to be empty", async || {
                std::fs::remove_dir(&group).is_ok().then_some(())
            })
            .await;
        }
    }
}

/// Whether this process has CAP_SYS_RESOURCE, the power to lower a score.
fn may_be_spared() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let powers = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let powers = u64::from_str_radix(powers.unwrap().trim(), 16).unwrap();
    powers & 1 << 24 != 0
}

/// Others are killed for memory before the agent; what it starts does not inherit that.
#[tokio::test(flavor = "multi_thread")]
async fn only_agent_has_lowered_oom_score() {
    let name = "only_agent_has_lowered_oom_score";
    if !privileged(name) {
        return;
    }
    if !may_be_spared() {
        skipped(
            name,
            "CAP_SYS_RESOURCE is not given here; run: cargo xtask vm",
        );
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let tasks = [
        service(1, "exec sleep 1000"),
        service(2, "exec sleep 1000").raw(),
    ];
    let score = |pid: u32| {
        let path = format!("/proc/{pid}/oom_score_adj");
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    };

    for task in tasks {
        let alloc_id = server.place(task.build()).await;
        server.status(alloc_id, ClientStatus::Running).await;
        assert_eq!(score(server.pid(alloc_id).await), "0");
    }

    assert_eq!(score(machine.driver().await.0), "0");
    assert_eq!(score(agent.pid()), OOM_SCORE_ADJ.to_string());
}
