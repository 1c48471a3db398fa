//! The lock of persisted and transmitted formats: `formats.lock` in the workspace's folder.
//!
//! A golden file has a line for each record of a format, and the lock has the hash of each line. A locked line must
//! not change, because it is the sample for tests of old decoders. A format that changes gets a higher version, and
//! new lines or a new file. [`lock`] adds those to the lock. It never changes or removes existing rows.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};
use sha2::{Digest as _, Sha256};

use super::finding::Finding;
use super::source::SourceFile;

/// The path of the lock.
pub(crate) const PATH: &str = "formats.lock";
const RULE: &str = "formats";
/// Bytes of a hash that the lock keeps.
const HASH_BYTES: usize = 16;
const HEAD: &str = "\
# The persisted and sent formats: format, version, golden file, record, hash of the record's golden line.
# `cargo xtask bless` adds lines. A line here never changes; see \"How to change a format\" in CONTRIBUTING.md.
";

/// A format that is persisted, or sent between processes of different versions.
struct Format {
    name: &'static str,
    /// The file with the version constant.
    source: &'static str,
    constant: &'static str,
    /// The golden file. With `{}` each version has its own file; otherwise new versions add lines.
    golden: &'static str,
}

const FORMATS: [Format; 7] = [
    Format {
        name: "commands",
        source: "control/core/src/fsm.rs",
        constant: "VERSION",
        golden: "control/core/testdata/commands.txt",
    },
    Format {
        name: "log-frames",
        source: "control/src/raft/log/record.rs",
        constant: "FORMAT",
        golden: "control/testdata/log.v{}.txt",
    },
    Format {
        name: "snapshot-records",
        source: "control/core/src/snapshot.rs",
        constant: "VERSION",
        golden: "control/core/testdata/snapshot.txt",
    },
    Format {
        name: "server-protocol",
        source: "wire/src/frame.rs",
        constant: "SERVER_VERSION",
        golden: "control/testdata/peers.v{}.txt",
    },
    Format {
        name: "agent-protocol",
        source: "wire/src/frame.rs",
        constant: "AGENT_VERSION",
        golden: "wire/testdata/rpc.v{}.txt",
    },
    Format {
        name: "agent-store",
        source: "agent/src/storage/store.rs",
        constant: "SCHEMA",
        golden: "agent/testdata/store.v{}.txt",
    },
    Format {
        name: "task-handles",
        source: "driver-native/src/task.rs",
        constant: "HANDLE_VERSION",
        golden: "driver/testdata/handle.v{}.txt",
    },
];

/// A row of the lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    format: String,
    version: u32,
    golden: String,
    record: String,
    hash: String,
}

impl Row {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let row = Self {
            format: words.next()?.to_owned(),
            version: words.next()?.parse().ok()?,
            golden: words.next()?.to_owned(),
            record: words.next()?.to_owned(),
            hash: words.next()?.to_owned(),
        };
        words.next().is_none().then_some(row)
    }
}

/// Returns the findings about the lock in the files of the tree.
pub(crate) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let Some(lock) = text(files, PATH) else {
        return vec![finding(
            PATH,
            0,
            "the lock of formats is missing: restore it",
        )];
    };
    check_locked(&FORMATS, lock, &|path| text(files, path))
}

/// Adds new lines to the lock.
///
/// # Errors
///
/// When a locked line was changed or removed, or a file cannot be read or written.
pub(crate) fn lock(root: &Path) -> anyhow::Result<()> {
    let path = root.join(PATH);
    let before = std::fs::read_to_string(&path).context("cannot read formats.lock")?;
    let mut texts = Vec::new();
    for format in &FORMATS {
        for path in [format.source.to_owned()]
            .into_iter()
            .chain(goldens(format))
        {
            if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
                texts.push((path, text));
            }
        }
    }
    let read = |path: &str| {
        let mut found = texts.iter().filter(|(name, _)| name == path);
        found.next().map(|(_, text)| text.as_str())
    };
    let broken: Vec<String> = check_rows(&FORMATS, &before, &read)
        .into_iter()
        .map(|finding| format!("{}:{}: {}", finding.path, finding.line, finding.message))
        .collect();
    if !broken.is_empty() {
        bail!("formats.lock stays as it is:\n{}", broken.join("\n"));
    }
    std::fs::write(&path, locked(&FORMATS, &read)).context("cannot write formats.lock")
}

/// Returns the golden files of a format. There are few versions, so a missing one ends the search.
fn goldens(format: &Format) -> impl Iterator<Item = String> {
    (1..100).map(|version| golden(format, version))
}

