//! What cargo built: the test binaries and programs, read from its messages.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

/// A program that cargo made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    /// The package, `muster-agent`.
    pub(crate) package: String,
    /// The target within it: the name of the library, program or test.
    pub(crate) target: String,
    /// `lib`, `bin`, `test`, …
    pub(crate) kind: String,
    /// Whether it is a test harness.
    pub(crate) is_test: bool,
    /// The program.
    pub(crate) executable: PathBuf,
}

impl Artifact {
    /// The arguments of `cargo test` that run this one alone.
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

/// Runs a `cargo build` or `cargo test --no-run` and returns the programs it made. What the
/// compiler has to say is shown as ever.
///
/// # Errors
///
/// When the build fails.
pub(crate) fn build(cargo: &mut Command) -> anyhow::Result<Vec<Artifact>> {
    cargo.arg("--message-format=json-render-diagnostics");
    let output = cargo
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", super::display(cargo)))?;
    if !output.status.success() {
        bail!("{} ended with {}", super::display(cargo), output.status);
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads cargo's messages, one JSON object a line; lines that are none are a build script's.
fn parse(messages: &str) -> Vec<Artifact> {
    messages
        .lines()
        .filter_map(|line| artifact(serde_json::from_str(line).ok()?))
        .collect()
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
    })
}

/// The name in a package id: `path+file:///src/agent#muster-agent@0.1.0`, or
/// `path+file:///src/muster-agent#0.1.0` where folder and package have the same name.
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
            r#""target":{"name":"vm","kind":["test"]},"profile":{"test":true},"executable":"/t/vm-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","package_id":"path+file:///s/agent#muster-agent@0.1.0","#,
            r#""target":{"name":"muster_agent","kind":["lib"]},"profile":{"test":false},"executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"build-finished","success":true}"#,
        );

        let artifacts = parse(messages);

        let expected = Artifact {
            package: "muster-agent".into(),
            target: "vm".into(),
            kind: "test".into(),
            is_test: true,
            executable: "/t/vm-1".into(),
        };
        assert_eq!(artifacts, [expected]);
        assert_eq!(artifacts[0].selector(), "-p muster-agent --test vm");
    }

    #[test]
    fn package_name_may_be_that_of_the_folder() {
        assert_eq!(
            package_name("path+file:///src/muster-agent#0.1.0"),
            "muster-agent"
        );
    }
}
