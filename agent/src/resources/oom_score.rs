//! The order in which the kernel kills processes when memory runs out: the agent last.
//!
//! A child inherits the value of its parent. Drivers get [`DEFAULT`] when they are placed, before they are asked to
//! start a task, and so do their tasks.

use std::io;

/// The value of a process whose value was never set.
pub(crate) const DEFAULT: i16 = 0;

/// Sets the value for this process. A failure is only logged, because the agent can run without it.
pub(crate) fn set_own(score: i16) {
    if let Err(error) = set("self", score) {
        tracing::warn!(score, %error, "the kernel may kill the agent for memory before others");
    }
}

/// Sets the value for a process.
pub(crate) fn set_for(pid: u32, score: i16) {
    match set(&pid.to_string(), score) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(pid, score, %error, "a driver and its tasks have the agent's OOM score");
        }
    }
}

fn set(process: &str, score: i16) -> io::Result<()> {
    let path = format!("/proc/{process}/oom_score_adj");
    std::fs::write(&path, score.to_string())?;
    let found = std::fs::read_to_string(&path)?;
    if found.trim() == score.to_string() {
        return Ok(());
    }
    let found = found.trim();
    Err(io::Error::other(format!("{path} reads {found}")))
}
