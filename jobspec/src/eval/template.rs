//! Texts with something in them: `"${…}"`, `%{ if … }`, heredocs.

use hcl_edit::expr::Expression;
use hcl_edit::template::{
    Directive, Element, ForDirective, HeredocTemplate, IfDirective, StringTemplate, Strip, Template,
};
use serde_json::Value;

use super::reference::left_as_text;
use super::{Evaluator, Outcome, span, wrong};
use crate::convert;
use crate::fault::JobFileFault;
use crate::scope::Scope;

/// What `~` takes away beside it.
#[derive(Clone, Copy, Debug)]
enum Trim {
    /// All space.
    Space,
    /// Space of the line that it is in. Each line of a heredoc is a literal of its own.
    Line,
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
        self.template(template, scope, Trim::Space)
            .map(Value::String)
    }

    pub(super) fn heredoc(&self, heredoc: &HeredocTemplate, scope: &Scope) -> Outcome {
        self.template(&heredoc.template, scope, Trim::Line)
            .map(Value::String)
    }

    fn template(
        &self,
        template: &Template,
        scope: &Scope,
        trim: Trim,
    ) -> Result<String, JobFileFault> {
        let mut text = String::new();
        self.write(&mut text, template, scope, trim, (false, false))?;
        Ok(text)
    }

    /// Adds `template` to `text`. `outer` says whether what stands before and after it trims it.
    fn write(
        &self,
        text: &mut String,
        template: &Template,
        scope: &Scope,
        trim: Trim,
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
                    let literal = trimmed(literal.value(), trim, before, after);
                    text.push_str(literal);
                }
                Element::Interpolation(interpolation) => {
                    text.push_str(&self.interpolated(&interpolation.expr, scope)?);
                }
                Element::Directive(directive) => match directive.as_ref() {
                    Directive::If(choice) => self.write_if(text, choice, scope, trim)?,
                    Directive::For(each) => self.write_for(text, each, scope, trim)?,
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
        trim: Trim,
    ) -> Result<(), JobFileFault> {
        let (first, end) = (&choice.if_expr, &choice.endif_expr);
        let holds = self.condition(&first.cond_expr, scope)?;
        match &choice.else_expr {
            None if !holds => Ok(()),
            Some(second) if !holds => {
                let outer = (after(second.strip), before(end.strip));
                self.write(text, &second.template, scope, trim, outer)
            }
            second => {
                let next = second.as_ref().map_or(end.strip, |second| second.strip);
                let outer = (after(first.strip), before(next));
                self.write(text, &first.template, scope, trim, outer)
            }
        }
    }

    fn write_for(
        &self,
        text: &mut String,
        each: &ForDirective,
        scope: &Scope,
        trim: Trim,
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
            self.write(text, &intro.template, &inner, trim, outer)?;
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

fn trimmed(literal: &str, trim: Trim, at_start: bool, at_end: bool) -> &str {
    let mut literal = literal;
    if at_start {
        let line = match trim {
            Trim::Space => literal.len(),
            Trim::Line => literal.find('\n').map_or(literal.len(), |at| at + 1),
        };
        let left = literal[..line].trim_start().len();
        literal = &literal[line - left..];
    }
    if at_end {
        let line = match trim {
            Trim::Space => 0,
            Trim::Line => {
                let inner = literal.strip_suffix('\n').unwrap_or(literal);
                inner.rfind('\n').map_or(0, |at| at + 1)
            }
        };
        let left = literal[line..].trim_end().len();
        literal = &literal[..line + left];
    }
    literal
}
