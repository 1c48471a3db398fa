//! Writes with an unknown outcome, such as those under way when a leader is lost. This module repeats them,
//! because Diego's requests have no key for a safe retry by the client.

use tokio::time::{Instant, sleep, timeout_at};

use super::proto::Error;
use super::proto::error::Kind;
use crate::handle::ProposeError;
use crate::limits;

/// An answered write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WriteOutcome<T> {
    pub(super) outcome: T,
    /// An earlier attempt may have been carried out.
    pub(super) repeated: bool,
}

/// Repeats `write` until its outcome is known or the client's time limit has passed.
pub(super) async fn until_known<T, F>(write: impl Fn() -> F) -> Result<WriteOutcome<T>, Error>
where
    F: Future<Output = Result<T, ProposeError>>,
{
    let deadline = Instant::now() + limits::BBS_WRITE_WAIT;
    let mut repeated = false;
    loop {
        match timeout_at(deadline, write()).await {
            Ok(Ok(outcome)) => return Ok(WriteOutcome { outcome, repeated }),
            Ok(Err(error)) if !is_passing(&error) => return Err(error.into()),
            Ok(Err(error)) if Instant::now() >= deadline => return Err(error.into()),
            Ok(Err(error)) => tracing::debug!(%error, "a write of Diego's client is repeated"),
            Err(_elapsed) => return Err(unknown("no server leads")),
        }
        repeated = true;
        sleep(limits::BBS_RETRY_PAUSE).await;
    }
}

/// Whether another leader may answer the same write.
fn is_passing(error: &ProposeError) -> bool {
    matches!(
        error,
        ProposeError::Timeout { .. } | ProposeError::NotLeader { .. }
    )
}

/// The error for a write with an unknown outcome.
pub(super) fn unknown(reason: &str) -> Error {
    let message = format!(
        "the change may or may not have been made ({reason}): ask for the task before trying again"
    );
    Error::of(Kind::Timeout, message)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    fn lost() -> ProposeError {
        ProposeError::Timeout {
            waited: Duration::ZERO,
            reason: "the leader was lost".to_owned(),
        }
    }

    /// A write that is answered after `failures` lost answers.
    async fn after(failures: u32) -> (Result<WriteOutcome<()>, Error>, u32) {
        let attempts = Cell::new(0);
        let known = until_known(|| {
            attempts.set(attempts.get() + 1);
            let is_lost = attempts.get() <= failures;
            async move { if is_lost { Err(lost()) } else { Ok(()) } }
        });
        (known.await, attempts.get())
    }

    #[tokio::test(start_paused = true)]
    async fn lost_write_is_repeated() {
        let known = |repeated| WriteOutcome {
            outcome: (),
            repeated,
        };

        assert_eq!(after(0).await, (Ok(known(false)), 1));
        assert_eq!(after(2).await, (Ok(known(true)), 3));
    }

    #[tokio::test(start_paused = true)]
    async fn repetition_ends_with_the_clients_time() {
        let (error, attempts) = after(u32::MAX).await;
        let error = error.unwrap_err();

        assert!(attempts > 2);
        assert_eq!(error.kind(), Kind::Timeout);
        assert!(!error.message.contains("key"), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_write_is_not_repeated() {
        let attempts = Cell::new(0);
        let known = until_known(|| {
            attempts.set(attempts.get() + 1);
            async { Err::<(), _>(ProposeError::TooLarge { bytes: 1 }) }
        });

        known.await.unwrap_err();
        assert_eq!(attempts.get(), 1);
    }
}
