//! Logs of a task, streamed from its node.
//!
//! `GET /v1/client/fs/logs/{alloc_id}` takes Nomad's `task`, `type`, `follow`, `origin`, `offset` and `plain`.
//! Three parameters are Muster's own: `tail` (lines before the end), `since` (a duration before now, or a time in
//! UTC), and `position`, where an earlier stream broke off. Frames have more fields than Nomad's, which Nomad's
//! clients ignore: `Position`, `Time`, `Missing`, and `Ended` in the last one. The headers `x-muster-log-guid` and
//! `x-muster-log-source` hold the name that a one-off task's client gives its log, and the source of its lines.
//!
//! The stream lives as long as its client. When the connection ends, the body and the receiver of the node's
//! replies are dropped, and the node gets a stop. This module spawns no task.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;
use futures::stream;
use muster_domain::alloc::Allocation;
use muster_domain::id::Timestamp;
use muster_domain::one_off::{META_LOG_GUID, META_LOG_SOURCE};
use muster_domain::saturating;
use muster_wire::api::logs::Frame;
use muster_wire::api::{duration, time};
use muster_wire::rpc::{LogOrigin, LogPiece, LogStream, LogsRequest, NodeReply, NodeRequest};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::client::{self, find_alloc};
use super::handler::Http;
use super::query::Query;
use super::status::ApiError;
use crate::{clock, limits};

