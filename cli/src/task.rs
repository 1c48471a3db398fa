//! `muster task`: one-off tasks, which run at most once and bring back a result.

mod file;
mod run;
mod show;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use muster_wire::api::task::{DesireResponse, Task, TaskResponse};
use serde_json::json;

use crate::client::{Client, escape};
use crate::events::{self, EventsArgs};
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// Commands about one-off tasks.
#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// Run a task without waiting for it.
    ///
    /// Example: muster task desire examples/tasks/hello.hcl
    Desire(DesireArgs),
    /// Run a task, wait for its end, print its result and delete it.
    ///
    /// Example: muster task run examples/tasks/hello.hcl
    Run(RunArgs),
    /// List tasks.
    List(ListArgs),
    /// Show a task.
    Get {
        /// Guid of the task.
        guid: String,
    },
    /// Cancel a task. It is completed when none of its processes runs.
    Cancel {
        /// Guid of the task.
        guid: String,
    },
    /// Claim the result of a completed task, so that no other client handles it.
    Resolve {
        /// Guid of the task.
        guid: String,
    },
    /// Delete a task whose result was claimed.
    Delete {
        /// Guid of the task.
        guid: String,
        /// Claim the result first, in one request.
        #[arg(long, conflicts_with = "claim")]
        resolve: bool,
        /// Delete the task only if this claim still holds: the number from `resolve`.
        #[arg(long, value_name = "CLAIM")]
        claim: Option<u64>,
    },
    /// Follow changes of tasks as they happen.
    Watch(WatchArgs),
}

/// Arguments of `muster task desire`.
#[derive(Debug, Args)]
pub struct DesireArgs {
    /// Definition of the task in HCL or JSON. `-` is standard input.
    pub file: PathBuf,
    /// Guid of the task. Default: the file's, or a new one.
    #[arg(long)]
    pub guid: Option<String>,
    /// Domain of the task. Default: the file's.
    #[arg(long)]
    pub domain: Option<String>,
}

/// Arguments of `muster task run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The task and its options.
    #[command(flatten)]
    pub desire: DesireArgs,
    /// How long to wait for the end of the task, in seconds.
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub timeout: u64,
    /// Keep the task when it is completed.
    #[arg(long)]
    pub keep: bool,
}

/// Arguments of `muster task list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only tasks of this domain.
    #[arg(long)]
    pub domain: Option<String>,
    /// Only tasks in this state: pending, running, completed or resolving.
    #[arg(long)]
    pub state: Option<String>,
    /// Only tasks on the node with this id.
    #[arg(long, value_name = "NODE")]
    pub cell: Option<String>,
}

/// Arguments of `muster task watch`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Only this task, or the tasks of this domain.
    pub name: Option<String>,
    /// Start at this index. Default: only new changes.
    #[arg(long, value_name = "INDEX")]
    pub index: Option<u64>,
}

/// Carries out `command`.
///
/// # Errors
///
/// [`CliError`].
pub fn run(client: &Client, json: bool, command: &TaskCommand) -> CliResult {
    match command {
        TaskCommand::Desire(args) => desire(client, json, args),
        TaskCommand::Run(args) => run::run(client, json, args),
        TaskCommand::List(args) => list(client, json, args),
        TaskCommand::Get { guid } => {
            let task = one(client, guid)?;
            if json {
                output::print_json(&task)?;
            } else {
                show::one(&task)?;
            }
            Ok(Exit::Done)
        }
        TaskCommand::Cancel { guid } => {
            let answer: TaskResponse = client.put(&path(guid, "/cancel"), &json!({}))?;
            print_answer(json, &answer, &format!("{guid} is to end"))
        }
        TaskCommand::Resolve { guid } => {
            let answer: TaskResponse = client.put(&path(guid, "/resolving"), &json!({}))?;
            let claim = answer.index;
            let text = format!(
                "{guid} is claimed; forget it with: muster task delete --claim {claim} {guid}"
            );
            print_answer(json, &answer, &text)
        }
        TaskCommand::Delete {
            guid,
            resolve: first,
            claim,
        } => {
            let rest = match claim {
                Some(claim) => format!("?claim={claim}"),
                None if *first => RESOLVE.to_owned(),
                None => String::new(),
            };
            let answer: TaskResponse = client.delete(&path(guid, &rest))?;
            print_answer(json, &answer, &format!("{guid} is forgotten"))
        }
        TaskCommand::Watch(args) => watch(client, json, args),
    }
}

/// The query of a task's path for deletion. It claims the task in the same log entry.
const RESOLVE: &str = "?resolve=true";

fn path(guid: &str, rest: &str) -> String {
    format!("/v1/tasks/{}{rest}", escape(guid))
}

fn one(client: &Client, guid: &str) -> Result<Task, CliError> {
    client.get(&path(guid, ""))
}

fn print_answer(json: bool, answer: &TaskResponse, words: &str) -> CliResult {
    if json {
        output::print_json(answer)?;
    } else {
        output::print(&format!("{words}\n"))?;
    }
    Ok(Exit::Done)
}

fn desired(client: &Client, args: &DesireArgs) -> Result<DesireResponse, CliError> {
    let request = file::request(args)?;
    client.put("/v1/tasks", &request)
}

fn desire(client: &Client, json: bool, args: &DesireArgs) -> CliResult {
    let answer = desired(client, args)?;
    if json {
        output::print_json(&answer)?;
        return Ok(Exit::Done);
    }
    let guid = output::clean(&answer.task_guid);
    let before = if answer.created { "" } else { " already" };
    output::print(&format!(
        "{guid} is desired{before}.   follow: muster task watch {guid}   look: muster task get {guid}\n"
    ))?;
    Ok(Exit::Done)
}

fn list(client: &Client, json: bool, args: &ListArgs) -> CliResult {
    let filters = [
        ("domain", &args.domain),
        ("state", &args.state),
        ("cell_id", &args.cell),
    ];
    let given = filters.iter().filter_map(|(name, value)| {
        let value = value.as_ref()?;
        Some(format!("{name}={}", escape(value)))
    });
    let query: Vec<String> = given.collect();
    let tasks: Vec<Task> = client.get(&format!("/v1/tasks?{}", query.join("&")))?;
    if json {
        output::print_json(&tasks)?;
    } else {
        show::list(&tasks)?;
    }
    Ok(Exit::Done)
}

fn watch(client: &Client, json: bool, args: &WatchArgs) -> CliResult {
    let topic = match &args.name {
        Some(name) => format!("Task:{name}"),
        None => "Task".to_owned(),
    };
    let follow = EventsArgs {
        topics: vec![topic],
        namespace: "*".to_owned(),
        index: args.index,
    };
    events::run(client, json, &follow)
}
