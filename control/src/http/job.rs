//! Jobs: register, list, read, stop, validate. The submodules hold the other requests.
//!
//! A job's id may contain slashes, escaped or not, so this module splits the path after `/v1/job/`. The last
//! segment names the request if it is one of [`JobSubresource`]'s. The rest is the id.

mod change;
mod launch;
mod plan;
mod version;
mod why;

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State as Shared;
use axum::http::{Method, Uri};
use axum::response::Response;
use axum::routing::{any, get, put};
use muster_control_core::fsm::{self, Entry, JobCommand};
use muster_control_core::periodic;
use muster_control_core::state::{Allocs, JobSummary as CountedAllocs, State};
use muster_domain::eval::Evaluation;
use muster_domain::fault::Fault;
use muster_domain::id::{EvalId, JobKey, LogIndex};
use muster_domain::job::{DEFAULT_NAMESPACE, Job, JobSpec, JobStatus, NODE_VARIABLES, validate};
use muster_wire::api;
use muster_wire::api::job::request::{self, ReadJob, ReadJobError};
use muster_wire::api::job::{
    Children, GroupSummary, JobListStub, JobSummary, RegisterResponse, ValidateResponse,
};

use super::alloc::{node_refs, stub};
use super::body::RawBody;
use super::handler::{Http, Table};
use super::query::Query;
use super::status::ApiError;
use super::{deployment, garbage, path};
use crate::garbage::FreedCounts;
use crate::limits;

const NOT_FOUND: ApiError = ApiError::NotFound { what: "job" };

pub(super) fn routes(table: Table) -> Table {
    let mut table = table
        .on("/v1/jobs", get(list).put(register).post(register))
        .on("/v1/validate/job", put(check).post(check));
    table.router = table.router.route("/v1/job/{*rest}", any(one));
    table.paths.push("/v1/job/{job_id}");
    table.paths.push("/v1/job/{job_id}/versions/{tag}/tag");
    table
        .paths
        .extend(JobSubresource::ALL.map(JobSubresource::path));
    table
}

/// A part of a job with a path of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobSubresource {
    Actions,
    Allocations,
    Deployment,
    Deployments,
    Dispatch,
    Evaluate,
    Evaluations,
    ForceLaunch,
    Plan,
    Revert,
    Scale,
    Services,
    Stable,
    Summary,
    Versions,
    Why,
}

impl JobSubresource {
    const ALL: [Self; 16] = [
        Self::Actions,
        Self::Allocations,
        Self::Deployment,
        Self::Deployments,
        Self::Dispatch,
        Self::Evaluate,
        Self::Evaluations,
        Self::ForceLaunch,
        Self::Plan,
        Self::Revert,
        Self::Scale,
        Self::Services,
        Self::Stable,
        Self::Summary,
        Self::Versions,
        Self::Why,
    ];

    fn path(self) -> &'static str {
        match self {
            Self::Actions => "/v1/job/{job_id}/actions",
            Self::Allocations => "/v1/job/{job_id}/allocations",
            Self::Deployment => "/v1/job/{job_id}/deployment",
            Self::Deployments => "/v1/job/{job_id}/deployments",
            Self::Dispatch => "/v1/job/{job_id}/dispatch",
            Self::Evaluate => "/v1/job/{job_id}/evaluate",
            Self::Evaluations => "/v1/job/{job_id}/evaluations",
            Self::ForceLaunch => "/v1/job/{job_id}/periodic/force",
            Self::Plan => "/v1/job/{job_id}/plan",
            Self::Revert => "/v1/job/{job_id}/revert",
            Self::Scale => "/v1/job/{job_id}/scale",
            Self::Services => "/v1/job/{job_id}/services",
            Self::Stable => "/v1/job/{job_id}/stable",
            Self::Summary => "/v1/job/{job_id}/summary",
            Self::Versions => "/v1/job/{job_id}/versions",
            Self::Why => "/v1/job/{job_id}/why",
        }
    }
}

