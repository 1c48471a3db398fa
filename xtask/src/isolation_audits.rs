//! External tools that audit the isolation (`driver-native/tests/isolation/judges.rs`). `cargo xtask setup` puts them
//! into `judges` of the target folder.
//!
//! - `runtimetest` is built from Debian 13's source package of the OCI's runtime-tools, since no package contains the
//!   program. apt fetches and checks the source with a separate configuration, so that the machine's stays unchanged.
//!   Its build dependencies are in Debian 12, except the library that prints its results. We provide that library
//!   (`driver-native/tests/isolation/go`).
//! - `procenv` is Debian's.
//! - nginx is not an auditor, but it must run as a contained and as a strict task. It is Debian's, and only its
//!   program is used, since the package would start a web server on this machine.
//! - Cepheus, a script and an engine in Python, is on PyPI. Its files are verified by their hashes
//!   (`driver-native/tests/isolation/requirements.txt`). They are unpacked here and run in tasks only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::shell;

/// The version of the build steps. A change rebuilds the tools.
const BUILD_VERSION: &str = "2\n";
/// The Debian suite of the source package. The constants below describe the package.
const SUITE: &str = "trixie";
const SOURCE: &str = "golang-github-opencontainers-runtime-tools";
const PROGRAM: &str = "github.com/opencontainers/runtime-tools/cmd/runtimetest";
/// The path of Debian's sources of Go libraries.
const GO_SOURCES: &str = "/usr/share/gocode";
const GO_LIBRARIES: [&str; 8] = [
    "blang/semver/v4",
    "hashicorp/go-multierror",
    "opencontainers/runtime-spec",
    "opencontainers/selinux",
    "sirupsen/logrus",
    "syndtr/gocapability",
    "urfave/cli",
    "../golang.org/x/sys",
];
const PYTHON: &str = "/usr/bin/python3";

/// Debian's packages that contain the tools or build them.
pub(crate) const PACKAGES: [&str; 13] = [
    "golang-go",
    "golang-github-blang-semver-dev",
    "golang-github-hashicorp-go-multierror-dev",
    "golang-github-opencontainers-selinux-dev",
    "golang-github-opencontainers-specs-dev",
    "golang-github-sirupsen-logrus-dev",
    "golang-github-urfave-cli-dev",
    "golang-gocapability-dev",
    "golang-golang-x-sys-dev",
    "procenv",
    "python3",
    "python3-pip",
    "xz-utils",
];

/// Returns the folder of the tools.
pub(crate) fn folder() -> PathBuf {
    shell::target_dir().join("judges")
}

/// Whether the tools are present in the version that this program expects.
pub(crate) fn is_built() -> bool {
    fs::read_to_string(folder().join("recipe")).is_ok_and(|recipe| recipe == BUILD_VERSION)
}

/// Whether this machine can build the tools.
pub(crate) fn can_build() -> bool {
    let libraries = Path::new(GO_SOURCES).join("src/github.com");
    ["go", "procenv", "xz", "apt-get"]
        .iter()
        .all(|program| shell::find_program(program).is_some())
        && Path::new(PYTHON).is_file()
        && Path::new("/usr/lib/python3/dist-packages/pip").is_dir()
        && GO_LIBRARIES
            .iter()
            .all(|path| libraries.join(path).is_dir())
}

