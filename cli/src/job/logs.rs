//! `muster job logs`: the output of all tasks of a job.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use muster_wire::api::alloc::AllocListStub;
use muster_wire::api::job::Job;

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::logs::{self, LogSources, LogsArgs, Source};
use crate::{names, output};

/// The wait of one query for changes of the job. If a change was lost, a task may be overlooked for as long.
const NEWS_WAIT: Duration = Duration::from_secs(5);

/// Arguments of `muster job logs`.
#[derive(Clone, Debug, Args)]
pub struct JobLogsArgs {
    /// Name of the job, or a unique prefix.
    pub job: String,
    /// Only this task. Default: all tasks.
    pub task: Option<String>,
    /// Only this group.
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Only this allocation: id, prefix or name.
    #[arg(long, value_name = "ALLOC")]
    pub alloc: Option<String>,
    /// Also show allocations that were replaced.
    #[arg(long)]
    pub all: bool,
    /// Which part.
    #[command(flatten)]
    pub logs: LogsArgs,
}

/// Prints the logs of the job.
///
/// # Errors
///
/// No such job, task, group or allocation; or no reachable server.
pub(super) fn run(client: &Client, args: &JobLogsArgs) -> CliResult {
    let id = names::job(client, &args.job, names::Access::Show)?;
    let path = format!("/v1/job/{}", escape(&id));
    let wanted = LogQuery {
        allocs: format!("{path}/allocations"),
        job: path,
        args: args.clone(),
    };
    let (allocs, index) = wanted.allocs(client, 0)?;
    let sources = wanted.sources(&allocs);
    wanted.check(client, &id, &allocs, &sources)?;
    let Some(ends) = logs::print_kept(client, sources, &args.logs)? else {
        return Ok(Exit::Done);
    };
    if !args.logs.follow {
        return Ok(Exit::Done);
    }
    // An allocation that is over writes no more.
    let over = ended_alloc_ids(&allocs);
    let begun = ends
        .into_iter()
        .filter(|(source, _)| !over.contains(&source.alloc_id))
        .collect();
    // The query starts at once, because a task may have started while the stored logs were printed.
    let (mut known, mut seen) = (index.saturating_sub(1), over);
    logs::follow(client, begun, &args.logs, move |client| {
        let (allocs, index) = wanted.allocs(client, known)?;
        known = index;
        let mut sources = wanted.sources(&allocs);
        sources.retain(|source| !seen.contains(&source.alloc_id));
        // The whole log of an ended allocation has been printed.
        seen.extend(ended_alloc_ids(&allocs));
        let complete = wanted.is_dead(client)? && seen.len() >= allocs.len();
        Ok(LogSources { sources, complete })
    })
}

/// Ids of allocations that write no more output.
fn ended_alloc_ids(allocs: &[AllocListStub]) -> Vec<String> {
    let is_over = |alloc: &&AllocListStub| {
        matches!(alloc.client_status.as_str(), "complete" | "failed" | "lost")
    };
    let over = allocs.iter().filter(is_over);
    over.map(|alloc| alloc.id.clone()).collect()
}

/// The allocations and outputs of a job that the user asks for.
struct LogQuery {
    /// The path of the job.
    job: String,
    /// The API path of the job's allocations.
    allocs: String,
    args: JobLogsArgs,
}

impl LogQuery {
    /// The requested allocations, once there is a state newer than `known`.
    fn allocs(&self, client: &Client, known: u64) -> Result<(Vec<AllocListStub>, u64), CliError> {
        let found = client.get_after::<Vec<AllocListStub>>(&self.allocs, known, NEWS_WAIT)?;
        Ok((self.filter(found.value), found.index))
    }

