//! Rules about the words of doc comments and of messages.

use super::finding::Finding;
use super::source::SourceFile;

/// Words that begin a clause without a noun. A doc comment must name its subject.
const HEADLESS: [&str; 5] = ["What", "Who", "Whoever", "Whatever", "Since when"];

/// An idiom that is hard to read in a message: `x is no y`.
const IS_NO: &str = concat!(" is", " no ");

/// Finds doc lines that begin without a subject, and messages with [`IS_NO`].
pub(crate) fn check(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let finding = |at: usize, rule, message| Finding {
        path: file.path.clone(),
        line: at + 1,
        rule,
        message,
    };
    let lines = file.raw.lines().enumerate();
    let headless = lines.filter_map(|(at, line)| {
        let word = headless(line)?;
        let message = format!("a doc line begins with `{word}`: begin with a noun or a verb");
        Some(finding(at, "doc-subject", message))
    });
    let lines = file.uncommented.lines().enumerate();
    let negated = lines
        .filter(|(_, line)| line.contains(IS_NO))
        .map(|(at, _)| {
            let message = concat!(
                "a message has `x is",
                " no y`: write `unknown y: use ...` or `x is not a y`"
            );
            finding(at, "message-is-no", message.to_owned())
        });
    headless.chain(negated).collect()
}

/// Returns the headless word at the beginning of the line, if it is a line of a doc comment.
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
    fn messages_with_is_no_are_found() {
        let text = format!("// it{IS_NO}rule\nlet text = \"x{IS_NO}y\";\n");
        let file = SourceFile::new("agent/src/x.rs", text.as_bytes());

        let findings = check(&file);

        let found: Vec<_> = findings.iter().map(|it| (it.rule, it.line)).collect();
        assert_eq!(found, [("message-is-no", 2)]);
    }

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
