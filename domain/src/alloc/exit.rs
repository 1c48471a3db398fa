//! Ends of processes.

use serde::{Deserialize, Serialize};

/// The end of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 0 if a signal ended the process.
    pub code: i32,
    /// The signal that ended it; 0 if none.
    pub signal: i32,
    /// Whether the kernel killed the process, or one of its children, for lack of memory.
    pub oom_killed: bool,
    /// Whether the code is unknown: neither the driver nor the exit ledger recorded the end.
    pub unknown: bool,
}

impl Exit {
    /// Whether the exit was successful. An out-of-memory kill of a child does not count. The exit code of the main
    /// process shows whether the kill mattered.
    #[must_use]
    pub fn success(self) -> bool {
        self.code == 0 && self.signal == 0 && !self.unknown
    }

    /// A text on how the process ended, for the operator: the exit itself, and then the `detail` if there is one.
    #[must_use]
    pub fn message(self, detail: &str) -> String {
        let mut text = if self.unknown {
            "ended while no driver watched it; its exit code is not known".to_owned()
        } else if self.signal != 0 {
            format!("killed by signal {}", self.signal)
        } else {
            format!("exit code {}", self.code)
        };
        if self.oom_killed {
            text.push_str(", out of memory");
        }
        if !detail.is_empty() {
            text.push_str(": ");
            text.push_str(detail);
        }
        text
    }

    /// The part of `message` that does not repeat the exit. This is the detail of a text by [`Self::message`], or the
    /// whole of any other text.
    #[must_use]
    pub fn detail_of(self, message: &str) -> &str {
        match message.strip_prefix(&self.message("")) {
            Some("") => "",
            Some(rest) => rest.strip_prefix(": ").unwrap_or(message),
            None => message,
        }
    }
}
