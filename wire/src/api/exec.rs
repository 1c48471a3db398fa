//! Frames of a session with a command: JSON objects, each a text message of a WebSocket.
//!
//! Both directions ignore unknown fields. A frame without fields is a sign of life.

use serde::{Deserialize, Serialize};

use crate::api::route::Route;

/// Routes of sessions with commands.
pub const ROUTES: &[Route] = &[Route::read("/v1/client/allocation/{alloc_id}/exec")];

/// A piece of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamPiece {
    /// Bytes, in base64.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "super::logs::text")]
    pub data: Vec<u8>,
    /// Whether this is the last data of the stream.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub close: bool,
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TtySize {
    pub height: i32,
    pub width: i32,
}

/// A frame from the client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Input {
    /// Data for the command's standard input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<StreamPiece>,
    /// The terminal has this size now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty_size: Option<TtySize>,
}

/// To the client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Output {
    /// Output from the command's standard output, or its terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<StreamPiece>,
    /// Output from the command's standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<StreamPiece>,
    /// Whether the command ended; set in the last frame.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ExitResult>,
}

/// The end of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExitResult {
    /// The exit code of the command; 128 plus the signal's number if a signal ended it.
    pub exit_code: i32,
    /// The signal that ended the command; 0 is none. Nomad has neither this field nor the next; other clients ignore
    /// them.
    #[serde(skip_serializing_if = "is_zero")]
    pub signal: i32,
    /// A remark about the end of the command; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that Nomad's command line sends are read.
    #[test]
    fn frames_of_a_client_are_read() {
        let read = |text| serde_json::from_str::<Input>(text).unwrap();

        let typed = read(r#"{"stdin":{"data":"bHMK"}}"#).stdin.unwrap();
        let closed = read(r#"{"stdin":{"close":true}}"#).stdin.unwrap();
        let sized = read(r#"{"tty_size":{"height":24,"width":80}}"#).tty_size;

        assert_eq!((typed.data.as_slice(), typed.close), (&b"ls\n"[..], false));
        assert_eq!((closed.data.as_slice(), closed.close), (&b""[..], true));
        let size = TtySize {
            height: 24,
            width: 80,
        };
        assert_eq!(sized, Some(size));
        assert_eq!(read(r#"{"version":1,"auth_token":"x"}"#), Input::default());
    }

    /// Frames to Nomad's command line have the field names that it reads.
    #[test]
    fn frames_to_a_client_have_its_names() {
        let piece = StreamPiece {
            data: b"hi\n".to_vec(),
            close: false,
        };
        let output = Output {
            stdout: Some(piece),
            ..Output::default()
        };
        let over = Output {
            exited: true,
            result: Some(ExitResult {
                exit_code: 3,
                ..ExitResult::default()
            }),
            ..Output::default()
        };

        let text = |frame| serde_json::to_string(frame).unwrap();
        assert_eq!(text(&output), r#"{"stdout":{"data":"aGkK"}}"#);
        assert_eq!(text(&over), r#"{"exited":true,"result":{"exit_code":3}}"#);
    }
}
