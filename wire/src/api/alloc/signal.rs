//! A signal to the tasks of an allocation.

use serde::{Deserialize, Serialize};

use crate::api::block::{self, Known};
use crate::api::job::request::ReadJobError;

/// The body of `PUT /v1/client/allocation/:id/signal`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SignalRequest {
    #[serde(rename = "AllocID")]
    pub alloc_id: String,
    /// By name, as `SIGHUP`, or number.
    pub signal: String,
    /// Empty: every task that runs.
    pub task: String,
}

/// What the body of `PUT /v1/client/allocation/:id/signal` asks for.
///
/// # Errors
///
/// [`ReadJobError`] for malformed bodies, and without a signal.
pub fn read_signal(body: &[u8]) -> Result<SignalRequest, ReadJobError> {
    const KNOWN: Known = Known {
        derived: &["AllocID", "Namespace", "Region", "SecretID"],
        harmless: &[],
        unsupported: &[],
        rows: &[],
    };
    block::read(body, &KNOWN, |block| {
        let signal = block.string("Signal").unwrap_or_default();
        if signal.is_empty() {
            let reason = "name a signal, such as `SIGHUP`".to_owned();
            block.fault("Signal", reason);
        }
        Some(SignalRequest {
            alloc_id: String::new(),
            signal,
            task: block.string("Task").unwrap_or_default(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nomads_command_line_sends_is_read() {
        let body = br#"{"AllocID":"a","Signal":"SIGHUP","Task":""}"#;

        let asked = read_signal(body).unwrap();

        assert_eq!((asked.signal.as_str(), asked.task.as_str()), ("SIGHUP", ""));
    }

    #[test]
    fn without_a_signal_it_is_refused() {
        let error = read_signal(br#"{"Task":"web"}"#).unwrap_err().to_string();

        assert!(error.contains("Signal"), "{error}");
    }
}
