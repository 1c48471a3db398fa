//! Tokens to a tree, by recursive descent.

use std::ops::Range;

use super::ast::{
    Attribute, BinaryOperator, Block, Body, Call, ExprKind, Expression, ForExpr, ForPart, Ident,
    Step, Structure,
};
use super::token::{self, Token, TokenKind};
use super::{SyntaxError, template};
use crate::limits::{ITEMS_MAX, SYNTAX_DEPTH_MAX};
use crate::number::Number;

pub(super) type SyntaxResult<T> = Result<T, SyntaxError>;

/// Operators by precedence, lowest first.
const PRECEDENCE: [&[(&str, BinaryOperator)]; 6] = [
    &[("||", BinaryOperator::Or)],
    &[("&&", BinaryOperator::And)],
    &[
        ("==", BinaryOperator::Equal),
        ("!=", BinaryOperator::NotEqual),
    ],
    &[
        ("<", BinaryOperator::Less),
        ("<=", BinaryOperator::LessEqual),
        (">", BinaryOperator::Greater),
        (">=", BinaryOperator::GreaterEqual),
    ],
    &[("+", BinaryOperator::Plus), ("-", BinaryOperator::Minus)],
    &[
        ("*", BinaryOperator::Times),
        ("/", BinaryOperator::Divide),
        ("%", BinaryOperator::Modulo),
    ],
];

