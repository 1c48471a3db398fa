//! Requests about an allocation: a signal to its tasks, and its stop.

use serde::{Deserialize, Serialize};

use crate::api::block::{self, FieldNames};
use crate::api::read_error::ReadJobError;

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

/// Reads the body of `PUT /v1/client/allocation/:id/signal`. It may repeat the id of the path.
///
/// # Errors
///
/// [`ReadJobError`] for a malformed body, or one without a signal.
pub fn read_signal(body: &[u8], id: &str) -> Result<SignalRequest, ReadJobError> {
    const KNOWN: FieldNames = FieldNames {
        derived: COMMON_FIELDS,
        harmless: &[],
        unsupported: &[],
        rows: &[],
    };
    block::read(body, &KNOWN, |block| {
        block.id_of_path("AllocID", id);
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

/// Reads the body of `PUT /v1/allocation/:id/stop`, which may be empty. It may only repeat the id of the path.
///
/// # Errors
///
/// [`ReadJobError`] for malformed bodies, for another id than that of the path, and for fields that are not supported.
pub fn read_stop(body: &[u8], id: &str) -> Result<(), ReadJobError> {
    const KNOWN: FieldNames = FieldNames {
        derived: COMMON_FIELDS,
        harmless: &[],
        unsupported: &["NoShutdownDelay", "Reschedule"],
        rows: &[],
    };
    if body.is_empty() {
        return Ok(());
    }
    block::read(body, &KNOWN, |block| {
        block.id_of_path("AllocID", id);
        Some(())
    })
}

/// Fields that every request of Nomad's clients may have.
const COMMON_FIELDS: &[&str] = &["Region", "Namespace", "SecretID", "AuthToken"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_request_of_nomads_cli_is_read() {
        let body = br#"{"AllocID":"a","Signal":"SIGHUP","Task":""}"#;

        let asked = read_signal(body, "a").unwrap();

        assert_eq!((asked.signal.as_str(), asked.task.as_str()), ("SIGHUP", ""));
    }

    #[test]
    fn without_a_signal_it_is_refused() {
        let error = read_signal(br#"{"Task":"web"}"#, "a")
            .unwrap_err()
            .to_string();

        assert!(error.contains("Signal"), "{error}");
    }
    #[test]
    fn a_body_may_not_name_another_allocation() {
        let signal = read_signal(br#"{"AllocID":"b","Signal":"SIGHUP"}"#, "a").unwrap_err();
        let stop = read_stop(br#"{"AllocID":"b"}"#, "a").unwrap_err();

        for error in [signal, stop] {
            assert!(error.to_string().contains("does not match"), "{error}");
        }
    }

    #[test]
    fn a_stop_takes_no_options() {
        assert!(read_stop(b"", "a").is_ok());
        assert!(read_stop(br#"{"AllocID":"a","NoShutdownDelay":false}"#, "a").is_ok());
        for field in ["NoShutdownDelay", "Reschedule"] {
            let body = format!(r#"{{"{field}":true}}"#);
            let error = read_stop(body.as_bytes(), "a").unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
