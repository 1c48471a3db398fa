//! Events of tasks, as a stream of server-sent events in the order of the log.
//!
//! A stream begins with the events after its request. It is closed when its reader is so far behind that the ring
//! has dropped its position: Diego's clients then subscribe, list and merge anew. A stream keeps the last sent row
//! of every task, because a change is sent with the previous row.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::{Stream, stream};
use muster_domain::id::LogIndex;
use muster_domain::one_off::OneOff;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::proto::{Task, TaskChangedEvent, TaskCreatedEvent, TaskRemovedEvent};
use super::{Context, Table, convert};
use crate::events::{Batch, TaskChange};
use crate::handle::Control;
use crate::limits;

/// A comment, which readers skip.
const SIGN_OF_LIFE: &str = ":\n\n";

pub(super) fn routes(table: Table) -> Table {
    table
        .raw("/v1/events/tasks.r1", follow)
        .raw("/v1/events/tasks", follow)
}

async fn follow(context: Context, _: Request) -> Response {
    let Ok(place) = Arc::clone(&context.streams).try_acquire_owned() else {
        let wait = [(header::RETRY_AFTER, "1")];
        return (StatusCode::SERVICE_UNAVAILABLE, wait, "too many streams").into_response();
    };
    let reader = Reader::start(context, place);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache, no-store, must-revalidate"),
    ];
    (headers, Body::from_stream(events(reader))).into_response()
}

/// The tasks that a reader has received, with the rows as sent.
#[derive(Debug, Default)]
struct ReaderState {
    rows: HashMap<String, Arc<OneOff>>,
    /// The number of the next event.
    next_id: u64,
}

impl ReaderState {
    /// The events of one entry, as they are sent; empty if the entry has none for the reader.
    fn events(&mut self, batch: &Batch) -> String {
        let mut text = String::new();
        // An entry may move a task on by two states.
        let mut sent: BTreeSet<&str> = BTreeSet::new();
        for change in batch.tasks() {
            match change {
                TaskChange::Now(row) => {
                    if self.is_news(&row.guid, batch.index()) || sent.contains(row.guid.as_str()) {
                        self.now(row, &mut text);
                        sent.insert(&row.guid);
                    }
                }
                TaskChange::Gone(guid) => {
                    if self.is_news(guid, batch.index()) || sent.contains(guid) {
                        self.append_removed(guid, &mut text);
                    }
                }
            }
        }
        text
    }

    /// Whether the entry at `index` may have changed the task since the row that the reader has. A reader's first
    /// rows may be newer than its position in the ring.
    fn is_news(&self, guid: &str, index: LogIndex) -> bool {
        let before = self.rows.get(guid);
        before.is_none_or(|before| before.modify_index < index)
    }

    fn now(&mut self, row: &Arc<OneOff>, text: &mut String) {
        let task = |row: &OneOff| Some(convert::task(row));
        let before = self.rows.insert(row.guid.clone(), Arc::clone(row));
        let after = task(row);
        match before.map(|before| task(&before)) {
            None => self.write("task_created", &TaskCreatedEvent { task: after }, text),
            // A change that only Muster has makes no event.
            Some(before) if is_same(before.as_ref(), after.as_ref()) => {}
            Some(before) => self.write("task_changed", &TaskChangedEvent { before, after }, text),
        }
    }

    fn append_removed(&mut self, guid: &str, text: &mut String) {
        if let Some(row) = self.rows.remove(guid) {
            let task = Some(convert::task(&row));
            self.write("task_removed", &TaskRemovedEvent { task }, text);
        }
    }

    fn write(&mut self, name: &str, event: &impl Message, text: &mut String) {
        let data = BASE64_STANDARD.encode(event.encode_to_vec());
        let id = self.next_id.to_string();
        self.next_id += 1;
        for part in ["id: ", &id, "\nevent: ", name, "\ndata: ", &data, "\n\n"] {
            text.push_str(part);
        }
    }
}

/// Whether Diego has no transition between the two. Muster also writes a row when a process starts.
fn is_same(before: Option<&Task>, after: Option<&Task>) -> bool {
    let untimed = |task: &Task| Task {
        updated_at: 0,
        ..task.clone()
    };
    before.map(untimed) == after.map(untimed)
}

