//! T0 and T1: the test binaries of this machine, [`BINARIES_MAX`] at a time.
//!
//! The longest binaries start first, so that no long binary runs alone at the end.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::output::{Output, Run};
use super::timing::{BinaryTime, Timing};
use crate::shell::artifact::Artifact;
use crate::shell::{self, usage};

/// Minutes after which a binary is ended in an unattended run. The longest binary takes nine minutes on two cores.
/// The rest is a reserve for slow machines.
const BINARY_MINUTES_MAX: u32 = 25;

/// The variable that requests all repetitions of tests (`cargo xtask test --long`).
const LONG_VARIABLE: &str = "MUSTER_TEST_LONG";

/// The variable that names the directory with the built examples, which some tests start.
const EXAMPLES_VARIABLE: &str = "MUSTER_TEST_EXAMPLES";

/// Binaries that run at once. On two cores, a second binary was measured to overload both. The tests start agents,
/// whose eBPF programs the kernel verifies each time, and half of all time was spent in the kernel. Deadlines of a
/// minute passed.
const BINARIES_MAX: usize = 1;

/// Test threads of a binary: one for each processor of the smallest supported machine.
const THREADS: usize = 2;

/// A test binary that takes long.
struct LongBinary {
    package: &'static str,
    target: &'static str,
    /// The test threads of the binary. It is above [`THREADS`] where tests mostly wait for elections, deadlines and
    /// processes.
    threads: usize,
}

const fn long_binary(package: &'static str, target: &'static str, threads: usize) -> LongBinary {
    LongBinary {
        package,
        target,
        threads,
    }
}

/// The binaries that take longest, longest first. With two threads on two processors, `it` of the agent used a third
/// of the processor time, and `it` of the servers 40 %.
const LONGEST: [LongBinary; 7] = [
    long_binary("muster-cli", "cluster", THREADS),
    long_binary("muster-agent", "it", 8),
    long_binary("muster-control", "it", 12),
    long_binary("muster-cli", "e2e", 4),
    long_binary("muster-driver-native", "it", 8),
    long_binary("muster-driver-native", "isolation", 4),
    long_binary("muster-agent", "vm", THREADS),
];

/// Runs the test binaries among `artifacts`, writes a log for each into `folder` and returns the results.
///
/// # Errors
///
/// When a log cannot be written or a binary cannot be started.
pub(super) fn run(
    artifacts: &[Artifact],
    folder: &Path,
    timing: &Mutex<Timing>,
    long: bool,
) -> anyhow::Result<Run> {
    // The file name is unique, because the tests of the simulator are a separate run.
    let skips = tempfile::NamedTempFile::new_in(folder)?;
    let skip_file = skips.path().to_path_buf();
    let logs = folder.join("host");
    std::fs::create_dir_all(&logs)?;

    let queue: Mutex<VecDeque<&Artifact>> = Mutex::new(sort_longest_first(artifacts));
    let merged = Mutex::new(Run {
        success: true,
        ..Run::default()
    });
    let cpu = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..BINARIES_MAX)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(artifact) = pop(&queue) {
                        let run = run_binary(artifact, artifacts, &logs, &skip_file, timing, long)?;
                        let mut merged = merged.lock().unwrap_or_else(PoisonError::into_inner);
                        merged.merge(run);
                    }
                    anyhow::Ok(usage::cpu_time())
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker returns its errors"))
            .sum::<anyhow::Result<Duration>>()
    })?;
    usage::add_cpu_time(cpu);

    let mut run = merged.into_inner().unwrap_or_else(PoisonError::into_inner);
    let skipped = std::fs::read_to_string(&skip_file).unwrap_or_default();
    run.skipped.extend(skipped.lines().map(str::to_owned));
    Ok(run)
}

/// Returns the test binaries, longest first.
fn sort_longest_first(artifacts: &[Artifact]) -> VecDeque<&Artifact> {
    let mut tests: Vec<&Artifact> = artifacts.iter().filter(|one| one.is_test).collect();
    tests.sort_by_key(|artifact| position(artifact).unwrap_or(LONGEST.len()));
    tests.into()
}

fn position(artifact: &Artifact) -> Option<usize> {
    LONGEST
        .iter()
        .position(|long| artifact.package == long.package && artifact.target == long.target)
}

