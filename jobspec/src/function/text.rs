//! Texts.

use muster_wire::limits::JOB_FILE_BYTES_MAX;
use serde_json::Value;

use super::{Args, Function, Outcome, argument, function, said, whole};
use crate::limits::{WIDTH_MAX, WORK_BYTES_MAX};

pub(super) const FUNCTIONS: &[Function] = &[
    function("chomp", 1, 1, |args| {
        said(args.text(0)?.trim_end_matches(['\r', '\n']))
    }),
    function("endswith", 2, 2, |args| {
        Ok(Value::Bool(args.text(0)?.ends_with(&args.text(1)?)))
    }),
    function("indent", 2, 2, indent),
    function("join", 2, usize::MAX, join),
    function("lower", 1, 1, |args| said(args.text(0)?.to_lowercase())),
    function("regex_replace", 3, 3, regex_replace),
    function("replace", 3, 3, replace),
    function("split", 2, 2, split),
    function("startswith", 2, 2, |args| {
        Ok(Value::Bool(args.text(0)?.starts_with(&args.text(1)?)))
    }),
    function("strcontains", 2, 2, |args| {
        Ok(Value::Bool(args.text(0)?.contains(&args.text(1)?)))
    }),
    function("strlen", 1, 1, |args| {
        Ok(Value::from(args.text(0)?.chars().count()))
    }),
    function("strrev", 1, 1, |args| {
        said(args.text(0)?.chars().rev().collect::<String>())
    }),
    function("substr", 3, 3, substr),
    function("title", 1, 1, title),
    function("trim", 2, 2, |args| {
        let cut: Vec<char> = args.text(1)?.chars().collect();
        said(args.text(0)?.trim_matches(cut.as_slice()))
    }),
    function("trimprefix", 2, 2, |args| {
        let text = args.text(0)?;
        said(text.strip_prefix(&args.text(1)?).unwrap_or(&text))
    }),
    function("trimspace", 1, 1, |args| said(args.text(0)?.trim())),
    function("trimsuffix", 2, 2, |args| {
        let text = args.text(0)?;
        said(text.strip_suffix(&args.text(1)?).unwrap_or(&text))
    }),
    function("upper", 1, 1, |args| said(args.text(0)?.to_uppercase())),
];

/// Refuses a text that would be longer than a job file may be, before it is made.
fn bounded(bytes: Option<usize>) -> Result<(), super::CallFault> {
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
    bounded(
        lines
            .checked_mul(width)
            .and_then(|more| more.checked_add(text.len())),
    )?;
    said(text.replace('\n', &format!("\n{}", " ".repeat(width))))
}

fn join(args: &Args<'_>) -> Outcome {
    let separator = args.text(0)?;
    let mut texts = Vec::new();
    for at in 1..args.len() {
        texts.extend(args.texts(at)?);
    }
    let length: usize = texts.iter().map(String::len).sum();
    let between = separator.len().checked_mul(texts.len());
    bounded(between.and_then(|between| between.checked_add(length)))?;
    said(texts.join(&separator))
}

fn regex_replace(args: &Args<'_>) -> Outcome {
    let (text, pattern, with) = (args.text(0)?, args.text(1)?, args.text(2)?);
    let pattern = regex_lite::Regex::new(&pattern)
        .map_err(|error| argument(1, format!("is no regular expression: {error}")))?;
    // A replacement may repeat what was found, which is the whole text at most.
    let found = pattern.find_iter(&text).count();
    let most = with.len().saturating_mul(found.saturating_add(text.len()));
    if most > WORK_BYTES_MAX {
        return Err(whole("the result may be too long"));
    }
    said(pattern.replace_all(&text, with.as_str()))
}

fn replace(args: &Args<'_>) -> Outcome {
    let (text, part, with) = (args.text(0)?, args.text(1)?, args.text(2)?);
    let found = text.matches(&part).count();
    let more = found.checked_mul(with.len());
    bounded(more.and_then(|more| more.checked_add(text.len())))?;
    said(text.replace(&part, &with))
}

fn split(args: &Args<'_>) -> Outcome {
    let (separator, text) = (args.text(0)?, args.text(1)?);
    let parts: Vec<Value> = if separator.is_empty() {
        text.chars().map(|c| Value::String(c.to_string())).collect()
    } else {
        text.split(&separator).map(Value::from).collect()
    };
    Ok(Value::Array(parts))
}

fn substr(args: &Args<'_>) -> Outcome {
    let text = args.text(0)?;
    let (offset, length) = (args.whole(1)?, args.whole(2)?);
    let count = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let start = if offset < 0 {
        (count + offset.max(-count)).max(0)
    } else {
        offset
    };
    let start = usize::try_from(start).unwrap_or(usize::MAX);
    // A negative length is the rest.
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    said(text.chars().skip(start).take(length).collect::<String>())
}

/// Each word with a capital.
fn title(args: &Args<'_>) -> Outcome {
    let mut in_word = false;
    let mut titled = String::new();
    for c in args.text(0)?.chars() {
        if in_word {
            titled.push(c);
        } else {
            titled.extend(c.to_uppercase());
        }
        in_word = c.is_alphanumeric() || c == '_';
    }
    said(titled)
}
