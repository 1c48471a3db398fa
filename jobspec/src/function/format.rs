//! `format` and `formatlist`: texts with verbs, as in Go.

use unicode_segmentation::UnicodeSegmentation as _;

use super::call::{
    Args, CallFault, Function, Outcome, Param, argument, text_answer, variadic, whole,
};
use super::encoding::to_json;
use crate::convert;
use crate::limits::WIDTH_MAX;
use crate::number::Number;
use crate::quote::quoted;
use crate::value::{Type, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    variadic("format", &[Param::Text], Param::Nullable, |args| {
        text_answer(filled(args.text(0)?, &args.values[1..])?)
    }),
    variadic("formatlist", &[Param::Text], Param::Nullable, formatlist),
];

/// A verb of a format, such as `%-08.3[2]f`.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag that Go has")]
#[derive(Debug, Default)]
struct Verb {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
    /// The explicit argument index of the verb, from 1.
    index: Option<usize>,
    kind: char,
}

/// Formats as many texts as the longest list has elements. Values that are not lists are repeated.
fn formatlist(args: &Args<'_>) -> Outcome {
    let format = args.text(0)?;
    let mut count = None;
    for (at, value) in args.values.iter().enumerate().skip(1) {
        if let Some(items) = value.items()
            && *count.get_or_insert(items.len()) != items.len()
        {
            return Err(argument(at, "all lists must be of the same length"));
        }
    }
    let mut texts = Vec::new();
    for row in 0..count.unwrap_or(1) {
        let values: Vec<Value> = args.values[1..]
            .iter()
            .map(|value| match value.items() {
                Some(items) => items.get(row).cloned().unwrap_or(Value::NULL),
                None => value.clone(),
            })
            .collect();
        texts.push(Value::text(filled(format, &values)?));
    }
    Ok(Value::List(Type::Text, texts))
}

/// `format` with its verbs filled in from `values`.
fn filled(format: &str, values: &[Value]) -> Result<String, CallFault> {
    let mut text = String::new();
    let mut rest = format;
    let mut next = 1;
    let mut used = 0;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            text.push('%');
            rest = after;
            continue;
        }
        let (verb, after) = Verb::parse(rest)?;
        rest = after;
        let index = verb.index.unwrap_or(next);
        let value = values.get(index - 1).ok_or_else(|| {
            let message = format!("`%{}` has no argument: it is number {index}", verb.kind);
            argument(0, message)
        })?;
        next = index + 1;
        used = used.max(index);
        let written = verb
            .write(value)
            .map_err(|message| argument(index, message))?;
        text.push_str(&written);
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

/// The digits that `text` begins with, as a number that is too large rather than wrong.
fn digits(text: &str) -> (Option<usize>, &str) {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &text[..text.len() - rest.len()];
    if digits.is_empty() {
        return (None, rest);
    }
    let number = digits.bytes().fold(0_usize, |number, digit| {
        let digit = usize::from(digit - b'0');
        number.saturating_mul(10).saturating_add(digit)
    });
    (Some(number), rest)
}

impl Verb {
    /// The verb that `text` begins with, and the text after it.
    fn parse(text: &str) -> Result<(Self, &str), CallFault> {
        let mut verb = Self::default();
        let flags = text.len() - text.trim_start_matches(['0', '#', '-', '+', ' ']).len();
        let (flags, mut rest) = text.split_at(flags);
        for flag in flags.chars() {
            match flag {
                '0' => verb.zero = true,
                '#' => verb.sharp = true,
                '-' => verb.minus = true,
                '+' => verb.plus = true,
                _ => verb.space = true,
            }
        }
        (verb.width, rest) = digits(rest);
        if let Some(after) = rest.strip_prefix('.') {
            let (precision, after) = digits(after);
            verb.precision = Some(precision.unwrap_or(0));
            rest = after;
        }
        if let Some(after) = rest.strip_prefix('[') {
            let (index, after) = digits(after);
            verb.index = index.filter(|index| *index > 0);
            rest = match (verb.index, after.strip_prefix(']')) {
                (Some(_), Some(after)) if !rest.starts_with("[0") => after,
                (_, _) => {
                    return Err(argument(
                        0,
                        "an argument's number is from 1 and in brackets: %[1]s",
                    ));
                }
            };
        }
        let mut chars = rest.chars();
        let Some(kind) = chars.next().filter(char::is_ascii_alphabetic) else {
            let message = "a verb ends with a letter; write %% for a percent sign";
            return Err(argument(0, message));
        };
        verb.kind = kind;
        if verb.width.max(verb.precision) > Some(WIDTH_MAX) {
            return Err(argument(0, format!("at most {WIDTH_MAX} columns")));
        }
        Ok((verb, chars.as_str()))
    }

