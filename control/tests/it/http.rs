//! The HTTP API over real sockets.

mod again;
mod blocking;
mod changes;
mod cluster;
mod connections;
mod cross_site;
mod deployments;
mod events;
mod garbage;
mod idempotency;
mod jobs;
mod launches;
mod logs;
mod network;
mod nodes;
mod plans;
mod refusals;
mod routes;
mod scheduler;
mod stats;
pub(crate) mod tasks;
mod trio;

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::soon;

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        serde_json::from_str(&self.text).expect("the answer is JSON")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("the header is text"))
    }

    pub(crate) fn index(&self) -> u64 {
        self.header("x-nomad-index")
            .parse()
            .expect("the index is a number")
    }
}

/// Speaks to one server, from threads of its own.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) base: String,
    agent: ureq::Agent,
}

impl Client {
    pub(crate) fn new(server: &muster_control::server::Server) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .allow_non_standard_methods(true)
            .build();
        Self {
            base: format!("http://{}", server.info().http_addr),
            agent: config.into(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, Vec::new()).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, body.to_string().into_bytes()).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: Vec<u8>) -> Answer {
        self.send_with(&[], method, path, body).await
    }

    /// With `headers`.
    pub(crate) async fn send_with(
        &self,
        headers: &[(&str, &str)],
        method: &str,
        path: &str,
        body: Vec<u8>,
    ) -> Answer {
        let carries = !matches!(method, "GET" | "HEAD" | "DELETE");
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let agent = self.agent.clone();
        let asked = format!("{method} {path}");
        let sent = tokio::task::spawn_blocking(move || {
            let response = if carries {
                agent.run(request.body(body).expect("the request is well formed"))
            } else {
                agent.run(request.body(()).expect("the request is well formed"))
            };
            let mut response = response.unwrap_or_else(|error| panic!("{asked}: {error}"));
            Answer {
                status: response.status().as_u16(),
                headers: response.headers().clone(),
                text: String::from_utf8_lossy(
                    &response
                        .body_mut()
                        .read_to_vec()
                        .expect("the answer is whole"),
                )
                .into_owned(),
            }
        });
        sent.await.expect("the client does not panic")
    }

    /// The bytes that `GET path` answers with.
    pub(crate) async fn download(&self, path: &str) -> Vec<u8> {
        let (agent, url) = (self.agent.clone(), format!("{}{path}", self.base));
        let got = tokio::task::spawn_blocking(move || {
            let mut response = agent.get(&url).call().expect("the server answers");
            assert_eq!(response.status(), 200);
            response
                .body_mut()
                .read_to_vec()
                .expect("the answer is whole")
        });
        got.await.expect("the client does not panic")
    }

    /// Registers a small job and returns the answer.
    pub(crate) async fn register(&self, job_id: &str) -> Value {
        self.put("/v1/jobs", &job(job_id)).await.json()
    }
}

/// Waits until `wanted`, but not for ever.
pub(crate) async fn until(what: &str, wanted: impl AsyncFn() -> bool) {
    soon(what, async {
        while !wanted().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// The body that registers a small job.
pub(crate) fn job(job_id: &str) -> Value {
    json!({"Job": {
        "ID": job_id,
        "TaskGroups": [{
            "Name": "main",
            "Tasks": [{"Name": "main", "Driver": "mock", "Resources": {"CPU": 50, "MemoryMB": 32}}],
        }],
    }})
}
