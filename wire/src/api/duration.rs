//! Durations as Go writes them: whole nanoseconds in bodies, `1h30m` in queries and job files.

use std::time::Duration;

use muster_domain::saturating;

/// The error for a text that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a duration: write it as 30s, 500ms or 1h30m")]
pub struct ParseDurationError {
    /// The text that was given.
    pub text: String,
}

/// Nanoseconds in each unit. `m` comes after `ms`, so that the longer name is tried first.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
];

/// Parses a duration: numbers, each with a unit, such as `1h30m` or `1.5s`; or plain `0`.
///
/// # Errors
///
/// [`ParseDurationError`] for anything else, a negative one included.
pub fn parse(text: &str) -> Result<Duration, ParseDurationError> {
    let error = || ParseDurationError {
        text: text.chars().take(64).collect(),
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(error)?;
        let number: f64 = rest[..digits].parse().ok().ok_or_else(error)?;
        rest = &rest[digits..];
        let (unit, factor) = UNITS
            .iter()
            .find(|(unit, _)| rest.starts_with(unit))
            .ok_or_else(error)?;
        rest = &rest[unit.len()..];
        nanos += number * factor;
    }
    if text.is_empty() {
        return Err(error());
    }
    Duration::try_from_secs_f64(nanos / 1e9)
        .ok()
        .ok_or_else(error)
}

/// `duration` in whole nanoseconds, saturating at Go's largest value (2^63 - 1).
#[must_use]
pub fn nanos(duration: Duration) -> i64 {
    saturating::to_i64(duration.as_nanos())
}

/// `duration` as text in Go's form: `15s`, `1m30s`, `250ms`.
#[must_use]
pub fn text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds == 0 {
        return match duration.as_nanos() {
            0 => "0s".to_owned(),
            1..=999 => format!("{}ns", duration.as_nanos()),
            1_000..=999_999 => format!("{}µs", trimmed(duration.as_secs_f64() * 1e6)),
            _ => format!("{}ms", trimmed(duration.as_secs_f64() * 1e3)),
        };
    }
    let rest = trimmed((seconds % 60) as f64 + f64::from(duration.subsec_nanos()) / 1e9);
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{rest}s"),
        (0, minutes) => format!("{minutes}m{rest}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}s"),
    }
}

fn trimmed(number: f64) -> String {
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
        assert_eq!(parse("2000ms").unwrap(), Duration::from_secs(2));
        assert_eq!(parse("1h30m").unwrap(), Duration::from_mins(90));
        assert_eq!(parse("1.5s").unwrap(), Duration::from_millis(1500));
        assert_eq!(parse("0").unwrap(), Duration::ZERO);
    }

    #[test]
    fn invalid_durations_are_refused() {
        for text in [
            "",
            "5",
            "-5s",
            "s",
            "5x",
            "1e400h",
            "..s",
            "9999999999999999999999999h",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_print_as_in_go() {
        assert_eq!(text(Duration::from_secs(15)), "15s");
        assert_eq!(text(Duration::from_mins(90)), "1h30m0s");
        assert_eq!(text(Duration::from_millis(1500)), "1.5s");
        assert_eq!(text(Duration::from_millis(250)), "250ms");
        assert_eq!(text(Duration::ZERO), "0s");
    }
}
