//! Points in time, in UTC.

use std::time::Duration;

use muster_wire::api::{duration, time};

use super::{Args, CallFault, Function, Outcome, argument, function, said};

pub(super) const FUNCTIONS: &[Function] = &[
    function("formatdate", 2, 2, formatdate),
    function("timeadd", 2, 2, timeadd),
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
/// 1970-01-01 was a Thursday.
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// The point in time in argument `at`.
fn instant(args: &Args<'_>, at: usize) -> Result<time::Rfc3339, CallFault> {
    let text = args.text(at)?;
    time::parse(&text).map(time::Rfc3339).ok_or_else(|| {
        let message = format!("`{text}` is no time such as 2026-01-31T12:00:00Z, in UTC");
        argument(at, message)
    })
}

fn timeadd(args: &Args<'_>) -> Outcome {
    let start = instant(args, 0)?.0;
    let text = args.text(1)?;
    let (back, length) = match text.strip_prefix('-') {
        Some(length) => (true, length),
        None => (false, text.as_str()),
    };
    let length = duration::parse(length).map_err(|error| argument(1, error.to_string()))?;
    let start = Duration::from_nanos(start.0);
    let end = if back {
        start.checked_sub(length)
    } else {
        start.checked_add(length)
    };
    let nanos = end.and_then(|end| u64::try_from(end.as_nanos()).ok());
    let mut end = instant(args, 0)?.0;
    end.0 = nanos.ok_or_else(|| argument(1, "the result is out of range"))?;
    said(time::text(end))
}

fn formatdate(args: &Args<'_>) -> Outcome {
    let format = args.text(0)?;
    let at = instant(args, 1)?.0;
    let whole = time::text(at);
    let mut written = String::new();
    let mut rest = format.as_str();
    while let Some(first) = rest.chars().next() {
        if first == '\'' {
            let (quoted, after) =
                quoted(&rest[1..]).ok_or_else(|| argument(0, "a quotation does not end"))?;
            written.push_str(&quoted);
            rest = after;
            continue;
        }
        let run = rest.len() - rest.trim_start_matches(first).len();
        let (verb, after) = rest.split_at(run);
        rest = after;
        if first.is_ascii_alphabetic() {
            let day = at.0 / 86_400_000_000_000 % 7;
            let text = part(verb, &whole, usize::try_from(day).unwrap_or(0))
                .ok_or_else(|| argument(0, format!("there is no verb `{verb}`")))?;
            written.push_str(&text);
        } else {
            written.push_str(verb);
        }
    }
    said(written)
}

/// What stands up to the closing quote, where two quotes are one, and what is after it.
fn quoted(text: &str) -> Option<(String, &str)> {
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

/// One verb of a format, from `2026-01-31T12:00:00Z` and the day of the week.
fn part(verb: &str, whole: &str, week_day: usize) -> Option<String> {
    let plain = |two: &str| two.trim_start_matches('0').to_owned();
    let number = |two: &str| two.parse::<usize>().ok();
    let or_zero = |two: &str| number(two).map(|number| number.to_string());
    let (year, month, day) = (whole.get(..4)?, whole.get(5..7)?, whole.get(8..10)?);
    let (hour, minute, second) = (whole.get(11..13)?, whole.get(14..16)?, whole.get(17..19)?);
    let month_name = *MONTHS.get(number(month)?.checked_sub(1)?)?;
    let day_name = *DAYS.get(week_day)?;
    let half = match number(hour)? % 12 {
        0 => 12,
        hour => hour,
    };
    let is_morning = number(hour)? < 12;
    Some(match verb {
        "YYYY" => year.to_owned(),
        "YY" => year.get(2..)?.to_owned(),
        "MMMM" => month_name.to_owned(),
        "MMM" => month_name.get(..3)?.to_owned(),
        "MM" => month.to_owned(),
        "M" => plain(month),
        "DD" => day.to_owned(),
        "D" => plain(day),
        "EEEE" => day_name.to_owned(),
        "EEE" => day_name.get(..3)?.to_owned(),
        "hh" => hour.to_owned(),
        "h" => or_zero(hour)?,
        "HH" => format!("{half:02}"),
        "H" => half.to_string(),
        "AA" => if is_morning { "AM" } else { "PM" }.to_owned(),
        "aa" => if is_morning { "am" } else { "pm" }.to_owned(),
        "mm" => minute.to_owned(),
        "m" => or_zero(minute)?,
        "ss" => second.to_owned(),
        "s" => or_zero(second)?,
        "ZZZZZ" => "+00:00".to_owned(),
        "ZZZZ" => "+0000".to_owned(),
        "ZZZ" => "UTC".to_owned(),
        "Z" => "Z".to_owned(),
        _ => return None,
    })
}
