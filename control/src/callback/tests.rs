//! Endpoints that take a callback, refuse it, hang, drip, redirect and break off.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use muster_domain::fixture::definition;
use muster_domain::id::{LogIndex, Timestamp};
use muster_domain::one_off::End;

use super::*;

/// An endpoint for one call, which does with it what `answer` does. Gives its URL and, later, the request.
fn endpoint(answer: impl FnOnce(&mut TcpStream) + Send + 'static) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/done", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = String::new();
        let mut bytes = [0; 4096];
        // The body is JSON without a brace in a text.
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
    row.end = Some(End::failure("why", Timestamp(10)));
    row
}

fn call(url: &str) -> Delivery {
    Caller::open(&TasksConfig::default())
        .unwrap()
        .call(&row(url))
}

#[test]
fn a_callback_is_taken_with_a_key_of_its_own() {
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

    let delivery = Caller::open(&config).unwrap().call(&row(&url));

    assert_eq!(delivery, Delivery::Taken { status: 204 });
    let request = serving.join().unwrap();
    let body = request.split("\r\n\r\n").nth(1).unwrap();
    let signature = sign::signature(b"0123456789abcdef0123456789abcdef", body.as_bytes());
    assert!(request.contains(&signature), "{request}");
    std::fs::write(file.path(), "short").unwrap();
    assert!(Caller::open(&config).is_err());
}

#[test]
fn what_a_status_says() {
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

#[test]
fn an_endless_answer_is_not_read() {
    let (url, serving) = endpoint(|stream| {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head).unwrap();
        // Until the other side hangs up.
        while stream.write_all(b"4\r\nmore\r\n").is_ok() {}
    });

    assert_eq!(call(&url), Delivery::Taken { status: 200 });
    serving.join().unwrap();
}

#[test]
fn an_endpoint_that_refuses_or_breaks_off_may_take_it_later() {
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

    let delivery = Caller::open(&config).unwrap().call(&row(&url));

    let Delivery::Failed { reason } = delivery else {
        panic!("{delivery:?}")
    };
    assert!(reason.contains("private"), "{reason}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}
