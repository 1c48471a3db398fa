//! The tree of actions that a one-off task carries out.
//!
//! As JSON an action is an object with one field, its kind: `{"run": {…}}`. Words and fields are Diego's. A field that
//! Muster does not implement is refused by name as unknown.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::definition::EnvVar;

/// An action of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Fetches a file or an archive.
    Download(Download),
    Upload(Upload),
    /// Runs a program to its end.
    Run(Run),
    /// Bounds the time of another action.
    Timeout(Timeout),
    /// Logs the start and the end of another action.
    EmitProgress(EmitProgress),
    /// Succeeds even if another action fails.
    Try(Try),
    /// Runs several actions at once and waits for all.
    Parallel(Actions),
    /// Runs several actions in order, up to the first failure.
    Serial(Actions),
    /// Runs several actions at once. When one ends, with success or not, the others are stopped and the whole has
    /// failed.
    Codependent(Actions),
}

impl Action {
    /// The name used in the API.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Download(_) => "download",
            Self::Upload(_) => "upload",
            Self::Run(_) => "run",
            Self::Timeout(_) => "timeout",
            Self::EmitProgress(_) => "emit_progress",
            Self::Try(_) => "try",
            Self::Parallel(_) => "parallel",
            Self::Serial(_) => "serial",
            Self::Codependent(_) => "codependent",
        }
    }

    /// The actions directly below.
    #[must_use]
    pub fn children(&self) -> &[Self] {
        match self {
            Self::Download(_) | Self::Upload(_) | Self::Run(_) => &[],
            Self::Timeout(Timeout { action, .. })
            | Self::EmitProgress(EmitProgress { action, .. })
            | Self::Try(Try { action, .. }) => std::slice::from_ref(&**action),
            Self::Parallel(all) | Self::Serial(all) | Self::Codependent(all) => &all.actions,
        }
    }
}

/// Runs a program to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The program, as the task sees it.
    pub path: String,
    #[serde(default)]
    pub args: Vec<String>,
    /// The working directory, as the task sees it; empty means the task's own.
    #[serde(default)]
    pub dir: String,
    /// Environment, over the task's.
    #[serde(default)]
    pub env: Vec<EnvVar>,
    /// Bounds on the process.
    #[serde(default)]
    pub resource_limits: Option<ResourceLimits>,
    /// The user to run as: a name. `vcap` is the driver's default, as it is in Diego's cells.
    pub user: String,
    /// The source name of the action's log lines and of its failure. Empty means the task's, or `LOG` if that is empty
    /// too.
    #[serde(default)]
    pub log_source: String,
    /// Whether the output is dropped.
    #[serde(default)]
    pub suppress_log_output: bool,
}

/// Bounds on a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceLimits {
    /// Open files, soft and hard.
    #[serde(default)]
    pub nofile: Option<u64>,
}

/// Fetches a file or an archive; archives (tar, tar.gz, zip, recognized by their content) are unpacked.
///
/// The node fetches with its own network and writes the content with the rights of the task. Content other than an
/// archive becomes a file, named by the end of its URL. An archive fails if it has devices, or names or links that lead
/// out of `to`. It also fails if it unpacks to more than the task's disk. Set-id bits, owners and times are not kept. A
/// transient failure leads to three attempts.
///
/// Nothing is cached, so there is no field `cache_key`. Diego's protocol has one. It is ignored because it never
/// changed the fetched content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Download {
    /// A name of the fetched content, for the log.
    #[serde(default)]
    pub artifact: String,
    /// An `http`, `https` or `file` URL. A `file` URL must be below `allow_downloads` of the native driver's
    /// configuration. A node fetches from itself only with `allow_local_transfers`.
    pub from: String,
    /// A directory, as the task sees it. It is created if it does not exist.
    pub to: String,
    /// The user that owns the fetched content and with whose rights it is written.
    pub user: String,
    /// The name on the action's log lines.
    #[serde(default)]
    pub log_source: String,
    /// `md5`, `sha1` or `sha256`; empty for none.
    #[serde(default)]
    pub checksum_algorithm: String,
    /// The checksum of the fetched bytes before unpacking, in hexadecimal digits.
    #[serde(default)]
    pub checksum_value: String,
}

/// Sends a file by `POST`, with its MD5 and SHA-256 as `Content-MD5` and `Content-Digest`, or puts it into a directory of
/// the node.
///
/// The whole file is read with the rights of the task before the node sends it. A transient failure leads to three
/// attempts, so the file may arrive more than once. Redirects are not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upload {
    /// A name of the sent content, for the log.
    #[serde(default)]
    pub artifact: String,
    /// A regular file, as the task sees it, no larger than the task's disk.
    pub from: String,
    /// An `http`, `https` or `file` URL. A `file` URL must be below `allow_uploads` of the native driver's
    /// configuration. The file appears atomically and replaces an existing file of its name.
    pub to: String,
    /// The user with whose rights the file is read.
    pub user: String,
    /// The name on the action's log lines.
    #[serde(default)]
    pub log_source: String,
}

/// Bounds the time of another action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeout {
    pub action: Box<Action>,
    /// The bound in milliseconds.
    pub timeout_ms: i64,
    /// The name on the action's log lines.
    #[serde(default)]
    pub log_source: String,
}

impl Timeout {
    /// The bound.
    #[must_use]
    pub fn bound(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.timeout_ms).unwrap_or(0))
    }
}

/// Logs the start and the end of another action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmitProgress {
    pub action: Box<Action>,
    #[serde(default)]
    pub start_message: String,
    /// The log line after a success.
    #[serde(default)]
    pub success_message: String,
    /// The prefix of the log line after a failure; the reason follows.
    #[serde(default)]
    pub failure_message_prefix: String,
    /// The name on these log lines.
    #[serde(default)]
    pub log_source: String,
}

/// Succeeds even if another action fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Try {
    /// The action to try.
    pub action: Box<Action>,
    /// The name on the action's log lines.
    #[serde(default)]
    pub log_source: String,
}

/// Several actions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Actions {
    pub actions: Vec<Action>,
    /// The name on the actions' log lines.
    #[serde(default)]
    pub log_source: String,
}

/// A duration as Go prints it: `500ms`, `2s`, `1m0s`, `1h0m0s`; clients compare failure reasons that name one.
#[must_use]
pub fn go_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    let fraction = |value: u128, unit: u128, name: &str| {
        let digits = unit.ilog10() as usize;
        let rest = format!("{:0digits$}", value % unit);
        let rest = rest.trim_end_matches('0');
        let whole = value / unit;
        if rest.is_empty() || digits == 0 {
            format!("{whole}{name}")
        } else {
            format!("{whole}.{rest}{name}")
        }
    };
    match nanos {
        0..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => fraction(nanos, 1_000, "µs"),
        1_000_000..1_000_000_000 => fraction(nanos, 1_000_000, "ms"),
        _ => {
            let minutes = duration.as_secs() / 60;
            let seconds = fraction(nanos % 60_000_000_000, 1_000_000_000, "s");
            match (minutes / 60, minutes % 60) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
}
