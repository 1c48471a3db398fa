//! The HTTP side of client commands.
//!
//! A client has the addresses of one or several servers, each of which can answer every request. A request that no
//! server accepted, or whose response was lost, is repeated for a bounded time. Another server is preferred, if there
//! is one. Repeating is also safe for writes: each has a unique key, and servers apply a key only once.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use muster_wire::api::task::TaskError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::{HeaderMap, Response};

use crate::exit::{CliError, Exit};

/// The default address of a server, without `--address` and `MUSTER_ADDR`.
pub const DEFAULT_ADDRESS: &str = "http://127.0.0.1:4646";
/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until a response begins, in addition to the requested wait. A server responds within ten seconds, even if only
/// with an error.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Time in which a response must arrive completely.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);
/// Time in which a server must accept a snapshot, or begin to send one.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_mins(10);
/// The time for which a request is repeated, from its start: twice the time of an election on a busy machine.
const RETRY_WAIT: Duration = Duration::from_secs(20);
/// Pause before a request is tried again, unless the server names one.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause that the client accepts from a server.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Bytes of an answer that is read whole. A list of a million stubs is far below.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// Talks to whichever server answers.
#[derive(Debug)]
pub struct Client {
    servers: Vec<String>,
    /// The server that answered last.
    current: AtomicUsize,
    http: ureq::Agent,
}

/// A response with the index of its state.
#[derive(Debug)]
pub struct IndexedAnswer<T> {
    /// The answer.
    pub value: T,
    /// `X-Nomad-Index`.
    pub index: u64,
}

/// The failure of one try.
#[derive(Debug)]
enum AttemptError {
    /// The server refused the connection. If all servers do, a repetition is useless.
    Absent(CliError),
    /// The response was lost, or the server cannot respond now.
    Lost(CliError, Duration),
}

/// Checks the servers' addresses from the user.
///
/// # Errors
///
/// The reason and the remedy, for an empty list or a scheme other than `http`.
pub fn parse_addresses(addresses: &str) -> Result<String, String> {
    let mut given = addresses.split(',').map(str::trim);
    if given.all(str::is_empty) {
        return Err(format!(
            "the address is empty: use one like {DEFAULT_ADDRESS}"
        ));
    }
    for address in addresses.split(',').map(str::trim) {
        if let Some((scheme, _)) = address.split_once("://")
            && !scheme.eq_ignore_ascii_case("http")
        {
            return Err(format!(
                "unknown scheme \"{scheme}\" in {address}: use http, or a proxy that ends TLS"
            ));
        }
    }
    Ok(addresses.to_owned())
}

impl Client {
    /// Creates a client of the servers at `addresses`: URLs or `host:port`, separated by commas.
    #[must_use]
    pub fn new(addresses: &str) -> Self {
        let url = |address: &str| {
            let address = address.trim().trim_end_matches('/');
            if address.contains("://") {
                address.to_owned()
            } else {
                format!("http://{address}")
            }
        };
        let given = addresses.split(',').filter(|part| !part.trim().is_empty());
        let mut servers: Vec<String> = given.map(url).collect();
        if servers.is_empty() {
            servers.push(DEFAULT_ADDRESS.to_owned());
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            servers,
            current: AtomicUsize::new(0),
            http: config.into(),
        }
    }

