//! `cargo xtask test`: every test that this machine can run, and the name of each it cannot.
//!
//! Four tiers: T0 in process, T1 on this machine (real sockets, files, processes), T2 in a guest
//! with its own kernel, T3 the demo as a black box. T0 and T1 are one run of `cargo test`, told
//! apart by what kind of target a test is in. [`output`] reads what the tests print, [`report`]
//! counts and prints the summary, [`required`] names the tests without which no run is good.
//!
//! A test that cannot run says so by a line in the file that `MUSTER_SKIP_FILE` names: libtest
//! shows nothing of a test that passes, and knows no "skipped".

mod output;
mod report;
mod required;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::shell::artifact::{self, Artifact};
use crate::{ebpf, setup, shell, vm};
use output::{Output, Run};
use report::{Report, Skip};

/// Minutes after which the tests of T0 and T1 are ended when nobody watches. They take 21 on two
/// cores; the rest is for a slow machine.
const HOST_MINUTES_MAX: u32 = 45;

/// What to leave out.
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
    /// Fail when anything was skipped
    #[arg(long, conflicts_with_all = ["no_vm", "no_demo", "quick", "packages"])]
    require_all: bool,
}

/// The `test` command.
///
/// # Errors
///
/// When the tests could not be started. What failed is in the exit status and the summary.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    println!("muster test · T0 in process, T1 this machine, T2 QEMU guest, T3 demo");
    let folder = shell::target_dir().join("test-report");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let mut report = Report::default();
    prepare(options, &mut report);

    match build(options) {
        Ok(artifacts) => {
            let host = host(options, &artifacts, &folder)?;
            let guest = guest(options, &artifacts, &folder, &mut report)?;
            report.add_host(&host, &artifacts, guest.as_ref());
            if options.packages.is_empty() {
                required::check(&mut report, &host, guest.as_ref());
            }
            if let Some(guest) = guest {
                report.add_guest(&guest, &host);
            }
            run_demo(options, &mut report);
        }
        Err(error) => report.fail(
            "build",
            &format!("{error:#}"),
            "cargo test --workspace --no-run",
        ),
    }
    print!("{}", report.summary(&folder));
    Ok(report.exit_code(options.require_all))
}

