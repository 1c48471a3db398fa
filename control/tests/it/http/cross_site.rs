//! Requests that a browser sends for a page of another site: refused on every route, by every method.

use muster_wire::api;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Answer, Client, job};
use crate::fixture::{self, soon};
use muster_control::server::{Server, ServerConfig};

/// Headers that a page of another site cannot do without, and the status they lead to.
const FOREIGN: [(&str, &str, u16); 9] = [
    ("host", "evil.example", 403),
    ("host", "evil.example:4646", 403),
    ("host", "192.0.2.1", 403),
    ("origin", "http://evil.example", 403),
    ("origin", "http://127.0.0.1:1", 403),
    ("origin", "null", 403),
    ("sec-fetch-site", "cross-site", 403),
    ("sec-fetch-site", "same-site", 403),
    ("content-type", "text/plain;charset=UTF-8", 415),
];

/// Content types that a page may send without asking.
const FORMS: [&str; 3] = [
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded",
];

fn assert_nosniff(answer: &Answer, request: &str) {
    let value = answer.header("x-content-type-options");
    assert_eq!(value, "nosniff", "{request}: {}", answer.text);
}

fn path_of(route: &str) -> String {
    let path = route.replace("{name}", "default").replace(['{', '}'], "");
    // A stream has no end; one of nothing that exists does not begin.
    path.replace("/stream", "/stream?topic=nothing")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_refuses_pages_of_other_sites() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    for route in api::routes() {
        let path = path_of(route.path);
        for method in route.methods {
            for (name, value, status) in FOREIGN {
                if name == "content-type" && *method == "GET" {
                    continue;
                }
                let headers = [(name, value)];
                let answer = client
                    .send_with(&headers, method, &path, b"{}".to_vec())
                    .await;
                let request = format!("{method} {path} with {name}: {value}");
                assert_eq!(answer.status, status, "{request}: {}", answer.text);
                assert_nosniff(&answer, &request);
            }
            let answer = client.send(method, &path, b"{}".to_vec()).await;
            assert!(
                ![403, 415].contains(&answer.status),
                "{method} {path}: {}",
                answer.text
            );
            assert_nosniff(&answer, &path);
        }
    }
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_of_another_site_registers_nothing() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let body = job("web").to_string().into_bytes();

    for kind in FORMS {
        let headers = [("content-type", kind)];
        let answer = client
            .send_with(&headers, "POST", "/v1/jobs", body.clone())
            .await;
        assert_eq!(answer.status, 415, "{kind}: {}", answer.text);
        assert!(answer.text.contains("application/json"), "{}", answer.text);
    }

    assert_eq!(client.get("/v1/job/web").await.status, 404);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_the_server_itself_is_answered() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let headers = [
        ("origin", client.base.as_str()),
        ("sec-fetch-site", "same-origin"),
        ("content-type", "application/json; charset=utf-8"),
    ];

    let body = job("web").to_string().into_bytes();
    let answer = client.send_with(&headers, "PUT", "/v1/jobs", body).await;

    assert_eq!(answer.status, 200, "{}", answer.text);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_and_methods_are_checked_too() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);

    for (method, path) in [("GET", "/v2"), ("OPTIONS", "/v1/jobs"), ("GET", "/")] {
        let known = client.send(method, path, Vec::new()).await;
        assert_nosniff(&known, path);
        let headers = [("host", "evil.example")];
        let foreign = client.send_with(&headers, method, path, Vec::new()).await;
        assert_eq!(foreign.status, 403, "{method} {path}");
    }
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_host_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let config = ServerConfig {
        http_allowed_hosts: vec!["muster.example.org".parse().unwrap()],
        ..fixture::config(dir.path())
    };
    let server = Server::start(config).await.unwrap();
    let client = Client::new(&server);
    let ask = async |host| {
        let headers = [("host", host), ("origin", "https://muster.example.org")];
        client
            .send_with(&headers, "GET", "/v1/jobs", Vec::new())
            .await
    };

    assert_eq!(ask("muster.example.org").await.status, 200);
    assert_eq!(ask("localhost").await.status, 200);
    assert_eq!(ask("other.example.org").await.status, 403);
    server.shutdown().await;
}

/// No client library sends such requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_another_site_is_refused() {
    let test = fixture::server().await;
    let address = test.server.info().http_addr;
    let ask = async |host: &str, origin: &str| {
        let request = format!(
            "GET /v1/client/allocation/x/exec?command=%5B%22id%22%5D HTTP/1.1\r\nHost: {host}\r\n{origin}\
             Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        soon("an answer", stream.read_exact(&mut status))
            .await
            .unwrap();
        String::from_utf8_lossy(&status).into_owned()
    };

    assert_eq!(ask("evil.example", "").await, "HTTP/1.1 403");
    assert_eq!(
        ask("localhost", "Origin: http://evil.example\r\n").await,
        "HTTP/1.1 403"
    );
    assert_eq!(ask("localhost", "").await, "HTTP/1.1 404");
    test.server.shutdown().await;
}
