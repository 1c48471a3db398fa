//! `muster job dispatch` and `muster job periodic`: launches of child jobs.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::{Args, Subcommand};
use muster_wire::api::eval::Evaluation;
use muster_wire::api::job::{DispatchRequest, DispatchResponse, RegisterResponse};
use serde_json::json;

use super::follow::{self, FollowArgs};
use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::{names, output};

/// Arguments of `muster job dispatch`.
#[derive(Debug, Args)]
pub struct DispatchArgs {
    /// Name of the parameterized job.
    pub job: String,
    /// Payload file. `-` is standard input.
    pub payload: Option<PathBuf>,
    /// Metadata of this dispatch. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub meta: Vec<String>,
    /// Dispatch nothing if this token was used before.
    #[arg(
        long,
        value_name = "TOKEN",
        default_value = "",
        hide_default_value = true
    )]
    pub idempotency_token: String,
    /// The priority of the new job, from 1 to 100; that of the parameterized job unless given.
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub priority: Option<u64>,
    /// How to wait.
    #[command(flatten)]
    pub follow: FollowArgs,
}

/// Commands about periodic jobs.
#[derive(Debug, Subcommand)]
pub enum PeriodicCommand {
    /// Launch a periodic job now, without waiting for its time.
    Force {
        /// Name of the periodic job.
        job: String,
        /// How to wait.
        #[command(flatten)]
        follow: FollowArgs,
    },
}

pub(super) fn dispatch(client: &Client, json: bool, args: &DispatchArgs) -> CliResult {
    let id = names::job(client, &args.job, names::Access::Change)?;
    let payload = args.payload.as_deref().map(read_payload).transpose()?;
    let body = DispatchRequest {
        payload: payload.map(|bytes| BASE64_STANDARD.encode(bytes)),
        meta: read_meta(&args.meta)?,
        idempotency_token: args.idempotency_token.clone(),
        priority: args.priority.unwrap_or_default(),
        ..DispatchRequest::default()
    };
    let answer: DispatchResponse =
        client.put(&format!("/v1/job/{}/dispatch", escape(&id)), &body)?;
    if json && args.follow.detach {
        output::print_json(&answer)?;
        return Ok(Exit::Done);
    }
    let launched = RegisterResponse {
        eval_id: answer.eval_id,
        ..RegisterResponse::default()
    };
    let id = answer.dispatched_job_id;
    follow::follow_to_end(client, json, &args.follow, &id, &launched)
}

fn read_payload(file: &Path) -> Result<Vec<u8>, CliError> {
    let read = if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    read.map_err(|error| {
        let reason = format!("{} cannot be read: {error}", file.display());
        CliError::new(Exit::Usage, reason)
    })
}

fn read_meta(given: &[String]) -> Result<BTreeMap<String, String>, CliError> {
    let pair = |text: &String| {
        let (key, value) = text.split_once('=').ok_or_else(|| {
            CliError::new(Exit::Usage, format!("invalid metadata `{text}`"))
                .help("write --meta KEY=VALUE")
        })?;
        Ok((key.to_owned(), value.to_owned()))
    };
    given.iter().map(pair).collect()
}

pub(super) fn periodic(client: &Client, json: bool, command: &PeriodicCommand) -> CliResult {
    let PeriodicCommand::Force { job, follow } = command;
    let parent = names::job(client, job, names::Access::Change)?;
    let path = format!("/v1/job/{}/periodic/force", escape(&parent));
    let answer: RegisterResponse = client.put(&path, &json!({}))?;
    let mut id = parent;
    if !answer.eval_id.is_empty() {
        let eval: Evaluation = client.get(&format!("/v1/evaluation/{}", answer.eval_id))?;
        id = eval.job_id;
    }
    follow::follow_to_end(client, json, follow, &id, &answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_up_to_the_first_sign() {
        let read = read_meta(&["a=b=c".to_owned(), "d=".to_owned()]).unwrap();

        assert_eq!(read["a"], "b=c");
        assert_eq!(read["d"], "");
        assert_eq!(read_meta(&["a".to_owned()]).unwrap_err().exit, Exit::Usage);
    }
}
