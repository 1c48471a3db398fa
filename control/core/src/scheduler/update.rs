//! Decides whether a new version of a group can be applied in place to instances of an old one. The tables of jobs,
//! groups and tasks in `domain/src/job` have the rule of each field.

use muster_domain::job::{JobSpec, TaskGroup};

/// The change that a new version asks of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The instance is of the new version already.
    None,
    /// The change has no effect on its tasks: at most the count, the priority, a policy or limits differ. If the
    /// instance takes more of its node then, the node must have the room, which is checked elsewhere.
    InPlace,
    /// The instance must be replaced.
    Destructive,
}

/// Returns the change from `old` to `new` that an instance of the group needs. If the change can be made in place, also
/// returns the drivers whose running tasks get other limits by it.
///
/// Limits apply to running tasks if the agent sets them: a node reports the drivers for which it does
/// ([`muster_domain::node::limits_in_place`]).
///
/// A changed constraint, restart policy, kill signal or log rotation replaces no instance. Another check decides
/// whether the node still meets the constraints. Changed metadata of the job replaces instances, because tasks see it
/// in their environment.
pub(super) fn change<'a>(
    old: (&JobSpec, &TaskGroup),
    new: (&JobSpec, &'a TaskGroup),
) -> (Change, Vec<&'a str>) {
    let same = JobSpec::updates_in_place(old.0, new.0) && TaskGroup::updates_in_place(old.1, new.1);
    if !same {
        return (Change::Destructive, Vec::new());
    }
    let pairs = new.1.tasks.iter().filter_map(|new| {
        let old = old.1.task(&new.name)?;
        Some((old, new))
    });
    let limited = pairs.filter(|(old, new)| old.resources != new.resources);
    let drivers = limited.map(|(_, new)| new.driver.as_str()).collect();
    (Change::InPlace, drivers)
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture::job;
    use muster_domain::job::{ByteRate, Lifecycle, LifecycleHook, LogConfig, Task};
    use muster_domain::resources::{CpuMhz, Mb, TaskResources};

    use super::*;

    fn change_by(edit: impl FnOnce(&mut TaskResources)) -> (Change, Vec<String>) {
        let mut old = job("web").build();
        let task = &mut old.groups[0].tasks[0];
        "podman".clone_into(&mut task.driver);
        task.resources.memory = Mb(100);
        task.resources.memory_max = Some(Mb(200));
        let mut new = old.clone();
        edit(&mut new.groups[0].tasks[0].resources);
        let (change, limited) = change((&old, &old.groups[0]), (&new, &new.groups[0]));
        (change, limited.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn limits_change_in_place_where_that_is_possible() {
        let rate = Some(ByteRate(1 << 20));
        let expected = (Change::InPlace, vec!["podman".to_owned()]);

        assert_eq!(change_by(|to| to.memory_max = Some(Mb(300))), expected);
        assert_eq!(change_by(|to| to.memory = Mb(101)), expected);
        assert_eq!(change_by(|to| to.memory = Mb(99)), expected);
        assert_eq!(change_by(|to| to.cpu = CpuMhz(7)), expected);
        assert_eq!(change_by(|to| to.cpu = CpuMhz(7_000)), expected);
        assert_eq!(change_by(|to| to.cpu_hard_limit = true), expected);
        assert_eq!(change_by(|to| to.io.read_rate = rate), expected);
        assert_eq!(change_by(|_same| {}), (Change::InPlace, Vec::new()));
    }

    #[test]
    fn lifecycle_changes_replace_instances() {
        let old = job("web").build();
        let by = |edit: fn(&mut Task)| {
            let mut new = old.clone();
            edit(&mut new.groups[0].tasks[0]);
            change((&old, &old.groups[0]), (&new, &new.groups[0])).0
        };

        let sidecar = by(|task| {
            task.lifecycle = Some(Lifecycle {
                hook: LifecycleHook::Prestart,
                sidecar: true,
            });
        });
        assert_eq!(sidecar, Change::Destructive);
        assert_eq!(by(|task| task.kill_timeout *= 2), Change::InPlace);
    }

    #[test]
    fn logs_are_turned_off_by_a_replacement_alone() {
        let old = job("web").build();
        let with = |logs| {
            let mut new = old.clone();
            new.groups[0].tasks[0].logs = logs;
            change((&old, &old.groups[0]), (&new, &new.groups[0])).0
        };
        let fewer = LogConfig {
            max_files: 1,
            ..LogConfig::default()
        };

        assert_eq!(with(fewer), Change::InPlace);
        assert_eq!(with(LogConfig::DISABLED), Change::Destructive);
    }

    #[test]
    fn memory_max_decrease_or_cores_change_is_destructive() {
        let replaced = [
            change_by(|to| to.memory_max = Some(Mb(199))),
            change_by(|to| to.memory_max = None),
            change_by(|to| to.cores = 1),
        ];

        assert_eq!(replaced, [const { (Change::Destructive, Vec::new()) }; 3]);
    }
}
