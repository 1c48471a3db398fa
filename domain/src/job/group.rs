//! Task groups: tasks that are placed together.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::block::job_block;
use super::constraint::{Affinity, Constraint, Spread};
use super::job_type::JobType;
use super::launch::{Scaling, VolumeAsks};
use super::policy::NetworkPolicy;
use super::restart::RestartPolicy;
use super::task::{Lifecycle, LifecycleHook, Task};
use super::update::{Disconnect, MigrateStrategy, ReschedulePolicy, UpdateStrategy};
use crate::resources::{Amount, Mb};

job_block! {
    /// Tasks that share a node, an allocation directory and a network.
    pub struct TaskGroup {
        /// Unique within the job.
        pub name: String = String::new() => InPlace;
        /// Number of instances; default 1.
        pub count: u32 = TaskGroup::DEFAULT_COUNT => InPlace;
        /// Conditions on the node, besides the job's.
        // Constraints of a placed node are checked elsewhere.
        pub constraints: Vec<Constraint> = Vec::new() => InPlace;
        /// Preferences about the node, besides the job's affinities.
        pub affinities: Vec<Affinity> = Vec::new() => Replace;
        /// The spread of the instances, besides the job's spreads.
        pub spreads: Vec<Spread> = Vec::new() => Replace;
        /// Restarts of the group's tasks that end by themselves.
        pub restart: RestartPolicy = RestartPolicy::default_for(JobType::Service) => InPlace;
        /// Rescheduling of instances that failed on their node.
        pub reschedule: ReschedulePolicy = ReschedulePolicy::default_for(JobType::Service) => InPlace;
        /// The rolling update of the group. `None` for batch jobs, and without an `update` block. Then all instances
        /// are replaced at once, without a deployment.
        pub update: Option<UpdateStrategy> = None => InPlace;
        /// The migration of the group off a draining node. `None` for jobs that are not services.
        pub migrate: Option<MigrateStrategy> = None => InPlace;
        /// Handling of instances whose node is out of reach.
        pub disconnect: Disconnect = Disconnect::default() => InPlace;
        pub scaling: Option<Scaling> = None => InPlace;
        /// Host volumes by their name in the job.
        pub volumes: VolumeAsks = BTreeMap::new() => Replace;
        /// Time between the deregistration of the group's services and the kill of its tasks.
        pub shutdown_delay: Duration = Duration::ZERO => InPlace;
        /// Disk shared by the group's tasks.
        pub ephemeral_disk: EphemeralDisk = EphemeralDisk::default() => Replace;
        /// Network and ports; `None` means the host's network and no ports.
        pub network: Option<GroupNetwork> = None => SameIf(same_network);
        pub meta: BTreeMap<String, String> = BTreeMap::new() => Replace;
        pub tasks: Vec<Task> = Vec::new() => SameIf(same_tasks);
    }
}

impl TaskGroup {
    /// Instances of a group that sets no count and no bounds for scaling.
    pub const DEFAULT_COUNT: u32 = 1;

    /// Returns the resources of one instance: the most that may run at the same time.
    ///
    /// Sidecars that start first run all the time. The other tasks run in three steps, one after the other. Tasks that
    /// start first come first. The main tasks follow, with the tasks that start after them. Tasks that come last end
    /// the sequence.
    #[must_use]
    pub fn ask(&self) -> Amount {
        let disk = Amount {
            disk_mb: u64::from(self.ephemeral_disk.size.0),
            allocs: 1,
            ..Amount::default()
        };
        let sum = |phase: fn(Option<Lifecycle>) -> bool| {
            self.tasks
                .iter()
                .filter(|task| phase(task.lifecycle))
                .fold(Amount::default(), |sum, task| {
                    sum.plus(task.resources.amount())
                })
        };
        let always = sum(Lifecycle::is_always);
        let first = sum(|lifecycle| {
            lifecycle.is_some_and(|it| it.hook == LifecycleHook::Prestart && !it.sidecar)
        });
        let main = sum(|lifecycle| lifecycle.is_none_or(|it| it.hook == LifecycleHook::Poststart));
        let last = sum(|lifecycle| lifecycle.is_some_and(|it| it.hook == LifecycleHook::Poststop));
        disk.plus(always).plus(first.max(main).max(last))
    }

    /// The ports that one instance needs: those of the group, then those of each task in the order of tasks, with the
    /// task's position. [`Holding::ports`](crate::resources::Holding::ports) has the same order.
    pub fn ports(&self) -> impl Iterator<Item = (Option<usize>, &PortAsk)> {
        let own = self.network.iter().flat_map(|network| &network.ports);
        let of_tasks = self.tasks.iter().enumerate().flat_map(|(at, task)| {
            let ports = task.resources.ports.iter();
            ports.map(move |ask| (Some(at), ask))
        });
        own.map(|ask| (None, ask)).chain(of_tasks)
    }

