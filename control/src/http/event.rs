//! The event stream: the changes of every entry of the log, one line for each entry, in order.
//!
//! A reader has no queue. It names the first index that it wants and reads its events from the ring. A reader that
//! reads slower than entries are applied, or returns too late, finds its position dropped and gets an error. The
//! stream comes from this server alone, so it works during an election. At the same index it is the same on every
//! server.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State as Shared;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::Stream;
use futures::stream;
use muster_domain::id::LogIndex;
use muster_wire::api::event::{
    Event, Events, HEARTBEAT, Payload, StreamError, StreamErrorBody, StreamErrorCode, Topic,
};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::answer;
use super::handler::{Http, Table};
use super::query::Query;
use super::status::ApiError;
use crate::events::{Batch, Filter, Gap, TopicFilter};
use crate::handle::{Consistency, Control};
use crate::limits;

/// The parameter for every topic and every name.
const ALL: &str = "*";

pub(super) fn routes(table: Table) -> Table {
    table.on("/v1/event/stream", get(follow))
}

async fn follow(Shared(http): Shared<Http>, query: Query) -> Result<Response, ApiError> {
    let filter = filter(&query)?;
    let progress = query.flag("progress")?;
    let from = match query.newer_than() {
        // Index 0 asks for all kept events.
        LogIndex(0) => http.control.published().events().oldest(),
        index => index,
    };
    let applied = http.control.applied();
    let index = *applied.borrow();
    let reader = Reader {
        control: http.control.clone(),
        applied,
        shutdown: http.shutdown,
        filter: Arc::new(filter),
        progress,
        asked: from,
        next: from,
        ready: Vec::new().into_iter(),
        silent_since: Instant::now(),
        ended: false,
    };
    let body = Body::from_stream(lines(reader));
    let response = ([(header::CONTENT_TYPE, "application/json")], body).into_response();
    let seen = http.control.read(Consistency::Stale).await?;
    Ok(answer::stamp(response, &seen, index))
}

/// The filter of the query's `topic` and `namespace`.
fn filter(query: &Query) -> Result<Filter, ApiError> {
    let mut topics = Vec::new();
    for asked in query.all("topic").filter(|asked| !asked.is_empty()) {
        let (topic, name) = asked.split_once(':').unwrap_or((asked, ALL));
        let topic = match topic {
            ALL => None,
            word => Some(Topic::from_name(word).ok_or_else(|| unknown_topic(word))?),
        };
        let name = Some(name).filter(|name| *name != ALL && !name.is_empty());
        topics.push(TopicFilter {
            topic,
            name: name.map(str::to_owned),
        });
    }
    if topics.is_empty() {
        topics.push(TopicFilter {
            topic: None,
            name: None,
        });
    }
    let namespace = Some(query.namespace()).filter(|namespace| *namespace != ALL);
    Ok(Filter {
        namespace: namespace.map(str::to_owned),
        topics,
    })
}

fn unknown_topic(word: &str) -> ApiError {
    let known = Topic::ALL.map(Topic::as_str).join(", ");
    ApiError::Malformed(format!(
        "Invalid topic: `{word}` is none of {known}, {ALL}; write TOPIC or TOPIC:NAME"
    ))
}

/// A reader's position in the stream.
#[derive(Debug)]
struct Reader {
    control: Control,
    applied: watch::Receiver<LogIndex>,
    shutdown: CancellationToken,
    filter: Arc<Filter>,
    /// Whether heartbeats carry the reader's position.
    progress: bool,
    /// The index that the reader asked for.
    asked: LogIndex,
    /// The first index that the reader has not received.
    next: LogIndex,
    /// Batches taken from the ring and not sent yet.
    ready: std::vec::IntoIter<Arc<Batch>>,
    silent_since: Instant,
    ended: bool,
}

