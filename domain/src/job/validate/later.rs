//! What a job can say and this version does not carry out yet. It is refused by name, never ignored.

use crate::fault::Fault;
use crate::job::{Disconnect, JobSpec, JobType, Operand, TaskGroup};

const REASON: &str = "is not supported yet: leave it out";

/// Everything in `spec` that would be ignored.
pub(super) fn check(at: &str, spec: &JobSpec, faults: &mut Vec<Fault>) {
    let mut refuse = |asked: bool, what: String| {
        if asked {
            faults.push(Fault::new(what, REASON));
        }
    };
    match spec.job_type {
        JobType::Service | JobType::Batch => {}
        JobType::System | JobType::SysBatch => {
            refuse(true, format!("{at} → type {}", spec.job_type));
        }
    }
    refuse(spec.all_at_once, format!("{at} → all_at_once"));
    refuse(!spec.affinities.is_empty(), format!("{at} → affinity"));
    refuse(!spec.spreads.is_empty(), format!("{at} → spread"));
    refuse(spec.periodic.is_some(), format!("{at} → periodic"));
    refuse(
        spec.parameterized.is_some(),
        format!("{at} → parameterized"),
    );
    refuse(
        is_about_all(spec.constraints.iter().map(|it| it.operand)),
        format!("{at} → constraint distinct_*"),
    );
    for group in &spec.groups {
        check_group(group, &mut refuse);
    }
}

fn check_group(group: &TaskGroup, refuse: &mut impl FnMut(bool, String)) {
    let at = format!("group \"{}\"", group.name);
    let waits = Disconnect {
        lost_after: None,
        stop_on_client_after: None,
        ..group.disconnect
    } != group.disconnect;
    refuse(!group.affinities.is_empty(), format!("{at} → affinity"));
    refuse(!group.spreads.is_empty(), format!("{at} → spread"));
    refuse(
        is_about_all(group.constraints.iter().map(|it| it.operand)),
        format!("{at} → constraint distinct_*"),
    );
    refuse(waits, format!("{at} → disconnect"));
    refuse(group.scaling.is_some(), format!("{at} → scaling"));
    refuse(!group.volumes.is_empty(), format!("{at} → volume"));
    refuse(
        !group.shutdown_delay.is_zero(),
        format!("{at} → shutdown_delay"),
    );
    refuse(
        group.ephemeral_disk.sticky || group.ephemeral_disk.migrate,
        format!("{at} → ephemeral_disk"),
    );
    for task in &group.tasks {
        let at = format!("{at} → task \"{}\"", task.name);
        refuse(!task.affinities.is_empty(), format!("{at} → affinity"));
        refuse(
            is_about_all(task.constraints.iter().map(|it| it.operand)),
            format!("{at} → constraint distinct_*"),
        );
        refuse(task.restart != group.restart, format!("{at} → restart"));
        refuse(task.lifecycle.is_some(), format!("{at} → lifecycle"));
        refuse(task.leader, format!("{at} → leader"));
        refuse(
            !task.payload_file.is_empty(),
            format!("{at} → dispatch_payload"),
        );
        refuse(
            !task.shutdown_delay.is_zero(),
            format!("{at} → shutdown_delay"),
        );
        refuse(task.resources.cores > 0, format!("{at} → resources.cores"));
        refuse(
            !task.resources.devices.is_empty(),
            format!("{at} → resources.device"),
        );
    }
}

/// Whether an operand is about all instances together, not about one node.
fn is_about_all(mut operands: impl Iterator<Item = Operand>) -> bool {
    operands.any(|operand| matches!(operand, Operand::DistinctHosts | Operand::DistinctProperty))
}