fn golden(format: &Format, version: u32) -> String {
    format.golden.replace("{}", &version.to_string())
}

/// Returns the text of a lock for the golden files that `read` finds.
fn locked<'a>(formats: &[Format], read: &impl Fn(&str) -> Option<&'a str>) -> String {
    let mut text = HEAD.to_owned();
    for row in formats.iter().flat_map(|format| rows(format, read)) {
        let Row {
            format,
            version,
            golden,
            record,
            hash,
        } = row;
        writeln!(text, "{format} {version} {golden} {record} {hash}").expect("a string takes text");
    }
    text
}

/// Returns the rows of a format that its golden files require.
fn rows<'a>(format: &Format, read: &impl Fn(&str) -> Option<&'a str>) -> Vec<Row> {
    let current = read(format.source).and_then(|source| find_constant(source, format.constant));
    let mut rows = Vec::new();
    let has_own_files = format.golden.contains("{}");
    let versions = if has_own_files {
        1..=current.unwrap_or(0)
    } else {
        1..=1
    };
    for number in versions {
        let path = golden(format, number);
        for line in read(&path).unwrap_or_default().lines() {
            rows.push(Row {
                format: format.name.to_owned(),
                version: if has_own_files {
                    number
                } else {
                    line_version(line)
                },
                golden: path.clone(),
                record: line.split(' ').next().unwrap_or_default().to_owned(),
                hash: hash(line),
            });
        }
    }
    rows
}

/// Returns the version in the second word of a golden line, such as `v2`. It is 1 without that word.
fn line_version(line: &str) -> u32 {
    line.split(' ')
        .nth(1)
        .and_then(|word| word.strip_prefix('v'))
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(1)
}

fn check_locked<'a>(
    formats: &[Format],
    lock: &str,
    read: &impl Fn(&str) -> Option<&'a str>,
) -> Vec<Finding> {
    let mut findings = check_rows(formats, lock, read);
    let known: BTreeSet<Row> = lock.lines().filter_map(Row::parse).collect();
    for format in formats {
        let rows = rows(format, read);
        for row in rows.iter().filter(|row| !known.contains(row)) {
            let message = format!(
                "`{}` of {} is not in the lock: run `cargo xtask bless`",
                row.record, row.golden
            );
            findings.push(finding(PATH, 0, &message));
        }
    }
    findings
}

/// Returns the findings about the rows of the lock. New lines are not in the lock yet.
fn check_rows<'a>(
    formats: &[Format],
    lock: &str,
    read: &impl Fn(&str) -> Option<&'a str>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = lock.lines().enumerate();
    for (at, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let fault = match Row::parse(line) {
            Some(row) => check_row(formats, &row, read),
            None => Some("not a row of the lock: restore it".to_owned()),
        };
        findings.extend(fault.map(|message| finding(PATH, at + 1, &message)));
    }
    for format in formats {
        let current = read(format.source).and_then(|source| find_constant(source, format.constant));
        let Some(current) = current else {
            let message = format!("no constant {} with a number", format.constant);
            findings.push(finding(format.source, 0, &message));
            continue;
        };
        let path = golden(format, current);
        if read(&path).is_none() {
            let message = format!("version {current} of {} has no {path}: add it", format.name);
            findings.push(finding(format.source, 0, &message));
        }
    }
    findings
}

fn check_row<'a>(
    formats: &[Format],
    row: &Row,
    read: &impl Fn(&str) -> Option<&'a str>,
) -> Option<String> {
    let Some(format) = formats.iter().find(|format| format.name == row.format) else {
        return Some(format!("unknown format `{}`: restore its name", row.format));
    };
    let current = read(format.source).and_then(|source| find_constant(source, format.constant))?;
    // If versions share a file, each record has its own version.
    if format.golden.contains("{}") && row.version > current {
        return Some(format!(
            "{} has version {}, but {} in {} is {current}: a version never goes back",
            row.format, row.version, format.constant, format.source
        ));
    }
    let golden = read(&row.golden).unwrap_or_default();
    let stays = golden.lines().any(|line| hash(line) == row.hash);
    (!stays).then(|| {
        format!(
            "`{}` of {} was changed or removed: restore the line, raise {} in {}, and add the new bytes beside it",
            row.record, row.golden, format.constant, format.source
        )
    })
}

/// Returns the number in the constant `name` of the Rust file `source`.
fn find_constant(source: &str, name: &str) -> Option<u32> {
    let declaration = format!("const {name}:");
    let line = source.lines().find(|line| line.contains(&declaration))?;
    let (_, value) = line.split_once('=')?;
    value.trim().trim_end_matches(';').parse().ok()
}

