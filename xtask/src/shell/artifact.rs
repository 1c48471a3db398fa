//! Artifacts of a cargo build: the test binaries and programs, parsed from cargo's messages.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::usage;

/// A program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    /// The package, such as `muster-agent`.
    pub(crate) package: String,
    /// The target within it: the name of the library, program or test.
    pub(crate) target: String,
    /// `lib`, `bin`, `test`, …
    pub(crate) kind: String,
    /// Whether the program is a test harness.
    pub(crate) is_test: bool,
    /// The program.
    pub(crate) executable: PathBuf,
    /// The package's folder, in which cargo starts its tests.
    pub(crate) folder: PathBuf,
}

impl Artifact {
    /// Whether the program is a test harness of a library or program. Such tests run in process (T0).
    pub(crate) fn is_unit_test(&self) -> bool {
        self.is_test && self.kind != "test"
    }

    /// Returns the arguments of `cargo test` that select only this artifact.
    pub(crate) fn selector(&self) -> String {
        match self.kind.as_str() {
            "bin" => format!("-p {} --bin {}", self.package, self.target),
            "test" => format!("-p {} --test {}", self.package, self.target),
            "example" => format!("-p {} --example {}", self.package, self.target),
            _ => format!("-p {} --lib", self.package),
        }
    }
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    message: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The result of a build.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BuildResult {
    pub(crate) artifacts: Vec<Artifact>,
    /// Compiler warnings about packages of this workspace.
    pub(crate) warnings: usize,
}

/// Runs a `cargo build` or `cargo test --no-run`, shows the compiler's messages and returns the programs.
///
/// # Errors
///
/// When the build fails.
pub(crate) fn build(cargo: &mut Command) -> anyhow::Result<BuildResult> {
    cargo.arg("--message-format=json");
    let mut child = cargo
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .with_context(|| format!("cannot start {}", super::display(cargo)))?;
    let mut messages = String::new();
    let mut stdout = child.stdout.take().context("cargo's output is a pipe")?;
    stdout
        .read_to_string(&mut messages)
        .context("cannot read cargo's messages")?;
    let status = usage::wait(&mut child)?;
    let built = parse(&messages, &mut |rendered| eprint!("{rendered}"));
    if !status.success() {
        bail!("{} ended with {status}", super::display(cargo));
    }
    Ok(built)
}

/// Parses cargo's messages, one JSON object per line, and passes each compiler message to `show`. A build script may
/// print other lines.
fn parse(messages: &str, show: &mut dyn FnMut(&str)) -> BuildResult {
    let mut built = BuildResult::default();
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<Message>(line) else {
            continue;
        };
        if let Some(diagnostic) = &message.message {
            show(diagnostic.rendered.as_deref().unwrap_or_default());
            built.warnings += usize::from(diagnostic.level == "warning");
        }
        built.artifacts.extend(artifact(message));
    }
    built
}

fn artifact(message: Message) -> Option<Artifact> {
    if message.reason != "compiler-artifact" {
        return None;
    }
    let target = message.target?;
    Some(Artifact {
        package: package_name(&message.package_id?),
        target: target.name,
        kind: target.kind.into_iter().next()?,
        is_test: message.profile?.test,
        executable: message.executable?,
        folder: message.manifest_path?.parent()?.to_path_buf(),
    })
}

/// Returns the name in a package id. An id is `path+file:///src/agent#muster-agent@0.1.0`, or
/// `path+file:///src/muster-agent#0.1.0` if folder and package have the same name.
fn package_name(id: &str) -> String {
    let (path, fragment) = id.rsplit_once('#').unwrap_or((id, ""));
    match fragment.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => path.rsplit('/').next().unwrap_or(path).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","package_id":"path+file:///s/agent#muster-agent@0.1.0","#,
            r#""manifest_path":"/s/agent/Cargo.toml","#,
            r#""target":{"name":"vm","kind":["test"]},"profile":{"test":true},"executable":"/t/vm-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","package_id":"path+file:///s/agent#muster-agent@0.1.0","#,
            r#""target":{"name":"muster_agent","kind":["lib"]},"profile":{"test":false},"executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"build-finished","success":true}"#,
        );

        let BuildResult { artifacts, .. } = parse(messages, &mut |_| ());

        let expected = Artifact {
            package: "muster-agent".into(),
            target: "vm".into(),
            kind: "test".into(),
            is_test: true,
            executable: "/t/vm-1".into(),
            folder: "/s/agent".into(),
        };
        assert_eq!(artifacts, [expected]);
        assert_eq!(artifacts[0].selector(), "-p muster-agent --test vm");
    }

    #[test]
    fn warnings_are_counted_and_shown() {
        let messages = concat!(
            r#"{"reason":"compiler-message","message":{"level":"warning","rendered":"unused x"}}"#,
            "\n",
            r#"{"reason":"compiler-message","message":{"level":"failure-note","rendered":"see E1"}}"#,
        );
        let mut shown = String::new();

        let built = parse(messages, &mut |text| shown.push_str(text));

        assert_eq!(built.warnings, 1);
        assert_eq!(shown, "unused xsee E1");
    }

    #[test]
    fn package_name_may_be_that_of_the_folder() {
        assert_eq!(
            package_name("path+file:///src/muster-agent#0.1.0"),
            "muster-agent"
        );
    }
}
