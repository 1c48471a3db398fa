//! Regular expressions with the syntax of Go.
//!
//! Job files use RE2's syntax. The engine here differs in details. An expression that Go refuses is refused here too.
//! Characters that Go takes literally are escaped. Classes that are ASCII in Go (`\d`, `\w`, `\s`, `\b`) are ASCII
//! here. Unicode categories and scripts (`\pL`, `\p{Greek}`) are the engine's own.

use std::iter::Peekable;
use std::str::Chars;

use regex::Regex;

/// Highest count of a repetition, by Go's `regexp/syntax` documentation.
const REPEAT_MAX: u32 = 1_000;

/// A valid regular expression.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

/// The reason why a text is not a regular expression.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PatternError {
    /// The text has syntax that RE2 does not have.
    #[error("RE2, whose syntax it has to be in, does not know what it says")]
    Unknown,
    /// The text is malformed, or the expression is too large.
    #[error("{0}")]
    Refused(regex::Error),
}

impl Pattern {
    /// Reads `pattern`.
    ///
    /// # Errors
    ///
    /// [`PatternError`] if Go would refuse it, or the engine does.
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let mut reader = Reader {
            rest: pattern.chars().peekable(),
            out: String::new(),
            repeats: false,
        };
        while reader.step().ok_or(PatternError::Unknown)? {}
        Regex::new(&reader.out)
            .map(Self)
            .map_err(PatternError::Refused)
    }

    /// The engine's expression.
    #[must_use]
    pub fn regex(&self) -> &Regex {
        &self.0
    }

    /// Whether the expression matches a part of `text`.
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    /// Whether a repetition was just read, so that another one must not follow.
    repeats: bool,
}

impl Reader<'_> {
    /// Reads one element. `None`: refused; `false`: the end.
    fn step(&mut self) -> Option<bool> {
        let Some(letter) = self.rest.next() else {
            return Some(false);
        };
        match letter {
            '*' | '+' | '?' => self.repeat(&letter.to_string())?,
            '{' => match self.counts() {
                Some(counts) if exceeds(&counts) => return None,
                Some(counts) => self.repeat(&counts)?,
                None => self.literal(letter),
            },
            '}' => self.literal(letter),
            '\\' => self.escape()?,
            '[' => self.class()?,
            '(' => self.group()?,
            other => {
                self.repeats = false;
                self.out.push(other);
            }
        }
        Some(true)
    }

    fn literal(&mut self, letter: char) {
        self.repeats = false;
        self.out.push('\\');
        self.out.push(letter);
    }

    fn repeat(&mut self, operator: &str) -> Option<()> {
        if std::mem::replace(&mut self.repeats, true) {
            return None;
        }
        self.out.push_str(operator);
        if self.rest.next_if_eq(&'?').is_some() {
            self.out.push('?');
        }
        Some(())
    }

    /// The rest of `{n}`, `{n,}` or `{n,m}`, if it is one; reads nothing otherwise.
    fn counts(&mut self) -> Option<String> {
        let mut ahead = self.rest.clone();
        let inner: String = ahead.by_ref().take_while(|letter| *letter != '}').collect();
        let (low, high) = inner.split_once(',').unwrap_or((&inner, ""));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if low.is_empty() || !is_number(low) || !is_number(high) {
            return None;
        }
        // A bare `{5` has no closing brace and is literal.
        let closed = self.rest.clone().nth(inner.chars().count()) == Some('}');
        closed.then(|| {
            self.rest = ahead;
            format!("{{{inner}}}")
        })
    }

    fn escape(&mut self) -> Option<()> {
        self.repeats = false;
        match self.rest.next()? {
            'Q' => {
                let text = self.quoted();
                self.out.push_str(&regex::escape(&text));
            }
            'u' | 'U' | '<' | '>' => return None,
            'b' => self.out.push_str(r"(?-u:\b)"),
            'B' => self.out.push_str(r"(?-u:\B)"),
            letter => self.escaped(letter)?,
        }
        Some(())
    }

    /// Returns the class for an escaped letter, inside a class or outside.
    fn escaped(&mut self, letter: char) -> Option<()> {
        let class = match letter {
            'd' => "[0-9]",
            'D' => "[^0-9]",
            'w' => "[0-9A-Za-z_]",
            'W' => "[^0-9A-Za-z_]",
            's' => r"[\t\n\f\r ]",
            'S' => r"[^\t\n\f\r ]",
            'p' | 'P' => return self.property(letter),
            other => {
                self.out.push('\\');
                self.out.push(other);
                return Some(());
            }
        };
        self.out.push_str(class);
        Some(())
    }

    /// A category by its letters or a script by its name, as Unicode spells them: `L`, `{Lu}`, `{^Greek}`.
    fn property(&mut self, letter: char) -> Option<()> {
        let first = self.rest.next()?;
        let mut name = String::from(first);
        if first == '{' {
            name.clear();
            loop {
                match self.rest.next()? {
                    '}' => break,
                    other => name.push(other),
                }
            }
        }
        let plain = name.strip_prefix('^').unwrap_or(&name);
        let is_spelled = plain.starts_with(|it: char| it.is_ascii_uppercase())
            && plain
                .chars()
                .all(|it| it.is_ascii_alphabetic() || it == '_')
            && (plain.len() > 1 || "CLMNPSZ".contains(plain));
        let is_negated = (letter == 'P') != (plain.len() < name.len());
        let opening = if is_negated { r"\P{" } else { r"\p{" };
        is_spelled.then(|| self.out.extend([opening, plain, "}"]))
    }

    /// Text up to `\E`, or to the end.
    fn quoted(&mut self) -> String {
        let mut text = String::new();
        while let Some(letter) = self.rest.next() {
            if letter == '\\' && self.rest.next_if_eq(&'E').is_some() {
                break;
            }
            text.push(letter);
        }
        text
    }

    /// A class in brackets. `&&`, `~~` and a bracket inside it are literal.
    fn class(&mut self) -> Option<()> {
        self.repeats = false;
        self.out.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.out.push('^');
        }
        if self.rest.next_if_eq(&']').is_some() {
            self.out.push_str("\\]");
        }
        loop {
            match self.rest.next()? {
                ']' => break,
                '[' if self.rest.peek() == Some(&':') => {
                    self.out.push('[');
                    let name: String = self
                        .rest
                        .by_ref()
                        .take_while(|letter| *letter != ']')
                        .collect();
                    self.out.push_str(&name);
                    self.out.push(']');
                }
                letter @ ('[' | '&' | '~') => {
                    self.out.push('\\');
                    self.out.push(letter);
                }
                '\\' => {
                    let letter = self.rest.next()?;
                    self.escaped(letter)?;
                }
                // The engine would read two dashes as the difference of two sets.
                '-' if self.rest.peek() == Some(&'-') => {
                    let is_first = self.out.ends_with(['[', '^']);
                    self.out.push_str(if is_first { r"\-" } else { "-" });
                    if !is_first {
                        self.rest.next();
                        self.out.push_str(r"\-");
                    }
                }
                other => self.out.push(other),
            }
        }
        self.out.push(']');
        Some(())
    }

    /// An opening parenthesis with its flags or name. Go knows the flags `imsU` and names with `P`.
    fn group(&mut self) -> Option<()> {
        self.repeats = false;
        self.out.push('(');
        if self.rest.next_if_eq(&'?').is_none() {
            return Some(());
        }
        self.out.push('?');
        if self.rest.peek() == Some(&'P') {
            return Some(());
        }
        loop {
            let letter = self.rest.next()?;
            match letter {
                'i' | 'm' | 's' | 'U' | '-' => self.out.push(letter),
                ':' | ')' => {
                    self.out.push(letter);
                    return Some(());
                }
                _ => return None,
            }
        }
    }
}

