//! Puts tasks behind their network policies.

use std::collections::BTreeSet;

use muster_agent_core::policy::{self, NodePolicy};
use muster_domain::job::{NetworkPolicy, TaskGroup};

use super::{TaskAt, chain};
use crate::bridge;
use crate::facilities::Facilities;

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
    let group = task.group();
    let rules = facilities.network.current();
    let bpf = match &facilities.bpf {
        Ok(bpf) => bpf,
        Err(reason) if asks(group, task, &rules) => {
            return Err(format!(
                "the task's network policy cannot be enforced: this node has no eBPF programs: {reason}"
            ));
        }
        Err(reason) => {
            return Ok(Some(format!(
                "the task is not kept from the node's metadata and control plane: this node has no eBPF programs: {reason}"
            )));
        }
    };
    let policies =
        policy::compile(group, task.name(), &rules).map_err(|error| error.to_string())?;
    let ports = task.desired.holding.ports.iter();
    let fenced = if bridge::wanted(group) {
        let inside = ports.map(|port| bridge::inside_port(port.value, port.to));
        bpf.fence_behind_door(cgroup_id, &policies, &inside.collect())
    } else {
        let declared: BTreeSet<u16> = ports.map(|port| port.value).collect();
        bpf.fence(cgroup_id, &policies, &declared)
    };
    fenced.map_err(|error| chain(&error))?;
    Ok(None)
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
/// be loaded leaves the policy that it has.
pub(crate) fn fence_again(facilities: &Facilities, task: &TaskAt, cgroup_id: u64) {
    if let Err(reason) = fence(facilities, task, cgroup_id) {
        tracing::error!(alloc_id = %task.alloc_id(), task = task.name(), reason,
            "a running task keeps the network policy it has");
    }
}
