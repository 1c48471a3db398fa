//! `cargo xtask test`: every test that this machine can run, and the name of each it cannot.
//!
//! Four tiers: T0 in process, T1 on this machine (real sockets, files, processes), T2 in a guest
//! with its own kernel, T3 the demo as a black box. The kind of its target tells whether a test is
//! of T0 or T1: libraries and programs have T0. [`guest`] runs T2, [`output`] reads what the tests print, [`report`]
//! counts and prints the summary, [`required`] names the tests without which no run is good.
//!
//! A test that cannot run says so by a line in the file that `MUSTER_SKIP_FILE` names: libtest
//! shows nothing of a test that passes, and knows no "skipped".

mod guest;
mod host;
mod output;
mod report;
mod required;
mod timing;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;

use crate::shell::artifact::{self, Artifact};
use crate::{compiler, ebpf, setup, shell, sim, vm};
use guest::Guest;
use output::Run;
use report::{Report, Skip};
use timing::{StepTimer, Timing};

/// A check of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceCheck {
    pub(crate) name: &'static str,
    /// The command that repeats it.
    pub(crate) command: &'static str,
    pub(crate) run: fn() -> anyhow::Result<CheckOutcome>,
}

/// The outcome of a check that found no fault.
#[derive(Debug)]
pub(crate) enum CheckOutcome {
    Passed,
    /// It could not run here.
    Skipped {
        reason: String,
    },
}

impl From<()> for CheckOutcome {
    fn from((): ()) -> Self {
        Self::Passed
    }
}

/// Options that leave out or add tests.
#[derive(Debug, Default, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Options {
    /// Leave out the guest (T2)
    #[arg(long)]
    no_vm: bool,
    /// Leave out the demo (T3)
    #[arg(long)]
    no_demo: bool,
    /// T0 and T1 only, with what is installed and built: no setup, no eBPF build
    #[arg(long)]
    quick: bool,
    /// Test these packages only
    #[arg(long = "package", short, value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Run every repetition: more deaths of agents and leaders, 10 000 seeds, all tests in all guests
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// Fail when anything was skipped
    #[arg(long, conflicts_with_all = ["no_vm", "no_demo", "quick", "packages"])]
    require_all: bool,
}

/// The `test` command.
///
/// # Errors
///
/// When the tests could not be started. Failed tests are in the exit status and the summary.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    run_gate(options, false, &[], &[])
}

impl Options {
    /// Everything; in a long run with all repetitions.
    pub(crate) fn everything(long: bool) -> Self {
        Self {
            long,
            ..Self::default()
        }
    }
}

/// Runs the checks `first`, then the checks `beside` and the tests; with `lints`, clippy compiles them.
///
/// # Errors
///
/// When the tests could not be started.
pub(crate) fn run_gate(
    options: &Options,
    lints: bool,
    first: &[SourceCheck],
    beside: &[SourceCheck],
) -> anyhow::Result<ExitCode> {
    println!("muster test · T0 in process, T1 this machine, T2 QEMU guest, T3 demo");
    let folder = shell::target_dir().join("test-report");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let all = GateRun {
        options,
        lints,
        folder: &folder,
        report: Mutex::default(),
        timing: Mutex::default(),
    };
    for check in first {
        all.check(*check);
    }
    match all.prepare_and_build() {
        Ok(artifacts) => {
            all.timing()
                .add_crates(timing::crates_of_last_build(&shell::target_dir()));
            all.everything(&artifacts, beside)?;
        }
        Err(error) => {
            all.report().fail(
                "build",
                &format!("{error:#}"),
                "cargo test --workspace --no-run",
            );
            for check in beside {
                all.check(*check);
            }
        }
    }
    all.finish()
}

/// A run of the gate: what its threads share.
struct GateRun<'a> {
    options: &'a Options,
    /// Whether clippy compiles, so that one build gives programs and lints.
    lints: bool,
    folder: &'a Path,
    report: Mutex<Report>,
    timing: Mutex<Timing>,
}

