//! Rules about the presence of doc comments. Public items need one, and fields must not have one that only repeats
//! the name.
//!
//! The lint `missing_docs` requires a comment on each field as well. This produced hundreds of comments such as `The
//! node.` on `node_id`.

use super::finding::Finding;
use super::source::SourceFile;

/// The longest filler: a doc comment of so few words on a field or variant adds nothing to its name and type.
const FILLER_WORDS_MAX: usize = 3;

/// Words that make a short comment informative: units and special values.
const UNITS: [&str; 10] = [
    "second", "byte", "mib", "mhz", "percent", "zero", "pages", "ticks", "utc", "octal",
];

/// Items that need a doc comment when they are public. A module has its comment in its own file.
const ITEMS: [&str; 8] = [
    "fn ", "struct ", "enum ", "union ", "trait ", "type ", "const ", "static ",
];

/// Folders whose doc comments are help texts of commands or settings.
const HELP_TEXTS: [&str; 3] = ["cli/", "xtask/", "perf/"];

/// Finds filler comments, and public items without a comment.
pub(crate) fn check(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let raw: Vec<&str> = file.raw.lines().collect();
    let code: Vec<&str> = file.code.lines().collect();
    let finding = |at: usize, rule, message: String| Finding {
        path: file.path.clone(),
        line: at + 1,
        rule,
        message,
    };
    let mut findings = Vec::new();
    let has_help = file.is_in(&HELP_TEXTS);
    // An expectation of the lint states why items need no comment.
    let asks = !file.raw.contains("    missing_docs,\n");
    for (at, line) in code.iter().enumerate() {
        if at + 1 >= file.tests_from {
            break;
        }
        let comment = comment_before(&raw, at);
        if asks && is_public_item(line) && comment.is_none() {
            let message = "a public item needs a doc comment: say what it is for".to_owned();
            findings.push(finding(at, "doc-missing", message));
        }
        if let Some(DocComment { at, one_line }) = comment
            && let Some(text) = one_line
            && !has_help
            && is_member(line)
            && is_filler(text)
        {
            let message =
                format!("`{text}` says no more than the name: delete it, or write what it lacks");
            findings.push(finding(at, "doc-filler", message));
        }
    }
    findings
}

/// The doc comment of the item at `at`.
#[derive(Clone, Copy, Debug)]
struct DocComment<'a> {
    /// The index of the comment's last line.
    at: usize,
    /// The comment's text if it has one line.
    one_line: Option<&'a str>,
}

fn comment_before<'a>(raw: &[&'a str], item: usize) -> Option<DocComment<'a>> {
    let mut at = item;
    while at > 0 {
        at -= 1;
        let line = raw[at].trim();
        if let Some(text) = line.strip_prefix("///") {
            let continues = at > 0 && raw[at - 1].trim_start().starts_with("///");
            let one_line = (!continues).then_some(text.trim());
            return Some(DocComment { at, one_line });
        }
        if line.starts_with("//") || !is_attribute(raw, at) {
            return None;
        }
    }
    None
}

/// Whether the line is an attribute, or belongs to an attribute of several lines.
fn is_attribute(raw: &[&str], at: usize) -> bool {
    let line = raw[at].trim();
    if line.starts_with("#[") {
        return true;
    }
    let opened = raw[..at]
        .iter()
        .rposition(|line| line.trim_start().starts_with("#["));
    opened.is_some_and(|opened| {
        let between = &raw[opened..at];
        let is_open = !between.iter().any(|line| line.trim_end().ends_with(']'));
        is_open && at - opened < 8
    })
}

fn is_filler(text: &str) -> bool {
    let lower = text.to_lowercase();
    let is_informative = text.contains(['`', ':', '='])
        || text.contains(|c: char| c.is_ascii_digit())
        || UNITS.iter().any(|unit| lower.contains(unit));
    !is_informative && text.split_whitespace().count() <= FILLER_WORDS_MAX
}

fn is_public_item(line: &str) -> bool {
    let Some(mut rest) = line.trim_start().strip_prefix("pub ") else {
        return false;
    };
    // A macro's rule takes the comment from its invocation.
    if rest.contains('$') {
        return false;
    }
    for modifier in ["const fn", "async fn", "unsafe fn"] {
        if rest.starts_with(modifier) {
            rest = &rest[modifier.len() - 2..];
        }
    }
    ITEMS.iter().any(|item| rest.starts_with(item)) || rest.starts_with("fn ")
}

/// Whether the line declares a field or a variant.
fn is_member(line: &str) -> bool {
    let line = line.trim();
    let line = line
        .strip_prefix("pub(crate) ")
        .or_else(|| line.strip_prefix("pub(super) "))
        .or_else(|| line.strip_prefix("pub "))
        .unwrap_or(line);
    let name = line.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '#'));
    let (name, rest) = line.split_at(name.unwrap_or(line.len()));
    let is_field = rest.starts_with(": ");
    let is_variant = name.starts_with(char::is_uppercase)
        && [",", "(", " {", " ="]
            .iter()
            .any(|end| rest.starts_with(end));
    !name.is_empty() && (is_field || is_variant)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(&'static str, usize)> {
        let file = SourceFile::new("agent/src/x.rs", text.as_bytes());
        let findings = check(&file);
        findings.iter().map(|it| (it.rule, it.line)).collect()
    }

    #[test]
    fn filler_on_fields_and_variants_is_found() {
        let text = "struct X {\n    /// The node.\n    node: u8,\n    /// Seconds since the start.\n    at: u8,\n}\n\
                    enum Y {\n    /// Later.\n    #[serde(skip)]\n    Later(u8),\n    /// A longer\n    /// text.\n    Now,\n}\n";

        assert_eq!(found(text), [("doc-filler", 2), ("doc-filler", 8)]);
    }

    #[test]
    fn public_item_needs_a_comment() {
        let text = "/// Reads it.\n#[must_use]\npub fn read() {}\n\npub const fn other() {}\npub mod x;\npub use y::z;\n\
                    /// Holds.\n#[expect(\n    dead_code,\n    reason = \"x\"\n)]\npub struct LogReader {}\n";

        assert_eq!(found(text), [("doc-missing", 5)]);
    }
}
