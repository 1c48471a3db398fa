//! Rules about the words of doc comments.

use super::Finding;
use super::source::SourceFile;

/// Words that begin a clause without a noun. A doc comment names its subject.
const HEADLESS: [&str; 5] = ["What", "Who", "Whoever", "Whatever", "Since when"];

/// Finds doc lines that begin without a subject.
pub(crate) fn check(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let lines = file.raw.lines().enumerate();
    let headless = lines.filter_map(|(at, line)| Some((at, headless(line)?)));
    headless
        .map(|(at, word)| Finding {
            path: file.path.clone(),
            line: at + 1,
            rule: "doc-subject",
            message: format!("a doc line begins with `{word}`: begin with a noun or a verb"),
        })
        .collect()
}

/// The headless word that the line begins with, if it is a line of a doc comment.
fn headless(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    let text = line
        .strip_prefix("///")
        .or_else(|| line.strip_prefix("//!"))?;
    let text = text.trim_start();
    HEADLESS.into_iter().find(|word| {
        text.strip_prefix(word)
            .is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headless_lines_are_found() {
        let table = [
            ("/// What it does.", Some("What")),
            ("    //! Whoever asks.", Some("Whoever")),
            ("/// Since when it runs.", Some("Since when")),
            ("/// Whole pages.", None),
            ("// What a plain comment asks?", None),
            ("let text = \"What\";", None),
        ];

        for (line, expected) in table {
            assert_eq!(headless(line), expected, "{line}");
        }
    }
}
