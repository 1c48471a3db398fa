//! Converts between our types and the protocol's messages.
//!
//! Messages from the other side are not trusted. An unknown enum number, a missing part or invalid msgpack is a
//! [`DriverError::Protocol`], never a panic.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Deserialize as _;
use serde_json::Value;

use crate::error::DriverError;
use crate::event::TaskEvent;
use crate::limits;
use crate::network::{NetworkIsolation, NetworkMode, NetworkOverride, TaskReach};
use crate::plugin::proto::{drivers, muster};
use crate::schema::whole;
use crate::task::{ActionsEnd, ExitResult, TaskHandle, TaskState, TaskStatus};

mod capabilities;
mod config;
mod host;
mod schema;
mod usage;

pub(crate) use self::capabilities::{
    capabilities_from_proto, capabilities_to_proto, fingerprint_from_proto, fingerprint_to_proto,
};
pub(crate) use self::config::{task_config_from_proto, task_config_to_proto};
pub(crate) use self::host::host_to_proto;
pub(crate) use self::schema::{spec_from_proto, spec_to_proto};
pub(crate) use self::usage::{stats_from_proto, stats_to_proto};

pub(crate) fn protocol(reason: impl Into<String>) -> DriverError {
    DriverError::Protocol {
        reason: reason.into(),
    }
}

pub(crate) fn config_to_msgpack(config: &Value) -> Result<Vec<u8>, DriverError> {
    rmp_serde::to_vec_named(&with_whole_numbers(config))
        .map_err(|error| protocol(format!("encode a configuration as msgpack: {error}")))
}

/// Encodes whole numbers as integers: readers in other languages distinguish whole numbers by their encoding.
fn with_whole_numbers(config: &Value) -> Value {
    match config {
        Value::Number(number) => Value::Number(whole(number)),
        Value::Array(items) => items.iter().map(with_whole_numbers).collect(),
        Value::Object(entries) => Value::Object(
            entries
                .iter()
                .map(|(name, value)| (name.clone(), with_whole_numbers(value)))
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::String(_) => config.clone(),
    }
}

pub(crate) fn config_from_msgpack(bytes: &[u8]) -> Result<Value, DriverError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(limits::CONFIG_DEPTH_MAX);
    Value::deserialize(&mut reader)
        .map_err(|error| protocol(format!("decode a configuration from msgpack: {error}")))
}

fn path_to_proto(path: &Path) -> Result<String, DriverError> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        protocol(format!(
            "path {} is not UTF-8, which the protocol requires",
            path.display()
        ))
    })
}

/// Times before 1970 do not occur.
pub(crate) fn time_to_proto(time: SystemTime) -> prost_types::Timestamp {
    time.into()
}

pub(crate) fn time_from_proto(time: prost_types::Timestamp) -> Option<SystemTime> {
    SystemTime::try_from(time).ok()
}

