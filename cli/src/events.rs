//! `muster events`: changes as they happen.
//!
//! It follows the stream of one server. If the server is lost, it resumes at another one, from the last index. No event
//! is lost or repeated. A gap that cannot be bridged is an error.

use std::io::{BufReader, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use muster_wire::api::event::{Event, Events, Line, ServerHealthChange, StreamErrorBody, Topic};
use muster_wire::api::operator::{GcRound, NodeGcRound};
use serde_json::Value;

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// The time for which a lost stream is requested from all servers.
const SEARCH_WAIT: Duration = Duration::from_mins(1);
/// Pause between two tries.
const SEARCH_PAUSE: Duration = Duration::from_millis(250);

/// Arguments of `muster events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// TOPIC or TOPIC:NAME. May be repeated. Default: all topics.
    #[arg(long = "topic", value_name = "TOPIC", long_help = topics_help())]
    pub topics: Vec<String>,
    /// The namespace. `*` means all.
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub namespace: String,
    /// Start at this index. 0 means everything that the server still has. Default: only new events.
    #[arg(long, value_name = "INDEX")]
    pub index: Option<u64>,
}

/// The long help of `--topic`.
fn topics_help() -> String {
    let topics = Topic::ALL.into_iter();
    let topics = topics.filter(|topic| *topic != Topic::Service);
    let topics: Vec<&str> = topics.map(Topic::as_str).collect();
    format!(
        "TOPIC or TOPIC:NAME. May be repeated. Default: all topics.\n\n\
Topics: {}; Service, which has no events yet; `*` for all. NAME is an id, and `*` means every one. Allocations, evaluations \
and deployments are also found by their job, allocations and evaluations by their deployment, tasks by their domain. A \
collection has the name of its rule, on a node the node's id. A server has its number.",
        topics.join(", ")
    )
}

/// The end of a stream.
enum StreamEnd {
    /// The reader of the output has closed it.
    Enough,
    /// The server broke off.
    Lost(String),
}

/// Follows the events until interrupted.
///
/// # Errors
///
/// [`CliError`]: a gap, a malformed topic, or no server for a minute.
pub fn run(client: &Client, json: bool, args: &EventsArgs) -> CliResult {
    let mut next = match args.index {
        Some(index) => index,
        None => applied(client)? + 1,
    };
    let mut lost_since: Option<Instant> = None;
    loop {
        let mut path = format!(
            "/v1/event/stream?progress&index={next}&namespace={}",
            escape(&args.namespace)
        );
        for topic in &args.topics {
            path.push_str("&topic=");
            path.push_str(&escape(topic));
        }
        let before = next;
        let reason = match client.stream(&path) {
            Ok(stream) => match follow(BufReader::new(stream), json, &mut next)? {
                StreamEnd::Enough => return Ok(Exit::Done),
                StreamEnd::Lost(reason) => reason,
            },
            Err(error) if error.exit == Exit::Unreachable || error.exit == Exit::TimedOut => {
                error.message
            }
            Err(error) => return Err(error),
        };
        if next > before {
            lost_since = None;
        }
        let since = *lost_since.get_or_insert_with(|| {
            output::eprint(&format!("the stream was lost ({reason}); looking for it"));
            Instant::now()
        });
        if since.elapsed() > SEARCH_WAIT {
            return Err(CliError::new(
                Exit::Unreachable,
                format!(
                    "no server has gone on with the stream for {}: {reason}",
                    output::span(SEARCH_WAIT)
                ),
            )
            .help(format!("go on later with --index {next}")));
        }
        client.select_next_server();
        std::thread::sleep(SEARCH_PAUSE);
    }
}

/// The last index that the server has applied.
fn applied(client: &Client) -> Result<u64, CliError> {
    let agent_self: Value = client.get("/v1/agent/self")?;
    let index = agent_self["stats"]["raft"]["applied_index"].as_str();
    index.and_then(|text| text.parse().ok()).ok_or_else(|| {
        CliError::new(
            Exit::Failed,
            "the server does not say which index it has applied",
        )
        .help("give --index, or start a server of this version")
    })
}

