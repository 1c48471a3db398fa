//! `cargo xtask test`: runs every test that this machine can run, and names each other test.
//!
//! There are four tiers. T0 runs in process, and T1 on this machine (real sockets, files, processes). T2 runs in a
//! guest with its own kernel, and T3 is the demo as a black box. The kind of a test's target decides between T0 and
//! T1: tests of libraries and programs are T0.
//!
//! [`guest`] runs T2, and [`output`] reads the output of the tests. [`report`] counts and prints the summary, and
//! [`required`] lists the tests that every good run must include.
//!
//! A test that cannot run reports this by a line in the file that `MUSTER_SKIP_FILE` names. libtest shows no output
//! of a test that passes, and has no status "skipped".

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

use crate::compiler::Build;
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
    /// The command that repeats the check.
    pub(crate) command: &'static str,
    pub(crate) run: fn() -> anyhow::Result<CheckOutcome>,
}

/// The check of the simulator's documents, after the build of the simulator.
const SIMULATOR_DOCUMENTS: SourceCheck = SourceCheck {
    name: "simulator, documents",
    command: "cargo xtask ci --no-test",
    run: || compiler::documents(Build::Simulator).map(CheckOutcome::from),
};

/// The outcome of a check that found no fault.
#[derive(Debug)]
pub(crate) enum CheckOutcome {
    Passed,
    /// The check could not run on this machine.
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

/// Runs the `test` command.
///
/// # Errors
///
/// When the tests could not be started. The exit status and the summary report failed tests.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    run_gate(options, false, &[], &[])
}

impl Options {
    /// Returns options that run everything, with all repetitions in a long run.
    pub(crate) fn everything(long: bool) -> Self {
        Self {
            long,
            ..Self::default()
        }
    }
}

/// Builds the tests and runs the checks `during_build` meanwhile. Then runs the checks `after_build` and the tests.
/// With `lints`, clippy compiles the tests.
///
/// # Errors
///
/// When the tests could not be started.
pub(crate) fn run_gate(
    options: &Options,
    lints: bool,
    during_build: &[SourceCheck],
    after_build: &[SourceCheck],
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
    // The build does not use both processors all the time.
    let built = std::thread::scope(|scope| {
        scope.spawn(|| {
            for check in during_build {
                all.check(*check);
            }
        });
        all.prepare_and_build()
    });
    match built {
        Ok(artifacts) => {
            all.timing()
                .add_crates(timing::crates_of_last_build(&shell::target_dir()));
            all.run_all(&artifacts, after_build)?;
        }
        Err(error) => {
            all.report().fail(
                "build",
                &format!("{error:#}"),
                "cargo test --workspace --no-run",
            );
            for check in after_build {
                all.check(*check);
            }
        }
    }
    all.finish()
}

/// The data of a run of the gate that its threads share.
struct GateRun<'a> {
    options: &'a Options,
    /// Whether clippy is the compiler, so that one build produces both programs and lints.
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

    /// Runs `work` and records its wall time and processor time.
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

    /// Installs packages during the compilation, which needs only a C compiler, and make in a long run.
    fn prepare_and_build(&self) -> anyhow::Result<Vec<Artifact>> {
        let build = || self.step("build", || self.build_tests());
        if !setup::can_compile(self.options.long) {
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

    /// Builds every test and program, except those of the simulator, which are built with optimisation.
    fn build_tests(&self) -> anyhow::Result<Vec<Artifact>> {
        let mut cargo = self.build_command(Build::Tests)?;
        cargo.args(["--all-targets", "--timings"]);
        if self.options.packages.is_empty() {
            cargo.args(["--workspace", "--exclude", sim::PROGRAM]);
        }
        let packages = self.options.packages.iter();
        cargo.args(packages.flat_map(|package| ["--package", package]));
        self.build(cargo)
    }

    /// Returns a `cargo build` command. In the gate the compiler is clippy, which checks and compiles in one run.
    fn build_command(&self, build: Build) -> anyhow::Result<Command> {
        // A long run also tests the allocator of releases.
        let mut cargo = if self.options.long {
            let mut cargo = shell::cargo();
            cargo.arg("build");
            cargo
        } else {
            shell::cargo_build()
        };
        if self.lints {
            compiler::lint_and_record(&mut cargo, build)?;
        }
        Ok(cargo)
    }

    /// Runs a build. In the gate, each warning is a failure.
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

    /// Installs missing programs and builds the eBPF object. Most tests can run without them, and the other tests
    /// report that they cannot.
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

    /// Runs the checks and then the tiers. The order is: the simulator, the guests with T0 and the demo during the
    /// last guests, then T1.
    ///
    /// A compiler or a guest during T1 cost more time than it saved, even at the lowest priority. A compiler that is
    /// preempted within the kernel delays RCU grace periods. Every attached eBPF program and every removed namespace
    /// waits for them, so tests of agents took five times as long. A guest that gets little processor time fails its
    /// tests of rates.
    fn run_all(&self, artifacts: &[Artifact], after_build: &[SourceCheck]) -> anyhow::Result<()> {
        // The checks run one after the other, because the build of the simulator may replace libraries that rustdoc
        // reads.
        for check in after_build {
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

    /// Runs the tests among `artifacts` on this machine.
    fn host_tests(&self, step: &str, artifacts: &[Artifact]) -> anyhow::Result<Run> {
        self.step(step, || {
            host::run(artifacts, self.folder, &self.timing, self.options.long)
        })
    }

    /// Runs T2, with `beside` on the first processor that has no guest left.
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

    /// Runs the simulated cluster, a part of T0: the tests of the simulator, then its seeds. It is compiled with
    /// optimisation.
    fn simulator(&self) -> anyhow::Result<Option<(Run, Vec<Artifact>)>> {
        const COMMAND: &str = "cargo xtask sim --seeds 200";
        let packages = &self.options.packages;
        if !packages.is_empty() && !packages.iter().any(|package| package == sim::PROGRAM) {
            return Ok(None);
        }
        let built = self.step("simulator, build", || {
            let mut cargo = self.build_command(Build::Simulator)?;
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
        if self.lints {
            self.check(SIMULATOR_DOCUMENTS);
        }
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

    /// Runs the demo (T3).
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

    /// Prints the tables and the summary, writes them to the report's folder, and returns the exit status.
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
        // If the programs cannot be built, it is unknown whether they are broken.
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

/// Runs the demo as a separate process. Without a terminal it does not wait for input.
fn demo(artifacts: &[Artifact], folder: &Path) -> anyhow::Result<()> {
    let muster = artifacts
        .iter()
        .find(|artifact| vm::is_muster(artifact))
        .context("`muster` was not built")?;
    let log = folder.join("demo.log");
    let mut text = String::new();
    let mut command = Command::new(shell::copy_own_program()?);
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
