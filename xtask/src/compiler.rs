//! The gate's compiler: clippy in place of rustc, with a record of each call for a later run of rustdoc.
//!
//! `cargo clippy`, `cargo doc` and `cargo build` share nothing: each would compile all dependencies again. Cargo
//! starts this program for each crate of the workspace (`RUSTC_WORKSPACE_WRAPPER`). The program records the arguments
//! and executes `clippy-driver`, which checks and compiles in one run. The documents are then checked with the same
//! arguments, so that they use the libraries of that build.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::shell::{self, usage};
use crate::sim;

/// The variable with the folder of the records. If it is set, this program acts as the compiler.
const RECORDS_VARIABLE: &str = "MUSTER_XTASK_RECORDS";

/// Options that both rustc and rustdoc accept and that rustdoc needs, each followed by a value.
const SHARED_OPTIONS: [&str; 8] = [
    "--cap-lints",
    "--cfg",
    "--check-cfg",
    "--crate-name",
    "--crate-type",
    "--edition",
    "--extern",
    "-L",
];

/// A call of rustc for a library or a program.
#[derive(Debug, Deserialize, Serialize)]
struct Call {
    folder: PathBuf,
    arguments: Vec<String>,
    /// The variables that cargo sets for the crate.
    variables: BTreeMap<String, String>,
}

/// A build of the gate. Each has its own records, because both compile some of the same crates.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Build {
    Tests,
    Simulator,
}

impl Build {
    fn records_folder(self) -> PathBuf {
        let name = match self {
            Self::Tests => "tests",
            Self::Simulator => "simulator",
        };
        shell::target_dir().join("compiler-calls").join(name)
    }

    /// Whether the crate with the record `file` belongs to this build. Only the simulator's crates belong to
    /// [`Self::Simulator`], because the build of the tests compiles all others.
    fn checks_documents_of(self, file: &Path) -> bool {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        match self {
            Self::Tests => true,
            Self::Simulator => name.starts_with(&sim::PROGRAM.replace('-', "_")),
        }
    }
}

/// Makes `cargo` compile the workspace's crates with clippy and record the calls of `build`.
///
/// # Errors
///
/// When the path of this program is unknown or the folder of the records cannot be made.
pub(crate) fn lint_and_record(cargo: &mut Command, build: Build) -> anyhow::Result<()> {
    let records = build.records_folder();
    std::fs::create_dir_all(&records)
        .with_context(|| format!("cannot make {}", records.display()))?;
    let program = shell::copy_own_program()?;
    cargo
        .env("RUSTC_WORKSPACE_WRAPPER", program)
        .env(RECORDS_VARIABLE, records);
    Ok(())
}

/// Acts as the compiler if cargo started this program as one. Returns only if that is not the case, or on an error.
pub(crate) fn run_as_compiler() -> Option<ExitCode> {
    let records = std::env::var_os(RECORDS_VARIABLE)?;
    // The first argument is the compiler, and the others are its arguments.
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = record(Path::new(&records), &words) {
        eprintln!("error: {error:#}");
        return Some(ExitCode::FAILURE);
    }
    let error = Command::new("clippy-driver")
        .args(&words)
        .env_remove(RECORDS_VARIABLE)
        .exec();
    eprintln!("error: cannot start clippy-driver: {error}; run: rustup component add clippy");
    Some(ExitCode::FAILURE)
}

