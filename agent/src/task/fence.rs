//! Puts tasks behind their network policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_agent_core::policy::{self, NodePolicy};
use muster_domain::job::{NetworkMode, NetworkPolicy, TaskGroup};

use super::{TaskAt, chain};
use crate::bpf::Bpf;
use crate::bridge;
use crate::drivers::native;
use crate::facilities::Facilities;
use crate::store::Loaded;

/// Puts the task with the cgroup `cgroup_id` behind its policy. Answers with what an operator should know.
///
/// # Errors
///
/// Why it has no policy and must not start: what the job or the node asks for cannot be enforced.
pub(crate) fn fence(
    facilities: &Facilities,
    task: &TaskAt,
    cgroup_id: u64,
) -> Result<Option<String>, String> {
    let rules = facilities.network.current();
    let bpf = match &facilities.bpf {
        Ok(bpf) => bpf,
        Err(reason) => return unfenced(facilities, task, &rules, reason),
    };
    fence_with(bpf, task, &rules, cgroup_id)?;
    Ok(None)
}

/// The same with these programs and rules of the node.
fn fence_with(bpf: &Bpf, task: &TaskAt, rules: &NodePolicy, cgroup_id: u64) -> Result<(), String> {
    let group = task.group();
    let policies = policy::compile(group, task.name(), rules).map_err(|error| error.to_string())?;
    let ports = task.desired.holding.ports.iter();
    let fenced = if bridge::wanted(group) {
        let inside = ports.map(|port| bridge::inside_port(port.value, port.to));
        bpf.fence_behind_door(cgroup_id, &policies, &inside.collect())
    } else {
        let declared: BTreeSet<u16> = ports.map(|port| port.value).collect();
        bpf.fence(cgroup_id, &policies, &declared)
    };
    fenced.map_err(|error| chain(&error))
}

/// Puts the tasks that earlier agents recorded, and whose cgroups are `alive`, into maps that know none of them, before
/// the programs judge by those: behind their policies, and registered.
pub(crate) fn fence_recorded(
    bpf: &Bpf,
    loaded: &Loaded,
    rules: &NodePolicy,
    alive: &BTreeSet<u64>,
) {
    let running = loaded.tasks.iter().filter(|(_, record)| {
        // The number of a group that is there is no earlier boot's, but for the rarest chance, which the task's
        // own agent mends.
        record.ended.is_none() && alive.contains(&record.cgroup_id)
    });
    for ((alloc_id, name), record) in running {
        let desired = loaded.allocs.get(alloc_id).map(|(desired, _)| desired);
        let at = desired.and_then(|desired| {
            let tasks = &desired.group()?.tasks;
            tasks.iter().position(|task| task.name == *name)
        });
        let (Some(desired), Some(at)) = (desired, at) else {
            continue;
        };
        let task = TaskAt {
            desired: Arc::new(desired.clone()),
            at,
        };
        let fenced = fence_with(bpf, &task, rules, record.cgroup_id);
        let watched = bpf.watch_running(record.cgroup_id);
        if let Err(reason) = fenced.and(watched.map_err(|error| chain(&error))) {
            // Whoever finds the task tries again, and has its history tell.
            tracing::error!(%alloc_id, task = name, reason, "a running task is not in the fresh eBPF maps yet");
        }
    }
}

/// What becomes of a task on a node without eBPF programs, and why there are none.
fn unfenced(
    facilities: &Facilities,
    task: &TaskAt,
    rules: &NodePolicy,
    reason: &str,
) -> Result<Option<String>, String> {
    let asked = asks(task.group(), task, rules);
    match Reach::of(task) {
        Reach::Itself => Ok(None),
        reach if asked || (reach == Reach::Network && !facilities.allow_unfenced_tasks) => {
            let what = if asked {
                "the task's network policy cannot be enforced"
            } else {
                "the task cannot be kept from the node's metadata, control plane and private ports"
            };
            let (alone, allow) = (
                "network mode `none`",
                "`client { allow_unfenced_tasks = true }` in the agent's configuration",
            );
            let way = if asked {
                format!("mend that (`muster doctor`), run the task elsewhere, or give it {alone}")
            } else {
                format!(
                    "mend that (`muster doctor`), give the task {alone}, or allow such tasks on this node by {allow}"
                )
            };
            Err(format!(
                "{what}: this node has no eBPF programs: {reason}; {way}"
            ))
        }
        Reach::Network | Reach::Machine => Ok(Some(format!(
            "the task is not kept from the node's metadata and control plane: this node has no eBPF programs: {reason}"
        ))),
    }
}

/// How far a task gets that no policy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// It has no network but loopback of its own.
    Itself,
    /// Whatever the machine's network, or its allocation's, leads to.
    Network,
    /// It is not isolated: where its node allows that, it may be root, and then no policy holds it anyway.
    Machine,
}

impl Reach {
    /// Other drivers than the native one may give a task more than its group says.
    fn of(task: &TaskAt) -> Self {
        if task.task().driver != native::NAME {
            return Self::Network;
        }
        let config = serde_json::from_str(&task.task().config_json);
        let config: serde_json::Value = config.unwrap_or_default();
        let word = |field: &str| config.get(field).and_then(serde_json::Value::as_str);
        match (word("isolation"), word("network")) {
            (Some("raw"), _) => Self::Machine,
            (Some("strict"), _) | (_, Some("none")) => Self::Itself,
            (_, Some(_)) => Self::Network,
            (_, None) => match task.group().network.as_ref().map(|it| it.mode) {
                Some(NetworkMode::None) => Self::Itself,
                Some(NetworkMode::Host | NetworkMode::Bridge) | None => Self::Network,
            },
        }
    }
}

/// Whether job, node or cluster ask for anything.
fn asks(group: &TaskGroup, task: &TaskAt, node: &NodePolicy) -> bool {
    let group = group.network.as_ref().and_then(|it| it.policy.as_ref());
    let said = [
        task.task().policy.as_ref(),
        group,
        Some(&node.policy),
        Some(&node.cluster),
    ];
    let nothing = NetworkPolicy::default();
    said.into_iter().flatten().any(|policy| *policy != nothing)
}

/// The same for a task that runs: after its job or the node's rules changed, and for an agent that finds it. What cannot
/// be loaded leaves the policy that it has, and is what this says.
pub(crate) fn fence_again(
    facilities: &Facilities,
    task: &TaskAt,
    cgroup_id: u64,
) -> Option<String> {
    let reason = fence(facilities, task, cgroup_id).err()?;
    tracing::error!(alloc_id = %task.alloc_id(), task = task.name(), reason,
        "a running task keeps the network policy it has");
    Some(format!(
        "the task keeps the network policy that it has: {reason}"
    ))
}
