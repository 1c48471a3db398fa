//! Texts.

use muster_domain::pattern::Pattern;
use muster_domain::saturating;
use muster_wire::limits::JOB_FILE_BYTES_MAX;
use unicode_segmentation::UnicodeSegmentation as _;

use super::call::{
    Args, CallFault, Function, Outcome, Param, argument, function, text_answer, variadic, whole,
};
use crate::limits::{WIDTH_MAX, WORK_BYTES_MAX};
use crate::value::Value;

const TEXT: Param = Param::Text;

pub(super) const FUNCTIONS: &[Function] = &[
    function("chomp", &[TEXT], |args| {
        text_answer(without_newlines(args.text(0)?))
    }),
    function("endswith", &[TEXT, TEXT], |args| {
        Ok(Value::Bool(args.text(0)?.ends_with(args.text(1)?)))
    }),
    function("indent", &[Param::Number, TEXT], indent),
    variadic("join", &[TEXT], Param::Texts, join),
    function("lower", &[TEXT], |args| {
        let lower = args.text(0)?.chars().map(|c| single(c, c.to_lowercase()));
        text_answer(lower.collect::<String>())
    }),
    function("regex_replace", &[TEXT, TEXT, TEXT], regex_replace),
    function("replace", &[TEXT, TEXT, TEXT], replace),
    function("reverse", &[Param::Any], |args| match args.value(0) {
        Value::List(..) | Value::Set(..) | Value::Tuple(_) => super::collection::reversed(args),
        value => match crate::convert::text(value) {
            Some(text) => text_answer(reversed(&text)),
            None => Err(args.wrong(0, "a text or a list")),
        },
    }),
    function("split", &[TEXT, TEXT], split),
    function("startswith", &[TEXT, TEXT], |args| {
        Ok(Value::Bool(args.text(0)?.starts_with(args.text(1)?)))
    }),
    function("strcontains", &[TEXT, TEXT], |args| {
        Ok(Value::Bool(args.text(0)?.contains(args.text(1)?)))
    }),
    function("strlen", &[TEXT], |args| {
        Ok(Value::count(args.text(0)?.graphemes(true).count()))
    }),
    function("strrev", &[TEXT], |args| {
        text_answer(reversed(args.text(0)?))
    }),
    function("substr", &[TEXT, Param::Number, Param::Number], substr),
    function("title", &[TEXT], title),
    function("trim", &[TEXT, TEXT], |args| {
        let cut: Vec<char> = args.text(1)?.chars().collect();
        text_answer(args.text(0)?.trim_matches(cut.as_slice()))
    }),
    function("trimprefix", &[TEXT, TEXT], |args| {
        let text = args.text(0)?;
        text_answer(text.strip_prefix(args.text(1)?).unwrap_or(text))
    }),
    function("trimspace", &[TEXT], |args| {
        text_answer(args.text(0)?.trim())
    }),
    function("trimsuffix", &[TEXT, TEXT], |args| {
        let text = args.text(0)?;
        text_answer(text.strip_suffix(args.text(1)?).unwrap_or(text))
    }),
    function("upper", &[TEXT], |args| {
        let upper = args.text(0)?.chars().map(upper);
        text_answer(upper.collect::<String>())
    }),
];

/// A character with one in the other case, or itself if that has several: Go maps each to one.
fn single(c: char, mut mapped: impl Iterator<Item = char>) -> char {
    match (mapped.next(), mapped.next()) {
        (Some(mapped), None) => mapped,
        // `İ` is the only letter whose simple lowercase mapping differs from the full one.
        (Some(first), Some(_)) if c == '\u{130}' => first,
        (_, _) => c,
    }
}

/// The single-character uppercase of `c`. Some letters have it only in Unicode's simple mapping.
fn upper(c: char) -> char {
    let simple = match u32::from(c) {
        code @ (0x1f80..=0x1f87 | 0x1f90..=0x1f97 | 0x1fa0..=0x1fa7) => Some(code + 8),
        code @ (0x1fb3 | 0x1fc3 | 0x1ff3) => Some(code + 9),
        _ => None,
    };
    simple
        .and_then(char::from_u32)
        .unwrap_or_else(|| single(c, c.to_uppercase()))
}

fn without_newlines(text: &str) -> &str {
    let mut text = text;
    loop {
        let cut = text
            .strip_suffix("\r\n")
            .or_else(|| text.strip_suffix('\n'))
            .or_else(|| text.strip_suffix('\r'));
        match cut {
            Some(cut) => text = cut,
            None => return text,
        }
    }
}

fn reversed(text: &str) -> String {
    text.graphemes(true).rev().collect()
}

