//! Collection under real pressure, on file systems of its own: bytes and inodes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use muster_agent::GcReason;
use muster_agent::node::{Agent, ShutdownPolicy};
use muster_domain::alloc::ClientStatus;
use muster_domain::resources::Mb;
use rustix::fs::{Mode, OFlags};

use crate::support::{FakeServer, Machine, batch, eventually, make_ext4, mount, privileged};

/// Allocations that fill the file system, one after the other.
const ALLOCS: u32 = 12;
/// The highest share in use, in percent.
const THRESHOLD: u8 = 50;

/// A file system mounted at the agent's data directory.
struct DataDirMount {
    machine: Machine,
    image: Option<PathBuf>,
}

impl DataDirMount {
    /// `None`, with the reason told, if it cannot be made here.
    fn tmpfs(test: &str, options: &str) -> Option<Self> {
        let machine = Machine::new();
        std::fs::create_dir(machine.data()).unwrap();
        mount(
            test,
            &["-t", "tmpfs", "-o", options, "tmpfs"],
            &machine.data(),
        )
        .then_some(Self {
            machine,
            image: None,
        })
    }

    /// ext4 in a file, with this many inodes.
    fn ext4(test: &str, megabytes: u64, inodes: u32) -> Option<Self> {
        let machine = Machine::new();
        std::fs::create_dir(machine.data()).unwrap();
        let image = machine.data().with_extension("ext4");
        if !make_ext4(test, &image, megabytes, inodes) {
            return None;
        }
        let loops = mount(
            test,
            &["-o", "loop", image.to_str().unwrap()],
            &machine.data(),
        );
        loops.then_some(Self {
            machine,
            image: Some(image),
        })
    }

    /// Percent of bytes and of inodes in use.
    fn usage(&self) -> (u64, u64) {
        let stat = rustix::fs::statvfs(self.machine.data()).unwrap();
        let percent = |free: u64, all: u64| (all - free) * 100 / all;
        (
            percent(stat.f_bfree, stat.f_blocks),
            percent(stat.f_ffree, stat.f_files),
        )
    }
}

impl Drop for DataDirMount {
    fn drop(&mut self) {
        let cleaned = muster_agent::clean::run(&self.machine.data(), true);
        let unmounted = Command::new("umount")
            .arg("-l")
            .arg(self.machine.data())
            .status();
        drop(self.image.take().map(std::fs::remove_file));
        if !std::thread::panicking() {
            cleaned.unwrap();
            assert!(unmounted.unwrap().success());
        }
    }
}

async fn agent(place: &DataDirMount, server: &FakeServer) -> Agent {
    let mut config = place.machine.config(server);
    config.gc.limits.disk_threshold = THRESHOLD;
    config.gc.limits.inode_threshold = THRESHOLD;
    Agent::start(config).await.unwrap()
}

/// Runs allocations that each leave what `script` makes, and says which are there in the end, oldest first,
/// with what is in use.
async fn fill(place: &DataDirMount, script: &str, reason: GcReason) -> (Vec<bool>, (u64, u64)) {
    let server = place.machine.server();
    let agent = agent(place, &server).await;
    let mut allocs = Vec::new();
    for name in 0..ALLOCS {
        // More than it makes: who exceeds its own disk is stopped.
        let filler = batch(name, script).with(|spec, _| {
            spec.groups[0].ephemeral_disk.size = Mb(12);
        });
        let alloc_id = server.place(filler.build()).await;
        server.status(alloc_id, ClientStatus::Complete).await;
        allocs.push(alloc_id);
    }
    let collection = agent.collection();
    eventually("no more pressure", async || {
        let (disk, inodes) = place.usage();
        let under_way = collection.borrow().under_way;
        let calm = disk < THRESHOLD.into() && inodes < THRESHOLD.into();
        (calm && under_way == 0).then_some(())
    })
    .await;
    let state = agent.collection().borrow().clone();
    let there = |id| place.machine.alloc_dir(id).exists();
    let there = allocs.into_iter().map(there).collect();
    let destroyed: Vec<GcReason> = state.destroyed.into_keys().collect();
    assert_eq!(destroyed, [reason]);
    let usage = place.usage();
    agent.shutdown(ShutdownPolicy::StopTasks).await;
    (there, usage)
}

/// The oldest went, and no more than was needed: one more of `step` percent would not fit.
fn exact(there: &[bool], used: u64, step: u64) {
    let gone = there.iter().take_while(|there| !**there).count();
    assert!(gone > 0, "nothing went: {there:?}");
    assert!(there[gone..].iter().all(|there| *there), "{there:?}");
    assert!(used < THRESHOLD.into(), "{used} %");
    assert!(
        used + step >= THRESHOLD.into(),
        "{used} %: more went than was needed: {there:?}"
    );
}

/// Ten megabytes of a hundred each.
const BYTES: &str = "dd if=/dev/zero of=$NOMAD_ALLOC_DIR/data/f bs=1M count=10 2>/dev/null";
/// 1 000 inodes each.
const INODES: &str =
    "cd $NOMAD_ALLOC_DIR/data; i=0; while [ $i -lt 1000 ]; do : > $i; i=$((i+1)); done";

