//! The same limits against stress-ng, which others wrote to break machines with.
//!
//! Without the program each test says that it cannot run; `cargo xtask setup` installs it, and the guest gets a copy.

use std::process::Command;

use muster_agent::resources::cgroup::{Controller, Limits, TaskCgroup};
use muster_domain::job::ByteRate;
use muster_domain::resources::IoLimits;

use crate::disk::Disk;
use crate::limits::{keeps, quota_holds};
use crate::stress::{shared_by_weight, the_bomb_is_kept, the_greedy_is_killed};
use crate::support::{limits, remove, shell, skipped, tree};

/// Whether there is one; says so of `test` if not.
fn is_here(test: &str) -> bool {
    let found = Command::new("stress-ng").arg("--version").output();
    let reason = match found {
        Ok(done) if done.status.success() => return true,
        Ok(done) => String::from_utf8_lossy(&done.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let reason = reason.trim();
    skipped(
        test,
        &format!("stress-ng: {reason}; run: cargo xtask setup"),
    );
    false
}

#[tokio::test]
async fn stress_ng_keeps_its_cpu_quota() {
    let name = "stress_ng_keeps_its_cpu_quota";
    if is_here(name) {
        quota_holds(name, "exec stress-ng --quiet --cpu 2", 50).await;
    }
}

#[tokio::test]
async fn stress_ng_is_weighed() {
    let name = "stress_ng_is_weighed";
    if is_here(name) {
        shared_by_weight(name, "exec stress-ng --quiet --cpu 1").await;
    }
}

#[tokio::test]
async fn stress_ng_is_killed_beyond_its_memory() {
    let name = "stress_ng_is_killed_beyond_its_memory";
    if is_here(name) {
        // As root it would take itself out of the killer's reach, and bring forth the next child.
        the_greedy_is_killed(
            name,
            64 << 20,
            "exec stress-ng --quiet --vm 1 --vm-bytes 16m --vm-keep",
            "exec stress-ng --quiet --no-oom-adjust --timeout 60 --vm 1 --vm-bytes 256m --vm-keep",
        )
        .await;
    }
}

#[tokio::test]
async fn stress_ng_forks_within_its_limit() {
    let name = "stress_ng_forks_within_its_limit";
    if is_here(name) {
        the_bomb_is_kept(name, "exec stress-ng --quiet --fork 80").await;
    }
}

/// A mebibyte in a second of what is written past the cache, within a tenth over five seconds.
#[tokio::test]
async fn stress_ng_keeps_its_disk_rate() {
    let name = "stress_ng_keeps_its_disk_rate";
    if !is_here(name) {
        return;
    }
    let Some(tree) = tree(name, &[Controller::Io]) else {
        return;
    };
    let Some(disk) = Disk::new(name, 64 << 20) else {
        return tree.remove().await.unwrap();
    };
    let Some(mounted) = MountedDisk::new(name, &disk) else {
        return tree.remove().await.unwrap();
    };
    let limit = 1 << 20;
    let limits = Limits {
        io: IoLimits {
            write_rate: Some(ByteRate(limit)),
            ..IoLimits::default()
        },
        ..limits()
    };
    let task = TaskCgroup::create(&tree, "alloc", "writes", &limits).unwrap();
    let order = format!(
        "exec stress-ng --quiet --temp-path {} --hdd 1 --hdd-opts direct --hdd-bytes 16m --hdd-write-size 64k",
        mounted.dir.path().display()
    );
    let mut child = shell(&task, &order);

    keeps(&task, &disk, "wbytes", limit);

    remove(tree, task).await;
    child.wait().unwrap();
}

/// A file system on a disk, unmounted on drop.
struct MountedDisk {
    dir: tempfile::TempDir,
}

impl MountedDisk {
    /// `None`, said as a skip of `test`, where there is none to be had.
    fn new(test: &str, disk: &Disk) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-O", "^has_journal", disk.path()]);
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "ext4", disk.path()])
            .arg(dir.path().as_os_str());
        for command in [&mut mkfs, &mut mount] {
            let reason = match command.output() {
                Ok(done) if done.status.success() => continue,
                Ok(done) => String::from_utf8_lossy(&done.stderr).into_owned(),
                Err(error) => error.to_string(),
            };
            skipped(test, &format!("no ext4: {}", reason.trim()));
            return None;
        }
        Some(Self { dir })
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        let freed = Command::new("umount").arg(self.dir.path()).status();
        assert!(std::thread::panicking() || freed.unwrap().success());
    }
}
