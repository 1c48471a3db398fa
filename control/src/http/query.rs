//! What stands behind the `?`, and waiting for changes.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::Response;
use muster_control_core::state::State;
use muster_domain::id::{JobKey, LogIndex};
use muster_domain::job::{DEFAULT_NAMESPACE, DEFAULT_REGION};
use muster_wire::api::duration;
use muster_wire::limits::{BLOCKING_WAIT_DEFAULT, BLOCKING_WAIT_MAX};
use serde::Serialize;
use tokio::time::Instant;

use super::status::ApiError;
use super::{Http, answer};

/// The namespace that stands for all of them.
const ALL_NAMESPACES: &str = "*";

/// The parameters of a request. Those that nobody asks for are ignored, as Nomad does.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    params: BTreeMap<String, String>,
    /// Parameters that were given before, by a name that [`Self::params`] has again.
    repeated: Vec<(String, String)>,
    newer_than: LogIndex,
    wait: Duration,
    pretty: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Self::read(parts.uri.query().unwrap_or_default())
    }
}

impl Query {
    fn read(text: &str) -> Result<Self, ApiError> {
        let mut params: BTreeMap<String, String> = BTreeMap::new();
        let mut repeated = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain = |text: &str| super::path::decode(&text.replace('+', " "));
            let (key, value) = (plain(key)?, plain(value)?);
            if let Some(earlier) = params.insert(key.clone(), value) {
                repeated.push((key, earlier));
            }
        }
        let malformed = |what: &str, error: &dyn std::fmt::Display| {
            ApiError::Malformed(format!("Invalid {what}: {error}"))
        };
        let newer_than = match params.get("index").filter(|text| !text.is_empty()) {
            Some(text) => LogIndex(text.parse().map_err(|error| malformed("index", &error))?),
            None => LogIndex(0),
        };
        let wait = match params.get("wait").filter(|text| !text.is_empty()) {
            Some(text) => duration::parse(text).map_err(|error| malformed("wait time", &error))?,
            None => BLOCKING_WAIT_DEFAULT,
        };
        if let Some(region) = params
            .get("region")
            .filter(|name| !name.is_empty() && *name != DEFAULT_REGION)
        {
            return Err(ApiError::Malformed(format!(
                "there is no region `{region}`, only `{DEFAULT_REGION}`"
            )));
        }
        let pretty = params.contains_key("pretty");
        Ok(Self {
            params,
            repeated,
            newer_than,
            wait: wait.min(BLOCKING_WAIT_MAX),
            pretty,
        })
    }

    /// The text of `name`, if it is given and not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.params
            .get(name)
            .map(String::as_str)
            .filter(|text| !text.is_empty())
    }

    /// Every text given for `name`.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let repeated = self.repeated.iter().filter(move |(key, _)| key == name);
        repeated
            .map(|(_, value)| value.as_str())
            .chain(self.params.get(name).map(String::as_str))
    }

    /// The index after which something is wanted; 0 if the request names none.
    pub(super) fn newer_than(&self) -> LogIndex {
        self.newer_than
    }

    /// Whether `name` is given as `true` or `1`, or without a value.
    pub(super) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.params.get(name).map(String::as_str) {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(other) => Err(ApiError::Malformed(format!(
                "Invalid {name}: `{other}` is neither true nor false"
            ))),
        }
    }

    /// The number `name`.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let error = || {
            ApiError::Malformed(format!(
                "Invalid {name}: `{text}` is not a whole number from 0 on"
            ))
        };
        text.parse().ok().map(Some).ok_or_else(error)
    }

    /// The prefix of ids in a list.
    pub(super) fn prefix(&self) -> &str {
        self.text("prefix").unwrap_or_default()
    }

    /// The namespace of single objects.
    pub(super) fn namespace(&self) -> &str {
        self.text("namespace").unwrap_or(DEFAULT_NAMESPACE)
    }

    /// Whether a list shows objects of `namespace`.
    pub(super) fn shows(&self, namespace: &str) -> bool {
        let asked = self.namespace();
        asked == ALL_NAMESPACES || asked == namespace
    }

    /// The key of `job_id` in the namespace asked for.
    pub(super) fn job_key(&self, job_id: &str) -> JobKey {
        JobKey {
            namespace: self.namespace().to_owned(),
            job_id: job_id.to_owned(),
        }
    }

    /// `value` as JSON, without a state behind it.
    pub(super) fn json(&self, value: &impl Serialize) -> Result<Response, ApiError> {
        answer::json(value, self.pretty)
    }

    /// Reads from the newest state, or, if the request names an index, from the first in which `index` is
    /// above it. After the wait time the answer is what is so then.
    pub(super) async fn read_state<T: Serialize>(
        &self,
        http: &Http,
        index: impl Fn(&State) -> LogIndex,
        read: impl FnOnce(&State) -> Result<T, ApiError>,
    ) -> Result<Response, ApiError> {
        let state = self.newer(http, &index).await;
        let response = match read(&state) {
            Ok(value) => self.json(&value)?,
            Err(error) => axum::response::IntoResponse::into_response(error),
        };
        Ok(answer::stamp(response, &http.control, index(&state)))
    }

    /// The same for a list, which is made on a thread of its own because it may be long. `rows` gives each
    /// row with the key by which the list is sorted; `per_page` and `next_token` cut it.
    pub(super) async fn list_state<T, R>(
        &self,
        http: &Http,
        index: impl Fn(&State) -> LogIndex,
        rows: R,
    ) -> Result<Response, ApiError>
    where
        T: Serialize + Send + 'static,
        R: FnOnce(&State, Page<T>) -> Page<T> + Send + 'static,
    {
        let state = self.newer(http, &index).await;
        let seen = index(&state);
        let per_page = self
            .number("per_page")?
            .and_then(|rows| usize::try_from(rows).ok());
        let page = Page::new(per_page, self.text("next_token").unwrap_or_default());
        let pretty = self.pretty;
        let made = tokio::task::spawn_blocking(move || {
            let page = rows(&state, page);
            answer::json(&page.rows, pretty)
                .map(|response| answer::continued(response, page.next.as_deref()))
        });
        let response = made
            .await
            .map_err(|error| ApiError::Internal(error.to_string()))??;
        Ok(answer::stamp(response, &http.control, seen))
    }

    async fn newer(&self, http: &Http, index: &impl Fn(&State) -> LogIndex) -> State {
        let mut applied = http.control.applied();
        let deadline = Instant::now() + self.wait;
        loop {
            applied.mark_unchanged();
            let state = http.control.state();
            if self.newer_than == LogIndex(0) || index(&state) > self.newer_than {
                return state;
            }
            tokio::select! {
                changed = applied.changed() => {
                    if changed.is_err() {
                        return state;
                    }
                }
                () = tokio::time::sleep_until(deadline) => return http.control.state(),
                () = http.shutdown.cancelled() => return state,
            }
        }
    }
}

