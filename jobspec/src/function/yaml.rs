//! YAML, with the types of go-cty-yaml: plain scalars become numbers, booleans and null.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use chrono::{NaiveDate, NaiveTime};
use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use super::call::{Args, CallFault, Function, Outcome, Param, argument, function, text_answer};
use crate::limits::{VALUE_DEPTH_MAX, YAML_VALUES_MAX};
use crate::number::Number;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    function("yamldecode", &[Param::Text], yamldecode),
    function("yamlencode", &[Param::Nullable], |args| {
        let mut text = String::new();
        write(&mut text, args.value(0), 0, Position::Start)?;
        text_answer(text)
    }),
];

const TAG_PREFIX: &str = "tag:yaml.org,2002:";

fn yamldecode(args: &Args<'_>) -> Outcome {
    let text = args.text(0)?;
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        left: YAML_VALUES_MAX,
    };
    reader
        .document()
        .map_err(|message| argument(0, format!("not YAML: {message}")))
}

struct Reader<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: HashMap<usize, Value>,
    /// Values that may still be read.
    left: usize,
}

type YamlResult<T> = Result<T, String>;

impl<'a> Reader<'a> {
    fn next(&mut self) -> YamlResult<Event<'a>> {
        match self.events.next_event() {
            Some(Ok((event, _place))) => Ok(event),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("the text ends early".to_owned()),
        }
    }

    fn document(&mut self) -> YamlResult<Value> {
        let mut found = None;
        loop {
            match self.next()? {
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                Event::DocumentStart(_) if found.is_some() => {
                    return Err("only one document is allowed".to_owned());
                }
                Event::DocumentStart(_) => {
                    let event = self.next()?;
                    found = Some(self.value(event, 0)?);
                }
                Event::StreamEnd => return found.ok_or_else(|| "the text is empty".to_owned()),
                _ => return Err("unexpected content".to_owned()),
            }
        }
    }

    fn count(&mut self, values: usize) -> YamlResult<()> {
        self.left = self
            .left
            .checked_sub(values)
            .ok_or_else(|| format!("more than {YAML_VALUES_MAX} values"))?;
        Ok(())
    }

    fn value(&mut self, event: Event<'a>, depth: usize) -> YamlResult<Value> {
        if depth > VALUE_DEPTH_MAX {
            return Err(format!("nested deeper than {VALUE_DEPTH_MAX}"));
        }
        self.count(1)?;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (scalar(&text, style, tag.as_deref())?, anchor)
            }
            Event::SequenceStart(anchor, _tag) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => break,
                        event => items.push(self.value(event, depth + 1)?),
                    }
                }
                (Value::Tuple(items), anchor)
            }
            Event::MappingStart(anchor, _tag) => (self.mapping(depth)?, anchor),
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                let value = known.ok_or("an alias without an anchor")?;
                self.count(value.weight() / crate::limits::VALUE_BYTES)?;
                (value, 0)
            }
            _ => return Err("unexpected content".to_owned()),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn mapping(&mut self, depth: usize) -> YamlResult<Value> {
        let mut entries = BTreeMap::new();
        let mut merged = BTreeMap::new();
        loop {
            let event = match self.next()? {
                Event::MappingEnd => break,
                event => event,
            };
            let is_merge = matches!(
                &event,
                Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<"
            );
            let key = self.value(event, depth + 1)?;
            let event = self.next()?;
            let value = self.value(event, depth + 1)?;
            if is_merge {
                let sources = value
                    .items()
                    .map_or_else(|| vec![value.clone()], <[Value]>::to_vec);
                for source in sources {
                    let Some(more) = source.entries() else {
                        return Err("`<<` takes a mapping".to_owned());
                    };
                    for (name, value) in more {
                        merged.entry(name.clone()).or_insert_with(|| value.clone());
                    }
                }
                continue;
            }
            let name = crate::convert::text(&key).ok_or("a key must be a scalar")?;
            entries.insert(name, value);
        }
        for (name, value) in merged {
            entries.entry(name).or_insert(value);
        }
        Ok(Value::Object(entries))
    }
}

