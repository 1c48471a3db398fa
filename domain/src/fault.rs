//! A fault in an input: its place and its reason.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A fault in an input.
///
/// Validations return all faults, not only the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The place: a path of field names, such as `group "api" → task "web" → resources.memory`.
    pub path: String,
    /// The reason, and the remedy.
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
