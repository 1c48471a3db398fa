//! Tests with many kinds of endpoints, on a paused clock: a pause between attempts takes no time, and a server that
//! hangs is given up immediately.

use std::io::Read as _;
use std::sync::Mutex;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::policy::Policy;
use crate::transfer::{FetchedFile, TransferError, fetch, send};

/// The requests to a server, one text for each connection.
type ReceivedRequests = Arc<Mutex<Vec<String>>>;

/// Answers connections one after another, each with the next text; the last text answers all further connections.
async fn server(answers: &[&str]) -> (String, ReceivedRequests) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = ReceivedRequests::default();
    let requests = Arc::clone(&asked);
    let answers: Vec<String> = answers
        .iter()
        .map(|answer| answer.replace("SELF", &url))
        .collect();
    tokio::spawn(async move {
        for n in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read_request(&mut stream).await;
            requests.lock().unwrap().push(request);
            let answer = answers.get(n).or(answers.last()).unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    (url, asked)
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let announced = head.split("content-length: ").nth(1);
            let announced = announced.and_then(|rest| rest.lines().next()?.parse().ok());
            if body.len() >= announced.unwrap_or(0) {
                return text;
            }
        }
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "{text}");
    }
}

fn policy(more: serde_json::Value) -> Policy {
    let mut config = json!({"allow_local_transfers": true});
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    Policy::read(config).unwrap()
}

/// Downloads at most 100 bytes.
async fn fetched(url: &str) -> Result<String, TransferError> {
    fetched_with(url, &policy(json!({}))).await
}

async fn fetched_with(url: &str, policy: &Policy) -> Result<String, TransferError> {
    let download = json!({"from": url, "to": "/", "user": "u"});
    let download = serde_json::from_value(download).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let FetchedFile {
        mut file, bytes, ..
    } = fetch(&download, policy, dir.path(), 100).await?;
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text.len() as u64, bytes);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    Ok(text)
}

const GOOD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood";

#[tokio::test(start_paused = true)]
async fn answers_are_taken_as_they_are_announced() {
    let chunked =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\ngo\r\n2\r\nod\r\n0\r\n\r\n";
    let more = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood and more";
    for answer in [GOOD, chunked, "HTTP/1.0 200 OK\r\n\r\ngood", more] {
        let (url, _) = server(&[answer]).await;
        assert_eq!(fetched(&url).await.unwrap(), "good", "{answer}");
    }
}