fn record(records: &Path, words: &[String]) -> anyhow::Result<()> {
    let Some(name) = crate_name(words) else {
        return Ok(());
    };
    let variables = std::env::vars()
        .filter(|(name, _)| is_set_by_cargo(name))
        .collect();
    let call = Call {
        folder: std::env::current_dir().context("cannot read the current folder")?,
        arguments: words.to_vec(),
        variables,
    };
    let file = records.join(format!("{name}.json"));
    std::fs::write(&file, serde_json::to_vec(&call)?)
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Whether cargo sets the variable per crate, so that `env!` may read it.
fn is_set_by_cargo(name: &str) -> bool {
    [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_CRATE_",
        "CARGO_BIN_",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
        || name == "OUT_DIR"
}

/// Returns a name for the crate that these arguments compile, such as `muster_agent-lib`. Returns `None` for tests,
/// build scripts and queries of cargo.
fn crate_name(words: &[String]) -> Option<String> {
    let value = |option: &str| {
        let mut pairs = words.windows(2);
        pairs.find_map(|pair| (pair[0] == option).then(|| pair[1].clone()))
    };
    let (name, kind) = (value("--crate-name")?, value("--crate-type")?);
    let excluded = name.starts_with("build_script_")
        || name == "___"
        || words.iter().any(|word| word == "--test")
        || words.iter().any(|word| word.contains("/examples/"));
    (!excluded).then(|| format!("{name}-{kind}"))
}

/// Checks the documents of the crates that belong to `build`, including private items. A link to a renamed item is an
/// error.
///
/// # Errors
///
/// When a document is wrong; rustdoc has printed the reasons by then.
pub(crate) fn documents(build: Build) -> anyhow::Result<()> {
    let records = build.records_folder();
    let mut files: Vec<PathBuf> = std::fs::read_dir(&records)
        .with_context(|| format!("cannot read {}", records.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| build.checks_documents_of(file))
        .collect();
    files.sort();
    anyhow::ensure!(!files.is_empty(), "no call of the compiler is recorded");
    let count = files.len();
    let queue = Mutex::new(files.into_iter());
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cpu = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    // The lock must be released before the check, so it is not taken in the loop's condition.
                    let next = || lock(&queue).next();
                    while let Some(file) = next() {
                        if let Err(error) = check_documents(&file) {
                            lock(&failures).push(format!("{}: {error:#}", file.display()));
                        }
                    }
                    usage::cpu_time()
                })
            })
            .collect();
        let times = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        times
            .map(|time| time.expect("a worker reports its errors"))
            .sum()
    });
    usage::add_cpu_time(cpu);
    let failures = failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("; "));
    println!("  ok     documents of {count} crates");
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks the documents of the crate whose call of rustc is in `file`.
fn check_documents(file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read(file).context("cannot read the recorded call")?;
    let call: Call =
        serde_json::from_slice(&text).context("the recorded call is damaged; remove it")?;
    shell::run(&mut rustdoc(&call))
}

fn rustdoc(call: &Call) -> Command {
    let mut command = Command::new("rustdoc");
    command
        .args(shared_arguments(&call.arguments))
        .args(["--document-private-items", "-D", "warnings"])
        .args(["-A", "rustdoc::private_intra_doc_links"])
        // Only the check is needed, so rustdoc writes no pages.
        .args(["-Z", "unstable-options", "--check"])
        .env("RUSTC_BOOTSTRAP", "1")
        .envs(&call.variables)
        .current_dir(&call.folder);
    command
}

/// Returns the arguments of a call of rustc that rustdoc needs. The first argument is the compiler.
fn shared_arguments(words: &[String]) -> Vec<&str> {
    let mut arguments = Vec::new();
    let mut words = words.iter().skip(1).map(String::as_str);
    while let Some(word) = words.next() {
        let option = word.split_once('=').map_or(word, |(option, _)| option);
        if SHARED_OPTIONS.contains(&word) {
            arguments.push(word);
            arguments.extend(words.next());
        } else if SHARED_OPTIONS.contains(&option) || is_source(word) {
            arguments.push(word);
        }
    }
    arguments
}

fn is_source(word: &str) -> bool {
    Path::new(word).extension() == Some("rs".as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn rustdoc_gets_the_arguments_it_needs() {
        let call = words(
            "rustc --crate-name muster_x --edition=2024 x/src/lib.rs --error-format=json --crate-type lib \
             --emit=dep-info,link -C metadata=1 --cfg feature=\"a\" --out-dir /t -L dependency=/t --extern y=/t/y.rmeta",
        );

        let arguments = shared_arguments(&call).join(" ");

        assert_eq!(
            arguments,
            "--crate-name muster_x --edition=2024 x/src/lib.rs --crate-type lib --cfg feature=\"a\" \
             -L dependency=/t --extern y=/t/y.rmeta"
        );
    }

    #[test]
    fn only_libraries_and_programs_are_documented() {
        let library = words("rustc --crate-name muster_x --crate-type lib src/lib.rs");
        let test = words("rustc --crate-name muster_x --crate-type bin --test src/lib.rs");
        let script = words("rustc --crate-name build_script_build --crate-type bin build.rs");

        assert_eq!(crate_name(&library).as_deref(), Some("muster_x-lib"));
        assert_eq!(crate_name(&test), None);
        assert_eq!(crate_name(&script), None);
        assert_eq!(crate_name(&words("rustc -vV")), None);
    }
}
