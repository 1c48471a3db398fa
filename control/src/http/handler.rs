//! The state that handlers share, and the table of routes.

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::routing::MethodRouter;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::handle::Control;

/// State that every handler shares.
#[derive(Clone, Debug)]
pub(super) struct Http {
    pub(super) control: Control,
    /// The token whose cancellation ends waiting and streaming requests.
    pub(super) shutdown: CancellationToken,
    /// The permits for long answers that are built at once.
    pub(super) makers: Arc<Semaphore>,
    /// The permits for snapshots that are sent or received at once.
    pub(super) snapshots: Arc<Semaphore>,
}

impl FromRef<Http> for Control {
    fn from_ref(http: &Http) -> Self {
        http.control.clone()
    }
}

/// The routes as they are put together.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) router: Router<Http>,
    /// Each path in the form of `wire::api::routes`.
    pub(super) paths: Vec<&'static str>,
}

impl Table {
    pub(super) fn on(mut self, path: &'static str, methods: MethodRouter<Http>) -> Self {
        self.router = self.router.route(path, methods);
        self.paths.push(path);
        self
    }
}
