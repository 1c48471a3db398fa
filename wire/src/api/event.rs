//! The event stream: one JSON object per line.
//!
//! A line is a heartbeat (`{}`), the events of one log entry ([`Events`]), or the reason for the end of the stream
//! ([`StreamError`]). The events of an entry are never split over two lines. So a reader that received the line of
//! index N can resume with `index=N+1` without loss or repetition.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::route::Route;

pub use crate::api::{Payload, Topic};

/// Routes of events.
pub const ROUTES: &[Route] = &[Route::read("/v1/event/stream")];

/// The events of one entry of the log. A heartbeat has neither index nor events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Events<P = Value> {
    pub index: u64,
    pub events: Vec<Event<P>>,
}

/// A row that a log entry wrote, as it was after that entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Event<P = Value> {
    pub topic: Topic,
    /// The entry's effect, the same for all its events: `JobRegistered`, `PlanResult`, …
    #[serde(rename = "Type")]
    pub event_type: String,
    pub key: String,
    pub namespace: String,
    /// Other names that match `topic=Topic:name`: the job and the deployment of allocations and evaluations.
    pub filter_keys: Option<Vec<String>>,
    pub index: u64,
    pub payload: P,
}

/// A change of a server's health, as the leader recorded it. Nomad has no such event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServerHealthChange {
    #[serde(rename = "ID")]
    pub id: String,
    pub name: String,
    /// Whether the server has no faults.
    pub healthy: bool,
    /// The faults, such as a log that does not advance, a full disk, or a server without contact.
    pub faults: Vec<String>,
    /// RFC 3339.
    pub at: String,
}

/// The reason why a stream ends. Nomad's streams break off without one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct StreamError {
    pub error: StreamErrorBody,
}

/// See [`StreamError`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct StreamErrorBody {
    pub code: StreamErrorCode,
    /// The message, as text.
    pub message: String,
    /// The requested first index.
    pub index: u64,
    /// The first index from which this server has all events.
    pub oldest_index: u64,
}

/// See [`StreamErrorBody`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamErrorCode {
    /// Events between the requested index and the oldest one are lost. The reader must read the lists again and then
    /// follow from their index.
    Gap,
    /// The reader was too slow, and its unread events are lost.
    Slow,
}

/// A line of the stream as a reader parses it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Line {
    Error(StreamError),
    Events(Events),
    /// `{}`, possibly with fields of later versions.
    Heartbeat {},
}

/// The line of a heartbeat.
pub const HEARTBEAT: &str = "{}\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_kinds_are_distinguished() {
        let read = |text: &str| serde_json::from_str::<Line>(text).unwrap();

        assert_eq!(read(HEARTBEAT), Line::Heartbeat {});
        assert!(matches!(
            read(r#"{"Index":7,"Events":[]}"#),
            Line::Events(Events { index: 7, .. })
        ));
        assert!(matches!(
            read(
                r#"{"Error":{"Code":"Gap","Message":"gone","Index":3,"OldestIndex":9}}"#
            ),
            Line::Error(StreamError { error }) if error.oldest_index == 9
        ));
    }

    /// The bytes that readers of every version meet.
    #[test]
    fn lines_are_nomads() {
        let event = Event {
            topic: Topic::Job,
            event_type: "JobDeregistered".to_owned(),
            key: "web".to_owned(),
            namespace: "default".to_owned(),
            filter_keys: None,
            index: 7,
            payload: Payload::Job(None),
        };
        let error = StreamErrorBody {
            code: StreamErrorCode::Slow,
            message: "too slow".to_owned(),
            index: 3,
            oldest_index: 9,
        };

        let events = serde_json::to_string(&Events {
            index: 7,
            events: vec![event],
        });
        let error = serde_json::to_string(&StreamError { error });

        assert_eq!(
            events.unwrap(),
            r#"{"Index":7,"Events":[{"Topic":"Job","Type":"JobDeregistered","Key":"web","Namespace":"default","FilterKeys":null,"Index":7,"Payload":{"Job":null}}]}"#
        );
        assert_eq!(
            error.unwrap(),
            r#"{"Error":{"Code":"Slow","Message":"too slow","Index":3,"OldestIndex":9}}"#
        );
    }

    #[test]
    fn topics_are_found_by_their_names() {
        for topic in Topic::ALL {
            assert_eq!(Topic::from_name(topic.as_str()), Some(topic));
            let json = serde_json::to_string(&topic).unwrap();
            assert_eq!(json, format!("\"{}\"", topic.as_str()));
        }
        assert_eq!(Topic::from_name("job"), None);
    }
}
