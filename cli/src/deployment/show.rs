//! A deployment in human-readable form.

use muster_wire::api::deployment::{Deployment, DeploymentState};

use crate::exit::CliError;
use crate::output;

/// Shows the state of `deployment`, its groups, and the possible actions.
///
/// # Errors
///
/// If standard output is closed.
pub(crate) fn show(deployment: &Deployment) -> Result<(), CliError> {
    output::print(&format!(
        "deployment {} of version {}: {} ({})\n",
        output::short_id(&deployment.id),
        deployment.job_version,
        deployment.status,
        output::clean(&deployment.status_description)
    ))?;
    let mut table = output::table(&[
        "GROUP",
        "PROMOTED",
        "WANTED",
        "CANARIES",
        "PLACED",
        "HEALTHY",
        "UNHEALTHY",
        "PROGRESS DUE",
    ]);
    for (name, group) in &deployment.task_groups {
        table.add_row([
            output::clean(name),
            promoted(group).to_owned(),
            group.desired_total.to_string(),
            format!(
                "{} of {}",
                group.placed_canaries.len(),
                group.desired_canaries
            ),
            group.placed_allocs.to_string(),
            group.healthy_allocs.to_string(),
            group.unhealthy_allocs.to_string(),
            due(deployment, group),
        ]);
    }
    output::print_table(&table)?;
    let next = next(deployment);
    if !next.is_empty() {
        output::print(&format!("next: {}\n", next.join("   ")))?;
    }
    Ok(())
}

/// Whether the canaries of `group` were promoted; `–` if it has none.
fn promoted(group: &DeploymentState) -> &'static str {
    match (group.desired_canaries, group.promoted) {
        (0, _) => "–",
        (_, true) => "yes",
        (_, false) => "no",
    }
}

/// The time by which the next instance must be healthy.
fn due(deployment: &Deployment, group: &DeploymentState) -> String {
    let is_bound = deployment.status == "running" && !waits_for_promotion(deployment);
    let due = group.require_progress_by.filter(|_| is_bound);
    due.map_or_else(|| "–".to_owned(), |at| output::time_until(at.0.0))
}

/// Whether all canaries are healthy and an operator must promote them.
pub(super) fn waits_for_promotion(deployment: &Deployment) -> bool {
    let mut waiting = deployment
        .task_groups
        .values()
        .filter(|group| group.desired_canaries > 0 && !group.promoted)
        .peekable();
    deployment.status == "running"
        && waiting.peek().is_some()
        && waiting.all(|group| group.healthy_allocs >= group.desired_canaries)
}

/// Commands that make sense here.
pub(super) fn next(deployment: &Deployment) -> Vec<String> {
    let id = output::short_id(&deployment.id);
    let command = |verb: &str| format!("muster deployment {verb} {id}");
    match deployment.status.as_str() {
        "running" if waits_for_promotion(deployment) => vec![command("promote"), command("fail")],
        "running" => vec![command("pause"), command("fail")],
        "paused" => vec![command("resume"), command("fail")],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(status: &str, group: DeploymentState) -> Deployment {
        Deployment {
            id: "18cc7616-1332-eafd-15e1-faa12301dd3e".to_owned(),
            status: status.to_owned(),
            task_groups: [("g".to_owned(), group)].into(),
            ..Deployment::default()
        }
    }

    #[test]
    fn next_commands_depend_on_deployment_status() {
        let canary = |healthy_allocs| DeploymentState {
            desired_canaries: 1,
            healthy_allocs,
            ..DeploymentState::default()
        };

        assert_eq!(
            next(&deployment("running", canary(1)))[0],
            "muster deployment promote 18cc7616"
        );
        assert_eq!(
            next(&deployment("running", canary(0)))[0],
            "muster deployment pause 18cc7616"
        );
        assert_eq!(
            next(&deployment("paused", canary(1)))[0],
            "muster deployment resume 18cc7616"
        );
        assert!(next(&deployment("failed", canary(1))).is_empty());
    }
}