    /// The address of the server that answered last.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.servers[self.current.load(Ordering::Relaxed) % self.servers.len()]
    }

    /// Another client of the same servers, for another thread.
    #[must_use]
    pub fn clone_for_thread(&self) -> Self {
        Self {
            servers: self.servers.clone(),
            current: AtomicUsize::new(self.current.load(Ordering::Relaxed)),
            http: self.http.clone(),
        }
    }

    /// Switches to the next server.
    pub fn select_next_server(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    /// The response to `GET path`.
    ///
    /// # Errors
    ///
    /// [`CliError`]: unreachable, refused, not found, or a response of another version.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        Ok(self.get_after(path, 0, Duration::ZERO)?.value)
    }

    /// The response to `GET path` once its state is after `index`, or after `wait`.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn get_after<T: DeserializeOwned>(
        &self,
        path: &str,
        index: u64,
        wait: Duration,
    ) -> Result<IndexedAnswer<T>, CliError> {
        let mut indexed_path = path.to_owned();
        if index > 0 {
            let separator = if path.contains('?') { '&' } else { '?' };
            indexed_path = format!(
                "{indexed_path}{separator}index={index}&wait={}ms",
                wait.as_millis()
            );
        }
        let response = self.send_until_answered(path, |server| {
            self.http
                .get(format!("{server}{indexed_path}"))
                .config()
                .timeout_recv_response(Some(ANSWER_TIMEOUT + wait))
                .timeout_recv_body(Some(BODY_TIMEOUT))
                .build()
                .call()
        })?;
        let index = header(response.headers(), "x-nomad-index")
            .and_then(|value| value.parse().ok())
            .unwrap_or(0);
        let value = self.read(path, response)?;
        Ok(IndexedAnswer { value, index })
    }

    /// The response to `GET path` with any status code, because some responses use the status as a result.
    ///
    /// # Errors
    ///
    /// As [`Self::get`], but only for statuses without a readable body.
    pub fn get_any<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        let response = self.send_until_answered(path, |server| {
            self.http
                .get(format!("{server}{path}"))
                .config()
                .timeout_recv_response(Some(ANSWER_TIMEOUT))
                .timeout_recv_body(Some(BODY_TIMEOUT))
                .build()
                .call()
        })?;
        let status = response.status().as_u16();
        let bytes = self.bytes(response)?;
        // A body that cannot be read as the answer is the reason why there is none.
        let answer = serde_json::from_slice(&bytes).ok();
        answer
            .ok_or_else(|| error_from_status(path, status, String::from_utf8_lossy(&bytes).trim()))
    }

    /// The answer to `PUT path` with `body`.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, CliError> {
        self.put_with_timeout(path, body, Duration::ZERO)
    }

    /// The response to `PUT path` with `body`, which asks the server to wait for up to `wait`.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn put_with_timeout<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<T, CliError> {
        let bytes = serde_json::to_vec(body).map_err(|error| {
            CliError::new(
                Exit::Failed,
                format!("the request cannot be written: {error}"),
            )
        })?;
        let key = key();
        let response = self.send_until_answered(path, |server| {
            self.http
                .put(format!("{server}{path}"))
                .header("idempotency-key", &key)
                .config()
                .timeout_recv_response(Some(ANSWER_TIMEOUT + wait))
                .timeout_recv_body(Some(BODY_TIMEOUT))
                .build()
                .content_type("application/json")
                .send(&bytes)
        })?;
        self.read(path, response)
    }

    /// The answer to `DELETE path`.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        let key = key();
        let response = self.send_until_answered(path, |server| {
            self.http
                .delete(format!("{server}{path}"))
                .header("idempotency-key", &key)
                .config()
                .timeout_recv_response(Some(ANSWER_TIMEOUT))
                .timeout_recv_body(Some(BODY_TIMEOUT))
                .build()
                .call()
        })?;
        self.read(path, response)
    }

    /// The body of `GET path` as a stream without a timeout.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn stream(&self, path: &str) -> Result<impl Read + Send + use<>, CliError> {
        Ok(self.download(path)?.1)
    }

    /// The headers and the body of `GET path`, without an end in time.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn download(&self, path: &str) -> Result<(HeaderMap, impl Read + Send + use<>), CliError> {
        let response = self.send_until_answered(path, |server| {
            self.http
                .get(format!("{server}{path}"))
                .config()
                .timeout_recv_response(Some(SNAPSHOT_TIMEOUT))
                .build()
                .call()
        })?;
        if response.status().is_success() {
            let (parts, body) = response.into_parts();
            return Ok((parts.headers, body.into_reader()));
        }
        let status = response.status().as_u16();
        let text = response.into_body().read_to_string().unwrap_or_default();
        Err(error_from_status(path, status, text.trim()))
    }

    /// The response to `PUT path` with a body that is read from `file`. The request is sent only once. The user sees
    /// the response and decides whether to repeat a large upload.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        file: &std::fs::File,
    ) -> Result<T, CliError> {
        // Finds a server that answers.
        self.get::<serde_json::Value>("/v1/status/leader")?;
        let server = self.address();
        let response = self
            .http
            .put(format!("{server}{path}"))
            .config()
            .timeout_recv_response(Some(SNAPSHOT_TIMEOUT))
            .build()
            .content_type("application/octet-stream")
            .send(file)
            .map_err(|error| self.unreachable(server, &error))?;
        self.read(path, response)
    }

    /// Sends until a server answers, one server after the other, for [`RETRY_WAIT`].
    fn send_until_answered(
        &self,
        path: &str,
        send: impl Fn(&str) -> Result<Response<ureq::Body>, ureq::Error>,
    ) -> Result<Response<ureq::Body>, CliError> {
        let deadline = Instant::now() + RETRY_WAIT;
        let mut absent = 0;
        loop {
            let server = self.address();
            let (error, pause) = match self.classify_answer(path, server, send(server)) {
                Ok(response) => return Ok(response),
                Err(AttemptError::Absent(error)) => {
                    absent += 1;
                    if absent >= self.servers.len() {
                        return Err(error);
                    }
                    (error, Duration::ZERO)
                }
                Err(AttemptError::Lost(error, pause)) => {
                    absent = 0;
                    (error, pause)
                }
            };
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            std::thread::sleep(pause);
            self.select_next_server();
        }
    }

    fn classify_answer(
        &self,
        path: &str,
        server: &str,
        answer: Result<Response<ureq::Body>, ureq::Error>,
    ) -> Result<Response<ureq::Body>, AttemptError> {
        match answer {
            // The server cannot respond now. After 504 the outcome is unknown, and the key makes a repetition safe.
            Ok(response) if matches!(response.status().as_u16(), 503 | 504) => {
                let pause = header(response.headers(), "retry-after")
                    .and_then(|value| value.parse().ok())
                    .map_or(RETRY_PAUSE, Duration::from_secs);
                // Another server may respond at once.
                let pause = if self.servers.len() > 1 {
                    RETRY_PAUSE
                } else {
                    pause
                };
                let status = response.status().as_u16();
                let text = response.into_body().read_to_string().unwrap_or_default();
                let error = error_from_status(path, status, text.trim());
                Err(AttemptError::Lost(error, pause.min(RETRY_PAUSE_MAX)))
            }
            Ok(response) => Ok(response),
            Err(error) => {
                let cli = self.unreachable(server, &error);
                Err(if is_absent(&error) {
                    AttemptError::Absent(cli)
                } else {
                    AttemptError::Lost(cli, RETRY_PAUSE)
                })
            }
        }
    }

    fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        response: Response<ureq::Body>,
    ) -> Result<T, CliError> {
        let status = response.status();
        let bytes = self.bytes(response)?;
        if !status.is_success() {
            return Err(error_from_status(
                path,
                status.as_u16(),
                String::from_utf8_lossy(&bytes).trim(),
            ));
        }
        let bytes = if bytes.is_empty() {
            b"null".as_slice()
        } else {
            &bytes
        };
        serde_json::from_slice(bytes).map_err(|error| {
            CliError::new(
                Exit::Failed,
                format!("{path} answered something that is not understood: {error}"),
            )
            .help("the server may be of another version: compare `muster --version` on both")
        })
    }

    fn bytes(&self, response: Response<ureq::Body>) -> Result<Vec<u8>, CliError> {
        response
            .into_body()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| self.unreachable(self.address(), &error))
    }

    fn unreachable(&self, server: &str, error: &ureq::Error) -> CliError {
        if let ureq::Error::Timeout(_) = error {
            return CliError::new(
                Exit::TimedOut,
                format!("{server} did not answer in time: {error}"),
            );
        }
        let advice = "start one with `muster dev`, or name another with --address or MUSTER_ADDR";
        let tried = if self.servers.len() > 1 {
            format!("no server at any of {}: {error}", self.servers.join(", "))
        } else {
            format!("no server at {server}: {error}")
        };
        CliError::new(Exit::Unreachable, tried).help(advice)
    }
}