/// The value of a scalar: plain scalars are resolved, others are texts.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> YamlResult<Value> {
    let tag = tag.map(|tag| format!("{}{}", tag.handle, tag.suffix));
    let is_quoted = matches!(style, ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted);
    let resolved = match tag.as_deref().map(|tag| tag.strip_prefix(TAG_PREFIX)) {
        None if is_quoted => None,
        None => plain(text)?,
        Some(Some("str" | "binary")) => None,
        Some(Some("int" | "float")) => {
            let digits = text.replace('_', "");
            let number = Number::parse(&digits).or_else(|| prefixed(&digits));
            let number = number.ok_or_else(|| format!("`{text}` is not a number"))?;
            Some(Value::Number(number))
        }
        Some(Some("bool")) => match plain(text)? {
            Some(Value::Bool(yes)) => Some(Value::Bool(yes)),
            _ => return Err(format!("`{text}` is not a boolean")),
        },
        Some(Some("null")) => Some(Value::NULL),
        Some(Some("timestamp")) => {
            let time = timestamp(text).ok_or_else(|| format!("`{text}` is not a time"))?;
            Some(Value::text(time))
        }
        Some(_) => return Err(format!("unsupported tag `{}`", tag.unwrap_or_default())),
    };
    Ok(resolved.unwrap_or_else(|| Value::text(text)))
}

/// The value of a plain scalar; `None` is a text.
fn plain(text: &str) -> YamlResult<Option<Value>> {
    Ok(Some(match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        "" | "~" | "null" | "Null" | "NULL" => Value::NULL,
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "-.inf" => {
            return Err("only finite numbers are supported".to_owned());
        }
        _ => {
            let is_number = text.starts_with(|c: char| matches!(c, '+' | '-' | '.' | '0'..='9'))
                && !text.contains(['p', 'P', 'I', 'i']);
            match Number::parse(text).or_else(|| prefixed(text)) {
                Some(number) if is_number => Value::Number(number),
                _ => return Ok(timestamp(text).map(Value::text)),
            }
        }
    }))
}

/// `0x1f` or `0o17`.
fn prefixed(text: &str) -> Option<Number> {
    let number = match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(digits), _) => u64::from_str_radix(digits, 16),
        (None, Some(digits)) => u64::from_str_radix(digits, 8),
        (None, None) => return None,
    };
    number.ok().map(Number::unsigned)
}

/// The time that `text` is, as RFC 3339 in whole seconds: `2020-1-2`, `2020-1-2 3:04:05` or `2020-01-02T03:04:05.5Z`.
fn timestamp(text: &str) -> Option<String> {
    let (date, rest) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some((&text[at..=at], &text[at + 1..]))),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let year = parts.next().filter(|year| year.len() == 4)?;
    let (year, month, day) = (
        number(year)?,
        parse_two_digits(parts.next()?)?,
        parse_two_digits(parts.next()?)?,
    );
    let date = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day)?;
    if parts.next().is_some() {
        return None;
    }
    let Some((separator, rest)) = rest else {
        return Some(format!("{date}T00:00:00Z"));
    };
    let (time, zone) = if separator == " " {
        (rest, "Z")
    } else {
        let at = rest.find(['Z', '+', '-'])?;
        rest.split_at(at)
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    number(fraction)?;
    let mut parts = time.split(':');
    let (hour, minute) = (
        parse_two_digits(parts.next()?)?,
        parse_two_digits(parts.next()?)?,
    );
    let time = NaiveTime::from_hms_opt(hour, minute, parse_two_digits(parts.next()?)?)?;
    let zone = match zone {
        "Z" | "+00:00" | "-00:00" => "Z",
        zone => {
            let (hours, minutes) = zone[1..].split_once(':')?;
            let is_part =
                |part: &str, max| part.len() == 2 && number(part).is_some_and(|it| it <= max);
            (is_part(hours, 24) && is_part(minutes, 60)).then_some(zone)?
        }
    };
    let is_over = parts.next().is_some();
    (!is_over).then(|| format!("{date}T{time}{zone}"))
}

