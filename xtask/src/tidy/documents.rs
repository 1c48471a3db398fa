//! Rules about Markdown: paths exist, links resolve, sentences are short.
//!
//! The rules `doc-path` and `doc-link` apply to the documents of [`is_document`]. The rule `doc-sentence` applies to
//! every Markdown file, and the rule `doc-length` to the files of [`LINES_MAX`].

use std::collections::BTreeSet;

use super::finding::Finding;
use super::source::SourceFile;

/// The most words of a sentence. A longer sentence is hard to understand at first reading.
const SENTENCE_WORDS_MAX: usize = 35;

/// The most lines of the documents that a newcomer reads first.
const LINES_MAX: [(&str, usize); 2] = [("ARCHITECTURE.md", 400), ("README.md", 130)];

/// Texts with a full stop that do not end a sentence.
const ABBREVIATIONS: [&str; 3] = ["e.g.", "i.e.", "vs."];

/// The files and folders of the tree.
#[derive(Debug)]
struct RepositoryTree<'a> {
    files: &'a [SourceFile],
    paths: BTreeSet<&'a str>,
    top_folders: BTreeSet<&'a str>,
}

impl<'a> RepositoryTree<'a> {
    fn new(files: &'a [SourceFile]) -> Self {
        let mut paths = BTreeSet::new();
        let mut top_folders = BTreeSet::new();
        for file in files {
            let path = file.path.as_str();
            paths.insert(path);
            paths.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
            if let Some((folder, _)) = path.split_once('/') {
                top_folders.insert(folder);
            }
        }
        Self {
            files,
            paths,
            top_folders,
        }
    }

    /// Whether a file or folder matches `pattern`, where `*` matches any part of a name.
    fn has(&self, pattern: &str) -> bool {
        let pattern = pattern.trim_end_matches('/');
        if pattern.contains('*') {
            self.paths.iter().any(|path| matches(pattern, path))
        } else {
            self.paths.contains(pattern)
        }
    }

    fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// Returns the findings in all Markdown files of the tree.
pub(crate) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let tree = RepositoryTree::new(files);
    files
        .iter()
        .filter(|file| is_markdown(&file.path))
        .flat_map(|file| check_file(file, &tree))
        .collect()
}

fn is_markdown(path: &str) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(_, extension)| extension == "md")
}

/// Whether the file is one of the documents for readers of the repository.
fn is_document(path: &str) -> bool {
    !path.contains('/') || path.starts_with("docs/")
}

fn check_file(file: &SourceFile, tree: &RepositoryTree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |line: usize, rule: &'static str, message: String| {
        findings.push(Finding {
            path: file.path.clone(),
            line,
            rule,
            message,
        });
    };
    if is_document(&file.path) {
        for (line, text) in code(&file.raw) {
            for path in paths_in(text, tree) {
                if !expanded(path).iter().all(|pattern| tree.has(pattern)) {
                    let message = format!("`{path}` does not exist: correct the path");
                    add(line, "doc-path", message);
                }
            }
        }
        for (line, target) in links(&file.raw) {
            if !resolves(file, target, tree) {
                let message = format!("the link to `{target}` does not resolve: correct it");
                add(line, "doc-link", message);
            }
        }
    }
    let lines_max = LINES_MAX.iter().find(|(path, _)| *path == file.path);
    let count = file.raw.lines().count();
    if let Some((_, max)) = lines_max.filter(|(_, max)| count > *max) {
        let message = format!("{count} lines, over {max}: move details to docs/design");
        add(count, "doc-length", message);
    }
    for (line, words) in sentences(&file.raw) {
        if words > SENTENCE_WORDS_MAX {
            let message = format!("{words} words, over {SENTENCE_WORDS_MAX}: split the sentence");
            add(line, "doc-sentence", message);
        }
    }
    findings
}

/// Returns each line with its number and whether it is inside fenced code.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        if fence {
            fenced = !fenced;
        }
        (!fence).then_some((index + 1, line, fenced))
    })
}

/// Returns the code of a document: spans in backticks and lines of fenced blocks.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    lines(text).flat_map(|(number, line, fenced)| {
        let spans: Vec<(usize, &str)> = if fenced {
            vec![(number, line)]
        } else {
            let inside = line.split('`').skip(1).step_by(2);
            inside.map(|span| (number, span)).collect()
        };
        spans
    })
}

/// Returns the words of `text` that look like a path of the repository.
fn paths_in<'a>(text: &'a str, tree: &RepositoryTree<'_>) -> Vec<&'a str> {
    text.split_whitespace()
        .map(|word| word.trim_matches(|c| matches!(c, '(' | ')' | ',' | ';' | ':' | '"' | '\'')))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| {
            word.split_once('/')
                .is_some_and(|(folder, _)| tree.top_folders.contains(folder))
        })
        .collect()
}