/// Whether a bound of `{n,m}` is too high.
fn exceeds(counts: &str) -> bool {
    let mut bounds = counts.split(|letter: char| !letter.is_ascii_digit());
    bounds
        .any(|bound| !bound.is_empty() && bound.parse().is_ok_and(|bound: u32| bound > REPEAT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> Option<bool> {
        let pattern = Pattern::new(pattern).ok()?;
        Some(pattern.is_match(text))
    }

    #[test]
    fn patterns_refused_by_go_are_refused() {
        for pattern in [
            "a++", "a**", "a+?+", "a{2}{3}", r"(?-u)\w", "(?x)a", "(?<n>a)", "(?=x)", r"\u{41}",
            "(", "[", "*", "a{1001}", r"(a)\1", r"\",
        ] {
            assert_eq!(matches(pattern, "aaaa"), None, "{pattern}");
        }
    }

    #[test]
    fn literals_of_go_are_literal() {
        for (pattern, text) in [
            ("a{,5}", "a{,5}"),
            ("{", "{"),
            ("a{5", "a{5"),
            ("[a&&b]", "&"),
            ("[a[b]", "["),
            (r"\Qa.b\E+", "a.bb"),
            ("[]a]", "]"),
            ("}", "}"),
            ("[+--]", ","),
            ("[--a]", "A"),
            (r"\b{start}", "a{start}"),
        ] {
            assert_eq!(matches(pattern, text), Some(true), "{pattern}");
        }
        assert_eq!(matches(r"\Qa.b\E", "axb"), Some(false));
    }

    #[test]
    fn perl_classes_are_ascii_as_in_go() {
        for (pattern, text) in [
            (r"\d", "\u{664}"),
            (r"\w", "\u{e9}"),
            (r"\s", "\u{a0}"),
            (r"[\d\w]", "\u{e9}"),
        ] {
            assert_eq!(matches(pattern, text), Some(false), "{pattern}");
        }
        assert_eq!(matches(r"[^\D]", "5"), Some(true));
        assert_eq!(matches(r"a\b", "a\u{e9}"), Some(true));
        assert_eq!(matches(r"a\B", "a1"), Some(true));
    }

    #[test]
    fn categories_and_scripts_of_unicode_are_known() {
        for (pattern, text, expected) in [
            (r"^\pL+$", "linux\u{e9}", true),
            (r"\pN", "a{,5}", true),
            (r"\PL", "linux", false),
            (r"^\p{Greek}$", "\u{3b1}", true),
            (r"\p{^Lu}", "A", false),
            (r"[\pN.]+", "1.2", true),
        ] {
            assert_eq!(matches(pattern, text), Some(expected), "{pattern}");
        }
        for pattern in [r"\px", r"\p{greek}", r"\p{L", r"\p{sc=Greek}", r"\p"] {
            assert_eq!(matches(pattern, "x"), None, "{pattern}");
        }
    }

    #[test]
    fn the_usual_works() {
        for (pattern, text) in [
            (r"^\d{2,}$", "123"),
            ("(?i)LINUX", "linux"),
            ("(?P<n>a)b", "ab"),
            ("[[:alpha:]]+[[:digit:]]", "x1"),
            ("a+?b", "aab"),
            ("(a|b)*c?", ""),
            ("(?:x)*", "y"),
        ] {
            assert_eq!(matches(pattern, text), Some(true), "{pattern}");
        }
    }
}
