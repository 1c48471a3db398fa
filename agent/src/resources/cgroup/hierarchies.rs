//! The hierarchies of this host, and the groups of this process in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::{file, memory};

/// If the agent is already in this leaf, the tree's parent is one level up. A service manager may start it there
/// (`DelegateSubgroup=agent`), or an earlier agent made the leaf.
pub(crate) const AGENT_LEAF: &str = "agent";

/// The hierarchy that a controller is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerMode {
    /// The v2 hierarchy, which offers the controller to the agent's own group.
    V2,
    /// A v1 hierarchy.
    V1,
    /// No usable hierarchy: the controller is disabled, or not delegated to the agent's own group.
    Absent,
}

impl ControllerMode {
    /// The name in attributes: `v2`, `v1`, `absent`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V1 => "v1",
            Self::Absent => "absent",
        }
    }
}

/// The kind of cgroup host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupMode {
    /// Only v2.
    V2,
    /// A v2 hierarchy together with v1 hierarchies that have controllers.
    Hybrid,
    /// Only v1. Tasks cannot run, because they are identified, counted and killed by v2.
    V1,
}

impl CgroupMode {
    /// The name in attributes: `v2`, `hybrid`, `v1`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::Hybrid => "hybrid",
            Self::V1 => "v1",
        }
    }
}

/// The reason why the host's hierarchies could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum ProbeCgroupError {
    /// A file below /proc could not be read.
    #[error("read {path}; is /proc mounted?")]
    Read {
        path: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    #[error("no cgroup hierarchy is mounted; mount one with: mount -t cgroup2 none /sys/fs/cgroup")]
    NoHierarchy,
}

/// One mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountedHierarchy {
    pub(crate) mount: PathBuf,
    /// The agent's own group, relative to the mount; empty for the root.
    pub(crate) own: PathBuf,
}

impl MountedHierarchy {
    /// The directory in which the tree's root is made.
    pub(crate) fn base(&self) -> PathBuf {
        let leaf = self.own.file_name().is_some_and(|name| name == AGENT_LEAF);
        let own = if leaf {
            self.own.parent().unwrap_or(Path::new(""))
        } else {
            &self.own
        };
        self.mount.join(own)
    }

    /// The directory of the agent's own group.
    pub(crate) fn own_dir(&self) -> PathBuf {
        self.mount.join(&self.own)
    }
}

/// The hierarchies of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchies {
    v2: Option<MountedHierarchy>,
    /// Controllers that the v2 hierarchy offers to the agent's own group.
    v2_offers: Vec<String>,
    v1: BTreeMap<Controller, MountedHierarchy>,
}

impl Hierarchies {
    /// Reads this process's mounts and cgroups.
    ///
    /// # Errors
    ///
    /// [`ProbeCgroupError`].
    pub fn probe() -> Result<Self, ProbeCgroupError> {
        let read = |path| {
            fs::read_to_string(path).map_err(|source| ProbeCgroupError::Read { path, source })
        };
        let mut this = Self::parse(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        if this.v2.is_none() && this.v1.is_empty() {
            return Err(ProbeCgroupError::NoHierarchy);
        }
        if let Some(v2) = &this.v2 {
            let offers = file::read(&v2.base(), "cgroup.controllers").unwrap_or_default();
            this.v2_offers = offers.split_whitespace().map(str::to_owned).collect();
        }
        Ok(this)
    }

    fn parse(mountinfo: &str, cgroup: &str) -> Self {
        let own = own_groups(cgroup);
        let mut this = Self {
            v2: None,
            v2_offers: Vec::new(),
            v1: BTreeMap::new(),
        };
        for mount in mountinfo.lines().filter_map(Mount::parse) {
            match mount.kind {
                // A hierarchy can be mounted more than once; the first mount is the usual one.
                "cgroup2" if this.v2.is_none() => this.v2 = own.get("").map(|own| mount.place(own)),
                "cgroup" => {
                    for controller in Controller::ALL {
                        let name = controller.v1_name();
                        let bound = mount.options.split(',').any(|option| option == name);
                        if let (true, Some(own)) = (bound, own.get(name)) {
                            this.v1
                                .entry(controller)
                                .or_insert_with(|| mount.place(own));
                        }
                    }
                }
                _ => {}
            }
        }
        this
    }

    /// The kind of this host.
    pub fn mode(&self) -> CgroupMode {
        match (&self.v2, self.v1.is_empty()) {
            (Some(_), true) => CgroupMode::V2,
            (Some(_), false) => CgroupMode::Hybrid,
            (None, _) => CgroupMode::V1,
        }
    }

    /// The hierarchy that `controller` is bound to.
    pub fn controller(&self, controller: Controller) -> ControllerMode {
        if self.v1.contains_key(&controller) {
            ControllerMode::V1
        } else if self
            .v2_offers
            .iter()
            .any(|offer| offer == controller.v2_name())
        {
            ControllerMode::V2
        } else {
            ControllerMode::Absent
        }
    }

    /// The reason why memory reserved by tasks (`memory.low`) does not hold, if a group above the tree has no
    /// reservation.
    pub fn unreserved(&self) -> Option<String> {
        let v2 = self.v2.as_ref();
        let v2 = v2.filter(|_| self.controller(Controller::Memory) == ControllerMode::V2)?;
        let base = v2.base();
        let dir = memory::unreserved(&base)?.display();
        Some(format!(
            "memory that tasks have reserved (`memory` below `memory_max`) is not kept when the machine runs out: {dir} above \
             them reserves none: give it as much as tasks may reserve, and each group above it (systemd: MemoryLow= in \
             the service and in its slices; else write it to {dir}/memory.low)"
        ))
    }

    /// The node's attributes: `cgroup.mode` and one for each controller.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        let controllers = Controller::ALL.map(|controller| {
            (
                format!("cgroup.{controller}"),
                self.controller(controller).name().to_owned(),
            )
        });
        let mode = ("cgroup.mode".to_owned(), self.mode().name().to_owned());
        controllers.into_iter().chain([mode]).collect()
    }

    /// The mount points of the hierarchies, each once.
    pub(crate) fn mounts(&self) -> BTreeSet<&Path> {
        let places = self.v2.iter().chain(self.v1.values());
        places.map(|place| place.mount.as_path()).collect()
    }

    /// The v2 hierarchy.
    pub(crate) fn v2(&self) -> Option<&MountedHierarchy> {
        self.v2.as_ref()
    }

    /// The v1 hierarchy that `controller` is bound to.
    pub(crate) fn v1(&self, controller: Controller) -> Option<&MountedHierarchy> {
        self.v1.get(&controller)
    }
}