impl GateRun<'_> {
    fn report(&self) -> std::sync::MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timing(&self) -> std::sync::MutexGuard<'_, Timing> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` and records its times.
    fn step<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        let step = StepTimer::new(name);
        let result = work();
        self.timing().end(step);
        result
    }

    fn check(&self, check: SourceCheck) {
        match self.step(check.name, check.run) {
            Ok(CheckOutcome::Passed) => {}
            Ok(CheckOutcome::Skipped { reason }) => {
                let skip = Skip::new(check.name, &reason, check.command);
                self.report().skip(skip);
            }
            Err(error) => {
                let what = format!("{error:#}");
                self.report().fail(check.name, &what, check.command);
            }
        }
    }

    /// Installs packages beside the compilation, which needs only a C compiler and make.
    fn prepare_and_build(&self) -> anyhow::Result<Vec<Artifact>> {
        let build = || self.step("build", || self.build_tests());
        if !setup::can_compile() {
            self.prepare();
            return build();
        }
        std::thread::scope(|scope| {
            let prepared = scope.spawn(|| self.prepare());
            let built = build();
            prepared.join().expect("a step reports its errors");
            built
        })
    }

    /// Builds every test and program but those of the simulator, which are optimised.
    fn build_tests(&self) -> anyhow::Result<Vec<Artifact>> {
        let mut cargo = self.cargo_with_lints()?;
        cargo.args(["build", "--all-targets", "--timings"]);
        if self.options.packages.is_empty() {
            cargo.args(["--workspace", "--exclude", sim::PROGRAM]);
        }
        let packages = self.options.packages.iter();
        cargo.args(packages.flat_map(|package| ["--package", package]));
        self.build(cargo)
    }

    /// A cargo that compiles; for the gate with clippy as the compiler, which checks and compiles in one go.
    fn cargo_with_lints(&self) -> anyhow::Result<Command> {
        let mut cargo = shell::cargo();
        if self.lints {
            compiler::lint_and_record(&mut cargo)?;
        }
        Ok(cargo)
    }

    /// Runs a build; in the gate, each warning is a failure.
    fn build(&self, mut cargo: Command) -> anyhow::Result<Vec<Artifact>> {
        let built = artifact::build(&mut cargo)?;
        if self.lints && built.warnings > 0 {
            self.report().fail(
                "lints",
                &format!("{} warnings, see above", built.warnings),
                "cargo clippy --workspace --all-targets -- -D warnings",
            );
        }
        Ok(built.artifacts)
    }

    /// Installs missing programs and builds the eBPF object. Without them most tests can run, and
    /// the others say so.
    fn prepare(&self) {
        if self.options.quick {
            self.report().skip(Skip::new(
                "setup, build-ebpf",
                "--quick",
                "cargo xtask setup && cargo xtask build-ebpf",
            ));
            return;
        }
        let mut report = Report::default();
        self.step("setup and eBPF object", || prepare(&mut report));
        self.report().merge(report);
    }

    /// The checks, then the tiers: the simulator, the guests with T0 and the demo beside the last of them, then T1.
    ///
    /// A compiler or a guest beside the tests of T1 cost more than it won, even at the lowest priority. A
    /// compiler that is preempted within the kernel holds up grace periods of RCU, for which every attached eBPF
    /// program and removed namespace waits: tests of agents took five times as long. A guest that gets little of the
    /// processor fails its tests of rates.
    fn everything(&self, artifacts: &[Artifact], beside: &[SourceCheck]) -> anyhow::Result<()> {
        // In turn: the build of the simulator may replace libraries that rustdoc reads.
        for check in beside {
            self.check(*check);
        }
        let simulator = self.simulator();
        let (unit, other): (Vec<Artifact>, Vec<Artifact>) =
            artifacts.iter().cloned().partition(Artifact::is_unit_test);
        let unit_run = Mutex::new(None);
        let guests = self.guests(artifacts, &|| {
            self.demo(artifacts);
            let run = self.host_tests("T0 tests", &unit);
            *unit_run.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
        });
        let host = self.host_tests("T1 tests", &other);
        let (mut host, guests, simulator) = (host?, guests?, simulator?);
        let unit_run = unit_run.into_inner();
        if let Some(run) = unit_run.unwrap_or_else(PoisonError::into_inner) {
            host.merge(run?);
        }
        let mut artifacts = artifacts.to_vec();
        if let Some((run, of_simulator)) = simulator {
            host.merge(run);
            artifacts.extend(of_simulator);
        }
        let whole = guests.iter().find(|guest| !guest.ebpf);
        let mut report = self.report();
        report.add_host(&host, &artifacts, whole.map(|guest| &guest.run));
        if self.options.packages.is_empty() {
            required::check(&mut report, &host, &guests);
        }
        for guest in &guests {
            report.add_guest(guest, &host);
        }
        Ok(())
    }

    /// The tests among `artifacts` on this machine.
    fn host_tests(&self, step: &str, artifacts: &[Artifact]) -> anyhow::Result<Run> {
        self.step(step, || {
            host::run(artifacts, self.folder, &self.timing, self.options.long)
        })
    }

    /// T2, with `beside` on the first processor that has no guest left.
    fn guests(
        &self,
        artifacts: &[Artifact],
        beside: &(dyn Fn() + Sync),
    ) -> anyhow::Result<Vec<Guest>> {
        let mut report = Report::default();
        let guests = self.step("guests", || {
            guest::run(
                self.options,
                artifacts,
                self.folder,
                &mut report,
                &self.timing,
                beside,
            )
        });
        self.report().merge(report);
        guests
    }

    /// The simulated cluster, part of T0: the tests of the simulator, then its seeds. It is compiled with optimisation.
    fn simulator(&self) -> anyhow::Result<Option<(Run, Vec<Artifact>)>> {
        const COMMAND: &str = "cargo xtask sim --seeds 200";
        let packages = &self.options.packages;
        if !packages.is_empty() && !packages.iter().any(|package| package == sim::PROGRAM) {
            return Ok(None);
        }
        let built = self.step("simulator, build", || {
            let mut cargo = self.cargo_with_lints()?;
            sim::build_arguments(&mut cargo);
            self.build(cargo)
        });
        let artifacts = match built {
            Ok(artifacts) => artifacts,
            Err(error) => {
                let what = format!("{error:#}");
                self.report().fail("simulator, build", &what, COMMAND);
                return Ok(None);
            }
        };
        let long = self.options.long;
        let run = self.step("simulator, tests", || {
            host::run(&artifacts, self.folder, &self.timing, long)
        })?;
        let program = artifacts.iter().find(|artifact| sim::is_program(artifact));
        let program = program.context("cargo did not name the simulator's program")?;
        let started = Instant::now();
        let result = self.step("simulator, seeds", || sim::gate(&program.executable, long));
        let mut report = self.report();
        report.add_simulator(result.as_ref().ok().copied(), started.elapsed());
        if let Err(error) = result {
            report.name_failure("simulator", &format!("{error:#}"), COMMAND);
        }
        Ok(Some((run, artifacts)))
    }

    /// T3.
    fn demo(&self, artifacts: &[Artifact]) {
        const COMMAND: &str = "cargo xtask demo";
        let options = self.options;
        if options.quick || options.no_demo || !options.packages.is_empty() {
            let reason = match (options.quick, options.no_demo) {
                (true, _) => "--quick",
                (false, true) => "--no-demo",
                (false, false) => "--package",
            };
            self.report().skip(Skip::new("T3 demo", reason, COMMAND));
            return;
        }
        let started = Instant::now();
        let result = self.step("demo", || demo(artifacts, self.folder));
        let mut report = self.report();
        report.add_demo(result.is_ok(), started.elapsed());
        if let Err(error) = result {
            report.name_failure("demo", &format!("{error:#}"), COMMAND);
        }
    }

    /// Prints the tables and the summary, writes them to the report's folder, returns the exit status.
    fn finish(self) -> anyhow::Result<ExitCode> {
        let report = self.report.into_inner();
        let report = report.unwrap_or_else(PoisonError::into_inner);
        let timing = self.timing.into_inner();
        let timing = timing.unwrap_or_else(PoisonError::into_inner);
        timing.write(self.folder)?;
        let summary = report.summary(self.folder);
        let file = self.folder.join("summary.txt");
        std::fs::write(&file, &summary)
            .with_context(|| format!("cannot write {}", file.display()))?;
        print!("{}{summary}", timing.tables());
        Ok(report.exit_code(self.options.require_all))
    }
}

