//! Counts of a task's writes to a disk and reads from it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use crate::disk::Disk;
use crate::node::{Node, poll};

/// A mebibyte that is written and synchronised by the task itself.
#[test]
fn disk_writes_of_a_task_are_counted() {
    let name = "disk_writes_of_a_task_are_counted";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let dir = node.data_dir.path().to_owned();
    let disk = if is_on_a_disk(&dir) {
        None
    } else {
        // A file system in memory writes nothing: the disk itself is written to.
        let Some(disk) = Disk::new(name, 8 << 20) else {
            return;
        };
        Some(disk)
    };
    carry_tasks(&node);
    let file = dir.join("file").display().to_string();
    let to = disk.as_ref().map_or(file.as_str(), Disk::path);
    let bpf = node.open();
    assert_eq!(bpf.absent().get("block"), None);
    assert_eq!(node.counters(&bpf).block.writes, 0);

    node.start(&format!("write {to}"));
    assert!(node.wait().success());

    // The device is done before the writer is told so, but another CPU may still be counting.
    let block = poll("a mebibyte written", || {
        let block = node.counters(&bpf).block;
        (block.write_bytes >= 1 << 20).then_some(block)
    });
    eprintln!("{block:?}");
    let times: u64 = block.latency.counts.iter().sum();
    assert!(block.writes > 0, "{block:?}");
    assert!(block.write_bytes < 2 << 20, "{block:?}");
    assert_eq!(times, block.reads + block.writes, "{block:?}");
    let longest = Duration::from_mins(1) * u32::try_from(times).unwrap();
    assert!(
        Duration::from_nanos(block.latency.sum_ns) < longest,
        "{block:?}"
    );
    assert!(block.latency.sum_ns > 0, "{block:?}");
}

/// A hundred pages of a disk that takes 5 ms for each. The kernel's own time is longer: it begins when a request is
/// made, ours when the device gets it.
#[test]
fn block_reads_and_latency_match_kernel_counters() {
    let name = "block_reads_and_latency_match_kernel_counters";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let Some(disk) = Disk::weighed(name) else {
        return;
    };
    carry_tasks(&node);
    let bpf = node.open();
    let before = disk.read_ticks();

    node.start(&format!("read {}", disk.path()));
    assert!(node.wait().success());

    let block = poll("a hundred reads", || {
        let block = node.counters(&bpf).block;
        (block.reads >= 100).then_some(block)
    });
    let ticks = disk.read_ticks().checked_sub(before).unwrap();
    eprintln!("{block:?}, {ticks:?} by the kernel");
    assert_eq!((block.reads, block.read_bytes), (100, 100 * 4_096));
    assert_eq!(block.writes, 0);
    assert_eq!(block.latency.counts.iter().sum::<u64>(), 100);
    let counted = Duration::from_nanos(block.latency.sum_ns);
    assert!(counted >= Duration::from_millis(500), "{counted:?}");
    assert!(counted <= ticks.mul_f64(1.1), "{counted:?} of {ticks:?}");
}

/// Has requests carry the cgroup of a task, as in an agent's tree. Else they carry the nearest one above it whose
/// disks, and whose memory that is written later, the kernel counts.
fn carry_tasks(node: &Node) {
    let dir = &node.cgroup_dir;
    let there = fs::read_to_string(dir.join("cgroup.controllers")).unwrap();
    if !there
        .split_whitespace()
        .any(|controller| controller == "io")
    {
        return;
    }
    for dir in [dir.clone(), dir.join("alloc")] {
        fs::write(dir.join("cgroup.subtree_control"), "+io +memory").unwrap();
    }
}

fn is_on_a_disk(dir: &Path) -> bool {
    let device = fs::metadata(dir).unwrap().dev();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    Path::new("/sys/dev/block").join(number).exists()
}