/// A permanent failure is requested once, and a temporary failure three times.
#[tokio::test(start_paused = true)]
async fn only_temporary_endpoint_failures_are_retried() {
    let large = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(101));
    let head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    let table = [
        ("HTTP/1.1 404 Not Found\r\n\r\n", "answered 404", 1),
        ("HTTP/1.1 204 No Content\r\n\r\n", "answered 204", 1),
        ("HTTP/1.1 304 Not Modified\r\n\r\n", "answered 304", 1),
        ("HTTP/1.1 500 No\r\n\r\n", "answered 500", 3),
        ("HTTP/1.1 429 No\r\n\r\n", "answered 429", 3),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
            "speak HTTP",
            3,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\ngo",
            "speak HTTP",
            3,
        ),
        ("SSH-2.0-OpenSSH\r\n", "speak HTTP", 3),
        ("", "speak HTTP", 3),
        (&head, "speak HTTP", 3),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n",
            "more than 100 bytes",
            1,
        ),
        (&large, "more than 100 bytes", 1),
        (
            "HTTP/1.1 302 F\r\nlocation: SELF/again\r\n\r\n",
            "leads on more than 5 times",
            6,
        ),
        ("HTTP/1.1 302 F\r\n\r\n", "leads nowhere", 1),
        (
            "HTTP/1.1 302 F\r\nlocation: ftp://x/\r\n\r\n",
            "is not an http or https URL",
            1,
        ),
        (
            "HTTP/1.1 302 F\r\nlocation: http://169.254.169.254/\r\n\r\n",
            "transfers to this kind of address",
            1,
        ),
        (
            "HTTP/1.1 307 F\r\nlocation: file:///etc/passwd\r\n\r\n",
            "is not an http",
            1,
        ),
    ];
    for (answer, reason, times) in table {
        let (url, asked) = server(&[answer]).await;
        let error = muster_domain::error_chain::chain(&fetched(&url).await.unwrap_err());
        assert!(error.contains(reason), "{answer}: {error}");
        assert_eq!(asked.lock().unwrap().len(), times, "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_passes_is_none() {
    let (url, asked) = server(&["HTTP/1.1 503 No\r\n\r\n", "", GOOD]).await;

    assert_eq!(fetched(&url).await.unwrap(), "good");
    assert_eq!(asked.lock().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn redirects_are_followed_from_where_they_are() {
    let found = |to: &str| format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\n\r\n");
    let answers = [
        found("c?d"),
        found("/e"),
        found("//HOST/f"),
        found("SELF/g"),
    ];
    let (url, _) = server(&[GOOD]).await;
    let host = url.trim_start_matches("http://");
    let answers = answers.map(|answer| answer.replace("HOST", host));
    // The first answers redirect to the second server by its host name.
    let (first, asked) = server(&answers.each_ref().map(String::as_str)).await;

    assert_eq!(fetched(&format!("{first}/a/b?x")).await.unwrap(), "good");

    let asked = asked.lock().unwrap();
    let lines: Vec<_> = asked.iter().filter_map(|it| it.lines().next()).collect();
    assert_eq!(
        lines,
        [
            "GET /a/b?x HTTP/1.1",
            "GET /a/c?d HTTP/1.1",
            "GET /e HTTP/1.1"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn hanging_server_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());

    let error = fetched(&url).await.unwrap_err();

    assert!(
        error.to_string().contains("said nothing for 30s"),
        "{error}"
    );
}

async fn drip(mut stream: tokio::net::TcpStream) {
    // Otherwise the kernel delays the data until the earlier data is acknowledged.
    stream.set_nodelay(true).unwrap();
    read_request(&mut stream).await;
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n";
    stream.write_all(head).await.unwrap();
    while stream.write_all(b".").await.is_ok() {
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
}

/// Each byte arrives in time, but the whole answer does not.
#[tokio::test(start_paused = true)]
async fn slow_drip_server_hits_transfer_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(drip(stream));
        }
    });
    let began = tokio::time::Instant::now();

    let error = fetched(&url).await.unwrap_err();

    assert!(matches!(error, TransferError::Deadline), "{error}");
    assert!(began.elapsed() >= 3 * limits::TRANSFER_DEADLINE);
}

#[tokio::test(start_paused = true)]
async fn closed_port_fails_to_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);

    let error = fetched(&url).await.unwrap_err();

    assert!(
        error.to_string().starts_with("connect to 127.0.0.1"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn url_errors_do_not_leak_secrets() {
    for url in [
        "ftp://u:secret@h/",
        "http://u:secret@/",
        "http:///secret",
        "secret",
        "http://a b/secret",
        &format!("http://secret/{}", "x".repeat(9_000)),
    ] {
        let error = fetched(url).await.unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
    let (url, asked) = server(&["HTTP/1.1 404 No\r\n\r\n"]).await;
    let url = url.replace("http://", "http://u%3A:s%20ecret@");
    let error = fetched(&url).await.unwrap_err().to_string();
    assert_eq!(error, "127.0.0.1 answered 404 Not Found");
    let asked = asked.lock().unwrap();
    // `printf 'u::s ecret' | base64`
    assert!(
        asked[0].contains("authorization: Basic dTo6cyBlY3JldA=="),
        "{asked:?}"
    );
    assert!(asked[0].contains("host: 127.0.0.1:"), "{asked:?}");
}

async fn sent(url: &str) -> Result<(), TransferError> {
    let dir = tempfile::tempdir().unwrap();
    let outgoing = UploadFile::read(&b"it worked"[..], dir.path(), 100)
        .await
        .unwrap();
    send(url, &outgoing, &policy(json!({}))).await
}

#[tokio::test(start_paused = true)]
async fn upload_retry_resends_whole_file_with_digests() {
    let (url, asked) = server(&[
        "HTTP/1.1 500 No\r\n\r\n",
        "",
        "HTTP/1.1 201 Created\r\n\r\n",
    ])
    .await;

    sent(&url).await.unwrap();

    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 3);
    for request in asked.iter() {
        assert!(request.starts_with("POST / HTTP/1.1\r\n"), "{request}");
        assert!(request.ends_with("\r\n\r\nit worked"), "{request}");
        // `printf 'it worked' | openssl md5 -binary | base64`, and with sha256.
        for line in [
            "content-type: application/octet-stream\r\n",
            "content-length: 9\r\n",
            "content-md5: uwvKTqnYTbkJdviDQJ0vmA==\r\n",
            "content-digest: sha-256=:6oYibTqC291PsvGSkZO4lhtVSNpzaEF6kuwe8I0NNpU=:\r\n",
        ] {
            assert!(request.contains(line), "{line}{request}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refused_uploads_have_reasons() {
    let table = [
        ("HTTP/1.1 404 No\r\n\r\n", "answered 404", 1),
        (
            "HTTP/1.1 302 F\r\nlocation: SELF/\r\n\r\n",
            "answered 302",
            1,
        ),
        ("HTTP/1.1 502 No\r\n\r\n", "answered 502", 3),
    ];
    for (answer, reason, times) in table {
        let (url, asked) = server(&[answer]).await;
        let error = sent(&url).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(asked.lock().unwrap().len(), times);
    }
    let error = sent("ftp://host/x").await.unwrap_err().to_string();
    assert!(error.contains("not an http or https URL"), "{error}");
    let error = sent("file:///etc/passwd").await.unwrap_err().to_string();
    assert!(error.contains("allow_uploads"), "{error}");
}

#[tokio::test]
async fn a_file_to_send_has_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let read = UploadFile::read(tokio::io::repeat(0), dir.path(), 1_000_000).await;
    assert!(
        read.unwrap_err()
            .to_string()
            .contains("more than 1000000 bytes")
    );
}

/// A server whose certificate is signed by an authority that only the test knows.
#[tokio::test]
async fn https_trusts_the_configured_authorities() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ca_file = dir.path().join("ca.pem");
    std::fs::write(&ca_file, made.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            read_request(&mut stream).await;
            stream.write_all(GOOD.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });

    let trusting = policy(json!({"ca_file": ca_file}));
    let text = fetched_with(&format!("https://localhost:{port}/"), &trusting).await;
    assert_eq!(text.unwrap(), "good");
    // The host name is wrong, or the machine does not trust the authority.
    for (host, policy) in [("127.0.0.1", trusting), ("localhost", policy(json!({})))] {
        let error = fetched_with(&format!("https://{host}:{port}/"), &policy).await;
        let error = muster_domain::error_chain::chain(&error.unwrap_err());
        let reasons = ["upon TLS: ", "certificates of authorities"];
        assert!(
            reasons.iter().any(|reason| error.contains(reason)),
            "{error}"
        );
    }
}
