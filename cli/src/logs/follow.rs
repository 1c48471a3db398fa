//! Following many logs: a thread for each, one queue to the terminal.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Instant;

use super::feed::{Item, LogFeed, SEARCH_PAUSE, SEARCH_WAIT};
use super::lines::{Lines, Style};
use super::{LogEnds, LogsArgs, Source, is_output_closed};
use crate::client::Client;
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// Outputs that are read at the same time. Servers accept a hundred connections from one address.
pub(crate) const STREAMS_MAX: usize = 64;
/// Pieces of output in the queue for the terminal, from all threads together. Each has at most 64 KiB and a line. A
/// full queue blocks the threads, and so the servers.
const QUEUE_MAX: usize = 16;
/// A thread reads JSON and copies bytes.
const STACK_BYTES: usize = 512 << 10;

/// A message of a thread.
enum Event {
    Text(Vec<u8>),
    Note(String),
    /// The end of a log, with its position.
    Ended(Source, Result<u64, CliError>),
    /// The outputs of the job.
    Found(Result<LogSources, CliError>),
}

/// The outputs to follow.
pub(crate) struct LogSources {
    /// Every output that has begun.
    pub(crate) sources: Vec<Source>,
    /// Whether no output will be added.
    pub(crate) complete: bool,
}

/// Follows `begun`, each from its position, and all further outputs that `look` returns. `look` runs on a thread of its
/// own. It is called until it reports that no output will be added. It waits on its own.
pub(crate) fn follow(
    client: &Client,
    begun: LogEnds,
    args: &LogsArgs,
    mut look: impl FnMut(&Client) -> Result<LogSources, CliError> + Send + 'static,
) -> CliResult {
    let (events, queue) = sync_channel(QUEUE_MAX);
    let mut threads = FollowThreads {
        client,
        style: Style::of_stdout(args.timestamps),
        events: events.clone(),
        known: BTreeMap::new(),
        running: 0,
    };
    for (source, position) in begun {
        threads.add(source, position.unwrap_or(0))?;
    }
    let search_client = client.clone_for_thread();
    start("looks for more", move || {
        loop {
            let found = retry(&search_client, &mut look);
            let last = found.as_ref().map_or(true, |found| found.complete);
            if events.send(Event::Found(found)).is_err() || last {
                return;
            }
        }
    })?;
    print(&mut threads, &queue)
}

/// Calls `look` until it succeeds, for as long as an interrupted log is requested again. The logs report the
/// interruption themselves.
fn retry(
    client: &Client,
    look: &mut impl FnMut(&Client) -> Result<LogSources, CliError>,
) -> Result<LogSources, CliError> {
    let since = Instant::now();
    loop {
        match look(client) {
            Err(error)
                if !matches!(error.exit, Exit::NotFound | Exit::Usage)
                    && since.elapsed() < SEARCH_WAIT =>
            {
                std::thread::sleep(SEARCH_PAUSE);
                client.select_next_server();
            }
            result => return result,
        }
    }
}

fn print(threads: &mut FollowThreads<'_>, queue: &Receiver<Event>) -> CliResult {
    let mut out = std::io::stdout().lock();
    let mut complete = false;
    while !complete || threads.running > 0 {
        // There is always a sender: the one in `threads`.
        let Ok(event) = queue.recv() else { break };
        match event {
            Event::Text(text) => {
                if is_output_closed(out.write_all(&text).and_then(|()| out.flush()))? {
                    break;
                }
            }
            Event::Note(note) => output::eprint(&note),
            Event::Ended(source, Ok(position)) => {
                threads.running -= 1;
                threads
                    .known
                    .insert(key(&source), FollowProgress::Position(position));
            }
            Event::Ended(_, Err(error)) => {
                threads.running -= 1;
                output::eprint(&error.to_string());
            }
            Event::Found(found) => {
                let found = found?;
                complete = found.complete;
                for source in found.sources {
                    threads.add(source, 0)?;
                }
            }
        }
    }
    Ok(Exit::Done)
}