fn pop<'a>(queue: &Mutex<VecDeque<&'a Artifact>>) -> Option<&'a Artifact> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.pop_front()
}

fn run_binary(
    artifact: &Artifact,
    artifacts: &[Artifact],
    logs: &Path,
    skip_file: &Path,
    timing: &Mutex<Timing>,
    long: bool,
) -> anyhow::Result<Run> {
    let name = format!("{}-{}-{}", artifact.package, artifact.kind, artifact.target);
    let mut output = Output::new(logs.join(format!("{name}.log")), artifacts)?;
    output.line(&format!("     Running {}", artifact.executable.display()));
    let (started, cpu_before) = (Instant::now(), usage::cpu_time());
    let mut command = command(artifact, skip_file, long);
    let status = shell::lines(&mut command, &mut |line| output.line(line))?;
    let run = output.finish(status.success())?;
    let times = run.binaries.iter().flat_map(|binary| binary.times.clone());
    let mut timing = timing.lock().unwrap_or_else(PoisonError::into_inner);
    timing.add_binary(BinaryTime {
        name: artifact.selector(),
        wall: started.elapsed(),
        cpu: Some(usage::cpu_time().saturating_sub(cpu_before)),
    });
    timing.add_tests(&artifact.selector(), times);
    Ok(run)
}

/// Returns the command that runs the tests of `artifact`, with the folder and the variables that cargo would set.
fn command(artifact: &Artifact, skip_file: &Path, long: bool) -> Command {
    let threads = position(artifact).map_or(THREADS, |long| LONGEST[long].threads);
    let threads = format!("--test-threads={threads}");
    let mut command = command_with_time_limit(artifact, long);
    if long {
        command.env(LONG_VARIABLE, "1");
    }
    command
        .arg(threads)
        .args(["-Z", "unstable-options", "--report-time"])
        .current_dir(&artifact.folder)
        // libtest reports the time of a test only where unstable options are allowed.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_MANIFEST_DIR", &artifact.folder)
        .env("MUSTER_SKIP_FILE", skip_file)
        .env_remove("UPDATE_EXPECT")
        .env_remove("MUSTER_BLESS");
    if let Some(examples) = examples_dir(&artifact.executable) {
        command.env(EXAMPLES_VARIABLE, examples);
    }
    command
}

/// Returns the directory of the examples that were built with the test binary `executable`. It is beside `deps`,
/// which contains the binary.
fn examples_dir(executable: &Path) -> Option<PathBuf> {
    let dir = executable.parent()?.with_file_name("examples");
    dir.is_dir().then_some(dir)
}

/// Returns a command with a time limit on the binary and on all processes that it starts. On a terminal there is no
/// limit, because `timeout` would keep interrupts from the tests. A long run has no limit either.
fn command_with_time_limit(artifact: &Artifact, long: bool) -> Command {
    let watched = std::io::IsTerminal::is_terminal(&std::io::stdout());
    if watched || long || shell::find_program("timeout").is_none() {
        return Command::new(&artifact.executable);
    }
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10s", &format!("{BINARY_MINUTES_MAX}m")])
        .arg(&artifact.executable);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, target: &str) -> Artifact {
        Artifact {
            package: package.into(),
            target: target.into(),
            kind: "test".into(),
            is_test: true,
            executable: "/target/x".into(),
            folder: "/x".into(),
        }
    }

    #[test]
    fn the_longest_binaries_start_first() {
        let artifacts = [
            artifact("muster-wire", "muster_wire"),
            artifact("muster-agent", "it"),
            artifact("muster-cli", "cluster"),
        ];

        let order: Vec<&str> = sort_longest_first(&artifacts)
            .into_iter()
            .map(|artifact| artifact.target.as_str())
            .collect();

        assert_eq!(order, ["cluster", "it", "muster_wire"]);
    }

    #[test]
    fn every_long_binary_exists() {
        for LongBinary {
            package, target, ..
        } in LONGEST
        {
            let folder = shell::root().join(package.trim_start_matches("muster-"));
            let main = folder.join("tests").join(target).join("main.rs");

            assert!(main.is_file(), "{package} {target}");
        }
    }
}
