//! `cargo xtask cases`: compares recorded decisions with those of our own code.
//!
//! The keys of a file's rows identify the kind of question. Unit tests of the crates compute the answers. Their test
//! `recorded_cases_in_named_files` reads the files that `MUSTER_CASES` names, and prints a line for each
//! (`domain/src/fixture/recorded.rs`). This command builds and runs those tests, shows the differences and adds up
//! the counts. Files with job files in HCL go to the test of `jobspec`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use flate2::read::GzDecoder;
use serde_json::Value;

use crate::shell;
use crate::shell::artifact::{self, Artifact};

/// The crates that answer questions, and the test in them that does.
const CRATES: (&[&str], &str) = (
    &["muster-control-core", "muster-wire"],
    "recorded_cases_in_named_files",
);
/// The crate and the test for rows with a job file in HCL.
const JOB_FILES: (&str, &str) = ("muster-jobspec", "recorded_job_files");

/// Options: the files.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Files of recorded cases, one JSON object a line; may be gzipped
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Runs the `cases` command. The exit code is 1 if an answer differs or no test recognises a file.
///
/// # Errors
///
/// When a file cannot be read, the tests cannot be built, or a test run fails.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let (mut job_files, mut others) = (Vec::new(), Vec::new());
    let mut report = Report::default();
    for given in &options.files {
        let path = std::path::absolute(given)
            .with_context(|| format!("cannot find {}", given.display()))?;
        report.files.insert(path.clone(), given.clone());
        if path.to_string_lossy().contains(':') {
            bail!("{}: a path must not have a colon", path.display());
        }
        match first_row(&path)?.get("hcl") {
            Some(_) => job_files.push(path),
            None => others.push(path),
        }
    }

    if !others.is_empty() {
        let (packages, test) = CRATES;
        for binary in build(packages)? {
            let paths = std::env::join_paths(&others).context("cannot name the files")?;
            run_test(&binary, test, &paths, &mut |line| report.line(line))?;
        }
    }
    if !job_files.is_empty() {
        run_job_files(&job_files, &mut report)?;
    }
    println!("{report}");
    Ok(report.exit_code())
}

fn first_row(path: &Path) -> anyhow::Result<Value> {
    let cannot = || format!("cannot read {}", path.display());
    let file = std::fs::File::open(path).with_context(cannot)?;
    let mut line = String::new();
    if path.extension().is_some_and(|extension| extension == "gz") {
        BufReader::new(GzDecoder::new(file)).read_line(&mut line)
    } else {
        BufReader::new(file).read_line(&mut line)
    }
    .with_context(cannot)?;
    serde_json::from_str(&line).with_context(cannot)
}

/// Builds the unit tests of `packages`.
fn build(packages: &[&str]) -> anyhow::Result<Vec<Artifact>> {
    let mut cargo = shell::cargo();
    cargo.args(["test", "--quiet", "--lib", "--no-run"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    Ok(artifact::build(&mut cargo)?.artifacts)
}

/// Runs the tests of `binary` whose name contains `test`, with `paths` in `MUSTER_CASES`.
fn run_test(
    binary: &Artifact,
    test: &str,
    paths: &std::ffi::OsStr,
    on_line: &mut dyn FnMut(&str),
) -> anyhow::Result<()> {
    let mut command = Command::new(&binary.executable);
    command.args([test, "--nocapture"]);
    command.env("MUSTER_CASES", paths);
    command.current_dir(shell::root());
    let status = shell::lines(&mut command, on_line)?;
    if !status.success() {
        bail!("{} ended with {status}", shell::display(&command));
    }
    Ok(())
}

/// Runs the test of job files once per file, because it prints only a sum.
fn run_job_files(paths: &[PathBuf], report: &mut Report) -> anyhow::Result<()> {
    let (package, test) = JOB_FILES;
    let binaries = build(&[package])?;
    for path in paths {
        let mut sum = None;
        for binary in &binaries {
            // The test fails if an answer differs. The sum shows that case.
            let ended = run_test(
                binary,
                test,
                path.as_os_str(),
                &mut |line| match parse_sum(line) {
                    Some(found) => sum = Some(found),
                    None if is_harness_line(line) => {}
                    None => println!("  {line}"),
                },
            );
            if sum.is_none() {
                ended?;
            }
        }
        let answer = match sum {
            Some((passed, failed)) => Answer::Ran { passed, failed },
            None => Answer::NotRun(format!("test {test} does not exist in {package}")),
        };
        report.add(path, "job files", answer);
    }
    Ok(())
}

/// Parses `3 passed, 1 failed` within a line.
fn parse_sum(line: &str) -> Option<(usize, usize)> {
    let (before, after) = line.split_once(" passed, ")?;
    let passed = before.rsplit(' ').next()?.parse().ok()?;
    let failed = after.split_once(" failed")?.0.parse().ok()?;
    Some((passed, failed))
}

/// Whether the test harness printed the line, and not the test.
fn is_harness_line(line: &str) -> bool {
    matches!(line, "" | "ok") || line.starts_with("running ") || line.starts_with("test ")
}

/// The result of one question of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Ran {
        passed: usize,
        failed: usize,
    },
    /// The question was not run, for the given reason.
    NotRun(String),
}

