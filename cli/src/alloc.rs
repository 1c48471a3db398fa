//! `muster alloc`: status, logs and stop.

mod show;
mod stop;

use std::io::{Read as _, Write as _};

use clap::{Args, Subcommand};
use muster_wire::api::alloc::{AllocListStub, Allocation};
use muster_wire::api::stats::AllocStats;
use serde_json::json;

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output, usage};

pub(crate) use show::health;

/// Commands about allocations.
#[derive(Debug, Subcommand)]
pub enum AllocCommand {
    /// Show an allocation: its tasks, what happened to them, and what they use.
    ///
    /// Example: muster alloc status web/web.0
    Status {
        /// The allocation: id, prefix of it, `job.group[i]`, `job/group.i`, or `job`; all unless given.
        alloc: Option<String>,
    },
    /// Print the output of a task.
    ///
    /// Example: muster alloc logs -f web/web.0
    Logs(LogsArgs),
    /// Stop an allocation; another takes its place, wherever that is best.
    ///
    /// Example: muster alloc stop web/web.0
    Stop(StopArgs),
}

/// Arguments of `muster alloc stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// The allocation, as in `alloc status`.
    pub alloc: String,
    /// Return as soon as the stop is registered.
    #[arg(long)]
    pub detach: bool,
    /// How long to wait for it to end, in seconds.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub timeout: u64,
}

/// Arguments of `muster alloc logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The allocation, as in `alloc status`.
    pub alloc: String,
    /// The task; the only one unless given.
    pub task: Option<String>,
    /// Standard error instead of standard output.
    #[arg(long)]
    pub stderr: bool,
    /// Go on as output comes.
    #[arg(short, long)]
    pub follow: bool,
    /// Begin this many bytes before the end.
    #[arg(long, value_name = "BYTES")]
    pub tail_bytes: Option<u64>,
}

/// Carries out `command`.
///
/// # Errors
///
/// [`CliError`].
pub fn run(client: &Client, json: bool, command: &AllocCommand) -> CliResult {
    match command {
        AllocCommand::Status { alloc: None } => list(client, json),
        AllocCommand::Status { alloc: Some(name) } => status(client, json, name),
        AllocCommand::Logs(args) => logs(client, args),
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
            output::ago(alloc.modify_time),
            output::clean(&crate::job::reason(alloc)),
        ]);
    }
    output::print_table(&table)?;
    Ok(Exit::Done)
}

fn status(client: &Client, json: bool, name: &str) -> CliResult {
    let found = names::alloc(client, name)?;
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
    if json {
        let (stats, reason) = match &stats {
            Ok(stats) => (Some(stats), None),
            Err(reason) => (None, Some(reason)),
        };
        output::print_json(&json!({ "Allocation": alloc, "Stats": stats, "NoStats": reason }))?;
        return Ok(Exit::Done);
    }
    show::show(client, &alloc)?;
    match stats {
        Ok(stats) => show_stats(&stats)?,
        Err(reason) => output::print(&format!("\nusage: –  ({})\n", output::clean(&reason)))?,
    }
    Ok(Exit::Done)
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

fn logs(client: &Client, args: &LogsArgs) -> CliResult {
    let found = names::alloc(client, &args.alloc)?;
    let task = match &args.task {
        Some(task) => task.clone(),
        None => only_task(client, &found)?,
    };
    let (origin, offset) = match args.tail_bytes {
        Some(bytes) => ("end", bytes),
        None => ("start", 0),
    };
    let path = format!(
        "/v1/client/fs/logs/{}?task={}&type={}&follow={}&origin={origin}&offset={offset}&plain=true",
        found.id,
        escape(&task),
        if args.stderr { "stderr" } else { "stdout" },
        args.follow
    );
    let mut stream = client.stream(&path)?;
    let mut buffer = vec![0; 64 << 10];
    let mut out = std::io::stdout().lock();
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(Exit::Done);
        }
        match out.write_all(&buffer[..read]).and_then(|()| out.flush()) {
            Ok(()) => {}
            // Whoever read our output has had enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(Exit::Done),
            Err(error) => return Err(error.into()),
        }
    }
}

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
