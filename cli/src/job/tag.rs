//! `muster job tag`: tags of versions. A tagged version is kept for as long as it has the tag.

use clap::{Args, Subcommand};
use muster_wire::api::job::{Job, TagResponse, VersionsResponse};
use serde_json::json;

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output};

/// Commands about tags of job versions.
#[derive(Debug, Subcommand)]
pub enum TagCommand {
    /// Tag a version. Tagged versions are kept, and their job is not garbage-collected.
    ///
    /// Example: muster job tag apply --name before-the-move --version 3 web
    Apply(ApplyArgs),
    /// Remove a tag.
    ///
    /// Example: muster job tag unset --name before-the-move web
    Unset(UnsetArgs),
}

/// Arguments of `muster job tag apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// Name of the job.
    pub job: String,
    /// The tag. Only one version of a job has it.
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Version number from `muster job history`. Default: the current version.
    #[arg(long, value_name = "VERSION")]
    pub version: Option<u64>,
    /// Description of the tag.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub description: String,
}

/// Arguments of `muster job tag unset`.
#[derive(Debug, Args)]
pub struct UnsetArgs {
    /// Name of the job.
    pub job: String,
    /// The tag.
    #[arg(long, value_name = "NAME")]
    pub name: String,
}

pub(super) fn run(client: &Client, json: bool, command: &TagCommand) -> CliResult {
    match command {
        TagCommand::Apply(args) => {
            let id = names::job(client, &args.job, names::Access::Change)?;
            let body = json!({ "Version": args.version, "Description": args.description });
            let answer: TagResponse = client.put(&path(&id, &args.name), &body)?;
            let version = args.version.map_or_else(
                || "the current version".to_owned(),
                |version| format!("version {version}"),
            );
            print_answer(
                json,
                &answer,
                &format!("{version} of {id} is tagged {}", args.name),
            )
        }
        TagCommand::Unset(args) => {
            let id = names::job(client, &args.job, names::Access::Change)?;
            let answer: TagResponse = client.delete(&path(&id, &args.name))?;
            print_answer(
                json,
                &answer,
                &format!("no version of {id} is tagged {} any more", args.name),
            )
        }
    }
}

fn path(id: &str, name: &str) -> String {
    format!("/v1/job/{}/versions/{}/tag", escape(id), escape(name))
}

fn print_answer(json: bool, answer: &TagResponse, text: &str) -> CliResult {
    if json {
        output::print_json(answer)?;
    } else {
        output::print(&format!("{text}\n"))?;
    }
    Ok(Exit::Done)
}

/// The version that `named` refers to, by its number or its tag.
pub(super) fn version(client: &Client, id: &str, named: &str) -> Result<u64, CliError> {
    if let Ok(number) = named.parse() {
        return Ok(number);
    }
    let path = format!("/v1/job/{}/versions", escape(id));
    let answer: VersionsResponse = client.get(&path)?;
    tagged(&answer.versions, named).ok_or_else(|| {
        CliError::new(
            Exit::NotFound,
            format!("no version of {id} is tagged {named}"),
        )
        .help(format!("list them with `muster job history {id}`"))
    })
}

fn tagged(versions: &[Job], name: &str) -> Option<u64> {
    let has_it = |job: &&Job| job.version_tag.as_ref().is_some_and(|tag| tag.name == name);
    versions.iter().find(has_it).map(|job| job.version)
}

#[cfg(test)]
mod tests {
    use muster_wire::api::job::VersionTag;

    use super::*;

    #[test]
    fn a_version_is_found_by_its_tag() {
        let job = |version, tag: Option<&str>| Job {
            version,
            version_tag: tag.map(|name| VersionTag {
                name: name.to_owned(),
                ..VersionTag::default()
            }),
            ..Job::default()
        };
        let versions = [job(2, None), job(1, Some("good")), job(0, Some("old"))];

        assert_eq!(tagged(&versions, "old"), Some(0));
        assert_eq!(tagged(&versions, "other"), None);
    }
}
