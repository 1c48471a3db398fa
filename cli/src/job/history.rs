//! `muster job history`: the versions of a job.

use clap::Args;
use muster_wire::api::diff::JobDiff;
use muster_wire::api::job::{Job, VersionsResponse};

use super::{diff, tag};
use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output};

/// Arguments of `muster job history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Name of the job, or a unique prefix.
    pub job: String,
    /// Show the changes of each version.
    #[arg(short = 'p', long = "diff")]
    pub diff: bool,
    /// Show only this version: number or tag.
    #[arg(long, value_name = "VERSION")]
    pub version: Option<String>,
}

pub(super) fn run(client: &Client, json: bool, args: &HistoryArgs) -> CliResult {
    let id = names::job(client, &args.job, names::Access::Show)?;
    let path = format!("/v1/job/{}/versions?diffs={}", escape(&id), args.diff);
    let mut answer: VersionsResponse = client.get(&path)?;
    if let Some(named) = &args.version {
        let version = tag::version(client, &id, named)?;
        keep(&mut answer, version).ok_or_else(|| {
            CliError::new(
                Exit::NotFound,
                format!("version {version} of {id} is not kept"),
            )
            .help(format!("list them with `muster job history {id}`"))
        })?;
    }
    if json {
        output::print_json(&answer)?;
    } else {
        output::print(&text(&answer.versions, &answer.diffs))?;
    }
    Ok(Exit::Done)
}

/// Keeps only `version`, with its changes.
fn keep(answer: &mut VersionsResponse, version: u64) -> Option<()> {
    let mut versions = answer.versions.iter();
    let at = versions.position(|job| job.version == version)?;
    answer.versions = vec![answer.versions.swap_remove(at)];
    answer.diffs = if at < answer.diffs.len() {
        vec![answer.diffs.swap_remove(at)]
    } else {
        Vec::new()
    };
    Some(())
}

/// Newest first; the oldest has nothing to differ from.
fn text(versions: &[Job], diffs: &[JobDiff]) -> String {
    let mut parts = Vec::new();
    for (at, job) in versions.iter().enumerate() {
        let mut part = format!(
            "Version     = {}\nStable      = {}\nSubmit Date = {}\n",
            job.version,
            job.stable,
            output::time_since(job.submit_time)
        );
        if let Some(tag) = &job.version_tag {
            part.extend(["Tag         = ", &tag.name, "\n"]);
            if !tag.description.is_empty() {
                part.extend(["Description = ", &tag.description, "\n"]);
            }
        }
        if let Some(diff) = diffs.get(at) {
            part.push_str("Diff        =\n");
            part.push_str(&diff::text(diff, false));
        }
        parts.push(part);
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions() -> VersionsResponse {
        let job = |version| Job {
            version,
            stable: version == 0,
            ..Job::default()
        };
        let diff = |id: &str| JobDiff {
            id: id.to_owned(),
            ..JobDiff::default()
        };
        VersionsResponse {
            versions: vec![job(2), job(1), job(0)],
            diffs: vec![diff("2"), diff("1")],
            ..VersionsResponse::default()
        }
    }

    #[test]
    fn one_version_is_shown_with_its_own_changes() {
        let mut one = versions();
        let mut oldest = versions();

        keep(&mut one, 1).unwrap();
        keep(&mut oldest, 0).unwrap();

        assert_eq!(
            (one.versions[0].version, one.diffs[0].id.as_str()),
            (1, "1")
        );
        assert_eq!((oldest.versions.len(), oldest.diffs.len()), (1, 0));
        assert!(keep(&mut oldest, 7).is_none());
    }

    #[test]
    fn every_version_is_listed() {
        let VersionsResponse {
            versions, diffs, ..
        } = versions();

        let text = text(&versions, &diffs);

        assert_eq!(text.matches("Version ").count(), 3);
        assert_eq!(text.matches("Diff ").count(), 2);
        assert!(text.contains("Stable      = true"));
    }
}
