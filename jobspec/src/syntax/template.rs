//! Texts: quoted ones, heredocs, and the `${…}` and `%{…}` in them.
//!
//! A text is first cut into tokens: literals, interpolations and directives. In a heredoc, a literal ends with its
//! line. `~` removes blanks from the adjacent literal, and `<<-` removes the common indentation of all lines. After
//! that, the tree of directives is built.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation as _;

use super::ast::{ExprKind, Expression, ForPart, Part, Template};
use super::parser::{Parser, SyntaxResult};
use super::token::{Token, TokenKind};
use crate::limits::{ITEMS_MAX, SYNTAX_DEPTH_MAX};

/// The end of a text.
#[derive(Clone, Debug)]
enum TemplateEnd {
    /// `"`
    Quote,
    /// The end of a heredoc: a line with this word alone.
    Marker(String),
    /// The end of the whole text.
    Text,
}

#[derive(Debug)]
enum Piece {
    Literal(String),
    Interpolation(Expression),
    If(Expression, Range<usize>),
    Else(Range<usize>),
    EndIf(Range<usize>),
    For(ForPart, Range<usize>),
    EndFor(Range<usize>),
}

/// Parses a quoted text after its opening quote at `start`.
pub(super) fn quoted(parser: &mut Parser<'_>, start: usize) -> SyntaxResult<Expression> {
    let pieces = PieceParser::read(parser, start, TemplateEnd::Quote)?;
    let span = parser.span(start..parser.at);
    finish(parser, pieces, span)
}

/// Parses a heredoc after its first line.
pub(super) fn heredoc(parser: &mut Parser<'_>, open: &Token) -> SyntaxResult<Expression> {
    let first = parser.text[open.span.clone()].trim_end();
    let (marker, is_indented) = match first.strip_prefix("<<-") {
        Some(marker) => (marker, true),
        None => (first.trim_start_matches('<'), false),
    };
    let end = TemplateEnd::Marker(marker.to_owned());
    let mut pieces = PieceParser::read(parser, open.span.start, end)?;
    if is_indented {
        cut_indentation(&mut pieces);
    }
    let span = parser.span(open.span.start..parser.at);
    finish(parser, pieces, span)
}

/// A whole text without quotes.
pub(super) fn bare(parser: &mut Parser<'_>) -> SyntaxResult<Expression> {
    let pieces = PieceParser::read(parser, 0, TemplateEnd::Text)?;
    let span = parser.span(0..parser.text.len());
    finish(parser, pieces, span)
}

/// Parses a quoted text without `${…}` that begins at `start`. Returns the place after it, too.
pub(super) fn literal(parser: &mut Parser<'_>, start: usize) -> SyntaxResult<(String, usize)> {
    parser.at = start + 1;
    let mut reader = PieceParser::new(parser, start, TemplateEnd::Quote);
    let mut text = String::new();
    loop {
        if reader.at_end()? {
            return Ok((text, reader.parser.at));
        }
        let at = reader.parser.at;
        if reader.rest().starts_with("${") || reader.rest().starts_with("%{") {
            let message = "a label is a text without `${…}`: it cannot be computed (write `$${` for the sign)";
            return Err(reader.parser.error(at..at + 2, message));
        }
        reader.literal()?;
        for piece in reader.pieces.drain(..) {
            if let Piece::Literal(part) = piece {
                text.push_str(&part);
            }
        }
    }
}

#[derive(Debug)]
struct PieceParser<'a, 'b> {
    parser: &'a mut Parser<'b>,
    start: usize,
    end: TemplateEnd,
    pieces: Vec<Piece>,
    /// Whether the next byte begins a line.
    line_starts: bool,
}

impl<'a, 'b> PieceParser<'a, 'b> {
    fn new(parser: &'a mut Parser<'b>, start: usize, end: TemplateEnd) -> Self {
        Self {
            parser,
            start,
            end,
            pieces: Vec::new(),
            line_starts: true,
        }
    }

