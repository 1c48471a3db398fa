//! The guests of `cargo xtask test`: all of their tests under one kernel, those of the eBPF programs under the others.
//!
//! One object has to load on every supported kernel, which only those kernels can say. The rest of what a guest tests is
//! ours and Linux's for longer than that, so it is run once.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Options;
use super::output::{Output, Run};
use super::report::{Report, Skip};
use super::timing::{BinaryTime, Started, Timing};
use crate::shell::artifact::Artifact;
use crate::vm;

/// What a guest's kernel says when a processor of its machine does not come back. An emulated one may lose what
/// another sent it; what is our programs' fault stands still again.
const STOOD_STILL: &str = "soft lockup";

/// How long a guest may say nothing. Each test says when it begins and ends; all 44 of the binary that takes longest
/// took three minutes together.
const SILENCE_MAX: Duration = Duration::from_mins(5);

/// Seconds after which a guest is ended. All of its tests took a third of that beside the tests of the host.
const DEADLINE_SECONDS: u64 = 1_800;

/// The same for a long run, in which it runs every test.
const LONG_DEADLINE_SECONDS: u64 = 3 * 3_600;

/// What was run in a guest.
#[derive(Debug)]
pub(super) struct Guest {
    /// The series of its kernel.
    pub(super) series: &'static str,
    /// Whether the tests of the eBPF programs were all there was to run.
    pub(super) ebpf: bool,
    pub(super) run: Run,
}

impl Guest {
    pub(super) fn new(series: &'static str, ebpf: bool) -> Self {
        Self {
            series,
            ebpf,
            run: Run::default(),
        }
    }

    /// How the report calls it.
    pub(super) fn name(&self) -> String {
        format!("T2 guest, Linux {}", self.series)
    }

    /// What runs the same again.
    pub(super) fn command(&self) -> String {
        let part = if self.ebpf { " --ebpf" } else { "" };
        format!("{}{part}", self.command_for_one())
    }

    /// What a command in such a guest begins with.
    pub(super) fn command_for_one(&self) -> String {
        format!("cargo xtask vm --kernel {}", self.series)
    }
}

/// What came of a guest.
enum Attempt {
    Ran(Run),
    /// The report says how.
    Failed,
    /// This machine cannot have it; the report says why.
    Unavailable,
}

/// T2: all of the guest's tests under the first kernel that can be had, and those of the eBPF programs under the others;
/// in a long run, all tests under each. The result is empty where T2 was
/// skipped; the report says why.
pub(super) fn run(
    options: &Options,
    artifacts: &[Artifact],
    folder: &Path,
    report: &mut Report,
    timing: &Mutex<Timing>,
) -> anyhow::Result<Vec<Guest>> {
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
        report.skip(Skip::new("T2 guest", reason, "cargo xtask vm"));
        return Ok(Vec::new());
    }
    let one = |guest: Guest| {
        let mut report = Report::default();
        let attempt = attempt(
            options,
            &guest,
            &binaries,
            artifacts,
            folder,
            &mut report,
            timing,
        );
        (guest, attempt, report)
    };
    let planned: Vec<Guest> = vm::SERIES
        .into_iter()
        .enumerate()
        .map(|(number, series)| Guest::new(series, number > 0 && !options.long))
        .collect();
    // One after the other: their tests of rates need a whole processor each, which a machine with two may not have.
    let finished: Vec<_> = planned.into_iter().map(one).collect();
    let mut guests = Vec::new();
    for (mut guest, attempt, of_guest) in finished {
        report.merge(of_guest);
        if let Attempt::Ran(run) = attempt? {
            guest.run = run;
            guests.push(guest);
        }
    }
    Ok(guests)
}

/// Runs one guest, and another in its place if its machine hung.
fn attempt(
    options: &Options,
    guest: &Guest,
    binaries: &[Artifact],
    artifacts: &[Artifact],
    folder: &Path,
    report: &mut Report,
    timing: &Mutex<Timing>,
) -> anyhow::Result<Attempt> {
    let step = Started::new(&guest.name());
    let attempt = attempt_untimed(options, guest, binaries, artifacts, folder, report);
    let mut timing = timing.lock().unwrap_or_else(PoisonError::into_inner);
    timing.end(step);
    if let Ok(Attempt::Ran(run)) = &attempt {
        for binary in &run.binaries {
            let name = format!("{}: {}", guest.name(), binary.executable);
            timing.add_binary(BinaryTime {
                name: name.clone(),
                wall: binary.duration,
                cpu: None,
            });
            timing.add_tests(&name, binary.times.clone());
        }
    }
    attempt
}

fn attempt_untimed(
    options: &Options,
    guest: &Guest,
    binaries: &[Artifact],
    artifacts: &[Artifact],
    folder: &Path,
    report: &mut Report,
) -> anyhow::Result<Attempt> {
    let (name, command) = (guest.name(), guest.command());
    let log = |times: &str| folder.join(format!("guest-{}{times}.log", guest.series));
    let mut output = Output::new(log(""), artifacts)?;
    let (mut outcome, stood_still) = boot(options, guest, binaries, &mut output);
    let hung = match &outcome {
        Ok(vm::Outcome::Silent) => Some("it said nothing any more"),
        Ok(vm::Outcome::Deadline) if stood_still => {
            Some("one of its processors stood still (soft lockup)")
        }
        Ok(_) | Err(_) => None,
    };
    if let Some(how) = hung {
        let reason = &format!("the emulated machine hung, {how}: a second guest runs the tests");
        report.skip(Skip::new(
            &format!("{name}, first attempt"),
            reason,
            &command,
        ));
        output = Output::new(log("-2"), artifacts)?;
        (outcome, _) = boot(options, guest, binaries, &mut output);
    }
    let failure = match outcome {
        Ok(vm::Outcome::Unavailable { reason }) => {
            report.skip(Skip::new(&name, &reason, &command));
            return Ok(Attempt::Unavailable);
        }
        Err(error) => {
            report.fail(&name, &format!("{error:#}"), &command);
            return Ok(Attempt::Failed);
        }
        Ok(vm::Outcome::Ended(status)) => {
            return output.finish(status == 0).map(Attempt::Ran);
        }
        Ok(vm::Outcome::Deadline) => "it did not end in time".to_owned(),
        Ok(vm::Outcome::Silent) => {
            format!("it said nothing for {SILENCE_MAX:?} and was ended")
        }
        Ok(vm::Outcome::Vanished { status }) => {
            format!("it went away, QEMU ended with {status}")
        }
    };
    report.fail(&name, &failure, &command);
    output.finish(true).map(Attempt::Ran)
}

/// Runs the tests in a guest, and says whether one of its processors stood still.
fn boot(
    options: &Options,
    guest: &Guest,
    binaries: &[Artifact],
    output: &mut Output,
) -> (anyhow::Result<vm::Outcome>, bool) {
    let mut stood_still = false;
    let options = vm::Options {
        kernel: guest.series.to_owned(),
        ebpf: guest.ebpf,
        long: options.long,
        timeout: if options.long {
            LONG_DEADLINE_SECONDS
        } else {
            DEADLINE_SECONDS
        },
        silence: Some(SILENCE_MAX),
        ..vm::Options::default()
    };
    let outcome = vm::guest(&options, binaries, &mut std::io::sink(), &mut |line| {
        stood_still |= line.contains(STOOD_STILL);
        output.line(line);
    });
    (outcome, stood_still)
}
