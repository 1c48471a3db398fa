//! A disk that runs full under the log.

use std::path::Path;
use std::process::Command as Process;

use muster_control::handle::{ProposeError, Retry};
use muster_control::server::Server;
use muster_control_core::fsm::Command;
use muster_domain::fixture::job;
use muster_domain::id::JobKey;
use tempfile::TempDir;

use crate::fixture::{config, skipped, soon};

/// Less than the jobs of the test need.
const SMALL: &str = "size=8m";
/// Room enough.
const LARGE: &str = "size=64m";
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

/// A full disk stops the server, says why, and loses nothing that was acknowledged; with room it goes on.
#[tokio::test]
async fn a_full_disk_loses_nothing_acknowledged() {
    let Some(disk) = Mount::new(SMALL) else {
        skipped(
            "a_full_disk_loses_nothing_acknowledged",
            "may not mount a tmpfs; run as root",
        );
        return;
    };
    let server = Server::start(config(disk.dir.path())).await.unwrap();
    let mut acknowledged = 0;

    let error = loop {
        let mut spec = job(&format!("job-{acknowledged}")).build();
        spec.meta.insert("filler".to_owned(), "x".repeat(JOB_BYTES));
        let at = server.control().now();
        let command = Command::RegisterJob {
            spec: Box::new(spec),
            at,
            check_index: None,
        };
        match server.control().propose(command).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < JOBS_MAX, "the disk never ran full");
    };
    let reason = soon("the server says that it stopped", server.failed()).await;
    drop(server);
    assert!(mount(&["-o", &format!("remount,{LARGE}")], disk.dir.path()));
    let again = soon("the directory is free again", async {
        loop {
            match Server::start(config(disk.dir.path())).await {
                Ok(server) => return server,
                Err(error) if error.to_string().contains("in use") => {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    })
    .await;

    assert!(matches!(error, ProposeError::Stopped { .. }), "{error:?}");
    assert_eq!(error.retry(), Retry::Never);
    assert!(reason.contains("No space left"), "{reason}");
    let state = again.control().state();
    for at in 0..acknowledged {
        let key = JobKey::in_default(format!("job-{at}"));
        assert!(
            state.jobs().get(&key).is_some(),
            "job-{at} of {acknowledged} is lost"
        );
    }
    let at = again.control().now();
    let spec = Box::new(job("next").build());
    again
        .control()
        .propose(Command::RegisterJob {
            spec,
            at,
            check_index: None,
        })
        .await
        .unwrap();
    again.shutdown().await;
}
