//! Reads a task's result file. Only here does the driver read a file that a task wrote.
//!
//! The task chose the path and may have changed every part of it. The file is opened beneath one of the task's own
//! directories, which no link can leave. The open does not block, and only a regular file is read.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use muster_driver::TaskConfig;
use thiserror::Error;

use crate::config::{IsolationLevel, NativeConfig};
use crate::isolation::{UPPER_LAYER, task_dir};
use crate::paths::{self, PathError};

/// The beginning of a result file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResultText {
    pub(crate) text: String,
    pub(crate) truncated: bool,
}

/// The reason why there is no result.
#[derive(Debug, Error)]
pub(crate) enum ReadResultError {
    #[error(
        "is in none of the task's directories /home/vcap, /app, /tmp, /var/tmp, /local, /alloc and /secrets"
    )]
    Elsewhere,
    #[error("is a directory")]
    Directory,
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("read it")]
    Io(#[from] std::io::Error),
}

/// Reads the first `bytes_max` bytes of the result file of `config`.
pub(crate) fn read(
    config: &TaskConfig,
    native: &NativeConfig,
    bytes_max: usize,
) -> Result<ResultText, ReadResultError> {
    let (dir, rest) = locate(config, native).ok_or(ReadResultError::Elsewhere)?;
    if rest.as_os_str().is_empty() {
        return Err(ReadResultError::Directory);
    }
    let mut bytes = Vec::new();
    paths::open_beneath(&dir, &rest)?
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(truncate_text(&bytes, bytes_max))
}

/// Returns the host's directory that contains the file, and the path below that directory.
fn locate(config: &TaskConfig, native: &NativeConfig) -> Option<(PathBuf, PathBuf)> {
    let named = Path::new(&native.result_file);
    let task_dir = task_dir(config);
    if native.isolation == IsolationLevel::Raw {
        let task_dir = task_dir?;
        let path = task_dir
            .join(native.work_dir.as_deref().unwrap_or_default())
            .join(named);
        let rest = path.strip_prefix(&task_dir).ok()?.to_owned();
        return Some((task_dir, rest));
    }
    let path = Path::new("/local")
        .join(native.work_dir.as_deref().unwrap_or_default())
        .join(named);
    let mut parts = path.strip_prefix("/").ok()?.components();
    let Some(Component::Normal(first)) = parts.next() else {
        return None;
    };
    let dir = match first.to_str()? {
        name @ ("local" | "tmp" | "secrets") => task_dir?.join(name),
        "alloc" if !config.alloc_dir.as_os_str().is_empty() => config.alloc_dir.join("alloc"),
        _ => return locate_in_root(&path, &task_dir?, native),
    };
    Some((dir, parts.as_path().to_owned()))
}

/// Returns the same for a file in a directory for Diego's clients, or anywhere in a root of the task's own. The task's
/// writes to such a root are in the upper layer.
fn locate_in_root(
    path: &Path,
    task_dir: &Path,
    native: &NativeConfig,
) -> Option<(PathBuf, PathBuf)> {
    if native.root.is_some() {
        let rest = path.strip_prefix("/").ok()?;
        return Some((task_dir.join(UPPER_LAYER), rest.to_owned()));
    }
    // In a root made of the host's directories, `/var/tmp` is a link to `/tmp`.
    if let Ok(rest) = path.strip_prefix("/var/tmp") {
        return Some((task_dir.join("tmp"), rest.to_owned()));
    }
    let mut dirs = native.client_dirs().iter();
    dirs.find_map(|(name, target)| {
        let rest = path.strip_prefix(target).ok()?;
        Some((task_dir.join(name), rest.to_owned()))
    })
}

/// Cuts the text to at most `bytes_max` bytes of whole characters.
fn truncate_text(bytes: &[u8], bytes_max: usize) -> ResultText {
    let mut truncated = bytes.len() > bytes_max;
    let mut kept = &bytes[..bytes.len().min(bytes_max)];
    if truncated
        && let Err(error) = str::from_utf8(kept)
        && error.error_len().is_none()
    {
        // The cut split a character.
        kept = &kept[..error.valid_up_to()];
    }
    // The replacement of an invalid byte has three bytes.
    let mut text = String::from_utf8_lossy(kept).into_owned();
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        truncated = true;
    }
    ResultText { text, truncated }
}

