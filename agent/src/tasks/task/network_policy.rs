//! Puts tasks behind their network policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_agent_core::policy::{self, NodePolicy};
use muster_domain::error_chain::chain;
use muster_domain::job::{NetworkPolicy, TaskGroup};
use muster_driver::{DriverError, Retry, TaskConfig, TaskReach};

use crate::bpf::{Bpf, TaskPorts};
use crate::context::AgentContext;
use crate::network::names::inside_port;
use crate::network::{NetworkContext, bridge, cni};
use crate::storage::allocdir::DataDir;
use crate::storage::store::StoreContents;
use crate::tasks::drivers::DriverSlot;
use crate::tasks::drivers::usage::is_hidden;
use crate::tasks::live::LiveTask;
use crate::tasks::task::driver_calls::{decoded, learned, ready};
use crate::tasks::task::start_failure::StartFailure;
use crate::tasks::task_ref::TaskRef;

/// Puts the task with the cgroup `cgroup_id` behind its policy. `reach` says how far the task gets without one. Answers
/// with what an operator should know.
///
/// # Errors
///
/// The reason why it has no policy and must not start: what the job or the node asks for cannot be enforced.
pub(crate) fn attach_policy(
    context: &AgentContext,
    task: &TaskRef,
    cgroup_id: u64,
    reach: TaskReach,
) -> Result<Option<String>, String> {
    let rules = context.network.rules.current();
    let bpf = match &context.bpf {
        Ok(bpf) => bpf,
        Err(reason) => return without_policy(&context.network, task, &rules, reach, reason),
    };
    attach_policy_with(bpf, task, &rules, &context.storage.data, cgroup_id)?;
    Ok(None)
}

/// The same with these programs and rules of the node.
fn attach_policy_with(
    bpf: &Bpf,
    task: &TaskRef,
    rules: &NodePolicy,
    data: &DataDir,
    cgroup_id: u64,
) -> Result<(), String> {
    let group = task.group();
    let is_bridged = bridge::wanted(group);
    let has_network = is_bridged || cni::wanted(group).is_some();
    let resolvers = if has_network {
        bridge::resolvers(&data.alloc(task.alloc_id()).names())
    } else {
        Vec::new()
    };
    let policies = policy::compile(group, task.name(), rules, &resolvers)
        .map_err(|error| error.to_string())?;
    let ports = &task.desired.holding.ports;
    let of_node: BTreeSet<u16> = ports.iter().map(|port| port.value).collect();
    let ports = if has_network {
        let inside = ports.iter();
        let inside = inside.map(|port| inside_port(port.value, port.to));
        TaskPorts {
            inside: inside.collect(),
            // Ports of mode `bridge` are open where they are published, and the programs know those.
            of_node: if is_bridged { BTreeSet::new() } else { of_node },
            // Every port of a CNI address is reached, as with Nomad: such a network may need no published port.
            behind_host_veth: is_bridged,
        }
    } else {
        TaskPorts {
            inside: of_node.clone(),
            of_node,
            behind_host_veth: false,
        }
    };
    let attached = bpf.attach_policy_with_ports(cgroup_id, &policies, &ports);
    attached.map_err(|error| chain(&error))
}

/// Puts the tasks that earlier agents recorded, and whose cgroups are `alive`, into maps that know none of them, before
/// the programs judge by those: behind their policies, and registered.
pub(crate) fn attach_recorded_policy(
    bpf: &Bpf,
    loaded: &StoreContents,
    rules: &NodePolicy,
    data: &DataDir,
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
        let task = TaskRef {
            desired: Arc::new(desired.clone()),
            at,
        };
        let attached = attach_policy_with(bpf, &task, rules, data, record.cgroup_id);
        let watched = bpf.watch_running(record.cgroup_id);
        if let Err(reason) = attached.and(watched.map_err(|error| chain(&error))) {
            // The runner that finds the task tries again, and has its history tell.
            tracing::error!(%alloc_id, task = name, reason, "a running task is not in the fresh eBPF maps yet");
        }
    }
}

