//! Follows a deployment to its end. It prints a line for each change, and reminders while nothing changes.

use std::time::{Duration, Instant};

use muster_wire::api::deployment::Deployment;

use super::show;
use crate::client::Client;
use crate::exit::{CliError, Exit};
use crate::output;

/// The wait of one blocking query before it is repeated.
const POLL: Duration = Duration::from_secs(2);
/// The interval of reminders while nothing changes.
const REMIND: Duration = Duration::from_secs(30);

/// Waits until the deployment called `id` is over.
///
/// # Errors
///
/// [`Exit::TimedOut`] if the deployment is not over after `patience`; those of the client.
pub(crate) fn follow(
    client: &Client,
    id: &str,
    patience: Duration,
) -> Result<Deployment, CliError> {
    let path = format!("/v1/deployment/{id}");
    let deadline = Instant::now() + patience;
    let mut index = 0;
    let mut printed = String::new();
    let mut printed_at = Instant::now();
    loop {
        let answer = client.get_after::<Deployment>(&path, index, POLL)?;
        let deployment = answer.value;
        let line = line(&deployment);
        if line != printed || printed_at.elapsed() >= REMIND {
            output::eprint(&format!("{line}{}", due(&deployment)));
            printed = line;
            printed_at = Instant::now();
        }
        if !matches!(deployment.status.as_str(), "running" | "paused") {
            return Ok(deployment);
        }
        if Instant::now() >= deadline {
            return Err(CliError::new(
                Exit::TimedOut,
                format!("{printed}: not at its end after {}", output::span(patience)),
            )
            .help(format!(
                "it goes on; follow it with `muster deployment status --monitor {}`",
                output::short_id(id)
            )));
        }
        index = answer.index;
    }
}

/// The state of the deployment, without values that change with time.
fn line(deployment: &Deployment) -> String {
    let groups = deployment.task_groups.iter().map(|(name, group)| {
        let unhealthy = match group.unhealthy_allocs {
            0 => String::new(),
            count => format!(", {count} unhealthy"),
        };
        let (wanted, what) = if group.desired_canaries > 0 && !group.promoted {
            (group.desired_canaries, "canaries healthy")
        } else {
            (group.desired_total, "healthy")
        };
        let healthy = group.healthy_allocs;
        format!(
            "{} {healthy} of {wanted} {what}{unhealthy}",
            output::clean(name)
        )
    });
    let groups: Vec<String> = groups.collect();
    let id = output::short_id(&deployment.id);
    let state = match deployment.status.as_str() {
        "running" if show::waits_for_promotion(deployment) => {
            format!("waits for `muster deployment promote {id}`")
        }
        "running" => "is running".to_owned(),
        "paused" => format!("is paused until `muster deployment resume {id}`"),
        other => format!(
            "is {other}: {}",
            output::clean(&deployment.status_description)
        ),
    };
    format!("deployment {id} {state}; {}", groups.join("; "))
}

/// The time at which the deployment fails unless an instance becomes healthy.
fn due(deployment: &Deployment) -> String {
    let is_bound = deployment.status == "running" && !show::waits_for_promotion(deployment);
    let groups = deployment.task_groups.values();
    let waiting = groups.filter(|group| group.healthy_allocs < group.desired_total);
    let due = waiting.filter_map(|group| group.require_progress_by).min();
    due.filter(|_| is_bound).map_or_else(String::new, |at| {
        format!(
            "; something must become healthy {}",
            output::time_until(at.0.0)
        )
    })
}

#[cfg(test)]
mod tests {
    use muster_wire::api::deployment::DeploymentState;

    use super::*;

    fn deployment(status: &str) -> Deployment {
        let group = DeploymentState {
            desired_canaries: 1,
            desired_total: 3,
            healthy_allocs: 1,
            unhealthy_allocs: 2,
            ..DeploymentState::default()
        };
        Deployment {
            id: "18cc7616-1332".to_owned(),
            status: status.to_owned(),
            status_description: "why".to_owned(),
            task_groups: [("g".to_owned(), group)].into(),
            ..Deployment::default()
        }
    }

    #[test]
    fn deployment_line_names_the_next_step() {
        assert_eq!(
            line(&deployment("running")),
            "deployment 18cc7616 waits for `muster deployment promote 18cc7616`; \
             g 1 of 1 canaries healthy, 2 unhealthy"
        );
        assert!(line(&deployment("paused")).contains("muster deployment resume 18cc7616"));
        assert!(line(&deployment("failed")).contains("is failed: why"));
    }
}
