//! Parses the output of `cargo test` and libtest.
//!
//! The screen shows one line for each binary and the complete output of failing tests. The log file contains
//! everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{LineWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use crate::shell;
use crate::shell::artifact::Artifact;

/// The results of one test binary.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BinaryRun {
    /// The name of the binary in the output of `cargo test` or of the guest.
    pub(crate) executable: String,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) duration: Duration,
    /// The names of the tests that passed according to libtest, which includes skipped tests.
    pub(crate) passes: BTreeSet<String>,
    /// The names of the tests that failed.
    pub(crate) failures: Vec<String>,
    /// The names of the tests that libtest called slow and that have not ended.
    pub(crate) slow: BTreeSet<String>,
    /// Wall time of each test that ended, by name.
    pub(crate) times: BTreeMap<String, Duration>,
    /// Whether the binary printed its result. A crashed binary did not.
    pub(crate) ended: bool,
}

/// The results of a run of test binaries.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Run {
    pub(crate) binaries: Vec<BinaryRun>,
    /// `name: reason` of each test that reported that it could not run, or that is marked `ignore`.
    pub(crate) skipped: BTreeSet<String>,
    /// The skipped tests that are marked `ignore`. libtest does not count them as passed.
    pub(crate) ignored: BTreeSet<String>,
    /// Whether the run as a whole ended with status 0.
    pub(crate) success: bool,
}

impl Run {
    /// Takes over the binaries of `other`.
    pub(crate) fn merge(&mut self, other: Self) {
        self.binaries.extend(other.binaries);
        self.skipped.extend(other.skipped);
        self.ignored.extend(other.ignored);
        self.success &= other.success;
    }

    /// Returns the binaries without the tests that were skipped: libtest counts a test that returned early as passed.
    pub(crate) fn binaries_without_skipped(&self) -> Vec<BinaryRun> {
        let mut binaries = self.binaries.clone();
        for skip in self.skipped.difference(&self.ignored) {
            let binary = binaries.iter_mut().find_map(|binary| {
                let test = binary
                    .passes
                    .iter()
                    .find(|test| is_named(test, skip_name(skip)))?
                    .clone();
                Some((binary, test))
            });
            if let Some((binary, test)) = binary {
                binary.passes.remove(&test);
                binary.passed -= 1;
            }
        }
        binaries
    }

    /// Whether the test `name` has passed or was skipped. libtest does not distinguish the two.
    pub(crate) fn passed_or_skipped(&self, name: &str) -> bool {
        let mut passes = self.binaries.iter().flat_map(|binary| &binary.passes);
        passes.any(|test| is_named(test, name))
    }

    /// Whether the test `name` has passed and was not skipped.
    pub(crate) fn has_passed(&self, name: &str) -> bool {
        self.passed_or_skipped(name) && self.why_skipped(name).is_none()
    }

    /// Whether the test `name` has failed.
    pub(crate) fn has_failed(&self, name: &str) -> bool {
        let mut failures = self.binaries.iter().flat_map(|binary| &binary.failures);
        failures.any(|test| is_named(test, name))
    }

    /// Returns the reason why the test `name` was skipped, alone or with its whole module.
    pub(crate) fn why_skipped(&self, name: &str) -> Option<&str> {
        let names_test = |skip: &&String| {
            let skipped = skip_name(skip);
            is_named(skipped, name) || is_in_module(name, skipped)
        };
        let skip = self.skipped.iter().find(names_test)?;
        Some(
            skip.split_once(": ")
                .map_or("no reason given", |(_, why)| why),
        )
    }
}

/// Whether the test `name` is in the module `module`.
fn is_in_module(name: &str, module: &str) -> bool {
    let (name, module) = (format!("::{name}"), format!("::{module}::"));
    name.contains(&module)
}

/// Returns the test's name in a line `name: reason`. A name may contain `::`.
fn skip_name(skip: &str) -> &str {
    skip.split_once(": ").map_or(skip, |(name, _)| name)
}

/// Whether two names refer to the same test. Either may lack its modules.
fn is_named(test: &str, name: &str) -> bool {
    let ends = |long: &str, short: &str| {
        long.strip_suffix(short)
            .is_some_and(|modules| modules.is_empty() || modules.ends_with("::"))
    };
    ends(test, name) || ends(name, test)
}

/// A consumer of output lines.
#[derive(Debug)]
pub(crate) struct Output {
    log: LineWriter<File>,
    artifacts: Vec<Artifact>,
    parser: Parser,
    /// Lines to show when the binary has ended, because several binaries run at once.
    pending: Vec<String>,
}

impl Output {
    pub(crate) fn new(log: PathBuf, artifacts: &[Artifact]) -> anyhow::Result<Self> {
        let file = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let log = LineWriter::new(file);
        Ok(Self {
            log,
            artifacts: artifacts.to_vec(),
            parser: Parser::default(),
            pending: Vec::new(),
        })
    }

