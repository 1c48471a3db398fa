//! Cgroups of the v2 hierarchy in which tasks start, below this process's own cgroup.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// The longest time that a cgroup may stay busy after its last process was reaped.
const REMOVE_WAIT: Duration = Duration::from_secs(5);

/// A cgroup that contains other cgroups. It is removed when dropped.
#[derive(Debug)]
pub(crate) struct CgroupDir {
    path: PathBuf,
    /// The path of the cgroup from the root of the hierarchy.
    from_root: PathBuf,
}

impl CgroupDir {
    /// Makes `muster-perf-<pid>-<name>` below this process's cgroup.
    pub(crate) fn create(name: &str) -> anyhow::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let (root, own) =
            own_dir(&own, &mounts).context("this machine has no cgroup v2 hierarchy")?;
        let from_root = own.join(format!("muster-perf-{}-{name}", std::process::id()));
        let path = root.join(&from_root);
        fs::create_dir(&path)
            .with_context(|| format!("cannot make {}: are you root?", path.display()))?;
        Ok(Self { path, from_root })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path in the form of `/proc/self/cgroup`.
    pub(crate) fn path_from_root(&self) -> PathBuf {
        Path::new("/").join(&self.from_root)
    }

    /// Creates a cgroup below this one.
    pub(crate) fn child(&self, name: &str) -> io::Result<Cgroup> {
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        Ok(Cgroup { path })
    }
}

impl Drop for CgroupDir {
    fn drop(&mut self) {
        // A failed round may leave cgroups behind. Directories of cgroups must be removed one by one.
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            drop(fs::remove_dir(entry.path()));
        }
        drop(fs::remove_dir(&self.path));
    }
}

/// A cgroup for one task.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Refers to a cgroup that other code creates and removes.
    pub(crate) fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Opens the directory of the cgroup.
    pub(crate) fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    /// Removes the cgroup as soon as it has no processes left.
    pub(crate) fn remove(self) -> io::Result<()> {
        let deadline = Instant::now() + REMOVE_WAIT;
        loop {
            match fs::remove_dir(&self.path) {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
                {
                    std::thread::yield_now();
                }
                done => return done,
            }
        }
    }
}

/// Returns the root of the hierarchy and this process's cgroup in it, from the texts of `/proc/self`.
fn own_dir(own: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let point = words.next()?;
        (words.next()? == "cgroup2").then_some(point)
    })?;
    Some((root.into(), path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cgroup_is_found_on_hybrid_host() {
        let own = "3:cpu:/v1\n0::/a/b\n";
        let mounts = "cgroup /v1/cpu cgroup rw,cpu 0 0\ncgroup2 /v2 cgroup2 rw 0 0\n";

        assert_eq!(own_dir(own, mounts), Some(("/v2".into(), "a/b".into())));
        assert_eq!(own_dir(own, "cgroup /v1/cpu cgroup rw,cpu 0 0\n"), None);
    }
}
