//! Removes everything an agent left outside of files: processes, cgroups, eBPF pins, a mount,
//! FIFOs, sockets.
//!
//! The function signals a process only if its pid and start time match the record, or if its cgroup is in this
//! node's tree. The store, allocation directories and logs stay in the data directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_domain::error_chain::chain;
use rustix::process::Signal;

use crate::bpf::{SYSTEM_BPFFS, UnmountBpffsError, own_mount, remove_pins, unmount_bpffs};
use crate::network::{bridge, cni};
use crate::node::{recorded_tree, tree_name};
use crate::resources::cgroup::{
    CgroupFileError, Hierarchies, NodeTree, RemoveCgroupError, StrayGroup, TaskCgroup,
};
use crate::storage::allocdir::DataDir;
use crate::storage::roots;
use crate::storage::store::{DataDirLock, LockDataDirError, known_node_id};
use crate::tasks::drivers::{native, plugin};
use crate::tasks::process::ProcessId;

/// Time that a driver's process has to end before it is killed.
const DRIVER_END_DEADLINE: Duration = Duration::from_secs(5);

/// Why not everything was removed.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// An agent runs on the data directory.
    #[error(transparent)]
    Lock(#[from] LockDataDirError),
    #[error("{} tasks run: {}; stop their jobs first, or end them with --force", tasks.len(), tasks.join(", "))]
    TasksRun {
        /// `<allocation>/<task>` of each running task.
        tasks: Vec<String>,
    },
    /// The tree cannot be read.
    #[error("the node's cgroups cannot be listed")]
    List(#[from] CgroupFileError),
    /// A cgroup cannot be removed.
    #[error("the node's cgroups cannot be removed")]
    Cgroup(#[from] RemoveCgroupError),
    /// The mount cannot be undone.
    #[error(transparent)]
    Unmount(#[from] UnmountBpffsError),
    /// Devices of allocations' networks, or rules in the machine's packet filter, cannot be removed.
    #[error("what networks of allocations left on the machine cannot be removed")]
    Network(#[source] io::Error),
    /// A CNI plugin failed to remove the network that it had set up.
    #[error("the CNI networks of allocations cannot be removed: {0}")]
    Cni(String),
    /// A file cannot be removed.
    #[error("{} cannot be removed", path.display())]
    Remove {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// Cleans up after the agent of `data_dir` and returns descriptions of the removed items. With `force`, running
/// tasks are killed.
///
/// # Errors
///
/// [`CleanError`]; items that were removed before the error stay removed. Another call removes the rest.
pub fn run(data_dir: &Path, force: bool) -> Result<Vec<String>, CleanError> {
    if !data_dir.exists() {
        return Ok(Vec::new());
    }
    // The removal runs in its own thread and runtime, because the caller may run in a runtime already.
    std::thread::scope(|scope| {
        let cleaner = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|source| CleanError::Remove {
                    path: data_dir.to_owned(),
                    source,
                })?;
            runtime.block_on(clean(data_dir, force))
        });
        match cleaner.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

async fn clean(data_dir: &Path, force: bool) -> Result<Vec<String>, CleanError> {
    let _lock = DataDirLock::take(data_dir)?;
    let data = DataDir::new(data_dir).map_err(|source| CleanError::Remove {
        path: data_dir.to_owned(),
        source,
    })?;
    let tree = recorded_tree(&data);
    let mut removed = Vec::new();
    if let Some(tree) = &tree {
        refuse_or_kill(&data, tree, force, &mut removed).await?;
    }
    let strays = stray_groups(&data, tree.as_ref());
    refuse_or_kill_strays(&data, &strays, force, &mut removed).await?;
    end_driver(&data, tree.as_ref(), &mut removed).await;
    if let Some(tree) = &tree {
        tree.remove().await?;
        removed.push(format!("cgroups {}", tree.v2_dir().display()));
    }
    for stray in &strays {
        stray.remove().await?;
        removed.push(format!("cgroup {}", stray.dir().display()));
    }
    remove_file(&data.tree_record(), &mut Vec::new())?;
    remove_network(&data, &mut removed)?;
    remove_cni(&data, &mut removed).await?;
    remove_bpf(&data, &mut removed)?;
    remove_roots(&data, &mut removed)?;
    remove_special_files(&data, &mut removed)?;
    Ok(removed)
}

async fn refuse_or_kill(
    data: &DataDir,
    tree: &NodeTree,
    force: bool,
    removed: &mut Vec<String>,
) -> Result<(), CleanError> {
    let mut running = Vec::new();
    for name in tree.tasks()? {
        // A cgroup that disappeared meanwhile needs no removal.
        let Ok(cgroup) = TaskCgroup::open(tree, &name.alloc, &name.task) else {
            continue;
        };
        if cgroup.is_populated()? {
            running.push((format!("{}/{}", name.alloc, name.task), cgroup));
        }
    }
    // Processes that plugins start stay in the drivers' group, and end with it.
    let drivers = recorded(data);
    let strays = drivers_of(tree).into_iter();
    let strays = strays.filter(|process| !drivers.contains(process));
    let strays = strays.map(|process| format!("process {} of a plugin", process.pid));
    let mut tasks: Vec<String> = strays.collect();
    if !force && (!running.is_empty() || !tasks.is_empty()) {
        tasks.extend(running.into_iter().map(|(name, _)| name));
        return Err(CleanError::TasksRun { tasks });
    }
    for (name, cgroup) in running {
        crate::resources::teardown::kill(&cgroup).await;
        removed.push(format!("task {name}"));
    }
    Ok(())
}

/// Returns cgroups of this node that its record does not name. An interrupted cleaning or a lost record leaves such
/// cgroups.
fn stray_groups(data: &DataDir, tree: Option<&NodeTree>) -> Vec<StrayGroup> {
    let (Some(node_id), Ok(hierarchies)) = (known_node_id(data.root()), Hierarchies::probe())
    else {
        return Vec::new();
    };
    let is_recorded = |group: &StrayGroup| tree.is_some_and(|tree| tree.is_root(group.dir()));
    let mut groups = StrayGroup::find(&hierarchies, &tree_name(node_id));
    groups.retain(|group| !is_recorded(group));
    groups
}

async fn refuse_or_kill_strays(
    data: &DataDir,
    strays: &[StrayGroup],
    force: bool,
    removed: &mut Vec<String>,
) -> Result<(), CleanError> {
    let drivers = recorded(data);
    for stray in strays {
        let mut running = stray.processes()?;
        running.retain(|process| !drivers.contains(process));
        let tasks: Vec<String> = running
            .iter()
            .map(|process| format!("process {} in {}", process.pid, stray.dir().display()))
            .collect();
        if !force && !tasks.is_empty() {
            return Err(CleanError::TasksRun { tasks });
        }
        stray.kill().await?;
        removed.extend(tasks);
    }
    Ok(())
}

/// Ends the recorded driver process and every process in the drivers' cgroup.
async fn end_driver(data: &DataDir, tree: Option<&NodeTree>, removed: &mut Vec<String>) {
    let in_cgroup = tree.map(drivers_of).unwrap_or_default();
    for process in recorded(data).into_iter().chain(in_cgroup) {
        if !process.signal(Signal::TERM) {
            continue;
        }
        if tokio::time::timeout(DRIVER_END_DEADLINE, process.ended())
            .await
            .is_err()
        {
            process.signal(Signal::KILL);
            process.ended().await;
        }
        removed.push(format!("driver process {}", process.pid));
    }
}

/// The processes of drivers.
fn recorded(data: &DataDir) -> Vec<ProcessId> {
    let drivers = data.drivers();
    let native = ProcessId::load(&native::pid_record(&drivers));
    let plugins = plugin::recorded(&drivers).into_iter();
    native
        .into_iter()
        .chain(plugins.map(|(process, _files)| process))
        .collect()
}

fn drivers_of(tree: &NodeTree) -> Vec<ProcessId> {
    let text = fs::read_to_string(tree.drivers_dir().join("cgroup.procs")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.parse().ok())
        .filter_map(ProcessId::of)
        .collect()
}

/// Removes the rule of the packet filter and the programs on devices; host veths are gone with their tasks.
fn remove_network(data: &DataDir, removed: &mut Vec<String>) -> Result<(), CleanError> {
    let Some(node_id) = known_node_id(data.root()) else {
        return Ok(());
    };
    let undone = bridge::undo(node_id);
    if undone.map_err(CleanError::Network)? {
        removed.push("the rule and the programs of networks of allocations".to_owned());
    }
    Ok(())
}

/// Makes CNI plugins remove the networks of allocations.
async fn remove_cni(data: &DataDir, removed: &mut Vec<String>) -> Result<(), CleanError> {
    let undone = cni::undo(data.root()).await;
    let count = undone.map_err(|error| CleanError::Cni(chain(&error)))?;
    if count > 0 {
        removed.push(format!("{count} CNI networks of allocations"));
    }
    Ok(())
}

fn remove_bpf(data: &DataDir, removed: &mut Vec<String>) -> Result<(), CleanError> {
    if let Some(node_id) = known_node_id(data.root()) {
        for bpffs in [PathBuf::from(SYSTEM_BPFFS), own_mount(data.root())] {
            let pins = bpffs.join("muster").join(node_id.to_string());
            if !pins.exists() {
                continue;
            }
            remove_pins(&pins).map_err(|source| CleanError::Remove {
                path: pins.clone(),
                source,
            })?;
            removed.push(format!("eBPF pins {}", pins.display()));
            // Only the last node that shares the directory succeeds in removing it.
            drop(fs::remove_dir(bpffs.join("muster")));
        }
    }
    let mounted = data.root().join("bpf").exists();
    unmount_bpffs(data.root())?;
    if mounted && !data.root().join("bpf").exists() {
        removed.push(format!("mount {}", data.root().join("bpf").display()));
    }
    Ok(())
}

/// Removes the roots of tasks, so that no directory of the machine stays mounted below the data directory.
fn remove_roots(data: &DataDir, removed: &mut Vec<String>) -> Result<(), CleanError> {
    let roots = data.roots();
    for alloc in entries(&roots) {
        roots::remove_all(&alloc).map_err(|error| CleanError::Remove {
            path: alloc.clone(),
            source: io::Error::other(error),
        })?;
        removed.push(format!("roots of tasks in {}", alloc.display()));
    }
    drop(fs::remove_dir(roots));
    Ok(())
}

fn remove_special_files(data: &DataDir, removed: &mut Vec<String>) -> Result<(), CleanError> {
    let drivers = data.drivers();
    let socket = native::socket(&drivers);
    remove_file(&socket, removed)?;
    remove_file(&drivers.join("native.sock.lock"), &mut Vec::new())?;
    remove_file(&native::pid_record(&drivers), &mut Vec::new())?;
    for (_process, files) in plugin::recorded(&drivers) {
        for file in files {
            remove_file(&file, &mut Vec::new())?;
        }
    }
    let mut fifos = Vec::new();
    for alloc in entries(&data.root().join("logs")) {
        for fifo in entries(&alloc.join("fifos")) {
            remove_file(&fifo, &mut fifos)?;
        }
    }
    if !fifos.is_empty() {
        removed.push(format!("{} FIFOs of tasks", fifos.len()));
    }
    Ok(())
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir);
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

fn remove_file(path: &Path, removed: &mut Vec<String>) -> Result<(), CleanError> {
    match fs::remove_file(path) {
        Ok(()) => {
            removed.push(path.display().to_string());
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(CleanError::Remove {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_data_dir_needs_no_cleaning() {
        let dir = tempfile::tempdir().unwrap();

        let removed = run(&dir.path().join("never"), false).unwrap();

        assert_eq!(removed, Vec::<String>::new());
    }

    #[test]
    fn a_running_agent_is_not_cleaned_away() {
        let dir = tempfile::tempdir().unwrap();
        let _agent = DataDirLock::take(dir.path()).unwrap();

        let refused = run(dir.path(), true).unwrap_err();

        assert!(
            matches!(refused, CleanError::Lock(LockDataDirError::Held { .. })),
            "{refused}"
        );
    }

    #[test]
    fn sockets_and_fifos_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let fifos = dir.path().join("logs/a/fifos");
        fs::create_dir_all(&fifos).unwrap();
        fs::create_dir_all(dir.path().join("drivers")).unwrap();
        nix::unistd::mkfifo(&fifos.join("web.stdout"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(dir.path().join("drivers/native.sock"), "").unwrap();

        let removed = run(dir.path(), false).unwrap();

        assert_eq!(removed.len(), 2, "{removed:?}");
        assert!(!fifos.join("web.stdout").exists());
    }
}
