//! Attaches network policies to tasks.

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
use crate::tasks::drivers::usage::is_measured_by_driver;
use crate::tasks::live::LiveTask;
use crate::tasks::task::driver_calls::{decoded, driver_facts, ready};
use crate::tasks::task::start_failure::StartFailure;
use crate::tasks::task_ref::TaskRef;

/// Attaches the policy to the task with the cgroup `cgroup_id`. `reach` is the task's reach without a policy.
/// Returns a note for the operator.
///
/// # Errors
///
/// The reason why the task has no policy and must not start: the policy of the job or the node cannot be enforced.
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

/// Attaches the policy with these programs and rules of the node.
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
            // Ports of mode `bridge` are open where they are published, and the programs have those.
            of_node: if is_bridged { BTreeSet::new() } else { of_node },
            // Every port of a CNI address is reachable, as in Nomad. Such a network may need no published port.
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

/// Registers recorded tasks whose cgroups are `alive` in fresh maps, and attaches their policies. The caller does
/// this before the programs judge packets by these maps.
pub(crate) fn attach_recorded_policy(
    bpf: &Bpf,
    loaded: &StoreContents,
    rules: &NodePolicy,
    data: &DataDir,
    alive: &BTreeSet<u64>,
) {
    let running = loaded.tasks.iter().filter(|(_, record)| {
        // An existing cgroup with that number is almost never another one from an earlier boot. In that rare case,
        // the runner of the task corrects the policy.
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
            // The runner that finds the task tries again, and reports to its history.
            tracing::error!(%alloc_id, task = name, reason, "a running task is not in the fresh eBPF maps yet");
        }
    }
}

/// Decides about a task on a node without eBPF programs; `reason` is the cause of their absence.
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

/// The reach that a task would have without a policy. The driver is asked only where no programs could enforce one.
///
/// # Errors
///
/// The driver cannot be asked, or does not accept such a configuration.
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

/// The reach of a running task, whose driver received `config`.
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
        // The driver may give a task more network than its group specifies.
        Err(DriverError::Unsupported { .. }) => Ok(TaskReach::Network),
        Err(error) => Err(match error.retry() {
            Retry::Later => StartFailure::retryable(chain(&error)),
            Retry::Never | Retry::ElsewhereNow => StartFailure::fatal(chain(&error)),
        }),
    }
}

/// Checks that a requested policy of the task can be enforced. The programs judge only packets of the agent's
/// cgroups.
///
/// # Errors
///
/// The driver puts the task elsewhere, or cannot be asked.
pub(super) async fn check_holds(
    network: &NetworkContext,
    bpf: Option<&Bpf>,
    task: &TaskRef,
    slot: &DriverSlot,
) -> Result<(), StartFailure> {
    let asked = has_policy(task.group(), task, &network.rules.current());
    if bpf.is_none() || !asked || driver_facts(slot).await?.capabilities.joins_cgroup {
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

/// Whether job, node or cluster have a policy.
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

/// Attaches the current policy of job and node to a running task, and returns why a policy cannot be enforced.
pub(crate) fn attach_live_policy(
    context: &AgentContext,
    task: &TaskRef,
    live: &LiveTask,
) -> Option<String> {
    let asked = || has_policy(task.group(), task, &context.network.rules.current());
    if context.bpf.is_ok() && is_measured_by_driver(live) && asked() {
        return Some(unenforced_message(task));
    }
    reattach_policy(context, task, live.record.cgroup_id, live.reach)
}

/// Attaches the policy to a recovered task. If the policy cannot be loaded, the task keeps its old one, and the
/// reason is returned.
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
