//! Remains of a cluster in the kernel, found without asking Muster.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// The most folders that are searched below a mount point, so that the search ends in unexpected trees.
const FOLDERS_MAX: usize = 200_000;

/// Returns all remains of the node whose id starts with `node`, and of the directory `dir`.
pub(crate) fn find(node: Option<String>, dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut left = processes(dir)?;
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(_), Some(point), Some(kind)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if Path::new(point).starts_with(dir) {
            left.push(format!("mount {point} ({kind})"));
        }
        if let Some(node) = &node
            && matches!(kind, "cgroup" | "cgroup2" | "bpf")
        {
            let found = folders(Path::new(point), &|name| name.contains(node.as_str()));
            left.extend(
                found
                    .into_iter()
                    .map(|path| format!("{kind} {}", path.display())),
            );
        }
    }
    left.extend(
        fifos(dir)
            .into_iter()
            .map(|path| format!("FIFO {}", path.display())),
    );
    Ok(left)
}

/// Returns the processes that name `dir` in their arguments, or whose working directory is in it.
fn processes(dir: &Path) -> anyhow::Result<Vec<String>> {
    let needle = dir.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.parse::<u32>().is_err() || name == std::process::id().to_string() {
            continue;
        }
        let arguments = fs::read(path.join("cmdline")).unwrap_or_default();
        let named = arguments
            .windows(needle.len())
            .any(|window| window == needle);
        let inside = fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
        if named || inside {
            let shown = String::from_utf8_lossy(&arguments).replace('\0', " ");
            found.push(format!("process {name}: {shown}"));
        }
    }
    Ok(found)
}

/// Returns the folders below `root` whose name satisfies `wanted`.
fn folders(root: &Path, wanted: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    let mut seen = 0;
    while let Some(folder) = open.pop() {
        seen += 1;
        if seen > FOLDERS_MAX {
            break;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if wanted(&entry.file_name().to_string_lossy()) {
                found.push(entry.path());
            } else {
                open.push(entry.path());
            }
        }
    }
    found
}

fn fifos(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_fifo() {
                found.push(entry.path());
            } else if kind.is_dir() {
                open.push(entry.path());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_and_a_process_are_found() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("f"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut child = std::process::Command::new("cat")
            .arg(dir.path().join("f"))
            .spawn()
            .unwrap();

        // A new process has no command line for a moment.
        let left = (0..1_000)
            .map(|_| find(None, dir.path()).unwrap())
            .find(|left| left.len() > 1)
            .unwrap_or_default();
        child.kill().unwrap();
        child.wait().unwrap();

        assert!(
            left.iter().any(|thing| thing.starts_with("FIFO")),
            "{left:?}"
        );
        assert!(
            left.iter().any(|thing| thing.starts_with("process")),
            "{left:?}"
        );
    }
}
