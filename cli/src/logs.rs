//! Output of tasks: of one allocation (`muster alloc logs`), of a whole job (`muster job logs`).
//!
//! A [`feed`](feed::LogFeed) is one output of one task, and resumes where it was interrupted. [`merge`] merges the
//! stored output of several feeds by time. [`follow()`] prints further output. Memory is bounded: a feed holds one
//! frame and one unfinished line. Output for a slow terminal is bounded by a number of frames.

mod feed;
mod follow;
mod lines;
mod merge;

use std::io::{ErrorKind, Write as _};

use clap::Args;

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

use feed::{Item, LogFeed};
use follow::STREAMS_MAX;
pub(crate) use follow::{LogSources, follow};
use lines::{Lines, Style};

/// Which part of a log is wanted.
#[derive(Clone, Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct LogsArgs {
    /// Print standard error instead of standard output.
    #[arg(long, conflicts_with = "both")]
    pub stderr: bool,
    /// Print standard output and standard error. Lines of standard error begin with `!`.
    #[arg(long)]
    pub both: bool,
    /// Follow new output, across restarts of the task, the agent and servers.
    #[arg(short, long)]
    pub follow: bool,
    /// Only this many last lines of each task.
    #[arg(long, value_name = "LINES")]
    pub tail: Option<u64>,
    /// Only lines taken since this time: 10m, 1h30m, or a UTC time such as 2026-11-20T13:14:24Z.
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Print when the agent took each line, to a tenth of a second, or `-` if that is lost.
    #[arg(short, long)]
    pub timestamps: bool,
}

impl LogsArgs {
    /// The selected outputs.
    pub(crate) fn streams(&self) -> &'static [&'static str] {
        match (self.both, self.stderr) {
            (true, _) => &["stdout", "stderr"],
            (false, true) => &["stderr"],
            (false, false) => &["stdout"],
        }
    }

    /// The start position, as the API parameters.
    fn from(&self) -> String {
        let mut from = String::new();
        for (name, value) in [
            ("tail", self.tail.map(|lines| lines.to_string())),
            ("since", self.since.clone()),
        ] {
            if let Some(value) = value {
                from.push('&');
                from.push_str(name);
                from.push('=');
                from.push_str(&escape(&value));
            }
        }
        from
    }
}

/// An output of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) alloc_id: String,
    pub(crate) task: String,
    /// `stdout` or `stderr`.
    pub(crate) stream: &'static str,
    /// The text before each line; empty for none.
    pub(crate) label: String,
    /// Whether the task may still write, as far as the servers know.
    pub(crate) runs: bool,
}

impl Source {
    /// The name of the output, for a person.
    fn words(&self) -> String {
        let alloc = output::short_id(&self.alloc_id);
        format!(
            "{} of {} in {alloc}",
            self.stream,
            output::clean(&self.task)
        )
    }
}

/// Prints the log `source` unchanged, from the position in `from` (parameters of the API).
pub(crate) fn print_one(
    client: &Client,
    source: &Source,
    from: Option<String>,
    args: &LogsArgs,
) -> CliResult {
    let from = from.unwrap_or_else(|| args.from());
    let mut feed = LogFeed::new(client, source.clone(), from, args.follow);
    let mut lines = Lines::new(source, Style::of_stdout(args.timestamps));
    let mut out = std::io::stdout().lock();
    let mut text = Vec::new();
    loop {
        text.clear();
        let ended = match feed.next()? {
            Some(Item::Bytes { data, .. }) if !args.timestamps => {
                text = data;
                false
            }
            Some(Item::Bytes { at, data }) => {
                lines.push(at, &data, &mut text);
                false
            }
            Some(Item::Missing(note)) => {
                lines.finish(&mut text);
                output::eprint(&note);
                false
            }
            Some(Item::Note(note)) => {
                output::eprint(&note);
                false
            }
            None => {
                lines.finish(&mut text);
                true
            }
        };
        if is_output_closed(out.write_all(&text).and_then(|()| out.flush()))? || ended {
            return Ok(Exit::Done);
        }
    }
}

/// The ends of several logs; `None` for a log without output.
pub(crate) type LogEnds = Vec<(Source, Option<u64>)>;

/// Prints the stored output of `sources` by time, and returns the end of each. If the logs are followed, each end is
/// the start of a line. `None` if the reader of the output has closed it.
pub(crate) fn print_kept(
    client: &Client,
    sources: Vec<Source>,
    args: &LogsArgs,
) -> Result<Option<LogEnds>, CliError> {
    let style = Style::of_stdout(args.timestamps);
    let mut ends = Vec::new();
    let mut out = std::io::stdout().lock();
    // Logs above the limit are read one after the other.
    let at_once = if sources.len() > STREAMS_MAX {
        output::eprint(&format!(
            "{} outputs are more than the {STREAMS_MAX} that can be put in order of time: they come one after the other",
            sources.len()
        ));
        1
    } else {
        STREAMS_MAX
    };
    for sources in sources.chunks(at_once) {
        let feeds = sources
            .iter()
            .map(|source| LogFeed::new(client, source.clone(), args.from(), false));
        let mut merged = merge::Merge::new(feeds.collect());
        let mut lines: Vec<Lines> = sources
            .iter()
            .map(|source| Lines::new(source, style))
            .collect();
        let mut text = Vec::new();
        while let Some((number, item)) = merged.next()? {
            text.clear();
            match item {
                Some(Item::Bytes { at, data }) => lines[number].push(at, &data, &mut text),
                Some(Item::Missing(note)) => {
                    lines[number].finish(&mut text);
                    output::eprint(&note);
                }
                Some(Item::Note(note)) => output::eprint(&note),
                // A follower prints the last line whole.
                None if args.follow && sources[number].runs => {}
                None => lines[number].finish(&mut text),
            }
            if is_output_closed(out.write_all(&text).and_then(|()| out.flush()))? {
                return Ok(None);
            }
        }
        let feeds = merged.into_feeds().into_iter().zip(&mut lines);
        ends.extend(feeds.map(|(feed, lines)| {
            let (source, end) = feed.into_end();
            let left = lines.discard_unfinished_line();
            (source, end.map(|end| end.saturating_sub(left)))
        }));
    }
    Ok(Some(ends))
}

/// Whether the reader of the output has closed it.
fn is_output_closed(written: std::io::Result<()>) -> Result<bool, CliError> {
    match written {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(error.into()),
    }
}
