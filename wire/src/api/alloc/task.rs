//! States and events of an allocation's tasks.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use muster_domain::alloc as domain;
use muster_domain::alloc::TaskEventKind;
use serde::{Deserialize, Serialize};

use crate::api::duration;
use crate::api::null::Null;
use crate::api::stats::TaskNetwork;
use crate::api::time::Rfc3339;

/// A task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskState {
    pub state: String,
    pub failed: bool,
    pub restarts: u32,
    pub last_restart: Option<Rfc3339>,
    pub started_at: Option<Rfc3339>,
    pub finished_at: Option<Rfc3339>,
    pub events: Vec<TaskEvent>,
    pub task_handle: Null,
    /// Beyond Nomad: the address of the running task, if its driver put it on a network of the driver's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<TaskNetwork>,
}

impl From<&domain::TaskState> for TaskState {
    fn from(state: &domain::TaskState) -> Self {
        let domain::TaskState {
            name: _,
            phase,
            failed,
            restarts,
            last_restart,
            started_at,
            finished_at,
            events,
            network,
        } = state;
        Self {
            state: phase.as_str().to_owned(),
            failed: *failed,
            restarts: *restarts,
            last_restart: last_restart.map(Rfc3339),
            started_at: started_at.map(Rfc3339),
            finished_at: finished_at.map(Rfc3339),
            events: events.iter().map(TaskEvent::from).collect(),
            task_handle: Null,
            network: network.as_deref().map(TaskNetwork::from),
        }
    }
}

/// An event of a task. Values of the kind of event are in `details`, and in the older fields next to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskEvent {
    #[serde(rename = "Type")]
    pub kind: String,
    /// Nanoseconds since the epoch.
    pub time: u64,
    pub message: String,
    pub display_message: String,
    pub details: BTreeMap<String, String>,
    pub fails_task: bool,
    pub restart_reason: String,
    pub setup_error: String,
    pub driver_error: String,
    /// `None` if the process ended and its exit code is unknown.
    pub exit_code: Option<i32>,
    pub signal: i32,
    /// Nanoseconds.
    pub kill_timeout: i64,
    pub kill_error: String,
    pub kill_reason: String,
    /// Nanoseconds.
    pub start_delay: i64,
    pub download_error: String,
    pub validation_error: String,
    pub disk_limit: i64,
    pub failed_sibling: String,
    pub vault_error: String,
    pub task_signal_reason: String,
    pub task_signal: String,
    pub driver_message: String,
    pub generic_source: String,
}

impl From<&domain::TaskEvent> for TaskEvent {
    fn from(event: &domain::TaskEvent) -> Self {
        let domain::TaskEvent { at, kind, message } = event;
        let mut shape = Self {
            kind: kind.as_str().to_owned(),
            time: at.0,
            message: message.clone(),
            exit_code: Some(0),
            ..Self::default()
        };
        let text = match kind {
            TaskEventKind::Received => "Task received by client".to_owned(),
            TaskEventKind::Setup => "Building Task Directory".to_owned(),
            TaskEventKind::Started => "Task started by client".to_owned(),
            TaskEventKind::Recovered => "Task found running and taken over".to_owned(),
            TaskEventKind::DriverFailure => {
                shape.driver_error.clone_from(message);
                shape.detail("driver_error", message);
                "Task could not be started".to_owned()
            }
            TaskEventKind::Terminated(exit) => shape.terminated(*exit),
            TaskEventKind::Restarting { delay } => {
                shape.start_delay = duration::nanos(*delay);
                shape.restart_reason.clone_from(message);
                let nanos = shape.start_delay.to_string();
                shape.detail("start_delay", &nanos);
                shape.detail("restart_reason", message);
                format!("Task restarting in {}", duration::text(*delay))
            }
            TaskEventKind::NotRestarting => {
                shape.fails_task = true;
                shape.restart_reason.clone_from(message);
                shape.detail("fails_task", "true");
                shape.detail("restart_reason", message);
                "Its restarts are used up".to_owned()
            }
            TaskEventKind::Killing => "Sent interrupt".to_owned(),
            TaskEventKind::Killed => "Task successfully killed".to_owned(),
            TaskEventKind::SiblingFailed => "A task of the same group failed".to_owned(),
            TaskEventKind::Driver => "The driver says".to_owned(),
            TaskEventKind::DiskExceeded => {
                shape.fails_task = true;
                shape.detail("fails_task", "true");
                "The ephemeral disk is exceeded".to_owned()
            }
        };
        shape.display_message = match kind {
            // The agent's text begins with the exit, which the display message already has.
            TaskEventKind::Terminated(exit) => match exit.detail_of(message) {
                "" => text,
                detail => format!("{text} ({detail})"),
            },
            // The kind of the event has more facts than the agent's message.
            TaskEventKind::Restarting { .. } if !message.is_empty() => {
                format!("{text} ({message})")
            }
            _ if message.is_empty() => text,
            _ => message.clone(),
        };
        if !message.is_empty() {
            shape.detail("message", message);
        }
        shape
    }
}

