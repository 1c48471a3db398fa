//! Nomad's drivers `exec` and `raw_exec`, which the native driver serves.
//!
//! A task of `exec` is contained, a task of `raw_exec` is raw. The agent rewrites such a task when it receives the
//! allocation; later code never sees these names. A plugin of the same name takes precedence.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::{JobKey, LogIndex};
use muster_domain::job::{JobVersion, Task};
use muster_domain::node::{DriverInfo, limits_in_place};
use serde_json::{Map, Value};

use super::{DriverHealth, Drivers, native};

/// A driver of Nomad that the native driver serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NomadDriver {
    name: &'static str,
    /// The level of isolation of its tasks.
    isolation: &'static str,
    /// Fields of its `config` whose given values match the native driver's fixed behaviour.
    implied: &'static [(&'static str, &'static [&'static str])],
}

const EXEC: NomadDriver = NomadDriver {
    name: "exec",
    isolation: "contained",
    implied: &[
        ("pid_mode", &["", "private"]),
        ("ipc_mode", &["", "private"]),
    ],
};
const RAW_EXEC: NomadDriver = NomadDriver {
    name: "raw_exec",
    isolation: "raw",
    implied: &[],
};

/// Nomad's drivers that the native driver serves on this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NomadDrivers {
    served: Vec<NomadDriver>,
    allow_raw: bool,
}

/// A job's version as the server sent it, and as this node runs it.
struct SharedVersion {
    sent: Arc<JobVersion>,
    rewritten: Arc<JobVersion>,
}

impl NomadDrivers {
    /// Returns Nomad's drivers whose names no driver of `drivers` has, if the native driver exists. `allow_raw`
    /// means that the native driver takes raw tasks.
    pub(crate) fn missing_from(drivers: &Drivers, allow_raw: bool) -> Self {
        let is_free = |served: &NomadDriver| drivers.named(served.name).is_none();
        let has_native = drivers.named(native::NAME).is_some();
        let served = [EXEC, RAW_EXEC].into_iter().filter(is_free);
        Self {
            served: served.filter(|_| has_native).collect(),
            allow_raw,
        }
    }

    /// Returns `allocs` with the tasks of these drivers rewritten for the native driver. Each allocation arrives
    /// with its own copy of the job's version. Allocations of one version share one copy from here on.
    pub(crate) fn rewritten(&self, mut allocs: Vec<DesiredAlloc>) -> Vec<DesiredAlloc> {
        let mut versions: BTreeMap<(JobKey, LogIndex), SharedVersion> = BTreeMap::new();
        for alloc in &mut allocs {
            let name = (alloc.job.spec.key(), alloc.job.job_modify_index);
            match versions.entry(name) {
                Entry::Occupied(version) if *version.get().sent == *alloc.job => {
                    alloc.job = Arc::clone(&version.get().rewritten);
                }
                Entry::Occupied(_) => self.rewrite(&mut alloc.job),
                Entry::Vacant(place) => {
                    let sent = Arc::clone(&alloc.job);
                    self.rewrite(&mut alloc.job);
                    let rewritten = Arc::clone(&alloc.job);
                    place.insert(SharedVersion { sent, rewritten });
                }
            }
        }
        allocs
    }

    fn rewrite(&self, job: &mut Arc<JobVersion>) {
        let is_theirs = |task: &Task| self.served_as(&task.driver).is_some();
        let groups = &job.spec.groups;
        if !groups.iter().flat_map(|group| &group.tasks).any(is_theirs) {
            return;
        }
        let version = Arc::make_mut(job);
        for group in &mut version.spec.groups {
            for task in &mut group.tasks {
                if let Some(served) = self.served_as(&task.driver) {
                    native::NAME.clone_into(&mut task.driver);
                    task.config_json = native_config(served, &task.config_json);
                }
            }
        }
    }

    fn served_as(&self, driver: &str) -> Option<&NomadDriver> {
        self.served.iter().find(|served| served.name == driver)
    }

    /// Adds these drivers to the `health` of the node's drivers. Each has the health of the native driver.
    pub(crate) fn add_health(&self, health: &mut DriverHealth) {
        let Some(native) = health.get(native::NAME).cloned() else {
            return;
        };
        for served in &self.served {
            let mut info = native.clone();
            let attribute = info.attributes.remove(&limits_in_place(native::NAME));
            info.attributes.clear();
            let attribute = attribute.map(|value| (limits_in_place(served.name), value));
            info.attributes.extend(attribute);
            if *served == RAW_EXEC && !self.allow_raw {
                info = DriverInfo {
                    detected: false,
                    healthy: false,
                    description: "the node allows no raw tasks: plugin \"native\" { config { allow_raw = true } }"
                        .to_owned(),
                    ..info
                };
            }
            health.insert(served.name.to_owned(), info);
        }
    }
}

