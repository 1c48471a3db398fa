//! Settings of the scheduler: read and write.

use axum::extract::State as Shared;
use axum::response::Response;
use muster_control_core::fsm::ConfigCommand;
use muster_control_core::state::State;
use muster_domain::id::LogIndex;
use muster_wire::api::operator::{
    SchedulerConfig, SchedulerResponse, SchedulerSetResponse, read_scheduler,
};

use super::body::RawBody;
use super::handler::Http;
use super::query::Query;
use super::status::ApiError;

pub(super) async fn read(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let known_leader = http.control.leader().is_some();
    query
        .read_state(
            &http,
            |state| state.config().modify_index,
            |state| {
                Ok(SchedulerResponse {
                    scheduler_config: shape(state),
                    index: state.config().modify_index.0.max(1),
                    last_contact: 0,
                    known_leader,
                })
            },
        )
        .await
}

fn shape(state: &State) -> SchedulerConfig {
    let config = state.config();
    SchedulerConfig::new(config.scheduler, config.create_index, config.modify_index)
}

/// Replaces all settings. With `cas`, only if `cas` is still their modify index.
pub(super) async fn write(
    Shared(http): Shared<Http>,
    query: Query,
    body: RawBody,
) -> Result<Response, ApiError> {
    let command = ConfigCommand::SetScheduler {
        config: read_scheduler(&body.0)?,
        check_index: query.number("cas")?.map(LogIndex),
    }
    .at(http.control.now());
    let (index, response) = http.control.propose(query.once(command)).await?;
    query.json(&SchedulerSetResponse {
        updated: ApiError::unless_moved(response)?,
        index: index.0,
    })
}
