//! Starts QEMU: the acceleration, the guest's devices, the console and the status.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::Outcome;
use super::initramfs;
use super::kernel::Kernel;
use crate::shell::{self, usage};

/// The longest time for a guest to prove that KVM works. With KVM it boots in about a second. If KVM is offered but
/// does not work, a guest hangs for ever, and this time is lost once.
const KVM_PROBE_DEADLINE: Duration = Duration::from_secs(12);

/// Interval between two checks of whether the guest has ended. A boot takes two seconds.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The kernel's arguments. The status goes through the second serial port, so the console may contain any text.
/// `panic=-1` with `-no-reboot` ends QEMU after a panic.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 rdinit=/init quiet loglevel=3 panic=-1 oops=panic \
     cgroup_no_v1=all random.trust_cpu=on no_timer_check";

/// The execution of the guest's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acceleration {
    /// The host's kernel runs them on the real processor (KVM).
    Kvm,
    /// QEMU translates their code (TCG), which is slower but works everywhere.
    Tcg,
}

impl Acceleration {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG (no usable KVM)",
        }
    }

    /// Returns QEMU's arguments. Translated processors share one thread. With a thread each, both were seen to hang
    /// for ever, twice in some fifteen runs of the guest's tests (QEMU 7.2, Linux 6.1.192). The shared thread makes
    /// those a quarter slower.
    fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => ["-accel", "tcg,thread=single", "-cpu", "max"],
        }
    }
}

/// A guest to start.
#[derive(Debug)]
pub(crate) struct Guest<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) initrd: &'a Path,
    /// The file into which QEMU writes the output of the guest's second serial port.
    pub(crate) status_file: &'a Path,
    pub(crate) accel: Acceleration,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: u8,
    pub(crate) deadline: Duration,
    /// The longest time that the guest may print nothing.
    pub(crate) silence: Option<Duration>,
}

/// Returns the acceleration that works here: KVM only if a guest has booted with it. The answer is kept in `cache`
/// until this machine's kernel or QEMU changes, or `refresh` is set.
///
/// # Errors
///
/// When the probe's guest cannot be made.
pub(crate) fn acceleration(
    cache: &Path,
    kernel: &Kernel,
    refresh: bool,
) -> anyhow::Result<Acceleration> {
    if !Path::new("/dev/kvm").exists() {
        return Ok(Acceleration::Tcg);
    }
    let file = cache.join("acceleration");
    let machine = machine()?;
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    if !refresh && let Some(answer) = known.strip_prefix(&machine) {
        return Ok(if answer.trim() == "kvm" {
            Acceleration::Kvm
        } else {
            Acceleration::Tcg
        });
    }
    let works = probe_kvm(cache, kernel)?;
    let answer = if works { "kvm" } else { "tcg" };
    std::fs::write(&file, format!("{machine}{answer}\n"))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(if works {
        Acceleration::Kvm
    } else {
        Acceleration::Tcg
    })
}

/// Returns the facts on which the probe's answer depends, one per line.
fn machine() -> anyhow::Result<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .context("cannot read this machine's kernel release")?;
    let version = shell::capture(Command::new("qemu-system-x86_64").arg("--version"))?;
    let version = version.lines().next().unwrap_or_default();
    Ok(format!("{}\n{version}\n", release.trim()))
}

fn probe_kvm(cache: &Path, kernel: &Kernel) -> anyhow::Result<bool> {
    let work = super::WorkDir::new(cache, "kvm-probe")?;
    let initrd = work.path.join("initrd.cpio");
    initramfs::write(&initrd, kernel, &[], "exit 42\n", true)?;
    let guest = Guest {
        kernel,
        initrd: &initrd,
        status_file: &work.path.join("status"),
        accel: Acceleration::Kvm,
        memory_mib: 512,
        cpus: 2,
        deadline: KVM_PROBE_DEADLINE,
        silence: None,
    };
    let outcome = run(&guest, &mut std::io::sink(), &mut |_| ())?;
    Ok(matches!(outcome, Outcome::Ended(42)))
}

