//! One thing wrong with an input: where and why.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing wrong with an input.
///
/// Analyses return all faults they find, not the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Where: a path of field names, such as `group "api" → task "web" → resources.memory`.
    pub path: String,
    /// Why, and what to do about it.
    pub reason: String,
}

impl Fault {
    /// A fault at `path`.
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}
