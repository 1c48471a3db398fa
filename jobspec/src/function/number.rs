//! Arithmetic.

use serde_json::Value;

use super::{Args, Function, Outcome, argument, function, whole};
use crate::number;

pub(super) const FUNCTIONS: &[Function] = &[
    function("abs", 1, 1, |args| rounded(args, f64::abs)),
    function("ceil", 1, 1, |args| rounded(args, f64::ceil)),
    function("floor", 1, 1, |args| rounded(args, f64::floor)),
    function("log", 2, 2, |args| answer(args.real(0)?.log(args.real(1)?))),
    function("max", 1, usize::MAX, |args| {
        extreme(args, |next, best| next > best)
    }),
    function("min", 1, usize::MAX, |args| {
        extreme(args, |next, best| next < best)
    }),
    function("parseint", 2, 2, parseint),
    function("pow", 2, 2, |args| {
        answer(args.real(0)?.powf(args.real(1)?))
    }),
    function("signum", 1, 1, |args| {
        let real = args.real(0)?;
        answer(if real == 0.0 { 0.0 } else { real.signum() })
    }),
];

fn answer(real: f64) -> Outcome {
    number::value(real).ok_or_else(|| whole("the result is out of range"))
}

fn rounded(args: &Args<'_>, round: fn(f64) -> f64) -> Outcome {
    answer(round(args.real(0)?))
}

fn extreme(args: &Args<'_>, is_better: fn(f64, f64) -> bool) -> Outcome {
    let mut best = args.real(0)?;
    let mut found = args.number(0)?;
    for at in 1..args.len() {
        let next = args.real(at)?;
        if is_better(next, best) {
            best = next;
            found = args.number(at)?;
        }
    }
    Ok(Value::Number(found))
}

fn parseint(args: &Args<'_>) -> Outcome {
    let text = args.text(0)?;
    let base = u32::try_from(args.whole(1)?)
        .ok()
        .filter(|base| (2..=36).contains(base))
        .ok_or_else(|| argument(1, "the base must be 2 to 36"))?;
    i64::from_str_radix(&text, base)
        .map(Value::from)
        .map_err(|_unparsed| argument(0, format!("`{text}` is no whole number in base {base}")))
}
