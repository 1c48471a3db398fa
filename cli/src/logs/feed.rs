//! One output of one task, frame by frame, with resumption after an interruption.

use std::io::{BufReader, Read};
use std::time::{Duration, Instant};

use muster_wire::api::logs::Frame;
use serde_json::de::IoRead;
use serde_json::{Deserializer, StreamDeserializer};

use super::Source;
use super::merge::Timestamped;
use crate::client::{Client, escape};
use crate::exit::{CliError, Exit};
use crate::output;

/// The time for which an interrupted log is requested again. It covers a restart of an agent and an election.
pub(super) const SEARCH_WAIT: Duration = Duration::from_mins(2);
/// The time for which a reported log that is not found is requested again. The report may be ahead of the state of the
/// queried server.
const BEGIN_WAIT: Duration = Duration::from_secs(15);
/// Pause between two tries.
pub(super) const SEARCH_PAUSE: Duration = Duration::from_millis(250);

/// The next part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// Output of the task.
    Bytes {
        /// Time at which the agent received the bytes, in nanoseconds since the epoch.
        at: Option<u64>,
        data: Vec<u8>,
    },
    /// A sentence about output that is missing here. It ends an unfinished line.
    Missing(String),
    /// A sentence about an event. The log continues at the same position.
    Note(String),
}

impl Timestamped for Item {
    fn at(&self) -> Option<u64> {
        match self {
            Self::Bytes { at, .. } => *at,
            Self::Missing(_) | Self::Note(_) => None,
        }
    }
}

type Frames = StreamDeserializer<'static, IoRead<BufReader<Box<dyn Read + Send>>>, Frame>;

/// An output being read.
pub(super) struct LogFeed<'a> {
    client: &'a Client,
    source: Source,
    /// The start position, as the API parameters.
    from: String,
    /// The position for a resumption after an interruption.
    position: Option<u64>,
    follow: bool,
    /// Whether the log is known to exist. Then a failed first request is repeated, too.
    known: bool,
    frames: Option<Frames>,
    lost_since: Option<Instant>,
    ended: bool,
}

/// The result of one poll of the stream.
enum FeedPoll {
    Item(Item),
    Again,
    End,
}

impl<'a> LogFeed<'a> {
    pub(super) fn new(client: &'a Client, source: Source, from: String, follow: bool) -> Self {
        Self {
            client,
            source,
            from,
            position: None,
            follow,
            known: false,
            frames: None,
            lost_since: None,
            ended: false,
        }
    }

    /// The same feed from `position` on, for a log that is known to exist.
    pub(super) fn at(client: &'a Client, source: Source, position: u64, follow: bool) -> Self {
        Self {
            known: true,
            ..Self::new(client, source, format!("&position={position}"), follow)
        }
    }

    /// The source and its end; `None` for a log without output.
    pub(super) fn into_end(self) -> (Source, Option<u64>) {
        (self.source, self.position)
    }

    /// The next item; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`CliError`]: the log does not exist, or could not be found again in time.
    pub(super) fn next(&mut self) -> Result<Option<Item>, CliError> {
        while !self.ended {
            match self.poll()? {
                FeedPoll::Item(item) => return Ok(Some(item)),
                FeedPoll::Again => {}
                FeedPoll::End => self.ended = true,
            }
        }
        Ok(None)
    }

    fn poll(&mut self) -> Result<FeedPoll, CliError> {
        let Some(frames) = &mut self.frames else {
            return self.open();
        };
        let reason = match frames.next() {
            Some(Ok(frame)) => return Ok(self.take(frame)),
            Some(Err(error)) => error.to_string(),
            None => "the stream ended early".to_owned(),
        };
        self.frames = None;
        self.schedule_reconnect(CliError::new(Exit::Unreachable, reason))
    }

