//! `muster alloc`: status, logs, exec, signal and stop.

mod exec;
mod history;
mod show;
mod stop;

use clap::{Args, Subcommand};
use muster_wire::api::alloc::{AllocListStub, Allocation, SignalRequest};
use muster_wire::api::stats::AllocStats;
use serde_json::json;

use crate::client::Client;
use crate::exit::{CliError, CliResult, Exit};
use crate::logs::{self, LogSources, LogsArgs, Source};
use crate::reason::reason;
use crate::{names, output, usage};

pub(crate) use show::health;

/// Commands about allocations.
#[derive(Debug, Subcommand)]
pub enum AllocCommand {
    /// Show an allocation: tasks, events and resource usage.
    ///
    /// Example: muster alloc status web/web.0
    Status {
        /// The allocation: id, prefix, `job.group[i]`, `job/group.i`, or `job`. Default: all.
        alloc: Option<String>,
        /// Also show the resource usage of the last minutes.
        #[arg(long, requires = "alloc")]
        history: bool,
    },
    /// Print the output of a task.
    ///
    /// Example: muster alloc logs -f web/web.0
    Logs(AllocLogsArgs),
    /// Run a command in a task. Your terminal is passed on if there is one.
    ///
    /// The exit code is the command's. Example: muster alloc exec web/web.0 sh
    Exec(ExecArgs),
    /// Send a signal to the tasks of an allocation.
    ///
    /// Example: muster alloc signal -s SIGHUP web/web.0
    Signal(SignalArgs),
    /// Stop an allocation. The scheduler places a replacement.
    ///
    /// Example: muster alloc stop web/web.0
    Stop(StopArgs),
}

/// Arguments of `muster alloc stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// The allocation, as in `alloc status`.
    pub alloc: String,
    /// Return when the stop is registered.
    #[arg(long)]
    pub detach: bool,
    /// How long to wait for the end, in seconds.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub timeout: u64,
}

/// Arguments of `muster alloc exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The allocation, as in `alloc status`.
    pub alloc: String,
    /// The program, looked up as in the task, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// The task. Required if the allocation has several.
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,
    /// Pass standard input to the command. With `-i=false` it has none.
    #[arg(short = 'i', long, value_name = "BOOL", default_value_t = true, default_missing_value = "true",
        num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub stdin: bool,
    /// Give the command a terminal. Default: if standard input and output are terminals.
    #[arg(short = 't', long, value_name = "BOOL", default_missing_value = "true",
        num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub tty: Option<bool>,
    /// Escape character: with a dot after it, at the start of a line, it hangs up. `none` disables it.
    #[arg(short = 'e', long, value_name = "CHAR", default_value = "~")]
    pub escape: String,
}

/// Arguments of `muster alloc signal`.
#[derive(Debug, Args)]
pub struct SignalArgs {
    /// The allocation, as in `alloc status`.
    pub alloc: String,
    /// The task. Default: every running task.
    pub task: Option<String>,
    /// Name or number of the signal.
    #[arg(short = 's', long, value_name = "SIGNAL", default_value = "SIGKILL")]
    pub signal: String,
}

/// Arguments of `muster alloc logs`.
#[derive(Debug, Args)]
pub struct AllocLogsArgs {
    /// The allocation, as in `alloc status`.
    pub alloc: String,
    /// The task. Required if the allocation has several.
    pub task: Option<String>,
    /// Which part.
    #[command(flatten)]
    pub logs: LogsArgs,
    /// Start this many bytes before the end.
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["tail", "since", "both"])]
    pub tail_bytes: Option<u64>,
}

/// Carries out `command`.
///
/// # Errors
///
/// [`CliError`].
pub fn run(client: &Client, json: bool, command: &AllocCommand) -> CliResult {
    match command {
        AllocCommand::Status { alloc: None, .. } => list(client, json),
        AllocCommand::Status {
            alloc: Some(name),
            history,
        } => status(client, json, name, *history),
        AllocCommand::Logs(args) => logs(client, args),
        AllocCommand::Exec(args) => exec::run(client, args),
        AllocCommand::Signal(args) => signal(client, json, args),
        AllocCommand::Stop(args) => stop::run(client, json, args),
    }
}

fn list(client: &Client, json: bool) -> CliResult {
    let mut allocs: Vec<AllocListStub> = client.get("/v1/allocations")?;
    if json {
        output::print_json(&allocs)?;
        return Ok(Exit::Done);
    }
    allocs.sort_by_key(|alloc| std::cmp::Reverse(alloc.create_index));
    let mut table = output::table(&[
        "ALLOC", "NAME", "NODE", "DESIRED", "STATUS", "HEALTH", "CHANGED", "REASON",
    ]);
    for alloc in &allocs {
        table.add_row([
            output::short_id(&alloc.id).to_owned(),
            output::clean(&alloc.name),
            alloc.node_name.clone(),
            alloc.desired_status.clone(),
            alloc.client_status.clone(),
            health(alloc.deployment_status.as_ref()),
            output::time_since(alloc.modify_time),
            output::clean(&reason(alloc)),
        ]);
    }
    output::print_table(&table)?;
    Ok(Exit::Done)
}