    fn write(&self, value: &Value) -> Result<String, String> {
        let wrong =
            |wanted: &str| format!("`%{}` takes {wanted}, not {}", self.kind, value.describe());
        let number = || convert::number(value).ok_or_else(|| wrong("a number"));
        if self.kind != 'v' && value.is_null() {
            return Err(wrong("a value"));
        }
        match self.kind {
            'v' => match value {
                Value::Text(text) if !self.sharp => Ok(self.padded(text.clone())),
                Value::Number(number) if !self.sharp => Ok(self.padded(number.general(None))),
                _ => Ok(self.padded(to_json(value)?)),
            },
            's' | 'q' => {
                let text = convert::text(value).ok_or_else(|| wrong("a text"))?;
                let most = self.precision.filter(|most| *most > 0);
                let text = match most {
                    Some(most) => text.graphemes(true).take(most).collect(),
                    None => text,
                };
                Ok(self.padded(if self.kind == 'q' {
                    quoted(&text)
                } else {
                    text
                }))
            }
            't' => {
                let yes = convert::boolean(value).ok_or_else(|| wrong("a boolean"))?;
                Ok(yes.to_string())
            }
            'b' | 'd' | 'o' | 'x' | 'X' => {
                let number = number()?;
                if !number.is_whole() {
                    return Err(wrong("a whole number"));
                }
                Ok(self.integer(&number))
            }
            'e' | 'E' => Ok(self.real(number()?.exponential(self.precision.or(Some(6))))),
            'f' => Ok(self.real(number()?.fixed(self.precision.or(Some(6))))),
            'g' | 'G' => Ok(self.real(number()?.general(self.precision))),
            other => Err(format!("unknown verb `%{other}`")),
        }
    }

    fn sign(&self, is_negative: bool) -> &'static str {
        match (is_negative, self.plus, self.space) {
            (true, _, _) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            (false, false, false) => "",
        }
    }

    fn integer(&self, number: &Number) -> String {
        let size = number.truncated().unwrap_or_default();
        let (base, prefix) = match self.kind {
            'b' => (2, "0b"),
            'o' => (8, "0"),
            'x' => (16, "0x"),
            'X' => (16, "0X"),
            _ => (10, ""),
        };
        let mut digits = size.to_str_radix(base);
        if self.kind == 'X' {
            digits = digits.to_uppercase();
        }
        if self.precision == Some(0) && digits == "0" {
            return String::new();
        }
        let sign = self.sign(number.is_negative());
        let prefix = if self.sharp { prefix } else { "" };
        let mut zeros = self.precision.unwrap_or(0).saturating_sub(digits.len());
        let length = sign.len() + prefix.len() + zeros + digits.len();
        let missing = self.width.unwrap_or(0).saturating_sub(length);
        let (mut left, mut right) = (0, 0);
        if self.minus {
            right = missing;
        } else if self.zero && self.precision.is_none() {
            zeros = missing;
        } else {
            left = missing;
        }
        let (left, right, zeros) = (" ".repeat(left), " ".repeat(right), "0".repeat(zeros));
        format!("{left}{sign}{prefix}{zeros}{digits}{right}")
    }

    /// `text`, the digits of a number, with its sign and padding.
    fn real(&self, text: String) -> String {
        let text = if self.kind.is_ascii_uppercase() {
            text.replace('e', "E")
        } else {
            text
        };
        let is_infinite = text.ends_with("Inf");
        let digits = text.trim_start_matches(['-', '+']);
        let sign = if is_infinite && !text.starts_with('-') {
            if self.space { " " } else { "+" }
        } else {
            self.sign(text.starts_with('-'))
        };
        let length = sign.len() + digits.len();
        let missing = self.width.unwrap_or(0).saturating_sub(length);
        if self.minus {
            format!("{sign}{digits}{}", " ".repeat(missing))
        } else if self.zero && !is_infinite {
            format!("{sign}{}{digits}", "0".repeat(missing))
        } else {
            format!("{}{sign}{digits}", " ".repeat(missing))
        }
    }

    fn padded(&self, text: String) -> String {
        let count = text.graphemes(true).count();
        let missing = self.width.unwrap_or(0).saturating_sub(count);
        let padding = if self.zero { "0" } else { " " }.repeat(missing);
        if self.minus {
            text + &padding
        } else {
            padding + &text
        }
    }
}
