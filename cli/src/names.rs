//! Names in place of ids.
//!
//! A job is named by its id or a unique prefix. An allocation is named by its id, a unique prefix or its name
//! (`web.api[0]`, also `web/api.0`). The job (`web`) also names its only allocation. A deployment is named by its id, a
//! unique prefix, or its job, for the newest one. A node is named by its name, its id or a unique prefix. An ambiguous
//! name is an error that lists the choices. A job's full id takes precedence over prefixes of other ids.
//!
//! A command that changes an object acts on an exact name only. This is a job's id, the name of an allocation or a
//! node, or at least [`EXACT_ID_CHARS`] characters of a UUID, as tables print them. For a shorter prefix it asks for
//! confirmation. It refuses if standard input is not a terminal.

use std::io::{BufRead as _, IsTerminal as _};

use muster_wire::api::alloc::AllocListStub;
use muster_wire::api::deployment::Deployment;
use muster_wire::api::eval::Evaluation;
use muster_wire::api::job::JobListStub;
use muster_wire::api::node::NodeListStub;

use crate::client::{Client, escape};
use crate::exit::{CliError, Exit};
use crate::output::{self, short_id};

/// Characters of a UUID that count as exact. Tables print this many.
const EXACT_ID_CHARS: usize = 8;

/// Choices listed when a name is ambiguous.
const CHOICES_MAX: usize = 8;

/// The kind of access to the named object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The command shows the object. A unique prefix is enough.
    Show,
    /// The command changes the object. An inexact name must be confirmed.
    Change,
}

impl Access {
    /// Asks the user to confirm `found`, if `name` does not name it exactly.
    fn check(self, noun: &str, name: &str, found: &str, exact: bool) -> Result<(), CliError> {
        if self == Self::Show || exact {
            return Ok(());
        }
        let (name, found) = (output::clean(name), output::clean(found));
        let question = format!("No {noun} `{name}` exists. Change {noun} `{found}`?");
        confirm(&question, || {
            CliError::new(
                Exit::NotFound,
                format!("{noun} `{name}` does not exist; nothing is changed"),
            )
            .help(format!(
                "a change needs the exact name: did you mean `{found}`?"
            ))
        })
    }
}

/// Asks a question on standard error and reads the answer.
///
/// # Errors
///
/// `unasked` if standard input is not a terminal. [`Exit::Interrupted`] unless the answer is yes, or standard input cannot
/// be read.
pub(crate) fn confirm(question: &str, unasked: impl FnOnce() -> CliError) -> Result<(), CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(unasked());
    }
    output::eprint(&format!("{question} [y/N]"));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    if matches!(line.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(CliError::new(
        Exit::Interrupted,
        "not confirmed: nothing is changed",
    ))
}

/// Whether `name` is `id`, or a long enough prefix of it.
fn is_exact_id(id: &str, name: &str) -> bool {
    name.len() >= EXACT_ID_CHARS && id.starts_with(name)
}

/// The id of the job that `name` means.
///
/// # Errors
///
/// Not found, ambiguous, not confirmed, or no server.
pub fn job(client: &Client, name: &str, purpose: Access) -> Result<String, CliError> {
    let jobs: Vec<JobListStub> = client.get(&format!("/v1/jobs?prefix={}", escape(name)))?;
    let ids: Vec<String> = jobs.into_iter().map(|job| job.id).collect();
    if ids.iter().any(|id| id == name) {
        return Ok(name.to_owned());
    }
    let id = choose_one(
        "job",
        name,
        ids.into_iter().map(|id| (id.clone(), id)).collect(),
        "muster job status",
    )?;
    purpose.check("job", name, &id, false)?;
    Ok(id)
}