fn hash(line: &str) -> String {
    let digest = Sha256::digest(line.as_bytes());
    let mut text = String::new();
    for byte in &digest[..HASH_BYTES] {
        write!(text, "{byte:02x}").expect("a string takes text");
    }
    text
}

fn text<'a>(files: &'a [SourceFile], path: &str) -> Option<&'a str> {
    let mut found = files.iter().filter(|file| file.path == path);
    found.next().map(|file| file.raw.as_str())
}

fn finding(path: &str, line: usize, message: &str) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        rule: RULE,
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: Format = Format {
        name: "store",
        source: "store.rs",
        constant: "SCHEMA",
        golden: "store.v{}.txt",
    };

    const GOLDEN: &str = "task 01\nalloc 02\n";

    /// A tree with its lock.
    struct Tree {
        files: Vec<(&'static str, String)>,
        lock: String,
    }

    impl Tree {
        /// Creates a tree with version 1, locked.
        fn new() -> Self {
            let mut tree = Self {
                files: Vec::new(),
                lock: String::new(),
            };
            tree.write("store.rs", "const SCHEMA: u32 = 1;\n");
            tree.write("store.v1.txt", GOLDEN);
            tree.lock = locked(&[STORE], &|path| tree.read(path));
            tree
        }

        fn write(&mut self, path: &'static str, text: &str) {
            self.files.retain(|(name, _)| *name != path);
            self.files.push((path, text.to_owned()));
        }

        fn read(&self, path: &str) -> Option<&str> {
            let mut found = self.files.iter().filter(|(name, _)| *name == path);
            found.next().map(|(_, text)| text.as_str())
        }

        /// Returns the messages of the findings.
        fn check(&self) -> Vec<String> {
            let findings = check_locked(&[STORE], &self.lock, &|path| self.read(path));
            findings
                .into_iter()
                .map(|finding| finding.message)
                .collect()
        }

        fn check_rows(&self) -> usize {
            check_rows(&[STORE], &self.lock, &|path| self.read(path)).len()
        }
    }

    #[test]
    fn a_locked_format_has_no_findings() {
        let tree = Tree::new();

        assert_eq!(tree.check(), Vec::<String>::new());
        assert_eq!(tree.lock.lines().count(), HEAD.lines().count() + 2);
    }

    #[test]
    fn an_edited_line_is_refused() {
        let mut tree = Tree::new();
        tree.write("store.v1.txt", "task 03\nalloc 02\n");

        let found = tree.check();

        assert!(
            found[0].contains("`task` of store.v1.txt was changed"),
            "{found:?}"
        );
        // A new lock would hide the change.
        assert_eq!(tree.check_rows(), 1);
    }

    #[test]
    fn a_removed_line_is_refused() {
        let mut tree = Tree::new();
        tree.write("store.rs", "const SCHEMA: u32 = 2;\n");
        tree.write("store.v2.txt", "task 03\nalloc 02\n");
        tree.write("store.v1.txt", "task 01\n");

        assert_eq!(tree.check_rows(), 1);
    }

    #[test]
    fn an_appended_line_needs_only_the_lock() {
        let mut tree = Tree::new();
        tree.write("store.v1.txt", "task 01\nalloc 02\nuser 04\n");

        assert_eq!(tree.check_rows(), 0);
        assert_eq!(
            tree.check(),
            ["`user` of store.v1.txt is not in the lock: run `cargo xtask bless`"]
        );
    }

    #[test]
    fn a_raised_version_keeps_the_old_sample() {
        let mut tree = Tree::new();
        tree.write("store.rs", "const SCHEMA: u32 = 2;\n");
        assert!(tree.check()[0].contains("has no store.v2.txt"));

        tree.write("store.v2.txt", "task 03\nalloc 02\n");
        assert_eq!(tree.check_rows(), 0);
        tree.lock = locked(&[STORE], &|path| tree.read(path));
        assert_eq!(tree.check(), Vec::<String>::new());

        tree.files.retain(|(name, _)| *name != "store.v1.txt");
        assert_eq!(tree.check_rows(), 2);
    }

    #[test]
    fn a_version_never_goes_back() {
        let mut tree = Tree::new();
        tree.lock = tree.lock.replace("store 1", "store 2");

        assert!(tree.check()[0].contains("never goes back"));
    }

    #[test]
    fn line_version_is_its_second_word() {
        assert_eq!(
            (line_version("nodes v2 04"), line_version("nodes 04")),
            (2, 1)
        );
    }
}
