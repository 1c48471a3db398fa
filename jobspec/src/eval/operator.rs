//! Operators.

use std::cmp::Ordering;

use super::{Evaluator, Outcome, span, wrong};
use crate::convert;
use crate::fault::JobFileFault;
use crate::number::Number;
use crate::scope::Scope;
use crate::syntax::{BinaryOperator, Expression};
use crate::value::Value;

impl Evaluator {
    pub(super) fn not(&self, operand: &Expression, scope: &Scope) -> Outcome {
        self.condition(operand, scope)
            .map(|holds| Value::Bool(!holds))
    }

    pub(super) fn negated(&self, operand: &Expression, scope: &Scope) -> Outcome {
        let value = self.eval(operand, scope)?;
        Ok(Value::Number(number(operand, &value)?.negated()))
    }

    /// Operators of one precedence, from left to right.
    pub(super) fn binary(
        &self,
        first: &Expression,
        rest: &[(BinaryOperator, Expression)],
        scope: &Scope,
    ) -> Outcome {
        let mut left = self.eval(first, scope);
        let mut place = first;
        for (operator, right) in rest {
            let value = self.eval(right, scope);
            left = combined(*operator, (left, place), (value, right));
            place = right;
        }
        left
    }
}

type Operand<'a> = (Outcome, &'a Expression);

fn combined(operator: BinaryOperator, left: Operand<'_>, right: Operand<'_>) -> Outcome {
    match operator {
        BinaryOperator::And => logical(left, right, false),
        BinaryOperator::Or => logical(left, right, true),
        BinaryOperator::Equal => Ok(Value::Bool(left.0?.equals(&right.0?))),
        BinaryOperator::NotEqual => Ok(Value::Bool(!left.0?.equals(&right.0?))),
        _ => {
            let (first, second) = (number(left.1, &left.0?)?, number(right.1, &right.0?)?);
            let order = first.order(&second);
            let result = match operator {
                BinaryOperator::Less => return Ok(Value::Bool(order == Ordering::Less)),
                BinaryOperator::LessEqual => return Ok(Value::Bool(order != Ordering::Greater)),
                BinaryOperator::Greater => return Ok(Value::Bool(order == Ordering::Greater)),
                BinaryOperator::GreaterEqual => return Ok(Value::Bool(order != Ordering::Less)),
                BinaryOperator::Plus => first.plus(&second),
                BinaryOperator::Minus => first.minus(&second),
                BinaryOperator::Times => first.times(&second),
                BinaryOperator::Divide => first.divided(&second),
                _ => first.modulo(&second),
            };
            let place = span(left.1).start..span(right.1).end;
            result
                .map(Value::Number)
                .ok_or_else(|| JobFileFault::at(place, "the result is undefined or out of range"))
        }
    }
}

/// `&&` and `||`. If one operand decides the result, a fault of the other operand is ignored.
fn logical(left: Operand<'_>, right: Operand<'_>, decides: bool) -> Outcome {
    let read = |(outcome, place): Operand<'_>| -> Result<Option<bool>, JobFileFault> {
        match outcome {
            Ok(Value::Null(_)) => Ok(None),
            Ok(value) => convert::boolean(&value)
                .map(Some)
                .ok_or_else(|| wrong(place, "this operator takes true or false", &value)),
            Err(fault) => Err(fault),
        }
    };
    let is_fault = |operand: &Operand<'_>| operand.0.is_err();
    let (left_failed, right_failed) = (is_fault(&left), is_fault(&right));
    let (left_place, right_place) = (left.1, right.1);
    let (left, right) = (read(left), read(right));
    // A value of the wrong type is always a fault, even if the other operand failed.
    for (outcome, failed) in [(&left, left_failed), (&right, right_failed)] {
        if let (Err(fault), false) = (outcome, failed) {
            return Err(fault.clone());
        }
    }
    if left == Ok(Some(decides)) || right == Ok(Some(decides)) {
        return Ok(Value::Bool(decides));
    }
    let null = |place| JobFileFault::at(span(place), "this operator takes true or false, not null");
    let left = left?.ok_or_else(|| null(left_place))?;
    let right = right?.ok_or_else(|| null(right_place))?;
    Ok(Value::Bool(if decides {
        left || right
    } else {
        left && right
    }))
}

fn number(expression: &Expression, value: &Value) -> Result<Number, JobFileFault> {
    convert::number(value).ok_or_else(|| wrong(expression, "this operator takes numbers", value))
}