/// Prints events until the stream ends. `next` is the first index that was not printed.
fn follow(
    mut stream: impl std::io::BufRead,
    json: bool,
    next: &mut u64,
) -> Result<StreamEnd, CliError> {
    let mut line = String::new();
    loop {
        line.clear();
        match stream.read_line(&mut line) {
            Ok(0) => return Ok(StreamEnd::Lost("it ended".to_owned())),
            Ok(_) => {}
            Err(error) => return Ok(StreamEnd::Lost(error.to_string())),
        }
        let Ok(read) = serde_json::from_str::<Line>(&line) else {
            // The line is incomplete, and the next stream repeats it.
            return Ok(StreamEnd::Lost("it was cut off".to_owned()));
        };
        match read {
            Line::Heartbeat {} => {}
            Line::Error(error) => return Err(stream_error(error.error)),
            Line::Events(events) => {
                if events.index < *next {
                    continue;
                }
                let shown = if json { line.clone() } else { lines(&events) };
                let shown = if events.events.is_empty() {
                    String::new()
                } else {
                    shown
                };
                *next = events.index + 1;
                let mut out = std::io::stdout().lock();
                match out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
                    Ok(()) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                        return Ok(StreamEnd::Enough);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

fn stream_error(error: StreamErrorBody) -> CliError {
    CliError::new(Exit::Failed, error.message).help(format!(
        "look at the lists, then follow from --index {}",
        error.oldest_index
    ))
}

/// Formats one line per event.
fn lines(events: &Events) -> String {
    events.events.iter().map(describe).collect()
}

fn describe(event: &Event) -> String {
    let row = &event.payload[event.topic.as_str()];
    let text = |field: &str| output::clean(row[field].as_str().unwrap_or_default());
    let (name, what) = match event.topic.as_str() {
        "Allocation" => (
            text("Name"),
            format!("{} on {}", text("ClientStatus"), text("NodeName")),
        ),
        "Evaluation" => (text("JobID"), text("Status")),
        "Node" => (
            text("Name"),
            format!("{}, {}", text("Status"), text("SchedulingEligibility")),
        ),
        "Job" if row.is_null() => (output::clean(&event.key), "purged".to_owned()),
        "GarbageCollection" => collection(event),
        "Server" => (text("Name"), server_health(row)),
        _ => (output::clean(&event.key), text("Status")),
    };
    let names_itself = event.topic == Topic::Job || event.payload[SERVERS].is_object();
    let id = if names_itself {
        String::new()
    } else {
        format!(" {}", output::short_id(&event.key))
    };
    format!(
        "{:>8}  {:<10}{id}  {name}  {what}  ({})\n",
        event.index,
        event.topic.as_str(),
        output::clean(&event.event_type)
    )
}

/// A server's health change, with its faults.
fn server_health(row: &Value) -> String {
    let change: ServerHealthChange = serde_json::from_value(row.clone()).unwrap_or_default();
    if change.healthy {
        return "healthy".to_owned();
    }
    output::clean(&change.faults.join("; "))
}

/// The payload of a collection on servers.
const SERVERS: &str = "GarbageCollection";
/// The payload of one on a node.
const NODE: &str = "NodeGarbageCollection";

/// The owner of a collection (the servers or a node), and the result.
fn collection(event: &Event) -> (String, String) {
    let read = |name: &str| event.payload[name].clone();
    if let Ok(round) = serde_json::from_value::<NodeGcRound>(read(NODE)) {
        let destroyed: u64 = round.destroyed.values().sum();
        let mut what = format!(
            "{} destroyed, {} freed",
            output::count_with_noun(destroyed, "allocation"),
            output::bytes(round.bytes)
        );
        let failures = round.refusals.saturating_add(round.delete_failures);
        if failures > 0 {
            what.extend([", ", &output::count_with_noun(failures, "failure")]);
        }
        return (output::clean(&round.node_name), what);
    }
    let round: GcRound = serde_json::from_value(read(SERVERS)).unwrap_or_default();
    let objects: u64 = round.freed.values().sum();
    let objects = output::count_with_noun(objects, "object");
    let what = format!("{objects}, {} freed", output::bytes(round.bytes));
    (output::clean(&event.key), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, from: u64) -> (Result<StreamEnd, CliError>, u64) {
        let mut next = from;
        let end = follow(text.as_bytes(), true, &mut next);
        (end, next)
    }

    #[test]
    fn help_names_every_topic() {
        let command = EventsArgs::augment_args(clap::Command::new("events"));
        let topics = command.get_arguments().find(|arg| arg.get_id() == "topics");
        let help = topics.unwrap().get_long_help().unwrap().to_string();

        for topic in Topic::ALL {
            assert!(help.contains(topic.as_str()), "{topic:?}: {help}");
        }
    }

    #[test]
    fn truncated_event_line_is_not_counted() {
        let text = "{\"Index\":7,\"Events\":[]}\n{\"Index\":9,\"Eve";

        let (end, next) = read(text, 7);

        assert!(matches!(end, Ok(StreamEnd::Lost(_))));
        assert_eq!(next, 8);
    }

    #[test]
    fn event_gap_error_names_oldest_index() {
        let text = r#"{"Error":{"Code":"Gap","Message":"gone","Index":3,"OldestIndex":9}}"#;

        let (end, next) = read(text, 3);

        let Err(error) = end else { panic!("no error") };
        assert!(error.to_string().contains("--index 9"), "{error}");
        assert_eq!(next, 3);
    }

    #[test]
    fn an_event_is_a_line() {
        let json = serde_json::json!({
            "Topic": "Allocation", "Type": "PlanResult", "Key": "09decd65-4692-7a0b-c775-13ea34bac648",
            "Namespace": "default", "FilterKeys": ["py", ""], "Index": 2352,
            "Payload": {"Allocation": {"Name": "py.g[0]", "ClientStatus": "pending", "NodeName": "n1"}},
        });
        let event: Event = serde_json::from_value(json).unwrap();

        assert_eq!(
            describe(&event),
            "    2352  Allocation 09decd65  py.g[0]  pending on n1  (PlanResult)\n"
        );
    }

    #[test]
    fn gc_event_names_node_and_freed_objects() {
        let gc_line = |key: &str, payload: Value| {
            let json = serde_json::json!({
                "Topic": "GarbageCollection", "Type": "X", "Key": key, "Namespace": "",
                "FilterKeys": null, "Index": 7, "Payload": payload,
            });
            describe(&serde_json::from_value(json).unwrap())
        };
        let node = serde_json::json!({
            "NodeName": "n1", "Destroyed": {"forced": 2, "disk usage": 1}, "Bytes": 2048,
            "Refusals": 1, "DeleteFailures": 2,
        });
        let servers =
            serde_json::json!({"Freed": {"allocations": 4, "evaluations": 1}, "Bytes": 10});

        let node = gc_line(
            "09decd65-4692-7a0b-c775-13ea34bac648",
            serde_json::json!({"NodeGarbageCollection": node}),
        );
        let servers = gc_line("evals", serde_json::json!({"GarbageCollection": servers}));

        assert_eq!(
            node,
            "       7  GarbageCollection 09decd65  n1  3 allocations destroyed, 2.0 KiB freed, 3 failures  (X)\n"
        );
        assert_eq!(
            servers,
            "       7  GarbageCollection  evals  5 objects, 10 B freed  (X)\n"
        );
    }
}
