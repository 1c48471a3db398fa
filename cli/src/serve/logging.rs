//! Logs of the long-running processes: one event a line, on standard error.
//!
//! `MUSTER_LOG` filters (`info` unless set, such as `muster_agent=debug,info`); `MUSTER_LOG_FORMAT=json` prints JSON.

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use super::log_limit::LogLimit;

/// openraft warns of every failed heartbeat. Instead, `control::peers` logs when a server goes out of reach.
const DEFAULT_FILTER: &str = "info,openraft=error,quinn=warn";

/// Starts logging. A second call changes nothing.
pub(super) fn start() {
    let filter =
        EnvFilter::try_from_env("MUSTER_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let json = std::env::var_os("MUSTER_LOG_FORMAT").is_some_and(|format| format == "json");
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = if json {
        lines.json().boxed()
    } else {
        lines.with_ansi(false).boxed()
    };
    let limit = LogLimit::default();
    let subscriber = tracing_subscriber::registry()
        .with(filter)
        .with(limit.clone())
        .with(lines);
    // An error means that logging was started before.
    if subscriber.try_init().is_ok() {
        limit.start_summaries();
    }
}
