//! Durations as Go writes them: `30s`, `1h15m`, `250ms`, `1.5h`.

/// Units and their nanoseconds. Longer names first, so that `ms` is not read as `m`.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3_600e9),
];

/// The nanoseconds that `text` says. `None` if it is no duration, or above 292 years.
#[expect(
    clippy::cast_possible_truncation,
    reason = "checked against the bounds of i64"
)]
pub(super) fn parse(text: &str) -> Option<i64> {
    if text == "0" {
        return Some(0);
    }
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if rest.is_empty() {
        return None;
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let amount: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let (unit, nanoseconds) = UNITS.iter().find(|(unit, _)| {
            rest.starts_with(unit)
                && rest[unit.len()..]
                    .chars()
                    .next()
                    .is_none_or(|c| c.is_ascii_digit() || c == '.')
        })?;
        sum += amount * nanoseconds;
        rest = &rest[unit.len()..];
    }
    if sum > 9.2e18 {
        return None;
    }
    let sum = sum.round() as i64;
    Some(if negative { -sum } else { sum })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn go_durations_are_understood() {
        for (text, nanoseconds) in [
            ("30s", 30_000_000_000),
            ("1h15m", 4_500_000_000_000),
            ("250ms", 250_000_000),
            ("1.5h", 5_400_000_000_000),
            ("0", 0),
            ("-1s", -1_000_000_000),
        ] {
            assert_eq!(parse(text), Some(nanoseconds), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_duration() {
        for text in ["", "5", "s", "1x", "1s!", "ten", "-", "1e3s", "999999999h"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
