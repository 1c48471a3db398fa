//! Host volumes of the node at places of a task.

use std::collections::BTreeMap;

use muster_domain::job::{Task, TaskGroup, VolumeMount};
use muster_domain::node::HostVolume;
use muster_driver::Mount;

/// Why a task cannot have a volume.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VolumeError {
    /// The group has none of that name; the server lets no such job in.
    #[error("volume_mount \"{name}\": the group has no such volume; add a `volume` block to it")]
    Unknown {
        /// The name in the job.
        name: String,
    },
    /// The node has none of that name, or no longer.
    #[error(
        "volume \"{name}\": this node has no host volume \"{source_name}\"; add it to the agent's configuration, or constrain the job to nodes that have it"
    )]
    NotHere {
        /// The name in the job.
        name: String,
        /// The name on the node.
        source_name: String,
    },
    /// The node lets nobody write to it.
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

/// What the driver is to show in the task, of what the node `offers`.
pub(crate) fn mounts(
    group: &TaskGroup,
    task: &Task,
    offers: &BTreeMap<String, HostVolume>,
) -> Result<Vec<Mount>, VolumeError> {
    let mounts = task.volume_mounts.iter();
    mounts.map(|mount| resolve(group, mount, offers)).collect()
}

fn resolve(
    group: &TaskGroup,
    mount: &VolumeMount,
    offers: &BTreeMap<String, HostVolume>,
) -> Result<Mount, VolumeError> {
    let VolumeMount {
        volume: name,
        destination,
        read_only,
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
        task_path: destination.clone(),
        host_path: offer.path.clone(),
        readonly,
        ..Mount::default()
    })
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture;
    use muster_domain::job::VolumeAsk;

    use super::*;

    /// A task that wants the node's `disk`, asked for and mounted so; and what the node offers.
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
        });
        let offers = offered.map(|read_only| {
            let path = "/mnt/disk".to_owned();
            ("disk".to_owned(), HostVolume { path, read_only })
        });
        mounts(&group, &group.tasks[0], &offers.into_iter().collect())
    }

    #[test]
    fn a_volume_is_shown_where_the_task_wants_it() {
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
    fn what_the_node_forbids_is_refused() {
        let error = resolved(false, false, Some(true)).unwrap_err();

        assert!(matches!(error, VolumeError::ReadOnly { .. }), "{error}");
    }

    #[test]
    fn what_the_node_lacks_is_refused() {
        let error = resolved(true, true, None).unwrap_err();

        assert!(matches!(error, VolumeError::NotHere { .. }), "{error}");
    }
}
