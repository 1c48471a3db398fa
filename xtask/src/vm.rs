//! `cargo xtask vm`: runs a command as root in a guest with its own kernel and pure cgroup v2.
//!
//! Some tests need privileged features that a developer's machine may not offer, such as limits and the OOM killer.
//! They run in a QEMU guest. Its kernel is Debian's, unpacked from the package and not installed ([`kernel`]). Its
//! file system is an archive with busybox, our binaries and the libraries they need ([`initramfs`]). [`qemu`] starts
//! the guest, shows its console and returns the status that the guest reports on a second serial port.
//!
//! This command writes nothing outside the target folder. The guest has neither network nor disk.

mod cpio;
mod initramfs;
mod kernel;
mod qemu;

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;

use crate::shell;
use crate::shell::artifact::{self, Artifact};

pub(crate) use kernel::SERIES;

/// The test binaries of the guest: package and target. One that does not exist yet is named and left out.
const GUEST_TESTS: [(&str, &str); 3] = [
    ("muster-agent", "vm"),
    ("muster-agent", "it"),
    ("muster-driver-native", "isolation"),
];

/// A test binary, and libtest's arguments that select some of its tests.
type Filter = (&'static str, &'static str);

/// The tests of the eBPF programs that run under each kernel. Every program is loaded, attached, counts and decides.
/// This machine runs all tests of the programs, and so does each guest in a long run.
macro_rules! ebpf_tests {
    () => {
        "adoption::this_kernel adoption::counts_and_exits block:: exec:: group::walk_matches nat::published \
         net::connections net::retransmits policy::a_datagram policy::a_new_policy policy::a_socket \
         policy::connections policy::datagrams policy::loopback policy::new_policy policy::restarted_agent \
         policy::server_task policy::task_attached policy::verdicts rates::datagrams rates::egress rates::ingress \
         sched::cpu_time sched::waiting network_paths::passed_socket network_paths::raw_socket"
    };
}

/// The tests that depend on cgroup v2, on the kernel, or on mounts that a container does not allow. All others run on
/// this machine only, because an emulated machine takes five to ten times as long.
const GUEST_FILTERS: [Filter; 3] = [
    (
        "it",
        "disk::raw_root_task disk::a_task_cannot disk::job_update disk::enforcement disk::quota limits:: \
         run::memory_limit_is_reported run::oom_killed_child \
         survival::exits_without_an_agent",
    ),
    (
        "isolation",
        "boundary:: host::cgroup_with_foreign host::host_cgroup_limits host::missing_cgroup \
         isolation_audits::escape::script isolation_audits::introspection isolation_audits::oci \
         --skip introspection::contained_root --skip oci::contained_root --skip contained_root_task",
    ),
    (
        EBPF_TESTS.0,
        concat!(
            ebpf_tests!(),
            " limits:: memory:: node:: oom:: stress:: stress_ng::"
        ),
    ),
];

/// The binary that tests the eBPF programs, with [`ebpf_tests`].
const EBPF_TESTS: Filter = ("vm", ebpf_tests!());

/// The exit status when the guest was ended at its deadline. It equals that of `timeout`.
const STATUS_DEADLINE: u8 = 124;

/// Options for the guest and for its command.
#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Options {
    /// The command; without one, the guest's tests
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
    /// The guest's memory in MiB
    #[arg(long, default_value_t = 2048)]
    pub(crate) memory: u32,
    /// The guest's processors
    #[arg(long, default_value_t = 2)]
    pub(crate) cpus: u8,
    /// The series of its kernel, as 6.1 or 6.12: the newest of it that Debian's archive has for clouds
    #[arg(long, default_value = SERIES[0], value_name = "SERIES", value_parser = parse_series)]
    pub(crate) kernel: String,
    /// Of the guest's tests, those of the eBPF programs alone
    #[arg(long)]
    pub(crate) ebpf: bool,
    /// All tests of the guest's binaries, also those that run on this machine
    #[arg(long)]
    pub(crate) long: bool,
    /// Seconds after which the guest is ended
    #[arg(long, default_value_t = 1200, value_name = "SECONDS")]
    pub(crate) timeout: u64,
    /// Take the `muster` of a release build
    #[arg(long)]
    pub(crate) release: bool,
    /// Build nothing: take what the target folder has, or busybox alone
    #[arg(long, conflicts_with = "release")]
    pub(crate) no_build: bool,
    /// Build and run one of the guest's tests alone
    #[arg(long, value_name = "NAME", conflicts_with_all = ["release", "no_build"])]
    pub(crate) test: Option<String>,
    /// Look for a newer kernel than the one unpacked, and try KVM again
    #[arg(long)]
    pub(crate) refresh: bool,
    /// Keep the guest's file system and say where it is
    #[arg(long)]
    pub(crate) keep_initrd: bool,
    /// How long the guest may say nothing before it is ended
    #[arg(skip)]
    pub(crate) silence: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            memory: 2048,
            cpus: 2,
            kernel: SERIES[0].to_owned(),
            ebpf: false,
            long: false,
            timeout: 1200,
            release: false,
            no_build: false,
            test: None,
            refresh: false,
            keep_initrd: false,
            silence: None,
        }
    }
}

