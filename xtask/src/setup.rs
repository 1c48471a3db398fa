//! `cargo xtask setup`: finds the requirements of the eBPF build and of the tests, and installs missing ones from
//! Debian's packages and crates.io.
//!
//! A tool counts as installed if its files exist and it starts. This also covers a machine without Debian and tools
//! from other sources. A [`Scope`] leaves out the requirements that a command does not need.

use std::{
    collections::BTreeSet,
    io::{IsTerminal, Write},
    path::Path,
    process::Command,
};

use anyhow::{Context, bail};

use crate::{ebpf, isolation_audits, shell, steps};

/// The version of bpf-linker that was tested with the compilers of `build-ebpf`.
const BPF_LINKER_VERSION: &str = "0.13.0";

/// Options of `setup`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only name what is missing, install nothing.
    #[arg(long)]
    pub(crate) check: bool,
    /// Install without asking.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// The use for which the machine is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scope {
    /// Building Muster with its eBPF programs: `cargo xtask demo`
    Demo,
    /// Building the eBPF programs: `cargo xtask build-ebpf`
    Ebpf,
    /// Everything: `cargo xtask test`
    Tests,
}

impl Scope {
    fn includes(self, purpose: PackageUse) -> bool {
        match self {
            Self::Demo => matches!(
                purpose,
                PackageUse::Compile | PackageUse::Allocator | PackageUse::Ebpf
            ),
            Self::Ebpf => matches!(purpose, PackageUse::Compile | PackageUse::Ebpf),
            Self::Tests => true,
        }
    }

    /// Returns the command for which the scope prepares.
    fn command(self) -> &'static str {
        match self {
            Self::Demo => "cargo xtask setup --for demo",
            Self::Ebpf => "cargo xtask setup --for ebpf",
            Self::Tests => "cargo xtask setup",
        }
    }
}

/// The purpose of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PackageUse {
    Compile,
    Allocator,
    Ebpf,
    Tests,
    Guest,
}

impl std::fmt::Display for PackageUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Compile => "building",
            Self::Allocator => "building the allocator",
            Self::Ebpf => "building the eBPF programs",
            Self::Tests => "tests",
            Self::Guest => "tests in a guest (cargo xtask vm)",
        })
    }
}

/// A requirement, and the Debian packages that contain it.
struct Requirement {
    name: &'static str,
    purpose: PackageUse,
    packages: &'static [&'static str],
    present: fn() -> bool,
}

const AUDIT_TOOLS: &str = "the judges of isolation";
const LINKER: &str = "bpf-linker";

