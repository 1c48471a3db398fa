//! A node tree of a test's own, processes in it, and saying what cannot run.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use muster_agent::resources::cgroup::{
    Controller, ControllerMode, Hierarchies, Limits, NodeTree, TaskCgroup,
};

/// How long anything may take in an emulated guest.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) use muster_domain::fixture::recorded::skipped;

/// A tree for the test `name` if every one of `controllers` is on cgroup v2 here; else says why not.
pub(crate) fn tree(name: &str, controllers: &[Controller]) -> Option<NodeTree> {
    if !nix::unistd::geteuid().is_root() {
        skipped(name, "needs root; run: cargo xtask vm");
        return None;
    }
    let hierarchies = match Hierarchies::probe() {
        Ok(hierarchies) => hierarchies,
        Err(error) => {
            skipped(name, &format!("{error}; run: cargo xtask vm"));
            return None;
        }
    };
    for controller in controllers {
        if hierarchies.controller(*controller) != ControllerMode::V2 {
            let reason = format!(
                "no {} controller in cgroup v2; run: cargo xtask vm",
                controller.name()
            );
            skipped(name, &reason);
            return None;
        }
    }
    let unique = format!("muster-{:08x}", std::process::id() ^ hash(name));
    Some(NodeTree::create(&hierarchies, &unique).unwrap())
}

fn hash(name: &str) -> u32 {
    name.bytes().fold(2_166_136_261, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    })
}

/// Limits that limit nothing a test does not ask for.
pub(crate) fn limits() -> Limits {
    Limits {
        cpu_mhz: 1_000,
        ..Limits::default()
    }
}

/// A shell in the task's groups that runs `script`.
pub(crate) fn shell(task: &TaskCgroup, script: &str) -> Child {
    let mut joined = join(&task.dir().join("cgroup.procs"));
    for path in task.joins() {
        joined.push_str(&join(&path));
    }
    Command::new("/bin/sh")
        .args(["-c", &format!("{joined} {script}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn join(path: &Path) -> String {
    format!("echo $$ > '{}' || exit 99;", path.display())
}

/// Looks until `look` finds something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills what is left in `task`, and removes it and `tree`.
pub(crate) async fn remove(tree: NodeTree, task: TaskCgroup) {
    task.kill().unwrap();
    assert!(
        task.wait_empty(PATIENCE).await.unwrap(),
        "the task's processes end"
    );
    task.remove().await.unwrap();
    tree.remove().await.unwrap();
    assert!(!tree.v2_dir().exists());
}
