//! The guests of `cargo xtask test`. The first kernel runs all of their tests, and the other kernels run the tests of
//! the eBPF programs.
//!
//! One object must load on every supported kernel, which only a test under each kernel shows. The other tests of a
//! guest depend on our code and on long-lived parts of Linux, so they run once.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use super::Options;
use super::output::{Output, Run};
use super::report::{Report, Skip};
use super::timing::{BinaryTime, StepTimer, Timing};
use crate::shell::artifact::Artifact;
use crate::shell::usage;
use crate::vm;

/// The message of a guest's kernel about a stuck processor. An emulated processor may lose a signal that another
/// one sent. If our programs caused the fault, it appears again when the guest is repeated.
const SOFT_LOCKUP: &str = "soft lockup";

/// The longest time that a guest may print nothing. Each test prints its begin and its end. All 44 tests of the
/// slowest binary took three minutes together.
const SILENCE_MAX: Duration = Duration::from_mins(5);

/// Seconds after which a guest is ended. While the tests of the host ran, all of its tests took a third of that.
const DEADLINE_SECONDS: u64 = 1_800;

/// Seconds after which a guest of a long run is ended. Such a guest runs every test.
const LONG_DEADLINE_SECONDS: u64 = 3 * 3_600;

/// A guest and the run of its tests.
#[derive(Debug)]
pub(super) struct Guest {
    /// The series of the guest's kernel.
    pub(super) series: &'static str,
    /// Whether the guest only had to run the tests of the eBPF programs.
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

    /// Returns the guest's name in the report.
    pub(super) fn name(&self) -> String {
        format!("T2 guest, Linux {}", self.series)
    }

    /// Returns the command that repeats the run of the guest.
    pub(super) fn command(&self) -> String {
        let part = if self.ebpf { " --ebpf" } else { "" };
        format!("{}{part}", self.command_for_one())
    }

    /// Returns the command for such a guest, to which the arguments for one test are added.
    pub(super) fn command_for_one(&self) -> String {
        format!("cargo xtask vm --kernel {}", self.series)
    }
}

/// The outcome of one attempt with a guest.
enum Attempt {
    Ran(Run),
    /// The attempt failed. The report contains the reason.
    Failed,
    /// The guest cannot run on this machine. The report contains the reason.
    Unavailable,
}

/// Runs T2: all of the guest's tests under the first available kernel, and the tests of the eBPF programs under the
/// others. In a long run, all tests run under each kernel. The result is empty if T2 was skipped, and the report
/// contains the reason.
///
/// Calls `beside` once: when the first processor has no guest left, or at once if T2 was skipped.
pub(super) fn run(
    options: &Options,
    artifacts: &[Artifact],
    folder: &Path,
    report: &mut Report,
    timing: &Mutex<Timing>,
    beside: &(dyn Fn() + Sync),
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
        beside();
        return Ok(Vec::new());
    }
    let guests: Vec<Guest> = usable_series(report)
        .into_iter()
        .enumerate()
        .map(|(number, series)| Guest::new(series, number > 0 && !options.long))
        .collect();
    let parts = parts(&guests, &binaries);
    let context = ShardContext {
        options,
        artifacts,
        folder,
        timing,
    };
    let mut runs: Vec<Option<Run>> = guests.iter().map(|_| None).collect();
    for (part, attempt, of_part) in run_parts(&context, &guests, parts, beside)? {
        report.merge(of_part);
        if let Attempt::Ran(run) = attempt {
            match &mut runs[part.guest] {
                Some(whole) => whole.merge(run),
                none => *none = Some(run),
            }
        }
    }
    let ran = guests.into_iter().zip(runs);
    Ok(ran
        .filter_map(|(guest, run)| run.map(|run| Guest { run, ..guest }))
        .collect())
}

/// Returns the series whose kernels are available. The report names the others.
fn usable_series(report: &mut Report) -> Vec<&'static str> {
    let is_usable = |series: &&'static str| match vm::prepare_series(series) {
        Ok(()) => true,
        Err(error) => {
            let guest = Guest::new(series, false);
            report.skip(Skip::new(
                &guest.name(),
                &format!("{error:#}"),
                &guest.command(),
            ));
            false
        }
    };
    vm::SERIES.into_iter().filter(is_usable).collect()
}

/// Test binaries that one virtual machine runs.
#[derive(Debug)]
struct GuestShard {
    /// The index of the guest to which these tests belong.
    guest: usize,
    /// The name of the part, which is also the name of its log and its step.
    name: String,
    binaries: Vec<Artifact>,
}