#[tokio::test(flavor = "multi_thread")]
async fn bytes_on_tmpfs() {
    let test = "bytes_on_tmpfs";
    if !privileged(test) {
        return;
    }
    if let Some(place) = DataDirMount::tmpfs(test, "size=100m") {
        let (there, (disk, _)) = fill(&place, BYTES, GcReason::Disk).await;
        exact(&there, disk, 11);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inodes_on_tmpfs() {
    let test = "inodes_on_tmpfs";
    if !privileged(test) {
        return;
    }
    if let Some(place) = DataDirMount::tmpfs(test, "size=1g,nr_inodes=10000") {
        let (there, (_, inodes)) = fill(&place, INODES, GcReason::Inodes).await;
        exact(&there, inodes, 11);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_on_ext4() {
    let test = "bytes_on_ext4";
    if !privileged(test) {
        return;
    }
    if let Some(place) = DataDirMount::ext4(test, 110, 20_000) {
        let (there, (disk, _)) = fill(&place, BYTES, GcReason::Disk).await;
        exact(&there, disk, 11);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inodes_on_ext4() {
    let test = "inodes_on_ext4";
    if !privileged(test) {
        return;
    }
    if let Some(place) = DataDirMount::ext4(test, 400, 10_000) {
        let (there, (_, inodes)) = fill(&place, INODES, GcReason::Inodes).await;
        exact(&there, inodes, 11);
    }
}

/// The node is idle while another process fills its file system: 30 percent are the allocations', 25 its own.
#[tokio::test(flavor = "multi_thread")]
async fn interval_finds_space_used_by_others() {
    let test = "interval_finds_space_used_by_others";
    if !privileged(test) {
        return;
    }
    let Some(place) = DataDirMount::tmpfs(test, "size=100m") else {
        return;
    };
    let server = place.machine.server();
    let mut config = place.machine.config(&server);
    config.gc.limits.disk_threshold = THRESHOLD;
    config.gc.interval = Duration::from_millis(200);
    let agent = Agent::start(config).await.unwrap();
    let mut allocs = Vec::new();
    for name in 0..3 {
        let filler = batch(name, BYTES).with(|spec, _| {
            spec.groups[0].ephemeral_disk.size = Mb(12);
        });
        let alloc_id = server.place(filler.build()).await;
        server.status(alloc_id, ClientStatus::Complete).await;
        allocs.push(alloc_id);
    }
    eventually("reports are committed", async || {
        let outlook = agent.collect_now(true).await.unwrap();
        (outlook.freed == 3).then_some(())
    })
    .await;

    let filled = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=25", "status=none"])
        .arg(format!("of={}/filler", place.machine.data().display()))
        .status();
    assert!(filled.unwrap().success());
    eventually("the oldest goes", async || {
        (!place.machine.alloc_dir(allocs[0]).exists()).then_some(())
    })
    .await;
    eventually("no more pressure", async || {
        (place.usage().0 < THRESHOLD.into()).then_some(())
    })
    .await;

    let there = |id| place.machine.alloc_dir(id).exists();
    assert_eq!(
        allocs.into_iter().map(there).collect::<Vec<_>>(),
        [false, true, true]
    );
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A hundred thousand files, five thousand levels, an immutable file and a mount, all in one allocation.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_allocation_goes_as_a_whole() {
    let test = "a_hostile_allocation_goes_as_a_whole";
    if !privileged(test) {
        return;
    }
    let Some(place) = DataDirMount::ext4(test, 400, 200_000) else {
        return;
    };
    let server = place.machine.server();
    let agent = agent(&place, &server).await;
    let alloc_id = server.place(batch(1, "exit 0").build()).await;
    server.status(alloc_id, ClientStatus::Complete).await;
    let dir = place.machine.alloc_dir(alloc_id);
    let (_, before) = place.usage();
    let kept = tempfile::tempdir().unwrap();
    std::fs::write(kept.path().join("kept"), "x").unwrap();
    fill_hostile(&dir.join("alloc/data"), kept.path());
    let (_, filled) = place.usage();
    assert!(filled > before + 40, "{before} {filled}");

    eventually("everything goes", async || {
        agent.collect_now(false).await.unwrap();
        let (_, inodes) = place.usage();
        (!dir.exists() && inodes <= before).then_some(())
    })
    .await;

    assert_eq!(
        std::fs::read_to_string(kept.path().join("kept")).unwrap(),
        "x"
    );
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

fn fill_hostile(dir: &Path, outside: &Path) {
    for name in 0..100_000 {
        std::fs::File::create(dir.join(name.to_string())).unwrap();
    }
    let script = r#"
        set -e
        cd "$1"
        ln -s "$2" out; ln -s / root
        mkdir mount read-only; mount --bind "$2" mount
        touch read-only/file; chmod 0 read-only
        touch fixed; chattr +i fixed; mkdir fixed-dir; touch fixed-dir/a; chattr +i fixed-dir
    "#;
    let made = Command::new("sh")
        .args(["-c", script, "sh"])
        .args([dir, outside])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut deep = rustix::fs::open(dir, flags, Mode::empty()).unwrap();
    for _level in 0..5_000 {
        rustix::fs::mkdirat(&deep, "d", Mode::RWXU).unwrap();
        deep = rustix::fs::openat(&deep, "d", flags, Mode::empty()).unwrap();
    }
}