/// A parser of one text.
#[derive(Debug)]
pub(super) struct Parser<'a> {
    pub(super) text: &'a str,
    /// The offset of the text in its file.
    offset: usize,
    /// The next byte to read.
    pub(super) at: usize,
    /// Whether newlines are tokens, from the outermost bracket inwards.
    newlines: Vec<bool>,
    depth: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str, offset: usize) -> Self {
        let at = if text.starts_with('\u{feff}') {
            '\u{feff}'.len_utf8()
        } else {
            0
        };
        Self {
            text,
            offset,
            at,
            newlines: vec![true],
            depth: 0,
        }
    }

    pub(super) fn file(mut self) -> SyntaxResult<Body> {
        self.body(None)
    }

    pub(super) fn only_expression(mut self) -> SyntaxResult<Expression> {
        self.newlines = vec![false];
        let expression = self.expression()?;
        let end = self.peek()?;
        if end.kind == TokenKind::End {
            Ok(expression)
        } else {
            Err(self.unexpected(&end, "an operator or the end"))
        }
    }

    pub(super) fn only_template(mut self) -> SyntaxResult<Expression> {
        self.at = 0;
        template::bare(&mut self)
    }

    /// A range of the text as a range of the file.
    pub(super) fn span(&self, range: Range<usize>) -> Range<usize> {
        range.start + self.offset..range.end + self.offset
    }

    pub(super) fn error(&self, range: Range<usize>, message: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.span(range), message)
    }

    fn unexpected(&self, token: &Token, wanted: &str) -> SyntaxError {
        let found = match token.kind {
            TokenKind::End => "the end of the text".to_owned(),
            TokenKind::Newline => "the end of the line".to_owned(),
            TokenKind::Heredoc => "a heredoc".to_owned(),
            TokenKind::Quote => "a text in quotes".to_owned(),
            TokenKind::Ident | TokenKind::Number | TokenKind::Sign(_) => {
                format!("`{}`", &self.text[token.span.clone()])
            }
        };
        self.error(
            token.span.clone(),
            format!("expected {wanted}, found {found}"),
        )
    }

    pub(super) fn peek(&self) -> SyntaxResult<Token> {
        let newlines = self.newlines.last().copied().unwrap_or(true);
        token::next(self.text, self.at, newlines).map_err(|mut error| {
            error.span = self.span(error.span);
            error
        })
    }

    pub(super) fn read(&mut self) -> SyntaxResult<Token> {
        let token = self.peek()?;
        self.at = token.span.end;
        Ok(token)
    }

    fn word(&self, token: &Token) -> &'a str {
        &self.text[token.span.clone()]
    }

    /// Reads the sign `sign` if it is the next token.
    fn take(&mut self, sign: &str) -> SyntaxResult<bool> {
        let token = self.peek()?;
        let is_next = matches!(token.kind, TokenKind::Sign(found) if found == sign);
        if is_next {
            self.at = token.span.end;
        }
        Ok(is_next)
    }

    fn expect(&mut self, sign: &str) -> SyntaxResult<Token> {
        let token = self.peek()?;
        match token.kind {
            TokenKind::Sign(found) if found == sign => self.read(),
            _ => Err(self.unexpected(&token, &format!("`{sign}`"))),
        }
    }

    /// Reads the word `word` if it is the next token.
    pub(super) fn take_word(&mut self, word: &str) -> SyntaxResult<bool> {
        let token = self.peek()?;
        let is_next = token.kind == TokenKind::Ident && self.word(&token) == word;
        if is_next {
            self.at = token.span.end;
        }
        Ok(is_next)
    }

    pub(super) fn name(&mut self) -> SyntaxResult<Ident> {
        let token = self.peek()?;
        if token.kind != TokenKind::Ident {
            return Err(self.unexpected(&token, "a name"));
        }
        self.at = token.span.end;
        Ok(self.ident(&token))
    }

    fn ident(&self, token: &Token) -> Ident {
        Ident {
            name: self.word(token).to_owned(),
            span: self.span(token.span.clone()),
        }
    }

    /// Runs `parse` where newlines are tokens or are skipped, one level deeper.
    pub(super) fn within<T>(
        &mut self,
        newlines: bool,
        parse: impl FnOnce(&mut Self) -> SyntaxResult<T>,
    ) -> SyntaxResult<T> {
        if self.depth == SYNTAX_DEPTH_MAX {
            let message = format!("nested deeper than {SYNTAX_DEPTH_MAX}");
            return Err(self.error(self.at..self.at, message));
        }
        self.depth += 1;
        self.newlines.push(newlines);
        let parsed = parse(self);
        self.newlines.pop();
        self.depth -= 1;
        parsed
    }

    /// Refuses a list that is too long.
    fn check_count(&self, count: usize) -> SyntaxResult<()> {
        if count < ITEMS_MAX {
            return Ok(());
        }
        let message = format!("more than {ITEMS_MAX} items in one list");
        Err(self.error(self.at..self.at, message))
    }

    /// Items up to the closing brace of the block that begins at `open`, or to the end of the file.
    fn body(&mut self, open: Option<usize>) -> SyntaxResult<Body> {
        let mut body = Body::default();
        let mut keys = std::collections::BTreeSet::new();
        loop {
            let token = self.peek()?;
            match token.kind {
                TokenKind::Newline => self.at = token.span.end,
                TokenKind::Sign("}") if open.is_some() => {
                    self.at = token.span.end;
                    return Ok(body);
                }
                TokenKind::End => match open {
                    None => return Ok(body),
                    Some(open) => {
                        let message = "the block has no end: expected `}`";
                        return Err(self.error(open..open + 1, message));
                    }
                },
                TokenKind::Ident | TokenKind::Quote => {
                    let item = self.item()?;
                    if let Structure::Attribute(attribute) = &item
                        && !keys.insert(attribute.key.name.clone())
                    {
                        let message = format!("a second attribute `{}`", attribute.key.name);
                        return Err(SyntaxError::new(attribute.key.span.clone(), message));
                    }
                    body.items.push(item);
                    self.line_end()?;
                }
                _ => return Err(self.unexpected(&token, "an attribute or a block")),
            }
        }
    }

    /// Reads the end of the line after an item.
    fn line_end(&mut self) -> SyntaxResult<()> {
        let token = self.peek()?;
        match token.kind {
            TokenKind::Newline | TokenKind::End => {
                self.at = token.span.end;
                Ok(())
            }
            _ => Err(self.unexpected(&token, "the end of the line")),
        }
    }

    fn item(&mut self) -> SyntaxResult<Structure> {
        let token = self.peek()?;
        if token.kind == TokenKind::Quote {
            // Nomad accepts a quoted key.
            let key = self.label()?;
            self.expect("=")?;
            let value = self.expression()?;
            return Ok(Structure::Attribute(Attribute { key, value }));
        }
        let ident = self.name()?;
        let token = self.peek()?;
        match token.kind {
            TokenKind::Sign("=") => {
                self.at = token.span.end;
                let value = self.expression()?;
                Ok(Structure::Attribute(Attribute { key: ident, value }))
            }
            TokenKind::Quote | TokenKind::Ident | TokenKind::Sign("{") => {
                self.block(ident).map(Structure::Block)
            }
            _ => Err(self.unexpected(&token, "`=`, a label or `{`")),
        }
    }

    fn block(&mut self, ident: Ident) -> SyntaxResult<Block> {
        let mut labels = Vec::new();
        let open = loop {
            let token = self.peek()?;
            match token.kind {
                TokenKind::Sign("{") => break self.read()?,
                TokenKind::Quote => labels.push(self.label()?),
                TokenKind::Ident => labels.push(self.name()?),
                _ => return Err(self.unexpected(&token, "a label or `{`")),
            }
            self.check_count(labels.len())?;
        };
        let body = self.within(true, |parser| {
            let token = parser.peek()?;
            match token.kind {
                TokenKind::Newline | TokenKind::End | TokenKind::Sign("}") => {
                    parser.body(Some(open.span.start))
                }
                _ => parser.line_body(),
            }
        })?;
        Ok(Block {
            ident,
            labels,
            body,
        })
    }

    /// The single attribute of a block in one line, and the closing brace.
    fn line_body(&mut self) -> SyntaxResult<Body> {
        let start = self.at;
        let item = self.item()?;
        if let Structure::Block(_) = item {
            let message =
                "a block in one line holds one attribute: write blocks on lines of their own";
            return Err(self.error(start..self.at, message));
        }
        let token = self.peek()?;
        match token.kind {
            TokenKind::Sign("}") => {
                self.at = token.span.end;
                Ok(Body { items: vec![item] })
            }
            _ => Err(self.unexpected(
                &token,
                "`}`: a block in one line holds one attribute; write others on lines of their own",
            )),
        }
    }

    /// A text in quotes without `${…}`.
    fn label(&mut self) -> SyntaxResult<Ident> {
        let open = self.read()?;
        let (name, end) = template::literal(self, open.span.start)?;
        self.at = end;
        Ok(Ident {
            name,
            span: self.span(open.span.start..end),
        })
    }

    pub(super) fn expression(&mut self) -> SyntaxResult<Expression> {
        let newlines = self.newlines.last().copied().unwrap_or(true);
        self.within(newlines, Self::conditional)
    }

    fn conditional(&mut self) -> SyntaxResult<Expression> {
        let condition = self.binary(0)?;
        if !self.take("?")? {
            return Ok(condition);
        }
        let yes = self.expression()?;
        self.expect(":")?;
        let no = self.expression()?;
        let span = condition.span.start..no.span.end;
        let parts = Box::new([condition, yes, no]);
        Ok(Expression::new(ExprKind::Conditional(parts), span))
    }

    /// Operands with operators of the precedence `level`.
    fn binary(&mut self, level: usize) -> SyntaxResult<Expression> {
        let Some(operators) = PRECEDENCE.get(level) else {
            return self.operand();
        };
        let first = self.binary(level + 1)?;
        let mut rest = Vec::new();
        while let Some(operator) = self.operator(operators)? {
            rest.push((operator, self.binary(level + 1)?));
            self.check_count(rest.len())?;
        }
        let Some((_, last)) = rest.last() else {
            return Ok(first);
        };
        let span = first.span.start..last.span.end;
        Ok(Expression::new(
            ExprKind::Binary(Box::new(first), rest),
            span,
        ))
    }

    /// Reads the next token if it is one of `operators`.
    fn operator(
        &mut self,
        operators: &[(&str, BinaryOperator)],
    ) -> SyntaxResult<Option<BinaryOperator>> {
        let token = self.peek()?;
        let TokenKind::Sign(sign) = token.kind else {
            return Ok(None);
        };
        let found = operators.iter().find(|(written, _)| *written == sign);
        if found.is_some() {
            self.at = token.span.end;
        }
        Ok(found.map(|(_, operator)| *operator))
    }

    fn operand(&mut self) -> SyntaxResult<Expression> {
        let term = self.term()?;
        self.steps(term)
    }

    fn term(&mut self) -> SyntaxResult<Expression> {
        let token = self.peek()?;
        let span = self.span(token.span.clone());
        match token.kind {
            TokenKind::Number => {
                self.at = token.span.end;
                let word = self.word(&token);
                match Number::parse(word) {
                    Some(number) => Ok(Expression::new(ExprKind::Number(number), span)),
                    None => Err(self.error(
                        token.span,
                        format!("`{word}` is not a number, or too large"),
                    )),
                }
            }
            TokenKind::Ident => {
                self.at = token.span.end;
                self.named(&token)
            }
            TokenKind::Quote => {
                self.at = token.span.end;
                template::quoted(self, token.span.start)
            }
            TokenKind::Heredoc => {
                self.at = token.span.end;
                template::heredoc(self, &token)
            }
            TokenKind::Sign(sign @ ("-" | "!")) => {
                self.at = token.span.end;
                let newlines = self.newlines.last().copied().unwrap_or(true);
                let operand = Box::new(self.within(newlines, Self::operand)?);
                let span = span.start..operand.span.end;
                let kind = if sign == "-" {
                    ExprKind::Negate(operand)
                } else {
                    ExprKind::Not(operand)
                };
                Ok(Expression::new(kind, span))
            }
            TokenKind::Sign("(") => {
                self.at = token.span.end;
                let (inner, close) = self.within(false, |parser| {
                    Ok((parser.expression()?, parser.expect(")")?))
                })?;
                let span = span.start..self.span(close.span).end;
                Ok(Expression::new(ExprKind::Paren(Box::new(inner)), span))
            }
            TokenKind::Sign("[") => {
                self.at = token.span.end;
                self.within(false, |parser| parser.tuple(span.start))
            }
            TokenKind::Sign("{") => {
                self.at = token.span.end;
                self.object(span.start)
            }
            TokenKind::Sign(_) | TokenKind::Newline | TokenKind::End => {
                Err(self.unexpected(&token, "a value"))
            }
        }
    }

    /// A word: a call, a literal or a reference.
    fn named(&mut self, token: &Token) -> SyntaxResult<Expression> {
        let span = self.span(token.span.clone());
        let next = self.peek()?;
        if let TokenKind::Sign("(" | "::") = next.kind {
            return self.call(token);
        }
        let kind = match self.word(token) {
            "true" => ExprKind::Bool(true),
            "false" => ExprKind::Bool(false),
            "null" => ExprKind::Null,
            name => ExprKind::Reference(name.to_owned(), Vec::new()),
        };
        Ok(Expression::new(kind, span))
    }

    fn call(&mut self, token: &Token) -> SyntaxResult<Expression> {
        let mut name = self.ident(token);
        while self.take("::")? {
            let part = self.name()?;
            name.name = format!("{}::{}", name.name, part.name);
            name.span.end = part.span.end;
        }
        self.expect("(")?;
        let start = name.span.start;
        let (args, expands, end) = self.within(false, |parser| {
            let mut args = Vec::new();
            loop {
                let token = parser.peek()?;
                if parser.take(")")? {
                    return Ok((args, false, token.span.end));
                }
                args.push(parser.expression()?);
                parser.check_count(args.len())?;
                if parser.take("...")? {
                    let close = parser.expect(")")?;
                    return Ok((args, true, close.span.end));
                }
                let token = parser.peek()?;
                match token.kind {
                    TokenKind::Sign(")") => {}
                    TokenKind::Sign(",") => parser.at = token.span.end,
                    _ => return Err(parser.unexpected(&token, "`,` or `)`")),
                }
            }
        })?;
        let span = start..self.span(end..end).end;
        let call = Call {
            name,
            args,
            expands,
        };
        Ok(Expression::new(ExprKind::Call(call), span))
    }

    fn tuple(&mut self, start: usize) -> SyntaxResult<Expression> {
        if self.take_word("for")? {
            return self.for_expression(start, "]");
        }
        let mut items = Vec::new();
        loop {
            let token = self.peek()?;
            if self.take("]")? {
                let span = start..self.span(token.span).end;
                return Ok(Expression::new(ExprKind::Tuple(items), span));
            }
            items.push(self.expression()?);
            self.check_count(items.len())?;
            let token = self.peek()?;
            match token.kind {
                TokenKind::Sign("]") => {}
                TokenKind::Sign(",") => self.at = token.span.end,
                _ => return Err(self.unexpected(&token, "`,` or `]`")),
            }
        }
    }

    fn object(&mut self, start: usize) -> SyntaxResult<Expression> {
        let is_for = self.within(false, |parser| {
            let token = parser.peek()?;
            Ok(token.kind == TokenKind::Ident && parser.word(&token) == "for")
        })?;
        if is_for {
            return self.within(false, |parser| {
                parser.read()?;
                parser.for_expression(start, "}")
            });
        }
        self.within(true, |parser| parser.entries(start))
    }

    fn entries(&mut self, start: usize) -> SyntaxResult<Expression> {
        let mut entries = Vec::new();
        loop {
            let token = self.peek()?;
            match token.kind {
                TokenKind::Newline => {
                    self.at = token.span.end;
                    continue;
                }
                TokenKind::Sign("}") => {
                    self.at = token.span.end;
                    let span = start..self.span(token.span).end;
                    return Ok(Expression::new(ExprKind::Object(entries), span));
                }
                _ => {}
            }
            let key = self.expression()?;
            let separator = self.peek()?;
            match separator.kind {
                TokenKind::Sign("=" | ":") => self.at = separator.span.end,
                _ => return Err(self.unexpected(&separator, "`=` or `:`")),
            }
            let value = self.expression()?;
            entries.push((key, value));
            self.check_count(entries.len())?;
            let end = self.peek()?;
            match end.kind {
                TokenKind::Sign("}") => {}
                TokenKind::Sign(",") | TokenKind::Newline => self.at = end.span.end,
                _ => return Err(self.unexpected(&end, "`,`, `}` or the end of the line")),
            }
        }
    }

    /// The names and the list of `for k, v in list`, after `for`.
    pub(super) fn for_part(&mut self) -> SyntaxResult<ForPart> {
        let first = self.name()?.name;
        let (key, value) = if self.take(",")? {
            (Some(first), self.name()?.name)
        } else {
            (None, first)
        };
        if !self.take_word("in")? {
            let token = self.peek()?;
            return Err(self.unexpected(&token, "`in`"));
        }
        let list = self.expression()?;
        Ok(ForPart { key, value, list })
    }

    fn for_expression(&mut self, start: usize, close: &str) -> SyntaxResult<Expression> {
        let names = self.for_part()?;
        self.expect(":")?;
        let mut value = self.expression()?;
        let mut key = None;
        if self.take("=>")? {
            key = Some(value);
            value = self.expression()?;
        }
        let groups = self.take("...")?;
        let condition = if self.take_word("if")? {
            Some(self.expression()?)
        } else {
            None
        };
        let end = self.expect(close)?;
        let span = start..self.span(end.span).end;
        let is_object = close == "}";
        if is_object != key.is_some() {
            let message = if is_object {
                "an object needs a key: write `key => value`"
            } else {
                "a list has no keys: write `{` and `}` for an object"
            };
            return Err(SyntaxError::new(span, message));
        }
        if groups && !is_object {
            return Err(SyntaxError::new(
                span,
                "a list does not group: leave out `...`",
            ));
        }
        let each = ForExpr {
            names,
            key,
            value,
            condition,
            groups,
        };
        Ok(Expression::new(ExprKind::For(Box::new(each)), span))
    }

    /// Parses the path after `from`.
    fn steps(&mut self, from: Expression) -> SyntaxResult<Expression> {
        let (steps, end) = self.path(from.span.end)?;
        if steps.is_empty() {
            return Ok(from);
        }
        let span = from.span.start..end;
        let kind = match from.kind {
            ExprKind::Reference(name, before) if before.is_empty() => {
                ExprKind::Reference(name, steps)
            }
            kind => ExprKind::Path(Box::new(Expression::new(kind, from.span)), steps),
        };
        Ok(Expression::new(kind, span))
    }

    fn path(&mut self, end: usize) -> SyntaxResult<(Vec<Step>, usize)> {
        let (mut steps, mut end) = (Vec::new(), end);
        loop {
            let token = self.peek()?;
            match token.kind {
                TokenKind::Sign(".") => {
                    self.at = token.span.end;
                    if self.take("*")? {
                        let span = self.span(token.span.start..self.at);
                        let mut each = Vec::new();
                        while self.take(".")? {
                            each.push(self.dotted()?);
                            self.check_count(each.len())?;
                        }
                        steps.push(Step::AttributeSplat(each, span));
                    } else {
                        steps.push(self.dotted()?);
                    }
                }
                TokenKind::Sign("[") => {
                    self.at = token.span.end;
                    steps.push(self.bracketed(&token)?);
                }
                _ => return Ok((steps, end)),
            }
            self.check_count(steps.len())?;
            end = self.span(self.at..self.at).end;
        }
    }

    /// The name or position after a point.
    fn dotted(&mut self) -> SyntaxResult<Step> {
        let token = self.peek()?;
        match token.kind {
            TokenKind::Ident => {
                self.at = token.span.end;
                Ok(Step::Attribute(self.ident(&token)))
            }
            TokenKind::Number => {
                let word = self.word(&token);
                if let Some((first, second)) = word.split_once('.') {
                    let message = format!("`.{word}` is ambiguous: write [{first}][{second}]");
                    return Err(self.error(token.span, message));
                }
                let index = self.term()?;
                Ok(Step::Index(index))
            }
            _ => Err(self.unexpected(&token, "a name")),
        }
    }

    /// An index or a splat after `[`.
    fn bracketed(&mut self, open: &Token) -> SyntaxResult<Step> {
        // Newlines before the star of a splat are not skipped.
        if self.take("*")? {
            self.expect("]")?;
            let span = self.span(open.span.start..self.at);
            let newlines = self.newlines.last().copied().unwrap_or(true);
            let (each, _end) = self.within(newlines, |parser| parser.path(parser.at))?;
            return Ok(Step::FullSplat(each, span));
        }
        self.within(false, |parser| {
            let index = parser.expression()?;
            parser.expect("]")?;
            Ok(Step::Index(index))
        })
    }
}