/// Parses a series of kernels: numbers separated by dots. It becomes part of a file's name.
fn parse_series(text: &str) -> Result<String, String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if text.split('.').all(is_number) {
        return Ok(text.to_owned());
    }
    let tested = SERIES.join(", ");
    Err(format!(
        "a series is numbers with dots between them; tested are {tested}"
    ))
}

/// The outcome of a guest's command.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The command ran and ended with this status.
    Ended(u8),
    /// The guest was ended at the deadline.
    Deadline,
    /// The guest was ended because it had printed nothing for too long.
    Silent,
    /// The guest ended without a status, because its kernel panicked or QEMU failed.
    Vanished {
        /// QEMU's exit status, as text.
        status: String,
    },
    /// This machine cannot run a guest.
    Unavailable {
        /// The reason, and the remedy.
        reason: String,
    },
}

/// Runs the `vm` command.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let binaries = binaries(options)?;
    if options.command.is_empty() && !binaries.iter().any(is_guest_test) {
        anyhow::bail!(
            "there are no tests for the guest; give a command: cargo xtask vm -- COMMAND"
        );
    }
    match guest(options, &binaries, &mut std::io::stdout(), &mut |_| ())? {
        Outcome::Ended(status) => Ok(ExitCode::from(status)),
        Outcome::Deadline | Outcome::Silent => {
            eprintln!(
                "error: the guest did not end within {} s and was ended",
                options.timeout
            );
            Ok(ExitCode::from(STATUS_DEADLINE))
        }
        Outcome::Vanished { status } => anyhow::bail!(
            "the guest went away without a status (QEMU ended with {status}); its console above says why"
        ),
        Outcome::Unavailable { reason } => anyhow::bail!("no guest on this machine: {reason}"),
    }
}

/// Boots a guest with `binaries` and runs the command in it. Copies its console to `console` as it arrives, and
/// passes each line to `on_line`.
///
/// # Errors
///
/// When the guest's file system cannot be made. If this machine lacks a requirement of a guest, the result is
/// [`Outcome::Unavailable`] and not an error.
pub(crate) fn guest(
    options: &Options,
    binaries: &[Artifact],
    console: &mut (dyn Write + Send),
    on_line: &mut dyn FnMut(&str),
) -> anyhow::Result<Outcome> {
    let cache = shell::target_dir().join("vm");
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    if let Some(reason) = reason_against_guest() {
        return Ok(Outcome::Unavailable { reason });
    }
    let kernel = match kernel::fetch(&cache, &options.kernel, options.refresh) {
        Ok(kernel) => kernel,
        Err(error) => {
            return Ok(Outcome::Unavailable {
                reason: format!("{error:#}"),
            });
        }
    };
    let accel = qemu::acceleration(&cache, &kernel, options.refresh)?;

    let chosen;
    let binaries = if options.ebpf {
        chosen = choose_ebpf(binaries);
        &chosen
    } else {
        binaries
    };
    let filters = filters(options.ebpf, options.long);
    let script = script(&options.command, binaries, filters);
    let work = WorkDir::new(&cache, &format!("guest-{}", options.kernel))?;
    let initrd = work.path.join("initrd.cpio");
    let runs_tests = options.command.is_empty();
    initramfs::write(&initrd, &kernel, binaries, &script, runs_tests)?;
    if options.keep_initrd {
        let kept = cache.join("initrd.cpio");
        std::fs::copy(&initrd, &kept)
            .with_context(|| format!("cannot write {}", kept.display()))?;
        eprintln!("guest   file system kept: {}", kept.display());
    }
    let guest = qemu::Guest {
        kernel: &kernel,
        initrd: &initrd,
        status_file: &work.path.join("status"),
        accel,
        memory_mib: options.memory,
        cpus: options.cpus,
        deadline: Duration::from_secs(options.timeout),
        silence: options.silence,
    };
    eprintln!(
        "guest   Linux {} under {}, {} MiB",
        kernel.release,
        accel.name(),
        options.memory
    );
    qemu::run(&guest, console, on_line)
}

/// Downloads the kernels and determines the acceleration, so that guests that start at once find both.
///
/// # Errors
///
/// When a kernel is not available. The guest that needs it reports the same reason.
pub(crate) fn prepare() -> anyhow::Result<()> {
    SERIES.into_iter().try_for_each(prepare_series)
}

