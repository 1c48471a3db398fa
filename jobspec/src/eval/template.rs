//! Texts with embedded values: `"${…}"`, `%{ if … }`, heredocs.

use super::reference::reference_as_text;
use super::{Evaluator, Outcome, each_scope, span, wrong};
use crate::convert;
use crate::fault::JobFileFault;
use crate::scope::Scope;
use crate::syntax::{Expression, Part, Template};

impl Evaluator {
    /// The value of `"${x}"`, which keeps its type: `"${var.list}"` is a list.
    pub(super) fn wrapped(&self, only: &Expression, scope: &Scope) -> Outcome {
        if self.keeps_references
            && let Some(text) = reference_as_text(only, scope)?
        {
            return Ok(crate::value::Value::text(text));
        }
        self.eval(only, scope)
    }

    pub(super) fn template(
        &self,
        template: &Template,
        scope: &Scope,
    ) -> Result<String, JobFileFault> {
        let mut text = String::new();
        self.write(&mut text, template, scope)?;
        Ok(text)
    }

    /// Adds `template` to `text`.
    fn write(
        &self,
        text: &mut String,
        template: &Template,
        scope: &Scope,
    ) -> Result<(), JobFileFault> {
        for part in &template.parts {
            match part {
                Part::Literal(literal) => text.push_str(literal),
                Part::Interpolation(expression) => {
                    text.push_str(&self.interpolated(expression, scope)?);
                }
                Part::If(condition, yes, no) => {
                    let chosen = if self.condition(condition, scope)? {
                        yes
                    } else {
                        no
                    };
                    self.write(text, chosen, scope)?;
                }
                Part::For(names, inner) => {
                    for (key, value) in self.elements(&names.list, scope)? {
                        let each = each_scope(names, key, value, scope);
                        let start = text.len();
                        self.write(text, inner, &each)?;
                        self.charge(text.len() - start, || span(&names.list))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn interpolated(&self, expression: &Expression, scope: &Scope) -> Result<String, JobFileFault> {
        if self.keeps_references
            && let Some(text) = reference_as_text(expression, scope)?
        {
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
}
