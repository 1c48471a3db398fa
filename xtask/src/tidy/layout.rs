//! Rules about files: headers, names, sizes, forbidden words, and the four places of eBPF programs.

use super::finding::Finding;
use super::source::{SourceFile, is_word};

/// The largest allowed file. The lock file is the largest generated file, with less than half of this size. A larger
/// file would be a blob that every clone has to carry.
const FILE_BYTES_MAX: usize = 256 * 1024;

/// Files of `ebpf/programs/src` that are not programs: the root of the object, and code that programs share.
const NOT_PROGRAMS: [&str; 4] = ["main", "lib", "host", "kernel"];

/// The places in which each eBPF program has a file, with `*` for its stem.
const STEM_PLACES: [&str; 4] = [
    "ebpf/programs/src/*.rs",
    "ebpf/common/src/*.rs",
    "agent/src/bpf/*.rs",
    "agent/tests/vm/*.rs",
];

/// Words that no file may contain, each with advice. They are concatenated here so that this file does not contain
/// them.
const WORDS: [(&str, &str); 2] = [
    (
        concat!("FIX", "ME"),
        "mend it, or open an issue and name it in a sentence",
    ),
    (concat!("X", "XX"), "say what it is in a sentence"),
];

/// Prefixes of paths that exist only on one developer's machine.
const MACHINE_PATHS: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/."),
    concat!("/ho", "me/"),
];

/// The only registry that the lock file may name.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Finds the violations of layout rules in `file`.
pub(crate) fn check_file(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |line: usize, rule: &'static str, message: String| {
        findings.push(Finding {
            path: file.path.clone(),
            line,
            rule,
            message,
        });
    };
    if file.size > FILE_BYTES_MAX {
        let message = format!(
            "{} KiB, over {} KiB: generate it, or keep it out of the tree",
            file.size / 1024,
            FILE_BYTES_MAX / 1024
        );
        add(0, "large-file", message);
    }
    if file.is_rust() {
        if file.path.ends_with("/mod.rs") {
            add(
                1,
                "mod-file",
                "name it after the module and put it beside the folder: `x.rs`, `x/`".into(),
            );
        }
        // The documentation of a module covers its tests.
        let of_a_module = file.path.ends_with("/tests.rs");
        if file.path.contains("/src/") && !of_a_module && !file.raw.starts_with("//!") {
            add(
                1,
                "header",
                "begin with a `//!` header: what it is, who writes what, what is elsewhere".into(),
            );
        }
    }
    for (index, line) in file.raw.lines().enumerate() {
        check_line(&file.path, line, &mut |rule, message| {
            add(index + 1, rule, message);
        });
    }
    findings
}

/// The home directory in Diego's containers.
const CONTAINER_HOME: &str = concat!("/ho", "me/vcap");

fn check_line(path: &str, line: &str, add: &mut dyn FnMut(&'static str, String)) {
    for (word, advice) in WORDS {
        if has_word(line, word) {
            add("word", format!("`{word}`: {advice}"));
        }
    }
    // The home directory in every Diego container does not belong to a developer's machine.
    let of_machines = line.replace(CONTAINER_HOME, "");
    for beginning in MACHINE_PATHS {
        if starts_a_word(&of_machines, beginning) {
            add(
                "machine-path",
                format!("`{beginning}…` is a path of one machine: leave it out"),
            );
        }
    }
    if path == "Cargo.lock" && line.starts_with("source = ") && !line.contains(REGISTRY) {
        add(
            "lock-source",
            format!("{line}: dependencies come from crates.io only"),
        );
    }
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word)
    })
}

/// Whether a path in `line` begins with `beginning`. The middle of a longer path does not count.
fn starts_a_word(line: &str, beginning: &str) -> bool {
    let middle = |c: char| c.is_alphanumeric() || "._-}*)>".contains(c);
    line.match_indices(beginning)
        .any(|(at, _)| !line[..at].ends_with(middle))
}

/// Returns the places where an eBPF program of `paths` lacks its file.
pub(crate) fn check_stems(paths: &[&str]) -> Vec<Finding> {
    let stems = paths.iter().filter_map(|path| {
        let stem = path
            .strip_prefix("ebpf/programs/src/")?
            .strip_suffix(".rs")?;
        (!stem.contains('/') && !NOT_PROGRAMS.contains(&stem)).then_some((*path, stem))
    });
    let mut findings = Vec::new();
    for (path, stem) in stems {
        for place in STEM_PLACES {
            let wanted = place.replace('*', stem);
            if !paths.contains(&wanted.as_str()) {
                let message =
                    format!("the program `{stem}` has no {wanted}: one stem, four places");
                findings.push(Finding {
                    path: path.to_owned(),
                    line: 0,
                    rule: "stem",
                    message,
                });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, content: &str) -> Vec<(&'static str, usize)> {
        let file = SourceFile::new(path, content.as_bytes());
        check_file(&file)
            .into_iter()
            .map(|finding| (finding.rule, finding.line))
            .collect()
    }

    #[test]
    fn sources_begin_with_a_header() {
        assert_eq!(
            rules("domain/src/job.rs", "use std::fmt;\n"),
            [("header", 1)]
        );
        assert_eq!(rules("domain/src/job.rs", "//! A job.\n"), []);
        assert_eq!(rules("domain/build.rs", "fn main() {}\n"), []);
        assert_eq!(rules("domain/src/job/tests.rs", "use super::*;\n"), []);
    }

    #[test]
    fn modules_stand_beside_their_folder() {
        assert_eq!(rules("agent/src/bpf/mod.rs", "//! x\n"), [("mod-file", 1)]);
    }

    #[test]
    fn forbidden_words_and_machine_paths_are_found() {
        let note = ["// FIX", "ME later\n"].concat();
        let path = ["see /ho", "me/anna/notes\n"].concat();

        assert_eq!(rules("README.md", &note), [("word", 1)]);
        assert_eq!(rules("README.md", &path), [("machine-path", 1)]);
        assert_eq!(rules("README.md", "a prefix and {dir}/home/x\n"), []);
        let container = format!("see {CONTAINER_HOME}/result\n");
        assert_eq!(rules("README.md", &container), []);
    }

    #[test]
    fn large_files_are_found() {
        assert_eq!(
            rules("testdata/big.json", &"x".repeat(256 * 1024 + 1)),
            [("large-file", 0)]
        );
    }

    #[test]
    fn lock_file_names_one_registry() {
        let ours = format!("source = \"{REGISTRY}\"\n");

        assert_eq!(rules("Cargo.lock", &ours), []);
        assert_eq!(
            rules("Cargo.lock", "source = \"git+https://example.org/x\"\n"),
            [("lock-source", 1)]
        );
    }

    #[test]
    fn program_without_its_reader_is_found() {
        let paths = [
            "ebpf/programs/src/main.rs",
            "ebpf/programs/src/exec.rs",
            "ebpf/common/src/exec.rs",
            "agent/tests/vm/exec.rs",
        ];

        let findings = check_stems(&paths);

        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].message.contains("agent/src/bpf/exec.rs"),
            "{findings:?}"
        );
    }
}
