//! The HTTP API: Nomad's routes, bodies and conventions.
//!
//! Each kind of object has one file for its routes. Only `status` decides status codes. `query` reads the query
//! string and waits for changes. `body` reads bodies, and `listen` accepts connections. `connections` and `budget`
//! bound the connections and their answers. `cross_site` refuses requests of web pages. `handler` holds the state
//! that handlers share.
//!
//! Handlers read a snapshot of the state or propose one command; they keep nothing between requests.
//!
//! Deliberately absent: bodies' shapes and the list of routes, which are in `wire::api`; TLS and tokens.

mod agent;
mod alloc;
mod answer;
pub(crate) mod body;
mod budget;
mod check;
mod client;
pub(crate) mod connections;
pub(crate) mod cross_site;
mod deployment;
mod eval;
mod event;
mod exec;
mod garbage;
mod handler;
mod job;
pub(crate) mod listen;
mod logs;
mod metrics;
mod network;
mod node;
mod operator;
mod path;
mod query;
mod raft;
mod scheduler;
mod search;
mod snapshot;
pub(crate) mod status;
mod task;
mod usage;
mod write_timeout;

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::handle::Control;
use crate::limits;

use cross_site::SitePolicy;
use handler::{Http, Table};
use status::ApiError;

/// Every route, as `wire::api::routes` lists them.
fn table() -> Table {
    let route_groups: [fn(Table) -> Table; 12] = [
        job::routes,
        eval::routes,
        alloc::routes,
        node::routes,
        deployment::routes,
        task::routes,
        client::routes,
        agent::routes,
        search::routes,
        event::routes,
        operator::routes,
        raft::routes,
    ];
    route_groups
        .into_iter()
        .fold(Table::default(), |table, noun| noun(table))
}

fn router(http: Http) -> Router {
    table()
        .router
        .fallback(|| async { ApiError::UnknownRoute })
        .method_not_allowed_fallback(|| async { ApiError::Method })
        .layer(from_fn(body::read_whole))
        .layer(from_fn_with_state(http.clone(), answer::name_leader))
        .with_state(http)
}

/// Serves the API on `listener` to the requests that `sites` allows until `shutdown` is cancelled, then lets
/// requests in flight end.
///
/// # Errors
///
/// If the listener's address cannot be read.
pub(crate) async fn serve(
    listener: TcpListener,
    sites: SitePolicy,
    control: Control,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    tracing::info!(%address, "http api is served");
    let router = router(Http {
        control,
        shutdown: shutdown.clone(),
        makers: Arc::new(Semaphore::new(limits::LONG_ANSWERS_MADE_MAX)),
        snapshots: Arc::new(Semaphore::new(limits::SNAPSHOT_TRANSFERS_MAX)),
    });
    let options = listen::ListenOptions::plain(sites);
    listen::accept(listener, options, router, shutdown).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_wire::api;

    #[test]
    fn the_table_has_every_path_in_wire() {
        let served: BTreeSet<&str> = super::table().paths.into_iter().collect();
        let listed: BTreeSet<&str> = api::routes().map(|route| route.path).collect();

        assert_eq!(served, listed);
    }
}
