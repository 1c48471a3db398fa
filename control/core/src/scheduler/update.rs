//! Whether a new version of a group can go on in the instances of an old one.

use muster_domain::job::{GroupNetwork, JobSpec, Task, TaskGroup};

/// What a change of version asks of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing: it is of that version.
    None,
    /// Its tasks need not know: at most the count, the priority or a policy differs.
    InPlace,
    /// It must be replaced.
    Destructive,
}

/// What the change from `old` to `new` asks of an instance of the group.
///
/// A changed constraint, restart policy, kill signal or log rotation replaces nothing (whether the node
/// still meets the constraints is checked elsewhere); changed metadata of the job does, because tasks
/// see it in their environment.
pub(super) fn change(old: (&JobSpec, &TaskGroup), new: (&JobSpec, &TaskGroup)) -> Change {
    let TaskGroup {
        name: _,
        count: _,
        constraints: _,
        affinities,
        spreads,
        restart: _,
        reschedule: _,
        update: _,
        migrate: _,
        disconnect: _,
        scaling: _,
        volumes,
        shutdown_delay: _,
        ephemeral_disk,
        network,
        meta,
        tasks,
    } = old.1;
    let same = old.0.meta == new.0.meta
        && old.0.name == new.0.name
        && old.0.affinities == new.0.affinities
        && old.0.spreads == new.0.spreads
        && *affinities == new.1.affinities
        && *spreads == new.1.spreads
        && *volumes == new.1.volumes
        && *ephemeral_disk == new.1.ephemeral_disk
        && same_network(network.as_ref(), new.1.network.as_ref())
        && *meta == new.1.meta
        && tasks.len() == new.1.tasks.len()
        && tasks.iter().all(|old| {
            new.1
                .task(&old.name)
                .is_some_and(|new| same_process(old, new))
        });
    if same {
        Change::InPlace
    } else {
        Change::Destructive
    }
}

/// A policy takes effect on tasks that run.
fn same_network(old: Option<&GroupNetwork>, new: Option<&GroupNetwork>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => {
            let GroupNetwork {
                mode,
                ports,
                policy: _,
                dns,
            } = old;
            *mode == new.mode && *ports == new.ports && *dns == new.dns
        }
        (None, None) => true,
        (None, Some(_)) | (Some(_), None) => false,
    }
}

fn same_process(old: &Task, new: &Task) -> bool {
    let Task {
        name: _,
        driver,
        config_json,
        user,
        env,
        resources,
        constraints: _,
        affinities,
        restart: _,
        lifecycle: _,
        leader: _,
        payload_file,
        volume_mounts,
        shutdown_delay: _,
        kill_timeout: _,
        kill_signal: _,
        logs: _,
        meta,
        policy: _,
    } = old;
    *driver == new.driver
        && *config_json == new.config_json
        && *user == new.user
        && *env == new.env
        && *resources == new.resources
        && *affinities == new.affinities
        && *payload_file == new.payload_file
        && *volume_mounts == new.volume_mounts
        && *meta == new.meta
}