impl Reader {
    /// The next line; `None` at the end.
    async fn line(&mut self) -> Result<Option<Bytes>, ApiError> {
        if self.ended {
            return Ok(None);
        }
        loop {
            for batch in self.ready.by_ref() {
                self.next = LogIndex(batch.index().0 + 1);
                let events = events(batch, Arc::clone(&self.filter)).await?;
                if let Some(line) = events {
                    self.silent_since = Instant::now();
                    return Ok(Some(line));
                }
            }
            // The index is read before the ring: entries applied later appear in the next round.
            let applied = *self.applied.borrow_and_update();
            let ring = self.control.published().events();
            match ring.from(self.next, limits::EVENT_ENTRIES_READ_MAX) {
                Err(gap) => {
                    self.ended = true;
                    return json_line(&end_error(self.asked, self.next, gap)).map(Some);
                }
                Ok(batches) if batches.is_empty() => {
                    self.next = self.next.max(LogIndex(applied.0 + 1));
                    if let Some(beat) = self.wait().await? {
                        return Ok(Some(beat));
                    }
                    if self.shutdown.is_cancelled() {
                        return Ok(None);
                    }
                }
                Ok(batches) => self.ready = batches.into_iter(),
            }
        }
    }

    /// Waits for the next entry. Returns a heartbeat if none comes in time.
    async fn wait(&mut self) -> Result<Option<Bytes>, ApiError> {
        let silence = limits::STREAM_HEARTBEAT;
        tokio::select! {
            _ = self.applied.changed() => {}
            () = tokio::time::sleep_until(self.silent_since + silence) => {}
            () = self.shutdown.cancelled() => {}
        }
        if self.silent_since.elapsed() < silence {
            return Ok(None);
        }
        self.silent_since = Instant::now();
        if self.progress {
            // The reader has received everything before `next`.
            let none: Events<()> = Events {
                index: self.next.0.saturating_sub(1),
                events: Vec::new(),
            };
            return json_line(&none).map(Some);
        }
        Ok(Some(Bytes::from_static(HEARTBEAT.as_bytes())))
    }
}

/// The error that ends a stream. Its reader asked for events from `asked` on and next needs those from `next` on.
fn end_error(asked: LogIndex, next: LogIndex, gap: Gap) -> StreamError {
    let Gap { oldest } = gap;
    let (code, why) = if next == asked {
        (StreamErrorCode::Gap, "are gone")
    } else {
        (
            StreamErrorCode::Slow,
            "went before they were read: the reader is too slow",
        )
    };
    let message = format!(
        "events from index {} to {} {why}; read the lists again and follow from their index, or ask another server",
        next.0,
        oldest.0.saturating_sub(1)
    );
    StreamError {
        error: StreamErrorBody {
            code,
            message,
            index: next.0,
            oldest_index: oldest.0,
        },
    }
}

fn lines(reader: Reader) -> impl Stream<Item = Result<Bytes, ApiError>> {
    stream::try_unfold(reader, |mut reader| async move {
        Ok(reader.line().await?.map(|line| (line, reader)))
    })
}

/// The line of one entry; `None` if the entry has nothing for the reader.
async fn events(batch: Arc<Batch>, filter: Arc<Filter>) -> Result<Option<Bytes>, ApiError> {
    // The bound is about time, not memory: JSON of many rows would delay other requests.
    let inline = batch.len() <= limits::EVENT_ROWS_INLINE_MAX;
    let make = move || {
        let index = batch.index().0;
        let events: Vec<Event<Payload>> = batch.events(&filter);
        if events.is_empty() {
            return Ok(None);
        }
        json_line(&Events { index, events }).map(Some)
    };
    if inline {
        make()
    } else {
        tokio::task::spawn_blocking(make)
            .await
            .map_err(|error| ApiError::Internal(error.to_string()))?
    }
}

fn json_line(value: &impl Serialize) -> Result<Bytes, ApiError> {
    let mut line =
        serde_json::to_vec(value).map_err(|error| ApiError::Internal(error.to_string()))?;
    line.push(b'\n');
    Ok(Bytes::from(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that comes too late and a reader that is too slow get different errors.
    #[test]
    fn stream_end_distinguishes_late_and_slow_readers() {
        let gap = Gap {
            oldest: LogIndex(100),
        };

        let late = end_error(LogIndex(7), LogIndex(7), gap).error;
        let slow = end_error(LogIndex(7), LogIndex(42), gap).error;

        assert_eq!(late.code, StreamErrorCode::Gap);
        assert_eq!((late.index, late.oldest_index), (7, 100));
        assert_eq!(slow.code, StreamErrorCode::Slow);
        assert!(slow.message.contains("from index 42 to 99"), "{slow:?}");
    }
}
