//! The host paths shown in roots: the agent's `chroot_env`, by Nomad's name and with its default.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::limits::CHROOT_ENTRIES_MAX;

/// The paths that Nomad shows by default (the documentation of its `exec` driver, "Chroot"). Paths that do not exist on
/// a machine are left out.
const DEFAULT: [&str; 9] = [
    "/bin",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/sbin",
    "/usr",
];

/// The places in a root that belong to the task or the driver.
const RESERVED_NAMES: [&str; 7] = ["alloc", "dev", "local", "proc", "secrets", "sys", "tmp"];

/// The reason why a path cannot be shown. Each text begins with the path or place.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChrootEnvError {
    /// The path is not absolute, or has parts that lead up.
    #[error("{path:?} must be an absolute path without `.` and `..`")]
    Path {
        /// The path as configured.
        path: String,
    },
    /// The place is the whole root, or belongs to the task or its driver.
    #[error(
        "{place:?} cannot be a place in a root: `/`, and what is at or below /alloc, /dev, /local, /proc, /secrets, /sys and /tmp, is the task's or its driver's"
    )]
    Taken {
        /// The place as configured.
        place: String,
    },
    /// Two paths have the same place, or one place is in the other, which is read-only.
    #[error(
        "{place:?} and {other:?} are one place in a root, or one lies in the other: leave one out"
    )]
    Overlap {
        /// The place as configured.
        place: String,
        /// The place that is used already.
        other: String,
    },
    /// The number of paths exceeds the bound on mounts for each task.
    #[error("more than {CHROOT_ENTRIES_MAX} entries: name the directory that holds them")]
    TooMany,
}

/// Host paths that are shown in roots, by their place there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChrootEnv {
    /// Host paths by place, without the leading slash.
    entries: BTreeMap<PathBuf, PathBuf>,
}

impl Default for ChrootEnv {
    fn default() -> Self {
        let entry = |path: &str| (below_root(path), PathBuf::from(path));
        Self {
            entries: DEFAULT.into_iter().map(entry).collect(),
        }
    }
}

impl ChrootEnv {
    /// Creates the set from host paths and the places at which they are shown.
    ///
    /// # Errors
    ///
    /// The first error, with the host path of its entry.
    pub fn new(
        shown: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, (String, ChrootEnvError)> {
        let mut env = Self {
            entries: BTreeMap::new(),
        };
        for (path, place) in shown {
            if let Err(error) = env.add(&path, &place) {
                return Err((path, error));
            }
        }
        Ok(env)
    }

    fn add(&mut self, path: &str, place: &str) -> Result<(), ChrootEnvError> {
        if self.entries.len() >= CHROOT_ENTRIES_MAX {
            return Err(ChrootEnvError::TooMany);
        }
        for path in [path, place] {
            if !is_plain(path) {
                return Err(ChrootEnvError::Path {
                    path: path.to_owned(),
                });
            }
        }
        let below = below_root(place);
        let first = below.components().next();
        let is_taken = |name| first == Some(Component::Normal(name));
        if first.is_none() || RESERVED_NAMES.iter().any(|name| is_taken(name.as_ref())) {
            return Err(ChrootEnvError::Taken {
                place: place.to_owned(),
            });
        }
        let mut others = self.entries.keys();
        if let Some(other) =
            others.find(|other| other.starts_with(&below) || below.starts_with(other))
        {
            return Err(ChrootEnvError::Overlap {
                place: place.to_owned(),
                other: Path::new("/").join(other).display().to_string(),
            });
        }
        self.entries.insert(below, PathBuf::from(path));
        Ok(())
    }

    /// Iterates over places, without the leading slash, and the host paths shown at them.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Path, &Path)> {
        let entries = self.entries.iter();
        entries.map(|(place, path)| (place.as_path(), path.as_path()))
    }

    /// Whether the operator configured the paths. Missing paths are then reported.
    pub(crate) fn is_configured(&self) -> bool {
        *self != Self::default()
    }
}

/// Whether the path is absolute and every part is a name. `components` leaves out a `.` within.
fn is_plain(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    path.starts_with('/') && !path.contains('\0') && parts.all(|part| !matches!(part, "." | ".."))
}

fn below_root(place: &str) -> PathBuf {
    let parts = Path::new(place).components();
    let names = parts.filter(|part| matches!(part, Component::Normal(_)));
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(shown: &[(&str, &str)]) -> Result<ChrootEnv, (String, ChrootEnvError)> {
        let owned = |&(path, place): &(&str, &str)| (path.to_owned(), place.to_owned());
        ChrootEnv::new(shown.iter().map(owned))
    }

    #[test]
    fn host_paths_are_shown_at_their_places() {
        let env = env(&[("/opt/tools/", "/usr//tools"), ("/etc/ssl", "/etc/ssl")]).unwrap();

        let entries: Vec<_> = env.entries().collect();
        let expected = [("etc/ssl", "/etc/ssl"), ("usr/tools", "/opt/tools/")];
        assert_eq!(
            entries,
            expected.map(|(place, path)| (Path::new(place), Path::new(path)))
        );
        assert!(env.is_configured());
        assert!(!ChrootEnv::default().is_configured());
    }

    #[test]
    fn wrong_entries_are_refused_by_name() {
        for (shown, expected) in [
            (("usr", "/usr"), "\"usr\" must be an absolute path"),
            (("/usr", "usr"), "\"usr\" must be an absolute path"),
            (("/usr", "/a/../b"), "\"/a/../b\" must be an absolute path"),
            (("/a/./b", "/b"), "\"/a/./b\" must be an absolute path"),
            (("/usr", "/"), "\"/\" cannot be a place"),
            (("/usr", "/alloc"), "\"/alloc\" cannot be a place"),
            (("/usr", "/local/usr"), "\"/local/usr\" cannot be a place"),
            (("/usr", "/etc"), "\"/etc\" and \"/etc\" are one place"),
            (
                ("/usr", "/etc/usr"),
                "\"/etc/usr\" and \"/etc\" are one place",
            ),
        ] {
            let (path, error) = env(&[("/etc", "/etc"), shown]).unwrap_err();

            assert_eq!(path, shown.0);
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }

    #[test]
    fn entries_are_bounded() {
        let shown = (0..=CHROOT_ENTRIES_MAX).map(|at| (format!("/a{at}"), format!("/a{at}")));

        let (_, error) = ChrootEnv::new(shown).unwrap_err();

        assert_eq!(error, ChrootEnvError::TooMany);
    }
}