/// Decides about a task on a node without eBPF programs; `reason` says why there are none.
fn without_policy(
    network: &NetworkContext,
    task: &TaskRef,
    rules: &NodePolicy,
    reach: TaskReach,
    reason: &str,
) -> Result<Option<String>, String> {
    let asked = has_policy(task.group(), task, rules);
    match reach {
        TaskReach::Itself => Ok(None),
        _ if asked
            || (reach == TaskReach::Network && !network.allow_tasks_without_network_policy) =>
        {
            let what = if asked {
                "the task's network policy cannot be enforced"
            } else {
                "the task cannot be kept from the node's metadata, control plane and private ports"
            };
            let (alone, allow) = (
                "network mode `none`",
                "`client { allow_tasks_without_network_policy = true }` in the agent's configuration",
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
        TaskReach::Network | TaskReach::Machine => Ok(Some(format!(
            "the task is not kept from the node's metadata and control plane: this node has no eBPF programs: {reason}"
        ))),
    }
}

/// How far a task that is to start would get without a policy. Asked only where no programs could hold it.
///
/// # Errors
///
/// The driver cannot be asked, or takes no such configuration.
pub(super) async fn reach(
    bpf: Option<&Bpf>,
    slot: &DriverSlot,
    config: &TaskConfig,
) -> Result<TaskReach, StartFailure> {
    if bpf.is_some() {
        return Ok(TaskReach::default());
    }
    ready(slot).await?;
    let config = TaskConfig {
        config: decoded(slot, config).await?,
        ..config.clone()
    };
    driver_reach(slot, config).await
}

/// The same of one that runs, whose driver was given `config`.
pub(super) async fn reach_of_running(
    bpf: Option<&Bpf>,
    slot: &DriverSlot,
    config: TaskConfig,
) -> Result<TaskReach, StartFailure> {
    if bpf.is_some() {
        return Ok(TaskReach::default());
    }
    ready(slot).await?;
    driver_reach(slot, config).await
}

async fn driver_reach(slot: &DriverSlot, config: TaskConfig) -> Result<TaskReach, StartFailure> {
    match slot.driver.task_reach(config).await {
        Ok(reach) => Ok(reach),
        // It may give a task more than its group says.
        Err(DriverError::Unsupported { .. }) => Ok(TaskReach::Network),
        Err(error) => Err(match error.retry() {
            Retry::Later => StartFailure::retryable(chain(&error)),
            Retry::Never | Retry::ElsewhereNow => StartFailure::fatal(chain(&error)),
        }),
    }
}

/// Whether a policy that the task is asked to have would hold it: the programs judge what is in the agent's cgroups.
///
/// # Errors
///
/// Its driver puts it elsewhere, or cannot be asked.
pub(super) async fn check_holds(
    network: &NetworkContext,
    bpf: Option<&Bpf>,
    task: &TaskRef,
    slot: &DriverSlot,
) -> Result<(), StartFailure> {
    let asked = has_policy(task.group(), task, &network.rules.current());
    if bpf.is_none() || !asked || learned(slot).await?.capabilities.joins_cgroup {
        return Ok(());
    }
    Err(StartFailure::fatal(unenforced_message(task)))
}

fn unenforced_message(task: &TaskRef) -> String {
    format!(
        "the task's network policy (its job's, its node's or its cluster's) cannot be enforced: driver `{}` runs tasks in none of the agent's cgroups; take a driver that does, such as `native`, or take the policy away",
        task.task().driver
    )
}

/// Whether job, node or cluster ask for anything.
fn has_policy(group: &TaskGroup, task: &TaskRef, node: &NodePolicy) -> bool {
    let group = group.network.as_ref().and_then(|it| it.policy.as_ref());
    let policies = [
        task.task().policy.as_ref(),
        group,
        Some(&node.policy),
        Some(&node.cluster),
    ];
    let nothing = NetworkPolicy::default();
    policies
        .into_iter()
        .flatten()
        .any(|policy| *policy != nothing)
}

/// Puts a task that runs behind what its job and its node ask for now, and says what does not hold.
pub(crate) fn attach_live_policy(
    context: &AgentContext,
    task: &TaskRef,
    live: &LiveTask,
) -> Option<String> {
    let asked = || has_policy(task.group(), task, &context.network.rules.current());
    if context.bpf.is_ok() && is_hidden(live) && asked() {
        return Some(unenforced_message(task));
    }
    reattach_policy(context, task, live.record.cgroup_id, live.reach)
}

/// The same for an agent that finds a task. What cannot be loaded leaves the policy that it has, and is what this says.
pub(super) fn reattach_policy(
    context: &AgentContext,
    task: &TaskRef,
    cgroup_id: u64,
    reach: TaskReach,
) -> Option<String> {
    let reason = attach_policy(context, task, cgroup_id, reach).err()?;
    tracing::error!(alloc_id = %task.alloc_id(), task = task.name(), reason,
        "a running task keeps the network policy it has");
    Some(format!(
        "the task keeps the network policy that it has: {reason}"
    ))
}
