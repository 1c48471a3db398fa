//! The progress of a tree's actions, in a file for the next driver.
//!
//! The file has one line of a fixed size for each action of the tree, in the order of the tree. A line is written
//! before its action starts, once its process exists, and when it has ended. Each write replaces one line in one call,
//! so that a dying driver leaves every line complete. The file has its full size from the start, so the progress can
//! be recorded even when the task's disk is full.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use muster_domain::one_off::{ACTIONS_MAX, Action};
use muster_driver::TaskConfig;

use crate::isolation::task_dir;
use crate::process::Process;
use crate::{limits, paths};

/// The name of the file in the task's directory.
const FILE: &str = ".action";
/// Bytes of a line; the longest content has 45.
const LINE_BYTES: usize = 64;

/// The progress of one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActionProgress {
    /// The action was started, and may have no process.
    Begun,
    /// The action runs, or ran, as the process with this pid and start time.
    Process(i32, u64),
    /// The action ended with this exit code; 0 if it has no process and succeeded.
    Ended(i32),
    /// A timeout that expires at this time since the machine's boot, in milliseconds.
    Until(u64),
}

impl ActionProgress {
    fn to_line(self) -> String {
        let text = match self {
            Self::Begun => "begun".to_owned(),
            Self::Process(pid, start_ticks) => format!("process {pid} {start_ticks}"),
            Self::Ended(code) => format!("ended {code}"),
            Self::Until(milliseconds) => format!("until {milliseconds}"),
        };
        format!("{text:<width$}\n", width = LINE_BYTES - 1)
    }

    /// Parses a line; `None` for an action that was not started.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["process", pid, start_ticks] => {
                let process = (pid.parse().ok()?, start_ticks.parse().ok()?);
                Some(Self::Process(process.0, process.1))
            }
            ["ended", code] => Some(Self::Ended(code.parse().ok()?)),
            ["until", milliseconds] => Some(Self::Until(milliseconds.parse().ok()?)),
            [] => None,
            // A line in an unknown form also counts as started, because its action must not be started again.
            _ => Some(Self::Begun),
        }
    }
}

/// The progress of all started actions, by their places in the tree.
pub(super) type Progress = BTreeMap<String, ActionProgress>;

/// The progress file of one tree.
#[derive(Debug)]
pub(super) struct ProgressFile {
    /// `None` for a task without a directory: no other driver can continue its tree.
    file: Option<File>,
    /// The numbers of lines, by places in the tree.
    lines: BTreeMap<String, u64>,
}

impl ProgressFile {
    /// Creates the file of a tree without started actions.
    pub(super) fn create(config: &TaskConfig, tree: &Action) -> io::Result<Self> {
        let lines = lines_of(tree);
        let file = match task_dir(config) {
            Some(dir) => {
                let mut file = paths::create_own_file(&dir, FILE).map_err(io::Error::other)?;
                let empty = format!("{:<width$}\n", "", width = LINE_BYTES - 1);
                file.set_len(0)?;
                file.write_all(empty.repeat(lines.len()).as_bytes())?;
                Some(file)
            }
            None => None,
        };
        Ok(Self { file, lines })
    }

    /// Opens the file of an earlier driver and returns its content. Returns `None` if the file cannot be read.
    pub(super) fn open(config: &TaskConfig, tree: &Action) -> Option<(Self, Progress)> {
        let dir = task_dir(config)?;
        let lines = lines_of(tree);
        let mut text = String::new();
        let bytes_max = (ACTIONS_MAX * LINE_BYTES) as u64;
        let file = paths::open_own_file(&dir, FILE).ok()?;
        file.take(bytes_max).read_to_string(&mut text).ok()?;
        let found = parse(&lines, &text)?;
        let file = Some(paths::create_own_file(&dir, FILE).ok()?);
        Some((Self { file, lines }, found))
    }

    /// Records the progress of the action at the place `action_path`.
    pub(super) fn write(&self, action_path: &str, progress: ActionProgress) -> io::Result<()> {
        let (Some(file), Some(line)) = (&self.file, self.lines.get(action_path)) else {
            return Ok(());
        };
        let line_at = line * LINE_BYTES as u64;
        file.write_all_at(progress.to_line().as_bytes(), line_at)
    }

    /// Records the process of the action at the place `action_path`.
    pub(super) fn write_process(&self, action_path: &str, process: &Process) -> io::Result<()> {
        self.write(
            action_path,
            ActionProgress::Process(process.pid, process.start_ticks),
        )
    }
}

