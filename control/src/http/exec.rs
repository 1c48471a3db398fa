//! A command in a task, with its input and output over a websocket.
//!
//! `GET /v1/client/allocation/{alloc_id}/exec` takes Nomad's `task`, `command` (a list of texts in JSON) and
//! `tty`. Frames are those of `wire::api::exec`. An error before the command runs is answered with a status
//! and without a websocket. A later error closes the websocket with code 1011 and the reason.
//!
//! The session ends with its client: dropping [`ExecLine`] ends the stream, and the node kills the command.

use std::time::Duration;

use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, State as Shared};
use axum::response::Response;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use muster_domain::saturating;
use muster_link::window::Window;
use muster_wire::api::exec::{ExitResult, Input, Output, StreamPiece};
use muster_wire::limits::{EXEC_CHUNK_BYTES_MAX, EXEC_COMMAND_BYTES_MAX, EXEC_WINDOW_BYTES};
use muster_wire::rpc::{
    ExecExit, ExecInput, ExecPiece, ExecSession, FailureKind, LogStream, NodeReply,
};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::client::{find_alloc, task_of};
use super::handler::Http;
use super::listen::Connection;
use super::query::Query;
use super::status::ApiError;
use crate::agents::ExecLine;
use crate::limits;

/// Bytes of the reason in a close frame (RFC 6455, 5.5).
const CLOSE_REASON_BYTES_MAX: usize = 123;

pub(super) async fn open(
    Shared(http): Shared<Http>,
    Path(alloc_id): Path<String>,
    Extension(connection): Extension<Connection>,
    query: Query,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|error| {
        ApiError::Malformed(format!(
            "a session needs a websocket: {}",
            error.body_text()
        ))
    })?;
    let alloc = find_alloc(&http, &query, &alloc_id).await?;
    let session = ExecSession {
        alloc_id: alloc.id,
        task: task_of(&query, &alloc)?,
        command: command(&query)?,
        tty: query.flag("tty")?,
    };
    let mut line = http.control.nodes().exec(alloc.node_id, session).await?;
    let waited = limits::NODE_REPLY_WAIT;
    match timeout(waited, opened(&mut line)).await {
        Ok(opened) => opened?,
        Err(_) => return Err(ApiError::NodeSilent { waited }),
    }
    Ok(upgrade
        .max_message_size(limits::EXEC_MESSAGE_BYTES_MAX)
        .max_frame_size(limits::EXEC_MESSAGE_BYTES_MAX)
        .on_upgrade(async move |socket| {
            connection.begin_session();
            connection.lift_write_timeout();
            relay(socket, line, http.shutdown).await;
            drop(connection);
        }))
}

/// Returns the command of the query.
fn command(query: &Query) -> Result<Vec<String>, ApiError> {
    let malformed = |reason: String| {
        ApiError::Malformed(format!(
            r#"Invalid command: {reason}; give a list in JSON, such as command=["ls","-l"]"#
        ))
    };
    let text = query.text("command").unwrap_or("[]");
    let command: Vec<String> =
        serde_json::from_str(text).map_err(|error| malformed(error.to_string()))?;
    let bytes: usize = command.iter().map(String::len).sum();
    match command.first() {
        Some(program) if !program.is_empty() && bytes <= EXEC_COMMAND_BYTES_MAX => Ok(command),
        Some(_) if bytes > EXEC_COMMAND_BYTES_MAX => Err(malformed(format!(
            "it has {bytes} bytes, the most is {EXEC_COMMAND_BYTES_MAX}"
        ))),
        Some(_) | None => Err(malformed("it names no program".to_owned())),
    }
}

/// Waits until the command runs.
async fn opened(line: &mut ExecLine) -> Result<(), ApiError> {
    loop {
        return match line.replies.recv().await {
            Some(NodeReply::Idle) => continue,
            Some(NodeReply::ExecOpened) => Ok(()),
            Some(NodeReply::Failed { reason, kind }) => Err(ApiError::NodeFailed { reason, kind }),
            Some(_) | None => Err(ApiError::NodeFailed {
                reason: "the node opened no session; its agent may be of an older version"
                    .to_owned(),
                kind: FailureKind::Other,
            }),
        };
    }
}

/// The reason for the end of a session.
struct SessionEnd {
    code: u16,
    reason: String,
}

impl SessionEnd {
    fn new(code: u16, reason: impl Into<String>) -> Self {
        let mut reason = reason.into();
        reason.truncate(reason.floor_char_boundary(CLOSE_REASON_BYTES_MAX));
        Self { code, reason }
    }
}

/// Forwards frames in both directions until one of them ends.
async fn relay(socket: WebSocket, line: ExecLine, shutdown: CancellationToken) {
    let (mut to_client, mut from_client) = socket.split();
    let ExecLine { inputs, replies } = line;
    let window = Window::new(EXEC_WINDOW_BYTES);
    let end = tokio::select! {
        end = pass_output(&mut to_client, replies, &inputs, &window) => end,
        end = take_input(&mut from_client, &inputs, &window) => end,
        () = shutdown.cancelled() => {
            Some(SessionEnd::new(close_code::AWAY, "this server stops; the command is ended"))
        }
    };
    // A client that does not read is given a limited time. Its further input is read, because a connection closed
    // with unread data is reset. The client might then lose the last message.
    let closing = async {
        if let Some(SessionEnd { code, reason }) = end {
            let reason = Utf8Bytes::from(reason);
            let frame = CloseFrame { code, reason };
            drop(to_client.send(Message::Close(Some(frame))).await);
        }
        drop(to_client.close().await);
        while let Some(Ok(_)) = from_client.next().await {}
    };
    drop(timeout(limits::HTTP_SHUTDOWN_WAIT, closing).await);
}

