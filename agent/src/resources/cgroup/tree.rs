//! The node's own tree, which the first agent makes and each later agent adopts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::cpuset;
use crate::resources::cgroup::file::{self, CgroupFileError};
use crate::resources::cgroup::hierarchies::{
    AGENT_LEAF, ControllerMode, Hierarchies, MountedHierarchy,
};
use crate::resources::cgroup::limits::NAME_BYTES_MAX;
use crate::resources::cgroup::remove::{self, RemoveCgroupError};
use crate::resources::cgroup::resources::{ApplyLimitError, Limits, Unenforced};
use crate::resources::cgroup::subgroups::children;

/// The leaf for driver processes. No allocation has this id.
const DRIVERS: &str = "drivers";

/// Groups between the tree's root and a task's own: the allocation, and the task itself.
const LEVELS_TO_TASK: usize = 2;

/// The names of a task's groups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskName {
    pub alloc: String,
    pub task: String,
}

/// The root of the groups that this tree has for a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ControllerRoot {
    /// The tree's root in that hierarchy.
    pub(crate) root: PathBuf,
    pub(crate) v2: bool,
}

/// The record of the tree that an agent stores for the next agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTreeRecord {
    name: String,
    v2_root: PathBuf,
    task_level: Option<u32>,
    bound: BTreeMap<Controller, ControllerRoot>,
    /// The root for tasks with reserved cores. It is made for the first such task.
    #[serde(default)]
    cpuset: Option<ControllerRoot>,
}

/// The tree of this node. Clones share it: each task has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTree {
    record: Arc<NodeTreeRecord>,
    unenforced: Arc<[Unenforced]>,
}

