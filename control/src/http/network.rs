//! The cluster's addition to the network policies of all tasks: read and write.

use axum::extract::State as Shared;
use axum::response::Response;
use muster_control_core::fsm::ConfigCommand;
use muster_domain::id::LogIndex;
use muster_wire::api::operator::{ClusterPolicy, ClusterPolicySetResponse, read_cluster_policy};

use super::body::RawBody;
use super::handler::Http;
use super::query::Query;
use super::status::ApiError;

pub(super) async fn read(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    query
        .read_state(
            &http,
            |state| state.network().modify_index,
            |state| {
                let row = state.network();
                let (created, modified) = (row.create_index, row.modify_index);
                Ok(ClusterPolicy::new(&row.policy, created, modified))
            },
        )
        .await
}

/// Replaces the whole policy. With `cas`, only if `cas` is still its modify index.
pub(super) async fn write(
    Shared(http): Shared<Http>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let command = ConfigCommand::SetClusterPolicy {
        policy: Box::new(read_cluster_policy(&body.0)?),
        check_index: query.number("cas")?.map(LogIndex),
    }
    .at(http.control.now());
    let (index, response) = http.control.propose(query.once(command)).await?;
    query.json(&ClusterPolicySetResponse {
        updated: ApiError::unless_moved(response)?,
        index: index.0,
    })
}
