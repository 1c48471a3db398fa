//! Numbers as HCL has them: one kind, whole or not.

use serde_json::{Number, Value};

/// Above this a float does not tell neighbouring whole numbers apart: 2^53.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// `real` as a value, whole if it is; `None` if it is not finite.
pub(super) fn value(real: f64) -> Option<Value> {
    if real.fract() == 0.0 && real.abs() <= EXACT_MAX {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "it is whole and below 2^53"
        )]
        return Some(Value::from(real as i64));
    }
    Number::from_f64(real).map(Value::Number)
}

/// `number`, whole if it is: HCL knows no difference between 2 and 2.0.
pub(super) fn normal(number: &Number) -> Value {
    match number.as_f64() {
        Some(real) if number.is_f64() => {
            value(real).unwrap_or_else(|| Value::Number(number.clone()))
        }
        Some(_) | None => Value::Number(number.clone()),
    }
}

/// `number` in digits, never with an exponent.
pub(super) fn text(number: &Number) -> String {
    match number.as_f64() {
        Some(real) if number.is_f64() => format!("{real}"),
        Some(_) | None => number.to_string(),
    }
}

/// The number that `text` is.
pub(super) fn parse(text: &str) -> Option<Value> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(Value::from(whole));
    }
    if let Ok(whole) = text.parse::<u64>() {
        return Some(Value::from(whole));
    }
    // Words such as `inf` are numbers to the parser and to nobody else.
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.');
    text.parse::<f64>()
        .ok()
        .filter(|_| is_number)
        .and_then(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_floats_are_whole_numbers() {
        assert_eq!(value(2.0), Some(Value::from(2)));
        assert_eq!(value(2.5), Some(Value::from(2.5)));
        assert_eq!(value(f64::NAN), None);
        assert_eq!(parse("1e3"), Some(Value::from(1000)));
        assert_eq!(parse("inf"), None);
        assert_eq!(parse("abc"), None);
    }

    #[test]
    fn texts_of_numbers_have_no_exponent() {
        let large = Number::from_f64(1e21).unwrap();

        assert_eq!(text(&large), "1000000000000000000000");
        assert_eq!(text(&Number::from_f64(1.5).unwrap()), "1.5");
    }
}
