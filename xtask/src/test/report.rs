//! The counts of a run: the summary and the exit status.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::guest::Guest;
use super::output::{BinaryRun, Run, find};
use crate::shell;
use crate::shell::artifact::Artifact;

/// A test or step that could not run on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    name: String,
    reason: String,
    /// The command that would run the test. It is empty if the reason names a command.
    command: String,
}

impl Skip {
    pub(crate) fn new(name: &str, reason: &str, command: &str) -> Self {
        Self {
            name: name.into(),
            reason: reason.into(),
            command: command.into(),
        }
    }

    /// Parses a test's line `name: reason`.
    fn of_test(line: &str) -> Self {
        let (name, reason) = line.split_once(": ").unwrap_or((line, "no reason given"));
        let command = if reason.contains("cargo ") {
            String::new()
        } else {
            format!("cargo test --workspace -- --include-ignored {name}")
        };
        Self::new(name, reason, &command)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    name: String,
    what: String,
    /// The command that repeats the failed test or step.
    command: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tier {
    name: &'static str,
    what: String,
    passed: usize,
    failed: usize,
    duration: Duration,
}

/// The counts of a whole run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    tiers: Vec<Tier>,
    skips: Vec<Skip>,
    failures: Vec<Failure>,
    /// Failures outside the tiers, such as a build or a guest that did not end.
    failed_steps: usize,
}

impl Report {
    pub(crate) fn skip(&mut self, skip: Skip) {
        self.skips.push(skip);
    }

    /// Adds the rows of `other`.
    pub(crate) fn merge(&mut self, other: Self) {
        let Self {
            tiers,
            skips,
            failures,
            failed_steps,
        } = other;
        self.tiers.extend(tiers);
        self.skips.extend(skips);
        self.failures.extend(failures);
        self.failed_steps += failed_steps;
    }

    /// Adds the simulated cluster: the number of its seeds, or `None` if it failed.
    pub(crate) fn add_simulator(&mut self, seeds: Option<u64>, duration: Duration) {
        let what = seeds.map_or_else(
            || "simulated cluster".to_owned(),
            |seeds| format!("simulated cluster, {seeds} seeds"),
        );
        self.tiers.push(Tier {
            name: "T0",
            what,
            passed: usize::from(seeds.is_some()),
            failed: usize::from(seeds.is_none()),
            duration,
        });
    }

    /// Records a failed step.
    pub(crate) fn fail(&mut self, name: &str, what: &str, command: &str) {
        self.failed_steps += 1;
        self.name_failure(name, what, command);
    }

    /// Lists a failure that a tier has already counted.
    pub(crate) fn name_failure(&mut self, name: &str, what: &str, command: &str) {
        self.failures.push(Failure {
            name: name.into(),
            what: what.into(),
            command: command.into(),
        });
    }

    /// Adds T0 and T1. A test that was skipped here is not listed if the guest ran it too, because the guest then
    /// reports it.
    pub(crate) fn add_host(&mut self, run: &Run, artifacts: &[Artifact], guest: Option<&Run>) {
        let is_t1 = |binary: &&BinaryRun| {
            find(artifacts, &binary.executable).is_some_and(|artifact| artifact.kind == "test")
        };
        let binaries = run.binaries_without_skipped();
        let (t1, t0): (Vec<&BinaryRun>, Vec<&BinaryRun>) = binaries.iter().partition(is_t1);
        self.tiers
            .push(summarize_tier("T0", "unit, property, golden files", &t0));
        self.tiers
            .push(summarize_tier("T1", "real sockets, files, processes", &t1));

        for line in &run.skipped {
            let skip = Skip::of_test(line);
            if !guest.is_some_and(|guest| guest.passed_or_skipped(&skip.name)) {
                self.skips.push(skip);
            }
        }
        for binary in &run.binaries {
            let selector = find(artifacts, &binary.executable)
                .map_or_else(|| "--workspace".to_owned(), Artifact::selector);
            self.name_failures(binary, &format!("cargo test {selector}"), " -- --exact ");
        }
        self.add_unexplained_failure(run, "cargo test --workspace");
    }

