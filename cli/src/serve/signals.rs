//! Waits for the signals to terminate and to reload files.

use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{CliError, Exit};

/// Resolves at SIGTERM or SIGINT and returns its name. Each SIGHUP before that calls `reload`.
pub(super) async fn wait_for_termination_with_reload(
    reload: impl Fn(),
) -> Result<&'static str, CliError> {
    let mut hangup = signal(SignalKind::hangup()).map_err(signal_error)?;
    let terminated = wait_for_termination();
    tokio::pin!(terminated);
    loop {
        tokio::select! {
            ended = &mut terminated => return ended,
            Some(()) = hangup.recv() => {
                tracing::info!("SIGHUP: looking at the certificates");
                reload();
            }
        }
    }
}

fn signal_error(error: std::io::Error) -> CliError {
    CliError::new(Exit::Failed, format!("signals cannot be received: {error}"))
}

/// Resolves at SIGTERM or SIGINT and returns its name.
pub(super) async fn wait_for_termination() -> Result<&'static str, CliError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(signal_error)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(signal_error)?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
