//! Agents: the sessions of nodes connected to this server.
//!
//! Each node has one connection. A connection's certificate must have the role `agent` and name this cluster
//! before a frame is read. A node that connects again replaces its older connection: the older one is usually a
//! path that died silently.
//!
//! Heartbeats and reports of all nodes are gathered and sent on together ([`beats`], [`reports`]). A request to a
//! node of another server goes through that server ([`route`]). An agent that wants an allocation's data from
//! another node asks its own server ([`disk`]).

mod admission;
mod beats;
mod close;
mod desired;
mod disk;
mod exec;
pub(crate) mod nodes;
mod push_limiter;
mod reports;
mod request;
mod route;
mod session;
mod wake;

use muster_domain::error_chain::chain;
use muster_link::peer;
use muster_link::tls::Role;
use quinn::Connection;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use self::close::Close;
use crate::handle::Control;

pub(crate) use admission::Admission;
pub use exec::ExecLine;
pub use nodes::Nodes;
pub use request::NodeRequestError;
pub(crate) use route::{
    answer_for_server, collect_for_server, count_for_server, since_last_contact,
};

/// Sends on the gathered data of all sessions until `stop`.
pub(crate) async fn run(control: Control, stop: CancellationToken) {
    let nodes = control.nodes().clone();
    tokio::join!(
        beats::gather(&control, &nodes.shared.service, &stop),
        reports::write(&control, nodes.reports(), &stop),
        nodes.push_limiter().issue_turns(&stop),
    );
}

/// Checks the peer's identity before a frame is read, and serves it. `admission` is a place for another
/// registration, or the reason for its absence.
pub(crate) async fn admit(
    connection: Connection,
    control: &Control,
    admission: Result<OwnedSemaphorePermit, String>,
) {
    let peer = connection.remote_address();
    let refusal = match peer::role(&connection, &control.server_info().cluster) {
        Ok(Role::Agent) => None,
        Ok(role @ (Role::Operator | Role::Server)) => Some(format!(
            "the certificate of this {} does not speak for an agent",
            role.as_str()
        )),
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = refusal {
        tracing::warn!(%peer, reason, "refused a connection");
        connection.close(Close::Refused.code(), reason.as_bytes());
        return;
    }
    match session::run(&connection, control, admission).await {
        Ok(()) => tracing::debug!(%peer, "an agent left"),
        Err(error) => {
            tracing::info!(%peer, error = %chain(&error), "an agent's session ended");
            if let Some(reason) = error.version_refusal() {
                connection.close(Close::Refused.code(), reason.as_bytes());
                return;
            }
        }
    }
    connection.close(Close::Ended.code(), b"the session is over");
}
