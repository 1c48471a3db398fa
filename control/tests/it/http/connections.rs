//! Connections that carry many requests.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;

use super::Client;
use crate::fixture::{self, soon};

/// Header and body come in packets of their own, which is what most clients send. Whatever a handler does
/// with the body, the next request on the connection is answered.
#[tokio::test(flavor = "multi_thread")]
async fn unread_request_body_does_not_close_connection() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    let address = client.base.strip_prefix("http://").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut stream = BufStream::new(stream);

    for path in [
        "/v1/nodes",
        "/v2",
        "/v1/system/reconcile/summaries",
        "/v1/jobs?index=x",
    ]
    .repeat(3)
    {
        let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        // Not waited for anything: a server that answers before the body comes has the time to do so.
        tokio::time::sleep(Duration::from_millis(10)).await;
        stream.write_all(b"{}").await.unwrap();
        stream.flush().await.unwrap();
        assert_ne!(soon("an answer", answer(&mut stream)).await, 0, "{path}");
    }
    test.server.shutdown().await;
}

/// Reads one answer; its status, or 0 if the connection has ended.
async fn answer(stream: &mut BufStream<TcpStream>) -> u16 {
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        // An error is an end as well: the server has closed with our bytes unread.
        if !matches!(stream.read_line(&mut line).await, Ok(count) if count > 0) {
            return 0;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("http/1.1 ") {
            status = rest[..3].parse().expect("a status is a number");
        } else if let Some(rest) = line.strip_prefix("content-length: ") {
            length = rest.parse().expect("a length is a number");
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream
        .read_exact(&mut body)
        .await
        .expect("the body is as long as it says");
    status
}