    fn open(&mut self) -> Result<FeedPoll, CliError> {
        let from = match self.position {
            Some(position) => format!("&position={position}"),
            None => self.from.clone(),
        };
        let path = format!(
            "/v1/client/fs/logs/{}?task={}&type={}&follow={}{from}",
            self.source.alloc_id,
            escape(&self.source.task),
            self.source.stream,
            self.follow
        );
        match self.client.stream(&path) {
            Ok(stream) => {
                let stream: Box<dyn Read + Send> = Box::new(stream);
                let stream = BufReader::new(stream);
                self.frames = Some(Deserializer::from_reader(stream).into_iter());
                Ok(FeedPoll::Again)
            }
            // A log that existed and is gone was collected.
            Err(error) if error.exit == Exit::NotFound && self.position.is_some() => {
                Ok(FeedPoll::End)
            }
            Err(error) if self.known && error.exit == Exit::NotFound => self.schedule_retry(error),
            Err(error) if matches!(error.exit, Exit::NotFound | Exit::Usage) => Err(error),
            Err(error) if self.known => self.schedule_reconnect(error),
            // A log that was never read may not exist, so the error is returned at once.
            Err(error) if self.position.is_none() && self.lost_since.is_none() => Err(error),
            Err(error) => self.schedule_reconnect(error),
        }
    }

    fn take(&mut self, frame: Frame) -> FeedPoll {
        if let Some(since) = self.lost_since.take() {
            tracing::debug!(after = ?since.elapsed(), "a log was found again");
        }
        if frame.position > 0 {
            self.position = Some(frame.position);
        }
        if frame.ended {
            return FeedPoll::End;
        }
        if !frame.file_event.is_empty() {
            let note = format!(
                "{}: {}",
                self.source.words(),
                output::clean(&frame.file_event)
            );
            return FeedPoll::Item(Item::Missing(note));
        }
        if frame.data.is_empty() {
            return FeedPoll::Again;
        }
        FeedPoll::Item(Item::Bytes {
            at: Some(frame.time).filter(|at| *at > 0),
            data: frame.data,
        })
    }

    /// Tries again later, for some time.
    fn schedule_retry(&mut self, error: CliError) -> Result<FeedPoll, CliError> {
        let begun = *self.lost_since.get_or_insert_with(Instant::now);
        if begun.elapsed() > BEGIN_WAIT {
            return Err(error);
        }
        std::thread::sleep(SEARCH_PAUSE);
        self.client.select_next_server();
        Ok(FeedPoll::Again)
    }

    /// Reports the interruption once, and schedules another attempt.
    fn schedule_reconnect(&mut self, error: CliError) -> Result<FeedPoll, CliError> {
        let since = self.lost_since;
        let begun = *self.lost_since.get_or_insert_with(Instant::now);
        if begun.elapsed() > SEARCH_WAIT {
            return Err(error.help(format!(
                "it broke off and was not found again for {} s",
                SEARCH_WAIT.as_secs()
            )));
        }
        std::thread::sleep(SEARCH_PAUSE);
        self.client.select_next_server();
        if since.is_some() {
            return Ok(FeedPoll::Again);
        }
        let note = format!(
            "{}: broke off ({}); it goes on where it was as soon as it is found again",
            self.source.words(),
            output::clean(&error.message)
        );
        Ok(FeedPoll::Item(Item::Note(note)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    const ABSENT: &str =
        "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnone";
    /// "hi" and the end.
    const LOG: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"Data\":\"aGk=\",\"Position\":2}{\"Position\":2,\"Ended\":true}";

    /// A server that answers each connection with the next of `answers`.
    fn server(answers: &'static [&'static str]) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(&listener.local_addr().unwrap().to_string());
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                lines.map_while(Result::ok).find(String::is_empty);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        client
    }

    fn source() -> Source {
        Source {
            alloc_id: "a".to_owned(),
            task: "t".to_owned(),
            stream: "stdout",
            label: String::new(),
            runs: true,
        }
    }

    /// If one server reported a log, it is requested again after another server did not find it.
    #[test]
    fn known_log_is_requested_again_after_not_found() {
        let client = server(&[ABSENT, ABSENT, LOG]);
        let mut feed = LogFeed::at(&client, source(), 0, true);

        let first = feed.next().unwrap();

        let at = None;
        let data = b"hi".to_vec();
        assert_eq!(first, Some(Item::Bytes { at, data }));
        assert_eq!(feed.next().unwrap(), None);
    }

    #[test]
    fn missing_named_log_is_not_found_immediately() {
        let client = server(&[ABSENT]);
        let mut feed = LogFeed::new(&client, source(), String::new(), true);

        assert_eq!(feed.next().unwrap_err().exit, Exit::NotFound);
    }
}
