//! One task's groups.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use muster_domain::resources::IoLimits;
use muster_ebpf_common::group::GroupRow;

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::file::{self, CgroupFileError};
use crate::resources::cgroup::kill::{self, KillError};
use crate::resources::cgroup::limits::{CHECK_PAUSE_MAX, CHECK_PAUSE_MIN};
use crate::resources::cgroup::oom::{self, OomCount};
use crate::resources::cgroup::open_files::{CgroupFileCache, CgroupFileReader, GroupHierarchy};
use crate::resources::cgroup::remove::{self, RemoveCgroupError};
use crate::resources::cgroup::resources::{ApplyLimitError, CorrectedLimit, Limits, Unenforced};
use crate::resources::cgroup::stats::{StallStats, TaskStats};
use crate::resources::cgroup::tree::{self, NodeTree, NodeTreeError, TaskName, check_name};
use crate::resources::cgroup::walked::{self, CgroupRows};
use crate::resources::cgroup::{cpu, cpuset, freeze, io as disks, memory, note, pids, pressure};

/// Most attempts to make the allocation's group while the removal of its last other task removes it.
const MAKE_TRIES_MAX: u32 = 3;

/// A controller's group of this task.
#[derive(Clone, Debug)]
struct Group {
    dir: PathBuf,
    /// The allocation's group above it.
    alloc_dir: PathBuf,
    /// The tree's root above that.
    root: PathBuf,
    v2: bool,
}

impl Group {
    fn new(bound: &tree::ControllerRoot, name: &TaskName) -> Self {
        let alloc_dir = bound.root.join(&name.alloc);
        Self {
            dir: alloc_dir.join(&name.task),
            alloc_dir,
            root: bound.root.clone(),
            v2: bound.v2,
        }
    }
}

/// A task's groups in all hierarchies. Their paths follow from the tree and the name, so a node with thousands of tasks
/// stores no paths for each.
#[derive(Debug)]
pub struct TaskCgroup {
    tree: NodeTree,
    name: TaskName,
    id: u64,
    dir: Arc<Path>,
    /// Whether the task had a group of the cpuset controller when it was opened.
    has_cpuset: bool,
    /// The ids of the task's v1 groups, once they were needed.
    v1_ids: OnceLock<Box<[(Controller, u64)]>>,
    /// The open files that are read repeatedly.
    files: CgroupFileCache,
    /// The last requested limits of its disks; locked during a write.
    io: Mutex<IoLimits>,
    /// Limits that this task lacks in addition to those that every task of the node lacks.
    unenforced: Vec<Unenforced>,
}

/// The rows of one task that a walk found.
struct Rows<'a> {
    v2: &'a GroupRow,
    cpu: Option<&'a GroupRow>,
    memory: Option<&'a GroupRow>,
    pids: Option<&'a GroupRow>,
}