/// All requirements, in the order in which they are named. bpf-linker is last, because its build needs the packages.
const NEEDS: [Requirement; 16] = [
    Requirement {
        name: "a C compiler",
        purpose: PackageUse::Compile,
        packages: &["gcc", "libc6-dev"],
        present: || is_installed("cc"),
    },
    Requirement {
        name: "make",
        purpose: PackageUse::Allocator,
        packages: &["make"],
        present: || is_installed("make"),
    },
    Requirement {
        name: "a compiler for eBPF",
        purpose: PackageUse::Ebpf,
        packages: &["rustc-web", "cargo-web", "rust-web-src"],
        present: || ebpf::compiler().is_some(),
    },
    Requirement {
        name: "what bpf-linker is built with",
        purpose: PackageUse::Ebpf,
        // g++ is needed for its library, which LLVM links, and not for itself.
        packages: &["llvm-22-dev", "libzstd-dev", "g++"],
        present: || ebpf::linker().is_some() || can_build_linker(),
    },
    Requirement {
        name: "ip",
        purpose: PackageUse::Tests,
        packages: &["iproute2"],
        present: || is_installed("ip"),
    },
    Requirement {
        name: "strace",
        purpose: PackageUse::Tests,
        packages: &["strace"],
        present: || is_installed("strace"),
    },
    Requirement {
        name: "nft",
        purpose: PackageUse::Tests,
        packages: &["nftables"],
        present: || is_installed("nft"),
    },
    Requirement {
        name: "CNI plugins",
        purpose: PackageUse::Tests,
        packages: &["containernetworking-plugins", "iptables"],
        present: || Path::new("/usr/lib/cni/bridge").exists() && is_installed("iptables"),
    },
    Requirement {
        name: "Go and the library of Nomad's plugins",
        purpose: PackageUse::Tests,
        packages: &[
            "golang-go",
            "golang-github-hashicorp-go-plugin-dev",
            "golang-google-grpc-dev",
            "golang-github-golang-protobuf-1-3-dev",
            "protobuf-compiler",
            "libprotobuf-dev",
        ],
        present: || is_installed("go") && is_installed("protoc") && go_libraries(),
    },
    Requirement {
        name: "programs that isolated tasks have to run",
        purpose: PackageUse::Tests,
        packages: &["nodejs", "openjdk-17-jdk-headless"],
        present: || is_installed("node") && is_installed("java"),
    },
    Requirement {
        name: "what the judges of isolation are made with",
        purpose: PackageUse::Tests,
        packages: &isolation_audits::PACKAGES,
        present: || isolation_audits::is_built() || isolation_audits::can_build(),
    },
    Requirement {
        name: AUDIT_TOOLS,
        purpose: PackageUse::Tests,
        packages: &[],
        present: isolation_audits::is_built,
    },
    Requirement {
        name: "qemu-system-x86_64",
        purpose: PackageUse::Guest,
        packages: &["qemu-system-x86"],
        present: || !cfg!(target_arch = "x86_64") || is_installed("qemu-system-x86_64"),
    },
    Requirement {
        name: "a busybox that needs no library",
        purpose: PackageUse::Guest,
        packages: &["busybox-static"],
        present: static_busybox,
    },
    Requirement {
        name: "stress-ng",
        purpose: PackageUse::Guest,
        packages: &["stress-ng"],
        present: || is_installed("stress-ng"),
    },
    Requirement {
        name: LINKER,
        purpose: PackageUse::Ebpf,
        packages: &[],
        present: || ebpf::linker().is_some(),
    },
];

/// Installs all missing requirements, or names them.
///
/// # Errors
///
/// As [`prepare`].
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    prepare(Scope::Tests, options)
}

/// Installs the missing requirements of `scope`, or names them.
///
/// # Errors
///
/// When a requirement is still missing at the end, or with `check`. The message names it, and how to get it.
pub(crate) fn prepare(scope: Scope, options: &Options) -> anyhow::Result<()> {
    let missing = missing(scope);
    if missing.is_empty() {
        println!("setup: nothing is missing");
        return Ok(());
    }
    for need in &missing {
        println!(
            "missing: {} (for {}){}",
            need.name,
            need.purpose,
            source(need)
        );
    }
    if options.check {
        bail!(
            "{} missing: run `{}`",
            describe_count(missing.len()),
            scope.command()
        );
    }
    if !(options.yes || ask_confirmation()?) {
        bail!("nothing was installed");
    }
    install(scope, &missing)
}

/// Whether a C compiler is installed, which compiles Muster itself, and with `allocator` also make.
pub(crate) fn can_compile(allocator: bool) -> bool {
    let is_used = |purpose: PackageUse| match purpose {
        PackageUse::Compile => true,
        PackageUse::Allocator => allocator,
        _ => false,
    };
    NEEDS
        .iter()
        .filter(|need| is_used(need.purpose))
        .all(|need| (need.present)())
}

fn install(scope: Scope, missing: &[&Requirement]) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    let mut note = |result: anyhow::Result<()>| {
        if let Err(error) = result {
            problems.push(format!("{error:#}"));
        }
    };
    if missing.iter().any(|need| !need.packages.is_empty()) {
        note(steps::run("install packages", || install_packages(missing)));
    }
    if ebpf::linker().is_none() {
        note(if can_build_linker() {
            steps::run("build bpf-linker", install_linker)
        } else {
            Err(anyhow::anyhow!(
                "bpf-linker was not built: it needs LLVM {} with its headers, zstd's and g++",
                ebpf::LLVM_MAJOR
            ))
        });
    }
    if scope.includes(PackageUse::Tests)
        && !isolation_audits::is_built()
        && isolation_audits::can_build()
    {
        note(steps::run(
            "make the judges of isolation",
            isolation_audits::build_tools,
        ));
    }
    report(&self::missing(scope), &problems)
}