/// Nomad's paths that this API does not have. Without the list they would be read as part of the id.
const UNSUPPORTED: [&str; 2] = ["submission", "action"];

/// Splits the path after `/v1/job/` into the job's id and its subresource.
fn split_path(rest: &str) -> Result<(String, Option<JobSubresource>), ApiError> {
    if let Some(what) = UNSUPPORTED
        .into_iter()
        .find(|what| ends_with(rest, what).is_some())
    {
        return Err(ApiError::Unsupported {
            what: format!("job {what}"),
        });
    }
    let aspects = JobSubresource::ALL.into_iter();
    let mut found = aspects.filter_map(|aspect| {
        let (_, word) = aspect.path().split_once("{job_id}/")?;
        ends_with(rest, word).map(|id| (id, aspect))
    });
    match found.next_back() {
        Some((id, aspect)) => Ok((path::decode(id)?, Some(aspect))),
        None => Ok((path::decode(rest)?, None)),
    }
}

/// Returns the id and the tag if the path after `/v1/job/` names a version's tag.
fn tag(rest: &str) -> Option<(&str, &str)> {
    let (before, tag) = ends_with(rest, "tag")?.rsplit_once('/')?;
    Some((ends_with(before, "versions")?, tag))
}

/// Returns the text before `/word`, if it is not empty.
fn ends_with<'a>(rest: &'a str, word: &str) -> Option<&'a str> {
    rest.strip_suffix(word)?
        .strip_suffix('/')
        .filter(|id| !id.is_empty())
}

async fn list(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let asked = query.clone();
    let wants_meta = query.flag("meta")?;
    query
        .list_state(
            &http,
            |state| state.jobs().index().max(state.allocs().index()),
            move |state, mut page| {
                let shown = state.jobs().iter().filter(|job| {
                    let spec = &job.current.spec;
                    asked.shows(&spec.namespace) && spec.id.starts_with(asked.prefix())
                });
                for job in shown {
                    let spec = &job.current.spec;
                    let key = format!("{}.{}", spec.namespace, spec.id);
                    page.push(&key, || JobListStub {
                        meta: wants_meta.then(|| spec.meta.clone()),
                        ..JobListStub::new(job, summary(state, job))
                    });
                }
                page
            },
        )
        .await
}

async fn register(
    Shared(http): Shared<Http>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    submit(&http, &query, body, None).await
}

async fn submit(
    http: &Http,
    query: &Query,
    body: RawBody,
    id: Option<&str>,
) -> Result<Response, ApiError> {
    let ReadJob {
        spec,
        mut warnings,
        enforce_index,
        wants_diff: _,
        preserve_counts,
        preserve_resources,
    } = read(body).await?;
    let mut spec = admit(query, spec, id)?;
    {
        let state = http.control.state();
        if let Some(old) = state.jobs().get(&spec.key()) {
            let old = &old.current.spec;
            preserve(&mut spec, old, preserve_counts, preserve_resources);
        }
        warnings.extend(ineffective(&state, &spec));
    }
    let check_index = enforce_index.map(LogIndex);
    let command = http.control.registration(spec, check_index).await;
    let answer = propose(http, query, command).await?;
    query.json(&RegisterResponse {
        warnings: join_warnings(&warnings),
        ..answer
    })
}

/// Checks a job for registration, under the `id` of the path if the path has one.
fn admit(query: &Query, mut spec: JobSpec, id: Option<&str>) -> Result<JobSpec, ApiError> {
    if id.is_some_and(|id| id != spec.id) {
        return Err(ApiError::Malformed(format!(
            "Job ID does not match: the body names `{}`",
            spec.id
        )));
    }
    claim_namespace(query, &mut spec)?;
    let periodic = periodic::faults(&spec);
    match validate(spec) {
        Ok(valid) if periodic.is_empty() => Ok(valid.into_spec()),
        Ok(_) => Err(ApiError::Invalid(periodic)),
        Err(mut faults) => {
            faults.extend(periodic);
            Err(ApiError::Invalid(faults))
        }
    }
}