    fn filter(&self, mut allocs: Vec<AllocListStub>) -> Vec<AllocListStub> {
        let args = &self.args;
        if let Some(group) = &args.group {
            allocs.retain(|alloc| alloc.task_group == *group);
        }
        if let Some(name) = &args.alloc {
            allocs.retain(|alloc| alloc.id.starts_with(name) || names::has_name(alloc, name));
        }
        if !args.all && args.alloc.is_none() {
            allocs = newest(allocs);
        }
        allocs.sort_by(|a, b| {
            let key = |alloc: &AllocListStub| (alloc.create_index, instance_index(&alloc.name));
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        allocs
    }

    /// Their outputs, of tasks that have begun.
    fn sources(&self, allocs: &[AllocListStub]) -> Vec<Source> {
        let mut sources = Vec::new();
        for alloc in allocs {
            let begun = alloc.task_states.iter();
            let begun =
                begun.filter(|(_, state)| state.state != "pending" && !state.state.is_empty());
            for (task, state) in begun {
                if self.args.task.as_ref().is_some_and(|wanted| wanted != task) {
                    continue;
                }
                for stream in self.args.logs.streams() {
                    sources.push(Source {
                        alloc_id: alloc.id.clone(),
                        task: task.clone(),
                        stream,
                        label: label(alloc, task),
                        runs: state.state != "dead",
                    });
                }
            }
        }
        sources
    }

    /// Checks that the named objects exist.
    fn check(
        &self,
        client: &Client,
        id: &str,
        allocs: &[AllocListStub],
        sources: &[Source],
    ) -> Result<(), CliError> {
        let job: Job = client.get(&self.job)?;
        let groups = job.task_groups.iter();
        let in_group = |name: &str| self.args.group.as_ref().is_none_or(|group| group == name);
        let mut words = Vec::new();
        for group in groups.filter(|group| in_group(&group.name)) {
            words.extend(group.tasks.iter().map(|task| task.name.clone()));
        }
        if words.is_empty() {
            let group = self.args.group.as_deref().unwrap_or_default();
            let reason = format!("job `{id}` has no group `{group}`");
            return Err(
                CliError::new(Exit::NotFound, reason).help(format!("see `muster job status {id}`"))
            );
        }
        if let Some(task) = &self.args.task
            && !words.contains(task)
        {
            let reason = format!(
                "job `{id}` has no task `{task}` there: it has {}",
                words.join(", ")
            );
            return Err(CliError::new(Exit::NotFound, reason));
        }
        if let Some(alloc) = &self.args.alloc
            && allocs.is_empty()
        {
            let reason = format!("job `{id}` has no allocation `{alloc}`");
            return Err(
                CliError::new(Exit::NotFound, reason).help(format!("see `muster job status {id}`"))
            );
        }
        if sources.is_empty() && !self.args.logs.follow {
            output::eprint(&format!("nothing of job `{id}` has begun"));
        }
        Ok(())
    }

    /// Whether the job is dead or does not exist, so that it gets no further allocations.
    fn is_dead(&self, client: &Client) -> Result<bool, CliError> {
        match client.get::<Job>(&self.job) {
            Ok(job) => Ok(job.status == "dead"),
            Err(error) if error.exit == Exit::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// The newest allocation of each name.
fn newest(allocs: Vec<AllocListStub>) -> Vec<AllocListStub> {
    let mut newest: BTreeMap<String, AllocListStub> = BTreeMap::new();
    for alloc in allocs {
        match newest.get(&alloc.name) {
            Some(known) if known.create_index >= alloc.create_index => {}
            _ => {
                newest.insert(alloc.name.clone(), alloc);
            }
        }
    }
    newest.into_values().collect()
}

/// `api.3/server 68e42f3f`.
fn label(alloc: &AllocListStub, task: &str) -> String {
    let instance =
        instance_index(&alloc.name).map_or_else(String::new, |number| format!(".{number}"));
    output::clean(&format!(
        "{}{instance}/{task} {}",
        alloc.task_group,
        output::short_id(&alloc.id)
    ))
}

/// The 3 of `web.api[3]`.
fn instance_index(name: &str) -> Option<u64> {
    let (_, rest) = name.rsplit_once('[')?;
    rest.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(name: &str, id: &str, create_index: u64) -> AllocListStub {
        AllocListStub {
            name: name.to_owned(),
            id: id.to_owned(),
            task_group: "api".to_owned(),
            create_index,
            ..AllocListStub::default()
        }
    }

    #[test]
    fn a_label_names_instance_task_and_allocation() {
        let alloc = alloc("web.api[3]", "68e42f3f-db89-4f0e", 1);

        assert_eq!(label(&alloc, "server"), "api.3/server 68e42f3f");
    }

    #[test]
    fn only_the_newest_of_a_name_is_meant() {
        let allocs = vec![
            alloc("web.api[0]", "a", 5),
            alloc("web.api[0]", "b", 7),
            alloc("web.api[1]", "c", 6),
        ];

        let ids: Vec<String> = newest(allocs).into_iter().map(|alloc| alloc.id).collect();

        assert_eq!(ids, ["b", "c"]);
    }
}