/// Returns the requirements of `scope` that are not present.
fn missing(scope: Scope) -> Vec<&'static Requirement> {
    NEEDS
        .iter()
        .filter(|need| scope.includes(need.purpose) && !(need.present)())
        .collect()
}

/// Prints the result of the installation.
fn report(missing: &[&Requirement], problems: &[String]) -> anyhow::Result<()> {
    if missing.is_empty() {
        println!("setup: nothing is missing any more");
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|need| need.name).collect();
    let mut message = format!("still missing: {}", names.join(", "));
    for problem in problems {
        message.push_str("; ");
        message.push_str(problem);
    }
    if missing.iter().any(|need| need.purpose == PackageUse::Ebpf) {
        message.push_str(
            "; Muster builds without its eBPF programs, and says so when it runs. \
             Another way to a compiler for them is \
             `rustup toolchain install nightly --component rust-src`",
        );
    }
    bail!(message)
}

/// Installs the packages of `needs` that Debian has.
fn install_packages(needs: &[&Requirement]) -> anyhow::Result<()> {
    let wanted: BTreeSet<&str> = needs
        .iter()
        .flat_map(|need| need.packages)
        .copied()
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let names = wanted.iter().copied().collect::<Vec<_>>().join(" ");
    if !is_installed("apt-get") {
        bail!("this is not Debian: install what its packages hold: {names}");
    }
    if !is_root()? {
        bail!("not root: run `sudo apt-get install {names}`, then this command again");
    }
    let mut absent = packages_without_candidate(&wanted)?;
    if !absent.is_empty() {
        shell::run(apt().arg("update").arg("--quiet"))?;
        absent = packages_without_candidate(&wanted)?;
    }
    // A partial requirement is useless: rustc without its sources cannot build `core`.
    let installable: BTreeSet<&str> = needs
        .iter()
        .filter(|need| {
            need.packages
                .iter()
                .all(|package| !absent.contains(*package))
        })
        .flat_map(|need| need.packages)
        .copied()
        .collect();
    if !installable.is_empty() {
        let mut command = apt();
        command.args(["install", "--yes", "--quiet", "--no-install-recommends"]);
        shell::run(command.args(&installable))?;
    }
    if !absent.is_empty() {
        let absent = absent.into_iter().collect::<Vec<_>>().join(", ");
        bail!(
            "the archives in /etc/apt/sources.list have no package {absent} (Debian 12 has all of \
               them in bookworm-security)"
        );
    }
    Ok(())
}

/// Returns the packages that apt cannot install now, because no version is available.
fn packages_without_candidate(packages: &BTreeSet<&str>) -> anyhow::Result<BTreeSet<String>> {
    let policy = shell::capture(
        Command::new("apt-cache")
            .arg("policy")
            .args(packages)
            .env("LC_ALL", "C"),
    )?;
    let available = candidates(&policy);
    Ok(packages
        .iter()
        .filter(|package| !available.contains(**package))
        .map(|package| (*package).to_owned())
        .collect())
}

/// Returns the packages with an installable version in the output of `apt-cache policy`.
fn candidates(policy: &str) -> BTreeSet<&str> {
    let mut available = BTreeSet::new();
    let mut package = "";
    for line in policy.lines() {
        if let Some(name) = line.strip_suffix(':')
            && !line.starts_with(' ')
        {
            package = name;
        } else if let Some(version) = line.trim_start().strip_prefix("Candidate:")
            && version.trim() != "(none)"
        {
            available.insert(package);
        }
    }
    available
}

/// Builds bpf-linker from crates.io, without optimization and debug information. LLVM, which is built already, does
/// its work, and a newcomer waits for this compilation. The build is quiet, since it runs beside another build.
fn install_linker() -> anyhow::Result<()> {
    let feature = format!("llvm-{}", ebpf::LLVM_MAJOR);
    shell::run(
        shell::cargo()
            .args(["install", "bpf-linker", "--version", BPF_LINKER_VERSION])
            .args(["--locked", "--quiet", "--debug"])
            .args(["--no-default-features", "--features", &feature])
            .env("LLVM_PREFIX", llvm_prefix())
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env_remove("CARGO_TARGET_DIR"),
    )
}

