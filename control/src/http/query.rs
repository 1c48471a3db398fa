//! The query string, and blocking queries.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::Response;
use muster_control_core::fsm::Entry;
use muster_control_core::state::State;
use muster_domain::id::{JobKey, LogIndex, WriteKey};
use muster_domain::job::DEFAULT_NAMESPACE;
use muster_domain::region;
use muster_wire::api::duration;
use muster_wire::limits::{BLOCKING_WAIT_DEFAULT, BLOCKING_WAIT_MAX};
use serde::Serialize;
use tokio::time::Instant;

use super::connections::Activity;
use super::handler::Http;
use super::listen::Connection;
use super::status::ApiError;
use super::{answer, budget};
use crate::handle::{Consistency, ReadState};

/// The namespace parameter that selects all namespaces.
const ALL_NAMESPACES: &str = "*";
/// The header that names a write, so that repeated requests apply it once.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Parameters of Nomad that are refused if they are set. Ignoring them would give a wrong answer.
const UNSUPPORTED: [(&str, &str); 5] = [
    ("filter", "chooses rows by an expression"),
    ("reverse", "turns the order of rows"),
    (
        "eval_priority",
        "gives an evaluation another priority than its job",
    ),
    ("reschedule", "counts a stop as a failure"),
    ("no_shutdown_delay", "stops tasks without their delay"),
];

/// The parameters of a request. Unknown parameters are ignored, as in Nomad.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    params: BTreeMap<String, String>,
    /// Earlier values of repeated parameters; [`Self::params`] has the last value.
    repeated: Vec<(String, String)>,
    newer_than: LogIndex,
    wait: Duration,
    pretty: bool,
    consistency: Consistency,
    /// The idempotency key: requests with the same key are one write.
    key: Option<WriteKey>,
    /// The connection that the request came on.
    connection: Option<Connection>,
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let text = parts.uri.query().unwrap_or_default();
        let query = match parts.method {
            Method::GET | Method::HEAD => Self::read(text)?,
            // A write does not wait for an index, and its `wait` may have another meaning.
            _ => Self::plain(text)?,
        };
        let connection = parts.extensions.get::<Connection>().cloned();
        let query = Self {
            connection,
            ..query
        };
        query.with_key(&parts.headers)
    }
}

impl Query {
    /// Parses the query of a read.
    fn read(text: &str) -> Result<Self, ApiError> {
        let mut query = Self::plain(text)?;
        if let Some(text) = query.text("wait") {
            let wait = duration::parse(text)
                .map_err(|error| ApiError::Malformed(format!("Invalid wait time: {error}")))?;
            query.wait = wait.min(BLOCKING_WAIT_MAX);
        }
        Ok(query)
    }

    fn plain(text: &str) -> Result<Self, ApiError> {
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
        let newer_than = match params.get("index").filter(|text| !text.is_empty()) {
            Some(text) => {
                let malformed = |error| ApiError::Malformed(format!("Invalid index: {error}"));
                LogIndex(text.parse().map_err(malformed)?)
            }
            None => LogIndex(0),
        };
        if let Some(other) = params
            .get("region")
            .filter(|name| !name.is_empty() && *name != region::name())
        {
            return Err(ApiError::Malformed(format!(
                "no path to region `{other}`: this cluster is region `{}`",
                region::name()
            )));
        }
        if let Some((name, why)) = UNSUPPORTED.iter().find(|(name, _)| {
            let value = params.get(*name).map_or("", String::as_str);
            !matches!(value, "" | "0" | "f" | "F" | "false" | "False" | "FALSE")
        }) {
            return Err(ApiError::Unsupported {
                what: format!("the parameter `{name}`, which {why},"),
            });
        }
        let pretty = params.contains_key("pretty");
        let mut query = Self {
            params,
            repeated,
            newer_than,
            wait: BLOCKING_WAIT_DEFAULT,
            pretty,
            consistency: Consistency::Leader,
            key: None,
            connection: None,
        };
        query.consistency = match (query.flag("stale")?, query.flag("consistent")?) {
            (false, false) => Consistency::Leader,
            (true, false) => Consistency::Stale,
            (false, true) => Consistency::Linearizable,
            (true, true) => {
                return Err(ApiError::Malformed(
                    "Invalid consistency: `stale` and `consistent` exclude each other".to_owned(),
                ));
            }
        };
        Ok(query)
    }