/// Converts the `config` of a task of `served` for the native driver. Unknown fields stay, and the native driver
/// refuses them by name when the task starts.
fn native_config(served: &NomadDriver, config_json: &str) -> String {
    let Ok(Value::Object(mut fields)) = serde_json::from_str::<Value>(config_json) else {
        return config_json.to_owned();
    };
    drop_implied(served, &mut fields);
    fields.insert("isolation".to_owned(), served.isolation.into());
    Value::Object(fields).to_string()
}

fn drop_implied(served: &NomadDriver, fields: &mut Map<String, Value>) {
    for (field, values) in served.implied {
        let is_implied = fields
            .get(*field)
            .is_some_and(|value| value.is_null() || values.iter().any(|implied| value == implied));
        if is_implied {
            fields.remove(*field);
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture;
    use muster_domain::id::AllocId;
    use serde_json::json;

    use super::*;

    const BOTH: [NomadDriver; 2] = [EXEC, RAW_EXEC];

    fn rewritten(driver: &str, config: &Value) -> (String, Value) {
        let mut spec = fixture::job("web").build();
        let task = &mut spec.groups[0].tasks[0];
        driver.clone_into(&mut task.driver);
        task.config_json = config.to_string();
        let desired = fixture::desired(AllocId::at(LogIndex(1), 0), fixture::version(spec));
        let drivers = NomadDrivers {
            served: BOTH.to_vec(),
            allow_raw: true,
        };
        let desired = drivers.rewritten(vec![desired]);
        let task = &desired[0].job.spec.groups[0].tasks[0];
        let config = serde_json::from_str(&task.config_json).unwrap();
        (task.driver.clone(), config)
    }

    #[test]
    fn exec_tasks_become_native_tasks() {
        let native = |config| ("native".to_owned(), config);
        let config =
            json!({"command": "a", "args": ["b"], "pid_mode": "private", "work_dir": "/x"});
        assert_eq!(
            rewritten("exec", &config),
            native(
                json!({"command": "a", "args": ["b"], "work_dir": "/x", "isolation": "contained"})
            )
        );
        assert_eq!(
            rewritten("raw_exec", &json!({"command": "a"})),
            native(json!({"command": "a", "isolation": "raw"}))
        );
        // The field is left for the native driver, which refuses it by name.
        let host = json!({"command": "a", "pid_mode": "host"});
        assert_eq!(rewritten("exec", &host).1["pid_mode"], "host");
        let other = json!({"image": "redis"});
        assert_eq!(
            rewritten("docker", &other),
            ("docker".to_owned(), other.clone())
        );
    }

    /// The allocations are as in a message: each with its own copy of the version.
    #[test]
    fn allocations_of_a_version_share_it() {
        let alloc = |at: u32, id: &str, driver: &str| {
            let mut spec = fixture::job(id).build();
            driver.clone_into(&mut spec.groups[0].tasks[0].driver);
            fixture::desired(AllocId::at(LogIndex(1), at), fixture::version(spec))
        };
        let drivers = NomadDrivers {
            served: BOTH.to_vec(),
            allow_raw: true,
        };

        let allocs = vec![
            alloc(0, "web", "exec"),
            alloc(1, "db", "native"),
            alloc(2, "web", "exec"),
            alloc(3, "db", "native"),
        ];
        let allocs = drivers.rewritten(allocs);

        let driver = |at: usize| allocs[at].job.spec.groups[0].tasks[0].driver.as_str();
        assert_eq!([driver(0), driver(2), driver(1)], ["native"; 3]);
        assert_eq!(allocs[1].job.spec.id, "db");
        assert!(Arc::ptr_eq(&allocs[0].job, &allocs[2].job));
        assert!(Arc::ptr_eq(&allocs[1].job, &allocs[3].job));
    }

    #[test]
    fn health_follows_the_native_driver() {
        let attributes = BTreeMap::from([
            (limits_in_place("native"), "1".to_owned()),
            ("driver.native.version".to_owned(), "1".to_owned()),
        ]);
        let native = DriverInfo {
            detected: true,
            healthy: true,
            description: "Healthy".to_owned(),
            attributes,
        };
        let mut health = DriverHealth::from([("native".to_owned(), native)]);

        let drivers = NomadDrivers {
            served: BOTH.to_vec(),
            allow_raw: false,
        };
        drivers.add_health(&mut health);

        assert!(health["exec"].healthy && !health["raw_exec"].healthy);
        assert!(health["raw_exec"].description.contains("allow_raw"));
        let exec = BTreeMap::from([("driver.exec.limits_in_place".to_owned(), "1".to_owned())]);
        assert_eq!(health["exec"].attributes, exec);
    }
}
