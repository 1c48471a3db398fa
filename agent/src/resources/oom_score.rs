//! Whom the kernel kills for memory: anybody rather than the agent.
//!
//! A child inherits the value of its parent. Drivers are given [`DEFAULT`] when they are placed, before they are asked
//! to start anything, and so are their tasks.

use std::io;

/// The value of a process for which nobody set one.
pub(crate) const DEFAULT: i16 = 0;

/// Sets it for this process, and says so where that is not possible: the agent runs without it.
pub(crate) fn set_own(score: i16) {
    if let Err(error) = set("self", score) {
        tracing::warn!(score, %error, "the kernel may kill the agent for memory before others");
    }
}

/// Sets it for a process.
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
