//! Builders with sane defaults, for tests.

#[cfg(feature = "fixture")]
pub mod corpus;
#[cfg(feature = "fixture")]
pub mod random;
#[cfg(feature = "fixture")]
pub mod recorded;
#[cfg(feature = "fixture")]
pub mod submission;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::alloc::{ClientStatus, DesiredAlloc, DesiredStatus};
use crate::id::{AllocId, LogIndex, NodeId, Timestamp};
use crate::job::{
    BitRate, Constraint, DEFAULT_HOST_NETWORK, DEFAULT_NODE_POOL, DEFAULT_PRIORITY,
    DirectionPolicy, EphemeralDisk, GroupNetwork, JobSpec, JobType, JobVersion, LogConfig,
    MigrateStrategy, NetworkMode, NetworkPolicy, Operand, PolicyAction, PolicyProtocol, PolicyRule,
    PortAsk, PortRange, ReschedulePolicy, RestartPolicy, Task, TaskGroup, UpdateStrategy,
    read_peer,
};
use crate::node::{DriverInfo, HostAddress, NodeResources, NodeSecret, NodeSpec};
use crate::one_off::{Action, Definition, HOST_ROOT, Run};
use crate::resources::{Amount, CpuMhz, Holding, Mb, TaskResources};

/// Whether tests run all of their repetitions (`cargo xtask test --long`).
#[must_use]
pub fn long() -> bool {
    std::env::var_os("MUSTER_TEST_LONG").is_some_and(|value| value == "1")
}

/// A service job of one group `main` with one task `main`: 100 MHz, 64 MiB, 10 MiB of disk.
#[must_use]
pub fn job(id: &str) -> JobBuilder {
    JobBuilder(JobSpec {
        id: id.to_owned(),
        name: id.to_owned(),
        groups: vec![group("main")],
        ..JobSpec::default()
    })
}

/// A one-off task that runs `/bin/true`, with a minute each to start in and to be kept for.
#[must_use]
pub fn definition() -> Definition {
    Definition {
        rootfs: HOST_ROOT.to_owned(),
        env: Vec::new(),
        action: Action::Run(Run {
            path: "/bin/true".to_owned(),
            args: Vec::new(),
            dir: String::new(),
            env: Vec::new(),
            resource_limits: None,
            user: "vcap".to_owned(),
            log_source: String::new(),
            suppress_log_output: false,
        }),
        disk_mb: 10,
        memory_mb: 64,
        cpu_weight: 100,
        max_pids: 0,
        privileged: false,
        log_source: String::new(),
        log_guid: String::new(),
        metrics_guid: String::new(),
        result_file: String::new(),
        completion_callback_url: String::new(),
        annotation: String::new(),
        egress_rules: Vec::new(),
        placement_tags: Vec::new(),
        priority: DEFAULT_PRIORITY,
        start_timeout_ms: 60_000,
        retention_ms: 60_000,
        datacenters: Vec::new(),
        node_pool: String::new(),
        constraints: Vec::new(),
        result_required: false,
    }
}

/// A group of one task `main`.
#[must_use]
pub fn group(name: &str) -> TaskGroup {
    TaskGroup {
        name: name.to_owned(),
        // The group updates all instances at once. Tests of the job then need no deployment.
        update: Some(UpdateStrategy {
            max_parallel: 0,
            ..UpdateStrategy::default()
        }),
        migrate: Some(MigrateStrategy::default()),
        ephemeral_disk: EphemeralDisk {
            size: Mb(10),
            ..EphemeralDisk::default()
        },
        tasks: vec![task("main")],
        ..TaskGroup::default()
    }
}

/// A task of the mock driver.
#[must_use]
pub fn task(name: &str) -> Task {
    Task {
        name: name.to_owned(),
        driver: "mock".to_owned(),
        resources: TaskResources {
            cpu: CpuMhz(100),
            memory: Mb(64),
            ..TaskResources::default()
        },
        kill_signal: "SIGTERM".to_owned(),
        // Less than the group's disk.
        logs: LogConfig {
            max_files: 1,
            max_file_size: Mb(9),
            ..LogConfig::default()
        },
        ..Task::default()
    }
}

/// Builds a job.
#[derive(Clone, Debug)]
pub struct JobBuilder(JobSpec);

impl JobBuilder {
    /// Sets the type of the job.
    #[must_use]
    pub fn job_type(mut self, job_type: JobType) -> Self {
        self.0.job_type = job_type;
        for group in &mut self.0.groups {
            group.restart = RestartPolicy::default_for(job_type);
            group.reschedule = ReschedulePolicy::default_for(job_type);
            if job_type != JobType::Service {
                group.update = None;
            }
            group.migrate = (job_type == JobType::Service).then(MigrateStrategy::default);
            for task in &mut group.tasks {
                task.restart = group.restart;
            }
        }
        self
    }