/// Keeps counts and resources of `old`, the registered version, as the request asks.
fn preserve(spec: &mut JobSpec, old: &JobSpec, counts: bool, resources: bool) {
    for group in &mut spec.groups {
        let Some(old_group) = old.group(&group.name) else {
            continue;
        };
        if counts {
            group.count = old_group.count;
        }
        for task in group.tasks.iter_mut().filter(|_| resources) {
            if let Some(old_task) = old_group.task(&task.name) {
                task.resources = old_task.resources.clone();
            }
        }
    }
}

/// Warnings about fields without effect: because of the cluster's settings, or because the node sets their value.
fn ineffective(state: &State, spec: &JobSpec) -> Vec<String> {
    let oversubscribes = state.config().scheduler.memory_oversubscription;
    let tasks = spec.groups.iter().flat_map(|group| {
        let tasks = group.tasks.iter();
        tasks.map(move |task| (group, task))
    });
    let mut warnings = Vec::new();
    for (group, task) in tasks {
        let at = format!("group \"{}\" → task \"{}\"", group.name, task.name);
        if task.resources.memory_max.is_some() && !oversubscribes {
            warnings.push(format!(
                "{at} → memory_max: has no effect, the limit is `memory`: memory oversubscription is off (`muster operator scheduler set-config --memory-oversubscription` turns it on)"
            ));
        }
        let set_by_node = task.env.keys();
        for name in set_by_node.filter(|name| NODE_VARIABLES.contains(&name.as_str())) {
            warnings.push(format!(
                "{at} → env → {name}: has no effect, the node sets this variable"
            ));
        }
    }
    warnings
}

/// All faults of a parsed job.
fn faults(spec: &JobSpec) -> Vec<Fault> {
    let mut faults = validate(spec.clone()).err().unwrap_or_default();
    faults.extend(periodic::faults(spec));
    faults
}

/// Parses the job in `body`. A large body is parsed on a thread of its own: four megabytes take some ten
/// milliseconds.
async fn read(body: RawBody) -> Result<ReadJob, ApiError> {
    let RawBody(bytes) = body;
    let read = if bytes.len() <= limits::HTTP_BODY_INLINE_BYTES_MAX {
        request::read(&bytes)
    } else {
        let reading = tokio::task::spawn_blocking(move || request::read(&bytes));
        reading
            .await
            .map_err(|error| ApiError::Internal(error.to_string()))?
    };
    read.map_err(ApiError::Body)
}

/// Checks the namespaces of the job's body and of the query. Only the default namespace exists.
fn claim_namespace(query: &Query, spec: &mut JobSpec) -> Result<(), ApiError> {
    if spec.namespace == DEFAULT_NAMESPACE {
        query.namespace().clone_into(&mut spec.namespace);
    }
    if spec.namespace == DEFAULT_NAMESPACE {
        return Ok(());
    }
    Err(ApiError::Malformed(format!(
        "job \"{}\" is in nonexistent namespace \"{}\": leave it out or write \"{DEFAULT_NAMESPACE}\"",
        spec.id, spec.namespace
    )))
}

/// Joins warnings as Nomad's command line expects them: one text, empty if there are none.
fn join_warnings(warnings: &[String]) -> String {
    match warnings {
        [] => String::new(),
        [one] => format!("1 warning:\n\n* {one}"),
        many => format!("{} warnings:\n\n* {}", many.len(), many.join("\n* ")),
    }
}

/// Proposes a command about a job and answers with its evaluation.
async fn propose(http: &Http, query: &Query, entry: Entry) -> Result<RegisterResponse, ApiError> {
    let (index, response) = http.control.propose(query.once(entry)).await?;
    outcome(http, index, response)
}