/// Builds the tools.
///
/// # Errors
///
/// When a part cannot be fetched or built. No partial result is left then.
pub(crate) fn build_tools() -> anyhow::Result<()> {
    let folder = folder();
    let scratch = folder.with_extension("new");
    for path in [&folder, &scratch] {
        if path.exists() {
            fs::remove_dir_all(path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    let made = build_tools_in(&scratch);
    if made.is_ok() {
        fs::rename(&scratch, &folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    } else {
        // The original error matters more than a failure to clean up.
        let _removed = fs::remove_dir_all(&scratch);
    }
    made
}

fn build_tools_in(scratch: &Path) -> anyhow::Result<()> {
    let work = scratch.join("work");
    fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    build_runtimetest(&work, &scratch.join("runtimetest")).context("cannot make runtimetest")?;
    let procenv = shell::find_program("procenv").context("procenv is not installed")?;
    fs::copy(procenv, scratch.join("procenv")).context("cannot copy procenv")?;
    unpack_nginx(&work, &scratch.join("nginx")).context("cannot unpack nginx")?;
    install_cepheus(scratch).context("cannot make Cepheus")?;
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    fs::write(scratch.join("recipe"), BUILD_VERSION).context("cannot write the recipe")
}

fn build_runtimetest(work: &Path, program: &Path) -> anyhow::Result<()> {
    let archive = fetch_source(work)?;
    let sources = work.join("path/src/github.com/opencontainers/runtime-tools");
    fs::create_dir_all(&sources)?;
    shell::capture(
        Command::new("tar")
            .args(["--extract", "--strip-components=1", "--file"])
            .arg(archive)
            .arg("--directory")
            .arg(sources),
    )?;
    let printer = work.join("path/src/github.com/mndrix/tap-go");
    fs::create_dir_all(&printer)?;
    let ours = tests().join("go/tap.go");
    fs::copy(&ours, printer.join("tap.go"))
        .with_context(|| format!("cannot copy {}", ours.display()))?;
    let path = format!("{}:{GO_SOURCES}", work.join("path").display());
    shell::capture(
        Command::new("go")
            .args(["build", "-trimpath", "-ldflags=-s -w", "-o"])
            .arg(program)
            .arg(PROGRAM)
            .current_dir(work)
            .env("GOPATH", path)
            .env("GOCACHE", work.join("cache"))
            .env("GO111MODULE", "off")
            .env("GOFLAGS", "")
            .env("CGO_ENABLED", "0"),
    )
    .map(drop)
}

/// Fetches the source archive of [`SUITE`] with apt, from the site of this machine's packages.
fn fetch_source(work: &Path) -> anyhow::Result<PathBuf> {
    let site = site()?;
    for folder in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(work.join(folder))?;
    }
    let list = work.join("sources.list");
    let key = "/usr/share/keyrings/debian-archive-keyring.gpg";
    fs::write(
        &list,
        format!("deb-src [signed-by={key}] {site} {SUITE} main\n"),
    )?;
    let options = format!(
        "Dir::Etc::SourceList \"{}\";\nDir::Etc::SourceParts \"/dev/null\";\n\
         Dir::State::Lists \"{}\";\nDir::Cache \"{}\";\nAPT::Sandbox::User \"\";\n",
        list.display(),
        work.join("lists").display(),
        work.join("cache").display(),
    );
    let config = work.join("apt.conf");
    fs::write(&config, options)?;
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args(arguments)
            .current_dir(work)
            .env("APT_CONFIG", &config);
        shell::capture(&mut apt)
    };
    apt(&["update", "--quiet=2"])?;
    apt(&[
        "source",
        "--quiet=2",
        "--download-only",
        "--tar-only",
        SOURCE,
    ])?;
    fs::read_dir(work)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().contains(".orig.tar."))
        .with_context(|| format!("apt left no archive of {SOURCE}"))
}

/// Returns the site from which this machine gets Debian's packages.
fn site() -> anyhow::Result<String> {
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)"]);
    let targets = shell::capture(&mut apt)?;
    let site = targets
        .lines()
        .find_map(|line| line.strip_prefix("Debian Debian "));
    site.map(str::to_owned)
        .context("apt has no archive of Debian's; run: apt-get update")
}

/// Extracts the program from Debian's package without installing the package.
fn unpack_nginx(work: &Path, program: &Path) -> anyhow::Result<()> {
    let download = || {
        let mut apt = Command::new("apt-get");
        apt.args(["download", "--quiet=2", "nginx"])
            .current_dir(work);
        apt.args(["--option", "APT::Sandbox::User="]);
        shell::capture(&mut apt)
    };
    // The package lists of apt may be missing or outdated.
    if download().is_err() {
        shell::capture(Command::new("apt-get").args(["update", "--quiet=2"]))?;
        download()?;
    }
    let package = fs::read_dir(work)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|word| word == "deb"))
        .context("apt left no package of nginx")?;
    let unpacked = work.join("nginx");
    let mut dpkg = Command::new("dpkg-deb");
    shell::capture(dpkg.arg("--extract").arg(package).arg(&unpacked))?;
    fs::copy(unpacked.join("usr/sbin/nginx"), program)?;
    Ok(())
}

fn install_cepheus(scratch: &Path) -> anyhow::Result<()> {
    let python = scratch.join("python");
    let mut pip = Command::new(PYTHON);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
    ])
    .args([
        "--only-binary=:all:",
        "--no-compile",
        "--root-user-action=ignore",
    ])
    .arg("--target")
    .arg(&python)
    .arg("--requirement")
    .arg(tests().join("requirements.txt"));
    shell::capture(&mut pip)?;
    let script = python.join("cepheus/enumerator/cepheus-enum.sh");
    if !script.is_file() {
        bail!("it holds no {}", script.display());
    }
    fs::copy(&script, scratch.join("cepheus-enum.sh")).context("cannot copy the script")?;
    Ok(())
}

fn tests() -> PathBuf {
    shell::root().join("driver-native/tests/isolation")
}
