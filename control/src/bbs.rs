//! Diego's own wire protocol for one-off tasks: protobuf over HTTPS, for clients of Diego's BBS. It is off unless
//! configured.
//!
//! A client with a certificate of the authority may do everything, as in Diego. Every answer has status 200, and
//! an embedded error if the request fails; `answer` decides the error. A request does the same as in the JSON API
//! ([`crate::one_off`]). The exception: a task can be desired only once, and the same request again gets "exists".
//!
//! Three things differ from Diego. A cancelled task is completed only when none of its processes runs, so the
//! answer to a cancellation waits a limited time for that. A list or a task is as new as the leader's state.
//! Events come in the order of the log.
//!
//! Deliberately absent: requests that only cells send (`task` refuses them), and LRPs (`lrp`: their lists are empty).

mod answer;
mod cell;
mod convert;
mod domain;
mod event;
mod lrp;
mod proto;
mod retry;
mod task;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State as Shared};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::handle::Control;
use crate::http::connections::ConnectionLimits;
use crate::http::cross_site::SitePolicy;
use crate::http::listen::{self, ListenOptions};
use crate::limits;

use answer::Answer;
use proto::{Error, PingResponse};
pub use tls::BbsTlsError;

/// Address and settings of the listener for Diego's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BbsConfig {
    /// The address; port 0 takes a free one.
    pub addr: SocketAddr,
    /// The directory with `ca.pem` (the authority of clients' certificates), `server.pem` and `server.key`.
    pub tls_dir: PathBuf,
}

/// The reason why the listener for Diego's clients cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenBbsError {
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] BbsTlsError),
    /// The address is taken.
    #[error(
        "TCP {addr} cannot be bound: another process may hold it; choose another with --bbs, or see `ss -ltnp`"
    )]
    Bind {
        addr: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// The bound socket.
#[derive(Debug)]
pub(crate) struct Bbs {
    listener: TcpListener,
    addr: SocketAddr,
    files: tls::WatchedFiles,
    shown: watch::Sender<Arc<rustls::ServerConfig>>,
}

impl Bbs {
    /// Opens the listener as configured; `None` if none is configured.
    pub(crate) async fn open(config: Option<&BbsConfig>) -> Result<Option<Self>, OpenBbsError> {
        let Some(config) = config else {
            return Ok(None);
        };
        let (files, loaded) = tls::WatchedFiles::open(config.tls_dir.clone())?;
        let bind = |source| OpenBbsError::Bind {
            addr: config.addr,
            source,
        };
        let listener = TcpListener::bind(config.addr).await.map_err(bind)?;
        let addr = listener.local_addr().map_err(bind)?;
        Ok(Some(Self {
            listener,
            addr,
            files,
            shown: watch::Sender::new(loaded),
        }))
    }

    /// The address of the listener.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Answers until `stop` is cancelled, then lets requests in flight end.
    pub(crate) async fn serve(self, control: Control, stop: CancellationToken) {
        let Self {
            listener,
            addr,
            files,
            shown,
        } = self;
        tracing::info!(address = %addr, "diego's clients are answered");
        let options = ListenOptions {
            connections: ConnectionLimits {
                total: limits::BBS_CONNECTIONS_MAX,
                per_address: limits::BBS_CONNECTIONS_PER_ADDRESS_MAX,
            },
            answer_bytes_max: limits::HTTP_ANSWER_BYTES_MAX,
            tls: Some(shown.subscribe()),
            sites: SitePolicy::bbs(),
        };
        let context = Context {
            control,
            shutdown: stop.clone(),
            streams: Arc::new(Semaphore::new(limits::BBS_STREAMS_MAX)),
        };
        let router = table().router.with_state(context);
        tokio::join!(
            listen::accept(listener, options, router, stop.clone()),
            stop.run_until_cancelled(files.follow(&shown)),
        );
    }
}

/// State that every handler shares.
#[derive(Clone, Debug)]
struct Context {
    control: Control,
    /// The token whose cancellation ends streams.
    shutdown: CancellationToken,
    streams: Arc<Semaphore>,
}

/// The routes as they are put together.
#[derive(Debug, Default)]
struct Table {
    router: Router<Context>,
    paths: Vec<&'static str>,
}

impl Table {
    /// Adds `path`, which takes a message and answers with one.
    fn on<Q, A, F>(self, path: &'static str, handler: fn(Context, Q) -> F) -> Self
    where
        Q: Message + Default + 'static,
        A: Answer + 'static,
        F: Future<Output = Result<A, Error>> + Send + 'static,
    {
        self.raw(path, move |context, request| async move {
            let answered = match answer::read(request).await {
                Ok(request) => handler(context, request).await,
                Err(error) => Err(error),
            };
            answer::reply(answered)
        })
    }

    /// Adds `path`, whose handler builds its own response.
    fn raw<F>(
        mut self,
        path: &'static str,
        handler: impl Fn(Context, Request) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let handle =
            move |Shared(context): Shared<Context>, request: Request| handler(context, request);
        self.router = self.router.route(path, post(handle));
        self.paths.push(path);
        self
    }
}

/// Every route, with and without the revisions that existing clients use.
fn table() -> Table {
    let route_groups: [fn(Table) -> Table; 5] = [
        task::routes,
        event::routes,
        cell::routes,
        domain::routes,
        lrp::routes,
    ];
    let mut table = route_groups
        .into_iter()
        .fold(Table::default(), |table, noun| noun(table))
        .on("/v1/ping", ping);
    table.router = table.router.fallback(|| async { StatusCode::NOT_FOUND });
    table
}

/// Whether changes are accepted: a passive BBS would not answer at all.
async fn ping(context: Context, _: proto::Anything) -> Result<PingResponse, Error> {
    Ok(PingResponse {
        available: context.control.leader().is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Diego's paths are repeated here independently.
    #[test]
    fn every_path_of_diegos_clients_is_served() {
        let paths = table().paths;

        for path in [
            "/v1/tasks/list.r3",
            "/v1/tasks/list.r2",
            "/v1/tasks/get_by_task_guid.r3",
            "/v1/tasks/get_by_task_guid.r2",
            "/v1/tasks/desire.r2",
            "/v1/tasks/cancel",
            "/v1/tasks/resolving",
            "/v1/tasks/delete",
            "/v1/tasks/start",
            "/v1/tasks/complete",
            "/v1/tasks/reject",
            "/v1/tasks/fail",
            "/v1/events/tasks.r1",
            "/v1/events/tasks",
            "/v1/cells/list.r1",
            "/v1/domains/list",
            "/v1/domains/upsert",
            "/v1/actual_lrps/list",
            "/v1/actual_lrp_groups/list",
            "/v1/actual_lrp_groups/list_by_process_guid",
            "/v1/actual_lrp_groups/get_by_process_guid_and_index",
            "/v1/actual_lrps/retire",
            "/v1/desired_lrps/list",
            "/v1/desired_lrps/list.r2",
            "/v1/desired_lrps/list.r3",
            "/v1/desired_lrps/get_by_process_guid.r2",
            "/v1/desired_lrps/get_by_process_guid.r3",
            "/v1/desired_lrp_scheduling_infos/list",
            "/v1/desired_lrp_scheduling_infos/get_by_process_guid",
            "/v1/desired_lrp_routing_infos/list",
            "/v1/desired_lrp/desire.r2",
            "/v1/desired_lrp/update",
            "/v1/desired_lrp/remove",
            "/v1/ping",
        ] {
            assert!(paths.contains(&path), "{path}");
        }
    }
}
