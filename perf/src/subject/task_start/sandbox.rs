//! The floor of contained tasks: the same namespaces and mounts, created for each task by plain system calls.
//!
//! The child starts in new mount, pid, ipc and uts namespaces, creates a cgroup namespace and gets its own copy of
//! the host's mounts. It binds a root that was prepared on disk once. Into the root it mounts the host's directories
//! (read-only), a prepared `/dev`, `sysfs`, `/proc` with mounts that hide parts of it, `/dev/pts`, `/dev/shm`,
//! `/dev/mqueue`, `/run` and four directories of its own. After `pivot_root` it unmounts the old root. It sets its
//! host name and runs the program. Some features of a contained task are absent: another user, dropped capabilities,
//! limits, the filter of system calls.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat, symlinkat};

use super::bare::Script;

/// Host directories that the driver shows by default. Only those that exist on this machine are used.
const HOST_DIRS: [&str; 10] = [
    "usr",
    "etc/alternatives",
    "etc/ca-certificates",
    "etc/fonts",
    "etc/java-17-openjdk",
    "etc/ld.so.conf.d",
    "etc/perl",
    "etc/python3",
    "etc/ssl/certs",
    "etc/terminfo",
];
const LINKS: [(&str, &str); 4] = [
    ("usr/bin", "bin"),
    ("usr/sbin", "sbin"),
    ("usr/lib", "lib"),
    ("usr/lib64", "lib64"),
];
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
pub(super) const PROC_READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];
pub(super) const PROC_MASKED_FILES: [&str; 7] = [
    "interrupts",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "timer_list",
    "timer_stats",
];
pub(super) const PROC_MASKED_DIRS: [&str; 3] = ["acpi", "asound", "scsi"];
pub(super) const SYS_MASKED: [&str; 2] = ["firmware", "devices/virtual/powercap"];
/// The task's own directories.
pub(super) const OWN_DIRS: [&str; 4] = ["local", "secrets", "tmp", "alloc"];

const PLAIN: u64 = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

/// A root directory that each child binds.
pub(super) struct Sandbox {
    root: PathBuf,
    /// The directory that contains the task's own directories.
    task_dir: PathBuf,
}

impl Sandbox {
    /// Prepares a root in `dir`, with the task's own directories in `task_dir`.
    pub(super) fn prepare(dir: &Path, task_dir: &Path) -> anyhow::Result<Self> {
        let root = dir.join("sandbox");
        for path in [
            "proc",
            "sys",
            "run",
            "dev/pts",
            "dev/shm",
            "dev/mqueue",
            "var/empty",
        ] {
            fs::create_dir_all(root.join(path))?;
        }
        for path in HOST_DIRS.into_iter().filter(|path| is_shown(path)) {
            fs::create_dir_all(root.join(path))?;
        }
        for (target, link) in LINKS {
            symlinkat(target, CWD, root.join(link))?;
        }
        for (name, major, minor) in DEVICES {
            let path = root.join("dev").join(name);
            let mode = Mode::from_raw_mode(0o666);
            mknodat(
                CWD,
                path,
                FileType::CharacterDevice,
                mode,
                makedev(major, minor),
            )?;
        }
        for name in OWN_DIRS {
            fs::create_dir_all(root.join(name))?;
            fs::create_dir_all(task_dir.join(name))?;
        }
        let task_dir = task_dir.to_owned();
        Ok(Self { root, task_dir })
    }

    /// Returns the calls that run `program` in the sandbox, with `output` as its standard output.
    pub(super) fn script(
        &self,
        program: &[&CStr],
        output: BorrowedFd<'_>,
    ) -> anyhow::Result<Script> {
        let namespaces =
            libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        let mut script = Script::new(namespaces);
        let new_cgroup = libc::CLONE_NEWCGROUP.unsigned_abs().into();
        script.call(libc::SYS_unshare, &[new_cgroup], 0);
        let mut calls = ScriptBuilder {
            script: &mut script,
            root: &self.root,
        };
        calls.mount("", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "")?;
        calls.bind(&self.root, Path::new(""), libc::MS_NOSUID | libc::MS_NODEV)?;
        calls.host()?;
        calls.proc()?;
        calls.shared()?;
        for name in OWN_DIRS {
            let from = self.task_dir.join(name);
            calls.bind(&from, Path::new(name), libc::MS_NOSUID | libc::MS_NODEV)?;
        }
        calls.enter()?;
        script.call(libc::SYS_setsid, &[], 0);
        script.output(output);
        script.exec(program)?;
        Ok(script)
    }

    /// Returns the calls for a sandbox that only mounts `/proc` and hides no part of it.
    pub(super) fn lean(&self, program: &[&CStr], output: BorrowedFd<'_>) -> anyhow::Result<Script> {
        let namespaces =
            libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        let mut script = Script::new(namespaces);
        let mut calls = ScriptBuilder {
            script: &mut script,
            root: &self.root,
        };
        calls.mount("", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "")?;
        calls.mount(&self.root, &self.root, "", libc::MS_BIND, "")?;
        calls.mount(
            self.task_dir.join("local"),
            &self.root.join("local"),
            "",
            libc::MS_BIND,
            "",
        )?;
        calls.mount("proc", &self.root.join("proc"), "proc", PLAIN, "")?;
        calls.enter()?;
        script.output(output);
        script.exec(program)?;
        Ok(script)
    }
}

