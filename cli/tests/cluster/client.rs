//! Clients of the HTTP API that write and read a few jobs until the test stops them.

use std::io::{BufRead as _, BufReader};
use std::mem;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster;
use crate::history::{JobRead, Operation, Outcome, Recorder};
use crate::limits;

/// An HTTP client of one server.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    agent: ureq::Agent,
    address: Ipv4Addr,
}

/// The answer of a server.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }
}

impl Http {
    pub(crate) fn new(address: Ipv4Addr) -> Self {
        Self::with_timeout(address, limits::REQUEST)
    }

    /// A client with the timeout `timeout`.
    pub(crate) fn with_timeout(address: Ipv4Addr, timeout: Duration) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .timeout_connect(Some(Duration::from_secs(1)))
            .http_status_as_error(false)
            .build();
        Self {
            agent: config.into(),
            address,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}:4646{path}", self.address)
    }

    /// Sends a `GET`. `None` without a response.
    pub(crate) fn get(&self, path: &str) -> Option<Answer> {
        let response = self.agent.get(self.url(path)).call().ok()?;
        read(response)
    }

    /// The first line of the event stream of `topic` that `wanted` accepts. The stream begins with the oldest event
    /// that the server still has.
    pub(crate) fn event(&self, topic: &str, wanted: impl Fn(&str) -> bool) -> Option<String> {
        self.event_from(1, topic, wanted)
    }

    /// As [`Self::event`], from the entry at `index` on.
    pub(crate) fn event_from(
        &self,
        index: u64,
        topic: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let url = self.url(&format!("/v1/event/stream?topic={topic}&index={index}"));
        let response = self.agent.get(url).call().ok()?;
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        lines.map_while(Result::ok).find(|line| wanted(line))
    }

    /// The log index of the newest state of the server.
    pub(crate) fn index(&self) -> Option<u64> {
        let response = self.agent.get(self.url("/v1/jobs")).call().ok()?;
        let index = response.headers().get("X-Nomad-Index")?;
        index.to_str().ok()?.parse().ok()
    }

    /// Sends a `PUT`. `None` without a response: the outcome is unknown.
    pub(crate) fn put(&self, path: &str, key: Option<&str>, body: &Value) -> Option<Answer> {
        let mut request = self.agent.put(self.url(path));
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        read(request.send(body.to_string()).ok()?)
    }

    /// As [`Self::put`], without a body.
    pub(crate) fn delete(&self, path: &str) -> Option<Answer> {
        read(self.agent.delete(self.url(path)).call().ok()?)
    }
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> Option<Answer> {
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string().ok()?;
    Some(Answer { status, text })
}

/// A job that no node can run: only its registration matters.
pub(crate) fn job(id: &str, value: u64) -> Value {
    json!({
        "ID": id, "Name": id, "Type": "service", "Datacenters": ["nowhere"],
        "Meta": { "value": value.to_string() },
        "TaskGroups": [{
            "Name": "g", "Count": 1,
            "Tasks": [{ "Name": "t", "Driver": "native", "Config": { "command": "/bin/true" } }],
        }],
    })
}

/// A linearizable read of the job `id`. `Err` if the server did not answer it.
pub(crate) fn read_job(http: &Http, id: &str) -> Result<Option<JobRead>, String> {
    let path = format!("/v1/job/{id}?consistent");
    let answer = http.get(&path).ok_or("no answer")?;
    match answer.status {
        200 => match seen(&answer) {
            Some(seen) => Ok(Some(seen)),
            None => panic!("a job without value or index: {}", answer.text),
        },
        404 => Ok(None),
        status => Err(format!("{status}: {}", answer.text)),
    }
}

/// The job in `answer`, if there is one.
pub(crate) fn seen(answer: &Answer) -> Option<JobRead> {
    let body = answer.json();
    Some(JobRead {
        value: body["Meta"]["value"].as_str()?.parse().ok()?,
        index: body["JobModifyIndex"].as_u64()?,
    })
}

/// Registers the job `id` with `value`, if its index is `expected` when that is given. It tries all `servers` in turn
/// until one reports the outcome. The write's key ensures that it is applied once.
pub(crate) fn write(servers: &[Http], id: &str, value: u64, expected: Option<u64>) -> Outcome {
    let mut body = json!({ "Job": job(id, value) });
    if let Some(expected) = expected {
        body["EnforceIndex"] = json!(true);
        body["JobModifyIndex"] = json!(expected);
    }
    let once = format!("{id}-value-{value}");
    let deadline = Instant::now() + limits::WRITE;
    for server in servers.iter().cycle() {
        match server.put("/v1/jobs", Some(&once), &body) {
            Some(answer) if answer.status == 200 => {
                let index = answer.json()["JobModifyIndex"].as_u64();
                return Outcome::Done(index.unwrap_or_else(|| panic!("no index: {}", answer.text)));
            }
            Some(answer) if answer.status == 409 => return Outcome::Refused,
            Some(answer) if answer.status < 500 => panic!("a write was answered {answer:?}"),
            _ => thread::sleep(limits::PAUSE),
        }
        if Instant::now() > deadline {
            return Outcome::Unknown;
        }
    }
    unreachable!("the cycle of servers has no end")
}