/// Refuses a text longer than the limit of a job file, before it is created.
fn check_text_length(bytes: Option<usize>) -> Result<(), CallFault> {
    match bytes {
        Some(bytes) if bytes <= JOB_FILE_BYTES_MAX => Ok(()),
        Some(_) | None => Err(whole(format!(
            "the result is longer than {JOB_FILE_BYTES_MAX} bytes"
        ))),
    }
}

fn indent(args: &Args<'_>) -> Outcome {
    let (width, text) = (args.count(0)?, args.text(1)?);
    if width > WIDTH_MAX {
        return Err(argument(0, format!("at most {WIDTH_MAX} columns")));
    }
    let lines = text.matches('\n').count();
    check_text_length(
        lines
            .checked_mul(width)
            .and_then(|more| more.checked_add(text.len())),
    )?;
    text_answer(text.replace('\n', &format!("\n{}", " ".repeat(width))))
}

fn join(args: &Args<'_>) -> Outcome {
    let separator = args.text(0)?;
    if args.len() < 2 {
        return Err(whole("takes at least one list"));
    }
    let mut texts = Vec::new();
    for at in 1..args.len() {
        texts.extend(args.texts(at)?);
    }
    let length: usize = texts.iter().map(|text| text.len()).sum();
    let between = separator.len().checked_mul(texts.len());
    check_text_length(between.and_then(|between| between.checked_add(length)))?;
    text_answer(texts.join(separator))
}

fn pattern(args: &Args<'_>, at: usize) -> Result<Pattern, CallFault> {
    Pattern::new(args.text(at)?)
        .map_err(|error| argument(at, format!("not a regular expression: {error}")))
}

fn regex_replace(args: &Args<'_>) -> Outcome {
    let (text, with) = (args.text(0)?, args.text(2)?);
    let pattern = pattern(args, 1)?;
    // A replacement may repeat the match, which is the whole text at most.
    let found = pattern.regex().find_iter(text).count();
    let most = with.len().saturating_mul(found.saturating_add(text.len()));
    if most > WORK_BYTES_MAX {
        return Err(whole("the result may be too long"));
    }
    text_answer(pattern.regex().replace_all(text, with))
}

fn replace(args: &Args<'_>) -> Outcome {
    let (text, part, with) = (args.text(0)?, args.text(1)?, args.text(2)?);
    let found = text.matches(part).count();
    let more = found.checked_mul(with.len());
    check_text_length(more.and_then(|more| more.checked_add(text.len())))?;
    text_answer(text.replace(part, with))
}

fn split(args: &Args<'_>) -> Outcome {
    let (separator, text) = (args.text(0)?, args.text(1)?);
    let parts: Vec<String> = if separator.is_empty() {
        text.chars().map(String::from).collect()
    } else {
        text.split(separator).map(str::to_owned).collect()
    };
    Ok(Value::texts(parts))
}

fn substr(args: &Args<'_>) -> Outcome {
    let text = args.text(0)?;
    let (mut offset, length) = (args.whole(1)?, args.whole(2)?);
    if offset < 0 {
        let count = saturating::to_i64(text.graphemes(true).count());
        offset = offset.saturating_add(count);
    } else if length == 0 {
        return text_answer("");
    }
    let start = usize::try_from(offset).unwrap_or(0);
    let rest = text.graphemes(true).skip(start);
    // A negative length is the rest, and so is 0 after a negative offset.
    text_answer(match usize::try_from(length) {
        Err(_) | Ok(0) => rest.collect::<String>(),
        Ok(length) => rest.take(length).collect(),
    })
}

/// Capitalizes each word.
fn title(args: &Args<'_>) -> Outcome {
    let mut in_word = false;
    let mut titled = String::new();
    for c in args.text(0)?.chars() {
        titled.push(if in_word { c } else { title_case(c) });
        in_word = !is_separator(c);
    }
    text_answer(titled)
}

/// The title case of the first letter of a word. Digraphs such as `ǆ` have a title case of their own.
fn title_case(c: char) -> char {
    match c {
        '\u{1c4}'..='\u{1c6}' => '\u{1c5}',
        '\u{1c7}'..='\u{1c9}' => '\u{1c8}',
        '\u{1ca}'..='\u{1cc}' => '\u{1cb}',
        '\u{1f1}'..='\u{1f3}' => '\u{1f2}',
        // Georgian has no capitals in titles.
        '\u{10d0}'..='\u{10fa}' | '\u{10fd}'..='\u{10ff}' => c,
        _ => upper(c),
    }
}

fn is_separator(c: char) -> bool {
    if c.is_ascii() {
        return !(c.is_ascii_alphanumeric() || c == '_');
    }
    !c.is_alphanumeric() && c.is_whitespace()
}
