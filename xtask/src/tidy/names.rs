//! Rules about the names of types, functions, variables and tests.

use super::finding::Finding;
use super::source::{SourceFile, is_word};

/// Names that do not describe the fields of a type: pronouns, verbs as nouns, adverbs and metaphors.
const BANNED_TYPES: [&str; 52] = [
    "Absence", "After", "Ahead", "Around", "Aside", "Asker", "Beats", "Behind", "Beside", "Book",
    "Came", "Carried", "Crowd", "Dice", "Door", "Earlier", "Felt", "Fence", "Flavour", "Flight",
    "Founder", "Founding", "Found", "Given", "Gone", "Ground", "Hands", "Haste", "Heard", "Held",
    "Judge", "Judged", "Kept", "Known", "Loan", "Look", "Looked", "Made", "Met", "News", "Passage",
    "Past", "Place", "Porter", "Scene", "Seen", "Settled", "Taken", "Told", "Under", "Way",
    "Weather",
];

/// Names of functions that do not describe the action or its object.
const BANNED_FUNCTIONS: [&str; 11] = [
    "from_word",
    "hear",
    "heard",
    "hears",
    "look",
    "said",
    "say",
    "says",
    "tell",
    "tells",
    "told",
];

/// Names of variables that do not describe their value.
const BANNED_VARIABLES: [&str; 4] = ["heard", "said", "told", "untold"];

/// Words in the name of a test that replace its subject instead of naming it.
const BANNED_TEST_WORDS: [&str; 3] = ["what", "who", "whoever"];

/// The most words in the name of a test.
const TEST_WORDS_MAX: usize = 8;

/// Finds definitions whose names a stranger cannot read.
pub(crate) fn check(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut is_test = false;
    for (at, line) in file.code.lines().enumerate() {
        let mut add = |rule, message| {
            findings.push(Finding {
                path: file.path.clone(),
                line: at + 1,
                rule,
                message,
            });
        };
        if let Some(name) = defined(line, &["struct", "enum", "trait", "type", "union"])
            && BANNED_TYPES.contains(&name)
        {
            let message = format!("type `{name}` does not say which fields it has: name them");
            add("name-type", message);
        }
        if let Some(name) = variable(line)
            && BANNED_VARIABLES.contains(&name)
        {
            let message = format!("variable `{name}` does not say which value it holds: name it");
            add("name-variable", message);
        }
        if let Some(name) = defined(line, &["fn"]) {
            if BANNED_FUNCTIONS.contains(&name) {
                let message = format!("function `{name}` does not say what it does: name it");
                add("name-function", message);
            }
            let banned = |word: &&str| BANNED_TEST_WORDS.contains(word);
            if let Some(word) = name.split('_').find(banned).filter(|_| is_test) {
                let message = format!("test `{name}` says `{word}`: name the subject");
                add("name-test", message);
            }
            let words = name.split('_').count();
            if is_test && words > TEST_WORDS_MAX {
                let message = format!(
                    "the name of test `{name}` has {words} words: use at most {TEST_WORDS_MAX}"
                );
                add("name-test", message);
            }
        }
        let line = line.trim();
        // Further attributes may come between the test attribute and its function.
        is_test =
            is_test_attribute(line) || (is_test && (line.starts_with("#[") || line.is_empty()));
    }
    findings
}

fn is_test_attribute(line: &str) -> bool {
    ["#[test]", "#[tokio::test]", "#[tokio::test("]
        .iter()
        .any(|attribute| line.starts_with(attribute))
}

/// Returns the name of the variable that the line binds.
fn variable(line: &str) -> Option<&str> {
    let bound = line.trim_start().strip_prefix("let ")?;
    identifier(bound.strip_prefix("mut ").unwrap_or(bound))
}

/// Returns the identifier at the beginning of `text`.
fn identifier(text: &str) -> Option<&str> {
    let end = text.find(|next| !is_word(next));
    Some(&text[..end.unwrap_or(text.len())]).filter(|name| !name.is_empty())
}

/// Returns the name that the line defines after one of `keywords`.
fn defined<'a>(line: &'a str, keywords: &[&str]) -> Option<&'a str> {
    let mut words = line.split_whitespace().skip_while(|word| {
        word.starts_with("pub") || matches!(*word, "async" | "const" | "unsafe" | "in")
    });
    let keyword = words.next()?;
    if !keywords.contains(&keyword) {
        return None;
    }
    identifier(words.next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(&'static str, usize)> {
        let file = SourceFile::new("agent/src/x.rs", text.as_bytes());
        let findings = check(&file).into_iter();
        findings.map(|found| (found.rule, found.line)).collect()
    }

    #[test]
    fn unreadable_types_and_functions_are_found() {
        let [first, .., last] = BANNED_TYPES;
        let text = format!(
            "pub(crate) struct {first}<T> {{\n}}\nenum {last} {{}}\nstruct {last}Point;\nfn told(self) {{}}\npub async fn tell() {{}}\nfn toldness() {{}}\n"
        );

        assert_eq!(
            found(&text),
            [
                ("name-type", 1),
                ("name-type", 3),
                ("name-function", 5),
                ("name-function", 6)
            ]
        );
    }

    #[test]
    fn unreadable_variables_are_found() {
        let text =
            "let told = 1;\n    let mut said: u8 = told;\nlet told_at = 1;\nlet (a, b) = c;\n";

        assert_eq!(found(text), [("name-variable", 1), ("name-variable", 2)]);
    }

    #[test]
    fn test_names_without_a_subject_are_found() {
        let text =
            "#[test]\nfn keeps_what_is_there() {}\nfn what() {}\n#[test]\nfn whatever_works() {}\n";

        assert_eq!(found(text), [("name-test", 2)]);
    }

    #[test]
    fn long_test_names_are_found() {
        let long = "fn one_two_three_four_five_six_seven_eight_nine() {}";
        let text = format!(
            "#[test]\n{long}\n{long}\n#[tokio::test(flavor = \"x\")]\n#[ignore]\nasync {long}\n#[test]\nfn one_two() {{}}\n"
        );

        assert_eq!(found(&text), [("name-test", 2), ("name-test", 6)]);
    }
}