    /// Adds the key of a write: the header `Idempotency-Key`, or Nomad's `idempotency_token`.
    fn with_key(mut self, headers: &HeaderMap) -> Result<Self, ApiError> {
        let header = headers.get(IDEMPOTENCY_KEY);
        let token = self.text("idempotency_token").map(str::as_bytes);
        let Some(given) = header.map(HeaderValue::as_bytes).or(token) else {
            return Ok(self);
        };
        // The draft standard of the header puts the key in quotation marks.
        let text = std::str::from_utf8(given).ok().map(|text| {
            let quoted = text
                .strip_prefix('"')
                .and_then(|text| text.strip_suffix('"'));
            quoted.unwrap_or(text)
        });
        let key = text.and_then(WriteKey::new).ok_or_else(|| {
            ApiError::Malformed(format!(
                "Invalid idempotency key: 1 to {} characters of UTF-8 are wanted, chosen anew for each write",
                muster_domain::limits::WRITE_KEY_BYTES_MAX
            ))
        })?;
        self.key = Some(key);
        Ok(self)
    }

    /// Wraps `entry` with the key of this request, if it has one. Then a repeated request is applied once.
    pub(super) fn once(&self, entry: Entry) -> Entry {
        match &self.key {
            Some(key) => entry.keyed(key.clone()),
            None => entry,
        }
    }

    /// The key of this request, if it has one: see [`Self::once`].
    pub(super) fn key(&self) -> Option<WriteKey> {
        self.key.clone()
    }

    /// The value of `name`, if it is given and not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.params
            .get(name)
            .map(String::as_str)
            .filter(|text| !text.is_empty())
    }

    /// All values given for `name`.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let repeated = self.repeated.iter().filter(move |(key, _)| key == name);
        repeated
            .map(|(_, value)| value.as_str())
            .chain(self.params.get(name).map(String::as_str))
    }

    /// The index of a blocking query; 0 if the request names none.
    pub(super) fn newer_than(&self) -> LogIndex {
        self.newer_than
    }

    /// Whether `name` is `true` or `1`, or has no value.
    pub(super) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.params.get(name).map(String::as_str) {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(other) => Err(ApiError::Malformed(format!(
                "Invalid {name}: `{other}` is neither true nor false"
            ))),
        }
    }

    /// The value of `name` as a number.
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

    /// The prefix of ids for a list.
    pub(super) fn prefix(&self) -> &str {
        self.text("prefix").unwrap_or_default()
    }

    /// The namespace for single objects.
    pub(super) fn namespace(&self) -> &str {
        self.text("namespace").unwrap_or(DEFAULT_NAMESPACE)
    }

    /// Whether a list shows objects of `namespace`.
    pub(super) fn shows(&self, namespace: &str) -> bool {
        let asked = self.namespace();
        asked == ALL_NAMESPACES || asked == namespace
    }

    /// The key of `job_id` in the requested namespace.
    pub(super) fn job_key(&self, job_id: &str) -> JobKey {
        JobKey {
            namespace: self.namespace().to_owned(),
            job_id: job_id.to_owned(),
        }
    }

    /// Answers with `value` as JSON, without the headers of a state.
    pub(super) fn json(&self, value: &impl Serialize) -> Result<Response, ApiError> {
        answer::json(value, self.pretty)
    }

    /// Reads a state that satisfies the request's consistency.
    pub(super) async fn state(&self, http: &Http) -> Result<ReadState, ApiError> {
        Ok(http.control.read(self.consistency).await?)
    }

    /// Reads from a state that satisfies the request's consistency. If the request names an index, reads from the
    /// first state in which `index` is above it. After the wait time it answers from the state at that time.
    pub(super) async fn read_state<T: Serialize>(
        &self,
        http: &Http,
        index: impl Fn(&State) -> LogIndex,
        read: impl FnOnce(&State) -> Result<T, ApiError>,
    ) -> Result<Response, ApiError> {
        let seen = self.newer(http, &index).await?;
        let response = match read(&seen.state) {
            Ok(value) => self.json(&value)?,
            Err(error) => axum::response::IntoResponse::into_response(error),
        };
        Ok(answer::stamp(response, &seen, index(&seen.state)))
    }

    /// Answers with a list, which is built on a thread of its own because it may be long. `rows` gives each row with
    /// its sort key. `per_page` and `next_token` select the page.
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
        let seen = self.newer(http, &index).await?;
        let per_page = self
            .number("per_page")?
            .and_then(|rows| usize::try_from(rows).ok());
        let page = Page::new(per_page, self.text("next_token").unwrap_or_default());
        let pretty = self.pretty;
        let shown = index(&seen.state);
        let state = seen.state.clone();
        let permit = budget::permit_to_make(&http.makers).await?;
        let made = tokio::task::spawn_blocking(move || {
            let page = rows(&state, page);
            answer::json(&page.rows, pretty)
                .map(|response| answer::continued(response, page.next.as_deref()))
        });
        let mut response = made
            .await
            .map_err(|error| ApiError::Internal(error.to_string()))??;
        response.extensions_mut().insert(permit);
        Ok(answer::stamp(response, &seen, shown))
    }

    /// Returns the first state in which `index` is above the requested one. Without `stale`, it contains every
    /// change committed before the request began. So the index goes back only for stale answers, or after a
    /// restored snapshot.
    async fn newer(
        &self,
        http: &Http,
        index: &impl Fn(&State) -> LogIndex,
    ) -> Result<ReadState, ApiError> {
        let mut applied = http.control.applied();
        let deadline = Instant::now() + self.wait;
        let mut seen = self.state(http).await?;
        if self.newer_than == LogIndex(0) || index(&seen.state) > self.newer_than {
            return Ok(seen);
        }
        let _waiting = WaitGuard::new(self.connection.as_ref());
        let closed = async {
            match &self.connection {
                Some(connection) => connection.close_token().cancelled().await,
                None => std::future::pending().await,
            }
        };
        let mut closed = std::pin::pin!(closed);
        while index(&seen.state) <= self.newer_than {
            tokio::select! {
                changed = applied.changed() => {
                    if changed.is_err() {
                        return Ok(seen);
                    }
                }
                () = tokio::time::sleep_until(deadline) => {
                    return Ok(http.control.read(Consistency::Stale).await?);
                }
                () = http.shutdown.cancelled() => return Ok(seen),
                // The connection must make room for another one: the answer is the same as after the wait time.
                () = &mut closed => return Ok(seen),
            }
            // Changes applied here are committed and newer than the state of the first read.
            applied.mark_unchanged();
            seen = http.control.read(Consistency::Stale).await?;
        }
        Ok(seen)
    }
}

