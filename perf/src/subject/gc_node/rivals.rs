//! Other ways to delete the same directories.

#![expect(
    unsafe_code,
    reason = "io_uring takes names that must outlive a request"
)]

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use io_uring::{IoUring, opcode, types};

/// `unlinkat` calls under way at a time.
const DEPTH: u32 = 64;

/// Deletes with the standard library's `remove_dir_all` in `count` threads.
pub(super) fn threads(allocs: &[PathBuf], count: usize) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let deleted: std::io::Result<()> = std::thread::scope(|scope| {
        let work = || {
            while let Some(alloc) = allocs.get(next.fetch_add(1, Ordering::Relaxed)) {
                fs::remove_dir_all(alloc)?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        let mut ends = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        ends.try_for_each(|end| end.unwrap_or_else(|_panic| Err(std::io::Error::other("panic"))))
    });
    deleted?;
    Ok(begun.elapsed())
}

/// Deletes with `rm -rf`.
pub(super) fn rm(dir: &Path) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let status = Command::new("rm").arg("-rf").arg(dir).status()?;
    ensure!(status.success(), "rm ended with {status}");
    Ok(begun.elapsed())
}

/// Deletes with `io_uring`: files of a few directories at a time, then the directories. Returns `None` where it is
/// not allowed.
pub(super) fn io_uring(allocs: &[PathBuf]) -> anyhow::Result<Option<Duration>> {
    let Ok(mut ring) = IoUring::new(DEPTH) else {
        return Ok(None);
    };
    let begun = Instant::now();
    for some in allocs.chunks(DEPTH as usize / 4) {
        let mut files = Vec::new();
        let (mut subs, mut tops) = (Vec::new(), Vec::new());
        for alloc in some {
            for dir in [alloc.clone(), alloc.join("sub")] {
                for entry in fs::read_dir(&dir)? {
                    let entry = entry?;
                    if !entry.file_type()?.is_dir() {
                        files.push(name(&entry.path())?);
                    }
                }
            }
            subs.push(name(&alloc.join("sub"))?);
            tops.push(name(alloc)?);
        }
        unlink(&mut ring, &files, 0)?;
        unlink(&mut ring, &subs, libc::AT_REMOVEDIR)?;
        unlink(&mut ring, &tops, libc::AT_REMOVEDIR)?;
    }
    Ok(Some(begun.elapsed()))
}

fn name(path: &Path) -> anyhow::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn unlink(ring: &mut IoUring, names: &[CString], flags: i32) -> anyhow::Result<()> {
    let cwd = types::Fd(rustix::fs::CWD.as_raw_fd());
    let (mut asked, mut done) = (0, 0);
    while done < names.len() {
        while asked < names.len() && asked - done < DEPTH as usize {
            let request = opcode::UnlinkAt::new(cwd, names[asked].as_ptr()).flags(flags);
            // SAFETY: the name lives in `names`, which is borrowed until all completions are taken.
            let pushed = unsafe { ring.submission().push(&request.build()) };
            ensure!(pushed.is_ok(), "the ring has room for {DEPTH} requests");
            asked += 1;
        }
        ring.submit_and_wait(1)?;
        for completion in ring.completion() {
            ensure!(
                completion.result() == 0,
                "unlinkat: {}",
                std::io::Error::from_raw_os_error(-completion.result())
            );
            done += 1;
        }
    }
    Ok(())
}
