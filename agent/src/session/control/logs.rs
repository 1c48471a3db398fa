//! Sends a task's output to a server on request.

use std::sync::atomic::{AtomicU64, Ordering};

use muster_domain::error_chain::chain;
use muster_domain::id::Timestamp;
use muster_domain::number;
use muster_link::frames::{FrameReceiver, FrameSender, SendFrameError};
use muster_wire::limits::LOG_CHUNK_BYTES_MAX;
use muster_wire::rpc::{FailureKind, LogAck, LogOrigin, LogPiece, LogsRequest, NodeReply};

use crate::context::AgentContext;
use crate::limits::{IDLE_INTERVAL, LOG_WINDOW_BYTES_MAX, LOG_WINDOW_BYTES_MIN, LOG_WINDOWS_BYTES};
use crate::logs::{Chunk, GapCause, LogReader, ReadLogError};
use crate::session::SessionContext;
use crate::session::failure::fail;
use crate::storage::allocdir::DataDir;
use crate::tasks::live::LiveTasks;
use crate::tasks::task::{read_uncollected_reason, stream_name};

/// Sends the task's output. A slow or absent follower does not affect the task, because only the bytes that it
/// takes are read. With `taken`, the log is sent in pieces, and the bytes in flight are limited to a share of the
/// node's bound. Without `taken`, only the stream limits the bytes in flight.
pub(super) async fn stream(
    context: &AgentContext,
    request: &LogsRequest,
    sender: &mut FrameSender,
    taken: Option<FrameReceiver>,
) -> Result<(), SendFrameError> {
    let name = stream_name(&request.task, request.stream);
    let dir = context.storage.data.alloc(request.alloc_id).logs;
    let mut reader = match open(&dir, &name, request.from) {
        Ok(reader) if let Some(why) = why_absent(&reader, &context.storage.data, request) => {
            return fail(sender, why, FailureKind::NotFound).await;
        }
        Ok(reader)
            if !dir.is_dir()
                || !has_task(&reader, &context.session, &context.tasks.live, request) =>
        {
            let reason = format!(
                "allocation {} has no task `{}` here",
                request.alloc_id, request.task
            );
            return fail(sender, reason, FailureKind::NotFound).await;
        }
        Ok(reader) => reader,
        Err(ReadLogError::Dir(_)) => {
            let reason = format!(
                "allocation {} has no logs on this node; it was collected, or never ran here",
                request.alloc_id
            );
            return fail(sender, reason, FailureKind::NotFound).await;
        }
        Err(error) => return fail(sender, chain(&error), FailureKind::Other).await,
    };
    let sent = match taken {
        None => send(&mut reader, &name, context, request, sender).await?,
        Some(taken) => {
            let window = Window {
                taken,
                unacknowledged: 0,
                all_unacknowledged: &context.session.log_bytes_unacknowledged,
            };
            send_pieces(&mut reader, &name, context, request, sender, window).await?
        }
    };
    match sent {
        Err(error) => fail(sender, chain(&error), FailureKind::Other).await,
        Ok(()) => {
            sender.finish();
            Ok(())
        }
    }
}

fn open(dir: &std::path::Path, name: &str, from: LogOrigin) -> Result<LogReader, ReadLogError> {
    let mut reader = LogReader::open(dir, name)?;
    match from {
        LogOrigin::Start(bytes) => reader.seek(reader.offset().saturating_add(bytes)),
        LogOrigin::End(bytes) => reader.seek_from_end(bytes)?,
        LogOrigin::At(offset) => reader.seek(offset),
        LogOrigin::Recent { lines, since } => {
            let begin = reader.offset();
            if let Some(since) = since {
                reader.seek_since(since)?;
            }
            let young = reader.offset();
            if let Some(lines) = lines {
                reader.seek(begin);
                reader.seek_last_lines(lines)?;
            }
            reader.seek(reader.offset().max(young));
        }
    }
    Ok(reader)
}

/// Returns why a task without log files has none, if its output is not collected.
fn why_absent(reader: &LogReader, data: &DataDir, request: &LogsRequest) -> Option<String> {
    let is_empty = reader.files().is_ok_and(|files| files.is_empty());
    let why =
        is_empty.then(|| read_uncollected_reason(&data.alloc(request.alloc_id), &request.task));
    why.flatten()
}

/// Returns whether the task exists here. A task with output has files. For a task without output, the outbox
/// records whether it ever began.
fn has_task(
    reader: &LogReader,
    session: &SessionContext,
    tasks: &LiveTasks,
    request: &LogsRequest,
) -> bool {
    let written = reader.files().is_ok_and(|files| !files.is_empty());
    written
        || tasks.get(request.alloc_id, &request.task).is_some()
        || session.outbox.was_begun(request.alloc_id, &request.task)
}