/// Installs missing programs, downloads the guests' kernels and builds the eBPF object.
fn prepare(report: &mut Report) {
    let installed = setup::run(&setup::Options {
        check: false,
        yes: true,
    });
    if let Err(error) = &installed {
        report.skip(Skip::new(
            "setup",
            &format!("{error:#}"),
            "cargo xtask setup",
        ));
    }
    if let Err(error) = vm::prepare() {
        println!("  guests: {error:#}");
    }
    match (ebpf::build(), installed) {
        (Ok(_), _) => {}
        // Whether the programs are broken is not known where they cannot be built.
        (Err(error), Err(_)) => {
            report.skip(Skip::new(
                "build-ebpf",
                &format!("{error:#}"),
                "cargo xtask build-ebpf",
            ));
        }
        (Err(error), Ok(())) => {
            report.fail(
                "build-ebpf",
                &format!("{error:#}"),
                "cargo xtask build-ebpf",
            );
        }
    }
}

/// Runs the demo as a program of its own: away from the terminal it waits for no input.
fn demo(artifacts: &[Artifact], folder: &Path) -> anyhow::Result<()> {
    let muster = artifacts
        .iter()
        .find(|artifact| vm::is_muster(artifact))
        .context("`muster` was not built")?;
    let log = folder.join("demo.log");
    let mut text = String::new();
    let mut command = Command::new(shell::own_copy()?);
    command.args(["demo", "--program"]).arg(&muster.executable);
    let status = shell::lines(&mut command, &mut |line| {
        text.push_str(line);
        text.push('\n');
    })?;
    std::fs::write(&log, &text).with_context(|| format!("cannot write {}", log.display()))?;
    if !status.success() {
        print!("{text}");
        anyhow::bail!("the demo ended with {status}");
    }
    Ok(())
}