/// The allocation that `name` means.
///
/// # Errors
///
/// Not found, ambiguous, or no server.
pub fn alloc(client: &Client, name: &str, purpose: Access) -> Result<AllocListStub, CliError> {
    if may_be_id(name) && !is_job(client, name)? {
        let path = format!("/v1/allocations?namespace=*&prefix={}", escape(name));
        let found: Vec<AllocListStub> = client.get(&path)?;
        if !found.is_empty() {
            let alloc = choose_one("allocation", name, labelled(found), "muster job status JOB")?;
            purpose.check("allocation", name, &alloc.id, is_exact_id(&alloc.id, name))?;
            return Ok(alloc);
        }
    }
    // One-off tasks have a namespace of their own.
    let all: Vec<AllocListStub> = client.get("/v1/allocations?namespace=*")?;
    let mut matching: Vec<AllocListStub> = all
        .into_iter()
        .filter(|alloc| has_name(alloc, name))
        .collect();
    // A live allocation is preferred over ended ones, and the newest over older ones.
    let live =
        |alloc: &AllocListStub| matches!(alloc.client_status.as_str(), "pending" | "running");
    if matching.iter().any(live) {
        matching.retain(live);
    } else if let Some(newest) = matching.iter().map(|alloc| alloc.create_index).max() {
        matching.retain(|alloc| alloc.create_index == newest);
    }
    choose_one(
        "allocation",
        name,
        labelled(matching),
        "muster job status JOB",
    )
}

/// Whether `name` may be the beginning of an id.
fn may_be_id(name: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    name.len() >= 2 && name.bytes().all(is_hex)
}

/// Whether a job has the id `name`. The job takes precedence even if ids of allocations begin with its name, as with
/// `db`.
fn is_job(client: &Client, name: &str) -> Result<bool, CliError> {
    let jobs: Vec<JobListStub> = client.get(&format!("/v1/jobs?prefix={}", escape(name)))?;
    Ok(jobs.iter().any(|job| job.id == name))
}

/// The deployment that `name` means.
///
/// # Errors
///
/// Not found, ambiguous, or no server.
pub fn deployment(client: &Client, name: &str, purpose: Access) -> Result<Deployment, CliError> {
    if may_be_id(name) && !is_job(client, name)? {
        let path = format!("/v1/deployments?prefix={}", escape(name));
        let found: Vec<Deployment> = client.get(&path)?;
        if !found.is_empty() {
            let label =
                |row: &Deployment| format!("{}  {}  {}", short_id(&row.id), row.job_id, row.status);
            let choices = found.into_iter().map(|row| (label(&row), row)).collect();
            let deployment = choose_one("deployment", name, choices, "muster deployment list")?;
            let exact = is_exact_id(&deployment.id, name);
            purpose.check("deployment", name, &deployment.id, exact)?;
            return Ok(deployment);
        }
    }
    let job = job(client, name, purpose)?;
    deployment_of(client, &job)
}

/// The newest deployment of the job whose id is `job`.
///
/// # Errors
///
/// Not found, or no reachable server.
pub fn deployment_of(client: &Client, job: &str) -> Result<Deployment, CliError> {
    latest_deployment(client, job)?.ok_or_else(|| {
        CliError::new(Exit::NotFound, format!("job `{job}` has no deployment"))
            .help("services have one for each version that is run; batch and system jobs have none")
    })
}

/// The newest deployment of a job.
///
/// # Errors
///
/// [`CliError`].
pub(crate) fn latest_deployment(
    client: &Client,
    job: &str,
) -> Result<Option<Deployment>, CliError> {
    client.get(&format!("/v1/job/{}/deployment", escape(job)))
}

fn labelled(allocs: Vec<AllocListStub>) -> Vec<(String, AllocListStub)> {
    allocs
        .into_iter()
        .map(|alloc| {
            (
                format!(
                    "{}  {}  {}",
                    short_id(&alloc.id),
                    alloc.name,
                    alloc.client_status
                ),
                alloc,
            )
        })
        .collect()
}