    /// Sets the count of the first group.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.0.groups[0].count = count;
        self
    }

    /// Sets the priority.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.0.priority = priority;
        self
    }

    /// Sets the CPU of the first task.
    #[must_use]
    pub fn cpu_mhz(mut self, mhz: u32) -> Self {
        self.0.groups[0].tasks[0].resources.cpu = CpuMhz(mhz);
        self
    }

    /// Sets the memory of the first task.
    #[must_use]
    pub fn memory_mb(mut self, mb: u32) -> Self {
        self.0.groups[0].tasks[0].resources.memory = Mb(mb);
        self
    }

    /// Adds a static port to the first group.
    #[must_use]
    pub fn port(self, label: &str, fixed: u16) -> Self {
        self.port_ask(label, Some(fixed))
    }

    /// Adds a dynamic port to the first group.
    #[must_use]
    pub fn dynamic_port(self, label: &str) -> Self {
        self.port_ask(label, None)
    }

    fn port_ask(mut self, label: &str, fixed: Option<u16>) -> Self {
        let network = self.0.groups[0]
            .network
            .get_or_insert_with(|| GroupNetwork {
                mode: NetworkMode::Host,
                ports: Vec::new(),
                policy: None,
                dns: None,
                hostname: String::new(),
            });
        network.ports.push(PortAsk {
            label: label.to_owned(),
            fixed,
            to: 0,
            host_network: DEFAULT_HOST_NETWORK.to_owned(),
        });
        self
    }

    /// Adds a constraint to the job.
    ///
    /// # Panics
    ///
    /// If `operand` is not an operand.
    #[must_use]
    pub fn constraint(mut self, left: &str, operand: &str, right: &str) -> Self {
        self.0.constraints.push(Constraint {
            left: left.to_owned(),
            operand: Operand::from_name(operand).expect("the fixture names a known operand"),
            right: right.to_owned(),
        });
        self
    }

    /// The spec.
    #[must_use]
    pub fn build(self) -> JobSpec {
        self.0
    }

    /// Returns version 0, registered at index 1.
    #[must_use]
    pub fn version(self) -> Arc<JobVersion> {
        version(self.0)
    }
}

/// Version 0 of a job, registered at index 1.
#[must_use]
pub fn version(spec: JobSpec) -> Arc<JobVersion> {
    Arc::new(JobVersion {
        spec,
        version: 0,
        submit_time: Timestamp(0),
        create_index: LogIndex(1),
        job_modify_index: LogIndex(1),
    })
}

/// An allocation of the first group of `job` that is to run, placed at index 1.
#[must_use]
pub fn desired(alloc_id: AllocId, job: Arc<JobVersion>) -> DesiredAlloc {
    DesiredAlloc {
        alloc_id,
        alloc_modify_index: LogIndex(1),
        desired: DesiredStatus::Run,
        name_index: 0,
        group_at: 0,
        holding: Holding::default(),
        deployment: None,
        canary: false,
        previous: None,
        client_status: ClientStatus::Pending,
        job,
    }
}

/// A node of 4 000 MHz, 8 192 MiB of memory and 100 GiB of disk, with the drivers mock and native.
#[must_use]
pub fn node(name: &str) -> NodeBuilder {
    let mut id = [0; 16];
    for (at, byte) in name.bytes().take(16).enumerate() {
        id[at] = byte;
    }
    let driver = DriverInfo {
        detected: true,
        healthy: true,
        description: "Healthy".to_owned(),
        attributes: BTreeMap::new(),
    };
    NodeBuilder(NodeSpec {
        id: NodeId(id),
        name: name.to_owned(),
        datacenter: "dc1".to_owned(),
        class: String::new(),
        pool: DEFAULT_NODE_POOL.to_owned(),
        attributes: BTreeMap::from([("cpu.arch".to_owned(), "amd64".to_owned())]),
        meta: BTreeMap::new(),
        resources: NodeResources {
            total: Amount {
                cpu_mhz: 4_000,
                memory_mb: 8_192,
                disk_mb: 100 * 1024,
                allocs: 0,
            },
            max_allocs: 0,
            cores: 4,
            core_ids: (0..4).collect(),
        },
        reserved: Amount::default(),
        reserved_cores: Vec::new(),
        reserved_ports: Vec::new(),
        addresses: vec![HostAddress {
            network: DEFAULT_HOST_NETWORK.to_owned(),
            address: "127.0.0.1".to_owned(),
            reserved_ports: Vec::new(),
        }],
        volumes: BTreeMap::new(),
        devices: Vec::new(),
        drivers: BTreeMap::from([
            ("mock".to_owned(), driver.clone()),
            ("native".to_owned(), driver),
        ]),
        version: "0.1.0".to_owned(),
        address: "127.0.0.1".to_owned(),
        secret_hash: NodeSecret::default().hash(),
    })
}

/// A policy with a value in most of its fields. It allows lookups of names at one server and denies all other egress.
///
/// # Panics
///
/// Never: its prefix is one.
#[must_use]
pub fn network_policy() -> NetworkPolicy {
    let rule = PolicyRule {
        name: "names".to_owned(),
        action: PolicyAction::Allow,
        protocol: PolicyProtocol::Udp,
        peers: vec![read_peer("10.0.0.53/32").expect("it is a prefix")],
        ports: vec![PortRange {
            first: 53,
            last: 53,
        }],
        icmp_type: None,
        icmp_code: None,
        log: true,
    };
    NetworkPolicy {
        egress: DirectionPolicy {
            default: Some(PolicyAction::Deny),
            rules: vec![rule],
            rate: Some(BitRate(1_000_000)),
        },
        ingress: DirectionPolicy::default(),
    }
}

/// Builds a node.
#[derive(Clone, Debug)]
pub struct NodeBuilder(NodeSpec);

impl NodeBuilder {
    /// Sets the CPU.
    #[must_use]
    pub fn cpu_mhz(mut self, mhz: u64) -> Self {
        self.0.resources.total.cpu_mhz = mhz;
        self
    }

    /// Sets the memory.
    #[must_use]
    pub fn memory_mb(mut self, mb: u64) -> Self {
        self.0.resources.total.memory_mb = mb;
        self
    }

    /// In this datacenter.
    #[must_use]
    pub fn datacenter(mut self, datacenter: &str) -> Self {
        datacenter.clone_into(&mut self.0.datacenter);
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn attribute(mut self, key: &str, value: &str) -> Self {
        self.0.attributes.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The spec.
    #[must_use]
    pub fn build(self) -> NodeSpec {
        self.0
    }
}
