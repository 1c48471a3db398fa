//! `cargo xtask test`: every test that this machine can run, and the name of each it cannot.
//!
//! Four tiers: T0 in process, T1 on this machine (real sockets, files, processes), T2 in a guest
//! with its own kernel, T3 the demo as a black box. T0 and T1 are one run of `cargo test`, told
//! apart by what kind of target a test is in. [`guest`] runs T2, [`output`] reads what the tests print, [`report`]
//! counts and prints the summary, [`required`] names the tests without which no run is good.
//!
//! A test that cannot run says so by a line in the file that `MUSTER_SKIP_FILE` names: libtest
//! shows nothing of a test that passes, and knows no "skipped".

mod guest;
mod output;
mod report;
mod required;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Context;

use crate::shell::artifact::{self, Artifact};
use crate::{ebpf, setup, shell};
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
            let guests = guest::run(options, &artifacts, &folder, &mut report)?;
            let whole = guests.iter().find(|guest| !guest.ebpf);
            let whole = whole.map(|guest| &guest.run);
            report.add_host(&host, &artifacts, whole);
            if options.packages.is_empty() {
                required::check(&mut report, &host, &guests);
            }
            for guest in &guests {
                report.add_guest(guest, &host);
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