/// Returns the parts of all guests, the longest first. The tests of the eBPF programs take longer than all others
/// together.
fn parts(guests: &[Guest], binaries: &[Artifact]) -> Vec<GuestShard> {
    let mut parts = Vec::new();
    for takes_longest in [true, false] {
        for (number, guest) in guests.iter().enumerate() {
            let binaries: Vec<Artifact> = binaries
                .iter()
                .filter(|binary| !binary.is_test || vm::tests_programs(binary) == takes_longest)
                .cloned()
                .collect();
            if (guest.ebpf && !takes_longest) || !binaries.iter().any(vm::is_guest_test) {
                continue;
            }
            let tests = if takes_longest {
                "eBPF programs"
            } else {
                "tasks"
            };
            parts.push(GuestShard {
                guest: number,
                name: format!("{}, {tests}", guest.name()),
                binaries,
            });
        }
    }
    parts
}

/// The inputs that all parts share.
struct ShardContext<'a> {
    options: &'a Options,
    artifacts: &'a [Artifact],
    folder: &'a Path,
    timing: &'a Mutex<Timing>,
}

/// Runs the parts, one per processor at a time. A machine with emulated processors runs all of them in one thread.
/// The first processor without a part calls `beside`.
fn run_parts(
    context: &ShardContext<'_>,
    guests: &[Guest],
    parts: Vec<GuestShard>,
    beside: &(dyn Fn() + Sync),
) -> anyhow::Result<Vec<(GuestShard, Attempt, Report)>> {
    let processors = std::thread::available_parallelism()?.get();
    let workers = processors.min(parts.len()).max(1);
    let queue = Mutex::new(VecDeque::from(parts));
    let finished = Mutex::new(Vec::new());
    let beside_once = Once::new();
    let cpu = std::thread::scope(|scope| {
        let work = || {
            while let Some(part) = pop(&queue) {
                let mut report = Report::default();
                let attempt = run_part(context, &guests[part.guest], &part, &mut report)?;
                lock(&finished).push((part, attempt, report));
            }
            let cpu = usage::cpu_time();
            beside_once.call_once(beside);
            anyhow::Ok(cpu)
        };
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker returns its errors"))
            .sum::<anyhow::Result<Duration>>()
    })?;
    usage::add_cpu_time(cpu);
    let finished = finished.into_inner();
    Ok(finished.unwrap_or_else(PoisonError::into_inner))
}

/// Takes the next part. The lock is released when this function returns.
fn pop(queue: &Mutex<VecDeque<GuestShard>>) -> Option<GuestShard> {
    lock(queue).pop_front()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one part. If the machine hung, runs it once more in another machine.
fn run_part(
    context: &ShardContext<'_>,
    guest: &Guest,
    part: &GuestShard,
    report: &mut Report,
) -> anyhow::Result<Attempt> {
    let step = StepTimer::new(&part.name);
    let attempt = attempt_untimed(context, guest, part, report);
    let mut timing = lock(context.timing);
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
    context: &ShardContext<'_>,
    guest: &Guest,
    part: &GuestShard,
    report: &mut Report,
) -> anyhow::Result<Attempt> {
    let ShardContext {
        options,
        artifacts,
        folder,
        ..
    } = *context;
    let (name, command) = (&part.name, guest.command());
    let log = |times: &str| {
        let name: String = part.name.replace(", ", "-").replace(' ', "-");
        folder.join(format!("{name}{times}.log"))
    };
    let mut output = Output::new(log(""), artifacts)?;
    let (mut outcome, had_soft_lockup) = boot(options, guest, &part.binaries, &mut output);
    let hung = match &outcome {
        Ok(vm::Outcome::Silent) => Some("it said nothing any more"),
        Ok(vm::Outcome::Deadline) if had_soft_lockup => {
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
        (outcome, _) = boot(options, guest, &part.binaries, &mut output);
    }
    let failure = match outcome {
        Ok(vm::Outcome::Unavailable { reason }) => {
            report.skip(Skip::new(name, &reason, &command));
            return Ok(Attempt::Unavailable);
        }
        Err(error) => {
            report.fail(name, &format!("{error:#}"), &command);
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
    report.fail(name, &failure, &command);
    output.finish(true).map(Attempt::Ran)
}

/// Runs the tests in a guest, and returns whether one of its processors locked up.
fn boot(
    options: &Options,
    guest: &Guest,
    binaries: &[Artifact],
    output: &mut Output,
) -> (anyhow::Result<vm::Outcome>, bool) {
    let mut had_soft_lockup = false;
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
        had_soft_lockup |= line.contains(SOFT_LOCKUP);
        output.line(line);
    });
    (outcome, had_soft_lockup)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn work_beside_guests_runs_once() {
        let calls = AtomicUsize::new(0);
        let context = ShardContext {
            options: &Options::default(),
            artifacts: &[],
            folder: Path::new("/"),
            timing: &Mutex::default(),
        };

        let finished = run_parts(&context, &[], Vec::new(), &|| {
            calls.fetch_add(1, Ordering::Relaxed);
        });

        assert!(finished.unwrap().is_empty());
        assert_eq!(calls.into_inner(), 1);
    }
}
