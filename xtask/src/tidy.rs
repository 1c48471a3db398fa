//! `cargo xtask tidy`: the rules that the compiler and clippy do not check.
//!
//! [`circles`] finds circles of imports. [`crates`] compares the dependency table with cargo's resolution.
//! [`third_party`] checks crates of others against `deny.toml`. [`text`] has the rules about one line of code, and
//! [`layout`] the rules about files and their names. [`names`] has the rules about names, [`doc_comments`] and
//! [`prose`] about doc comments, and [`documents`] about Markdown. [`formats`] compares golden files with their lock.
//!
//! They return findings ([`finding`]) and print nothing. `xtask/tidy-exceptions.toml` lists deliberate exceptions
//! with their reasons ([`exceptions`]). More findings than the list allows are an error, and so are fewer. The list
//! can therefore only shrink.

mod circles;
mod crates;
mod doc_comments;
mod documents;
mod exceptions;
mod finding;
pub(crate) mod formats;
mod layout;
mod names;
mod prose;
mod source;
mod text;
mod third_party;

use std::process::Command;

use anyhow::{Context, bail};

use crate::shell;
use finding::Finding;
use source::SourceFile;

/// Runs the `tidy` command.
///
/// # Errors
///
/// When a rule is broken, or an exception is stale; every finding has been printed by then.
pub(crate) fn run() -> anyhow::Result<()> {
    let files = files()?;
    let mut findings = crates::check(&crates::metadata()?);
    let rules = third_party::rules()?;
    findings.extend(third_party::check(&rules, &third_party::metadata(&rules)?));
    for file in &files {
        findings.extend(layout::check_file(file));
        findings.extend(text::check(file));
        findings.extend(prose::check(file));
        findings.extend(doc_comments::check(file));
        findings.extend(names::check(file));
    }
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    findings.extend(layout::check_stems(&paths));
    findings.extend(circles::check(&files));
    findings.extend(documents::check(&files));
    findings.extend(formats::check(&files));
    findings.sort();

    let list = exceptions::read(&shell::root().join(exceptions::PATH))?;
    let broken = exceptions::apply(&list, findings);
    for finding in &broken {
        let Finding {
            path,
            line,
            rule,
            message,
        } = finding;
        println!("{path}:{line}: {rule}: {message}");
    }
    match broken.len() {
        0 => {
            println!("tidy: {} files, {} exceptions", files.len(), list.len());
            Ok(())
        }
        count => bail!("tidy found {count} broken rules"),
    }
}

/// Returns the files of the tree that git tracks or would add.
fn files() -> anyhow::Result<Vec<SourceFile>> {
    let root = shell::root();
    let mut git = Command::new("git");
    // The clone in the CI may belong to another user than the one that runs this program.
    git.arg("-c")
        .arg(format!("safe.directory={}", root.display()));
    git.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    git.current_dir(&root);
    let list = shell::capture(&mut git)?;
    let mut files = Vec::new();
    for path in list.split('\0').filter(|path| !path.is_empty()) {
        let full = root.join(path);
        // The path is a deleted file before its commit, or a link to a folder.
        if !full.is_file() {
            continue;
        }
        let bytes = std::fs::read(&full).with_context(|| format!("cannot read {path}"))?;
        files.push(SourceFile::new(path, &bytes));
    }
    Ok(files)
}
