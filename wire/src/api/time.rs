//! Points in time as RFC 3339 texts, in UTC with nanoseconds.

use muster_domain::id::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time that is written as RFC 3339, such as `2026-11-20T13:14:24.081248046Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rfc3339(pub Timestamp);

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text(self.0))
    }
}

impl<'de> Deserialize<'de> for Rfc3339 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = String::deserialize(deserializer)?;
        parse(&read).map(Self).ok_or_else(|| {
            serde::de::Error::custom(format!("`{read}` is not a time in RFC 3339, UTC"))
        })
    }
}

/// `at` as RFC 3339. Trailing zeros of the fraction are dropped, as Go does.
#[must_use]
pub fn text(at: Timestamp) -> String {
    let (seconds, nanos) = (at.0 / 1_000_000_000, at.0 % 1_000_000_000);
    let (year, month, day) = civil_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if nanos > 0 {
        let fraction = format!(".{nanos:09}");
        text.push_str(fraction.trim_end_matches('0'));
    }
    text.push('Z');
    text
}

/// `nanos` since the epoch as RFC 3339 with three digits of the second, so that times in a column align.
#[must_use]
pub fn millis(nanos: u64) -> String {
    let whole = text(Timestamp(nanos - nanos % 1_000_000_000));
    let seconds = whole.strip_suffix('Z').unwrap_or(&whole);
    format!("{seconds}.{:03}Z", nanos % 1_000_000_000 / 1_000_000)
}

/// Parses a time in UTC (`Z`) from 1970 on. `None` for anything else.
#[must_use]
pub fn parse(text: &str) -> Option<Timestamp> {
    let text = text.strip_suffix('Z')?;
    let (date, clock) = text.split_once('T')?;
    let [year, month, day] = numbers(date, '-')?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let [hour, minute, second] = numbers(clock, ':')?;
    if !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    let seconds = days(year, month, day)?
        .checked_mul(86_400)?
        .checked_add(hour * 3600 + minute * 60 + second)?;
    Some(Timestamp(
        seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?,
    ))
}

fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let mut parts = text.split(separator).map(|part| part.parse::<u64>().ok());
    let three = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(three)
}

/// Year, month and day of a day counted from 1970-01-01 in the proleptic Gregorian calendar.
///
/// Years are counted from 1 March, so that the leap day is the last of its year; an era is the 400 years
/// (146 097 days) after which the calendar repeats.
fn civil_date(day: u64) -> (u64, u64, u64) {
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// The inverse of [`civil_date`]; `None` before 1970.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 {
        year.checked_sub(1)?
    } else {
        year
    };
    let (era, year_of_era) = (year / 400, year % 400);
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    (era.checked_mul(146_097)? + of_era).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_time_reads_back() {
        for recorded in [
            "1970-01-01T00:00:00Z",
            "2000-02-29T23:59:59Z",
            "2026-11-20T13:14:24.081248046Z",
            "2100-03-01T00:00:00.5Z",
        ] {
            assert_eq!(text(parse(recorded).unwrap()), recorded);
        }
        assert_eq!(
            parse("2026-11-20T13:14:24.025Z").unwrap(),
            Timestamp(1_795_180_464_025_000_000)
        );
    }

    #[test]
    fn every_day_of_five_centuries_reads_back() {
        for day in 0..(500 * 366) {
            let at = Timestamp(day * 86_400_000_000_000);
            assert_eq!(parse(&text(at)), Some(at));
        }
    }

    #[test]
    fn invalid_times_are_refused() {
        for text in [
            "",
            "Z",
            "2026-11-20",
            "2026-13-20T00:00:00Z",
            "2026-11-20T00:00:00.x5Z",
            "1969-12-31T23:59:59Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