    fn read(
        parser: &'a mut Parser<'b>,
        start: usize,
        end: TemplateEnd,
    ) -> SyntaxResult<Vec<Piece>> {
        let mut reader = Self::new(parser, start, end);
        // Whether `~}` removes the leading blanks of the next literal.
        let mut trims_next = false;
        let mut was_literal = false;
        while !reader.at_end()? {
            if reader.pieces.len() >= ITEMS_MAX {
                let message = format!("more than {ITEMS_MAX} lines and parts in one text");
                return Err(reader.parser.error(start..start + 1, message));
            }
            let rest = reader.rest();
            let is_directive = rest.starts_with("%{");
            if !is_directive && !rest.starts_with("${") {
                reader.literal()?;
                if trims_next && let Some(Piece::Literal(last)) = reader.pieces.last_mut() {
                    *last = last.trim_start().to_owned();
                }
                (trims_next, was_literal) = (false, true);
                continue;
            }
            let open = reader.parser.at;
            reader.parser.at += 2;
            if reader.rest().starts_with('~') {
                reader.parser.at += 1;
                if was_literal && let Some(Piece::Literal(last)) = reader.pieces.last_mut() {
                    *last = last.trim_end().to_owned();
                }
            }
            reader.line_starts = false;
            was_literal = false;
            let (piece, trims) = reader.parser.within(false, |parser| {
                let piece = if is_directive {
                    directive(parser, open)?
                } else {
                    Piece::Interpolation(parser.expression()?)
                };
                Ok((piece, close(parser, open)?))
            })?;
            trims_next = trims;
            reader.pieces.push(piece);
        }
        Ok(reader.pieces)
    }

    fn rest(&self) -> &'b str {
        &self.parser.text[self.parser.at..]
    }

    /// Whether the text ends here; the end is then consumed.
    fn at_end(&mut self) -> SyntaxResult<bool> {
        let rest = self.rest();
        match &self.end {
            TemplateEnd::Text => return Ok(rest.is_empty()),
            TemplateEnd::Quote => {
                if rest.starts_with('"') {
                    self.parser.at += 1;
                    return Ok(true);
                }
                if rest.starts_with(['\n', '\r']) || rest.is_empty() {
                    let message = "the text has no end in its line: expected `\"` (write \\n for a new line, or a heredoc)";
                    return Err(self.parser.error(self.start..self.start + 1, message));
                }
            }
            TemplateEnd::Marker(marker) => {
                if self.line_starts
                    && let Some(line) = rest.find('\n').map(|end| &rest[..end])
                    && line.trim() == marker
                {
                    // The end of the line ends the attribute.
                    let line = line.strip_suffix('\r').unwrap_or(line);
                    self.parser.at += line.len();
                    return Ok(true);
                }
                if rest.is_empty() {
                    let message = format!(
                        "the heredoc has no end: expected a whole line with `{marker}` alone"
                    );
                    let place = self.start..self.start + 2;
                    return Err(self.parser.error(place, message));
                }
            }
        }
        Ok(false)
    }

    /// Reads a literal: up to the next sign, or to the end of the line in a heredoc.
    fn literal(&mut self) -> SyntaxResult<()> {
        let rest = self.rest();
        let is_quoted = matches!(self.end, TemplateEnd::Quote);
        let sign = rest.chars().next().filter(|sign| matches!(sign, '$' | '%'));
        if let Some(sign) = sign {
            let is_escape = rest[1..].starts_with(sign) && rest[2..].starts_with('{');
            let (text, length) = if is_escape {
                (format!("{sign}{{"), 3)
            } else {
                // HCL's scanner reads one more character if the line ends after it.
                let mut after = rest[1..].chars();
                let next = after.next().filter(|c| *c != '\n');
                let after = after.as_str();
                let ends = after.starts_with('\n') || after.starts_with("\r\n");
                match next.filter(|_| ends && !is_quoted) {
                    Some(next) => (format!("{sign}{next}"), 1 + next.len_utf8()),
                    None => (sign.to_string(), 1),
                }
            };
            // `$${~` is the escape and a tilde.
            self.parser.at += length;
            self.line_starts = false;
            self.pieces.push(Piece::Literal(text));
            return Ok(());
        }
        let mut text = String::new();
        let length = if is_quoted {
            self.escapes(&mut text)?
        } else {
            // Each line of a heredoc is a literal; the lines of a bare text are, too.
            let line = rest.find('\n').map_or(rest, |end| &rest[..=end]);
            let end = line.find(['$', '%']).unwrap_or(line.len());
            text.push_str(&line[..end]);
            end
        };
        self.parser.at += length;
        self.line_starts = text.ends_with('\n');
        self.pieces.push(Piece::Literal(text));
        Ok(())
    }

    /// Adds a part of a quoted text to `text`, its escapes resolved. Returns the number of bytes read.
    fn escapes(&self, text: &mut String) -> SyntaxResult<usize> {
        let rest = self.rest();
        let mut chars = rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' | '$' | '%' | '\n' | '\r' => return Ok(at),
                '\\' => {
                    let place = self.parser.at + at;
                    let Some((_, selector)) = chars.next() else {
                        return Ok(rest.len());
                    };
                    let resolved = match selector {
                        'n' => Ok('\n'),
                        'r' => Ok('\r'),
                        't' => Ok('\t'),
                        '"' | '\\' => Ok(selector),
                        'u' => Err(4),
                        'U' => Err(8),
                        other => {
                            let message = format!(
                                "unknown escape `\\{other}`: use \\n, \\r, \\t, \\\", \\\\, \\uNNNN or \\UNNNNNNNN"
                            );
                            let end = place + 1 + other.len_utf8();
                            return Err(self.parser.error(place..end, message));
                        }
                    };
                    match resolved {
                        Ok(c) => text.push(c),
                        Err(count) => {
                            let digits: String =
                                chars.by_ref().take(count).map(|(_, c)| c).collect();
                            let is_hex = digits.len() == count
                                && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                            let code = u32::from_str_radix(&digits, 16).ok().filter(|_| is_hex);
                            let Some(c) = code.and_then(char::from_u32) else {
                                let message = format!(
                                    "`\\{selector}` needs {count} hexadecimal digits of a Unicode character"
                                );
                                return Err(self.parser.error(place..place + 2, message));
                            };
                            text.push(c);
                        }
                    }
                }
                other => text.push(other),
            }
        }
        Ok(rest.len())
    }
}

