//! Output of commands: tables for people, JSON for programs.

use std::fmt::Debug;
use std::io::Write as _;
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

use crate::exit::CliError;

/// A table without borders, with columns as wide as their contents. The header is also printed to pipes.
#[must_use]
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Prints `table`, without blanks at the ends of lines.
///
/// # Errors
///
/// If standard output is closed.
pub fn print_table(table: &Table) -> Result<(), CliError> {
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    print(&text)
}

/// Prints `value` as JSON.
///
/// # Errors
///
/// If standard output is closed.
pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| CliError::new(crate::exit::Exit::Failed, error.to_string()))?;
    print(&format!("{text}\n"))
}

/// Prints `text` unchanged.
///
/// # Errors
///
/// If standard output is closed.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints a message on standard error, for humans rather than programs.
pub fn eprint(text: &str) {
    // A write error is ignored: standard error may be closed, and the command continues.
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// Prints a server's warnings, one a line, on standard error.
pub fn warn(warnings: &str) {
    for line in warnings.lines() {
        eprint(&format!("warning: {}", clean(line)));
    }
}

/// `text` without control characters, so that nothing a task or a job file wrote moves the cursor.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// A count with its noun: `1 job`, `2 jobs`.
///
/// # Panics
///
/// If the count is negative or has more than 64 bits.
#[must_use]
pub fn count_with_noun(count: impl TryInto<u64, Error: Debug>, noun: &str) -> String {
    let count: u64 = count.try_into().expect("a count fits in 64 bits");
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// The part of an id that people quote.
#[must_use]
pub fn short_id(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

/// Bytes in human-readable form.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut amount = bytes as f64;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{amount:.1} {}", UNITS[unit])
    }
}

/// A duration in human-readable form.
#[must_use]
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.is_zero() => "0 s".to_owned(),
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3_600 => format!("{} m {:02} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {:02} m", seconds / 3_600, seconds % 3_600 / 60),
        86_400.. => format!("{} d {:02} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// The time since `at` (nanoseconds since the epoch).
#[must_use]
pub fn time_since(at: u64) -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    format!("{} ago", span(now.saturating_sub(Duration::from_nanos(at))))
}

/// The time until `at` (nanoseconds since the epoch).
#[must_use]
pub fn time_until(at: u64) -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    match Duration::from_nanos(at).checked_sub(now) {
        Some(left) => format!("in {}", span(left)),
        None => "now".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_readable() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
        assert_eq!(span(Duration::from_secs(75)), "1 m 15 s");
        assert_eq!(span(Duration::from_millis(12)), "12 ms");
    }

    #[test]
    fn short_id_is_shown_unabbreviated() {
        assert_eq!(short_id("68e42f3f-db89"), "68e42f3f");
        assert_eq!(short_id("68e"), "68e");
        assert_eq!(short_id("ééééé"), "éééé");
    }

    #[test]
    fn escape_sequences_are_defused() {
        assert_eq!(clean("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
    }
}