/// The used fields of a line of mountinfo (proc_pid_mountinfo(5)).
struct Mount<'a> {
    root: String,
    point: String,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (unescape(mount.next()?), unescape(mount.next()?));
        let mut file_system = file_system.split(' ');
        let kind = file_system.next()?;
        Some(Self {
            root,
            point,
            kind,
            options: file_system.nth(1)?,
        })
    }

    /// The group `own` below this mount, which may show only a part of the hierarchy.
    fn place(&self, own: &str) -> MountedHierarchy {
        let own = Path::new(own);
        let shown = own
            .strip_prefix(&self.root)
            .or_else(|_| own.strip_prefix("/"));
        MountedHierarchy {
            mount: PathBuf::from(&self.point),
            own: shown.unwrap_or(Path::new("")).into(),
        }
    }
}

/// The agent's own group path by controller, from lines `id:controllers:path`. v2 has no controller name.
fn own_groups(cgroup: &str) -> BTreeMap<&str, &str> {
    let lines = cgroup.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    lines
        .flat_map(|(names, path)| names.split(',').map(move |name| (name, path)))
        .collect()
}

/// Decodes the three octal digits that mountinfo writes for space, tab, newline and backslash.
fn unescape(field: &str) -> String {
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    escapes
        .iter()
        .fold(field.to_owned(), |text, (code, plain)| {
            text.replace(code, plain)
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{CgroupMode, Controller, ControllerMode, Hierarchies, MountedHierarchy};

    const HYBRID: &str = "\
31 23 0:28 / /cg rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /cg/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /cg/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /cg/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /cg/unified rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
42 31 0:38 / /elsewhere rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn hybrid_host_is_detected_by_its_mounts() {
        let own = "9:name=systemd:/\n4:memory:/pool/a b\n1:cpu,cpuacct:/\n0::/x/agent\n";

        let found = Hierarchies::parse(HYBRID, own);

        assert_eq!(found.mode(), CgroupMode::Hybrid);
        assert_eq!(found.controller(Controller::Cpu), ControllerMode::V1);
        assert_eq!(found.controller(Controller::Cpuacct), ControllerMode::V1);
        assert_eq!(found.controller(Controller::Pids), ControllerMode::Absent);
        let memory = found.v1(Controller::Memory).unwrap();
        assert_eq!(memory.base(), Path::new("/cg/memory/pool/a b"));
        assert_eq!(
            found.v2().unwrap().own_dir(),
            Path::new("/cg/unified/x/agent")
        );
        assert_eq!(found.v2().unwrap().base(), Path::new("/cg/unified/x"));
    }

    #[test]
    fn pure_v2_host_has_its_v2_controllers() {
        let mounts = "31 23 0:28 / /cg rw - cgroup2 cgroup2 rw,memory_recursiveprot\n";
        let mut found = Hierarchies::parse(mounts, "0::/\n");
        found.v2_offers = vec!["cpu".into(), "memory".into()];

        let attributes = found.attributes();

        let expected = [
            ("cgroup.cpu", "v2"),
            ("cgroup.cpuacct", "v2"),
            ("cgroup.cpuset", "absent"),
            ("cgroup.io", "absent"),
            ("cgroup.memory", "v2"),
            ("cgroup.mode", "v2"),
            ("cgroup.pids", "absent"),
        ];
        let found: Vec<_> = attributes
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    /// A container that sees only a part of the hierarchy, mounted on a path with a space.
    #[test]
    fn subtree_mount_becomes_visible_cgroup_root() {
        let mounts = "31 23 0:28 /pod/c /my\\040cg rw - cgroup2 cgroup2 rw\n";

        let found = Hierarchies::parse(mounts, "0::/pod/c/inner\n");

        let expected = MountedHierarchy {
            mount: "/my cg".into(),
            own: "inner".into(),
        };
        assert_eq!(found.v2(), Some(&expected));
    }
}
