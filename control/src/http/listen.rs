//! Accepts connections and bounds them: in number, per address, and in the time a handshake or header may take.
//! Plain ones for the API, ones with TLS for Diego's clients (`bbs`).
//!
//! A listener of our own, because the framework's installs no timer, without which a client that sends its
//! header a byte a minute holds a connection for ever.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
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

use super::cross_site::{self, SitePolicy};
use super::patience::{Patience, Patient};
use crate::limits;

const TOO_MANY: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\
Connection: close\r\nRetry-After: 1\r\nContent-Length: 46\r\n\r\n\
too many connections: close some and try again";

/// How connections come in, and how many may.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    /// Connections at once.
    pub(crate) connections_max: usize,
    /// Those of one address that is not this machine's own.
    pub(crate) per_address_max: usize,
    /// What a handshake is made with, for connections from then on. `None`: there is none.
    pub(crate) tls: Option<watch::Receiver<Arc<rustls::ServerConfig>>>,
    /// Requests that are refused before any route sees them.
    pub(crate) sites: SitePolicy,
}

impl Door {
    /// Of the API.
    pub(super) fn plain(sites: SitePolicy) -> Self {
        Self {
            connections_max: limits::HTTP_CONNECTIONS_MAX,
            per_address_max: limits::HTTP_CONNECTIONS_PER_ADDRESS_MAX,
            tls: None,
            sites,
        }
    }
}

/// The connection that a request came on. Whoever makes something else of it holds one of these.
#[derive(Clone, Debug)]
pub(super) struct Line {
    place: Arc<Place>,
    patience: Patience,
}

impl Line {
    /// From now on its other side may take as long as it likes to read.
    pub(super) fn be_patient(&self) {
        self.patience.lift();
    }

    /// The address of this machine that the connection came to.
    pub(super) fn local_ip(&self) -> Option<IpAddr> {
        self.place.local
    }
}

/// Connections by address. Local ones are only counted in the sum: whoever opens those is on this machine.
#[derive(Debug, Default)]
struct Census {
    all: usize,
    by_address: BTreeMap<IpAddr, usize>,
}

/// A connection's place in the census; leaves it when dropped.
#[derive(Debug)]
struct Place {
    census: Arc<Mutex<Census>>,
    address: IpAddr,
    /// The address of this machine that it came to.
    local: Option<IpAddr>,
}

impl Place {
    fn take(census: &Arc<Mutex<Census>>, door: &Door, address: IpAddr) -> Option<Self> {
        let mut counts = census.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.all >= door.connections_max {
            return None;
        }
        let of_address = counts.by_address.entry(address).or_default();
        if *of_address >= door.per_address_max && !address.is_loopback() {
            return None;
        }
        *of_address += 1;
        counts.all += 1;
        drop(counts);
        Some(Self {
            census: Arc::clone(census),
            address,
            local: None,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.census.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all -= 1;
        if let Some(of_address) = counts.by_address.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                counts.by_address.remove(&self.address);
            }
        }
    }
}

/// Serves `router` until `shutdown` is cancelled, then waits for requests in flight, a bounded time.
pub(crate) async fn accept(
    listener: TcpListener,
    door: Door,
    router: Router,
    shutdown: CancellationToken,
) {
    let router = router.layer(from_fn_with_state(door.sites.clone(), cross_site::check));
    let census = Arc::new(Mutex::new(Census::default()));
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) if unusable(&stream) => {}
            Ok((stream, peer)) => match Place::take(&census, &door, peer.ip()) {
                Some(mut place) => {
                    place.local = stream
                        .local_addr()
                        .ok()
                        .map(|local| local.ip().to_canonical());
                    let tls = door.tls.as_ref().map(|tls| Arc::clone(&tls.borrow()));
                    tasks.spawn(welcome(
                        stream,
                        tls,
                        router.clone(),
                        shutdown.clone(),
                        place,
                    ));
                }
                None if door.tls.is_some() => {
                    tracing::debug!("a connection is cut before its handshake: too many");
                }
                None => refuse(&stream),
            },
            Err(error) => {
                // Most likely no file descriptor is free: ends of connections will free some.
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

/// Whether a connection was lost at once. Answers are sent as they are written.
fn unusable(stream: &TcpStream) -> bool {
    let set = stream.set_nodelay(true);
    if let Err(error) = &set {
        tracing::debug!(%error, "an http connection was lost at once");
    }
    set.is_err()
}

/// Tells a client, if it listens, that there is no place. It is not waited for.
fn refuse(stream: &TcpStream) {
    let written = stream.try_write(TOO_MANY);
    tracing::debug!(?written, "an http connection is refused: too many");
}

async fn welcome(
    stream: TcpStream,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    shutdown: CancellationToken,
    place: Place,
) {
    match tls {
        None => converse(stream, router, shutdown, place).await,
        Some(tls) => {
            if let Some(Some(stream)) = shutdown.run_until_cancelled(greet(stream, tls)).await {
                converse(stream, router, shutdown, place).await;
            }
        }
    }
}

/// Carries out the handshake. `None` if it fails, or takes longer than it may.
async fn greet(
    stream: TcpStream,
    tls: Arc<rustls::ServerConfig>,
) -> Option<Box<TlsStream<TcpStream>>> {
    let greeted = TlsAcceptor::from(tls).accept(stream);
    match tokio::time::timeout(limits::TLS_HANDSHAKE_WAIT, greeted).await {
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

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    shutdown: CancellationToken,
    place: Place,
) {
    let (stream, patience) = Patient::new(stream);
    let line = Line {
        place: Arc::new(place),
        patience,
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HTTP_HEADER_WAIT)
        .max_buf_size(limits::HTTP_HEADER_BYTES_MAX)
        .serve_connection(
            TokioIo::new(stream),
            TowerToHyperService::new(Extension(line).layer(router)),
        )
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            ended_in_time(connection, limits::HTTP_SHUTDOWN_WAIT).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an http connection broke");
    }
}

async fn ended_in_time(
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
            Door::plain(sites),
            router,
            shutdown.clone(),
        ));
        (TcpStream::connect(address).await.unwrap(), shutdown)
    }

    /// Time is moved: the ten seconds pass as soon as everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_header_that_does_not_end_ends_its_connection() {
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
    async fn an_idle_connection_does_not_hold_a_shutdown_up() {
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
    fn the_refusal_tells_its_length() {
        let text = std::str::from_utf8(TOO_MANY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();

        assert!(head.contains(&format!("Content-Length: {}", body.len())));
    }

    #[test]
    fn one_address_cannot_take_every_place() {
        let census = Arc::new(Mutex::new(Census::default()));
        let door = Door::plain(SitePolicy::api(Ipv4Addr::LOCALHOST.into(), None, &[]));
        let greedy = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        let other = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

        let places: Vec<Place> =
            std::iter::from_fn(|| Place::take(&census, &door, greedy)).collect();

        assert_eq!(places.len(), limits::HTTP_CONNECTIONS_PER_ADDRESS_MAX);
        assert!(Place::take(&census, &door, other).is_some());
        drop(places);
        assert_eq!(census.lock().unwrap().all, 0);
        assert!(census.lock().unwrap().by_address.is_empty());
    }

    #[test]
    fn places_are_bounded_for_all() {
        let census = Arc::new(Mutex::new(Census::default()));
        let door = Door::plain(SitePolicy::api(Ipv4Addr::LOCALHOST.into(), None, &[]));
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);

        let places: Vec<Place> =
            std::iter::from_fn(|| Place::take(&census, &door, local)).collect();

        assert_eq!(places.len(), limits::HTTP_CONNECTIONS_MAX);
    }
}
