//! Logs of the long-running processes: one event a line, on standard error.
//!
//! `MUSTER_LOG` filters (`info` unless set, such as `muster_agent=debug,info`); `MUSTER_LOG_FORMAT=json` prints JSON.

use tracing_subscriber::EnvFilter;

/// Starts logging. A second call changes nothing.
pub(super) fn start() {
    let filter = EnvFilter::try_from_env("MUSTER_LOG").unwrap_or_else(|_| {
        EnvFilter::new("info,openraft=warn,openraft::core::raft_core=error,quinn=warn")
    });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let json = std::env::var_os("MUSTER_LOG_FORMAT").is_some_and(|format| format == "json");
    // An error means that logging was started before.
    drop(if json {
        builder.json().try_init()
    } else {
        builder.with_ansi(false).try_init()
    });
}