/// The results of the questions of all files.
#[derive(Debug, Default)]
struct Report {
    /// The files, each with the path that the user gave.
    files: BTreeMap<PathBuf, PathBuf>,
    answers: BTreeMap<(PathBuf, String), Answer>,
    /// The names of the cases that were left out, by file and reason.
    left_out: BTreeMap<(PathBuf, String), Vec<String>>,
}

impl Report {
    /// Reads a line that a test printed.
    fn line(&mut self, line: &str) {
        let columns: Vec<&str> = line.split('\t').collect();
        match columns[..] {
            ["cases", path, kind, passed, failed] => {
                if let (Ok(passed), Ok(failed)) = (passed.parse(), failed.parse()) {
                    self.add(Path::new(path), kind, Answer::Ran { passed, failed });
                }
            }
            ["not-run", path, kind, reason] => {
                self.add(Path::new(path), kind, Answer::NotRun(reason.to_owned()));
            }
            ["left-out", path, kind, count, reason] => {
                let key = (PathBuf::from(path), kind.to_owned());
                let reasons = self.left_out.entry(key).or_default();
                reasons.push(format!("{count} left out: {reason}"));
            }
            ["differs", kind, ..] => {
                let text = line.splitn(3, '\t').nth(2).unwrap_or_default();
                println!("{kind}: {text}");
            }
            _ if is_harness_line(line) => {}
            _ => println!("{line}"),
        }
    }

    fn add(&mut self, path: &Path, kind: &str, answer: Answer) {
        self.answers
            .insert((path.to_owned(), kind.to_owned()), answer);
    }

    /// Returns the files without any answer, with the paths that the user gave.
    fn unknown(&self) -> impl Iterator<Item = &Path> {
        let is_answered = |path: &Path| self.answers.keys().any(|(answered, _)| answered == path);
        let files = self.files.iter();
        files
            .filter(move |(path, _)| !is_answered(path))
            .map(|(_, given)| given.as_path())
    }

    fn sum(&self) -> (usize, usize) {
        let answers = self.answers.values();
        answers.fold((0, 0), |(all_passed, all_failed), answer| match answer {
            Answer::Ran { passed, failed } => (all_passed + passed, all_failed + failed),
            Answer::NotRun(_) => (all_passed, all_failed),
        })
    }

    fn exit_code(&self) -> ExitCode {
        let (_, failed) = self.sum();
        if failed == 0 && self.unknown().next().is_none() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, answer) in &self.answers {
            let (path, kind) = key;
            let given = self.files.get(path).unwrap_or(path);
            write!(f, "{}: ", given.display())?;
            match answer {
                Answer::Ran { passed, failed } => {
                    write!(f, "{passed} passed, {failed} failed ({kind}")?;
                    for reason in self.left_out.get(key).into_iter().flatten() {
                        write!(f, "; {reason}")?;
                    }
                    writeln!(f, ")")?;
                }
                Answer::NotRun(reason) => writeln!(f, "not run: {reason}")?,
            }
        }
        for path in self.unknown() {
            writeln!(
                f,
                "{}: its rows are of no kind that is known",
                path.display()
            )?;
        }
        let (passed, failed) = self.sum();
        write!(f, "total: {passed} passed, {failed} failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lines: &[&str]) -> Report {
        let mut report = Report::default();
        for line in lines {
            report.line(line);
        }
        report
    }

    #[test]
    fn answers_are_added_up_and_shown_by_file() {
        let mut report = report(&[
            "running 2 tests",
            "left-out\t/c/fit.jsonl\tfit\t3\tno cores",
            "cases\t/c/fit.jsonl\tfit\t7\t1",
            "cases\t/c/diff.gz\tdiff\t5\t0",
            "cases\t/c/diff.gz\tupdate\t4\t0",
            "not-run\t/c/ports.jsonl\tports\tone address",
        ]);
        for name in ["fit.jsonl", "other.jsonl"] {
            let path = Path::new("/c").join(name);
            report.files.insert(path, PathBuf::from(name));
        }

        let shown = "/c/diff.gz: 5 passed, 0 failed (diff)\n\
             /c/diff.gz: 4 passed, 0 failed (update)\n\
             fit.jsonl: 7 passed, 1 failed (fit; 3 left out: no cores)\n\
             /c/ports.jsonl: not run: one address\n\
             other.jsonl: its rows are of no kind that is known\n\
             total: 16 passed, 1 failed";
        assert_eq!(report.to_string(), shown);
        assert_eq!(report.exit_code(), ExitCode::FAILURE);
    }

    #[test]
    fn cases_not_run_are_no_failure() {
        let report = report(&["not-run\t/c/ports.jsonl\tports\tone address"]);

        assert_eq!(report.exit_code(), ExitCode::SUCCESS);
    }

    #[test]
    fn a_sum_is_found_in_its_line() {
        assert_eq!(parse_sum("3 passed, 1 failed"), Some((3, 1)));
        assert_eq!(parse_sum("pairs: 30 passed, 0 failed (x)"), Some((30, 0)));
        assert_eq!(parse_sum("all passed"), None);
        assert_eq!(
            parse_sum("test result: ok. 1 passed; 0 failed; 0 ignored"),
            None
        );
    }
}