/// The threads.
struct FollowThreads<'a> {
    client: &'a Client,
    style: Style,
    events: SyncSender<Event>,
    /// Each that was ever followed, as many as the servers keep allocations.
    known: BTreeMap<Key, FollowProgress>,
    running: usize,
}

/// Allocation, task and output.
type Key = (String, String, &'static str);

/// The progress of following a log.
enum FollowProgress {
    /// The log is being followed, or cannot be followed.
    Busy,
    /// The log ended at this position. More output may follow while its task runs.
    Position(u64),
}

fn key(source: &Source) -> Key {
    (source.alloc_id.clone(), source.task.clone(), source.stream)
}

impl FollowThreads<'_> {
    /// Follows `source`, unless it is being followed or was followed to its end.
    fn add(&mut self, source: Source, position: u64) -> Result<(), CliError> {
        let key = key(&source);
        let position = match self.known.get(&key) {
            None => position,
            Some(FollowProgress::Position(reached)) if source.runs => *reached,
            Some(FollowProgress::Position(_) | FollowProgress::Busy) => return Ok(()),
        };
        if self.running >= STREAMS_MAX {
            return Err(CliError::new(
                Exit::Usage,
                format!("{STREAMS_MAX} outputs are followed, the most that one command can"),
            )
            .help("choose fewer: name a task, or use --group or --alloc"));
        }
        self.known.insert(key, FollowProgress::Busy);
        self.running += 1;
        let (client, style, events) = (
            self.client.clone_for_thread(),
            self.style,
            self.events.clone(),
        );
        start("follows a log", move || {
            let outcome = print_or_forward(&client, &source, position, style, &events);
            // A send error means that the command is over.
            drop(events.send(Event::Ended(source, outcome)));
        })
    }
}

fn print_or_forward(
    client: &Client,
    source: &Source,
    position: u64,
    style: Style,
    events: &SyncSender<Event>,
) -> Result<u64, CliError> {
    let mut feed = LogFeed::at(client, source.clone(), position, true);
    let mut lines = Lines::new(source, style);
    loop {
        let mut text = Vec::new();
        let item = feed.next()?;
        let last = item.is_none();
        let note = match item {
            Some(Item::Bytes { at, data }) => {
                lines.push(at, &data, &mut text);
                None
            }
            Some(Item::Missing(note)) => {
                lines.finish(&mut text);
                Some(note)
            }
            Some(Item::Note(note)) => Some(note),
            None => {
                lines.finish(&mut text);
                None
            }
        };
        let is_sent = (text.is_empty() || events.send(Event::Text(text)).is_ok())
            && note.is_none_or(|note| events.send(Event::Note(note)).is_ok());
        if last || !is_sent {
            let (_, reached) = feed.into_end();
            return Ok(reached.unwrap_or(position));
        }
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), CliError> {
    // The thread is not joined: it ends with the process.
    Builder::new()
        .name(name.into())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .map(drop)
        .map_err(|error| {
            CliError::new(Exit::Failed, format!("start a thread that {name}: {error}"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_server_is_asked_again() {
        let mut failures = vec![
            CliError::new(Exit::TimedOut, "no answer"),
            CliError::new(Exit::Unreachable, "no server"),
        ];

        let found = retry(&Client::new("http://127.0.0.1:1"), &mut |_| {
            failures.pop().map_or(
                Ok(LogSources {
                    sources: Vec::new(),
                    complete: true,
                }),
                Err,
            )
        });

        assert!(found.unwrap().complete);
        assert!(failures.is_empty());
    }

    #[test]
    fn unknown_job_is_not_asked_again() {
        let mut calls = 0;

        let found = retry(&Client::new("http://127.0.0.1:1"), &mut |_| {
            calls += 1;
            Err(CliError::new(Exit::NotFound, "no job"))
        });

        assert!(found.is_err());
        assert_eq!(calls, 1);
    }
}