/// Downloads the kernel of one series and determines the acceleration.
///
/// # Errors
///
/// When this machine cannot run a guest with such a kernel.
pub(crate) fn prepare_series(series: &str) -> anyhow::Result<()> {
    if let Some(reason) = reason_against_guest() {
        anyhow::bail!(reason);
    }
    let cache = shell::target_dir().join("vm");
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let kernel = kernel::fetch(&cache, series, false)?;
    qemu::acceleration(&cache, &kernel, false)?;
    Ok(())
}

/// Returns the binaries for the guest among `built`.
pub(crate) fn choose(built: &[Artifact]) -> Vec<Artifact> {
    built
        .iter()
        .filter(|artifact| is_muster(artifact) || is_guest_test(artifact))
        .cloned()
        .collect()
}

/// Returns the binaries with tests of the eBPF programs among `binaries`. They need no other program.
fn choose_ebpf(binaries: &[Artifact]) -> Vec<Artifact> {
    let chosen = binaries.iter().filter(|binary| tests_programs(binary));
    chosen.cloned().collect()
}

/// Whether `artifact` contains the tests of the eBPF programs.
pub(crate) fn tests_programs(artifact: &Artifact) -> bool {
    artifact.is_test && artifact.target == EBPF_TESTS.0
}

pub(crate) fn is_muster(artifact: &Artifact) -> bool {
    !artifact.is_test && artifact.package == "muster-cli" && artifact.target == "muster"
}

/// Whether `artifact` is one of the tests that run in the guest.
pub(crate) fn is_guest_test(artifact: &Artifact) -> bool {
    artifact.is_test
        && GUEST_TESTS
            .iter()
            .any(|(package, target)| artifact.package == *package && artifact.target == *target)
}

/// Returns the binaries of a guest that a user starts.
fn binaries(options: &Options) -> anyhow::Result<Vec<Artifact>> {
    if options.no_build {
        let executable = shell::target_dir().join("debug/muster");
        let muster = Artifact {
            package: "muster-cli".into(),
            target: "muster".into(),
            kind: "bin".into(),
            is_test: false,
            executable: executable.clone(),
            folder: shell::root().join("cli"),
        };
        return Ok(if executable.is_file() {
            vec![muster]
        } else {
            Vec::new()
        });
    }
    if let Some(name) = &options.test {
        let (_, target) = GUEST_TESTS
            .iter()
            .find(|(_, target)| target == name)
            .with_context(|| format!("the guest has no test {name}"))?;
        let mut cargo = shell::cargo_build();
        // Some tests start the `muster` program.
        cargo.args(["--workspace", "--bin", "muster", "--test", target]);
        return Ok(choose(&artifact::build(&mut cargo)?.artifacts));
    }
    // With a test among the targets, cargo resolves features as `cargo test --workspace` does, so
    // that both share what they build.
    let mut cargo = shell::cargo_build();
    cargo.args(["--workspace", "--bin", "muster"]);
    for (package, target) in GUEST_TESTS {
        if test_exists(package, target) {
            cargo.args(["--test", target]);
        } else {
            eprintln!("guest   no test `{target}` in {package}: left out");
        }
    }
    let mut chosen = choose(&artifact::build(&mut cargo)?.artifacts);
    if options.release {
        chosen.retain(|artifact| !is_muster(artifact));
        let mut cargo = shell::cargo();
        cargo.args(["build", "--release", "--bin", "muster"]);
        chosen.extend(choose(&artifact::build(&mut cargo)?.artifacts));
    }
    Ok(chosen)
}

/// Whether the package has an integration test `target`: a file, or a folder with `main.rs`.
fn test_exists(package: &str, target: &str) -> bool {
    let tests = shell::root()
        .join(package.trim_start_matches("muster-"))
        .join("tests");
    tests.join(format!("{target}.rs")).is_file() || tests.join(target).join("main.rs").is_file()
}

/// Returns the filters of a guest's binaries. A binary without a filter runs all of its tests, as every binary does
/// in a long run.
fn filters(ebpf: bool, long: bool) -> &'static [Filter] {
    match (long, ebpf) {
        (true, _) => &[],
        (false, true) => &[EBPF_TESTS],
        (false, false) => &GUEST_FILTERS,
    }
}

