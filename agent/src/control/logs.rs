//! A task's output, to a server that asks for it.

use muster_link::frames::{FrameSender, SendFrameError};
use muster_wire::limits::LOG_CHUNK_BYTES_MAX;
use muster_wire::rpc::{LogOrigin, LogsRequest, NodeReply};

use crate::facilities::Facilities;
use crate::limits::IDLE_INTERVAL;
use crate::logs::{Chunk, LogReader, ReadLogError};
use crate::task::{chain, stream_name};

/// Sends what the task wrote. A follower that is slow or gone costs the task nothing: only what it
/// takes is read.
pub(super) async fn stream(
    facilities: &Facilities,
    request: &LogsRequest,
    sender: &mut FrameSender,
) -> Result<(), SendFrameError> {
    let name = stream_name(&request.task, request.stream);
    let dir = facilities.data.alloc(request.alloc_id).logs;
    let opened = open(&dir, &name, request.from);
    match opened {
        Ok(reader) if !dir.is_dir() || !has_task(&reader, facilities, request) => {
            fail(
                sender,
                format!(
                    "allocation {} has no task `{}` here",
                    request.alloc_id, request.task
                ),
                true,
            )
            .await
        }
        Ok(mut reader) => {
            let failed = send(&mut reader, &name, facilities, request, sender).await?;
            match failed {
                Some(error) => fail(sender, chain(&error), false).await,
                None => {
                    sender.finish();
                    Ok(())
                }
            }
        }
        Err(ReadLogError::Dir(_)) => {
            fail(
                sender,
                format!(
                    "allocation {} has no logs on this node; it was collected, or never ran here",
                    request.alloc_id
                ),
                true,
            )
            .await
        }
        Err(error) => fail(sender, chain(&error), false).await,
    }
}

fn open(dir: &std::path::Path, name: &str, from: LogOrigin) -> Result<LogReader, ReadLogError> {
    let mut reader = LogReader::open(dir, name)?;
    match from {
        LogOrigin::Start(bytes) => reader.seek(reader.offset().saturating_add(bytes)),
        LogOrigin::End(bytes) => reader.seek_from_end(bytes)?,
    }
    Ok(reader)
}

/// A task that never ran has no files; one that runs may have written nothing yet.
fn has_task(reader: &LogReader, facilities: &Facilities, request: &LogsRequest) -> bool {
    let written = reader.files().is_ok_and(|files| !files.is_empty());
    written
        || facilities
            .live
            .get(request.alloc_id, &request.task)
            .is_some()
}

/// Sends until the end, or as long as the task lives and one more time if it is followed.
async fn send(
    reader: &mut LogReader,
    name: &str,
    facilities: &Facilities,
    request: &LogsRequest,
    sender: &mut FrameSender,
) -> Result<Option<ReadLogError>, SendFrameError> {
    let mut ending = !request.follow;
    loop {
        let read = if ending {
            reader.read(LOG_CHUNK_BYTES_MAX)
        } else {
            reader.follow(LOG_CHUNK_BYTES_MAX, IDLE_INTERVAL).await
        };
        match read {
            Ok(Some(chunk)) => sender.send(&reply(reader, name, chunk)).await?,
            Ok(None) if ending => return Ok(None),
            Ok(None) => {
                // What the task wrote at last is in the files before it ceases to live.
                ending = !lives(facilities, request);
                sender.send(&NodeReply::Idle).await?;
            }
            Err(error) => return Ok(Some(error)),
        }
    }
}

/// Whether the task may still write: it has a process, or its allocation has not finished.
fn lives(facilities: &Facilities, request: &LogsRequest) -> bool {
    facilities
        .live
        .get(request.alloc_id, &request.task)
        .is_some()
        || facilities.outbox.is_unfinished(request.alloc_id)
}

fn reply(reader: &LogReader, name: &str, chunk: Chunk) -> NodeReply {
    match chunk {
        Chunk::Gap { bytes, .. } => NodeReply::LogGap { bytes },
        Chunk::Data { offset, bytes } => {
            let end = offset + bytes.len() as u64;
            let files = reader.files().unwrap_or_default();
            let file = files.iter().rev().find(|file| file.offset <= offset);
            NodeReply::LogData {
                file: file.map_or_else(|| name.to_owned(), |file| format!("{name}.{}", file.index)),
                offset: end - file.map_or(0, |file| file.offset),
                data: bytes,
            }
        }
    }
}

async fn fail(
    sender: &mut FrameSender,
    reason: String,
    not_found: bool,
) -> Result<(), SendFrameError> {
    sender
        .send(&NodeReply::Failed { reason, not_found })
        .await?;
    sender.finish();
    Ok(())
}
