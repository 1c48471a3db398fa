//! A client for plain HTTP on this machine. The demo needs no TLS, which is most of the compile time of a full
//! client.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// The longest time of one read or write. An answer of the demo's cluster comes within milliseconds.
const IO_TIMEOUT: Duration = Duration::from_secs(30);

/// The most bytes of an answer. The largest answer is a list of a few allocations.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Returns the body of the answer to `GET path` from the server at `address`, an IP address with a port.
///
/// # Errors
///
/// When there is no answer, or its status is not 200.
pub(super) fn get(address: &str, path: &str) -> anyhow::Result<String> {
    exchange(address, path).with_context(|| format!("GET http://{address}{path}"))
}

fn exchange(address: &str, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let count = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    ensure!(
        (count as u64) < ANSWER_BYTES_MAX,
        "the answer has {ANSWER_BYTES_MAX} bytes or more"
    );
    body(&String::from_utf8(answer).context("the answer is not UTF-8")?)
}

/// Returns the body of a complete answer.
fn body(answer: &str) -> anyhow::Result<String> {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("the answer has no end of its header")?;
    let (status, fields) = head.split_once("\r\n").unwrap_or((head, ""));
    if status.split(' ').nth(1) != Some("200") {
        bail!("{status}: {}", body.trim());
    }
    let field = |wanted: &str| {
        fields.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then(|| value.trim())
        })
    };
    if let Some(encoding) = field("transfer-encoding") {
        bail!("the answer has transfer encoding {encoding}, which this client does not read");
    }
    if let Some(length) = field("content-length") {
        let length: usize = length.parse().context("the length of the body")?;
        ensure!(
            body.len() == length,
            "the body has {} of {length} bytes",
            body.len()
        );
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_is_read_whole() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}";
        assert_eq!(body(answer).unwrap(), "{\"a\":1}");

        let answer = "HTTP/1.0 200 OK\r\n\r\nhello\n";
        assert_eq!(body(answer).unwrap(), "hello\n");
    }

    #[test]
    fn other_status_is_an_error() {
        let error = body("HTTP/1.1 404 Not Found\r\n\r\nunknown job\n").unwrap_err();

        assert_eq!(error.to_string(), "HTTP/1.1 404 Not Found: unknown job");
    }

    #[test]
    fn cut_or_chunked_body_is_an_error() {
        for answer in [
            "HTTP/1.1 200 OK",
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ] {
            assert!(body(answer).is_err(), "{answer}");
        }
    }
}