/// Reads `}` or `~}`; returns whether it removes blanks after it.
fn close(parser: &mut Parser<'_>, open: usize) -> SyntaxResult<bool> {
    let token = parser.peek()?;
    match token.kind {
        TokenKind::Sign("}") => {
            parser.at = token.span.end;
            Ok(false)
        }
        TokenKind::Sign("~}") => {
            parser.at = token.span.end;
            Ok(true)
        }
        TokenKind::End => {
            let sign = &parser.text[open..open + 2];
            Err(parser.error(
                open..open + 2,
                format!("`{sign}` has no end: expected `}}`"),
            ))
        }
        _ => Err(parser.error(
            token.span,
            "expected `}` (write `$${` or `%%{` for text of another language)",
        )),
    }
}

/// The directive after `%{` at `open`.
fn directive(parser: &mut Parser<'_>, open: usize) -> SyntaxResult<Piece> {
    let word = parser.name()?;
    let span = parser.span(open..open + 2).start..word.span.end;
    match word.as_str() {
        "if" => Ok(Piece::If(parser.expression()?, span)),
        "else" => Ok(Piece::Else(span)),
        "endif" => Ok(Piece::EndIf(span)),
        "for" => Ok(Piece::For(parser.for_part()?, span)),
        "endfor" => Ok(Piece::EndFor(span)),
        other => {
            let message =
                format!("unknown directive `{other}`: use if, else, endif, for or endfor");
            Err(super::SyntaxError::new(word.span, message))
        }
    }
}

/// Removes the smallest indentation of all lines from each line. Blank lines do not count.
fn cut_indentation(pieces: &mut [Piece]) {
    let mut least = usize::MAX;
    let mut starts = Vec::new();
    let mut line_starts = true;
    for (at, piece) in pieces.iter().enumerate() {
        let literal = match piece {
            Piece::Literal(text) => Some(text),
            _ => None,
        };
        if line_starts {
            match literal {
                Some(text) if text.trim_start().is_empty() && text.ends_with('\n') => {}
                Some(text) => {
                    let blanks = &text[..text.len() - text.trim_start().len()];
                    least = least.min(blanks.graphemes(true).count());
                    starts.push(at);
                }
                None => least = 0,
            }
        }
        line_starts = literal.is_some_and(|text| text.ends_with('\n'));
    }
    for at in starts {
        if let Piece::Literal(text) = &mut pieces[at] {
            let cut: usize = text.graphemes(true).take(least).map(str::len).sum();
            text.drain(..cut);
        }
    }
}

