//! Endpoints that accept a callback, refuse it, hang, send slowly, redirect and break off.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use muster_domain::fixture::definition;
use muster_domain::id::{LogIndex, Timestamp};
use muster_domain::one_off::WorkEnd;
use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject};
use rustls_pki_types::PrivateKeyDer;

use super::*;

/// Starts an endpoint for one call, which `answer` handles. Returns its URL and, later, the request.
fn endpoint(answer: impl FnOnce(&mut TcpStream) + Send + 'static) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/done", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = String::new();
        let mut bytes = [0; 4096];
        // The body is JSON without a brace in a text value.
        while !request.ends_with('}') {
            let count = stream.read(&mut bytes).unwrap();
            request.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
        answer(&mut stream);
        request
    });
    (url, serving)
}

fn answers(text: &'static str) -> impl FnOnce(&mut TcpStream) + Send {
    move |stream| stream.write_all(text.as_bytes()).unwrap()
}

fn row(url: &str) -> OneOff {
    let mut definition = definition();
    url.clone_into(&mut definition.completion_callback_url);
    let definition = Arc::new(definition);
    let (guid, domain) = ("a-task".to_owned(), "apps".to_owned());
    let mut row = OneOff::new(guid, domain, definition, LogIndex(7), Timestamp(9));
    row.end = Some(WorkEnd::failure("why", Timestamp(10)));
    row
}

/// Creates a client for callbacks in a cluster without other servers.
fn open(config: &TasksConfig) -> Result<CallbackClient, OpenCallbacksError> {
    CallbackClient::open(config, ServerAddresses::default())
}

fn call(url: &str) -> Delivery {
    open(&TasksConfig::default()).unwrap().call(&row(url))
}

