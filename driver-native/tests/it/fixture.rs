//! Tasks, cgroups and directories for the tests.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use muster_driver::fixture::write_program;
pub(crate) use muster_driver::fixture::{skipped, skipped_here};
use muster_driver::{CgroupPlacement, TaskConfig, TaskDriver};
use muster_driver_native::NativeDriver;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The longest time that a test waits before it gives up.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
/// The environment of a test's task.
pub(crate) const PATH: &str = "/usr/bin:/bin";

/// A `config` that runs a shell script.
pub(crate) fn shell(script: &str) -> Value {
    json!({"command": "/bin/sh", "args": ["-c", script]})
}

/// A `config` that sleeps until it is stopped.
pub(crate) fn sleep_for_ever() -> Value {
    json!({"command": "/bin/sleep", "args": ["600"]})
}

/// A task in a separate directory, which is removed with it.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) config: TaskConfig,
    pub(crate) dir: TempDir,
}

impl Task {
    /// Creates a raw task, unless its configuration sets another level: it sees the files of the test.
    pub(crate) fn new(mut config: Value) -> Self {
        if config.get("isolation").is_none() {
            config["isolation"] = json!("raw");
        }
        Self::with(config)
    }

    /// Creates a task with the level in its configuration.
    pub(crate) fn with(config: Value) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let ordinal = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = tempfile::tempdir().unwrap();
        let mut task = TaskConfig {
            id: format!("00000000-0000-4000-8000-000000000001/web/{ordinal:08x}"),
            task_name: "web".to_owned(),
            task_dir: dir.path().to_owned(),
            config,
            ..TaskConfig::default()
        };
        task.env.insert("PATH".to_owned(), PATH.to_owned());
        Self { config: task, dir }
    }

    pub(crate) fn id(&self) -> &str {
        &self.config.id
    }

    /// Returns the path of a file in the task's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a program into the task's directory.
    pub(crate) fn write_program(&self, name: &str, text: &str) {
        write_program(&self.path(name), text);
    }

    /// Gives the task a FIFO for its output, and returns the reading end.
    pub(crate) fn with_stdout(&mut self) -> OwnedFd {
        let (path, reader) = self.fifo("stdout.fifo");
        self.config.stdout_path = path;
        reader
    }

    /// As [`Self::with_stdout`], for the errors of the task.
    pub(crate) fn with_stderr(&mut self) -> OwnedFd {
        let (path, reader) = self.fifo("stderr.fifo");
        self.config.stderr_path = path;
        reader
    }

    fn fifo(&self, name: &str) -> (PathBuf, OwnedFd) {
        let path = self.path(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .unwrap();
        (path, reader.into())
    }

    /// Returns the content of a file in the task's directory, as soon as it has any.
    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.path(name);
        let mut text = String::new();
        until(&format!("{} is written", path.display()), || {
            text = fs::read_to_string(&path).unwrap_or_default();
            text.ends_with('\n')
        });
        text.trim().to_owned()
    }
}

/// Creates a driver on a node that allows raw tasks.
pub(crate) async fn allowing_driver() -> NativeDriver {
    let driver = NativeDriver::new();
    driver.set_config(json!({"allow_raw": true})).await.unwrap();
    driver
}

/// Starts a task with a new driver, and panics if the task does not start.
pub(crate) async fn started(task: &Task) -> NativeDriver {
    let driver = allowing_driver().await;
    driver.start_task(task.config.clone()).await.unwrap();
    driver
}

/// Returns the attribute `pid` of a task.
pub(crate) async fn pid_of(driver: &dyn TaskDriver, task_id: &str) -> i32 {
    let status = driver.inspect_task(task_id).await.unwrap();
    status.attributes["pid"].parse().unwrap()
}

/// Polls until `done` returns `true`, at most for [`DEADLINE`].
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < DEADLINE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns whether a process exists and is no zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.starts_with('Z')
}

/// Cgroups for a test, below the test's own, removed at the end.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups(Arc<Parent>);

#[derive(Debug)]
struct Parent {
    path: PathBuf,
    next: AtomicU32,
}

impl Cgroups {
    /// Returns `None`, with a message on standard error, where no cgroup can be created.
    pub(crate) fn new() -> Option<Self> {
        match Self::below("cgroup2", "", "0::") {
            Ok(cgroups) => Some(cgroups),
            Err(error) => {
                skipped_here(&format!(
                    "cannot make a v2 cgroup ({error}); run the tests as root"
                ));
                None
            }
        }
    }

    /// Creates cgroups in the v1 hierarchy of a controller.
    pub(crate) fn of_v1(controller: &str) -> Option<Self> {
        match Self::below("cgroup", controller, &format!(":{controller}:")) {
            Ok(cgroups) => Some(cgroups),
            Err(error) => {
                skipped_here(&format!(
                    "no v1 hierarchy of {controller} can be used ({error})"
                ));
                None
            }
        }
    }

    /// Creates the parent cgroup. `kind` and `option` find the hierarchy's mount, `line` finds the test's own cgroup.
    fn below(kind: &str, option: &str, line: &str) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let missing = |what: &str| io::Error::other(format!("no {what}"));
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let mount = mounts
            .lines()
            .filter_map(|mount| mount.split_once(" - "))
            .find(|(_, fs)| {
                let mut fs = fs.split(' ');
                fs.next() == Some(kind)
                    && (option.is_empty() || fs.any(|o| o.split(',').any(|o| o == option)))
            })
            .and_then(|(place, _)| place.split(' ').nth(4))
            .ok_or_else(|| missing("mount"))?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own
            .lines()
            .find_map(|entry| Some(entry.split_once(line)?.1))
            .ok_or_else(|| missing("cgroup of its own"))?;
        let name = format!(
            "muster-driver-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = Path::new(mount)
            .join(own.trim_start_matches('/'))
            .join(name);
        fs::create_dir(&path)?;
        Ok(Self(Arc::new(Parent {
            path,
            next: AtomicU32::new(1),
        })))
    }

    /// Creates a cgroup for one task.
    pub(crate) fn create(&self) -> PathBuf {
        let ordinal = self.0.next.fetch_add(1, Ordering::Relaxed);
        let path = self.0.path.join(ordinal.to_string());
        fs::create_dir(&path).unwrap();
        path
    }

    /// Returns a placement in a new cgroup.
    pub(crate) fn placement(&self) -> CgroupPlacement {
        CgroupPlacement {
            dir: self.create(),
            joins: Vec::new(),
        }
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let Ok(entries) = fs::read_dir(&self.path) else {
            return;
        };
        for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
            let _killed = fs::write(entry.path().join("cgroup.kill"), "1");
            // The kernel needs a moment after the last process ended.
            for _attempt in 0..500 {
                if remove_with_those_in_it(&entry.path()).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let _removed = fs::remove_dir(&self.path);
    }
}

/// Removes a task's cgroup, which may contain cgroups of actions.
fn remove_with_those_in_it(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)?.flatten() {
        if entry.path().is_dir() {
            fs::remove_dir(entry.path())?;
        }
    }
    fs::remove_dir(dir)
}

/// Returns the v2 cgroup of a process, as the kernel shows it.
pub(crate) fn cgroup_line(pid: i32, prefix: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let line = text.lines().find(|line| line.contains(prefix)).unwrap();
    line.to_owned()
}