/// Whether nothing listens there: the request was not sent.
fn is_absent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Io(error) => matches!(
            error.kind(),
            std::io::ErrorKind::ConnectionRefused
                | std::io::ErrorKind::HostUnreachable
                | std::io::ErrorKind::NetworkUnreachable
        ),
        ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::BadUri(_)
        | ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => true,
        _ => false,
    }
}

/// A header's text.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A new key of a write, the same for all its repetitions.
fn key() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The error of an answer with such a status.
pub(crate) fn error_from_status(path: &str, status: u16, text: &str) -> CliError {
    let exit = match status {
        400 | 401 | 403 | 405 | 409 | 413 | 415 | 422 => Exit::Refused,
        404 => Exit::NotFound,
        503 => Exit::Unreachable,
        504 => Exit::TimedOut,
        _ => Exit::Failed,
    };
    let task = serde_json::from_str::<TaskError>(text);
    let text = match &task {
        Ok(error) => error.message.as_str(),
        Err(_) if text.is_empty() => "no reason given",
        Err(_) => text,
    };
    CliError::new(exit, format!("{text} ({path} answered {status})"))
}

/// `text` as a part of a URL's path or query.
#[must_use]
pub fn escape(text: &str) -> String {
    use std::fmt::Write as _;
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("a String takes everything");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_with_other_schemes_are_refused() {
        for good in ["127.0.0.1:4646", "http://a:1, b:2", DEFAULT_ADDRESS] {
            assert_eq!(parse_addresses(good), Ok(good.to_owned()));
        }
        for empty in ["", " ", ","] {
            assert!(parse_addresses(empty).unwrap_err().contains("empty"));
        }
        let refused = parse_addresses("http://a:1,https://b:2").unwrap_err();
        assert!(refused.contains("unknown scheme \"https\""), "{refused}");
    }

    /// A server that sends the next of `answers` on each connection; for an empty one it closes the connection. Returns
    /// its address and the keys of the requests.
    fn server(answers: &'static [&'static str]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = std::thread::spawn(move || {
            let mut keys = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                for line in lines.by_ref().map_while(Result::ok) {
                    if line.is_empty() {
                        break;
                    }
                    if let Some(key) = line.strip_prefix("idempotency-key: ") {
                        keys.push(key.to_owned());
                    }
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
            keys
        });
        (address, serving)
    }

    const YES: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ntrue";
    const LATER: &str = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 0\r\n\
        Content-Length: 8\r\n\r\nelection";

    #[test]
    fn a_missing_server_is_named_with_advice() {
        let error = Client::new("127.0.0.1:1")
            .get::<serde_json::Value>("/v1/jobs")
            .unwrap_err();

        assert_eq!(error.exit, Exit::Unreachable);
        assert!(error.message.contains("http://127.0.0.1:1"), "{error}");
        assert!(error.help.is_some());
    }

    #[test]
    fn client_fails_over_to_next_server() {
        let (address, serving) = server(&[YES]);
        let client = Client::new(&format!("127.0.0.1:1, {address}"));

        let answer: bool = client.get("/").unwrap();

        assert!(answer);
        assert!(client.address().ends_with(&address));
        serving.join().unwrap();
    }

    #[test]
    fn unreachable_servers_are_all_named() {
        let error = Client::new("127.0.0.1:1,127.0.0.1:2")
            .get::<serde_json::Value>("/v1/jobs")
            .unwrap_err();

        assert_eq!(error.exit, Exit::Unreachable);
        let names = ["http://127.0.0.1:1", "http://127.0.0.1:2"];
        assert!(
            names.iter().all(|name| error.message.contains(name)),
            "{error}"
        );
    }

    /// The first answer is lost, the second is an election: the write may have been applied either time.
    #[test]
    fn a_write_is_sent_again_under_its_key() {
        let (address, serving) = server(&["", LATER, YES]);

        let answer: bool = Client::new(&address)
            .put("/v1/jobs", &serde_json::json!({}))
            .unwrap();

        let keys = serving.join().unwrap();
        assert!(answer);
        assert_eq!(keys.len(), 3);
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    }

    #[test]
    fn two_writes_have_two_keys() {
        let (address, serving) = server(&[YES, YES]);
        let client = Client::new(&address);

        for _ in 0..2 {
            client.delete::<bool>("/v1/job/web").unwrap();
        }

        let keys = serving.join().unwrap();
        assert_ne!(keys[0], keys[1]);
    }

    #[test]
    fn names_are_escaped_in_paths() {
        assert_eq!(escape("a/b c"), "a%2Fb%20c");
    }
}
