//! Regular expressions as Go reads them.
//!
//! Job files are written for RE2's syntax. The engine here differs from it in corners: what Go refuses is
//! refused here too, and what Go takes literally is escaped. Classes of Unicode letters (`\pL`) are not
//! known to the engine; such an expression is refused, so it matches nothing, and the placement says so.

use std::iter::Peekable;
use std::str::Chars;

use regex_lite::Regex;

/// Highest count of a repetition, by Go's `regexp/syntax` documentation.
const REPEAT_MAX: u32 = 1_000;

/// Compiles `pattern`; `None` if Go would refuse it, or the engine does.
pub(super) fn compile(pattern: &str) -> Option<Regex> {
    let mut reader = Reader {
        rest: pattern.chars().peekable(),
        out: String::new(),
        repeats: false,
    };
    while reader.step()? {}
    Regex::new(&reader.out).ok()
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    /// A repetition was just read, so another one must not follow.
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
                self.out.push_str(&regex_lite::escape(&text));
            }
            'u' | 'U' | '<' | '>' => return None,
            other => {
                self.out.push('\\');
                self.out.push(other);
            }
        }
        Some(())
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
                    self.out.push('\\');
                    self.out.push(self.rest.next()?);
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
        compile(pattern).map(|pattern| pattern.is_match(text))
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for pattern in [
            "a++", "a**", "a+?+", "a{2}{3}", r"(?-u)\w", "(?x)a", "(?<n>a)", "(?=x)", r"\u{41}",
            "(", "[", "*", "a{1001}", r"(a)\1", r"\",
        ] {
            assert_eq!(matches(pattern, "aaaa"), None, "{pattern}");
        }
    }

    #[test]
    fn what_go_takes_literally_is_literal() {
        for (pattern, text) in [
            ("a{,5}", "a{,5}"),
            ("{", "{"),
            ("a{5", "a{5"),
            ("[a&&b]", "&"),
            ("[a[b]", "["),
            (r"\Qa.b\E+", "a.bb"),
            ("[]a]", "]"),
            ("}", "}"),
        ] {
            assert_eq!(matches(pattern, text), Some(true), "{pattern}");
        }
        assert_eq!(matches(r"\Qa.b\E", "axb"), Some(false));
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
