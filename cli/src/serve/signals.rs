//! Waiting for the signal to end.

use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{CliError, Exit};

/// Resolves at SIGTERM or SIGINT; says which.
pub(super) async fn terminated() -> Result<&'static str, CliError> {
    let failed =
        |error| CliError::new(Exit::Failed, format!("signals cannot be received: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