/// Returns the patterns for `path`: without a line number, one for each of `{a,b}`, with `*` for `<name>`.
fn expanded(path: &str) -> Vec<String> {
    let path = match path.rsplit_once(':') {
        Some((file, line)) if line.chars().all(|c| c.is_ascii_digit()) => file,
        _ => path,
    };
    if let Some((before, rest)) = path.split_once('{')
        && let Some((choices, after)) = rest.split_once('}')
    {
        return choices
            .split(',')
            .flat_map(|choice| expanded(&format!("{before}{choice}{after}")))
            .collect();
    }
    if let Some((before, rest)) = path.split_once('<')
        && let Some((_, after)) = rest.split_once('>')
    {
        return expanded(&format!("{before}*{after}"));
    }
    vec![path.to_owned()]
}

/// Whether `path` matches `pattern`. A `*` matches within one name, `**` matches across names.
fn matches(pattern: &str, path: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('*') else {
        return pattern == path;
    };
    let Some(tail) = path.strip_prefix(before) else {
        return false;
    };
    let (rest, across) = match rest.strip_prefix('*') {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let end = match tail.find('/') {
        Some(end) if !across => end,
        _ => tail.len(),
    };
    tail.char_indices()
        .map(|(at, _)| at)
        .chain([tail.len()])
        .take_while(|at| *at <= end)
        .any(|at| matches(rest, &tail[at..]))
}

/// Returns the targets of links outside code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line, fenced) in lines(text) {
        if fenced {
            continue;
        }
        for outside in line.split('`').step_by(2) {
            for (at, _) in outside.match_indices("](") {
                let target = &outside[at + 2..];
                if let Some(end) = target.find(')') {
                    found.push((number, &target[..end]));
                }
            }
        }
    }
    // The text of a link may be code, which the split above cuts.
    found
}

fn resolves(file: &SourceFile, target: &str, tree: &RepositoryTree<'_>) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        file.path.clone()
    } else {
        match joined(&file.path, path) {
            Some(path) => path,
            None => return false,
        }
    };
    if anchor.is_empty() {
        return path.is_empty() || tree.has(&path);
    }
    tree.file(&path)
        .is_some_and(|file| headings(&file.raw).any(|heading| slug(heading) == anchor))
}

/// Resolves `target` from the folder of `from`. Returns `None` if it leaves the repository.
fn joined(from: &str, target: &str) -> Option<String> {
    let mut names: Vec<&str> = from.split('/').collect();
    names.pop();
    for name in target.trim_end_matches('/').split('/') {
        match name {
            "." => {}
            ".." => {
                names.pop()?;
            }
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    lines(text)
        .filter(|(_, line, fenced)| !fenced && line.starts_with('#'))
        .map(|(_, line, _)| line.trim_start_matches('#').trim())
}

/// Returns the anchor of a heading.
fn slug(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c => c.is_alphanumeric().then_some(c),
        })
        .collect()
}

/// Returns the first line and the number of words of every sentence. A code span is one word.
fn sentences(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut open = Sentence::default();
    for (number, line, fenced) in lines(text) {
        let line = line.trim();
        if fenced || line.is_empty() {
            open.end(&mut found);
        } else if line.starts_with('|') {
            open.end(&mut found);
            for cell in plain(line).split('|') {
                open.read(number, cell, &mut found);
                open.end(&mut found);
            }
        } else {
            let alone = line.starts_with('#');
            if alone || begins_item(line) {
                open.end(&mut found);
            }
            open.read(number, &plain(line), &mut found);
            if alone {
                open.end(&mut found);
            }
        }
    }
    open.end(&mut found);
    found
}

/// A sentence that is being parsed.
#[derive(Debug, Default)]
struct Sentence {
    line: usize,
    words: usize,
}

impl Sentence {
    fn read(&mut self, line: usize, text: &str, found: &mut Vec<(usize, usize)>) {
        for word in text.split_whitespace() {
            if word.chars().any(char::is_alphanumeric) {
                if self.words == 0 {
                    self.line = line;
                }
                self.words += 1;
            }
            let bare = word.trim_end_matches(['"', '\'', ')', '*', '_', '”']);
            if bare.ends_with(['.', '!', '?']) && !ABBREVIATIONS.contains(&bare) {
                self.end(found);
            }
        }
    }

    fn end(&mut self, found: &mut Vec<(usize, usize)>) {
        if self.words > 0 {
            found.push((self.line, self.words));
            self.words = 0;
        }
    }
}

/// Whether the line begins an item of a list.
fn begins_item(line: &str) -> bool {
    let numbered = line.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* ", "+ "].iter().any(|mark| line.starts_with(mark))
        || numbered.len() < line.len() && numbered.starts_with(". ")
}

