//! `muster deployment`: rollouts of new job versions.

mod follow;
mod show;

use std::time::Duration;

use clap::{Args, Subcommand};
use muster_wire::api::alloc::AllocListStub;
use muster_wire::api::deployment::{
    Deployment, DeploymentUpdateResponse, PauseRequest, PromoteRequest,
};
use serde::Serialize;
use serde_json::json;

use crate::client::Client;
use crate::exit::{CliError, CliResult, Exit};
use crate::reason::reason;
use crate::{names, output};

pub(crate) use follow::follow;
pub(crate) use show::show;

/// Commands about deployments.
#[derive(Debug, Subcommand)]
pub enum DeploymentCommand {
    /// Show all deployments.
    List,
    /// Show a deployment: groups, allocations and possible actions.
    ///
    /// Example: muster deployment status --monitor web
    Status(StatusArgs),
    /// Promote the canaries of a deployment if they are healthy.
    ///
    /// Example: muster deployment promote web
    Promote(PromoteArgs),
    /// Fail a deployment. With `auto_revert`, the job reverts to its last stable version.
    Fail {
        /// The deployment: id, prefix, or job.
        deployment: String,
    },
    /// Pause a deployment.
    Pause {
        /// The deployment: id, prefix, or job.
        deployment: String,
    },
    /// Resume a paused deployment.
    Resume {
        /// The deployment: id, prefix, or job.
        deployment: String,
    },
}

/// Arguments of `muster deployment status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The deployment: id, prefix, or job. Default: all.
    pub deployment: Option<String>,
    /// Follow the deployment to its end. Exit 1 if it fails.
    #[arg(long, requires = "deployment")]
    pub monitor: bool,
    /// How long to follow the deployment, in seconds.
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub timeout: u64,
}

/// Arguments of `muster deployment promote` and `muster job promote`.
#[derive(Debug, Args)]
pub struct PromoteArgs {
    /// The deployment: id, prefix, or job.
    #[arg(value_name = "DEPLOYMENT|JOB")]
    pub name: String,
    /// Only this group. May be repeated. Default: all groups.
    #[arg(long = "group", value_name = "GROUP")]
    pub groups: Vec<String>,
}

/// Carries out `command`.
///
/// # Errors
///
/// [`CliError`].
pub fn run(client: &Client, json: bool, command: &DeploymentCommand) -> CliResult {
    match command {
        DeploymentCommand::List => list(client, json),
        DeploymentCommand::Status(args) => match &args.deployment {
            None => list(client, json),
            Some(name) => status(client, json, name, args),
        },
        DeploymentCommand::Promote(args) => {
            let deployment = names::deployment(client, &args.name, names::Access::Change)?;
            promote(client, json, &deployment, &args.groups)
        }
        DeploymentCommand::Fail { deployment } => fail(client, json, deployment),
        DeploymentCommand::Pause { deployment } => pause(client, json, deployment, true),
        DeploymentCommand::Resume { deployment } => pause(client, json, deployment, false),
    }
}

fn list(client: &Client, json: bool) -> CliResult {
    let mut deployments: Vec<Deployment> = client.get("/v1/deployments")?;
    if json {
        output::print_json(&deployments)?;
        return Ok(Exit::Done);
    }
    deployments.sort_by_key(|deployment| std::cmp::Reverse(deployment.create_index));
    let mut table = output::table(&[
        "DEPLOYMENT",
        "JOB",
        "VERSION",
        "STATUS",
        "HEALTHY",
        "CHANGED",
        "REASON",
    ]);
    for deployment in &deployments {
        let groups = deployment.task_groups.values();
        let (healthy, wanted) = groups.fold((0, 0), |(healthy, wanted), group| {
            (healthy + group.healthy_allocs, wanted + group.desired_total)
        });
        table.add_row([
            output::short_id(&deployment.id).to_owned(),
            output::clean(&deployment.job_id),
            deployment.job_version.to_string(),
            deployment.status.clone(),
            format!("{healthy} of {wanted}"),
            output::time_since(deployment.modify_time),
            output::clean(&deployment.status_description),
        ]);
    }
    if deployments.is_empty() {
        output::eprint("no deployments; services have one for each version that is run");
    } else {
        output::print_table(&table)?;
    }
    Ok(Exit::Done)
}