/// Forwards output; returns `None` if the client is gone.
async fn pass_output(
    client: &mut SplitSink<WebSocket, Message>,
    mut replies: mpsc::Receiver<NodeReply>,
    inputs: &mpsc::Sender<ExecInput>,
    window: &Window,
) -> Option<SessionEnd> {
    let mut pings = interval(limits::EXEC_PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut taken = 0;
    loop {
        let reply = tokio::select! {
            reply = replies.recv() => reply,
            _tick = pings.tick() => {
                client.send(Message::Ping(bytes::Bytes::new())).await.ok()?;
                continue;
            }
        };
        match reply {
            Some(NodeReply::ExecOutput(piece)) => {
                taken += piece.cost();
                client.send(text(&output(piece))).await.ok()?;
                if taken >= limits::EXEC_TAKEN_BYTES {
                    let bytes = std::mem::take(&mut taken);
                    // If the session is over, the next reply reports that.
                    drop(inputs.send(ExecInput::Taken { bytes }).await);
                }
            }
            Some(NodeReply::ExecTaken { bytes }) => window.give(bytes),
            Some(NodeReply::ExecExited(exit)) => {
                client.send(text(&exited(exit))).await.ok()?;
                return Some(SessionEnd::new(close_code::NORMAL, ""));
            }
            Some(NodeReply::Failed { reason, .. }) => {
                return Some(SessionEnd::new(close_code::ERROR, reason));
            }
            Some(_) => {}
            None => {
                let reason = "the session with the node broke off; see its agent's messages";
                return Some(SessionEnd::new(close_code::ERROR, reason));
            }
        }
    }
}

fn output(piece: ExecPiece) -> Output {
    let ExecPiece { stream, data } = piece;
    let piece = Some(StreamPiece { data, close: false });
    match stream {
        LogStream::Stdout => Output {
            stdout: piece,
            ..Output::default()
        },
        LogStream::Stderr => Output {
            stderr: piece,
            ..Output::default()
        },
    }
}

fn exited(exit: ExecExit) -> Output {
    Output {
        exited: true,
        result: Some(ExitResult {
            exit_code: exit.code,
            signal: exit.signal,
            note: exit.note,
        }),
        ..Output::default()
    }
}

fn text(output: &Output) -> Message {
    // Texts and numbers in maps of known keys always serialise.
    Message::text(serde_json::to_string(output).unwrap_or_default())
}

/// Forwards input; returns `None` if the client is gone.
async fn take_input(
    client: &mut SplitStream<WebSocket>,
    inputs: &mpsc::Sender<ExecInput>,
    window: &Window,
) -> Option<SessionEnd> {
    loop {
        let message = match timeout(limits::EXEC_SILENCE_MAX, client.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(_)) | None) => return None,
            Err(_) => {
                let waited: Duration = limits::EXEC_SILENCE_MAX;
                let reason = format!("nothing came from the client for {waited:?}");
                return Some(SessionEnd::new(close_code::POLICY, reason));
            }
        };
        let read = match message {
            Message::Text(text) => serde_json::from_str(&text),
            Message::Binary(bytes) => serde_json::from_slice(&bytes),
            Message::Ping(_) | Message::Pong(_) => continue,
            Message::Close(_) => return None,
        };
        let frame: Input = match read {
            Ok(frame) => frame,
            Err(error) => {
                let reason = format!("a message is not a frame of a session: {error}");
                return Some(SessionEnd::new(close_code::INVALID, reason));
            }
        };
        for input in parts(frame) {
            window.take(input.cost()).await;
            if inputs.send(input).await.is_err() {
                // The other direction reports the reason.
                return std::future::pending().await;
            }
        }
    }
}

/// The requests of a frame, in its order.
fn parts(frame: Input) -> Vec<ExecInput> {
    let Input { stdin, tty_size } = frame;
    let mut parts = Vec::new();
    if let Some(size) = tty_size {
        let cells = |count: i32| saturating::to_u16(count.max(0));
        parts.push(ExecInput::Resize {
            height: cells(size.height),
            width: cells(size.width),
        });
    }
    if let Some(StreamPiece { data, close }) = stdin {
        let chunks = data.chunks(EXEC_CHUNK_BYTES_MAX);
        parts.extend(chunks.map(|chunk| ExecInput::Stdin(chunk.to_vec())));
        if close {
            parts.push(ExecInput::StdinClosed);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use muster_wire::api::exec::TtySize;

    use super::*;

    #[test]
    fn a_frame_is_taken_apart_in_order() {
        let frame = Input {
            stdin: Some(StreamPiece {
                data: vec![7; EXEC_CHUNK_BYTES_MAX + 1],
                close: true,
            }),
            tty_size: Some(TtySize {
                height: -1,
                width: 100_000,
            }),
        };

        let parts = parts(frame);

        let (height, width) = (0, u16::MAX);
        assert_eq!(parts[0], ExecInput::Resize { height, width });
        assert_eq!(parts[2], ExecInput::Stdin(vec![7]));
        assert_eq!(parts[3], ExecInput::StdinClosed);
    }

    /// The library would refuse a longer reason, and the client would get none.
    #[test]
    fn a_reason_fits_its_frame() {
        let end = SessionEnd::new(close_code::ERROR, "ä".repeat(100));

        assert_eq!(end.reason.len(), 122);
    }
}
