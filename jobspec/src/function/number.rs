//! Arithmetic.

use num_bigint::BigUint;

use super::call::{
    Args, CallFault, Function, Outcome, Param, argument, function, number_answer, variadic, whole,
};
use crate::limits::NUMBER_TEXT_BYTES_MAX;
use crate::number::Number;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    function("abs", &[Param::Number], |args| {
        number_answer(Some(args.number(0)?.absolute()))
    }),
    function("ceil", &[Param::Number], |args| {
        number_answer(args.number(0)?.ceil())
    }),
    function("floor", &[Param::Number], |args| {
        number_answer(args.number(0)?.floor())
    }),
    function("log", &[Param::Number, Param::Number], |args| {
        let (number, base) = (double(args, 0)?, double(args, 1)?);
        number_answer(Number::double(number.ln() / base.ln()))
    }),
    variadic("max", &[], Param::Number, |args| {
        extreme(args, std::cmp::Ordering::Greater)
    }),
    variadic("min", &[], Param::Number, |args| {
        extreme(args, std::cmp::Ordering::Less)
    }),
    function("parseint", &[Param::Any, Param::Number], parseint),
    function("pow", &[Param::Number, Param::Number], |args| {
        number_answer(Number::double(double(args, 0)?.powf(double(args, 1)?)))
    }),
    function("signum", &[Param::Number], |args| {
        let number = args.number(0)?;
        let sign = if number.is_zero() {
            0
        } else if number.is_negative() {
            -1
        } else {
            1
        };
        number_answer(Some(Number::integer(sign)))
    }),
];

/// Converts a number to a float of 64 bits. A number out of range is a fault.
fn double(args: &Args<'_>, at: usize) -> Result<f64, CallFault> {
    let number = args.number(at)?;
    let real = number.to_double();
    if real.is_infinite() && !number.is_infinite() {
        return Err(args.wrong(at, "a smaller number"));
    }
    Ok(real)
}

fn extreme(args: &Args<'_>, better: std::cmp::Ordering) -> Outcome {
    if args.len() == 0 {
        return Err(whole("takes at least 1 argument"));
    }
    let mut best = args.number(0)?;
    for at in 1..args.len() {
        let next = args.number(at)?;
        if next.order(best) == better {
            best = next;
        }
    }
    number_answer(Some(best.clone()))
}

fn parseint(args: &Args<'_>) -> Outcome {
    let text = args.text(0)?;
    let base = args.whole(1)?;
    let base = u32::try_from(base)
        .ok()
        .filter(|base| (2..=62).contains(base))
        .ok_or_else(|| argument(1, "the base must be 2 to 62"))?;
    if text.len() > NUMBER_TEXT_BYTES_MAX {
        let message = format!("a number has at most {NUMBER_TEXT_BYTES_MAX} digits");
        return Err(argument(0, message));
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut whole = BigUint::ZERO;
    let digit = |c: char| match c {
        '0'..='9' => c.to_digit(10),
        'a'..='z' => Some(u32::from(c) - u32::from('a') + 10),
        // Up to 36 both cases are the same digits.
        'A'..='Z' if base <= 36 => Some(u32::from(c) - u32::from('A') + 10),
        'A'..='Z' => Some(u32::from(c) - u32::from('A') + 36),
        _ => None,
    };
    for c in digits.chars() {
        let Some(digit) = digit(c).filter(|digit| *digit < base) else {
            return Err(argument(
                0,
                format!("`{text}` is not a whole number in base {base}"),
            ));
        };
        whole = whole * base + digit;
    }
    if digits.is_empty() {
        return Err(argument(
            0,
            format!("`{text}` is not a whole number in base {base}"),
        ));
    }
    let is_negative = text.starts_with('-') && whole.bits() > 0;
    number_answer(Number::big(is_negative, whole))
}

/// The sum of a list of numbers.
pub(super) fn sum(args: &Args<'_>) -> Outcome {
    let mut total = Number::integer(0);
    for item in args.items(0)? {
        let number = crate::convert::number(item);
        let number = number.ok_or_else(|| args.wrong(0, "a list of numbers"))?;
        total = total
            .plus(&number)
            .ok_or_else(|| whole("the result is out of range"))?;
    }
    Ok(Value::Number(total))
}