/// A duration beyond the protocol's range becomes the longest one of the protocol.
pub(crate) fn duration_to_proto(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

/// A missing or negative duration is zero.
pub(crate) fn duration_from_proto(duration: Option<prost_types::Duration>) -> Duration {
    duration
        .and_then(|duration| Duration::try_from(duration).ok())
        .unwrap_or_default()
}

pub(crate) fn network_to_proto(network: &NetworkIsolation) -> drivers::NetworkIsolationSpec {
    drivers::NetworkIsolationSpec {
        mode: network_mode_to_proto(network.mode).into(),
        path: network.path.clone(),
        labels: network.labels.clone(),
        hosts_config: (!network.hostname.is_empty()).then(|| drivers::HostsConfig {
            hostname: network.hostname.clone(),
            address: network.address.clone(),
        }),
    }
}

pub(crate) fn network_from_proto(
    message: drivers::NetworkIsolationSpec,
) -> Result<NetworkIsolation, DriverError> {
    let mode = network_mode_from_proto(message.mode)?;
    let hosts = message.hosts_config.unwrap_or_default();
    Ok(NetworkIsolation {
        mode,
        path: message.path,
        labels: message.labels,
        hostname: hosts.hostname,
        address: hosts.address,
    })
}

fn network_mode_to_proto(
    mode: NetworkMode,
) -> drivers::network_isolation_spec::NetworkIsolationMode {
    use drivers::network_isolation_spec::NetworkIsolationMode as Mode;
    match mode {
        NetworkMode::Host => Mode::Host,
        NetworkMode::Group => Mode::Group,
        NetworkMode::Task => Mode::Task,
        NetworkMode::None => Mode::None,
    }
}

fn network_mode_from_proto(mode: i32) -> Result<NetworkMode, DriverError> {
    use drivers::network_isolation_spec::NetworkIsolationMode as Mode;
    match Mode::try_from(mode) {
        Ok(Mode::Host) => Ok(NetworkMode::Host),
        Ok(Mode::Group) => Ok(NetworkMode::Group),
        Ok(Mode::Task) => Ok(NetworkMode::Task),
        Ok(Mode::None) => Ok(NetworkMode::None),
        Err(_) => Err(protocol(format!(
            "network isolation mode {mode} is not known"
        ))),
    }
}

pub(crate) fn reach_to_proto(reach: TaskReach) -> muster::TaskReachResponse {
    use muster::task_reach_response::Reach;
    let reach = match reach {
        TaskReach::Network => Reach::Network,
        TaskReach::Itself => Reach::Itself,
        TaskReach::Machine => Reach::Machine,
    };
    muster::TaskReachResponse {
        reach: reach.into(),
    }
}

/// An unknown answer counts as no answer: the host assumes the worst.
pub(crate) fn reach_from_proto(message: muster::TaskReachResponse) -> TaskReach {
    use muster::task_reach_response::Reach;
    match Reach::try_from(message.reach) {
        Ok(Reach::Network) | Err(_) => TaskReach::Network,
        Ok(Reach::Itself) => TaskReach::Itself,
        Ok(Reach::Machine) => TaskReach::Machine,
    }
}

pub(crate) fn network_override_to_proto(network: &NetworkOverride) -> drivers::NetworkOverride {
    drivers::NetworkOverride {
        port_map: network.port_map.clone(),
        addr: network.addr.clone(),
        auto_advertise: network.auto_advertise,
    }
}

pub(crate) fn network_override_from_proto(message: drivers::NetworkOverride) -> NetworkOverride {
    NetworkOverride {
        port_map: message.port_map,
        addr: message.addr,
        auto_advertise: message.auto_advertise,
    }
}

fn state_to_proto(state: TaskState) -> drivers::TaskState {
    match state {
        TaskState::Unknown => drivers::TaskState::Unknown,
        TaskState::Running => drivers::TaskState::Running,
        TaskState::Exited => drivers::TaskState::Exited,
    }
}

/// A state that only a newer peer defines becomes `Unknown`.
fn state_from_proto(state: i32) -> TaskState {
    match drivers::TaskState::try_from(state) {
        Ok(drivers::TaskState::Unknown) | Err(_) => TaskState::Unknown,
        Ok(drivers::TaskState::Running) => TaskState::Running,
        Ok(drivers::TaskState::Exited) => TaskState::Exited,
    }
}

pub(crate) fn handle_to_proto(handle: &TaskHandle) -> Result<drivers::TaskHandle, DriverError> {
    let TaskHandle {
        version,
        driver,
        config,
        state,
        driver_state,
    } = handle;
    Ok(drivers::TaskHandle {
        version: *version,
        config: Some(task_config_to_proto(config)?),
        state: state_to_proto(*state).into(),
        driver_state: driver_state.clone(),
        driver: driver.clone(),
    })
}

pub(crate) fn handle_from_proto(message: drivers::TaskHandle) -> Result<TaskHandle, DriverError> {
    let config = message
        .config
        .ok_or_else(|| protocol("a task handle has no task configuration"))?;
    Ok(TaskHandle {
        version: message.version,
        driver: message.driver,
        config: task_config_from_proto(config)?,
        state: state_from_proto(message.state),
        driver_state: message.driver_state,
    })
}

/// The exit code of an end with unknown status, for hosts that do not read `status_unknown`. No program can exit with
/// it.
const UNKNOWN_EXIT_CODE: i32 = -1;

pub(crate) fn exit_to_proto(result: &ExitResult) -> drivers::ExitResult {
    let ExitResult {
        exit_code,
        signal,
        oom_killed,
        status_known,
        err,
        actions,
        stopped,
    } = result;
    drivers::ExitResult {
        // A foreign host does not read `status_unknown`; the exit code shows it that the end is not a success.
        exit_code: if *status_known {
            *exit_code
        } else {
            UNKNOWN_EXIT_CODE
        },
        signal: *signal,
        oom_killed: *oom_killed,
        status_unknown: !status_known,
        err: err.clone().unwrap_or_default(),
        actions: actions.as_deref().map(actions_to_proto),
        stopped: stopped.clone().unwrap_or_default(),
    }
}

fn actions_to_proto(end: &ActionsEnd) -> drivers::ActionsEnd {
    let ActionsEnd {
        failure_reason,
        failed_action,
        exited,
        result,
        result_truncated,
        result_note,
    } = end.clone();
    drivers::ActionsEnd {
        failure_reason,
        failed_action,
        exited,
        result,
        result_truncated,
        result_note,
    }
}

fn actions_from_proto(message: drivers::ActionsEnd) -> ActionsEnd {
    let drivers::ActionsEnd {
        failure_reason,
        failed_action,
        exited,
        result,
        result_truncated,
        result_note,
    } = message;
    ActionsEnd {
        failure_reason,
        failed_action,
        exited,
        result,
        result_truncated,
        result_note,
    }
}

/// The protocol has a separate field for the driver's error, the only one that a foreign host reads. Our hosts also
/// read the error in the result, together with the other fields.
pub(crate) fn wait_to_proto(result: &ExitResult) -> drivers::WaitTaskResponse {
    drivers::WaitTaskResponse {
        err: result.err.clone().unwrap_or_default(),
        result: Some(exit_to_proto(result)),
    }
}

pub(crate) fn wait_from_proto(message: drivers::WaitTaskResponse) -> ExitResult {
    let mut result = message.result.map_or_else(
        || ExitResult::unknown("the driver sent no result".to_owned()),
        exit_from_proto,
    );
    if !message.err.is_empty() {
        result.err = Some(message.err);
    }
    result
}

pub(crate) fn exit_from_proto(message: drivers::ExitResult) -> ExitResult {
    ExitResult {
        exit_code: if message.status_unknown {
            0
        } else {
            message.exit_code
        },
        signal: message.signal,
        oom_killed: message.oom_killed,
        status_known: !message.status_unknown,
        err: Some(message.err).filter(|err| !err.is_empty()),
        actions: message.actions.map(|end| Box::new(actions_from_proto(end))),
        stopped: Some(message.stopped).filter(|why| !why.is_empty()),
    }
}

pub(crate) fn status_to_proto(status: &TaskStatus) -> drivers::InspectTaskResponse {
    let TaskStatus {
        id,
        name,
        state,
        started_at,
        completed_at,
        result,
        attributes,
        network,
    } = status;
    drivers::InspectTaskResponse {
        task: Some(drivers::TaskStatus {
            id: id.clone(),
            name: name.clone(),
            state: state_to_proto(*state).into(),
            started_at: started_at.map(time_to_proto),
            completed_at: completed_at.map(time_to_proto),
            result: result.as_ref().map(exit_to_proto),
        }),
        driver: Some(drivers::TaskDriverStatus {
            attributes: attributes.clone(),
        }),
        network_override: network.as_ref().map(network_override_to_proto),
    }
}

/// A result that comes with a running task is ignored: some drivers always send one.
pub(crate) fn status_from_proto(
    message: drivers::InspectTaskResponse,
) -> Result<TaskStatus, DriverError> {
    let task = message
        .task
        .ok_or_else(|| protocol("the answer to InspectTask has no task"))?;
    let state = state_from_proto(task.state);
    Ok(TaskStatus {
        id: task.id,
        name: task.name,
        state,
        started_at: task.started_at.and_then(time_from_proto),
        completed_at: task
            .completed_at
            .filter(|_| state != TaskState::Running)
            .and_then(time_from_proto),
        result: task
            .result
            .filter(|_| state != TaskState::Running)
            .map(exit_from_proto),
        attributes: message.driver.unwrap_or_default().attributes,
        network: message.network_override.map(network_override_from_proto),
    })
}

pub(crate) fn event_to_proto(event: &TaskEvent) -> drivers::DriverTaskEvent {
    drivers::DriverTaskEvent {
        task_id: event.task_id.clone(),
        alloc_id: event.alloc_id.clone(),
        task_name: event.task_name.clone(),
        timestamp: Some(time_to_proto(event.at)),
        message: event.message.clone(),
        annotations: event.annotations.clone(),
    }
}

pub(crate) fn event_from_proto(message: drivers::DriverTaskEvent) -> TaskEvent {
    TaskEvent {
        task_id: message.task_id,
        alloc_id: message.alloc_id,
        task_name: message.task_name,
        at: message
            .timestamp
            .and_then(time_from_proto)
            .unwrap_or(SystemTime::UNIX_EPOCH),
        message: message.message,
        annotations: message.annotations,
    }
}

#[cfg(test)]
mod tests;