    pub(crate) fn line(&mut self, line: &str) {
        if let Err(error) = writeln!(self.log, "{line}") {
            eprintln!("warning: cannot write the log: {error}");
        }
        match self.parser.line(line) {
            LineVisibility::Hidden => {}
            LineVisibility::Shown => self.pending.push(line.to_owned()),
            LineVisibility::Result => {
                let last = self.parser.run.binaries.last();
                if let Some(run) = last.filter(|run| run.passed + run.failed > 0) {
                    let line = format!("  {}", binary_line(run, &self.artifacts));
                    self.pending.push(line);
                }
                self.show();
            }
        }
    }

    /// Prints the pending lines in one piece.
    fn show(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut text = self.pending.join("\n");
        text.push('\n');
        self.pending.clear();
        if let Err(error) = std::io::stdout().lock().write_all(text.as_bytes()) {
            eprintln!("warning: cannot print: {error}");
        }
    }

    pub(crate) fn finish(mut self, success: bool) -> anyhow::Result<Run> {
        self.show();
        self.log.flush().context("cannot write the log")?;
        self.parser.run.success = success;
        Ok(self.parser.run)
    }
}

fn binary_line(run: &BinaryRun, artifacts: &[Artifact]) -> String {
    let name = find(artifacts, &run.executable).map_or(run.executable.clone(), Artifact::selector);
    let mark = if run.failed == 0 { "ok    " } else { "FAILED" };
    let failed = if run.failed == 0 {
        String::new()
    } else {
        format!(", {} failed", run.failed)
    };
    format!(
        "{mark} {name:48} {:5} passed{failed} {:>8}",
        run.passed,
        shell::seconds(run.duration)
    )
}

/// Returns the artifact of a run's executable. cargo names an executable by its path, and the guest by
/// `/tests/<package>/<target>`.
pub(crate) fn find<'a>(artifacts: &'a [Artifact], executable: &str) -> Option<&'a Artifact> {
    artifacts
        .iter()
        .filter(|artifact| artifact.is_test)
        .find(|artifact| {
            artifact.executable.ends_with(executable)
                || executable == format!("/tests/{}/{}", artifact.package, artifact.target)
        })
}

/// The treatment of a line on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineVisibility {
    Shown,
    Hidden,
    /// The line is the result of a binary and is shown.
    Result,
}

#[derive(Debug, Default)]
struct Parser {
    run: Run,
    /// Whether the parser is within the lines of failures: between libtest's two `failures:` headers, or between the
    /// second header and the result.
    in_failures: bool,
}

impl Parser {
    fn line(&mut self, line: &str) -> LineVisibility {
        if let Some(executable) = running(line) {
            self.in_failures = false;
            self.run.binaries.push(BinaryRun {
                executable,
                ..BinaryRun::default()
            });
            return LineVisibility::Hidden;
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_failures = false;
            self.result(result);
            return LineVisibility::Result;
        }
        if let Some(skipped) = line.strip_prefix("skipped: ") {
            self.run.skipped.insert(skipped.to_owned());
            return LineVisibility::Hidden;
        }
        if let Some(test) = line.strip_prefix("test ") {
            return self.test(test);
        }
        if line == "failures:" {
            // libtest prints the word twice: before the output of the failed tests, and before their names.
            self.in_failures = true;
            if let Some(binary) = self.run.binaries.last_mut() {
                binary.failures.clear();
            }
            return LineVisibility::Shown;
        }
        if self.in_failures {
            let name = line.strip_prefix("    ").filter(|name| !name.contains(' '));
            if let (Some(name), Some(binary)) = (name, self.run.binaries.last_mut()) {
                binary.failures.push(name.to_owned());
            }
            return LineVisibility::Shown;
        }
        let of_libtest =
            line.is_empty() || (line.starts_with("running ") && line.contains(" test"));
        if of_libtest {
            LineVisibility::Hidden
        } else {
            LineVisibility::Shown
        }
    }

    fn test(&mut self, test: &str) -> LineVisibility {
        let binary = self.run.binaries.last_mut();
        let Some((name, outcome)) = test.rsplit_once(" ... ") else {
            if let Some((name, _)) = test.split_once(" has been running for over ")
                && let Some(binary) = binary
            {
                binary.slow.insert(name.to_owned());
            }
            return LineVisibility::Hidden;
        };
        let (outcome, time) = split_time(outcome);
        let is_ok = outcome == "ok";
        if let Some(binary) = binary {
            binary.slow.remove(name);
            if let Some(time) = time {
                binary.times.insert(name.to_owned(), time);
            }
            if is_ok {
                binary.passes.insert(name.to_owned());
            }
        }
        if is_ok {
            return LineVisibility::Hidden;
        }
        if let Some(reason) = outcome.strip_prefix("ignored") {
            let reason = reason.trim_start_matches(", ");
            let reason = if reason.is_empty() {
                "marked `ignore`"
            } else {
                reason
            };
            let skip = format!("{name}: {reason}");
            self.run.ignored.insert(skip.clone());
            self.run.skipped.insert(skip);
            return LineVisibility::Hidden;
        }
        LineVisibility::Shown
    }