impl TaskEvent {
    fn detail(&mut self, key: &str, value: &str) {
        self.details.insert(key.to_owned(), value.to_owned());
    }

    fn terminated(&mut self, exit: domain::Exit) -> String {
        let domain::Exit {
            code,
            signal,
            oom_killed,
            unknown,
        } = exit;
        self.detail("oom_killed", if oom_killed { "true" } else { "false" });
        if unknown {
            self.exit_code = None;
            self.detail("exit_code", "unknown");
            self.detail("exit_unknown", "true");
            return "Exit code unknown: no driver saw the process end".to_owned();
        }
        self.exit_code = Some(code);
        self.signal = signal;
        self.detail("exit_code", &code.to_string());
        self.detail("signal", &signal.to_string());
        let signal = if signal == 0 {
            String::new()
        } else {
            format!(", Signal: {signal}")
        };
        let oom = if oom_killed { ", OOM Killed" } else { "" };
        format!("Exit Code: {code}{signal}{oom}")
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::Timestamp;

    use super::*;

    fn terminated(exit: domain::Exit) -> serde_json::Value {
        let event = domain::TaskEvent {
            at: Timestamp(7),
            kind: TaskEventKind::Terminated(exit),
            message: String::new(),
        };
        serde_json::to_value(TaskEvent::from(&event)).unwrap()
    }

    #[test]
    fn an_unknown_exit_code_is_never_zero() {
        let event = terminated(domain::Exit {
            unknown: true,
            ..domain::Exit::default()
        });

        assert_eq!(event["ExitCode"], serde_json::Value::Null);
        assert_eq!(event["Details"]["exit_code"], "unknown");
        assert_eq!(event["Details"].get("signal"), None);
        let displayed = event["DisplayMessage"].as_str().unwrap();
        assert!(displayed.starts_with("Exit code unknown"), "{displayed}");
    }

    #[test]
    fn display_message_contains_the_exit_once() {
        let displayed = |message: &str| {
            let exit = domain::Exit {
                code: 3,
                ..domain::Exit::default()
            };
            let event = domain::TaskEvent {
                at: Timestamp(7),
                kind: TaskEventKind::Terminated(exit),
                message: message.to_owned(),
            };
            TaskEvent::from(&event).display_message
        };

        assert_eq!(displayed("exit code 3"), "Exit Code: 3");
        assert_eq!(displayed("exit code 3: a word"), "Exit Code: 3 (a word)");
        assert_eq!(displayed("exit code 31"), "Exit Code: 3 (exit code 31)");
        assert_eq!(displayed("its words"), "Exit Code: 3 (its words)");
    }

    #[test]
    fn a_known_exit_code_is_a_number() {
        let event = terminated(domain::Exit {
            code: 3,
            ..domain::Exit::default()
        });

        assert_eq!(event["ExitCode"], 3);
        assert_eq!(event["Details"]["exit_code"], "3");
        assert_eq!(event["Details"]["signal"], "0");
    }
}