/// Starts the guest and waits for its end or the deadline. Copies its console to `console` as it arrives, and each
/// line to `on_line`.
///
/// # Errors
///
/// When QEMU cannot be started.
pub(crate) fn run(
    guest: &Guest<'_>,
    console: &mut (dyn Write + Send),
    on_line: &mut dyn FnMut(&str),
) -> anyhow::Result<Outcome> {
    let mut child = command(guest)
        .stdin(stdin())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start qemu-system-x86_64; run: cargo xtask setup")?;
    let output = child.stdout.take().context("QEMU's output is a pipe")?;
    let last_output = Mutex::new(Instant::now());
    let (end, exit_status) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let ended = wait(&mut child, guest, &last_output);
            (ended, usage::cpu_time())
        });
        let output = WatchedReader {
            reader: output,
            at: &last_output,
        };
        let copied = shell::copy(output, console, on_line);
        let (ended, cpu) = watch.join().expect("the watching thread does not panic");
        usage::add_cpu_time(cpu);
        copied.and(ended)
    })?;
    Ok(match end {
        GuestEnd::Reported(status) => Outcome::Ended(status),
        GuestEnd::Deadline => Outcome::Deadline,
        GuestEnd::Silent => Outcome::Silent,
        GuestEnd::Alone => Outcome::Vanished {
            status: exit_status.to_string(),
        },
    })
}

/// A reader that notes the time of its last data.
#[derive(Debug)]
struct WatchedReader<'a, R> {
    reader: R,
    at: &'a Mutex<Instant>,
}

impl<R: Read> Read for WatchedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.reader.read(buffer)?;
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(count)
    }
}

/// The reason why a guest ended.
#[derive(Debug)]
enum GuestEnd {
    /// The guest reported the command's status.
    Reported(u8),
    /// The deadline passed.
    Deadline,
    /// The guest had printed nothing for too long.
    Silent,
    /// QEMU ended by itself, without a status.
    Alone,
}

/// Waits for the guest's status, the deadline or the end of QEMU, and ends QEMU.
fn wait(
    child: &mut Child,
    guest: &Guest<'_>,
    last_output: &Mutex<Instant>,
) -> anyhow::Result<(GuestEnd, ExitStatus)> {
    let started = Instant::now();
    let end = loop {
        // The order matters: a status that was written before QEMU ended counts.
        let exited = child.try_wait().context("cannot wait for QEMU")?.is_some();
        if let Some(status) = status(guest.status_file) {
            break GuestEnd::Reported(status);
        }
        if exited {
            break GuestEnd::Alone;
        }
        if started.elapsed() > guest.deadline {
            break GuestEnd::Deadline;
        }
        let last_output = *last_output.lock().unwrap_or_else(PoisonError::into_inner);
        if guest
            .silence
            .is_some_and(|most| last_output.elapsed() > most)
        {
            break GuestEnd::Silent;
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    child.kill().context("cannot end QEMU")?;
    Ok((end, usage::wait(child)?))
}

/// Returns the status that the guest has reported: a number and the end of its line.
fn status(file: &Path) -> Option<u8> {
    std::fs::read_to_string(file)
        .ok()?
        .strip_suffix('\n')?
        .trim()
        .parse()
        .ok()
}

/// Returns QEMU's standard input. The guest reads only a terminal, because a file or a pipe may serve other programs.
fn stdin() -> Stdio {
    if std::io::stdin().is_terminal() {
        Stdio::inherit()
    } else {
        Stdio::null()
    }
}

fn command(guest: &Guest<'_>) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(guest.accel.arguments())
        .args([
            "-machine",
            "pc",
            "-no-reboot",
            "-no-user-config",
            "-nodefaults",
        ])
        .args([
            "-m",
            &guest.memory_mib.to_string(),
            "-smp",
            &guest.cpus.to_string(),
        ])
        .args(["-display", "none", "-serial", "stdio"])
        .args(["-serial", &format!("file:{}", guest.status_file.display())])
        .arg("-kernel")
        .arg(&guest.kernel.image)
        .arg("-initrd")
        .arg(guest.initrd)
        .args(["-append", KERNEL_ARGUMENTS]);
    qemu
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Returns the end of a program that prints nothing and does not end by itself.
    fn end_of_a_silent_one(deadline: Duration, silence: Option<Duration>) -> GuestEnd {
        let nowhere = PathBuf::from("/nonexistent");
        let kernel = Kernel {
            release: String::new(),
            image: nowhere.clone(),
            modules: nowhere.clone(),
        };
        let guest = Guest {
            kernel: &kernel,
            initrd: &nowhere,
            status_file: &nowhere,
            accel: Acceleration::Tcg,
            memory_mib: 0,
            cpus: 1,
            deadline,
            silence,
        };
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let last_output = Mutex::new(Instant::now());
        wait(&mut child, &guest, &last_output).unwrap().0
    }

    #[test]
    fn silent_guest_is_ended() {
        let end = end_of_a_silent_one(Duration::MAX, Some(Duration::ZERO));

        assert!(matches!(end, GuestEnd::Silent), "{end:?}");
    }

    #[test]
    fn silence_without_a_limit_lasts_to_the_deadline() {
        let end = end_of_a_silent_one(Duration::ZERO, None);

        assert!(matches!(end, GuestEnd::Deadline), "{end:?}");
    }
}
