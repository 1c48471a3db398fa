//! A file as input of the rules: its text, and copies of the text in which comments or literals are blank.

/// A file of the tree. The three views have the same lines.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// The path relative to the workspace's folder, with `/`.
    pub(crate) path: String,
    /// The length of the file in bytes.
    pub(crate) size: usize,
    /// The text of the file; empty when it is not UTF-8.
    pub(crate) raw: String,
    /// Rust only: comments are blank.
    pub(crate) uncommented: String,
    /// Rust only: comments, strings and characters are blank.
    pub(crate) code: String,
    /// The line, from 1, at which the tests in the file begin.
    pub(crate) tests_from: usize,
}

impl SourceFile {
    pub(crate) fn new(path: &str, bytes: &[u8]) -> Self {
        let raw = String::from_utf8(bytes.to_vec()).unwrap_or_default();
        let (uncommented, code) = if is_rust(path) {
            split_views(&raw)
        } else {
            (String::new(), String::new())
        };
        let tests_from = if is_test_path(path) {
            1
        } else {
            first_test_line(&code)
        };
        Self {
            path: path.to_owned(),
            size: bytes.len(),
            raw,
            uncommented,
            code,
            tests_from,
        }
    }

    pub(crate) fn is_rust(&self) -> bool {
        is_rust(&self.path)
    }

    /// Whether the path begins with one of `prefixes`. The prefix `agent/src/ring` covers `ring.rs` and all of
    /// `ring/`.
    pub(crate) fn is_in(&self, prefixes: &[&str]) -> bool {
        prefixes.iter().any(|prefix| is_under(&self.path, prefix))
    }
}

fn is_rust(path: &str) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(_, extension)| extension == "rs")
}

fn is_under(path: &str, prefix: &str) -> bool {
    match path.strip_prefix(prefix) {
        Some(rest) => {
            prefix.ends_with('/') || rest == ".rs" || rest.is_empty() || rest.starts_with('/')
        }
        None => false,
    }
}

fn is_test_path(path: &str) -> bool {
    ["/tests/", "/fixture/"]
        .iter()
        .any(|folder| path.contains(folder))
        || path.ends_with("/tests.rs")
        || path.ends_with("/fixture.rs")
}

/// Returns the first line of the tests. They come last in a file and begin at the attribute before `mod tests {`.
fn first_test_line(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().collect();
    let opens = |line: &&str| line.starts_with("mod tests {");
    match lines.iter().position(opens) {
        Some(at) if at > 0 && lines[at - 1].starts_with("#[cfg(test)]") => at,
        _ => usize::MAX,
    }
}

/// Returns `source` without comments, and without comments, strings and characters.
fn split_views(source: &str) -> (String, String) {
    let chars: Vec<char> = source.chars().collect();
    let mut uncommented = String::with_capacity(source.len());
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let piece = piece(&chars, at);
        for c in &chars[at..piece.end] {
            let blank = if *c == '\n' { '\n' } else { ' ' };
            uncommented.push(if piece.kind == PieceKind::Comment {
                blank
            } else {
                *c
            });
            code.push(if piece.kind == PieceKind::Code {
                *c
            } else {
                blank
            });
        }
        at = piece.end;
    }
    (uncommented, code)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PieceKind {
    Code,
    Comment,
    Literal,
}

struct SourcePiece {
    kind: PieceKind,
    end: usize,
}

/// Returns the piece that begins at `at`: a comment, a literal, a word, or one character.
fn piece(chars: &[char], at: usize) -> SourcePiece {
    let rest = &chars[at..];
    let (kind, length) = match rest {
        ['/', '/', ..] => (PieceKind::Comment, length_until(rest, |c| c == '\n')),
        ['/', '*', ..] => (PieceKind::Comment, block_comment(rest)),
        ['"', ..] => (PieceKind::Literal, quoted(rest)),
        ['\'', '\\', ..] => (
            PieceKind::Literal,
            2 + 1 + length_until(&rest[3..], |c| c == '\'') + 1,
        ),
        ['\'', _, '\'', ..] => (PieceKind::Literal, 3),
        [c, ..] if is_word(*c) => {
            let word = length_until(rest, |c| !is_word(c));
            match raw_string(&rest[..word], &rest[word..]) {
                Some(string) => (PieceKind::Literal, word + string),
                None => (PieceKind::Code, word),
            }
        }
        _ => (PieceKind::Code, 1),
    };
    SourcePiece {
        kind,
        end: (at + length).min(chars.len()),
    }
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn length_until(chars: &[char], stop: impl Fn(char) -> bool) -> usize {
    chars.iter().position(|c| stop(*c)).unwrap_or(chars.len())
}

/// Returns the length of a block comment. Block comments nest.
fn block_comment(chars: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < chars.len() {
        match &chars[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the length of a string in which a backslash escapes the next character.
fn quoted(chars: &[char]) -> usize {
    let mut at = 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// Returns the length of a raw string after its prefix, including hashes and quotes.
fn raw_string(prefix: &[char], chars: &[char]) -> Option<usize> {
    if !matches!(prefix, ['r'] | ['b' | 'c', 'r']) {
        return None;
    }
    let hashes = length_until(chars, |c| c != '#');
    if chars.get(hashes) != Some(&'"') {
        return None;
    }
    let closing: Vec<char> = std::iter::once('"')
        .chain(std::iter::repeat_n('#', hashes))
        .collect();
    let body = &chars[hashes + 1..];
    let end = body
        .windows(closing.len())
        .position(|window| window == closing)?;
    Some(hashes + 1 + end + closing.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blank() {
        let source = "a(\"x // y\"); // note\n/* b /* c */ */ d('\"', 'e', &'f g);\n";

        let (uncommented, code) = split_views(source);

        assert_eq!(
            uncommented,
            format!(
                "a(\"x // y\"); {}\n{} d('\"', 'e', &'f g);\n",
                " ".repeat(7),
                " ".repeat(15)
            )
        );
        assert_eq!(
            code,
            format!(
                "a({}); {}\n{} d(   ,    , &'f g);\n",
                " ".repeat(8),
                " ".repeat(7),
                " ".repeat(15)
            )
        );
    }

    #[test]
    fn raw_strings_end_at_their_own_quote() {
        let (_, code) = split_views("let s = r#\"a \"quoted\" unsafe\"#; unsafe {}");

        assert!(code.ends_with("; unsafe {}"), "{code}");
        assert_eq!(code.matches("unsafe").count(), 1);
    }

    #[test]
    fn escaped_quotes_do_not_end_a_literal() {
        let (_, code) = split_views(r#"f("a\"b", '\'', '\\') + g"#);

        assert_eq!(code.replace(' ', ""), "f(,,)+g");
    }

    #[test]
    fn own_tests_begin_at_their_attribute() {
        let file = SourceFile::new(
            "domain/src/job.rs",
            b"fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n",
        );

        assert_eq!(file.tests_from, 3);
        assert_eq!(
            SourceFile::new("domain/src/job/tests.rs", b"").tests_from,
            1
        );
    }

    #[test]
    fn room_is_a_file_and_its_folder() {
        let room = ["agent/src/ring"];

        assert!(SourceFile::new("agent/src/ring.rs", b"").is_in(&room));
        assert!(SourceFile::new("agent/src/ring/file.rs", b"").is_in(&room));
        assert!(!SourceFile::new("agent/src/rings.rs", b"").is_in(&room));
    }
}