fn status(client: &Client, json: bool, name: &str, history: bool) -> CliResult {
    let found = names::alloc(client, name, names::Access::Show)?;
    let alloc: Allocation = client.get(&format!("/v1/allocation/{}", found.id))?;
    let stats = match alloc.client_status.as_str() {
        "running" => client
            .get::<AllocStats>(&format!(
                "/v1/client/allocation/{}/stats?counters=true",
                alloc.id
            ))
            .map_err(|error| error.message),
        _ => Err("nothing of it runs".to_owned()),
    };
    let history = history.then(|| history::ask(client, &alloc.id));
    if json {
        let (stats, reason) = split_answer(stats.as_ref());
        let mut shown = json!({ "Allocation": alloc, "Stats": stats, "NoStats": reason });
        if let Some(history) = &history {
            let (history, reason) = split_answer(history.as_ref());
            shown["History"] = json!(history);
            shown["NoHistory"] = json!(reason);
        }
        output::print_json(&shown)?;
        return Ok(Exit::Done);
    }
    show::show(client, &alloc)?;
    match stats {
        Ok(stats) => show_stats(&stats)?,
        Err(reason) => output::print(&format!("\nusage: –  ({})\n", output::clean(&reason)))?,
    }
    match history {
        Some(Ok(history)) => history::show(&history)?,
        Some(Err(reason)) => {
            output::print(&format!("\nhistory: –  ({})\n", output::clean(&reason)))?;
        }
        None => {}
    }
    Ok(Exit::Done)
}

/// The value of `answer`, or the reason why there is none.
fn split_answer<'a, T>(answer: Result<&'a T, &'a String>) -> (Option<&'a T>, Option<&'a str>) {
    match answer {
        Ok(value) => (Some(value), None),
        Err(reason) => (None, Some(reason)),
    }
}

fn show_stats(stats: &AllocStats) -> Result<(), CliError> {
    if let Some(disk) = &stats.muster.disk {
        output::print("\nephemeral disk\n")?;
        for (label, value) in usage::disk_lines(disk) {
            output::print(&format!("  {label:<22} {}\n", output::clean(&value)))?;
        }
    }
    for (name, task) in &stats.tasks {
        output::print(&format!("\nusage of {}\n", output::clean(name)))?;
        for (label, value) in usage::lines(&task.muster) {
            output::print(&format!("  {label:<22} {value}\n"))?;
        }
    }
    Ok(())
}

fn signal(client: &Client, json: bool, args: &SignalArgs) -> CliResult {
    let found = names::alloc(client, &args.alloc, names::Access::Change)?;
    let path = format!("/v1/client/allocation/{}/signal", found.id);
    let request = SignalRequest {
        alloc_id: found.id.clone(),
        signal: args.signal.clone(),
        task: args.task.clone().unwrap_or_default(),
    };
    let answer: serde_json::Value = client.put(&path, &request)?;
    if json {
        output::print_json(&answer)?;
    } else {
        let recipient = match &args.task {
            Some(task) => format!("{task} of {}", found.name),
            None => format!("every task of {} that runs", found.name),
        };
        let (signal, recipient) = (output::clean(&args.signal), output::clean(&recipient));
        output::print(&format!("{signal} was sent to {recipient}.\n"))?;
    }
    Ok(Exit::Done)
}

fn logs(client: &Client, args: &AllocLogsArgs) -> CliResult {
    let found = names::alloc(client, &args.alloc, names::Access::Show)?;
    let task = match &args.task {
        Some(task) => task.clone(),
        None => only_task(client, &found)?,
    };
    let source = |stream: &'static str, label: &str| Source {
        alloc_id: found.id.clone(),
        task: task.clone(),
        stream,
        label: label.to_owned(),
        runs: true,
    };
    if let [stream] = args.logs.streams() {
        let from = args
            .tail_bytes
            .map(|bytes| format!("&origin=end&offset={bytes}"));
        return logs::print_one(client, &source(stream, ""), from, &args.logs);
    }
    let sources = args.logs.streams().iter();
    let sources: Vec<Source> = sources.map(|stream| source(stream, stream)).collect();
    let ends = logs::print_kept(client, sources, &args.logs)?;
    match ends {
        Some(ends) if args.logs.follow => logs::follow(client, ends, &args.logs, |_| {
            Ok(LogSources {
                sources: Vec::new(),
                complete: true,
            })
        }),
        _ => Ok(Exit::Done),
    }
}

/// The only task of `found`.
fn only_task(client: &Client, found: &AllocListStub) -> Result<String, CliError> {
    let alloc: Allocation = client.get(&format!("/v1/allocation/{}", found.id))?;
    let tasks: Vec<String> = alloc.task_resources.into_keys().collect();
    match tasks.as_slice() {
        [only] => Ok(only.clone()),
        _ => Err(CliError::new(
            Exit::Usage,
            format!("{} has several tasks: {}", found.name, tasks.join(", ")),
        )
        .help("name one after the allocation")),
    }
}