/// A reader's position in the stream.
#[derive(Debug)]
struct Reader {
    control: Control,
    applied: watch::Receiver<LogIndex>,
    shutdown: CancellationToken,
    state: ReaderState,
    /// The first index that the reader has not received.
    next: LogIndex,
    /// Batches taken from the ring and not sent yet.
    ready: std::vec::IntoIter<Arc<Batch>>,
    silent_since: Instant,
    /// The reader's place among the streams, until it is dropped.
    _place: OwnedSemaphorePermit,
}

impl Reader {
    /// Starts a reader that gets the events from now on.
    fn start(context: Context, place: OwnedSemaphorePermit) -> Self {
        let Context {
            control, shutdown, ..
        } = context;
        let applied = control.applied();
        // The index is read before the state, so the state contains it and maybe more.
        let index = *applied.borrow();
        let state = control.state();
        let rows = state.one_offs().iter();
        let rows = rows
            .map(|row| (row.guid.clone(), Arc::clone(row)))
            .collect();
        Self {
            control,
            applied,
            shutdown,
            state: ReaderState { rows, next_id: 0 },
            next: LogIndex(index.0 + 1),
            ready: Vec::new().into_iter(),
            silent_since: Instant::now(),
            _place: place,
        }
    }

    /// The next piece to send; `None` at the end.
    async fn piece(&mut self) -> Option<String> {
        let piece = self.found().await;
        self.silent_since = Instant::now();
        piece
    }

    async fn found(&mut self) -> Option<String> {
        let sign_at = self.silent_since + limits::BBS_STREAM_HEARTBEAT;
        loop {
            for batch in self.ready.by_ref() {
                self.next = LogIndex(batch.index().0 + 1);
                let text = self.state.events(&batch);
                if !text.is_empty() {
                    return Some(text);
                }
            }
            // The index is read before the ring: entries applied later appear in the next round.
            let applied = *self.applied.borrow_and_update();
            let ring = self.control.published().events();
            match ring.from(self.next, limits::EVENT_ENTRIES_READ_MAX) {
                Err(gap) => {
                    tracing::debug!(%gap, "a reader of task events is too slow");
                    return None;
                }
                Ok(batches) if batches.is_empty() => {
                    self.next = self.next.max(LogIndex(applied.0 + 1));
                    tokio::select! {
                        changed = self.applied.changed() => changed.ok()?,
                        () = tokio::time::sleep_until(sign_at) => {
                            return Some(SIGN_OF_LIFE.to_owned());
                        }
                        () = self.shutdown.cancelled() => return None,
                    }
                }
                Ok(batches) => self.ready = batches.into_iter(),
            }
        }
    }
}

fn events(reader: Reader) -> impl Stream<Item = Result<Bytes, Infallible>> {
    // This is sent at once, so that a client sees the open stream.
    let first = stream::iter([Ok(Bytes::from_static(SIGN_OF_LIFE.as_bytes()))]);
    let rest = stream::unfold(reader, |mut reader| async move {
        let piece = reader.piece().await?;
        Some((Ok(Bytes::from(piece)), reader))
    });
    futures::StreamExt::chain(first, rest)
}

#[cfg(test)]
mod tests {
    use muster_control_core::fsm::{
        self, Entry, NewOneOff, OneOffChange, OneOffCommand, OneOffStep,
    };
    use muster_control_core::state::State;
    use muster_domain::fixture;
    use muster_domain::id::Timestamp;
    use muster_domain::one_off::{OneOffState, Phase};

    use super::*;

    /// Applies `entry` at `index` and returns its changes.
    fn applied(state: &mut State, index: u64, entry: Entry) -> Batch {
        let applied = fsm::apply(state, LogIndex(index), entry);
        Batch::capture(LogIndex(index), "test", state, &applied, Vec::new()).unwrap()
    }

    fn desire(state: &mut State, index: u64) -> Batch {
        let task = NewOneOff {
            guid: "a".to_owned(),
            domain: "apps".to_owned(),
            definition: fixture::definition(),
        };
        let command = Entry::desire_one_offs(vec![task], Timestamp(index));
        applied(state, index, command)
    }

    fn change(state: &mut State, index: u64, step: OneOffStep) -> Batch {
        let change = OneOffChange {
            guid: "a".to_owned(),
            generation: None,
            step,
        };
        let command = OneOffCommand::Change {
            changes: vec![change],
        }
        .at(Timestamp(index));
        applied(state, index, command)
    }