/// The reason why the tree could not be made or adopted.
#[derive(Debug, thiserror::Error)]
pub enum NodeTreeError {
    /// The name is not allowed for a group.
    #[error(
        "cgroup name {name:?} is empty, too long, reserved, or has a character that no name has"
    )]
    Name { name: String },
    /// There is no v2 hierarchy.
    #[error(
        "no cgroup v2 hierarchy is mounted, and tasks are identified and killed by it; mount one with: mount -t cgroup2 none DIRECTORY"
    )]
    NoV2,
    /// A group could not be made.
    #[error("make cgroup {dir}; the agent must be root, or own this part of the hierarchy")]
    Make {
        dir: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A file of a group could not be read or written.
    #[error(transparent)]
    File(#[from] CgroupFileError),
    /// The recorded tree does not exist.
    #[error("cgroup {dir} of the recorded tree is gone: its tasks are, too; make the tree again")]
    Gone {
        /// The first missing group of the tree.
        dir: PathBuf,
    },
}

/// The reason why a task still runs on the reserved cores of another.
#[derive(Debug, thiserror::Error)]
enum ShareCoresError {
    #[error(transparent)]
    Make(#[from] NodeTreeError),
    #[error(transparent)]
    File(#[from] CgroupFileError),
    #[error(transparent)]
    Limit(#[from] ApplyLimitError),
}

impl NodeTree {
    /// Makes the tree `name` below this process's own groups, or adopts an existing one.
    ///
    /// On a pure v2 host it may first move this process into a leaf next to the tree, because a group with processes
    /// cannot pass controllers on. Unavailable controllers are listed in [`Self::unenforced`].
    ///
    /// # Errors
    ///
    /// [`NodeTreeError`].
    pub fn create(hierarchies: &Hierarchies, name: &str) -> Result<Self, NodeTreeError> {
        check_name(name)?;
        let v2 = hierarchies.v2().ok_or(NodeTreeError::NoV2)?;
        let mut unenforced = Vec::new();
        let offered = |c: &Controller| hierarchies.controller(*c) == ControllerMode::V2;
        let wanted: Vec<Controller> = Controller::ALL
            .into_iter()
            .filter(|c| *c != Controller::Cpuacct && offered(c))
            .collect();
        if !wanted.is_empty() {
            move_agent_to_leaf(v2)?;
        }
        let enabled = enable_controllers(&v2.base(), &wanted, &mut unenforced);
        let v2_root = v2.base().join(name);
        make(&v2_root)?;
        for controller in &enabled {
            enable(&v2_root, *controller)?;
        }
        let mut bound = BTreeMap::new();
        for controller in Controller::USED {
            if enabled.contains(&controller) {
                bound.insert(
                    controller,
                    ControllerRoot {
                        root: v2_root.clone(),
                        v2: true,
                    },
                );
            } else if let Some(place) = hierarchies.v1(controller) {
                let root = place.base().join(name);
                make(&root)?;
                bound.insert(controller, ControllerRoot { root, v2: false });
            } else if !wanted.contains(&controller) {
                unenforced.push(absent(controller, v2));
            }
        }
        bound.extend(io_in_v1(hierarchies, name).map(|io| (Controller::Io, io)));
        let cpuset = cpuset_place(hierarchies, name, &v2_root, &enabled);
        let task_level = task_level(v2);
        let record = NodeTreeRecord {
            name: name.into(),
            v2_root,
            task_level,
            bound,
            cpuset,
        };
        let tree = Self {
            record: record.into(),
            unenforced: unenforced.into(),
        };
        for root in tree.roots() {
            make(&root.join(DRIVERS))?;
        }
        Ok(tree)
    }

    /// Adopts the tree that an earlier agent recorded. This process's own groups do not matter.
    ///
    /// # Errors
    ///
    /// [`NodeTreeError::Gone`].
    pub fn open(record: NodeTreeRecord) -> Result<Self, NodeTreeError> {
        let lost = |controller: &Controller| !record.bound.contains_key(controller);
        let unenforced = Controller::USED
            .into_iter()
            .filter(lost)
            .map(|controller| Unenforced {
                controller,
                reason: format!("{controller} was not to be had when the node's tree was made"),
            });
        let tree = Self {
            unenforced: unenforced.collect(),
            record: Arc::new(record.clone()),
        };
        match tree.roots().into_iter().find(|root| !root.is_dir()) {
            Some(dir) => Err(NodeTreeError::Gone { dir: dir.into() }),
            None => {
                // An earlier removal of empty groups may have removed the drivers' own group.
                for root in tree.roots() {
                    make(&root.join(DRIVERS))?;
                }
                Ok(tree)
            }
        }
    }

    /// The record to store for [`Self::open`].
    pub fn record(&self) -> &NodeTreeRecord {
        &self.record
    }

    /// The tree's name.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// The tree's root in the v2 hierarchy, to which programs are attached.
    pub fn v2_dir(&self) -> &Path {
        &self.record.v2_root
    }

    /// The level of tasks' own groups in the v2 hierarchy, as `bpf_get_current_ancestor_cgroup_id`
    /// takes it. `None` in a cgroup namespace, where the levels above are hidden.
    pub fn task_level(&self) -> Option<u32> {
        self.record.task_level
    }

    /// Limits that no task of this node can have.
    pub fn unenforced(&self) -> &[Unenforced] {
        &self.unenforced
    }

    /// The tasks that have a group in the tree, regardless of its creator.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`].
    pub fn tasks(&self) -> Result<Vec<TaskName>, CgroupFileError> {
        let mut tasks = Vec::new();
        for alloc in children(self.v2_dir())? {
            if alloc.ends_with(DRIVERS) {
                continue;
            }
            for task in children(&alloc)? {
                tasks.extend(
                    name_of(&alloc)
                        .zip(name_of(&task))
                        .map(|(alloc, task)| TaskName { alloc, task }),
                );
            }
        }
        Ok(tasks)
    }

    /// Whether the task has a group in the tree.
    pub(crate) fn has(&self, task: &TaskName) -> bool {
        let dir = self.v2_dir().join(&task.alloc).join(&task.task);
        dir.is_dir()
    }

    /// The directory for driver processes.
    pub fn drivers_dir(&self) -> PathBuf {
        self.v2_dir().join(DRIVERS)
    }

    /// The directory for driver processes in the hierarchy of which the tree's root is `root`.
    pub(crate) fn drivers_in(root: &Path) -> PathBuf {
        root.join(DRIVERS)
    }

    /// Moves a driver process to a group that is not stopped with the agent's own group.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`]: the process is gone, or does not belong to this agent.
    pub fn add_driver(&self, pid: u32) -> Result<(), CgroupFileError> {
        for root in self.roots() {
            file::write(&root.join(DRIVERS), "cgroup.procs", &pid.to_string())?;
        }
        Ok(())
    }

    /// Removes the tree, including the drivers' leaf and leftovers of tasks. All processes must be gone.
    ///
    /// # Errors
    ///
    /// [`RemoveCgroupError`]; all other groups are removed.
    pub async fn remove(&self) -> Result<(), RemoveCgroupError> {
        let mut outcome = Ok(());
        let cpuset = self.cpuset().map(|bound| bound.root.as_path());
        for root in self.roots().into_iter().chain(cpuset) {
            outcome = outcome.and(remove::depth_first(root).await);
        }
        outcome
    }

    /// The tree's root in each hierarchy, v2 first.
    pub(crate) fn roots(&self) -> Vec<&Path> {
        let v1 = self.record.bound.values().map(|bound| bound.root.as_path());
        let v1: BTreeSet<&Path> = v1.filter(|root| *root != self.v2_dir()).collect();
        [self.v2_dir()].into_iter().chain(v1).collect()
    }

    /// Whether `dir` is the tree's root in a hierarchy.
    pub(crate) fn is_root(&self, dir: &Path) -> bool {
        let cpuset = self.cpuset().map(|bound| bound.root.as_path());
        self.roots().contains(&dir) || cpuset == Some(dir)
    }

    pub(crate) fn bound(&self) -> &BTreeMap<Controller, ControllerRoot> {
        &self.record.bound
    }

    /// The root of the groups of tasks with reserved cores.
    pub(crate) fn cpuset(&self) -> Option<&ControllerRoot> {
        self.record.cpuset.as_ref()
    }

    /// Cores that tasks may reserve; none if the kernel cannot separate them.
    pub(crate) fn core_ids(&self) -> Vec<u16> {
        let Some(ControllerRoot { root, v2 }) = self.cpuset() else {
            return Vec::new();
        };
        // The tree's own v1 group may not exist yet.
        let above = root.parent().unwrap_or(root);
        cpuset::available(if *v2 { root } else { above }, *v2)
    }

    /// Moves the running tasks that `shares` selects to `cores`. Failures are reported to the operator.
    pub(crate) fn share_cores(&self, shares: impl Fn(&TaskName) -> bool, cores: &[u16]) {
        let tasks = self.tasks().unwrap_or_else(|error| {
            tracing::error!(%error, "tasks are not kept off the cores of others");
            Vec::new()
        });
        for task in tasks.iter().filter(|task| shares(task)) {
            if let Err(error) = self.move_to(task, cores) {
                tracing::warn!(alloc_id = task.alloc, task = task.task, %error,
                    "a task is not kept off the cores of others");
            }
        }
    }

    fn move_to(&self, task: &TaskName, cores: &[u16]) -> Result<(), ShareCoresError> {
        let Some(ControllerRoot { root, v2 }) = self.cpuset() else {
            return Ok(());
        };
        let dir = root.join(&task.alloc).join(&task.task);
        let all = cores.len() == self.core_ids().len();
        if all && !dir.join("cpuset.cpus").exists() {
            return Ok(());
        }
        self.make_cpuset(&task.alloc, &task.task)?;
        let limits = Limits {
            cores: cores.to_vec(),
            ..Limits::default()
        };
        cpuset::apply(&dir, &limits)?;
        if !v2 {
            let own = self.v2_dir().join(&task.alloc).join(&task.task);
            cpuset::move_processes(&dir, &own)?;
            if !own.exists() {
                // The task ended meanwhile, and no other code will remove the group.
                drop(remove::rmdir(&dir));
                drop(remove::rmdir(&root.join(&task.alloc)));
            }
        }
        Ok(())
    }

    /// Makes the group of a task with reserved cores in a v1 hierarchy, or enables the controller for the allocation's
    /// group in v2.
    pub(crate) fn make_cpuset(&self, alloc: &str, task: &str) -> Result<(), NodeTreeError> {
        let Some(ControllerRoot { root, v2 }) = self.cpuset() else {
            return Ok(());
        };
        let alloc_dir = root.join(alloc);
        if *v2 {
            return Ok(enable(&alloc_dir, Controller::Cpuset)?);
        }
        for dir in [root.clone(), alloc_dir.clone(), alloc_dir.join(task)] {
            make(&dir)?;
            cpuset::copy_parent_cpuset(&dir)?;
        }
        Ok(())
    }

    /// Makes the group of an allocation in each hierarchy.
    pub(crate) fn make_alloc(&self, alloc: &str) -> Result<(), NodeTreeError> {
        check_name(alloc)?;
        for root in self.roots() {
            make(&root.join(alloc))?;
        }
        for (controller, bound) in self.bound() {
            if bound.v2 {
                enable(&self.v2_dir().join(alloc), *controller)?;
            }
        }
        // No limit needs this. With the controller the kernel attributes later write-backs to the task.
        let alloc_dir = self.v2_dir().join(alloc);
        let offered = file::read(&alloc_dir, "cgroup.controllers")?;
        if offered
            .split_whitespace()
            .any(|name| name == Controller::Io.name())
        {
            enable(&alloc_dir, Controller::Io)?;
        }
        Ok(())
    }
}

/// Makes the tree's root in the v1 hierarchy that limits disks. Few tasks request such limits, so a node without that
/// root still runs the other tasks.
fn io_in_v1(hierarchies: &Hierarchies, name: &str) -> Option<ControllerRoot> {
    let root = hierarchies.v1(Controller::Io)?.base().join(name);
    match make(&root) {
        Ok(()) => Some(ControllerRoot { root, v2: false }),
        Err(error) => {
            tracing::warn!(%error, "tasks that limit disks are refused");
            None
        }
    }
}

fn cpuset_place(
    hierarchies: &Hierarchies,
    name: &str,
    v2_root: &Path,
    enabled: &[Controller],
) -> Option<ControllerRoot> {
    if enabled.contains(&Controller::Cpuset) {
        let root = v2_root.to_owned();
        return Some(ControllerRoot { root, v2: true });
    }
    let place = hierarchies.v1(Controller::Cpuset)?;
    let root = place.base().join(name);
    Some(ControllerRoot { root, v2: false })
}

/// Refuses names that cannot be one component of a path, and reserved names.
pub(crate) fn check_name(name: &str) -> Result<(), NodeTreeError> {
    let reserved = [".", "..", DRIVERS, AGENT_LEAF].contains(&name);
    let long = name.is_empty() || name.len() > NAME_BYTES_MAX;
    if reserved || long || name.contains('/') || name.contains(|c: char| c.is_control()) {
        return Err(NodeTreeError::Name { name: name.into() });
    }
    Ok(())
}

/// Makes the group `dir`, or adopts an existing one.
pub(crate) fn make(dir: &Path) -> Result<(), NodeTreeError> {
    match fs::create_dir(dir) {
        Ok(()) => Ok(()),
        // The name may belong to a file of the kernel, as for a task called `cpu.stat`. So an existing directory is
        // required.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(source) => Err(NodeTreeError::Make {
            dir: dir.into(),
            source,
        }),
    }
}

/// Enables `controller` for the children of the v2 group `dir`.
fn enable(dir: &Path, controller: Controller) -> Result<(), CgroupFileError> {
    file::write(dir, "cgroup.subtree_control", &format!("+{controller}"))
}

/// Moves this process out of the group that the tree goes into. At the root of the hierarchy this is not needed,
/// because only the root may have processes and also children with controllers.
fn move_agent_to_leaf(v2: &MountedHierarchy) -> Result<(), NodeTreeError> {
    let (base, own) = (v2.base(), v2.own_dir());
    if base != own || !base.join("cgroup.type").exists() {
        return Ok(());
    }
    let leaf = base.join(AGENT_LEAF);
    make(&leaf)?;
    Ok(file::write(&leaf, "cgroup.procs", "0")?)
}

/// Enables the available controllers of `wanted` in `base`, and adds the others to `lost` with the reason.
fn enable_controllers(
    base: &Path,
    wanted: &[Controller],
    lost: &mut Vec<Unenforced>,
) -> Vec<Controller> {
    let mut enabled = Vec::new();
    for &controller in wanted {
        match enable(base, controller) {
            Ok(()) => enabled.push(controller),
            Err(error) if Controller::USED.contains(&controller) => {
                lost.push(Unenforced {
                    controller,
                    reason: refused(base, controller, &error),
                });
            }
            Err(error) => tracing::info!(%controller, %error, "controller not passed on"),
        }
    }
    enabled
}

fn refused(base: &Path, controller: Controller, error: &CgroupFileError) -> String {
    let others = file::read(base, "cgroup.procs")
        .unwrap_or_default()
        .lines()
        .count();
    let cause = match error {
        CgroupFileError::Write { source, .. } => source.to_string(),
        other => other.to_string(),
    };
    format!(
        "{controller} cannot be passed on below {}: {cause}; {others} processes are in that group: \
         start the agent in a group of its own (systemd: Delegate=yes, DelegateSubgroup=agent)",
        base.display()
    )
}

fn absent(controller: Controller, v2: &MountedHierarchy) -> Unenforced {
    let base = v2.base();
    let reason = format!(
        "{controller} is bound to no v1 hierarchy and not offered to {}: switch it on at boot \
         (cgroup_disable, cgroup_enable) or have it delegated",
        base.display()
    );
    Unenforced { controller, reason }
}

fn task_level(v2: &MountedHierarchy) -> Option<u32> {
    // The root of the hierarchy has no type file; the root of a namespace has one.
    if v2.mount.join("cgroup.type").exists() {
        return None;
    }
    let base = v2.base();
    let above = base.strip_prefix(&v2.mount).ok()?.components().count();
    u32::try_from(above + 1 + LEVELS_TO_TASK).ok()
}

fn name_of(dir: &Path) -> Option<String> {
    dir.file_name()?.to_str().map(str::to_owned)
}