/// Whether bpf-linker could be built.
fn can_build_linker() -> bool {
    Path::new(&llvm_prefix()).join("bin/llvm-config").is_file()
        && Path::new("/usr/include/zstd.h").is_file()
        && is_installed("c++")
}

fn llvm_prefix() -> String {
    format!("/usr/lib/llvm-{}", ebpf::LLVM_MAJOR)
}

fn is_installed(program: &str) -> bool {
    shell::find_program(program).is_some()
}

fn go_libraries() -> bool {
    [
        "/usr/share/gocode/src/github.com/hashicorp/go-plugin",
        "/usr/share/gocode/src/google.golang.org/grpc",
        "/usr/share/gocode/src/github.com/golang/protobuf/protoc-gen-go/grpc",
        "/usr/include/google/protobuf/duration.proto",
    ]
    .iter()
    .all(|path| Path::new(path).exists())
}

fn static_busybox() -> bool {
    // `ldd` fails for a statically linked program.
    shell::find_program("busybox")
        .is_some_and(|busybox| shell::capture(Command::new("ldd").arg(busybox)).is_err())
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env_remove("LD_LIBRARY_PATH");
    command
}

fn is_root() -> anyhow::Result<bool> {
    let uid = shell::capture(Command::new("id").arg("-u")).context("cannot learn the user id")?;
    Ok(uid.trim() == "0")
}

/// Asks for confirmation, if standard input is a terminal.
fn ask_confirmation() -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(true);
    }
    print!("Install what is missing? [Y/n] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(
        answer.trim().to_lowercase().as_str(),
        "" | "y" | "yes"
    ))
}

/// Describes the source of a requirement, for a reader.
fn source(need: &Requirement) -> String {
    if need.packages.is_empty() {
        match need.name {
            LINKER => ": built from crates.io",
            _ => ": made from sources of Debian and PyPI",
        }
        .to_owned()
    } else {
        format!(": Debian's {}", need.packages.join(", "))
    }
}

fn describe_count(count: usize) -> String {
    if count == 1 {
        "one thing is".to_owned()
    } else {
        format!("{count} things are")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_without_a_version_are_found() {
        let policy = "gcc:\n  Installed: (none)\n  Candidate: 4:12.2.0-3\n  Version table:\n\
                      rustc-web:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n";

        assert_eq!(candidates(policy), BTreeSet::from(["gcc"]));
    }

    /// Checks that bpf-linker comes last, because its build needs the requirements before it.
    #[test]
    fn bpf_linker_comes_last() {
        assert_eq!(NEEDS.last().map(|need| need.name), Some(LINKER));
    }

    #[test]
    fn demo_needs_no_tools_of_tests() {
        let packages: Vec<&str> = NEEDS
            .iter()
            .filter(|need| Scope::Demo.includes(need.purpose))
            .flat_map(|need| need.packages)
            .copied()
            .collect();

        assert!(packages.contains(&"gcc") && packages.contains(&"llvm-22-dev"));
        for package in [
            "golang-go",
            "nodejs",
            "qemu-system-x86",
            "procenv",
            "strace",
        ] {
            assert!(!packages.contains(&package), "{package}");
        }
    }

    #[test]
    fn tests_need_everything() {
        assert!(NEEDS.iter().all(|need| Scope::Tests.includes(need.purpose)));
    }

    #[test]
    fn missing_prerequisite_error_names_fix() {
        let need = NEEDS
            .iter()
            .find(|need| need.purpose == PackageUse::Ebpf)
            .unwrap();

        let error = report(&[need], &["no network".to_owned()])
            .unwrap_err()
            .to_string();

        assert!(error.contains("a compiler for eBPF"), "{error}");
        assert!(error.contains("no network"), "{error}");
        assert!(error.contains("rust-src"), "{error}");
    }
}
