//! Steps of the long commands: a line before each with its last duration, and one after it.
//!
//! Durations are kept in `xtask-times.json` of the target folder. They are for information only. An error while the
//! file is read or written is ignored.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::shell;

/// The most steps with a stored duration. It is several times the number of all current steps.
const STEPS_MAX: usize = 100;

/// A lock for reading and writing the file, because steps run concurrently.
static FILE: Mutex<()> = Mutex::new(());

/// Runs `step`. Prints its name with the last duration before it, and its own duration after it. Only the duration of
/// a success is stored, because a failure does not predict the next run.
///
/// # Errors
///
/// The errors of `step`.
pub(crate) fn run<T>(name: &str, step: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let last = read().get(name).copied();
    println!("── {name}{}", format_last_duration(last));
    let started = Instant::now();
    let result = step();
    let duration = started.elapsed();
    let outcome = if result.is_ok() { "done" } else { "FAILED" };
    println!("── {name}: {outcome} in {}", shell::seconds(duration));
    if result.is_ok() {
        store_duration(name, duration);
    }
    result
}

/// Formats the last duration, such as `, 2 m 05 s last time`. It is empty for a step that has not run here before.
fn format_last_duration(last: Option<f64>) -> String {
    last.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .map(|last| format!(", {} last time", shell::seconds(last)))
        .unwrap_or_default()
}

fn file() -> PathBuf {
    shell::target_dir().join("xtask-times.json")
}

/// Reads the durations in seconds by step.
fn read() -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(file()).unwrap_or_default();
    parse(&text)
}

fn parse(text: &str) -> BTreeMap<String, f64> {
    let times: BTreeMap<String, f64> = serde_json::from_str(text).unwrap_or_default();
    times.into_iter().take(STEPS_MAX).collect()
}

fn store_duration(name: &str, duration: Duration) {
    let _guard = FILE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut times = read();
    times.insert(name.to_owned(), duration.as_secs_f64());
    if let Ok(text) = serde_json::to_string_pretty(&times) {
        // Without the file, the next run only lacks the last duration.
        drop(std::fs::write(file(), text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_duration_is_shown() {
        assert_eq!(format_last_duration(Some(125.4)), ", 2 m 05 s last time");
        assert_eq!(format_last_duration(None), "");
        assert_eq!(format_last_duration(Some(-1.0)), "");
    }

    #[test]
    fn broken_file_counts_as_empty() {
        assert_eq!(parse("{\"a\": \"soon\"}"), BTreeMap::new());
        assert_eq!(parse(""), BTreeMap::new());
        assert_eq!(parse("{\"a\": 1.5}").get("a"), Some(&1.5));
    }
}
