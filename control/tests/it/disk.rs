//! A disk that runs full under the log.

use std::io::Write;
use std::path::Path;
use std::process::Command as Process;

use muster_control::handle::{ProposeError, Retry};
use muster_control::server::Server;
use muster_control_core::fsm::{Entry, JobCommand};
use muster_domain::fixture::job;
use muster_domain::id::Timestamp;
use tempfile::TempDir;

use crate::fixture::{config, skipped, soon};

/// The size of the disk: enough for a server and some jobs.
const SIZE: &str = "size=64m";
/// Bytes of each job.
const JOB_BYTES: usize = 32 << 10;
/// Jobs that do not fit by far.
const JOBS_MAX: usize = 2_000;

/// A file system of its own on a directory; unmounted when dropped.
struct Mount {
    dir: TempDir,
}

impl Mount {
    /// `None` if this user may not mount.
    fn new(options: &str) -> Option<Self> {
        let dir = TempDir::new().ok()?;
        mount(&["-t", "tmpfs", "-o", options, "tmpfs"], dir.path()).then_some(Self { dir })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a file of the log may still be closing.
        drop(
            Process::new("umount")
                .arg("-l")
                .arg(self.dir.path())
                .status(),
        );
    }
}

fn mount(arguments: &[&str], dir: &Path) -> bool {
    let mount = Process::new("mount").args(arguments).arg(dir).output();
    mount.is_ok_and(|output| output.status.success())
}

fn large_job(at: usize) -> Entry {
    let mut spec = job(&format!("job-{at}")).build();
    spec.meta.insert("filler".to_owned(), "x".repeat(JOB_BYTES));
    JobCommand::Register {
        spec: Box::new(spec),
        check_index: None,
        places: None,
    }
    .at(Timestamp(1))
}

/// A full disk refuses changes and says why, goes on serving what it has, and takes changes again without a
/// restart once there is room. Nothing that was acknowledged is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_left_without_a_restart() {
    let Some(disk) = Mount::new(SIZE) else {
        skipped(
            "a_full_disk_is_left_without_a_restart",
            "may not mount a tmpfs; run as root",
        );
        return;
    };
    let server = Server::start(config(disk.dir.path())).await.unwrap();
    let control = server.control().clone();
    let hog = disk.dir.path().join("somebody-elses");
    fill(&hog);
    let mut acknowledged = 0;

    let error = loop {
        match control.propose(large_job(acknowledged)).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < JOBS_MAX, "the disk never ran full");
    };

    assert!(matches!(error, ProposeError::DiskFull { .. }), "{error:?}");
    assert_eq!(error.retry(), Retry::Later);
    assert!(error.to_string().contains("No space left"), "{error}");
    assert!(acknowledged > 0);
    assert_eq!(control.state().jobs().len(), acknowledged);
    assert!(control.disk_full().is_some());
    assert!(control.failed().borrow().is_none());
    std::fs::remove_file(&hog).unwrap();
    eventually("changes are taken again", async || {
        control
            .propose(large_job(acknowledged))
            .await
            .is_ok()
            .then_some(())
    })
    .await;
    server.shutdown().await;
    drop(control);
    let again = started_again(disk.dir.path()).await;
    assert_eq!(again.control().state().jobs().len(), acknowledged + 1);
    again.shutdown().await;
}

/// The log is what fills the disk: the server makes room by itself, with a snapshot in the place of the log.
#[tokio::test(flavor = "multi_thread")]
async fn log_is_compacted_when_disk_fills() {
    let Some(disk) = Mount::new(SIZE) else {
        skipped(
            "log_is_compacted_when_disk_fills",
            "may not mount a tmpfs; run as root",
        );
        return;
    };
    let server = Server::start(config(disk.dir.path())).await.unwrap();
    let control = server.control().clone();
    // The same few jobs over and over: a large log of a small state.
    let rounds = 2 * (64 << 20) / JOB_BYTES;

    for at in 0..rounds {
        eventually("the change is taken", async || {
            control
                .propose(large_job(at % 4))
                .await
                .is_ok()
                .then_some(())
        })
        .await;
    }

    assert_eq!(control.state().jobs().len(), 4);
    assert!(control.failed().borrow().is_none());
    server.shutdown().await;
}

/// Asks again until it is answered.
async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    soon(what, asking).await
}

/// Takes all the room that is left.
fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    while file.write_all(&vec![0; 1 << 16]).is_ok() {}
}

/// A server on a directory that another has just left.
async fn started_again(dir: &Path) -> Server {
    eventually("the directory is free", async || {
        match Server::start(config(dir)).await {
            Ok(server) => Some(server),
            Err(error) if error.to_string().contains("in use") => None,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await
}