/// `web`, `web.api[0]`, `web/api`, `web/api.0`, `web/api[0]`.
pub(crate) fn has_name(alloc: &AllocListStub, name: &str) -> bool {
    if alloc.name == name || alloc.job_id == name {
        return true;
    }
    let Some((job, rest)) = name.split_once('/') else {
        return false;
    };
    if alloc.job_id != job {
        return false;
    }
    let index = alloc
        .name
        .rsplit_once('[')
        .map_or("", |(_, rest)| rest.trim_end_matches(']'));
    rest == alloc.task_group
        || rest == format!("{}.{index}", alloc.task_group)
        || rest == format!("{}[{index}]", alloc.task_group)
}

/// The node that `name` means.
///
/// # Errors
///
/// Not found, ambiguous, or no server.
pub fn node(client: &Client, name: &str, purpose: Access) -> Result<NodeListStub, CliError> {
    let nodes: Vec<NodeListStub> = client.get("/v1/nodes")?;
    let exact = |node: &NodeListStub| node.name == name || node.id == name;
    let mut matching: Vec<NodeListStub> = nodes
        .into_iter()
        .filter(|node| node.name.starts_with(name) || node.id.starts_with(name))
        .collect();
    if matching.iter().any(exact) {
        matching.retain(exact);
    }
    let choices = matching
        .into_iter()
        .map(|node| (format!("{}  {}", short_id(&node.id), node.name), node))
        .collect();
    let node = choose_one("node", name, choices, "muster node status")?;
    let is_exact = exact(&node) || is_exact_id(&node.id, name);
    purpose.check("node", name, &node.name, is_exact)?;
    Ok(node)
}

/// The evaluation that `name` means.
///
/// # Errors
///
/// Not found, ambiguous, or no server.
pub fn eval(client: &Client, name: &str) -> Result<Evaluation, CliError> {
    let evals: Vec<Evaluation> = client.get(&format!("/v1/evaluations?prefix={}", escape(name)))?;
    let choices = evals
        .into_iter()
        .map(|eval| (format!("{}  {}", eval.id, eval.job_id), eval))
        .collect();
    choose_one("evaluation", name, choices, "muster eval status")
}

fn choose_one<T>(
    noun: &str,
    name: &str,
    choices: Vec<(String, T)>,
    list: &str,
) -> Result<T, CliError> {
    let count = choices.len();
    let mut choices = choices;
    match count {
        0 => Err(
            CliError::new(Exit::NotFound, format!("{noun} `{name}` does not exist"))
                .help(format!("list them with `{list}`")),
        ),
        1 => Ok(choices.remove(0).1),
        _ => {
            use std::fmt::Write as _;
            let mut text = format!("`{name}` means {count} {noun}s:");
            for (label, _) in choices.iter().take(CHOICES_MAX) {
                write!(text, "\n  {label}").expect("a String takes everything");
            }
            if count > CHOICES_MAX {
                write!(text, "\n  and {} more", count - CHOICES_MAX)
                    .expect("a String takes everything");
            }
            Err(CliError::new(Exit::NotFound, text)
                .help("name one of them, or type more of the id"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(name: &str, job: &str, group: &str) -> AllocListStub {
        AllocListStub {
            name: name.to_owned(),
            job_id: job.to_owned(),
            task_group: group.to_owned(),
            ..AllocListStub::default()
        }
    }

    #[test]
    fn an_allocation_has_several_names() {
        let alloc = alloc("web.api[3]", "web", "api");

        for name in ["web", "web.api[3]", "web/api", "web/api.3", "web/api[3]"] {
            assert!(has_name(&alloc, name), "{name}");
        }
        for name in ["we", "web/api.4", "web/apis", "api"] {
            assert!(!has_name(&alloc, name), "{name}");
        }
    }

    #[test]
    fn ambiguous_prefix_lists_the_choices() {
        let error = choose_one(
            "job",
            "w",
            vec![("web".to_owned(), 1), ("wiki".to_owned(), 2)],
            "x",
        )
        .unwrap_err();

        assert_eq!(error.exit, Exit::NotFound);
        assert!(
            error.message.contains("web") && error.message.contains("wiki"),
            "{error}"
        );
    }
}
