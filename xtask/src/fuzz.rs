//! `cargo xtask fuzz`: runs a fuzz target with libFuzzer, guided by coverage.
//!
//! The targets are functions of the crates that they test; `fuzz/` holds their entry points and the corpus.
//! The tests of those crates replay the corpus, so the gate needs neither this command nor libFuzzer.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::shell;

/// Every target by name, with the kind of its input.
const TARGETS: [(&str, &str); 7] = [
    ("frames", "frames between agents and servers"),
    ("job_file", "job files in HCL or JSON"),
    ("job_json", "requests to register a job"),
    ("packet_policy", "rules of network policies"),
    ("plugin_messages", "messages of driver plugins"),
    ("raft_log", "segments of the log of Raft"),
    ("snapshot", "snapshots of the state"),
];

/// Coverage instrumentation that a stable compiler has: counters for each edge, and traced comparisons.
const RUSTFLAGS: [&str; 7] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Clink-dead-code",
    "-Ccodegen-units=16",
];

/// The memory limit of the process in MiB. The largest message has 64 MiB, and a few copies of it must fit.
const RSS_MIB_MAX: u32 = 1_024;
/// The limit of one allocation in MiB. It allows the largest message with a doubled capacity.
const ALLOCATION_MIB_MAX: u32 = 160;
/// The time limit of one input in seconds. Inputs have a few kilobytes and take milliseconds.
const INPUT_SECONDS_MAX: u32 = 20;

/// Which target, and for how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The target; without it, the targets are listed
    target: Option<String>,
    /// Minutes to run
    #[arg(long, default_value_t = 5)]
    minutes: u32,
    /// Add inputs that reach new code to the corpus in the repository
    #[arg(long)]
    merge: bool,
    /// Other arguments of libFuzzer, such as `-jobs=2`
    #[arg(last = true)]
    more: Vec<String>,
}

/// Runs the `fuzz` command.
///
/// # Errors
///
/// When the target cannot be built, or an input fails.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Some(target) = options.target.as_deref() else {
        for (name, input) in TARGETS {
            println!("  {name:16} {input}");
        }
        return Ok(());
    };
    let names = TARGETS.map(|(name, _)| name);
    ensure!(
        names.contains(&target),
        "unknown fuzz target {target:?}: use one of {}",
        names.join(", ")
    );
    let program = build(target)?;
    let folders = Folders::of(target);
    folders.make()?;
    let mut fuzzer = fuzzer(&program);
    fuzzer.arg(format!("-max_total_time={}", options.minutes * 60));
    fuzzer.arg(format!("-artifact_prefix={}/", folders.failed.display()));
    fuzzer.arg("-print_final_stats=1");
    fuzzer.args(&options.more);
    // libFuzzer writes new inputs to the first folder.
    fuzzer.arg(&folders.found).arg(&folders.corpus);
    if let Err(error) = shell::run(&mut fuzzer) {
        bail!(
            "{error}: the input is in {}; copy it to {} under a name that says what it is, and mend the code",
            folders.failed.display(),
            folders.corpus.display()
        );
    }
    if options.merge {
        let mut merge = self::fuzzer(&program);
        merge.arg("-merge=1");
        shell::run(merge.arg(&folders.corpus).arg(&folders.found))?;
    }
    Ok(())
}

/// The folders of a target.
#[derive(Debug)]
struct Folders {
    /// Inputs in the repository.
    corpus: PathBuf,
    /// Inputs that reached new code on this machine.
    found: PathBuf,
    /// Inputs that failed.
    failed: PathBuf,
}

impl Folders {
    fn of(target: &str) -> Self {
        let built = folder();
        Self {
            corpus: shell::root().join("fuzz/corpus").join(target),
            found: built.join("found").join(target),
            failed: built.join("failed").join(target),
        }
    }

    fn make(&self) -> anyhow::Result<()> {
        for folder in [&self.found, &self.failed] {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Ok(())
    }
}

/// Returns the folder of these builds. It is separate so that ordinary builds neither wait for it nor rebuild
/// anything.
fn folder() -> PathBuf {
    shell::target_dir().join("fuzz")
}

fn fuzzer(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(shell::root()).args([
        format!("-rss_limit_mb={RSS_MIB_MAX}"),
        format!("-malloc_limit_mb={ALLOCATION_MIB_MAX}"),
        format!("-timeout={INPUT_SECONDS_MAX}"),
    ]);
    command
}

/// Builds the program of `target` and returns its path.
fn build(target: &str) -> anyhow::Result<PathBuf> {
    ensure!(
        shell::find_program("c++").is_some(),
        "libFuzzer needs a C++ compiler: run cargo xtask setup"
    );
    let host = host()?;
    let mut cargo = shell::cargo();
    cargo.args(["build", "--profile", "fuzz", "--package", "muster-fuzz"]);
    cargo.args(["--bin", target, "--features", target]);
    // If a target platform is named, build scripts and macros are not instrumented.
    cargo.args(["--target", &host]);
    cargo.arg("--target-dir").arg(folder());
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo.env("RUSTFLAGS", RUSTFLAGS.join(" "));
    shell::run(&mut cargo)?;
    Ok(folder().join(host).join("fuzz").join(target))
}

/// Returns the platform on which the compiler runs.
fn host() -> anyhow::Result<String> {
    let version = shell::capture(Command::new("rustc").arg("-vV").current_dir(shell::root()))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV does not name the host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_entry_and_corpus() {
        for (target, _) in TARGETS {
            let entry = shell::root().join(format!("fuzz/src/bin/{target}.rs"));
            let corpus = Folders::of(target).corpus;

            assert!(entry.is_file(), "{}", entry.display());
            assert!(corpus.is_dir(), "{}", corpus.display());
        }
    }

    #[test]
    fn unknown_target_is_refused_with_the_known() {
        let options = Options {
            target: Some("nothing".to_owned()),
            minutes: 1,
            merge: false,
            more: Vec::new(),
        };

        let error = run(&options).unwrap_err().to_string();

        assert!(
            error.starts_with("unknown fuzz target \"nothing\": use one of frames, job_file"),
            "{error}"
        );
    }
}
