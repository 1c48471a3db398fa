//! The event stream: order, topics, resuming, and its end.

use std::io::{BufRead as _, BufReader};

use muster_domain::fixture;
use muster_domain::id::LogIndex;
use muster_wire::api::event::{Events, Line, StreamErrorCode, Topic};
use tokio::sync::mpsc;

use super::Client;
use crate::fixture::{self as servers, soon};

/// Lines of a stream, read on a thread that ends with the stream or the test.
#[derive(Debug)]
pub(crate) struct Stream {
    lines: mpsc::Receiver<Line>,
}

impl Stream {
    /// Follows `base` with `query`.
    pub(crate) fn open(base: &str, query: &str) -> Self {
        let url = format!("{base}/v1/event/stream?{query}");
        let (sender, lines) = mpsc::channel(1_000);
        std::thread::spawn(move || {
            let response = ureq::get(&url).call().expect("the stream begins");
            let reader = BufReader::new(response.into_body().into_reader());
            for line in reader.lines() {
                let Ok(line) = line else { return };
                let line = serde_json::from_str(&line).expect("a line is an object");
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Self { lines }
    }

    /// The next line; `None` at the end.
    pub(crate) async fn line(&mut self) -> Option<Line> {
        soon("a line", self.lines.recv()).await
    }

    /// The next events.
    pub(crate) async fn events(&mut self) -> Events {
        let next_events = async {
            loop {
                match self.line().await.expect("the stream goes on") {
                    Line::Events(events) if !events.events.is_empty() => return events,
                    Line::Events(_) | Line::Heartbeat {} => {}
                    Line::Error(error) => panic!("{error:?}"),
                }
            }
        };
        soon("events", next_events).await
    }

    /// Events until one of `index` or later was seen.
    pub(crate) async fn until(&mut self, index: LogIndex) -> Vec<Events> {
        let mut all = Vec::new();
        loop {
            let events = self.events().await;
            let last = events.index;
            all.push(events);
            if last >= index.0 {
                return all;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn registration_sends_job_and_evaluation_events() {
    let test = servers::server().await;
    let client = Client::new(&test.server);
    let mut stream = Stream::open(&client.base, "");

    client.register("web").await;
    let events = stream.events().await;

    let kinds: Vec<(Topic, &str)> = events
        .events
        .iter()
        .map(|event| (event.topic, event.event_type.as_str()))
        .collect();
    assert_eq!(
        kinds,
        [
            (Topic::Job, "JobRegistered"),
            (Topic::Evaluation, "JobRegistered")
        ]
    );
    assert!(
        events
            .events
            .iter()
            .all(|event| event.index == events.index)
    );
    assert_eq!(events.events[0].payload["Job"]["ID"], "web");
    assert_eq!(events.events[0].namespace, "default");
    test.server.shutdown().await;
}

/// A client that stops after an index and resumes at the next one sees the remaining events exactly once.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_where_it_was_left() {
    let test = servers::server().await;
    let client = Client::new(&test.server);
    let mut last = LogIndex(0);
    for number in 0..10 {
        last = test.register(fixture::job(&format!("job-{number}"))).await;
    }

    let whole = Stream::open(&client.base, "").until(last).await;
    let middle = whole[4].index;
    let rest = Stream::open(&client.base, &format!("index={}", middle + 1))
        .until(last)
        .await;

    let indexes: Vec<u64> = whole.iter().map(|events| events.index).collect();
    assert!(
        indexes.is_sorted_by(|left, right| left < right),
        "{indexes:?}"
    );
    let after: Vec<_> = whole
        .into_iter()
        .filter(|events| events.index > middle)
        .collect();
    // More may have been applied in between.
    assert_eq!(rest[..after.len()], after);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_and_a_name_choose() {
    let test = servers::server().await;
    let client = Client::new(&test.server);
    test.register(fixture::job("db")).await;
    let last = test.register(fixture::job("web")).await;

    let jobs = Stream::open(&client.base, "topic=Job:web")
        .until(last)
        .await;
    let both = Stream::open(&client.base, "topic=Job:db&topic=Evaluation:web")
        .until(last)
        .await;

    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].events[0].key, "web");
    let topics: Vec<Topic> = both
        .iter()
        .flat_map(|events| &events.events)
        .map(|event| event.topic)
        .take(2)
        .collect();
    assert_eq!(topics, [Topic::Job, Topic::Evaluation]);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_topic_is_refused() {
    let test = servers::server().await;
    let client = Client::new(&test.server);

    let answer = client.get("/v1/event/stream?topic=Jobs").await;

    assert_eq!(answer.status, 400);
    assert!(answer.text.contains("Allocation"), "{}", answer.text);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_event_stream_sends_heartbeats_and_progress() {
    let test = servers::server().await;
    let client = Client::new(&test.server);
    let index = test.register(fixture::job("web")).await;

    let beat = Stream::open(&client.base, "topic=Node").line().await;
    let progress = Stream::open(&client.base, "topic=Node&progress")
        .line()
        .await;

    assert_eq!(beat, Some(Line::Heartbeat {}));
    let Some(Line::Events(events)) = progress else {
        panic!("{progress:?}");
    };
    assert!(events.index >= index.0 && events.events.is_empty());
    test.server.shutdown().await;
}

/// After a restart the log before the snapshot is not applied again, so its events are gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_an_error_and_the_end() {
    let test = servers::server().await;
    test.register(fixture::job("web")).await;
    test.control().take_snapshot().await.unwrap();
    let test = servers::server_on(test.shutdown().await).await;
    let client = Client::new(&test.server);

    let mut stream = Stream::open(&client.base, "index=1");
    let first = stream.line().await;

    let Some(Line::Error(error)) = first else {
        panic!("{first:?}");
    };
    assert_eq!(error.error.code, StreamErrorCode::Gap);
    assert!(error.error.oldest_index > 1);
    assert_eq!(stream.line().await, None);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_server() {
    let test = servers::server().await;
    let client = Client::new(&test.server);
    let mut stream = Stream::open(&client.base, "");
    client.register("web").await;
    stream.events().await;

    test.server.shutdown().await;

    while stream.line().await.is_some() {}
}
