//! Accepts connections and bounds them: in number, per address, and in the time a handshake or header may take.
//! Connections for the API are plain; connections for Diego's clients (`bbs`) use TLS.
//!
//! The framework's listener installs no timer. Without a timer, a client that sends its header a byte a minute
//! holds a connection for ever.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Layer as _;

use super::budget::{self, AnswerBudget};
use super::connections::{Activity, ConnectionLimits, Connections, Registration};
use super::cross_site::{self, SitePolicy};
use super::write_timeout::{WriteTimeout, WriteTimeoutHandle};
use crate::limits;

const TOO_MANY: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\
Connection: close\r\nRetry-After: 1\r\nContent-Length: 46\r\n\r\n\
too many connections: close some and try again";

/// The settings of a listener.
#[derive(Clone, Debug)]
pub(crate) struct ListenOptions {
    pub(crate) connections: ConnectionLimits,
    /// Bytes of the answers under way.
    pub(crate) answer_bytes_max: usize,
    /// The settings of TLS for new connections. `None`: connections are plain.
    pub(crate) tls: Option<watch::Receiver<Arc<rustls::ServerConfig>>>,
    /// The rules for requests that are refused before any route handles them.
    pub(crate) sites: SitePolicy,
}

impl ListenOptions {
    /// The settings of the API's listener.
    pub(super) fn plain(sites: SitePolicy) -> Self {
        Self {
            connections: ConnectionLimits {
                total: limits::HTTP_CONNECTIONS_MAX,
                per_address: limits::HTTP_CONNECTIONS_PER_ADDRESS_MAX,
            },
            answer_bytes_max: limits::HTTP_ANSWER_BYTES_MAX,
            tls: None,
            sites,
        }
    }
}

/// The connection of a request, which its handler finds among the request's extensions.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    registration: Arc<Registration>,
    /// This machine's address of the connection.
    local: Option<IpAddr>,
    write_timeout: WriteTimeoutHandle,
}

impl Connection {
    /// Lifts the time limit for the client's reads from now on.
    pub(super) fn lift_write_timeout(&self) {
        self.write_timeout.lift();
    }

    /// This machine's address of the connection.
    pub(super) fn local_ip(&self) -> Option<IpAddr> {
        self.local
    }

    /// Records the use of the connection from now on.
    pub(super) fn set(&self, activity: Activity) {
        self.registration.set(activity);
    }

    /// Records that an answer with `bytes` from the budget is being sent.
    pub(super) fn set_sending(&self, bytes: usize) {
        self.registration.set_sending(bytes);
    }

    /// Keeps the connection open until [`Self::end_session`], for any number of other connections.
    pub(super) fn begin_session(&self) {
        self.registration.set(Activity::Session);
    }

    /// Ends a session; the request continues.
    pub(super) fn end_session(&self) {
        self.registration.end_session();
    }

    /// The token that is cancelled when the connection must make room for another one.
    pub(super) fn close_token(&self) -> &CancellationToken {
        self.registration.close_token()
    }

    /// Closes connections of this listener whose clients read too slowly.
    pub(super) fn close_slow_readers(&self, age: Duration, bytes: usize) {
        self.registration
            .connections()
            .close_slow_readers(age, bytes);
    }
}