/// Installs what is missing and builds the eBPF object. Without them most tests can run, and those
/// that cannot say so.
fn prepare(options: &Options, report: &mut Report) {
    if options.quick {
        report.skip(Skip::new(
            "setup, build-ebpf",
            "--quick",
            "cargo xtask setup && cargo xtask build-ebpf",
        ));
        return;
    }
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

/// Builds every test and program, and returns them.
fn build(options: &Options) -> anyhow::Result<Vec<Artifact>> {
    let started = Instant::now();
    let artifacts = artifact::build(cargo_test(options).arg("--no-run"))?;
    println!("  built in {}", shell::seconds(started.elapsed()));
    Ok(artifacts)
}

fn cargo_test(options: &Options) -> Command {
    let mut cargo = shell::cargo();
    cargo.arg("test");
    if options.packages.is_empty() {
        cargo.arg("--workspace");
    }
    cargo.args(
        options
            .packages
            .iter()
            .flat_map(|package| ["--package", package]),
    );
    cargo
}

/// T0 and T1.
fn host(options: &Options, artifacts: &[Artifact], folder: &Path) -> anyhow::Result<Run> {
    let skip_file = folder.join("skipped-host");
    remove_if_exists(&skip_file)?;
    let mut command = bounded(cargo_test(options));
    command.arg("--no-fail-fast");
    command.env("MUSTER_SKIP_FILE", &skip_file);
    command
        .env_remove("UPDATE_EXPECT")
        .env_remove("MUSTER_BLESS");

    let mut output = Output::new(folder.join("host.log"), artifacts)?;
    let status = shell::lines(&mut command, &mut |line| output.line(line))?;
    let mut run = output.finish(status.success())?;
    let skipped = std::fs::read_to_string(&skip_file).unwrap_or_default();
    run.skipped.extend(skipped.lines().map(str::to_owned));
    Ok(run)
}

/// `cargo` with a time limit on it and on all it starts. Not at a terminal, where somebody can
/// end it: `timeout` would keep the terminal's interrupt from reaching the tests.
fn bounded(cargo: Command) -> Command {
    if std::io::IsTerminal::is_terminal(&std::io::stdout())
        || shell::find_program("timeout").is_none()
    {
        return cargo;
    }
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10s", &format!("{HOST_MINUTES_MAX}m")])
        .arg(cargo.get_program())
        .args(cargo.get_args());
    command.current_dir(shell::root());
    for (name, value) in cargo.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// T2; `None` when it was skipped, and the report says why.
fn guest(
    options: &Options,
    artifacts: &[Artifact],
    folder: &Path,
    report: &mut Report,
) -> anyhow::Result<Option<Run>> {
    const COMMAND: &str = "cargo xtask vm";
    let binaries = vm::choose(artifacts);
    let reason = if options.quick {
        Some("--quick")
    } else if options.no_vm {
        Some("--no-vm")
    } else if !binaries.iter().any(vm::is_guest_test) {
        Some("there are no tests for it yet")
    } else {
        None
    };
    if let Some(reason) = reason {
        report.skip(Skip::new("T2 guest", reason, COMMAND));
        return Ok(None);
    }
    let mut output = Output::new(folder.join("guest.log"), artifacts)?;
    let (mut outcome, stood_still) = boot(&binaries, &mut output);
    let hung = match &outcome {
        Ok(vm::Outcome::Silent) => Some("it said nothing any more"),
        Ok(vm::Outcome::Deadline) if stood_still => {
            Some("one of its processors stood still (soft lockup)")
        }
        Ok(_) | Err(_) => None,
    };
    if let Some(how) = hung {
        let reason = &format!("the emulated machine hung, {how}: a second guest runs the tests");
        report.skip(Skip::new("T2 guest, first attempt", reason, COMMAND));
        output = Output::new(folder.join("guest-2.log"), artifacts)?;
        (outcome, _) = boot(&binaries, &mut output);
    }
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            report.fail("T2 guest", &format!("{error:#}"), COMMAND);
            return Ok(None);
        }
    };
    let success = !matches!(outcome, vm::Outcome::Ended(1..));
    match outcome {
        vm::Outcome::Unavailable { reason } => {
            report.skip(Skip::new("T2 guest", &reason, COMMAND));
            return Ok(None);
        }
        vm::Outcome::Ended(_) => {}
        vm::Outcome::Deadline => report.fail("T2 guest", "it did not end in time", COMMAND),
        vm::Outcome::Silent => {
            let reason = format!("it said nothing for {GUEST_SILENCE_MAX:?} and was ended");
            report.fail("T2 guest", &reason, COMMAND);
        }
        vm::Outcome::Vanished { status } => {
            report.fail(
                "T2 guest",
                &format!("it went away, QEMU ended with {status}"),
                COMMAND,
            );
        }
    }
    output.finish(success).map(Some)
}

/// What the guest's kernel says when a processor of its machine does not come back. An emulated one may lose what
/// another sent it; what is our programs' fault stands still again.
const STOOD_STILL: &str = "soft lockup";

/// How long the guest may say nothing. Each test says when it begins and ends; all 44 of the binary that takes longest
/// took three minutes together.
const GUEST_SILENCE_MAX: Duration = Duration::from_mins(5);

/// Runs the tests in a guest, and says whether one of its processors stood still.
fn boot(binaries: &[Artifact], output: &mut Output) -> (anyhow::Result<vm::Outcome>, bool) {
    let mut stood_still = false;
    let options = vm::Options {
        silence: Some(GUEST_SILENCE_MAX),
        ..vm::Options::default()
    };
    let outcome = vm::guest(&options, binaries, &mut std::io::sink(), &mut |line| {
        stood_still |= line.contains(STOOD_STILL);
        output.line(line);
    });
    (outcome, stood_still)
}

/// T3.
fn run_demo(options: &Options, report: &mut Report) {
    const COMMAND: &str = "cargo xtask demo";
    if options.quick || options.no_demo {
        let reason = if options.quick {
            "--quick"
        } else {
            "--no-demo"
        };
        report.skip(Skip::new("T3 demo", reason, COMMAND));
        return;
    }
    let started = Instant::now();
    let result = demo();
    report.add_demo(result.is_ok(), started.elapsed());
    if let Err(error) = result {
        report.name_failure("demo", &format!("{error:#}"), COMMAND);
    }
}

/// Runs the demo as a program of its own: away from the terminal it waits for nobody.
fn demo() -> anyhow::Result<()> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    let status = shell::lines(command.arg("demo"), &mut |line| println!("{line}"))?;
    anyhow::ensure!(status.success(), "it ended with {status}");
    Ok(())
}

fn remove_if_exists(path: &PathBuf) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