/// Clients at work.
#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) recorder: Arc<Recorder>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<Ipv4Addr>,
    values: Arc<AtomicU64>,
}

impl Clients {
    /// Clients of all servers, at work.
    pub(crate) fn at_work() -> Self {
        Self::start(&[0, 1, 2].map(cluster::address))
    }

    /// Starts the clients. Each prefers one of the servers at `addresses`.
    fn start(addresses: &[Ipv4Addr]) -> Self {
        let mut clients = Self {
            recorder: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
            addresses: addresses.to_vec(),
            values: Arc::new(AtomicU64::new(1)),
        };
        for number in 0..limits::CLIENTS {
            let mut servers: Vec<Http> = addresses
                .iter()
                .map(|address| Http::new(*address))
                .collect();
            servers.rotate_left(number % addresses.len());
            let worker = TestClient {
                servers,
                recorder: Arc::clone(&clients.recorder),
                values: Arc::clone(&clients.values),
                random_state: 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number as u64 + 1),
            };
            let stop = Arc::clone(&clients.stop);
            clients
                .threads
                .push(thread::spawn(move || worker.run(&stop)));
        }
        clients
    }

    /// Waits until `count` more writes were done.
    pub(crate) fn wait_for_writes(&self, count: usize) {
        let (_, before, _) = self.recorder.counts();
        let deadline = Instant::now() + limits::PATIENCE;
        while self.recorder.counts().1 < before + count {
            assert!(
                Instant::now() < deadline,
                "clients do not get on: {:?}",
                self.recorder.counts()
            );
            thread::sleep(limits::PAUSE);
        }
    }

    /// Stops the clients, reads every job once more, and checks the history.
    pub(crate) fn finish(mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in mem::take(&mut self.threads) {
            thread.join().expect("a client has failed");
        }
        let servers: Vec<Http> = self
            .addresses
            .iter()
            .map(|address| Http::new(*address))
            .collect();
        for key in 0..limits::KEYS {
            let id = self.recorder.job(key);
            for server in &servers {
                let called = self.recorder.now();
                let seen = cluster::poll_until("a last read", || read_job(server, &id).ok());
                self.recorder.note(key, called, Operation::Read(seen));
            }
        }
        let (operations, done, unknown) = self.recorder.counts();
        eprintln!("{operations} operations, {done} writes done, {unknown} unknown");
        assert!(done > 20, "hardly anything was written: {done}");
        self.recorder.check();
    }
}

/// Clients of a failed test must not disturb the next one.
impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// A client thread.
struct TestClient {
    servers: Vec<Http>,
    recorder: Arc<Recorder>,
    values: Arc<AtomicU64>,
    random_state: u64,
}

impl TestClient {
    fn run(mut self, stop: &AtomicBool) {
        let mut indexes = [0; limits::KEYS];
        while !stop.load(Ordering::Acquire) {
            let key = self.random_below(limits::KEYS);
            match self.random_below(10) {
                0..5 => indexes[key] = self.read(key).unwrap_or(indexes[key]),
                5..7 => indexes[key] = self.write(key, None).unwrap_or(indexes[key]),
                _ => indexes[key] = self.write(key, Some(indexes[key])).unwrap_or(indexes[key]),
            }
            thread::sleep(limits::PAUSE);
        }
    }

    /// Reads the job's index at the preferred server; 0 without a job. If that server does not answer, the client
    /// switches to another.
    fn read(&mut self, key: usize) -> Option<u64> {
        let called = self.recorder.now();
        if let Ok(seen) = read_job(&self.servers[0], &self.recorder.job(key)) {
            self.recorder.note(key, called, Operation::Read(seen));
            return Some(seen.map_or(0, |seen| seen.index));
        }
        self.servers.rotate_left(1);
        None
    }

    /// Writes a job and returns its index, if known.
    fn write(&mut self, key: usize, expected: Option<u64>) -> Option<u64> {
        let value = self.values.fetch_add(1, Ordering::SeqCst);
        let called = self.recorder.now();
        let outcome = write(&self.servers, &self.recorder.job(key), value, expected);
        let operation = match expected {
            None => Operation::Put { value, outcome },
            Some(expected) => Operation::Compare {
                expected,
                value,
                outcome,
            },
        };
        self.recorder.note(key, called, operation);
        match outcome {
            Outcome::Done(index) => Some(index),
            Outcome::Refused | Outcome::Unknown => None,
        }
    }

    /// A number below `bound`. Which one does not matter: the machine's timing decides more.
    fn random_below(&mut self, bound: usize) -> usize {
        self.random_state ^= self.random_state << 13;
        self.random_state ^= self.random_state >> 7;
        self.random_state ^= self.random_state << 17;
        usize::try_from(self.random_state >> 33).unwrap_or(0) % bound
    }
}