    /// Adds T2. A test that was skipped in the guest does not count as skipped if it passed on this machine.
    pub(super) fn add_guest(&mut self, guest: &Guest, host: &Run) {
        let Guest { series, ebpf, run } = guest;
        let binaries = run.binaries_without_skipped();
        let binaries: Vec<&BinaryRun> = binaries.iter().collect();
        let what = if *ebpf {
            "eBPF programs"
        } else {
            "limits, OOM, cgroup v2"
        };
        let what = format!("guest, Linux {series}: {what}");
        self.tiers.push(summarize_tier("T2", &what, &binaries));
        for line in &run.skipped {
            let Skip { name, reason, .. } = Skip::of_test(line);
            if !host.has_passed(&name) {
                let name = format!("{name} (guest, Linux {series})");
                self.skips.push(Skip::new(&name, &reason, &guest.command()));
            }
        }
        for binary in &run.binaries {
            let command = format!("{} -- {}", guest.command_for_one(), binary.executable);
            self.name_failures(binary, &command, " --exact ");
        }
        self.add_unexplained_failure(run, &guest.command());
    }

    /// Adds the demo (T3).
    pub(crate) fn add_demo(&mut self, passed: bool, duration: Duration) {
        let (passed, failed) = if passed { (1, 0) } else { (0, 1) };
        self.tiers.push(Tier {
            name: "T3",
            what: "demo as a black box".to_owned(),
            passed,
            failed,
            duration,
        });
    }

    /// Lists the failures of `binary`. `command` runs the whole binary; `exact` comes between it and the name of one
    /// test.
    fn name_failures(&mut self, binary: &BinaryRun, command: &str, exact: &str) {
        for name in &binary.failures {
            self.name_failure(name, "failed", &format!("{command}{exact}{name}"));
        }
        if !binary.ended {
            let slow: Vec<&str> = binary.slow.iter().map(String::as_str).collect();
            let reason = if slow.is_empty() {
                "ended without a result".to_owned()
            } else {
                let slow = slow.join(", ");
                format!("ended without a result, while these ran for over a minute: {slow}")
            };
            self.fail(&binary.executable, &reason, command);
        }
    }

    /// Records a failure if the run failed without a failing test.
    fn add_unexplained_failure(&mut self, run: &Run, command: &str) {
        let is_good = |binary: &BinaryRun| binary.ended && binary.failed == 0;
        if !run.success && run.binaries.iter().all(is_good) {
            self.fail(
                command,
                "it ended with an error and no failing test",
                command,
            );
        }
    }

    fn passed(&self) -> usize {
        self.tiers.iter().map(|tier| tier.passed).sum()
    }

    fn failed_count(&self) -> usize {
        self.failed_steps + self.tiers.iter().map(|tier| tier.failed).sum::<usize>()
    }

    /// Returns the summary. Its last line contains only the three counts.
    pub(crate) fn summary(&self, folder: &Path) -> String {
        let mut text = String::from("\n");
        for Tier {
            name,
            what,
            passed,
            failed,
            duration,
        } in &self.tiers
        {
            let failed = if *failed == 0 {
                String::new()
            } else {
                format!(", {failed} failed")
            };
            let counts = format!("{passed} passed{failed}");
            line(
                &mut text,
                &format!(
                    "  {name}  {what:40} {counts:24} {:>10}",
                    shell::seconds(*duration)
                ),
            );
        }
        if !self.skips.is_empty() {
            line(&mut text, &format!("  skipped {}:", self.skips.len()));
        }
        for Skip {
            name,
            reason,
            command,
        } in &self.skips
        {
            let run = if command.is_empty() {
                String::new()
            } else {
                format!("; run: {command}")
            };
            line(&mut text, &format!("    {name}: {reason}{run}"));
        }
        for Failure {
            name,
            what,
            command,
        } in &self.failures
        {
            line(
                &mut text,
                &format!("  FAILED {name}: {what}; repeat: {command}"),
            );
        }
        line(&mut text, &format!("  logs {}", folder.display()));
        if self.failed_count() == 0 {
            line(&mut text, "all tests that can run here passed");
        }
        line(&mut text, &self.counts());
        text
    }

    fn counts(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed(),
            self.failed_count(),
            self.skips.len()
        )
    }

    pub(crate) fn exit_code(&self, require_all: bool) -> ExitCode {
        if self.is_good(require_all) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn is_good(&self, require_all: bool) -> bool {
        self.failed_count() == 0 && (self.skips.is_empty() || !require_all)
    }
}

fn summarize_tier(name: &'static str, what: &str, binaries: &[&BinaryRun]) -> Tier {
    Tier {
        name,
        what: what.to_owned(),
        passed: binaries.iter().map(|binary| binary.passed).sum(),
        failed: binaries.iter().map(|binary| binary.failed).sum(),
        duration: binaries.iter().map(|binary| binary.duration).sum(),
    }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a string takes any text");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifacts() -> Vec<Artifact> {
        let artifact = |target: &str, kind: &str| Artifact {
            package: "muster-agent".into(),
            target: target.into(),
            kind: kind.into(),
            is_test: true,
            executable: format!("/target/{target}").into(),
            folder: "/agent".into(),
        };
        vec![artifact("muster_agent", "lib"), artifact("vm", "test")]
    }

