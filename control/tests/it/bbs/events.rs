//! Events of tasks, as they are told to clients that follow.

use std::io::{BufRead as _, BufReader};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_domain::fixture::node;
use tokio::sync::mpsc;

use super::client::{Client, Fixture, fixture};
use super::message::{Fields, desire, guid};
use super::{COMPLETED, PENDING, RESOLVING, RUNNING, done, run};
use crate::fixture::{FakeAgent, soon};

/// One event.
#[derive(Debug)]
struct Event {
    id: u64,
    name: String,
    data: Fields,
}

/// A stream, read on a thread that ends with it.
struct Stream(mpsc::Receiver<Event>);

impl Stream {
    /// One that stands: what happens from here on is told.
    async fn open(client: &Client, path: &'static str) -> Self {
        let (sender, events) = mpsc::channel(100);
        let (ready, stands) = tokio::sync::oneshot::channel();
        let client = client.clone();
        std::thread::spawn(move || {
            let reader = BufReader::new(client.open(path));
            ready.send(()).unwrap();
            let mut lines = Vec::new();
            for line in reader.lines() {
                let Ok(line) = line else { return };
                if line.starts_with(':') {
                    continue;
                }
                if !line.is_empty() {
                    lines.push(line);
                    continue;
                }
                if let [id, name, data] = lines.as_slice() {
                    let field = |line: &str, name: &str| {
                        line.strip_prefix(&format!("{name}: ")).unwrap().to_owned()
                    };
                    let data = BASE64_STANDARD.decode(field(data, "data")).unwrap();
                    let event = Event {
                        id: field(id, "id").parse().unwrap(),
                        name: field(name, "event"),
                        data: Fields::read(&data),
                    };
                    if sender.blocking_send(event).is_err() {
                        return;
                    }
                }
                lines.clear();
            }
        });
        soon("the stream stands", stands).await.unwrap();
        Self(events)
    }

    async fn next(&mut self) -> Event {
        soon("an event", self.0.recv()).await.unwrap()
    }
}

/// Name, guid and state of each event up to the removal of a task, the state before it where there is one.
async fn until_removed(stream: &mut Stream) -> Vec<(String, u64, u64)> {
    let mut all = Vec::new();
    loop {
        let Event { id, name, data } = stream.next().await;
        assert_eq!(id, u64::try_from(all.len()).unwrap());
        let (first, second) = (data.message(1), data.message(2));
        assert_eq!(first.text(2), "a");
        all.push((name.clone(), first.number(7), second.number(7)));
        if name == "task_removed" {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn task_events_arrive_in_order() {
    let Fixture { test, client, .. } = fixture().await;
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    let mut stream = Stream::open(&client, "/v1/events/tasks.r1").await;

    done(&client, "/v1/tasks/desire.r2", desire("a", "apps")).await;
    run(&mut agent, "42").await;
    done(&client, "/v1/tasks/resolving", guid("a")).await;
    done(&client, "/v1/tasks/delete", guid("a")).await;

    let mut events = until_removed(&mut stream).await;
    let first = events.remove(0);
    let last = events.pop().unwrap();
    assert_eq!(first, ("task_created".to_owned(), PENDING, 0));
    assert_eq!(last, ("task_removed".to_owned(), RESOLVING, 0));
    assert!(
        events.iter().all(|(name, ..)| name == "task_changed"),
        "{events:?}"
    );
    // Each change begins where the one before it ended.
    let mut at = PENDING;
    for (_, before, after) in &events {
        assert_eq!(*before, at);
        at = *after;
    }
    // A rejection leaves a task pending; everything else is a transition.
    let states = events.iter().map(|(.., after)| *after);
    let states: Vec<u64> = states.filter(|it| *it != PENDING).collect();
    assert_eq!(states, [RUNNING, COMPLETED, RESOLVING]);
    test.server.shutdown().await;
}

/// Tasks that are there when a stream begins are no events, but what they were is known.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_with_later_events() {
    let Fixture { test, client, .. } = fixture().await;
    done(&client, "/v1/tasks/desire.r2", desire("old", "apps")).await;
    test.until("no room is left", |state| {
        state.one_offs().iter().all(|row| row.rejections > 0)
    })
    .await;
    let mut stream = Stream::open(&client, "/v1/events/tasks").await;

    done(&client, "/v1/tasks/cancel", guid("old")).await;

    let event = stream.next().await;
    assert_eq!((event.id, event.name.as_str()), (0, "task_changed"));
    assert_eq!(event.data.message(1).number(7), PENDING);
    let after = event.data.message(2);
    assert_eq!(
        (after.number(7), after.text(11)),
        (COMPLETED, "task was cancelled".to_owned())
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_does_not_hold_a_shutdown_up() {
    let Fixture { test, client, .. } = fixture().await;
    let mut stream = Stream::open(&client, "/v1/events/tasks.r1").await;

    soon("shutdown", test.server.shutdown()).await;

    assert!(soon("the stream's end", stream.0.recv()).await.is_none());
}