/// The answer to a job's command, which the entry at `index` applied.
fn outcome(
    http: &Http,
    index: LogIndex,
    response: fsm::Response,
) -> Result<RegisterResponse, ApiError> {
    // A repeated request gets the first answer: its evaluation is older than its entry.
    let made = |eval_id: Option<&EvalId>| {
        let state = http.control.state();
        let eval = eval_id.and_then(|eval_id| state.evals().get(eval_id));
        eval.map_or(index, |eval| eval.create_index)
    };
    let (eval_id, eval_index, job_modify_index) = match response {
        fsm::Response::JobRegistered {
            eval_id,
            version: _,
            job_modify_index,
        } => (eval_id, made(eval_id.as_ref()), job_modify_index),
        fsm::Response::JobDeregistered { eval_id }
        | fsm::Response::JobPurged {
            eval_id,
            deployments: _,
        }
        | fsm::Response::JobLaunched { job_id: _, eval_id } => {
            let eval_index = made(eval_id.as_ref());
            (eval_id, eval_index, eval_index)
        }
        fsm::Response::EvalCreated { eval_id } => {
            let eval_index = made(Some(&eval_id));
            (Some(eval_id), eval_index, eval_index)
        }
        fsm::Response::Rejected(rejection) => return Err(ApiError::Rejected(rejection)),
        other @ (fsm::Response::Done
        | fsm::Response::NodeRegistered
        | fsm::Response::PlansApplied { .. }
        | fsm::Response::Collected { .. }
        | fsm::Response::DeploymentChanged { .. }
        | fsm::Response::EvalsCreated { .. }
        | fsm::Response::NodesReported { .. }
        | fsm::Response::OneOffsDesired { .. }
        | fsm::Response::OneOffsChanged { .. }) => {
            return Err(ApiError::Internal(format!(
                "a command about a job was answered with {other:?}"
            )));
        }
    };
    Ok(RegisterResponse {
        eval_id: eval_id.map(|id| id.to_string()).unwrap_or_default(),
        eval_create_index: eval_index.0,
        job_modify_index: job_modify_index.0,
        index: index.0,
        known_leader: true,
        ..RegisterResponse::default()
    })
}

async fn check(
    Shared(http): Shared<Http>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let (faults, warnings) = match read(body).await {
        Ok(ReadJob {
            mut spec,
            mut warnings,
            ..
        }) => {
            claim_namespace(&query, &mut spec)?;
            warnings.extend(ineffective(&http.control.state(), &spec));
            (faults(&spec), warnings)
        }
        Err(ApiError::Body(ReadJobError::Faults(faults))) => (faults, Vec::new()),
        Err(error) => return Err(error),
    };
    let error = request::lines(&faults);
    query.json(&ValidateResponse {
        driver_config_validated: false,
        validation_errors: error.lines().map(str::to_owned).collect(),
        error,
        warnings: join_warnings(&warnings),
    })
}