    /// Desires, cancels, claims, deletes and again desires a task. Returns each entry's batch and the rows after
    /// it.
    fn life() -> Vec<(Batch, HashMap<String, Arc<OneOff>>)> {
        let mut state = State::default();
        let claim = OneOffStep::Claim {
            until: Timestamp(100),
            for_callback: false,
        };
        let mut all = Vec::new();
        for index in 1..6 {
            let batch = match index {
                2 => change(&mut state, index, OneOffStep::Cancel),
                3 => change(&mut state, index, claim),
                4 => change(&mut state, index, OneOffStep::Delete { claim: None }),
                _ => desire(&mut state, index),
            };
            let rows = state.one_offs().iter();
            let rows = rows.map(|row| (row.guid.clone(), Arc::clone(row)));
            all.push((batch, rows.collect()));
        }
        all
    }

    /// The names of the events for a reader that begins with `rows`, of all batches.
    fn event_names(rows: HashMap<String, Arc<OneOff>>) -> Vec<String> {
        let mut reader_state = ReaderState { rows, next_id: 0 };
        let text: String = life()
            .iter()
            .map(|(batch, _)| reader_state.events(batch))
            .collect();
        let names = text.lines().filter_map(|line| line.strip_prefix("event: "));
        names.map(ToOwned::to_owned).collect()
    }

    #[test]
    fn event_stream_covers_the_whole_task_life() {
        let all = [
            "task_created",
            "task_changed",
            "task_changed",
            "task_removed",
            "task_created",
        ];

        assert_eq!(event_names(HashMap::new()), all);
    }

    /// The rows may be newer than the reader's first position in the ring.
    #[test]
    fn initial_state_is_not_repeated_as_events() {
        let rows = life().into_iter().map(|(_, rows)| event_names(rows));
        let names: Vec<Vec<String>> = rows.collect();

        assert_eq!(
            names[0],
            [
                "task_changed",
                "task_changed",
                "task_removed",
                "task_created"
            ]
        );
        assert_eq!(names[1], ["task_changed", "task_removed", "task_created"]);
        assert_eq!(names[2], ["task_removed", "task_created"]);
        assert_eq!(names[4], Vec::<String>::new());
    }

    /// Returns a state in which task `a` is completed, and the entry's batch. The entry moved the task by two
    /// states.
    fn resolved_at_once() -> (HashMap<String, Arc<OneOff>>, Batch) {
        let mut state = State::default();
        desire(&mut state, 1);
        change(&mut state, 2, OneOffStep::Cancel);
        let rows = state.one_offs().iter();
        let rows = rows.map(|row| (row.guid.clone(), Arc::clone(row)));
        let rows = rows.collect();
        (rows, change(&mut state, 3, OneOffStep::Resolve))
    }

    #[test]
    fn two_transitions_in_one_entry_emit_two_events() {
        let (rows, batch) = resolved_at_once();
        let mut reader_state = ReaderState { rows, next_id: 0 };

        let text = reader_state.events(&batch);

        let names = text.lines().filter_map(|line| line.strip_prefix("event: "));
        assert_eq!(names.collect::<Vec<_>>(), ["task_changed", "task_removed"]);
        assert!(reader_state.rows.is_empty());
    }

    /// A starting process changes the row but no state of Diego's.
    #[test]
    fn change_within_a_state_is_no_event() {
        let mut reader_state = ReaderState::default();
        let mut row = OneOff::new(
            "a".to_owned(),
            "apps".to_owned(),
            Arc::new(fixture::definition()),
            LogIndex(1),
            Timestamp(1),
        );
        let mut text = String::new();
        let mut events = |row: &OneOff| {
            text.clear();
            reader_state.now(&Arc::new(row.clone()), &mut text);
            text.lines()
                .filter(|line| line.starts_with("event"))
                .count()
        };
        events(&row);
        row.state = OneOffState::Running;
        row.updated_at = Timestamp(2);
        assert_eq!(events(&row), 1);
        row.phase = Phase::Running;
        row.updated_at = Timestamp(3);

        assert_eq!(events(&row), 0);
    }

    #[test]
    fn events_are_numbered_and_stand_apart() {
        let mut reader_state = ReaderState::default();
        let batches = life();

        let first = reader_state.events(&batches[0].0);
        let second = reader_state.events(&batches[1].0);

        assert!(
            first.starts_with("id: 0\nevent: task_created\ndata: "),
            "{first}"
        );
        assert!(
            second.starts_with("id: 1\nevent: task_changed\ndata: "),
            "{second}"
        );
        assert!(first.ends_with("\n\n"), "{first}");
    }
}
