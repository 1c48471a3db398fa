//! Operators.

use hcl_edit::expr::{BinaryOp, BinaryOperator, Expression, UnaryOp, UnaryOperator};
use serde_json::{Number, Value};

use super::{Evaluator, Outcome, span, wrong};
use crate::convert;
use crate::fault::JobFileFault;
use crate::number;
use crate::scope::Scope;

impl Evaluator {
    pub(super) fn unary(&self, operation: &UnaryOp, scope: &Scope) -> Outcome {
        match operation.operator.value() {
            UnaryOperator::Not => self
                .condition(&operation.expr, scope)
                .map(|holds| Value::Bool(!holds)),
            UnaryOperator::Neg => {
                let number = self.number(&operation.expr, scope)?;
                combined(BinaryOperator::Minus, &Number::from(0), &number)
                    .ok_or_else(|| too_large(&operation.expr))
            }
        }
    }

    pub(super) fn binary(&self, operation: &BinaryOp, scope: &Scope) -> Outcome {
        let (left, right) = (&operation.lhs_expr, &operation.rhs_expr);
        let operator = *operation.operator.value();
        match operator {
            BinaryOperator::Eq => Ok(Value::Bool(
                self.eval(left, scope)? == self.eval(right, scope)?,
            )),
            BinaryOperator::NotEq => Ok(Value::Bool(
                self.eval(left, scope)? != self.eval(right, scope)?,
            )),
            BinaryOperator::And => Ok(Value::Bool(
                self.condition(left, scope)? && self.condition(right, scope)?,
            )),
            BinaryOperator::Or => Ok(Value::Bool(
                self.condition(left, scope)? || self.condition(right, scope)?,
            )),
            BinaryOperator::Less
            | BinaryOperator::LessEq
            | BinaryOperator::Greater
            | BinaryOperator::GreaterEq => {
                let (left, right) = (self.number(left, scope)?, self.number(right, scope)?);
                Ok(Value::Bool(compared(operator, &left, &right)))
            }
            BinaryOperator::Plus
            | BinaryOperator::Minus
            | BinaryOperator::Mul
            | BinaryOperator::Div
            | BinaryOperator::Mod => {
                let (first, second) = (self.number(left, scope)?, self.number(right, scope)?);
                if matches!(operator, BinaryOperator::Div | BinaryOperator::Mod)
                    && second.as_f64() == Some(0.0)
                {
                    return Err(JobFileFault::at(span(right), "divides by zero"));
                }
                combined(operator, &first, &second).ok_or_else(|| too_large(left))
            }
        }
    }

    fn number(&self, expression: &Expression, scope: &Scope) -> Result<Number, JobFileFault> {
        let value = self.eval(expression, scope)?;
        convert::number(&value)
            .ok_or_else(|| wrong(expression, "this operator takes numbers", &value))
    }
}

fn compared(operator: BinaryOperator, left: &Number, right: &Number) -> bool {
    let order = match (left.as_i64(), right.as_i64()) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        (_, _) => real(left).partial_cmp(&real(right)),
    };
    order.is_some_and(|order| match operator {
        BinaryOperator::Less => order.is_lt(),
        BinaryOperator::LessEq => order.is_le(),
        BinaryOperator::Greater => order.is_gt(),
        _ => order.is_ge(),
    })
}

/// The result of an arithmetic operator; `None` where it is out of range. Whole numbers stay exact.
fn combined(operator: BinaryOperator, left: &Number, right: &Number) -> Option<Value> {
    if let (Some(left), Some(right)) = (left.as_i64(), right.as_i64()) {
        let exact = match operator {
            BinaryOperator::Plus => left.checked_add(right),
            BinaryOperator::Minus => left.checked_sub(right),
            BinaryOperator::Mul => left.checked_mul(right),
            BinaryOperator::Mod => left.checked_rem(right),
            BinaryOperator::Div if left.checked_rem(right) == Some(0) => left.checked_div(right),
            _ => None,
        };
        if let Some(exact) = exact {
            return Some(Value::from(exact));
        }
    }
    let (left, right) = (real(left), real(right));
    number::value(match operator {
        BinaryOperator::Plus => left + right,
        BinaryOperator::Minus => left - right,
        BinaryOperator::Mul => left * right,
        BinaryOperator::Mod => left % right,
        _ => left / right,
    })
}

fn real(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::NAN)
}

fn too_large(expression: &Expression) -> JobFileFault {
    JobFileFault::at(span(expression), "the result is out of range")
}