/// Marks the request of a connection as waiting for a change, until it is dropped.
#[derive(Debug)]
struct WaitGuard<'a>(Option<&'a Connection>);

impl<'a> WaitGuard<'a> {
    fn new(connection: Option<&'a Connection>) -> Self {
        if let Some(connection) = connection {
            connection.set(Activity::Waiting);
        }
        Self(connection)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.0 {
            connection.set(Activity::Running);
        }
    }
}

/// One page of a list.
#[derive(Debug)]
pub(super) struct Page<T> {
    /// The number of rows on the page; `None`: no bound.
    rows_max: Option<usize>,
    from: String,
    rows: Vec<T>,
    next: Option<String>,
}

impl<T> Page<T> {
    fn new(per_page: Option<usize>, from: &str) -> Self {
        Self {
            rows_max: per_page.filter(|rows| *rows > 0),
            from: from.to_owned(),
            rows: Vec::new(),
            next: None,
        }
    }

    /// Adds the row with the sort key `key`. Calls `row` only if the row is on this page. Keys come in ascending
    /// order.
    pub(super) fn push(&mut self, key: &str, row: impl FnOnce() -> T) {
        if self.next.is_some() || key < self.from.as_str() {
            return;
        }
        if Some(self.rows.len()) == self.rows_max {
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
    fn a_consistency_is_chosen() {
        let chosen = |text| Query::read(text).map(|query| query.consistency);

        assert_eq!(chosen("").unwrap(), Consistency::Leader);
        assert_eq!(chosen("stale").unwrap(), Consistency::Stale);
        assert_eq!(chosen("stale=false").unwrap(), Consistency::Leader);
        assert_eq!(chosen("consistent").unwrap(), Consistency::Linearizable);
        assert!(chosen("stale&consistent").is_err());
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
    fn a_write_is_named_by_header_or_token() {
        let quoted = HeaderMap::from_iter([(IDEMPOTENCY_KEY, HeaderValue::from_static("\"k-1\""))]);
        let named = |text: &str, headers: &HeaderMap| {
            let query = Query::read(text).unwrap().with_key(headers)?;
            Ok::<_, ApiError>(query.key.map(|key| key.as_str().to_owned()))
        };

        assert_eq!(named("", &quoted).unwrap().unwrap(), "k-1");
        assert_eq!(
            named("idempotency_token=k-2", &HeaderMap::new())
                .unwrap()
                .unwrap(),
            "k-2"
        );
        assert_eq!(named("", &HeaderMap::new()).unwrap(), None);
        let long = HeaderValue::from_bytes(&[b'k'; 1_000]).unwrap();
        assert!(named("", &HeaderMap::from_iter([(IDEMPOTENCY_KEY, long)])).is_err());
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