/// Sends the log to its end. A followed log is sent as long as the task lives, and once more after that.
async fn send(
    reader: &mut LogReader,
    name: &str,
    context: &AgentContext,
    request: &LogsRequest,
    sender: &mut FrameSender,
) -> Result<Result<(), ReadLogError>, SendFrameError> {
    let mut ending = !request.follow;
    loop {
        let read = if ending {
            reader.read(LOG_CHUNK_BYTES_MAX)
        } else {
            reader.follow(LOG_CHUNK_BYTES_MAX, IDLE_INTERVAL).await
        };
        match read {
            Ok(Some(chunk)) => sender.send(&reply(reader, name, chunk)).await?,
            Ok(None) if ending => return Ok(Ok(())),
            Ok(None) => {
                // The last output of the task is in the files before the task counts as ended.
                ending = !may_still_write(&context.session, &context.tasks.live, request);
                sender.send(&NodeReply::Idle).await?;
            }
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// The data that were sent to a reader and that it has not yet acknowledged.
struct Window<'a> {
    taken: FrameReceiver,
    /// [`LogPiece::cost`] of the pieces that were sent and not acknowledged.
    unacknowledged: u64,
    /// The sum over all readers of the node.
    all_unacknowledged: &'a AtomicU64,
}

impl Window<'_> {
    /// Waits until another piece may be sent, and returns its size in bytes of log; `None` if the reader is gone.
    async fn wait_for_piece_bytes(&mut self) -> Option<usize> {
        loop {
            let bytes = piece_bytes(
                self.unacknowledged,
                self.all_unacknowledged.load(Ordering::Relaxed),
            );
            if bytes > 0 {
                return Some(bytes);
            }
            match self.taken.recv::<LogAck>().await {
                Ok(Some(taken)) => self.acknowledge(taken.bytes),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    fn add_unacknowledged(&mut self, bytes: u64) {
        self.unacknowledged += bytes;
        self.all_unacknowledged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that the reader acknowledged. A reader that acknowledges more than it received has acknowledged
    /// everything.
    fn acknowledge(&mut self, bytes: u64) {
        let taken = bytes.min(self.unacknowledged);
        self.unacknowledged -= taken;
        self.all_unacknowledged.fetch_sub(taken, Ordering::Relaxed);
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        self.acknowledge(self.unacknowledged);
    }
}

/// Size in bytes of the next piece for a reader that has not acknowledged `unacknowledged` bytes, where all readers
/// have not acknowledged `all_unacknowledged`; 0 for none now.
fn piece_bytes(unacknowledged: u64, all_unacknowledged: u64) -> usize {
    let plenty = all_unacknowledged < LOG_WINDOWS_BYTES;
    match (plenty, unacknowledged) {
        (true, ..LOG_WINDOW_BYTES_MAX) => LOG_CHUNK_BYTES_MAX,
        (false, ..LOG_WINDOW_BYTES_MIN) => number::index(LOG_WINDOW_BYTES_MIN),
        _ => 0,
    }
}

/// Sends like [`send`], in pieces.
async fn send_pieces(
    reader: &mut LogReader,
    name: &str,
    context: &AgentContext,
    request: &LogsRequest,
    sender: &mut FrameSender,
    mut window: Window<'_>,
) -> Result<Result<(), ReadLogError>, SendFrameError> {
    let mut ending = !request.follow;
    loop {
        let Some(limit) = window.wait_for_piece_bytes().await else {
            return Ok(Ok(()));
        };
        let read = if ending {
            reader.read_timed(limit)
        } else {
            reader.follow_timed(limit, IDLE_INTERVAL).await
        };
        let reply = match read {
            Ok(Some((chunk, at))) => piece(reader, name, chunk, at),
            Ok(None) if ending => {
                let position = reader.offset();
                sender.send(&NodeReply::LogEnd { position }).await?;
                return Ok(Ok(()));
            }
            Ok(None) => {
                // The last output of the task is in the files before the task counts as ended.
                ending = !may_still_write(&context.session, &context.tasks.live, request);
                NodeReply::Idle
            }
            Err(error) => return Ok(Err(error)),
        };
        if let NodeReply::LogPiece(piece) = &reply {
            window.add_unacknowledged(piece.cost());
        }
        sender.send(&reply).await?;
    }
}

fn piece(reader: &LogReader, name: &str, chunk: Chunk, at: Option<Timestamp>) -> NodeReply {
    let position = chunk.end();
    match chunk {
        Chunk::Gap { bytes, cause, .. } => NodeReply::LogMissing {
            position,
            bytes,
            dropped: cause == GapCause::Dropped,
        },
        Chunk::Data { bytes: data, .. } => {
            let (file, offset) = reader.file().unwrap_or_default();
            NodeReply::LogPiece(LogPiece {
                file: format!("{name}.{file}"),
                offset,
                position,
                at,
                data,
            })
        }
    }
}

/// Whether the task may still write: it has a process, or its allocation has not finished.
fn may_still_write(session: &SessionContext, tasks: &LiveTasks, request: &LogsRequest) -> bool {
    tasks.get(request.alloc_id, &request.task).is_some()
        || session.outbox.is_unfinished(request.alloc_id)
}

fn reply(reader: &LogReader, name: &str, chunk: Chunk) -> NodeReply {
    match chunk {
        Chunk::Gap { bytes, .. } => NodeReply::LogGap { bytes },
        Chunk::Data { bytes, .. } => {
            let (file, offset) = reader.file().unwrap_or_default();
            NodeReply::LogData {
                file: format!("{name}.{file}"),
                offset,
                data: bytes,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_wire::limits::LOG_TAKEN_BYTES;

    use super::*;
    use crate::limits::LOG_READERS_MAX;

    /// The order of the readers does not matter. The bytes in flight to all of them stay below the connection's
    /// limit (32 MiB). Each window exceeds the bytes after which a reader acknowledges, so no stream waits for a
    /// withheld acknowledgement.
    #[test]
    fn readers_that_take_nothing_are_sent_little() {
        let mut unacknowledged = vec![0_u64; LOG_READERS_MAX];
        for reader in 0..unacknowledged.len() {
            loop {
                let bytes = piece_bytes(unacknowledged[reader], unacknowledged.iter().sum());
                if bytes == 0 {
                    break;
                }
                unacknowledged[reader] += bytes as u64 + 128;
            }
        }

        assert!(
            unacknowledged
                .iter()
                .all(|unacknowledged| *unacknowledged > LOG_TAKEN_BYTES)
        );
        assert_eq!(unacknowledged.iter().max(), Some(&(256 * 1024 + 512)));
        let all: u64 = unacknowledged.iter().sum();
        assert!(all < 24 << 20, "{all}");
    }
}