/// Serves `router` until `shutdown` is cancelled, then waits for requests in flight, a bounded time.
pub(crate) async fn accept(
    listener: TcpListener,
    options: ListenOptions,
    router: Router,
    shutdown: CancellationToken,
) {
    let budget = AnswerBudget::new(options.answer_bytes_max);
    let router = router
        .layer(from_fn_with_state(options.sites.clone(), cross_site::check))
        .layer(from_fn_with_state(budget, budget::account));
    let connections = Connections::new(options.connections);
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) if is_unusable(&stream) => {}
            Ok((stream, peer)) => match connections.register(peer.ip()) {
                Some(registration) => {
                    let tls = options.tls.as_ref().map(|tls| Arc::clone(&tls.borrow()));
                    tasks.spawn(serve_client(
                        stream,
                        tls,
                        router.clone(),
                        shutdown.clone(),
                        registration,
                    ));
                }
                None if options.tls.is_some() => {
                    tracing::debug!("a connection is cut before its handshake: too many");
                }
                None => refuse(&stream),
            },
            Err(error) => {
                // Most likely no file descriptor is free; ending connections will free some.
                tracing::warn!(%error, "no http connection could be accepted");
                tokio::time::sleep(limits::HTTP_ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    tasks.close();
    if tokio::time::timeout(limits::HTTP_SHUTDOWN_WAIT, tasks.wait())
        .await
        .is_err()
    {
        tracing::warn!(connections = tasks.len(), "http connections are cut off");
    }
}

/// Whether the connection was lost at once. Also sets `TCP_NODELAY`, so that answers are sent as they are written.
fn is_unusable(stream: &TcpStream) -> bool {
    let set = stream.set_nodelay(true);
    if let Err(error) = &set {
        tracing::debug!(%error, "an http connection was lost at once");
    }
    set.is_err()
}

/// Sends a refusal to a client without waiting for it.
fn refuse(stream: &TcpStream) {
    let written = stream.try_write(TOO_MANY);
    tracing::debug!(?written, "an http connection is refused: too many");
}

async fn serve_client(
    stream: TcpStream,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    shutdown: CancellationToken,
    registration: Registration,
) {
    let local = stream.local_addr().ok();
    let local = local.map(|local| local.ip().to_canonical());
    let close = registration.close_token().clone();
    let served = async {
        match tls {
            None => serve_http1(stream, router, shutdown, registration, local).await,
            Some(tls) => {
                if let Some(Some(stream)) = shutdown
                    .run_until_cancelled(tls_handshake(stream, tls))
                    .await
                {
                    serve_http1(stream, router, shutdown, registration, local).await;
                }
            }
        }
    };
    // A request under way gets a limited time before its connection is closed.
    let closed = async {
        close.cancelled().await;
        tokio::time::sleep(limits::HTTP_CLOSE_WAIT).await;
    };
    tokio::select! {
        () = served => {}
        () = closed => {}
    }
}

/// Carries out the handshake. Returns `None` if it fails or takes too long.
async fn tls_handshake(
    stream: TcpStream,
    tls: Arc<rustls::ServerConfig>,
) -> Option<Box<TlsStream<TcpStream>>> {
    let handshake = TlsAcceptor::from(tls).accept(stream);
    match tokio::time::timeout(limits::TLS_HANDSHAKE_WAIT, handshake).await {
        Ok(Ok(stream)) => Some(Box::new(stream)),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a client is not let in");
            None
        }
        Err(_) => {
            tracing::debug!("a client did not finish its handshake in time");
            None
        }
    }
}

async fn serve_http1(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    shutdown: CancellationToken,
    registration: Registration,
    local: Option<IpAddr>,
) {
    let (stream, write_timeout) = WriteTimeout::new(stream);
    let close = registration.close_token().clone();
    let connection = Connection {
        registration: Arc::new(registration),
        local,
        write_timeout,
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HTTP_HEADER_WAIT)
        .max_buf_size(limits::HTTP_HEADER_BYTES_MAX)
        .serve_connection(
            TokioIo::new(stream),
            TowerToHyperService::new(Extension(connection).layer(router)),
        )
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            finish_within(connection, limits::HTTP_SHUTDOWN_WAIT).await
        }
        () = close.cancelled() => {
            connection.as_mut().graceful_shutdown();
            finish_within(connection, limits::HTTP_CLOSE_WAIT).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an http connection broke");
    }
}

