//! Frames of a log stream: JSON objects one after the other, without a delimiter.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use serde::{Deserialize, Serialize};

use crate::api::route::Route;

/// Routes of logs.
pub const ROUTES: &[Route] = &[Route::read("/v1/client/fs/logs/{alloc_id}")];

/// A piece of a log. One without any field is a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Frame {
    /// Position in `file` after `data`.
    #[serde(skip_serializing_if = "is_zero")]
    pub offset: u64,
    #[serde(skip_serializing_if = "Vec::is_empty", with = "text")]
    pub data: Vec<u8>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// For a human reader: an event of the file, such as rotated bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file_event: String,
    /// The number of bytes missing before this frame. A Muster field, as are all below; other clients ignore them.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing: u64,
    /// Position in the stream after this frame, for `?position=`; counted from the task's first byte.
    #[serde(skip_serializing_if = "is_zero")]
    pub position: u64,
    /// Time at which the agent received the bytes, in nanoseconds since the epoch, or up to a tenth of a second
    /// earlier. Absent if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub time: u64,
    /// Whether this is the last frame. A stream without it was interrupted.
    #[serde(skip_serializing_if = "is_false")]
    pub ended: bool,
}

impl Frame {
    /// The text of a heartbeat frame.
    pub const HEARTBEAT: &'static str = "{}";

    /// Whether the frame is only a sign of life.
    #[must_use]
    pub fn is_heartbeat(&self) -> bool {
        *self == Self::default()
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(flag: &bool) -> bool {
    !flag
}

pub(super) mod text {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::api) fn serialize<S: Serializer>(
        data: &[u8],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(data))
    }

    pub(in crate::api) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three frames recorded from a running Nomad.
    const RECORDED: &str = concat!(
        r#"{"Data":"aGkK","File":"alloc/logs/t.stdout.0","Offset":54}"#,
        "{}",
        r#"{"Data":"aGkK","File":"alloc/logs/t.stdout.0","Offset":57}"#,
    );

    #[test]
    fn recorded_frames_are_read() {
        let frames: Vec<Frame> = serde_json::Deserializer::from_str(RECORDED)
            .into_iter()
            .collect::<Result<_, _>>()
            .unwrap();

        assert_eq!(frames.len(), 3);
        assert_eq!(frames[0].data, b"hi\n");
        assert!(frames[1].is_heartbeat());
        assert_eq!(frames[2].offset, 57);
    }

    #[test]
    fn a_heartbeat_is_an_empty_object() {
        assert_eq!(
            serde_json::to_string(&Frame::default()).unwrap(),
            Frame::HEARTBEAT
        );
    }
}