    /// The task called `name`.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.name == name)
    }
}

fn same_tasks(old: &[Task], new: &[Task]) -> bool {
    let twin = |old: &Task| new.iter().find(|new| new.name == old.name);
    old.len() == new.len()
        && old
            .iter()
            .all(|old| twin(old).is_some_and(|new| Task::updates_in_place(old, new)))
}

#[expect(clippy::ref_option, reason = "the rule of a row takes the field")]
fn same_network(old: &Option<GroupNetwork>, new: &Option<GroupNetwork>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => GroupNetwork::updates_in_place(old, new),
        (None, None) => true,
        (None, Some(_)) | (Some(_), None) => false,
    }
}

job_block! {
    /// Disk shared by a group's tasks.
    #[derive(Copy)]
    pub struct EphemeralDisk {
        /// The size that placement counts, in MiB; default 300.
        pub size: Mb = Mb(300);
        /// Whether a replacement prefers the same node, where it gets the data.
        pub sticky: bool = false;
        /// Whether a replacement on any node gets the data if they are available.
        pub migrate: bool = false;
    }
}

/// The network mode of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkMode {
    /// The host's network stack.
    Host,
    /// A network stack of its own, connected by a bridge.
    Bridge,
    /// A network stack of its own, connected to nothing.
    None,
    /// A network stack of its own, connected by CNI plugins.
    Cni(CniNetwork),
}

/// A network that CNI plugins of the node set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniNetwork {
    /// Name of the network configuration on the node.
    pub name: String,
    /// Arguments for the plugins, besides those of the agent.
    pub args: BTreeMap<String, String>,
}

/// Prefix of the mode of CNI networks in job files and in the API.
pub const CNI_MODE_PREFIX: &str = "cni/";

impl NetworkMode {
    /// The name used in job files and in the API.
    #[must_use]
    pub fn as_str(&self) -> Cow<'static, str> {
        match self {
            Self::Host => Cow::Borrowed("host"),
            Self::Bridge => Cow::Borrowed("bridge"),
            Self::None => Cow::Borrowed("none"),
            Self::Cni(network) => Cow::Owned(format!("{CNI_MODE_PREFIX}{}", network.name)),
        }
    }

    /// The mode named `name`; a CNI network without arguments.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some(name) = name.strip_prefix(CNI_MODE_PREFIX) {
            return Some(Self::Cni(CniNetwork {
                name: name.to_owned(),
                args: BTreeMap::new(),
            }));
        }
        [Self::Host, Self::Bridge, Self::None]
            .into_iter()
            .find(|mode| mode.as_str() == name)
    }

    /// The CNI network, if it is one.
    #[must_use]
    pub fn cni(&self) -> Option<&CniNetwork> {
        match self {
            Self::Cni(network) => Some(network),
            Self::Host | Self::Bridge | Self::None => None,
        }
    }

    /// Whether tasks have a network of their own that is connected to others.
    #[must_use]
    pub fn is_own(&self) -> bool {
        matches!(self, Self::Bridge | Self::Cni(_))
    }
}

job_block! {
    /// Network and ports of a group.
    pub struct GroupNetwork {
        /// The network mode of the group.
        pub mode: NetworkMode = NetworkMode::Host => Replace;
        pub ports: Vec<PortAsk> = Vec::new() => Replace;
        /// Rules for the traffic of the group's tasks, applied after the tasks' own rules.
        // A changed policy takes effect on running tasks.
        pub policy: Option<NetworkPolicy> = None => InPlace;
        /// The resolver configuration of its tasks, in a network of their own; `None` means the machine's.
        pub dns: Option<DnsConfig> = None => Replace;
        /// The hostname of the allocation in a network of its own; empty for a name that the agent generates.
        pub hostname: String = String::new() => Replace;
    }
}

/// The content of `/etc/resolv.conf`. An empty list keeps the machine's values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsConfig {
    /// Addresses of servers, in the order in which they are asked. References such as
    /// `${attr.unique.network.ip-address}` are filled in by the agent.
    pub servers: Vec<String>,
    /// Search domains for short names.
    pub searches: Vec<String>,
    /// Options of the resolver, such as `ndots:2`.
    pub options: Vec<String>,
}

job_block! {
    /// A port that a group needs on its node.
    pub struct PortAsk {
        /// The name by which tasks find it: `NOMAD_PORT_<label>`.
        pub label: String = String::new();
        /// This host port and no other; `None` means any free one.
        pub fixed: Option<u16> = None;
        /// The port inside the allocation's network; 0 means the same.
        pub to: u16 = 0;
        /// The name of the node's address that the port is on; default `default`.
        pub host_network: String = DEFAULT_HOST_NETWORK.to_owned();
    }
}

/// The host network of a port that names none.
pub const DEFAULT_HOST_NETWORK: &str = "default";
