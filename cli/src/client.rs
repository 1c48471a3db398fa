//! The HTTP side of client commands.

use std::io::Read;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exit::{CliError, Exit};

/// Where a server is unless `--address` or `MUSTER_ADDR` say otherwise.
pub const DEFAULT_ADDRESS: &str = "http://127.0.0.1:4646";
/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time a request may take beyond what it asks the server to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an answer that is read whole. A list of a million stubs is far below.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// Talks to one server.
#[derive(Debug)]
pub struct Client {
    address: String,
    http: ureq::Agent,
}

/// An answer with the index of the state it shows.
#[derive(Debug)]
pub struct Indexed<T> {
    /// The answer.
    pub value: T,
    /// `X-Nomad-Index`.
    pub index: u64,
}

impl Client {
    /// For the server at `address`: a URL, or `host:port`.
    #[must_use]
    pub fn new(address: &str) -> Self {
        let address = address.trim_end_matches('/');
        let address = if address.contains("://") {
            address.to_owned()
        } else {
            format!("http://{address}")
        };
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            address,
            http: config.into(),
        }
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The answer to `GET path`.
    ///
    /// # Errors
    ///
    /// [`CliError`]: unreachable, refused, not found, or an answer of another version.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        Ok(self.get_after(path, 0, Duration::ZERO)?.value)
    }

    /// The answer to `GET path` once it shows a state after `index`, or after `wait`.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn get_after<T: DeserializeOwned>(
        &self,
        path: &str,
        index: u64,
        wait: Duration,
    ) -> Result<Indexed<T>, CliError> {
        let mut url = format!("{}{path}", self.address);
        if index > 0 {
            let joint = if path.contains('?') { '&' } else { '?' };
            url = format!("{url}{joint}index={index}&wait={}ms", wait.as_millis());
        }
        let response = self
            .http
            .get(&url)
            .config()
            .timeout_global(Some(ANSWER_TIMEOUT + wait))
            .build()
            .call()
            .map_err(|error| self.unreachable(&error))?;
        let index = response
            .headers()
            .get("x-nomad-index")
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.parse().ok())
            .unwrap_or(0);
        let value = self.read(path, response)?;
        Ok(Indexed { value, index })
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
        let bytes = serde_json::to_vec(body).map_err(|error| {
            CliError::new(
                Exit::Failed,
                format!("the request cannot be written: {error}"),
            )
        })?;
        let response = self
            .http
            .put(format!("{}{path}", self.address))
            .config()
            .timeout_global(Some(ANSWER_TIMEOUT))
            .build()
            .content_type("application/json")
            .send(&bytes)
            .map_err(|error| self.unreachable(&error))?;
        self.read(path, response)
    }

    /// The answer to `DELETE path`.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        let response = self
            .http
            .delete(format!("{}{path}", self.address))
            .config()
            .timeout_global(Some(ANSWER_TIMEOUT))
            .build()
            .call()
            .map_err(|error| self.unreachable(&error))?;
        self.read(path, response)
    }

    /// The body of `GET path` as it comes, without an end in time.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn stream(&self, path: &str) -> Result<impl Read + use<>, CliError> {
        let response = self
            .http
            .get(format!("{}{path}", self.address))
            .call()
            .map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response.into_body().into_reader());
        }
        let status = response.status().as_u16();
        let text = response.into_body().read_to_string().unwrap_or_default();
        Err(refusal(path, status, text.trim()))
    }

    fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        response: ureq::http::Response<ureq::Body>,
    ) -> Result<T, CliError> {
        let status = response.status();
        let bytes = response
            .into_body()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| self.unreachable(&error))?;
        if !status.is_success() {
            return Err(refusal(
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

    fn unreachable(&self, error: &ureq::Error) -> CliError {
        match error {
            ureq::Error::Timeout(_) => CliError::new(
                Exit::TimedOut,
                format!("{} did not answer in time: {error}", self.address),
            ),
            _ => CliError::new(
                Exit::Unreachable,
                format!("no server at {}: {error}", self.address),
            )
            .help("start one with `muster dev`, or name another with --address or MUSTER_ADDR"),
        }
    }
}

fn refusal(path: &str, status: u16, text: &str) -> CliError {
    let exit = match status {
        400 | 401 | 403 | 405 | 409 | 413 | 415 | 422 => Exit::Refused,
        404 => Exit::NotFound,
        503 => Exit::Unreachable,
        504 => Exit::TimedOut,
        _ => Exit::Failed,
    };
    let text = if text.is_empty() {
        "no reason given"
    } else {
        text
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
    use super::*;

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
    fn names_are_escaped_in_paths() {
        assert_eq!(escape("a/b c"), "a%2Fb%20c");
    }
}
