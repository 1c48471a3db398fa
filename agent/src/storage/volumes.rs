//! Mounts of the node's host volumes in a task.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use muster_domain::job::{Task, TaskGroup, VolumeMount};
use muster_domain::node::HostVolume;
use muster_driver::Mount;

use crate::tasks::task_env::TaskEnv;

/// The reason why a task cannot have a volume.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VolumeError {
    /// The group has no volume of that name. The server accepts no such job.
    #[error("volume_mount \"{name}\": the group has no such volume; add a `volume` block to it")]
    Unknown {
        /// The name in the job.
        name: String,
    },
    /// The node has no host volume of that name, or no longer has it.
    #[error(
        "volume \"{name}\": this node has no host volume \"{source_name}\"; add it to the agent's configuration, or constrain the job to nodes that have it"
    )]
    NotHere {
        /// The name in the job.
        name: String,
        /// The name on the node.
        source_name: String,
    },
    /// The destination is not a place in the task.
    #[error(
        "volume_mount.destination \"{asked}\": is not a place in the task; name a directory below its root, without `..` and unknown references"
    )]
    Destination {
        /// The destination in the job.
        asked: String,
    },
    /// The node's volume is read-only.
    #[error(
        "volume \"{name}\": host volume \"{source_name}\" may only be read on this node; ask for it with read_only = true"
    )]
    ReadOnly {
        /// The name in the job.
        name: String,
        /// The name on the node.
        source_name: String,
    },
}

/// The mounts that the driver makes in the task, from the volumes that the node `offers`.
pub(crate) fn mounts(
    group: &TaskGroup,
    task: &Task,
    offers: &BTreeMap<String, HostVolume>,
    env: &TaskEnv,
    root: &Path,
) -> Result<Vec<Mount>, VolumeError> {
    let mounts = task.volume_mounts.iter();
    let resolved = mounts.map(|mount| {
        let task_path = destination(&mount.destination, env, root)?;
        Ok(Mount {
            task_path,
            ..resolve(group, mount, offers)?
        })
    });
    resolved.collect()
}

/// Returns the mount point of a volume. References are replaced, and a relative path begins at `root`, the task's own
/// directory as the task sees it. The path cannot leave the task's root.
fn destination(asked: &str, env: &TaskEnv, root: &Path) -> Result<String, VolumeError> {
    let wrong = || VolumeError::Destination {
        asked: asked.to_owned(),
    };
    let path = env.interpolate(asked);
    if path.is_empty() || path.contains("${") {
        return Err(wrong());
    }
    let mut whole = root.to_owned();
    let mut parts = 0;
    for part in Path::new(&path).components() {
        match part {
            Component::RootDir => whole = "/".into(),
            Component::Normal(name) => {
                whole.push(name);
                parts += 1;
            }
            Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(wrong()),
        }
    }
    if parts == 0 {
        return Err(wrong());
    }
    whole.to_str().map(str::to_owned).ok_or_else(wrong)
}

fn resolve(
    group: &TaskGroup,
    mount: &VolumeMount,
    offers: &BTreeMap<String, HostVolume>,
) -> Result<Mount, VolumeError> {
    let VolumeMount {
        volume: name,
        destination: _,
        read_only,
        propagation,
        selinux_label,
    } = mount;
    let ask = group
        .volumes
        .get(name)
        .ok_or(VolumeError::Unknown { name: name.clone() })?;
    let (name, source_name) = (name.clone(), ask.source.clone());
    let Some(offer) = offers.get(&ask.source) else {
        return Err(VolumeError::NotHere { name, source_name });
    };
    let readonly = *read_only || ask.read_only;
    if offer.read_only && !readonly {
        return Err(VolumeError::ReadOnly { name, source_name });
    }
    Ok(Mount {
        host_path: offer.path.clone(),
        readonly,
        propagation_mode: propagation.as_str().to_owned(),
        selinux_label: selinux_label.clone(),
        ..Mount::default()
    })
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture;
    use muster_domain::job::{Propagation, VolumeAsk};

    use super::*;

    /// A task that requests and mounts the node's volume `disk`, and the volumes that the node offers.
    fn resolved(
        asked_read_only: bool,
        mounted_read_only: bool,
        offered: Option<bool>,
    ) -> Result<Vec<Mount>, VolumeError> {
        let mut group = fixture::group("main");
        let ask = VolumeAsk {
            source: "disk".to_owned(),
            read_only: asked_read_only,
        };
        group.volumes.insert("data".to_owned(), ask);
        group.tasks[0].volume_mounts.push(VolumeMount {
            volume: "data".to_owned(),
            destination: "/srv".to_owned(),
            read_only: mounted_read_only,
            propagation: Propagation::Private,
            selinux_label: String::new(),
        });
        let offers = offered.map(|read_only| {
            let path = "/mnt/disk".to_owned();
            ("disk".to_owned(), HostVolume { path, read_only })
        });
        let (env, root) = (TaskEnv::default(), Path::new("/"));
        mounts(
            &group,
            &group.tasks[0],
            &offers.into_iter().collect(),
            &env,
            root,
        )
    }

    #[test]
    fn volume_is_mounted_at_task_destination() {
        let mounts = resolved(false, false, Some(false)).unwrap();

        assert_eq!(
            (mounts[0].host_path.as_str(), mounts[0].task_path.as_str()),
            ("/mnt/disk", "/srv")
        );
        assert!(!mounts[0].readonly);
    }

    #[test]
    fn either_side_can_forbid_writing() {
        assert!(resolved(true, false, Some(false)).unwrap()[0].readonly);
        assert!(resolved(false, true, Some(true)).unwrap()[0].readonly);
    }

    #[test]
    fn write_access_to_read_only_volume_is_refused() {
        let error = resolved(false, false, Some(true)).unwrap_err();

        assert!(matches!(error, VolumeError::ReadOnly { .. }), "{error}");
    }

    #[test]
    fn missing_volume_is_refused() {
        let error = resolved(true, true, None).unwrap_err();

        assert!(matches!(error, VolumeError::NotHere { .. }), "{error}");
    }

    #[test]
    fn destinations_stay_in_the_task() {
        let job = fixture::job("web").version();
        let desired = fixture::desired(
            muster_domain::id::AllocId::at(muster_domain::id::LogIndex(1), 0),
            job,
        );
        let mut env = TaskEnv::of_alloc(&desired, &fixture::node("n1").build());
        env.vars
            .insert("NOMAD_TASK_DIR".to_owned(), "/local".to_owned());
        let at = |asked: &str| destination(asked, &env, Path::new("/"));

        for (asked, shown) in [
            ("/data", "/data"),
            ("/local/x", "/local/x"),
            ("local/data", "/local/data"),
            ("./local//data/", "/local/data"),
            ("${NOMAD_TASK_DIR}/x", "/local/x"),
            ("data/${NOMAD_GROUP_NAME}", "/data/main"),
        ] {
            assert_eq!(at(asked).as_deref(), Ok(shown), "{asked}");
        }
        for asked in ["", "/", ".", "../x", "local/../../x", "${NOMAD_NOPE}/x"] {
            assert!(at(asked).is_err(), "{asked}");
        }
        let own = destination("local/data", &env, Path::new("/d/alloc/main"));
        assert_eq!(own.as_deref(), Ok("/d/alloc/main/local/data"));
    }
}
