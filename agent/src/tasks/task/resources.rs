//! The limits of a task's cgroup, from the resources of its job and of its node.

use muster_domain::job::Task;
use muster_domain::node::NodeResources;
use muster_domain::resources::{Mb, TaskResources};
use muster_domain::saturating;

use crate::limits::{CORE_MHZ_UNKNOWN, MEMORY_SLOW_BYTES_MAX, TASK_PIDS_MAX};
use crate::resources::ResourceContext;
use crate::resources::cgroup::Limits;
use crate::session::SessionContext;
use crate::tasks::task_ref::TaskRef;

/// Calls `set` with the task's limits and the cores on which it may run. No other task can take cores meanwhile.
pub(super) fn with_limits<T>(
    resources: &ResourceContext,
    session: &SessionContext,
    task: &TaskRef,
    set: impl FnOnce(&Limits) -> T,
) -> T {
    let asked = &task.task().resources;
    let TaskResources {
        cpu: _,
        cores: _,
        memory,
        memory_max,
        devices: _,
        cpu_hard_limit,
        io,
        ports: _,
    } = *asked;
    let limit = asked.memory_limit();
    let cores_max = || cores_of(task.cpu_mhz(), &session.spec().resources);
    let limits = Limits {
        cpu_mhz: task.cpu_mhz(),
        cpu_cores_max: cpu_hard_limit.then(cores_max),
        memory_max_bytes: limit.map(Mb::bytes),
        // A reservation has an effect only below a higher limit.
        memory_low_bytes: memory_max.map(|_| memory.bytes()),
        memory_high_bytes: limit.and_then(|max| throttle_threshold(memory, max)),
        pids_max: pids_max(task.task()),
        io,
        ..Limits::default()
    };
    let set = |cores| set(&Limits { cores, ..limits });
    match task.cores() {
        Some(own) => set(own.ids.clone()),
        None => resources.cores.shared(&resources.tree, set),
    }
}

/// The field of a requested limit that only the task's cgroup can enforce.
pub(super) fn limit_needing_cgroup(task: &Task) -> Option<&'static str> {
    let TaskResources {
        cpu_hard_limit, io, ..
    } = &task.resources;
    match (cpu_hard_limit, io.is_none()) {
        (true, _) => Some("resources.cpu_hard_limit"),
        (false, false) => Some("resources.io"),
        (false, true) => None,
    }
}

/// The error for `field` if it cannot be enforced, because the driver has no task in the agent's cgroup.
pub(super) fn unenforced_limit(field: &str, driver: &str) -> String {
    format!(
        "`{field}` is kept by the agent, and the driver `{driver}` does not put tasks into the agent's cgroups: say in \
         the `config` block what it is to limit"
    )
}

/// Converts `mhz` to cores of this node, as CPU is placed: the fastest core counts for all.
fn cores_of(mhz: u32, node: &NodeResources) -> f64 {
    let cores = f64::from(node.cores.max(1));
    let total = saturating::to_u32(node.total.cpu_mhz);
    if total == 0 {
        return f64::from(mhz) / f64::from(CORE_MHZ_UNKNOWN);
    }
    (f64::from(mhz) * cores / f64::from(total)).min(cores)
}

/// The usage at which a task that may exceed its reservation is throttled. It is nine tenths of the way to the
/// limit, and near the limit. A task that is throttled for long stalls where a restart would help.
fn throttle_threshold(memory: Mb, max: Mb) -> Option<u64> {
    let room = max.bytes().saturating_sub(memory.bytes());
    (room > 0).then(|| max.bytes() - (room / 10).min(MEMORY_SLOW_BYTES_MAX))
}

/// The number of processes and threads that a task may have: the value of its block, up to the bound for all tasks.
/// It has no effect where a driver does not put the task into the agent's cgroup.
fn pids_max(task: &Task) -> u64 {
    let config: serde_json::Value = serde_json::from_str(&task.config_json).unwrap_or_default();
    match config["pids_max"].as_u64() {
        // The process next to the actions does not count as theirs.
        Some(asked) if asked > 0 => asked.saturating_add(1).min(TASK_PIDS_MAX),
        Some(_) | None => TASK_PIDS_MAX,
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::job::ByteRate;
    use muster_domain::resources::{Amount, IoLimits};

    use super::*;

    #[test]
    fn pids_max_of_the_config_limits_processes() {
        let cases = [
            (r#"{"pids_max": 7}"#, 8),
            (r#"{"pids_max": 0}"#, TASK_PIDS_MAX),
            (r#"{"pids_max": 1000000}"#, TASK_PIDS_MAX),
            (r#"{"pids_max": "many"}"#, TASK_PIDS_MAX),
            ("{}", TASK_PIDS_MAX),
            ("", TASK_PIDS_MAX),
        ];
        for (config, expected) in cases {
            let mut task = muster_domain::fixture::task("main");
            "other".clone_into(&mut task.driver);
            config.clone_into(&mut task.config_json);
            assert_eq!(pids_max(&task), expected, "{config}");
        }
    }

    /// The node has four cores of 2 500 MHz: 500 MHz are a fifth of one core, and no task has more than all four.
    #[test]
    fn cpu_hard_limit_is_share_of_node_cores() {
        let mut node = NodeResources {
            cores: 4,
            total: Amount {
                cpu_mhz: 10_000,
                ..Amount::default()
            },
            ..NodeResources::default()
        };

        let cores = [500, 2_500, 50_000].map(|mhz| cores_of(mhz, &node));
        node.total.cpu_mhz = 0;

        assert!((cores[0] - 0.2).abs() < 1e-9, "{cores:?}");
        assert!((cores[1] - 1.0).abs() < 1e-9, "{cores:?}");
        assert!((cores[2] - 4.0).abs() < 1e-9, "{cores:?}");
        assert!((cores_of(500, &node) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_task_is_slowed_down_near_its_limit() {
        let slow = |memory, max| throttle_threshold(Mb(memory), Mb(max)).map(|bytes| bytes >> 20);

        assert_eq!(slow(100, 200), Some(190));
        assert_eq!(slow(1_000, 9_000), Some(8_936), "64 MiB below");
        assert_eq!(slow(100, 100), None);
    }

    #[test]
    fn limits_of_the_cgroup_alone_are_named() {
        let mut task = muster_domain::fixture::task("main");
        assert_eq!(limit_needing_cgroup(&task), None);

        task.resources.io.write_rate = Some(ByteRate(1 << 20));
        assert_eq!(limit_needing_cgroup(&task), Some("resources.io"));
        task.resources.io = IoLimits::default();
        task.resources.cpu_hard_limit = true;
        assert_eq!(
            limit_needing_cgroup(&task),
            Some("resources.cpu_hard_limit")
        );
        assert!(unenforced_limit("resources.io", "docker").contains("driver `docker`"));
    }
}
