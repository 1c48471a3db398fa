//! Diego's long-running processes. Muster has none, so lists are empty and single ones are not found. Diego's own
//! clients request them when they clean up after tasks.

use super::proto::error::Kind;
use super::proto::{Anything, Error, LrpResponse};
use super::{Context, Table};

/// Paths whose answer is an empty list.
const LISTS: [&str; 9] = [
    "/v1/actual_lrps/list",
    "/v1/actual_lrp_groups/list",
    "/v1/actual_lrp_groups/list_by_process_guid",
    "/v1/desired_lrps/list",
    "/v1/desired_lrps/list.r1",
    "/v1/desired_lrps/list.r2",
    "/v1/desired_lrps/list.r3",
    "/v1/desired_lrp_scheduling_infos/list",
    "/v1/desired_lrp_routing_infos/list",
];

/// Paths about one process.
const SINGLES: [&str; 8] = [
    "/v1/actual_lrp_groups/get_by_process_guid_and_index",
    "/v1/actual_lrps/retire",
    "/v1/desired_lrps/get_by_process_guid",
    "/v1/desired_lrps/get_by_process_guid.r2",
    "/v1/desired_lrps/get_by_process_guid.r3",
    "/v1/desired_lrp_scheduling_infos/get_by_process_guid",
    "/v1/desired_lrp/remove",
    "/v1/desired_lrp/update",
];

/// Paths that create a process.
const CREATIONS: [&str; 2] = ["/v1/desired_lrp/desire", "/v1/desired_lrp/desire.r2"];

pub(super) fn routes(table: Table) -> Table {
    let table = LISTS.iter().fold(table, |table, path| table.on(path, none));
    let table = SINGLES
        .iter()
        .fold(table, |table, path| table.on(path, not_found));
    CREATIONS
        .iter()
        .fold(table, |table, path| table.on(path, refuse))
}

async fn none(_: Context, _: Anything) -> Result<LrpResponse, Error> {
    Ok(LrpResponse::default())
}

async fn not_found(_: Context, _: Anything) -> Result<LrpResponse, Error> {
    let message = "the requested resource could not be found";
    Err(Error::of(Kind::ResourceNotFound, message))
}

async fn refuse(_: Context, _: Anything) -> Result<LrpResponse, Error> {
    let message =
        "long-running processes are not supported here: register a service job, or desire a task";
    Err(Error::of(Kind::InvalidRequest, message))
}
