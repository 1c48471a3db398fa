//! `cargo xtask setup`: finds what building the eBPF programs and running the tests needs, and
//! installs what is missing from Debian's packages and crates.io.
//!
//! An installed tool is found by its files and by starting it. So a machine that is not Debian, or has tools from
//! elsewhere, is served too. A [`Scope`] leaves out what a command does not need.

use std::{
    collections::BTreeSet,
    io::{IsTerminal, Write},
    path::Path,
    process::Command,
};

use anyhow::{Context, bail};

use crate::{ebpf, isolation_audits, shell, steps};

/// The version of bpf-linker that was tried with the compilers `build-ebpf` uses.
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

    /// The command that prepares for it.
    fn command(self) -> &'static str {
        match self {
            Self::Demo => "cargo xtask setup --for demo",
            Self::Ebpf => "cargo xtask setup --for ebpf",
            Self::Tests => "cargo xtask setup",
        }
    }
}

/// The purpose of a need.
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

/// Something that is needed, and where Debian has it.
struct Requirement {
    name: &'static str,
    purpose: PackageUse,
    packages: &'static [&'static str],
    present: fn() -> bool,
}

const JUDGES: &str = "the judges of isolation";
const LINKER: &str = "bpf-linker";

/// Everything, in the order it is named. bpf-linker is last: it is built with the packages.
const NEEDS: [Requirement; 16] = [
    Requirement {
        name: "a C compiler",
        purpose: PackageUse::Compile,
        packages: &["gcc", "libc6-dev"],
        present: || has("cc"),
    },
    Requirement {
        name: "make",
        purpose: PackageUse::Allocator,
        packages: &["make"],
        present: || has("make"),
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
        // g++ for the library that LLVM is linked with, not for itself.
        packages: &["llvm-22-dev", "libzstd-dev", "g++"],
        present: || ebpf::linker().is_some() || can_build_linker(),
    },
    Requirement {
        name: "ip",
        purpose: PackageUse::Tests,
        packages: &["iproute2"],
        present: || has("ip"),
    },
    Requirement {
        name: "strace",
        purpose: PackageUse::Tests,
        packages: &["strace"],
        present: || has("strace"),
    },
    Requirement {
        name: "nft",
        purpose: PackageUse::Tests,
        packages: &["nftables"],
        present: || has("nft"),
    },
    Requirement {
        name: "CNI plugins",
        purpose: PackageUse::Tests,
        packages: &["containernetworking-plugins", "iptables"],
        present: || Path::new("/usr/lib/cni/bridge").exists() && has("iptables"),
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
        present: || has("go") && has("protoc") && go_libraries(),
    },
    Requirement {
        name: "programs that isolated tasks have to run",
        purpose: PackageUse::Tests,
        packages: &["nodejs", "openjdk-17-jdk-headless"],
        present: || has("node") && has("java"),
    },
    Requirement {
        name: "what the judges of isolation are made with",
        purpose: PackageUse::Tests,
        packages: &isolation_audits::PACKAGES,
        present: || isolation_audits::present() || isolation_audits::can_be_made(),
    },
    Requirement {
        name: JUDGES,
        purpose: PackageUse::Tests,
        packages: &[],
        present: isolation_audits::present,
    },
    Requirement {
        name: "qemu-system-x86_64",
        purpose: PackageUse::Guest,
        packages: &["qemu-system-x86"],
        present: || !cfg!(target_arch = "x86_64") || has("qemu-system-x86_64"),
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
        present: || has("stress-ng"),
    },
    Requirement {
        name: LINKER,
        purpose: PackageUse::Ebpf,
        packages: &[],
        present: || ebpf::linker().is_some(),
    },
];

/// Installs what is missing for everything, or names it.
///
/// # Errors
///
/// As [`prepare`].
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    prepare(Scope::Tests, options)
}

/// Installs what is missing for `scope`, or names it.
///
/// # Errors
///
/// When something is missing in the end, or with `check`. The message names it, and how to get it.
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
            things(missing.len()),
            scope.command()
        );
    }
    if !(options.yes || confirmed()?) {
        bail!("nothing was installed");
    }
    install(scope, &missing)
}

/// Whether a C compiler and make are here, with which Muster itself can be compiled.
pub(crate) fn can_compile() -> bool {
    NEEDS
        .iter()
        .filter(|need| matches!(need.purpose, PackageUse::Compile | PackageUse::Allocator))
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
        && !isolation_audits::present()
        && isolation_audits::can_be_made()
    {
        note(steps::run(
            "make the judges of isolation",
            isolation_audits::make,
        ));
    }
    report(&self::missing(scope), &problems)
}

/// The needs of `scope` that are not present.
fn missing(scope: Scope) -> Vec<&'static Requirement> {
    NEEDS
        .iter()
        .filter(|need| scope.includes(need.purpose) && !(need.present)())
        .collect()
}

/// Says what became of it.
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
    if !has("apt-get") {
        bail!("this is not Debian: install what its packages hold: {names}");
    }
    if !is_root()? {
        bail!("not root: run `sudo apt-get install {names}`, then this command again");
    }
    let mut absent = without_candidate(&wanted)?;
    if !absent.is_empty() {
        shell::run(apt().arg("update").arg("--quiet"))?;
        absent = without_candidate(&wanted)?;
    }
    // A need is of no use in part: rustc without its sources builds nothing here.
    let can_be_had: BTreeSet<&str> = needs
        .iter()
        .filter(|need| {
            need.packages
                .iter()
                .all(|package| !absent.contains(*package))
        })
        .flat_map(|need| need.packages)
        .copied()
        .collect();
    if !can_be_had.is_empty() {
        let mut command = apt();
        command.args(["install", "--yes", "--quiet", "--no-install-recommends"]);
        shell::run(command.args(&can_be_had))?;
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

/// The packages that apt could not install now, for want of a version.
fn without_candidate(packages: &BTreeSet<&str>) -> anyhow::Result<BTreeSet<String>> {
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

/// The packages that have a version to install, by what `apt-cache policy` prints.
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

/// Builds bpf-linker from crates.io, without optimization and debug information: its work is done by LLVM, which is
/// built already, and compiling it is what a newcomer waits for. Quiet, since it runs beside another build.
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
        && has("c++")
}

fn llvm_prefix() -> String {
    format!("/usr/lib/llvm-{}", ebpf::LLVM_MAJOR)
}

fn has(program: &str) -> bool {
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
    // `ldd` fails for a program that needs no library.
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
fn confirmed() -> anyhow::Result<bool> {
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

/// Where a need comes from, for a reader.
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

fn things(count: usize) -> String {
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

    /// bpf-linker is built with what the needs before it install.
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