#[cfg(test)]
mod tests {
    use muster_domain::one_off::RESULT_BYTES_MAX;

    use super::*;

    #[test]
    fn results_are_cut_between_characters() {
        let long = "x".repeat(RESULT_BYTES_MAX - 1);
        let cases = [
            (long.clone(), long.len(), false),
            (format!("{long}é"), long.len(), true),
            (format!("{long}yz"), RESULT_BYTES_MAX, true),
        ];
        for (text, kept, truncated) in cases {
            let found = truncate_text(text.as_bytes(), RESULT_BYTES_MAX);
            assert_eq!((found.text.len(), found.truncated), (kept, truncated));
            assert!(text.starts_with(&found.text));
        }
    }

    #[test]
    fn operator_bounds_the_result() {
        let text = "x".repeat(60_000);
        let found = truncate_text(text.as_bytes(), 50 << 10);

        assert_eq!((found.text.len(), found.truncated), (50 << 10, true));
        assert!(!truncate_text(&text.as_bytes()[..50 << 10], 50 << 10).truncated);
    }

    #[test]
    fn invalid_utf8_does_not_lengthen_result() {
        let found = truncate_text(&[0xff; RESULT_BYTES_MAX], RESULT_BYTES_MAX);

        assert!(found.text.len() <= RESULT_BYTES_MAX && found.truncated);
        assert!(found.text.chars().all(|c| c == char::REPLACEMENT_CHARACTER));
        assert_eq!(
            truncate_text(b"a\xffb", RESULT_BYTES_MAX).text,
            "a\u{fffd}b"
        );
    }

    #[test]
    fn places_are_those_that_the_task_sees() {
        let config = TaskConfig {
            task_dir: "/h/a/t".into(),
            alloc_dir: "/h/a".into(),
            ..TaskConfig::default()
        };
        let at = |file: &str| {
            let native = NativeConfig {
                result_file: file.to_owned(),
                ..NativeConfig::default()
            };
            locate(&config, &native)
                .map(|(dir, rest)| format!("{} {}", dir.display(), rest.display()))
        };

        assert_eq!(at("r").unwrap(), "/h/a/t/local r");
        assert_eq!(at("/tmp/a/r").unwrap(), "/h/a/t/tmp a/r");
        assert_eq!(at("/alloc/r").unwrap(), "/h/a/alloc r");
        assert_eq!(at("/secrets/r").unwrap(), "/h/a/t/secrets r");
        assert_eq!(at("/etc/passwd"), None);
        assert_eq!(at("/home/vcap/r"), None);
        assert_eq!(at("/local/../../x").unwrap(), "/h/a/t/local ../../x");
    }

    #[test]
    fn result_is_found_where_one_off_tasks_write() {
        let config = TaskConfig {
            task_dir: "/h/a/t".into(),
            ..TaskConfig::default()
        };
        let run = r#"{"run": {"path": "x", "user": "u"}}"#;
        let at = |file: &str, root: Option<&str>| {
            let mut native = NativeConfig::read(&serde_json::json!({"actions": run})).unwrap();
            native.result_file = file.to_owned();
            native.root = root.map(str::to_owned);
            locate(&config, &native)
                .map(|(dir, rest)| format!("{} {}", dir.display(), rest.display()))
        };

        assert_eq!(at("/home/vcap/r", None).unwrap(), "/h/a/t/home r");
        assert_eq!(at("/app/a/r", None).unwrap(), "/h/a/t/app a/r");
        assert_eq!(at("/var/tmp/r", None).unwrap(), "/h/a/t/tmp r");
        assert_eq!(at("/tmp", None).unwrap(), "/h/a/t/tmp ");
        assert_eq!(at("/etc/passwd", None), None);
        let upper = "/h/a/t/.root/upper etc/r";
        assert_eq!(at("/etc/r", Some("/srv/root")).unwrap(), upper);
        assert_eq!(at("/tmp/r", Some("/srv/root")).unwrap(), "/h/a/t/tmp r");
    }
}