/// Replaces each code span of the line by `code`, and removes the targets of links.
fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for (index, part) in line.split('`').enumerate() {
        text.push_str(if index % 2 == 0 { part } else { "code" });
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find("](") {
        plain.push_str(&rest[..at]);
        rest = match rest[at..].find(')') {
            Some(end) => &rest[at + end + 1..],
            None => "",
        };
    }
    plain.push_str(rest);
    let numbered = plain.trim_start_matches(|c: char| c.is_ascii_digit());
    match numbered.strip_prefix(". ") {
        Some(item) => item.to_owned(),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let files = [
            SourceFile::new(path, text.as_bytes()),
            SourceFile::new("agent/src/storage/gc.rs", b""),
            SourceFile::new("agent/src/ring/worker.rs", b""),
            SourceFile::new("docs/design/logs.md", b"# Logs of tasks\n"),
        ];
        check(&files)
            .into_iter()
            .map(|finding| (finding.rule, finding.line))
            .collect()
    }

    #[test]
    fn missing_paths_are_found() {
        let text = "See `agent/src/storage/gc.rs` and `agent/src/ring/`.\n\nSee `agent/gc.rs`.\n";

        assert_eq!(findings("README.md", text), [("doc-path", 3)]);
        assert_eq!(findings("docs/guide/a.md", text), [("doc-path", 3)]);
        assert_eq!(findings("agent/testdata/a.md", text), []);
    }

    #[test]
    fn paths_in_commands_and_fences_are_checked() {
        let text = "Run `cat agent/a.rs`.\n\n```sh\ncat agent/src/storage/gc.rs\ncat agent/b.rs # x\n```\n";

        let found = [("doc-path", 1), ("doc-path", 5)];
        assert_eq!(findings("README.md", text), found);
    }

    #[test]
    fn other_texts_with_slashes_are_no_paths() {
        let text = "`/v1/jobs`, `target/debug/muster`, `muster/agent`, `a/b`, agent/none.\n";

        assert_eq!(findings("README.md", text), []);
    }

    #[test]
    fn braces_globs_names_and_lines_are_expanded() {
        let good = "`agent/src/{storage/gc,ring/worker}.rs`, `agent/src/storage/<noun>.rs`, `agent/src/*/worker.rs`, `agent/**/worker.rs`, `agent/src/storage/gc.rs:12`\n";
        let bad = "`agent/src/{storage/gc,other}.rs`\n`agent/src/*.md`\n`agent/*/worker.rs`\n";

        assert_eq!(findings("README.md", good), []);
        let found = [("doc-path", 1), ("doc-path", 2), ("doc-path", 3)];
        assert_eq!(findings("README.md", bad), found);
    }

    #[test]
    fn links_resolve_from_their_document() {
        let good = "[a](docs/design/logs.md) [b](docs/design/logs.md#logs-of-tasks) [c](https://example.org/x) [`d`](docs/)\n";
        let bad = "[a](logs.md)\n[b](docs/design/logs.md#other)\n[c](../README.md)\n[`d`](none.md)\n[e](#none)\n";

        assert_eq!(findings("README.md", good), []);
        let found: Vec<_> = (1..=5).map(|line| ("doc-link", line)).collect();
        assert_eq!(findings("README.md", bad), found);
        let from_design = "[a](logs.md) [b](../../README.md)\n";
        let found = [("doc-link", 1)];
        assert_eq!(findings("docs/design/a.md", from_design), found);
    }

    #[test]
    fn long_first_documents_are_found() {
        let text = "A line.\n".repeat(131);

        assert_eq!(findings("README.md", &text), [("doc-length", 131)]);
        assert_eq!(findings("README.md", &text[8..]), []);
        assert_eq!(findings("docs/guide/a.md", &text), []);
    }

    #[test]
    fn long_sentences_are_found_in_every_markdown_file() {
        let words = |count: usize| vec!["word"; count].join(" ");
        let text = format!(
            "{}. {}.\n\nShort. {}\n{}.\n",
            words(35),
            words(35),
            words(30),
            words(6)
        );

        assert_eq!(
            findings("agent/testdata/a.md", &text),
            [("doc-sentence", 3)]
        );
    }

    #[test]
    fn items_cells_and_headings_are_separate_sentences() {
        let words = vec!["word"; 20].join(" ");
        let text = format!(
            "# {words}\n{words}:\n- {words}\n- {words}\n\n| {words} | {words} |\n|---|---|\n\n1. {words}\n2. {words}\n"
        );

        assert_eq!(findings("README.md", &text), []);
    }

    #[test]
    fn code_spans_and_link_targets_count_as_little() {
        let text = format!("{} `{}`.\n", "[a](b://c)".repeat(30), "x ".repeat(40));

        assert_eq!(findings("README.md", &text), []);
    }

    #[test]
    fn abbreviations_end_no_sentence() {
        let half = vec!["word"; 18].join(" ");

        let found = findings("README.md", &format!("{half} e.g. {half}.\n"));

        assert_eq!(found, [("doc-sentence", 1)]);
    }
}
