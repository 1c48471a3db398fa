//! Texts with something in them: `"${…}"`, `%{ if … }`, heredocs.

use hcl_edit::expr::Expression;
use hcl_edit::template::{
    Directive, Element, ForDirective, HeredocTemplate, IfDirective, StringTemplate, Strip, Template,
};
use serde_json::Value;

use super::reference::left_as_text;
use super::{Evaluator, Outcome, span, wrong};
use crate::jobspec::convert;
use crate::jobspec::fault::JobFileFault;
use crate::jobspec::scope::Scope;

/// How literals are written where a template stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Literals {
    /// In quotes: `~` takes away all space beside it.
    Quoted,
    /// In quotes, inside a directive: the parser leaves escapes as they are.
    Escaped,
    /// Each line is a literal of its own: `~` takes away space of the line that it is in.
    Lines,
}

impl Literals {
    /// Those inside a directive.
    fn inside(self) -> Self {
        match self {
            Self::Quoted | Self::Escaped => Self::Escaped,
            Self::Lines => Self::Lines,
        }
    }
}

impl Evaluator {
    /// A text in quotes. A single interpolation keeps its kind: `"${var.list}"` is a list.
    pub(super) fn string_template(&self, template: &StringTemplate, scope: &Scope) -> Outcome {
        if let Some(Element::Interpolation(only)) = template.as_single_element() {
            return match left_as_text(&only.expr, scope)? {
                Some(text) => Ok(Value::String(text)),
                None => self.eval(&only.expr, scope),
            };
        }
        self.template(template, scope, Literals::Quoted)
            .map(Value::String)
    }

    pub(super) fn heredoc(&self, heredoc: &HeredocTemplate, scope: &Scope) -> Outcome {
        self.template(&heredoc.template, scope, Literals::Lines)
            .map(Value::String)
    }

    fn template(
        &self,
        template: &Template,
        scope: &Scope,
        literals: Literals,
    ) -> Result<String, JobFileFault> {
        let mut text = String::new();
        self.write(&mut text, template, scope, literals, (false, false))?;
        Ok(text)
    }

    /// Adds `template` to `text`. `outer` says whether what stands before and after it trims it.
    fn write(
        &self,
        text: &mut String,
        template: &Template,
        scope: &Scope,
        literals: Literals,
        outer: (bool, bool),
    ) -> Result<(), JobFileFault> {
        let elements: Vec<&Element> = template.iter().collect();
        for (at, element) in elements.iter().enumerate() {
            match element {
                Element::Literal(literal) => {
                    let before = match at.checked_sub(1) {
                        Some(before) => strips(elements[before]).1,
                        None => outer.0,
                    };
                    let after = elements.get(at + 1);
                    let after = after.map_or(outer.1, |after| strips(after).0);
                    let literal = trimmed(literal.value(), literals, before, after);
                    if literals == Literals::Escaped {
                        unescape(literal, text);
                    } else {
                        text.push_str(literal);
                    }
                }
                Element::Interpolation(interpolation) => {
                    text.push_str(&self.interpolated(&interpolation.expr, scope)?);
                }
                Element::Directive(directive) => match directive.as_ref() {
                    Directive::If(choice) => {
                        self.write_if(text, choice, scope, literals.inside())?;
                    }
                    Directive::For(each) => self.write_for(text, each, scope, literals.inside())?,
                },
            }
        }
        Ok(())
    }

    fn interpolated(&self, expression: &Expression, scope: &Scope) -> Result<String, JobFileFault> {
        if let Some(text) = left_as_text(expression, scope)? {
            return Ok(text);
        }
        let value = self.eval(expression, scope)?;
        convert::text(&value).ok_or_else(|| {
            wrong(
                expression,
                "only a text, a number or a boolean can stand in a text",
                &value,
            )
            .help("join(\", \", list) or jsonencode(value) makes a text of it")
        })
    }

    fn write_if(
        &self,
        text: &mut String,
        choice: &IfDirective,
        scope: &Scope,
        literals: Literals,
    ) -> Result<(), JobFileFault> {
        let (first, end) = (&choice.if_expr, &choice.endif_expr);
        let holds = self.condition(&first.cond_expr, scope)?;
        match &choice.else_expr {
            None if !holds => Ok(()),
            Some(second) if !holds => {
                let outer = (after(second.strip), before(end.strip));
                self.write(text, &second.template, scope, literals, outer)
            }
            second => {
                let next = second.as_ref().map_or(end.strip, |second| second.strip);
                let outer = (after(first.strip), before(next));
                self.write(text, &first.template, scope, literals, outer)
            }
        }
    }

    fn write_for(
        &self,
        text: &mut String,
        each: &ForDirective,
        scope: &Scope,
        literals: Literals,
    ) -> Result<(), JobFileFault> {
        let intro = &each.for_expr;
        let outer = (after(intro.strip), before(each.endfor_expr.strip));
        for (key, value) in self.elements(&intro.collection_expr, scope)? {
            let mut inner = scope.clone();
            if let Some(name) = &intro.key_var {
                inner = inner.with(name.as_str(), key);
            }
            let inner = inner.with(intro.value_var.as_str(), value);
            let start = text.len();
            self.write(text, &intro.template, &inner, literals, outer)?;
            self.charge(text.len() - start, || span(&intro.collection_expr))?;
        }
        Ok(())
    }
}

/// Whether `element` trims what is before it, and what is after it.
fn strips(element: &Element) -> (bool, bool) {
    match element {
        Element::Literal(_) => (false, false),
        Element::Interpolation(interpolation) => {
            (before(interpolation.strip), after(interpolation.strip))
        }
        Element::Directive(directive) => match directive.as_ref() {
            Directive::If(choice) => (before(choice.if_expr.strip), after(choice.endif_expr.strip)),
            Directive::For(each) => (before(each.for_expr.strip), after(each.endfor_expr.strip)),
        },
    }
}

fn before(strip: Strip) -> bool {
    matches!(strip, Strip::Start | Strip::Both)
}

fn after(strip: Strip) -> bool {
    matches!(strip, Strip::End | Strip::Both)
}

fn trimmed(literal: &str, literals: Literals, at_start: bool, at_end: bool) -> &str {
    let mut literal = literal;
    if at_start {
        let line = match literals {
            Literals::Quoted | Literals::Escaped => literal.len(),
            Literals::Lines => literal.find('\n').map_or(literal.len(), |at| at + 1),
        };
        let left = literal[..line].trim_start().len();
        literal = &literal[line - left..];
    }
    if at_end {
        let line = match literals {
            Literals::Quoted | Literals::Escaped => 0,
            Literals::Lines => {
                let inner = literal.strip_suffix('\n').unwrap_or(literal);
                inner.rfind('\n').map_or(0, |at| at + 1)
            }
        };
        let left = literal[line..].trim_end().len();
        literal = &literal[..line + left];
    }
    literal
}

/// Adds `literal` to `text`, with its escapes read. One that is none stays.
fn unescape(literal: &str, text: &mut String) {
    let mut rest = literal;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(kind) = rest.chars().next() else {
            text.push('\\');
            return;
        };
        let digits = match kind {
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let escaped = match kind {
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            '"' | '\\' => Some(kind),
            _ => rest
                .get(1..=digits)
                .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                .and_then(char::from_u32),
        };
        match escaped {
            Some(escaped) => {
                text.push(escaped);
                rest = &rest[kind.len_utf8() + digits..];
            }
            None => text.push('\\'),
        }
    }
    text.push_str(rest);
}