pub(super) async fn read(
    Shared(http): Shared<Http>,
    Path(alloc_id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let alloc = find_alloc(&http, &query, &alloc_id).await?;
    let request = asked(&query, &alloc)?;
    let plain = query.flag("plain")?;
    if plain && query.flag("timestamps")? {
        return Err(ApiError::Malformed(
            "Invalid timestamps: a plain log has only what the task wrote; leave `plain` out and read `Time` of each frame".to_owned(),
        ));
    }
    let mut replies = http
        .control
        .nodes()
        .request(alloc.node_id, NodeRequest::ReadLogs(request))
        .await?;
    // The first reply determines the status code. A log without a reply in time is successful.
    let first = match tokio::time::timeout(limits::STREAM_HEARTBEAT, replies.recv()).await {
        Ok(Some(NodeReply::Failed { reason, kind })) => {
            return Err(ApiError::NodeFailed { reason, kind });
        }
        Ok(Some(reply)) => FirstReply::Reply(reply),
        Ok(None) => FirstReply::End,
        Err(_) => FirstReply::Silence,
    };
    let kind = if plain {
        "text/plain; charset=utf-8"
    } else {
        "application/json"
    };
    let body = Body::from_stream(frames(
        Source {
            first: Some(first),
            replies,
            shutdown: http.shutdown,
        },
        plain,
    ));
    let mut response = ([(header::CONTENT_TYPE, kind)], body).into_response();
    response.headers_mut().extend(labels(&alloc));
    Ok(response)
}

/// Headers with the name and source of a one-off task's log. A value that does not fit into a header is left out.
fn labels(alloc: &Allocation) -> HeaderMap {
    const LABELS: [(&str, HeaderName); 2] = [
        (META_LOG_GUID, HeaderName::from_static("x-muster-log-guid")),
        (
            META_LOG_SOURCE,
            HeaderName::from_static("x-muster-log-source"),
        ),
    ];
    let job = &alloc.job.spec;
    let applicable = LABELS.into_iter().filter(|_| job.is_one_off());
    applicable
        .filter_map(|(key, name)| {
            let value = HeaderValue::from_str(job.meta.get(key)?).ok()?;
            Some((name, value))
        })
        .collect()
}

/// The log request of the query.
fn asked(query: &Query, alloc: &Allocation) -> Result<LogsRequest, ApiError> {
    let stream = match query.text("type") {
        None | Some("stdout") => LogStream::Stdout,
        Some("stderr") => LogStream::Stderr,
        Some(other) => {
            return Err(ApiError::Malformed(format!(
                "Invalid type: `{other}` is neither stdout nor stderr"
            )));
        }
    };
    let from = origin(query)?;
    let follow = query.flag("follow")?;
    Ok(LogsRequest {
        alloc_id: alloc.id,
        task: client::task_of(query, alloc)?,
        stream,
        from,
        follow,
    })
}

/// Returns the position to begin at: Nomad's `origin` and `offset`. Alternatives are `tail` (lines), `since` (a
/// duration before now, or a time) or both, or `position`, where an earlier stream broke off.
fn origin(query: &Query) -> Result<LogOrigin, ApiError> {
    let (position, lines) = (query.number("position")?, query.number("tail")?);
    let since = query.text("since").map(since).transpose()?;
    let offset = query.number("offset")?.unwrap_or(0);
    let origin = match query.text("origin") {
        None | Some("start") => LogOrigin::Start(offset),
        Some("end") => LogOrigin::End(offset),
        Some(other) => {
            return Err(ApiError::Malformed(format!(
                "Invalid origin: `{other}` is neither start nor end"
            )));
        }
    };
    let ways = [
        query.text("origin").or(query.text("offset")).is_some(),
        lines.is_some() || since.is_some(),
        position.is_some(),
    ];
    if ways.iter().filter(|way| **way).count() > 1 {
        return Err(ApiError::Malformed(
            "Invalid begin of a log: give `origin` and `offset`, or `tail` and `since`, or `position`, not several of them".to_owned(),
        ));
    }
    Ok(match (position, lines, since) {
        (Some(position), _, _) => LogOrigin::At(position),
        (None, None, None) => origin,
        (None, lines, since) => LogOrigin::Recent { lines, since },
    })
}

/// `10m` before now, or a time such as `2026-11-20T13:14:24Z`.
fn since(text: &str) -> Result<Timestamp, ApiError> {
    if let Some(at) = time::parse(text) {
        return Ok(at);
    }
    let ago = duration::parse(text).map_err(|_error| {
        ApiError::Malformed(format!(
            "Invalid since: `{text}` is neither a duration before now such as 10m or 1h30m nor a time in UTC such as 2026-11-20T13:14:24Z"
        ))
    })?;
    let ago = saturating::nanos(ago);
    Ok(Timestamp(clock::wall().0.saturating_sub(ago)))
}

#[derive(Debug)]
enum FirstReply {
    Reply(NodeReply),
    Silence,
    End,
}

#[derive(Debug)]
struct Source {
    first: Option<FirstReply>,
    replies: mpsc::Receiver<NodeReply>,
    shutdown: CancellationToken,
}

impl Source {
    /// The next reply; a heartbeat if none comes in time; `None` at the end.
    async fn next(&mut self, idle_after: Duration) -> Option<NodeReply> {
        match self.first.take() {
            Some(FirstReply::Reply(reply)) => return Some(reply),
            Some(FirstReply::Silence) => return Some(NodeReply::Idle),
            Some(FirstReply::End) => return None,
            None => {}
        }
        tokio::select! {
            reply = self.replies.recv() => reply,
            () = tokio::time::sleep(idle_after) => Some(NodeReply::Idle),
            () = self.shutdown.cancelled() => None,
        }
    }
}

fn frames(source: Source, plain: bool) -> impl Stream<Item = Result<Bytes, ApiError>> {
    stream::try_unfold(source, move |mut source| async move {
        loop {
            let Some(reply) = source.next(limits::STREAM_HEARTBEAT).await else {
                return Ok(None);
            };
            let bytes = if plain {
                plain_bytes(reply)?
            } else {
                frame_bytes(reply)?
            };
            if let Some(bytes) = bytes {
                return Ok(Some((bytes, source)));
            }
        }
    })
}

/// The bytes that the task wrote, without frames. A failure of the node cuts the body off, so that the client does
/// not treat it as complete.
fn plain_bytes(reply: NodeReply) -> Result<Option<Bytes>, ApiError> {
    match reply {
        NodeReply::LogPiece(LogPiece { data, .. }) | NodeReply::LogData { data, .. } => {
            Ok(Some(Bytes::from(data)))
        }
        NodeReply::LogMissing { .. }
        | NodeReply::LogGap { .. }
        | NodeReply::LogEnd { .. }
        | NodeReply::Idle => Ok(None),
        NodeReply::Failed { reason, kind } => Err(ApiError::NodeFailed { reason, kind }),
        NodeReply::NodeStats(_)
        | NodeReply::AllocStats(_)
        | NodeReply::AllocHistory(_)
        | NodeReply::DiskPiece(_)
        | NodeReply::DiskEnd(_)
        | NodeReply::AllocNetwork(_)
        | NodeReply::ExecOpened
        | NodeReply::ExecOutput(_)
        | NodeReply::ExecTaken { .. }
        | NodeReply::ExecExited(_)
        | NodeReply::Signaled { .. }
        | NodeReply::Collected { .. } => Err(unexpected_reply()),
    }
}

fn frame_bytes(reply: NodeReply) -> Result<Option<Bytes>, ApiError> {
    let frame = match reply {
        NodeReply::LogPiece(piece) => Frame {
            offset: piece.offset,
            data: piece.data,
            file: format!("alloc/logs/{}", piece.file),
            position: piece.position,
            time: piece.at.map_or(0, |at| at.0),
            ..Frame::default()
        },
        NodeReply::LogMissing {
            position,
            bytes,
            dropped,
        } => Frame {
            file_event: missing(bytes, dropped),
            missing: bytes,
            position,
            ..Frame::default()
        },
        NodeReply::LogEnd { position } => Frame {
            position,
            ended: true,
            ..Frame::default()
        },
        NodeReply::LogData { file, offset, data } => Frame {
            offset,
            data,
            file: format!("alloc/logs/{file}"),
            ..Frame::default()
        },
        NodeReply::LogGap { bytes } => Frame {
            file_event: missing(bytes, false),
            missing: bytes,
            ..Frame::default()
        },
        NodeReply::Idle => return Ok(Some(Bytes::from_static(Frame::HEARTBEAT.as_bytes()))),
        NodeReply::Failed { reason, kind } => {
            return Err(ApiError::NodeFailed { reason, kind });
        }
        NodeReply::NodeStats(_)
        | NodeReply::AllocStats(_)
        | NodeReply::AllocHistory(_)
        | NodeReply::DiskPiece(_)
        | NodeReply::DiskEnd(_)
        | NodeReply::AllocNetwork(_)
        | NodeReply::ExecOpened
        | NodeReply::ExecOutput(_)
        | NodeReply::ExecTaken { .. }
        | NodeReply::ExecExited(_)
        | NodeReply::Signaled { .. }
        | NodeReply::Collected { .. } => {
            return Err(unexpected_reply());
        }
    };
    let bytes =
        serde_json::to_vec(&frame).map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok(Some(Bytes::from(bytes)))
}

fn missing(bytes: u64, dropped: bool) -> String {
    if dropped {
        format!(
            "{bytes} bytes were dropped and not kept: the disk was full, or they were above the task's rate"
        )
    } else {
        format!("{bytes} bytes were rotated away before they were read")
    }
}

fn unexpected_reply() -> ApiError {
    ApiError::Internal("the node answered with statistics where a log was asked for".to_owned())
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use muster_wire::rpc::FailureKind;

    use super::*;

    fn source() -> (mpsc::Sender<NodeReply>, CancellationToken, Source) {
        let (sender, replies) = mpsc::channel(limits::NODE_REPLIES_MAX);
        let shutdown = CancellationToken::new();
        (
            sender,
            shutdown.clone(),
            Source {
                first: None,
                replies,
                shutdown,
            },
        )
    }

    /// Time is paused: a second passes as soon as all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn a_silent_log_shows_signs_of_life() {
        let (_sender, _shutdown, source) = source();
        let mut frames = Box::pin(frames(source, false));

        let first = frames.next().await.unwrap().unwrap();
        let second = frames.next().await.unwrap().unwrap();

        assert_eq!(
            (first.as_ref(), second.as_ref()),
            (b"{}".as_slice(), b"{}".as_slice())
        );
    }

    #[tokio::test]
    async fn a_dropped_body_drops_the_nodes_replies() {
        let (sender, _shutdown, source) = source();
        let body = Body::from_stream(frames(source, false));

        drop(body);

        assert!(sender.is_closed());
    }

    #[tokio::test]
    async fn a_node_that_fails_cuts_the_log_off() {
        let (sender, _shutdown, source) = source();
        let mut frames = Box::pin(frames(source, true));
        let reason = "the disk is gone".to_owned();
        sender
            .send(NodeReply::Failed {
                reason,
                kind: FailureKind::Other,
            })
            .await
            .unwrap();

        assert_eq!(
            frames.next().await.unwrap().unwrap_err().to_string(),
            "the disk is gone"
        );
    }

    #[tokio::test]
    async fn a_log_ends_with_the_server() {
        let (_sender, shutdown, source) = source();
        let mut frames = Box::pin(frames(source, false));

        shutdown.cancel();

        assert!(frames.next().await.is_none());
    }
}
