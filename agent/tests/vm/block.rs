//! What a task writes to a disk.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use muster_driver::fixture::skipped;

use crate::node::{Node, poll};

/// A mebibyte that is written and synchronised by the task itself.
#[test]
fn what_a_task_writes_to_disk_is_counted() {
    let name = "what_a_task_writes_to_disk_is_counted";
    let Some(mut node) = Node::set_up(name) else {
        return;
    };
    let dir = node.data_dir.path().to_owned();
    let device = std::fs::metadata(&dir).unwrap().dev();
    let device = format!("{}:{}", libc::major(device), libc::minor(device));
    if !std::path::Path::new("/sys/dev/block")
        .join(&device)
        .exists()
    {
        skipped(name, "no file system on a block device here");
        return;
    }
    let bpf = node.open();
    assert_eq!(bpf.absent().get("block"), None);
    assert_eq!(node.counters(&bpf).block.writes, 0);

    node.start(&format!("write {}", dir.join("file").display()));
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