#[test]
fn accepted_callback_carries_idempotency_key() {
    let (url, serving) = endpoint(answers("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));

    assert_eq!(call(&url), Delivery::Taken { status: 200 });

    let request = serving.join().unwrap();
    assert!(request.starts_with("POST /done HTTP/1.1\r\n"), "{request}");
    assert!(
        request.contains("idempotency-key: a-task-7\r\n"),
        "{request}"
    );
    assert!(request.contains(r#""failure_reason":"why""#), "{request}");
    assert!(!request.contains("signature"), "{request}");
}

#[test]
fn a_configured_key_signs_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0123456789abcdef0123456789abcdef\n").unwrap();
    let config = TasksConfig {
        callback_key: Some(file.path().to_owned()),
        ..TasksConfig::default()
    };
    let (url, serving) = endpoint(answers("HTTP/1.1 204 No Content\r\n\r\n"));

    let delivery = open(&config).unwrap().call(&row(&url));

    assert_eq!(delivery, Delivery::Taken { status: 204 });
    let request = serving.join().unwrap();
    let body = request.split("\r\n\r\n").nth(1).unwrap();
    let signature = sign::signature(b"0123456789abcdef0123456789abcdef", body.as_bytes());
    assert!(request.contains(&signature), "{request}");
    std::fs::write(file.path(), "short").unwrap();
    assert!(open(&config).is_err());
}

#[test]
fn response_status_decides_the_delivery() {
    for status in [200, 201, 204, 400, 401, 404, 410] {
        assert_eq!(judge(status), Delivery::Taken { status }, "{status}");
    }
    for status in [301, 302, 307, 408, 429, 500, 502, 503, 504] {
        assert!(matches!(judge(status), Delivery::Failed { .. }), "{status}");
    }
}

#[test]
fn a_redirect_is_not_followed() {
    let (url, serving) = endpoint(answers(
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    ));

    let delivery = call(&url);

    assert_eq!(
        delivery,
        Delivery::Failed {
            reason: "it answered 302".to_owned()
        }
    );
    serving.join().unwrap();
}

/// Starts an endpoint that redirects to `to`.
fn redirecting(status: u16, to: &str) -> (String, JoinHandle<String>) {
    let answer = format!("HTTP/1.1 {status} Go\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
    endpoint(move |stream| stream.write_all(answer.as_bytes()).unwrap())
}

fn following(redirects: u32) -> TasksConfig {
    TasksConfig {
        callback_redirects: redirects,
        ..TasksConfig::default()
    }
}

/// Every step of a redirect gets the same request, with its body, its key and its signature.
#[test]
fn redirects_are_followed_as_often_as_is_configured() {
    for status in REPEATED {
        let (last, taking) = endpoint(answers("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
        let (middle, second) = redirecting(status, &last);
        let (first, begin) = redirecting(status, &middle);

        let delivery = open(&following(2)).unwrap().call(&row(&first));

        assert_eq!(delivery, Delivery::Taken { status: 200 });
        let asked = begin.join().unwrap();
        let body = asked.split("\r\n\r\n").nth(1).unwrap().to_owned();
        for serving in [second, taking] {
            let asked = serving.join().unwrap();
            assert!(asked.starts_with("POST /done HTTP/1.1\r\n"), "{asked}");
            assert!(asked.contains("idempotency-key: a-task-7\r\n"), "{asked}");
            assert!(asked.ends_with(&format!("\r\n\r\n{body}")), "{asked}");
        }
    }
}

#[test]
fn a_redirect_too_many_is_a_failure() {
    let (middle, second) = redirecting(307, "http://127.0.0.1:1/");
    let (first, begin) = redirecting(307, &middle);

    let delivery = open(&following(1)).unwrap().call(&row(&first));

    let reason = "it answered 307".to_owned();
    assert_eq!(delivery, Delivery::Failed { reason });
    begin.join().unwrap();
    second.join().unwrap();
}

#[test]
fn unfollowable_redirects_are_failures() {
    for (status, to) in [(303, "/"), (302, "ftp://x/"), (302, ""), (300, "/")] {
        let (url, serving) = redirecting(status, to);

        let delivery = open(&following(2)).unwrap().call(&row(&url));

        let Delivery::Failed { reason } = delivery else {
            panic!("{status} {to}: {delivery:?}")
        };
        assert!(
            reason.starts_with(&format!("it answered {status}")),
            "{reason}"
        );
        serving.join().unwrap();
    }
}

/// A redirect cannot reach an address that is forbidden for callbacks: every step is checked.
#[test]
fn redirect_to_denied_address_is_not_followed() {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let kept = format!("http://{}/", listener.local_addr().unwrap());
    let (url, serving) = redirecting(307, &kept);
    let config = TasksConfig {
        callback_deny: vec!["127.0.0.2/32".parse().unwrap()],
        ..following(2)
    };

    let delivery = open(&config).unwrap().call(&row(&url));

    let Delivery::Failed { reason } = delivery else {
        panic!("{delivery:?}")
    };
    assert!(
        reason.contains("may not go to any of its addresses"),
        "{reason}"
    );
    serving.join().unwrap();
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

#[test]
fn an_address_can_be_allowed_among_private_ones() {
    let (url, serving) = endpoint(answers("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
    let config = TasksConfig {
        callback_private: false,
        callback_allow: vec!["127.0.0.0/8".parse().unwrap()],
        ..TasksConfig::default()
    };

    let delivery = open(&config).unwrap().call(&row(&url));

    assert_eq!(delivery, Delivery::Taken { status: 200 });
    serving.join().unwrap();
}

#[test]
fn an_endless_answer_is_not_read() {
    let (url, serving) = endpoint(|stream| {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head).unwrap();
        // The loop ends when the other side closes the connection.
        while stream.write_all(b"4\r\nmore\r\n").is_ok() {}
    });

    assert_eq!(call(&url), Delivery::Taken { status: 200 });
    serving.join().unwrap();
}

/// Each byte arrives well before any time limit, but the answer never ends.
#[test]
fn an_answer_that_drips_ends_with_the_deadline() {
    for head in ["", "HTTP/1.1 200 OK\r\nX-More: "] {
        let (url, serving) = endpoint(move |stream| {
            stream.write_all(head.as_bytes()).unwrap();
            // The loop ends when the other side closes the connection.
            while stream.write_all(b"H").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let config = TasksConfig {
            callback_wait: Duration::from_millis(200),
            ..TasksConfig::default()
        };
        let begun = Instant::now();

        let delivery = open(&config).unwrap().call(&row(&url));

        assert!(begun.elapsed() < limits::CALLBACK_WAIT_MAX, "{delivery:?}");
        assert!(matches!(delivery, Delivery::Failed { .. }), "{delivery:?}");
        serving.join().unwrap();
    }
}

#[test]
fn server_error_is_retryable_callback_failure() {
    for (answer, status) in [
        ("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", 500),
        ("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 503),
        ("HTTP/1.1 504 Late\r\nContent-Length: 0\r\n\r\n", 504),
    ] {
        let (url, serving) = endpoint(answers(answer));
        let reason = format!("it answered {status}");
        assert_eq!(call(&url), Delivery::Failed { reason });
        serving.join().unwrap();
    }
}

/// Creates an authority in `dir`, with a certificate for this machine.
fn certificates(dir: &Path) {
    let authority = Authority::generate("callbacks").unwrap();
    authority.save(dir).unwrap();
    let subject = CertificateSubject::Server {
        name: "endpoint",
        hosts: &[],
    };
    let issued = authority.issue(dir, subject, CERTIFICATE_LIFE);
    issued.unwrap();
}

/// Starts an endpoint for one call by HTTPS, with the certificate in `dir`. Returns its URL and, later, the
/// request, if there was one.
fn secure_endpoint(dir: &Path) -> (String, JoinHandle<Option<String>>) {
    let chain = CertificateDer::pem_file_iter(dir.join("server.pem")).unwrap();
    let chain = chain.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(dir.join("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/done", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        let mut request = String::new();
        let mut bytes = [0; 4096];
        while !request.ends_with('}') {
            let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
            request.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).unwrap();
        Some(request)
    });
    (url, serving)
}

#[test]
fn https_callback_trusts_only_configured_ca() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(ours.path());
    certificates(theirs.path());
    let call = |trusted: Option<&Path>| {
        let (url, serving) = secure_endpoint(ours.path());
        let config = TasksConfig {
            callback_ca: trusted.map(|dir| dir.join("ca.pem")),
            ..TasksConfig::default()
        };
        let delivery = open(&config).unwrap().call(&row(&url));
        (delivery, serving.join().unwrap())
    };

    let (delivery, request) = call(Some(ours.path()));
    assert_eq!(delivery, Delivery::Taken { status: 200 });
    assert!(request.unwrap().starts_with("POST /done HTTP/1.1\r\n"));
    for trusted in [Some(theirs.path()), None] {
        let (delivery, request) = call(trusted);
        assert!(matches!(delivery, Delivery::Failed { .. }), "{delivery:?}");
        assert_eq!(request, None, "the result was told to a stranger");
    }
}

#[test]
fn files_that_are_none_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let open = |ca: PathBuf| {
        let config = TasksConfig {
            callback_ca: Some(ca),
            ..TasksConfig::default()
        };
        open(&config).unwrap_err()
    };

    let missing = open(dir.path().join("missing.pem"));
    assert!(missing.to_string().contains("missing.pem"), "{missing}");
    let broken = dir.path().join("broken.pem");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nno\n").unwrap();
    let broken = open(broken);
    assert!(broken.to_string().contains("broken.pem"), "{broken}");
}

#[test]
fn refused_or_broken_connection_is_retryable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    assert!(matches!(call(&url), Delivery::Failed { .. }));

    let (url, serving) = endpoint(|stream| stream.shutdown(Shutdown::Both).unwrap());
    assert!(matches!(call(&url), Delivery::Failed { .. }));
    serving.join().unwrap();
}

#[test]
fn private_addresses_can_be_kept_from_callbacks() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let config = TasksConfig {
        callback_private: false,
        ..TasksConfig::default()
    };

    let delivery = open(&config).unwrap().call(&row(&url));

    let Delivery::Failed { reason } = delivery else {
        panic!("{delivery:?}")
    };
    assert!(
        reason.contains("may not go to any of its addresses"),
        "{reason}"
    );
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}
