//! crun and runc: `run` of a bundle with the namespaces, the cgroup and the mounts of a contained task.
//!
//! Each runtime is started by a child process in its own mount namespace, with only cgroup v2 at `/sys/fs/cgroup`. On
//! a host where v1 holds some controllers, both runtimes require all controllers and cannot start in the rest of v2.
//! With v2 alone they create one cgroup, as the bare loop does. The bundle is created once.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use serde_json::{Value, json};

use super::clock::{self, StartTimesFifo};
use super::program;
use super::sandbox::{OWN_DIRS, PROC_MASKED_DIRS, PROC_MASKED_FILES, PROC_READ_ONLY, SYS_MASKED};
use super::timed::StartTimings;
use crate::cgroup::CgroupDir;
use crate::program::is_in_path;
use crate::subject::child::child_command;

/// The word that makes a child of this program run [`child`].
pub(crate) const CHILD: &str = "oci";

/// The path at which both runtimes look for cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// A bundle that both runtimes accept.
pub(super) struct Bundle {
    dir: tempfile::TempDir,
    cgroup: CgroupDir,
}

impl Bundle {
    pub(super) fn new(dir: tempfile::TempDir) -> anyhow::Result<Self> {
        let cgroup = CgroupDir::create("oci")?;
        let root = dir.path().join("root");
        for path in ["proc", "dev", "sys", "usr", "run"]
            .into_iter()
            .chain(OWN_DIRS)
        {
            fs::create_dir_all(root.join(path))?;
        }
        program::write(&root)?;
        let config = config(dir.path(), &cgroup.path_from_root().join("task"));
        fs::write(dir.path().join("config.json"), serde_json::to_vec(&config)?)?;
        Ok(Self { dir, cgroup })
    }

    /// Runs the program `times` times with `runtime`. Returns `None` if the machine does not have the runtime.
    pub(super) fn run(&self, runtime: &str, times: u32) -> anyhow::Result<Option<StartTimings>> {
        if !is_in_path(runtime) {
            return Ok(None);
        }
        let times = times.to_string();
        let args: [&OsStr; 3] = [runtime.as_ref(), self.dir.path().as_ref(), times.as_ref()];
        let output = child_command(CHILD, args)?
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(
            output.status.success(),
            "the loop of {runtime} in {} ended with {}",
            self.cgroup.path().display(),
            output.status
        );
        let mut timed = StartTimings::new()?;
        for line in str::from_utf8(&output.stdout)?.lines() {
            let (start, cycle) = line.split_once(' ').context("the loop says two numbers")?;
            let start = Duration::from_nanos(start.parse()?);
            timed.add_cycle(start, Duration::from_nanos(cycle.parse()?));
        }
        Ok(Some(timed))
    }
}

/// Runs the bundle `times` times in a child process and prints how long each run took.
pub(crate) fn child(runtime: &OsStr, bundle: &Path, times: &OsStr) -> anyhow::Result<()> {
    let times: u32 = times.to_str().context("a number")?.parse()?;
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(
        Some("cgroup2"),
        CGROUPS,
        Some("cgroup2"),
        MsFlags::empty(),
        none,
    )?;
    let place = tempfile::tempdir()?;
    let words = StartTimesFifo::new(place.path())?;
    let state = place.path().join("state");
    for number in 0..times {
        let begun = clock::now();
        let status = Command::new(runtime)
            .arg("--root")
            .arg(&state)
            .args(["run", "--bundle"])
            .arg(bundle)
            .arg(format!("perf-{}-{number}", std::process::id()))
            .stdin(Stdio::null())
            .stdout(words.file().try_clone_to_owned()?)
            .status()?;
        let cycle = clock::now().saturating_sub(begun);
        ensure!(
            status.success(),
            "{} ended with {status}",
            runtime.display()
        );
        let start = words.next()?.saturating_sub(begun);
        writeln!(
            std::io::stdout(),
            "{} {}",
            start.as_nanos(),
            cycle.as_nanos()
        )?;
    }
    Ok(())
}

/// Returns an OCI configuration with the isolation of a contained task.
fn config(dir: &Path, cgroup: &Path) -> Value {
    let namespaces = ["pid", "ipc", "uts", "mount", "cgroup"].map(|kind| json!({ "type": kind }));
    let plain = ["nosuid", "nodev", "noexec"];
    let in_memory = |at: &str, kind: &str, options: &[&str]| json!({ "destination": at, "type": kind, "source": kind, "options": options });
    let mut mounts = vec![
        in_memory("/proc", "proc", &plain),
        in_memory("/dev", "tmpfs", &["nosuid", "mode=755", "size=64k"]),
        in_memory(
            "/dev/pts",
            "devpts",
            &[
                "nosuid",
                "noexec",
                "newinstance",
                "ptmxmode=0666",
                "mode=0620",
                "gid=5",
            ],
        ),
        in_memory(
            "/dev/shm",
            "tmpfs",
            &["nosuid", "noexec", "nodev", "mode=1777", "size=64m"],
        ),
        in_memory("/dev/mqueue", "mqueue", &plain),
        in_memory(
            "/run",
            "tmpfs",
            &["nosuid", "noexec", "nodev", "mode=1777", "size=64m"],
        ),
        in_memory("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        json!({ "destination": "/usr", "type": "bind", "source": "/usr", "options": ["bind", "ro", "nosuid", "nodev"] }),
    ];
    for own in OWN_DIRS {
        let source = dir.join("root").join(own);
        mounts.push(json!({ "destination": format!("/{own}"), "type": "bind", "source": source, "options": ["bind", "nosuid", "nodev"] }));
    }
    let masked = PROC_MASKED_DIRS.into_iter().chain(PROC_MASKED_FILES);
    let masked = masked.map(|name| format!("/proc/{name}"));
    let masked = masked.chain(SYS_MASKED.map(|name| format!("/sys/{name}")));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 65_534, "gid": 65_534 },
            "args": [format!("/{}", program::NAME)],
            "env": [],
            "cwd": "/",
            "capabilities": { "bounding": [], "effective": [], "permitted": [] },
            "noNewPrivileges": true,
        },
        "root": { "path": "root", "readonly": true },
        "hostname": "main-oci",
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces,
            "cgroupsPath": cgroup,
            "maskedPaths": masked.collect::<Vec<_>>(),
            "readonlyPaths": PROC_READ_ONLY.map(|name| format!("/proc/{name}")),
        },
    })
}