    fn binary(executable: &str, passed: usize, failures: &[&str]) -> BinaryRun {
        BinaryRun {
            executable: executable.into(),
            passed,
            failed: failures.len(),
            failures: failures.iter().map(ToString::to_string).collect(),
            ended: true,
            ..BinaryRun::default()
        }
    }

    fn passing(executable: &str, tests: &[&str]) -> BinaryRun {
        let passes = tests.iter().map(ToString::to_string).collect();
        BinaryRun {
            passes,
            ..binary(executable, tests.len(), &[])
        }
    }

    fn host_run() -> Run {
        Run {
            binaries: vec![
                passing("/target/muster_agent", &["a", "b"]),
                passing("/target/vm", &["memory::oom", "pids"]),
            ],
            skipped: ["oom: no memory controller".to_owned()].into(),
            success: true,
            ..Run::default()
        }
    }

    #[test]
    fn skipped_test_is_not_among_those_that_passed() {
        let mut report = Report::default();

        report.add_host(&host_run(), &artifacts(), None);

        assert_eq!(report.counts(), "3 passed, 0 failed, 1 skipped");
    }

    fn guest_run(series: &'static str, ebpf: bool, run: Run) -> Guest {
        Guest {
            run,
            ..Guest::new(series, ebpf)
        }
    }

    #[test]
    fn test_passed_in_guest_is_not_skipped() {
        let guest = Run {
            binaries: vec![passing("/tests/muster-agent/vm", &["memory::oom"])],
            success: true,
            ..Run::default()
        };
        let mut report = Report::default();

        let host = host_run();
        report.add_host(&host, &artifacts(), Some(&guest));
        report.add_guest(&guest_run("6.1", false, guest), &host);

        assert_eq!(report.counts(), "4 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn test_skipped_in_both_places_counts_once() {
        let guest = Run {
            binaries: vec![passing("/tests/muster-agent/vm", &["memory::oom"])],
            ..host_run()
        };
        let mut report = Report::default();

        let host = host_run();
        report.add_host(&host, &artifacts(), Some(&guest));
        report.add_guest(&guest_run("6.1", false, guest), &host);

        assert_eq!(report.counts(), "3 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn guest_failures_name_their_kernel() {
        let run = Run {
            binaries: vec![binary("/tests/muster-agent/vm", 3, &["net::a"])],
            skipped: ["c: no veth".to_owned()].into(),
            ..Run::default()
        };
        let mut report = Report::default();

        report.add_guest(&guest_run("6.12", true, run), &host_run());

        let summary = report.summary(Path::new("/target/test-report"));
        for part in [
            "T2  guest, Linux 6.12: eBPF programs",
            "repeat: cargo xtask vm --kernel 6.12 -- /tests/muster-agent/vm --exact net::a\n",
            "c (guest, Linux 6.12): no veth",
        ] {
            assert!(summary.contains(part), "{part}: {summary}");
        }
    }

    #[test]
    fn failure_names_the_command_that_repeats_it() {
        let run = Run {
            binaries: vec![binary("/target/vm", 0, &["a::b"])],
            ..Run::default()
        };
        let mut report = Report::default();

        report.add_host(&run, &artifacts(), None);

        let summary = report.summary(Path::new("/target/test-report"));
        assert!(
            summary.contains("repeat: cargo test -p muster-agent --test vm -- --exact a::b"),
            "{summary}"
        );
        assert!(
            summary.ends_with("\n0 passed, 1 failed, 0 skipped\n"),
            "{summary}"
        );
        assert!(!report.is_good(false));
    }

    #[test]
    fn crashed_binary_is_a_failure() {
        let crashed = BinaryRun {
            executable: "/target/vm".into(),
            ..BinaryRun::default()
        };
        let run = Run {
            binaries: vec![crashed],
            ..Run::default()
        };
        let mut report = Report::default();

        report.add_host(&run, &artifacts(), None);

        let summary = report.summary(Path::new("/target/test-report"));
        assert!(
            summary
                .contains("ended without a result; repeat: cargo test -p muster-agent --test vm\n"),
            "{summary}"
        );
        assert_eq!(report.failed_count(), 1);
    }

    #[test]
    fn skips_fail_only_when_all_are_required() {
        let mut report = Report::default();

        report.skip(Skip::new("T2 guest", "no QEMU", "cargo xtask vm"));

        assert!(report.is_good(false));
        assert!(!report.is_good(true));
    }
}
