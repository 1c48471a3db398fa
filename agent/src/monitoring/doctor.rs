//! The features of this machine that the agent can use, and how to get the rest.
//!
//! Looking changes nothing: nothing is mounted, loaded or created.

use std::path::Path;

use muster_domain::error_chain::chain;
use muster_link::private;

use crate::bpf::{Bpf, FindObjectError, Object, SYSTEM_BPFFS, VMLINUX, is_bpffs, own_mount};
use crate::monitoring::fingerprint::kernel_release;
use crate::resources::cgroup::{CgroupMode, Controller, ControllerMode, Hierarchies};
use crate::ring::{Engine, LogRing, RingConfig};

/// The oldest kernel that everything is tested on.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// Entries of a data directory that tasks write to, as their users. A private directory is above them, unless a task
/// that sees the host's files has to pass.
const DIRS_OF_TASKS: [&str; 3] = ["alloc", "bpf", "roots"];

/// The availability of one feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Ok,
    /// The agent works without the feature, or with less of it.
    Degraded,
    /// The agent cannot run without it.
    Missing,
}

/// One checked feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the check, such as `cgroup.memory`.
    pub name: String,
    /// The availability of the feature.
    pub status: Status,
    /// The result of the check.
    pub detail: String,
    /// The remedy; empty where nothing is to be done.
    pub fix: String,
}

impl Finding {
    fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            status: Status::Ok,
            detail: detail.into(),
            fix: String::new(),
        }
    }

    fn degraded(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            status: Status::Degraded,
            fix: fix.into(),
            ..Self::ok(name, detail)
        }
    }

    fn missing(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            status: Status::Missing,
            fix: fix.into(),
            ..Self::ok(name, detail)
        }
    }
}

/// Checks all features that an agent on `data_dir` would need, in the order in which it needs them.
pub fn findings(data_dir: &Path) -> Vec<Finding> {
    let mut findings = vec![
        root(nix::unistd::geteuid().is_root()),
        kernel(&kernel_release()),
    ];
    findings.push(data_directory(data_dir));
    findings.extend(private_files("agent's files", data_dir, &DIRS_OF_TASKS));
    match Hierarchies::probe() {
        Ok(hierarchies) => {
            findings.push(cgroup_mode(hierarchies.mode()));
            findings.extend(Controller::ALL.map(|c| controller(c, hierarchies.controller(c))));
        }
        Err(error) => findings.push(Finding::missing(
            "cgroup.mode",
            chain(&error),
            "mount -t cgroup2 none DIRECTORY",
        )),
    }
    findings.extend([
        ebpf_object(Bpf::object()),
        kernel_types(),
        bpffs(data_dir),
        log_engine(),
    ]);
    findings
}

fn root(is_root: bool) -> Finding {
    if is_root {
        Finding::ok("root", "the agent may use cgroups, eBPF and other users")
    } else {
        Finding::missing(
            "root",
            "this user is not root",
            "run the agent with sudo, or from a system service",
        )
    }
}

fn kernel(release: &str) -> Finding {
    let detail = format!("Linux {release}");
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= KERNEL_MIN {
        Finding::ok("kernel", detail)
    } else {
        let (major, minor) = KERNEL_MIN;
        Finding::degraded(
            "kernel",
            detail,
            format!("Linux {major}.{minor} or newer is tested; upgrade the kernel"),
        )
    }
}

fn data_directory(data_dir: &Path) -> Finding {
    let shown = data_dir.display();
    let nearest = data_dir
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    let usage = crate::monitoring::fingerprint::disk_usage(nearest);
    let detail = format!("{shown}, {} MiB free", usage.available_bytes >> 20);
    if rustix::fs::access(nearest, rustix::fs::Access::WRITE_OK).is_err() {
        return Finding::missing(
            "data directory",
            format!("{shown} cannot be written"),
            "give another --data-dir",
        );
    }
    Finding::ok("data directory", detail)
}

/// Checks whether other users may read or change the files that a process keeps in `data_dir`, except entries named
/// in `skipped`. `None` if there is no such directory.
#[must_use]
pub fn private_files(name: &str, data_dir: &Path, skipped: &[&str]) -> Option<Finding> {
    let found = match private::exposed(data_dir, skipped) {
        Ok(found) => found,
        Err(_) if !data_dir.exists() => return None,
        Err(error) => {
            let detail = format!("{} cannot be read: {error}", data_dir.display());
            return Some(Finding::degraded(name, detail, "run this command as root"));
        }
    };
    if found.is_empty() {
        let detail = format!("no other user reads {}", data_dir.display());
        return Some(Finding::ok(name, detail));
    }
    let shown = found
        .iter()
        .map(|entry| format!("{} ({:o})", entry.path.display(), entry.mode));
    let detail = format!(
        "other users may read or change {}; jobs carry secrets",
        shown.collect::<Vec<_>>().join(", ")
    );
    let paths = found.iter().map(|entry| entry.path.display().to_string());
    let fix = format!("chmod go-rwx {}", paths.collect::<Vec<_>>().join(" "));
    Some(Finding::degraded(name, detail, fix))
}