async fn one(
    Shared(http): Shared<Http>,
    method: Method,
    uri: Uri,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let rest = uri.path().strip_prefix("/v1/job/").unwrap_or_default();
    if let Some((job_id, tag)) = tag(rest) {
        let key = query.job_key(&path::decode(job_id)?);
        let tag = path::decode(tag)?;
        return match method {
            Method::PUT | Method::POST => change::tag(&http, &query, key, tag, body).await,
            Method::DELETE => change::untag(&http, &query, key, tag).await,
            _ => Err(ApiError::Method),
        };
    }
    let (job_id, aspect) = split_path(rest)?;
    let key = query.job_key(&job_id);
    let is_read = method == Method::GET || method == Method::HEAD;
    let is_write = method == Method::PUT || method == Method::POST;
    match aspect {
        None if is_read => read_one(&http, &query, key).await,
        None if is_write => submit(&http, &query, body, Some(&job_id)).await,
        None if method == Method::DELETE => stop(&http, &query, key).await,
        Some(JobSubresource::Dispatch) if is_write => {
            launch::dispatch(&http, &query, key, body).await
        }
        Some(JobSubresource::Evaluate) if is_write => {
            change::evaluate(&http, &query, key, body).await
        }
        Some(JobSubresource::ForceLaunch) if is_write => launch::force(&http, &query, key).await,
        Some(JobSubresource::Plan) if is_write => plan::plan(&http, &query, &job_id, body).await,
        Some(JobSubresource::Revert) if is_write => change::revert(&http, &query, key, body).await,
        Some(JobSubresource::Scale) if is_write => change::scale(&http, &query, key, body).await,
        Some(JobSubresource::Stable) if is_write => {
            change::set_stable(&http, &query, key, body).await
        }
        None
        | Some(
            JobSubresource::Dispatch
            | JobSubresource::Evaluate
            | JobSubresource::ForceLaunch
            | JobSubresource::Plan
            | JobSubresource::Revert
            | JobSubresource::Stable,
        ) => Err(ApiError::Method),
        Some(_) if !is_read => Err(ApiError::Method),
        Some(JobSubresource::Allocations) => allocations(&http, &query, key).await,
        Some(JobSubresource::Evaluations) => evaluations(&http, &query, key).await,
        Some(JobSubresource::Scale) => change::read_scale(&http, &query, key).await,
        Some(JobSubresource::Summary) => read_summary(&http, &query, key).await,
        Some(JobSubresource::Versions) => version::versions(&http, &query, key).await,
        Some(JobSubresource::Why) => why::why(&http, &query, key).await,
        Some(JobSubresource::Deployment) => deployment::latest(&http, &query, key).await,
        Some(JobSubresource::Deployments) => deployment::of_job(&http, &query, key).await,
        // Services and actions are not supported: the answer is that of a job without them.
        Some(JobSubresource::Actions | JobSubresource::Services) => {
            nothing(&http, &query, &key, serde_json::Value::Array(Vec::new())).await
        }
    }
}

fn modified(state: &State, key: &JobKey) -> LogIndex {
    state
        .jobs()
        .get(key)
        .map_or(state.jobs().index(), |job| job.modify_index)
}

async fn read_one(http: &Http, query: &Query, key: JobKey) -> Result<Response, ApiError> {
    query
        .read_state(
            http,
            |state| modified(state, &key),
            |state| {
                state
                    .jobs()
                    .get(&key)
                    .map(|job| api::job::Job::from_job(job))
                    .ok_or(NOT_FOUND)
            },
        )
        .await
}

async fn nothing(
    http: &Http,
    query: &Query,
    key: &JobKey,
    value: serde_json::Value,
) -> Result<Response, ApiError> {
    query
        .read_state(
            http,
            |state| modified(state, key),
            |state| state.jobs().get(key).map(|_| value).ok_or(NOT_FOUND),
        )
        .await
}

async fn stop(http: &Http, query: &Query, key: JobKey) -> Result<Response, ApiError> {
    let purge = query.flag("purge")?;
    let at = http.control.now();
    if !purge {
        let command = JobCommand::Deregister { key }.at(at);
        return query.json(&propose(http, query, command).await?);
    }
    let command = JobCommand::Purge { key: key.clone() }.at(at);
    let (index, response) = http.control.propose(query.once(command)).await?;
    let mut freed = FreedCounts::with_job(&response);
    let mut answer = outcome(http, index, response)?;
    // A repeated request gets the first answer. The first request has already counted the job.
    if answer.eval_create_index == index.0 {
        http.control.gc_totals().slice(&freed, Duration::ZERO);
    }
    garbage::forget_below(http, key, at, &mut freed).await;
    answer.freed = freed.by_kind();
    query.json(&answer)
}

async fn allocations(http: &Http, query: &Query, key: JobKey) -> Result<Response, ApiError> {
    let index = |state: &State| state.allocs().index();
    query
        .list_state(http, index, move |state, mut page| {
            let nodes = node_refs(state);
            for alloc in Allocs::by_id(state.allocs().of_job(&key)) {
                page.push(&alloc.id().to_string(), || stub(alloc, &nodes, false));
            }
            page
        })
        .await
}

