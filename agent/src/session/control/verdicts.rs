//! Answers about refused packets.

use muster_domain::id::AllocId;
use muster_ebpf_common::policy::Direction;

use muster_wire::rpc::{AllocNetwork, RuleCount};

use crate::context::AgentContext;

/// The counts of the rules of an allocation's tasks, and its verdicts after number `after`.
pub(super) fn alloc(
    context: &AgentContext,
    alloc_id: AllocId,
    after: u64,
) -> Result<AllocNetwork, String> {
    let bpf = context.bpf.as_ref().map_err(|reason| {
        format!("this node enforces no network policies: it has no eBPF programs: {reason}")
    })?;
    let mut rules = Vec::new();
    for (_, task, live) in context.tasks.live.of(Some(alloc_id)) {
        let counts = bpf
            .rule_counts(live.record.cgroup_id)
            .map_err(|error| format!("the counts of {task}'s rules cannot be read: {error}"))?;
        rules.extend(counts.into_iter().map(|count| RuleCount {
            task: task.clone(),
            egress: count.direction == Direction::Egress,
            rule: count.rule,
            allows: count.allows,
            packets: count.packets,
            bytes: count.bytes,
        }));
    }
    let (verdicts, last) = context.network.verdicts.of(alloc_id, after);
    let network = context.network.of(alloc_id);
    Ok(AllocNetwork {
        address: network.map(|network| network.address.to_string()),
        rules,
        verdicts,
        last,
    })
}