fn cgroup_mode(mode: CgroupMode) -> Finding {
    match mode {
        CgroupMode::V2 => Finding::ok("cgroup.mode", "v2"),
        CgroupMode::Hybrid => Finding::degraded(
            "cgroup.mode",
            "hybrid: tasks are identified and killed by v2, and limited by v1 where a controller is bound there",
            "boot with systemd.unified_cgroup_hierarchy=1",
        ),
        CgroupMode::V1 => Finding::missing(
            "cgroup.mode",
            "v1 alone",
            "boot with systemd.unified_cgroup_hierarchy=1, or: mount -t cgroup2 none DIRECTORY",
        ),
    }
}

fn controller(controller: Controller, mode: ControllerMode) -> Finding {
    let name = format!("cgroup.{controller}");
    match mode {
        ControllerMode::V2 => Finding::ok(&name, "v2"),
        ControllerMode::V1 => Finding::ok(&name, "v1"),
        ControllerMode::Absent => Finding::degraded(
            &name,
            "absent: limits of this kind are not enforced",
            "have it delegated (systemd: Delegate=yes), or check cgroup_disable= on the kernel's command line",
        ),
    }
}

fn ebpf_object(object: Result<&Object, &FindObjectError>) -> Finding {
    match object {
        Ok(object) => Finding::ok(
            "ebpf.object",
            format!("{:016x}, {}", object.hash(), object.source()),
        ),
        Err(error) => Finding::degraded(
            "ebpf.object",
            format!(
                "{error}; without it there are no counters, and exit codes of tasks that end while no agent runs are lost"
            ),
            error.fix(),
        ),
    }
}

fn kernel_types() -> Finding {
    if Path::new(VMLINUX).exists() {
        Finding::ok("ebpf.btf", VMLINUX)
    } else {
        Finding::degraded(
            "ebpf.btf",
            format!("{VMLINUX} is not there: eBPF programs cannot be loaded"),
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y",
        )
    }
}

fn bpffs(data_dir: &Path) -> Finding {
    if is_bpffs(Path::new(SYSTEM_BPFFS)) {
        return Finding::ok("ebpf.bpffs", SYSTEM_BPFFS);
    }
    let own = own_mount(data_dir);
    let detail = if is_bpffs(&own) {
        "mounted by the agent at"
    } else {
        "the agent will mount one at"
    };
    Finding::ok(
        "ebpf.bpffs",
        format!("{SYSTEM_BPFFS} is none; {detail} {}", own.display()),
    )
}

fn log_engine() -> Finding {
    match LogRing::start(RingConfig::from_env()) {
        Ok(ring) => {
            let engine = ring.engine().clone();
            ring.stop();
            match engine {
                Engine::IoUring => Finding::ok("io_uring", "logs are drained by io_uring"),
                Engine::Epoll { reason } => Finding::degraded(
                    "io_uring",
                    format!("logs are drained by epoll: {reason}"),
                    "sysctl kernel.io_uring_disabled=0",
                ),
            }
        }
        Err(error) => Finding::missing(
            "io_uring",
            chain(&error),
            "raise the limit of open files (ulimit -n)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_requirements_have_a_fix() {
        let all = [
            root(false),
            kernel("5.10.0-27-amd64"),
            cgroup_mode(CgroupMode::V1),
            cgroup_mode(CgroupMode::Hybrid),
            controller(Controller::Memory, ControllerMode::Absent),
            ebpf_object(Err(&FindObjectError::NotFound {
                searched: vec!["/usr/bin/muster-ebpf.o".into()],
            })),
        ];

        for finding in all {
            assert!(
                finding.status != Status::Ok && !finding.fix.is_empty(),
                "{finding:?}"
            );
        }
    }

    #[test]
    fn missing_object_names_searched_paths() {
        let searched = ["/usr/bin/muster-ebpf.o", "/src/target/ebpf/muster-ebpf.o"];

        let finding = ebpf_object(Err(&FindObjectError::NotFound {
            searched: searched.map(Into::into).into(),
        }));

        for path in searched {
            assert!(finding.detail.contains(path), "{finding:?}");
        }
        assert!(
            finding.fix.contains("cargo xtask build-ebpf"),
            "{finding:?}"
        );
    }

    #[test]
    fn kernels_are_compared_as_numbers() {
        assert_eq!(kernel("6.12.1").status, Status::Ok);
        assert_eq!(kernel("6.1.0-44-cloud-amd64").status, Status::Ok);
        assert_eq!(kernel("6.0.9").status, Status::Degraded);
    }

    #[test]
    fn looking_creates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let planned = dir.path().join("data");

        let found = findings(&planned);

        assert!(found.iter().any(|finding| finding.name == "cgroup.memory"));
        assert!(!planned.exists());
    }
}