    fn result(&mut self, text: &str) {
        let count = |word: &str| -> usize {
            let part = text
                .split(['.', ';'])
                .find(|part| part.trim_end().ends_with(word));
            part.and_then(|part| part.split_whitespace().next()?.parse().ok())
                .unwrap_or(0)
        };
        let duration = text
            .split_once("finished in ")
            .and_then(|(_, rest)| rest.trim_end_matches('s').parse().ok())
            .map_or(Duration::ZERO, Duration::from_secs_f64);
        let (passed, failed) = (count(" passed"), count(" failed"));
        if self.run.binaries.is_empty() {
            self.run.binaries.push(BinaryRun::default());
        }
        if let Some(binary) = self.run.binaries.last_mut() {
            binary.passed += passed;
            binary.failed += failed;
            binary.duration += duration;
            binary.ended = true;
        }
    }
}

/// Splits `ok <1.234s>`, as libtest prints it with `--report-time`.
fn split_time(outcome: &str) -> (&str, Option<Duration>) {
    let Some((word, time)) = outcome.split_once(" <") else {
        return (outcome, None);
    };
    let seconds = time.strip_suffix("s>").and_then(|time| time.parse().ok());
    (word, seconds.map(Duration::from_secs_f64))
}

/// Returns the executable in `Running unittests src/lib.rs (target/debug/deps/x-1)`, or in the guest's `Running
/// /tests/…`. Returns the crate in `Doc-tests x`.
fn running(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("doc tests of {name}"));
    }
    let rest = line.strip_prefix("Running ")?;
    match rest.rsplit_once(" (") {
        Some((_, executable)) => executable.strip_suffix(')').map(str::to_owned),
        None => rest.starts_with('/').then(|| rest.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
   Compiling muster-domain v0.1.0
     Running unittests src/lib.rs (target/debug/deps/muster_domain-1)

running 3 tests
test job::names_are_checked ... ok
test job::slow_one ... ignored, needs an hour
test job::counts_add_up ... FAILED

failures:

---- job::counts_add_up stdout ----
thread panicked:
    indented words

failures:
    job::counts_add_up

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.50s

     Running tests/it.rs (target/debug/deps/it-2)
running 1 test
error: test failed, to rerun pass `-p muster-agent --test it`
";

    fn parse(text: &str) -> Run {
        let mut parser = Parser::default();
        for line in text.lines() {
            parser.line(line);
        }
        parser.run
    }

    #[test]
    fn counts_and_names_are_read() {
        let run = parse(TEXT);

        let first = BinaryRun {
            executable: "target/debug/deps/muster_domain-1".into(),
            passed: 1,
            failed: 1,
            duration: Duration::from_millis(1_500),
            passes: ["job::names_are_checked".to_owned()].into(),
            failures: vec!["job::counts_add_up".into()],
            slow: BTreeSet::new(),
            times: BTreeMap::new(),
            ended: true,
        };
        assert_eq!(run.binaries[0], first);
        assert_eq!(
            run.skipped,
            ["job::slow_one: needs an hour".to_owned()].into()
        );
    }

    #[test]
    fn binary_that_crashed_has_not_ended() {
        assert!(!parse(TEXT).binaries[1].ended);
    }

    #[test]
    fn tests_that_hung_are_known() {
        let run = parse(
            "     Running tests/it.rs (target/debug/deps/it-2)\n\
             test a::hangs has been running for over 60 seconds\n\
             test a::is_slow has been running for over 60 seconds\n\
             test a::is_slow ... ok\n",
        );

        assert_eq!(run.binaries[0].slow, ["a::hangs".to_owned()].into());
    }

    #[test]
    fn guest_names_its_binaries_and_skips() {
        let run = parse("     Running /tests/muster-agent/vm\nskipped: oom: no swap\n");

        assert_eq!(run.binaries[0].executable, "/tests/muster-agent/vm");
        assert_eq!(run.skipped, ["oom: no swap".to_owned()].into());
    }

    #[test]
    fn passing_test_lines_are_hidden() {
        let mut parser = Parser::default();

        assert_eq!(parser.line("test a ... ok"), LineVisibility::Hidden);
        assert_eq!(parser.line("running 12 tests"), LineVisibility::Hidden);
        assert_eq!(parser.line("warning: unused"), LineVisibility::Shown);
        assert_eq!(
            parser.line("test result: ok. 1 passed; 0 failed; finished in 0.00s"),
            LineVisibility::Result
        );
    }
}