/// Parses a file; `None` if the file does not belong to a tree with these lines.
fn parse(lines: &BTreeMap<String, u64>, text: &str) -> Option<Progress> {
    if text.len() != lines.len() * LINE_BYTES {
        return None;
    }
    let written: Vec<&str> = text.lines().collect();
    let found = lines.iter().filter_map(|(action_path, line)| {
        let line = written.get(usize::try_from(*line).ok()?)?;
        Some((action_path.clone(), ActionProgress::parse(line)?))
    });
    Some(found.collect())
}

/// The lines of all actions of a tree, by the places that `tree::ActionStep` gives them.
fn lines_of(tree: &Action) -> BTreeMap<String, u64> {
    let mut lines = BTreeMap::new();
    let mut left = vec![(tree, tree.as_str().to_owned())];
    while let Some((action, action_path)) = left.pop() {
        let children = action.children().iter().enumerate();
        left.extend(children.map(|(index, child)| {
            let word = child.as_str();
            let below = match action {
                Action::Parallel(_) | Action::Serial(_) | Action::Codependent(_) => {
                    format!("{action_path}[{index}].{word}")
                }
                Action::Download(_)
                | Action::Upload(_)
                | Action::Run(_)
                | Action::Timeout(_)
                | Action::EmitProgress(_)
                | Action::Try(_) => format!("{action_path}.{word}"),
            };
            (child, below)
        }));
        lines.insert(action_path, 0);
    }
    for (line, number) in lines.values_mut().zip(0..) {
        *line = number;
    }
    lines
}

/// Returns the time since the machine's boot in milliseconds, including suspended time. Returns 0 without /proc; then
/// a timeout starts again with the next driver.
pub(super) fn boot_milliseconds() -> u64 {
    let uptime = paths::read_host_file("/proc/uptime", limits::KERNEL_FILE_BYTES_MAX);
    uptime.ok().as_deref().and_then(parse_uptime).unwrap_or(0)
}

/// Parses the first number of proc_uptime(5): seconds and hundredths.
fn parse_uptime(text: &str) -> Option<u64> {
    let (seconds, hundredths) = text.split_ascii_whitespace().next()?.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    let hundredths: u64 = hundredths.parse().ok()?;
    Some(seconds.saturating_mul(1_000) + hundredths.min(99) * 10)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tree() -> Action {
        let run = json!({"run": {"path": "x", "user": "u"}});
        let timeout = json!({"timeout": {"action": run, "timeout_ms": 5}});
        serde_json::from_value(json!({"serial": {"actions": [
            run, {"parallel": {"actions": [timeout, {"try": {"action": run}}]}},
        ]}}))
        .unwrap()
    }

    #[test]
    fn each_action_has_a_line() {
        let places: Vec<String> = lines_of(&tree()).into_keys().collect();
        assert_eq!(
            places,
            [
                "serial",
                "serial[0].run",
                "serial[1].parallel",
                "serial[1].parallel[0].timeout",
                "serial[1].parallel[0].timeout.run",
                "serial[1].parallel[1].try",
                "serial[1].parallel[1].try.run",
            ]
        );
    }

    #[test]
    fn progress_is_read_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let config = TaskConfig {
            task_dir: dir.path().to_owned(),
            ..TaskConfig::default()
        };
        assert!(ProgressFile::open(&config, &tree()).is_none());
        let file = ProgressFile::create(&config, &tree()).unwrap();
        let written = [
            ("serial[0].run", ActionProgress::Ended(-1)),
            (
                "serial[1].parallel[0].timeout",
                ActionProgress::Until(u64::MAX),
            ),
            (
                "serial[1].parallel[0].timeout.run",
                ActionProgress::Process(i32::MAX, u64::MAX),
            ),
            ("serial[1].parallel[1].try.run", ActionProgress::Begun),
        ];
        for (action_path, progress) in written {
            file.write(action_path, ActionProgress::Begun).unwrap();
            file.write(action_path, progress).unwrap();
        }

        let (_, found) = ProgressFile::open(&config, &tree()).unwrap();

        let written = written.map(|(action_path, progress)| (action_path.to_owned(), progress));
        assert_eq!(found, Progress::from(written));
    }

    #[test]
    fn uptime_is_read_in_milliseconds() {
        assert_eq!(parse_uptime("350735.47 234388.90\n"), Some(350_735_470));
        assert_eq!(parse_uptime("soon"), None);
    }

    #[test]
    fn file_of_another_tree_is_not_read() {
        let lines = lines_of(&tree());
        assert_eq!(parse(&lines, ""), None);
        assert_eq!(parse(&lines, &" ".repeat(LINE_BYTES)), None);
    }
}
