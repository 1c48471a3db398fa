//! Points in time, with their offsets.

use chrono::{DateTime, Datelike as _, FixedOffset, SecondsFormat, TimeDelta, Timelike as _};
use muster_domain::saturating;

use super::call::{Args, CallFault, Function, Outcome, Param, argument, function, text_answer};

pub(super) const FUNCTIONS: &[Function] = &[
    function("formatdate", &[Param::Text, Param::Text], formatdate),
    function("timeadd", &[Param::Text, Param::Text], timeadd),
];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
/// Units of durations, in nanoseconds.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The point in time in argument `at`, in the strict form of RFC 3339.
fn instant(args: &Args<'_>, at: usize) -> Result<DateTime<FixedOffset>, CallFault> {
    let text = args.text(at)?;
    let bytes = text.as_bytes();
    let is_strict = bytes.get(10) == Some(&b'T')
        && bytes.get(17..19) != Some(b"60")
        && !text.contains([' ', ',', 'z', 't'])
        && text.is_ascii();
    DateTime::parse_from_rfc3339(text)
        .ok()
        .filter(|_| is_strict)
        .ok_or_else(|| {
            let message = format!("`{text}` is not a time such as 2026-01-31T12:00:00Z");
            argument(at, message)
        })
}

fn timeadd(args: &Args<'_>) -> Outcome {
    let start = instant(args, 0)?;
    let text = args.text(1)?;
    let nanos = duration(text).ok_or_else(|| {
        argument(
            1,
            format!("`{text}` is not a duration such as -1h30m or 1.5s"),
        )
    })?;
    let end = start
        .checked_add_signed(TimeDelta::nanoseconds(nanos))
        .filter(|end| (0..=9_999).contains(&end.year()))
        .ok_or_else(|| argument(1, "the result is out of range"))?;
    text_answer(end.to_rfc3339_opts(SecondsFormat::Secs, true))
}

/// The nanoseconds that `text` is, as Go reads a duration.
fn duration(text: &str) -> Option<i64> {
    let is_negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = |text: &str| {
            text.find(|c: char| !c.is_ascii_digit())
                .unwrap_or(text.len())
        };
        let (whole, after) = rest.split_at(digits(rest));
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(digits(after)),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit());
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
        rest = after;
        let whole: u64 = if whole.is_empty() {
            0
        } else {
            whole.parse().ok()?
        };
        total = total.checked_add(whole.checked_mul(*nanos)?)?;
        total = total.checked_add(part_of(fraction, *nanos))?;
    }
    if is_negative {
        0_i64.checked_sub_unsigned(total)
    } else {
        i64::try_from(total).ok()
    }
}

/// The decimal fraction with the digits `fraction` of `unit`, cut to a whole number.
fn part_of(fraction: &str, unit: u64) -> u64 {
    let (mut part, mut scale) = (0_u128, 1_u128);
    for digit in fraction.bytes().take(18) {
        part = part * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    saturating::to_u64(part * u128::from(unit) / scale)
}

fn formatdate(args: &Args<'_>) -> Outcome {
    let format = args.text(0)?;
    let at = instant(args, 1)?;
    let mut written = String::new();
    let mut rest = format;
    while let Some(first) = rest.chars().next() {
        if first == '\'' {
            let (quoted, after) =
                quoted(&rest[1..]).ok_or_else(|| argument(0, "a quotation does not end"))?;
            written.push_str(&quoted);
            rest = after;
            continue;
        }
        if !first.is_ascii_alphabetic() {
            written.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let run = rest.len() - rest.trim_start_matches(first).len();
        let (verb, after) = rest.split_at(run);
        rest = after;
        let part = part(verb, &at).ok_or_else(|| argument(0, format!("unknown verb `{verb}`")))?;
        written.push_str(&part);
    }
    text_answer(written)
}

/// The text up to the closing quote and the text after it. Two quotes stand for one.
fn quoted(text: &str) -> Option<(String, &str)> {
    // Two quotes outside of a quotation are one.
    if let Some(rest) = text.strip_prefix('\'') {
        return Some(("'".to_owned(), rest));
    }
    let mut quoted = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('\'')?;
        quoted.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('\'') {
            Some(after) => {
                quoted.push('\'');
                rest = after;
            }
            None => return Some((quoted, rest)),
        }
    }
}

/// Formats one verb.
fn part(verb: &str, at: &DateTime<FixedOffset>) -> Option<String> {
    let (hour, minute, second) = (at.hour(), at.minute(), at.second());
    let (month, day) = (at.month(), at.day());
    let month_name = *MONTHS.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    let week_day = at.weekday().num_days_from_sunday();
    let day_name = *DAYS.get(usize::try_from(week_day).ok()?)?;
    let half = if hour % 12 == 0 { 12 } else { hour % 12 };
    let is_morning = hour < 12;
    let offset = |separator: &str| {
        let minutes = at.offset().local_minus_utc() / 60;
        let sign = if minutes < 0 { '-' } else { '+' };
        let minutes = minutes.abs();
        format!("{sign}{:02}{separator}{:02}", minutes / 60, minutes % 60)
    };
    let is_utc = at.offset().local_minus_utc() == 0;
    Some(match verb {
        "YYYY" => format!("{:04}", at.year()),
        "YY" => format!("{:02}", at.year() % 100),
        "MMMM" => month_name.to_owned(),
        "MMM" => month_name.get(..3)?.to_owned(),
        "MM" => format!("{month:02}"),
        "M" => month.to_string(),
        "DD" => format!("{day:02}"),
        "D" => day.to_string(),
        "EEEE" => day_name.to_owned(),
        "EEE" => day_name.get(..3)?.to_owned(),
        "hh" => format!("{hour:02}"),
        "h" => hour.to_string(),
        "HH" => format!("{half:02}"),
        "H" => half.to_string(),
        "AA" => if is_morning { "AM" } else { "PM" }.to_owned(),
        "aa" => if is_morning { "am" } else { "pm" }.to_owned(),
        "mm" => format!("{minute:02}"),
        "m" => minute.to_string(),
        "ss" => format!("{second:02}"),
        "s" => second.to_string(),
        "ZZZ" if is_utc => "UTC".to_owned(),
        "ZZZZ" | "ZZZ" => offset(""),
        "Z" if is_utc => "Z".to_owned(),
        "ZZZZZ" | "Z" => offset(":"),
        _ => return None,
    })
}
