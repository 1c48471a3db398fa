//! `format` and `formatlist`: texts with verbs, as Go has them.

use serde_json::Value;

use super::{Args, CallFault, Function, Outcome, argument, function, said, whole};
use crate::convert::{self, describe};
use crate::limits::WIDTH_MAX;

pub(super) const FUNCTIONS: &[Function] = &[
    function("format", 1, usize::MAX, |args| {
        said(filled(&args.text(0)?, &args.values[1..])?)
    }),
    function("formatlist", 1, usize::MAX, formatlist),
];

/// One verb: `%-08.3f`.
#[derive(Debug, Default)]
struct Verb {
    /// The argument that it names, from 1.
    index: Option<usize>,
    /// Any of `-+#0` and a space.
    flags: Vec<char>,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

/// As many texts as the longest list has elements; what is no list is the same in all.
fn formatlist(args: &Args<'_>) -> Outcome {
    let format = args.text(0)?;
    let lists = args.values[1..].iter().enumerate();
    let lists = lists.filter_map(|(at, value)| Some((at + 1, value.as_array()?.len())));
    let mut count = None;
    for (at, length) in lists {
        if *count.get_or_insert(length) != length {
            return Err(argument(at, "all lists must be of the same length"));
        }
    }
    let mut texts = Vec::new();
    for row in 0..count.unwrap_or(1) {
        let values: Vec<Value> = args.values[1..]
            .iter()
            .map(|value| match value {
                Value::Array(items) => items.get(row).cloned().unwrap_or_default(),
                other => other.clone(),
            })
            .collect();
        texts.push(Value::String(filled(&format, &values)?));
    }
    Ok(Value::Array(texts))
}

/// `format` with its verbs filled in from `values`.
fn filled(format: &str, values: &[Value]) -> Result<String, CallFault> {
    let mut text = String::new();
    let mut rest = format;
    let mut next = 0;
    let mut used = 0;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        let (verb, after) = Verb::parse(&rest[at + 1..])?;
        rest = after;
        if verb.kind == '%' {
            text.push('%');
            continue;
        }
        let at = match verb.index {
            Some(0) => return Err(argument(0, "arguments are counted from 1")),
            Some(index) => index - 1,
            None => next,
        };
        let value = values.get(at).ok_or_else(|| {
            argument(
                0,
                format!("`%{}` has no argument: it is number {}", verb.kind, at + 1),
            )
        })?;
        next = at + 1;
        used = used.max(next);
        text.push_str(
            &verb
                .write(value)
                .map_err(|message| argument(at + 1, message))?,
        );
    }
    if used < values.len() {
        let message = format!(
            "{} arguments, of which the format uses {used}",
            values.len()
        );
        return Err(whole(message));
    }
    text.push_str(rest);
    Ok(text)
}

impl Verb {
    /// The verb that `text` begins with, and what is after it.
    fn parse(text: &str) -> Result<(Self, &str), CallFault> {
        let mut verb = Self::default();
        let mut rest = text;
        loop {
            let Some(c) = rest.chars().next() else {
                return Err(argument(
                    0,
                    "the format ends inside a verb; write %% for a percent sign",
                ));
            };
            let after = &rest[c.len_utf8()..];
            match c {
                flag @ ('-' | '+' | ' ' | '#' | '0') => {
                    if !verb.has(flag) {
                        verb.flags.push(flag);
                    }
                }
                '[' => {
                    let (index, after) = number(after);
                    verb.index = Some(index);
                    rest = after
                        .strip_prefix(']')
                        .ok_or_else(|| argument(0, "an argument's number ends with `]`"))?;
                    continue;
                }
                '1'..='9' => {
                    (verb.width, rest) = number(rest);
                    continue;
                }
                '.' => {
                    let (precision, after) = number(after);
                    verb.precision = Some(precision);
                    rest = after;
                    continue;
                }
                kind => {
                    verb.kind = kind;
                    if verb.width > WIDTH_MAX || verb.precision > Some(WIDTH_MAX) {
                        let message = format!("at most {WIDTH_MAX} columns");
                        return Err(argument(0, message));
                    }
                    return Ok((verb, after));
                }
            }
            rest = after;
        }
    }

    fn has(&self, flag: char) -> bool {
        self.flags.contains(&flag)
    }

    fn write(&self, value: &Value) -> Result<String, String> {
        let wrong =
            |wanted: &str| format!("`%{}` takes {wanted}, not {}", self.kind, describe(value));
        let real = || {
            convert::number(value)
                .and_then(|number| number.as_f64())
                .ok_or_else(|| wrong("a number"))
        };
        let whole = || {
            convert::number(value)
                .and_then(|number| number.as_i64())
                .ok_or_else(|| wrong("a whole number"))
        };
        let text = match self.kind {
            'v' if !self.has('#') => match convert::text(value) {
                Some(text) if !value.is_number() => text,
                Some(text) => self.signed(text),
                None => value.to_string(),
            },
            'v' => value.to_string(),
            's' | 'q' => {
                let text = convert::text(value).ok_or_else(|| wrong("a text"))?;
                let most = self.precision.unwrap_or(usize::MAX);
                let text: String = text.chars().take(most).collect();
                if self.kind == 'q' {
                    Value::String(text).to_string()
                } else {
                    text
                }
            }
            't' => convert::boolean(value)
                .ok_or_else(|| wrong("a boolean"))?
                .to_string(),
            'd' => self.signed(whole()?.to_string()),
            'b' => self.signed(in_base(whole()?, |n| format!("{n:b}"))),
            'o' => self.signed(in_base(whole()?, |n| format!("{n:o}"))),
            'x' => self.signed(in_base(whole()?, |n| format!("{n:x}"))),
            'X' => self.signed(in_base(whole()?, |n| format!("{n:X}"))),
            'f' | 'F' => {
                let precision = self.precision.unwrap_or(6);
                self.signed(format!("{:.precision$}", real()?))
            }
            'e' | 'E' => {
                let text = exponential(real()?, self.precision.unwrap_or(6));
                self.signed(if self.kind == 'E' {
                    text.to_uppercase()
                } else {
                    text
                })
            }
            'g' | 'G' => self.signed(convert::text(&Value::from(real()?)).unwrap_or_default()),
            other => return Err(format!("there is no verb `%{other}`")),
        };
        Ok(self.padded(text))
    }

    fn signed(&self, text: String) -> String {
        match (text.starts_with('-'), self.has('+'), self.has(' ')) {
            (false, true, _) => format!("+{text}"),
            (false, false, true) => format!(" {text}"),
            (_, _, _) => text,
        }
    }

    fn padded(&self, text: String) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        if missing == 0 {
            text
        } else if self.has('-') {
            text + &" ".repeat(missing)
        } else if self.has('0') {
            let digits = text.trim_start_matches(['-', '+', ' ']);
            let sign = &text[..text.len() - digits.len()];
            format!("{sign}{}{digits}", "0".repeat(missing))
        } else {
            " ".repeat(missing) + &text
        }
    }
}

/// The digits that `text` begins with, as a number that is too large rather than wrong.
fn number(text: &str) -> (usize, &str) {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &text[..text.len() - rest.len()];
    if digits.is_empty() {
        return (0, rest);
    }
    (digits.parse().unwrap_or(usize::MAX), rest)
}

fn in_base(number: i64, digits: fn(u64) -> String) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", digits(number.unsigned_abs()))
}

/// `1.5e+00`: an exponent of at least two digits, with its sign.
fn exponential(real: f64, precision: usize) -> String {
    let text = format!("{real:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}
