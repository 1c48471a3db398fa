//! Starting other programs: the workspace's folder, a clean `cargo`, output that is both shown and read.

pub(crate) mod artifact;
pub(crate) mod usage;

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

/// Bytes read from a program's output at a time. A line of a test is far shorter. A larger buffer would not make the
/// copy faster, since the programs write line by line.
const OUTPUT_CHUNK_BYTES: usize = 16 * 1024;

/// Returns the workspace's folder.
pub(crate) fn root() -> PathBuf {
    // `cargo run` sets the variable. The constant serves a binary that is started by hand.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask
        .parent()
        .map_or_else(|| xtask.clone(), Path::to_path_buf)
}

/// Copies this program to a constant path and returns the path. A build of the workspace replaces the program itself.
///
/// # Errors
///
/// When the copy cannot be made.
pub(crate) fn copy_own_program() -> anyhow::Result<PathBuf> {
    let copy = target_dir().join("muster-xtask-copy");
    // The kernel keeps the file of a running program, even if its name is deleted.
    let own = std::fs::read("/proc/self/exe").context("cannot read this program")?;
    if std::fs::read(&copy).is_ok_and(|present| present == own) {
        return Ok(copy);
    }
    let scratch = copy.with_extension(std::process::id().to_string());
    std::fs::write(&scratch, own)
        .and_then(|()| std::fs::set_permissions(&scratch, Permissions::from_mode(0o755)))
        .and_then(|()| std::fs::rename(&scratch, &copy))
        .with_context(|| format!("cannot write {}", copy.display()))?;
    Ok(copy)
}

/// Returns cargo's target folder.
pub(crate) fn target_dir() -> PathBuf {
    let dir =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root().join(dir)
}

/// Returns a `cargo` command in the workspace's folder.
///
/// `cargo run` describes the xtask package in the environment. If these variables were passed on, some build scripts
/// would run again whenever a developer alternates between `cargo xtask` and `cargo`.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let of_package = text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_");
        if of_package
            || matches!(
                text,
                "CARGO" | "CARGO_BIN_NAME" | "CARGO_CRATE_NAME" | "LD_LIBRARY_PATH"
            )
        {
            command.env_remove(name);
        }
    }
    command
}

/// Returns a `cargo build` command that shares its artifacts with `cargo xtask test`.
///
/// It leaves out the allocator of releases (jemalloc), a default feature. The allocator's C code takes 85 s of
/// processor time to compile, and no test depends on it.
pub(crate) fn cargo_build() -> Command {
    let mut command = cargo();
    command.args(["build", "--no-default-features"]);
    command
}

/// Runs `command` with this program's input and output.
///
/// # Errors
///
/// When it cannot be started or does not exit with 0; the message repeats the command.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", display(command)))?;
    let status = usage::wait(&mut child)?;
    if !status.success() {
        bail!("{} ended with {status}", display(command));
    }
    Ok(())
}

/// Runs `command` and returns its standard output.
///
/// # Errors
///
/// As [`run`]; the message then ends with the program's standard error.
pub(crate) fn capture(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", display(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} ended with {}: {}",
            display(command),
            output.status,
            stderr.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command` with both of its outputs in one pipe, in the order in which they are written. Passes each line to
/// `on_line` as it arrives.
pub(crate) fn lines(
    command: &mut Command,
    on_line: &mut dyn FnMut(&str),
) -> anyhow::Result<ExitStatus> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", display(command)))?;
    // The command keeps the writing ends until it gets other outputs. The reader would never reach the end otherwise.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    copy(reader, &mut std::io::sink(), on_line)?;
    usage::wait(&mut child)
}

/// Copies `reader` to `output` as data arrives, and passes each complete line to `on_line`.
pub(crate) fn copy(
    mut reader: impl Read,
    output: &mut dyn Write,
    on_line: &mut dyn FnMut(&str),
) -> anyhow::Result<()> {
    let mut chunk = [0; OUTPUT_CHUNK_BYTES];
    let mut rest = Vec::new();
    loop {
        let count = reader
            .read(&mut chunk)
            .context("cannot read a program's output")?;
        if count == 0 {
            break;
        }
        output
            .write_all(&chunk[..count])
            .and_then(|()| output.flush())
            .context("cannot write")?;
        rest.extend_from_slice(&chunk[..count]);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            on_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
        }
    }
    if !rest.is_empty() {
        on_line(&String::from_utf8_lossy(&rest));
    }
    Ok(())
}

/// Returns the path of the program `name`. Searches `PATH` and the folders in which Debian keeps root's programs.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Formats the command as a user would type it.
pub(crate) fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| quote(&word.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Quotes `word` for a POSIX shell if necessary.
pub(crate) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Formats a duration: `0.4 s`, `48 s`, `2 m 05 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        whole @ 10..60 => format!("{whole} s"),
        whole => format!("{} m {:02} s", whole / 60, whole % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(quote("a/b-c=1"), "a/b-c=1");
        assert_eq!(quote("exit 3"), "'exit 3'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }

    #[test]
    fn durations_keep_two_digits() {
        assert_eq!(seconds(Duration::from_millis(440)), "0.4 s");
        assert_eq!(seconds(Duration::from_secs(48)), "48 s");
        assert_eq!(seconds(Duration::from_secs(125)), "2 m 05 s");
    }

    #[test]
    fn lines_come_whole_and_without_line_ends() {
        let mut seen = Vec::new();

        copy(
            "one\r\ntwo\nrest".as_bytes(),
            &mut std::io::sink(),
            &mut |line| seen.push(line.to_owned()),
        )
        .unwrap();

        assert_eq!(seen, ["one", "two", "rest"]);
    }

    #[test]
    fn both_outputs_keep_their_order() {
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; echo out; exit 3"]);

        let status = lines(&mut command, &mut |line| seen.push(line.to_owned())).unwrap();

        assert_eq!(status.code(), Some(3));
        assert_eq!(seen, ["out", "err", "out"]);
    }
}