/// The expression that `pieces` are.
fn finish(parser: &Parser<'_>, pieces: Vec<Piece>, span: Range<usize>) -> SyntaxResult<Expression> {
    let mut pieces = pieces;
    if let [Piece::Interpolation(_)] = pieces.as_slice()
        && let Some(Piece::Interpolation(only)) = pieces.pop()
    {
        return Ok(Expression::new(ExprKind::Wrap(Box::new(only)), span));
    }
    let mut left = pieces.into_iter();
    let mut tree = Tree {
        pieces: &mut left,
        depth: 0,
        end: parser.at,
    };
    let (template, stop) = tree.parts(parser)?;
    if let Some(stop) = stop {
        let (name, place) = stop.describe();
        return Err(super::SyntaxError::new(
            place,
            format!("`{name}` has no beginning"),
        ));
    }
    let kind = match template.parts.as_slice() {
        [] => ExprKind::Text(String::new()),
        [Part::Literal(text)] => ExprKind::Text(text.clone()),
        _ => ExprKind::Template(template),
    };
    Ok(Expression::new(kind, span))
}

/// The end of a part of a text: a directive that belongs to one before.
#[derive(Debug)]
enum ClosingDirective {
    Else(Range<usize>),
    EndIf(Range<usize>),
    EndFor(Range<usize>),
}

impl ClosingDirective {
    fn describe(self) -> (&'static str, Range<usize>) {
        match self {
            Self::Else(place) => ("else", place),
            Self::EndIf(place) => ("endif", place),
            Self::EndFor(place) => ("endfor", place),
        }
    }
}

struct Tree<'a> {
    pieces: &'a mut std::vec::IntoIter<Piece>,
    depth: usize,
    end: usize,
}

impl Tree<'_> {
    /// Parts up to the end of the text, or to a directive that belongs to one before.
    fn parts(&mut self, parser: &Parser<'_>) -> SyntaxResult<(Template, Option<ClosingDirective>)> {
        if self.depth == SYNTAX_DEPTH_MAX {
            let message = format!("directives nested deeper than {SYNTAX_DEPTH_MAX}");
            return Err(parser.error(self.end..self.end, message));
        }
        self.depth += 1;
        let mut template = Template::default();
        let stop = loop {
            match self.pieces.next() {
                None => break None,
                Some(Piece::Literal(text)) => match template.parts.last_mut() {
                    Some(Part::Literal(last)) => last.push_str(&text),
                    _ => template.parts.push(Part::Literal(text)),
                },
                Some(Piece::Interpolation(expression)) => {
                    template.parts.push(Part::Interpolation(expression));
                }
                Some(Piece::If(condition, place)) => {
                    let part = self.choice(parser, condition, place)?;
                    template.parts.push(part);
                }
                Some(Piece::For(part, place)) => {
                    let (inner, stop) = self.parts(parser)?;
                    match stop {
                        Some(ClosingDirective::EndFor(_)) => {
                            template.parts.push(Part::For(Box::new(part), inner));
                        }
                        other => return Err(unclosed("for", "endfor", place, other)),
                    }
                }
                Some(Piece::Else(place)) => break Some(ClosingDirective::Else(place)),
                Some(Piece::EndIf(place)) => break Some(ClosingDirective::EndIf(place)),
                Some(Piece::EndFor(place)) => break Some(ClosingDirective::EndFor(place)),
            }
        };
        self.depth -= 1;
        Ok((template, stop))
    }

    fn choice(
        &mut self,
        parser: &Parser<'_>,
        condition: Expression,
        place: Range<usize>,
    ) -> SyntaxResult<Part> {
        let (yes, mut stop) = self.parts(parser)?;
        let mut no = Template::default();
        if let Some(ClosingDirective::Else(_)) = stop {
            (no, stop) = self.parts(parser)?;
        }
        match stop {
            Some(ClosingDirective::EndIf(_)) => Ok(Part::If(Box::new(condition), yes, no)),
            other => Err(unclosed("if", "endif", place, other)),
        }
    }
}

fn unclosed(
    name: &str,
    wanted: &str,
    place: Range<usize>,
    found: Option<ClosingDirective>,
) -> super::SyntaxError {
    match found.map(ClosingDirective::describe) {
        None => super::SyntaxError::new(place, format!("`{name}` has no `{wanted}`")),
        Some((found, place)) => {
            super::SyntaxError::new(place, format!("expected `{wanted}`, found `{found}`"))
        }
    }
}