fn status(client: &Client, json: bool, name: &str, args: &StatusArgs) -> CliResult {
    let mut deployment = names::deployment(client, name, names::Access::Show)?;
    if args.monitor {
        deployment = follow(client, &deployment.id, Duration::from_secs(args.timeout))?;
    }
    let path = format!("/v1/deployment/allocations/{}", deployment.id);
    let allocs: Vec<AllocListStub> = client.get(&path)?;
    let exit = if args.monitor {
        exit_of_deployment(&deployment)
    } else {
        Exit::Done
    };
    if json {
        output::print_json(&json!({ "Deployment": deployment, "Allocations": allocs }))?;
        return Ok(exit);
    }
    output::print(&format!(
        "{}  job {} version {}\n",
        deployment.id,
        output::clean(&deployment.job_id),
        deployment.job_version
    ))?;
    show(&deployment)?;
    let mut table = output::table(&["ALLOC", "NAME", "NODE", "STATUS", "HEALTH", "REASON"]);
    for alloc in &allocs {
        table.add_row([
            output::short_id(&alloc.id).to_owned(),
            output::clean(&alloc.name),
            alloc.node_name.clone(),
            alloc.client_status.clone(),
            crate::alloc::health(alloc.deployment_status.as_ref()),
            output::clean(&reason(alloc)),
        ]);
    }
    if !allocs.is_empty() {
        output::print("\n")?;
        output::print_table(&table)?;
    }
    Ok(exit)
}

/// The exit code of a command that followed `deployment` to its end.
pub(crate) fn exit_of_deployment(deployment: &Deployment) -> Exit {
    if deployment.status == "successful" {
        Exit::Done
    } else {
        Exit::Failed
    }
}

/// Promotes the groups called `groups`; all if none is named.
///
/// # Errors
///
/// [`CliError`].
pub(crate) fn promote(
    client: &Client,
    json: bool,
    deployment: &Deployment,
    groups: &[String],
) -> CliResult {
    let request = PromoteRequest {
        deployment_id: deployment.id.clone(),
        all: groups.is_empty(),
        groups: groups.to_vec(),
    };
    let answer = change(client, deployment, "promote", &request)?;
    print_answer(json, deployment, &answer, "is promoted")
}

fn fail(client: &Client, json: bool, name: &str) -> CliResult {
    let deployment = names::deployment(client, name, names::Access::Change)?;
    let request = json!({ "DeploymentID": deployment.id });
    let answer = change(client, &deployment, "fail", &request)?;
    let back = answer.reverted_job_version.map_or_else(
        || "is given up".to_owned(),
        |version| format!("is given up; the job goes back to version {version}"),
    );
    print_answer(json, &deployment, &answer, &back)
}

fn pause(client: &Client, json: bool, name: &str, pause: bool) -> CliResult {
    let deployment = names::deployment(client, name, names::Access::Change)?;
    let request = PauseRequest {
        deployment_id: deployment.id.clone(),
        pause,
    };
    let answer = change(client, &deployment, "pause", &request)?;
    let what = if pause { "is paused" } else { "goes on" };
    print_answer(json, &deployment, &answer, what)
}

fn change(
    client: &Client,
    deployment: &Deployment,
    verb: &str,
    request: &impl Serialize,
) -> Result<DeploymentUpdateResponse, CliError> {
    client.put(&format!("/v1/deployment/{verb}/{}", deployment.id), request)
}

fn print_answer(
    json: bool,
    deployment: &Deployment,
    answer: &DeploymentUpdateResponse,
    what: &str,
) -> CliResult {
    if json {
        output::print_json(answer)?;
        return Ok(Exit::Done);
    }
    let job = output::clean(&deployment.job_id);
    output::print(&format!(
        "Deployment {} of {job} {what}.   follow: muster deployment status --monitor {job}\n",
        output::short_id(&deployment.id),
    ))?;
    Ok(Exit::Done)
}