async fn evaluations(http: &Http, query: &Query, key: JobKey) -> Result<Response, ApiError> {
    let index = |state: &State| state.evals().index();
    query
        .list_state(http, index, move |state, mut page| {
            for eval in state.evals().of_job(&key) {
                page.push(&eval.id.to_string(), || {
                    api::eval::Evaluation::from(&**eval)
                });
            }
            page
        })
        .await
}

async fn read_summary(http: &Http, query: &Query, key: JobKey) -> Result<Response, ApiError> {
    query
        .read_state(
            http,
            |state| modified(state, &key).max(state.allocs().index()),
            |state| {
                state
                    .jobs()
                    .get(&key)
                    .map(|job| summary(state, job))
                    .ok_or(NOT_FOUND)
            },
        )
        .await
}

/// Counts of the instances of `job` by state. Waiting instances come from its newest unfinished evaluation.
fn summary(state: &State, job: &Job) -> JobSummary {
    let key = job.key();
    let counted = state.allocs().summary(&key).map(CountedAllocs::groups);
    let groups = counted.into_iter().flatten().map(|(name, counts)| {
        let counts = GroupSummary {
            queued: 0,
            complete: counts.complete,
            failed: counts.failed,
            running: counts.running,
            starting: counts.pending,
            lost: counts.lost,
            unknown: counts.unknown,
        };
        (name.to_owned(), counts)
    });
    let groups: BTreeMap<String, GroupSummary> = groups.collect();
    let waiting = state
        .evals()
        .of_job(&key)
        .filter(|eval| !eval.status.is_terminal());
    let newest = waiting.max_by_key(|eval| eval.modify_index);
    let queued: &[(String, u32)] =
        newest.map_or(&[], |eval: &std::sync::Arc<Evaluation>| &eval.queued);
    JobSummary {
        children: children(state, job),
        ..JobSummary::new(job, groups, queued, job.modify_index)
    }
}

/// Counts of the child jobs of `job`, by state.
fn children(state: &State, job: &Job) -> Children {
    let mut counts = Children::default();
    if job.current.spec.is_template() {
        for child in state.jobs().children(&job.key()) {
            match child.status {
                JobStatus::Pending => counts.pending += 1,
                JobStatus::Running => counts.running += 1,
                JobStatus::Dead => counts.dead += 1,
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_may_contain_slashes() {
        let cases = [
            ("web", "web", None),
            ("a%2Fb", "a/b", None),
            ("a/b", "a/b", None),
            ("a/b/summary", "a/b", Some(JobSubresource::Summary)),
            ("a%2Fsummary", "a/summary", None),
            ("summary", "summary", None),
            (
                "summary/evaluate",
                "summary",
                Some(JobSubresource::Evaluate),
            ),
            ("a/periodic/force", "a", Some(JobSubresource::ForceLaunch)),
            ("a/periodic-1", "a/periodic-1", None),
            (
                "a/periodic-1/plan",
                "a/periodic-1",
                Some(JobSubresource::Plan),
            ),
        ];
        for (rest, id, aspect) in cases {
            assert_eq!(split_path(rest).unwrap(), (id.to_owned(), aspect), "{rest}");
        }
    }

    #[test]
    fn unsupported_job_subpath_is_rejected() {
        for rest in ["web/submission", "web/action"] {
            let refused = split_path(rest);
            assert!(
                matches!(refused, Err(ApiError::Unsupported { .. })),
                "{rest}"
            );
        }
    }

    #[test]
    fn warnings_are_counted() {
        assert_eq!(join_warnings(&[]), "");
        assert_eq!(
            join_warnings(&["a".to_owned(), "b".to_owned()]),
            "2 warnings:\n\n* a\n* b"
        );
    }
}
