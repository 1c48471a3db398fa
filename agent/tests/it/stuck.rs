//! A process that no signal reaches, because the kernel waits on its behalf.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use muster_domain::alloc::{ClientStatus, TaskState};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::support::{Machine, ended, eventually, make_ext4, mount, privileged, service, skipped};

/// A file system that stands still: whoever writes to it waits in the kernel, also when it is killed.
struct FrozenFilesystem {
    at: PathBuf,
    image: PathBuf,
}

impl FrozenFilesystem {
    /// `None`, with the reason told, if it cannot be made here.
    fn new(test: &str, dir: &Path) -> Option<Self> {
        let (at, image) = (dir.with_extension("frozen"), dir.with_extension("ext4"));
        std::fs::create_dir(&at).unwrap();
        let made = make_ext4(test, &image, 16, 64)
            && mount(test, &["-o", "loop", image.to_str().unwrap()], &at);
        if !made {
            return None;
        }
        let frozen = Self { at, image };
        if let Err(reason) = frozen.turn("--freeze") {
            skipped(test, &reason);
            return None;
        }
        Some(frozen)
    }

    fn thaw(&self) {
        self.turn("--unfreeze").unwrap();
    }

    fn turn(&self, how: &str) -> Result<(), String> {
        let turned = Command::new("fsfreeze").arg(how).arg(&self.at).output();
        match turned {
            Ok(turned) if turned.status.success() => Ok(()),
            Ok(turned) => Err(String::from_utf8_lossy(&turned.stderr).into_owned()),
            Err(error) => Err(format!("fsfreeze: {error}")),
        }
    }
}

impl Drop for FrozenFilesystem {
    fn drop(&mut self) {
        // Thawed already, unless the test has failed.
        drop(self.turn("--unfreeze"));
        let unmounted = Command::new("umount").arg("-l").arg(&self.at).status();
        drop(std::fs::remove_file(&self.image));
        assert!(std::thread::panicking() || unmounted.unwrap().success());
    }
}

/// The state of a process, one letter.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The parent of a process.
fn parent(pid: u32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The driver does not answer StopTask, so the agent kills the task's cgroup.
#[tokio::test(flavor = "multi_thread")]
async fn task_of_hung_driver_is_killed_by_cgroup() {
    if !privileged("task_of_hung_driver_is_killed_by_cgroup") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc = service(0, "exec sleep 1000")
        .raw()
        .kill_timeout(Duration::from_millis(100));
    let alloc_id = server.place(alloc.build()).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let pid = server.pid(alloc_id).await;
    let driver = Pid::from_raw(parent(pid));

    signal::kill(driver, Signal::SIGSTOP).unwrap();
    server.stop(alloc_id).await;
    let forced = |task: &TaskState, _| {
        let mut messages = task.events.iter().map(|event| &event.message);
        messages.any(|message| message.contains("the kill timeout is over"))
    };
    server.reported(alloc_id, "the kill", forced).await;
    eventually("the end of the process", async || {
        // Its parent has not asked for its end yet.
        [None, Some('Z')].contains(&state(pid)).then_some(())
    })
    .await;
    // One that did not answer for too long has been replaced.
    let _ended = signal::kill(driver, Signal::SIGCONT);
    let task = server.status(alloc_id, ClientStatus::Complete).await;

    let mut messages = task.events.iter().map(|event| &event.message);
    assert!(
        messages.any(|message| message.contains("signal 9")),
        "{:?}",
        task.events
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn process_in_uninterruptible_sleep_is_reported_without_blocking() {
    let name = "process_in_uninterruptible_sleep_is_reported_without_blocking";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let Some(frozen) = FrozenFilesystem::new(name, &machine.data()) else {
        return;
    };
    let agent = machine.agent(&server).await;
    let script = format!("exec touch {}/file", frozen.at.display());
    let writer = service(0, &script)
        .raw()
        .kill_timeout(Duration::from_millis(100));
    let stuck = server.place(writer.build()).await;
    let beside = server.place(service(1, "exec sleep 1000").build()).await;
    server.status(stuck, ClientStatus::Running).await;
    server.status(beside, ClientStatus::Running).await;
    let pid = server.pid(stuck).await;
    eventually("the process is stuck", async || {
        (state(pid) == Some('D')).then_some(())
    })
    .await;

    server.stop(stuck).await;
    let is_reported = |task: &TaskState, status| {
        let mut messages = task.events.iter().map(|event| &event.message);
        status == ClientStatus::Running && messages.any(|message| message.contains("(state D)"))
    };
    server
        .reported(stuck, "the stuck process", is_reported)
        .await;
    assert_eq!(state(pid), Some('D'));
    server.stop(beside).await;
    server.status(beside, ClientStatus::Complete).await;
    let after = server.place(service(2, "exec sleep 1000").build()).await;
    server.status(after, ClientStatus::Running).await;
    assert_eq!(state(pid), Some('D'));

    frozen.thaw();
    server.status(stuck, ClientStatus::Complete).await;
    assert!(ended(pid));
    server.stop(after).await;
    server.status(after, ClientStatus::Complete).await;
    agent.end().await;
}