/// The reason why a task's groups could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum CreateTaskCgroupError {
    /// A group could not be made, or its name is not allowed.
    #[error(transparent)]
    Make(#[from] NodeTreeError),
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] CgroupFileError),
    /// A limit could not be set.
    #[error(transparent)]
    Limit(#[from] ApplyLimitError),
    /// A process already runs in the group.
    #[error("{dir} has processes {pids:?} already; the task was not stopped, or not adopted")]
    Occupied {
        dir: PathBuf,
        /// The processes in the group.
        pids: Vec<u32>,
    },
    /// An empty group of that name could not be removed.
    #[error("remove the empty group {dir} of an earlier run")]
    Stale {
        dir: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// There is no such group.
    #[error("{dir} is gone, and the task with it")]
    Gone { dir: PathBuf },
}

/// The reason why a task was not frozen or thawed.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    #[error("ask {dir} to freeze or thaw")]
    Request {
        dir: PathBuf,
        /// The error of cgroups-rs or of the kernel.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The state could not be read.
    #[error(transparent)]
    File(#[from] CgroupFileError),
    /// A process is blocked in the kernel.
    #[error("{dir} did not freeze or thaw in {within:?}: a process is stuck in the kernel")]
    Late {
        dir: PathBuf,
        /// The time that was waited.
        within: Duration,
    },
}

impl TaskCgroup {
    /// Makes the groups of `task` in the allocation `alloc` and sets its limits. Empty groups of an earlier run are
    /// made again, so that their counts begin at zero.
    ///
    /// # Errors
    ///
    /// [`CreateTaskCgroupError`]. The task's groups do not exist then, unless they are occupied.
    pub fn create(
        tree: &NodeTree,
        alloc: &str,
        task: &str,
        limits: &Limits,
    ) -> Result<Self, CreateTaskCgroupError> {
        check_name(task)?;
        check_name(alloc)?;
        let own = |root: &Path| root.join(alloc).join(task);
        let dirs: Vec<PathBuf> = tree.roots().into_iter().map(own).collect();
        let cpuset = tree.cpuset().filter(|bound| !bound.v2);
        let cpuset = cpuset.map(|bound| own(&bound.root));
        let occupants = kill::procs(&dirs[0])?;
        if !occupants.is_empty() {
            return Err(CreateTaskCgroupError::Occupied {
                dir: dirs[0].clone(),
                pids: occupants,
            });
        }
        for dir in dirs.iter().chain(&cpuset) {
            remove::try_remove(dir).map_err(|source| CreateTaskCgroupError::Stale {
                dir: dir.clone(),
                source,
            })?;
        }
        let made = make_all(tree, alloc, &dirs).and_then(|()| {
            if !limits.cores.is_empty() {
                tree.make_cpuset(alloc, task)?;
            }
            let mut this = Self::open(tree, alloc, task)?;
            this.apply(limits)?;
            if !limits.cores.is_empty() && !this.has_cpuset {
                this.unenforced.push(no_cpuset());
            }
            this.unenforced.extend(this.missing(limits));
            Ok(this)
        });
        if made.is_err() {
            remove_created_groups(&dirs);
            remove_created_groups(cpuset.as_slice());
        }
        made
    }

    /// Opens the groups of a running task.
    ///
    /// # Errors
    ///
    /// [`CreateTaskCgroupError::Gone`], or a file that cannot be read.
    pub fn open(tree: &NodeTree, alloc: &str, task: &str) -> Result<Self, CreateTaskCgroupError> {
        check_name(task)?;
        check_name(alloc)?;
        let dir: Arc<Path> = tree.v2_dir().join(alloc).join(task).into();
        let id = match std::fs::metadata(&dir) {
            Ok(metadata) => metadata.ino(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CreateTaskCgroupError::Gone {
                    dir: dir.to_path_buf(),
                });
            }
            Err(source) => {
                let path = dir.to_path_buf();
                return Err(CgroupFileError::Read { path, source }.into());
            }
        };
        let name = TaskName {
            alloc: alloc.into(),
            task: task.into(),
        };
        // The group exists while some task has reserved cores.
        let cpuset = tree.cpuset().map(|bound| Group::new(bound, &name));
        let memory = tree.bound().get(&Controller::Memory);
        let memory = memory.map(|bound| Group::new(bound, &name));
        let swap = memory
            .as_ref()
            .and_then(|group| memory::uncounted_swap(&group.dir, group.v2));
        Ok(Self {
            tree: tree.clone(),
            name,
            id,
            v1_ids: OnceLock::new(),
            files: CgroupFileCache::new(),
            io: Mutex::default(),
            has_cpuset: cpuset.is_some_and(|group| group.dir.join("cpuset.cpus").exists()),
            unenforced: swap.into_iter().collect(),
            dir,
        })
    }

    /// The part of `limits` that this task's groups cannot enforce, although another task's groups might.
    pub(crate) fn missing(&self, limits: &Limits) -> Option<Unenforced> {
        let group = self.io_group();
        let group = group.as_ref().map(|group| (&*group.dir, group.v2));
        disks::unsupported_limits(group, &limits.io)
    }

    /// The warning about limits in `io` that apply only to a part of the task's writes.
    pub(crate) fn kept_in_part(&self, io: &IoLimits) -> Option<&'static str> {
        disks::partial_limit_warning(self.io_group()?.v2, io)
    }

    /// The task's groups, by controller.
    fn groups(&self) -> BTreeMap<Controller, Group> {
        let bound = self.tree.bound().iter();
        let bound = bound.map(|(controller, bound)| (*controller, bound));
        let cpuset = self.tree.cpuset().filter(|_| self.has_cpuset);
        bound
            .chain(cpuset.map(|bound| (Controller::Cpuset, bound)))
            .map(|(controller, bound)| (controller, Group::new(bound, &self.name)))
            .chain(self.io_group().map(|group| (Controller::Io, group)))
            .collect()
    }

    fn group(&self, controller: Controller) -> Option<Group> {
        let bound = match controller {
            Controller::Cpuset => self.tree.cpuset().filter(|_| self.has_cpuset),
            _ => self.tree.bound().get(&controller),
        };
        bound.map(|bound| Group::new(bound, &self.name))
    }

    /// The group that limits the task's disks. In v2 the controller exists only for allocations that it was passed on
    /// to, and the tree does not record them.
    fn io_group(&self) -> Option<Group> {
        let v1 = self.group(Controller::Io);
        let v2 = || {
            let root = self.tree.v2_dir().to_owned();
            Group::new(&tree::ControllerRoot { root, v2: true }, &self.name)
        };
        v1.or_else(|| disks::is_in_v2(&self.dir).then(v2))
    }

    /// The v1 group that the task is moved to when another task reserves cores. It may be created while the task runs.
    fn late(&self) -> Option<Group> {
        let bound = self.tree.cpuset().filter(|bound| !bound.v2);
        bound.map(|bound| Group::new(bound, &self.name))
    }

    /// The allocation's groups above the task's own.
    fn alloc_dirs(&self) -> Vec<PathBuf> {
        let roots = self.tree.roots().into_iter();
        roots
            .map(|root| root.join(&self.name.alloc))
            .chain(self.late().map(|group| group.alloc_dir))
            .collect()
    }

    /// Writes the agent's record of the start on the group, replacing an older one.
    ///
    /// # Errors
    ///
    /// The error of the kernel, or that the note is too large.
    pub fn set_note(&self, note: &[u8]) -> io::Result<()> {
        note::write(&self.dir, note)
    }

    /// The record of the start that is written on the group.
    ///
    /// # Errors
    ///
    /// The error of the kernel. A group without a note causes none.
    pub fn note(&self) -> io::Result<Option<Vec<u8>>> {
        note::read(&self.dir)
    }

    /// Sets limits, at start or while the task runs. If the memory limit is set below the current use, the kernel
    /// reclaims memory, and kills if it must.
    ///
    /// # Errors
    ///
    /// [`ApplyLimitError`]; limits before the one that failed are set.
    pub fn apply(&self, limits: &Limits) -> Result<(), ApplyLimitError> {
        for (controller, Group { dir, v2, .. }) in self.groups() {
            match controller {
                Controller::Cpu => cpu::apply(&dir, v2, limits)?,
                Controller::Memory => memory::apply(&dir, v2, limits)?,
                Controller::Pids => pids::apply(&dir, v2, limits)?,
                Controller::Cpuset => cpuset::apply(&dir, limits)?,
                Controller::Io => {
                    let mut io = self.io();
                    *io = limits.io;
                    disks::apply(&dir, v2, limits)?;
                }
                Controller::Cpuacct => {}
            }
        }
        self.update_parent_sums(
            limits.memory_low_bytes.is_some(),
            limits.io.weight.is_some(),
        )
    }

    /// Sets the last applied rates for those of `disks` that are new, and returns those disks.
    ///
    /// # Errors
    ///
    /// [`ApplyLimitError`]; the rates of disks before the one that failed are set.
    pub fn limit_new_disks(&self, disks: &[String]) -> Result<Vec<String>, ApplyLimitError> {
        let io = self.io();
        if io.is_none() {
            return Ok(Vec::new());
        }
        match self.io_group() {
            Some(Group { dir, v2, .. }) => disks::limit_new(&dir, v2, &io, disks),
            None => Ok(Vec::new()),
        }
    }

    fn io(&self) -> MutexGuard<'_, IoLimits> {
        self.io.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the limits of a running task, and returns those that differed.
    ///
    /// # Errors
    ///
    /// [`ApplyLimitError`], as [`Self::apply`].
    pub fn repair(&self, limits: &Limits) -> Result<Vec<CorrectedLimit>, ApplyLimitError> {
        let before = self.limit_files()?;
        self.apply(limits)?;
        // The kernel rounds, so its own values are compared, and not the requested ones.
        let mut after = self.limit_files()?;
        let changed = before.into_iter().filter_map(|(file, found)| {
            let set = after.remove(&file)?;
            (set != found).then_some(CorrectedLimit { file, found, set })
        });
        Ok(changed.collect())
    }

    /// The contents of the files that [`Self::apply`] sets, without files that this kernel lacks.
    fn limit_files(&self) -> Result<BTreeMap<PathBuf, String>, ApplyLimitError> {
        let mut texts = BTreeMap::new();
        let groups = self.groups().into_iter().map(|(controller, group)| {
            let files = match controller {
                Controller::Cpu => cpu::files(group.v2),
                Controller::Memory => memory::files(group.v2),
                Controller::Pids => pids::files(),
                Controller::Cpuset => cpuset::files(),
                Controller::Io => disks::files(group.v2),
                Controller::Cpuacct => &[],
            };
            (controller, group.dir, files)
        });
        for (controller, dir, files) in groups {
            for name in files {
                let text = file::read_if_any(&dir, name)
                    .map_err(|source| ApplyLimitError::Read { controller, source })?;
                if let Some(text) = text {
                    texts.insert(dir.join(name), text.trim().to_owned());
                }
            }
        }
        Ok(texts)
    }

    /// Sets the weights and reservations of the groups above to the sums of their children's.
    fn update_parent_sums(
        &self,
        reserves: bool,
        weighs_disks: bool,
    ) -> Result<(), ApplyLimitError> {
        if let Some(Group { alloc_dir, v2, .. }) = self.group(Controller::Cpu) {
            cpu::sum_children(&alloc_dir, v2)?;
        }
        if weighs_disks && let Some(Group { alloc_dir, v2, .. }) = self.io_group() {
            disks::sum_children(&alloc_dir, v2)?;
        }
        match self.group(Controller::Memory) {
            Some(Group {
                alloc_dir,
                root,
                v2: true,
                ..
            }) if reserves => {
                memory::sum_children(&alloc_dir)?;
                memory::sum_children(&root)
            }
            _ => Ok(()),
        }
    }

    /// The name of the task.
    pub fn name(&self) -> &TaskName {
        &self.name
    }

    /// The id of the group in the v2 hierarchy, as eBPF programs see it. On 64-bit kernels it is the inode number of
    /// the group's directory.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The group in the v2 hierarchy, into which the task is cloned.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The files of v1 groups to which the child writes a `0` before it executes, in order to join the groups.
    pub fn joins(&self) -> Vec<PathBuf> {
        self.v1_dirs()
            .iter()
            .map(|dir| dir.join("cgroup.procs"))
            .collect()
    }

    /// Limits that are not enforced for this task.
    pub fn unenforced(&self) -> impl Iterator<Item = &Unenforced> {
        self.tree.unenforced().iter().chain(&self.unenforced)
    }

    /// Processes in the group and below.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`].
    pub fn procs(&self) -> Result<Vec<u32>, CgroupFileError> {
        kill::procs(&self.dir)
    }

    /// The resources that the task uses, as far as this host counts them. The files stay open from the first call on,
    /// as far as there are descriptors for them. [`Self::waits_now`] closes them after a while without calls.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`].
    pub fn stats(&self) -> Result<TaskStats, CgroupFileError> {
        self.files.record_reading(std::time::Instant::now());
        let at = |controller| self.at(controller);
        let mut files = self.reader();
        Ok(TaskStats {
            cpu: Some(cpu::stats(&mut files, at(Controller::Cpu))?),
            memory: at(Controller::Memory)
                .map(|at| memory::stats(&mut files, at))
                .transpose()?,
            pids: at(Controller::Pids)
                .map(|at| pids::current(&mut files, at))
                .transpose()?,
            pressure: pressure::stats(&mut files),
        })
    }

    /// The values of [`Self::stats`] from a walk and from the file of memory's kinds; `None` if the walk did not find
    /// all groups. The CPU time that eBPF counts is not included.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`].
    pub fn stats_in(&self, walked: &CgroupRows) -> Result<Option<TaskStats>, CgroupFileError> {
        let Some(rows) = self.rows_in(walked) else {
            return Ok(None);
        };
        let memory = match (rows.memory, self.at(Controller::Memory)) {
            (Some(row), Some(at)) => {
                self.files.record_reading(std::time::Instant::now());
                let kinds = memory::kinds(&mut self.reader(), at)?;
                walked.memory(row, at, kinds)
            }
            _ => None,
        };
        Ok(Some(TaskStats {
            cpu: Some(rows.cpu.and_then(walked::cpu).unwrap_or_default()),
            memory,
            pids: rows.pids.and_then(walked::pids),
            pressure: walked::pressure(rows.v2),
        }))
    }

    /// Charged bytes of memory and the time that the task was kept from running, from a walk; `None` if the walk did
    /// not find all groups. It is called regularly, and closes the unneeded files that [`Self::stats_in`] opened.
    pub fn now_in(&self, walked: &CgroupRows) -> Option<(Option<u64>, StallStats)> {
        let rows = self.rows_in(walked)?;
        self.files.close_unused(&[], std::time::Instant::now());
        let waits = StallStats {
            throttled_us: rows
                .cpu
                .and_then(walked::cpu)
                .and_then(|cpu| cpu.throttled_us),
            pressure: walked::pressure(rows.v2),
        };
        Some((rows.memory.and_then(walked::memory_bytes), waits))
    }

    /// The task's rows; the row of an unavailable controller is `None`.
    fn rows_in<'a>(&self, walked: &'a CgroupRows) -> Option<Rows<'a>> {
        let of = |controller| match self.at(controller) {
            Some(at) => walked.row(at, self.id_in(at)?).map(Some),
            None => Some(None),
        };
        Some(Rows {
            v2: walked.row(None, self.id)?,
            cpu: of(Controller::Cpu)?,
            memory: of(Controller::Memory)?,
            pids: of(Controller::Pids)?,
        })
    }

    /// The id of the task's group at `at`.
    fn id_in(&self, at: GroupHierarchy) -> Option<u64> {
        let Some(wanted) = at else {
            return Some(self.id);
        };
        let ids = self.v1_ids.get_or_init(|| {
            let groups = self.groups().into_iter().filter(|(_, group)| !group.v2);
            let ids = groups.filter_map(|(controller, group)| {
                let metadata = std::fs::metadata(group.dir).ok()?;
                Some((controller, metadata.ino()))
            });
            ids.collect()
        });
        let mut ids = ids.iter();
        ids.find_map(|(controller, id)| (*controller == wanted).then_some(*id))
    }

    fn reader(&self) -> CgroupFileReader<'_, impl Fn(GroupHierarchy) -> PathBuf> {
        self.files.reader(|at| {
            let v1 = at.and_then(|controller| self.group(controller));
            v1.map_or_else(|| self.dir.to_path_buf(), |group| group.dir)
        })
    }

    /// The group with the files of a controller, if it is available.
    fn at(&self, controller: Controller) -> Option<GroupHierarchy> {
        let bound = self.tree.bound().get(&controller)?;
        Some((!bound.v2).then_some(controller))
    }

    /// CPU time of all processes that ever ran in the group.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`].
    pub fn cpu_time(&self) -> Result<Option<Duration>, CgroupFileError> {
        Ok(cpu::usage_us(&self.dir)?.map(Duration::from_micros))
    }

    /// Charged bytes of memory, from a file that stays open from the first call on; `None` without a memory controller.
    /// It is called regularly.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`]; [`CgroupFileError::is_gone`] once the group was removed.
    pub fn memory_now(&self) -> Result<Option<u64>, CgroupFileError> {
        let Some(at) = self.at(Controller::Memory) else {
            return Ok(None);
        };
        let name = memory::current_name(at.is_none());
        self.reader().number(at, name).map(Some)
    }

    /// The time that the task was throttled by its quota and stalled, from files that stay open from the first call on.
    /// It is called regularly, and closes the unneeded files that [`Self::stats`] opened.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`]; [`CgroupFileError::is_gone`] once the group was removed.
    pub fn waits_now(&self) -> Result<StallStats, CgroupFileError> {
        let [some_cpu, some_memory, some_io] = pressure::FILES;
        let memory = self.at(Controller::Memory);
        let memory = memory.map_or("", |at| memory::current_name(at.is_none()));
        let needed = [memory, cpu::STAT, some_cpu, some_memory, some_io];
        self.files.close_unused(&needed, std::time::Instant::now());
        let mut files = self.reader();
        Ok(StallStats {
            throttled_us: cpu::throttled_us(&mut files, self.at(Controller::Cpu))?,
            pressure: pressure::stats(&mut files),
        })
    }

    /// Out-of-memory kills so far; `None` without a memory controller.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`]; [`CgroupFileError::is_gone`] once the group was removed.
    pub fn oom(&self) -> Result<Option<OomCount>, CgroupFileError> {
        let memory = self.group(Controller::Memory);
        let count = memory.map(|group| oom::count(&group.dir, group.v2));
        count.transpose()
    }

    /// Sends SIGKILL to all processes in the group and below, frozen or not.
    ///
    /// # Errors
    ///
    /// [`KillError`].
    pub fn kill(&self) -> Result<(), KillError> {
        kill::kill_group(&self.dir)?;
        for dir in &self.v1_dirs() {
            // A process that moved itself out of the v2 group is still in these groups.
            kill::kill_each_process(dir)?;
        }
        Ok(())
    }

    /// Freezes all processes in the group.
    ///
    /// # Errors
    ///
    /// [`FreezeError`].
    pub async fn freeze(&self, within: Duration) -> Result<(), FreezeError> {
        self.set_frozen(true, within).await
    }

    /// Thaws all processes in the group.
    ///
    /// # Errors
    ///
    /// [`FreezeError`].
    pub async fn thaw(&self, within: Duration) -> Result<(), FreezeError> {
        self.set_frozen(false, within).await
    }

    async fn set_frozen(&self, frozen: bool, within: Duration) -> Result<(), FreezeError> {
        let dir = || self.dir.to_path_buf();
        freeze::request(&self.dir, frozen).map_err(|error| FreezeError::Request {
            dir: dir(),
            source: error.into(),
        })?;
        if self.event("frozen", u64::from(frozen), within).await? {
            return Ok(());
        }
        Err(FreezeError::Late { dir: dir(), within })
    }

    /// Whether a process is in the group or below; zombies do not count.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`].
    pub fn is_populated(&self) -> Result<bool, CgroupFileError> {
        match self.now("populated") {
            Ok(populated) => Ok(populated != 0),
            Err(error) if error.is_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The value of `key` in `cgroup.events`; 0 if there is no such line.
    fn now(&self, key: &str) -> Result<u64, CgroupFileError> {
        let events = file::read(&self.dir, "cgroup.events")?;
        Ok(file::keyed(&events, key).unwrap_or(0))
    }

    /// Waits until no process is left, at most `within`. Returns whether none is left.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`].
    pub async fn wait_empty(&self, within: Duration) -> Result<bool, CgroupFileError> {
        match self.event("populated", 0, within).await {
            Err(error) if error.is_gone() => Ok(true),
            outcome => outcome,
        }
    }

    /// Polls until `key` of `cgroup.events` has `value`; `false` if that takes too long.
    async fn event(
        &self,
        key: &str,
        value: u64,
        within: Duration,
    ) -> Result<bool, CgroupFileError> {
        let deadline = Instant::now() + within;
        let mut pause = CHECK_PAUSE_MIN;
        while self.now(key)? != value {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(CHECK_PAUSE_MAX);
        }
        Ok(true)
    }

    /// Removes the groups, with all groups that the task made below them. Also removes the allocation's groups if this
    /// was its last task. Processes must be gone. A group that is still busy after about a second stays, and another
    /// call can remove it.
    ///
    /// # Errors
    ///
    /// [`RemoveCgroupError`].
    pub async fn remove(&self) -> Result<(), RemoveCgroupError> {
        if remove::try_remove(&self.dir).is_err() {
            // A frozen process that was killed is gone. A process that is still frozen would otherwise never end.
            if let Err(error) = freeze::request(&self.dir, false) {
                tracing::debug!(dir = %self.dir.display(), %error, "thaw before removal");
            }
            remove::depth_first(&self.dir).await?;
        }
        let late = self.late().map(|group| group.dir);
        for dir in self.v1_dirs().into_iter().chain(late) {
            remove::depth_first(&dir).await?;
        }
        self.release_alloc();
        Ok(())
    }

    /// Removes the allocation's groups if they are empty; otherwise recomputes their weight from the remaining tasks.
    /// The tree no longer reserves memory for the removed part.
    fn release_alloc(&self) {
        let mut left = false;
        for dir in self.alloc_dirs() {
            match remove::rmdir(&dir) {
                Ok(()) => {}
                Err(error) if remove::is_busy(&error) => left = true,
                Err(error) => tracing::warn!(dir = %dir.display(), %error, "remove cgroup"),
            }
        }
        let weighed = match self.group(Controller::Memory) {
            _ if left => self.update_parent_sums(true, true),
            Some(Group { root, v2: true, .. }) => memory::sum_after_removal(&root),
            _ => Ok(()),
        };
        if let Err(error) = weighed {
            tracing::warn!(alloc = self.name.alloc, %error, "weigh what is left of an allocation");
        }
    }

    fn v1_dirs(&self) -> BTreeSet<PathBuf> {
        let v1 = self.groups().into_values().filter(|group| !group.v2);
        v1.map(|group| group.dir).collect()
    }
}

fn no_cpuset() -> Unenforced {
    Unenforced {
        controller: Controller::Cpuset,
        reason:
            "the cores of the task are not its own: cpuset is bound to no v1 hierarchy and not \
                 passed on to the agent's part of the v2 one"
                .to_owned(),
    }
}

/// Removes the groups that a failed creation made, and the allocation's groups if they are empty.
fn remove_created_groups(dirs: &[PathBuf]) {
    for dir in dirs {
        let alloc_dir = dir.parent().into_iter().map(remove::rmdir);
        for outcome in [remove::try_remove(dir)].into_iter().chain(alloc_dir) {
            match outcome {
                Err(error) if !remove::is_busy(&error) => {
                    tracing::warn!(dir = %dir.display(), %error, "half-made cgroup is left");
                }
                _removed_or_in_use => {}
            }
        }
    }
}

/// Makes the allocation's groups and, below them, the task's.
fn make_all(tree: &NodeTree, alloc: &str, dirs: &[PathBuf]) -> Result<(), CreateTaskCgroupError> {
    let mut tries = 0;
    'again: loop {
        tree.make_alloc(alloc)?;
        for dir in dirs {
            match tree::make(dir) {
                Ok(()) => {}
                Err(NodeTreeError::Make { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && tries < MAKE_TRIES_MAX =>
                {
                    // The removal of the allocation's last other task also removed the allocation's group.
                    tries += 1;
                    continue 'again;
                }
                Err(error) => return Err(error.into()),
            }
        }
        return Ok(());
    }
}
