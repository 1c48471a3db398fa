//! JSON with the place of each part and the original digits of numbers.

use std::ops::Range;

use super::SyntaxError;
use crate::limits::{ITEMS_MAX, SYNTAX_DEPTH_MAX};

/// A value with its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    pub(crate) span: Range<usize>,
}

impl Node {
    /// Whether the value is an object with the name `name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        match &self.kind {
            NodeKind::Object(entries) => entries.iter().any(|(key, _)| key.text == name),
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum NodeKind {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(Key, Node)>),
}

/// A name in an object.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) span: Range<usize>,
}

/// Parses a text at `offset` of its file.
///
/// # Errors
///
/// The first syntax error.
pub(crate) fn parse(text: &str, offset: usize) -> Result<Node, SyntaxError> {
    let mark = if text.starts_with('\u{feff}') {
        '\u{feff}'.len_utf8()
    } else {
        0
    };
    let mut reader = Reader {
        text,
        offset,
        at: mark,
        depth: 0,
    };
    let node = reader.node()?;
    match reader.next() {
        None => Ok(node),
        Some(_) => Err(reader.error("expected the end of the text")),
    }
}

struct Reader<'a> {
    text: &'a str,
    offset: usize,
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn error(&self, message: impl Into<String>) -> SyntaxError {
        let at = self.at + self.offset;
        SyntaxError::new(at..at, message)
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Skips blanks and returns the next character.
    fn next(&mut self) -> Option<char> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
        self.rest().chars().next()
    }

    /// Reads `sign`, or refuses any other character.
    fn expect(&mut self, sign: char) -> Result<(), SyntaxError> {
        if self.next() == Some(sign) {
            self.at += 1;
            return Ok(());
        }
        Err(self.error(format!("expected `{sign}`")))
    }

    fn node(&mut self) -> Result<Node, SyntaxError> {
        if self.depth == SYNTAX_DEPTH_MAX {
            return Err(self.error(format!("nested deeper than {SYNTAX_DEPTH_MAX}")));
        }
        self.depth += 1;
        let first = self.next();
        let start = self.at;
        let kind = match first {
            Some('{') => self.object()?,
            Some('[') => self.list()?,
            Some('"') => NodeKind::Text(self.string()?),
            Some('-' | '0'..='9') => NodeKind::Number(self.number()?),
            Some(_) => self.word()?,
            None => return Err(self.error("expected a value, found the end of the text")),
        };
        self.depth -= 1;
        let span = start + self.offset..self.at + self.offset;
        Ok(Node { kind, span })
    }

    fn word(&mut self) -> Result<NodeKind, SyntaxError> {
        let words = [
            ("null", NodeKind::Null),
            ("true", NodeKind::Bool(true)),
            ("false", NodeKind::Bool(false)),
        ];
        for (word, kind) in words {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(kind);
            }
        }
        Err(self.error("expected a value"))
    }

    fn number(&mut self) -> Result<String, SyntaxError> {
        let rest = self.rest();
        let unsigned = rest.strip_prefix('-').unwrap_or(rest);
        let digits =
            |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let whole = digits(unsigned);
        if whole == 0 || (whole > 1 && unsigned.starts_with('0')) {
            return Err(self.error("expected a number without leading zeros"));
        }
        let mut left = &unsigned[whole..];
        if let Some(fraction) = left.strip_prefix('.') {
            let count = digits(fraction);
            if count == 0 {
                return Err(self.error("expected digits after the point"));
            }
            left = &fraction[count..];
        }
        if let Some(exponent) = left.strip_prefix(['e', 'E']) {
            let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            let count = digits(exponent);
            if count == 0 {
                return Err(self.error("expected digits in the exponent"));
            }
            left = &exponent[count..];
        }
        let number = rest[..rest.len() - left.len()].to_owned();
        self.at += number.len();
        Ok(number)
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(c) = self.rest().chars().next() else {
                self.at = start;
                return Err(self.error("the text has no end: expected `\"`"));
            };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(text),
                '\\' => text.push(self.escape()?),
                '\0'..='\u{1f}' => {
                    self.at -= 1;
                    return Err(
                        self.error("a text has no control characters: write \\n for a new line")
                    );
                }
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, SyntaxError> {
        let selector = self.rest().chars().next().unwrap_or(' ');
        let plain = match selector {
            '"' | '\\' | '/' => selector,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                self.at += 1;
                return self.unicode();
            }
            _ => return Err(self.error("unknown escape")),
        };
        self.at += 1;
        Ok(plain)
    }

    /// The character of `\uNNNN`, or of two such for a character above 16 bits. Half of a pair is
    /// replaced, as in Go.
    fn unicode(&mut self) -> Result<char, SyntaxError> {
        let high = self.hex()?;
        if !(0xd800..0xdc00).contains(&high) || !self.rest().starts_with("\\u") {
            return Ok(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let before = self.at;
        self.at += 2;
        let low = self.hex()?;
        if !(0xdc00..0xe000).contains(&low) {
            self.at = before;
            return Ok(char::REPLACEMENT_CHARACTER);
        }
        let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
        Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex(&mut self) -> Result<u32, SyntaxError> {
        let digits = self.rest().get(..4).unwrap_or("");
        let is_hex = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        match u32::from_str_radix(digits, 16) {
            Ok(code) if is_hex => {
                self.at += 4;
                Ok(code)
            }
            _ => Err(self.error("expected four hexadecimal digits")),
        }
    }

    fn list(&mut self) -> Result<NodeKind, SyntaxError> {
        self.at += 1;
        let mut items = Vec::new();
        if self.next() == Some(']') {
            self.at += 1;
            return Ok(NodeKind::List(items));
        }
        loop {
            items.push(self.node()?);
            self.check_count(items.len())?;
            match self.next() {
                Some(',') => self.at += 1,
                Some(']') => {
                    self.at += 1;
                    return Ok(NodeKind::List(items));
                }
                _ => return Err(self.error("expected `,` or `]`")),
            }
        }
    }

    fn object(&mut self) -> Result<NodeKind, SyntaxError> {
        self.at += 1;
        let mut entries = Vec::new();
        if self.next() == Some('}') {
            self.at += 1;
            return Ok(NodeKind::Object(entries));
        }
        loop {
            if self.next() != Some('"') {
                return Err(self.error("expected a name in quotes"));
            }
            let start = self.at;
            let text = self.string()?;
            let span = start + self.offset..self.at + self.offset;
            self.expect(':')?;
            entries.push((Key { text, span }, self.node()?));
            self.check_count(entries.len())?;
            match self.next() {
                Some(',') => self.at += 1,
                Some('}') => {
                    self.at += 1;
                    return Ok(NodeKind::Object(entries));
                }
                _ => return Err(self.error("expected `,` or `}`")),
            }
        }
    }

    fn check_count(&self, count: usize) -> Result<(), SyntaxError> {
        if count < ITEMS_MAX {
            return Ok(());
        }
        Err(self.error(format!("more than {ITEMS_MAX} items in one list")))
    }
}
