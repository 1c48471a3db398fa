//! Text to tokens, one at a time.

use std::ops::Range;

use super::SyntaxError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Ident,
    Number,
    /// `"`
    Quote,
    /// `<<EOT` or `<<-EOT`, and the end of its line.
    Heredoc,
    /// An operator or a bracket.
    Sign(&'static str),
    Newline,
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) span: Range<usize>,
}

/// Longer signs come before their own prefixes.
const SIGNS: [&str; 35] = [
    "...", "==", "!=", ">=", "<=", "&&", "||", "::", "=>", "~}", "[", "]", "(", ")", "{", "}", ".",
    ",", "*", "/", "%", "+", "-", "=", "<", ">", "!", "?", ":", "&", "|", "~", "^", ";", "`",
];

/// The token of `text` at or after `start`, where newlines are tokens or are skipped.
pub(super) fn next(text: &str, start: usize, newlines: bool) -> Result<Token, SyntaxError> {
    let at = skip(text, start, newlines)?;
    let rest = &text[at..];
    let token = |kind, length| Token {
        kind,
        span: at..at + length,
    };
    let Some(first) = rest.chars().next() else {
        return Ok(token(TokenKind::End, 0));
    };
    if let Some(length) = newline(rest) {
        return Ok(token(TokenKind::Newline, length));
    }
    if first == '"' {
        return Ok(token(TokenKind::Quote, 1));
    }
    if first.is_ascii_digit() {
        return Ok(token(TokenKind::Number, number(rest)));
    }
    if let Some(length) = ident(rest) {
        return Ok(token(TokenKind::Ident, length));
    }
    if let Some(length) = heredoc(rest) {
        return Ok(token(TokenKind::Heredoc, length));
    }
    match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
        Some(sign) => Ok(token(TokenKind::Sign(sign), sign.len())),
        None => {
            let span = at..at + first.len_utf8();
            Err(SyntaxError::new(
                span,
                format!("unexpected character {first:?}"),
            ))
        }
    }
}

/// The end of the blanks and comments that begin at `start`.
fn skip(text: &str, start: usize, newlines: bool) -> Result<usize, SyntaxError> {
    let mut at = start;
    loop {
        let rest = &text[at..];
        let blank = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        if blank > 0 {
            at += blank;
        } else if rest.starts_with('#') || rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            // A carriage return belongs to the end of the line.
        } else if let Some(comment) = rest.strip_prefix("/*") {
            let Some(end) = comment.find("*/") else {
                let message = "the comment has no end: expected `*/`";
                return Err(SyntaxError::new(at..at + 2, message));
            };
            at += end + 4;
        } else {
            match newline(rest) {
                Some(length) if !newlines => at += length,
                _ => return Ok(at),
            }
        }
    }
}

fn newline(rest: &str) -> Option<usize> {
    if rest.starts_with('\n') {
        Some(1)
    } else if rest.starts_with("\r\n") {
        Some(2)
    } else {
        None
    }
}

/// The length of the number at the start of `rest`. It does not end in a point.
fn number(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut length = 1;
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'0'..=b'9' => {
                at += 1;
                length = at;
            }
            b'.' => at += 1,
            b'e' | b'E' => {
                let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
                if !bytes.get(at + 1 + sign).is_some_and(u8::is_ascii_digit) {
                    break;
                }
                at += sign + 2;
                length = at;
            }
            _ => break,
        }
    }
    length
}

/// The length of the identifier that `rest` begins with.
pub(super) fn ident(rest: &str) -> Option<usize> {
    let first = rest.chars().next()?;
    if first != '_' && !unicode_ident::is_xid_start(first) {
        return None;
    }
    let end = rest.find(|c: char| c != '-' && !unicode_ident::is_xid_continue(c));
    Some(end.unwrap_or(rest.len()))
}

/// The length of the start of a heredoc, including the end of its line.
fn heredoc(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix("<<")?;
    let after = after.strip_prefix('-').unwrap_or(after);
    let marker = ident(after)?;
    let end = newline(&after[marker..])?;
    Some(rest.len() - after.len() + marker + end)
}