/// Returns the script for the guest's shell: the command as given, or each test in turn.
fn script(command: &[String], binaries: &[Artifact], filters: &[Filter]) -> String {
    if !command.is_empty() {
        let words: Vec<String> = command.iter().map(|word| shell::quote(word)).collect();
        return format!("exec {}\n", words.join(" "));
    }
    // libtest reports the time of a test only where unstable options are allowed.
    let mut script =
        String::from("status=0\nexport MUSTER_SKIP_FILE=/run/skipped RUSTC_BOOTSTRAP=1\n");
    for test in binaries.iter().filter(|artifact| artifact.is_test) {
        let path = initramfs::guest_path(test);
        let filter = filters.iter().find(|(name, _)| *name == test.target);
        let filter = filter.map_or("", |(_, filter)| filter);
        // `cargo xtask test` parses the line, so that it can name the binary of a failure.
        writeln!(
            script,
            "echo '     Running {path}'\n{path} {filter} --test-threads=1 \
             -Z unstable-options --report-time || status=101"
        )
        .expect("a string takes any text");
    }
    script.push_str(
        "[ -e $MUSTER_SKIP_FILE ] && sed 's/^/skipped: /' $MUSTER_SKIP_FILE\nexit $status\n",
    );
    script
}

/// Returns the reason why this machine cannot run a guest, or `None` if it can.
fn reason_against_guest() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some(format!(
            "guests are x86-64 only, this machine is {}",
            std::env::consts::ARCH
        ));
    }
    let programs = ["qemu-system-x86_64", "busybox", "dpkg-deb", "apt-get"];
    let absent: Vec<&str> = programs
        .into_iter()
        .filter(|name| shell::find_program(name).is_none())
        .collect();
    if absent.is_empty() {
        return None;
    }
    Some(format!(
        "{} not found; run: cargo xtask setup",
        absent.join(", ")
    ))
}

/// A folder for one guest. The folder and its contents are removed when the guest has ended.
#[derive(Debug)]
struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    fn new(cache: &Path, name: &str) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = cache.join(format!("{name}-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("warning: cannot remove {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_binary() -> Artifact {
        Artifact {
            package: "muster-agent".into(),
            target: "vm".into(),
            kind: "test".into(),
            is_test: true,
            executable: "/t/vm-1".into(),
            folder: "/s/agent".into(),
        }
    }

    #[test]
    fn command_reaches_the_guest_word_by_word() {
        let command = ["sh", "-c", "exit 3"].map(String::from);

        assert_eq!(script(&command, &[], &[]), "exec sh -c 'exit 3'\n");
    }

    #[test]
    fn guest_without_command_runs_its_tests() {
        let script = script(&[], &[test_binary()], filters(false, true));

        assert!(
            script.contains(
                "/tests/muster-agent/vm  --test-threads=1 -Z unstable-options --report-time || status=101"
            ),
            "{script}"
        );
        assert!(script.ends_with("exit $status\n"), "{script}");
    }

    #[test]
    fn program_only_tests_are_filtered_by_module() {
        let script = script(&[], &[test_binary()], filters(true, false));

        assert!(
            script.contains("/tests/muster-agent/vm adoption::this_kernel "),
            "{script}"
        );
    }

    #[test]
    fn long_guest_runs_all_tests() {
        assert_eq!(filters(false, true), []);
        assert_eq!(filters(true, true), []);
    }

    /// Checks that every filter selects a test. A filter without a match would skip tests that only a guest can run.
    #[test]
    fn every_filter_selects_a_test() {
        for (target, filter) in GUEST_FILTERS {
            let package = match target {
                "isolation" => "driver-native",
                _ => "agent",
            };
            let tests = shell::root().join(package).join("tests").join(target);
            for word in filter.split(' ').filter(|word| *word != "--skip") {
                assert!(selects(&tests, word), "{target}: {word}");
            }
        }
    }

    /// Whether a module of `tests` contains a module or test whose name contains the last part of `word`.
    fn selects(tests: &Path, word: &str) -> bool {
        let (modules, name) = word.rsplit_once("::").unwrap_or(("", word));
        let mut sources = String::new();
        read_module(
            tests,
            modules.rsplit("::").next().unwrap_or(""),
            &mut sources,
        );
        let declares = |line: &str| line.contains("fn ") || line.starts_with("mod ");
        let mut lines = sources.lines();
        lines.any(|line| declares(line) && line.contains(name))
    }

    /// Adds the text of every file of the module. If the module name is empty, adds all files.
    fn read_module(folder: &Path, module: &str, sources: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read_module(&path, module, sources);
            } else if module.is_empty() || path.file_stem().is_some_and(|stem| stem == module) {
                sources.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    #[test]
    fn series_is_numbers_and_nothing_that_leads_elsewhere() {
        assert_eq!(parse_series("6.12"), Ok("6.12".to_owned()));
        for wrong in ["", "6.", "6..1", "../6", "six"] {
            assert!(parse_series(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_the_guests_tests_are_chosen() {
        let other = Artifact {
            target: "other".into(),
            ..test_binary()
        };

        assert_eq!(choose(&[test_binary(), other]), [test_binary()]);
    }
}
