//! Allocations of the native driver that run a shell.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_domain::alloc::DesiredAlloc;
use muster_domain::fixture;
use muster_domain::id::{AllocId, DeploymentId, LogIndex};
use muster_domain::job::{JobSpec, JobType, Lifecycle, RestartMode, RestartPolicy};
use muster_domain::one_off::Definition;
use muster_domain::resources::{AllocatedPort, Holding, Mb};

/// Builds an allocation of one task `main`.
#[derive(Clone, Debug)]
pub(crate) struct AllocBuilder {
    index: LogIndex,
    name: u32,
    spec: JobSpec,
    holding: Holding,
    deployment: Option<DeploymentId>,
}

/// A service that runs `script` and is never restarted.
pub(crate) fn service(name: u32, script: &str) -> AllocBuilder {
    AllocBuilder::new(name, JobType::Service, script)
}

/// A batch job that runs `script` and is never restarted.
pub(crate) fn batch(name: u32, script: &str) -> AllocBuilder {
    AllocBuilder::new(name, JobType::Batch, script)
}

/// The one allocation of a one-off task.
pub(crate) fn one_off(name: u32, definition: &Definition) -> AllocBuilder {
    AllocBuilder {
        index: next_index(),
        name,
        spec: muster_domain::one_off::job(
            &format!("task-{name}"),
            "it",
            definition,
            muster_domain::one_off::OneOffTimings::default(),
        ),
        holding: Holding::default(),
        deployment: None,
    }
}

/// Tests of this process look at mounts, cgroups and log lines of one machine, so no two allocations share an id.
fn next_index() -> LogIndex {
    static NEXT: AtomicU64 = AtomicU64::new(10_000);
    LogIndex(NEXT.fetch_add(1, Ordering::Relaxed))
}

impl AllocBuilder {
    fn new(name: u32, job_type: JobType, script: &str) -> Self {
        let mut spec = fixture::job("it").job_type(job_type).build();
        let task = &mut spec.groups[0].tasks[0];
        task.restart = RestartPolicy {
            attempts: 0,
            interval: Duration::from_mins(10),
            delay: Duration::from_millis(50),
            mode: RestartMode::Fail,
        };
        "native".clone_into(&mut task.driver);
        task.config_json =
            serde_json::json!({"command": "/bin/sh", "args": ["-c", script]}).to_string();
        Self {
            index: next_index(),
            name,
            spec,
            holding: Holding::default(),
            deployment: None,
        }
    }

    /// Placed at this index of the log. Builders with the same index and name make the same allocation.
    pub(crate) fn index(mut self, index: u64) -> Self {
        self.index = LogIndex(index);
        self
    }

    /// Not isolated: it sees the test's files and is the first process of nothing.
    pub(crate) fn raw(mut self) -> Self {
        let task = &mut self.spec.groups[0].tasks[0];
        let mut config: serde_json::Value = serde_json::from_str(&task.config_json).unwrap();
        config["isolation"] = "raw".into();
        task.config_json = config.to_string();
        self
    }

    /// Restarted this often.
    pub(crate) fn restarts(mut self, attempts: u32) -> Self {
        self.spec.groups[0].tasks[0].restart.attempts = attempts;
        self
    }

    /// Killed this long after its signal.
    pub(crate) fn kill_timeout(mut self, timeout: Duration) -> Self {
        self.spec.groups[0].tasks[0].kill_timeout = timeout;
        self
    }

    /// With this memory limit.
    pub(crate) fn memory_mb(mut self, mb: u32) -> Self {
        self.spec.groups[0].tasks[0].resources.memory = Mb(mb);
        self
    }

    /// With another driver and its configuration.
    pub(crate) fn driver(mut self, driver: &str, config: &serde_json::Value) -> Self {
        let task = &mut self.spec.groups[0].tasks[0];
        driver.clone_into(&mut task.driver);
        task.config_json = config.to_string();
        self
    }

    /// Run as this user.
    pub(crate) fn user(mut self, user: &str) -> Self {
        self.spec.groups[0].tasks[0].user.clear();
        self.spec.groups[0].tasks[0].user.push_str(user);
        self
    }

    /// With this port.
    pub(crate) fn port(mut self, label: &str, value: u16) -> Self {
        self.holding.ports.push(AllocatedPort {
            label: label.to_owned(),
            value,
            to: 0,
            host_ip: String::new(),
        });
        self
    }

    /// With another task of the native driver, which runs `script` when `lifecycle` says.
    pub(crate) fn task(mut self, name: &str, script: &str, lifecycle: Lifecycle) -> Self {
        let tasks = &mut self.spec.groups[0].tasks;
        let mut task = tasks[0].clone();
        name.clone_into(&mut task.name);
        task.config_json =
            serde_json::json!({"command": "/bin/sh", "args": ["-c", script]}).to_string();
        task.lifecycle = Some(lifecycle);
        tasks.push(task);
        self
    }

    /// Otherwise as `edit` says.
    pub(crate) fn with(mut self, edit: impl FnOnce(&mut JobSpec, &mut Holding)) -> Self {
        edit(&mut self.spec, &mut self.holding);
        self
    }

    /// Placed by a deployment.
    pub(crate) fn deployed(mut self) -> Self {
        self.deployment = Some(DeploymentId::at(LogIndex(7), 0));
        self
    }

    /// Placed at index 1.
    pub(crate) fn build(self) -> DesiredAlloc {
        DesiredAlloc {
            holding: self.holding,
            deployment: self.deployment,
            ..fixture::desired(
                AllocId::at(self.index, self.name),
                fixture::version(self.spec),
            )
        }
    }
}