/// One page of a list.
#[derive(Debug)]
pub(super) struct Page<T> {
    rows_max: usize,
    from: String,
    rows: Vec<T>,
    next: Option<String>,
}

impl<T> Page<T> {
    fn new(per_page: Option<usize>, from: &str) -> Self {
        let rows_max = per_page.filter(|rows| *rows > 0).unwrap_or(usize::MAX);
        Self {
            rows_max,
            from: from.to_owned(),
            rows: Vec::new(),
            next: None,
        }
    }

    /// Adds the row called `key`, made by `row` if it is on this page. Keys come in ascending order.
    pub(super) fn push(&mut self, key: &str, row: impl FnOnce() -> T) {
        if self.next.is_some() || key < self.from.as_str() {
            return;
        }
        if self.rows.len() == self.rows_max {
            self.next = Some(key.to_owned());
        } else {
            self.rows.push(row());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query =
            Query::read("prefix=a%2Fb&stale&index=7&wait=2000ms&pretty&namespace=*").unwrap();

        assert_eq!(query.prefix(), "a/b");
        assert_eq!(
            (query.newer_than, query.wait),
            (LogIndex(7), Duration::from_secs(2))
        );
        assert!(query.pretty && query.shows("anything"));
    }

    #[test]
    fn a_wait_is_bounded() {
        assert_eq!(Query::read("wait=1000h").unwrap().wait, BLOCKING_WAIT_MAX);
        assert_eq!(Query::read("").unwrap().wait, BLOCKING_WAIT_DEFAULT);
    }

    #[test]
    fn a_malformed_parameter_is_named() {
        for (text, name) in [
            ("index=x", "index"),
            ("wait=5", "wait time"),
            ("region=mars", "mars"),
        ] {
            assert!(
                Query::read(text).unwrap_err().to_string().contains(name),
                "{text}"
            );
        }
        assert!(
            Query::read("counters=maybe")
                .unwrap()
                .flag("counters")
                .is_err()
        );
    }

    #[test]
    fn pages_join_up() {
        let keys = ["a", "b", "c", "d", "e"];
        let mut from = String::new();
        let mut seen = Vec::new();

        for _ in 0..3 {
            let mut page = Page::new(Some(2), &from);
            for key in keys {
                page.push(key, || key);
            }
            seen.extend(page.rows);
            from = page.next.unwrap_or_default();
        }

        assert_eq!(seen, keys);
        assert_eq!(from, "");
    }
}