/// Parses one or two digits.
fn parse_two_digits(text: &str) -> Option<u32> {
    number(text).filter(|_| text.len() <= 2)
}

fn number(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The place of a value in its document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Start,
    AfterKey,
    AfterDash,
}

/// Adds `value` in block style, its lines indented by `indent` columns.
fn write(
    text: &mut String,
    value: &Value,
    indent: usize,
    position: Position,
) -> Result<(), CallFault> {
    let space = if position == Position::Start { "" } else { " " };
    let scalar = match value {
        Value::Null(_) => "null".to_owned(),
        Value::Bool(yes) => yes.to_string(),
        Value::Number(number) if number.is_infinite() => {
            return Err(argument(0, "infinite numbers are not supported"));
        }
        Value::Number(number) => number.text(),
        Value::Text(found) => yaml_text(found, indent),
        Value::List(_, items) | Value::Set(_, items) | Value::Tuple(items) => {
            return write_list(text, items, indent, position);
        }
        Value::Map(_, entries) | Value::Object(entries) => {
            return write_map(text, entries, indent, position);
        }
    };
    text.push_str(space);
    text.push_str(&scalar);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    // The end of a document that is one plain scalar is marked.
    if position == Position::Start && !matches!(value, Value::Text(_)) {
        text.push_str("...\n");
    }
    Ok(())
}

/// `text` in double quotes, or as a block if it has several lines.
fn yaml_text(text: &str, indent: usize) -> String {
    let is_printable = |c: char| !c.is_control() || c == '\n';
    let is_block = text.contains('\n')
        && text.chars().all(is_printable)
        && !text.starts_with([' ', '\n'])
        && !text.contains(" \n")
        && !text.ends_with(' ');
    if is_block {
        let body = text.strip_suffix('\n');
        let chomp = match body {
            None => "-",
            Some(body) if body.ends_with('\n') => "+",
            Some(_) => "",
        };
        let pad = " ".repeat(indent.max(2));
        let mut block = format!("|{chomp}\n");
        for line in body.unwrap_or(text).split('\n') {
            if !line.is_empty() {
                block.push_str(&pad);
            }
            block.push_str(line);
            block.push('\n');
        }
        return block;
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => {
                let _infallible = write!(quoted, "\\x{:02X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

fn write_list(
    text: &mut String,
    items: &[Value],
    indent: usize,
    position: Position,
) -> Result<(), CallFault> {
    if items.is_empty() {
        text.push_str(if position == Position::Start {
            "[]\n"
        } else {
            " []\n"
        });
        return Ok(());
    }
    // A list below a key has the indentation of the key.
    let indent = match position {
        Position::AfterKey => indent.saturating_sub(2),
        Position::Start | Position::AfterDash => indent,
    };
    let mut is_first = position == Position::AfterDash;
    if position == Position::AfterKey {
        text.push('\n');
    }
    for item in items {
        if is_first {
            text.push(' ');
        } else {
            text.push_str(&" ".repeat(indent));
        }
        is_first = false;
        text.push('-');
        write(text, item, indent + 2, Position::AfterDash)?;
    }
    Ok(())
}

fn write_map(
    text: &mut String,
    entries: &BTreeMap<String, Value>,
    indent: usize,
    position: Position,
) -> Result<(), CallFault> {
    if entries.is_empty() {
        text.push_str(if position == Position::Start {
            "{}\n"
        } else {
            " {}\n"
        });
        return Ok(());
    }
    let mut is_first = position == Position::AfterDash;
    if position == Position::AfterKey {
        text.push('\n');
    }
    for (name, value) in entries {
        if is_first {
            text.push(' ');
        } else {
            text.push_str(&" ".repeat(indent));
        }
        is_first = false;
        let key = yaml_text(&name.replace('\n', " "), 0);
        text.push_str(&key);
        text.push(':');
        write(text, value, indent + 2, Position::AfterKey)?;
    }
    Ok(())
}
