//! Output of tasks.

use muster_domain::job as domain;
use serde::{Deserialize, Serialize};

/// How a task's output is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LogConfig {
    /// Nothing of it is taken.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    pub max_files: u32,
    #[serde(rename = "MaxFileSizeMB")]
    pub max_file_size_mb: u32,
    /// The most output that is taken in a second, such as `1mb`: a number and kb, mb or gb (1 024, 1 024² and 1 024³
    /// bytes). Absent if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// The treatment of output above `rate`: `drop`; absent for `block`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<String>,
    /// The treatment of output while the disk is full: `drop`; absent for `block`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_full: Option<String>,
}

impl From<domain::LogConfig> for LogConfig {
    fn from(logs: domain::LogConfig) -> Self {
        if logs.is_disabled() {
            return Self {
                disabled: true,
                ..Self::from(domain::LogConfig::default())
            };
        }
        let domain::LogConfig {
            max_files,
            max_file_size,
            rate,
            on_limit,
            on_full,
        } = logs;
        let said = |overflow: domain::LogOverflow| {
            (overflow != domain::LogOverflow::default()).then(|| overflow.as_str().to_owned())
        };
        Self {
            disabled: false,
            max_files,
            max_file_size_mb: max_file_size.0,
            rate: rate.map(|rate| rate.to_string()),
            on_limit: said(on_limit),
            on_full: said(on_full),
        }
    }
}