/// Whether the path is a directory of the host and not a link. Links of the host become links in the root.
fn is_shown(path: &str) -> bool {
    let found = fs::symlink_metadata(Path::new("/").join(path));
    found.is_ok_and(|found| found.is_dir())
}

struct ScriptBuilder<'a> {
    script: &'a mut Script,
    root: &'a Path,
}

impl ScriptBuilder<'_> {
    /// Adds a mount. An empty source, kind or data is passed as a null pointer.
    fn mount(
        &mut self,
        source: impl AsRef<Path>,
        target: &Path,
        kind: &str,
        flags: u64,
        data: &str,
    ) -> anyhow::Result<()> {
        let source = match source.as_ref() {
            none if none.as_os_str().is_empty() => 0,
            source => self.script.path(source)?,
        };
        let target = self.script.path(target)?;
        let kind = self.text_or_null(kind)?;
        let data = self.text_or_null(data)?;
        let args = [source, target, kind, flags, data];
        self.script.call(libc::SYS_mount, &args, libc::ENOENT);
        Ok(())
    }

    fn text_or_null(&mut self, text: &str) -> anyhow::Result<u64> {
        if text.is_empty() {
            return Ok(0);
        }
        Ok(self.script.text(&CString::new(text)?))
    }

    /// Binds `source` at `place` of the root. The `flags` need a second call.
    fn bind(&mut self, source: &Path, place: &Path, flags: u64) -> anyhow::Result<()> {
        let target = self.root.join(place);
        self.mount(source, &target, "", libc::MS_BIND, "")?;
        self.mount(
            "",
            &target,
            "",
            libc::MS_REMOUNT | libc::MS_BIND | flags,
            "",
        )
    }

    fn host(&mut self) -> anyhow::Result<()> {
        let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;
        for path in HOST_DIRS.into_iter().filter(|path| is_shown(path)) {
            self.bind(&Path::new("/").join(path), Path::new(path), flags)?;
        }
        let dev = self.root.join("dev");
        let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NOEXEC;
        self.bind(&dev, Path::new("dev"), flags)?;
        let sys = self.root.join("sys");
        self.mount("sysfs", &sys, "sysfs", PLAIN | libc::MS_RDONLY, "")?;
        let empty = self.root.join("var/empty");
        for name in SYS_MASKED {
            self.mount(&empty, &sys.join(name), "", libc::MS_BIND, "")?;
        }
        Ok(())
    }

    fn proc(&mut self) -> anyhow::Result<()> {
        let proc = self.root.join("proc");
        self.mount("proc", &proc, "proc", PLAIN, "")?;
        let flags = PLAIN | libc::MS_RDONLY;
        for name in PROC_READ_ONLY {
            let path = proc.join(name);
            self.bind(&path, &path, flags)?;
        }
        let null = self.root.join("dev/null");
        for name in PROC_MASKED_FILES {
            self.mount(&null, &proc.join(name), "", libc::MS_BIND, "")?;
        }
        let empty = self.root.join("var/empty");
        for name in PROC_MASKED_DIRS {
            self.mount(&empty, &proc.join(name), "", libc::MS_BIND, "")?;
        }
        Ok(())
    }

    fn shared(&mut self) -> anyhow::Result<()> {
        let at = |path: &str| self.root.join(path);
        let (pts, shm, mqueue, run) = (at("dev/pts"), at("dev/shm"), at("dev/mqueue"), at("run"));
        let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
        let options = "newinstance,ptmxmode=0666,mode=0620,gid=5";
        self.mount("devpts", &pts, "devpts", flags, options)?;
        let options = "mode=1777,size=64m";
        self.mount("shm", &shm, "tmpfs", PLAIN, options)?;
        self.mount("mqueue", &mqueue, "mqueue", PLAIN, "")?;
        self.mount("run", &run, "tmpfs", PLAIN, options)
    }

    /// Adds the calls that change to the new root, detach the old one, and set the host name.
    fn enter(&mut self) -> anyhow::Result<()> {
        let root = self.script.path(self.root)?;
        self.script.call(libc::SYS_chdir, &[root], 0);
        let here = self.script.text(c".");
        self.script.call(libc::SYS_pivot_root, &[here, here], 0);
        let detach = libc::MNT_DETACH.unsigned_abs().into();
        self.script.call(libc::SYS_umount2, &[here, detach], 0);
        let slash = self.script.text(c"/");
        self.script.call(libc::SYS_chdir, &[slash], 0);
        let name = self.script.text(c"main-bare");
        self.script.call(libc::SYS_sethostname, &[name, 9], 0);
        Ok(())
    }
}