async fn finish_within(
    connection: impl Future<Output = hyper::Result<()>>,
    wait: Duration,
) -> hyper::Result<()> {
    match tokio::time::timeout(wait, connection).await {
        Ok(ended) => ended,
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn listening() -> (TcpStream, CancellationToken) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let router = Router::new().route("/", get(|| async { "here" }));
        let sites = SitePolicy::api(address.ip(), None, &[]);
        tokio::spawn(accept(
            listener,
            ListenOptions::plain(sites),
            router,
            shutdown.clone(),
        ));
        (TcpStream::connect(address).await.unwrap(), shutdown)
    }

    /// Time is paused: the ten seconds pass as soon as all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn incomplete_header_times_out_connection() {
        let (mut stream, _shutdown) = listening().await;

        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ")
            .await
            .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();

        assert!(
            !answer.starts_with(b"HTTP/1.1 200"),
            "{:?}",
            String::from_utf8_lossy(&answer)
        );
    }

    #[tokio::test]
    async fn a_header_above_the_limit_is_refused() {
        let (mut stream, _shutdown) = listening().await;

        let header = format!(
            "GET / HTTP/1.1\r\nX-A: {}",
            "a".repeat(limits::HTTP_HEADER_BYTES_MAX)
        );
        stream.write_all(header.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();

        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }

    #[tokio::test]
    async fn idle_connection_does_not_delay_shutdown() {
        let (mut stream, shutdown) = listening().await;
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .unwrap();
        let mut buffer = [0; 512];
        assert!(stream.read(&mut buffer).await.unwrap() > 0);

        shutdown.cancel();

        let mut rest = Vec::new();
        let ended =
            tokio::time::timeout(limits::HTTP_SHUTDOWN_WAIT, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok());
    }

    #[test]
    fn refusal_has_its_content_length() {
        let text = std::str::from_utf8(TOO_MANY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();

        assert!(head.contains(&format!("Content-Length: {}", body.len())));
    }

    /// Opens a connection that waits for a change.
    async fn blocked(address: std::net::SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).await.unwrap();
        stream
    }

    #[tokio::test]
    async fn waiting_requests_give_way_to_new_ones() {
        let (begun, mut waiting) = tokio::sync::mpsc::channel(8);
        let wait = move |Extension(connection): Extension<Connection>| async move {
            connection.set(Activity::Waiting);
            begun.send(()).await.unwrap();
            connection.close_token().cancelled().await;
            "nothing changed"
        };
        let router = Router::new()
            .route("/wait", get(wait))
            .route("/", get(|| async { "here" }));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut options = ListenOptions::plain(SitePolicy::api(address.ip(), None, &[]));
        options.connections.total = 2;
        tokio::spawn(accept(listener, options, router, CancellationToken::new()));
        let mut first = blocked(address).await;
        waiting.recv().await.unwrap();
        let _second = blocked(address).await;
        waiting.recv().await.unwrap();

        let mut third = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        third.write_all(request).await.unwrap();
        let mut answer = String::new();
        third.read_to_string(&mut answer).await.unwrap();
        let mut early = String::new();
        first.read_to_string(&mut early).await.unwrap();

        assert!(answer.ends_with("here"), "{answer}");
        assert!(early.ends_with("nothing changed"), "{early}");
    }

    /// Time is paused: seconds pass as soon as all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn clients_that_read_nothing_give_their_memory_back() {
        const BYTES: usize = 16 << 20;
        let router = Router::new().route("/", get(|| async { vec![b'a'; BYTES] }));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut options = ListenOptions::plain(SitePolicy::api(address.ip(), None, &[]));
        options.answer_bytes_max = 2 * BYTES;
        tokio::spawn(accept(listener, options, router, CancellationToken::new()));
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut silent_clients = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request).await.unwrap();
            let mut first = [0; 16];
            stream.read_exact(&mut first).await.unwrap();
            assert!(first.starts_with(b"HTTP/1.1 200 OK"));
            silent_clients.push(stream);
        }

        let mut reader = TcpStream::connect(address).await.unwrap();
        reader.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        reader.read_to_end(&mut answer).await.unwrap();

        assert!(answer.len() > BYTES, "{}", answer.len());
    }
}
